//! Reads records of real runs, and hostile ones, with the real binary.

use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use e2e::case::{Cases, Cx};
use exeat_record::{Cause, Event, Header, Log, Mode, RunEnd, RunStart, SigningKey, Sink, sha256_hex};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

pub(crate) fn cases(list: &mut Cases) {
    list.once("audit_read::summary_of_many_runs", summary);
    list.users("audit_read::l17_a_summary_says_what_is_not_known", not_known);
    list.once("audit_read::l17_a_summary_names_the_host_that_took_most", took_most);
    list.once("audit_read::l17_unused_rules_have_file_line_stage_and_run", unused_rules);
    list.once("audit_read::a01_hostile_records_stay_in_their_cells", hostile);
    list.once("audit_read::show_by_time_and_way", filters);
    list.once("audit_read::follow_shows_lines_as_they_come", follow);
    list.once("audit_read::follow_ends_with_its_writer", follow_killed);
    list.once("audit_read::diff_against_a_baseline", diff);
    list.once("audit_read::list_by_stage_time_and_end", list_filters);
    list.users("audit_read::prune_removes_old_whole_records", prune);
}

/// Makes runs that ask for a granted host and for another, with a rule that nothing uses.
fn two_runs(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    cx.write("targets", &format!("{good}:443\n{evil}:443\n"));
    for stage in ["import", "nightly"] {
        let words = ["run", "--stage", stage, "--allow", &good, "--allow", "unused.example:22", "--"];
        cx.exeat_plain([&words[..], &[cx.probe(), "ask-all", "targets"]].concat()).run().exits(0);
    }
}

/// Returns the records in the default place, oldest first.
fn records(cx: &Cx) -> Vec<String> {
    let mut records: Vec<_> = fs::read_dir(cx.home().join(".local/state/exeat/runs"))
        .expect("the default place")
        .flatten()
        .map(|entry| entry.path().display().to_string())
        .filter(|path| path.ends_with(".jsonl"))
        .collect();
    records.sort();
    records
}

fn summary(cx: &Cx) {
    two_runs(cx);
    let (good, evil) = (cx.good(), cx.evil());
    let records = records(cx);
    let words = ["audit", "summary", &records[0], &records[1]];
    let text = cx.exeat_plain(words).run();
    text.exits(0)
        .shows("runs      2\n")
        .shows("stages    import (1), nightly (1)\n")
        .shows("2 allowed, 2 denied");
    text.shows("RULES NEVER USED\n         unused.example:22  (a flag or a preset; stage import, nightly; 2 runs, the last ");
    let (refused, granted) = (text.stdout().find(&evil), text.stdout().find(&good));
    assert!(refused < granted, "what was refused stands first: {text:?}");
    let value = cx.exeat_plain([&words[..], &["--format", "json"]].concat()).run().json();
    assert_eq!(value["hosts"][0]["host"], evil);
    assert_eq!(value["hosts"][0]["reasons"], json!({"default": 2}));
    assert_eq!((&value["hosts"][1]["allowed"], &value["hosts"][1]["port"]), (&2.into(), &443.into()));
    let unused = &value["unused_rules"][0];
    assert_eq!((&unused["rule"], &unused["runs"]), (&"unused.example:22".into(), &2.into()));
    let one = cx.exeat_plain(["audit", "summary", "--last", "--stage", "import"]).run();
    one.exits(0).shows("runs      1\n").shows("stages    import (1)\n");
    cx.exeat_plain(["audit", "summary", "--stage", "none"])
        .run()
        .exits(0)
        .shows("runs      0\n")
        .says("no record");
    let github = cx.exeat_plain([&words[..], &["--format", "github"]].concat()).run();
    github.exits(0).shows("### Egress: 2 allowed, 2 denied\n").shows(&format!("| `{evil}:443` | 2 | 0 |"));
    github.shows("<details><summary>1 target let through, the most bytes up first</summary>\n");
    cx.exeat_plain(["audit", "summary", "nothing-here.jsonl"]).run().exits(2);
    let cut = fs::read(&records[0]).expect("a record");
    cx.write("cut.jsonl", &String::from_utf8_lossy(&cut[..cut.len() - 9]));
    cx.exeat_plain(["audit", "summary", "cut.jsonl"]).run().exits(1).says("was cut off");
    // Each broken record has a line; the last of many has none.
    let broken: Vec<String> =
        (0..9).map(|n| cx.write(&format!("broken-{n}.jsonl"), "{}\n{}\n").display().to_string()).collect();
    for words in [&["audit", "summary"][..], &["audit", "export", "--format", "ecs"]] {
        let words: Vec<&str> = words.iter().copied().chain(broken.iter().map(String::as_str)).collect();
        let done = cx.exeat_plain(words).run();
        done.says("; and 2 more (exeat audit verify ").says("note: and 4 more like that");
        assert_eq!(done.stderr().matches("note: `").count(), 5, "{done:?}");
    }
}

