use super::*;

const HEADLESS: &str = "schema 1\n";

fn read(lines: &str) -> Lock {
    Lock::parse(&format!("{HEADLESS}{lines}")).unwrap()
}

fn shown(lock: &Lock) -> String {
    lock.render().strip_prefix(HEAD).unwrap().to_owned()
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
fn what_is_written_is_read_back_and_sorted() {
    let lines = "- b.example:443 connect\n- b.example:443 transparent\nidle\nnightly-import [2001:db8::1]:5432 connect\nnightly-import a.example:80 http\n\
                 \"my \\u00e9tage\" a.example:443 socks5\n\"-\" a.example:443 connect\n";
    let lock = read(lines);
    let mut sorted: Vec<_> = lines.lines().collect();
    sorted.sort_unstable();
    assert_eq!(shown(&lock), sorted.join("\n") + "\n");
    assert_eq!(Lock::parse(&lock.render()).unwrap().render(), lock.render());
    assert!(lock.has(None) && lock.has(Some("idle")) && lock.has(Some("my étage")) && lock.has(Some("-")));
    assert!(!lock.has(Some("other")));
    assert_eq!(lock.of(Some("idle")).count(), 0);
    let first = lock.of(None).next().unwrap();
    assert_eq!(
        (first.target.to_string().as_str(), first.via, first.line),
        ("b.example:443", Via::Connect, 2)
    );
    // Comments, empty lines, doubles, upper case and the end of line of other systems change nothing.
    let other = read("# x\r\n\n- B.example:443 connect\r\n- b.example.:443 connect\n");
    assert_eq!(shown(&other), "- b.example:443 connect\n");
}

#[test]
fn a_line_that_is_none_is_named() {
    for (text, line, said) in [
        ("", 0, "the first line is `schema 1`"),
        ("a x.example:443 connect\n", 1, "the first line is `schema 1`"),
        ("schema 2\n", 1, "its schema is `2`, and this version reads 1"),
        ("schema 1\n<<<<<<< HEAD\n", 2, "a line begins with a stage"),
        ("schema 1\na x.example:443\n", 2, "a line is `STAGE HOST:PORT VIA`"),
        ("schema 1\na x.example connect\n", 2, "the target has no port"),
        ("schema 1\na *.example:443 connect\n", 2, "it names no host and port"),
        ("schema 1\na 10.0.0.0/8:443 connect\n", 2, "it names no host and port"),
        ("schema 1\na x.example:443 by-foot\n", 2, "it does not end with how"),
        ("schema 1\na  x.example:443 connect\n", 2, "it names no host and port"),
        ("schema 1\n\"a\"x.example:443 connect\n", 2, "a line begins with a stage"),
        ("schema 1\n\"a x.example:443 connect\n", 2, "a line begins with a stage"),
        ("schema 1\n\"\\n\" x.example:443 connect\n", 2, "a line begins with a stage"),
        ("schema 1\n\"preset:npm\" x.example:443 connect\n", 2, "a line begins with a stage"),
    ] {
        let error = Lock::parse(text).expect_err(text);
        assert_eq!(error.line(), line, "{text:?}");
        assert!(error.to_string().contains(said), "{text:?}: {error}");
    }
    let many = |count| (0..count).map(|n| format!("- h{n}.example:443 connect\n")).collect::<String>();
    assert!(Lock::parse(&format!("{HEADLESS}{}", many(MAX_ENTRIES))).is_ok());
    assert!(Lock::parse(&format!("{HEADLESS}{}", many(MAX_ENTRIES + 1))).is_err());
}

#[test]
fn a_stage_is_written_anew_or_added_to() {
    let old = "kept a.example:443 connect\nnew a.example:443 connect\n";
    let newer = "new b.example:443 connect\n";
    let mut lock = read(old);
    lock.replace(read(newer));
    assert_eq!(shown(&lock), "kept a.example:443 connect\nnew b.example:443 connect\n");
    let mut lock = read(old);
    lock.add(read(newer));
    assert_eq!(
        shown(&lock),
        "kept a.example:443 connect\nnew a.example:443 connect\nnew b.example:443 connect\n"
    );
}

#[test]
fn what_was_let_through_is_locked() {
    let mut seen = Seen::default();
    let a = Some("a");
    let ip = r#","ip":"192.0.2.1""#;
    for record in [
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
    ] {
        seen.take(&record).unwrap();
    }
    assert_eq!(
        shown(&seen.lock()),
        "- 10.2.3.4:443 connect\na down.example:443 connect\na ok.example:443 connect\na ok.example:443 transparent\n\
         a once.example:443 connect\na report.example:443 connect\nidle\n"
    );
}

/// A record may say what it likes: a line of the lock is one line, and its stage is the record's.
#[test]
fn a_hostile_stage_makes_no_line_of_its_own() {
    let mut seen = Seen::default();
    for stage in ["x\na evil.example:443 connect", "\" a", "- evil.example:443 connect", "\u{202e}x", "#x"] {
        seen.take(&decision(Some(stage), "allow", "rule", "ok.example", "connect", "")).unwrap();
    }
    let lock = seen.lock();
    assert!(lock.entries().all(|entry| entry.target.to_string() == "ok.example:443"));
    let again = Lock::parse(&lock.render()).unwrap();
    assert_eq!(again.stages().collect::<Vec<_>>(), lock.stages().collect::<Vec<_>>());
    assert_eq!(again.render(), lock.render());
    assert!(lock.render().bytes().all(|byte| matches!(byte, b'\n' | b' '..=b'~')));
}

#[test]
fn a_long_name_is_found_as_the_record_has_it() {
    let long = "n".repeat(128);
    let lock = read(&format!("{} a.example:443 connect\n", in_record(&long)));
    assert!(in_record(&long).len() < long.len() && lock.has(Some(&long)));
    assert!(!lock.has(Some("n")) && !lock.has(None));
}

#[test]
fn a_lock_has_a_bound() {
    let mut seen = Seen::default();
    for n in 0..MAX_ENTRIES {
        seen.take(&decision(None, "allow", "rule", &format!("h{n}.example"), "connect", "")).unwrap();
    }
    seen.take(&decision(None, "allow", "rule", "h0.example", "connect", "")).unwrap();
    assert_eq!(seen.take(&decision(None, "allow", "rule", "more.example", "connect", "")), Err(Full));
}
