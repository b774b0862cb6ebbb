//! Exports of the record, validated with the schemas that others publish.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use e2e::audit::sha256_hex;
use e2e::bench::CLIENTS;
use e2e::case::{Cases, Cx};
use serde_json::{Value, json};

pub(crate) fn cases(list: &mut Cases) {
    list.once("export::ocsf_of_a_real_run", real_run);
    list.once("export::ocsf_of_every_kind_of_line", every_kind);
    list.once("export::ocsf_check_sees_what_is_wrong", check_bites);
    list.once("export::l17_ecs_of_every_kind_of_line", ecs);
    list.once("export::a_damaged_record", damaged);
    list.once("export::report_of_a_real_run", report);
    list.users("export::l17_a_report_ties_itself_to_its_records", tied);
    // `cargo xtask matrix` takes what has `clients::` in its name, and installs what that needs.
    if std::env::var_os("E2E_NIGHTLY").is_some() {
        list.once("export::clients::a_report_in_chromium", chromium);
    }
}

const VERSIONS: [&str; 4] = ["1.1", "1.3", "1.5", "1.8"];
const KINDS: &str = include_str!("../fixtures/ocsf/kinds.jsonl");
const CHECK: &str = include_str!("../fixtures/ocsf/check.py");

/// Validates events with the published schema of a version. Returns the verdict and the messages.
fn checked(cx: &Cx, version: &str, events: &str) -> (bool, String) {
    let packages = Path::new(CLIENTS).join("python");
    if !packages.join("ocsf_json_schema").is_dir() {
        cx.cannot("ocsf-json-schema is not under target/clients: `cargo xtask setup` puts it there");
    }
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", CHECK, version]).env("PYTHONPATH", packages).env("PYTHONDONTWRITEBYTECODE", "1");
    let python = python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut python = python.expect("python3");
    // The checker reads everything before it prints much.
    python.stdin.take().expect("a pipe").write_all(events.as_bytes()).expect("events");
    let done = python.wait_with_output().expect("python3");
    let said = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn events(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("an event")).collect()
}

