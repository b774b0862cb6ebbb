//! The ledger: a removed record is missed, and no run is refused because of it.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use e2e::case::{Cases, Cx};
use e2e::rounds;
use e2e::run::Done;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use serde_json::Value;

pub(crate) fn cases(list: &mut Cases) {
    list.users("ledger::l17_a_record_or_policy_that_was_removed_is_found", removed);
    list.users("ledger::l17_pruned_records_are_reported_as_pruned", pruned);
    list.once("ledger::l17_runs_in_parallel_leave_no_gap", parallel);
    list.once("ledger::l17_a_killed_run_has_a_word_of_its_own", killed);
    list.users("ledger::l17_a_ledger_that_cannot_be_had_refuses_no_run", unnumbered);
    list.once("ledger::l17_a_key_that_does_not_last_has_no_ledger", no_ledger);
    list.once("ledger::l17_records_in_other_places_are_named", elsewhere);
    list.once("ledger::l17_a_copied_state_directory_begins_a_ledger", copied);
    list.once("ledger::l17_a_full_disk_leaves_no_record_of_no_run", no_disk);
    list.users("ledger::l17_a_directory_that_was_handed_over_is_checked_elsewhere", handed_over);
    list.once("ledger::l17_the_head_is_in_the_result_and_stays_in_the_ledger", head);
    list.users("ledger::l17_no_stage_reaches_the_ledger", hidden);
}

fn state(cx: &Cx) -> PathBuf {
    cx.home().join(".local/state/exeat")
}

