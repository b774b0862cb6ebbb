//! The published schemas, against what exeat writes and prints. The Python package `jsonschema` validates.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use e2e::case::{Cases, Cx};
use serde_json::Value;

pub(crate) fn cases(list: &mut Cases) {
    list.once("schemas::records_and_outputs_hold_to_their_schemas", records_and_outputs);
}

/// Validates the documents on standard input, one per line, with the schema on the command line. Then it adds a field to each object at the
/// top of the schema, and every document must be invalid.
const CHECK: &str = "import json, jsonschema, sys
schema = json.loads(sys.argv[1])
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema)
count = 0
for line in sys.stdin:
    document = json.loads(line)
    validator.validate(document)
    for it in document if isinstance(document, list) else [document]:
        it['another'] = 1
        assert not validator.is_valid(document), line
        del it['another']
    count += 1
print(count)";

/// Checks that these documents, one a line, are valid by a published schema.
pub(crate) fn validate(cx: &Cx, of: &str, documents: &str) {
    let schema = cx.exeat_plain(["policy", "schema", of]).run().exits(0).stdout();
    let parsed: Value = serde_json::from_str(&schema).expect("JSON");
    assert_eq!(parsed["$id"], format!("urn:exeat:{of}:1"));
    let count = documents.lines().count();
    assert!(count > 0, "no {of}");
    let packages = Path::new(e2e::bench::CLIENTS).join("python").display().to_string();
    let done = cx
        .outside(["/usr/bin/python3", "-c", CHECK, &schema])
        .env("PYTHONPATH", &packages)
        .stdin(documents.as_bytes())
        .run();
    done.exits(0).prints(&format!("{count}\n"));
}

fn records_and_outputs(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let policy = cx.home().join("schemas.toml");
    let text = format!(
        "schema = 1\nstage = \"s\"\n[network]\ndeny = [\"{evil}\"]\n\
         [[network.rule]]\nallow = [\"{good}\", \"*.wide.test:80,443\", \"10.1.2.3:5432\"]\nreason = \"why\"\nmax_upload = \"1MB\"\n\
         approved_by = \"ann\"\nexpires = \"2999-01-01\"\n[fs]\nrw = [\"masked/out\"]\nmask = [\"~/masked\"]\n\
         [env]\npass = [\"LANG\"]\nset = {{ A = \"b\" }}\n[limits]\npids = 500\n"
    );
    fs::create_dir_all(cx.home().join("masked/out")).expect("a directory");
    fs::write(&policy, text).expect("the policy");
    let policy = policy.display().to_string();
    let ceiling = cx.home().join("ceiling.toml");
    fs::write(&ceiling, "schema = 1\n[network]\nallow_any = true\n[limits]\npids = 400\n")
        .expect("the ceiling");
    let ceiling = ceiling.display().to_string();

    let curl =
        format!("curl -s --max-time 20 --cacert ca.pem -o /dev/null {} {}", cx.good_url(), cx.evil_url());
    let all = format!(
        "mkdir .vscode; {curl}; getent hosts {evil}; getent hosts {good}; \
         curl -s --noproxy '*' https://127.0.0.1:1/; curl -s http://{evil}/; true"
    );
    // What report mode lets through must not be the evil host.
    let mild =
        format!("curl -s --max-time 20 --cacert ca.pem -o /dev/null {} https://127.0.0.1:1/", cx.good_url());
    let runs: [(&[&str], &str); 6] = [
        (&["--policy", &policy, "--label", "b=c", "--label", "d=e"], &all),
        (&["--mode", "report", "--stage", "t", "--allow", "127.0.0.1:1"], &mild),
        (&["--timeout", "200ms"], "sleep 60"),
        (&["--set", "limits.output_size=1kB"], "yes"),
        (&[], "kill -9 $$"),
        (&["--audit-key", "none", "--set", "sandbox.bridge=relay"], &curl),
    ];
    for (flags, script) in runs {
        cx.exeat_plain([&["run"], flags, &["--", "sh", "-c", script]].concat()).run();
    }
    let (mut lines, mut events) = (String::new(), BTreeSet::new());
    let dir = cx.home().join(".local/state/exeat/runs");
    for entry in fs::read_dir(&dir).expect("the records").flatten() {
        if entry.path().extension() == Some("jsonl".as_ref()) {
            lines += &fs::read_to_string(entry.path()).expect("a record");
        }
    }
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        events.insert(line["event"].as_str().expect("an event").to_owned());
    }
    let expect = ["checkpoint", "close", "decision", "dns", "note", "policy", "run_end", "run_start"]
        .map(str::to_owned);
    assert!(expect.iter().all(|event| events.contains(event)), "{events:?}");
    validate(cx, "record", &lines);

    let print = |words: &[&str]| {
        let done = cx.exeat_plain(words.iter()).run();
        assert!(!done.stdout().is_empty(), "{done:?}");
        done.stdout()
    };
    let json = ["--format", "json"];
    let targets =
        [&good, &evil, "a.wide.test:80", "10.1.2.3:5432", "10.1.2.3:80", "none.test", "127.0.0.1:5432"];
    let bounded = ["--policy", &policy, "--ceiling", &ceiling, "--env", "A=b", "--memory", "1GB"];
    for flags in [
        &["--allow", "*.wide.test"][..],
        &["--mode", "report", "--host-port", "5432"],
        &bounded[..4],
        &bounded,
    ] {
        let words = [&["run", "--dry-run"], &json[..], flags, &["--", "true", ""]].concat();
        validate(cx, "plan", &print(&words));
        if !flags.contains(&"--memory") {
            validate(cx, "check", &print(&[&["check"], flags, &json, &targets].concat()));
            validate(cx, "policy-show", &print(&[&["policy", "show"], flags, &json].concat()));
        }
    }

    // A list has a value over several lines, and records that are none.
    let one_line = |text: String| format!("{}\n", serde_json::from_str::<Value>(&text).expect("JSON"));
    fs::write(dir.join("01KB3W0J7Q1F8N2R5T9V4X6Y0Z.jsonl"), "no record\n").expect("a file");
    fs::write(dir.join("01KB3W0J7Q1F8N2R5T9V4X6Y1Z.jsonl"), "").expect("a file");
    validate(cx, "audit-list", &one_line(print(&["audit", "list", "--format", "json"])));
    let state = one_line(print(&["state", "list", "--format", "json"]));
    assert!(state.contains(".vscode") && state.contains("last_use"), "{state}");
    validate(cx, "state-list", &state);
}