/// Tries a run that was killed with open connections, one that reached nothing, and one in report mode.
fn not_known(cx: &Cx) {
    let good = cx.good();
    let path = |name: &str| cx.home().join(name).display().to_string();
    let killed = path("killed.jsonl");
    let hold =
        ["run", "--audit", &killed, "--allow", &good, "--", cx.probe(), "hold", &format!("{good}:443"), "2"];
    let mut live = cx.exeat_plain(hold).stdin_open().start();
    live.until_prints("holding");
    let said = "at least 0 B up, 0 B down; 2 connections without an end, their bytes are not known";
    cx.exeat_plain(["audit", "summary", &killed]).run().exits(0).shows(said);
    live.signal(Signal::SIGKILL);
    drop(live);
    let text = cx.exeat_plain(["audit", "summary", &killed]).run();
    text.exits(0).shows(said).shows(" unknown   unknown ").says("signatures are not checked here");
    let value = cx.exeat_plain(["audit", "summary", &killed, "--format", "json"]).run().json();
    for of in [&value["total"], &value["hosts"][0]] {
        assert_eq!((&of["open"], &of["bytes_complete"]), (&2.into(), &false.into()), "{of}");
    }
    for form in ["markdown", "github"] {
        cx.exeat_plain(["audit", "summary", &killed, "--format", form]).run().exits(0).shows(said);
    }

    // Nothing listens on this port.
    let failed = path("failed.jsonl");
    cx.write("targets", &format!("127.0.0.1:9\n{good}:443\n"));
    let rules = ["--allow", "127.0.0.1:9", "--allow", &good];
    let words =
        [&["run", "--audit", &failed][..], &rules, &["--", cx.probe(), "ask-all", "targets"]].concat();
    cx.exeat_plain(words).run().exits(0);
    let text = cx.exeat_plain(["audit", "summary", &failed, "--sort", "failed"]).run();
    text.exits(0).shows("attempts  2 allowed, 0 denied, 1 failed\n").shows("connect_error");
    let row = text.stdout().lines().find(|line| line.contains("127.0.0.1:9 ")).map(str::to_owned);
    assert!(row.is_some_and(|row| row.starts_with("      -        1       -       1 ")), "{text:?}");

    let report = path("report.jsonl");
    cx.write("targets", &format!("{good}:443\n"));
    let words = [
        "run",
        "--mode",
        "report",
        "--audit",
        &report,
        "--allow",
        "other.example",
        "--",
        cx.probe(),
        "ask-all",
        "targets",
    ];
    cx.exeat_plain(words).run().exits(0);
    let text = cx.exeat_plain(["audit", "summary", &report]).run();
    text.exits(0).shows("1 would be denied").shows("\napproved  by nobody: 1 let through");
}

