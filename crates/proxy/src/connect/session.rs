//! The two ends of a connection, and how a connection ends that may not go on.

use std::io;

use exeat_policy::{Ech, Target};
use exeat_record::CloseCause;
use tokio::time::Instant;

use crate::context::Context;
use crate::hello::HelloFault;
use crate::http::Exchange;
use crate::limits;
use crate::opening::Detector;
use crate::pool::Pool;
use crate::record::Record;
use crate::reply::{Refusal, refuse};
use crate::stream::Stream;
use crate::tunnel::{self, Early, Moved};

/// A connection that has its upstream.
pub(super) enum Session {
    /// Bytes flow in both directions.
    Tunnel(Tunnel),
    /// The tunnel may carry any protocol, and the client has not sent enough to tell which.
    Unknown(Box<UnknownTunnel>),
    /// A request goes up, and its answer comes down.
    Exchange(Box<Exchange>),
}

/// Both ends of a tunnel, with the bytes that were already read.
pub(super) struct Tunnel {
    pub(super) client: Stream,
    pub(super) upstream: Stream,
    pub(super) early: Early,
}

impl Tunnel {
    pub(super) fn open(mut self) -> Session {
        self.early.up.shrink_to_fit();
        Session::Tunnel(self)
    }
}

/// Refuses a tunnel after it was opened, because of the first bytes of its client.
pub(super) async fn alert_and_close(
    mut client: Stream,
    upstream: Stream,
    target: &Target,
    fault: HelloFault,
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Session> {
    record.deny_late(target, fault.reason(), fault.to_string());
    let _ = client.write_until(alert_for(fault), Instant::now() + limits::REPLY).await;
    drop(upstream);
    client.linger(cx.limits().linger).await;
    None
}

/// The fatal alert access_denied (RFC 8446 section 6.2).
pub(super) const ACCESS_DENIED: &[u8] = &[21, 3, 3, 0, 2, 2, 49];

/// Returns the fatal TLS alert (RFC 8446 section 6) for a fault, so that a client prints more than "end of file".
fn alert_for(fault: HelloFault) -> &'static [u8] {
    match fault {
        HelloFault::NoName | HelloFault::OtherName | HelloFault::Hidden => ACCESS_DENIED,
        HelloFault::Malformed | HelloFault::TooLarge => &[21, 3, 3, 0, 2, 2, 50], // decode_error
        HelloFault::NoRoom => &[21, 3, 3, 0, 2, 2, 80],                           // internal_error
        HelloFault::NotTls | HelloFault::Timeout | HelloFault::Undecided => &[],
    }
}

/// Answers with a refusal, then closes in a way that lets the answer arrive.
pub(super) async fn send_refusal(
    client: Stream,
    refusal: &Refusal,
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Session> {
    let reply = refuse(refusal, cx.run(), record.conn()).into_bytes();
    // Boxed, so that its state is not part of every connection that waits for a head.
    Box::pin(send_and_close(client, &reply, record, cx)).await
}

/// Writes the last bytes of a connection, then closes in a way that lets them arrive.
pub(super) async fn send_and_close(
    mut client: Stream,
    reply: &[u8],
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Session> {
    record.release_permit();
    let wrote = client.write_until(reply, Instant::now() + limits::REPLY).await;
    record.close(CloseCause::Killed, None);
    if wrote.is_ok() {
        client.linger(cx.limits().linger).await;
    }
    None
}

/// A tunnel whose protocol is not known yet.
pub(super) struct UnknownTunnel {
    pub(super) tunnel: Tunnel,
    pub(super) target: Target,
    pub(super) ech: Ech,
    pub(super) detector: Detector,
}

/// An event on a tunnel whose protocol is not known yet.
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
    /// the client, and `read_server` reading from the server, which also needs an empty buffer. With a `pool`, the server's bytes go
    /// down at once.
    ///
    /// Cancel-safe.
    pub(super) async fn step(
        &mut self,
        free: usize,
        read_client: bool,
        read_server: bool,
        moved: &Moved<'_>,
        pool: Option<&Pool>,
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
                Ready::Server => match pool {
                    None => upstream
                        .try_read_some(&mut early.down, limits::EARLY_BYTES)
                        .map(Step::Server)
                        .map_err(server_broke),
                    Some(pool) => {
                        let mut loan = pool.lend();
                        upstream.try_read(&mut loan.buffer).map_err(server_broke).and_then(|read| {
                            let bytes = loan.buffer.get(..read).unwrap_or_default();
                            pass_down(client, bytes, early, moved).map(|()| Step::Server(read))
                        })
                    }
                },
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
                        if early.down.is_empty() {
                            early.down = Vec::new();
                        }
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
        record.close(CloseCause::Error, Some(format!("{who}: {error}")));
    }
}

/// Sends bytes of the server to the client. What the client does not accept now is kept in `early`.
fn pass_down(client: &Stream, bytes: &[u8], early: &mut Early, moved: &Moved<'_>) -> Result<(), Broken> {
    let taken = match client.try_write(bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        done => done.map_err(client_broke)?,
    };
    moved.add_down(taken as u64);
    early.down = bytes.get(taken..).unwrap_or_default().to_vec();
    Ok(())
}

fn client_broke(error: io::Error) -> Broken {
    Broken("client", error)
}

fn server_broke(error: io::Error) -> Broken {
    Broken("upstream", error)
}
