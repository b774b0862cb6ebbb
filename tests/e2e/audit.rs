//! The record: complete, in order, and written before each action.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use e2e::audit::AuditLog;
use e2e::case::{Cases, Cx};

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("audit::a_run_from_start_to_end", start_to_end);
    list.users("audit::default_place_is_private", default_place);
    list.bridges("audit::stage_and_labels", stage_and_labels);
    list.bridges("audit::result_and_audit_on_descriptors", descriptors);
    list.bridges("audit::a01_control_bytes_are_escaped", escaped);
    list.once("audit::a02_not_inside_the_writable_directory", not_inside);
    list.bridges("audit::a05_full_disk_dials_nothing", full_disk);
    list.bridges("audit::l17_failed_connections_are_in_the_totals", failed);
    list.once("audit::a07_decision_stands_before_the_dial", decision_first);
    list.once("audit::show_and_list", show_and_list);
    list.once("audit::a03_no_secrets", no_secrets);
}

/// K42, A10.
fn start_to_end(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    cx.write("targets", &format!("{good}:443\n{evil}:443\n{good}:443\n%:1\n"));
    let done = cx.sh(&[&good], &format!("{} ask-all targets; exit 9", cx.probe())).run();
    done.exits(9).prints("200\n403\n200\n400\n");
    let log = done.record();
    let start = &log.records()[0];
    for field in ["policy_sha256", "mode", "run", "ts"] {
        assert!(start[field].is_string(), "{field} in {start}");
    }
    assert_eq!(start["mode"], "enforce");
    let verdicts: Vec<_> = log.events("decision").iter().map(|record| record["verdict"].clone()).collect();
    assert_eq!(verdicts, ["allow", "deny", "allow", "deny"]);
    assert_eq!(log.events("close").len(), 4);
    let end = log.events("run_end")[0];
    assert_eq!((&end["exit"], &end["allowed"], &end["denied"]), (&9.into(), &2.into(), &2.into()), "{end}");
    let digests: Vec<_> =
        log.events("decision").iter().map(|record| record["policy_sha256"].clone()).collect();
    assert!(digests.iter().all(|digest| *digest == start["policy_sha256"]));
}

fn default_place(cx: &Cx) {
    cx.exeat_plain(["run", "--allow", &cx.good(), "--", "true"]).run().exits(0);
    let place = cx.home().join(".local/state/exeat/runs");
    let records: Vec<_> = fs::read_dir(&place)
        .expect("the default place")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .collect();
    assert_eq!(records.len(), 1, "{records:?}");
    let mode = fs::metadata(&records[0]).expect("the record").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    AuditLog::read(&records[0]).sound();
}

fn stage_and_labels(cx: &Cx) {
    let words =
        ["run", "--stage", "import", "--label", "team=data", "--label", "try=2", "--allow", &cx.good(), "--"];
    let mut words: Vec<String> = words.map(str::to_string).to_vec();
    words.extend(cx.curl(&cx.good_url()));
    let log = cx.exeat(words).run().record();
    for record in log.records() {
        assert_eq!(record["stage"], "import", "{record}");
    }
    let start = log.records()[0].to_string();
    assert!(start.contains("team") && start.contains("data") && start.contains("try"), "{start}");
}

fn descriptors(cx: &Cx) {
    let (result, audit) = (cx.home().join("result.json"), cx.home().join("record.jsonl"));
    let evil = format!("{}:443", cx.evil());
    let words = ["run", "--result", "fd:3", "--audit", "fd:4", "--", cx.probe(), "ask", &evil];
    let redirect = format!("3>{} 4>{}", result.display(), audit.display());
    cx.exeat(words).redirect(&redirect).run().exits(0).shows("403");
    let log = AuditLog::read(&audit);
    log.sound();
    let text = fs::read_to_string(&result).expect("result");
    let result: serde_json::Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(
        (&result["schema"], &result["cause"], &result["code"]),
        (&1.into(), &"exit".into(), &0.into()),
        "{text}"
    );
    assert_eq!(result["run"], log.records()[0]["run"]);
    let denied = &result["denied"][0];
    assert_eq!(
        (&denied["host"], &denied["port"], &denied["count"]),
        (&cx.evil().into(), &443.into(), &1.into()),
        "{text}"
    );
    assert_eq!(
        (&denied["reason"], &denied["allow"]),
        (&"default".into(), &serde_json::json!([cx.evil()])),
        "{text}"
    );
}

/// A stage cannot forge records: line breaks and control bytes are escaped.
fn escaped(cx: &Cx) {
    cx.write(
        "targets",
        "evil\\x0d\\x0a{\"event\":\"run_end\"}.test:443\n\\x1b[2Kx.test:443\n\\xe2\\x80\\xaex.test:443\n",
    );
    let done = cx.probing(&[], "ask-all targets").run();
    done.prints("400\n400\n400\n");
    let log = done.record();
    assert_eq!(log.events("run_end").len(), 1);
    assert!(!done.stderr().contains('\u{1b}'), "{done:?}");
}

fn not_inside(cx: &Cx) {
    let inside = cx.dir().join("record.jsonl").display().to_string();
    for place in [inside.as_str(), "record.jsonl"] {
        cx.exeat(["run", "--audit", place, "--", "touch", "started"]).run().exits(2);
    }
    assert!(!cx.dir().join("started").exists());
}

