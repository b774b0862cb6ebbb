//! The tables of `fixtures/` with the real binary: decisions through `exeat check`, through the bridge of a sandbox and
//! directly on the socket of `exeat proxy`; raw bytes through the latter two.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use e2e::audit::AuditLog;
use e2e::case::{Cases, Cx};
use e2e::dns::Answer;
use e2e::run::Live;
use e2e::wait_for;

pub(crate) fn cases(list: &mut Cases) {
    list.once("vectors::hosts_by_check", hosts_by_check);
    list.once("vectors::hosts_on_the_socket", hosts_on_the_socket);
    list.bridges("vectors::hosts_through_the_bridge", hosts_through_the_bridge);
    list.once("vectors::raw_http_on_the_socket", raw_on_the_socket);
    list.bridges("vectors::raw_http_through_the_bridge", raw_through_the_bridge);
}

const HOSTS: &str = include_str!("../fixtures/hosts.tsv");
const DNS: &str = include_str!("../fixtures/dns.tsv");
const RAW: &str = include_str!("../fixtures/raw_http.jsonl");

/// A line of `hosts.tsv`.
struct Row<'a> {
    id: &'a str,
    rules: &'a str,
    target: &'a str,
    expected: &'a str,
    reason: &'a str,
}

impl Row<'_> {
    fn is_policy_error(&self) -> bool {
        self.reason.contains("[policy-error]")
    }

    /// Returns whether a status on the wire fits the decision; an allowed target may have any outcome of the dial.
    fn takes(&self, status: &str) -> bool {
        match self.expected {
            "allow" => ["200", "502", "504"].contains(&status),
            "deny" if self.reason == "CNAME loop" => status == "502",
            "deny" => status == "403" || (self.reason.contains("bad-request is fine") && status == "400"),
            _ => status == "400",
        }
    }
}

fn rows() -> Vec<Row<'static>> {
    let cells = HOSTS.lines().skip(1).map(|line| line.split('\t').collect::<Vec<_>>());
    cells
        .map(|row| Row { id: row[0], rules: row[1], target: row[2], expected: row[3], reason: row[4] })
        .collect()
}

/// Groups the rows by their rules, so that each group shares a run. Leaves out rows whose rules must not load.
fn loadable_by_rules() -> BTreeMap<&'static str, Vec<Row<'static>>> {
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for row in rows().into_iter().filter(|row| !row.is_policy_error()) {
        groups.entry(row.rules).or_default().push(row);
    }
    groups
}

/// Returns the flags for a row's rules. A rule with bytes that no argument can contain comes from a file.
fn flags(cx: &Cx, rules: &str) -> Vec<String> {
    let mut flags = Vec::new();
    for rule in rules.split(' ').filter(|rule| !rule.is_empty()) {
        let bytes = unescape(rule);
        let (flag, bytes) = match bytes.strip_prefix(b"!") {
            Some(rest) if !rest.is_empty() => ("--deny", rest.to_vec()),
            _ => ("--allow", bytes),
        };
        let value = match String::from_utf8(bytes.clone()) {
            Ok(text) if !text.contains('\0') && !text.starts_with('@') => text,
            _ => {
                let path = cx.home().join("odd-rule");
                fs::write(&path, &bytes).expect("rule file");
                format!("@{}", path.display())
            }
        };
        flags.extend([flag.to_string(), value]);
    }
    flags
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\x") {
        bytes.extend(before.bytes());
        bytes.push(u8::from_str_radix(&after[..2], 16).expect("two hex digits"));
        rest = &after[2..];
    }
    bytes.extend(rest.bytes());
    bytes
}

