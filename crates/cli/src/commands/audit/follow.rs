//! `exeat audit show --follow`: a record as it grows. A signal ends it, as it ends tail(1).

use std::io::{self, BufRead};
use std::os::fd::AsFd as _;
use std::thread;
use std::time::Duration;

use exeat_audit::follow::follow;
use exeat_audit::query::{Filter, Reader};
use exeat_audit::table;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Out, Source, Stopped};
use crate::args::audit::ShowArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::render::Paint;

/// How long after it was written a line is shown at the latest.
const PAUSE: Duration = Duration::from_millis(100);

/// Shows one record, to the end of its run.
pub(super) fn run(
    args: &ShowArgs,
    filter: &Filter,
    sources: &[&Source],
    paint: Paint,
) -> Result<Exit, Failure> {
    match sources {
        [source @ Source::File(path)] => {
            let reader = follow(path, pause).map_err(|error| source.unreadable(error))?;
            show(args, filter, source, reader, paint)
        }
        // Whoever writes to a pipe holds it open to the end.
        [source @ Source::Stdin] => show(args, filter, source, Reader::new(io::stdin().lock()), paint),
        _ => Err(Failure::input("--follow takes one record")),
    }
}

fn show(
    args: &ShowArgs,
    filter: &Filter,
    source: &Source,
    mut reader: Reader<impl BufRead>,
    paint: Paint,
) -> Result<Exit, Failure> {
    let mut out = Out::by_line();
    let shown = match args.format.is_json() {
        true => table::show_json(&mut reader, filter, &mut out),
        false => table::show_live(&mut reader, filter, &mut out, paint.is_on()),
    };
    out.finish(shown).map_err(|error| match error {
        // It was the pause that found it.
        Stopped::Reading(error) if error.kind() == io::ErrorKind::BrokenPipe => Failure::Stdout(error),
        Stopped::Reading(error) => source.unreadable(error),
        Stopped::Writing(error) => Failure::Stdout(error),
    })?;
    if args.format.is_json() {
        super::note_flaws(source, &reader);
    }
    super::note_signature();
    Ok(if super::is_damaged(&reader) { Exit::No } else { Exit::Yes })
}

/// Waits for more. An error: nobody reads what is shown any more, which a record that does not grow would never tell.
fn pause() -> io::Result<()> {
    let out = io::stdout();
    let mut polled = [PollFd::new(out.as_fd(), PollFlags::empty())];
    let wait = PollTimeout::try_from(PAUSE).unwrap_or(PollTimeout::MAX);
    match poll(&mut polled, wait) {
        Ok(0) => {}
        Ok(_) if polled.iter().filter_map(PollFd::revents).any(|it| it.contains(PollFlags::POLLERR)) => {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        // What else there is to say of it is no reason to ask again at once.
        _ => thread::sleep(PAUSE),
    }
    Ok(())
}
