use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;

use exeat_policy::preset::{self, Risk};
use exeat_policy::{PolicyBuilder, Reason, Verdict};
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::testing::{HOSTILE, allow, close, deny, end, header, is_plain, note, question, rule, target};
use crate::{Holds, Process, Under, sha256_hex};

const NOW: &str = "2026-11-21T10:20:32.123456Z";

fn line(header: &Header, event: &Event) -> Vec<u8> {
    let counts = Counts {
        allowed: u64::MAX,
        denied: u64::MAX,
        would_deny: u64::MAX,
        errors: u64::MAX,
        failed: u64::MAX,
        dropped: u64::MAX,
        lines: u64::MAX,
    };
    let prev = sha256_hex(b"");
    let at = Position { seq: u64::MAX, ts: NOW, mono_us: u64::MAX, prev: &prev };
    let mut out = Vec::new();
    encode(&mut out, header, &at, &counts, event).unwrap();
    out
}

fn value(event: &Event) -> Value {
    serde_json::from_slice(&line(&header(), event)).unwrap()
}

/// The rule's group sets the risk; a rule that a user wrote has none.
#[test]
fn a_decision_has_the_risk_of_the_group_of_its_rule() {
    let mut seen = std::collections::BTreeSet::new();
    for group in preset::groups().iter().filter(|group| !group.allow.is_empty()) {
        let mut grants = PolicyBuilder::new();
        group.add_to(&mut grants);
        let policy = grants.build();
        let mut decision = allow(1, "a.example:443");
        decision.rule = policy.rules().first().map(RuleRef::from);
        let line = value(&Event::Decision(decision));
        let risk = format!("{:?}", group.risk).to_lowercase();
        assert_eq!(line["risk"], *risk, "{}: {line}", group.name);
        seen.insert(risk);
    }
    assert_eq!(seen.len(), 3);
    let mut decision = allow(1, "a.example:443");
    decision.rule = Some(rule());
    assert!(value(&Event::Decision(decision)).get("risk").is_none());
}

