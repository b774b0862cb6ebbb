//! B20: a standard stream is an object of the host's. It must not become a way to the host's network or files.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.bridges("escape::b20_directory_as_standard_input", directory);
    list.bridges("escape::b20_reopened_for_writing", reopened);
}

fn directory(cx: &Cx) {
    let made = cx.dir().join("made");
    cx.sh(&[], "touch made").redirect("</").run().exits(2).says("standard input is a directory");
    assert!(!made.exists(), "nothing may have run");
}

/// A9: outside, `/proc/self/fd/0` opens anew for writing what was opened for reading; the control shows it.
fn reopened(cx: &Cx) {
    let script = "{ echo changed >/proc/self/fd/0; } 2>/dev/null; cat";
    let file = cx.home().join("kept");
    let from = format!("<{}", file.display());
    let owner = fs::metadata(cx.dir()).expect("the directory").uid();
    for (inside, left) in [(true, "as it was\n"), (false, "changed\n")] {
        fs::write(&file, "as it was\n").expect("a file outside the view");
        chown(&file, Some(owner), None).expect("the caller's file");
        let run = if inside { cx.sh(&[], script) } else { cx.outside(["sh", "-c", script]) };
        run.redirect(&from).run().exits(0);
        assert_eq!(fs::read_to_string(&file).expect("the file"), left, "inside: {inside}");
    }
}