/// Tries more hosts than a table has rows; the last one received most.
fn took_most(cx: &Cx) {
    let mut text = String::new();
    let mut prev = "0".repeat(64);
    let mut line = |seq: usize, fields: Value| {
        let mut line = json!({"schema": "egress/1", "seq": seq, "ts": "2026-11-22T10:00:00.000000Z", "mono_us": seq, "run": "R", "prev": prev});
        line.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let line = format!("{line}\n");
        prev = sha256_hex(line.as_bytes());
        text.push_str(&line);
    };
    for n in 0..12_001 {
        let (host, up) = if n == 12_000 {
            ("zzz.example.net".to_owned(), 9_000_000_000_u64)
        } else {
            (format!("h{n}.example.net"), 2)
        };
        line(
            2 * n,
            json!({"event": "decision", "conn": n, "via": "connect", "host": host, "port": 443, "verdict": "allow", "reason": "rule"}),
        );
        line(
            2 * n + 1,
            json!({"event": "close", "conn": n, "host": host, "port": 443, "ip": "192.0.2.1", "bytes_up": up, "bytes_down": 5_u64.saturating_sub(up), "ended_by": "client"}),
        );
    }
    cx.write("many.jsonl", &text);
    for words in [
        &[][..],
        &["--sort", "up"],
        &["--format", "json"],
        &["--format", "markdown"],
        &["--format", "github"],
    ] {
        let done = cx.exeat_plain([&["audit", "summary", "many.jsonl"], words].concat()).run();
        done.exits(0);
        let rows = done.stdout().lines().filter(|line| line.contains("zzz.example.net")).count();
        assert_eq!(rows, 2, "once at the head, once in a row: {words:?}");
    }
    let text = cx.exeat_plain(["audit", "summary", "many.jsonl", "--sort", "up"]).run();
    text.exits(0)
        .shows("\nmost up   zzz.example.net:443, 9.0 GB\n")
        .shows("and 2000 other hosts: 2000 allowed, 0 denied; 4.0 kB up");
    // Without a directory for temporary files the command says so, and leaves nothing out.
    let none = cx.exeat_plain(["audit", "summary", "many.jsonl"]).env("TMPDIR", "/nowhere").run();
    none.exits(2).says("TMPDIR");
}

/// Names the policy of each unused rule.
fn unused_rules(cx: &Cx) {
    let good = cx.good();
    cx.write(
        "import.toml",
        &format!("schema = 1\n[network]\nallow = [\n  \"{good}\",\n  \"never.example:22\",\n]\n"),
    );
    cx.write("targets", &format!("{good}:443\n"));
    let words =
        ["run", "--stage", "import", "--policy", "import.toml", "--", cx.probe(), "ask-all", "targets"];
    cx.exeat_plain(words).run().exits(0);
    let run = cx.exeat_plain(["audit", "list", "--format", "json"]).run().json()[0]["run"]
        .as_str()
        .expect("a run")
        .to_owned();
    let never = |end: &str| {
        format!(
            "\nRULES NEVER USED\n         never.example:22  (import.toml{end}; stage import; run {run})\n"
        )
    };
    cx.exeat_plain(["audit", "summary"]).run().exits(0).shows(&never(":5"));
    for words in [["--host", "other.example"], ["--since", "1h"], ["--until", "now"]] {
        let part = cx.exeat_plain([&["audit", "summary"][..], &words].concat()).run();
        part.exits(0);
        assert!(!part.stdout().contains("NEVER USED"), "{part:?}");
    }
    // The file has changed since, so its lines are not those of the run.
    cx.write("import.toml", &format!("schema = 1\n[network]\nallow = [\"never.example:22\", \"{good}\"]\n"));
    cx.exeat_plain(["audit", "summary"])
        .run()
        .exits(0)
        .shows(&never(" (changed or gone since: its line is not known)"));
}

/// A forged record has content that exeat would never write.
fn hostile(cx: &Cx) {
    let text = "a`|b\u{1b}]0;t\u{7}\u{1b}[2J\r\n# c </details><script>@team\u{202e}";
    let line = json!({
        "schema": "egress/1", "seq": 0, "ts": text, "mono_us": 0, "event": "decision", "run": text, "stage": text,
        "host": text, "port": 443, "via": text, "verdict": "deny", "reason": text, "rule": text, "rule_src": text,
        "error": text, "what": text, "prev": text,
    });
    cx.write("hostile.jsonl", &format!("{line}\n"));
    cx.write("hostile.policy.json", &json!({"rules": [{"rule": text}]}).to_string());
    for words in [
        &["show"][..],
        &["show", "--format", "json"],
        &["summary"],
        &["summary", "--format", "json"],
        &["summary", "--format", "markdown"],
        &["summary", "--format", "github"],
    ] {
        let done = cx.exeat_plain([&["audit"], words, &["hostile.jsonl"]].concat()).run();
        done.exits(1);
        let said = done.stdout() + &done.stderr();
        assert!(said.bytes().all(|byte| matches!(byte, b'\n' | b' '..=b'~')), "{words:?}: {done:?}");
        assert!(!said.contains("\n# c"), "{words:?}: {done:?}");
        if words.contains(&"github") || words.contains(&"markdown") {
            assert!(done.stdout().contains("| `a\\u{60}\\u{7c}b"), "{done:?}");
            let ours: String = done.stdout().split('`').step_by(2).collect();
            assert!(!ours.contains("script") && !ours.contains('@'), "{done:?}");
        }
    }
}

