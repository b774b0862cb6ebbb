//! Finds the sandbox process that owns a connection, from the host. No decision may depend on the result: a stage can pass a
//! connection to another process, hide a process, or make too many of them.
//!
//! The search uses the sandbox's own `/proc`, as [`inside`](crate::inside) does, and so sees only its processes. It reads a bounded
//! number of processes and descriptors, and takes no more processor time than it is given.

mod diag;

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use nix::dir::Dir;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, fstat};
use nix::time::{ClockId, clock_gettime};

use crate::control::stat_of;
use crate::inside::Meter;
use crate::spec::Identity;
use crate::sys;
use diag::Diag;

/// Most processes searched for one connection: first the one found last, then the newest.
const PROCESSES: usize = 1024;

/// Most descriptors searched for one connection.
const DESCRIPTORS: u32 = 8192;

/// Unused numbers in a row after which the search reads the list. The kernel assigns the lowest free number (open(2)).
const GAP: u32 = 16;

/// Descriptors between two checks of the clock: about ten microseconds.
const UNTIMED: u32 = 16;

/// Finds the process of a connection. Dropping it releases the sandbox's network and processes.
#[derive(Debug)]
pub struct Finder {
    diag: Diag,
    meter: Meter,
    /// User that runs the processes.
    identity: Identity,
    /// The process found last, with its descriptor: many clients connect again and again.
    last: Option<(i32, u32)>,
}

/// A process, as it was at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketOwner {
    /// Its pid on the host.
    pub pid: u32,
    /// Its parent's pid on the host, if known.
    pub ppid: Option<u32>,
    /// The file that it executes, by its path inside the sandbox, if known. A deleted file has the suffix ` (deleted)`
    /// (proc_pid_exe(5)).
    pub exe: Option<PathBuf>,
}

/// A process that has the socket, held open so that a reused pid is noticed.
struct Holder {
    /// Pid in the sandbox's pid namespace.
    pid: i32,
    /// `/proc/PID`, and `/proc/PID/fd`.
    place: OwnedFd,
    descriptors: OwnedFd,
    number: u32,
}

impl Finder {
    /// Makes a finder from a sock_diag(7) socket of the sandbox's network namespace.
    pub(crate) fn new(diag: OwnedFd, meter: Meter, identity: Identity) -> Self {
        Self { diag: Diag::new(diag), meter, identity, last: None }
    }

    /// Takes the rights to inspect the sandbox's processes for the rest of this thread: root without the capabilities becomes their
    /// user. Call it on a thread that does nothing else.
    ///
    /// # Errors
    /// Returns the error of setresuid(2).
    pub fn take_rights(&self) -> io::Result<()> {
        match self.identity {
            Identity::Other { uid, gid } if !sys::may_look_at_others() => {
                Ok(sys::take_credentials(uid, gid)?)
            }
            _ => Ok(()),
        }
    }

    /// Finds the process that has the client's end of a connection in the sandbox's network, or the first of several. `None` if none
    /// is found within this processor time, whatever the reason.
    pub fn find(&mut self, client: SocketAddr, server: SocketAddr, longest: Duration) -> Option<SocketOwner> {
        let mut look = Look { by: cpu_time().saturating_add(longest), left: DESCRIPTORS };
        let inode = self.diag.inode(client, server)?;
        let link = format!("socket:[{inode}]");
        let holder = self.holder(link.as_ref(), &mut look)?;
        self.last = Some((holder.pid, holder.number));
        let pid = self.meter.on_host(holder.pid, || look.is_over())?;
        let ppid = stat_of(pid).and_then(|stat| u32::try_from(stat.parent).ok()).filter(|&parent| parent > 0);
        let exe = readlinkat(&holder.place, "exe").ok().map(PathBuf::from);
        // It still runs and has the socket: all answers above are about this process, not about one that reused its pid.
        holder.has(link.as_ref()).then_some(())?;
        Some(SocketOwner { pid: u32::try_from(pid).ok()?, ppid, exe })
    }

