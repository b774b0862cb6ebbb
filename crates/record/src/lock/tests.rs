use super::*;

const HEADLESS: &str = "schema 1\n";

fn read(lines: &str) -> Lock {
    Lock::parse(&format!("{HEADLESS}{lines}")).unwrap()
}

fn rendered(lock: &Lock) -> String {
    lock.render().strip_prefix(HEAD).unwrap().to_owned()
}

#[test]
fn reads_a_written_lock_back_sorted() {
    let lines = "- b.example:443 connect\n- b.example:443 transparent\nidle\nnightly-import [2001:db8::1]:5432 connect\nnightly-import a.example:80 http\n\
                 \"my \\u00e9tage\" a.example:443 socks5\n\"-\" a.example:443 connect\n";
    let lock = read(lines);
    let mut sorted: Vec<_> = lines.lines().collect();
    sorted.sort_unstable();
    assert_eq!(rendered(&lock), sorted.join("\n") + "\n");
    assert_eq!(Lock::parse(&lock.render()).unwrap().render(), lock.render());
    assert!(lock.has(None) && lock.has(Some("idle")) && lock.has(Some("my étage")) && lock.has(Some("-")));
    assert!(!lock.has(Some("other")));
    assert_eq!(lock.entries_of(Some("idle")).count(), 0);
    let first = lock.entries_of(None).next().unwrap();
    assert_eq!(
        (first.target.to_string().as_str(), first.via, first.line),
        ("b.example:443", Via::Connect, 2)
    );
    // Comments, empty lines, duplicates, upper case and the line ends of other systems change nothing.
    let other = read("# x\r\n\n- B.example:443 connect\r\n- b.example.:443 connect\n");
    assert_eq!(rendered(&other), "- b.example:443 connect\n");
}

#[test]
fn a_stage_is_written_anew_or_added_to() {
    let old = "kept a.example:443 connect\nnew a.example:443 connect\n";
    let newer = "new b.example:443 connect\n";
    let mut lock = read(old);
    lock.replace(read(newer));
    assert_eq!(rendered(&lock), "kept a.example:443 connect\nnew b.example:443 connect\n");
    let mut lock = read(old);
    lock.add(read(newer));
    assert_eq!(
        rendered(&lock),
        "kept a.example:443 connect\nnew a.example:443 connect\nnew b.example:443 connect\n"
    );
}

#[test]
fn a_long_name_is_found_as_the_record_has_it() {
    let long = "n".repeat(128);
    let lock = read(&format!("{} a.example:443 connect\n", in_record(&long)));
    assert!(in_record(&long).len() < long.len() && lock.has(Some(&long)));
    assert!(!lock.has(Some("n")) && !lock.has(None));
}

#[test]
fn a_line_that_is_none_is_named() {
    for (text, line, said) in [
        ("", 0, "the first line must be `schema 1`"),
        ("a x.example:443 connect\n", 1, "the first line must be `schema 1`"),
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
