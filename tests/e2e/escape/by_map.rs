//! B14, L09: a memory map changes a file, and no time says so: a tmpfs notes none, wherever it is mounted, and an overlay notes what the file
//! system below it does.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use e2e::case::{Cases, Cx};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b14_a_change_by_a_map_counts_where_no_time_is_kept", configured);
    list.users("escape::l09_no_stage_decides_about_a_run_beside_it_by_a_map", decided);
}

/// What a directory is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    Disk,
    Tmpfs,
    OverlayOnTmpfs,
    OverlayOnDisk,
}

impl On {
    fn keeps_times(self) -> bool {
        matches!(self, Self::Disk | Self::OverlayOnDisk)
    }
}

/// Mounts a file system at a directory of the caller's until it is dropped.
struct Mounted<'a>(Vec<&'a Path>);

impl<'a> Mounted<'a> {
    fn new(cx: &Cx, on: On, at: &'a Path, parts: &'a Path) -> Self {
        let mut mounted = Self(Vec::new());
        let none = None::<&str>;
        let mut tmpfs = |at: &'a Path| {
            mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), none).expect("a tmpfs");
            mounted.0.insert(0, at);
        };
        match on {
            On::Disk => {}
            On::Tmpfs => tmpfs(at),
            On::OverlayOnTmpfs | On::OverlayOnDisk => {
                fs::create_dir_all(parts).expect("a directory");
                if on == On::OverlayOnTmpfs {
                    tmpfs(parts);
                }
                let [lower, upper, work] = ["lower", "upper", "work"].map(|name| {
                    let part = parts.join(name);
                    fs::create_dir_all(&part).expect("a directory");
                    part.display().to_string()
                });
                let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
                mount(Some("overlay"), at, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
                    .expect("an overlay");
                mounted.0.insert(0, at);
            }
        }
        cx.bench().give(at, cx.is_root());
        mounted
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        for at in &self.0 {
            umount2(*at, MntFlags::MNT_DETACH).expect("umount");
        }
    }
}

/// Writes the second word over the first one in the file, by a map.
const MAP: &str = r#"import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(f, 0)
at = m.find(sys.argv[2].encode())
new = sys.argv[3].encode()
m[at:at + len(new)] = new
m.close()
os.close(f)
"#;

/// Waits until what was made by now is older than exeat compares times.
fn grow_old() {
    thread::sleep(Duration::from_millis(2_500));
}

/// A repository is too far down to be covered, and git runs a program that its configuration names.
fn configured(cx: &Cx) {
    let mark = cx.dir().with_file_name("mark");
    let parts = cx.home().join("parts");
    for (on, is_below) in [
        (On::Disk, false),
        (On::Tmpfs, false),
        (On::Tmpfs, true),
        (On::OverlayOnTmpfs, false),
        (On::OverlayOnTmpfs, true),
        (On::OverlayOnDisk, false),
    ] {
        // Root's stage cannot write in an overlay below its tree: the kernel maps no owners there.
        if cx.is_root() && on == On::OverlayOnTmpfs && is_below {
            continue;
        }
        let tree = cx.dir().join("tree");
        let at = if is_below { tree.join("m") } else { tree.clone() };
        fs::create_dir_all(&at).expect("a directory");
        cx.bench().give(&tree, cx.is_root());
        let mounted = Mounted::new(cx, on, &at, &parts);
        let make = format!(
            "mkdir -p a/b/c; for r in kept changed; do git init -q a/b/c/$r; git -C a/b/c/$r config alias.x '!touch {0}'; \
             git -C a/b/c/$r config core.pager ': {0}.of.the.caller.............................'; done; \
             ln a/b/c/kept/.git/config a/b/c/backup",
            mark.display()
        );
        cx.outside(["sh", "-ec", &make]).cwd(&at).run().exits(0);
        let config = |name: &str| at.join("a/b/c").join(name).join(".git/config");
        cx.write("map.py", MAP);
        grow_old();
        let before = fs::metadata(config("changed")).expect("a configuration");
        let script = format!("python3 \"$0\" \"$1\" 'pager = :' 'fsmonitor = touch {} #'", mark.display());
        let map = cx.dir().join("map.py").display().to_string();
        let changed = config("changed").display().to_string();
        let done =
            cx.exeat(["run", "--ro", &map, "--", "sh", "-ec", &script, &map, &changed]).cwd(&tree).run();
        done.exits(0);
        let after = fs::read_to_string(config("changed")).unwrap_or_default();
        assert!(!after.contains("fsmonitor"), "{on:?} {is_below}: {done:?}");
        done.says("changed/.git/config` was moved to");
        assert!(
            config("kept").exists() && !done.stderr().contains("kept/.git"),
            "{on:?} {is_below}: {done:?}"
        );
        // Nothing is to be seen from outside, as a control.
        let outside = fs::read_dir(at.join("a/b/c/changed/.git")).expect("a directory");
        let moved = outside.flatten().find(|it| it.file_name().to_string_lossy().starts_with("config."));
        if let Some(moved) = moved.and_then(|it| it.metadata().ok()).filter(|_| !on.keeps_times()) {
            use std::os::unix::fs::MetadataExt as _;
            assert_eq!(moved.mtime(), before.mtime(), "{on:?} {is_below}: the test shows nothing");
        }
        let _ = fs::remove_file(&mark);
        drop(mounted);
        fs::remove_dir_all(&tree).expect("the tree");
        let _ = fs::remove_dir_all(&parts);
    }
}

/// A second run reads its policy from the tree of a live one.
fn decided(cx: &Cx) {
    let parts = cx.home().join("parts");
    let [data, secret] = ["data", "data/secret"].map(|name| cx.home().join(name));
    fs::create_dir(&data).expect("a directory");
    fs::write(&secret, "of the user\n").expect("a secret");
    for path in [&data, &secret] {
        cx.bench().give(path, cx.is_root());
    }
    let [data, secret] = [data, secret].map(|path| path.display().to_string());
    for on in [On::Disk, On::Tmpfs, On::OverlayOnTmpfs, On::OverlayOnDisk] {
        let tree = cx.dir().join("tree");
        fs::create_dir_all(&tree).expect("a directory");
        let mounted = Mounted::new(cx, on, &tree, &parts);
        let padding = "#".repeat(data.len());
        for name in ["changed.toml", "kept.toml"] {
            fs::write(tree.join(name), format!("schema = 1\n[fs]\nro = [\"/etc\"]#{padding}\n"))
                .expect("a policy");
            cx.bench().give(&tree.join(name), cx.is_root());
        }
        cx.write("map.py", MAP);
        grow_old();
        let map = cx.dir().join("map.py").display().to_string();
        let script =
            format!("python3 \"$0\" changed.toml '/etc\"]#' '{data}\"]' && echo ready; read -r go; true");
        let live = cx.exeat(["run", "--ro", &map, "--", "sh", "-c", &script, &map]);
        let mut live = live.cwd(&tree).stdin_open().start();
        live.until_prints("ready");
        let look = |name: &str, words: &[&str]| {
            let words = [&["run", "--policy", name, "--"], words].concat();
            cx.exeat_plain(words).cwd(&tree).run()
        };
        let done = look("changed.toml", &["cat", &secret]);
        done.exits(2).says("came or changed while another run was going on");
        // Where each change has its time, what was not changed decides.
        let kept = look("kept.toml", &["true"]);
        kept.exits(if on.keeps_times() { 0 } else { 2 });
        live.wait().exits(0);
        drop(mounted);
        fs::remove_dir_all(&tree).expect("the tree");
        let _ = fs::remove_dir_all(&parts);
    }
}
