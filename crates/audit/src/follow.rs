//! Follows a record while it grows: first its existing lines, then each new one.
//!
//! Changes nothing and does not delay the writer, which does not know about it. Polls the file as often as its caller allows, because a
//! record may be on a file system that does not report changes.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use exeat_record::is_being_written;
use nix::fcntl::OFlag;

use crate::query::Reader;
use crate::runs;

/// The size of one read.
const ROOM: usize = 64 * 1024;

/// Opens a record that may still be written. Reading ends with the end of the run, or of its writer.
///
/// `pause` is called when there is nothing to read, and should wait a moment. Its error ends the reading, except for
/// [`io::ErrorKind::WouldBlock`]: the reader then returns it, and can be called again.
pub fn follow<P: FnMut() -> io::Result<()>>(path: &Path, pause: P) -> io::Result<Reader<Growing<P>>> {
    // O_NONBLOCK: a named pipe must not block here.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(Reader::new(Growing {
        file,
        path: path.to_owned(),
        room: vec![0; ROOM],
        at: 0,
        whole: 0,
        filled: 0,
        is_new: true,
        is_over: false,
        pause,
    }))
}

/// The bytes of a file, including those still to be written, up to the end of its run.
#[derive(Debug)]
pub struct Growing<P> {
    file: File,
    path: PathBuf,
    room: Vec<u8>,
    at: usize,
    /// The end of the last whole line.
    whole: usize,
    /// The end of the bytes read; a part of a line may follow `whole`.
    filled: usize,
    /// Whether something was read since the last check for the end of the run.
    is_new: bool,
    /// Whether the writer has stopped, so that only bytes already in the file remain.
    is_over: bool,
    pause: P,
}

impl<P> Growing<P> {
    /// Whether nothing more will be written.
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
        while self.at >= self.whole {
            self.room.copy_within(self.whole..self.filled, 0);
            self.filled -= self.whole;
            (self.at, self.whole) = (0, 0);
            let count = match self.room.get_mut(self.filled..) {
                Some(room) => self.file.read(room)?,
                None => 0,
            };
            let read = self.room.get(..self.filled + count).unwrap_or_default();
            let line_ends = read.iter().rposition(|&byte| byte == b'\n');
            self.filled = read.len();
            if let Some(at) = line_ends {
                self.whole = at + 1;
            } else if self.filled == self.room.len() || (count == 0 && self.is_over) {
                // This is more than a line, or the end, which may be a part of a line.
                self.whole = self.filled;
                break;
            }
            if count > 0 {
                (self.is_new, self.is_over) = (true, false);
                continue;
            }
            self.is_over = self.is_gone()?;
            if !self.is_over {
                // The checkpoint after the end of a run is written a moment later.
                self.is_over =
                    std::mem::take(&mut self.is_new) && runs::has_ended(&self.path).unwrap_or(false);
                (self.pause)()?;
            }
        }
        Ok(self.room.get(self.at..self.whole).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.at = self.at.saturating_add(count).min(self.whole);
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
