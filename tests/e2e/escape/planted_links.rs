//! K3, N16: one run leaves a link on the path where the next one mounts something. bubblewrap makes missing
//! directories, and would make this one wherever on the host the link leads.

use std::fs;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::k3_a_planted_link_on_the_way_to_a_mount", attack);
}

fn attack(cx: &Cx) {
    let victim = cx.home().join("victim");
    let (dir, file) = (cx.home().join("shown"), cx.home().join("shown/f"));
    for path in [&victim, &dir] {
        fs::create_dir(path).expect("directory");
    }
    fs::write(&file, "shown\n").expect("file");
    for path in [&victim, &dir, &file] {
        cx.bench().give(path, cx.is_root());
    }
    let data = cx.dir().join("data");
    let place =
        |host: &std::path::Path, name: &str| format!("{}:{}", host.display(), data.join(name).display());
    let (one, other) = (place(&file, ".created"), place(&dir, "sub/dir"));
    let next = || {
        cx.exeat(["run", "--ro", &one, "--rw", &other, "--", "sh", "-c", "cat data/.created; touch started"])
    };
    let plant = |target: &str| {
        let script = format!("if [ -e data ]; then rm -r data; fi; ln -s {target} data; readlink data");
        cx.exeat(["run", "--", "sh", "-c", &script]).run().exits(0).prints(&format!("{target}\n"));
    };
    let oldroot = format!("/oldroot{}", victim.display());
    for target in [oldroot.as_str(), victim.to_str().expect("UTF-8"), "../victim", "/usr"] {
        plant(target);
        next().run().exits(2).says("cannot be shown").says("symbolic link");
        assert_eq!(
            fs::read_dir(&victim).expect("victim").count(),
            0,
            "{target}: made outside of what may be written"
        );
        assert!(!cx.dir().join("started").exists(), "{target}");
        fs::remove_file(&data).expect("the link");
    }
    // exeat follows a link that stays in the directory.
    cx.exeat(["run", "--", "sh", "-c", "mkdir real; ln -s real data"]).run().exits(0);
    next().run().exits(0).prints("shown\n");
    assert!(cx.dir().join("real/.created").exists() && cx.dir().join("started").exists());
}
