//! The attempt to survive when exeat is killed.

use std::fs;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use crate::sys;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

/// The name of the attempt.
pub const ID: &str = "survive";
/// A short description for the user.
pub const TITLE: &str = "living on when exeat is killed";
/// The rows of docs/threats.md that the attempt tests.
pub const ROWS: &[&str] = &["B32"];
/// The word that the survivor prints when it is ready.
pub(crate) const ALIVE: &str = "alive";

/// The longest life of the survivor.
const LIFE: Duration = Duration::from_secs(20);

/// Runs the stage: starts a survivor and waits for it.
pub(super) fn outlive() -> io::Result<()> {
    sys::apart(LIFE, || {
        // A failure shows by the missing word of the survivor.
        let _ = survivor();
        Vec::new()
    })?;
    Ok(())
}

/// Leaves the session, ignores signals, prints that it is ready, and stays for a while.
fn survivor() -> io::Result<()> {
    nix::unistd::setsid()?;
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT, Signal::SIGPIPE] {
        sys::ignore(signal)?;
    }
    let mut out = io::stdout().lock();
    out.write_all(ALIVE.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush())?;
    std::thread::sleep(LIFE);
    Ok(())
}

/// Finds the processes that have this word among their arguments.
pub(crate) fn find_processes(token: &str) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|word| word == token.as_bytes())
    })
    .map(Pid::from_raw)
    .collect()
}

/// Waits up to `limit` until all such processes have ended. Returns those that remain.
pub(crate) fn until_gone(token: &str, limit: Duration) -> Vec<Pid> {
    let end = Instant::now() + limit;
    loop {
        let left = find_processes(token);
        if left.is_empty() || Instant::now() > end {
            return left;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
