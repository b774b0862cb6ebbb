//! B20: descriptors that the caller had open: files, directories, sockets.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b20_inherited_descriptors", attack);
}

fn attack(cx: &Cx) {
    let secret = cx.home().join("secret");
    std::fs::write(&secret, "hunter2").expect("secret");
    let redirect = format!("5<{} 7</etc 9<{}", secret.display(), cx.home().display());
    let outside = cx.outside([cx.probe(), "fds"]).redirect(&redirect).run();
    outside.shows("5=").shows("7=/etc").shows("9=");
    let done = cx.probing(&[], "fds").redirect(&redirect).run();
    let said = done.exits(0).stdout();
    let numbers: Vec<&str> = said.split_whitespace().filter_map(|word| word.split('=').next()).collect();
    assert_eq!(numbers, ["0", "1", "2"], "{done:?}");
}