fn filters(cx: &Cx) {
    two_runs(cx);
    let (good, evil) = (cx.good(), cx.evil());
    cx.exeat_plain(["audit", "show", "--since", "1h", "--until", "now"])
        .run()
        .exits(0)
        .shows(&good)
        .shows(&evil);
    let later = cx.exeat_plain(["audit", "show", "--since", "9000-01-01"]).run();
    later.exits(0).prints("").says("no record is of the runs that the flags select");
    cx.exeat_plain(["audit", "show", "--until", "yesterday", "--format", "json"]).run().exits(0).prints("");
    let lines = cx.exeat_plain(["audit", "show", "--since=-1h", "--format", "json"]).run();
    let kinds: Vec<Value> = lines
        .stdout()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["event"].clone())
        .collect();
    assert_eq!(kinds.first(), Some(&"run_start".into()), "a time is asked of every line");
    assert!(kinds.contains(&"run_end".into()), "{kinds:?}");
    cx.exeat_plain(["audit", "show", "--via", "connect"]).run().exits(0).shows(&evil);
    cx.exeat_plain(["audit", "show", "--via", "direct"]).run().exits(0).shows("0 of 2 decisions shown");
    cx.exeat_plain(["audit", "show", "--since", "soon"]).run().exits(2).says("a time is written");
}

/// Returns a stage that asks for a granted host, waits for the end of its input, and asks for another.
fn waiting<'a>(cx: &'a Cx, record: &Path) -> e2e::run::Live<'a> {
    let (good, evil) = (cx.good(), cx.evil());
    let probe = cx.probe();
    let script = format!("{probe} ask {good}:443; echo first; cat; {probe} ask {evil}:443");
    let words =
        ["run", "--audit", record.to_str().expect("ASCII"), "--allow", &good, "--", "sh", "-c", &script];
    let mut live = cx.exeat_plain(words).stdin_open().start();
    live.until_prints("first");
    live
}

fn follow(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let record = cx.home().join("live.jsonl");
    let path = record.to_str().expect("ASCII");
    cx.exeat_plain(["audit", "show", "-f", path]).run().exits(2).says("cannot read");
    let live = waiting(cx, &record);
    let mut table = cx.exeat_plain(["audit", "show", "--follow", path]).start();
    let mut json =
        cx.exeat_plain(["audit", "show", "-f", "--format", "json", "--verdict", "deny", path]).start();
    let stopped = cx.exeat_plain(["audit", "show", "-f", path]).start();
    table.until_prints(&format!("{good}:443"));
    assert!(
        !table.printed().contains(&evil) && !json.printed().contains(&good),
        "what is to come is not there"
    );
    stopped.signal(Signal::SIGINT);
    assert_eq!(stopped.wait().signal, Some(2), "as tail(1)");
    // The command also ends if its reader closes the pipe while nothing arrives.
    let left = cx.outside(["sh", "-c", &format!("\"$0\" audit show -f {path} | head -1"), &exeat(cx)]).run();
    left.exits(0).shows("run ");
    assert!(left.took < Duration::from_secs(5), "{left:?}");
    live.wait().exits(0);
    let table = table.wait();
    table.exits(0).shows(&format!("{evil}:443")).shows("1 allowed, 1 denied").shows(": exit 0,");
    assert!(!table.stdout().contains('!'), "nothing is wrong with it: {table:?}");
    let json = json.wait();
    json.exits(0);
    assert_eq!(json.json()["host"], evil);
    cx.exeat_plain(["audit", "show", "-f", path]).run().exits(0).shows(&evil);
    cx.exeat_plain(["audit", "show", "-f", path, path]).run().exits(0).says("is a copy of");
    let piped =
        cx.exeat_plain(["audit", "show", "-f", "-"]).stdin(fs::read(&record).expect("a record")).run();
    piped.exits(0).shows(&evil);
}

fn exeat(cx: &Cx) -> String {
    cx.bench().bin.join("exeat").display().to_string()
}

