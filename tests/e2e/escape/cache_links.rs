//! B14: root with another user's HOME, as after `sudo -E`. That user has put a link at the path of the cache.

use std::fs;
use std::os::unix::fs::{chown, lchown, symlink};

use e2e::bench::ORDINARY;
use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.root("escape::b14_a_cache_behind_a_link", attack);
    list.once("escape::b14_no_stage_makes_the_directory_of_caches", missing_base);
    list.bridges("escape::l01_a_cache_behind_the_caller_s_link_is_used", own_link);
}

/// A stage that made it could choose what later runs find in it.
fn missing_base(cx: &Cx) {
    let cache = cx.home().join(".cache");
    for (name, option) in [("first", "fs.cache=none"), ("second", "fs.cache=private")] {
        let _ = fs::remove_dir_all(&cache);
        fs::create_dir(&cache).expect("a directory");
        chown(&cache, Some(ORDINARY), Some(ORDINARY)).expect("chown");
        let rw = cache.to_str().expect("ASCII");
        let script = format!("mkdir -p {rw}/exeat/{name} || echo refused");
        let done = cx.exeat(["run", "--set", option, "--rw", rw, "--", "sh", "-c", &script]).run();
        done.exits(0).prints("refused\n");
        assert!(!cache.join("exeat").join(name).exists());
    }
}

/// A home with a quota often has its cache on another disk.
fn own_link(cx: &Cx) {
    let scratch = cx.home().join("scratch");
    fs::create_dir(&scratch).expect("a directory");
    let _ = fs::remove_dir(cx.home().join(".cache"));
    symlink("scratch", cx.home().join(".cache")).expect("a link");
    for path in [scratch.clone(), cx.home().join(".cache")] {
        lchown(path, Some(ORDINARY), Some(ORDINARY)).expect("chown");
    }
    for _ in 0..2 {
        let done = cx.sh(&[], "touch /run/exeat/cache/made && echo it-ran").run();
        assert!(!done.exits(0).prints("it-ran\n").stderr().contains("cache"), "{done:?}");
    }
    let mut kept = fs::read_dir(scratch.join("exeat")).expect("made").flatten();
    assert!(kept.any(|entry| entry.path().join("made").exists()));
}

fn attack(cx: &Cx) {
    let (home, victim) = (cx.home().join("theirs"), cx.home().join("victim"));
    fs::create_dir_all(home.join(".cache")).expect("a home");
    fs::create_dir(&victim).expect("a directory");
    for path in [&home, &home.join(".cache")] {
        chown(path, Some(ORDINARY), Some(ORDINARY)).expect("chown");
    }
    let script = "touch /run/exeat/cache/made && echo it-ran";
    let run = || cx.sh(&[], script).env("HOME", home.to_str().expect("ASCII")).run();
    let plant = |name: &str| {
        symlink(&victim, home.join(name)).expect("a link");
        lchown(home.join(name), Some(ORDINARY), Some(ORDINARY)).expect("chown");
    };
    for name in [".cache/exeat", ".cache"] {
        plant(name);
        run().exits(0).prints("it-ran\n").says("the package cache is in memory and ends with the run");
        assert_eq!(
            fs::read_dir(&victim).expect("victim").count(),
            0,
            "{name}: root made something behind it"
        );
        fs::remove_file(home.join(name)).expect("the link");
        if name == ".cache/exeat" {
            fs::remove_dir(home.join(".cache")).expect("the directory");
        }
    }
    // Without a link nothing is made there either: the user's own runs would find a cache that belongs to root.
    run().exits(0).prints("it-ran\n").says("is another user's").says("by XDG_CACHE_HOME");
    assert_eq!(fs::read_dir(&home).expect("theirs").count(), 0, "root made something in another user's home");
    // In root's own directory it is made, and lasts.
    let own = cx.home().join("roots");
    fs::create_dir(&own).expect("a directory");
    let xdg = own.to_str().expect("ASCII");
    let done = cx.sh(&[], script).env("HOME", home.to_str().expect("ASCII")).env("XDG_CACHE_HOME", xdg).run();
    done.exits(0).prints("it-ran\n");
    let mut kept = fs::read_dir(own.join("exeat")).expect("made").flatten();
    assert!(kept.any(|entry| entry.path().join("made").exists()));
    // A link of the user's in it is not followed.
    fs::rename(own.join("exeat"), own.join("away")).expect("rename");
    symlink(&victim, own.join("exeat")).expect("a link");
    lchown(own.join("exeat"), Some(ORDINARY), Some(ORDINARY)).expect("chown");
    let done = cx.sh(&[], script).env("XDG_CACHE_HOME", xdg).run();
    done.exits(0).prints("it-ran\n").says("the package cache is in memory and ends with the run");
    assert_eq!(fs::read_dir(&victim).expect("victim").count(), 0, "root made something behind it");
}
