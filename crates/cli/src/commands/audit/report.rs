//! `exeat audit report`: writes records as one page for people.

use std::time::SystemTime;

use exeat_audit::report::{Made, Report};
use exeat_audit::verify::Standing;
use exeat_files::place::Output;
use exeat_runner::{machine_name, user_name};

use super::origins::Origins;
use super::select::select;
use super::summary::add_policies;
use super::{Out, Source, Stopped, verify};
use crate::args::audit::ReportArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::stdio;

/// Reads records and writes the page.
pub(crate) fn run(args: &ReportArgs) -> Result<Exit, Failure> {
    let keys = verify::keys(&args.key)?;
    let made = Made { at: SystemTime::now().into(), by: user_name(), on: machine_name() };
    let mut report = Report::new(made);
    let mut origins = Origins::default();
    let selected = select(&args.records)?;
    let mut damaged = selected.is_damaged();
    for source in selected.sources() {
        // Standard input cannot be read twice.
        let verified = match source {
            Source::File(_) => Some(verify::verify_source(source, &keys)?),
            Source::Stdin => None,
        };
        let is_tampered = verified.as_ref().is_some_and(|found| found.standing() == Standing::Tampered);
        let name = match source.path() {
            Some(path) => path.display().to_string(),
            None => source.to_string(),
        };
        let added = report
            .read(source.input()?, &name, source.path(), verified)
            .map_err(|error| source.unreadable(error))?;
        if is_tampered || added.is_damaged {
            stdio::line("note", &format!("{source} is damaged: {} says where", source.verify_command()));
            damaged = true;
        }
        if let Some(record) = source.path() {
            add_policies(report.summary_mut(), record, &added.run, &mut origins);
        }
    }
    if args.output.as_os_str() == "-" {
        let mut out = Out::new();
        let written = report.write(&mut out);
        out.finish(written)
            .map_err(|(Stopped::Reading(error) | Stopped::Writing(error))| Failure::Stdout(error))?;
    } else {
        // Only the owner may read the page.
        let written =
            Output::open(&args.output).and_then(|output| output.write(0o600, |out| report.write(out)));
        written.map_err(|error| Failure::not_written("cannot write", &args.output, error))?;
    }
    Ok(if damaged { Exit::No } else { Exit::Yes })
}
