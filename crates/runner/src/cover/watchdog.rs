//! Ends a stage that keeps a protected name visible to the host.
//!
//! To rename an entry of a directory, the kernel locks the directory. A process that lists a very large one holds that lock for a second
//! or more (`iterate_dir`, fs/readdir.c). Ending the stage ends the listing.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use exeat_sandbox::backend::Handle;

/// The minimal time for moving a name away: a busy disk may take as long for a rename.
const IN_SIGHT: Duration = Duration::from_millis(500);
/// The allowed time in multiples of the first check of all names, for a slow machine or file system.
const LOOKS: u32 = 20;
/// The longest time for putting names into the quarantine. A busy disk may take half a second.
const BUSY: Duration = Duration::from_secs(5);

/// A thread that waits while names are moved away. It starts with the first one.
pub(super) struct Watchdog {
    shared: Arc<Shared>,
    handle: Handle,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    /// The longest time that a name may be visible.
    in_sight: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    in_sight_since: Option<Instant>,
    busy_since: Option<Instant>,
    is_late: bool,
    is_over: bool,
}

/// Returns the longest time that a name may be visible, from the duration of the first check of all names.
fn longest(first_look: Duration) -> Duration {
    (first_look * LOOKS).clamp(IN_SIGHT, BUSY)
}

impl State {
    /// Returns when the stage must be ended.
    fn end(&self, in_sight: Duration) -> Option<Instant> {
        let in_sight = self.in_sight_since.map(|since| since + in_sight);
        in_sight.into_iter().chain(self.busy_since.map(|since| since + BUSY)).min()
    }
}

impl Watchdog {
    /// Creates it from the time that a check of all names took before the stage started.
    pub(super) fn new(handle: Handle, first_look: Duration) -> Self {
        let shared =
            Shared { in_sight: longest(first_look), state: Mutex::default(), changed: Condvar::new() };
        Self { shared: Arc::new(shared), handle, thread: Mutex::new(None) }
    }

    /// Notes whether a name may be visible to the host now. The caller is busy with names from here on.
    pub(super) fn set(&self, is_in_sight: bool) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let (shared, handle) = (Arc::clone(&self.shared), self.handle.clone());
            // Without the thread the name is still moved away.
            *thread =
                thread::Builder::new().name("watchdog".into()).spawn(move || shared.watch(&handle)).ok();
        }
        let mut state = self.shared.state();
        let now = Instant::now();
        state.is_late |= !is_in_sight && state.end(self.shared.in_sight).is_some_and(|end| end <= now);
        state.in_sight_since = is_in_sight.then(|| state.in_sight_since.unwrap_or(now));
        state.busy_since.get_or_insert(now);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Notes that all names are where they belong.
    pub(super) fn rest(&self) {
        let mut state = self.shared.state();
        (state.in_sight_since, state.busy_since) = (None, None);
    }

    /// Fails if a name was visible for too long.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.shared.state().is_late {
            return Err(io::Error::other(format!(
                "a protected name that the stage made could not be taken away within {} ms",
                self.shared.in_sight.as_millis()
            )));
        }
        Ok(())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, handle: &Handle) {
        exeat_sandbox::prefer_this_thread();
        let mut state = self.state();
        while !state.is_over {
            let Some(end) = state.end(self.in_sight) else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.is_late = true;
                (state.in_sight_since, state.busy_since) = (None, None);
                handle.kill();
                continue;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::longest;
    use std::time::Duration;

    #[test]
    fn a_slow_machine_has_more_time() {
        for (first_look, expected) in [(0, 500), (2, 500), (25, 500), (100, 2000), (400, 5000)] {
            assert_eq!(longest(Duration::from_millis(first_look)), Duration::from_millis(expected));
        }
    }
}
