//! The choice of what builds the sandbox: `--backend`, its ceiling, and what `auto` finds out.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use e2e::case::{Cases, Cx};
use e2e::run::{Done, Run};
use serde_json::Value;

pub(crate) fn cases(list: &mut Cases) {
    list.users("back_end::an_old_bubblewrap_is_not_taken", old);
    list.users("back_end::a_bubblewrap_that_cannot_mount_is_not_taken", no_mounts);
    list.users("back_end::where_neither_works_both_fixes_are_named", neither);
    list.users("back_end::an_answer_holds_until_something_changes", remembered);
    list.users("back_end::a_failed_start_forgets_the_answer", forgotten);
    list.users("back_end::a_ceiling_bounds_the_choice", ceiling);
}

/// A program in the place of bubblewrap.
struct Fake {
    dir: PathBuf,
    /// A shell line that puts it there.
    mount: String,
}

impl Fake {
    /// Makes a script that may run the real one as `$real`, and counts its calls. It belongs to root.
    fn new(cx: &Cx, script: &str) -> Self {
        let name = cx.home().file_name().expect("a name").to_str().expect("ASCII");
        let dir = PathBuf::from(format!("/tmp/back-end-{name}"));
        let calls = dir.join("calls");
        fs::create_dir_all(&calls).expect("a directory");
        let open = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
        };
        open(&dir, 0o755);
        // A stage of root has a user of its own.
        open(&calls, 0o777);
        fs::copy("/usr/bin/bwrap", dir.join("real")).expect("the real one");
        let (file, real, calls) = (dir.join("bwrap"), dir.join("real"), calls.display());
        let text = format!(
            "#!/bin/sh\nreal={}\n[ \"$1\" = --version ] || : >{calls}/$$\n{script}\n",
            real.display()
        );
        fs::write(&file, text).expect("write");
        open(&file, 0o755);
        Self { mount: format!("mount --bind {} /usr/bin/bwrap", file.display()), dir }
    }

    fn old(cx: &Cx) -> Self {
        Self::new(
            cx,
            "[ \"$1\" = --version ] && echo bubblewrap 0.6.2 && exit\n\
             echo 'bwrap: Unknown option --disable-userns' >&2; exit 1",
        )
    }

    /// Takes the number of calls since the last time.
    fn calls(&self) -> usize {
        let calls: Vec<_> = fs::read_dir(self.dir.join("calls")).expect("calls").flatten().collect();
        calls.iter().for_each(|call| fs::remove_file(call.path()).expect("remove"));
        calls.len()
    }

    /// Runs a command that prints a word.
    fn run(&self, cx: &Cx, flags: &[&str]) -> Done {
        print_word(cx, flags).in_mounts(&self.mount).run()
    }
}

/// Prepares a run that prints a word. Without a back end among the flags it asks for `auto`, because a trial may have another.
fn print_word<'a>(cx: &'a Cx, flags: &[&str]) -> Run<'a> {
    let auto: &[&str] = if flags.contains(&"--backend") { &[] } else { &["--backend", "auto"] };
    cx.exeat([&["run"], auto, flags, &["--", "echo", "it-ran"]].concat())
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The file that remembers the answer.
fn memory(cx: &Cx) -> PathBuf {
    cx.home().join(".local/state/exeat/backend.json")
}

/// Checks the record of a run: what built its sandbox, and why.
fn was_built_by(done: &Done, backend: &str, why: &str) {
    done.exits(0).prints("it-ran\n");
    let record = done.record();
    let start = record.events("run_start")[0];
    assert_eq!((&start["backend"], &start["backend_why"]), (&backend.into(), &why.into()), "{start}");
}

fn old(cx: &Cx) {
    let fake = Fake::old(cx);
    let why = "bubblewrap 0.6.2 is too old";
    was_built_by(&fake.run(cx, &[]), "native", why);

    let plan = fake.run(cx, &["--dry-run"]);
    plan.exits(0).shows(&format!("\nbackend      native ({why})\n"));
    let plan = fake.run(cx, &["--dry-run", "--format", "json"]).json();
    assert_eq!((&plan["backend"], &plan["backend_why"]), (&"native".into(), &why.into()));
    let result = cx.home().join("result.json");
    fake.run(cx, &["--result", result.to_str().expect("ASCII")]).exits(0);
    let result: Value = serde_json::from_slice(&fs::read(&result).expect("a result")).expect("JSON");
    assert_eq!((&result["backend"], &result["backend_why"]), (&"native".into(), &why.into()), "{result}");

    let doctor = cx.exeat_plain(["doctor"]).in_mounts(&fake.mount).run();
    doctor.exits(0).shows(&format!("native ({why})")).shows("install bubblewrap 0.8 or later");
    assert!(!doctor.stdout().contains("FAILS"), "{doctor:?}");

    // What is asked for by name is not tried before, and nothing takes its place.
    fake.calls();
    fake.run(cx, &["--backend", "bwrap"])
        .exits(125)
        .prints("")
        .says("Unknown option")
        .says("install bubblewrap 0.8 or later");
    assert_eq!(fake.calls(), 1, "one start");
    let done = fake.run(cx, &["--backend", "native"]);
    done.exits(0).prints("it-ran\n");
    assert_eq!(done.record().events("run_start")[0].get("backend_why"), None);
    assert_eq!(fake.calls(), 0, "it is not tried");
}

