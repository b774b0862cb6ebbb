//! The egress record as it is written: the events of a run, and their way to the disk.
//!
//! This crate does not decide, does not open connections and does not read records. It writes one JSON object a line (schema
//! `egress/1`) before the proxy answers, and it stops at the first line that it could not write: its
//! callers must then refuse everything, because nothing may be dialed without a line.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use exeat_record::{Event, Header, Log, Mode, RunId, RunNote, Sink, What};
//!
//! let header = Header { run: RunId::new(), stage: None, policy_sha256: String::new(), mode: Mode::Enforce };
//! let log = Log::start(Sink::create_file("run.jsonl".as_ref())?, header)?;
//! log.write(Event::Note(RunNote::new(What::PolicyReload)))?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

// The tests share their helpers with those of `exeat-audit`.
#[cfg(test)]
extern crate self as exeat_record;

pub mod checkpoint;
mod clock;
mod escape;
mod event;
pub mod file;
mod id;
pub mod key;
pub mod ledger;
pub mod line;
pub mod lock;
mod log;
pub mod place;
mod sink;
#[cfg(test)]
mod testing;
pub mod tree;

pub use clock::today;
pub use escape::{clip, escape};
pub use event::{
    Cause, Close, CloseCause, Event, Header, Holds, InLedger, Mode, Number, Process, Progress, Proto,
    Question, RequestDecision, RuleRef, RunEnd, RunNote, RunStart, Source, SourceRole, StoppedBy, Trace,
    Under, Via, What, signal_name,
};
pub use id::{ConnId, ParseRunIdError, RunId, random_number};
pub use key::{KeyError, SigningKey, VerifyingKey};
pub use line::{LEDGER_SCHEMA, MAX_LABEL_VALUE, MAX_LABELS, MAX_LINE, SCHEMA, ascii_json, line_schema};
pub use log::{CHECKPOINT_EVERY, Counts, LineFault, Log, LogError, NOTHING_BEFORE, Sealed, UNSIGNED};
pub use sink::{OpenError, Sink, is_being_written};

use sha2::{Digest, Sha256};

/// Returns the SHA-256 of bytes as 64 lower-case hexadecimal digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Returns bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        for nibble in [byte >> 4, byte & 0xf] {
            text.push(DIGITS.get(usize::from(nibble)).copied().unwrap_or('0'));
        }
    }
    text
}
