//! `exeat audit show`: prints records for people or programs.

use exeat_audit::query::Filter;
use exeat_audit::table;

use super::select::{filter, has_any, select_to_show};
use super::{Out, Source, Stopped};
use crate::args::audit::ShowArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::stdio;
use crate::terminal::Paint;

/// Shows records, one after the other.
pub(crate) fn run(args: &ShowArgs, paint: Paint) -> Result<Exit, Failure> {
    let filter = Filter {
        verdicts: args.verdict.clone(),
        hosts: args.host.clone(),
        reasons: args.reason.clone(),
        vias: args.via.clone(),
        exes: args.exe.clone(),
        ..filter(&args.records)
    };
    if args.follow && super::follow::takes_later_runs(&args.records) {
        return super::follow::all(args, &filter, paint);
    }
    let selected = select_to_show(&args.records)?;
    let sources: Vec<&Source> = selected.sources().collect();
    if args.follow {
        return super::follow::run(args, &filter, &sources, paint);
    }
    let mut damaged = selected.is_damaged();
    let mut without = 0;
    for source in sources.iter().copied() {
        // The headers of many runs would bury the few decisions that are wanted.
        let may_skip = sources.len() > 1 && !filter.wants_all_decisions() && !args.format.is_json();
        if may_skip && source.path().is_some() && !has_any(source, &filter)? {
            without += 1;
            continue;
        }
        let mut reader = source.open()?;
        let mut out = Out::new();
        let shown = match sources.len() {
            1 => Ok(()),
            _ if args.format.is_json() => Ok(()),
            _ => source.headline(&mut out),
        };
        let shown = shown.and_then(|()| match args.format.is_json() {
            true => table::show_json(&mut reader, &filter, &mut out),
            false => table::show(&mut reader, &filter, &mut out, paint.is_on()),
        });
        out.finish(shown).map_err(|error| match error {
            Stopped::Reading(error) => source.unreadable(error),
            Stopped::Writing(error) => Failure::Stdout(error),
        })?;
        if args.format.is_json() {
            super::note_flaws(source, &reader);
        }
        damaged |= super::is_damaged(&reader);
    }
    if without > 0 {
        stdio::line("note", &format!("{without} more runs have no such decision"));
    }
    if !sources.is_empty() {
        super::note_signature();
    }
    Ok(if damaged { Exit::No } else { Exit::Yes })
}