/// A tunnel, a request, a refusal of each, a question, and packets around the proxy.
fn real_run(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    cx.write("targets", &format!("{good}:443\n{evil}:443\n%:1\n"));
    let probe = cx.probe();
    let script = format!(
        "{probe} ask-all targets
         curl -sS --cacert ca.pem https://{good}/
         curl -sS http://{good}/; curl -sS http://{evil}/
         unset HTTPS_PROXY https_proxy HTTP_PROXY http_proxy NO_PROXY no_proxy
         curl -sS --max-time 5 https://{evil}/ || curl -sS --max-time 5 https://192.0.2.1/ || true"
    );
    let port = format!("{good}:80");
    let words = ["run", "--set", "sandbox.transparent=on", "--stage", "import", "--label", "team=data"];
    let words = words.into_iter().chain(["--allow", &good, "--allow", &port, "--", "sh", "-c", &script]);
    cx.exeat_plain(words).run().exits(0);
    for version in VERSIONS {
        let done = cx.exeat_plain(["audit", "export", "--ocsf", version]).run();
        done.exits(0).says_nothing_more();
        let (fits, said) = checked(cx, version, &done.stdout());
        assert!(fits, "OCSF {version}: {said}");
        let events = events(&done.stdout());
        let of = |class: u32, host: &str, action: u32| {
            let at = |event: &Value, pointer| event.pointer(pointer).cloned() == Some(host.into());
            let named = |event: &&Value| {
                at(event, "/dst_endpoint/hostname")
                    || at(event, "/query/hostname")
                    || at(event, "/dst_endpoint/ip")
            };
            let of = |event: &&Value| event["class_uid"] == class && event["action_id"] == action;
            events.iter().filter(of).filter(named).count()
        };
        let http = if matches!(version, "1.1" | "1.3") { 4001 } else { 4002 };
        for (class, host, action) in [
            (4001, &*good, 1),
            (4001, &evil, 2),
            (http, &good, 1),
            (http, &evil, 2),
            (4003, &evil, 2),
            (4001, "192.0.2.1", 2),
        ] {
            assert!(
                of(class, host, action) > 0,
                "{version}: no {class} of {host} with action {action}: {events:#?}"
            );
        }
        let bytes = events.iter().filter_map(|event| event.pointer("/traffic/bytes_in")?.as_u64()).max();
        assert!(bytes.is_some_and(|bytes| bytes > 20), "{version}: {bytes:?}");
        let program = |event: &Value| event.pointer("/actor/process/file/name") == Some(&json!("curl"));
        assert!(events.iter().any(program), "{version}: nobody asked: {events:#?}");
        let run = &events[0]["metadata"]["correlation_uid"];
        assert!(events.iter().all(|event| event["metadata"]["correlation_uid"] == *run), "{events:#?}");
        assert!(
            events.iter().all(|event| event["metadata"]["labels"] == json!(["team=data"])),
            "{events:#?}"
        );
    }
    let raw = cx.exeat_plain(["audit", "export", "--format", "jsonl", "--last"]).run();
    let file = cx.home().join(".local/state/exeat/runs");
    let mut file = std::fs::read_dir(file).expect("the place").flatten().map(|entry| entry.path());
    let file = file.find(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    raw.exits(0).prints(&std::fs::read_to_string(file.expect("a record")).expect("the record"));
}

/// Returns a record with every line of the fixture, chained.
fn kinds() -> String {
    let mut text = String::new();
    let mut prev = "0".repeat(64);
    for (seq, line) in KINDS.lines().enumerate() {
        let mut record = json!({
            "schema": "egress/1", "seq": seq, "ts": format!("2026-11-21T10:20:{:02}.123456Z", seq % 60),
            "mono_us": seq * 1000, "run": "01JD8Z3V5QABCDEFGHJKMNPQRS", "policy_sha256": "ab".repeat(32),
            "mode": "enforce", "prev": prev,
        });
        let fields: Value = serde_json::from_str(line).expect("a line");
        for (key, value) in fields.as_object().expect("an object") {
            record[key] = value.clone();
        }
        let line = format!("{record}\n");
        prev = sha256_hex(line.as_bytes());
        text.push_str(&line);
    }
    text
}

fn every_kind(cx: &Cx) {
    for version in VERSIONS {
        let done = cx.exeat_plain(["audit", "export", "--ocsf", version, "-"]).stdin(kinds()).run();
        done.exits(0).says_nothing_more();
        let (fits, said) = checked(cx, version, &done.stdout());
        assert!(fits, "OCSF {version}: {said}");
        let has = |event: &str| {
            KINDS.lines().filter(|line| line.contains(&format!("\"event\":\"{event}\""))).count()
        };
        let kinds = ["decision", "close", "dns", "progress", "run_start", "run_end", "checkpoint"];
        let expected: usize = kinds.into_iter().map(has).sum();
        assert_eq!(events(&done.stdout()).len(), expected, "{version}");
    }
}

/// Returns the fields of the published schema, each with its type, and whether it is a list.
fn ecs_fields() -> BTreeMap<&'static str, (&'static str, bool)> {
    let lines = include_str!("../fixtures/ecs/fields.tsv").lines().filter(|line| !line.starts_with('#'));
    let fields = lines.map(|line| {
        let mut parts = line.split('\t');
        let [name, kind, list] = [(); 3].map(|()| parts.next().expect("three columns"));
        (name, (kind, list == "array"))
    });
    fields.collect()
}

/// Lists the faults of a value below `path`.
fn ecs_wrong(path: &str, value: &Value, fields: &BTreeMap<&str, (&str, bool)>, wrong: &mut Vec<String>) {
    // Custom fields are below a custom name.
    if path == "exeat" {
        return;
    }
    let Some((kind, is_list)) = fields.get(path) else {
        match value.as_object() {
            Some(object) => {
                for (key, value) in object {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    ecs_wrong(&path, value, fields, wrong);
                }
            }
            None => wrong.push(format!("{path} is not a field")),
        }
        return;
    };
    let values: Vec<&Value> = match value.as_array() {
        Some(values) if *is_list => values.iter().collect(),
        _ => vec![value],
    };
    let fits = |value: &Value| match *kind {
        "long" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "object" => value.as_object().is_some_and(|object| object.values().all(Value::is_string)),
        "ip" => value.as_str().is_some_and(|text| text.parse::<std::net::IpAddr>().is_ok()),
        "date" => value.as_str().is_some_and(|text| {
            let is_digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
            text.len() >= 20 && is_digit(0) && text.as_bytes()[10] == b'T' && text.ends_with('Z')
        }),
        _ => value.is_string(),
    };
    if values.is_empty() || values.iter().any(|value| !fits(value)) || (*is_list && !value.is_array()) {
        wrong.push(format!("{path} is {value}, and a {kind}"));
    }
}