/// Every event, with every field that takes text filled with `text`.
fn filled(text: &str) -> Vec<Event> {
    let some = || Some(text.to_owned());
    let ip: IpAddr = "2001:db8:1111:2222:3333:4444:5555:6666".parse().unwrap();
    let name =
        [&"a".repeat(63), &"b".repeat(63), &"c".repeat(63), &"d".repeat(61)].map(String::as_str).join(".");
    let mut decision = allow(u64::MAX, &format!("{name}:65535"));
    decision.via = Via::Transparent;
    decision.verdict = Verdict::WouldDeny;
    decision.reason = Reason::ALL.into_iter().max_by_key(|reason| reason.as_str().len()).unwrap();
    decision.host_raw = Some(text.as_bytes().to_vec());
    decision.ips = vec![ip; 64];
    decision.ip = Some(ip);
    decision.dns = Some(Duration::MAX);
    decision.rule = Some(RuleRef {
        text: text.to_owned(),
        src: text.to_owned(),
        risk: Some(Risk::Medium),
        why: some(),
        approved_by: some(),
        expires: some(),
    });
    decision.refused_by = some();
    decision.under = Some(Arc::new(Under { policy_sha256: text.to_owned(), mode: Mode::Enforce }));
    decision.count = Some(u64::MAX);
    (decision.sni, decision.sni_ok, decision.alpn, decision.error) = (some(), Some(false), some(), some());
    (decision.method, decision.ech) = (some(), true);
    decision.process = Some(Process { pid: u32::MAX, ppid: Some(u32::MAX), exe: Some(text.into()) });
    let mut through = decision.clone();
    through.upstream = some();
    decision.proto = Proto::Other(255);
    let mut unread = decision.clone();
    unread.process = Some(Process {
        pid: u32::MAX,
        ppid: Some(u32::MAX),
        exe: Some(std::ffi::OsString::from_vec(vec![0xff; 600])),
    });
    let mut question = question(&name);
    (question.host_raw, question.rule) = (Some(text.as_bytes().to_vec()), decision.rule.clone());
    (question.refused_by, question.error, question.count) = (some(), some(), Some(u64::MAX));
    question.under.clone_from(&decision.under);
    let mut closed = close(u64::MAX, &format!("{name}:65535"));
    closed.ip = Some(ip);
    (closed.sni, closed.sni_ok, closed.alpn, closed.error) = (some(), Some(false), some(), some());
    closed.ech = true;
    (closed.connect, closed.tls, closed.dur) = (Some(Duration::MAX), Some(Duration::MAX), Duration::MAX);
    (closed.bytes_up, closed.bytes_down, closed.end) = (u64::MAX, u64::MAX, CloseCause::Upstream);
    let start = |command: Vec<u8>, proxy: Option<String>| RunStart {
        user: Some(text.into()),
        machine: Some(text.into()),
        dir: Some(text.into()),
        trace: Some(crate::Trace { trace_id: text.into(), span_id: text.into() }),
        version: text.to_owned(),
        command: Some(std::ffi::OsString::from_vec(command)),
        backend: some(),
        backend_why: some(),
        bridge: some(),
        proxy,
        upstream: some(),
        gateway: some(),
        enforcement: (0..50).map(|n| (format!("{n}{text}"), Holds::Partial(text.to_owned()))).collect(),
        limits: (0..50).map(|n| format!("{n}{text}")).collect(),
        labels: (0..50).map(|n| (format!("{n}{text}"), text.to_owned())).collect(),
        ledger: InLedger::Number(crate::Number { ledger: text.into(), no: u64::MAX, prev: text.into() }),
    };
    vec![
        Event::Policy(Source { role: SourceRole::Ceiling, file: text.to_owned(), sha256: text.to_owned() }),
        Event::RunStart(start(text.as_bytes().to_vec(), None)),
        Event::RunStart(start(vec![0xff; 600], some())),
        Event::Decision(decision),
        Event::Decision(through),
        Event::Decision(unread),
        Event::Dns(question),
        Event::Progress(Progress {
            conn: closed.conn,
            target: closed.target.clone(),
            bytes_up: u64::MAX,
            bytes_down: u64::MAX,
        }),
        Event::Close(closed),
        Event::Note(RunNote {
            what: What::PolicyReload,
            count: Some(u64::MAX),
            under: Some(Arc::new(Under { policy_sha256: text.to_owned(), mode: Mode::Enforce })),
            error: some(),
        }),
        Event::RunEnd(RunEnd {
            cause: Cause::Timeout,
            limit: Some(text.to_owned()),
            signal: Some(i32::MIN),
            stopped_by: Some(crate::StoppedBy::Program),
            exit: Some(i32::MIN),
            connections: u64::MAX,
            dropped: u64::MAX,
        }),
    ]
}

/// Returns the longest line with every field filled with `text`.
fn longest(text: &str) -> Vec<u8> {
    let mut header = header();
    (header.stage, header.policy_sha256) = (Some(text.to_owned()), text.to_owned());
    filled(text).iter().map(|event| line(&header, event)).max_by_key(Vec::len).unwrap()
}

/// Describes a line by its event and its largest fields.
fn describe(line: &[u8]) -> String {
    let value: serde_json::Map<String, Value> = serde_json::from_slice(line).unwrap();
    let mut fields: Vec<_> = value.iter().map(|(key, value)| (value.to_string().len(), key)).collect();
    fields.sort_unstable_by(|one, other| other.cmp(one));
    let fields: Vec<_> = fields.iter().take(8).map(|(bytes, key)| format!("{key} {bytes}")).collect();
    format!("the line `{}` has {} bytes: {}, ...", value["event"], line.len(), fields.join(", "))
}

