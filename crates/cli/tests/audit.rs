//! Tests the commands that read records, with records that the library writes. Nothing here starts a sandbox.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use exeat_policy::{Action, Layers, Note, Origin, PolicyBuilder, Reason, Target, Verdict};
use exeat_record::{
    Cause, Close, CloseCause, ConnId, Event, Header, Log, Mode, Progress, RequestDecision, RuleRef, RunEnd,
    RunId, RunStart, SigningKey, Sink, Via, sha256_hex,
};
use serde_json::Value;

#[path = "support/home.rs"]
mod home;

use home::Home;

/// The canonical policy of every run here.
const POLICY: &str = "{}";

/// A run, for which a test writes a record.
struct Run {
    run: RunId,
    stage: &'static str,
    start: RunStart,
    events: Vec<Event>,
}

impl Run {
    fn new(stage: &'static str) -> Self {
        let start = RunStart { command: Some("sh".into()), ..RunStart::default() };
        // Runs that start in the same millisecond have no order.
        std::thread::sleep(std::time::Duration::from_millis(2));
        Self { run: RunId::new(), stage, start, events: Vec::new() }
    }

    fn with_decision(mut self, verdict: Verdict, reason: Reason, host: &str) -> Self {
        let conn = ConnId(self.events.len() as u64 + 1);
        let mut decision = RequestDecision::new(conn, Via::Connect, verdict, reason);
        decision.target = Some(Target::parse(host.as_bytes()).unwrap());
        if verdict == Verdict::Allow {
            decision.ips = vec!["93.184.216.34".parse().unwrap()];
            decision.rule = Some(RuleRef {
                text: host.into(),
                src: ".exeat.toml:3".into(),
                risk: None,
                why: None,
                approved_by: None,
                expires: None,
            });
        }
        self.events.push(Event::Decision(decision));
        self
    }

    fn reaches(self, host: &str, up: u64) -> Self {
        let mut run = self.with_decision(Verdict::Allow, Reason::Rule, host);
        let mut close = Close::new(ConnId(run.events.len() as u64), CloseCause::Client);
        close.target = Some(Target::parse(host.as_bytes()).unwrap());
        close.bytes_up = up;
        close.bytes_down = 1;
        run.events.push(Event::Close(close));
        run
    }

    fn refuses(self, host: &str) -> Self {
        self.with_decision(Verdict::Deny, Reason::Default, host)
    }

    /// Writes the record to the default place, signed with the user's key.
    fn record(self, home: &Home) -> PathBuf {
        let key = own_key(home);
        let path = runs(home).join(format!("{}.jsonl", self.run));
        let header = Header {
            run: self.run,
            stage: Some(self.stage.into()),
            policy_sha256: sha256_hex(POLICY.as_bytes()),
            mode: Mode::Enforce,
        };
        let log = Log::start_signed(Sink::create_file(&path).unwrap(), header, key).unwrap();
        log.write(Event::RunStart(self.start)).unwrap();
        for event in self.events {
            log.write(event).unwrap();
        }
        log.write(Event::RunEnd(RunEnd {
            cause: Cause::Exit,
            exit: Some(0),
            limit: None,
            signal: None,
            stopped_by: None,
            connections: 1,
            dropped: 0,
        }))
        .unwrap();
        path
    }
}

fn runs(home: &Home) -> PathBuf {
    let place = home.0.join(".local/state/exeat/runs");
    fs::create_dir_all(&place).unwrap();
    place
}

fn own_key(home: &Home) -> SigningKey {
    SigningKey::load_or_make(&runs(home).parent().unwrap().join("audit.key")).unwrap().0
}

/// Runs a command on records. Returns its exit code, stdout and stderr.
fn audit(home: &Home, words: &[&str]) -> (i32, String, String) {
    home.run(&[&["audit"], words].concat())
}

fn json(home: &Home, words: &[&str]) -> Value {
    let (_, out, said) = audit(home, words);
    assert!(!out.is_empty(), "{said}");
    serde_json::from_str(&out).unwrap()
}

