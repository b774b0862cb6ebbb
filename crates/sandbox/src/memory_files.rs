//! Measures the memory files (memfd_create(2)) that a sandbox's processes have open: their contents need not be mapped.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, readlinkat};
use nix::sys::stat::{Mode, fstat, fstatat};

use crate::inside::Meter;
use crate::sys;

/// Most memory files to remember. A stage with more cannot be measured and is stopped.
const MOST: usize = 1 << 16;

/// Descriptors, and threads, between two checks of the clock.
const EACH: usize = 64;

/// The memory files of a sandbox's processes, each counted once. A scan ends at its deadline and the next one continues from there,
/// so that a stage cannot hide a file among many descriptors.
#[derive(Debug)]
pub struct MemoryFiles {
    /// The file system that the kernel makes memory files on.
    device: u64,
    /// Bytes of each file by inode, with the round that found it last.
    found: HashMap<u64, (u64, u64)>,
    /// Number of rounds begun over all processes.
    round: u64,
    /// The process, its thread and the descriptor to scan next.
    next: (i32, i32, i32),
}

impl MemoryFiles {
    /// Finds out which file system the kernel makes memory files on.
    ///
    /// # Errors
    /// Returns the error of memfd_create(2) or fstat(2).
    pub fn new() -> io::Result<Self> {
        let device = fstat(sys::file_of(b"")?)?.st_dev;
        Ok(Self { device, found: HashMap::new(), round: 1, next: (0, 0, 0) })
    }

    /// Returns the most bytes that memory files can have on this machine: all of its shared memory (`Shmem`, proc_meminfo(5)). Reads
    /// one file; without an answer from the kernel, the number is unbounded.
    #[must_use]
    pub fn at_most() -> u64 {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("Shmem:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024))
    }

    /// Returns the bytes of the memory files open in the sandbox, as found until `by` or in the round before. Files of a process that
    /// made itself unreadable (`PR_SET_DUMPABLE`) are missing.
    ///
    /// # Errors
    /// Returns an error if the sandbox's `/proc` cannot be read, and for more than 65 536 files.
    pub fn bytes(&mut self, meter: &Meter, by: Instant) -> io::Result<u64> {
        let mut pids = meter.pids()?;
        pids.sort_unstable();
        let (first, thread, from) = self.next;
        for pid in pids.into_iter().filter(|pid| *pid >= first) {
            // The thread and the descriptor number are only meaningful for that process.
            let start = if pid == first { (thread, from) } else { (0, 0) };
            if let Some((thread, descriptor)) = self.scan_process(meter, pid, start, by)? {
                self.next = (pid, thread, descriptor);
                return Ok(self.sum());
            }
        }
        // The round is complete: files that it did not find are gone.
        let round = self.round;
        self.found.retain(|_, (_, last)| *last == round);
        self.round += 1;
        self.next = (0, 0, 0);
        Ok(self.sum())
    }

    /// Scans one process's descriptors from a thread and descriptor on. Returns where to go on if the time ends before that.
    fn scan_process(
        &mut self,
        meter: &Meter,
        pid: i32,
        (thread, from): (i32, i32),
        by: Instant,
    ) -> io::Result<Option<(i32, i32)>> {
        // Only a thread of several may have descriptors of its own (CLONE_FILES, unshare(2)).
        let threads = if meter.count_threads(pid) > 1 { meter.threads(pid)? } else { vec![pid] };
        let mut scanned: Option<i32> = None;
        for (count, next) in threads.into_iter().filter(|next| *next >= thread).enumerate() {
            // Each scan compares some threads, so that a round ends at some point.
            if count > 0 && count % EACH == 0 && Instant::now() >= by {
                return Ok(Some((next, 0)));
            }
            // Usually all threads share those of the first one.
            if next != pid
                && (meter.share_descriptors(next, pid)
                    || scanned.is_some_and(|last| meter.share_descriptors(next, last)))
            {
                continue;
            }
            let start = if next == thread { from } else { 0 };
            if let Some(descriptor) = self.scan_table(meter, next, start, by)? {
                return Ok(Some((next, descriptor)));
            }
            scanned = Some(next);
        }
        Ok(None)
    }

    /// Scans one thread's descriptors from `from` on. Returns the next descriptor if the time ends before the last one.
    fn scan_table(&mut self, meter: &Meter, thread: i32, from: i32, by: Instant) -> io::Result<Option<i32>> {
        let place = format!("{thread}/fd");
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut descriptors = match Dir::openat(meter.proc(), place.as_str(), flags, Mode::empty()) {
            Ok(descriptors) => descriptors,
            // The process has ended or made itself unreadable.
            Err(Errno::ENOENT | Errno::ESRCH | Errno::EACCES | Errno::EPERM) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        // The kernel lists them in ascending order (proc_readfd_common, fs/proc/fd.c).
        let numbers = descriptors.iter().map_while(Result::ok);
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str().ok()?.parse::<i32>().ok());
        for (count, number) in numbers.filter(|number| *number >= from).enumerate() {
            // Each scan checks some descriptors, so that a round ends at some point.
            if count > 0 && count % EACH == 0 && Instant::now() >= by {
                return Ok(Some(number));
            }
            let path = format!("{place}/{number}");
            // Check the name first: asking a network file system for a file's size may block for ever.
            let is_memory_file = readlinkat(meter.proc(), path.as_str())
                .is_ok_and(|name| name.as_bytes().starts_with(b"/memfd:"));
            if !is_memory_file {
                continue;
            }
            let Ok(file) = fstatat(meter.proc(), path.as_str(), AtFlags::empty()) else { continue };
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
