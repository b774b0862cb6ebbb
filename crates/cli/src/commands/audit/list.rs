//! `exeat audit list`: the runs of the state directory.

use exeat_audit::place::RunSummary;
use exeat_audit::{Moment, table};

use super::{Out, Stopped, bad_place, place_of};
use crate::args::audit::ListArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::machine::Machine;
use crate::render::Paint;

/// Lists them, the newest first.
pub(crate) fn run(args: &ListArgs, paint: Paint) -> Result<Exit, Failure> {
    let place = place_of(&Machine::here()?)?;
    let mut runs = place.list(usize::MAX).map_err(bad_place)?;
    let any = !runs.is_empty();
    runs.retain(|run| passes(args, run));
    let mut out = Out::new();
    let shown = if args.json {
        table::list_json(&runs, &mut out)
    } else {
        table::list(&runs, &mut out, paint.is_on())
    };
    out.finish(shown)
        .map_err(|(Stopped::Reading(error) | Stopped::Writing(error))| Failure::Stdout(error))?;
    if !any && !args.json {
        crate::stdio::line("note", &format!("no record in `{}` yet", place.dir().display()));
    }
    Ok(Exit::Yes)
}

fn passes(args: &ListArgs, run: &RunSummary) -> bool {
    let started = run.started.as_deref().and_then(Moment::of).unwrap_or_else(|| run.run.made().into());
    let denied = run.end.as_ref().and_then(|end| end.denied).unwrap_or(0);
    (args.stage.is_empty() || run.stage.as_ref().is_some_and(|stage| args.stage.contains(stage)))
        && (!args.failed || run.failed())
        && (!args.denied || denied > 0)
        && args.time.since.is_none_or(|since| since <= started)
        && args.time.until.is_none_or(|until| started <= until)
}
