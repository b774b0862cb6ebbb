use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use exeat_record::{ConnId, Header, Mode, RunId, Sink};
use serde_json::Value;

use super::*;

struct Run {
    log: Log,
    dir: PathBuf,
}

impl Run {
    fn new() -> Self {
        let run = RunId::new();
        let dir = std::env::temp_dir().join(format!("exeat-refusals-{run}"));
        std::fs::create_dir(&dir).unwrap();
        let header = Header { run, stage: None, policy_sha256: "ab".repeat(32), mode: Mode::Enforce };
        let log = Log::start(Sink::create_file(&dir.join("run.jsonl")).unwrap(), header).unwrap();
        Self { log, dir }
    }

    fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.join("run.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn refusal(conn: u64, target: &str, reason: Reason) -> RequestDecision {
    let mut decision = RequestDecision::new(ConnId(conn), Via::Connect, Verdict::Deny, reason);
    decision.target = Some(Target::parse(target.as_bytes()).unwrap());
    decision
}

fn refusals_in<'a>(lines: impl IntoIterator<Item = &'a Value>) -> u64 {
    lines.into_iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum()
}

/// A08: in ordinary use each refusal has its own line. A flood of 100 000 is counted exactly, in a record of less
/// than 1 MB.
#[tokio::test(start_paused = true)]
async fn a08_counts_a_flood_of_refusals_exactly() {
    let run = Run::new();
    let refusals = Refusals::new();
    let mut alone = 0;
    let mut asked = 0;
    for second in 0..20 {
        // These are few enough that each has a line.
        let at_once = if second < 2 { 500 } else { 5500_u64 };
        for number in 0..at_once {
            asked += 1;
            // All different, all the same, or with a few reasons.
            let (host, reason) = match number % 4 {
                0 => (format!("h{asked}.test:443"), Reason::Default),
                1 => ("evil.test:443".to_owned(), Reason::DenyRule),
                2 => ("granted.test:8443".to_owned(), Reason::Port),
                _ => (format!("x{}.test:443", number % 20), Reason::Expired),
            };
            let told = refusals.write(&run.log, refusal(asked, &host, reason)).unwrap();
            alone += u64::from(told == Recorded::Alone);
        }
        if second < 2 {
            assert_eq!(refusals_in(&run.lines()), asked, "each has a line");
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    refusals.flush(&run.log);
    let lines = run.lines();
    assert_eq!(refusals_in(&lines), asked);
    assert_eq!((asked, run.log.counts().denied), (100_000, 100_000));
    let size = std::fs::metadata(run.dir.join("run.jsonl")).unwrap().len();
    assert!(size < 1_000_000, "{size} bytes");
    assert!((1000..1030).contains(&alone), "{alone}");
    assert!(lines.len() < 1200, "{} lines", lines.len());
    let folded: Vec<_> = lines.iter().filter(|line| line.get("conn").is_none()).collect();
    assert_eq!(refusals_in(folded.iter().copied()), asked - alone);
    // Each counts for its reason, also in lines without a host.
    for reason in ["default", "deny_rule", "port", "expired"] {
        assert_eq!(refusals_in(lines.iter().filter(|line| line["reason"] == reason)), asked / 4, "{reason}");
    }
    assert!(folded.iter().any(|line| line["host"] == "evil.test"));
    assert!(folded.iter().any(|line| line.get("host").is_none()));
    refusals.flush(&run.log);
    assert_eq!(run.lines().len(), lines.len(), "told once");
}

/// A08: `kill -9` can lose at most a second of counts, also after the flood has ended.
#[tokio::test(start_paused = true)]
async fn a08_writes_counts_within_a_second() {
    let run = Run::new();
    let refusals = Refusals::new();
    for number in 0..1010 {
        refusals.write(&run.log, refusal(number, "evil.test:443", Reason::Default)).unwrap();
    }
    assert_eq!(run.lines().len(), 1000);
    for _ in 0..3 {
        // As the loop of a listener cancels it, and starts again.
        let _ = tokio::time::timeout(Duration::from_millis(300), refusals.run_background(&run.log)).await;
        assert_eq!(run.lines().len(), 1000);
    }
    let _ = tokio::time::timeout(Duration::from_millis(200), refusals.run_background(&run.log)).await;
    let lines = run.lines();
    assert_eq!((lines.len(), &lines[1000]["count"]), (1001, &10.into()));
    // The same holds for the next one.
    for number in 0..5 {
        refusals.write(&run.log, refusal(number, "evil.test:443", Reason::Default)).unwrap();
    }
    let _ = tokio::time::timeout(Duration::from_secs(2), refusals.run_background(&run.log)).await;
    assert_eq!(refusals_in(&run.lines()), 1015);
}

/// A08: the lines per second are bounded, however many kinds there are; the oldest come first, and every refusal is counted.
#[tokio::test(start_paused = true)]
async fn a08_bounds_the_lines_of_a_flood() {
    let run = Run::new();
    let refusals = Refusals::new();
    for number in 0..1000 {
        refusals.write(&run.log, refusal(number, "evil.test:443", Reason::Default)).unwrap();
    }
    let reasons =
        [Reason::Default, Reason::DenyRule, Reason::Port, Reason::Expired, Reason::NotTls, Reason::IpLiteral];
    for via in [Via::Connect, Via::Http, Via::Socks5, Via::Transparent] {
        for (number, reason) in reasons.into_iter().enumerate() {
            for host in 0..3 {
                let mut decision = refusal(0, &format!("h{number}-{host}.test:443"), reason);
                decision.via = via;
                refusals.write(&run.log, decision).unwrap();
            }
        }
    }
    let mut before = 1000;
    for _ in 0..8 {
        let _ = tokio::time::timeout(Duration::from_millis(1001), refusals.run_background(&run.log)).await;
        let now = run.lines().len();
        assert!(now - before <= limits::FOLDED_LINES + 1, "{} lines in a second", now - before);
        before = now;
    }
    assert_eq!(refusals_in(&run.lines()), 1000 + 4 * 6 * 3);
}

/// A08: counts are also written by a task that is never idle.
#[tokio::test(start_paused = true)]
async fn a08_writes_the_counts_of_a_flood_in_a_busy_task() {
    let run = Run::new();
    let refusals = Refusals::new();
    for number in 0..1005 {
        refusals.write(&run.log, refusal(number, "evil.test:443", Reason::Default)).unwrap();
    }
    tokio::time::advance(Duration::from_secs(1)).await;
    poll_fn(|cx| {
        // Like an accept loop that is never idle: nothing of tokio is ready any more in this turn.
        while pin!(tokio::task::consume_budget()).poll(cx).is_ready() {}
        assert!(pin!(refusals.run_background(&run.log)).poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    assert_eq!(refusals_in(&run.lines()), 1005);
}

/// A05, A08: if the record cannot be written, counting a refusal is an error too.
#[tokio::test(start_paused = true)]
async fn a05_fails_to_count_a_flood_without_a_record() {
    let run = Run::new();
    let refusals = Refusals::new();
    for number in 0..1005 {
        refusals.write(&run.log, refusal(number, "evil.test:443", Reason::Default)).unwrap();
    }
    std::fs::remove_file(run.dir.join("run.jsonl")).unwrap();
    // The next line shows the error.
    tokio::time::advance(Duration::from_secs(1)).await;
    for number in 0..3 {
        let refused = refusals.write(&run.log, refusal(number, "evil.test:443", Reason::Default));
        assert!(refused.is_err());
    }
}
