//! `exeat doctor`: each step for real, here and on hosts that refuse one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use e2e::case::{Cases, Cx};
use serde_json::Value;

pub(crate) fn cases(list: &mut Cases) {
    list.users("doctor::everything_holds_here", everything);
    list.users("doctor::a_setting_is_named_with_its_fix", setting);
    list.users("doctor::a_hidden_proc_is_named", hidden_proc);
    list.users("doctor::a_filter_around_exeat_is_named", filtered);
    list.users("doctor::no_bubblewrap", no_bubblewrap);
    list.root("doctor::root_is_tried_as_the_owner", as_owner);
    list.root("doctor::root_is_tried_as_a_user_of_its_own", as_own);
    list.users("doctor::with_sigchld_ignored", sigchld_ignored);
    list.once("doctor::a_record_without_a_place", no_place);
    list.users("doctor::inside_a_run", nested);
}

/// Makes root without CAP_SYS_ADMIN.
const KEPT: [&str; 4] = ["setpriv", "--bounding-set", "-sys_admin", "--"];

fn everything(cx: &Cx) {
    let done = cx.exeat(["doctor", "--format", "json"]).run();
    let all: Value = serde_json::from_str(&done.exits(0).stdout()).expect("JSON");
    assert_eq!(all["can_run"], true, "{done:?}");
    let steps = all["steps"].as_array().expect("steps");
    let ids: Vec<&str> = steps.iter().filter_map(|step| step["id"].as_str()).collect();
    assert_eq!(ids.contains(&"identity"), cx.is_root(), "{ids:?}");
    for id in [
        "kernel",
        "bubblewrap",
        "user_namespace",
        "network_namespace",
        "proc",
        "landlock",
        "sandbox",
        "native",
        "cgroup",
    ] {
        assert!(ids.contains(&id), "no step `{id}`: {ids:?}");
    }
    for step in steps {
        assert!(step["found"] == "held" || step["found"] == "aside", "{step}");
    }
    let table = cx.exeat(["doctor"]).run();
    table.exits(0).shows("exeat runs here, and everything holds.");
    cx.exeat(["doctor", "--fix"]).run().exits(0).prints("# nothing to mend\n");
    assert!(!table.stdout().contains("FAILS"), "{table:?}");
}

/// In a nested sandbox nothing can be fixed: no step runs, and no command is suggested.
fn nested(cx: &Cx) {
    let bin = cx.bench().bin.display().to_string();
    let doctor = |words: &str| {
        let script = format!("{bin}/exeat doctor {words}");
        cx.exeat(["run", "--ro", &bin, "--", "sh", "-c", &script]).run()
    };
    let table = doctor("");
    table
        .exits(1)
        .shows("exeat does not nest")
        .shows("run the command as it is")
        .shows("exeat cannot run here.\n");
    assert!(!table.stdout().contains("chmod") && !table.stdout().contains("--fix"), "{table:?}");
    let all = doctor("--format json").json();
    assert_eq!((&all["can_run"], &all["steps"][0]["id"]), (&Value::Bool(false), &"nested".into()), "{all}");
    let fix = doctor("--fix");
    assert!(fix.exits(1).stdout().lines().all(|line| line.starts_with('#')), "{fix:?}");
}

/// Checks the diagnosis of `doctor`, and that a failing run prints the same.
fn agrees(cx: &Cx, around: &[&str], because: &str, fix: &str, script: &str) {
    let exeat = cx.bench().bin.join("exeat").display().to_string();
    let under = |words: &str| {
        let script = around.last().expect("a script").replace("EXEAT", &format!("{exeat} {words}"));
        cx.outside(around[..around.len() - 1].iter().copied().chain([script.as_str()])).run()
    };
    let table = under("doctor");
    table.exits(1).shows("FAILS").shows("exeat cannot run here.");
    assert!(table.stdout().contains(because) && table.stdout().contains(fix), "{table:?}");
    assert!(under("doctor --fix").exits(1).stdout().contains(script), "{script}");
    let run = under("run -- echo it-ran");
    run.exits(125).says(because).says(fix);
    assert_eq!(run.stdout(), "", "{run:?}");
}

fn setting(cx: &Cx) {
    let around = ["unshare", "-Ur", "sh", "-c", "echo 0 >/proc/sys/user/max_user_namespaces; EXEAT"];
    let fix = "sudo sysctl -w user.max_user_namespaces=15000";
    agrees(
        cx,
        &around,
        "the sysctl user.max_user_namespaces is 0",
        fix,
        "/etc/sysctl.d/60-exeat-user-max-user-namespaces.conf",
    );
}