/// Returns the objects that a command prints, one a line.
fn objects(home: &Home, words: &[&str]) -> Vec<Value> {
    audit(home, words).1.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Records two runs of one stage and one of another, each with a different host.
fn three(home: &Home) -> [PathBuf; 3] {
    let mut import = Run::new("import").reaches("one.example.com:443", 10);
    import.start.labels = vec![("ticket".into(), "OPS-7".into())];
    import.start.user = Some("cleo".into());
    let mut again = Run::new("import").reaches("two.example.com:443", 20);
    again.start.machine = Some("ci-7".into());
    again.start.dir = Some("/srv/work/job".into());
    let train = Run::new("train").reaches("three.example.com:443", 30).refuses("evil.example.com:443");
    [import.record(home), again.record(home), train.record(home)]
}

fn name_of(path: &Path) -> &str {
    path.file_stem().unwrap().to_str().unwrap()
}

#[test]
fn l17_every_command_takes_the_same_selection() {
    let home = Home::new();
    let [one, two, three] = three(&home);
    let selected = |words: &[&str]| {
        let list = json(&home, &[&["list", "--format", "json"], words].concat());
        let mut runs: Vec<_> =
            list.as_array().unwrap().iter().map(|run| run["run"].as_str().unwrap().to_owned()).collect();
        runs.sort();
        let bytes =
            json(&home, &[&["summary", "--format", "json"], words].concat())["total"]["bytes_up"].clone();
        (runs.iter().map(String::len).filter(|len| *len == 26).count(), bytes.as_u64().unwrap())
    };
    assert_eq!(selected(&["--all"]), (3, 60));
    assert_eq!(selected(&["--stage", "import"]), (2, 30));
    assert_eq!(selected(&["--stage", "import", "--stage", "train"]), (3, 60));
    assert_eq!(selected(&["--label", "ticket=OPS-7"]), (1, 10));
    assert_eq!(selected(&["--user", "cleo"]), (1, 10));
    assert_eq!(selected(&["--machine", "ci-7"]), (1, 20));
    assert_eq!(selected(&["--dir", "/srv/work"]), (1, 20));
    assert_eq!(selected(&["--stage", "import", "--machine", "ci-7"]), (1, 20));
    assert_eq!(selected(&["--since", "1h"]), (3, 60));
    assert_eq!(selected(&["--last", "--stage", "import"]), (1, 20));
    assert_eq!(selected(&[runs(&home).to_str().unwrap()]), (3, 60), "a directory is all records in it");
    assert_eq!(selected(&[runs(&home).to_str().unwrap(), "--stage", "train"]), (1, 30));
    assert_eq!(selected(&[".", "--stage", "train"]), (1, 30), "and below");
    assert_eq!(selected(&[one.to_str().unwrap(), two.to_str().unwrap(), "--label", "ticket=OPS-7"]), (1, 10));

    home.file("policy.toml", "[network]\nallow = [\"three.example.com:443\"]\n");
    for (command, code, shown) in [
        (&["show"][..], 0, "three.example.com"),
        (&["verify", "--format", "json"], 0, name_of(&three)),
        (&["export"], 0, "three.example.com"),
        (&["report", "-o", "-"], 0, "three.example.com"),
        (&["learn"], 0, "three.example.com"),
        (&["lock"], 0, "train three.example.com:443 connect"),
        (&["replay", "--policy", "policy.toml"], 0, "as before"),
        (&["diff", one.to_str().unwrap()], 1, "+ three.example.com:443"),
        (&["prune", "--older-than", "1d"], 0, "0 records removed"),
    ] {
        let (exit, out, said) = audit(&home, &[command, &["--stage", "train"]].concat());
        assert!(exit == code && out.contains(shown), "{command:?}: {exit} {out}{said}");
        assert!(!out.contains("two.example.com"), "{command:?}: {out}");
        if command[0] != "prune" {
            let (exit, out, said) = audit(&home, &[command, &["--stage", "none"]].concat());
            // An empty selection is an error only for a command that proves or learns something.
            let expected = if matches!(command[0], "show" | "export") { 0 } else { 2 };
            assert!(
                exit == expected && said.contains("no record is of the runs"),
                "{command:?}: {exit} {out}{said}"
            );
        }
    }
    let (exit, out, _) = audit(&home, &["list", "--stage", "none"]);
    assert_eq!((exit, out.as_str()), (0, ""));
    fs::create_dir(home.0.join("empty")).unwrap();
    let (exit, _, said) = audit(&home, &["summary", "empty"]);
    assert!(exit == 2 && said.contains("no record (*.jsonl)"), "{said}");
}

#[test]
fn l17_a_stream_is_selected_by_its_first_line() {
    let home = Home::new();
    let [one, _, three] = three(&home);
    let bytes = |words: &[&str], input: &Path| {
        let words = [&["audit", "summary", "--format", "json"], words].concat();
        let (exit, out, said) = home.with_stdin(&words, &fs::read(input).unwrap());
        (exit, serde_json::from_str::<Value>(&out).ok().and_then(|it| it["total"]["bytes_up"].as_u64()), said)
    };
    assert_eq!(bytes(&["-", "--stage", "train"], &three).1, Some(30));
    let (exit, sum, said) = bytes(&["-", "--stage", "train"], &one);
    assert!(exit == 0 && sum == Some(0) && said.contains("no record"), "{said}");
    assert_eq!(bytes(&["-", one.to_str().unwrap()], &three).1, Some(40));
    let (exit, _, said) = bytes(&["-", one.to_str().unwrap()], &one);
    assert!(exit == 2 && said.contains("hold the same run"), "{said}");
    let (exit, _, said) = bytes(&["-", "-"], &one);
    assert!(exit == 2 && said.contains("standard input is read once"), "{said}");
}

#[test]
fn l17_the_same_run_twice_counts_once() {
    let home = Home::new();
    let [one, two, _] = three(&home);
    fs::create_dir(home.0.join("backup")).unwrap();
    let backup = home.0.join("backup").join(one.file_name().unwrap());
    fs::copy(&one, &backup).unwrap();
    let count = |words: &[&str]| {
        let (exit, out, said) = audit(&home, &[&["summary", "--format", "json"], words].concat());
        let value: Value = serde_json::from_str(&out).unwrap();
        (exit, value["runs"].as_u64().unwrap(), value["total"]["bytes_up"].as_u64().unwrap(), said)
    };
    let (one, two, backup_path) = (one.to_str().unwrap(), two.to_str().unwrap(), backup.to_str().unwrap());
    let (exit, runs, bytes, said) = count(&[one, two, backup_path]);
    assert_eq!((exit, runs, bytes), (0, 2, 30));
    assert!(
        said.contains("backup") && said.contains("is a copy of") && said.contains("counts once"),
        "{said}"
    );
    let (exit, runs, bytes, _) = count(&[one, &name_of(Path::new(one)).to_ascii_lowercase()]);
    assert_eq!((exit, runs, bytes), (0, 1, 10), "by file and by name");

    let text = fs::read_to_string(&backup).unwrap();
    for (changed, line) in [
        (text.replacen("one.example.com", "own.example.com", 1), 3),
        (text.lines().take(3).map(|line| format!("{line}\n")).collect(), 4),
    ] {
        fs::write(&backup, changed).unwrap();
        let (exit, runs, bytes, said) = count(&[one, backup_path]);
        assert_eq!((exit, runs, bytes), (1, 1, 10), "{said}");
        assert!(said.contains("hold the same run and differ from line"), "{line}: {said}");
        for command in [&["learn"][..], &["lock"], &["export"], &["show"], &["list"], &["report", "-o", "-"]]
        {
            let (exit, out, said) = audit(&home, &[command, &[one, backup_path]].concat());
            assert!(exit == 1 && said.contains("differ from line"), "{command:?}: {exit} {said}");
            assert!(!out.contains("own.example.com"), "{command:?}: {out}");
        }
        let (exit, _, said) = audit(&home, &["diff", two, one, backup_path]);
        assert!(exit == 2 && said.contains("two records of one run differ"), "{said}");
        let (exit, out, _) = audit(&home, &["verify", one, backup_path]);
        assert!(exit == 1 && out.contains("backup"), "{out}");
    }
}

#[test]
fn l17_a_list_names_runs_as_short_as_they_are_found() {
    let home = Home::new();
    for (run, stage) in [
        ("01JD8Z3V5QABCDEFGHJKMNPQRS", "one"),
        ("01JD8Z3V5QABZDEFGHJKMNPQRS", "two"),
        ("01JE8Z3V5QABCDEFGHJKMNPQRS", "three"),
    ] {
        Run { run: run.parse().unwrap(), ..Run::new(stage) }.record(&home);
    }
    let (_, out, _) = audit(&home, &["list"]);
    let names: Vec<_> = out.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["01JE8Z3V5Q", "01JD8Z3V5QABZ", "01JD8Z3V5QABC"], "{out}");
    for (name, stage) in names.iter().zip(["three", "two", "one"]) {
        let (exit, out, said) = audit(&home, &["show", name]);
        assert!(exit == 0 && out.contains(&format!("stage     {stage}\n")), "{out}{said}");
    }
}

#[test]
fn l17_a_list_shows_connections_that_only_report_mode_allowed() {
    let home = Home::new();
    Run::new("reported")
        .with_decision(Verdict::WouldDeny, Reason::Default, "evil.example.com:443")
        .record(&home);
    Run::new("clean").reaches("one.example.com:443", 1).record(&home);
    let (_, out, _) = audit(&home, &["list"]);
    let (head, row) =
        (out.lines().next().unwrap(), out.lines().find(|line| line.contains("reported")).unwrap());
    let at = head.find("WOULD").unwrap() + "WOULD".len();
    assert_eq!(row.get(..at).unwrap().rsplit(' ').next(), Some("1"), "{out}");
    let (_, out, _) = audit(&home, &["list", "--denied"]);
    assert!(out.contains("reported") && !out.contains("clean"), "{out}");
}