/// It makes namespaces, and fails at the first mount.
fn no_mounts(cx: &Cx) {
    let fake = Fake::new(cx, "exec $real --unshare-user --ro-bind / / --tmpfs /no/such/place true");
    let done = fake.run(cx, &[]);
    done.exits(0).prints("it-ran\n");
    let record = done.record();
    let start = record.events("run_start")[0];
    let why = start["backend_why"].as_str().expect("a reason");
    assert_eq!(start["backend"], "native");
    assert!(why.starts_with("bubblewrap does not work here: ") && why.contains("/no/such"), "{why}");
}

fn neither(cx: &Cx) {
    let fake = Fake::old(cx);
    let around = "echo 0 >/proc/sys/user/max_user_namespaces";
    let exeat = cx.bench().bin.join("exeat").display().to_string();
    let script = format!("{around}; {exeat} run -- echo it-ran");
    let done = cx.outside(["unshare", "-Ur", "sh", "-c", &script]).in_mounts(&fake.mount).run();
    done.exits(125).prints("");
    for word in [
        "bubblewrap: ",
        "exeat itself: ",
        "for bubblewrap: install bubblewrap 0.8 or later",
        "for exeat itself: sudo sysctl -w user.max_user_namespaces=15000",
    ] {
        done.says(word);
    }
    assert!(!memory(cx).exists(), "nothing works, so nothing is remembered");
}

fn remembered(cx: &Cx) {
    let fake = Fake::old(cx);
    let why = "bubblewrap 0.6.2 is too old";
    fake.run(cx, &["--dry-run"]).exits(0);
    assert!(!memory(cx).exists(), "a plan writes nothing");
    assert_eq!(fake.calls(), 1);
    was_built_by(&fake.run(cx, &[]), "native", why);
    assert_eq!(fake.calls(), 1, "tried once");
    let kept = fs::metadata(memory(cx)).expect("the answer");
    assert_eq!((kept.mode() & 0o7777, kept.nlink()), (0o600, 1));
    was_built_by(&fake.run(cx, &[]), "native", why);
    assert_eq!(fake.calls(), 0, "the answer holds");
    assert_eq!(fs::metadata(memory(cx)).expect("the answer").ino(), kept.ino(), "and is not written again");

    // The real one is another file.
    let real = || print_word(cx, &[]).run();
    was_built_by(&real(), "bwrap", "bubblewrap works here");
    print_word(cx, &["--dry-run"]).run().exits(0).shows("bwrap (bubblewrap works here)");
    was_built_by(&fake.run(cx, &[]), "native", why);
    assert_eq!(fake.calls(), 1, "tried again");

    // A false answer about it is not believed.
    let stored = fs::read_to_string(memory(cx)).expect("the answer");
    for strange in ["", "{", "null", "[]", &stored.replace("\"inode\":", "\"inode\":1"), &"x".repeat(1 << 20)]
    {
        fs::write(memory(cx), strange).expect("write");
        was_built_by(&fake.run(cx, &[]), "native", why);
        assert_eq!(fake.calls(), 1, "tried again with {:?}", strange.get(..20));
        assert_eq!(fs::read_to_string(memory(cx)).expect("the answer"), stored);
    }

    // doctor tries everything anew, and leaves that to the next run too.
    cx.exeat_plain(["doctor"]).in_mounts(&fake.mount).run().exits(0);
    assert!(!memory(cx).exists());
}

fn forgotten(cx: &Cx) {
    let fake = Fake::new(
        cx,
        "dir=${real%/*}\n[ ! -e $dir/broken ] || { echo 'bwrap: broken' >&2; exit 1; }\nexec $real \"$@\"",
    );
    was_built_by(&fake.run(cx, &[]), "bwrap", "bubblewrap works here");
    assert_eq!(fake.calls(), 2, "tried, and started");
    was_built_by(&fake.run(cx, &[]), "bwrap", "bubblewrap works here");
    assert_eq!(fake.calls(), 1, "started");
    fs::write(fake.dir.join("broken"), "").expect("write");
    fake.run(cx, &[]).exits(125).prints("").says("bwrap: broken");
    assert!(!memory(cx).exists(), "the answer was wrong");
    was_built_by(&fake.run(cx, &[]), "native", "bubblewrap does not work here: bwrap: broken");
}

fn ceiling(cx: &Cx) {
    let only = cx.write("only.toml", "schema = 1\n[sandbox]\nbackend = \"bwrap\"\n").display().to_string();
    let native =
        cx.write("native.toml", "schema = 1\n[sandbox]\nbackend = \"native\"\n").display().to_string();
    let run = |flags: &[&str]| print_word(cx, &[&["--ceiling", &only], flags].concat()).run();
    let words = ["run", "--ceiling", &only, "--policy", &native, "--", "echo", "it-ran"];
    let both = format!("{native}: the back end `native` is forbidden by the ceiling {only}");
    cx.exeat_plain(words).run().exits(2).prints("").says(&both);
    run(&["--backend", "native"]).exits(2).prints("").says(&only).says("--backend bwrap");
    let done = run(&["--backend", "auto"]);
    done.exits(0);
    assert_eq!(done.record().events("run_start")[0]["backend"], "bwrap");
    // Nothing else is taken where what the ceiling names does not work.
    let fake = Fake::old(cx);
    fake.run(cx, &["--ceiling", &only]).exits(125).prints("").says("Unknown option");
}
