//! Finds out what a tunnel carries from the first bytes of its client. Meanwhile it forwards what the server sends.

use std::io;

use exeat_policy::{Ech, Target};
use exeat_record::End;
use tokio::time::{Instant, timeout_at};

use super::{Session, Tunnel, alert_and_close, check_tls, read_inner_request, send_refusal};
use crate::head::Fault;
use crate::hello::HelloFault;
use crate::limits;
use crate::opening::{Detector, Protocol};
use crate::record::Record;
use crate::reply::Refusal;
use crate::server::Context;
use crate::tunnel::{self, Moved};

/// A tunnel whose protocol is not known yet.
pub(super) struct UnknownTunnel {
    pub(super) tunnel: Tunnel,
    pub(super) target: Target,
    pub(super) ech: Ech,
    pub(super) detector: Detector,
}

/// One event on a tunnel whose protocol is not known yet.
pub(super) enum Step {
    /// The client sent this many bytes; 0 is its end.
    Client(usize),
    /// The server sent this many bytes; 0 is its end.
    Server(usize),
    /// The server accepted this many bytes.
    Up(usize),
    /// The client accepted some bytes.
    Down,
}

/// The end of a tunnel that broke, with its error.
pub(super) struct Broken(&'static str, io::Error);

impl Tunnel {
    /// Waits for one event and handles it. The first `free` early bytes may go up. `read_client` enables reading from
    /// the client, and `read_server` reading from the server, which also needs an empty buffer.
    ///
    /// Cancel-safe.
    pub(super) async fn step(
        &mut self,
        free: usize,
        read_client: bool,
        read_server: bool,
        moved: &Moved<'_>,
    ) -> Result<Step, Broken> {
        enum Ready {
            Client,
            Server,
            Up,
            Down,
        }
        let Self { client, upstream, early } = self;
        loop {
            let ready = tokio::select! {
                // The client comes first: its bytes must be checked even if the server's have arrived too.
                biased;
                () = moved.time_due() => {
                    moved.note_time();
                    continue;
                }
                ready = client.readable(), if read_client => ready.map(|()| Ready::Client).map_err(client_broke),
                ready = upstream.writable(), if free > 0 => ready.map(|()| Ready::Up).map_err(server_broke),
                ready = client.writable(), if !early.down.is_empty() => ready.map(|()| Ready::Down).map_err(client_broke),
                ready = upstream.readable(), if read_server && early.down.is_empty() => ready.map(|()| Ready::Server).map_err(server_broke),
            }?;
            let done = match ready {
                Ready::Client => client
                    .try_read_some(&mut early.up, limits::EARLY_BYTES)
                    .map(Step::Client)
                    .map_err(client_broke),
                Ready::Server => upstream
                    .try_read_some(&mut early.down, limits::EARLY_BYTES)
                    .map(Step::Server)
                    .map_err(server_broke),
                Ready::Up => {
                    let bytes = early.up.get(..free).unwrap_or_default();
                    tunnel::send_now(upstream, bytes, moved)
                        .map(|taken| {
                            early.up.drain(..taken);
                            Step::Up(taken)
                        })
                        .map_err(server_broke)
                }
                Ready::Down => client
                    .try_write(&early.down)
                    .map(|taken| {
                        moved.add_down(taken as u64);
                        early.down.drain(..taken);
                        Step::Down
                    })
                    .map_err(client_broke),
            };
            match done {
                Err(Broken(_, error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }

    /// Closes a tunnel that broke before its protocol was known. The client's waiting bytes are dropped.
    pub(super) fn close_broken(&self, Broken(who, error): &Broken, record: &mut Record<'_>) {
        // A reset, so that a cut stream does not look like a finished one.
        self.client.will_reset();
        self.upstream.will_reset();
        record.close(End::Error, Some(format!("{who}: {error}")));
    }
}

fn client_broke(error: io::Error) -> Broken {
    Broken("client", error)
}

fn server_broke(error: io::Error) -> Broken {
    Broken("upstream", error)
}

/// Waits until the client's bytes show what it speaks, and forwards what the server sends before that. A client
/// that opens with TLS or with a request must name its target, whichever side spoke first.
pub(super) async fn detect_protocol(
    mut unknown: UnknownTunnel,
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Session> {
    let total = Instant::now() + cx.limits().total;
    let mut until = None;
    let (mut is_client_open, mut is_server_open) = (true, true);
    let mut has_server_spoken = false;
    loop {
        let waiting = &unknown.tunnel.early.up;
        let free = match unknown.detector.detect(waiting) {
            Protocol::Unknown { free } if is_client_open => free,
            Protocol::Unknown { .. } => match unknown.detector.finish() {
                Protocol::Http => return check_request(unknown, has_server_spoken, record, cx).await,
                _ => return Some(unknown.tunnel.open()),
            },
            Protocol::Tls => return check_tls(unknown, record, cx).await,
            Protocol::Http => return check_request(unknown, has_server_spoken, record, cx).await,
            Protocol::Other => return Some(unknown.tunnel.open()),
        };
        // A client that has sent a partial opening gets a deadline to complete it.
        until = (waiting.len() > free).then(|| until.unwrap_or_else(|| Instant::now() + cx.limits().hello));
        let idle =
            if is_server_open { cx.limits().idle } else { cx.limits().half_closed.min(cx.limits().idle) };
        let idle = Instant::now() + idle;
        let by = until.unwrap_or(idle).min(total);
        match timeout_at(by, unknown.tunnel.step(free, free == 0, is_server_open, &record.moved)).await {
            Ok(Ok(Step::Client(0))) => is_client_open = false,
            Ok(Ok(Step::Client(_))) if !record.try_hold(&unknown.tunnel.early.up) => {
                let UnknownTunnel { tunnel: Tunnel { client, upstream, early }, target, .. } = unknown;
                drop(early);
                return alert_and_close(client, upstream, &target, HelloFault::NoRoom, record, cx).await;
            }
            Ok(Ok(Step::Client(_) | Step::Down)) => {}
            Ok(Ok(Step::Up(count))) => unknown.detector.note_forwarded(count),
            // The client sees the end, and may still send.
            Ok(Ok(Step::Server(0))) => {
                unknown.tunnel.client.finish();
                is_server_open = false;
            }
            Ok(Ok(Step::Server(_))) => has_server_spoken = true,
            Ok(Err(broken)) => {
                unknown.tunnel.close_broken(&broken, record);
                return None;
            }
            Err(_) if until.is_some() => {
                let UnknownTunnel { tunnel: Tunnel { client, upstream, .. }, target, .. } = unknown;
                return alert_and_close(client, upstream, &target, HelloFault::Undecided, record, cx).await;
            }
            Err(_) if Instant::now() >= total => {
                record.close(End::Budget, Some(tunnel::TOTAL_IS_OVER.to_owned()));
                return None;
            }
            Err(_) => {
                record.close(End::Idle, None);
                return None;
            }
        }
    }
}

/// Handles a tunnel that opens with a request: it must be for the tunnel's host before anything goes upstream.
pub(super) async fn check_request(
    unknown: UnknownTunnel,
    has_server_spoken: bool,
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Session> {
    let UnknownTunnel { tunnel: Tunnel { client, upstream, early }, target, detector, .. } = unknown;
    if detector.has_forwarded() || has_server_spoken {
        // A reset, so that the server does not take part of a line for a whole one.
        upstream.will_reset();
        drop(upstream);
        record.deny_late(&target, Fault::NotFirst.reason(), Fault::NotFirst.to_string());
        return send_refusal(client, &Refusal::Malformed(Fault::NotFirst), record, cx).await;
    }
    read_inner_request(client, early.up, target, upstream, record, cx).await
}
