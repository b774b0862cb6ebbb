//! `exeat audit prune`: removes old records. No other part of exeat removes records.

use std::collections::BTreeSet;
use std::io::{self, BufReader, Write as _};
use std::time::SystemTime;

use exeat_audit::table;
use exeat_audit::verify::{Ending, Standing, verify};
use exeat_policy::os_words;
use exeat_record::place::StoredRun;
use exeat_record::{RunId, VerifyingKey, file, is_being_written};

use super::ledger::{killed, to_prune};
use super::{Out, Stopped, bad_place, place_of, select};
use crate::args::audit::PruneArgs;
use crate::exit::Exit;
use crate::failure::Failure;

/// The results for the records that are old enough.
#[derive(Default)]
struct Done {
    removed: u64,
    bytes: u64,
    refused: u64,
}

/// Removes old records, the oldest first, and prints each.
pub(crate) fn run(args: &PruneArgs) -> Result<Exit, Failure> {
    let place = place_of(&crate::request::here()?)?;
    let Some(before) = SystemTime::now().checked_sub(args.older_than) else {
        return Err(Failure::input("that is before all time"));
    };
    let keys = super::verify::keys(&[])?;
    let killed = if args.killed { killed(&place, &keys)? } else { BTreeSet::new() };
    let mut done = Done::default();
    let mut out = Out::by_line();
    let selection = select::selection(&args.selection)?;
    let mut doubtful = select::Doubtful::default();
    let shown = place.stored_runs().map_err(bad_place)?.iter().try_for_each(|stored| {
        let mut is_selected =
            || selection.is_empty() || doubtful.takes(&selection, &select::summarize(&stored.path));
        // Another process may have removed the run meanwhile.
        if stored.last_written().is_ok_and(|last| last < before) && is_selected() {
            prune(args, stored, &keys, &killed, &mut done, &mut out)
        } else {
            Ok(())
        }
    });
    doubtful.finish();
    let said = shown.and_then(|()| {
        let what = if args.dry_run { "would be removed" } else { "removed" };
        let plural = if done.removed == 1 { "" } else { "s" };
        writeln!(out, "{} record{plural} {what}, {}", done.removed, table::bytes(done.bytes))
    });
    out.finish(said).map_err(|(Stopped::Reading(error) | Stopped::Writing(error))| Failure::Stdout(error))?;
    Ok(if done.refused > 0 { Exit::No } else { Exit::Yes })
}

/// Removes one record, or prints why it is kept.
fn prune(
    args: &PruneArgs,
    stored: &StoredRun,
    keys: &[VerifyingKey],
    killed: &BTreeSet<RunId>,
    done: &mut Done,
    out: &mut Out,
) -> io::Result<()> {
    if is_being_written(&stored.path).unwrap_or(false) {
        crate::stdio::line("note", &format!("{} is still being written", stored.run));
        return Ok(());
    }
    if !args.force
        && let Err(why) = whole(stored, keys, killed)
    {
        done.refused += 1;
        crate::stdio::line(
            "warning",
            &format!("{} is kept: {why}; {} removes it", stored.run, flag_for(&why)),
        );
        return Ok(());
    }
    // First, because a record that is missing without this line counts as taken away.
    if !args.dry_run
        && let run = select::summarize(&stored.path)
        && (run.no.is_some() || run.is_unnumbered)
        && let Err(why) = write_down(stored, run.no)
    {
        if !args.force {
            done.refused += 1;
            crate::stdio::line("warning", &format!("{} is kept: {why}; --force removes it", stored.run));
            return Ok(());
        }
        crate::stdio::line("warning", &format!("{} is removed, and {why}", stored.run));
    }
    let bytes = stored.bytes();
    if !args.dry_run
        && let Err(error) = stored.remove()
    {
        done.refused += 1;
        crate::stdio::line("warning", &format!("{} is kept: {error}", stored.run));
        return Ok(());
    }
    done.removed += 1;
    done.bytes += bytes;
    let word = if args.dry_run { "would remove" } else { "removed" };
    writeln!(out, "{word} {} ({})", stored.run, table::bytes(bytes))
}

/// Records in the ledger that the record of a run is removed, and by whom.
fn write_down(stored: &StoredRun, no: Option<u64>) -> Result<(), String> {
    let place = crate::request::here()
        .and_then(|machine| place_of(&machine))
        .map_err(|failure| failure.plain_text())?;
    let written = to_prune(&place)?.prune(stored.run, no, exeat_runner::user_name().as_deref());
    let written = written.map_err(|error| os_words(&error.to_string()).into_owned())?;
    written.oddity.into_iter().for_each(|oddity| crate::stdio::line("warning", &oddity));
    Ok(())
}

/// Returns the weakest flag that removes a record that is kept for a reason.
fn flag_for(why: &str) -> &'static str {
    if why == NO_END { "--killed (if that was a kill) or --force" } else { "--force" }
}

const NO_END: &str = "it has no end: its writer was killed, or it was cut";

/// Checks that a record is as its run left it. A record that somebody changed or cut is evidence, and is kept.
fn whole(stored: &StoredRun, keys: &[VerifyingKey], killed: &BTreeSet<RunId>) -> Result<(), String> {
    let path = &*stored.path;
    let said = |error: io::Error| os_words(&error.to_string()).into_owned();
    let file = file::open(path).map_err(said)?;
    let report = verify(BufReader::new(file), Some(path), keys).map_err(said)?;
    match (report.standing(), report.ending) {
        // A run that was killed before it began has done nothing. A run that began is in the ledger, which misses its record.
        (Standing::Whole, _) | (_, Ending::Empty) => Ok(()),
        (Standing::Tampered, _) => {
            let first = report.findings.first().map(ToString::to_string).unwrap_or_default();
            Err(format!("it is damaged: {first}"))
        }
        // If somebody had cut the record, the ledger would have its end.
        (Standing::Unfinished, Ending::MidLine | Ending::Unfinished) if killed.contains(&stored.run) => {
            Ok(())
        }
        (_, Ending::MidLine) => Err("its last line is cut".into()),
        (_, Ending::Unfinished) => Err(NO_END.into()),
        (Standing::UnknownKey, _) => Err("it is signed by no key that is known here".into()),
        _ => Err("it is not signed to its end".into()),
    }
}
