//! The result object: one JSON object about a run, for the program that started it. It is not the record, and it holds
//! nothing that the record does not.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use exeat_audit::{Proto, StoppedBy, signal_name};
use exeat_files::place::FilePlace;
use exeat_files::walk::{End, LinkRule};
use exeat_runner::{DeniedHost, Ended, Found, Leftovers, Outcome};
use nix::fcntl::OFlag;
use serde::Serialize;

use crate::args::Output;
use crate::failure::Failure;
use crate::request;

/// What `--result` says. Hosts and addresses are plain text; `allow` holds the rules that would let the host through.
#[derive(Debug, Serialize)]
pub(crate) struct RunResult<'a> {
    schema: u32,
    /// The run; `null` when nothing is to be told of one.
    run: Option<String>,
    /// `exit`, `signal`, `stopped`, `timeout`, `limit`, `uncovered`: the stage ran and ended so. `setup`, `policy`: it did not run, or `error` says
    /// what happened to it.
    cause: &'static str,
    /// The limit that ended the stage, by its key; only with that cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'static str>,
    /// The signal that ended the stage or, with `stopped`, that asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal_number: Option<i32>,
    /// With `stopped`: who asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped_by: Option<StoppedBy>,
    /// The exit code of exeat.
    code: u8,
    /// Why it did not run, in words; always with `setup` and `policy`, and only then.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Somebody else's proxy, which has decided: `denied` and `failed` know nothing then.
    #[serde(skip_serializing_if = "Option::is_none")]
    via: Option<String>,
    denied: Vec<Denied<'a>>,
    /// What report mode let through; only in that mode.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    would_deny: Vec<Denied<'a>>,
    failed: Vec<Failed<'a>>,
    /// Protected names that the stage made, and that were moved aside; only where there are some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    quarantined: Vec<Quarantined>,
    /// How many more were moved, which are not named; only where there are some.
    #[serde(skip_serializing_if = "is_none")]
    quarantined_more: u64,
    /// Those that could not be moved, and stand where the stage has put them; only where there are some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left: Vec<Left>,
    /// How many more of those there are, which are not named; only where there are some.
    #[serde(skip_serializing_if = "is_none")]
    left_more: u64,
    /// What was hidden or read-only until the host replaced, renamed or removed it; only with that cause.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    uncovered: Vec<String>,
    /// The record; `null` when there is none, or when it went to a descriptor.
    audit: Option<String>,
    /// The last checkpoint of the record; `null` when nothing signs it.
    checkpoint: Option<Checkpoint<'a>>,
    /// The line that the ledger has of the end of the run; `null` when it has none.
    ledger: Option<LedgerHead<'a>>,
}

#[derive(Debug, Serialize)]
struct Checkpoint<'a> {
    /// How many lines stand before it.
    n: u64,
    /// Their Merkle root.
    root: &'a str,
}

#[derive(Debug, Serialize)]
struct LedgerHead<'a> {
    /// The name of the ledger.
    name: &'a str,
    /// The number of the run.
    no: u64,
    /// The digest of the line.
    sha256: &'a str,
}

#[derive(Debug, Serialize)]
struct Denied<'a> {
    host: &'a str,
    /// 0 for what could not be read, for a name that was only asked for, and for a protocol without ports.
    port: u16,
    /// `udp`, or a number; absent for TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    proto: Option<String>,
    reason: &'static str,
    count: u64,
    allow: Vec<&'a str>,
}

#[derive(Debug, Serialize)]
struct Failed<'a> {
    host: &'a str,
    port: u16,
    error: &'a str,
    count: u64,
}

#[derive(Debug, Serialize)]
struct Quarantined {
    path: String,
    /// Its new place.
    moved: String,
}

#[derive(Debug, Serialize)]
struct Left {
    path: String,
    error: String,
}

impl<'a> Denied<'a> {
    fn of(host: &'a DeniedHost) -> Self {
        Self {
            host: &host.host,
            port: host.port,
            proto: (host.proto != Proto::Tcp).then(|| host.proto.to_string()),
            reason: host.reason.as_str(),
            count: host.count,
            allow: rules_of(host.flag.as_deref()),
        }
    }
}

