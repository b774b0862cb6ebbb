//! `exeat audit`: finds a record and has it shown. What a record says and how it reads is `exeat-audit`'s.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use exeat_audit::RunId;
use exeat_audit::place::{self, Place, RunSummary};
use exeat_audit::query::{self, Filter, Flaw};
use exeat_audit::table;
use exeat_policy::file::PRESET_STAGE;

use crate::args::{AuditListArgs, AuditShowArgs};
use crate::env_vars;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::machine::Machine;
use crate::render::Paint;

/// Shows one record.
pub(crate) fn show(args: &AuditShowArgs, paint: Paint) -> Result<Exit, Failure> {
    let machine = Machine::here()?;
    let path = match &args.run {
        None => last(&place_of(&machine)?)?,
        // A path needs no state directory; what has no `/` and no `.` may be a run as well.
        Some(name) => match name.to_str() {
            Some(text) => place_of(&machine)?.find(text).map_err(bad_place)?,
            None => name.clone(),
        },
    };
    let bad = |error| Failure::input(format!("cannot read `{}`", path.display())).because(error);
    let mut reader = query::read(&path).map_err(bad)?;
    let filter =
        Filter { verdicts: args.verdict.clone(), hosts: args.host.clone(), reasons: args.reason.clone() };
    let mut out = Out::new();
    let shown = if args.json {
        table::show_json(&mut reader, &filter, &mut out)
    } else {
        table::show(&mut reader, &filter, &mut out, paint.is_on())
    };
    out.finish(shown).map_err(|error| match error {
        Stopped::Reading(error) => bad(error),
        Stopped::Writing(error) => Failure::Stdout(error),
    })?;
    if args.json {
        for flaw in reader.flaws() {
            crate::stdio::line("note", &flaw.to_string());
        }
    }
    // A run that still goes on has no end yet.
    let damaged = reader.flaws().iter().any(|flaw| !matches!(flaw, Flaw::Unfinished { .. }));
    Ok(if damaged || reader.more_flaws() > 0 { Exit::No } else { Exit::Yes })
}

/// The last run of the user's. What a preset asked a package manager is a run too, and not what they look for.
fn last(place: &Place) -> Result<PathBuf, Failure> {
    /// Presets of one command line leave some dozens of records at most.
    const LOOK: usize = 64;
    let runs = place.list(LOOK).map_err(bad_place)?;
    let own = |run: &&RunSummary| run.stage.as_deref().is_none_or(|stage| !stage.starts_with(PRESET_STAGE));
    match runs.iter().find(own) {
        Some(run) => Ok(place.path_for(run.run)),
        None => place.last().map_err(bad_place),
    }
}

/// Lists the runs of the state directory.
pub(crate) fn list(args: &AuditListArgs, paint: Paint) -> Result<Exit, Failure> {
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

/// Where the records of this user are kept.
pub(crate) fn place_of(machine: &Machine) -> Result<Place, Failure> {
    let value = |name: &str| machine.env.get(OsStr::new(name)).map(OsString::as_os_str);
    Place::from_env(value(env_vars::XDG_STATE_HOME), value(env_vars::HOME)).map_err(bad_place)
}

/// Letters of a run's name that tell the millisecond: enough to find it, unless two runs began in the same one.
const SHORT: usize = 10;

/// What `exeat audit show` needs to find a record: the run's short name where it stands in the default place and no
/// other begins so, else its whole name there, else its path.
pub(crate) fn name_of(record: &Path, place: Option<&Place>) -> String {
    let run = record.file_stem().and_then(|stem| stem.to_str()?.parse::<RunId>().ok());
    let Some((run, place)) = run.zip(place).filter(|(run, place)| place.path_for(*run) == record) else {
        return record.display().to_string();
    };
    let run = run.to_string();
    match run.get(..SHORT) {
        Some(short) if place.find(short).is_ok() => short.to_owned(),
        _ => run,
    }
}

fn bad_place(error: place::Error) -> Failure {
    let hint = match &error {
        place::Error::Empty { .. } | place::Error::NotFound { .. } => Some("exeat audit list"),
        _ => None,
    };
    let failure = Failure::input(error.to_string());
    let failure = match std::error::Error::source(&error) {
        Some(source) => failure.because(source.to_string()),
        None => failure,
    };
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Stdout, which knows whether an error was its own or the record's.
struct Out {
    inner: BufWriter<io::StdoutLock<'static>>,
    failed: bool,
}

enum Stopped {
    Reading(io::Error),
    Writing(io::Error),
}

impl Out {
    fn new() -> Self {
        Self { inner: BufWriter::new(io::stdout().lock()), failed: false }
    }

    fn finish<T>(mut self, shown: io::Result<T>) -> Result<T, Stopped> {
        match shown {
            Err(error) if self.failed => Err(Stopped::Writing(error)),
            // What was read so far is worth having.
            Err(error) => self.inner.flush().map_err(Stopped::Writing).and(Err(Stopped::Reading(error))),
            Ok(shown) => self.inner.flush().map_err(Stopped::Writing).map(|()| shown),
        }
    }

    fn noting<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        self.failed |= done.is_err();
        done
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.inner.write(bytes);
        self.noting(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = self.inner.flush();
        self.noting(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_named_as_short_as_it_can_be_found() {
        let home = std::env::temp_dir().join(format!("exeat-audit-name-{}", std::process::id()));
        let place = Place::from_env(None, Some(home.as_os_str())).unwrap();
        std::fs::create_dir_all(place.dir()).unwrap();
        let keep = |run: &str| {
            let path = place.dir().join(format!("{run}.jsonl"));
            std::fs::write(&path, "").unwrap();
            path
        };
        let name = |path: &Path| name_of(path, Some(&place));
        let first = keep("01JD8Z3V5QABCDEFGHJKMNPQRS");
        assert_eq!(name(&first), "01JD8Z3V5Q");
        keep("01JD8Z3V5QZZZZZZZZZZZZZZZZ");
        assert_eq!(name(&first), "01JD8Z3V5QABCDEFGHJKMNPQRS", "two runs of one millisecond");
        assert_eq!(name(&keep("mine")), place.dir().join("mine.jsonl").display().to_string());
        let elsewhere = Path::new("/tmp/01JD8Z3V5QABCDEFGHJKMNPQRS.jsonl");
        assert_eq!(name(elsewhere), elsewhere.display().to_string());
        assert_eq!(name_of(&first, None), first.display().to_string());
        std::fs::remove_dir_all(home).unwrap();
    }
}
