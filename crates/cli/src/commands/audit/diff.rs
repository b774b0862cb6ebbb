//! `exeat audit diff`: what records reach that a baseline did not.

use exeat_audit::diff::Diff;
use exeat_audit::query::Filter;
use exeat_audit::summary::{Form, Summary, Traffic};

use super::{Out, Source, Stopped};
use crate::args::audit::{DiffArgs, DiffFormat};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::render::Paint;

/// Hosts that are told apart on either side. Beyond that nothing could be said.
const MOST: usize = 50_000;

/// Compares, and says whether something is new.
pub(crate) fn run(args: &DiffArgs, paint: Paint) -> Result<Exit, Failure> {
    let before = read(&[super::source(&args.baseline)?])?;
    let now = read(&super::sources(&args.records)?)?;
    let diff = Diff::between(&before, &now);
    let form = match args.format {
        DiffFormat::Text => Form::Text { colour: paint.is_on() },
        DiffFormat::Json => Form::Json,
        DiffFormat::Markdown => Form::Markdown,
    };
    let mut out = Out::new();
    let shown = diff.write(form, &mut out);
    out.finish(shown)
        .map_err(|(Stopped::Reading(error) | Stopped::Writing(error))| Failure::Stdout(error))?;
    if [&before, &now].into_iter().any(|summary| summary.others != Traffic::default()) {
        return Err(Failure::could(format!("more than {MOST} hosts: the others were not compared")));
    }
    Ok(if diff.is_new() { Exit::No } else { Exit::Yes })
}

fn read(sources: &[Source]) -> Result<Summary, Failure> {
    let mut summary = Summary::new(MOST);
    for source in sources {
        let mut reader = source.open()?;
        summary.read(&mut reader, &Filter::default()).map_err(|error| source.unreadable(error))?;
        for flaw in reader.flaws() {
            crate::stdio::line("note", &format!("{source}: {flaw}"));
        }
        // What was tampered with proves no absence.
        if super::is_damaged(&reader) {
            return Err(Failure::input(format!("{source} is damaged")).hint("exeat audit show"));
        }
    }
    Ok(summary)
}