fn follow_killed(cx: &Cx) {
    let record = cx.home().join("live.jsonl");
    let live = waiting(cx, &record);
    let mut table = cx.exeat_plain(["audit", "show", "-f", record.to_str().expect("ASCII")]).start();
    table.until_prints(&cx.good());
    live.signal(Signal::SIGKILL);
    table.wait().exits(0).shows("unfinished: no `run_end`");
    drop(live);
}

fn diff(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let ask = |name: &str, targets: &str, allow: &str| {
        cx.write("targets", targets);
        let path = cx.home().join(name).display().to_string();
        let words = ["run", "--audit", &path, "--allow", allow, "--", cx.probe(), "ask-all", "targets"];
        cx.exeat_plain(words).run().exits(0);
        path
    };
    let before = ask("before.jsonl", &format!("{good}:443\n{evil}:7\n"), &good);
    let same = ask("same.jsonl", &format!("{good}:443\n{good}:443\n"), &good);
    let more = ask("more.jsonl", &format!("{good}:7\n{good}:443\n"), &format!("{good}:7"));
    let diff = |words: &[&str]| cx.exeat_plain([&["audit", "diff"], words].concat()).run();
    let nothing = diff(&[&before, &same]);
    nothing.exits(0).shows("nothing new: 1 target as before\n").shows(&format!("- {evil}:7"));
    let new = diff(&[&before, &more]);
    new.exits(1)
        .shows(&format!("+ {good}:7"))
        .shows(&format!("~ {good}:443"))
        .shows("deny, before only allow");
    let value = diff(&[&before, &same, &more, "--format", "json"]).json();
    assert_eq!((&value["new"][0]["port"], &value["changed"][0]["host"]), (&7.into(), &good.clone().into()));
    diff(&[&before, &more, "--format", "markdown"]).exits(1).shows(&format!("| new | `{good}:7` |"));
    cx.exeat_plain(["audit", "lock", &before, "-o", "egress.lock"]).run().exits(0);
    diff(&["egress.lock", &same]).exits(0).prints("nothing new: 1 target as before\n");
    diff(&["egress.lock", &more]).exits(1).shows(&format!("+ {good}:7"));
    diff(&["none.lock", &more]).exits(2).says("exeat audit lock");
    diff(&["nothing.jsonl", &more]).exits(2);
    diff(&[]).exits(2);
    let text = fs::read_to_string(&more).expect("a record");
    cx.write("damaged.jsonl", &text.replacen("\"deny\"", "\"allow\"", 1));
    diff(&[&before, "damaged.jsonl"]).exits(2).says("is damaged");
}

fn list_filters(cx: &Cx) {
    let runs = |words: &[&str]| {
        let done = cx.exeat_plain([&["audit", "list", "--format", "json"], words].concat()).run();
        done.exits(0);
        let stages: Vec<_> =
            done.json().as_array().expect("a list").iter().map(|run| run["stage"].clone()).collect();
        stages
    };
    two_runs(cx);
    cx.exeat_plain(["run", "--stage", "broken", "--", "sh", "-c", "exit 3"]).run().exits(3);
    assert_eq!(runs(&[]), ["broken", "nightly", "import"]);
    assert_eq!(runs(&["--stage", "import"]), ["import"]);
    assert_eq!(runs(&["--failed"]), ["broken"]);
    assert_eq!(runs(&["--denied"]), ["nightly", "import"]);
    assert_eq!(runs(&["--since", "1h"]).len(), 3);
    assert_eq!(runs(&["--until", "1h"]).len(), 0);
    let none = cx.exeat_plain(["audit", "list", "--until", "1h"]).run();
    none.exits(0).prints("").says("note: no record is of the runs that the flags select");
    let mut live =
        cx.exeat_plain(["run", "--stage", "live", "--", "sh", "-c", "echo up; cat"]).stdin_open().start();
    live.until_prints("up");
    cx.exeat_plain(["audit", "list"]).run().exits(0).shows("  running   ");
    assert_eq!(runs(&["--failed"]), ["broken"], "what still goes on has not failed");
    live.wait().exits(0);
}

/// Sets the age of a record's file to the age in its name.
fn age(path: &Path, days: u64) {
    let then = SystemTime::now() - Duration::from_secs(days * 86_400);
    let file = File::options().append(true).open(path).expect("a record");
    file.set_times(FileTimes::new().set_modified(then)).expect("times");
}

