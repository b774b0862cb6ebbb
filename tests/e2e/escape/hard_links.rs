//! B35: another name for the same file, in a writable directory. A mount covers a name and not a file.

use std::fs;
use std::os::unix::fs::MetadataExt;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b35_hard_links", attack);
}

fn attack(cx: &Cx) {
    fs::create_dir(cx.dir().join("secrets")).expect("a directory");
    for (name, text) in [(".envrc", "mine\n"), ("secrets/key", "hunter2\n"), ("plain", "plain\n")] {
        fs::write(cx.dir().join(name), text).expect("a file");
    }
    for name in [".envrc", "secrets", "secrets/key", "plain"] {
        cx.bench().give(&cx.dir().join(name), cx.is_root());
    }
    // Source and target on the same mount, on different ones, and the link that Linux makes of an open descriptor.
    let script = "
        ln .envrc alias 2>/dev/null && (echo evil >>alias) 2>/dev/null && echo linked-protected
        ln secrets/key alias2 2>/dev/null && cat alias2
        ln -P .envrc /tmp/alias 2>/dev/null && echo linked-elsewhere
        python3 -c 'import os
f = os.open(\".envrc\", os.O_RDONLY)
os.link(\"/proc/self/fd/%d\" % f, \"alias3\", follow_symlinks=True)' 2>/dev/null && echo linked-descriptor
        ln plain plain2 && echo plain-linked";
    let done = cx.exeat(["run", "--mask", "secrets", "--", "sh", "-c", script]).run();
    assert_eq!(done.stdout(), "plain-linked\n", "{done:?}");
    for name in [".envrc", "secrets/key"] {
        let meta = fs::metadata(cx.dir().join(name)).expect("still there");
        assert_eq!(meta.nlink(), 1, "{name}");
    }
    // The control: without the sandbox each link is made.
    cx.outside(["sh", "-c", "ln .envrc alias && ln secrets/key alias2 && echo linked"])
        .run()
        .prints("linked\n");
}
