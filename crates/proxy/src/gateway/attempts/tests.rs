use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use exeat_policy::{Action, Note as RuleNote, Origin, PolicyBuilder};
use exeat_record::{Header, Log, Mode, RunId, Sink, Under};
use proptest::prelude::*;
use serde_json::Value;
use tokio::time::advance;

use super::*;
use crate::ConnectionSummary;

/// A context with its record and its denials file, in a directory that is removed with it.
struct Run {
    cx: Arc<Context>,
    dir: PathBuf,
}

fn policy(rules: &[&str]) -> Policy {
    let mut builder = PolicyBuilder::new();
    for rule in rules {
        builder
            .add(rule, Action::Allow, Origin::Flag { flag: "--allow".into() }, RuleNote::default())
            .unwrap();
    }
    builder.build()
}

impl Run {
    fn new(rules: &[&str]) -> Self {
        let run = RunId::new();
        let dir = std::env::temp_dir().join(format!("exeat-attempts-{run}"));
        std::fs::create_dir(&dir).unwrap();
        let header = Header { run, stage: None, policy_sha256: "ab".repeat(32), mode: Mode::Enforce };
        let log = Log::start(Sink::create_file(&dir.join("run.jsonl")).unwrap(), header).unwrap();
        let denials = File::create(dir.join("denials.jsonl")).unwrap();
        let cx = Context::new(policy(rules), log, run).with_denials(denials);
        Self { cx: Arc::new(cx), dir }
    }

    fn attempts(&self) -> Attempts {
        Attempts::new(Arc::clone(&self.cx))
    }

