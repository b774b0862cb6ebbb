//! The processes of a sandbox after all of them were stopped, and what sees that one goes on.
//!
//! SIGCONT continues a process even if nobody sends it: a timer, a lock of a file or a message queue may, at the stage's own order
//! (sigevent(3type), `F_SETSIG` in fcntl(2)). Such a process may stop itself again within a millisecond. So it is not the state
//! that counts, but the processor time: it does not grow as long as no thread of a process runs, and no process comes to be as
//! long as no other runs.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{MsgFlags, recv, send};

use super::PidFd;
use super::helper::Helper;
use crate::control::Stat;

/// From one look at the processes to the next, in milliseconds.
const LOOK: libc::c_int = 20;

/// What the processes of a sandbox do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rest {
    /// All are stopped, or there is none.
    Stopped,
    /// One waits for a file system or a device, and cannot stop before it has what it waits for (state `D`, proc_pid_stat(5)).
    Waiting,
    /// One goes on.
    GoesOn,
}

/// The processes of a sandbox at one moment, without its first. Two that are equal have no work between them.
#[derive(Debug, PartialEq, Eq)]
pub struct Processes {
    /// Each with the processor time of all its threads, in nanoseconds.
    times: Vec<(libc::pid_t, i64)>,
    rest: Rest,
}

/// A process of this side that ends a sandbox when one of its processes goes on, and then wakes this process until it asks.
#[derive(Debug)]
pub struct StopWatch(Helper);

impl Processes {
    /// Those that descend from this process, as `/proc` has them. One whose parent ends meanwhile may be missing: not so the
    /// next time.
    ///
    /// # Errors
    /// Where `/proc` cannot be read.
    pub(crate) fn of(init: libc::pid_t) -> io::Result<Self> {
        let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
        for pid in numbers("/proc")? {
            if let Some(stat) = stat(&format!("/proc/{pid}/stat")) {
                children.entry(stat.parent).or_default().push(pid);
            }
        }
        let mut found = Self { times: Vec::new(), rest: Rest::Stopped };
        let mut parents = vec![init];
        while let Some(parent) = parents.pop() {
            for pid in children.remove(&parent).unwrap_or_default() {
                parents.push(pid);
                // What has ended does not run again, and may be taken off the list at any time.
                let (Some(rest), Some(time)) = (rest_of(pid), time_of(pid)) else { continue };
                // After vfork(2) it does not go on before the child does, and that one is stopped.
                let has_vforked =
                    || children.get(&pid)?.iter().find(|child| super::share_memory(pid, **child));
                let is_still = rest == Rest::Waiting && has_vforked().is_some();
                found.times.push((pid, time));
                found.rest = found.rest.max(if is_still { Rest::Stopped } else { rest });
            }
        }
        found.times.sort_unstable();
        Ok(found)
    }

    /// Whether this is one of them.
    pub(crate) fn has(&self, pid: libc::pid_t) -> bool {
        self.times.iter().any(|(it, _)| *it == pid)
    }

    /// What they do.
    #[must_use]
    pub fn rest(&self) -> Rest {
        self.rest
    }

    /// Starts what watches that they stay as they are. `lifeline` ends the sandbox where its first process may not be signalled.
    ///
    /// # Errors
    /// What pidfd_open(2), socketpair(2) and clone(2) say.
    pub(crate) fn watch(&self, init: &PidFd, lifeline: BorrowedFd<'_>) -> io::Result<StopWatch> {
        let this = PidFd::open(std::process::id().cast_signed())?;
        let lifeline = lifeline.as_raw_fd();
        let kept = [init.as_fd().as_raw_fd(), this.as_fd().as_raw_fd(), lifeline];
        // SAFETY: `look` makes system calls only.
        let helper = unsafe {
            Helper::start(c"sandbox-suspend", &kept, |control| {
                look(control, &self.times, init, lifeline, &this);
            })
        };
        Ok(StopWatch(helper?))
    }
}

impl StopWatch {
    /// Looks once more, and ends. Returns whether a process went on: the sandbox is to be ended then, if it is not yet.
    ///
    /// # Errors
    /// Where the process does not answer within two seconds, or is gone.
    pub fn end(self) -> io::Result<bool> {
        self.0.with(|socket| {
            let socket = socket.as_raw_fd();
            let mut answer = [0_u8];
            send(socket, &answer, MsgFlags::MSG_NOSIGNAL)?;
            loop {
                match recv(socket, &mut answer, MsgFlags::empty()) {
                    // After SIGCONT, also without a handler (signal(7)).
                    Err(Errno::EINTR) => {}
                    Ok(1) => return Ok(answer != [0]),
                    Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Err(errno) => return Err(errno.into()),
                }
            }
        })
    }
}

/// Looks until it is asked, or the other end is closed.
fn look(control: RawFd, times: &[(libc::pid_t, i64)], init: &PidFd, lifeline: RawFd, this: &PidFd) {
    // What goes on may be many processes, and they are not to be ahead of this one.
    super::prefer_this_thread();
    let mut goes_on = false;
    loop {
        let mut asked = libc::pollfd { fd: control, events: libc::POLLIN, revents: 0 };
        // SAFETY: a live local.
        let ready = unsafe { libc::poll(&raw mut asked, 1, LOOK) };
        goes_on = goes_on || times.iter().any(|(pid, time)| time_of(*pid) != Some(*time));
        if ready > 0 {
            let mut byte = 0_u8;
            // SAFETY: a live local of that length.
            unsafe {
                if libc::recv(control, (&raw mut byte).cast(), 1, 0) == 1 {
                    byte = u8::from(goes_on);
                    libc::send(control, (&raw const byte).cast(), 1, libc::MSG_NOSIGNAL);
                }
            }
            return;
        }
        if goes_on {
            match init.signal(libc::SIGKILL) {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                    // SAFETY: takes numbers only. It acts on the socket, whoever has it open.
                    unsafe { libc::shutdown(lifeline, libc::SHUT_RDWR) };
                }
                _ => {}
            }
            // Again and again: it may have come before that process had stopped.
            let _ = this.signal(libc::SIGCONT);
        }
    }
}

/// The processor time of a process, all of whose threads count, in nanoseconds. Nobody is refused this.
fn time_of(pid: libc::pid_t) -> Option<i64> {
    // As clock_getcpuclockid(3) makes it: `CPUCLOCK_SCHED` is 2 (include/linux/posix-timers_types.h).
    let clock = (!pid << 3) | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live local.
    let told = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time) };
    (told == 0).then(|| time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec))
}

/// What the threads of a process do; `None` where all have ended.
fn rest_of(pid: libc::pid_t) -> Option<Rest> {
    let threads = numbers(&format!("/proc/{pid}/task")).ok()?;
    let states = threads.into_iter().filter_map(|thread| stat(&format!("/proc/{pid}/task/{thread}/stat")));
    let rest = states.filter_map(|stat| match stat.state {
        'Z' | 'X' => None,
        'T' | 't' => Some(Rest::Stopped),
        'D' => Some(Rest::Waiting),
        _ => Some(Rest::GoesOn),
    });
    rest.max()
}

fn stat(path: &str) -> Option<Stat> {
    Stat::parse(&fs::read_to_string(path).ok()?)
}

/// The entries of a directory that are numbers.
fn numbers(directory: &str) -> io::Result<Vec<i32>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(numbers)
}
