//! Writes a run to its ledger. The format of the ledger is in `exeat-record`.

use exeat_record::ledger::{
    Head, Ledger, LedgerEntry, NumberedRun, UnnumberedRun, oddity_note, unnumbered_note,
};
use exeat_record::place::RecordDir;
use exeat_record::{Cause, Event, Log, RunStart, SigningKey, Source};

use crate::error::{Error, chain};
use crate::request::AuditTo;
use crate::signing::{Signing, key_place};

/// The ledger for a run.
#[derive(Debug)]
pub(crate) enum RunLedger {
    /// The run has no ledger, because no lasting key signs the record.
    None,
    /// The ledger cannot be used, for this reason.
    Lost(String),
    /// The ledger, and the record's path if it is not in the default place.
    Of(Ledger, Option<String>),
}

impl RunLedger {
    /// Finds the ledger of the key that signs a record. With `sync`, each of its lines reaches the disk before the call returns.
    pub(crate) fn find(
        signing: &Signing,
        key: Option<&SigningKey>,
        place: Option<&RecordDir>,
        audit: &AuditTo,
        sync: bool,
    ) -> Self {
        let key = match (signing, key) {
            (Signing::Own | Signing::File(_), Some(key)) => key.clone(),
            _ => return Self::None,
        };
        let Some(own) = key_place(place) else { return Self::Lost("there is no state directory".into()) };
        let file = match audit {
            AuditTo::Default if Some(&own) == place => None,
            AuditTo::Default => place.map(|place| place.dir().display().to_string()),
            AuditTo::File(path) => Some(path.display().to_string()),
            AuditTo::Fd(_) => Some("a descriptor".into()),
        };
        match own.prepare() {
            Err(error) => Self::Lost(chain(&error)),
            Ok(()) => match Ledger::find(&own, key, sync) {
                Ok(ledger) => Self::Of(ledger, file),
                Err(error) => Self::Lost(error.to_string()),
            },
        }
    }
}

/// The state of a run in the ledger.
#[derive(Debug)]
pub(crate) enum Listed {
    /// The run has no ledger.
    None,
    /// The ledger lacks the run, for this reason. If a ledger exists, the end of the run is tried again.
    Unnumbered(String, Option<UnnumberedRun>),
    /// The ledger has the start of the run.
    Numbered(NumberedRun),
}

/// Writes the start of the run to its ledger, then the first lines of the record: who started the run, when, and under which policy.
/// Signs them.
pub(crate) fn begin(
    log: &Log,
    ledger: RunLedger,
    start: RunStart,
    sources: &[Source],
) -> Result<Listed, Error> {
    let listed = match ledger {
        RunLedger::Of(ledger, file) => {
            match ledger.begin(log, start, file.as_deref()).map_err(Error::Log)? {
                LedgerEntry::Numbered(numbered) => Listed::Numbered(numbered),
                LedgerEntry::Unnumbered(late) => Listed::Unnumbered(late.why.clone(), Some(late)),
            }
        }
        RunLedger::None => {
            log.write(Event::RunStart(start)).map_err(Error::Log)?;
            Listed::None
        }
        RunLedger::Lost(why) => {
            let ledger = exeat_record::InLedger::Unnumbered;
            log.write(Event::RunStart(RunStart { ledger, ..start })).map_err(Error::Log)?;
            Listed::Unnumbered(why, None)
        }
    };
    for source in sources {
        log.write(Event::Policy(source.clone())).map_err(Error::Log)?;
    }
    let note = match &listed {
        Listed::None => None,
        Listed::Unnumbered(why, _) => Some(unnumbered_note(why)),
        Listed::Numbered(numbered) => numbered.oddity.as_deref().map(oddity_note),
    };
    note.map(|note| log.write(note)).transpose().map_err(Error::Log)?;
    log.sign().map_err(Error::Log)?;
    Ok(listed)
}

impl Listed {
    /// Writes the end of the run once its record has it. Returns the ledger's head, or a line for the caller.
    pub(crate) fn end(self, log: &Log, cause: Cause) -> (Option<Head>, Option<String>) {
        match self {
            Self::None => (None, None),
            Self::Unnumbered(why, late) => {
                let is_late = late.is_some_and(|late| late.end(log, cause).is_ok());
                let end = if is_late { ", which has its end alone" } else { "" };
                (None, Some(format!("the run has no number in the ledger{end}: {why}")))
            }
            Self::Numbered(mut numbered) => match (numbered.oddity.take(), numbered.end(log, cause)) {
                (oddity, Ok(written)) => (Some(written.head), oddity.or(written.oddity)),
                (_, Err(error)) => {
                    (None, Some(format!("the ledger does not have the end of the run: {error}")))
                }
            },
        }
    }
}
