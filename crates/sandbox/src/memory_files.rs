//! Memory files (memfd_create(2)) that the processes of a sandbox have open: no process need have mapped what is in them.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, readlinkat};
use nix::sys::stat::{Mode, fstat, fstatat};

use crate::inside::Inside;
use crate::sys;

/// Memory files that are remembered. A stage with more of them is stopped, as one that cannot be measured.
const MOST: usize = 1 << 16;

/// The memory files of a sandbox's processes, each counted once. A look ends at its deadline, and the next one goes on from there, so that
/// a stage with many descriptors does not hide a file behind them.
#[derive(Debug)]
pub struct MemoryFiles {
    /// The file system that the kernel makes them on.
    device: u64,
    /// By inode: their bytes, and the round that found them last.
    found: HashMap<u64, (u64, u64)>,
    /// Rounds over all processes that were begun.
    round: u64,
    /// The process and the descriptor that come next.
    next: (i32, i32),
}

impl MemoryFiles {
    /// Finds out which file system the kernel makes them on.
    ///
    /// # Errors
    /// What memfd_create(2) and fstat(2) say.
    pub fn new() -> io::Result<Self> {
        let device = fstat(sys::file_of(b"")?)?.st_dev;
        Ok(Self { device, found: HashMap::new(), round: 1, next: (0, 0) })
    }

    /// The most bytes that memory files can have on this machine: all shared memory that it has (`Shmem`, proc_meminfo(5)). Takes one
    /// read; where the kernel does not say, there is no bound.
    #[must_use]
    pub fn at_most() -> u64 {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("Shmem:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024))
    }

    /// Bytes of the memory files that are open in the sandbox, as far as they are found by then or were found in the round before.
    /// Those of a process that has made itself unreadable (`PR_SET_DUMPABLE`) are not found.
    ///
    /// # Errors
    /// When the sandbox's `/proc` cannot be read, and for more than 65 536 files.
    pub fn bytes(&mut self, inside: &Inside, by: Instant) -> io::Result<u64> {
        let mut pids = inside.pids()?;
        pids.sort_unstable();
        let (first, from) = self.next;
        for pid in pids.into_iter().filter(|pid| *pid >= first) {
            // The descriptor belongs to that process alone.
            let start = if pid == first { from } else { 0 };
            if let Some(next) = self.look_into(inside, pid, start, by)? {
                self.next = (pid, next);
                return Ok(self.sum());
            }
        }
        // The round is over: what it has not found again is gone.
        let round = self.round;
        self.found.retain(|_, (_, last)| *last == round);
        self.round += 1;
        self.next = (0, 0);
        Ok(self.sum())
    }

    /// Looks at one process's descriptors, from one on. Tells the next one where the time is over before the last.
    fn look_into(&mut self, inside: &Inside, pid: i32, from: i32, by: Instant) -> io::Result<Option<i32>> {
        /// Descriptors between two looks at the clock.
        const EACH: usize = 64;
        let place = format!("{pid}/fd");
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut descriptors = match Dir::openat(inside.proc(), place.as_str(), flags, Mode::empty()) {
            Ok(descriptors) => descriptors,
            // It has ended, or has made itself unreadable.
            Err(Errno::ENOENT | Errno::ESRCH | Errno::EACCES | Errno::EPERM) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        // The kernel lists them in ascending order (proc_readfd_common, fs/proc/fd.c).
        let numbers = descriptors.iter().map_while(Result::ok);
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str().ok()?.parse::<i32>().ok());
        for (count, number) in numbers.filter(|number| *number >= from).enumerate() {
            // At least some of them in each look, so that a round comes to its end.
            if count > 0 && count % EACH == 0 && Instant::now() >= by {
                return Ok(Some(number));
            }
            let path = format!("{place}/{number}");
            // The name first: to ask a file of a network for its size may take for ever.
            let is_memory_file = readlinkat(inside.proc(), path.as_str())
                .is_ok_and(|name| name.as_bytes().starts_with(b"/memfd:"));
            if !is_memory_file {
                continue;
            }
            let Ok(file) = fstatat(inside.proc(), path.as_str(), AtFlags::empty()) else { continue };
            if file.st_dev != self.device {
                continue;
            }
            if self.found.len() >= MOST && !self.found.contains_key(&file.st_ino) {
                return Err(io::Error::other("it has too many memory files open"));
            }
            let bytes = u64::try_from(file.st_blocks).unwrap_or(0).saturating_mul(512);
            self.found.insert(file.st_ino, (bytes, self.round));
        }
        Ok(None)
    }

    fn sum(&self) -> u64 {
        self.found.values().map(|(bytes, _)| *bytes).fold(0, u64::saturating_add)
    }
}
