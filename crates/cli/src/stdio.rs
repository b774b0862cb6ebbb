//! Writes data to stdout and messages to stderr. Neither panics if the reader has gone.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use exeat_policy::{os_words, printable};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::failure::Failure;
use crate::terminal::speaker;

/// Writes data to stdout.
pub(crate) fn data(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(Failure::Stdout)
}

/// Writes JSON values to stdout, each on its line. What is not printable ASCII is escaped, so that a name in it cannot
/// control the terminal.
pub(crate) fn json(text: &str) -> Result<(), Failure> {
    let mut ascii = Vec::with_capacity(text.len());
    for line in text.lines() {
        exeat_record::ascii_json(&mut ascii, line).map_err(Failure::Stdout)?;
        ascii.push(b'\n');
    }
    data(&ascii)
}

/// Writes the output of a command to stdout: JSON values, or text.
pub(crate) fn out(text: &str, is_json: bool) -> Result<(), Failure> {
    if is_json { json(text) } else { data(text.as_bytes()) }
}

/// The remaining time that messages may wait for room in a non-blocking stderr: five seconds in total, because the stage may decide
/// the number of lines.
static PATIENCE: Mutex<Duration> = Mutex::new(Duration::from_secs(5));

/// Writes a message to stderr, in one write if there is room, so that lines of the stage do not get in between. A closed stderr
/// does not affect a run.
pub(crate) fn write_stderr(text: &str) {
    if !text.is_empty() {
        let mut patience = PATIENCE.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = write_patiently(&mut io::stderr().lock(), text.as_bytes(), &mut patience);
    }
}

/// Writes a line to stderr while a stage runs, or drops it if the write would have to wait. A stage may have the terminal in a mode in
/// which a line feed does not go back to the first column.
pub(crate) fn say_now(text: &str) {
    let mut err = io::stderr().lock();
    let is_ready = {
        let mut ready = [PollFd::new(err.as_fd(), PollFlags::POLLOUT)];
        matches!(poll(&mut ready, PollTimeout::ZERO), Ok(count) if count > 0)
    };
    if is_ready {
        let end = if err.is_terminal() { "\r\n" } else { "\n" };
        let _ = err.write_all(format!("{}: {}{end}", speaker(), printable(&os_words(text))).as_bytes());
    }
}

/// Writes JSON values to stderr, each on its line, escaped as those of [`json`] are.
pub(crate) fn say_json(text: &str) {
    let mut ascii = Vec::new();
    for line in text.lines() {
        if exeat_record::ascii_json(&mut ascii, line).is_ok() {
            ascii.push(b'\n');
        }
    }
    write_stderr(&String::from_utf8_lossy(&ascii));
}

/// Writes all bytes. Waits for a stream that another user has made non-blocking, and subtracts the waiting time from
/// `patience`.
fn write_patiently(
    out: &mut (impl Write + AsFd),
    mut bytes: &[u8],
    patience: &mut Duration,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if patience.is_zero() {
                    return Err(error);
                }
                let start = Instant::now();
                // Round up, so that the last millisecond is not a busy loop.
                let timeout =
                    PollTimeout::try_from(*patience + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
                // The next write shows the result, also if this was interrupted.
                let _ = poll(&mut [PollFd::new(out.as_fd(), PollFlags::POLLOUT)], timeout);
                *patience = patience.saturating_sub(start.elapsed());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Prints a line of a kind (`note`, `warning`) on stderr.
pub(crate) fn line(kind: &str, text: &str) {
    write_stderr(&format!("{}: {kind}: {}\n", speaker(), printable(&os_words(text))));
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    #[test]
    fn b12_a_full_stream_that_does_not_block_is_waited_for() {
        let (mut reader, mut writer) = UnixStream::pair().unwrap();
        writer.set_nonblocking(true).unwrap();
        let mut filled = 0;
        while let Ok(count) = writer.write(&[b'x'; 4096]) {
            filled += count;
        }
        let start = Instant::now();
        let mut patience = Duration::from_millis(300);
        // The lines may be the stage's: however many, they wait so long in all.
        for _ in 0..50 {
            write_patiently(&mut writer, b"words", &mut patience).unwrap_err();
        }
        assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        let reading = thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all)
        });
        let mut patience = Duration::from_secs(30);
        write_patiently(&mut writer, b"words", &mut patience).unwrap();
        assert!(patience < Duration::from_secs(30), "what was waited is gone");
        drop(writer);
        let all = reading.join().unwrap().unwrap();
        assert!(all.ends_with(b"words") && all.len() == filled + 5);
    }
}
