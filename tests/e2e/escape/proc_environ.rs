//! B09: the environment and arguments of bwrap are readable at /proc/1, whatever `--clearenv` does for the stage.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b09_environ_of_pid_one", attack);
    list.matrix("escape::b18_variables_of_the_loader", loader);
}

fn attack(cx: &Cx) {
    let words = [
        "bwrap",
        "--unshare-all",
        "--clearenv",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        cx.probe(),
        "environ",
        "1",
    ];
    let bare = cx.outside(words).env("SECRET", "hunter2").run();
    bare.shows("hunter2");
    let script = format!(
        "{} environ 1; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' ' '; echo end",
        cx.probe()
    );
    let done = cx.sh(&[], &script).env("SECRET", "hunter2").run();
    let said = done.exits(0).stdout();
    assert!(said.ends_with("end\n") && !said.contains("hunter2"), "{done:?}");
    let arguments = cx.run(&[], ["cat", "/proc/1/cmdline"]).run().stdout();
    assert!(
        !arguments.contains("/var/tmp") && !arguments.contains("/run/user"),
        "pid 1 tells of the host: {arguments}"
    );
}

/// B18: loader variables, which could also load code, reach exeat, whose caller set them, but nothing that it starts on
/// the host: with these, the loader writes a file for each process.
fn loader(cx: &Cx) {
    let traces = cx.home().join("loader");
    let asked = |words: &[&str]| {
        std::fs::create_dir(&traces).expect("a directory");
        cx.bench().give(&traces, cx.is_root());
        let done = cx
            .exeat(words)
            .env("LD_DEBUG", "files")
            .env("LD_DEBUG_OUTPUT", traces.join("of").to_str().expect("ASCII"))
            .run();
        let count = std::fs::read_dir(&traces).expect("the directory").count();
        std::fs::remove_dir_all(&traces).expect("the directory");
        (count, done.exits(0).stdout())
    };
    let (own, _) = asked(&["--version"]);
    assert!(own > 0, "the control failed: the loader writes nothing");
    let (all, said) = asked(&["run", "--", "sh", "-c", "env | grep ^LD_ || echo none"]);
    assert_eq!(all, own, "bubblewrap has them too");
    // If it may not write its file, exeat's own loader writes here.
    assert!(said.ends_with("none\n"), "{said}");
}
