//! `exeat audit export`: writes records in another schema.

use exeat_audit::export::{self, Format};

use super::select::{Notes, filter, select_to_show};
use super::{Out, Source, Stopped};
use crate::args::audit::{ExportArgs, ExportFormat};
use crate::exit::Exit;
use crate::failure::Failure;

/// Writes records to stdout, one after the other.
pub(crate) fn run(args: &ExportArgs) -> Result<Exit, Failure> {
    let format = match args.format {
        ExportFormat::Ocsf => Format::Ocsf(args.ocsf),
        ExportFormat::Ecs => Format::Ecs,
        ExportFormat::Jsonl => Format::Jsonl,
    };
    let mut exporter = format.exporter();
    let selected = select_to_show(&args.records)?;
    let time = filter(&args.records);
    let mut damaged = selected.is_damaged();
    let mut flawed = Notes::default();
    for source in selected.sources() {
        let mut reader = source.open()?;
        let mut out = Out::new();
        // What comes through a pipe may come from a run that goes on.
        let live = *source == Source::Stdin;
        let done = export::export(&mut reader, &time, &mut *exporter, &mut out, live);
        out.finish(done).map_err(|error| match error {
            Stopped::Reading(error) => source.unreadable(error),
            Stopped::Writing(error) => Failure::Stdout(error),
        })?;
        flawed.flaws(source, &reader);
        damaged |= super::is_damaged(&reader);
    }
    flawed.finish();
    if !selected.found.is_empty() {
        super::note_signature();
    }
    Ok(if damaged { Exit::No } else { Exit::Yes })
}
