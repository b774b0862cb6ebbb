//! The harness of the end-to-end tests: a private "host" and "internet" (`bench`), a stub resolver (`dns`), origins
//! that log every byte (`origin`), runs of the real binary (`run`) and readers of what it leaves behind (`audit`,
//! `leftover`).
//!
//! Nothing here is compiled into `exeat`, and `exeat` has no switch for tests: the bench gives the machine that the
//! tests need (public addresses that answer, a resolver that lies), so the address guard is never loosened.

pub mod audit;
pub mod bench;
pub mod bin;
pub mod case;
pub mod dns;
pub mod leftover;
pub mod origin;
pub mod run;
pub mod screen;
pub mod services;

use std::time::{Duration, Instant};

/// Waits until `ready` gives a value, for at most `limit`: the only kind of waiting in the tests.
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
