//! `exeat audit verify`: prints whether records are whole. `exeat_audit::verify` checks them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use exeat_audit::verify::{Beside, Ending, Standing, Verification, verify};
use exeat_policy::printable;
use exeat_record::place::RecordDir;
use exeat_record::{KeyError, SigningKey, VerifyingKey};
use serde_json::{Value, json};

use super::key::own;
use super::ledger::{Joining, Ledgers};
use super::select::{self, select};
use super::{Source, place_of};
use crate::args::Format;
use crate::args::audit::VerifyArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::stdio;
use crate::terminal::Paint;

/// Verifies each record. Prints those that are not whole, or the only one, and then the number of records of each kind.
pub(crate) fn run(args: &VerifyArgs, paint: Paint) -> Result<Exit, Failure> {
    let keys = keys(&args.key)?;
    // If keys are named, it does not matter which one is the user's.
    let own = if args.key.is_empty() { signing_key()? } else { None };
    // Only among all records can a missing one be noticed.
    let is_all =
        args.records.all && args.records.runs.is_empty() && select::is_empty(&args.records.selection);
    if !args.head.is_empty() && !is_all {
        return Err(Failure::input("--head looks at all records: give it with --all alone"));
    }
    let mut ledgers = is_all.then(|| Ledgers::read(&keys, &args.head)).transpose()?;
    let selected = match &ledgers {
        Some(_) => select::select_any(&args.records)?,
        None => select(&args.records)?,
    };
    if selected.found.is_empty()
        && selected.strange.is_empty()
        && ledgers.as_ref().is_some_and(Ledgers::is_empty)
    {
        select(&args.records)?;
    }
    let mut totals = Totals {
        has_differing: selected.has_differing(),
        is_strict: args.strict || !is_all,
        ..Totals::default()
    };
    let alone = selected.found.len() == 1 && !is_all && selected.strange.is_empty();
    for (path, why) in &selected.strange {
        totals.unreadable(&Source::File(path.clone()), why, args.format)?;
    }
    for found in &selected.found {
        let source = &found.source;
        let report = match verify_source(source, &keys) {
            Ok(report) => report,
            // A record that cannot be read counts as not whole; the others are still checked.
            Err(failure) if !alone => {
                totals.unreadable(source, &failure.plain_text(), args.format)?;
                if let Some(ledgers) = &mut ledgers {
                    ledgers.note_unread(found);
                }
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let is_other_key = own.as_ref().zip(report.key.as_ref()).is_some_and(|(own, key)| own != key);
        totals.add(&report, is_open(source), is_other_key);
        if let Some(ledgers) = &mut ledgers {
            ledgers.see(found, &report);
        }
        if args.format.is_json() {
            stdio::out(&format!("{}\n", as_json(source, &report, is_other_key)), true)?;
        } else if selected.found.len() == 1
            || report.standing() != Standing::Whole
            || !report.notes.is_empty()
        {
            stdio::out(&words(source, &report, is_other_key, paint), false)?;
        }
    }
    if ledgers.is_none() && !alone {
        stdio::line(
            "note",
            "whether a record was taken away was not checked: --all, without names or a selection, compares with the ledger",
        );
    }
    let joining = ledgers.map(|ledgers| ledgers.join(&keys)).transpose()?;
    let text = match args.format.is_json() {
        true => {
            let mut last = json!({"totals": totals.as_json()});
            if let (Value::Object(last), Some(Value::Object(joined))) =
                (&mut last, joining.as_ref().map(Joining::as_json))
            {
                last.extend(joined);
            }
            format!("{last}\n")
        }
        false => totals.words() + &joining.as_ref().map(|joining| joining.words(paint)).unwrap_or_default(),
    };
    stdio::out(&text, args.format.is_json())?;
    Ok(joining.map_or(totals.exit(), |joining| worse(totals.exit(), joining.exit())))
}

/// The results of all records.
#[derive(Default)]
struct Totals {
    whole: u64,
    not_proved: u64,
    not_whole: u64,
    /// Records without an end and without a writer: the run was killed, or the rest was cut off.
    killed: u64,
    /// Runs that go on.
    running: u64,
    /// Runs that ended, but whose end is not signed.
    unsigned: u64,
    /// Records without a line.
    not_begun: u64,
    /// Whether records without a signed end count as not whole. With `--all` they do not by default: the ledger shows what was removed.
    is_strict: bool,
    /// The printed keys that signed whole records, each with the number of records and whether it is not the user's.
    keys: BTreeMap<String, (u64, bool)>,
    /// Policies that could not be compared with whole records.
    not_compared: u64,
    /// Whether two records of one run differ.
    has_differing: bool,
}

impl Totals {
    fn add(&mut self, report: &Verification, is_open: bool, is_other_key: bool) {
        match report.standing() {
            Standing::Whole => {
                self.whole += 1;
                let missing = report.policies.iter().filter(|policy| policy.beside == Beside::Missing);
                self.not_compared += missing.count() as u64;
                if let Some(key) = &report.key {
                    self.keys.entry(key.to_string()).or_insert((0, is_other_key)).0 += 1;
                }
            }
            Standing::UnknownKey => self.not_proved += 1,
            Standing::Tampered => self.not_whole += 1,
            Standing::Unfinished => match report.ending {
                _ if is_open => self.running += 1,
                Ending::Empty => self.not_begun += 1,
                Ending::Unsealed if report.checkpoints == 0 => self.unsigned += 1,
                Ending::Unfinished | Ending::MidLine | Ending::Unsealed | Ending::Sealed => self.killed += 1,
            },
        }
    }

    /// Takes in a record that cannot be read, and says so.
    fn unreadable(&mut self, source: &Source, why: &str, format: Format) -> Result<(), Failure> {
        self.not_whole += 1;
        let text = if format.is_json() {
            let record = source.path().map(|path| path.to_string_lossy());
            format!("{}\n", json!({"record": record, "standing": "unreadable", "findings": [why]}))
        } else {
            format!(
                "{}: NOT WHOLE\n  it cannot be read: {}\n",
                printable(&source.to_string()),
                printable(why)
            )
        };
        stdio::out(&text, format.is_json())
    }

    fn exit(&self) -> Exit {
        let without_end = [self.killed, self.running, self.unsigned, self.not_begun];
        let is_short = self.is_strict && without_end.into_iter().any(|count| count > 0);
        if self.not_whole > 0 || self.has_differing || is_short {
            Exit::No
        } else if self.not_proved > 0 {
            Exit::CouldNot
        } else {
            Exit::Yes
        }
    }

    fn as_json(&self) -> Value {
        let keys = self.keys.iter().map(|(key, (records, is_other))| {
            json!({"key": key, "records": records, "other_key_than_own": is_other})
        });
        json!({
            "whole": self.whole,
            "not_whole": self.not_whole,
            "not_proved": self.not_proved,
            "killed": self.killed,
            "running": self.running,
            "unsigned": self.unsigned,
            "not_begun": self.not_begun,
            "signed_by": keys.collect::<Vec<_>>(),
            "policies_not_compared": self.not_compared,
            "runs_differ": self.has_differing,
        })
    }

    fn words(&self) -> String {
        let mut text = format!("{} whole, {} not whole", grouped(self.whole), grouped(self.not_whole));
        for (count, what) in [
            (self.not_proved, "not proved"),
            (self.killed, "not finished"),
            (self.running, "still running"),
            (self.unsigned, "unsigned"),
            (self.not_begun, "not begun"),
        ] {
            if count > 0 {
                let _ = write!(text, ", {} {what}", grouped(count));
            }
        }
        let several = self.keys.len() > 1;
        for (at, (key, (count, is_other))) in self.keys.iter().enumerate() {
            let _ = write!(text, "{}{key}", if at == 0 { ", signed by " } else { " and " });
            if several {
                let _ = write!(text, " ({})", grouped(*count));
            }
            if *is_other {
                text.push_str(" (another key than audit.key)");
            }
        }
        text.push('\n');
        if self.not_compared > 0 {
            let plural = if self.not_compared == 1 { "y is" } else { "ies are" };
            let _ = writeln!(
                text,
                "{} polic{plural} not stored beside the records: not compared",
                grouped(self.not_compared)
            );
        }
        text
    }
}

/// Formats a number for people, with a space between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Returns the key that signs this user's records today, if it can be read.
fn signing_key() -> Result<Option<VerifyingKey>, Failure> {
    let path = own(&place_of(&crate::request::here()?)?)?.key_path();
    Ok(SigningKey::load(&path).ok().map(|key| key.verifying().clone()))
}

/// Returns the worse of two results, from worst to best: something is wrong, nobody can tell, nothing is wrong.
fn worse(one: Exit, other: Exit) -> Exit {
    match (one, other) {
        (Exit::No, _) | (_, Exit::No) => Exit::No,
        (Exit::CouldNot, _) | (_, Exit::CouldNot) => Exit::CouldNot,
        _ => Exit::Yes,
    }
}

/// Verifies one record.
pub(crate) fn verify_source(source: &Source, keys: &[VerifyingKey]) -> Result<Verification, Failure> {
    verify(source.input()?, source.path(), keys).map_err(|error| source.unreadable(error))
}

/// Returns the keys that may have signed: the named ones, or otherwise the user's own, if there are any.
pub(crate) fn keys(named: &[String]) -> Result<Vec<VerifyingKey>, Failure> {
    let bad = |error: KeyError| {
        let failure = Failure::input(error.to_string());
        match std::error::Error::source(&error) {
            Some(source) => failure.because(source.to_string()),
            None => failure,
        }
    };
    if named.is_empty() {
        return own_keys(&own(&place_of(&crate::request::here()?)?)?).map_err(bad);
    }
    let mut keys = Vec::new();
    for name in named {
        match name.parse() {
            Ok(key) => keys.push(key),
            Err(_) => keys.extend(VerifyingKey::load(Path::new(name)).map_err(bad)?),
        }
    }
    Ok(keys)
}

/// Returns the user's own keys: those in `audit.pub`, which may contain older keys or be lost, and the public half of today's key.
fn own_keys(place: &RecordDir) -> Result<Vec<VerifyingKey>, KeyError> {
    let path = place.key_path();
    let mut keys = match VerifyingKey::load_own(&path.with_extension("pub")) {
        Err(KeyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Vec::new(),
        // The signatures of today's key can still be checked.
        Err(KeyError::Io { path, source }) => {
            let shown = printable(&path.display().to_string());
            stdio::line("warning", &format!("`{shown}` is not used: {source}"));
            Vec::new()
        }
        keys => keys?,
    };
    // A user who only verifies needs no signing key.
    if let Ok(key) = SigningKey::load(&path)
        && !keys.contains(key.verifying())
    {
        keys.push(key.verifying().clone());
    }
    Ok(keys)
}

fn words(source: &Source, report: &Verification, is_other_key: bool, paint: Paint) -> String {
    let lines = |count: u64| format!("{count} line{}", if count == 1 { "" } else { "s" });
    let mut text = format!("{}: ", printable(&source.to_string()));
    let _ = match report.standing() {
        Standing::Whole => writeln!(
            text,
            "{}: {}, signed to the end by {}",
            paint.good("whole"),
            lines(report.lines),
            report.key.as_ref().map(ToString::to_string).unwrap_or_default()
        ),
        Standing::Tampered => writeln!(text, "{}", paint.bad("NOT WHOLE")),
        Standing::Unfinished if report.ending == Ending::Empty && is_open(source) => {
            writeln!(text, "{}: it has no line yet", paint.odd("starting"))
        }
        Standing::Unfinished if report.ending == Ending::Empty => writeln!(
            text,
            "{}: no line is in it: its run was killed before it began, or the file was emptied (--all asks the ledger)",
            paint.bad("not begun")
        ),
        Standing::Unfinished if is_open(source) => {
            writeln!(text, "{}: the run still goes on", paint.odd("not finished"))
        }
        Standing::Unfinished if report.ending == Ending::Unsealed && report.checkpoints == 0 => {
            writeln!(text, "{}: {}", paint.bad("unsigned"), ending(report))
        }
        Standing::Unfinished => writeln!(text, "{}: {}", paint.bad("not finished"), ending(report)),
        Standing::UnknownKey => {
            let ids: Vec<&str> = report.unknown_keys.iter().map(String::as_str).collect();
            writeln!(
                text,
                "{}: signed by {}, which is no key that is known here: --key names the right one",
                paint.bad("not proved"),
                ids.join(", ")
            )
        }
    };
    for finding in &report.findings {
        let _ = writeln!(text, "  {finding}");
    }
    if report.more > 0 {
        let _ = writeln!(text, "  and {} more", report.more);
    }
    if report.standing() != Standing::Whole {
        let _ = match report.covered {
            0 => writeln!(text, "  no line is covered by a good signature"),
            covered => writeln!(text, "  lines 1 to {covered} are whole and signed"),
        };
    }
    if let Some((first, last)) = report.unsigned_tail() {
        let lines = if first == last { format!("line {last}") } else { format!("lines {first} to {last}") };
        let _ = writeln!(text, "  unsigned tail: no signature covers {lines}: this part proves nothing");
    }
    if is_other_key {
        let key = report.key.as_ref().map(VerifyingKey::key_id).unwrap_or_default();
        let _ = writeln!(text, "  {}: signed by another key than audit.key: {key}", paint.odd("note"));
    }
    for note in &report.notes {
        let _ = writeln!(text, "  {}: {note}", paint.odd("note"));
    }
    if report.more_notes > 0 {
        let _ = writeln!(text, "  {}: and {} more like that", paint.odd("note"), report.more_notes);
    }
    for policy in &report.policies {
        let short = policy.sha256.get(..16).unwrap_or(&policy.sha256);
        let _ = match policy.beside {
            Beside::Same => writeln!(text, "  policy {short}: stored beside it, and the same"),
            Beside::Differs => {
                writeln!(text, "  policy {short}: what is stored beside it is {}", paint.bad("another"))
            }
            Beside::Missing => writeln!(text, "  policy {short}: not stored beside it, not compared"),
        };
    }
    text
}

/// Whether its writer is still there.
fn is_open(source: &Source) -> bool {
    source.path().is_some_and(|path| exeat_record::is_being_written(path).unwrap_or(false))
}

/// Returns the reason that a record without errors is not whole.
fn ending(report: &Verification) -> String {
    match report.ending {
        Ending::Empty => "no line is in it".into(),
        Ending::MidLine => format!(
            "line {} ends in the middle: its writer was stopped there (a crash, kill -9, a full disk), or the file was cut",
            report.lines
        ),
        Ending::Unfinished => {
            format!(
                "no end of the run after line {}: it was killed, its disk was full, or the file was cut there",
                report.lines
            )
        }
        Ending::Unsealed if report.checkpoints == 0 && report.unknown_keys.is_empty() => {
            "nothing signs it: written with --audit-key none, or the checkpoint was cut off".into()
        }
        Ending::Unsealed | Ending::Sealed => "the checkpoint at its end is missing".into(),
    }
}

fn as_json(source: &Source, report: &Verification, is_other_key: bool) -> Value {
    let standing = match report.standing() {
        Standing::Whole => "whole",
        Standing::Unfinished => "unfinished",
        Standing::UnknownKey => "unknown_key",
        Standing::Tampered => "tampered",
    };
    let ending = match report.ending {
        Ending::Sealed => "sealed",
        Ending::Unsealed => "unsealed",
        Ending::Unfinished => "unfinished",
        Ending::Empty => "empty",
        Ending::MidLine => "mid_line",
    };
    let policies = report.policies.iter().map(|policy| {
        let stored = match policy.beside {
            Beside::Same => "same",
            Beside::Differs => "differs",
            Beside::Missing => "missing",
        };
        json!({"sha256": policy.sha256, "stored": stored})
    });
    json!({
        "record": source.path().map(|path| path.to_string_lossy()),
        "run": report.run,
        "standing": standing,
        "ending": ending,
        "being_written": is_open(source),
        "lines": report.lines,
        "covered": report.covered,
        "checkpoints": report.checkpoints,
        "key": report.key.as_ref().map(ToString::to_string),
        "other_key_than_own": is_other_key,
        "unknown_keys": report.unknown_keys,
        "unsigned_from": report.unsigned_tail().map(|(first, _)| first),
        "notes": report.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "more_notes": report.more_notes,
        "first": report.span.as_ref().map(|(first, _)| first),
        "last": report.span.as_ref().map(|(_, last)| last),
        "policies": policies.collect::<Vec<_>>(),
        "findings": report.findings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "more_findings": report.more,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_that_signs_is_known_whatever_stands_beside_it() {
        let home = std::env::temp_dir().join(format!("exeat-own-keys-{}", std::process::id()));
        let place = RecordDir::from_env(None, Some(home.as_os_str())).unwrap();
        assert_eq!(own_keys(&place).unwrap(), []);
        // A run makes no home directory.
        std::fs::create_dir(&home).unwrap();
        place.prepare().unwrap();
        let (path, vkey) = (place.key_path(), place.key_path().with_extension("pub"));
        let old = SigningKey::load_or_make(&path).unwrap().0;
        assert_eq!(own_keys(&place).unwrap(), [old.verifying().clone()]);
        // The key alone was moved away, and another one made.
        std::fs::remove_file(&path).unwrap();
        assert_eq!(own_keys(&place).unwrap(), [old.verifying().clone()], "for whoever only checks");
        let new = SigningKey::load_or_make(&path).unwrap().0;
        assert_eq!(own_keys(&place).unwrap(), [old.verifying().clone(), new.verifying().clone()]);
        std::fs::remove_file(&vkey).unwrap();
        assert_eq!(own_keys(&place).unwrap(), [new.verifying().clone()]);
        std::fs::remove_dir_all(home).unwrap();
    }
}
