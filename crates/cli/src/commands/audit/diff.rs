//! `exeat audit diff`: what records reach that a baseline did not.

use std::io::{self, BufRead};
use std::path::Path;

use exeat_audit::diff::{Diff, Unknown};
use exeat_audit::query::{Filter, Reader};
use exeat_audit::summary::{Form, Summary};
use exeat_compose::Machine;
use exeat_record::lock::Lock;

use super::select::{Selected, filter, select};
use super::{Out, Source, Stopped};
use crate::args::audit::{DiffArgs, DiffFormat, Records};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Paint;

/// The maximal number of hosts on either side. With more, nothing can be concluded.
const MOST: usize = 50_000;

/// Prints the comparison, and returns whether something is new.
pub(crate) fn run(args: &DiffArgs, paint: Paint) -> Result<Exit, Failure> {
    let (old, new) = sides(args);
    let here = crate::request::here()?;
    let is_lock = |path: &Path| exeat_compose::is_lock(path, &here);
    let lock = match &old.runs[..] {
        [path] if is_lock(path) => Some(read_lock(path, &here)?),
        paths if paths.iter().any(|path| is_lock(path)) => {
            return Err(Failure::input("a lock is a baseline of its own: name it alone"));
        }
        _ => None,
    };
    let (mut refused, mut unread) = (0, 0);
    let (before, now) = match &lock {
        // A lock contains only what was let through.
        Some(lock) => {
            let reached = read(&new, Summary::for_grants(), &Filter::default(), &mut unread)?;
            refused = reached.total.tally.denied;
            let reached = exeat_audit::lock::lock(&reached)
                .map_err(|full| Failure::could(format!("the records have {full}")))?;
            let of = |lock: &Lock| Summary::of_lock(lock, MOST).map_err(too_many);
            (of(lock)?, of(&reached)?)
        }
        None => {
            let mut of = |records: &Records| read(records, Summary::new(MOST), &filter(records), &mut unread);
            (of(&old)?, of(&new)?)
        }
    };
    let mut diff = Diff::between(&before, &now);
    if refused > 0 {
        diff.cannot_tell.push(Unknown::new(refused, "refusal", "that may be new: a lock has none"));
    }
    if lock.is_some() {
        // The machine decides whether a program uses the proxy or the gateway, and a lock does not fix it for a run.
        diff.same += diff.changed.len();
        diff.changed.clear();
    }
    let form = match args.format {
        DiffFormat::Text => Form::Text { color: paint.is_on() },
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
    match diff.is_new() {
        true => Ok(Exit::No),
        // A record that cannot be read does not prove that nothing is new.
        false if unread > 0 => Ok(Exit::CouldNot),
        false => Ok(Exit::Yes),
    }
}

fn read_lock(path: &Path, here: &Machine) -> Result<Lock, Failure> {
    let shown = path.display().to_string();
    let (_, lock) = exeat_compose::read_lock(path, &shown, here)?;
    lock.ok_or_else(|| {
        Failure::input(format!("there is no `{shown}`")).hint("exeat audit lock -o egress.lock")
    })
}

/// Prints the flaws of a record. Fails if it is damaged, because it may then lack lines.
fn look_at_flaws<R: BufRead>(source: &Source, reader: &Reader<R>) -> Result<(), Failure> {
    super::note_flaws(source, reader);
    match super::is_damaged(reader) {
        true => Err(Failure::input(format!("{source} is damaged")).hint(source.verify_command())),
        false => Ok(()),
    }
}

/// Returns the records of the baseline, and those that are compared with it.
fn sides(args: &DiffArgs) -> (Records, Records) {
    let mut new = args.records.clone();
    let mut old = Records { runs: args.baselines.clone(), ..Records::default() };
    match &args.first {
        Some(first) if old.runs.is_empty() && args.baseline_until.is_none() => old.runs.push(first.clone()),
        // A flag names the baseline, so the first argument is one more record to compare.
        first => new.runs.splice(0..0, first.clone()).for_each(drop),
    }
    if let Some(until) = args.baseline_until {
        if old.runs.is_empty() {
            old = new.clone();
            old.all |= !old.last && old.runs.is_empty();
            old.selection.since = None;
        }
        old.selection.until = Some(until);
        new.selection.since = new.selection.since.or(Some(until));
    }
    (old, new)
}

/// Selects the records to compare. Fails if two records of one run differ, because either may be the right one.
fn chosen(records: &Records) -> Result<Selected, Failure> {
    let selected = select(records)?;
    match selected.has_differing() {
        true => Err(Failure::input("two records of one run differ").hint("exeat audit verify")),
        false => Ok(selected),
    }
}

/// Adds the records up, and counts those that cannot be read.
fn read(
    records: &Records,
    mut summary: Summary,
    filter: &Filter,
    unread: &mut usize,
) -> Result<Summary, Failure> {
    let selected = chosen(records)?;
    *unread += selected.strange.len();
    for source in selected.sources() {
        let mut reader = source.open()?;
        summary.read(&mut reader, filter).map_err(|error| source.unreadable(error))?;
        look_at_flaws(source, &reader)?;
    }
    summary.finish().map_err(too_many)?;
    Ok(summary)
}

/// Creates the failure for a temporary file that so many hosts need and that cannot be used.
fn too_many(error: io::Error) -> Failure {
    Failure::input(error.to_string())
}
