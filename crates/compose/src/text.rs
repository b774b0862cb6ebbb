//! Reads the text of policies, lists of rules and locks from files, descriptors and standard input.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use exeat_policy::file::MAX_FILE_BYTES;
use exeat_policy::{MAX_STORED_BYTES, printable, shell_word};
use exeat_record::lock::{self, Lock};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::fault::{Fault, Position};
use crate::machine::Machine;
use crate::named::{INLINE_POLICY, STDIN};

/// The maximal number of bytes searched for the first line of a lock, which comes after its comments.
const LOCK_BEGIN: u64 = 4096;

/// The name of a policy file in messages.
pub const POLICY_FILE: &str = "policy file";

/// Reads a policy file, or another file of that form: `what` names it if it cannot be read. Returns its text, the directory that its
/// paths are relative to, and its name in messages.
///
/// An argument that begins with `{` is itself the text of a policy file, in JSON.
pub fn read_policy(what: &str, path: &Path, machine: &Machine) -> Result<(String, PathBuf, String), Fault> {
    if let Some(text) = inline_policy(path).filter(|_| what == POLICY_FILE) {
        return Ok((text.to_owned(), machine.base.clone(), INLINE_POLICY.to_owned()));
    }
    if let Some(n) = descriptor(path)? {
        machine.note_descriptor(n);
        let shown = path.display().to_string();
        let mut from = take_descriptor(n, &shown, machine)?;
        let text = policy_text(TimedReader::new(&mut from, DEADLINE), &shown)?;
        return Ok((text, machine.base.clone(), shown));
    }
    if is_stdin(path) {
        machine.note_descriptor(0);
        let text = policy_text(io::stdin().lock(), STDIN)?;
        close_stdin()?;
        return Ok((text, machine.base.clone(), STDIN.to_owned()));
    }
    let shown = path.display().to_string();
    let file = open(what, path, &shown, machine)?;
    // A pipe (`--policy <(...)`) is not in a directory that the user chose.
    let regular = file.metadata().is_ok_and(|meta| meta.is_file());
    let beside = path.parent().filter(|_| regular).map(|parent| machine.base.join(parent));
    let base = beside.unwrap_or_else(|| machine.base.clone());
    Ok((policy_text(file, &shown)?, base, shown))
}

/// Reads a lock file. Returns its text and the parsed lock, or `None` if the file does not exist.
pub fn read_lock(path: &Path, shown: &str, machine: &Machine) -> Result<(String, Option<Lock>), Fault> {
    let shown = printable(shown);
    let bad = |error: io::Error| Fault::input(format!("cannot read `{shown}`")).because(error);
    let file = match machine.open_deciding(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((String::new(), None)),
        file => file.map_err(bad)?,
    };
    let most = u64::try_from(lock::MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    let mut text = String::new();
    file.take(most).read_to_string(&mut text).map_err(bad)?;
    match Lock::parse(&text) {
        Ok(lock) => Ok((text, Some(lock))),
        Err(error) if error.line() == 0 => Err(Fault::input(format!("`{shown}` is no lock: {error}"))),
        Err(error) => Err(Fault::at_each(vec![Position::new(shown, Some(error.line()), error.to_string())])),
    }
}

/// Whether an argument names a lock: by the extension `.lock`, or by the start of the file.
pub fn is_lock(path: &Path, machine: &Machine) -> bool {
    path.extension().is_some_and(|extension| extension == "lock")
        || begins_as_lock(path, machine).unwrap_or(false)
}

/// Looks for the first line of a lock in a regular file. Reading a pipe would consume what the command needs.
fn begins_as_lock(path: &Path, machine: &Machine) -> io::Result<bool> {
    let end = machine.links().walk(&machine.absolute(path))?;
    if !end.metadata()?.is_file() {
        return Ok(false);
    }
    let mut begin = Vec::new();
    end.read()?.take(LOCK_BEGIN).read_to_end(&mut begin)?;
    let mut lines = begin.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with(b"#"));
    Ok(first.is_some_and(|line| line.starts_with(b"schema ")))
}

/// Returns the command that writes a lock.
pub(crate) fn lock_command(shown: &str, stage: Option<&str>) -> String {
    let stage = stage.map(|stage| format!("--stage {} ", shell_word(stage))).unwrap_or_default();
    format!("after a run without --locked: exeat audit lock {stage}--last -o {}", shell_word(shown))
}

pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Returns the JSON text of a policy that an argument contains.
pub(crate) fn inline_policy(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| text.trim_start().starts_with('{'))
}

