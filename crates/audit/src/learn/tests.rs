use exeat_policy::{Action, FileRole, Note, Origin, OwnAddrs, PolicyBuilder, PolicyFile};

use super::*;

const RUN: &str = "01JD8Z3V5QABCDEFGHJKMNPQRS";

fn line(seq: u64, fields: &str) -> Record {
    line_of(RUN, seq, fields)
}

fn line_of(run: &str, seq: u64, fields: &str) -> Record {
    let text = format!(
        r#"{{"schema":"egress/1","seq":{seq},"ts":"2026-11-21T10:20:32.123456Z","mono_us":1,"run":"{run}",{fields}}}"#
    );
    Record::parse(text.as_bytes()).unwrap()
}

fn decided(seq: u64, verdict: &str, reason: &str, host: &str, port: u16, more: &str) -> Record {
    let host = serde_json::to_string(host).unwrap();
    line(
        seq,
        &format!(
            r#""event":"decision","via":"connect","verdict":"{verdict}","reason":"{reason}","host":{host},"port":{port}{more}"#
        ),
    )
}

fn today() -> Day {
    Day::from_ymd(2026, 11, 22).unwrap()
}

fn known<'a>() -> Known<'a> {
    Known { policy: None, host_ports: &[], denied: false, today: today() }
}