/// A question has a name and no port.
#[test]
fn a_question_has_its_name_and_verdict() {
    let mut question = question("stats.example.net");
    question.host_raw = Some(b"stats.example.net".to_vec());
    let told = value(&Event::Dns(question.clone()));
    for (key, expect) in [
        ("event", "dns"),
        ("via", "dns"),
        ("host", "stats.example.net"),
        ("verdict", "deny"),
        ("reason", "default"),
        ("mode", "enforce"),
    ] {
        assert_eq!(told[key], expect, "{key}");
    }
    for absent in ["host_raw", "conn", "port", "count", "rule", "error", "proto"] {
        assert!(told.get(absent).is_none(), "{absent}");
    }
    (question.host, question.host_raw, question.count) = (None, Some(b"a\x01b".to_vec()), Some(7));
    question.rule = Some(rule());
    let told = value(&Event::Dns(question));
    assert_eq!((&told["host_raw"], &told["count"]), (&"a\\x01b".into(), &7.into()));
    assert_eq!((&told["rule"], &told["rule_src"]), (&"*.example.com".into(), &".exeat.toml:12".into()));
}

/// An attempt without a connection has no number. TCP is not written, and neither is an absent port.
#[test]
fn an_attempt_has_its_protocol() {
    let mut attempt = deny(1, "192.0.2.7:53");
    (attempt.conn, attempt.via, attempt.proto) = (None, Via::Direct, Proto::Udp);
    let told = value(&Event::Decision(attempt.clone()));
    assert_eq!((&told["host"], &told["port"]), (&"192.0.2.7".into(), &53.into()));
    assert_eq!((&told["via"], &told["proto"]), (&"direct".into(), &"udp".into()));
    assert!(told.get("conn").is_none());
    (attempt.proto, attempt.host, attempt.target) =
        (Proto::Other(132), attempt.target.map(|target| target.host), None);
    let told = value(&Event::Decision(attempt));
    assert_eq!((&told["host"], &told["proto"]), (&"192.0.2.7".into(), &"132".into()));
    assert!(told.get("port").is_none());
    assert!(value(&Event::Decision(deny(1, "192.0.2.7:53"))).get("proto").is_none());
}

#[test]
fn no_line_is_longer_than_a_pipe_takes_whole() {
    for text in ["x", "\"", "\\", "\0", "\u{7f}", "\u{202e}", "\u{1f512}", "a\u{1f512}"] {
        let longest = longest(&text.repeat(4000));
        // Room is left for the fields that rules about requests will need.
        let most = MAX_LINE - 250;
        assert!(
            longest.len() <= most,
            "filled with {text:?}, {}; {most} may be. Shorten a text of this line in `max` that rarely has that many \
             bytes, such as `command` or `dir`",
            describe(&longest)
        );
    }
}

/// A01: forged, hidden and reordered lines.
#[test]
fn a01_hostile_text_stays_one_printable_line() {
    let mut header = header();
    header.stage = Some(HOSTILE.to_owned());
    for event in filled(HOSTILE) {
        let line = line(&header, &event);
        assert!(is_plain(&line), "{}", String::from_utf8_lossy(&line));
        assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
        assert_eq!(line.last(), Some(&b'\n'));
        assert!(serde_json::from_slice::<Value>(&line).is_ok());
    }
}

/// A03: the arguments of a command can hold secrets; the type takes its first word only.
#[test]
fn a_run_start_has_the_command_and_the_enforcement() {
    let value = value(&Event::RunStart(RunStart {
        version: "0.1.0".into(),
        command: Some("/usr/bin/curl".into()),
        user: Some("alice".into()),
        machine: Some("build-7".into()),
        dir: Some("/home/alice/app".into()),
        trace: None,
        backend: Some("bwrap".into()),
        backend_why: Some("bubblewrap works here".into()),
        bridge: Some("handoff".into()),
        proxy: None,
        upstream: None,
        gateway: Some("off".into()),
        enforcement: vec![
            ("net".into(), Holds::Held),
            ("fs".into(), Holds::Partial("no Landlock".into())),
            ("syscalls".into(), Holds::Absent),
        ],
        limits: vec!["memory=2GiB (watched)".into()],
        labels: vec![("a".into(), "1".into()), ("a".into(), "2".into())],
        ledger: InLedger::None,
    }));
    assert_eq!(value["event"], "run_start");
    assert_eq!(value["command"], "/usr/bin/curl");
    assert_eq!((&value["user"], &value["machine"]), (&"alice".into(), &"build-7".into()));
    assert_eq!((&value["dir"], &value["trace_id"]), (&"/home/alice/app".into(), &serde_json::Value::Null));
    assert_eq!(
        value["enforcement"],
        serde_json::json!({"net": "held", "fs": "partial: no Landlock", "syscalls": "absent"})
    );
    assert_eq!(value["limits"], serde_json::json!(["memory=2GiB (watched)"]));
    assert_eq!(value["labels"], serde_json::json!({"a": "2"}));
    assert_eq!(value["mode"], "enforce");
}

