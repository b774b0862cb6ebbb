//! B08: what is typed into the caller's terminal runs in the caller's shell.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b08_terminal_input", attack);
}

fn attack(cx: &Cx) {
    if !["/usr/bin/script", "/bin/script"].iter().any(|path| std::path::Path::new(path).exists()) {
        cx.cannot("script(1) is not installed");
    }
    let exeat = cx.bench().bin.join("exeat").display().to_string();
    let on_a_terminal =
        |command: &str| cx.outside(["script", "-qec", command, "/dev/null"]).env("SHELL", "/bin/sh").run();
    let open = on_a_terminal(&format!("{} tiocsti", cx.probe())).stdout().contains("ok");
    let done = on_a_terminal(&format!("{exeat} run -- {} tiocsti", cx.probe()));
    let said = done.stdout();
    assert!(
        !said.contains("ok") && ["EPERM", "EACCES", "ENOTTY", "EIO"].iter().any(|error| said.contains(error)),
        "{done:?}"
    );
    if !open {
        cx.cannot("this kernel has no TIOCSTI left");
    }
}
