//! `exeat audit lock`: what each stage of some records reached, as a file for `exeat run --locked`.

use std::io;

use exeat_audit::lock::Seen;
use exeat_files::place::Output;
use exeat_policy::printable;
use exeat_record::lock::Lock;

use crate::args::audit::LockArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::stdio;

/// Writes it.
pub(crate) fn run(args: &LockArgs) -> Result<Exit, Failure> {
    let mut seen = Seen::default();
    let exit = super::each(&args.records, |record| {
        seen.take(record).map_err(|full| {
            Failure::input(format!("the records have {full}")).hint("lock fewer of them at one time")
        })
    })?;
    let new = seen.lock();
    let Some(path) = &args.output else {
        stdio::data(new.render().as_bytes())?;
        return Ok(exit);
    };
    let shown = path.display().to_string();
    let bad =
        |error: io::Error| Failure::input(format!("cannot write `{}`", printable(&shown))).because(error);
    let output = Output::open(path).map_err(bad)?;
    let old = match &output {
        Output::Whole(_) => exeat_compose::read_lock(path, &shown, &crate::request::here()?)?.1,
        // To read a pipe would wait for what is written here.
        Output::Stream(_) | Output::NamedPipe(_) => None,
    };
    let lock = joined(old.unwrap_or_default(), new, args.update);
    // One that is larger could not be read again.
    let text = lock.render();
    Lock::parse(&text).map_err(|error| Failure::input(format!("the lock would be none: {error}")))?;
    output.write(0o666, |out| out.write_all(text.as_bytes())).map_err(bad)?;
    Ok(exit)
}

fn joined(mut old: Lock, new: Lock, update: bool) -> Lock {
    if update {
        old.add(new)
    } else {
        old.replace(new)
    }
    old
}
