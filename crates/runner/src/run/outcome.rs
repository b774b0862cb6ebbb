//! What a run comes to.

use std::path::PathBuf;
use std::time::Duration;

use exeat_files::quarantine::Leftovers;
use exeat_proxy::{ConnectionSummary, LostConnections};
use exeat_record::ledger::Head;
use exeat_record::{RunId, Sealed};

use super::sandbox::Over;
use crate::ended::Ended;
use crate::error::{Error, RunLost};

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// The run.
    pub run: RunId,
    /// How the stage ended.
    pub ended: Ended,
    /// Why it never was, in words; only where it never was. A line of `notes` says the same.
    pub why_not: Option<String>,
    /// What the proxy saw.
    pub summary: ConnectionSummary,
    /// Somebody else's proxy, where the run went through one: `summary` then knows of no host.
    pub through: Option<Through>,
    /// The record; `None` when it went to a descriptor.
    pub audit: Option<PathBuf>,
    /// What the last checkpoint of the record says; `None` where nothing signs it.
    pub sealed: Option<Sealed>,
    /// The line that the ledger has of the end of the run; `None` where it has none.
    pub ledger: Option<Head>,
    /// Protected names that the stage has made: moved aside, or still where they were.
    pub found: Leftovers,
    /// With [`Ended::Uncovered`]: what was hidden or read-only until the host replaced or removed it, or mounted something
    /// there, by its place inside.
    pub uncovered: Vec<PathBuf>,
    /// Why the record is not whole, in words; `None` where it is.
    pub record_lost: Option<String>,
    /// From the beginning of the run to its end.
    pub duration: Duration,
    /// The name of the stage.
    pub stage: Option<String>,
    /// The labels of the run. Of two with one name the later counts.
    pub labels: Vec<(String, String)>,
    /// Lines for the caller.
    pub notes: Vec<String>,
}

/// Somebody else's proxy, through which a run went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Through {
    /// Its Unix socket.
    pub socket: PathBuf,
    /// Connections for which it was not there.
    pub lost: LostConnections,
}

/// The error of a run, with what its stage has left, where that has to be told.
pub(crate) fn lost_with(
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

/// A stage that has come to its end.
pub(super) struct Done {
    /// The end of its sandbox.
    pub(super) over: Over,
    /// A line on a gateway that could not be had.
    pub(super) no_gateway: Option<String>,
    pub(super) summary: ConnectionSummary,
    pub(super) through: Option<Through>,
}
