//! Which process of a sandbox has a connection, found from the host. Nothing may be decided by what is found: a stage can hand a
//! connection to another process, hide a process, or make so many that none is found.
//!
//! Only processes of the sandbox are looked at, through its own `/proc` as in [`inside`](crate::inside). A look reads a bounded number
//! of processes and descriptors, and takes no more processor time than it is given.

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
use crate::inside::Inside;
use crate::spec::Identity;
use crate::sys;
use diag::Diag;

/// Processes that are looked at for one connection: those that came last, after the one that was found last.
const PROCESSES: usize = 1024;

/// Descriptors that are looked at for one connection.
const DESCRIPTORS: u32 = 8192;

/// Numbers without a descriptor after which the list is asked for. The kernel gives the lowest that is free (open(2)).
const GAP: u32 = 16;

/// Descriptors between two looks at the clock: some ten microseconds.
const UNTIMED: u32 = 16;

/// Finds processes. Dropping it releases the sandbox's network and processes.
#[derive(Debug)]
pub struct Finder {
    diag: Diag,
    inside: Inside,
    /// Whose the processes are.
    identity: Identity,
    /// The process that was found last, and its descriptor: many clients connect again and again.
    last: Option<(i32, u32)>,
}

/// A process, as it was for a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// As the host sees it.
    pub pid: u32,
    /// Its parent, as the host sees it, where it could be told.
    pub ppid: Option<u32>,
    /// The file that it executes, by its path inside the sandbox, where it could be told. With ` (deleted)` behind it where it has no
    /// name any more (proc_pid_exe(5)).
    pub exe: Option<PathBuf>,
}

/// A process that has the socket, held so that its number can be told from that of a later one.
struct Holder {
    /// In the sandbox's pid namespace.
    pid: i32,
    /// `/proc/PID`, and `/proc/PID/fd`.
    place: OwnedFd,
    descriptors: OwnedFd,
    number: u32,
}

impl Finder {
    /// With a socket of the sandbox's network namespace that the kernel answers on (sock_diag(7)).
    pub(crate) fn new(diag: OwnedFd, inside: Inside, identity: Identity) -> Self {
        Self { diag: Diag::new(diag), inside, identity, last: None }
    }

    /// Takes the rights to look at the sandbox's processes, for as long as this thread lives: where it is root's and lacks the
    /// capabilities, those of the user whose the processes are. To be called by a thread that does nothing else.
    ///
    /// # Errors
    /// What setresuid(2) says.
    pub fn take_rights(&self) -> io::Result<()> {
        match self.identity {
            Identity::Other { uid, gid } if !sys::may_look_at_others() => {
                Ok(sys::take_credentials(uid, gid)?)
            }
            _ => Ok(()),
        }
    }

    /// The process that has the client's end of a connection within the sandbox's network; the first one found, where several have it.
    /// `None` where none is found with this much processor time, whatever the reason.
    pub fn find(&mut self, client: SocketAddr, server: SocketAddr, longest: Duration) -> Option<Process> {
        let mut look = Look { by: cpu_time().saturating_add(longest), left: DESCRIPTORS };
        let inode = self.diag.inode(client, server)?;
        let link = format!("socket:[{inode}]");
        let holder = self.holder(link.as_ref(), &mut look)?;
        self.last = Some((holder.pid, holder.number));
        let pid = self.inside.on_host(holder.pid, || look.is_over())?;
        let ppid = stat_of(pid).and_then(|stat| u32::try_from(stat.parent).ok()).filter(|&parent| parent > 0);
        let exe = readlinkat(&holder.place, "exe").ok().map(PathBuf::from);
        // It still lives and has it: so all of that was told of this process, and of none to which its number passed.
        holder.has(link.as_ref()).then_some(())?;
        Some(Process { pid: u32::try_from(pid).ok()?, ppid, exe })
    }

    fn holder(&self, link: &OsStr, look: &mut Look) -> Option<Holder> {
        if let Some(found) = self.last.and_then(|(pid, number)| look.through(&self.inside, pid, number, link))
        {
            return Some(found);
        }
        let last = self.last.map(|(pid, _)| pid);
        let mut pids = self.inside.pids().ok()?;
        pids.sort_unstable();
        let newest = pids.into_iter().rev().filter(|&pid| Some(pid) != last);
        newest
            .take(PROCESSES)
            .map_while(|pid| (!look.is_over()).then(|| look.through(&self.inside, pid, 0, link)))
            .flatten()
            .next()
    }
}

impl Holder {
    fn has(&self, link: &OsStr) -> bool {
        target_of(&self.descriptors, self.number).is_some_and(|target| target == link)
    }
}

/// What one look may still read.
struct Look {
    /// Processor time of this thread.
    by: Duration,
    /// Descriptors.
    left: u32,
}

impl Look {
    fn is_over(&self) -> bool {
        self.left == 0 || cpu_time() >= self.by
    }

    /// Looks for a socket among the descriptors of a process, from this number on, and then below it.
    fn through(&mut self, inside: &Inside, pid: i32, first: u32, link: &OsStr) -> Option<Holder> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let place = openat(inside.proc(), pid.to_string().as_str(), flags, Mode::empty()).ok()?;
        let descriptors = openat(&place, "fd", flags, Mode::empty()).ok()?;
        // How many there are (since Linux 6.2), or 0.
        let count = fstat(&descriptors).ok().and_then(|about| u32::try_from(about.st_size).ok());
        let mut unseen = count.filter(|&count| count > 0).unwrap_or(u32::MAX);
        let number = self
            .among(&descriptors, first..u32::MAX, &mut unseen, link)
            .or_else(|| self.among(&descriptors, 0..first, &mut unseen, link))
            .or_else(|| if unseen > 0 { self.listed(&descriptors, link) } else { None })?;
        Some(Holder { pid, place, descriptors, number })
    }

    /// Tries the numbers one by one: to ask for a list takes longer than to look at what is on it.
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

    /// Asks for the list: for numbers that lie far apart.
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

    /// Whether one descriptor more may be looked at.
    fn goes_on(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        if self.left.is_multiple_of(UNTIMED) && self.is_over() {
            self.left = 0;
        }
        self.left > 0
    }
}

/// What a descriptor is, in the kernel's words.
fn target_of(descriptors: &OwnedFd, number: u32) -> Option<std::ffi::OsString> {
    readlinkat(descriptors, number.to_string().as_str()).ok()
}

/// Processor time that this thread has used. At its end where the kernel does not tell, so that nothing is looked at.
pub fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::MAX, Duration::from)
}

#[cfg(test)]
mod tests;
