//! Which calls of the stage may have changed a file of the host's, or have given it another name, where no event tells of it.
//!
//! Such a call opens nothing in a directory that is watched. So the kernel tells of each before it is made (seccomp_unotify(2)), and it is
//! let go on when it is noted. What it names is not looked at: the stage could change that in between. A file that was made when no such
//! call was on its way, and before any began, has no name but those that events tell of, and says what was written to it by these. A call
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

/// Threads whose calls may be on their way. Past this nothing is known any more.
const THREADS: usize = 256;
/// Between two looks at them.
const LOOKS: Duration = Duration::from_millis(20);
/// Processor time in which a thread has come to the end of its call: to look up the longest path takes some ten milliseconds.
const CALL: u64 = 1_000_000_000;
/// How far the clock of a file system may be behind: a tick of the kernel, which is 10 ms at the longest.
const TICK: Duration = Duration::from_millis(20);

/// The calls of one stage, and the thread that is told of them. It ends with the stage, or when this is dropped: from then on such a call fails.
#[derive(Debug)]
pub(super) struct Calls {
    state: Arc<Mutex<CallState>>,
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// What was told.
#[derive(Debug, Default)]
struct CallState {
    /// When the last one began, or was seen to be over.
    last: Option<SystemTime>,
    /// Threads that may not have come to the end of theirs.
    threads: BTreeMap<i32, OpenCall>,
    /// One was forgotten, or may not have been told.
    is_lost: bool,
}

/// A call that may be on its way.
#[derive(Debug)]
struct OpenCall {
    number: i64,
    /// The processor time that its thread had at the first look.
    since: Option<u64>,
}

impl Calls {
    /// # Errors
    /// Where there is no pipe or no thread to be had.
    pub(super) fn new(notices: Notices) -> io::Result<Self> {
        let (stopped, stop) = io::pipe()?;
        let state = Arc::new(Mutex::new(CallState::default()));
        let shared = Arc::clone(&state);
        let body = move || {
            // Each of them waits for this.
            exeat_sandbox::prefer_this_thread();
            loop {
                let longest = (!lock(&shared).threads.is_empty()).then_some(LOOKS);
                match notices.next(stopped.as_fd(), longest) {
                    Ok(Next::Call(call)) => {
                        lock(&shared).note(&call);
                        if notices.let_go(&call).is_err() {
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

    /// Whether one of them may have met a file that was made then; `made` is `None` where its file system does not tell.
    pub(super) fn may_have_met(&self, made: Option<SystemTime>) -> bool {
        /// Looks, a millisecond apart: most calls are at their end sooner.
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
            // The one before is over.
            self.threads.insert(call.thread, OpenCall { number: call.call, since: None });
        }
    }

    /// See [`Calls::may_have_met`]; `None` while one is on its way.
    fn may_have_met(&mut self, made: Option<SystemTime>) -> Option<bool> {
        self.forget_ended();
        let is_later = |last: SystemTime| made.is_none_or(|made| last + TICK >= made);
        if self.is_lost || self.last.is_some_and(is_later) {
            return Some(true);
        }
        self.threads.is_empty().then_some(false)
    }

    /// Forgets the threads that have come to the end of their calls. Between the answer and that end one may have to wait for a processor,
    /// for as long as the others of the stage have it so. When it came to the end is not known: it counts until now.
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
            // Nothing says what a thread does that runs, or is to run (proc_pid_syscall(5)).
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

/// Nanoseconds that a thread has run (`/proc/PID/schedstat`).
fn processor_time(thread: i32) -> Option<u64> {
    fs::read_to_string(format!("/proc/{thread}/schedstat")).ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use nix::libc;
    use nix::unistd::gettid;

    use super::*;

    /// A call that began before a file was made, and was over before it was judged, may have given the file another name in between.
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
