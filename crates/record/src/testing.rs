//! Helpers for the tests of this crate and of `exeat-audit`.

use std::fs;
use std::path::{Path, PathBuf};

use exeat_policy::{Reason, Target, Verdict};

use exeat_record::{
    Cause, Close, CloseCause, ConnId, Event, Header, Log, Mode, Question, RequestDecision, RuleRef, RunEnd,
    RunId, RunNote, SigningKey, Sink, Via, What,
};

/// A directory that is removed at the end of its test.
pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new() -> Dir {
        let path = std::env::temp_dir().join(format!("exeat-audit-{}", RunId::new()));
        fs::create_dir(&path).unwrap();
        Dir(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn header() -> Header {
    Header { run: RunId::new(), stage: None, policy_sha256: "ab".repeat(32), mode: Mode::Enforce }
}

/// Makes the same key for the same seed.
pub(crate) fn key(seed: u8) -> SigningKey {
    use base64::Engine as _;
    let mut der =
        vec![0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
    der.extend([seed; 32]);
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    SigningKey::from_pem(&format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n"))
        .unwrap()
}

/// Starts a log in a new file.
pub(crate) fn log(path: &Path) -> Log {
    Log::start(Sink::create_file(path).unwrap(), header()).unwrap()
}

pub(crate) fn target(text: &str) -> Target {
    Target::parse(text.as_bytes()).unwrap()
}

pub(crate) fn rule() -> RuleRef {
    RuleRef {
        text: "*.example.com".into(),
        src: ".exeat.toml:12".into(),
        risk: None,
        why: None,
        approved_by: None,
        expires: None,
    }
}

pub(crate) fn allow(conn: u64, host: &str) -> RequestDecision {
    let mut decision = RequestDecision::new(ConnId(conn), Via::Connect, Verdict::Allow, Reason::Rule);
    decision.target = Some(target(host));
    decision.ips = vec!["93.184.216.34".parse().unwrap()];
    decision.rule = Some(rule());
    decision
}

pub(crate) fn deny(conn: u64, host: &str) -> RequestDecision {
    let mut decision = RequestDecision::new(ConnId(conn), Via::Connect, Verdict::Deny, Reason::Default);
    decision.target = Some(target(host));
    decision
}

pub(crate) fn question(name: &str) -> Question {
    let mut question = Question::new(Verdict::Deny, Reason::Default);
    question.host = Some(name.parse().unwrap());
    question
}

pub(crate) fn close(conn: u64, host: &str) -> Close {
    let mut close = Close::new(ConnId(conn), CloseCause::Client);
    close.target = Some(target(host));
    close.bytes_up = 1234;
    close.bytes_down = 45_600;
    close
}

/// Makes a note, and fills it in with `fill`.
pub(crate) fn note(what: What, fill: impl FnOnce(&mut RunNote)) -> Event {
    let mut note = RunNote::new(what);
    fill(&mut note);
    Event::Note(note)
}

pub(crate) fn end() -> Event {
    Event::RunEnd(RunEnd {
        cause: Cause::Exit,
        exit: Some(0),
        limit: None,
        signal: None,
        stopped_by: None,
        connections: 2,
        dropped: 0,
    })
}

/// Text with every kind of character that forges, hides or reverses lines.
pub(crate) const HOSTILE: &str =
    "a\r\nb\x1b[2K\x1b]0;t\x07c\u{202e}d\u{2066}e\u{7f}f\u{9b}31mg\u{85}\u{2028}h\u{feff}\"\\}{\0";

/// Returns whether `bytes` has only printable ASCII and line feeds.
pub(crate) fn is_plain(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, b'\n' | 0x20..=0x7e))
}
