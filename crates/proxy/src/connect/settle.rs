//! Finds out what a tunnel carries from the first bytes of its client. Meanwhile it forwards what the server sends.

use std::io;

use exeat_policy::{Ech, Target};
use exeat_record::End;
use tokio::time::{Instant, timeout_at};

use super::{Opened, Tunnel, alert_and_close, named, request_inside, say_no};
use crate::head::Fault;
use crate::hello::HelloFault;
use crate::limits;
use crate::opening::{Opening, Opens};
use crate::record::Record;
use crate::reply::Refusal;
use crate::server::Context;
use crate::tunnel::{self, Moved};

/// A tunnel whose protocol is not known yet.
pub(super) struct Any {
    pub(super) tunnel: Tunnel,
    pub(super) target: Target,
    pub(super) ech: Ech,
    pub(super) opening: Opening,
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
    /// Waits for one event and handles it. The first `free` early bytes may go up. `listen` enables reading from
    /// the client, and `hear` reading from the server, which also needs an empty buffer.
    ///
    /// Cancel-safe.
    pub(super) async fn step(
        &mut self,
        free: usize,
        listen: bool,
        hear: bool,
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
                ready = client.readable(), if listen => ready.map(|()| Ready::Client).map_err(of_client),
                ready = upstream.writable(), if free > 0 => ready.map(|()| Ready::Up).map_err(of_server),
                ready = client.writable(), if !early.down.is_empty() => ready.map(|()| Ready::Down).map_err(of_client),
                ready = upstream.readable(), if hear && early.down.is_empty() => ready.map(|()| Ready::Server).map_err(of_server),
            }?;
            let done = match ready {
                Ready::Client => client
                    .try_read_some(&mut early.up, limits::EARLY_BYTES)
                    .map(Step::Client)
                    .map_err(of_client),
                Ready::Server => upstream
                    .try_read_some(&mut early.down, limits::EARLY_BYTES)
                    .map(Step::Server)
                    .map_err(of_server),
                Ready::Up => {
                    let bytes = early.up.get(..free).unwrap_or_default();
                    tunnel::send_now(upstream, bytes, moved)
                        .map(|taken| {
                            early.up.drain(..taken);
                            Step::Up(taken)
                        })
                        .map_err(of_server)
                }
                Ready::Down => client
                    .try_write(&early.down)
                    .map(|taken| {
                        moved.add_down(taken as u64);
                        early.down.drain(..taken);
                        Step::Down
                    })
                    .map_err(of_client),
            };
            match done {
                Err(Broken(_, error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }

    /// Closes a tunnel that broke before its protocol was known. The client's waiting bytes are dropped.
    pub(super) fn broke(&self, Broken(who, error): &Broken, record: &mut Record<'_>) {
        // A reset, so that a cut stream does not look like a finished one.
        self.client.will_reset();
        self.upstream.will_reset();
        record.close(End::Error, Some(format!("{who}: {error}")));
    }
}

fn of_client(error: io::Error) -> Broken {
    Broken("client", error)
}

fn of_server(error: io::Error) -> Broken {
    Broken("upstream", error)
}

/// Waits until the client's bytes show what it speaks, and forwards what the server sends before that. A client
/// that opens with TLS or with a request must name its target, whichever side spoke first.
pub(super) async fn settle(mut any: Any, record: &mut Record<'_>, cx: &Context) -> Option<Opened> {
    let total = Instant::now() + cx.limits().total;
    let mut until = None;
    let (mut listens, mut hears) = (true, true);
    let mut heard = false;
    loop {
        let waiting = &any.tunnel.early.up;
        let free = match any.opening.look(waiting) {
            Opens::Unknown { free } if listens => free,
            Opens::Unknown { .. } => match any.opening.finish() {
                Opens::Http => return request(any, heard, record, cx).await,
                _ => return Some(any.tunnel.open()),
            },
            Opens::Tls => return named(any, record, cx).await,
            Opens::Http => return request(any, heard, record, cx).await,
            Opens::Other => return Some(any.tunnel.open()),
        };
        // A client that has sent a partial opening gets a deadline to complete it.
        until = (waiting.len() > free).then(|| until.unwrap_or_else(|| Instant::now() + cx.limits().hello));
        let idle = if hears { cx.limits().idle } else { cx.limits().half_closed.min(cx.limits().idle) };
        let idle = Instant::now() + idle;
        let by = until.unwrap_or(idle).min(total);
        match timeout_at(by, any.tunnel.step(free, free == 0, hears, &record.moved)).await {
            Ok(Ok(Step::Client(0))) => listens = false,
            Ok(Ok(Step::Client(_))) if !record.holds(&any.tunnel.early.up) => {
                let Any { tunnel: Tunnel { client, upstream, early }, target, .. } = any;
                drop(early);
                return alert_and_close(client, upstream, &target, HelloFault::NoRoom, record, cx).await;
            }
            Ok(Ok(Step::Client(_) | Step::Down)) => {}
            Ok(Ok(Step::Up(count))) => any.opening.gone_on(count),
            // The client sees the end, and may still send.
            Ok(Ok(Step::Server(0))) => {
                any.tunnel.client.finish();
                hears = false;
            }
            Ok(Ok(Step::Server(_))) => heard = true,
            Ok(Err(broken)) => {
                any.tunnel.broke(&broken, record);
                return None;
            }
            Err(_) if until.is_some() => {
                let Any { tunnel: Tunnel { client, upstream, .. }, target, .. } = any;
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
pub(super) async fn request(any: Any, heard: bool, record: &mut Record<'_>, cx: &Context) -> Option<Opened> {
    let Any { tunnel: Tunnel { client, upstream, early }, target, opening, .. } = any;
    if opening.let_through() || heard {
        // A reset, so that the server does not take part of a line for a whole one.
        upstream.will_reset();
        drop(upstream);
        record.late(&target, Fault::NotFirst.reason(), Fault::NotFirst.to_string());
        return say_no(client, &Refusal::Malformed(Fault::NotFirst), record, cx).await;
    }
    request_inside(client, early.up, target, upstream, record, cx).await
}
