//! Where the result object goes (`--result`). What it says is the runner's.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use exeat_files::place::FilePlace;
use exeat_files::walk::{End, LinkRule};
use exeat_runner::RunResult;
use nix::fcntl::OFlag;

use crate::args::Output;
use crate::failure::Failure;
use crate::request;

/// What it says of a run that did not happen, or that was lost.
pub(crate) fn of_failure(failure: &Failure) -> RunResult<'_> {
    RunResult::of_failure(failure.cause(), failure.exit().code(), failure.said(), failure.error())
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
