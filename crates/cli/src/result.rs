//! Writes the result object (`--result`). The runner creates its content.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use exeat_files::place;
use exeat_runner::{RESULT_SCHEMA, RunResult};
use nix::libc;
use serde::Deserialize;

use crate::args::Output;
use crate::failure::Failure;
use crate::request;

/// Creates the result of a run that did not start, or that was lost.
pub(crate) fn of_failure(failure: &Failure) -> RunResult<'_> {
    let (code, error) = (failure.exit().code(), failure.whole());
    RunResult::from_failure(failure.cause(), code, error, failure.parts(), failure.error())
}

/// The output of the result, opened before the stage runs.
#[derive(Debug)]
pub(crate) struct Sink {
    output: place::Output,
    /// The path as given, if it has one.
    path: Option<PathBuf>,
}

impl Sink {
    /// Opens the output. A result of an earlier run is removed, so that it cannot be taken for this one's; any other file stays.
    pub(crate) fn open(output: &Output) -> Result<Self, Failure> {
        let path = match output {
            Output::Fd(n) => {
                let output = place::Output::Stream(request::take_fd("--result", *n)?.into());
                return Ok(Self { output, path: None });
            }
            // The path as given: the name of the working directory may lead elsewhere by now, the directory itself does not.
            Output::File(path) => path,
        };
        let bad = |error| Failure::not_written("cannot write the result to", path, error);
        let output = place::Output::open(path).map_err(bad)?;
        if let place::Output::Whole(place) = &output {
            if !may_be_removed(place.path()).map_err(bad)? {
                return Err(Failure::input(format!(
                    "`--result`: `{}` holds no result of exeat",
                    path.display()
                ))
                .hint("name another file, or remove this one first"));
            }
            place.remove().map_err(bad)?;
        }
        Ok(Self { output, path: Some(path.clone()) })
    }

    /// Writes the object and a newline.
    pub(crate) fn write(self, result: &RunResult<'_>) -> Result<(), Failure> {
        let Self { output, path } = self;
        let line =
            serde_json::to_vec(result).map_err(io::Error::from).map(|line| [line, b"\n".to_vec()].concat());
        let written = line.and_then(|line| output.write(0o666, |out| out.write_all(&line)));
        let to = path.map(|path| format!(" to `{}`", path.display())).unwrap_or_default();
        written.map_err(|error| Failure::could(format!("cannot write the result{to}")).because(error))
    }
}

/// The maximal size of a result in bytes. The lists in a result are bounded, so all results are smaller.
const MOST: u64 = 16 << 20;

/// Returns whether removing the file loses nothing: it does not exist, is not a regular file, is empty, or is a result.
fn may_be_removed(path: &Path) -> io::Result<bool> {
    #[derive(Deserialize)]
    struct Earlier {
        schema: u32,
        #[serde(rename = "run")]
        _run: Option<String>,
        #[serde(rename = "cause")]
        _cause: String,
        #[serde(rename = "code")]
        _code: u8,
    }
    let meta = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        meta => meta?,
    };
    if !meta.is_file() || meta.len() == 0 {
        return Ok(true);
    }
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let mut text = Vec::new();
    options.open(path)?.take(MOST).read_to_end(&mut text)?;
    let found = serde_json::from_slice::<Earlier>(&text);
    Ok(found.is_ok_and(|found| found.schema == RESULT_SCHEMA))
}

#[cfg(test)]
mod tests;
