//! `exeat audit list`: the runs of the state directory.

use exeat_audit::table;

use super::{Out, Stopped, bad_place, place_of};
use crate::args::audit::ListArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::machine::Machine;
use crate::render::Paint;

/// Lists them, the newest first.
pub(crate) fn run(args: &ListArgs, paint: Paint) -> Result<Exit, Failure> {
    let place = place_of(&Machine::here()?)?;
    let runs = place.list(usize::MAX).map_err(bad_place)?;
    let mut out = Out::new();
    let shown = if args.json {
        table::list_json(&runs, &mut out)
    } else {
        table::list(&runs, &mut out, paint.is_on())
    };
    out.finish(shown)
        .map_err(|(Stopped::Reading(error) | Stopped::Writing(error))| Failure::Stdout(error))?;
    if runs.is_empty() && !args.json {
        crate::stdio::line("note", &format!("no record in `{}` yet", place.dir().display()));
    }
    Ok(Exit::Yes)
}