/// Checks every event against the published fields and the values of ECS 8.7 for categories, types and outcomes.
fn ecs(cx: &Cx) {
    let done = cx.exeat_plain(["audit", "export", "--format", "ecs", "-"]).stdin(kinds()).run();
    done.exits(0);
    let events = events(&done.stdout());
    let has =
        |event: &str| KINDS.lines().filter(|line| line.contains(&format!("\"event\":\"{event}\""))).count();
    let kinds = ["decision", "close", "dns", "progress", "note", "run_start", "run_end", "checkpoint"];
    assert_eq!(events.len(), kinds.into_iter().map(has).sum::<usize>());
    let fields = ecs_fields();
    let types = |category: &str| match category {
        "network" => vec!["access", "allowed", "connection", "denied", "end", "info", "protocol", "start"],
        "process" => vec!["access", "change", "end", "info", "start"],
        _ => vec![],
    };
    let wrong_of = |event: &Value| {
        let mut wrong = Vec::new();
        ecs_wrong("", event, &fields, &mut wrong);
        let list = |key: &str| -> Vec<&str> {
            event["event"][key].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
        };
        let allowed: Vec<&str> = list("category").into_iter().flat_map(types).collect();
        if list("type").is_empty() || list("type").iter().any(|kind| !allowed.contains(kind)) {
            wrong.push(format!("types {:?} of {:?}", list("type"), list("category")));
        }
        let outcome = event["event"]["outcome"].as_str().unwrap_or_default();
        if event["event"]["kind"] != "event" || !["success", "failure", "unknown"].contains(&outcome) {
            wrong.push(format!("{}", event["event"]));
        }
        for required in ["/@timestamp", "/ecs/version", "/event/id", "/event/action", "/message"] {
            if event.pointer(required).is_none() {
                wrong.push(format!("no {required}"));
            }
        }
        wrong
    };
    for event in &events {
        assert_eq!(wrong_of(event), Vec::<String>::new(), "{event:#}");
    }
    // A refusal is not a success, and an allowed connection is not a failure.
    let verdicts = KINDS.lines().filter_map(|line| {
        let line: Value = serde_json::from_str(line).expect("a line");
        (line["event"] == "decision").then(|| line["verdict"].as_str().map(str::to_owned)).flatten()
    });
    let expected = verdicts.filter_map(|verdict| match &*verdict {
        "allow" => Some(("connection-allowed", "success")),
        "would_deny" => Some(("connection-would-deny", "success")),
        "deny" => Some(("connection-denied", "failure")),
        "error" => Some(("connection-failed", "failure")),
        // These kinds exist only in a later version.
        _ => None,
    });
    let is_decision = |event: &&Value| {
        let action = event["event"]["action"].as_str().unwrap_or_default();
        ["allowed", "would-deny", "denied", "failed"].iter().any(|it| action == format!("connection-{it}"))
    };
    let found = events.iter().filter(is_decision).map(|event| {
        let text = |key: &str| event["event"][key].as_str().unwrap_or_default();
        (text("action"), text("outcome"))
    });
    assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    // The check finds planted faults.
    for (pointer, value) in [
        ("/destination/port", json!("443")),
        ("/destination/host", json!("a.example")),
        ("/event/category", json!("network")),
        ("/event/type", json!(["creation"])),
        ("/event/outcome", json!("perhaps")),
        ("/@timestamp", json!(1_795_256_402)),
        ("/labels/team", json!(7)),
        ("/related/ip", json!(["a.example"])),
    ] {
        let mut event = events[1].clone();
        let (above, key) = pointer.rsplit_once('/').expect("a pointer");
        event
            .pointer_mut(above)
            .and_then(Value::as_object_mut)
            .expect("an object")
            .insert(key.to_owned(), value);
        assert_ne!(wrong_of(&event), Vec::<String>::new(), "{pointer}");
    }
    let denied = events
        .iter()
        .find(|event| event["exeat"]["conn"] == "01JD8Z3V5QABCDEFGHJKMNPQRS:2")
        .expect("an event");
    assert_eq!(denied["destination"]["domain"], "stats.example.net");
    assert_eq!(
        (&denied["event"]["outcome"], &denied["event"]["reason"]),
        (&json!("failure"), &json!("default"))
    );
    assert_eq!(denied["process"]["executable"], "/usr/bin/python3.11");
}

