//! B33: the caller's arguments that look like options of bubblewrap.

use std::fs;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b33_words_that_look_like_options", attack);
}

fn attack(cx: &Cx) {
    cx.run(&[], ["--bind", "/", "/"]).run().exits(127);
    let odd = cx.home().join("--ro-bind");
    fs::create_dir(&odd).expect("an odd name");
    cx.bench().give(&odd, cx.is_root());
    cx.sh(&[], "pwd; echo x >made").cwd(&odd).run().exits(0).prints(&format!("{}\n", odd.display()));
    cx.run(&[], ["echo", "--", "--help", "-c"]).run().exits(0).prints("-- --help -c\n");
}
