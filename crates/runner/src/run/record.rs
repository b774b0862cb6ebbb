//! The record of a run, and of a proxy alone: how it is opened, kept and ended.

use std::convert::Infallible;
use std::fs;
use std::future::{Future, pending, poll_fn};
use std::path::PathBuf;
use std::time::Duration;

use exeat_files::place::FilePlace;
use exeat_policy::Policy;
use exeat_proxy::ConnectionSummary;
use exeat_record::place::store_policy;
use exeat_record::{Cause, Header, Holds, Log, Note, OpenError, RunEnd, RunId, Sink, What, sha256_hex};
use exeat_sandbox::Held;
use tokio::time::sleep_until;

use crate::ended::Ended;
use crate::error::Error;
use crate::ledger::RunLedger;
use crate::plan::Plan;
use crate::request::AuditTo;
use crate::signing::Signing;

pub(super) fn run_end(ended: Ended, summary: &ConnectionSummary) -> RunEnd {
    let limit = match ended {
        Ended::Limit(reached) => Some(reached.key().to_owned()),
        _ => None,
    };
    RunEnd {
        cause: ended.cause(),
        exit: Some(ended.code().into()),
        limit,
        signal: ended.signal(),
        stopped_by: ended.stopped_by(),
        connections: summary.connections,
        dropped: 0,
    }
}

/// The end of a run that came to an error.
pub(super) fn lost_end(error: &Error) -> RunEnd {
    let (signal, stopped_by) = error.stopped_by().unzip();
    let cause = if signal.is_some() { Cause::Stopped } else { Cause::Setup };
    let exit = signal.map(|_| error.code().into());
    RunEnd { cause, exit, limit: None, signal, stopped_by, connections: 0, dropped: 0 }
}

/// What the caller is told of connections that the record had no room for.
pub(crate) fn record_full(summary: &ConnectionSummary, no_space: Option<&str>) -> Option<String> {
    let count = summary.record_full;
    let plural = if count == 1 { "" } else { "s" };
    match no_space {
        Some(why) => Some(format!(
            "there was no space for more of the record ({why}), and {count} connection{plural} got 503 for that"
        )),
        None if count == 0 => None,
        None => Some(format!(
            "the record reached its size, and {count} connection{plural} got 503 for that: raise limits.audit_size if it is too small"
        )),
    }
}

/// What the record and the caller are told of connections for which there was no room. A line for each would let a flood of
/// them fill the disk.
pub(crate) fn turned_away(summary: &ConnectionSummary) -> Option<Note> {
    let count = Some(summary.turned_away).filter(|count| *count > 0)?;
    let mut note = Note::new(What::TurnedAway);
    note.count = Some(count);
    let plural = if count == 1 { "" } else { "s" };
    note.error = Some(format!("{count} connection{plural} turned away: too many were open at one time"));
    Some(note)
}

/// Opens the record.
pub(super) fn open_log(plan: &Plan, run: RunId) -> Result<Opened, Error> {
    let record = Record {
        audit: &plan.audit,
        sync: plan.audit_sync,
        signing: &plan.signing,
        place: plan.place.as_ref(),
        stage: plan.stage.clone(),
        policy: plan.via.is_none().then_some(&plan.policy),
    };
    record.open(run)
}

/// What a record begins with, of a run and of a proxy alone.
pub(crate) struct Record<'a> {
    pub(crate) audit: &'a AuditTo,
    /// Each line is on the disk before what it tells of is done.
    pub(crate) sync: bool,
    pub(crate) signing: &'a Signing,
    pub(crate) place: Option<&'a exeat_record::place::Place>,
    pub(crate) stage: Option<String>,
    /// `None` where somebody else's decides.
    pub(crate) policy: Option<&'a Policy>,
}

/// A record that is open.
pub(crate) struct Opened {
    pub(crate) log: Log,
    /// Where it is, unless it goes to a descriptor.
    pub(crate) path: Option<PathBuf>,
    /// The ledger that the run is to be in.
    pub(crate) ledger: RunLedger,
}

impl Record<'_> {
    /// Opens the record.
    pub(crate) fn open(self, run: RunId) -> Result<Opened, Error> {
        let key = self.signing.load(self.place)?;
        let (mut sink, path) = open_record(self.audit, self.place, run)?;
        if self.sync {
            sink = sink.synced().map_err(Error::Record)?;
        }
        let canonical = self.policy.map(Policy::canonical_json);
        // Beside the record in its usual place; elsewhere nothing is put that nobody asked for.
        if let (AuditTo::Default, Some(path), Some(canonical)) = (self.audit, &path, &canonical) {
            // A record without its policy and without a line tells of no run.
            store_policy(path, canonical, self.sync).map_err(Error::Place).inspect_err(|_| {
                let _ = fs::remove_file(path);
            })?;
        }
        let policy_sha256 = canonical.map(|it| sha256_hex(it.as_bytes())).unwrap_or_default();
        let mode = self.policy.map(|policy| policy.terms().mode).unwrap_or_default();
        let header = Header { run, stage: self.stage, policy_sha256, mode };
        let ledger = RunLedger::find(self.signing, key.as_ref(), self.place, self.audit, self.sync);
        let log = match key {
            Some(key) => Log::start_signed(sink, header, key),
            None => Log::start(sink, header),
        };
        Ok(Opened { log: log.map_err(Error::Log)?, path, ledger })
    }
}

/// Runs alongside `work`, has every line of the record signed within a second, and space kept for its end. Returns what `work` does.
pub(crate) async fn keeping<T>(log: &Log, work: impl Future<Output = T>) -> T {
    tokio::select! {
        done = work => done,
        never = keep_signed(log) => match never {},
        never = reserve_space(log) => match never {},
    }
}

/// A run that lasts longer than this has space kept for the end of its record, also where its stage attempts nothing.
const KEEP_SPACE: Duration = Duration::from_secs(1);

/// Keeps space on the disk for the end of a record.
async fn reserve_space(log: &Log) -> Infallible {
    tokio::time::sleep(KEEP_SPACE).await;
    log.reserve_space();
    pending().await
}

async fn keep_signed(log: &Log) -> Infallible {
    loop {
        let due = poll_fn(|cx| log.poll_unsigned(cx)).await;
        sleep_until(due.into()).await;
        log.sign_due();
    }
}

/// The sink, and its path where it has one.
fn open_record(
    audit: &AuditTo,
    place: Option<&exeat_record::place::Place>,
    run: RunId,
) -> Result<(Sink, Option<PathBuf>), Error> {
    match (audit, place) {
        (AuditTo::Default, Some(place)) => {
            let (sink, path) = place.create(run).map_err(Error::Place)?;
            Ok((sink, Some(path)))
        }
        (AuditTo::Default, None) => Err(Error::Place(exeat_record::place::Error::NoHome)),
        (AuditTo::File(path), _) => {
            let opened = |source| Error::Record(OpenError::Io { path: path.clone(), source });
            let record = FilePlace::open(path).map_err(opened)?;
            let sink = Sink::create_in(record.directory(), record.path()).map_err(Error::Record)?;
            Ok((sink, Some(path.clone())))
        }
        (AuditTo::Fd(fd), _) => {
            let fd = fd
                .try_clone()
                .map_err(|source| Error::Prepare { what: "the record's descriptor", source })?;
            Ok((Sink::from_fd(fd).map_err(Error::Record)?, None))
        }
    }
}

pub(super) fn holds(held: &Held) -> Holds {
    match held {
        Held::Full => Holds::Held,
        Held::Partial { missing } => Holds::Partial(missing.clone()),
        Held::Absent => Holds::Absent,
    }
}
