//! Builds the result object: one JSON object about a run for the program that started it. It contains nothing about hosts and files that
//! the record lacks. docs/result.md describes each field, and `result.schema.json` beside this file is the schema.

use std::borrow::Cow;
use std::collections::BTreeMap;

use exeat_compose::Position;
use exeat_files::quarantine::{Leftover, Leftovers};
use exeat_policy::os_words;
use exeat_proxy::{ConnectionSummary, DeniedHost, ReachedHost};
use exeat_record::ledger::Head;
use exeat_record::{Proto, RunId, Sealed, StoppedBy, signal_name};
use serde::{Serialize, Serializer};

use crate::ended::Ended;
use crate::error::{Error, RunLost};
use crate::run::outcome::Outcome;

/// The version of the object.
pub const RESULT_SCHEMA: u32 = 1;

/// Returns the JSON Schema of the object.
#[must_use]
pub fn result_schema() -> &'static str {
    include_str!("result.schema.json")
}

/// The object that `--result` writes, and the JSON form of an [`Outcome`].
#[derive(Debug, Serialize)]
pub struct RunResult<'a> {
    schema: u32,
    run: Option<RunId>,
    cause: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal_number: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped_by: Option<StoppedBy>,
    code: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    fault: FaultParts<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    record_lost: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend_why: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    via: Option<String>,
    #[serde(flatten)]
    hosts: Hosts<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    quarantined: Vec<Quarantined>,
    #[serde(skip_serializing_if = "is_zero")]
    quarantined_more: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left: Vec<Left>,
    #[serde(skip_serializing_if = "is_zero")]
    left_more: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    uncovered: Vec<String>,
    audit: Option<String>,
    checkpoint: Option<Checkpoint<'a>>,
    ledger: Option<LedgerHead<'a>>,
}

/// The parts of an error that ended a command early, for programs. Fields without a value are absent.
#[derive(Debug, Clone, Default, Serialize)]
pub struct FaultParts<'a> {
    /// The step of a start that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The layer of the host that refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub because: Option<&'a str>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What was probably meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meant: Option<String>,
    /// The faults of a file or a flag, each with its place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FaultPlace<'a>>,
}

/// A [`Position`] in JSON. Fields without a value are absent.
#[derive(Debug, Clone, Serialize)]
pub struct FaultPlace<'a> {
    file: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<u32>,
    error: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meant: Option<&'a str>,
}

impl<'a> From<&'a Position> for FaultPlace<'a> {
    fn from(place: &'a Position) -> Self {
        let Position { file, line, column, error, meant } = place;
        Self { file, line: *line, column: *column, error: os_words(error), meant: meant.as_deref() }
    }
}

/// The hosts that were reached, refused and not reached.
#[derive(Debug, Default, Serialize)]
struct Hosts<'a> {
    reached: Vec<Reached<'a>>,
    #[serde(skip_serializing_if = "is_zero")]
    reached_more: u64,
    denied: Vec<Denied<'a>>,
    #[serde(skip_serializing_if = "is_zero")]
    denied_more: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    would_deny: Vec<Denied<'a>>,
    #[serde(skip_serializing_if = "is_zero")]
    would_deny_more: u64,
    failed: Vec<Failed<'a>>,
}

#[derive(Debug, Serialize)]
struct Reached<'a> {
    host: &'a str,
    port: u16,
    connections: u64,
    bytes_up: u64,
    bytes_down: u64,
    /// Whether a connection was still open, so that the counts are minimums.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    at_least: bool,
}

#[derive(Debug, Serialize)]
struct Denied<'a> {
    host: &'a str,
    port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    proto: Option<String>,
    reason: &'static str,
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule_src: Option<&'a str>,
    allow: Vec<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    programs: &'a [String],
}

#[derive(Debug, Serialize)]
struct Failed<'a> {
    host: &'a str,
    port: u16,
    reason: &'static str,
    error: Cow<'a, str>,
    count: u64,
}

#[derive(Debug, Serialize)]
struct Checkpoint<'a> {
    n: u64,
    root: &'a str,
}

#[derive(Debug, Serialize)]
struct LedgerHead<'a> {
    name: &'a str,
    no: u64,
    sha256: &'a str,
}

#[derive(Debug, Serialize)]
struct Quarantined {
    path: String,
    moved: String,
}

#[derive(Debug, Serialize)]
struct Left {
    path: String,
    error: String,
}

