//! B11: the kernel writes to a file of the host for a stage after nobody has the file open any more.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use e2e::case::{Cases, Cx};
use e2e::wait_for;

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b11_a_read_that_ends_late_plants_nothing", plant_late);
}

/// A stage maps the configuration that git is about to rename, and starts a direct read into it that waits for others.
/// exeat judges the file before the data arrives, and must not keep it. A build that kept files with harmless content
/// failed in 12 of 12 runs.
/// If the disk is faster than exeat, the round shows nothing and is repeated.
fn plant_late(cx: &Cx) {
    /// The reads of a megabyte that the last one waits for.
    const OTHERS: &str = "200";
    let git = |words: &[&str]| cx.outside([&["git"], words].concat()).cwd(cx.dir()).run();
    git(&["init", "-q", "-b", "main", "."]).exits(0);
    git(&["config", "remote.origin.url", "https://git.test/some/path/repository.git"]).exits(0);
    cx.write("evil", "#!/bin/sh\ntouch OWNED\n");
    cx.outside(["chmod", "755", "evil"]).cwd(cx.dir()).run().exits(0);
    let (config, lock) = (cx.dir().join(".git/config"), cx.dir().join(".git/config.lock"));
    let words = fs::read_to_string(&config).expect("a configuration");
    let size = words.len().to_string();
    let mut was_late = false;
    for _ in 0..5 {
        let mut live =
            cx.exeat(["run", "--", cx.probe(), "plant-late", ".git/config.lock", &size, OTHERS]).start();
        live.until_prints("ready");
        // git writes this if a value stays the same.
        fs::copy(&config, &lock).expect("a file");
        cx.bench().give(&lock, cx.is_root());
        let inode = fs::metadata(&lock).expect("a file").ino();
        live.until_prints("submitted");
        fs::rename(&lock, &config).expect("git's rename");
        wait_for(Duration::from_secs(10), "the end of the read", || {
            let is_judged = fs::metadata(&config).is_ok_and(|about| about.ino() != inode);
            let has_arrived = live.printed().contains("bytes after");
            was_late |= is_judged && !has_arrived;
            (has_arrived || live.ended()).then_some(())
        });
        wait_for(Duration::from_secs(5), "the words of the host", || {
            fs::read_to_string(&config).is_ok_and(|text| text == words).then_some(())
        });
        let done = live.wait();
        done.exits(0).says(".git/config` was replaced on the host");
        assert_eq!(fs::read_to_string(&config).expect("a configuration"), words, "{done:?}");
        assert_ne!(fs::metadata(&config).expect("a configuration").ino(), inode, "{done:?}");
        git(&["status", "--short"]).exits(0);
        assert!(!cx.dir().join("OWNED").exists(), "the host ran the stage's program: {done:?}");
        if was_late {
            return;
        }
    }
}
