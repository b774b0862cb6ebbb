//! A record as it grows: what is there first, then each line as it comes.
//!
//! Changes nothing and holds nothing up: its writer does not know of it. It asks the file again and again, as often as its caller
//! lets it, since a record may lie where the kernel tells of no change.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::query::Reader;
use crate::{is_being_written, place};

/// Bytes that are read at once.
const ROOM: usize = 64 * 1024;

/// Opens a record that may still be written. Its end is the end of the run, or that of its writer.
///
/// `pause` is called when there is nothing to read: it waits for a moment. Its error ends the reading.
pub fn follow<P: FnMut() -> io::Result<()>>(path: &Path, pause: P) -> io::Result<Reader<Growing<P>>> {
    // O_NONBLOCK: a named pipe must not stop us here.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(Reader::new(Growing { file, path: path.to_owned(), room: vec![0; ROOM], at: 0, filled: 0, pause }))
}

/// What a file holds and will hold, up to the end of its run.
#[derive(Debug)]
pub struct Growing<P> {
    file: File,
    path: PathBuf,
    room: Vec<u8>,
    at: usize,
    filled: usize,
    pause: P,
}

impl<P> Growing<P> {
    /// Whether nothing more is to come but what was written already.
    fn is_gone(&self) -> io::Result<bool> {
        let meta = self.file.metadata()?;
        // exeat writes no line to a record that was removed or renamed.
        if meta.nlink() == 0 {
            return Ok(true);
        }
        match is_being_written(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            written => written.map(|written| !written),
        }
    }
}

impl<P: FnMut() -> io::Result<()>> BufRead for Growing<P> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let mut over = false;
        while self.at >= self.filled {
            (self.at, self.filled) = (0, self.file.read(&mut self.room)?);
            if self.filled > 0 {
                break;
            }
            // What was written between the last look and the end is read once more.
            if over {
                return Ok(&[]);
            }
            over = self.is_gone()?;
            if !over {
                // The checkpoint behind the end of a run comes a moment after it.
                over = place::has_ended(&self.path).unwrap_or(false);
                (self.pause)()?;
            }
        }
        Ok(self.room.get(self.at..self.filled).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.at = self.at.saturating_add(count).min(self.filled);
    }
}

impl<P: FnMut() -> io::Result<()>> Read for Growing<P> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut piece = self.fill_buf()?;
        let count = piece.read(out)?;
        self.consume(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