#[test]
fn a_list_of_what_is_no_record_is_no_success() {
    let home = Home::new();
    let [import, ..] = three(&home);
    home.file("hello.jsonl", "hello\nyou\n");
    let list = |path: &str| home.run(&["audit", "list", path]);
    assert_eq!(list(import.to_str().unwrap()).0, 0);
    let (exit, out, _) = list("hello.jsonl");
    assert!(exit == 1 && out.contains("no record") && out.contains("hello.jsonl"), "{exit}: {out}");
    for path in ["./missing", "missing/x.jsonl"] {
        assert_eq!(list(path).0, 2, "{path}");
    }
}

#[test]
fn l17_a_list_says_which_runs_asked_for_a_host() {
    let home = Home::new();
    let [import, again, train] = three(&home).map(|path| name_of(&path).to_owned());
    let runs = |words: &[&str]| -> Vec<String> {
        let words = [&["list", "--format", "json"], words].concat();
        json(&home, &words)
            .as_array()
            .unwrap()
            .iter()
            .map(|run| run["run"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(runs(&["--host", "one.example.com"]), [&*import]);
    assert_eq!(runs(&["--host", "evil.example.com"]), [&*train], "it was refused");
    assert_eq!(runs(&["--host", "one.example.com", "--host", "two.example.com"]), [&*again, &*import]);
    assert_eq!(runs(&["--host", "*.example.com", "--stage", "import"]), [&*again, &*import]);
    assert_eq!(runs(&["--host", "93.184.216.34"]).len(), 3, "each led there");
    assert_eq!(runs(&["--host", "none.example.com"]), [""; 0]);
}

#[test]
fn l17_verify_ends_with_totals_and_lists_damaged_records() {
    let home = Home::new();
    let [one, two, _] = three(&home);
    let vkey = own_key(&home).verifying().to_string();
    let (exit, out, _) = audit(&home, &["verify", "--all"]);
    let totals = format!(
        "3 whole, 0 not whole, signed by {vkey}\n3 policies are not stored beside the records: not compared\n"
    );
    assert!(exit == 0 && out.starts_with(&totals), "{exit} {out}");
    let (exit, out, _) = audit(&home, &["verify", one.to_str().unwrap()]);
    assert!(exit == 0 && out.contains(": whole: ") && out.contains("\n1 whole, 0 not whole"), "{out}");

    let text = fs::read_to_string(&two).unwrap();
    fs::write(&two, text.replacen("two.example.com", "own.example.com", 1)).unwrap();
    let (exit, out, _) = audit(&home, &["verify", "--all"]);
    assert_eq!(exit, 1);
    assert!(out.starts_with(&format!("`{}`: NOT WHOLE\n", two.display())), "{out}");
    assert!(out.contains("\n2 whole, 1 not whole, signed by ") && !out.contains(name_of(&one)), "{out}");

    // With JSON, the last object has the same totals.
    let values = objects(&home, &["verify", "--all", "--format", "json"]);
    assert_eq!((values.len(), &values[0]["standing"]), (4, &"whole".into()), "{values:?}");
    let (totals, key) = (&values[3]["totals"], vkey.as_str());
    assert_eq!((&totals["whole"], &totals["not_whole"]), (&2.into(), &1.into()), "{totals}");
    assert_eq!((&totals["not_proved"], &totals["policies_not_compared"]), (&0.into(), &2.into()), "{totals}");
    assert_eq!(
        (&totals["signed_by"][0]["key"], &totals["signed_by"][0]["records"]),
        (&key.into(), &2.into())
    );
    assert_eq!(values[3]["ledgers"], Value::Array(Vec::new()), "{values:?}");
    let values = objects(&home, &["verify", one.to_str().unwrap(), "--format", "json"]);
    assert_eq!((values.len(), &values[1]["totals"]["whole"]), (2, &1.into()), "{values:?}");
    assert!(values[1].get("ledgers").is_none(), "{values:?}");
}

#[test]
fn l17_an_unknown_key_is_125_whether_or_not_there_are_keys() {
    let home = Home::new();
    let [one, ..] = three(&home);
    let one = one.to_str().unwrap();
    let other = Home::new();
    let stranger = own_key(&other).verifying().to_string();
    let (exit, out, _) = audit(&home, &["verify", one, "--key", &stranger]);
    assert!(
        exit == 125 && out.contains("not proved: signed by") && out.contains("1 not proved"),
        "{exit} {out}"
    );
    let (exit, ..) = audit(&other, &["verify", one]);
    assert_eq!(exit, 125);
    // A damaged record is damaged, whoever signed it.
    let text = fs::read_to_string(one).unwrap();
    fs::write(one, text.replacen("one.example.com", "own.example.com", 1)).unwrap();
    assert_eq!(audit(&home, &["verify", one, "--key", &stranger]).0, 1);
}

#[test]
fn l17_a_key_other_than_the_users_is_reported() {
    let home = Home::new();
    let [one, two, _] = three(&home);
    let own = own_key(&home);
    let state = home.0.join(".local/state/exeat");
    // Somebody with write access has added a key, and signed a record with it.
    let other = Home::new();
    let stranger = own_key(&other);
    let mut run = Run::new("import").reaches("one.example.com:443", 1);
    run.run = name_of(&one).parse().unwrap();
    let forged = run.record(&other);
    fs::copy(&forged, &one).unwrap();
    fs::write(state.join("audit.pub"), format!("{}\n{}\n", own.verifying(), stranger.verifying())).unwrap();
    let (exit, out, _) = audit(&home, &["verify", one.to_str().unwrap()]);
    let said = format!("note: signed by another key than audit.key: {}", stranger.verifying().key_id());
    assert!(exit == 0 && out.contains(&said), "{out}");
    let (_, out, _) = audit(&home, &["verify", "--all"]);
    let totals = format!("{} (1) (another key than audit.key)", stranger.verifying());
    assert!(out.contains(&totals), "{out}");
    let value = objects(&home, &["verify", "--format", "json", two.to_str().unwrap()]);
    assert_eq!(value[0]["other_key_than_own"], false);

    fs::write(state.join("audit.pub"), "nonsense\n").unwrap();
    let (exit, _, said) = audit(&home, &["verify", two.to_str().unwrap()]);
    assert!(exit == 2 && said.contains("exeat/audit.pub`"), "{said}");
}

#[test]
fn l17_readers_say_that_they_check_no_signature() {
    let home = Home::new();
    three(&home);
    home.file("policy.toml", "[network]\nallow = [\"three.example.com:443\"]\n");
    let baseline = runs(&home);
    for command in [
        &["show"][..],
        &["show", "--format", "json"],
        &["summary"],
        &["export"],
        &["learn"],
        &["lock"],
        &["replay", "--policy", "policy.toml"],
        &["diff", baseline.to_str().unwrap()],
    ] {
        let (_, out, said) = audit(&home, command);
        assert!(
            said.contains("signatures are not checked here; `exeat audit verify`"),
            "{command:?}: {said}"
        );
        assert!(!out.contains("whole") && !said.contains("whole"), "{command:?}: {out}{said}");
    }
    for command in [
        &["summary", "--format", "json"][..],
        &["replay", "--policy", "policy.toml", "--format", "json"],
        &["diff", baseline.to_str().unwrap(), "--format", "json"],
    ] {
        assert_eq!(json(&home, command)["signature"], "not checked", "{command:?}");
    }
    assert_eq!(json(&home, &["list", "--format", "json"])[0]["signature"], "not checked");
    for command in [&["list"][..], &["lock", "-o", "egress.lock"]] {
        let (exit, _, said) = audit(&home, command);
        assert!(exit == 0 && said.is_empty(), "{command:?}: {said}");
    }
    let (_, out, said) = audit(&home, &["verify"]);
    assert!(!said.contains("not checked") && out.contains("whole"), "{out}{said}");
}

#[test]
fn l17_a_live_run_has_one_word() {
    let home = Home::new();
    let run = RunId::new();
    let path = runs(&home).join(format!("{run}.jsonl"));
    let header = Header { run, stage: None, policy_sha256: String::new(), mode: Mode::Enforce };
    let log = Log::start_signed(Sink::create_file(&path).unwrap(), header, own_key(&home)).unwrap();
    log.write(Event::RunStart(RunStart::default())).unwrap();
    let words = |word: &str| {
        let (exit, out, _) = audit(&home, &["show"]);
        assert!(exit == 0 && out.contains(&format!("! {word}: no `run_end` after line ")), "{out}");
        let (_, out, _) = audit(&home, &["list"]);
        assert!(out.contains(word), "{out}");
    };
    words("running");
    drop(log);
    words("unfinished");
}

/// A command that follows records, with its output so far.
struct Following {
    child: std::process::Child,
    printed: Arc<Mutex<String>>,
}

impl Following {
    fn start(home: &Home, words: &[&str]) -> Self {
        let mut command = home.exeat(&[&["audit", "show", "-f"], words].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let printed = Arc::new(Mutex::new(String::new()));
        let (mut out, text) = (BufReader::new(child.stdout.take().unwrap()), Arc::clone(&printed));
        std::thread::spawn(move || {
            let mut line = String::new();
            while out.read_line(&mut line).is_ok_and(|count| count > 0) {
                text.lock().unwrap().push_str(&std::mem::take(&mut line));
            }
        });
        Self { child, printed }
    }

    fn printed(&self) -> String {
        self.printed.lock().unwrap().clone()
    }

    /// Waits until the output contains all of these words, and returns it.
    fn until(&self, words: &[&str]) -> String {
        self.wait(|out| words.iter().all(|word| out.contains(word)))
    }

    fn wait(&self, is_done: impl Fn(&str) -> bool) -> String {
        let by = Instant::now() + Duration::from_secs(20);
        while !is_done(&self.printed()) {
            assert!(Instant::now() < by, "{}", self.printed());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.printed()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a record of a run that has not ended.
fn start_record(home: &Home, stage: &str) -> (String, Log) {
    let run = RunId::new();
    let path = runs(home).join(format!("{run}.jsonl"));
    let header = Header { run, stage: Some(stage.into()), policy_sha256: String::new(), mode: Mode::Enforce };
    let log = Log::start_signed(Sink::create_file(&path).unwrap(), header, own_key(home)).unwrap();
    log.write(Event::RunStart(RunStart { command: Some("make".into()), ..RunStart::default() })).unwrap();
    // Otherwise the start of the next run's name could be the same.
    std::thread::sleep(Duration::from_millis(2));
    (run.to_string().chars().take(10).collect(), log)
}

fn write_decision(log: &Log, conn: u64, host: &str) {
    let mut decision = RequestDecision::new(ConnId(conn), Via::Connect, Verdict::Deny, Reason::Default);
    decision.target = Some(Target::parse(host.as_bytes()).unwrap());
    log.write(Event::Decision(decision)).unwrap();
}

fn write_end(log: &Log) {
    write_end_after(log, 1);
}

/// Writes the end of a run with so many connections.
fn write_end_after(log: &Log, connections: u64) {
    let end = RunEnd {
        cause: Cause::Exit,
        exit: Some(0),
        limit: None,
        signal: None,
        stopped_by: None,
        connections,
        dropped: 0,
    };
    log.write(Event::RunEnd(end)).unwrap();
}

#[test]
fn l17_follows_every_run_and_those_that_start_later() {
    let home = Home::new();
    let over = Run::new("import").reaches("old.example.com:443", 1).record(&home);
    let (first, one) = start_record(&home, "import");
    let (_, train) = start_record(&home, "train");
    write_decision(&one, 1, "one.example.com:443");
    write_decision(&train, 1, "train.example.com:443");
    let all = Following::start(&home, &["--all"]);
    let json = Following::start(&home, &["--stage", "import", "--format", "json"]);
    let denied = Following::start(&home, &["--stage", "import", "--verdict", "deny"]);
    // One starts later, and one ends before the reader can see it.
    all.until(&["one.example.com:443", "train.example.com:443"]);
    denied.until(&["one.example.com:443"]);
    json.until(&["one.example.com"]);
    let (second, two) = start_record(&home, "import");
    write_decision(&two, 1, "two.example.com:443");
    let short = Run::new("import").refuses("short.example.com:443").record(&home);
    write_decision(&one, 2, "again.example.com:443");
    for stage in 0..40 {
        write_end(&start_record(&home, &format!("many{stage}")).1);
    }
    for following in [&all, &denied] {
        let hosts = ["one.example.com", "two.example.com", "short.example.com", "again.example.com"];
        let out = following.until(&hosts);
        assert!(!out.contains("old.example.com"), "it is over: {out}");
        assert_eq!(out.matches("VERDICT").count(), 1, "{out}");
        let begins = |host: &str, run: &str| {
            let line = out.lines().find(|line| line.contains(host)).unwrap();
            assert!(line.starts_with(&format!("{run}  ")), "{line}");
        };
        begins("one.example.com", &first);
        begins("again.example.com", &first);
        begins("two.example.com", &second);
        begins("short.example.com", name_of(&short).get(..10).unwrap());
    }
    all.until(&["make, stage many0", "make, stage many39"]);
    json.until(&["two.example.com", "again.example.com", "short.example.com"]);
    write_end(&two);
    all.until(&[&format!("{second}  ")]);
    all.wait(|out| {
        out.lines().any(|line| line.starts_with(&second) && line.contains("exit 0; 0 allowed, 1 denied"))
    });
    assert!(!denied.printed().contains("train") && !json.printed().contains("train"), "{}", json.printed());
    for line in json.printed().lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["stage"], "import");
    }
    // Every line appears once, and in order.
    let out = all.printed();
    for word in
        ["one.example.com", "two.example.com", "short.example.com", "again.example.com", "stage many7\n"]
    {
        assert_eq!(out.matches(word).count(), 1, "{word}: {out}");
    }
    assert!(!out.contains('!'), "{out}");
    // A reader that closes the pipe ends the command.
    let (exit, _, said) = audit(&home, &["show", "-f", "--all", "--until", "1h"]);
    assert!(exit == 2 && said.contains("--until has no place"), "{said}");
    let (exit, ..) = home.run(&["audit", "show", "-f", over.to_str().unwrap(), short.to_str().unwrap()]);
    assert_eq!(exit, 0, "records that are named are followed to their ends");
}

/// If more runs are live than may be open at a time, the others wait, and nothing is lost.
#[test]
fn l17_runs_beyond_the_limit_are_followed_later() {
    let home = Home::new();
    let logs: Vec<Log> = (0..260).map(|_| start_record(&home, "many").1).collect();
    for (at, log) in logs.iter().enumerate() {
        write_decision(log, 1, &format!("h{at}.example.com:443"));
    }
    let all = Following::start(&home, &["--all"]);
    all.until(&["h0.example.com", "h255.example.com"]);
    assert!(!all.printed().contains("h256.example.com"), "{}", all.printed());
    logs[..4].iter().for_each(write_end);
    let out = all.until(&["h259.example.com"]);
    for at in 0..260 {
        assert_eq!(out.matches(&format!(" h{at}.example.com")).count(), 1, "{at}");
    }
    let open = fs::read_dir(format!("/proc/{}/fd", all.child.id())).unwrap().count();
    assert!(open < 256 + 16, "{open} descriptors");
}

#[test]
fn l17_a_comparison_takes_many_baselines() {
    let home = Home::new();
    let [one, two, three] = three(&home);
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let diff = |words: &[&str]| audit(&home, &[&["diff"], words].concat());
    let (exit, out, _) = diff(&["--baseline", &path(&one), "--baseline", &path(&two), &path(&three)]);
    assert!(
        exit == 1 && out.contains("+ three.example.com:443") && out.contains("- two.example.com:443"),
        "{out}"
    );
    let (exit, out, _) =
        diff(&["--baseline", runs(&home).to_str().unwrap(), &path(&three), "--stage", "train"]);
    assert!(exit == 0 && out.starts_with("nothing new: 2 targets as before\n"), "{out}");
    // Selects the baselines with `--until`, and the others with `--since`.
    let first: RunId = name_of(&three).parse().unwrap();
    let text = fs::read_to_string(&three).unwrap();
    let start: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let (exit, out, said) = diff(&["--baseline-until", start["ts"].as_str().unwrap()]);
    assert!(
        exit == 1 && out.contains("+ three.example.com:443") && !out.contains("+ two"),
        "{first}: {out}{said}"
    );
    let (exit, _, said) = diff(&["--baseline-until", "2001-01-01"]);
    assert!(exit == 2 && said.contains("no record is of the runs"), "{said}");
    assert_eq!(diff(&[]).0, 2);
    home.file("x.lock", "schema 1\n");
    let (exit, _, said) = diff(&["--baseline", "x.lock", "--baseline", &path(&one), &path(&two)]);
    assert!(exit == 2 && said.contains("name it alone"), "{said}");
}

#[test]
fn l17_a_comparison_lists_the_cases_that_it_cannot_decide() {
    let home = Home::new();
    let [one, _, three] = three(&home);
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    home.file("x.lock", "schema 1\ntrain three.example.com:443 connect\n");
    home.file("approved", "# a lock by any name\n\nschema 1\ntrain three.example.com:443 connect\n");
    let (exit, by_content, said) = audit(&home, &["diff", "approved", &path(&three)]);
    assert!(exit == 0, "{said}");
    let (exit, out, _) = audit(&home, &["diff", "x.lock", &path(&three)]);
    assert_eq!(by_content, out);
    let said = "cannot tell: 1 refusal that may be new: a lock has none\n";
    assert!(exit == 0 && out.ends_with(said), "{out}");

    let mut flood = RequestDecision::new(None, Via::Connect, Verdict::Deny, Reason::Default);
    flood.count = Some(40);
    let mut run = Run::new("flood").reaches("one.example.com:443", 1);
    run.events.push(Event::Decision(flood));
    let flood = run.record(&home);
    let (exit, out, _) = audit(&home, &["diff", &path(&one), &path(&flood)]);
    assert!(exit == 0 && out.contains("cannot tell: 40 attempts without a host on record"), "{out}");
    let value = json(&home, &["diff", &path(&flood), &path(&one), "--format", "json"]);
    assert_eq!(value["cannot_tell"][0]["count"], 40, "{value}");
    let mut elsewhere = Run::new("elsewhere");
    elsewhere.start.proxy = Some("unix:/run/p".into());
    let elsewhere = elsewhere.record(&home);
    let (_, out, _) = audit(&home, &["diff", &path(&one), &path(&elsewhere)]);
    assert!(out.contains("cannot tell: 1 run with decisions in another proxy's record"), "{out}");
}

#[test]
fn l17_a_replay_lists_the_attempts_that_it_cannot_decide() {
    let home = Home::new();
    home.file("policy.toml", "[[network.rule]]\nallow = [\"one.example.com\"]\nmax_upload = \"1kB\"\n");
    let replay = |path: &Path| audit(&home, &["replay", "--policy", "policy.toml", path.to_str().unwrap()]);
    let less = Run::new("less").reaches("one.example.com:443", 400).reaches("one.example.com:443", 500);
    let (exit, out, _) = replay(&less.record(&home));
    assert!(exit == 0 && out.contains("2 as before, 0 now denied"), "{out}");
    let more = Run::new("more").reaches("one.example.com:443", 900).reaches("one.example.com:443", 500);
    let (exit, out, _) = replay(&more.record(&home));
    assert!(exit == 1 && out.contains("budget_bytes") && out.contains("1 as before, 1 now denied"), "{out}");
    let open =
        Run::new("open").with_decision(Verdict::Allow, Reason::Rule, "one.example.com:443").record(&home);
    let (exit, out, _) = replay(&open);
    let said = "cannot tell: 1 attempt without bytes on record, where the policy has a `max_upload`\n";
    assert!(exit == 125 && out.contains("0 as before") && out.contains(said), "{exit} {out}");
    let words = ["replay", "--policy", "policy.toml", "--format", "json", open.to_str().unwrap()];
    let value = json(&home, &words);
    assert_eq!(
        (&value["cannot_tell"]["bytes"], &value["cannot_tell"]["bytes_up_at_least"]),
        (&1.into(), &Value::Null)
    );

    // A connection without an end has sent at least this: once above the budget, and once below.
    let host = "one.example.com:443";
    let killed = |up: &[u64]| {
        let mut run = Run::new("killed").reaches(host, 100).with_decision(Verdict::Allow, Reason::Rule, host);
        let target = Target::parse(host.as_bytes()).unwrap();
        let conn = ConnId(run.events.len() as u64);
        let line = |up: &u64| {
            Event::Progress(Progress { conn, target: Some(target.clone()), bytes_up: *up, bytes_down: 9 })
        };
        run.events.extend(up.iter().map(line));
        let run = run.reaches(host, 200).record(&home);
        let text = fs::read_to_string(&run).unwrap();
        let lines = text.lines().take_while(|line| !line.contains(r#""event":"run_end""#));
        fs::write(&run, lines.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        run
    };
    let (exit, out, _) = replay(&killed(&[300, 950]));
    let said = "1 as before, 2 now denied, 0 now allowed";
    assert!(exit == 1 && out.contains(said) && !out.contains("attempt"), "{exit} {out}");
    let less = killed(&[300, 600]);
    let (exit, out, _) = replay(&less);
    let said = "cannot tell: 1 attempt without an end on record (at least 600 B up), where the policy has a `max_upload`\n  \
                cannot tell: 1 attempt under the same `max_upload` as these, at the same time\n";
    assert!(exit == 125 && out.contains("1 as before, 0 now denied") && out.contains(said), "{exit} {out}");
    let words = ["replay", "--policy", "policy.toml", "--format", "json", less.to_str().unwrap()];
    let value = json(&home, &words);
    assert_eq!(
        (&value["cannot_tell"]["bytes_up_at_least"], &value["cannot_tell"]["beside"]),
        (&600.into(), &1.into())
    );
}

#[test]
fn l17_a_replay_counts_the_rules_that_decided() {
    let home = Home::new();
    let mut run = Run::new("import");
    for src in ["--allow", "import.toml:6", "import.toml:6"] {
        run = run.with_decision(Verdict::Allow, Reason::Rule, "one.example.com:443");
        let Some(Event::Decision(decision)) = run.events.last_mut() else { unreachable!() };
        decision.rule.as_mut().unwrap().src = src.into();
    }
    let path = run.record(&home);
    let (exit, out, _) = audit(&home, &["replay", "--allow", "other.example.com", path.to_str().unwrap()]);
    let said = "by one.example.com:443 (import.toml:6) and 1 other rule\n";
    assert!(exit == 1 && out.contains("3x") && out.contains(said), "{out}");
}

#[test]
fn l17_learned_rules_name_seq_and_unreached_targets() {
    let home = Home::new();
    let mut run = Run::new("import").reaches("one.example.com:443", 10);
    run = run.with_decision(Verdict::Allow, Reason::Rule, "down.example.com:443");
    let mut close = Close::new(ConnId(run.events.len() as u64), CloseCause::Error);
    close.target = Some(Target::parse(b"down.example.com:443").unwrap());
    run.events.push(Event::Close(close));
    let path = run.record(&home);
    let (_, out, _) = audit(&home, &["learn", path.to_str().unwrap()]);
    assert!(out.contains("# 1 connection, 1 that failed: never reached\n"), "{out}");
    assert!(out.contains(&format!("run {} seq ", name_of(&path))) && !out.contains(" line "), "{out}");
    let text = fs::read_to_string(&path).unwrap();
    let line = text.lines().find(|line| line.contains("one.example.com")).unwrap();
    let seq = serde_json::from_str::<Value>(line).unwrap()["seq"].clone();
    assert!(out.contains(&format!(" seq {seq}\n")), "{seq}: {out}");
    let (_, out, _) = audit(&home, &["list"]);
    let at = out.lines().next().unwrap().find("FAILED").unwrap() + "FAILED".len();
    assert_eq!(out.lines().nth(1).unwrap().get(..at).unwrap().rsplit(' ').next(), Some("1"), "{out}");
}

#[test]
fn l17_policies_of_records_are_compared() {
    let home = Home::new();
    let stored = |name: &str, hosts: &[&str]| {
        let mut grants = PolicyBuilder::new();
        for host in hosts {
            let origin = Origin::Flag { flag: "--allow".into() };
            grants.add(host, Action::Allow, origin, Note::default()).unwrap();
        }
        let policy = Layers { grants, ..Layers::default() }.build();
        home.file(name, policy.canonical_json());
    };
    stored("old.policy.json", &["one.example.com"]);
    stored("new.policy.json", &["one.example.com", "two.example.com"]);
    let (exit, out, said) = home.run(&["policy", "diff", "old.policy.json", "new.policy.json"]);
    assert_eq!((exit, out.as_str(), said.as_str()), (1, "opens    two.example.com:443\n", ""));
    assert_eq!(home.run(&["policy", "diff", "old.policy.json", "old.policy.json"]).0, 0);
    home.file(
        "f.toml",
        "stage = \"import\"\n[network]\nallow = [\"one.example.com\"]\n[fs]\nro = [\"/srv\"]\n",
    );
    let (exit, out, said) = home.run(&["policy", "diff", "old.policy.json", "f.toml"]);
    assert!(
        exit == 0 && out.is_empty() && said.contains("files, variables and limits are not compared"),
        "{out}{said}"
    );
    home.file(
        "bad.policy.json",
        &fs::read_to_string(home.0.join("old.policy.json")).unwrap().replace("one", "ONE"),
    );
    let (exit, _, said) = home.run(&["policy", "diff", "bad.policy.json", "new.policy.json"]);
    assert!(exit == 2 && said.contains("not as it was stored"), "{said}");
}

/// Writes the largest numbers into every line, and several of each.
#[test]
fn l17_no_number_in_a_record_stops_a_reader() {
    let home = Home::new();
    let record =
        Run::new("train").reaches("one.example.com:443", 10).refuses("evil.example.com:443").record(&home);
    let text = fs::read_to_string(&record).unwrap();
    let (mut all, mut prev) = (String::new(), "0".repeat(64));
    let lines: Vec<&str> = text.lines().collect();
    let middle =
        lines.iter().filter(|line| !line.contains("\"event\":\"run_") && !line.contains("\"checkpoint\""));
    let repeated = middle.clone().chain(middle.clone()).chain(middle.clone());
    let ends = |word: &str| lines.iter().find(|line| line.contains(word)).into_iter();
    for (seq, line) in ends("run_start").chain(repeated).chain(ends("run_end")).enumerate() {
        let mut line: serde_json::Map<String, Value> = serde_json::from_str(line).unwrap();
        for (name, value) in &mut line {
            if value.is_u64() && !["port", "conn"].contains(&name.as_str()) {
                *value = if name == "exit" { 0.into() } else { u64::MAX.into() };
            }
        }
        if ["decision", "dns"].contains(&line["event"].as_str().unwrap()) {
            line.insert("count".into(), u64::MAX.into());
        }
        line.insert("seq".into(), seq.into());
        line.insert("prev".into(), prev.into());
        let line = format!("{}\n", serde_json::to_string(&line).unwrap());
        prev = sha256_hex(line.as_bytes());
        all.push_str(&line);
    }
    fs::write(&record, all).unwrap();
    let record = record.to_str().unwrap();
    home.file("new.policy.toml", "version = 1\n[[allow]]\nhost = \"one.example.com\"\n");
    for command in [
        "show",
        "show --format json",
        "summary",
        "summary --sort up",
        "summary --format markdown",
        "summary --format json",
        "summary --format github",
        "verify",
        "verify --format json",
        "list",
        "list --format json",
        "export",
        "export --format ecs",
        "export --format jsonl",
        "learn",
        "lock",
        "report -o -",
        "replay --policy new.policy.toml",
        "replay --policy new.policy.toml --format json",
        "diff --baseline X",
        "diff --baseline X --format json",
    ] {
        let words = command.replace('X', record);
        let words: Vec<&str> = words.split(' ').chain([record]).collect();
        let (exit, _, said) = audit(&home, &words);
        assert!([0, 1, 2].contains(&exit) && !said.contains("panicked"), "{command}: {exit} {said}");
    }
}

/// Runs a command that must end within some seconds.
fn audit_within(home: &Home, words: &str) -> (i32, String, String) {
    let script = format!("exec timeout 20 {} audit {words}", env!("CARGO_BIN_EXE_exeat"));
    home::result_of(home.command("sh").args(["-c", &script]).output().unwrap())
}

/// A pipe, a device and a link replace records: each is reported, none blocks the reader, and the other records are
/// read.
#[test]
fn l17_a_record_that_is_not_a_file_is_reported() {
    let home = Home::new();
    let good = Run::new("import").reaches("one.example.com:443", 10).record(&home);
    let state = runs(&home).parent().unwrap().to_owned();
    let places: [&dyn Fn(&Path); 4] = [
        &|path| assert!(home.command("mkfifo").arg(path).status().unwrap().success()),
        &|path| fs::create_dir(path).unwrap(),
        &|path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
        &|path| std::os::unix::fs::symlink("nowhere", path).unwrap(),
    ];
    for place in places {
        let path = runs(&home).join(format!("{}.jsonl", RunId::new()));
        place(&path);
        // A directory that is named is searched.
        let named = format!("verify {}", runs(&home).display());
        for words in ["verify --all", &named].into_iter().take(if path.is_dir() { 1 } else { 2 }) {
            let (exit, out, said) = audit_within(&home, words);
            assert!(
                exit == 1 && out.contains("NOT WHOLE\n  it cannot be read"),
                "{words}: {exit} {out}{said}"
            );
            assert!(out.contains("1 whole, 1 not whole"), "{words}: {out}");
        }
        for words in [
            "list",
            "summary --all",
            "show --all",
            "export --all",
            "learn --all",
            "report --all -o page.html",
        ] {
            let (exit, _, said) = audit_within(&home, words);
            assert!(exit == 1 && said.contains("is not read: "), "{words}: {exit} {said}");
        }
        let (exit, _, said) = audit_within(&home, "prune --older-than 1ms");
        assert!(path.symlink_metadata().is_ok() && [0, 1].contains(&exit), "{exit} {said}");
        if path.is_dir() {
            fs::remove_dir(&path).unwrap()
        } else {
            fs::remove_file(&path).unwrap()
        }
        if !good.exists() {
            Run::new("import").reaches("one.example.com:443", 10).record(&home);
        }
        // The file of known keys is checked too.
        let vkeys = state.join("audit.pub");
        let _ = fs::remove_file(&vkeys);
        place(&vkeys);
        let (exit, out, said) = audit_within(&home, "verify --all");
        assert!(
            exit == 0 && out.contains("1 whole") && (said.contains("is not used: ") || !vkeys.exists()),
            "{exit} {out}{said}"
        );
        if vkeys.is_dir() { fs::remove_dir(&vkeys).unwrap() } else { fs::remove_file(&vkeys).unwrap() }
    }
}

/// Root reads what nobody may read, so it does without that capability here.
#[test]
fn l17_a_record_that_cannot_be_read_was_not_removed() {
    let home = Home::new();
    let [one, two, _] = three(&home);
    fs::set_permissions(&one, fs::Permissions::from_mode(0o000)).unwrap();
    let plain = |words: &[&str]| {
        let mut command = home.command("setpriv");
        if nix::unistd::geteuid().is_root() {
            command.arg("--bounding-set=-dac_override,-dac_read_search");
        }
        let done = command.arg(env!("CARGO_BIN_EXE_exeat")).arg("audit").args(words).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
    };
    let (exit, out, said) = plain(&["verify", "--all"]);
    assert!(exit == 1 && out.contains("NOT WHOLE\n  it cannot be read"), "{out}{said}");
    for words in [&["summary", "--all"][..], &["export", "--all"]] {
        let (exit, out, said) = plain(words);
        assert!(exit == 1 && said.contains("is not read: permission denied"), "{words:?}: {exit} {said}");
        assert!(out.contains("two.example.com"), "{words:?}: {out}");
    }
    let dir = runs(&home).display().to_string();
    let (exit, out, said) = plain(&["diff", two.to_str().unwrap(), &dir]);
    assert!(
        exit == 1 && out.contains("+ three.example.com") && said.contains("is not read: "),
        "{out}{said}"
    );
    // The record that cannot be read may have something new.
    let (exit, out, said) = plain(&["diff", &dir, &dir]);
    assert!(exit == 125 && out.contains("nothing new"), "{exit} {out}{said}");
}

/// Output goes into a pipe or a device, and never replaces it.
#[test]
fn l17_an_output_replaces_no_pipe_or_device() {
    use std::os::unix::fs::FileTypeExt as _;
    let home = Home::new();
    Run::new("import").reaches("one.example.com:443", 10).record(&home);
    for words in ["report", "lock", "learn", "learn --force"] {
        let script = format!(
            "mkfifo pipe; cat pipe > got & timeout 20 {} audit {words} -o pipe; echo $?; wait; ln -s pipe link",
            env!("CARGO_BIN_EXE_exeat")
        );
        let (_, out, said) = home::result_of(home.command("sh").args(["-c", &script]).output().unwrap());
        assert_eq!(out, "0\n", "{words}: {said}");
        assert!(fs::symlink_metadata(home.0.join("pipe")).unwrap().file_type().is_fifo(), "{words}");
        assert!(fs::metadata(home.0.join("got")).unwrap().len() > 20, "{words}: {said}");
        // A link to a pipe is treated as a pipe; a link to a file is replaced, not followed.
        let script = format!(
            "cat pipe > got & timeout 20 {exeat} audit {words} -o link; wait; rm pipe link; echo precious > victim; \
             ln -s victim link; {exeat} audit {words} -o link; cat victim",
            exeat = env!("CARGO_BIN_EXE_exeat")
        );
        let (_, out, said) = home::result_of(home.command("sh").args(["-c", &script]).output().unwrap());
        assert_eq!(out, "precious\n", "{words}: {said}");
        fs::remove_file(home.0.join("link")).unwrap();
        // Only root can make a device.
        let made = home.command("mknod").args(["null", "c", "1", "3"]).output().unwrap();
        if made.status.success() {
            let (exit, _, said) = audit_within(&home, &format!("{words} -o null"));
            assert!(
                fs::symlink_metadata(home.0.join("null")).unwrap().file_type().is_char_device(),
                "{exit} {said}"
            );
            fs::remove_file(home.0.join("null")).unwrap();
        }
    }
}

/// A run that was killed before its first line does not count as tampering, and is pruned when it is old.
#[test]
fn l17_a_record_without_a_line_belongs_to_a_run_that_did_not_start() {
    use nix::fcntl::{Flock, FlockArg};
    let home = Home::new();
    Run::new("import").reaches("one.example.com:443", 10).record(&home);
    let empty = runs(&home).join(format!("{}.jsonl", RunId::new()));
    let lock = Flock::lock(fs::File::create(&empty).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
    let (exit, out, _) = audit(&home, &["verify", "--all"]);
    assert!(
        exit == 0 && out.contains("starting: it has no line yet") && out.contains("\nstarting: 1\n"),
        "{exit} {out}"
    );
    drop(lock);
    let (exit, out, _) = audit(&home, &["verify", "--all"]);
    assert!(exit == 0 && out.contains("not begun: no line is in it"), "{exit} {out}");
    assert!(out.contains("1 run not begun") && !out.contains("before there were ledgers: 2"), "{out}");
    let (_, out, _) = audit(&home, &["prune", "--older-than", "1ms"]);
    assert!(!empty.exists() && out.contains("2 records removed"), "{out}");
}

/// The most that a reader of a large record may map, including code and stacks.
const MOST_MAPPED_KB: u64 = 96 * 1024;

/// A record can be much larger than the memory of its reader. EXEAT_TRIAL_MB is its size in MB: 1024 takes a release
/// build some seconds, and a debug build minutes.
#[test]
fn l17_records_of_any_size_are_read_in_constant_memory() {
    /// The most that the peak of memory may grow from a quarter of the record to the whole: less than the rest of the
    /// smallest record here, so no reader that keeps what it reads stays below.
    const MOST_GROWTH_KB: u64 = 2 * 1024;
    let mb = std::env::var("EXEAT_TRIAL_MB")
        .ok()
        .map_or(if cfg!(debug_assertions) { 4 } else { 256 }, |mb| mb.parse().unwrap());
    // A quarter already has every host, because a reader does keep hosts, up to a bound.
    let hosts = (250 * mb).min(20_000);
    let (part, whole) = (LargeRecord::new(mb << 18, hosts), LargeRecord::new(mb << 20, hosts));
    let hashed = whole.time_to_hash();
    eprintln!("SHA-256: {hashed:?} for {mb} MB");
    // A reader parses each line as well: `verify` takes about 6 times as long as one hash of the record, and
    // `summary` 15 times. Without optimization the parser takes nearly all of the time.
    let most = if cfg!(debug_assertions) {
        Duration::from_secs(20 + mb * 4)
    } else {
        (hashed * 30).max(Duration::from_secs(5)).min(Duration::from_secs(10 + mb / 10))
    };
    for words in ["verify", "summary --format json", "show --format json --host h0.example.com"] {
        let (small, large) = (part.read(words, most), whole.read(words, most));
        eprintln!("{words}: {:?} and {} kB for {mb} MB", large.took, large.peak_kb);
        assert!(
            large.peak_kb <= small.peak_kb + MOST_GROWTH_KB,
            "{words}: {} kB for a quarter, and {} kB for {mb} MB",
            small.peak_kb,
            large.peak_kb
        );
    }
}

/// A record of a chosen size, alone in its home directory.
struct LargeRecord {
    home: Home,
    path: PathBuf,
    connections: u64,
}

/// The cost of reading a record.
struct Reading {
    took: Duration,
    /// The most memory that was resident.
    peak_kb: u64,
}

impl LargeRecord {
    /// Writes connections to so many hosts, in turns, until the record has that many bytes.
    fn new(bytes: u64, hosts: u64) -> Self {
        let home = Home::new();
        let run = RunId::new();
        let path = runs(&home).join(format!("{run}.jsonl"));
        let header =
            Header { run, stage: None, policy_sha256: sha256_hex(POLICY.as_bytes()), mode: Mode::Enforce };
        let log = Log::start_signed(Sink::create_file(&path).unwrap(), header, own_key(&home)).unwrap();
        log.write(Event::RunStart(RunStart::default())).unwrap();
        let mut connections = 0;
        while fs::metadata(&path).unwrap().len() < bytes {
            for _ in 0..hosts {
                connections += 1;
                // The last one, which `show` is asked for, is `h0`.
                let host = format!("h{}.example.com:443", connections % hosts);
                let target = Target::parse(host.as_bytes()).unwrap();
                let mut decision =
                    RequestDecision::new(ConnId(connections), Via::Connect, Verdict::Allow, Reason::Rule);
                decision.target = Some(target.clone());
                log.write(Event::Decision(decision)).unwrap();
                let mut close = Close::new(ConnId(connections), CloseCause::Client);
                close.target = Some(target);
                close.ip = Some("93.184.216.34".parse().unwrap());
                close.bytes_up = 1;
                log.write(Event::Close(close)).unwrap();
            }
        }
        write_end_after(&log, connections);
        Self { home, path, connections }
    }

    /// Returns the time that this machine takes to read the record and to hash it once.
    fn time_to_hash(&self) -> Duration {
        let began = Instant::now();
        let mut file = BufReader::with_capacity(1 << 20, fs::File::open(&self.path).unwrap());
        loop {
            let bytes = file.fill_buf().unwrap();
            if bytes.is_empty() {
                return began.elapsed();
            }
            sha256_hex(bytes);
            let read = bytes.len();
            file.consume(read);
        }
    }

    /// Runs a reader, and checks that it has read the whole record.
    fn read(&self, words: &str, most: Duration) -> Reading {
        let shown = match words {
            "verify" => "1 whole, 0 not whole".to_string(),
            "summary --format json" => format!("\"bytes_up\":{},", self.connections),
            // Its last line.
            _ => format!("\"conn\":{},", self.connections),
        };
        let script = format!(
            "ulimit -v {MOST_MAPPED_KB}; exec {} audit {words} >out 2>said",
            env!("CARGO_BIN_EXE_exeat")
        );
        let began = Instant::now();
        let mut reader = self.home.command("sh").args(["-c", &script]).spawn().unwrap();
        let mut peak_kb = 0;
        let exit = loop {
            // Another program counts anew, so the last number is the reader's. One that has ended has none.
            let status = fs::read_to_string(format!("/proc/{}/status", reader.id())).unwrap_or_default();
            let peak =
                status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
            peak_kb = peak.map_or(peak_kb, |kb| kb.parse().unwrap());
            if let Some(exit) = reader.try_wait().unwrap() {
                break exit;
            }
            if began.elapsed() > most {
                reader.kill().unwrap();
                break reader.wait().unwrap();
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let took = began.elapsed();
        let [out, said] = ["out", "said"].map(|name| fs::read_to_string(self.home.0.join(name)).unwrap());
        assert!(
            exit.success() && out.contains(&shown),
            "{words}: {exit} after {took:?}; at most {most:?}: {said} {}",
            out.get(..500).unwrap_or(&out)
        );
        Reading { took, peak_kb }
    }
}
