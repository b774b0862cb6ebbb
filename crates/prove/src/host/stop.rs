//! Signals that ask for the end of a proof. They are noted, and nothing is done here: whoever waits looks.

use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::signal::{SigSet, Signal};

/// The signal that asked for the end, 0 for none.
static STOP: AtomicI32 = AtomicI32::new(0);

/// The signal that asked for the end.
pub fn stopped() -> Option<i32> {
    Some(STOP.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
}

/// From here on SIGINT, SIGTERM and SIGHUP end a proof in order, so that nothing is left. Before any thread is made.
pub(super) fn watch_signals() {
    let mut asks = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| asks.add(signal));
    // A program that is started gets an empty mask: the standard library sees to it.
    if asks.thread_block().is_ok() {
        std::thread::spawn(move || {
            while let Ok(signal) = asks.wait() {
                STOP.store(signal as i32, Ordering::SeqCst);
            }
        });
    }
}
