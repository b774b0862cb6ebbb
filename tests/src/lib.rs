//! The harness of the end-to-end tests: a private "host" and "internet" (`bench`), a stub resolver (`dns`), origins
//! that log every byte (`origin`) and every datagram (`datagrams`), runs of the real binary (`run`) and readers of what
//! it leaves behind (`audit`, `leftover`).
//!
//! None of this is compiled into `exeat`, and `exeat` has no switch for tests: the bench provides the machine that the
//! tests need (public addresses that answer, a resolver that lies), so that the address guard is never loosened.

pub mod audit;
pub mod bench;
pub mod bin;
pub mod case;
pub mod datagrams;
pub mod dns;
pub mod leftover;
pub mod origin;
pub mod run;
pub mod screen;
pub mod services;

use std::time::{Duration, Instant};

/// Returns how often to repeat a random attempt: as often as CI has time for, or more at night (`E2E_NIGHTLY=1`).
pub fn rounds(by_day: u64, by_night: u64) -> u64 {
    if std::env::var_os("E2E_NIGHTLY").is_some_and(|value| value != "0") { by_night } else { by_day }
}

/// Waits until `ready` returns a value, for at most `limit`. Tests sleep only to show that nothing happens, or to let a
/// process run meanwhile; they wait here, or with a reader's deadline, for anything that must happen.
pub fn wait_for<T>(limit: Duration, what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < end, "waited {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(3));
    }
}
