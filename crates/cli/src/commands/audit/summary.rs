//! `exeat audit summary`: adds up records, with a line for each host.

use std::path::Path;

use exeat_audit::query::Filter;
use exeat_audit::summary::{self, Form, PolicyOf, RunFacts, Sort, Summary};
use exeat_record::place;

use super::origins::Origins;
use super::select::{Notes, filter, select_to_show};
use super::{Out, Stopped};
use crate::args::audit::{SummaryArgs, SummaryFormat, SummarySort};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Paint;

/// Reads records and prints their sum.
pub(crate) fn run(args: &SummaryArgs, paint: Paint) -> Result<Exit, Failure> {
    let filter = Filter { hosts: args.host.clone(), ..filter(&args.records) };
    let mut summary = Summary::default();
    let selected = select_to_show(&args.records)?;
    let mut origins = Origins::default();
    let mut damaged = selected.is_damaged();
    let mut flawed = Notes::default();
    for source in selected.sources() {
        let runs = summary.runs;
        let mut reader = source.open()?;
        let facts = summary.read(&mut reader, &filter).map_err(|error| source.unreadable(error))?;
        flawed.flaws(source, &reader);
        damaged |= super::is_damaged(&reader);
        if let Some(record) = source.path().filter(|_| summary.runs > runs) {
            add_policies(&mut summary, record, &facts, &mut origins);
        }
    }
    flawed.finish();
    summary.finish().map_err(|error| Failure::input(error.to_string()))?;
    let form = match args.format {
        SummaryFormat::Text => Form::Text { color: paint.is_on() },
        SummaryFormat::Json => Form::Json,
        SummaryFormat::Markdown => Form::Markdown,
        SummaryFormat::Github => Form::GitHub,
    };
    let sort = match args.sort {
        SummarySort::Denied => Sort::Denied,
        SummarySort::Up => Sort::Up,
        SummarySort::Down => Sort::Down,
        SummarySort::Failed => Sort::Failed,
        SummarySort::Attempts => Sort::Attempts,
    };
    if !matches!(args.format, SummaryFormat::Json) && !selected.found.is_empty() {
        super::note_signature();
    }
    let mut out = Out::new();
    let shown = summary::write(&summary, form, sort, &mut out);
    out.finish(shown)
        .map_err(|(Stopped::Reading(error) | Stopped::Writing(error))| Failure::Stdout(error))?;
    Ok(if damaged { Exit::No } else { Exit::Yes })
}

/// Adds the policies that are stored next to a record. A record without one is still whole, but its rules are unknown.
pub(super) fn add_policies(summary: &mut Summary, record: &Path, facts: &RunFacts, origins: &mut Origins) {
    let paths = match facts.reloaded {
        // The directory of all runs can be large, and only a few runs have reloaded their policy.
        true => place::stored_policies(record).unwrap_or_default(),
        false => vec![place::policy_path(record)],
    };
    let places = origins.places_of(facts);
    let of = PolicyOf { run: &facts.run, stage: facts.stage.as_deref(), places: &places };
    for path in paths {
        let added = place::read_policy(&path).and_then(|text| match text {
            Some(text) => Ok(summary.add_policy(&text, of)?),
            None => Ok(()),
        });
        if let Err(error) = added {
            crate::stdio::line("note", &format!("`{}` is passed over: {error}", path.display()));
        }
    }
}
