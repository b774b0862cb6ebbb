//! `exeat audit report`: records as one page for people.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use exeat_audit::VerifyingKey;
use exeat_audit::report::Report;
use exeat_audit::verify::{self, verify};

use super::{Out, Source, Stopped};
use crate::args::audit::ReportArgs;
use crate::exit::Exit;
use crate::failure::Failure;

/// Reads records and writes the page.
pub(crate) fn run(args: &ReportArgs) -> Result<Exit, Failure> {
    let keys = keys(&args.key)?;
    let mut report = Report::default();
    let mut damaged = false;
    for source in super::sources(&args.records)? {
        let unreadable = |error| source.unreadable(error);
        let verified = verified(&source, &keys).map_err(unreadable)?;
        let mut reader = source.open()?;
        let name = match source.path() {
            Some(path) => path.display().to_string(),
            None => source.to_string(),
        };
        report.read(&mut reader, &name, source.path(), verified).map_err(unreadable)?;
        damaged |= super::is_damaged(&reader);
    }
    if args.output.as_os_str() == "-" {
        let mut out = Out::new();
        let written = report.write(&mut out);
        out.finish(written)
            .map_err(|(Stopped::Reading(error) | Stopped::Writing(error))| Failure::Stdout(error))?;
    } else {
        replace(&args.output, |out| report.write(out)).map_err(|error| {
            Failure::input(format!("cannot write `{}`", args.output.display())).because(error)
        })?;
    }
    Ok(if damaged { Exit::No } else { Exit::Yes })
}

fn keys(files: &[PathBuf]) -> Result<Vec<VerifyingKey>, Failure> {
    let mut keys = Vec::new();
    for file in files {
        keys.extend(VerifyingKey::load(file).map_err(|error| Failure::input(error.to_string()))?);
    }
    Ok(keys)
}

/// What is to be said of a file; standard input cannot be read twice.
fn verified(source: &Source, keys: &[VerifyingKey]) -> io::Result<Option<verify::Report>> {
    let Some(path) = source.path() else { return Ok(None) };
    verify(BufReader::new(File::open(path)?), Some(path), keys).map(Some)
}

/// Writes a file whole or not at all, for its owner alone: beside it first, and then in its place.
fn replace(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_owned();
    name.push(format!(".new-{:016x}", exeat_audit::random_number()));
    let draft = path.with_file_name(name);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let mut out = BufWriter::new(file);
    let written = write(&mut out).and_then(|()| out.flush()).and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        // The first error tells more than a second one would.
        let _ = fs::remove_file(&draft);
    }
    written
}
