//! `exeat audit report`: records as one page for people.

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use exeat_audit::report::Report;
use exeat_audit::verify::Standing;
use exeat_files::walk::LinkRule;

use super::{Out, Source, Stopped, verify};
use crate::args::audit::ReportArgs;
use crate::exit::Exit;
use crate::failure::Failure;

/// Reads records and writes the page.
pub(crate) fn run(args: &ReportArgs) -> Result<Exit, Failure> {
    let keys = verify::keys(&args.key)?;
    let mut report = Report::default();
    let mut damaged = false;
    for source in super::sources(&args.records)? {
        // Standard input cannot be read twice.
        let verified = match source {
            Source::File(_) => Some(verify::look(&source, &keys)?),
            Source::Stdin => None,
        };
        damaged |= verified.as_ref().is_some_and(|found| found.standing() == Standing::Tampered);
        let mut reader = source.open()?;
        let name = match source.path() {
            Some(path) => path.display().to_string(),
            None => source.to_string(),
        };
        report.read(&mut reader, &name, source.path(), verified).map_err(|error| source.unreadable(error))?;
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

/// Writes a file whole or not at all, for its owner alone: beside it first, and then in its place.
fn replace(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let path = &LinkRule::from_env().place(path)?;
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