impl<'a> RunResult<'a> {
    /// Creates the result of a run whose stage started or could not be executed.
    #[must_use]
    pub fn from_outcome(outcome: &'a Outcome) -> Self {
        let ended = outcome.ended;
        let Outcome { found, sealed, ledger, .. } = outcome;
        let (quarantined, left) = split_leftovers(found);
        Self {
            schema: RESULT_SCHEMA,
            run: Some(outcome.run),
            cause: ended.cause().as_str(),
            limit: match ended {
                Ended::Limit(reached) => Some(reached.key()),
                _ => None,
            },
            signal: ended.signal().map(signal_name),
            signal_number: ended.signal(),
            stopped_by: ended.stopped_by(),
            code: ended.code(),
            error: outcome
                .why_not
                .as_ref()
                .or(outcome.uncovered_why.as_ref())
                .map(|why| os_words(why).into_owned()),
            fault: FaultParts::default(),
            record_lost: outcome.record_lost.as_deref().map(os_words),
            duration_ms: u64::try_from(outcome.duration.as_millis()).ok(),
            stage: outcome.stage.as_deref(),
            labels: outcome.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect(),
            backend: Some(outcome.backend),
            backend_why: outcome.backend_why.as_deref(),
            via: outcome.through.as_ref().map(|through| format!("unix:{}", through.socket.display())),
            hosts: Hosts::from_summary(&outcome.summary),
            quarantined,
            quarantined_more: found.more_moved,
            left,
            left_more: found.more_left,
            uncovered: outcome.uncovered.iter().map(|path| path.display().to_string()).collect(),
            audit: outcome.audit.as_ref().map(|path| path.display().to_string()),
            checkpoint: sealed.as_ref().map(|Sealed { lines, root }| Checkpoint { n: *lines, root }),
            ledger: ledger.as_ref().map(|Head { ledger, no, sha256 }| LedgerHead {
                name: ledger,
                no: *no,
                sha256,
            }),
        }
    }

    /// Creates the result of a run that did not start or was lost. `run_error` is the error of the run itself.
    #[must_use]
    pub fn from_failure(
        cause: &'static str,
        code: u8,
        error: String,
        fault: FaultParts<'a>,
        run_error: Option<&Error>,
    ) -> Self {
        let none = Leftovers::default();
        let lost: Option<&RunLost> = match run_error {
            Some(Error::RunLost(lost)) => Some(lost),
            _ => None,
        };
        let found = lost.map_or(&none, |lost| &lost.found);
        let (quarantined, left) = split_leftovers(found);
        let (signal_number, stopped_by) = run_error.and_then(Error::stopped_by).unzip();
        Self {
            schema: RESULT_SCHEMA,
            run: lost.map(|lost| lost.run),
            cause,
            limit: None,
            signal: signal_number.map(signal_name),
            signal_number,
            stopped_by,
            code,
            error: Some(error),
            fault,
            record_lost: None,
            duration_ms: None,
            stage: None,
            labels: BTreeMap::new(),
            backend: None,
            backend_why: None,
            via: None,
            hosts: Hosts::default(),
            quarantined,
            quarantined_more: found.more_moved,
            left,
            left_more: found.more_left,
            uncovered: Vec::new(),
            audit: lost.and_then(|lost| lost.audit.as_ref()).map(|path| path.display().to_string()),
            checkpoint: None,
            ledger: None,
        }
    }

    /// Adds the name and the labels of the stage to the result of a run that did not start.
    #[must_use]
    pub fn with_names(self, stage: Option<&'a str>, labels: &'a [(String, String)]) -> Self {
        let labels = labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        Self { stage, labels, ..self }
    }
}

/// Serializes it as [`RunResult`].
impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RunResult::from_outcome(self).serialize(serializer)
    }
}

impl<'a> Hosts<'a> {
    fn from_summary(summary: &'a ConnectionSummary) -> Self {
        let failed = summary.failed.iter();
        Self {
            reached: summary.reached_hosts.iter().map(Reached::from_host).collect(),
            reached_more: summary.reached.saturating_sub(summary.reached_hosts.len() as u64),
            denied: summary.denied.iter().map(Denied::from_host).collect(),
            denied_more: summary.denied_more,
            would_deny: summary.would_deny.iter().map(Denied::from_host).collect(),
            would_deny_more: summary.would_deny_more,
            failed: failed
                .map(|it| Failed {
                    host: &it.host,
                    port: it.port,
                    reason: it.reason.as_str(),
                    error: os_words(&it.said),
                    count: it.count,
                })
                .collect(),
        }
    }
}

impl<'a> Reached<'a> {
    fn from_host(host: &'a ReachedHost) -> Self {
        let ReachedHost { host, port, connections, bytes_up, bytes_down, open } = host;
        Self {
            host,
            port: *port,
            connections: *connections,
            bytes_up: *bytes_up,
            bytes_down: *bytes_down,
            at_least: *open > 0,
        }
    }
}

impl<'a> Denied<'a> {
    fn from_host(host: &'a DeniedHost) -> Self {
        Self {
            host: &host.host,
            port: host.port,
            proto: (host.proto != Proto::Tcp).then(|| host.proto.to_string()),
            reason: host.reason.as_str(),
            count: host.count,
            refused_by: host.refused_by.as_deref(),
            rule_src: host.rule_src.as_deref(),
            allow: split_rules(host.flag.as_deref()),
            programs: &host.programs,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Splits the protected names that the stage made into moved and remaining ones.
fn split_leftovers(found: &Leftovers) -> (Vec<Quarantined>, Vec<Left>) {
    let (mut quarantined, mut left) = (Vec::new(), Vec::new());
    for Leftover { path, moved } in &found.named {
        let path = path.display().to_string();
        match moved {
            Ok(moved) => quarantined.push(Quarantined { path, moved: moved.display().to_string() }),
            Err(error) => left.push(Left { path, error: os_words(&error.to_string()).into_owned() }),
        }
    }
    (quarantined, left)
}

/// Splits `--allow A --allow B` into its rules.
fn split_rules(flags: Option<&str>) -> Vec<&str> {
    let rules = flags.into_iter().flat_map(|flags| flags.split("--allow "));
    rules.map(str::trim).filter(|rule| !rule.is_empty()).collect()
}