    fn holder(&self, link: &OsStr, look: &mut Look) -> Option<Holder> {
        if let Some(found) = self.last.and_then(|(pid, number)| look.through(&self.meter, pid, number, link))
        {
            return Some(found);
        }
        let last = self.last.map(|(pid, _)| pid);
        let mut pids = self.meter.pids().ok()?;
        pids.sort_unstable();
        let newest = pids.into_iter().rev().filter(|&pid| Some(pid) != last);
        newest
            .take(PROCESSES)
            .map_while(|pid| (!look.is_over()).then(|| look.through(&self.meter, pid, 0, link)))
            .flatten()
            .next()
    }
}

impl Holder {
    fn has(&self, link: &OsStr) -> bool {
        target_of(&self.descriptors, self.number).is_some_and(|target| target == link)
    }
}

/// Budget that a search has left.
struct Look {
    /// Processor time of this thread at which the search ends.
    by: Duration,
    /// Descriptors left to check.
    left: u32,
}

impl Look {
    fn is_over(&self) -> bool {
        self.left == 0 || cpu_time() >= self.by
    }

    /// Searches the descriptors of a process for a socket: from `first` on, then below it.
    fn through(&mut self, meter: &Meter, pid: i32, first: u32, link: &OsStr) -> Option<Holder> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let place = openat(meter.proc(), pid.to_string().as_str(), flags, Mode::empty()).ok()?;
        let descriptors = openat(&place, "fd", flags, Mode::empty()).ok()?;
        // Number of open descriptors (since Linux 6.2), or 0.
        let count = fstat(&descriptors).ok().and_then(|about| u32::try_from(about.st_size).ok());
        let mut unseen = count.filter(|&count| count > 0).unwrap_or(u32::MAX);
        let number = self
            .among(&descriptors, first..u32::MAX, &mut unseen, link)
            .or_else(|| self.among(&descriptors, 0..first, &mut unseen, link))
            .or_else(|| if unseen > 0 { self.listed(&descriptors, link) } else { None })?;
        Some(Holder { pid, place, descriptors, number })
    }

    /// Tries the numbers one by one, which is faster than asking for the list.
    fn among(&mut self, of: &OwnedFd, numbers: Range<u32>, unseen: &mut u32, link: &OsStr) -> Option<u32> {
        let mut gap = 0;
        for number in numbers {
            if *unseen == 0 || gap == GAP || !self.goes_on() {
                return None;
            }
            match target_of(of, number) {
                Some(target) if target == link => return Some(number),
                Some(_) => {
                    *unseen = unseen.saturating_sub(1);
                    gap = 0;
                }
                None => gap += 1,
            }
        }
        None
    }

    /// Reads the list of descriptors, for numbers that lie far apart.
    fn listed(&mut self, descriptors: &OwnedFd, link: &OsStr) -> Option<u32> {
        if self.is_over() {
            return None;
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = openat(descriptors, ".", flags, Mode::empty()).ok()?;
        let entries = Dir::from_fd(directory).ok()?.into_iter();
        let numbers =
            entries.map_while(Result::ok).filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok());
        for number in numbers {
            if !self.goes_on() {
                return None;
            }
            if target_of(descriptors, number).is_some_and(|target| target == link) {
                return Some(number);
            }
        }
        None
    }

    /// Whether one more descriptor may be checked.
    fn goes_on(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        if self.left.is_multiple_of(UNTIMED) && self.is_over() {
            self.left = 0;
        }
        self.left > 0
    }
}

/// Returns the kernel's description of a descriptor.
fn target_of(descriptors: &OwnedFd, number: u32) -> Option<std::ffi::OsString> {
    readlinkat(descriptors, number.to_string().as_str()).ok()
}

/// Returns the processor time that this thread has used, or the maximum if the kernel does not report it, so that searches end.
pub fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::MAX, Duration::from)
}

#[cfg(test)]
mod tests;
