//! Reports work that takes longer than usual.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// The time after which a user wonders what happens.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// Does the work on this thread. Another thread calls `say` if the work takes longer than `patience`.
pub(super) fn call_if_slow<T>(patience: Duration, say: impl FnOnce() + Send, work: impl FnOnce() -> T) -> T {
    let (working, over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let wait = move || {
            if over.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                say();
            }
        };
        // Without a thread the work is done silently.
        let _ = thread::Builder::new().name("waiting".into()).spawn_scoped(scope, wait);
        let done = work();
        drop(working);
        done
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn reports_only_slow_work() {
        let said = AtomicU32::new(0);
        let say = || {
            said.fetch_add(1, Ordering::Relaxed);
        };
        assert_eq!(call_if_slow(Duration::from_secs(60), say, || 7), 7);
        assert_eq!(said.load(Ordering::Relaxed), 0);
        let wait = || thread::sleep(Duration::from_millis(200));
        call_if_slow(Duration::from_millis(10), say, wait);
        assert_eq!(said.load(Ordering::Relaxed), 1);
    }
}