/// Adds `dns.tsv` to the zone. The table has unique names, so that no other trial is affected.
fn fill_zone(cx: &Cx) {
    let mut zone: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for line in DNS.lines().skip(1) {
        let cells: Vec<_> = line.split('\t').collect();
        zone.entry(cells[0]).or_default().push((cells[1], cells[2]));
    }
    zone.remove("*");
    for (name, values) in zone {
        let addrs = |kinds: &[&str]| {
            values
                .iter()
                .filter(|(kind, _)| kinds.contains(kind))
                .map(|(_, value)| value.parse().expect("an address"))
                .collect()
        };
        let answer = match values[0] {
            ("CNAME", target) => Answer::Cname(target.into()),
            ("ERROR", "NXDOMAIN") => Answer::NxDomain,
            ("ERROR", "SERVFAIL") => Answer::ServFail,
            ("ERROR", "NODATA") => Answer::NoData,
            ("ERROR", _) => Answer::Silence,
            ("SEQ1" | "SEQ2", _) => Answer::Sequence(vec![addrs(&["SEQ1"]), addrs(&["SEQ2"])]),
            _ => Answer::Addrs(addrs(&["A", "AAAA"])),
        };
        cx.bench().dns.set(name, answer);
    }
}

/// `check` looks nothing up, so other trials cover rows about answers.
fn hosts_by_check(cx: &Cx) {
    let mut wrong = Vec::new();
    for row in rows().iter().filter(|row| !row.id.starts_with("dns-")) {
        // A person may omit the port; a CONNECT may not.
        if ["port-001", "ip6-050"].contains(&row.id) {
            continue;
        }
        let target = unescape(row.target);
        let Ok(target) = String::from_utf8(target) else { continue };
        if target.contains('\0') {
            continue;
        }
        let mut words = vec!["check".to_string()];
        words.extend(flags(cx, row.rules));
        words.extend(["--".to_string(), target]);
        let code = cx.exeat(words).run().code;
        let right = match row.expected {
            _ if row.is_policy_error() => code == Some(2),
            "allow" => code == Some(0),
            // These rows are denied because of an answer, such as `localhost` with both its rules, which check cannot
            // know.
            "deny" => {
                code == Some(1)
                    || (row.reason.contains("bad-request is fine") && code == Some(2))
                    || row.id == "name-004"
            }
            _ => code == Some(2),
        };
        if !right {
            wrong.push(format!(
                "{}: {code:?} for `{}` under `{}`, not {}",
                row.id, row.target, row.rules, row.expected
            ));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn hosts_on_the_socket(cx: &Cx) {
    fill_zone(cx);
    let mut wrong = Vec::new();
    let targets = cx.dir().join("script");
    for (n, (rules, rows)) in loadable_by_rules().into_iter().enumerate() {
        let proxy = Alone::start(cx, &format!("p{n}"), &flags(cx, rules));
        for row in rows {
            cx.bench().dns.rewind();
            let target = unescape(row.target);
            let head =
                [b"CONNECT ", target.as_slice(), b" HTTP/1.1\r\nHost: ", &target, b"\r\n\r\n"].concat();
            fs::write(&targets, format!("quiet 12000\nuntil-head\nsend {}\n", hex(&head))).expect("script");
            let heard = proxy.converse(cx, "script");
            let heard = unhex(heard.split(' ').nth(1).unwrap_or(""));
            let status = String::from_utf8_lossy(&heard).split(' ').nth(1).unwrap_or("nothing").to_string();
            if !row.takes(&status) {
                wrong.push(format!(
                    "{}: {status} for `{}` under `{rules}`, not {}",
                    row.id, row.target, row.expected
                ));
            }
        }
        proxy.stop();
    }
    for row in rows().iter().filter(|row| row.is_policy_error()) {
        let socket = cx.home().join("never.sock");
        let mut words = vec!["proxy".to_string(), "--listen".into(), format!("unix:{}", socket.display())];
        words.extend(flags(cx, row.rules));
        let done = cx.exeat_plain(words).deadline(Duration::from_secs(10)).run();
        if done.code != Some(2) || socket.exists() {
            wrong.push(format!("{}: {:?} though `{}` must not load", row.id, done.code, row.rules));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// K49.
fn hosts_through_the_bridge(cx: &Cx) {
    fill_zone(cx);
    let mut wrong = Vec::new();
    for (rules, rows) in loadable_by_rules() {
        cx.bench().dns.rewind();
        let targets: Vec<&str> = rows.iter().map(|row| row.target).collect();
        cx.write("targets", &targets.iter().map(|target| format!("{target}\n")).collect::<String>());
        let mut words = vec!["run".to_string()];
        words.extend(flags(cx, rules));
        words.extend(["--", cx.probe(), "ask-all", "targets"].map(str::to_string));
        let done = cx.exeat(words).deadline(Duration::from_secs(90)).run();
        let said = done.stdout();
        assert_eq!(said.lines().count(), rows.len(), "{done:?}");
        for (row, status) in rows.iter().zip(said.lines()) {
            if !row.takes(status) {
                wrong.push(format!(
                    "{}: {status} for `{}` under `{rules}`, not {}",
                    row.id, row.target, row.expected
                ));
            }
        }
        done.record();
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The outcome of one script of `raw_http.jsonl`.
struct Outcome {
    closed: bool,
    heard: String,
    visits: Vec<(u16, String, usize)>,
}

/// A row with its own name instead of the table's `allowed.test`, so that rows run in parallel.
struct Play<'a> {
    cx: &'a Cx,
    row: &'a Value,
    name: String,
    n: usize,
}

impl Play<'_> {
    fn rule(&self) -> String {
        format!("{}:80,443", self.name)
    }

    /// Writes the script for `probe bytes`, and returns its file name.
    fn script(&self) -> String {
        let file = format!("script-{}", self.n);
        fs::write(self.cx.dir().join(&file), script(self.row, &self.name)).expect("script");
        file
    }
}

/// P01, P02, P03, P05, P06, P07, P08, P09, P12, P15, P16, P17, P19, P21, S07: the table of raw bytes.
fn raw_on_the_socket(cx: &Cx) {
    raw_rows(cx, |play| {
        let proxy = Alone::start(cx, &format!("r{}", play.n), &["--allow".to_string(), play.rule()]);
        let heard = proxy.converse(cx, &play.script());
        (heard, proxy.stop())
    });
}

/// K50, P01, P02, P03, P05, P06, P07, P08, P09, P12, P15, P16, P17, P19, P21.
fn raw_through_the_bridge(cx: &Cx) {
    cx.probe();
    raw_rows(cx, |play| {
        let done = cx.probing(&[&play.rule()], &format!("bytes {}", play.script())).run();
        (done.stdout().trim_end().to_string(), done.record())
    });
}

/// Plays every row, four at a time, and fails with the list of wrong outcomes.
fn raw_rows(cx: &Cx, play: impl Fn(Play<'_>) -> (String, AuditLog) + Sync) {
    let evil = e2e::bench::address(0x3f_ffff);
    cx.bench().dns.set("evil.test", Answer::Addrs(vec![evil.0, evil.1]));
    let rows: Vec<Value> = RAW.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((n, row)) =
                    Some(next.fetch_add(1, Ordering::SeqCst)).and_then(|n| Some((n, rows.get(n)?)))
                {
                    wrong.lock().expect("list").extend(play_row(cx, row, n, &play));
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("list");
    assert!(wrong.is_empty(), "{} of {} wrong:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    assert!(cx.bench().dns.queries("evil.test").is_empty(), "the resolver was asked about evil.test");
    assert!(cx.bench().internet.visits(evil.0).is_empty() && cx.bench().internet.visits(evil.1).is_empty());
}

fn play_row(cx: &Cx, row: &Value, n: usize, play: impl Fn(Play<'_>) -> (String, AuditLog)) -> Option<String> {
    let (v4, _) = cx.spare_addrs(u32::try_from(n).expect("few rows"));
    let name = cx.name(&format!("allowed-r{n}"), Answer::Addrs(vec![v4]));
    let (heard, log) = play(Play { cx, row, name, n });
    // A client that ends at once is faster than the origin's log.
    cx.wait_for_logs();
    let (state, bytes) = heard.split_once(' ').unwrap_or((heard.as_str(), ""));
    let outcome = Outcome {
        closed: state == "closed",
        // A client that waits for 100 Continue gets it, and then its answer.
        heard: String::from_utf8_lossy(&unhex(bytes)).replace("HTTP/1.1 100 Continue\r\n\r\n", ""),
        visits: cx
            .bench()
            .internet
            .visits(v4)
            .iter()
            .map(|visit| {
                (visit.to.port(), String::from_utf8_lossy(&visit.wire()).into_owned(), visit.heads().len())
            })
            .collect(),
    };
    let mut faults = judge(row, &outcome);
    faults.extend(judge_record(row, &log));
    let heard: String = outcome.heard.chars().take(120).collect();
    (!faults.is_empty()).then(|| {
        format!("{} ({}): {}\n    heard {heard:?}", row["id"], row["description"], faults.join("; "))
    })
}

fn judge(row: &Value, outcome: &Outcome) -> Vec<String> {
    let mut faults = Vec::new();
    let list = |name: &str| row[name].as_array().cloned().unwrap_or_default();
    let mut fine = list("also_ok");
    fine.push(row["expect"].clone());
    if !fine.iter().any(|kind| happened(kind.as_str().unwrap_or(""), row, outcome)) {
        faults.push(format!("not {fine:?}, closed {}, {} visits", outcome.closed, outcome.visits.len()));
    }
    let received: String = outcome.visits.iter().map(|(_, wire, _)| wire.as_str()).collect();
    for text in list("must_not_reach_upstream") {
        let text = text.as_str().unwrap_or("");
        if received.contains(text) {
            faults.push(format!("`{text}` reached the origin"));
        }
    }
    let requests: usize = outcome.visits.iter().map(|(_, _, heads)| heads).sum();
    if row["max_upstream_requests"].as_u64().is_some_and(|most| requests as u64 > most) {
        faults.push(format!("{requests} requests upstream"));
    }
    let responses = outcome.heard.matches("HTTP/1.1 ").count();
    if row["max_responses"].as_u64().is_some_and(|most| responses as u64 > most) {
        faults.push(format!("{responses} responses"));
    }
    let one_forwarded = outcome.heard.starts_with("HTTP/1.1 200") && !asks_to_close(row);
    if row["must_close"] == true && !outcome.closed && !one_forwarded {
        faults.push("the connection stays open".into());
    }
    faults
}

fn asks_to_close(row: &Value) -> bool {
    row["bytes"]
        .as_str()
        .is_some_and(|bytes| bytes.contains("Connection: close") || bytes.starts_with("CONNECT"))
}

fn happened(kind: &str, row: &Value, outcome: &Outcome) -> bool {
    let status: u32 = outcome.heard.get(9..12).and_then(|digits| digits.parse().ok()).unwrap_or(0);
    let complete: usize = outcome.visits.iter().map(|(_, _, heads)| heads).sum();
    // The head of a bad body may already be upstream, if the row says so; a complete request may not.
    let head_is_fine =
        row["note"].as_str().is_some_and(|note| note.contains("head may already have reached"));
    let untouched = outcome.visits.is_empty() || (head_is_fine && complete == 0);
    match kind {
        "refused_4xx" => {
            untouched && outcome.closed && ((400..500).contains(&status) || [501, 505].contains(&status))
        }
        "closed_without_upstream" => untouched && outcome.closed,
        "tunnel_ok" => status == 200 && outcome.visits.len() == 1,
        "forwarded_ok" => {
            status == 200 && complete > 0 && outcome.visits.iter().all(|(port, _, _)| *port == 80)
        }
        "partial_ok" => outcome.visits.len() == 1 && complete == 0,
        other => panic!("no such outcome: {other}"),
    }
}

/// A malformed head gives at most one record, a well-formed one exactly one; `AuditLog` checks the escapes.
fn judge_record(row: &Value, log: &AuditLog) -> Vec<String> {
    let decisions = log.events("decision").len();
    let most = row["bytes"].as_str().map_or(1, |bytes| bytes.matches("HTTP/1.").count()).max(1);
    // A refusal after the 200 is a second decision.
    let late = log
        .events("decision")
        .iter()
        .filter(|record| record["reason"] == "not_tls" || record["reason"] == "hello_timeout")
        .count();
    if decisions - late > most { vec![format!("{decisions} decisions for {most} heads")] } else { vec![] }
}

/// Returns the steps that `probe bytes` plays, with `name` instead of `allowed.test`.
fn script(row: &Value, name: &str) -> String {
    // If a request may stay open after its answer, the script does not wait for its end.
    let may_stay = row["must_close"] != true || !asks_to_close(row);
    let mut steps = format!("quiet {}\n", if may_stay { 1_500 } else { 13_000 });
    let bytes = |value: &Value| hex(&renamed(&bytes_of(value), name));
    steps.push_str(&format!("send {}\n", bytes(row)));
    for segment in row["segments"].as_array().into_iter().flatten() {
        steps.push_str(&format!("wait {}\nsend {}\n", segment["delay_ms"], bytes(segment)));
    }
    if row["half_close_after_send"] == true {
        steps.push_str("shut\n");
    }
    steps
}

fn bytes_of(value: &Value) -> Vec<u8> {
    match (value["bytes"].as_str(), value["bytes_b64"].as_str()) {
        (Some(text), _) => text.chars().map(|char| u8::try_from(u32::from(char)).expect("a byte")).collect(),
        (None, Some(text)) => base64(text),
        (None, None) => Vec::new(),
    }
}

/// Replaces the name. No body contains it, so that lengths stay correct.
fn renamed(bytes: &[u8], name: &str) -> Vec<u8> {
    const TABLE: &[u8] = b"allowed.test";
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match bytes.get(at..at + TABLE.len()) {
            Some(word) if word == TABLE => out.extend(name.bytes()),
            Some(word) if word.eq_ignore_ascii_case(TABLE) => out.extend(name.to_ascii_uppercase().bytes()),
            _ => {
                out.push(bytes[at]);
                at += 1;
                continue;
            }
        }
        at += TABLE.len();
    }
    out
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.bytes().filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte));
    let bits: Vec<bool> =
        digits.flat_map(|digit| (0..6).rev().map(move |bit| digit >> bit & 1 == 1)).collect();
    bits.chunks_exact(8).map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.bytes().filter_map(|byte| (byte as char).to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// An `exeat proxy` on a Unix socket.
struct Alone<'a> {
    live: Live<'a>,
    socket: PathBuf,
    record: PathBuf,
}

impl<'a> Alone<'a> {
    fn start(cx: &'a Cx, word: &str, flags: &[String]) -> Self {
        let socket = cx.home().join(format!("{word}.sock"));
        let record = cx.home().join(format!("{word}.jsonl"));
        let mut words = vec!["proxy".to_string(), "--listen".into(), format!("unix:{}", socket.display())];
        words.extend(["--audit".to_string(), record.display().to_string()]);
        words.extend(flags.iter().cloned());
        let mut live = cx.exeat_plain(words).deadline(Duration::from_secs(120)).start();
        // The socket exists before anybody answers.
        wait_for(Duration::from_secs(60), "the proxy's socket", || {
            (live.errors().contains("listening on") || live.ended()).then_some(())
        });
        Self { live, socket, record }
    }

    fn converse(&self, cx: &Cx, script: &str) -> String {
        let socket = self.socket.display().to_string();
        cx.outside([cx.probe(), "bytes-unix", &socket, script]).run().stdout().trim_end().to_string()
    }

    fn stop(self) -> AuditLog {
        self.live.signal(nix::sys::signal::Signal::SIGTERM);
        let _ = self.live.wait();
        let log = AuditLog::read(Path::new(&self.record));
        log.sound();
        log
    }
}
