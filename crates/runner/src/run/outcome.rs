//! Describes the outcome of a run.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exeat_files::quarantine::Leftovers;
use exeat_files::unseen::{UnseenLinks, find_unseen_links, find_unseen_word};
use exeat_proxy::{ConnectionSummary, LostConnections};
use exeat_record::ledger::Head;
use exeat_record::{RunId, Sealed};
use nix::sys::signal::Signal;

use crate::cache::UsedCache;
use crate::cover::Uncovered;
use crate::ended::Ended;
use crate::error::{Error, RunLost};
use crate::plan::Plan;

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The run's id.
    pub run: RunId,
    /// The end of the stage.
    pub ended: Ended,
    /// The reason that the stage never started, if so.
    pub why_not: Option<String>,
    /// The proxy's counts.
    pub summary: ConnectionSummary,
    /// The other proxy that the run went through: `summary` has no hosts then.
    pub through: Option<OtherProxy>,
    /// What built the sandbox, as in the record: `bwrap`, `bwrap-alone` or `native`.
    pub backend: &'static str,
    /// Why it was chosen, if that was left to exeat.
    pub backend_why: Option<String>,
    /// The record's path; `None` if it went to a descriptor.
    pub audit: Option<PathBuf>,
    /// The last checkpoint of the record; `None` if the record is not signed.
    pub sealed: Option<Sealed>,
    /// The ledger's line about the end of the run, if it has one.
    pub ledger: Option<Head>,
    /// Protected names that the stage made, moved aside or still in place.
    pub found: Leftovers,
    /// With [`Ended::Uncovered`]: places inside that were hidden or read-only until the host replaced or removed them, or mounted over
    /// them.
    pub uncovered: Vec<PathBuf>,
    /// The reason that the run ended with [`Ended::Uncovered`], in the words of the summary.
    pub uncovered_why: Option<String>,
    /// The reason that the record is incomplete, if so.
    pub record_lost: Option<String>,
    /// The time from the start of the run to its end.
    pub duration: Duration,
    /// The name of the stage.
    pub stage: Option<String>,
    /// The labels of the run. The later of two with the same name counts.
    pub labels: Vec<(String, String)>,
    /// Lines for the caller.
    pub notes: Vec<String>,
}

/// Another proxy that a run went through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherProxy {
    /// Its Unix socket.
    pub socket: PathBuf,
    /// Connections for which it did not answer.
    pub lost: LostConnections,
}

/// Returns a line about a word of the command that names what the stage does not see, or about links that lead there, in the
/// working directory and where such words lead.
pub(super) fn unseen_line(plan: &Plan) -> Option<String> {
    let words: Vec<PathBuf> = plan.command.iter().skip(1).map(PathBuf::from).collect();
    if let Some(path) = find_unseen_word(&plan.mounts, &plan.cwd, &words) {
        let way = plan.ways.to_show(&[&path]);
        return Some(format!("the stage does not see `{}` of this machine: {way}", path.display()));
    }
    let UnseenLinks { count, first: (link, end) } = find_unseen_links(&plan.mounts, &plan.cwd, &words)?;
    let (name, way, end) = (link.file_name()?.display(), plan.ways.to_show(&[&end]), end.display());
    let more = if count == 1 { String::new() } else { format!(" ({count} such links)") };
    Some(format!("the stage does not see where the link `{name}` leads, `{end}`{more}: {way}"))
}

/// Adds the leftovers of a stage to the error of its run, if there are any.
pub(crate) fn with_leftovers(
    error: Error,
    run: RunId,
    audit: Option<PathBuf>,
    found: Leftovers,
    notes: Vec<String>,
) -> Error {
    if found.is_empty() {
        error
    } else {
        Error::RunLost(Box::new(RunLost { run, error, audit, found, notes }))
    }
}

/// The end of a stage.
pub(super) struct Done {
    /// The end of its sandbox.
    pub(super) over: SandboxEnd,
    /// A line about a gateway that was not available.
    pub(super) no_gateway: Option<String>,
    /// A line about a proxy that did not end in time.
    pub(super) blocked: Option<String>,
    pub(super) summary: ConnectionSummary,
    pub(super) through: Option<OtherProxy>,
}

/// The end as the sandbox's thread saw it.
pub(super) struct SandboxEnd {
    pub(super) ended: Ended,
    /// The kernel's error if the command could not be executed.
    pub(super) why_not: Option<&'static str>,
    /// The first signal for the stage.
    pub(super) signal: Option<Signal>,
    /// The reason to stop the stage because usage could not be measured.
    pub(super) blind: Option<String>,
    /// A line about a signal that was not passed on.
    pub(super) untold: Option<String>,
    /// The covers that the host removed.
    pub(super) uncovered: Uncovered,
}

/// Ends the use of the package cache and of the stage's `/tmp` on disk. Returns a line for each that is left.
pub(super) fn end_dirs(plan: &Plan, cache: Option<UsedCache>, tmp: Option<UsedCache>) -> Vec<String> {
    let end = |used: Option<UsedCache>| used.and_then(|mut used| used.end().err());
    let shown = |dir: &Option<PathBuf>| dir.as_deref().unwrap_or(Path::new("")).display().to_string();
    let cache = end(cache).map(|error| {
        let place = shown(&plan.cache);
        format!("the package cache of the run is left at `{place}` ({error}); `exeat state prune --caches` deletes it")
    });
    let tmp = end(tmp).map(|error| {
        let place = shown(&plan.tmp);
        format!("the temporary files of the run are left at `{place}` ({error})")
    });
    cache.into_iter().chain(tmp).collect()
}

/// Returns why the command did not start, if that is how the run ended. `why_not` is the kernel's error.
pub(super) fn not_executed(plan: &Plan, how: Ended, why_not: Option<&str>) -> Option<String> {
    let why = match how {
        Ended::NotFound => "the sandbox has no such command, or not the interpreter that it names",
        Ended::NotExecutable => why_not.unwrap_or("not executable"),
        _ => return None,
    };
    Some(format!("cannot execute `{}`: {why}", command_name(plan)))
}

fn command_name(plan: &Plan) -> String {
    plan.command.first().map(|name| exeat_record::escape(name.as_bytes(), 256)).unwrap_or_default()
}
