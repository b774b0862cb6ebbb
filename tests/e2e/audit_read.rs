//! Reading records: through the real binary, from records of real runs and from hostile ones.

use std::fs;

use e2e::case::{Cases, Cx};
use serde_json::{Value, json};

pub(crate) fn cases(list: &mut Cases) {
    list.once("audit_read::summary_of_many_runs", summary);
    list.once("audit_read::a01_hostile_records_stay_in_their_cells", hostile);
    list.once("audit_read::show_by_time_and_way", filters);
}

/// Runs that ask for a granted and for another host, with a rule that nothing asks for.
fn two_runs(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    cx.write("targets", &format!("{good}:443\n{evil}:443\n"));
    for stage in ["import", "nightly"] {
        let words = ["run", "--stage", stage, "--allow", &good, "--allow", "unused.example:22", "--"];
        cx.exeat_plain([&words[..], &[cx.probe(), "ask-all", "targets"]].concat()).run().exits(0);
    }
}

/// The records of the default place, the oldest first.
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
    text.shows("RULES NEVER USED\n         unused.example:22\n");
    let (refused, granted) = (text.stdout().find(&evil), text.stdout().find(&good));
    assert!(refused < granted, "what was refused stands first: {text:?}");
    let value = cx.exeat_plain([&words[..], &["--format", "json"]].concat()).run().json();
    assert_eq!(value["hosts"][0]["host"], evil);
    assert_eq!(value["hosts"][0]["reasons"], json!({"default": 2}));
    assert_eq!((&value["hosts"][1]["allowed"], &value["hosts"][1]["port"]), (&2.into(), &443.into()));
    assert_eq!(value["unused_rules"], json!(["unused.example:22"]));
    let one = cx.exeat_plain(["audit", "summary", "--last", "--stage", "import"]).run();
    one.exits(0).shows("runs      0\n");
    let github = cx.exeat_plain([&words[..], &["--format", "github"]].concat()).run();
    github.exits(0).shows("### Egress: 2 allowed, 2 denied\n").shows(&format!("| `{evil}:443` | 2 | 0 |"));
    github.shows("<details><summary>1 target without a refusal</summary>\n");
    cx.exeat_plain(["audit", "summary", "nothing-here.jsonl"]).run().exits(2);
    let cut = fs::read(&records[0]).expect("a record");
    cx.write("cut.jsonl", &String::from_utf8_lossy(&cut[..cut.len() - 9]));
    cx.exeat_plain(["audit", "summary", "cut.jsonl"]).run().exits(1).says("line 6 was cut off");
}

/// A record that somebody made: what exeat itself would never write.
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
        &["show", "--json"],
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
    later.exits(0).shows("0 of 2 decisions shown");
    assert!(!later.stdout().contains(&evil), "{later:?}");
    cx.exeat_plain(["audit", "show", "--until", "yesterday", "--json"]).run().exits(0).prints("");
    let lines = cx.exeat_plain(["audit", "show", "--since=-1h", "--json"]).run();
    let kinds: Vec<Value> = lines
        .stdout()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["event"].clone())
        .collect();
    assert_eq!(kinds.first(), Some(&"run_start".into()), "a time is asked of every line");
    assert_eq!(kinds.last(), Some(&"run_end".into()));
    cx.exeat_plain(["audit", "show", "--via", "connect"]).run().exits(0).shows(&evil);
    cx.exeat_plain(["audit", "show", "--via", "direct"]).run().exits(0).shows("0 of 2 decisions shown");
    cx.exeat_plain(["audit", "show", "--since", "soon"]).run().exits(2).says("a time is written");
}
