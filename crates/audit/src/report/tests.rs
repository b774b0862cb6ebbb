use std::io::Cursor;

use serde_json::{Value, json};

use super::*;
use crate::Moment;
use crate::testing::HOSTILE;

/// Text that would end a cell, begin an element, leave an attribute, or link to another site.
const MARKUP: &str =
    "</td></table><script>alert(1)</script><img src=x onerror=alert(1)>\" onclick='x' &lt; http://a.example/";

fn chained(lines: &[Value]) -> String {
    let mut text = String::new();
    let mut prev = "0".repeat(64);
    for (seq, fields) in lines.iter().enumerate() {
        let mut line = json!({
            "schema": "egress/1", "seq": seq, "ts": format!("2026-11-21T10:{:02}:{:02}.123456Z", seq / 60 % 60, seq % 60),
            "mono_us": seq * 1000, "run": "01JD8Z3V5QABCDEFGHJKMNPQRS", "prev": prev,
        });
        line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let line = format!("{line}\n");
        prev = sha256_hex(line.as_bytes());
        text.push_str(&line);
    }
    text
}

fn sample_made() -> Made {
    Made {
        at: Moment::parse("2026-11-23T08:00:00Z").unwrap(),
        by: Some("eve".into()),
        on: Some("desk-3".into()),
    }
}

/// Returns the page of several named records.
fn page_of_all(records: &[(&str, &str, bool)]) -> String {
    let mut report = Report::new(sample_made());
    for (name, text, checked) in records {
        let verified = checked.then(|| verify::verify(Cursor::new(text), None, &[]).unwrap());
        report.read(Cursor::new(text), name, None, verified).unwrap();
    }
    written(report)
}