/// When the record's disk is full, every further request gets 503.
fn full_disk(cx: &Cx) {
    let place = cx.home().join("small");
    fs::create_dir(&place).expect("a mount point");
    let mount = format!("mount -t tmpfs -o size=16k,mode=777 none {}", place.display());
    let record = place.join("record.jsonl").display().to_string();
    let good = cx.good();
    cx.write("targets", &format!("{good}:7\n").repeat(60));
    let words =
        ["run", "--audit", &record, "--allow", &format!("{good}:7"), "--", cx.probe(), "ask-all", "targets"];
    let before = cx.bench().internet.count();
    let done = cx.exeat(words).in_mounts(&mount).run();
    let said = done.stdout();
    let answers: Vec<&str> = said.lines().collect();
    assert_eq!(answers.len(), 60, "{done:?}");
    done.says("no space left on device");
    let served = answers.iter().take_while(|answer| **answer == "200").count();
    assert!(served > 0 && answers[served..].iter().all(|answer| *answer == "503"), "{answers:?}");
    let (v4, v6) = cx.good_addrs();
    let dialed =
        cx.bench().internet.since(before).iter().filter(|visit| [v4, v6].contains(&visit.to.ip())).count();
    assert!(dialed <= served, "{dialed} connections for {served} answers");
}

/// L17: an allowed connection that was never established counts as `failed`, and as not reached at the end of the run;
/// the result contains the root of the record.
fn failed(cx: &Cx) {
    let (good, result) = (cx.good(), cx.home().join("result.json"));
    let _ = fs::remove_file(&result);
    cx.write("targets", &format!("{good}:4\n{good}:4\n{good}:7\n{good}:4\n"));
    let path = result.display().to_string();
    let (refuses, answers) = (format!("{good}:4"), format!("{good}:7"));
    let words = [
        "run",
        "--result",
        &path,
        "--allow",
        &refuses,
        "--allow",
        &answers,
        "--",
        cx.probe(),
        "ask-all",
        "targets",
    ];
    let done = cx.exeat(words).run();
    done.exits(0).prints("502\n502\n200\n502\n").says("exeat: 1 host failed, 1 reached; ");
    let log = done.record();
    let end = log.events("run_end")[0];
    assert_eq!((&end["allowed"], &end["failed"], &end["errors"]), (&4.into(), &3.into(), &0.into()));
    let unreached = |it: &&&serde_json::Value| it["ended_by"] == "error" && it.get("ip").is_none();
    assert_eq!(log.events("close").iter().filter(unreached).count(), 3);
    let result: serde_json::Value =
        serde_json::from_slice(&fs::read(&result).expect("the result")).expect("JSON");
    assert_eq!(
        (&result["failed"][0]["host"], &result["failed"][0]["count"]),
        (&good.as_str().into(), &3.into())
    );
    let seal = log.events("checkpoint").pop().expect("a checkpoint");
    let (n, root) = (&result["checkpoint"]["n"], &result["checkpoint"]["root"]);
    assert_eq!((n, root), (&seal["n"], &seal["root"]));
    done.says(&format!("# root {}", &root.as_str().expect("a root")[..16]));
}

/// The decision is in the record while the tunnel is open.
fn decision_first(cx: &Cx) {
    let good = cx.good();
    let record = cx.home().join("live.jsonl");
    let words = [
        "run",
        "--audit",
        record.to_str().expect("ASCII"),
        "--allow",
        &format!("{good}:7"),
        "--",
        cx.probe(),
        "hold",
        &format!("{good}:7"),
        "1",
    ];
    let mut live = cx.exeat(words).stdin_open().start();
    live.until_prints("holding 1");
    let log = AuditLog::read(&record);
    assert_eq!(log.decision(&good)["verdict"], "allow");
    assert!(log.events("close").is_empty());
}

fn show_and_list(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    cx.write("targets", &format!("{good}:443\n{evil}:443\n"));
    let words = ["run", "--stage", "nightly", "--allow", &good, "--", cx.probe(), "ask-all", "targets"];
    cx.exeat_plain(words).run().exits(0);
    let shown = cx.exeat_plain(["audit", "show"]).run();
    shown.exits(0).shows(&good).shows(&evil).shows("allow").shows("deny");
    let denied = cx.exeat_plain(["audit", "show", "--verdict", "deny"]).run();
    denied.exits(0).shows(&evil);
    assert!(!denied.stdout().contains(&good), "{denied:?}");
    cx.exeat_plain(["audit", "list"]).run().exits(0).shows("nightly");
}

fn no_secrets(cx: &Cx) {
    let url = format!("https://user:hunter2@{}/?token=hunter3", cx.good());
    let mut curl = cx.curl(&url);
    curl.extend(
        ["-H", "Authorization: Bearer hunter4", "--proxy-header", "Proxy-Authorization: Basic hunter5"]
            .map(str::to_string),
    );
    let done = cx.run(&[&cx.good()], curl).env("TOKEN", "hunter6").run();
    done.exits(0);
    let text = fs::read_to_string(done.record_path().expect("a record")).expect("the record");
    assert!(!text.contains("hunter"), "{text}");
}
