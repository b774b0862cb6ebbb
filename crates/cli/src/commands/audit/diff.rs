//! `exeat audit diff`: what records reach that a baseline did not.

use std::io::{self, BufRead};
use std::path::Path;

use exeat_audit::diff::Diff;
use exeat_audit::lock::{Lock, Seen};
use exeat_audit::query::Reader;
use exeat_audit::summary::{Form, Summary};

use super::select::{Selected, filter, select};
use super::{Out, Source, Stopped};
use crate::args::audit::{DiffArgs, DiffFormat, Records};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::load;
use crate::machine::Machine;
use crate::render::Paint;

/// Hosts that are told apart on either side. Beyond that nothing could be said.
const MOST: usize = 50_000;

/// Compares, and says whether something is new.
pub(crate) fn run(args: &DiffArgs, paint: Paint) -> Result<Exit, Failure> {
    let lock = match is_lock(&args.baseline) {
        true => Some(read_lock(&args.baseline)?),
        false => None,
    };
    let (before, now) = match &lock {
        // A lock has what was let through alone.
        Some(lock) => {
            let of = |lock: &Lock| Summary::of_lock(lock, MOST).map_err(too_many);
            (of(lock)?, of(&reached(args)?)?)
        }
        None => (read(&baseline(&args.baseline))?, read(&args.records)?),
    };
    let mut diff = Diff::between(&before, &now);
    if lock.is_some() {
        // Whether a program asks the proxy or the gateway is the machine's, and no run is held to it.
        diff.same += diff.changed.len();
        diff.changed.clear();
    }
    let form = match args.format {
        DiffFormat::Text => Form::Text { colour: paint.is_on() },
        DiffFormat::Json => Form::Json,
        DiffFormat::Markdown => Form::Markdown,
    };
    if !matches!(args.format, DiffFormat::Json) {
        super::note_signature();
    }
    let mut out = Out::new();
    let shown = diff.write(form, &mut out);
    out.finish(shown)
        .map_err(|(Stopped::Reading(error) | Stopped::Writing(error))| Failure::Stdout(error))?;
    if [&before, &now].into_iter().any(|summary| summary.other_hosts > 0) {
        return Err(Failure::could(format!("more than {MOST} hosts: the others were not compared")));
    }
    Ok(if diff.is_new() { Exit::No } else { Exit::Yes })
}

fn is_lock(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "lock")
}

fn read_lock(path: &Path) -> Result<Lock, Failure> {
    let shown = path.display().to_string();
    let (_, lock) = load::read_lock(path, &shown, &Machine::here()?)?;
    lock.ok_or_else(|| {
        Failure::input(format!("there is no `{shown}`")).hint("exeat audit lock -o egress.lock")
    })
}

/// What the records would lock.
fn reached(args: &DiffArgs) -> Result<Lock, Failure> {
    let mut seen = Seen::default();
    for source in chosen(&args.records)?.sources() {
        let mut reader = source.open()?;
        for record in reader.by_ref() {
            let record = record.map_err(|error| source.unreadable(error))?;
            seen.take(&record).map_err(|full| Failure::could(format!("the records have {full}")))?;
        }
        look_at_flaws(source, &reader)?;
    }
    Ok(seen.lock())
}

/// What was tampered with proves no absence.
fn look_at_flaws<R: BufRead>(source: &Source, reader: &Reader<R>) -> Result<(), Failure> {
    for flaw in reader.flaws() {
        crate::stdio::line("note", &format!("{source}: {flaw}"));
    }
    match super::is_damaged(reader) {
        true => Err(Failure::input(format!("{source} is damaged")).hint("exeat audit show")),
        false => Ok(()),
    }
}

/// The records that a baseline is.
fn baseline(name: &Path) -> Records {
    Records { runs: vec![name.to_owned()], ..Records::default() }
}

/// The records to compare. Where two of one run differ, nobody can tell which is right.
fn chosen(records: &Records) -> Result<Selected, Failure> {
    let selected = select(records)?;
    match selected.has_differing() {
        true => Err(Failure::input("two records of one run differ").hint("exeat audit verify")),
        false => Ok(selected),
    }
}

fn read(records: &Records) -> Result<Summary, Failure> {
    let mut summary = Summary::new(MOST);
    for source in chosen(records)?.sources() {
        let mut reader = source.open()?;
        summary.read(&mut reader, &filter(records)).map_err(|error| source.unreadable(error))?;
        look_at_flaws(source, &reader)?;
    }
    summary.finish().map_err(too_many)?;
    Ok(summary)
}

/// So many hosts need a temporary file, which failed.
fn too_many(error: io::Error) -> Failure {
    Failure::input(error.to_string())
}
