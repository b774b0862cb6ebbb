//! Notes signals that ask for the end of a proof. The code that waits checks for them.

use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::signal::{SigSet, Signal};

/// The signal that asked for the end, 0 for none.
static STOP: AtomicI32 = AtomicI32::new(0);

/// Returns the signal that asked for the end.
pub fn stopped() -> Option<i32> {
    Some(STOP.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
}

/// Makes SIGINT, SIGTERM and SIGHUP end a proof in order, so that nothing is left behind. Must be called before any thread starts.
pub(super) fn watch_signals() {
    let mut asks = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| asks.add(signal));
    // Started programs get an empty mask from the standard library.
    if asks.thread_block().is_ok() {
        std::thread::spawn(move || {
            while let Ok(signal) = asks.wait() {
                STOP.store(signal as i32, Ordering::SeqCst);
            }
        });
    }
}