fn written(mut report: Report) -> String {
    let mut page = Vec::new();
    report.write(&mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    well_formed(&page);
    page
}

fn page_of(text: &str, path: Option<&Path>, verified: Option<verify::Verification>) -> String {
    let mut report = Report::new(sample_made());
    report.read(Cursor::new(text), "run.jsonl", path, verified).unwrap();
    written(report)
}

/// Asserts that a page has only nested elements from a list, with attributes from a list, and that none of them loads or runs
/// anything.
fn well_formed(page: &str) {
    const VOID: [&str; 4] = ["meta", "rect", "line", "wbr"];
    const KNOWN: [&str; 45] = [
        "wbr",
        "caption",
        "html",
        "head",
        "title",
        "style",
        "body",
        "main",
        "header",
        "footer",
        "h1",
        "h2",
        "h3",
        "p",
        "b",
        "i",
        "span",
        "ul",
        "li",
        "div",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "dl",
        "dt",
        "dd",
        "details",
        "summary",
        "pre",
        "code",
        "a",
        "figure",
        "figcaption",
        "svg",
        "g",
        "title",
        "rect",
        "line",
        "meta",
        "ul",
        "li",
        "p",
    ];
    const ATTRIBUTES: [&str; 22] = [
        "scope",
        "lang",
        "charset",
        "http-equiv",
        "content",
        "name",
        "class",
        "data-l",
        "id",
        "href",
        "viewBox",
        "preserveAspectRatio",
        "role",
        "aria-label",
        "x",
        "y",
        "width",
        "height",
        "x1",
        "x2",
        "y1",
        "y2",
    ];
    assert!(page.bytes().all(|byte| matches!(byte, b'\n' | 0x20..=0x7e)), "a raw byte");
    let body = page.strip_prefix("<!doctype html>\n").expect("a doctype");
    let mut open: Vec<&str> = Vec::new();
    let mut rest = body;
    while let Some((_, tag)) = rest.split_once('<') {
        let (tag, after) = tag.split_once('>').expect("an end of a tag");
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
            continue;
        }
        let (name, mut attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        assert!(KNOWN.contains(&name), "<{tag}>");
        while let Some((key, value)) = attributes.split_once("=\"") {
            let (value, next) = value.split_once('"').expect("a quoted value");
            let key = key.trim();
            assert!(ATTRIBUTES.contains(&key), "{key} in <{tag}>");
            let is_within = value.starts_with("#run-") || value.starts_with("#policy-");
            assert!(key != "href" || is_within, "<{tag}>");
            attributes = next;
        }
        assert!(matches!(attributes.trim(), "" | "/"), "<{tag}>");
        if name == "style" {
            let style = after.split_once('<').unwrap().0;
            assert!(!style.contains("url(") && !style.contains("@import"), "the style loads something");
        }
        if !VOID.contains(&name) {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<&str>::new());
    assert!(page.contains("default-src 'none'; style-src 'unsafe-inline'"));
}

/// Returns a record with this text in every text field.
fn hostile(text: &str) -> String {
    let mut all = json!({
        "stage": text, "policy_sha256": text, "mode": text, "version": text, "command": text, "backend": text, "bridge": text,
        "proxy": text, "gateway": text, "upstream": text, "enforcement": {text: text}, "limits": [text], "labels": {text: text},
        "role": text, "file": text, "file_sha256": text, "what": text, "via": text, "proto": text, "method": text, "host": text,
        "host_raw": text, "reason": text, "rule": text, "rule_src": text, "refused_by": text, "approved_by": text, "why": text,
        "expires": text, "exe": text, "sni": text, "alpn": text, "ended_by": text, "cause": text, "limit": text, "error": text,
    });
    for name in ["user", "machine", "dir", "trace_id", "span_id", "key_id", "sig"] {
        all[name] = text.into();
    }
    let line = |event: &str, verdict: &str| {
        let mut line = all.clone();
        line["event"] = event.into();
        line["verdict"] = verdict.into();
        line
    };
    let lines = [
        line("run_start", ""),
        line("policy", ""),
        line("decision", "allow"),
        line("decision", "deny"),
        line("decision", "would_deny"),
        line("dns", "error"),
        line("decision", text),
        line("close", ""),
        line("note", ""),
        line("run_end", ""),
    ];
    chained(&lines)
}

/// A01: text of a record stays text on the page.
#[test]
fn a01_markup_in_a_record_is_text() {
    for text in [MARKUP, HOSTILE, "&#60;script&#62;", "--><!--", "]]>"] {
        let page = page_of(&hostile(text), None, None);
        assert!(!page.contains("<script") && !page.contains("<img"), "{page}");
    }
    assert!(page_of(&hostile(MARKUP), None, None).contains("&lt;script&gt;alert(1)"));
    // The times and the name of the run are hostile, too.
    let mut line = json!({"event": "decision", "verdict": "deny", "ts": MARKUP, "run": MARKUP});
    let one = chained(&[line.clone()]);
    assert!(!page_of(&one, None, None).contains("<script"));
    line["run"] = json!("another");
    let two = page_of(&chained(&[json!({"event": "note", "run": MARKUP}), line]), None, None);
    assert!(two.contains("Network access of 2 runs") && !two.contains("<script"));
}

#[test]
fn a_page_says_who_was_denied_and_why() {
    let page = page_of(
        &chained(&[
            json!({"event": "run_start", "command": "curl", "stage": "import", "mode": "enforce", "policy_sha256": "ab",
                "user": "grace", "machine": "build-7", "dir": "/src/app", "trace_id": "0af7651916cd43dd8448eb211c80319c"}),
            json!({"event": "decision", "conn": 1, "via": "connect", "host": "api.example.com", "port": 443, "verdict": "allow",
                "reason": "rule", "rule": "*.example.com", "rule_src": ".exeat.toml:12", "why": "the API", "approved_by": "ada",
                "expires": "2027-01-31"}),
            json!({"event": "close", "conn": 1, "host": "api.example.com", "port": 443, "bytes_up": 1500, "bytes_down": 2_500_000}),
            json!({"event": "decision", "conn": 2, "via": "connect", "host": "stats.example.net", "port": 443, "verdict": "deny",
                "reason": "default", "count": 1234}),
            json!({"event": "run_end", "cause": "exit", "exit": 3}),
        ]),
        None,
        None,
    );
    for words in [
        "<h1>Network access of import</h1>",
        "<b>1 234 attempts were denied.</b> 1 reached.",
        "<code class=\"at\"><span class=\"whole\">stats.example.net:443</span></code>",
        "no rule allows this host",
        "1.5 kB",
        "2.5 MB",
        "the API",
        "ada",
        "2027-01-31",
        ".exeat.toml:12</span>",
        "the command ended, exit code 3",
        "grace on build-7",
        "/src/app",
        "0af7651916cd43dd8448eb211c80319c",
        "enforce: what no rule allows is denied",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

/// A record is called whole only if it was verified as whole.
#[test]
fn calls_a_record_whole_only_if_it_was_verified() {
    let text = chained(&[json!({"event": "run_start"}), json!({"event": "run_end"})]);
    let found = |text: &str| verify::verify(Cursor::new(text), None, &[]).unwrap();
    let page = page_of(&text, None, None);
    assert!(page.contains("was not checked") && !page.contains("is whole"), "{page}");
    assert!(page.contains("was not checked for this page"), "{page}");
    let page = page_of(&text, None, Some(found(&text)));
    assert!(page.contains("not signed to its end") && !page.contains("is whole"), "{page}");
    let edited = text.replace("run_start", "run_stare");
    let page = page_of(&edited, None, Some(found(&edited)));
    assert!(
        page.contains("was changed after it was written") && page.contains("line 1 was changed"),
        "{page}"
    );
    let begun = chained(&[json!({"event": "run_start"})]);
    let page = page_of(&begun, None, Some(found(&begun)));
    assert!(page.contains("not complete") && page.contains("has not ended"), "{page}");
}

#[test]
fn many_records_are_told_in_numbers() {
    let text = chained(&[json!({"event": "run_start"}), json!({"event": "run_end"})]);
    let edited = text.replace("run_start", "run_stare");
    let page = page_of_all(&[
        ("a", &text, true),
        ("b", &text, true),
        ("c", &edited, true),
        ("d", &text, true),
        ("e", &text, false),
    ]);
    for words in [
        "<b>1 record is</b> changed",
        "<p><code>c</code></p>",
        "<b>1 record is</b> not checked",
        "<b>3 records are</b> not complete",
        "<p><code>a</code>, <code>b</code>, <code>d</code></p>",
        "was not checked for this page",
        "Network access of 5 runs",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

/// The page of a large record is bounded, and says what it leaves out.
#[test]
fn a_page_is_bounded() {
    let lines: Vec<Value> = (0..20_000)
        .map(|n| {
            json!({"event": "decision", "conn": n, "via": "connect", "host": format!("h{n}.example"), "port": 443,
                "verdict": "deny", "reason": "default", "rule": format!("r{n}"), "rule_src": "x"})
        })
        .collect();
    let page = page_of(&chained(&lines), None, None);
    assert!(page.len() < 800_000, "{}", page.len());
    for words in [
        "20 000 attempts were denied",
        "and 19 500 more, not listed here",
        "all others together",
        "and 19 800 more, not listed here",
    ] {
        assert!(page.contains(words), "{words}");
    }
    let runs: Vec<Value> = (0..200).map(|n| json!({"event": "run_start", "run": format!("R{n}")})).collect();
    assert!(page_of(&chained(&runs), None, None).contains("150 more runs are counted above"));
}

/// A policy stored beside a record is shown only if it has the digest.
#[test]
fn only_the_policy_of_the_record_is_shown() {
    let dir = crate::testing::Dir::new();
    let record = dir.join("run.jsonl");
    let policy = r#"{"rules":[{"rule":"</pre><b>x"}],"schema":1}"#;
    std::fs::write(dir.join("run.policy.json"), policy).unwrap();
    let of = |digest: &str| {
        page_of(&chained(&[json!({"event": "run_start", "policy_sha256": digest})]), Some(&record), None)
    };
    let page = of(&sha256_hex(policy.as_bytes()));
    assert!(page.contains("&quot;rule&quot;: &quot;&lt;/pre&gt;"), "{page}");
    assert!(of(&"ab".repeat(32)).contains("another policy"));
    assert!(of("../../etc/passwd").contains("not stored beside"));
    std::fs::write(dir.join("run.policy.json"), vec![b'x'; 300_000]).unwrap();
    assert!(of(&"ab".repeat(32)).contains("too long"));
}

#[test]
fn the_timeline_loses_nothing() {
    let record = |us: u64| {
        let line = json!({"schema": "egress/1", "seq": 0, "ts": "2026-11-21T10:00:00Z", "mono_us": us, "event": "decision", "run": "R",
            "verdict": "deny"});
        Record::parse(line.to_string().as_bytes()).unwrap()
    };
    let mut timeline = Timeline::default();
    for (added, us) in
        [0, 5_000, 599_999, 600_000, 61_000_000, 7, 86_400_000_000, u64::MAX].into_iter().enumerate()
    {
        timeline.add(&record(us));
        let steps = timeline.steps();
        assert!(steps.len() <= 60, "{us}");
        assert_eq!(steps.iter().map(|step| step.denied).sum::<u64>(), added as u64 + 1, "{us}");
    }
}

/// L17: bytes that are not on record are unknown instead of 0, and failures have their own column.
#[test]
fn l17_a_page_shows_unknown_bytes_and_failures() {
    let open = |conn: u64, host: &str| json!({"event": "decision", "conn": conn, "via": "connect", "host": host, "port": 443, "verdict": "allow", "reason": "rule"});
    let text = chained(&[
        json!({"event": "run_start"}),
        open(1, "open.example"),
        open(2, "gone.example"),
        json!({"event": "close", "conn": 2, "host": "gone.example", "port": 443, "bytes_up": 0, "bytes_down": 0,
            "ended_by": "error", "error": "connect_error: refused"}),
    ]);
    let page = page_of(&text, None, None);
    for words in [
        "<b>Not all that was sent is known:</b> 1 connection without an end, its bytes are not known.",
        "<b class=\"warn\">unknown</b></b> <span>sent</span>",
        "<h2>Failed, and why</h2>",
        "the host did not answer",
        "<b>1</b> <span>failed</span>",
        "<b>1</b> <span>reached</span>",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains("0 B"), "{page}");
    let more = [
        open(1, "open.example"),
        json!({"event": "progress", "conn": 1, "bytes_up": 2_000_000, "bytes_down": 1}),
    ];
    assert!(page_of(&chained(&more), None, None).contains("<b class=\"warn\">at least 2.0 MB</b>"));
}

/// L17: the host that was sent most comes first, even among many other names.
#[test]
fn l17_a_page_names_the_host_that_was_sent_most() {
    let mut lines = Vec::new();
    for n in 0..5_001 {
        let (host, up) = if n == 5_000 {
            ("zzz.example".to_owned(), 9_000_000_000_u64)
        } else {
            (format!("h{n}.example"), 2)
        };
        lines.push(json!({"event": "decision", "conn": n, "via": "connect", "host": host, "port": 443, "verdict": "allow", "reason": "rule"}));
        lines.push(json!({"event": "close", "conn": n, "host": host, "port": 443, "ip": "192.0.2.1", "bytes_up": up, "ended_by": "client"}));
        lines.push(json!({"event": "decision", "conn": 9000 + n, "via": "connect", "host": format!("d{n}.example"), "port": 443, "verdict": "deny", "reason": "default"}));
    }
    let page = page_of(&chained(&lines), None, None);
    let hosts = page.split_once("<h2>Hosts</h2>").unwrap().1;
    let first = hosts.split("<tr>").nth(2).unwrap();
    assert!(first.contains("zzz.") && first.contains("9.0 GB") && first.contains("192.0.2.1"), "{first}");
    let others = hosts.lines().find(|line| line.contains("all others together (9 502)")).unwrap();
    assert!(others.contains(">9.0 kB<"), "{others}");
}

/// L17: a row about a verdict has the first time and the reasons of that verdict only.
#[test]
fn l17_evidence_on_a_page_is_about_one_verdict() {
    let of = |fields: Value| {
        let mut line = json!({"event": "decision", "via": "connect", "host": "api.example", "port": 443});
        line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        line
    };
    let page = page_of(
        &chained(&[
            of(json!({"conn": 1, "verdict": "allow", "reason": "rule"})),
            of(json!({"conn": 2, "verdict": "would_deny", "reason": "default"})),
            of(
                json!({"conn": 1, "verdict": "deny", "reason": "sni_mismatch", "ip": "192.0.2.1", "exe": "/usr/bin/curl"}),
            ),
        ]),
        None,
        None,
    );
    let why = page.split_once("<h2>Denied, and why</h2>").unwrap().1.split_once("</table>").unwrap().0;
    let denied = why.lines().find(|line| line.contains(">denied<")).unwrap();
    assert!(denied.contains("names another host") && !denied.contains("no rule allows"), "{denied}");
    assert!(denied.contains("2026-11-21 10:00:02") && denied.contains("/usr/bin/curl"), "{denied}");
    let would = why.lines().find(|line| line.contains(">would be denied<")).unwrap();
    assert!(would.contains("no rule allows this host") && !would.contains("names another"), "{would}");
    assert!(would.contains("2026-11-21 10:00:01"), "{would}");
}

/// L17: a port or line number is never broken; only a dot, or a colon of an address, may be followed by a break.
#[test]
fn l17_a_port_is_never_broken() {
    let of = |host: &str, port: u16| {
        let page = page_of(
            &chained(&[
                json!({"event": "decision", "via": "connect", "host": host, "port": port, "verdict": "deny", "reason": "default"}),
            ]),
            None,
            None,
        );
        page.split_once("<code class=\"at\">").unwrap().1.split_once("</code>").unwrap().0.to_owned()
    };
    let whole = |text: &str| format!("<span class=\"whole\">{text}</span>");
    assert_eq!(
        of("telemetry.example.com", 443),
        ["telemetry.", "example.", "com:443"].map(whole).join("<wbr>")
    );
    let parts = ["[2001:", "db8:", "1:", "2:", "3:", ":", "17]:443"];
    assert_eq!(of("2001:db8:1:2:3::17", 443), parts.map(whole).join("<wbr>"));
    let long = "a".repeat(63);
    assert_eq!(of(&long, 65535), format!("<span class=\"any\">{long}</span>{}", whole(":65535")));
}

/// L17: among many runs, those that were changed, are not whole, were refused something, or failed have a section.
#[test]
fn l17_faulty_runs_stand_first() {
    let mut lines = Vec::new();
    for n in 0..700 {
        let run = format!("R{n}");
        lines.push(json!({"event": "run_start", "run": run, "user": "grace", "machine": "build-7", "policy_sha256": "ab".repeat(32)}));
        if n == 650 {
            lines.push(json!({"event": "decision", "run": run, "via": "connect", "host": "x.example", "port": 443, "verdict": "deny", "reason": "default"}));
        }
        lines.push(json!({"event": "run_end", "run": run, "cause": "exit", "exit": 0}));
    }
    let page = page_of(&chained(&lines), None, None);
    assert!(page.contains("<h2 id=\"run-0\">Run <code>R650</code></h2>"));
    assert!(page.contains("650 more runs are counted above"), "{page}");
    let runs = page.split_once("<h2>Runs</h2>").unwrap().1.split_once("</table>").unwrap().0;
    for words in [
        "grace on build-7",
        "exit 0",
        "not checked",
        "abababababab",
        "scope=\"col\"",
        "<caption>",
        ">Reached<",
    ] {
        assert!(runs.contains(words), "{words}: {runs}");
    }
    assert!(page.find("<h2>Denied, and why</h2>") < page.find("<h2>Runs</h2>"));
    assert!(page.contains("box held"), "what was denied is no fault of the record");
}

/// L17: a printed page names its records by digest, and says when and for whom it was made.
#[test]
fn l17_a_page_names_its_records_by_digest_and_root() {
    let dir = crate::testing::Dir::new();
    let path = dir.join("run.jsonl");
    let key = crate::testing::key(7);
    let vkey = key.verifying().clone();
    let log = exeat_record::Log::start_signed(
        exeat_record::Sink::create_file(&path).unwrap(),
        crate::testing::header(),
        key,
    )
    .unwrap();
    log.write(exeat_record::Event::RunStart(exeat_record::RunStart::default())).unwrap();
    log.write(crate::testing::end()).unwrap();
    drop(log);
    let bytes = std::fs::read(&path).unwrap();
    let verified = verify::verify(Cursor::new(&bytes), None, std::slice::from_ref(&vkey)).unwrap();
    let last: Value =
        serde_json::from_slice(bytes.split(|byte| *byte == b'\n').rev().nth(1).unwrap()).unwrap();
    let page = page_of(str::from_utf8(&bytes).unwrap(), None, Some(verified));
    for words in [
        &sha256_hex(&bytes),
        last["root"].as_str().unwrap(),
        &vkey.to_string(),
        "2026-11-23 08:00:00 UTC for eve on desk-3",
        "The record is whole",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains("none is missing"), "it says nothing about other records");
}

/// L17: a policy of many runs is printed once, and expired rules say that they refused.
#[test]
fn l17_a_policy_is_printed_once() {
    let dir = crate::testing::Dir::new();
    let policy = r#"{"rules":[{"rule":"never.example:22"}],"schema":1}"#;
    let digest = sha256_hex(policy.as_bytes());
    let mut report = Report::new(sample_made());
    for n in 0..3 {
        let path = dir.join(&format!("r{n}.jsonl"));
        std::fs::write(dir.join(&format!("r{n}.policy.json")), policy).unwrap();
        let text = chained(&[
            json!({"event": "run_start", "run": format!("R{n}"), "policy_sha256": digest}),
            json!({"event": "decision", "run": format!("R{n}"), "via": "connect", "host": "old.example", "port": 443, "verdict": "deny",
                "reason": "expired", "rule": "old.example", "rule_src": "a.toml:4", "expires": "2026-10-01"}),
        ]);
        let added = report.read(Cursor::new(text), "r", Some(&path), None).unwrap();
        let places = |_: &str| vec!["a.toml:3".to_owned()];
        let of = crate::summary::PolicyOf { run: &added.run.run, stage: None, places: &places };
        report.summary_mut().add_policy(policy, of).unwrap();
    }
    let page = written(report);
    assert_eq!(page.matches("<pre>").count(), 1, "{page}");
    assert!(
        page.contains(&format!("id=\"policy-{}\"", digest.get(..12).unwrap()))
            && page.contains("in force in 3 runs"),
        "{page}"
    );
    assert!(page.contains("(expired, granted until 2026-10-01)") && !page.contains("allows <code"), "{page}");
    let unused = page.split_once("<h2>Rules never used</h2>").unwrap().1;
    assert!(unused.contains("example:22") && unused.contains("toml:3") && unused.contains("R2"), "{unused}");
}

/// The axis of the timeline shows clock times.
#[test]
fn l17_the_timeline_has_clock_times() {
    let line = json!({"event": "decision", "via": "connect", "host": "x.example", "port": 443, "verdict": "deny", "reason": "default"});
    let page = page_of(&chained(&[line.clone(), line]), None, None);
    assert!(page.contains("<span>10:00:00.123 UTC</span>"), "{page}");
}
