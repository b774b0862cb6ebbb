//! Watches the processes of a sandbox after all of them were stopped, and notices when one continues.
//!
//! SIGCONT continues a process even if nobody sends it: a timer, a file lease or a message queue may, as the stage arranged
//! (sigevent(3type), `F_SETSIG` in fcntl(2)). Such a process may stop itself again within a millisecond. So the watch compares
//! processor time instead of state: it is constant while no thread of a process runs, and no process can be created while none runs.

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

/// Milliseconds between two checks of the processes.
const LOOK: libc::c_int = 20;

/// The state of a sandbox's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rest {
    /// Every process is stopped, or the sandbox has none.
    Stopped,
    /// A process waits for a file system or a device, and cannot stop before that (state `D`, proc_pid_stat(5)).
    Waiting,
    /// A process runs or sleeps without being stopped.
    GoesOn,
}

/// The processes of a sandbox at one moment, without its first. If two such values are equal, no process ran in between.
#[derive(Debug, PartialEq, Eq)]
pub struct StoppedProcesses {
    /// Each process with the processor time of all its threads, in nanoseconds.
    times: Vec<(libc::pid_t, i64)>,
    rest: Rest,
}

/// A helper that ends a sandbox when one of its processes continues, and then wakes this process until it asks.
#[derive(Debug)]
pub struct StopWatch(Helper);

impl StoppedProcesses {
    /// Lists the descendants of this process from `/proc`. A process whose parent ends meanwhile may be missing, but not from the
    /// next list.
    ///
    /// # Errors
    /// Returns an error if `/proc` cannot be read.
    pub(crate) fn descendants_of(init: libc::pid_t) -> io::Result<Self> {
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
                // A process that has ended does not run again, and may leave the list at any time.
                let (Some(rest), Some(time)) = (rest_of(pid), time_of(pid)) else { continue };
                // After vfork(2) the parent waits for its child, and the child is stopped.
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

    /// Whether the list contains this process.
    pub(crate) fn has(&self, pid: libc::pid_t) -> bool {
        self.times.iter().any(|(it, _)| *it == pid)
    }

    /// Returns the state of the processes.
    #[must_use]
    pub fn rest(&self) -> Rest {
        self.rest
    }

    /// Starts a watch on these processes. `lifeline` ends the sandbox if this process may not signal the sandbox's first one.
    ///
    /// # Errors
    /// Returns the error of pidfd_open(2), socketpair(2) or clone(2).
    pub(crate) fn watch(&self, init: &PidFd, lifeline: BorrowedFd<'_>) -> io::Result<StopWatch> {
        let this = PidFd::open(std::process::id().cast_signed())?;
        let lifeline = lifeline.as_raw_fd();
        let kept = [init.as_fd().as_raw_fd(), this.as_fd().as_raw_fd(), lifeline];
        // SAFETY: `watch` only makes system calls.
        let helper = unsafe {
            Helper::start(c"sandbox-suspend", &kept, |control| {
                watch(control, &self.times, init, lifeline, &this);
            })
        };
        Ok(StopWatch(helper?))
    }
}

impl StopWatch {
    /// Checks once more and ends the watch. Returns whether a process continued: the sandbox has to end then.
    ///
    /// # Errors
    /// Returns an error if the helper does not answer within two seconds or has ended.
    pub fn end(self) -> io::Result<bool> {
        self.0.with(|socket| {
            let socket = socket.as_raw_fd();
            let mut answer = [0_u8];
            send(socket, &answer, MsgFlags::MSG_NOSIGNAL)?;
            loop {
                match recv(socket, &mut answer, MsgFlags::empty()) {
                    // A call is interrupted by SIGCONT even without a handler (signal(7)).
                    Err(Errno::EINTR) => {}
                    Ok(1) => return Ok(answer != [0]),
                    Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Err(errno) => return Err(errno.into()),
                }
            }
        })
    }
}

/// Checks the processes until a request comes or the other end closes.
fn watch(control: RawFd, times: &[(libc::pid_t, i64)], init: &PidFd, lifeline: RawFd, this: &PidFd) {
    // Many processes may continue, and must not run before this one.
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
                    // SAFETY: takes numbers only. The shutdown acts on the socket, whoever has it open.
                    unsafe { libc::shutdown(lifeline, libc::SHUT_RDWR) };
                }
                _ => {}
            }
            // Repeated, since a signal may come before that process has stopped.
            let _ = this.signal(libc::SIGCONT);
        }
    }
}

/// Returns the processor time of all threads of a process, in nanoseconds. The kernel refuses it to nobody.
fn time_of(pid: libc::pid_t) -> Option<i64> {
    // Computed as in clock_getcpuclockid(3): `CPUCLOCK_SCHED` is 2 (include/linux/posix-timers_types.h).
    let clock = (!pid << 3) | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live local.
    let told = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time) };
    (told == 0).then(|| time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec))
}

/// Returns the state of a process's threads, or `None` if all have ended.
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

/// Lists the entries of a directory that are numbers.
fn numbers(directory: &str) -> io::Result<Vec<i32>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(numbers)
}
