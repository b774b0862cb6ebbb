//! Values that are added to a run's journal while it goes on.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::times::NotedHashes;

/// The longest journal that is read.
pub(super) const LONGEST: u64 = 64 << 20;

/// A value that follows the entries of a journal.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Added {
    /// The hashes that the survey has noted, for each entry.
    Noted(Vec<NotedHashes>),
    /// The host has removed a name that was read-only for the stage. What has it since may be the stage's.
    Free(#[serde(with = "crate::bytes")] PathBuf),
    /// The file that had such a name has it again.
    PutBack(#[serde(with = "crate::bytes")] PathBuf),
}

/// A journal that values are added to.
#[derive(Debug)]
pub(super) struct Additions(Mutex<File>);

impl Additions {
    pub(super) fn new(journal: File) -> Self {
        Self(Mutex::new(journal))
    }

    pub(super) fn add(&self, added: &Added) -> io::Result<()> {
        let bytes = serde_json::to_vec(added)?;
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let length = file.metadata()?.len();
        if length + bytes.len() as u64 > LONGEST {
            // The journal could not be read then.
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let written = file.write_all(&bytes);
        if written.is_err() {
            // A part of it would hide what is added afterwards.
            file.set_len(length)?;
            file.seek(SeekFrom::Start(length))?;
        }
        written
    }
}