/// A11: the record has the requested name, the rule and the address.
#[test]
fn a11_a_decision_tells_name_rule_and_address() {
    let mut decision = allow(7, "api.example.com:443");
    decision.host_raw = Some(b"API.example.com:443".to_vec());
    decision.dns = Some(Duration::from_micros(1500));
    let value = value(&Event::Decision(decision));
    for (key, expect) in [
        ("schema", Value::from("egress/1")),
        ("ts", Value::from(NOW)),
        ("conn", Value::from(7)),
        ("via", Value::from("connect")),
        ("host", Value::from("api.example.com")),
        ("port", Value::from(443)),
        ("host_raw", Value::from("API.example.com:443")),
        ("ips", serde_json::json!(["93.184.216.34"])),
        ("dns_us", Value::from(1500)),
        ("verdict", Value::from("allow")),
        ("reason", Value::from("rule")),
        ("rule", Value::from("*.example.com")),
        ("rule_src", Value::from(".exeat.toml:12")),
    ] {
        assert_eq!(value[key], expect, "{key}");
    }
    assert!(value.get("error").is_none() && value.get("count").is_none());
}

/// A03: the record has the program, and no field for its arguments.
#[test]
fn a_decision_tells_who_asked_where_that_is_known() {
    let mut decision = allow(1, "a.example:443");
    let exe = |text: &str| Some(std::ffi::OsString::from(text));
    decision.process = Some(Process { pid: 42, ppid: Some(7), exe: exe("/usr/bin/curl") });
    let told = value(&Event::Decision(decision.clone()));
    assert_eq!((&told["exe"], &told["pid"], &told["ppid"]), (&"/usr/bin/curl".into(), &42.into(), &7.into()));
    decision.process = Some(Process { pid: 42, ppid: None, exe: None });
    let told = value(&Event::Decision(decision.clone()));
    assert_eq!((told.get("exe"), &told["pid"], told.get("ppid")), (None, &42.into(), None));
    let long = format!("/{}/curl (deleted)", "d".repeat(4000));
    decision.process = Some(Process { pid: 42, ppid: None, exe: exe(&long) });
    let told = value(&Event::Decision(decision.clone()));
    let text = told["exe"].as_str().unwrap();
    assert!(text.len() == 256 && text.starts_with("...d") && text.ends_with("/curl (deleted)"), "{text}");
    decision.process = None;
    let told = value(&Event::Decision(decision));
    assert!(["exe", "pid", "ppid"].iter().all(|key| told.get(key).is_none()), "{told}");
}

#[test]
fn has_the_sent_name_only_if_it_differs() {
    let raw = |raw: &[u8]| {
        let mut decision = allow(1, "[2001:db8::1]:443");
        decision.host_raw = Some(raw.to_vec());
        value(&Event::Decision(decision)).get("host_raw").cloned()
    };
    assert_eq!(raw(b"[2001:db8::1]:443"), None);
    assert_eq!(raw(b"[2001:db8::1]"), None);
    assert_eq!(raw(b"[2001:DB8::1]:443"), Some("[2001:DB8::1]:443".into()));
}

#[test]
fn long_lists_say_how_much_is_missing() {
    let mut decision = allow(1, "a.example:443");
    decision.ips = vec!["192.0.2.1".parse().unwrap(); 20];
    let value = value(&Event::Decision(decision));
    assert_eq!(value["ips"].as_array().unwrap().len(), 12);
    assert_eq!(value["ips_more"], 8);
}

