//! `exeat audit list`: lists the runs of the state directory.

use exeat_audit::query::Filter;
use exeat_audit::runs::RunSummary;
use exeat_audit::table;
use exeat_policy::file::PRESET_STAGE;

use super::select::{NOTHING, filter, has_any, select_any};
use super::{Out, Stopped, place_of};
use crate::args::audit::ListArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::stdio;
use crate::terminal::Paint;

/// Lists the runs, the newest first.
pub(crate) fn run(args: &ListArgs, paint: Paint) -> Result<Exit, Failure> {
    let place = place_of(&crate::request::here()?).ok();
    let selected = select_any(&args.records)?;
    let mut exit = selected.exit();
    for found in &selected.found {
        if found.run.is_strange {
            exit = Exit::No;
        }
        let Some(why) = &found.run.problem else { continue };
        if found.source.path().is_some_and(|path| path.symlink_metadata().is_err()) {
            return Err(Failure::input(format!("cannot read {}", found.source)).because(why.clone()));
        }
        exit = Exit::No;
    }
    let hosts = Filter { hosts: args.host.clone(), ..filter(&args.records) };
    let mut runs: Vec<RunSummary> = Vec::new();
    for found in selected.found.into_iter().filter(|found| found.twin.is_none() && passes(args, &found.run)) {
        let asks = args.host.is_empty()
            || has_any(&found.source, &hosts).unwrap_or_else(|failure| {
                stdio::line("warning", &failure.plain_text());
                exit = Exit::No;
                false
            });
        runs.extend(asks.then_some(found.run));
    }
    runs.sort_by_key(|run| std::cmp::Reverse(run.run));
    let mut out = Out::new();
    let shown = if args.format.is_json() {
        table::list_json(&runs, &mut out)
    } else {
        let names = place.as_ref().and_then(|place| place.short_names().ok()).unwrap_or_default();
        table::list(&runs, &names, &mut out, paint.is_on())
    };
    out.finish(shown)
        .map_err(|(Stopped::Reading(error) | Stopped::Writing(error))| Failure::Stdout(error))?;
    if runs.is_empty() && !args.format.is_json() {
        let empty = place.filter(|place| place.records().is_ok_and(|records| records.is_empty()));
        let nothing = empty.map(|place| format!("no record in `{}`", place.dir().display()));
        stdio::line("note", &nothing.unwrap_or_else(|| NOTHING.to_owned()));
    }
    Ok(exit)
}

/// A preset's question to a package manager fails and is refused as it may: it is listed only without a selection, or by its stage.
fn passes(args: &ListArgs, run: &RunSummary) -> bool {
    let is_preset = run.stage.as_deref().is_some_and(|stage| stage.starts_with(PRESET_STAGE));
    if is_preset && (args.failed || args.denied) && args.records.selection.stage.is_empty() {
        return false;
    }
    let denied = run.end.as_ref().is_some_and(|end| end.denied.max(end.would_deny).unwrap_or(0) > 0);
    (!args.failed || run.failed()) && (!args.denied || denied)
}
