use std::io::Cursor;

use serde_json::{Value, json};

use super::*;
use crate::query::Reader;
use crate::testing::HOSTILE;

/// What ends a cell, begins an element, leaves an attribute, and names another place.
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

fn page_of(text: &str, path: Option<&Path>, verified: Option<verify::Report>) -> String {
    let mut report = Report::default();
    report.read(&mut Reader::new(Cursor::new(text)), "run.jsonl", path, verified).unwrap();
    let mut page = Vec::new();
    report.write(&mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    well_formed(&page);
    page
}

/// Holds a page to what it must be whatever it tells of: elements that nest, from a list, with attributes from a list, of
/// which none loads or runs anything.
fn well_formed(page: &str) {
    const VOID: [&str; 3] = ["meta", "rect", "line"];
    const KNOWN: [&str; 43] = [
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
    const ATTRIBUTES: [&str; 21] = [
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
            assert!(key != "href" || value.starts_with("#run-"), "<{tag}>");
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

/// Every field that is text, with the same text in it.
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

/// A01: whatever a record says stands in the page as text.
#[test]
fn a01_markup_in_a_record_is_text() {
    for text in [MARKUP, HOSTILE, "&#60;script&#62;", "--><!--", "]]>"] {
        let page = page_of(&hostile(text), None, None);
        assert!(!page.contains("<script") && !page.contains("<img"), "{page}");
    }
    assert!(page_of(&hostile(MARKUP), None, None).contains("&lt;script&gt;alert(1)"));
    // Whoever wrote the times and the name of the run, too.
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
        "<b>1 234 attempts were denied.</b> 1 allowed.",
        "stats.example.net:443",
        "no rule allows this host",
        "1.5 kB",
        "2.5 MB",
        "the API",
        "ada",
        "2027-01-31",
        ".exeat.toml:12",
        "the command ended, exit code 3",
        "grace on build-7",
        "/src/app",
        "0af7651916cd43dd8448eb211c80319c",
        "enforce: what no rule allows is denied",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

/// It is called whole where it was found whole, and nowhere else.
#[test]
fn nothing_is_verified_that_was_not() {
    let text = chained(&[json!({"event": "run_start"}), json!({"event": "run_end"})]);
    let found = |text: &str| verify::verify(Cursor::new(text), None, &[]).unwrap();
    let page = page_of(&text, None, None);
    assert!(page.contains("was not checked") && !page.contains("is whole"), "{page}");
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
    let mut report = Report::default();
    for (name, text) in [("a", &text), ("b", &text), ("c", &edited), ("d", &text)] {
        let verified = verify::verify(Cursor::new(text), None, &[]).unwrap();
        report.read(&mut Reader::new(Cursor::new(text)), name, None, Some(verified)).unwrap();
    }
    report.read(&mut Reader::new(Cursor::new(&text)), "e", None, None).unwrap();
    let mut page = Vec::new();
    report.write(&mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    well_formed(&page);
    for words in [
        "<b>1 record is</b> changed",
        "<p><code>c</code></p>",
        "<b>1 record is</b> not checked",
        "<b>3 records are</b> not complete",
        "Network access of 5 runs",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

/// A page of a large record is no larger than its tables, and says what it leaves out.
#[test]
fn a_page_is_bounded() {
    let lines: Vec<Value> = (0..20_000)
        .map(|n| {
            json!({"event": "decision", "conn": n, "via": "connect", "host": format!("h{n}.example"), "port": 443,
                "verdict": "deny", "reason": "default", "rule": format!("r{n}"), "rule_src": "x"})
        })
        .collect();
    let page = page_of(&chained(&lines), None, None);
    assert!(page.len() < 600_000, "{}", page.len());
    for words in [
        "20 000 attempts were denied",
        "and 9 500 more, not listed here",
        "all others together",
        "and 19 800 more, not listed here",
    ] {
        assert!(page.contains(words), "{words}");
    }
    let runs: Vec<Value> = (0..200).map(|n| json!({"event": "run_start", "run": format!("R{n}")})).collect();
    assert!(page_of(&chained(&runs), None, None).contains("150 more runs are counted above"));
}

/// What stands beside a record is its policy where it has the digest, and nothing otherwise.
#[test]
fn only_the_policy_of_the_record_is_shown() {
    let dir = crate::testing::Dir::new();
    let record = dir.join("run.jsonl");
    let policy = r#"{"rules":[{"rule":"</pre><b>x"}],"schema":1}"#;
    std::fs::write(dir.join("run.policy.json"), policy).unwrap();
    let of = |digest: &str| {
        page_of(&chained(&[json!({"event": "run_start", "policy_sha256": digest})]), Some(&record), None)
    };
    assert!(of(&sha256_hex(policy.as_bytes())).contains("&quot;rule&quot;: &quot;&lt;/pre&gt;"));
    assert!(of(&"ab".repeat(32)).contains("another policy"));
    assert!(of("../../etc/passwd").contains("not stored beside"));
    std::fs::write(dir.join("run.policy.json"), vec![b'x'; 300_000]).unwrap();
    assert!(of(&"ab".repeat(32)).contains("too long"));
}

#[test]
fn the_timeline_loses_nothing() {
    let record = |us: u64| {
        let line = json!({"schema": "egress/1", "seq": 0, "ts": "", "mono_us": us, "event": "decision", "run": "R",
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
