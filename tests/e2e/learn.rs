//! From what runs did to what they may do: the lock, the policy that is learned, and what another policy would have said.

use std::fs;

use e2e::case::{Cases, Cx};
use e2e::run::{Done, Run};

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("learn::a_lock_refuses_what_is_new", locked);
    list.users("learn::a_lock_is_written_from_records", lock_written);
    list.once("learn::a_stage_without_a_lock_does_not_start", lock_missing);
    list.once("learn::a_stage_cannot_write_its_lock", lock_protected);
}

/// `exeat run FLAGS -- ./probe ask-all targets`, with these targets in the file.
fn asking<'a>(cx: &'a Cx, flags: &[&str], targets: &[&str]) -> Run<'a> {
    cx.write("targets", &targets.iter().map(|target| format!("{target}\n")).collect::<String>());
    cx.exeat([&["run"], flags, &["--", cx.probe(), "ask-all", "targets"]].concat())
}

fn record_of(done: &Done) -> String {
    done.record_path().expect("a record").display().to_string()
}

/// What a rule grants and the lock has not is refused, on record under the lock's name.
fn locked(cx: &Cx) {
    let good = cx.good();
    let (on_443, on_7) = (format!("{good}:443"), format!("{good}:7"));
    let flags = ["--stage", "import", "--allow", &on_443, "--allow", &on_7];
    let done = asking(cx, &flags, &[&on_443]).run();
    done.exits(0).prints("200\n");
    cx.exeat(["audit", "lock", "-o", "egress.lock", &record_of(&done)]).run().exits(0).silent();
    let lock = fs::read_to_string(cx.dir().join("egress.lock")).expect("a lock");
    assert!(lock.ends_with(&format!("\nschema 1\nimport {on_443} connect\n")), "{lock}");

    let flags = [&flags[..], &["--locked"]].concat();
    asking(cx, &flags, &[&on_443]).run().exits(0).prints("200\n").silent();
    let done = asking(cx, &flags, &[&on_443, &on_7]).run();
    done.exits(0).prints("200\n403\n").says("the lock egress.lock does not have this port");
    let log = done.record();
    let denied = log.decisions(&good)[1];
    assert_eq!(
        (&denied["reason"], &denied["refused_by"]),
        (&"port".into(), &"lock egress.lock".into()),
        "{denied}"
    );
    assert!(!done.stderr().contains("--allow"), "no flag helps: {done:?}");
    let read: Vec<_> = log.events("policy").iter().map(|policy| policy["role"].clone()).collect();
    assert_eq!(read, ["lock"]);

    // Report mode lifts nothing of it.
    let flags = [&flags[..], &["--mode", "report"]].concat();
    asking(cx, &flags, &[&on_7, &format!("{}:443", cx.evil())]).run().prints("403\n403\n");
    // And the lock allows nothing by itself.
    let done = asking(cx, &["--stage", "import", "--locked"], &[&on_443]).run();
    done.prints("403\n").says(&format!("no rule allows it   --allow {good}"));
}

/// One stage is written anew, others stay; `--update` only adds; what is written twice is the same.
fn lock_written(cx: &Cx) {
    let good = cx.good();
    let (a, b) = (format!("{good}:443"), format!("{good}:7"));
    let run = |stage: &[&str], target: &str| {
        record_of(asking(cx, &[stage, &["--allow", &a, "--allow", &b]].concat(), &[target]).run().exits(0))
    };
    let (one, two, unnamed) = (run(&["--stage", "one"], &a), run(&["--stage", "two"], &a), run(&[], &b));
    let lock = |words: &[&str]| {
        cx.exeat([&["audit", "lock", "-o", "x.lock"], words].concat()).run().exits(0).silent().prints("");
        let text = fs::read_to_string(cx.dir().join("x.lock")).expect("a lock");
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    let all =
        ["schema 1".into(), format!("- {b} connect"), format!("one {a} connect"), format!("two {a} connect")];
    assert_eq!(lock(&[&unnamed, &two, &one]), all);
    assert_eq!(lock(&[&one]), all);
    let other = run(&["--stage", "one"], &b);
    assert_eq!(lock(&["--update", &other]).len(), 5);
    let replaced = lock(&[&other]);
    assert!(replaced.len() == 4 && replaced.contains(&format!("one {b} connect")), "{replaced:?}");
    // Without a file it goes to stdout.
    cx.exeat(["audit", "lock", &one]).run().exits(0).shows(&format!("one {a} connect\n"));
    // A refused request is in no lock, and a stage that reached nothing is.
    let none = record_of(&asking(cx, &["--stage", "none"], &[&format!("{}:443", cx.evil())]).run());
    let done = cx.exeat(["audit", "lock", &none]).run();
    done.exits(0).shows("\nnone\n");
    assert!(!done.stdout().contains(&cx.evil()), "{done:?}");
}

fn lock_missing(cx: &Cx) {
    let start = |flags: &[&str]| cx.exeat([&["run"], flags, &["--", "touch", "started"]].concat()).run();
    start(&["--locked"])
        .exits(2)
        .says("`egress.lock` has nothing of a stage without a name")
        .says("hint: after a run without --locked: exeat audit lock --last -o egress.lock");
    cx.write("other.lock", "schema 1\nother a.example:443 connect\n");
    start(&["--locked", "--lock-file", "other.lock", "--stage", "import"])
        .exits(2)
        .says("`other.lock` has nothing of the stage `import`")
        .says("exeat audit lock --last -o other.lock");
    cx.write("bad.lock", "schema 1\n<<<<<<< HEAD\n");
    start(&["--locked", "--lock-file", "bad.lock"]).exits(2).says("bad.lock:2: a line begins with a stage");
    start(&["--lock-file", "other.lock"]).exits(2).says("--locked");
    // Nothing is written over what is no lock.
    cx.write("notes.txt", "mine\n");
    let record = record_of(&cx.run(&[], ["true"]).run());
    cx.exeat(["audit", "lock", "-o", "notes.txt", &record])
        .run()
        .exits(2)
        .says("notes.txt:1: the first line is");
    assert_eq!(fs::read_to_string(cx.dir().join("notes.txt")).expect("notes"), "mine\n");
    // The stage's name may come from its policy.
    cx.write("p.toml", "stage = \"other\"\n");
    start(&["--locked", "--lock-file", "other.lock", "--policy", "p.toml"]).exits(0);
    assert!(cx.dir().join("started").exists());
}

fn lock_protected(cx: &Cx) {
    cx.write("egress.lock", "schema 1\n");
    let script = "echo x >> egress.lock; echo x > egress.lock.new; mv egress.lock.new egress.lock; exit 3";
    cx.run(&[], ["sh", "-c", script]).run().exits(3);
    assert_eq!(fs::read_to_string(cx.dir().join("egress.lock")).expect("a lock"), "schema 1\n");
}
