//! Which signals exeat passes on. A signal that was ignored when exeat started stays ignored (nohup(1), background jobs).

use std::fs;
use std::io;

use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// The signals that end a stage politely.
const PASSED: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Waits for the signals that are passed on.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, Stream)>);

impl Signals {
    /// Takes the signals over from their default actions. Needs a runtime.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let wanted = PASSED.into_iter().filter(|which| ignored & (1 << (*which as u32 - 1)) == 0);
        let streams = wanted.map(|which| Ok((which, signal(SignalKind::from_raw(which as i32))?)));
        streams.collect::<io::Result<_>>().map(Self)
    }

    /// The next signal. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (which, stream) in &mut self.0 {
                if stream.poll_recv(cx).is_ready() {
                    return std::task::Poll::Ready(*which);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

/// The mask of ignored signals (proc_pid_status(5), SigIgn); none where it cannot be read.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
