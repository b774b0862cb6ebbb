//! `exeat audit lock`: writes what each stage of some records reached, as a file for `exeat run --locked`.

use std::collections::BTreeSet;

use exeat_files::place::Output;
use exeat_record::lock::{Lock, LockEntry};

use crate::args::audit::LockArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::stdio;

/// The maximal number of entries that a note names.
const NAMED: usize = 5;

/// Writes the lock.
pub(crate) fn run(args: &LockArgs) -> Result<Exit, Failure> {
    let (summary, exit) = super::summarize(&args.records)?;
    let new = exeat_audit::lock::lock(&summary).map_err(|full| {
        Failure::input(format!("the records have {full}")).hint("lock fewer of them at one time")
    })?;
    let Some(path) = &args.output else {
        super::note_signature();
        stdio::data(new.render().as_bytes())?;
        return Ok(exit);
    };
    let shown = path.display().to_string();
    let bad = |error| Failure::not_written("cannot write", path, error);
    let output = Output::open(path).map_err(bad)?;
    let old = match &output {
        Output::Whole(_) => exeat_compose::read_lock(path, &shown, &crate::request::here()?)?.1,
        // Reading a pipe would wait for what is written here.
        Output::Stream(_) | Output::NamedPipe(_) => None,
    };
    let old = old.unwrap_or_default();
    let before = entries(&old);
    let lock = joined(old, new, args.update);
    let after = entries(&lock);
    // A larger lock could not be read again.
    let text = lock.render();
    Lock::parse(&text).map_err(|error| Failure::input(format!("the lock would be none: {error}")))?;
    output.write(0o666, |out| out.write_all(text.as_bytes())).map_err(bad)?;
    note_removed(&before.difference(&after).map(String::as_str).collect::<Vec<_>>(), &shown);
    Ok(exit)
}

/// Returns the entries of a lock, each in the form of its line.
fn entries(lock: &Lock) -> BTreeSet<String> {
    let line =
        |entry: LockEntry<'_>| format!("{} {} {}", entry.stage.unwrap_or("-"), entry.target, entry.via);
    lock.entries().map(line).collect()
}

/// Notes the entries of the old lock that the records do not have: these runs may have reached less than earlier ones.
fn note_removed(removed: &[&str], shown: &str) {
    let named = removed.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    let more = match removed.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let entries =
        if removed.len() == 1 { "1 entry".to_owned() } else { format!("{} entries", removed.len()) };
    if !removed.is_empty() {
        stdio::line(
            "note",
            &format!(
                "removed {entries} from `{shown}`, which no record here reached: {named}{more} (--update keeps them)"
            ),
        );
    }
}

fn joined(mut old: Lock, new: Lock, update: bool) -> Lock {
    if update {
        old.add(new)
    } else {
        old.replace(new)
    }
    old
}
