//! Where the result object goes (`--result`). What it says is the runner's.

use std::io;

use exeat_files::place;
use exeat_runner::RunResult;

use crate::args::Output;
use crate::failure::Failure;
use crate::request;

/// What it says of a run that did not happen, or that was lost.
pub(crate) fn of_failure(failure: &Failure) -> RunResult<'_> {
    RunResult::from_failure(failure.cause(), failure.exit().code(), failure.said(), failure.error())
}

/// Where the result goes, opened before the stage runs.
#[derive(Debug)]
pub(crate) struct Sink(place::Output);

impl Sink {
    /// Opens the place. A result of an earlier run is removed, so that it cannot be taken for this one's.
    pub(crate) fn open(output: &Output) -> Result<Self, Failure> {
        let path = match output {
            Output::Fd(n) => {
                return Ok(Self(place::Output::Stream(request::take_fd("--result", *n)?.into())));
            }
            // As it was given: the working directory is this process's own, while its name may lead elsewhere by now.
            Output::File(path) => path,
        };
        let bad = |error: io::Error| {
            Failure::input(format!("cannot write the result to `{}`", path.display())).because(error)
        };
        let sink = place::Output::open(path).map_err(bad)?;
        if let place::Output::Whole(place) = &sink {
            place.remove().map_err(bad)?;
        }
        Ok(Self(sink))
    }

    /// Writes the object and a newline.
    pub(crate) fn write(self, result: &RunResult<'_>) -> io::Result<()> {
        let mut line = serde_json::to_vec(result)?;
        line.push(b'\n');
        self.0.write(0o666, |out| out.write_all(&line))
    }
}

#[cfg(test)]
mod tests;