/// Makes the record of a run that started so many days ago, signed with the user's key, with its policy.
fn old(cx: &Cx, record: &Path, days: u64, change: impl Fn(String) -> String) -> PathBuf {
    const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    let then = SystemTime::now() - Duration::from_secs(days * 86_400);
    let mut millis = then.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_millis();
    let mut time = [b'0'; 10];
    for digit in time.iter_mut().rev() {
        *digit = DIGITS[(millis % 32) as usize];
        millis /= 32;
    }
    let name = String::from_utf8_lossy(&time).into_owned() + "0000000000000000";
    let path = record.with_file_name(format!("{name}.jsonl"));
    let policy = path.with_extension("policy.json");
    fs::copy(record.with_extension("policy.json"), &policy).expect("a policy");
    let header = Header {
        run: name.parse().expect("the name of a run"),
        stage: None,
        policy_sha256: sha256_hex(&fs::read(&policy).expect("a policy")),
        mode: Mode::Enforce,
    };
    // The tests are root, and the key is the user's; other tests check its ownership.
    let key = fs::read_to_string(cx.home().join(".local/state/exeat/audit.key")).expect("the key");
    let key = SigningKey::from_pem(&key).expect("the key");
    let log = Log::start_signed(Sink::create_file(&path).expect("a record"), header, key).expect("a log");
    log.write(Event::RunStart(RunStart::default())).expect("a line");
    let end = RunEnd {
        cause: Cause::Exit,
        exit: Some(0),
        limit: None,
        signal: None,
        stopped_by: None,
        connections: 0,
        dropped: 0,
    };
    log.write(Event::RunEnd(end)).expect("a line");
    drop(log);
    fs::write(&path, change(fs::read_to_string(&path).expect("a record"))).expect("a record");
    cx.bench().give(&path, cx.is_root());
    cx.bench().give(&policy, cx.is_root());
    age(&path, days);
    path
}

fn prune(cx: &Cx) {
    two_runs(cx);
    let kept = PathBuf::from(&records(cx)[0]);
    let gone = old(cx, &kept, 200, |text| text);
    let changed = old(cx, &kept, 201, |text| text.replacen("\"cause\":\"exit\"", "\"cause\":\"stop\"", 1));
    let cut = old(cx, &kept, 202, |text| text.lines().take(1).map(|line| format!("{line}\n")).collect());
    let young = old(cx, &kept, 100, |text| text);
    // This run started long ago, but wrote recently.
    let long = old(cx, &kept, 203, |text| text);
    age(&long, 1);
    let written = old(cx, &kept, 204, |text| text);
    let lock =
        nix::fcntl::Flock::lock(File::open(&written).expect("a record"), nix::fcntl::FlockArg::LockExclusive)
            .map_err(|(_, error)| error)
            .expect("a lock");
    let prune =
        |words: &[&str]| cx.exeat_plain([&["audit", "prune", "--older-than", "180d"], words].concat()).run();
    let name = |path: &Path| path.file_stem().expect("a name").to_string_lossy().into_owned();
    let dry = prune(&["--dry-run"]);
    assert_eq!(dry.stdout().lines().count(), 2, "{dry:?}");
    dry.exits(1).shows(&format!("would remove {} (", name(&gone))).shows("1 record would be removed, ");
    assert!(gone.exists() && gone.with_extension("policy.json").exists());
    let done = prune(&[]);
    done.exits(1).shows(&format!("removed {} (", name(&gone))).shows("1 record removed, ");
    done.says(&format!("{} is kept: it is damaged: ", name(&changed)));
    done.says(&format!("{} is kept: it has no end", name(&cut)));
    done.says(&format!("{} is still being written", name(&written)));
    assert!(!gone.exists() && !gone.with_extension("policy.json").exists());
    for path in [&kept, &changed, &cut, &young, &long, &written] {
        assert!(path.exists() && path.with_extension("policy.json").exists(), "{path:?}");
    }
    prune(&["--force"]).exits(0).shows("2 records removed, ");
    drop(lock);
    prune(&[]).exits(0).shows("1 record removed, ");
    for path in [&changed, &cut, &written] {
        assert!(!path.exists() && !path.with_extension("policy.json").exists(), "{path:?}");
    }
    assert!(kept.exists() && young.exists() && long.exists());
    prune(&[]).exits(0).prints("0 records removed, 0 B\n");
    cx.exeat_plain(["audit", "prune"]).run().exits(2);
}