impl<'a> RunResult<'a> {
    /// The stage was started.
    pub(crate) fn of(outcome: &'a Outcome) -> Self {
        let summary = &outcome.summary;
        let (quarantined, left) = of_found(&outcome.found.named);
        Self {
            schema: 1,
            run: Some(outcome.run.to_string()),
            cause: outcome.ended.cause().as_str(),
            limit: match outcome.ended {
                Ended::Limit(reached) => Some(reached.key()),
                _ => None,
            },
            signal: outcome.ended.signal().map(signal_name),
            signal_number: outcome.ended.signal(),
            stopped_by: outcome.ended.stopped_by(),
            code: outcome.ended.code(),
            error: outcome.why_not.clone(),
            via: outcome.through.as_ref().map(|through| format!("unix:{}", through.socket.display())),
            denied: summary.denied.iter().map(Denied::of).collect(),
            would_deny: summary.would_deny.iter().map(Denied::of).collect(),
            failed: summary
                .failed
                .iter()
                .map(|failed| Failed {
                    host: &failed.host,
                    port: failed.port,
                    error: &failed.said,
                    count: failed.count,
                })
                .collect(),
            quarantined,
            quarantined_more: outcome.found.more_moved,
            left,
            left_more: outcome.found.more_left,
            uncovered: outcome.uncovered.iter().map(|path| path.display().to_string()).collect(),
            audit: outcome.audit.as_ref().map(|path| path.display().to_string()),
            checkpoint: outcome
                .sealed
                .as_ref()
                .map(|sealed| Checkpoint { n: sealed.lines, root: &sealed.root }),
            ledger: outcome.ledger.as_ref().map(|head| LedgerHead {
                name: &head.ledger,
                no: head.no,
                sha256: &head.sha256,
            }),
        }
    }

    /// Nothing ran, or the run was lost; then with what is known of it.
    pub(crate) fn failed(failure: &Failure) -> Self {
        let lost = failure.run_lost();
        let stopped = failure.stopped();
        let none = Leftovers::default();
        let found = lost.map_or(&none, |lost| &lost.found);
        let (quarantined, left) = of_found(&found.named);
        Self {
            schema: 1,
            run: lost.map(|lost| lost.run.to_string()),
            cause: failure.cause(),
            limit: None,
            signal: stopped.map(|(signal, _)| signal_name(signal)),
            signal_number: stopped.map(|(signal, _)| signal),
            stopped_by: stopped.map(|(_, by)| by),
            code: failure.exit().code(),
            error: Some(failure.said()),
            via: None,
            denied: Vec::new(),
            would_deny: Vec::new(),
            failed: Vec::new(),
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
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

/// Protected names that the stage made: those that were moved, and those that could not be.
fn of_found(found: &[Found]) -> (Vec<Quarantined>, Vec<Left>) {
    let (mut quarantined, mut left) = (Vec::new(), Vec::new());
    for Found { path, moved } in found {
        let path = path.display().to_string();
        match moved {
            Ok(moved) => quarantined.push(Quarantined { path, moved: moved.display().to_string() }),
            Err(error) => left.push(Left { path, error: error.to_string() }),
        }
    }
    (quarantined, left)
}

/// `--allow A --allow B` as its rules.
fn rules_of(flags: Option<&str>) -> Vec<&str> {
    flags
        .into_iter()
        .flat_map(|flags| flags.split("--allow "))
        .map(str::trim)
        .filter(|rule| !rule.is_empty())
        .collect()
}

/// Where the result goes, opened before the stage runs.
#[derive(Debug)]
pub(crate) enum Sink {
    /// A pipe, a terminal, a device: written as it stands.
    Open(File),
    /// A file.
    Whole(FilePlace),
}

impl Sink {
    /// Opens the place. A result of an earlier run is removed, so that it cannot be taken for this one's.
    pub(crate) fn open(output: &Output) -> Result<Self, Failure> {
        Self::open_with(output, OFlag::empty())
    }

    /// The same, but not a pipe that nobody reads.
    pub(crate) fn open_now(output: &Output) -> Result<Self, Failure> {
        Self::open_with(output, OFlag::O_NONBLOCK)
    }

    fn open_with(output: &Output, flags: OFlag) -> Result<Self, Failure> {
        let path = match output {
            Output::Fd(n) => return Ok(Self::Open(request::take_fd("--result", *n)?.into())),
            // As it was given: the working directory is this process's own, while its name may lead elsewhere by now.
            Output::File(path) => path,
        };
        let bad = |error: io::Error| {
            Failure::input(format!("cannot write the result to `{}`", path.display())).because(error)
        };
        // A link at the place itself is replaced, unless it leads to a pipe or a device.
        let is_special = |end: &End| end.metadata().is_ok_and(|meta| !meta.is_file() && !meta.is_dir());
        match LinkRule::from_env().walk(path).ok().filter(is_special) {
            // Opening a pipe for writing waits for its reader, as a shell's `>` does.
            Some(end) => {
                let mut options = OpenOptions::new();
                options.write(true).custom_flags(flags.bits());
                let at = format!("/proc/self/fd/{}", end.file.as_raw_fd());
                options.open(at).map(Self::Open).map_err(bad)
            }
            _ => {
                let place = FilePlace::open(path).and_then(FilePlace::checked).map_err(bad)?;
                place.remove().map_err(bad)?;
                Ok(Self::Whole(place))
            }
        }
    }

    /// Writes the object and a newline.
    pub(crate) fn write(self, result: &RunResult<'_>) -> io::Result<()> {
        let mut line = serde_json::to_vec(result)?;
        line.push(b'\n');
        match self {
            Self::Open(mut file) => file.write_all(&line),
            Self::Whole(place) => place.write(&line),
        }
    }
}

#[cfg(test)]
mod tests;