fn hidden_proc(cx: &Cx) {
    let around = ["unshare", "-Urm", "sh", "-c", "mount -t tmpfs hidden /proc/fs && EXEAT"];
    let fix = "start the container with the whole of /proc";
    // The fix is a comment, not a shell command.
    let lines = format!("\n# {fix}");
    agrees(cx, &around, "the container around exeat hides parts of /proc", fix, &lines);
}

fn filtered(cx: &Cx) {
    let probe = cx.probe();
    // bubblewrap mounts with the one, and exeat with the other.
    let script = format!("{probe} without-mount {probe} without-move-mount EXEAT");
    let fix = "--security-opt seccomp=unconfined";
    agrees(cx, &["sh", "-c", &script], "the seccomp filter of the container around exeat", fix, fix);
}

fn no_bubblewrap(cx: &Cx) {
    let hidden =
        "for p in /usr/bin/bwrap /usr/local/bin/bwrap; do [ ! -e $p ] || mount --bind /dev/null $p; done";
    let done = cx.exeat_plain(["doctor"]).in_mounts(hidden).run();
    done.exits(0).shows("exeat builds the sandbox itself").shows("sudo apt-get install bubblewrap");
    assert!(!done.stdout().contains("FAILS"), "{done:?}");
}

/// A root that cannot become another user runs nothing in that user's directory.
fn as_owner(cx: &Cx) {
    let dir = cx.dir().join("owned");
    fs::create_dir(&dir).expect("a directory");
    cx.bench().give(&dir, false);
    let without = ["setpriv", "--bounding-set", "-setuid", "--"];
    cx.sh(&[], "echo it-ran").cwd(&dir).under(without).run().exits(125);
    let done = cx.exeat_plain(["doctor"]).cwd(&dir).under(without).run();
    done.exits(1).shows("FAILS").shows("exeat cannot run here.");
    cx.exeat_plain(["doctor"]).cwd(&dir).run().exits(0);
}

/// The additional steps of root's run: the trees are mounted, and not only inspected.
fn as_own(cx: &Cx) {
    let probe = cx.bench().bin.join("probe").display().to_string();
    let without = [probe.as_str(), "without-move-mount"];
    cx.sh(&[], "echo it-ran").under(without).run().exits(125);
    cx.exeat_plain(["doctor"]).under(without).run().exits(1).shows("exeat cannot run here.");
    // Holds in part: as the owner of the directory, and as root.
    let owned = cx.dir().join("owned");
    fs::create_dir(&owned).expect("a directory");
    cx.bench().give(&owned, false);
    let identity = |dir: &Path| {
        let done = cx.exeat_plain(["doctor", "--format", "json"]).cwd(dir).under(KEPT).run();
        let all: Value = serde_json::from_str(&done.exits(0).stdout()).expect("JSON");
        let steps = all["steps"].as_array().expect("steps").clone();
        steps.into_iter().find(|step| step["id"] == "identity").expect("the step")
    };
    for (dir, words) in [(owned.as_path(), "no user of its own"), (cx.dir(), "keeps root's kernel uid")] {
        let step = identity(dir);
        assert_eq!(step["found"], "partial", "{step}");
        assert!(step["seen"].as_str().is_some_and(|seen| seen.contains(words)), "{step}");
    }
    for place in ["/tmp", "/dev/shm"] {
        let names = fs::read_dir(place).expect(place).flatten().map(|entry| entry.file_name());
        let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("exeat-")).collect();
        let is_given = |name: &std::ffi::OsString| {
            fs::metadata(Path::new(place).join(name)).is_ok_and(|meta| meta.uid() > 1_000_000_000)
        };
        assert!(!left.iter().any(is_given), "{place}: {left:?}");
    }
}

fn sigchld_ignored(cx: &Cx) {
    // A shell's trap does not work: dash does not change an ignored signal.
    let ignoring = ["env", "--ignore-signal=CHLD"];
    let done = cx.exeat_plain(["doctor"]).under(ignoring).run();
    done.exits(0).shows("everything holds.");
}

fn no_place(cx: &Cx) {
    let done = cx.exeat_plain(["doctor"]).env("HOME", "").run();
    done.exits(0).shows("set HOME or XDG_STATE_HOME").shows("--require full");
}
