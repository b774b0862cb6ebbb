//! Reads what a program prints.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::fcntl::OFlag;

use crate::sys::PidFd;
use crate::wait::wait;

/// Bytes of bubblewrap's output that a message quotes.
const SAID: u64 = 1024;

/// Returns the first line that a program prints for an argument. It runs without the caller's environment, and is killed when it is
/// late.
#[expect(
    clippy::disallowed_methods,
    reason = "the other place that starts a process: it asks bubblewrap for its version"
)]
pub(crate) fn first_line(program: &Path, argument: &str, by: Instant) -> io::Result<String> {
    let mut command = Command::new(program);
    command.arg(argument).env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let ended = i32::try_from(child.id())
        .map_err(io::Error::other)
        .and_then(PidFd::open)
        .and_then(|process| wait(process.as_fd(), process.as_fd(), None, by));
    let is_late = !matches!(ended, Ok(Some(_)));
    if is_late {
        // Not reaped yet, so the pid is still its own; the wait below reports the end in any case.
        let _ = child.kill();
    }
    child.wait()?;
    let said = child.stdout.take().map(what_is_there).unwrap_or_default();
    ended?;
    if is_late {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(String::from_utf8_lossy(&said).lines().next().unwrap_or_default().trim().to_owned())
}

/// Reads what a pipe holds now: another process could keep its other end open for ever. Errors end the text.
pub(crate) fn what_is_there(pipe: impl Read + AsFd) -> Vec<u8> {
    let mut said = Vec::new();
    if nix::fcntl::fcntl(&pipe, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok() {
        let _ = pipe.take(SAID).read_to_end(&mut said);
    }
    said
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn does_not_wait_for_a_program_that_hangs_or_leaves_a_child() {
        let dir = std::env::temp_dir().join(format!("exeat-first-line-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        // A shell reads the script: executing a fresh file fails while any forked child holds it open for writing.
        let script = |name: &str, text: &str| {
            let path = dir.join(name).to_str().unwrap().to_owned();
            std::fs::write(&path, text).unwrap();
            path
        };
        let leaves = script("leaves", "echo one; /bin/sleep 20 &");
        let hangs = script("hangs", "exec /bin/sleep 20");
        let shell = Path::new("/bin/sh");
        let start = Instant::now();
        let by = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert_eq!(first_line(shell, &leaves, by(10)).unwrap(), "one");
        assert_eq!(first_line(shell, &hangs, by(1)).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
