//! Follows calls of the stage that may change or rename a file of the host without an event.
//!
//! Such a call opens nothing in a watched directory. So the kernel reports each before it runs (seccomp_unotify(2)), and it continues
//! once it is noted. Its arguments are not read because the stage could change them afterwards. If a file was made before any such call
//! began and while none was running, events report all its names, and only known writes changed it. A call can be delayed for a second,
//! so it counts until its end was observed.
//! can be made to wait for a second on its way, so it counts until it was seen to be over.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, PipeWriter};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use exeat_sandbox::{Next, Notice, Notices};
use nix::errno::Errno;

/// The maximal number of threads with running calls. Beyond it the result is "unknown".
const THREADS: usize = 256;
/// The time between two checks of these threads.
const LOOKS: Duration = Duration::from_millis(20);
/// Processor time within which a call ends: looking up the longest path takes some ten milliseconds.
const CALL: u64 = 1_000_000_000;
/// The longest delay of a file system's clock: a tick of the kernel is at most 10 ms.
const TICK: Duration = Duration::from_millis(20);

/// The calls of one stage, and the thread that receives them. It ends with the stage or on drop; from then on such a call fails.
#[derive(Debug)]
pub(super) struct Calls {
    state: Arc<Mutex<CallState>>,
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// The received calls.
#[derive(Debug, Default)]
struct CallState {
    /// When the last call began, or its end was observed.
    last: Option<SystemTime>,
    /// Threads whose call may still run.
    threads: BTreeMap<i32, OpenCall>,
    /// Whether a call was forgotten, or may not have been reported.
    is_lost: bool,
}

/// A call that may still run.
#[derive(Debug)]
struct OpenCall {
    number: i64,
    /// The processor time of its thread at the first check.
    since: Option<u64>,
}

impl Calls {
    /// Starts the thread that receives the calls.
    ///
    /// # Errors
    /// Returns an error if the pipe or the thread cannot be created.
    pub(super) fn new(notices: Notices) -> io::Result<Self> {
        let (stopped, stop) = io::pipe()?;
        let state = Arc::new(Mutex::new(CallState::default()));
        let shared = Arc::clone(&state);
        let body = move || {
            // Each call waits for this thread.
            exeat_sandbox::prefer_this_thread();
            loop {
                let longest = (!lock(&shared).threads.is_empty()).then_some(LOOKS);
                match notices.next(stopped.as_fd(), longest) {
                    Ok(Next::Call(call)) => {
                        lock(&shared).note(&call);
                        if notices.let_continue(&call).is_err() {
                            break;
                        }
                    }
                    Ok(Next::None) => lock(&shared).forget_ended(),
                    Ok(Next::Over) | Err(_) => break,
                }
            }
            lock(&shared).is_lost = true;
        };
        let thread = thread::Builder::new().name("calls".into()).spawn(body)?;
        Ok(Self { state, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns whether a call may have reached a file that was made at that time; `made` is `None` if its file system does not report it.
    pub(super) fn may_have_met(&self, made: Option<SystemTime>) -> bool {
        /// The number of checks, a millisecond apart: most calls end sooner.
        const IN_VAIN: u32 = 10;
        for _ in 0..IN_VAIN {
            if let Some(may_have) = lock(&self.state).may_have_met(made) {
                return may_have;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(state: &Mutex<CallState>) -> MutexGuard<'_, CallState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CallState {
    fn note(&mut self, call: &Notice) {
        self.last = Some(SystemTime::now());
        if self.threads.len() >= THREADS {
            self.forget_ended();
            self.is_lost |= self.threads.len() >= THREADS;
        }
        if self.threads.len() < THREADS {
            // A new call of a thread means that its previous one ended.
            self.threads.insert(call.thread, OpenCall { number: call.call, since: None });
        }
    }

    /// Implements [`Calls::may_have_met`]; `None` while a call runs.
    fn may_have_met(&mut self, made: Option<SystemTime>) -> Option<bool> {
        self.forget_ended();
        let is_later = |last: SystemTime| made.is_none_or(|made| last + TICK >= made);
        if self.is_lost || self.last.is_some_and(is_later) {
            return Some(true);
        }
        self.threads.is_empty().then_some(false)
    }

    /// Forgets the threads whose calls ended. A thread may have to wait for a processor before its call ends. The time of the end is
    /// unknown, so a call counts until now.
    fn forget_ended(&mut self) {
        let known = self.threads.len();
        self.threads.retain(|thread, open| !open.is_over(*thread));
        if self.threads.len() < known {
            self.last = Some(SystemTime::now());
        }
    }
}

impl OpenCall {
    fn is_over(&mut self, thread: i32) -> bool {
        match fs::read_to_string(format!("/proc/{thread}/syscall")) {
            // The file does not report the call of a running thread (proc_pid_syscall(5)).
            Ok(now) if now.starts_with("running") => match (processor_time(thread), self.since) {
                (Some(now), Some(since)) => now.saturating_sub(since) >= CALL,
                (now, _) => {
                    self.since = now;
                    false
                }
            },
            Ok(now) => {
                let call = now.split_whitespace().next().and_then(|number| number.parse().ok());
                call.is_some_and(|call: i64| call != self.number)
            }
            Err(error) => {
                matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::ENOENT | Errno::ESRCH))
            }
        }
    }
}

/// Returns the nanoseconds that a thread has run (`/proc/PID/schedstat`).
fn processor_time(thread: i32) -> Option<u64> {
    fs::read_to_string(format!("/proc/{thread}/schedstat")).ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use nix::libc;
    use nix::unistd::gettid;

    use super::*;

    /// A call that began before a file was made and ended before the check may have renamed the file in between.
    #[test]
    fn l07_a_call_counts_until_it_was_seen_to_be_over() {
        let (ready, is_ready) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            ready.send(gettid().as_raw()).unwrap();
            let _ = ends.recv();
        });
        let id = is_ready.recv().unwrap();
        let began = SystemTime::now() - Duration::from_secs(2);
        let mut state = CallState { last: Some(began), ..CallState::default() };
        state.threads.insert(id, OpenCall { number: libc::SYS_linkat, since: None });
        let made = Some(SystemTime::now() - Duration::from_secs(1));
        let is_told = || state.may_have_met(made);
        let told = std::iter::repeat_with(is_told).find_map(|told| {
            thread::sleep(Duration::from_millis(1));
            told
        });
        assert_eq!(told, Some(true));
        assert_eq!(state.may_have_met(Some(SystemTime::now() + TICK * 2)), Some(false));
        drop(end);
        thread.join().unwrap();
    }
}
