//! B08: input for the caller's terminal runs in the caller's shell. A stage on a terminal has a private one, and cannot
//! reach the caller's.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use e2e::case::{Cases, Cx};

use super::outside;

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b08_terminal_input", input);
    list.users("escape::b08_terminal_requests", requests);
    list.users("escape::b08_the_caller_s_terminal_is_not_there", not_there);
    list.users("escape::b08_settings_of_the_caller_s_terminal", settings);
}

/// Pushes input into the stage's private terminal, and into the caller's if the stage has that.
fn input(cx: &Cx) {
    let probe = format!("{} tiocsti", cx.probe());
    let mut control = cx.outside(["sh", "-c", &probe]).on_terminal();
    let open = control.rest(Duration::from_millis(300)).contains("ok");
    control.wait();
    let exeat = cx.bench().bin.join("exeat").display().to_string();
    for (flags, behind) in [("", ""), ("--set sandbox.tty=off", ""), ("", "| cat")] {
        let script = format!("{exeat} run --quiet {flags} -- {probe} {behind}");
        let mut screen = cx.outside(["sh", "-c", &script]).on_terminal();
        screen.wait();
        let said = screen.rest(Duration::from_millis(100));
        assert!(said.contains("EPERM") && !said.contains("ok") && !said.contains('#'), "{script}: {said}");
    }
    if !open {
        cx.cannot("this kernel has no TIOCSTI left");
    }
}

/// Requests that no stage needs are refused on any descriptor; outside the kernel checks the descriptor.
fn requests(cx: &Cx) {
    for name in ["TIOCLINUX", "TIOCCONS", "TIOCSETD", "TIOCEXCL"] {
        let words = format!("terminal-request {name} 99");
        assert_eq!(outside(cx, &words).stdout(), "EBADF\n", "{name}");
        cx.probing(&[], &words).run().exits(0).prints("EPERM\n");
    }
    let words = ["terminal-request", "TIOCSETD", "0"];
    let mut control = cx.outside([&[cx.probe()], &words[..]].concat()).on_terminal();
    control.until("ok\r\n");
    let mut screen = cx.run(&[], [&[cx.probe()], &words[..]].concat()).on_terminal();
    screen.until("EPERM\r\n");
    screen.wait();
}

/// No path and no descriptor leads to it. With `sandbox.tty=off` the streams do, and the same search finds it.
fn not_there(cx: &Cx) {
    let search = "for it in /proc/self/fd/* /proc/[0-9]*/fd/* /dev/pts/* /dev/tty* /dev/console; do
                    stat -L -c 'is %d:%i' \"$it\" 2>/dev/null; done; echo end; read -r word; exit 0";
    for (tty, found) in [("auto", false), ("off", true)] {
        let mut screen =
            cx.exeat(["run", "--set", &format!("sandbox.tty={tty}"), "--", "sh", "-c", search]).on_terminal();
        let meta = std::fs::metadata(screen.name()).expect("the terminal");
        let said = screen.until("end\r\n");
        assert_eq!(said.contains(&format!("is {}:{}\r\n", meta.dev(), meta.ino())), found, "{tty}: {said}");
        screen.types("\r");
        assert_eq!(screen.wait(), 0);
    }
}

/// The stage changes the settings of its terminal. With `sandbox.tty=off` it changes the caller's.
fn settings(cx: &Cx) {
    let script = "stty -echo -icanon rows 7 cols 8; stty intr ^X; echo set; read -r word; exit 0";
    for (tty, own) in [("auto", true), ("off", false)] {
        let mut screen =
            cx.exeat(["run", "--set", &format!("sandbox.tty={tty}"), "--", "sh", "-c", script]).on_terminal();
        let before = screen.settings();
        screen.until("set\r\n");
        screen.types("\r");
        assert_eq!(screen.wait(), 0);
        assert_eq!(screen.settings() == before, own, "{tty}");
    }
}