/// The check must fail for planted faults.
fn check_bites(cx: &Cx) {
    let exported =
        |version| cx.exeat_plain(["audit", "export", "--ocsf", version, "-"]).stdin(kinds()).run().stdout();
    let first = events(&exported("1.3")).swap_remove(1);
    let wrong = [
        ("an id that is none", "/action_id", json!(55)),
        ("a severity that is none", "/severity_id", json!(7)),
        ("a caption of another id", "/disposition", json!("Blocked")),
        ("a type of another activity", "/type_uid", json!(400_105)),
        ("a number as text", "/time", json!("1795256402123")),
        ("a port beyond all", "/dst_endpoint/port", json!(65_536)),
        ("a name that is no host name", "/dst_endpoint/hostname", json!("_a.example")),
        ("an observable of something else", "/observables/0/value", json!("b.example")),
        (
            "an unknown profile",
            "/metadata/profiles",
            json!(["security_control", "network_proxy", "ai_operation"]),
        ),
        ("attributes without their profile", "/metadata/profiles", json!(["network_proxy"])),
        ("another version", "/metadata/version", json!("1.5.0")),
        ("a missing required attribute", "/time", Value::Null),
        ("a missing direction", "/connection_info/direction_id", Value::Null),
        ("a nameless product", "/metadata/product/name", Value::Null),
    ];
    let mut text = String::new();
    for (_, pointer, value) in &wrong {
        let mut event = first.clone();
        let (above, key) = pointer.rsplit_once('/').expect("a pointer");
        let above = event.pointer_mut(above).and_then(Value::as_object_mut).expect("an object");
        assert!(above.remove(key).is_some(), "{pointer}");
        if !value.is_null() {
            above.insert(key.to_string(), value.clone());
        }
        text.push_str(&format!("{event}\n"));
    }
    let (fits, said) = checked(cx, "1.3", &format!("{text}{first}\n"));
    let told = |number: usize| said.lines().any(|line| line.starts_with(&format!("event {number}: ")));
    assert!(!fits && !told(wrong.len() + 1), "{said}");
    for (number, (what, ..)) in wrong.iter().enumerate() {
        assert!(told(number + 1), "{what}: {said}");
    }
    // An earlier version does not have the fields of a later one.
    let (fits, said) = checked(cx, "1.3", &exported("1.8").replace("\"1.8.0\"", "\"1.3.0\""));
    assert!(!fits && said.contains("'policy' was unexpected"), "{said}");
}

fn damaged(cx: &Cx) {
    let record = kinds().replace("stats.example.net", "stats.example.org");
    let done = cx.exeat_plain(["audit", "export", "-"]).stdin(record).run();
    done.exits(1)
        .says(" was changed, or lines are missing or were put in between it and line ")
        .shows("stats.example.org");
    let cut = kinds();
    let done = cx.exeat_plain(["audit", "export", "-"]).stdin(&cut[..cut.len() / 2]).run();
    done.exits(1).says("was cut off").shows("4001");
    cx.exeat_plain(["audit", "export", "--ocsf", "1.2"]).run().exits(2).says("1.1, 1.3, 1.5, 1.8");
}

fn report(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    cx.write("targets", &format!("{good}:443\n{evil}:443\n%<script>:1\n"));
    let words = ["run", "--stage", "import", "--allow", &good, "--", cx.probe(), "ask-all", "targets"];
    cx.exeat_plain(words).run().exits(0);
    let place = cx.home().join("report.html");
    let output = place.to_str().expect("ASCII");
    cx.exeat_plain(["audit", "report", "-o", output]).run().exits(0).silent();
    let page = std::fs::read_to_string(&place).expect("the page");
    for words in [
        "Network access of import",
        &format!("{evil}:443"),
        &format!("{good}:443"),
        "no rule allows this host",
    ] {
        assert!(page.contains(words), "{words} in {page}");
    }
    assert!(page.contains("The record is whole"), "what was found of it: {page}");
    assert!(page.contains("&quot;rules&quot;"), "the stored policy: {page}");
    assert!(!page.contains("<script"), "{page}");
    let mode = std::fs::metadata(&place).expect("the page").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The export replaces an existing file, follows no link, and leaves no other file.
    let kept = cx.write("kept", "mine");
    std::fs::remove_file(&place).expect("remove");
    std::os::unix::fs::symlink(&kept, &place).expect("link");
    cx.exeat_plain(["audit", "report", "-o", output, "--last"]).run().exits(0);
    assert_eq!(std::fs::read_to_string(&kept).expect("kept"), "mine");
    let beside = std::fs::read_dir(cx.home()).expect("home").flatten();
    assert_eq!(beside.filter(|entry| entry.file_name().to_string_lossy().contains(".new-")).count(), 0);
    let edited = kinds().replace("stats.example.net", "stats.example.org");
    let file = cx.write("edited.jsonl", &edited);
    let done = cx.exeat_plain(["audit", "report", "-o", "-", file.to_str().expect("ASCII")]).run();
    done.exits(1).shows("was changed after it was written");
    let done = cx.exeat_plain(["audit", "report", "-o", "-", "-"]).stdin(kinds()).run();
    done.exits(0).shows("was not checked");
    cx.exeat_plain(["audit", "report", "-o", "/nowhere/report.html"]).run().exits(2).says("cannot write");
}

