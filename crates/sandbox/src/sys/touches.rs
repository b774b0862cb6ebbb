//! Reports which files of a directory each process opened, changed and closed (fanotify(7)).
//!
//! inotify(7) merges two equal events in a row, so it cannot show that two processes opened a file. fanotify separates the events of
//! different processes, but names the process only to root.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use nix::errno::Errno;
use nix::libc;

/// A watch on directories.
#[derive(Debug)]
pub struct Touches(OwnedFd);

/// The actions of a process on a file in a watched directory.
#[derive(Debug)]
pub struct Touch {
    /// The file, whatever its names.
    pub file: FileHandle,
    /// Its name at the time of the event.
    pub name: OsString,
    /// The file was opened.
    pub is_open: bool,
    /// The file was written to or truncated.
    pub is_change: bool,
    /// The file was closed after it had been open for writing.
    pub is_close: bool,
}

/// A file's handle, which no other file of its file system ever gets (name_to_handle_at(2)).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FileHandle {
    kind: i32,
    bytes: Vec<u8>,
}

/// Fixed size of an event, before its information records.
const EVENT: usize = mem::size_of::<libc::fanotify_event_metadata>();
/// Bytes before the handle in an information record: its type, its length, and the id of the file system.
const RECORD: usize = 12;
/// Maximum size of a handle (MAX_HANDLE_SZ).
const HANDLE: usize = 128;

impl Touches {
    /// # Errors
    /// Returns the error of fanotify_init(2): `EPERM` before Linux 5.13, `EMFILE` if the user has no instance left.
    pub fn new() -> io::Result<Self> {
        let flags = libc::FAN_CLASS_NOTIF
            | libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK
            | libc::FAN_REPORT_DFID_NAME
            | libc::FAN_REPORT_FID;
        // SAFETY: takes numbers.
        let fd = Errno::result(unsafe { libc::fanotify_init(flags, libc::O_RDONLY.cast_unsigned()) })?;
        // SAFETY: the call returned a new descriptor that nothing else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches a directory. Follows links in its path.
    ///
    /// # Errors
    /// Returns the error of fanotify_mark(2): `ENODEV`, `EOPNOTSUPP` or `EXDEV` for a file system without handles or an id.
    pub fn watch(&self, dir: &Path) -> io::Result<()> {
        let path = CString::new(dir.as_os_str().as_bytes())?;
        let events = libc::FAN_OPEN | libc::FAN_MODIFY | libc::FAN_CLOSE_WRITE | libc::FAN_EVENT_ON_CHILD;
        let flags = libc::FAN_MARK_ADD | libc::FAN_MARK_ONLYDIR;
        // SAFETY: the path is a C string; the rest are numbers.
        Errno::result(unsafe {
            libc::fanotify_mark(self.0.as_raw_fd(), flags, events, libc::AT_FDCWD, path.as_ptr())
        })?;
        Ok(())
    }

    /// Reads some of the events since the last call. The result is empty after the last event.
    ///
    /// # Errors
    /// Returns the error of read(2), and `InvalidData` if the kernel has dropped events or they have another form.
    pub fn read(&self) -> io::Result<Vec<Touch>> {
        let mut buffer = [0_u8; 8192];
        // SAFETY: a live local of that length.
        let read = unsafe { libc::read(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
        let length = match Errno::result(read) {
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Vec::new()),
            other => usize::try_from(other?).unwrap_or(0),
        };
        let mut rest = buffer.get(..length).unwrap_or_default();
        let mut touches = Vec::new();
        let malformed = || io::Error::from(io::ErrorKind::InvalidData);
        while !rest.is_empty() {
            let length =
                number(rest, 0).and_then(|length| usize::try_from(length).ok()).ok_or_else(malformed)?;
            let (event, next) = rest.split_at_checked(length).ok_or_else(malformed)?;
            touches.push(Touch::parse(event).ok_or_else(malformed)?);
            rest = next;
        }
        Ok(touches)
    }
}

impl AsFd for Touches {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Touch {
    /// Parses an event with two records, one for the name and one for the file. `None` for a report of dropped events.
    fn parse(event: &[u8]) -> Option<Self> {
        let mask = u64::from_ne_bytes(event.get(8..16)?.try_into().ok()?);
        let mut records = event.get(EVENT..)?;
        let (mut file, mut name) = (None, None);
        while !records.is_empty() {
            let length = u16::from_ne_bytes(records.get(2..4)?.try_into().ok()?);
            let (record, next) = records.split_at_checked(usize::from(length))?;
            let (handle, after) = FileHandle::parse(record.get(RECORD..)?)?;
            match *record.first()? {
                libc::FAN_EVENT_INFO_TYPE_FID => file = Some(handle),
                libc::FAN_EVENT_INFO_TYPE_DFID_NAME => {
                    let end = after.iter().position(|byte| *byte == 0)?;
                    name = Some(OsString::from_vec(after.get(..end)?.to_vec()));
                }
                _ => {}
            }
            records = next;
        }
        let has = |bit: u64| mask & bit != 0;
        let (is_open, is_change) = (has(libc::FAN_OPEN), has(libc::FAN_MODIFY));
        Some(Self { file: file?, name: name?, is_open, is_change, is_close: has(libc::FAN_CLOSE_WRITE) })
    }
}

impl FileHandle {
    /// # Errors
    /// Returns the error of name_to_handle_at(2).
    pub fn from_file(file: &File) -> io::Result<Self> {
        /// Linux 6.5: a handle that identifies the file but cannot open it, as in events.
        const AT_HANDLE_FID: libc::c_int = libc::AT_REMOVEDIR;
        let ask = |flags: libc::c_int| {
            let mut bytes = [0_u8; 8 + HANDLE];
            let size = u32::try_from(HANDLE).unwrap_or(0).to_ne_bytes();
            bytes.iter_mut().zip(size).for_each(|(place, byte)| *place = byte);
            let mut mount = 0;
            // SAFETY: the path is a C string, and the others are live locals: `struct file_handle` with the room that it states.
            Errno::result(unsafe {
                libc::name_to_handle_at(
                    file.as_raw_fd(),
                    c"".as_ptr(),
                    bytes.as_mut_ptr().cast(),
                    &raw mut mount,
                    libc::AT_EMPTY_PATH | flags,
                )
            })?;
            Ok(bytes)
        };
        let bytes = match ask(AT_HANDLE_FID) {
            Err(Errno::EINVAL) => ask(0),
            other => other,
        }?;
        Ok(Self::parse(&bytes).ok_or(Errno::EBADMSG)?.0)
    }

    /// Parses a `struct file_handle`, and returns the bytes after it too.
    fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let length = usize::try_from(number(bytes, 0)?).ok()?;
        let kind = number(bytes, 4)?.cast_signed();
        let (handle, after) = bytes.get(8..)?.split_at_checked(length)?;
        Some((Self { kind, bytes: handle.to_vec() }, after))
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