fn learned(records: &[Record]) -> Learned {
    let start = line(0, r#""event":"run_start","command":"npm","mode":"report""#);
    Learned::new(&Summary::of_records(&[&[start], records].concat()))
}

/// Returns the policy file, and the policy that it parses to.
fn policy_of(learned: &Learned, known: &Known<'_>) -> (String, Policy) {
    let text = learned.policy_file(known).unwrap();
    let file = PolicyFile::parse(&text, "learned", FileRole::Policy, &Vec::new).unwrap();
    let mut grants = PolicyBuilder::new();
    file.apply(&mut grants);
    (text, grants.build())
}

fn granted(policy: &Policy) -> Vec<String> {
    policy.rules().iter().map(|rule| rule.text.clone()).collect()
}

#[test]
fn grants_exactly_the_targets_that_were_let_through() {
    let learned = learned(&[
        decided(1, "would_deny", "default", "registry.example", 443, ""),
        line(
            2,
            r#""event":"close","host":"registry.example","port":443,"sni_ok":true,"bytes_up":1200,"bytes_down":45000"#,
        ),
        decided(3, "would_deny", "default", "registry.example", 443, ""),
        decided(4, "allow", "rule", "b.example", 8443, r#","rule":"*.example:*""#),
        decided(5, "would_deny", "default", "a.example", 80, ""),
        decided(6, "error", "connect_error", "down.example", 443, ""),
        decided(6, "would_deny", "default", "proxy.golang.org", 443, ""),
        decided(7, "deny", "default", "denied.example", 8443, ""),
        decided(8, "deny", "deny_rule", "never.example", 443, r#","rule":"never.example""#),
        decided(9, "deny", "default", "site.example", 443, r#","refused_by":"ceiling site.toml""#),
        decided(10, "would_deny", "default", "fronted.example", 443, ""),
        decided(11, "deny", "sni_mismatch", "fronted.example", 443, r#","ip":"192.0.2.1""#),
        line(12, r#""event":"dns","via":"dns","verdict":"deny","reason":"default","host":"asked.example""#),
    ]);
    let (text, policy) = policy_of(&learned, &known());
    assert_eq!(
        granted(&policy),
        [
            "a.example:80",
            "b.example:8443",
            "down.example:443",
            "proxy.golang.org:443",
            "registry.example:443"
        ]
    );
    for said in [
        "# run 01JD8Z3V5QABCDEFGHJKMNPQRS (npm), 2026-11-21T10:20:32.123456Z, mode report",
        "  # 2 connections, 2 that no rule allowed\n",
        "  # 1.2 kB sent, 45 kB received; first 2026-11-21T10:20:32.123456Z, run 01JD8Z3V5QABCDEFGHJKMNPQRS seq 1, 3\n  \"registry.example:443\",\n",
        "  # risk: plain HTTP, which anybody on the way can read and change\n",
        "  # 1 connection, 1 that failed: never reached\n",
        "#   \"denied.example:8443\",  # 1x default; first",
        "#   never.example:443  1x deny_rule; first",
        "#   site.example:443  1x default (ceiling site.toml); first",
        "#   fronted.example:443  1x sni_mismatch; first",
        "#   asked.example  first",
        "#   go: risk low; ",
    ] {
        assert!(text.contains(said), "no {said:?} in\n{text}");
    }
    assert!(!text.contains("stage =") && !text.contains("tls") && !text.contains("socks5"), "{text}");
    // The same records give the same file.
    assert_eq!(learned.policy_file(&known()).unwrap(), text);
}

#[test]
fn grants_refused_targets_on_request() {
    let learned = learned(&[
        decided(1, "deny", "default", "denied.example", 443, ""),
        decided(2, "deny", "port", "denied.example", 22, ""),
        decided(3, "deny", "ip_literal", "93.184.215.14", 443, ""),
        decided(4, "deny", "ip_literal", "10.2.3.4", 443, ""),
        decided(5, "deny", "deny_rule", "never.example", 443, ""),
        decided(6, "deny", "default", "site.example", 443, r#","refused_by":"ceiling site.toml""#),
        decided(7, "deny", "private_ip", "wiki.example", 443, r#","ips":["10.2.3.4"]"#),
        decided(8, "deny", "metadata_ip", "meta.example", 443, r#","ips":["169.254.169.254"]"#),
    ]);
    let (text, policy) = policy_of(&learned, &known());
    assert!(granted(&policy).is_empty() && learned.is_empty());
    assert!(
        text.contains(
            "besides \"wiki.example:443\" it takes rules for where that leads: \"10.2.3.4:443\" (private)"
        ),
        "{text}"
    );
    assert!(!text.contains("169.254"), "no way to a metadata service is offered: {text}");
    let (_, policy) = policy_of(&learned, &Known { denied: true, ..known() });
    assert_eq!(granted(&policy), ["denied.example:22", "denied.example:443", "93.184.215.14:443"]);
}

/// A run that reached a private address by name had a rule for it, and needs it again.
#[test]
fn where_a_name_led_is_granted_with_it() {
    let learned =
        learned(&[decided(1, "allow", "rule", "db.corp.example", 5432, r#","ips":["10.2.3.4","fd00::1"]"#)]);
    let (text, policy) = policy_of(&learned, &known());
    assert_eq!(granted(&policy), ["db.corp.example:5432", "10.2.3.4:5432", "[fd00::1]:5432"]);
    assert!(text.contains("# where db.corp.example:5432 leads (private)\n"), "{text}");
    let admitted = policy.admit("db.corp.example:5432".parse().unwrap(), today()).unwrap();
    assert!(
        admitted
            .vet(&["10.2.3.4".parse().unwrap(), "fd00::1".parse().unwrap()], &OwnAddrs::default())
            .is_ok()
    );
}

#[test]
fn tls_is_left_unchecked_only_where_it_was() {
    let closed = |port: u16, more: &str| {
        line(
            9,
            &format!(
                r#""event":"close","host":"a.example","port":{port},"bytes_up":10,"bytes_down":10{more}"#
            ),
        )
    };
    let off = |records: &[Record], known: &Known<'_>| {
        let (text, policy) = policy_of(&learned(records), known);
        (text.contains("tls = \"off\""), policy.rules().first().map(|rule| rule.note.tls))
    };
    let on_443 = || decided(1, "allow", "rule", "a.example", 443, "");
    let checked = (false, Some(TlsCheck::Auto));
    let unchecked = (true, Some(TlsCheck::Off));
    assert_eq!(off(&[on_443(), closed(443, r#","sni_ok":true"#)], &known()), checked);
    assert_eq!(off(&[on_443(), closed(443, "")], &known()), unchecked);
    // A server that speaks first on its own port does not need `tls = "off"`.
    assert_eq!(off(&[decided(1, "allow", "rule", "a.example", 22, ""), closed(22, "")], &known()), checked);
    assert_eq!(
        off(&[decided(1, "allow", "rule", "a.example", 993, r#","rule_src":"--tls-off""#)], &known()),
        unchecked
    );
    // The policy of the run counts more than its traces.
    let mut rules = PolicyBuilder::new();
    let note = Note { tls: TlsCheck::Off, ..Note::default() };
    rules.add("*.a.example:*", Action::Allow, Origin::Flag { flag: "--tls-off".into() }, note).unwrap();
    let policy = rules.build();
    let with = Known { policy: Some(&policy), ..known() };
    let below = decided(1, "allow", "rule", "x.a.example", 443, "");
    assert_eq!(off(&[below], &with), unchecked);
    let bare = PolicyBuilder::new().build();
    assert_eq!(
        off(&[on_443(), closed(443, r#","sni_ok":true"#)], &Known { policy: Some(&bare), ..known() }),
        checked
    );
}

#[test]
fn prints_the_other_needs_of_a_run() {
    let forwarded = |seq, port: u16, src: &str| {
        line(
            seq,
            &format!(
                r#""event":"decision","via":"forward","verdict":"allow","reason":"rule","host":"127.0.0.1","port":{port},"rule_src":"{src}""#
            ),
        )
    };
    let socks = line(
        1,
        r#""event":"decision","via":"socks5","verdict":"allow","reason":"rule","host":"a.example","port":22"#,
    );
    let learned =
        learned(&[socks, forwarded(2, 5432, "--host-port 5432:15432"), forwarded(3, 6379, "p.toml:3")]);
    let (text, _) = policy_of(&learned, &known());
    let file = PolicyFile::parse(&text, "learned", FileRole::Policy, &Vec::new).unwrap();
    let offered: Vec<_> = file.host_ports.iter().map(|(port, _)| port.to_string()).collect();
    assert_eq!(
        (file.socks5, offered.as_slice()),
        (Some(true), &["5432:15432".to_owned(), "6379".into()][..])
    );
    assert!(text.contains("the record does not say where the stage found it"), "{text}");
    let with = Known { host_ports: &["6379:16379".parse().unwrap()], ..known() };
    assert!(policy_of(&learned, &with).0.contains("\"6379:16379\","));
}

/// Hostile text in every field of a record grants nothing.
#[test]
fn a_hostile_record_grants_nothing_of_its_own() {
    let evil = "x\"]\nallow=[\"evil.example";
    let hostile = serde_json::to_string(evil).unwrap();
    let mut records = Vec::new();
    for stage in [evil, "s\"\nallow=[\"evil.example\"]\n[network]\n#"] {
        let stage = serde_json::to_string(stage).unwrap();
        records.push(line(
            0,
            &format!(r#""event":"run_start","command":{hostile},"stage":{stage},"mode":{hostile}"#),
        ));
    }
    for (seq, host) in (1..).zip([
        evil,
        "*.example",
        "*",
        "a.example\n",
        "a.example:80,443",
        "!a.example",
        "10.0.0.0/8",
        "a.example\",\"evil.example",
    ]) {
        records.push(decided(seq, "allow", "rule", host, 443, ""));
        records.push(decided(seq, "deny", "default", host, 443, ""));
    }
    for more in [format!(r#","refused_by":{hostile}"#), format!(r#","rule":{hostile},"rule_src":{hostile}"#)]
    {
        records.push(decided(20, "deny", "default", "ok.example", 443, &more));
    }
    let mut record = decided(21, "allow", "rule", "fine.example", 443, "");
    record.ts = evil.to_owned();
    records.push(record.clone());
    record.run = evil.to_owned();
    records.push(record);
    let mut learned = Learned::new(&Summary::of_records(&records));
    let start = learned.starts.first_mut().unwrap();
    start.run = evil.to_owned();
    start.ts = evil.to_owned();
    let (text, policy) = policy_of(&learned, &Known { denied: true, ..known() });
    assert_eq!(granted(&policy), ["fine.example:443", "ok.example:443"], "{text}");
    for line in text.lines().filter(|line| line.contains("evil")) {
        assert!(line.trim_start().starts_with('#'), "{line}");
    }
    assert!(text.bytes().all(|byte| matches!(byte, b'\n' | b' '..=b'~')), "{text}");
}

#[test]
fn the_name_of_a_stage_is_quoted() {
    let start = line(0, r#""event":"run_start","stage":"a \"b\" \\ \u00e9\u202e""#);
    let learned = Learned::new(&Summary::of_records(&[start]));
    let (text, _) = policy_of(&learned, &known());
    let file = PolicyFile::parse(&text, "learned", FileRole::Policy, &Vec::new).unwrap();
    assert_eq!(file.stage.as_deref(), Some("a \"b\" \\ \u{e9}\u{202e}"));
    assert!(text.is_ascii());
}

#[test]
fn targets_are_bounded_and_the_rest_is_counted() {
    let mut records = Vec::new();
    let long = "l".repeat(60);
    let ips = (0..32).map(|n| format!("\"10.0.0.{n}\"")).collect::<Vec<_>>().join(",");
    for n in 0..MAX_REFUSED + 1 {
        records.push(decided(1, "deny", "default", &format!("d{n}.{long}.{long}.{long}.example"), 443, ""));
    }
    let granted = MAX_TARGETS - MAX_REFUSED;
    for n in 0..granted + 3 {
        let host = format!("h{n}.{long}.{long}.{long}.github.io");
        records.push(decided(1, "allow", "rule", &host, 80, &format!(r#","ips":[{ips}]"#)));
    }
    let learned = learned(&records);
    let (text, policy) = policy_of(&learned, &known());
    assert_eq!(policy.rules().len(), granted + 16);
    assert!(text.contains("# 4 attempts have no line here"), "{text}");
}

#[test]
fn runs_are_told_apart() {
    let mut records = Vec::new();
    for (n, stage) in [(0, "a"), (1, "b"), (2, "b")] {
        let run = format!("01JD8Z3V5QABCDEFGHJKMNPQR{n}");
        records.push(line_of(&run, 0, &format!(r#""event":"run_start","stage":"{stage}""#)));
        let fields = r#""event":"decision","via":"connect","verdict":"allow","reason":"rule","host":"a.example","port":443"#;
        records.push(line_of(&run, 4, fields));
    }
    let learned = Learned::new(&Summary::of_records(&records));
    let (text, _) = policy_of(&learned, &known());
    assert!(text.contains("run 01JD8Z3V5QABCDEFGHJKMNPQR0 seq 4, ... and 2 more runs"), "{text}");
    assert!(!text.contains("stage ="), "two stages: {text}");
}

/// Counts of a record that overflow do not wrap around to small ones.
#[test]
fn counts_that_overflow_grant_nothing() {
    let most = format!(r#","count":{}"#, u64::MAX);
    let late = |count: &str| format!(r#","ip":"192.0.2.1"{count}"#);
    let learned = learned(&[
        decided(1, "allow", "rule", "a.example", 443, &most),
        decided(2, "deny", "sni_mismatch", "a.example", 443, &late(&most)),
        decided(3, "deny", "ech", "a.example", 443, &late(r#","count":2"#)),
    ]);
    let (_, policy) = policy_of(&learned, &known());
    assert!(granted(&policy).is_empty(), "{:?}", granted(&policy));
}

/// The next `exeat learn` replaces such a file, so nothing that a person wrote may pass for one.
#[test]
fn knows_a_policy_that_allows_nothing() {
    let (empty, _) = policy_of(&learned(&[]), &known());
    assert!(allows_nothing(&empty), "{empty}");
    let refused = [decided(1, "deny", "default", "a.example", 8443, "")];
    let (refused, _) = policy_of(&learned(&refused), &known());
    assert!(refused.contains("a.example") && allows_nothing(&refused), "{refused}");
    let reached = [decided(1, "would_deny", "default", "a.example", 443, "")];
    let (reached, _) = policy_of(&learned(&reached), &known());
    for text in
        [&reached, "", "schema = 1\n[network]\nallow = []\n", &format!("{empty}deny = [\"a.example\"]\n")]
    {
        assert!(!allows_nothing(text), "{text}");
    }
}
