//! Opens, keeps and ends the record of a run or of a proxy without a sandbox.

use std::convert::Infallible;
use std::fs;
use std::future::{Future, pending, poll_fn};
use std::path::PathBuf;
use std::time::Duration;

use exeat_files::place::FilePlace;
use exeat_policy::Policy;
use exeat_proxy::ConnectionSummary;
use exeat_record::place::store_policy;
use exeat_record::{Cause, Header, Holds, Log, OpenError, RunEnd, RunId, RunNote, Sink, What, sha256_hex};
use exeat_sandbox::Enforced;
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

/// Returns the end of a run that failed with an error.
pub(super) fn lost_end(error: &Error) -> RunEnd {
    let (signal, stopped_by) = error.stopped_by().unzip();
    let cause = if signal.is_some() { Cause::Stopped } else { Cause::Setup };
    let exit = signal.map(|_| error.code().into());
    RunEnd { cause, exit, limit: None, signal, stopped_by, connections: 0, dropped: 0 }
}

/// Returns a line about connections that the record had no room for.
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

/// Returns a note about connections beyond the limit. A line for each would let a flood of them fill the disk.
pub(crate) fn turned_away_note(summary: &ConnectionSummary) -> Option<RunNote> {
    let count = Some(summary.turned_away).filter(|count| *count > 0)?;
    let mut note = RunNote::new(What::TurnedAway);
    note.count = Some(count);
    let plural = if count == 1 { "" } else { "s" };
    note.error = Some(format!("{count} connection{plural} turned away: too many were open at one time"));
    Some(note)
}

/// Opens the record.
pub(super) fn open_log(plan: &Plan, run: RunId) -> Result<OpenRecord, Error> {
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

/// The settings of a record.
pub(crate) struct Record<'a> {
    pub(crate) audit: &'a AuditTo,
    /// Whether each line reaches the disk before the action that it describes.
    pub(crate) sync: bool,
    pub(crate) signing: &'a Signing,
    pub(crate) place: Option<&'a exeat_record::place::RecordDir>,
    pub(crate) stage: Option<String>,
    /// The policy; `None` if another proxy decides.
    pub(crate) policy: Option<&'a Policy>,
}

/// An open record.
pub(crate) struct OpenRecord {
    pub(crate) log: Log,
    /// The path; `None` for a descriptor.
    pub(crate) path: Option<PathBuf>,
    /// The ledger for the run.
    pub(crate) ledger: RunLedger,
}

impl Record<'_> {
    /// Opens the record.
    pub(crate) fn open(self, run: RunId) -> Result<OpenRecord, Error> {
        let key = self.signing.load(self.place)?;
        let (mut sink, path) = open_record(self.audit, self.place, run)?;
        if self.sync {
            sink = sink.synced().map_err(Error::Record)?;
        }
        let canonical = self.policy.map(Policy::canonical_json);
        // Only the default place gets a policy beside the record; elsewhere nobody asked for that file.
        if let (AuditTo::Default, Some(path), Some(canonical)) = (self.audit, &path, &canonical) {
            // A record without its policy and without lines describes no run.
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
        Ok(OpenRecord { log: log.map_err(Error::Log)?, path, ledger })
    }
}

/// Runs alongside `work`: signs every line of the record within a second, and keeps space for its end. Returns the result of `work`.
pub(crate) async fn keep_record<T>(log: &Log, work: impl Future<Output = T>) -> T {
    tokio::select! {
        done = work => done,
        never = keep_signed(log) => match never {},
        never = reserve_space(log) => match never {},
    }
}

/// The duration from which a run gets space for the end of its record, even if its stage attempts nothing.
const KEEP_SPACE: Duration = Duration::from_secs(1);

/// Keeps space on disk for the end of a record.
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

/// Opens the sink, and returns its path if it has one.
fn open_record(
    audit: &AuditTo,
    place: Option<&exeat_record::place::RecordDir>,
    run: RunId,
) -> Result<(Sink, Option<PathBuf>), Error> {
    match (audit, place) {
        (AuditTo::Default, Some(place)) => {
            let (sink, path) = place.create(run).map_err(Error::Place)?;
            Ok((sink, Some(path)))
        }
        (AuditTo::Default, None) => Err(Error::Place(exeat_record::place::DirError::NoHome)),
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

pub(super) fn holds(held: &Enforced) -> Holds {
    match held {
        Enforced::Full => Holds::Held,
        Enforced::Partial { missing } => Holds::Partial(missing.clone()),
        Enforced::Absent => Holds::Absent,
    }
}