/// Parses the number of `fd:N`. A file with such a name is `./fd:N`.
pub(crate) fn descriptor(path: &Path) -> Result<Option<i32>, Fault> {
    let Some(number) = path.to_str().and_then(|text| text.strip_prefix("fd:")) else { return Ok(None) };
    // `parse` alone would accept a sign.
    match number.parse() {
        Ok(n) if n > 2 && number.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Some(n)),
        _ => Err(Fault::input(format!("`fd:{number}` is not a descriptor to read: fd:N with N from 3 on"))
            .hint("- is stdin; a file of this name is ./fd:...")),
    }
}

/// Takes over a descriptor of the caller and closes its number. No stage inherits it, and its writer notices the end of reading.
fn take_descriptor(n: i32, shown: &str, machine: &Machine) -> Result<File, Fault> {
    let taken = machine.take_fd("--policy", n)?;
    nix::unistd::close(n)
        .map_err(|error| Fault::machine(format!("cannot close `{shown}`")).because(error))?;
    Ok(taken.into())
}

/// The longest wait for the whole policy from a descriptor.
const DEADLINE: Duration = Duration::from_secs(30);

/// Reads a descriptor that may be a pipe or a socket until a deadline.
struct TimedReader<'f> {
    from: &'f mut File,
    end: Instant,
}

impl<'f> TimedReader<'f> {
    fn new(from: &'f mut File, patience: Duration) -> Self {
        Self { from, end: Instant::now() + patience }
    }
}

impl Read for TimedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self.end.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.from.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "it did not end in time")),
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            match self.from.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

pub(crate) fn open(what: &str, path: &Path, shown: &str, machine: &Machine) -> Result<File, Fault> {
    machine.open_deciding(path).map_err(|error| {
        let why = format!("cannot read the {what} `{}`", printable(shown));
        let whole = format!("{why}: {error}");
        let place = Position { file: shown.to_owned(), line: None, column: None, error: whole, meant: None };
        let failure = Fault::input(why).because(error).at(vec![place]);
        // `@FILE` is the form of curl and of `--allow`, so users write it here, too.
        match shown.strip_prefix('@') {
            Some(file) => failure.hint(format!("a path stands here without `@`: {}", shell_word(file))),
            None => failure,
        }
    })
}

/// Reads at most [`MAX_FILE_BYTES`] of UTF-8. A longer text is refused because cutting it could lose a rule.
pub(crate) fn text_of(from: impl Read, shown: &str) -> Result<String, Fault> {
    text_within(from, shown, MAX_FILE_BYTES)
}

/// Reads a policy, which may be larger than a file if it is stored beside a record. JSON of another form is refused later.
fn policy_text(mut from: impl Read, shown: &str) -> Result<String, Fault> {
    let mut first = [0];
    let has = from
        .read(&mut first)
        .map_err(|error| Fault::input(format!("cannot read `{shown}`")).because(error))?;
    let most = if first == *b"{" { MAX_STORED_BYTES } else { MAX_FILE_BYTES };
    let text = text_within(first.get(..has).unwrap_or_default().chain(from), shown, most)?;
    // What wrote it may have failed, and then its masks and limits would be missing.
    if text.trim_ascii().is_empty() {
        let why = format!("`{}` is empty", printable(shown));
        return Err(Fault::input(why).hint("a policy without any key is: schema = 1"));
    }
    Ok(text)
}

fn text_within(from: impl Read, shown: &str, most: usize) -> Result<String, Fault> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    from.take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| Fault::input(format!("cannot read `{shown}`")).because(error))?;
    if bytes.len() > most {
        return Err(Fault::input(format!("`{shown}` is larger than {most} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = u32::try_from(good.split(|byte| *byte == b'\n').count()).unwrap_or(u32::MAX);
        Fault::at_each(vec![Position::new(shown, Some(line), "the text is not UTF-8")])
    })
}

/// Replaces stdin, which was the policy, with `/dev/null`: the stage must not read the rest of it, such as a terminal's next line.
fn close_stdin() -> Result<(), Fault> {
    let closed =
        File::open("/dev/null").and_then(|null| nix::unistd::dup2_stdin(null).map_err(io::Error::from));
    closed.map_err(|error| Fault::machine("cannot close stdin after the policy").because(error))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_is_read_to_its_end_and_not_waited_for_without_one() {
        let (mut writer, reader) = UnixStream::pair().unwrap();
        let mut from = File::from(OwnedFd::from(reader));
        writer.write_all(b"schema = 1").unwrap();
        let mut text = String::new();
        let start = Instant::now();
        let waited = TimedReader::new(&mut from, Duration::from_millis(50)).read_to_string(&mut text);
        assert_eq!(waited.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < Duration::from_secs(20));
        writer.write_all(b"\n").unwrap();
        drop(writer);
        text.clear();
        TimedReader::new(&mut from, Duration::from_secs(30)).read_to_string(&mut text).unwrap();
        assert_eq!(text, "\n");
    }
}