/// Returns the only ledger.
fn ledger(cx: &Cx) -> PathBuf {
    let found = ledgers(cx);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

fn ledgers(cx: &Cx) -> Vec<PathBuf> {
    let names = fs::read_dir(state(cx)).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_ledger = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("ledger-");
    names.filter(is_ledger).collect()
}

fn entries(cx: &Cx) -> Vec<Value> {
    let text = fs::read_to_string(ledger(cx)).expect("the ledger");
    text.lines().map(|line| serde_json::from_str(line).expect("a line")).collect()
}

/// Runs a stage with its record in the usual place, and returns the name of the run.
fn ran(cx: &Cx) -> String {
    ran_stage(cx, "nightly")
}

fn ran_stage(cx: &Cx, stage: &str) -> String {
    let result = cx.home().join("result.json").display().to_string();
    cx.exeat_plain(["run", "--result", &result, "--stage", stage, "--", "true"]).run().exits(0);
    let result: Value = serde_json::from_slice(&fs::read(result).expect("a result")).expect("JSON");
    result["run"].as_str().expect("a run").to_owned()
}

fn record(cx: &Cx, run: &str) -> PathBuf {
    state(cx).join(format!("runs/{run}.jsonl"))
}

fn verify_all(cx: &Cx) -> Done {
    cx.exeat_plain(["audit", "verify", "--all"]).run()
}

/// Returns the ledgers in `--format json`: the last object.
fn joined(cx: &Cx) -> Value {
    let done = cx.exeat_plain(["audit", "verify", "--all", "--format", "json"]).run();
    let text = done.stdout();
    serde_json::from_str(text.lines().last().expect("an object")).expect("JSON")
}

fn removed(cx: &Cx) {
    let runs: Vec<String> = (0..3).map(|_| ran(cx)).collect();
    verify_all(cx).exits(0).shows("whole: 3 runs, signed to the end by exeat-audit+");
    let record = record(cx, &runs[1]);
    let aside = cx.home().join("aside");
    fs::rename(&record, &aside).expect("a record");
    let told = format!("number 2: the record of {} was removed (nightly, 20", runs[1]);
    verify_all(cx).exits(1).shows(&told).shows("its policy is still there");
    let json = joined(cx);
    assert_eq!(json["findings"][0]["what"], "record_removed", "{json}");
    assert_eq!(json["findings"][0]["run"], runs[1].as_str(), "{json}");
    fs::remove_file(record.with_extension("policy.json")).expect("a policy");
    verify_all(cx).exits(1).shows(&told);
    fs::rename(&aside, &record).expect("a record");
    let told = format!("number 2: the policy beside the record of {} was removed", runs[1]);
    verify_all(cx).exits(1).shows(&told);
    // If the end of the ledger is cut as well, the other records reveal it.
    let text = fs::read_to_string(ledger(cx)).expect("the ledger");
    let kept: String = text.lines().take(4).map(|line| format!("{line}\n")).collect();
    fs::write(ledger(cx), kept).expect("the ledger");
    verify_all(cx)
        .exits(1)
        .shows(&format!("number 3: {} has it in its record, and not in the ledger", runs[2]));
    // A later run continues the ledger, and does not hide the gap.
    ran(cx);
    verify_all(cx).exits(1).shows(&format!("number 3: {} has it in its record", runs[2]));
    fs::write(ledger(cx), text.replacen("\"cause\":\"exit\"", "\"cause\":\"signal\"", 1))
        .expect("the ledger");
    verify_all(cx).exits(1).shows("NOT WHOLE").shows("line 2 was changed, or lines are missing");
    ran(cx);
}

fn pruned(cx: &Cx) {
    let run = ran(cx);
    ran(cx);
    let last = ran_stage(cx, "weekly");
    let prune = ["audit", "prune", "--older-than", "1ms", "--stage", "nightly"];
    cx.exeat_plain(prune.iter().chain(&["--dry-run"])).run().exits(0).shows("2 records would be removed");
    assert_eq!(entries(cx).len(), 6, "a dry run writes nothing");
    cx.exeat_plain(prune).run().exits(0).shows("2 records removed");
    assert!(!record(cx, &run).exists() && record(cx, &last).exists());
    let entries = entries(cx);
    let user = String::from_utf8(cx.outside(["id", "-un"]).run().stdout().into_bytes()).expect("a name");
    assert_eq!((&entries[6]["event"], &entries[6]["run"]), (&"pruned".into(), &run.as_str().into()));
    assert_eq!(entries[6]["user"], user.trim());
    verify_all(cx).exits(0).shows(&format!("pruned: 2 (last by {}, 20", user.trim()));
    ran(cx);
    assert_eq!(joined(cx)["ledgers"][0]["last"], 4);
    // If the removal cannot be written down, the record stays, because it would be missed.
    let path = ledger(cx);
    let lock =
        Flock::lock(fs::File::open(&path).expect("the ledger"), FlockArg::LockExclusive).expect("a lock");
    let kept = cx.exeat_plain(["audit", "prune", "--older-than", "1ms"]).run();
    kept.exits(1).says("is kept: another process has the lock of the ledger");
    drop(lock);
    verify_all(cx).exits(0);
}

/// Makes real runs, 64 at a time.
fn parallel(cx: &Cx) {
    let all: u64 = std::env::var("E2E_LEDGER_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(200);
    let mut live = VecDeque::new();
    for _ in 0..all {
        if live.len() == 64 {
            let first: e2e::run::Live<'_> = live.pop_front().expect("64");
            first.wait().exits(0);
        }
        live.push_back(cx.exeat_plain(["run", "--", "true"]).deadline(Duration::from_secs(120)).start());
    }
    for run in live {
        run.wait().exits(0);
    }
    let json = joined(cx);
    assert_eq!(json["findings"].as_array().map(Vec::len), Some(0), "{json}");
    assert_eq!(json["ledgers"][0]["findings"].as_array().map(Vec::len), Some(0), "{json}");
    let last = json["ledgers"][0]["last"].as_u64().expect("a number");
    let unnumbered = json["unnumbered"].as_array().expect("runs").len() as u64;
    assert_eq!(last + unnumbered, all, "{json}");
    assert!(unnumbered <= all / 50, "{json}");
    println!("{all} runs: {last} numbered, {unnumbered} not");
    verify_all(cx).exits(0);
}

/// A killed run has a start, if it got there, and no end; its number is not used again.
fn killed(cx: &Cx) {
    let mut ended = 0;
    let has_ten = || !ledgers(cx).is_empty() && entries(cx).len() >= 10;
    let rounds = rounds(50, 1000);
    // On a busy machine a run starts later.
    for round in (0..rounds + 150).take_while(|round| *round < rounds || !has_ten()) {
        let mut live = cx.exeat_plain(["run", "--", "sleep", "60"]).start();
        // Kills from before the record exists until well into the run.
        std::thread::sleep(Duration::from_millis(round % 50 * 12));
        ended += u64::from(live.ended());
        live.signal(Signal::SIGKILL);
        live.wait();
    }
    assert_eq!(ended, 0, "they ended before they were killed");
    let last = ran(cx);
    let json = joined(cx);
    assert_eq!(json["findings"].as_array().map(Vec::len), Some(0), "{json}");
    assert_eq!(json["ledgers"][0]["findings"].as_array().map(Vec::len), Some(0), "{json}");
    let killed = json["killed"].as_array().expect("runs");
    assert!(killed.len() >= 10, "{json}");
    let killed_runs = killed.len();
    let entries = entries(cx);
    let numbers: Vec<u64> = entries
        .iter()
        .filter(|entry| entry["event"] == "start")
        .filter_map(|entry| entry["no"].as_u64())
        .collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    assert_eq!(numbers.len(), killed.len() + 1, "{json}");
    assert!(!killed.contains(&last.as_str().into()));
    verify_all(cx).exits(0).shows(&format!("no end: killed: {} (", killed.len()));
    cx.exeat_plain(["audit", "verify", "--all", "--strict"]).run().exits(1);
    // A live run has a different word.
    let mut live = cx.exeat_plain(["run", "--", "sh", "-c", "echo on; sleep 60"]).start();
    live.until_prints("on");
    verify_all(cx).shows("no end: still running: 1");
    live.signal(Signal::SIGTERM);
    live.wait();
    // Killed runs can be pruned, but not a record that somebody cut.
    let cut = ran(cx);
    let text = fs::read_to_string(record(cx, &cut)).expect("a record");
    let kept: String = text.lines().take(2).map(|line| format!("{line}\n")).collect();
    fs::write(record(cx, &cut), kept).expect("a record");
    let prune =
        |words: &[&str]| cx.exeat_plain([&["audit", "prune", "--older-than", "1ms"], words].concat()).run();
    let killed = || joined(cx)["killed"].as_array().map(Vec::len);
    prune(&[]).exits(1).says("is kept: it has no end");
    assert_eq!(killed(), Some(killed_runs));
    prune(&["--killed"]).exits(1).says(&format!("{cut} is kept: it has no end"));
    assert_eq!((killed(), record(cx, &cut).exists()), (Some(0), true));
    verify_all(cx).exits(1).shows(&format!("the record of {cut} is not the one that the ledger has"));
}

/// Tries a lock that another process keeps, a directory without write permission, and another file instead.
fn unnumbered(cx: &Cx) {
    ran(cx);
    let path = ledger(cx);
    let lock =
        Flock::lock(fs::File::open(&path).expect("the ledger"), FlockArg::LockExclusive).expect("a lock");
    let (since, run) = (Instant::now(), cx.exeat_plain(["run", "--", "true"]).run());
    let took = since.elapsed();
    run.exits(0).says("the run has no number in the ledger: another process has the lock");
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(10), "{took:?}");
    drop(lock);
    verify_all(cx).exits(0).shows("not numbered, as a note in the record says: 1 (");
    ran(cx);
    assert_eq!(joined(cx)["ledgers"][0]["last"], 2);
    // A run whose lock was released early is missed like any other.
    let lock =
        Flock::lock(fs::File::open(&path).expect("the ledger"), FlockArg::LockExclusive).expect("a lock");
    let mut live =
        cx.exeat_plain(["run", "--", "sh", "-c", "echo on; until [ -e go ]; do sleep 0.1; done"]).start();
    live.until_prints("on");
    drop(lock);
    cx.write("go", "");
    live.wait().exits(0).says("the run has no number in the ledger, which has its end alone: another");
    let json = joined(cx);
    assert_eq!(json["findings"].as_array().map(Vec::len), Some(0), "{json}");
    let late = json["unnumbered"][1].as_str().expect("a run").to_owned();
    let aside = cx.home().join("late");
    fs::rename(record(cx, &late), &aside).expect("a record");
    verify_all(cx).exits(1).shows(&format!("not numbered: the record of {late} was removed ("));
    fs::rename(&aside, record(cx, &late)).expect("a record");
    // Pruned records are reported.
    cx.exeat_plain(["audit", "prune", "--older-than", "1ms"]).run().exits(0);
    verify_all(cx).exits(0).shows("pruned: 4 (");
    ran(cx);

    // If the ledger can be neither made nor written, the record goes elsewhere, and the run continues.
    let audit = cx.home().join("kept.jsonl").display().to_string();
    fs::rename(&path, cx.home().join("ledger")).expect("rename");
    fs::create_dir(&path).expect("a directory");
    let run = cx.exeat_plain(["run", "--audit", &audit, "--", "true"]).run();
    run.exits(0).says("the run has no number in the ledger");
    let text = fs::read_to_string(&audit).expect("a record");
    assert!(text.contains("\"ledger\":\"unnumbered\"") && text.contains("\"what\":\"unnumbered\""), "{text}");
    cx.exeat_plain(["audit", "verify", &audit]).run().exits(0);
    if !cx.is_root() {
        fs::remove_dir(&path).expect("a directory");
        let audit = cx.home().join("second.jsonl").display().to_string();
        let mode = |mode| fs::set_permissions(state(cx), fs::Permissions::from_mode(mode)).expect("chmod");
        mode(0o500);
        let run = cx.exeat_plain(["run", "--audit", &audit, "--", "true"]).run();
        mode(0o700);
        run.exits(0).says("the run has no number in the ledger");
    }
}

fn no_ledger(cx: &Cx) {
    cx.exeat_plain(["run", "--audit-key", "none", "--", "true"]).run().exits(0);
    let names = || -> Vec<_> {
        fs::read_dir(state(cx)).expect("a directory").flatten().map(|it| it.file_name()).collect()
    };
    assert!(!names().iter().any(|name| name.to_string_lossy().starts_with("ledger-")), "{:?}", names());
    let mut run = fs::read_dir(state(cx).join("runs")).expect("records").flatten().map(|it| it.path());
    let run = run.find(|path| path.extension().is_some_and(|it| it == "jsonl")).expect("a record");
    assert!(fs::read_to_string(run).expect("a record").contains("\"ledger\":\"none\""));
    // A command about the ledger reports it.
    let done = verify_all(cx);
    done.exits(0).shows("not numbered: 1 run without a ledger: not signed, or with a key that does not last");
    // If every record was removed, nothing is left to check.
    fs::remove_dir_all(state(cx)).expect("records");
    verify_all(cx).exits(2).says("no record");
    ran(cx);
    fs::remove_dir_all(state(cx).join("runs")).expect("records");
    verify_all(cx).exits(1).shows("number 1: the record of ");
}

fn elsewhere(cx: &Cx) {
    ran(cx);
    let audit = cx.home().join("here.jsonl").display().to_string();
    cx.exeat_plain(["run", "--audit", &audit, "--", "true"]).run().exits(0);
    let pipe = cx.exeat_plain(["run", "--audit", "fd:9", "--", "true"]).redirect("9>/dev/null");
    pipe.run().exits(0);
    let done = verify_all(cx);
    done.exits(0).shows("in another place, not read here: number 2, ").shows(&audit);
    done.shows("in another place, not read here: number 3, ").shows(": a descriptor");
    // A ledger is not a record.
    let dir = state(cx).display().to_string();
    cx.exeat_plain(["audit", "verify", &dir]).run().exits(0);
}

/// Two machines, or two copies on one, do not continue the same ledger.
fn copied(cx: &Cx) {
    ran(cx);
    let (from, to) = (cx.home().join(".local/state"), cx.home().join("copy"));
    let words = ["cp", "-a", &from.display().to_string(), &to.display().to_string()];
    cx.outside(words).run().exits(0);
    let copy = to.display().to_string();
    cx.exeat_plain(["run", "--", "true"]).env("XDG_STATE_HOME", &copy).run().exits(0);
    let done =
        cx.exeat_plain(["audit", "verify", "--all", "--format", "json"]).env("XDG_STATE_HOME", &copy).run();
    done.exits(0);
    let text = done.stdout();
    let json: Value = serde_json::from_str(text.lines().last().expect("an object")).expect("JSON");
    let ledgers = json["ledgers"].as_array().expect("ledgers");
    let last: Vec<_> = ledgers.iter().map(|ledger| ledger["last"].as_u64()).collect();
    assert_eq!(last, [Some(1), Some(1)], "{json}");
    assert_ne!(ledgers[0]["name"], ledgers[1]["name"]);
    let lone = ledger(cx);
    assert!(lone.exists());
}

/// A run that starts with little space, in pages of the disk, is on record, or leaves nothing.
fn no_disk(cx: &Cx) {
    let place = cx.home().join("small").display().to_string();
    fs::create_dir(&place).expect("a mount point");
    let exeat = format!("XDG_STATE_HOME={place}/state {}", cx.bench().bin.join("exeat").display());
    let script = format!(
        "mkdir {place}/state; {exeat} run -- true || exit
        for pages in 0 1 2 3 4 5 6; do
            rm -f {place}/fill; cat /dev/zero >{place}/fill 2>&-
            truncate -s $(($(stat -c %s {place}/fill) - 4096 * pages)) {place}/fill
            {exeat} run -- true; echo code $?
        done
        rm {place}/fill; find {place}/state/exeat/runs -size 0; {exeat} audit verify --all"
    );
    let mount = format!("mount -t tmpfs -o size=256k,mode=1777 none {place}");
    let done = cx.outside(["sh", "-c", &script]).in_mounts(&mount).run();
    done.exits(0).shows("code 0").shows("code 125").says("no space left on device");
    let said = done.stdout();
    assert!(!said.contains("not begun") && !said.contains("/runs/"), "{said}");
    let whole = said.matches("code 0").count() + 1;
    done.shows(&format!("\n{whole} whole, 0 not whole, signed by "));
}

/// Another person has a copy of the directory without the key, and the public key.
fn handed_over(cx: &Cx) {
    let run = ran(cx);
    cx.exeat_plain(["audit", "prune", "--older-than", "1ms"]).run().exits(0).shows("1 record removed");
    let mut live = cx.exeat_plain(["run", "--", "sh", "-c", "echo on; sleep 60"]).start();
    live.until_prints("on");
    live.signal(Signal::SIGKILL);
    live.wait();
    let last = ran(cx);
    let home = cx.home().display().to_string();
    let key = cx.exeat_plain(["audit", "key"]).run().stdout();
    let vkey = format!("{home}/given.pub");
    fs::write(&vkey, key).expect("a key");
    let copy = |to: &str| {
        let words = format!("mkdir {to} && cp -a {home}/.local/state/exeat {to}/ && rm {to}/exeat/audit.*");
        cx.outside(["sh", "-c", &words]).run().exits(0);
    };
    let given = format!("{home}/given");
    copy(&given);
    let elsewhere = |words: &[&str]| {
        let words = [&["audit", "verify", "--all"], words].concat();
        cx.exeat_plain(words).env("XDG_STATE_HOME", &given).run()
    };
    let good = |done: Done| {
        done.exits(0)
            .shows("1 whole, 0 not whole, 1 not finished")
            .shows("whole: 3 runs, signed to the end by exeat-audit+")
            .shows("no end: killed: 1 (")
            .shows("pruned: 1 (last by ");
    };
    good(elsewhere(&["--key", &vkey]));
    elsewhere(&[]).exits(125).shows("not proved");
    // root reads another user's files.
    if cx.is_root() {
        cx.outside(["chown", "-R", "65534:65534", &given]).run().exits(0);
        good(elsewhere(&["--key", &vkey]));
    }
    fs::remove_file(format!("{given}/exeat/runs/{last}.jsonl")).expect("a record");
    let missed = format!("number 3: the record of {last} was removed (nightly, 20");
    elsewhere(&["--key", &vkey]).exits(1).shows(&missed);
    assert!(!record(cx, &run).exists());
}

fn head(cx: &Cx) {
    ran(cx);
    let result: Value =
        serde_json::from_slice(&fs::read(cx.home().join("result.json")).expect("a result")).expect("JSON");
    let head = &result["ledger"];
    ran(cx);
    let text = fs::read_to_string(ledger(cx)).expect("the ledger");
    let digests: Vec<_> =
        text.lines().map(|line| e2e::audit::sha256_hex(format!("{line}\n").as_bytes())).collect();
    assert_eq!(digests.iter().position(|digest| head["sha256"] == digest.as_str()), Some(1), "{head}");
    assert_eq!(head["no"], 1);
    // A digest that was kept elsewhere is found again by its first digits, and its absence is reported.
    let (digest, home) = (head["sha256"].as_str().expect("a digest"), cx.home().display().to_string());
    let short = format!("1 {}", digest.get(..16).expect("16 digits"));
    let verify = |head: &str| cx.exeat_plain(["audit", "verify", "--all", "--head", head]).run();
    let found =
        format!("head {short}: found in line 2, and all before it is as it was then; 1 run was added since");
    verify(&short).exits(0).shows(&found);
    let done = cx.exeat_plain(["audit", "verify", "--all", "--format", "json", "--head", digest]).run();
    let json: Value = serde_json::from_str(done.stdout().lines().last().expect("an object")).expect("JSON");
    assert_eq!(
        (&json["heads"][0]["found"], &json["heads"][0]["runs_since"]),
        (&true.into(), &1.into()),
        "{json}"
    );
    cx.exeat_plain(["audit", "verify", "--head", digest]).run().exits(2);
    cx.exeat_plain(["audit", "verify", "--all", "--stage", "x", "--head", digest]).run().exits(2);
    verify("abc").exits(2);
    let kept = format!("{home}/kept");
    fs::rename(ledger(cx), &kept).expect("the ledger");
    verify(&short).exits(1).shows("NOT FOUND: there is no ledger here");
    ran(cx);
    verify(&short).exits(1).shows("NOT FOUND: no ledger here has this line");
    let third = format!("3 {}", digest.get(..16).expect("16 digits"));
    verify(&third).exits(1).shows("NOT FOUND: no ledger here goes up to number 3");
    fs::rename(&kept, ledger(cx)).expect("the ledger");
    let file = ledger(cx);
    let name = format!("ledger-{}.jsonl", head["name"].as_str().expect("a name"));
    assert_eq!(file.file_name().unwrap().to_string_lossy(), name);
    assert_eq!(fs::metadata(file).expect("the ledger").permissions().mode() & 0o777, 0o600);
}

/// The ledger is hidden in every visible tree.
fn hidden(cx: &Cx) {
    ran(cx);
    let before = fs::read(ledger(cx)).expect("the ledger");
    let (home, file) = (cx.home().display().to_string(), ledger(cx).display().to_string());
    let script = format!("echo on; cat '{file}'; echo x >> '{file}'; rm -f '{file}'; true");
    // A stage that could write the key does not start; without a key it must not reach the directory either.
    let refused = cx.exeat_plain(["run", "--rw", &home, "--", "sh", "-c", &script]).run();
    refused.exits(2).prints("");
    for words in [&["--ro", &home][..], &["--rw", &home, "--audit-key", "none"]] {
        let words = [&["run", "--audit", "fd:9"], words, &["--", "sh", "-c", &script]].concat();
        cx.exeat_plain(words).redirect("9>/dev/null").run().exits(0).prints("on\n");
    }
    let after = fs::read(ledger(cx)).expect("the ledger");
    assert!(after.starts_with(&before) && !after.windows(2).any(|two| two == b"x\n"));
    verify_all(cx).exits(0);
}