#[test]
fn an_address_is_written_without_brackets() {
    let mut closed = close(1, "[2001:db8::1]:8443");
    closed.target = Some(target("[2001:db8::1]:8443"));
    assert_eq!(value(&Event::Close(closed))["host"], "2001:db8::1");
}

#[test]
fn events_carry_the_fields_of_their_kind_only() {
    assert!(value(&Event::Close(close(1, "a.example:443"))).get("policy_sha256").is_none());
    let end = value(&end());
    assert_eq!((&end["cause"], &end["exit"], &end["dropped"]), (&"exit".into(), &0.into(), &u64::MAX.into()));
    assert!(end.get("conn").is_none());
}

proptest! {
    #[test]
    fn text_of_people_survives(why in "[ -~\u{a1}-\u{17f}\u{1f510}]{0,20}") {
        let mut decision = allow(1, "a.example:443");
        decision.rule = Some(RuleRef { why: Some(why.clone()), ..rule() });
        let value = value(&Event::Decision(decision));
        prop_assert_eq!(value["why"].as_str(), Some(why.as_str()));
    }

    #[test]
    fn whatever_was_sent_is_one_plain_line(raw: Vec<u8>, error: String, sni: String) {
        let mut decision = allow(1, "a.example:443");
        (decision.host_raw, decision.error, decision.sni) = (Some(raw), Some(error), Some(sni));
        let line = line(&header(), &Event::Decision(decision));
        prop_assert!(is_plain(&line) && line.len() <= MAX_LINE);
        prop_assert!(serde_json::from_slice::<Value>(&line).is_ok());
    }
}

/// K38, H16: the policy may change before a decision, and the policy of another process's proxy is not known.
#[test]
fn a_decision_is_under_the_policy_that_was_asked() {
    let under = Arc::new(Under { policy_sha256: "new".into(), mode: Mode::Report });
    let mut decision = allow(1, "api.example.com:443");
    assert_eq!(value(&Event::Decision(decision.clone()))["policy_sha256"], header().policy_sha256);
    decision.under = Some(Arc::clone(&under));
    let note = note(What::PolicyReload, |note| note.under = Some(under));
    for event in [Event::Decision(decision), note] {
        let value = value(&event);
        assert_eq!((&value["policy_sha256"], &value["mode"]), (&"new".into(), &"report".into()), "{value}");
    }
    let proxy = Some("unix:/run/proxy.sock".to_owned());
    let start = value(&Event::RunStart(RunStart { proxy, ..RunStart::default() }));
    assert_eq!(start["proxy"], "unix:/run/proxy.sock");
    assert!(start.get("policy_sha256").is_none() && start.get("mode").is_none(), "{start}");
}

/// A01: a stage may name its programs as it likes, and a reader decodes what JSON escaped.
#[test]
fn a01_a_path_is_printable_when_it_was_read_as_json() {
    for (name, told) in [
        ("/bin/a\n{\"seq\":0}", "/bin/a\\x0a{\"seq\":0}"),
        ("/bin/\u{1b}[31m", "/bin/\\x1b[31m"),
        ("/bin/\u{9b}31m\u{202e}", "/bin/\\xc2\\x9b31m\\xe2\\x80\\xae"),
        ("/bin/\\x0a", "/bin/\\\\x0a"),
        ("/home/j\u{fc}rgen/a b", "/home/j\u{fc}rgen/a b"),
    ] {
        assert_eq!(path_text(OsStr::new(name), max::EXE), told);
    }
}

/// The line has every limit, including the last of the list.
#[test]
fn a_start_with_every_limit_has_every_limit() {
    let limits: Vec<String> =
        exeat_policy::Limit::ALL.iter().map(|limit| format!("{}=1 (kernel)", limit.key())).collect();
    let start = RunStart { limits: limits.clone(), ..RunStart::default() };
    assert_eq!(value(&Event::RunStart(start))["limits"], serde_json::json!(limits));
}