    fn read(&self, file: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.join(file)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn lines(&self) -> Vec<Value> {
        self.read("run.jsonl")
    }

    /// Returns the only line of the record, and the only entry of the summary.
    fn only(&self) -> (Value, DeniedHost) {
        let (mut lines, mut denied) = (self.lines(), self.cx.summary().denied);
        assert_eq!((lines.len(), denied.len()), (1, 1), "{lines:?} {denied:?}");
        (lines.remove(0), denied.remove(0))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn name(text: &str) -> HostName {
    text.parse().unwrap()
}

fn to(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Adds up the attempts that some lines stand for.
fn attempts_in<'a>(lines: impl IntoIterator<Item = &'a Value>) -> u64 {
    lines.into_iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum()
}

/// D11: a packet to another destination is recorded, with the policy's reason and the flag that would allow it.
#[tokio::test(start_paused = true)]
async fn d11_names_the_flag_for_a_direct_attempt() {
    /// Protocol and destination, the name of that address, how it is shown, the reason, and the rule in the flag.
    type Case = (Proto, &'static str, Option<&'static str>, &'static str, &'static str, Option<&'static str>);
    let cases: [Case; 11] = [
        (Proto::Tcp, "8.8.8.8:53", None, "8.8.8.8:53", "no IP rule allows this address", Some("8.8.8.8:53")),
        (
            Proto::Tcp,
            "10.0.0.7:5432",
            None,
            "10.0.0.7:5432",
            "no IP rule allows this address (private)",
            Some("10.0.0.7:5432"),
        ),
        (
            Proto::Tcp,
            "[2606:4700::1111]:443",
            None,
            "[2606:4700::1111]:443",
            "no IP rule allows this address",
            Some("[2606:4700::1111]:443"),
        ),
        (Proto::Tcp, "169.254.169.254:80", None, "169.254.169.254:80", "metadata", None),
        (
            Proto::Tcp,
            "198.18.0.7:22",
            Some("api.example.com"),
            "api.example.com:22",
            "allowed on 443 only",
            Some("api.example.com:22"),
        ),
        (
            Proto::Tcp,
            "203.0.113.9:443",
            None,
            "203.0.113.9:443",
            "allowed through the proxy only: HTTPS_PROXY is set; the gateway serves address rules of at most 16",
            None,
        ),
        (Proto::Udp, "8.8.8.8:53", None, "8.8.8.8:53", "/etc/resolv.conf", None),
        (
            Proto::Udp,
            "198.18.0.7:443",
            Some("api.example.com"),
            "api.example.com:443",
            "UDP is never let out; clients of HTTP/3 fall back to TCP",
            None,
        ),
        (Proto::Udp, "10.0.0.7:9999", None, "10.0.0.7:9999", "UDP is never let out", None),
        (Proto::Other(132), "10.0.0.7:0", None, "10.0.0.7", "protocol 132 is never let out", None),
        (Proto::Tcp, "10.0.0.7:0", None, "10.0.0.7", "there is no port 0", None),
    ];
    for (proto, place, of, shown, said, flag) in cases {
        let run = Run::new(&["api.example.com", "203.0.113.0/24:443"]);
        let of = of.map(name);
        run.attempts().count_packet(proto, to(place), of.as_ref());
        let (line, denied) = run.only();
        assert_eq!((&line["event"], &line["via"]), (&"decision".into(), &"direct".into()));
        assert_eq!((&line["verdict"], &line["reason"]), (&"deny".into(), &"direct".into()));
        assert!(line.get("conn").is_none() && line.get("count").is_none(), "{line}");
        let spoken = match proto {
            Proto::Tcp => Value::Null,
            other => other.to_string().into(),
        };
        assert_eq!(line["proto"], spoken, "{shown}");
        let port = line["port"].as_u64().map(|port| format!(":{port}")).unwrap_or_default();
        let host = line["host"].as_str().unwrap();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        assert_eq!(format!("{host}{port}"), shown);
        assert!(line["error"].as_str().unwrap().contains(said), "{line}");
        assert_eq!((denied.target().as_str(), denied.proto, denied.count), (shown, proto, 1));
        assert_eq!((denied.reason, denied.said.as_str()), (Reason::Direct, line["error"].as_str().unwrap()));
        assert_eq!(denied.flag, flag.map(|rule| format!("--allow {rule}")), "{shown}");
        let inside = run.read("denials.jsonl").remove(0);
        assert_eq!((&inside["target"], &inside["reason"]), (&shown.into(), &"direct".into()));
        assert_eq!(inside["proto"], spoken);
        assert_eq!(inside["flag"], flag.map_or(Value::Null, |rule| format!("--allow {rule}").into()));
    }
}

/// D10: a name that is only looked up is recorded with its rule, and listed with its flag.
#[tokio::test(start_paused = true)]
async fn d10_records_why_a_question_is_refused() {
    let cases: [(&str, &str, &str, Option<&str>); 4] = [
        (
            "stats.example.net",
            "default",
            "no rule allows it (asked by name)",
            Some("--allow stats.example.net"),
        ),
        ("evil.example.com", "deny_rule", "denied by --allow (asked by name)", None),
        ("db.example.com", "deny_rule", "denied by --allow (asked by name)", None),
        ("old.example.com", "expired", "the rule at --allow expired on 2020-01-01 (asked by name)", None),
    ];
    for (asked, reason, said, flag) in cases {
        let mut builder = PolicyBuilder::new();
        for rule in ["!evil.example.com", "db.example.com:5432", "!db.example.com:5432"] {
            builder
                .add(rule, Action::Allow, Origin::Flag { flag: "--allow".into() }, RuleNote::default())
                .unwrap();
        }
        let expired = RuleNote { expires: Some("2020-01-01".parse().unwrap()), ..RuleNote::default() };
        builder
            .add("old.example.com", Action::Allow, Origin::Flag { flag: "--allow".into() }, expired)
            .unwrap();
        let run = Run::new(&[]);
        let under = Arc::new(Under { policy_sha256: "cd".repeat(32), mode: Mode::Enforce });
        run.cx.replace_policy(builder.build(), under);
        run.attempts().count_denied_name(&name(asked));
        let (line, denied) = run.only();
        assert_eq!((&line["event"], &line["host"]), (&"dns".into(), &asked.into()));
        assert_eq!((&line["verdict"], &line["reason"]), (&"deny".into(), &reason.into()), "{asked}");
        assert_eq!(line["policy_sha256"], "cd".repeat(32));
        assert_eq!(line.get("rule").is_some(), reason != "default", "{line}");
        assert_eq!((denied.target().as_str(), denied.said.as_str()), (asked, said));
        assert_eq!(denied.flag.as_deref(), flag);
        let inside = run.read("denials.jsonl").remove(0);
        assert_eq!((&inside["target"], &inside["reason"]), (&asked.into(), &reason.into()));
    }
}

/// H04, A01: text that is not a name is escaped and cut in the record, and the stage's file has no line for it.
#[tokio::test(start_paused = true)]
async fn a01_escapes_a_question_without_a_host_name() {
    let run = Run::new(&[]);
    let raw = [b"a\0\x1b[2K".as_slice(), &[b'x'; 4000]].concat();
    run.attempts().count_malformed_name(&raw);
    let (line, denied) = run.only();
    assert_eq!((&line["event"], &line["reason"]), (&"dns".into(), &"malformed".into()));
    let told = line["host_raw"].as_str().unwrap();
    assert!(told.starts_with("a\\x00\\x1b[2Kxx") && told.len() <= limits::TEXT, "{told}");
    assert_eq!((denied.host.as_str(), denied.port, denied.reason), ("", 0, Reason::Malformed));
    assert!(run.read("denials.jsonl").is_empty());
}

/// A granted name that cannot be served counts as failed, not as denied.
#[tokio::test(start_paused = true)]
async fn counts_an_unserved_name_as_failed() {
    let run = Run::new(&["api.example.com"]);
    let attempts = run.attempts();
    (0..3).for_each(|_| attempts.count_unserved(&name("api.example.com"), &Unserved::Listeners(7)));
    attempts.flush();
    let lines = run.lines();
    assert_eq!((lines.len(), attempts_in(&lines)), (2, 3));
    for line in &lines {
        assert_eq!((&line["event"], &line["host"]), (&"dns".into(), &"api.example.com".into()));
        assert_eq!((&line["verdict"], &line["reason"]), (&"error".into(), &"resolve_error".into()));
        assert_eq!(line["error"], Unserved::Listeners(7).to_string());
    }
    let ConnectionSummary { counts, denied, failed, .. } = run.cx.summary();
    assert_eq!((counts.denied, denied.len(), failed.len()), (0, 0, 1));
    assert_eq!((failed[0].host.as_str(), failed[0].port, failed[0].count), ("api.example.com", 0, 3));
    assert!(run.read("denials.jsonl").is_empty());
}

/// A name that was looked up is listed beside its refused ports: whoever asks by name, such as ssh, may want another one.
#[tokio::test(start_paused = true)]
async fn lists_a_lookup_beside_a_port_of_its_name() {
    let run = Run::new(&[]);
    let attempts = run.attempts();
    attempts.count_denied_name(&name("stats.example.net"));
    attempts.count_denied_name(&name("other.example.net"));
    let target = Target::parse(b"stats.example.net:443").unwrap();
    run.cx
        .tally(|tally| tally.count_refusal(Some(&target), Reason::Default, "no rule allows it".into(), None));
    let summary = run.cx.summary();
    let listed: Vec<_> = summary.denied.iter().map(DeniedHost::target).collect();
    assert_eq!(listed, ["stats.example.net", "other.example.net", "stats.example.net:443"]);
}

/// A08: glibc repeats its questions. The first gets a line at once; later ones share lines that come more and more
/// rarely.
#[tokio::test(start_paused = true)]
async fn a08_folds_repeats() {
    let run = Run::new(&[]);
    let attempts = run.attempts();
    let counts = || -> Vec<Option<u64>> { run.lines().iter().map(|line| line["count"].as_u64()).collect() };
    attempts.count_denied_name(&name("stats.example.net"));
    attempts.count_denied_name(&name("stats.example.net"));
    attempts.count_denied_name(&name("stats.example.net"));
    advance(limits::FOLD.0 - Duration::from_millis(1)).await;
    attempts.write_due();
    assert_eq!(counts(), [None], "not yet");
    advance(Duration::from_millis(1)).await;
    attempts.write_due();
    attempts.write_due();
    assert_eq!(counts(), [None, Some(2)]);
    attempts.count_denied_name(&name("stats.example.net"));
    advance(limits::FOLD.0).await;
    attempts.write_due();
    assert_eq!(counts().len(), 2, "the second wait is longer");
    advance(limits::FOLD.0).await;
    attempts.write_due();
    assert_eq!(counts(), [None, Some(2), None]);
    for _ in 0..20 {
        attempts.count_denied_name(&name("stats.example.net"));
        advance(limits::FOLD.1).await;
        attempts.write_due();
    }
    assert_eq!(counts().len(), 23, "and no longer than that");
    attempts.count_denied_name(&name("stats.example.net"));
    attempts.flush();
    attempts.flush();
    assert_eq!(attempts_in(&run.lines()), 25);
    let summary = run.cx.summary();
    assert_eq!((summary.denied[0].count, summary.counts.denied), (25, 25));
    assert_eq!(run.read("denials.jsonl").len(), 1, "the stage is told once");
}

/// A08: a stage that scans a network fills neither the record nor the memory, and each attempt is counted.
#[tokio::test(start_paused = true)]
async fn a08_bounds_and_counts_a_flood_of_different_attempts() {
    let run = Run::new(&[]);
    let attempts = run.attempts();
    let mut tried = 0;
    let mut scan = |seconds: u64| {
        for number in 0..400_u32 {
            let ip = std::net::Ipv4Addr::from(0x0808_0000 + tried + number);
            attempts.count_packet(Proto::Tcp, (ip, 443).into(), None);
        }
        tried += 400;
        advance(Duration::from_secs(seconds))
    };
    scan(1).await;
    let (burst, rate) = limits::ATTEMPTS_RATE;
    assert_eq!(run.lines().len() as u64, burst + 1, "and one for the others");
    scan(1).await;
    assert_eq!(run.lines().len() as u64, burst + rate + 1);
    for _ in 0..20 {
        scan(10).await;
    }
    let most = limits::ATTEMPTS_APART as u64;
    assert_eq!(run.lines().len() as u64, most + 1);
    attempts.flush();
    let lines = run.lines();
    assert_eq!((lines.len() as u64, attempts_in(&lines)), (most + 2, 22 * 400));
    let rest: Vec<_> = lines.iter().filter(|line| line.get("host").is_none()).collect();
    assert_eq!(attempts_in(rest.iter().copied()), 22 * 400 - most);
    assert!(rest.iter().all(|line| line["reason"] == "direct" && line.get("port").is_none()), "{rest:?}");
    let summary = run.cx.summary();
    assert_eq!((summary.counts.denied, summary.denied_more), (22 * 400, 22 * 400 - most));
    assert_eq!(attempts.lock().folds.len() as u64, most + 1);
}

/// Attempts under one policy are not written with the digest of another, and what is granted meanwhile is reported
/// as granted.
#[tokio::test(start_paused = true)]
async fn counts_anew_under_another_policy() {
    let run = Run::new(&[]);
    let attempts = run.attempts();
    let try_it = || attempts.count_packet(Proto::Tcp, to("198.18.0.7:22"), Some(&name("a.example")));
    (0..3).for_each(|_| try_it());
    let under = Arc::new(Under { policy_sha256: "cd".repeat(32), mode: Mode::Enforce });
    run.cx.replace_policy(policy(&["a.example:22"]), under);
    (0..3).for_each(|_| try_it());
    attempts.flush();
    let told: Vec<_> =
        run.lines().iter().map(|line| (line["policy_sha256"].clone(), line["count"].as_u64())).collect();
    let [old, new] = ["ab", "cd"].map(|pair| Value::from(pair.repeat(32)));
    assert_eq!(told, [(old.clone(), None), (old, Some(2)), (new.clone(), None), (new, Some(2))]);
    assert!(run.lines()[2]["error"].as_str().unwrap().starts_with("allowed through the proxy only"));
}

/// A05: a record that cannot be written changes nothing else here.
#[tokio::test(start_paused = true)]
async fn a05_counts_attempts_after_a_failed_record() {
    let run = Run::new(&[]);
    std::fs::remove_file(run.dir.join("run.jsonl")).unwrap();
    let attempts = run.attempts();
    (0..3).for_each(|_| attempts.count_denied_name(&name("stats.example.net")));
    attempts.flush();
    assert!(run.cx.log().failure().is_some());
    assert_eq!(run.cx.summary().denied[0].count, 3);
}

/// A call of `Attempts`.
#[derive(Debug, Clone)]
enum Step {
    Direct(u8, u8),
    Name(u8),
    Raw(u8),
    Unserved(u8),
    Missed(u64),
    Wait(u64),
    Reload,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..12_u8, 0..3_u8).prop_map(|(host, proto)| Step::Direct(host, proto)),
        6 => (0..12_u8).prop_map(Step::Name),
        2 => (0..6_u8).prop_map(Step::Raw),
        1 => (0..6_u8).prop_map(Step::Unserved),
        1 => (0..1000_u64).prop_map(Step::Missed),
        3 => (0..40_000_u64).prop_map(Step::Wait),
        1 => Just(Step::Reload),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// A08: the lines count each attempt exactly once, whatever is folded and in whatever order.
    #[test]
    fn a08_counts_attempts_exactly(steps in prop::collection::vec(step(), 0..200), most in 0..8_usize, burst in 0..6_u64) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let run = Run::new(&["n1.example:22", "!n2.example"]);
            let attempts = Attempts::with_bounds(Arc::clone(&run.cx), most, (burst, 1));
            let (mut direct, mut asked, mut failed, mut missed) = (0, 0, 0, 0);
            for step in &steps {
                match step {
                    Step::Direct(host, proto) => {
                        let proto = [Proto::Tcp, Proto::Udp, Proto::Other(132)][usize::from(*proto)];
                        let of = name(&format!("n{host}.example"));
                        attempts.count_packet(proto, to("198.18.0.7:22"), (host % 2 == 0).then_some(&of));
                        direct += 1;
                    }
                    Step::Name(number) => {
                        attempts.count_denied_name(&name(&format!("n{number}.example")));
                        asked += 1;
                    }
                    Step::Raw(number) => {
                        attempts.count_malformed_name(&[*number]);
                        asked += 1;
                    }
                    Step::Unserved(number) => {
                        attempts.count_unserved(&name(&format!("n{number}.example")), &Unserved::Late);
                        failed += 1;
                    }
                    Step::Missed(count) => {
                        attempts.count_missed(*count);
                        missed += count;
                    }
                    Step::Wait(ms) => {
                        advance(Duration::from_millis(*ms)).await;
                        attempts.write_due();
                    }
                    Step::Reload => {
                        let under = Arc::new(Under { policy_sha256: "cd".repeat(32), mode: Mode::Enforce });
                        run.cx.replace_policy(policy(&["n3.example"]), under);
                    }
                }
            }
            attempts.flush();
            let lines = run.lines();
            let of = |event: &str| attempts_in(lines.iter().filter(|line| line["event"] == event));
            prop_assert_eq!((of("decision"), of("dns"), of("note")), (direct, asked + failed, missed));
            let counts = run.cx.summary().counts;
            prop_assert_eq!((counts.denied, counts.errors), (direct + asked, failed));
            let state = attempts.lock();
            let own = state.folds.keys().filter(|key| !matches!(key, Key::Rest(_) | Key::Missed)).count();
            prop_assert!(own == state.own && own <= most, "{} of {}", own, most);
            Ok(())
        })?;
    }
}

/// L17: a full disk has space for few lines at the end, and their counts are still exact.
#[tokio::test(start_paused = true)]
async fn l17_counts_all_attempts_in_few_lines_on_a_full_disk() {
    let run = Run::new(&[]);
    let attempts = run.attempts();
    for _ in 0..2 {
        (0..100).for_each(|number| attempts.count_denied_name(&name(&format!("h{number}.example.com"))));
    }
    let before = run.lines().len();
    attempts.lock().merge(32);
    attempts.flush();
    let lines = run.lines();
    assert_eq!((before, lines.len()), (100, 133));
    assert_eq!((attempts_in(&lines), attempts_in(&lines[132..])), (200, 68));
    assert!(lines[132].get("host").is_none(), "{}", lines[132]);
}
