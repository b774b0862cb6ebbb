use super::*;
use crate::query::Record;

fn locked(records: &[Record]) -> Result<Lock, Full> {
    lock(&Summary::of_records(records))
}

fn text_of(lock: &Lock) -> String {
    lock.render().split_once("schema 1\n").unwrap().1.to_owned()
}

fn line(stage: Option<&str>, fields: &str) -> Record {
    let stage = serde_json::to_string(&stage).unwrap();
    let text = format!(
        r#"{{"schema":"egress/1","seq":3,"ts":"2026-11-21T10:20:32.123456Z","mono_us":1,"run":"01JD8Z3V5QABCDEFGHJKMNPQRS","stage":{stage},{fields}}}"#
    );
    Record::parse(text.as_bytes()).unwrap()
}

fn decision(stage: Option<&str>, verdict: &str, reason: &str, host: &str, via: &str, more: &str) -> Record {
    let host = serde_json::to_string(host).unwrap();
    line(
        stage,
        &format!(
            r#""event":"decision","via":"{via}","verdict":"{verdict}","reason":"{reason}","host":{host},"port":443{more}"#
        ),
    )
}

#[test]
fn locks_the_targets_that_were_let_through() {
    let a = Some("a");
    let ip = r#","ip":"192.0.2.1""#;
    let lock = locked(&[
        line(Some("idle"), r#""event":"run_start""#),
        line(Some("elsewhere"), r#""event":"run_start","proxy":"unix:/x""#),
        decision(a, "allow", "rule", "ok.example", "connect", ""),
        decision(a, "allow", "rule", "ok.example", "transparent", r#","count":3"#),
        decision(a, "would_deny", "default", "report.example", "connect", ""),
        decision(a, "error", "connect_error", "down.example", "connect", ""),
        decision(a, "deny", "default", "denied.example", "connect", ""),
        decision(a, "allow", "rule", "fronted.example", "connect", ""),
        decision(a, "deny", "sni_mismatch", "fronted.example", "connect", ip),
        decision(a, "allow", "rule", "once.example", "connect", r#","count":2"#),
        decision(a, "deny", "sni_mismatch", "once.example", "connect", ip),
        decision(a, "allow", "rule", "x\"]\nallow=[\"evil", "connect", ""),
        decision(a, "allow", "rule", "*.example", "connect", ""),
        decision(None, "allow", "rule", "10.2.3.4", "connect", ""),
    ]);
    assert_eq!(
        text_of(&lock.unwrap()),
        "- 10.2.3.4:443 connect\na down.example:443 connect\na ok.example:443 connect\na ok.example:443 transparent\n\
         a once.example:443 connect\na report.example:443 connect\nidle\n"
    );
}

/// A hostile stage name cannot add a line or change the stage of one.
#[test]
fn a_hostile_stage_makes_no_line_of_its_own() {
    let mut records = Vec::new();
    for stage in ["x\na evil.example:443 connect", "\" a", "- evil.example:443 connect", "\u{202e}x", "#x"] {
        records.push(decision(Some(stage), "allow", "rule", "ok.example", "connect", ""));
    }
    let lock = locked(&records).unwrap();
    assert!(lock.entries().all(|entry| entry.target.to_string() == "ok.example:443"));
    let again = Lock::parse(&lock.render()).unwrap();
    assert_eq!(again.stages().collect::<Vec<_>>(), lock.stages().collect::<Vec<_>>());
    assert_eq!(again.render(), lock.render());
    assert!(lock.render().bytes().all(|byte| matches!(byte, b'\n' | b' '..=b'~')));
}

#[test]
fn a_lock_has_a_bound() {
    let of = |host: &str| decision(None, "allow", "rule", host, "connect", "");
    let mut records: Vec<_> = (0..MAX_ENTRIES).map(|n| of(&format!("h{n}.example"))).collect();
    records.push(of("h0.example"));
    assert_eq!(locked(&records).unwrap().entries().count(), MAX_ENTRIES);
    records.push(of("more.example"));
    assert_eq!(locked(&records).unwrap_err(), Full);
}