/// A page lists its files, its author and date, the unused rules, and the unreached targets.
fn tied(cx: &Cx) {
    let good = cx.good();
    cx.write(
        "import.toml",
        &format!("schema = 1\n[network]\nallow = [\"{good}\", \"127.0.0.1:9\",\n\"never.example:22\"]\n"),
    );
    cx.write("targets", &format!("{good}:443\n127.0.0.1:9\n"));
    for stage in ["import", "nightly"] {
        let words =
            ["run", "--stage", stage, "--policy", "import.toml", "--", cx.probe(), "ask-all", "targets"];
        cx.exeat_plain(words).run().exits(0);
    }
    let done = cx.exeat_plain(["audit", "report", "--all", "-o", "-"]).run();
    done.exits(0);
    let page = done.stdout();
    let dir = cx.home().join(".local/state/exeat/runs");
    for record in std::fs::read_dir(dir).expect("records").flatten() {
        let path = record.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let bytes = std::fs::read(&path).expect("a record");
            assert!(page.contains(&sha256_hex(&bytes)), "{page}");
            let last: Value = serde_json::from_slice(
                bytes.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().expect("a line"),
            )
            .expect("JSON");
            assert!(page.contains(last["root"].as_str().expect("a root")), "{page}");
        }
    }
    let key = cx.exeat_plain(["audit", "key"]).run().stdout();
    for words in [
        key.trim(),
        "<h2>Failed, and why</h2>",
        "the host did not answer",
        "<h2>Rules never used</h2>",
        "import.toml:4",
        "in force in 2 runs of this page",
        " UTC for ",
    ] {
        assert!(page.contains(words), "{words} in {page}");
    }
    assert_eq!(page.matches("<pre>").count(), 1, "one policy: {page}");
}

/// A browser shows the page, requests nothing and reports no error, whatever the record contains.
fn chromium(cx: &Cx) {
    let evil = cx.evil();
    let markup = format!("</td><img src=http://{evil}/><script src=http://{evil}/></script><b onclick=x>");
    let hostile = kinds().replace("stats.example.net", &markup);
    let page = cx.exeat_plain(["audit", "report", "-o", "-", "-"]).stdin(hostile).run().stdout();
    let (dom, said) = rendered(cx, &page);
    assert!(dom.contains("Denied, and why") && dom.contains("&lt;img"), "{dom}");
    assert!(!dom.contains("<img") && !dom.contains("<script"), "{dom}");
    assert!(!said.contains("CONSOLE"), "{said}");
    // The page's own policy prevents this; it shows that the test would notice.
    let broken = page.replace("<h2>Hosts</h2>", &format!("<img src=http://{evil}/>"));
    let (dom, said) = rendered(cx, &broken);
    assert!(
        dom.contains("<img") && said.contains("CONSOLE") && said.contains("Content Security Policy"),
        "{said}"
    );
    assert!(cx.bench().internet.visits(cx.evil_addrs().0).is_empty());
}

/// Returns the loaded document from Chromium, and Chromium's messages.
fn rendered(cx: &Cx, page: &str) -> (String, String) {
    let place = cx.write("page.html", page);
    let done = Command::new("timeout")
        .args([
            "60",
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-sync",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--enable-logging=stderr",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", cx.home().join("chromium").display()))
        .arg(format!("file://{}", place.display()))
        .stdin(Stdio::null())
        .output();
    let Ok(done) = done else { cx.cannot("chromium is not installed") };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&done.stdout), text(&done.stderr))
}
