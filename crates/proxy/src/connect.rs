//! Serves one connection, from its first byte to its close record. This file holds the order of the phases; each
//! phase decides in its own file.
//!
//! Invariants: no upstream socket opens before its decision is written. Nothing dials a name. `dial` needs a
//! `Vetted`, and an upstream proxy needs an `Entrusted`. After a refusal, no further byte is read as a request.

mod second;
mod settle;
mod socks;
mod transparent;

use std::future::Future;

use exeat_policy::{Ech, Target};
use exeat_record::{ConnId, End, RunId, Via};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use self::settle::{UnknownTunnel, detect_protocol};
use crate::head::{ClientRequest, Fault, Head, Parsed, Parser, Plain};
use crate::hello::{HelloFault, Reader};
use crate::http::{self, Exchange};
use crate::limits;
use crate::opening::{Detector, Protocol};
use crate::reach::{Connection, Content, RequestKind, reach};
use crate::record::Record;
use crate::reply::{ESTABLISHED, Refusal, refuse};
use crate::server::{Context, Entry};
use crate::stream::Stream;
use crate::tunnel::{self, Early};
use crate::who::ProcessLookup;

/// Serves one client connection until it closes.
///
/// Dropping the future closes both sides. If a decision was written, its close record is written too.
pub(crate) async fn serve(
    client: Stream,
    entry: Entry,
    conn: ConnId,
    cx: &Context,
    stop: &CancellationToken,
) {
    let via = match entry {
        Entry::Http => Via::Connect,
        Entry::Socks5 => Via::Socks5,
        Entry::Gateway(_) => Via::Transparent,
        Entry::Forward(_) => Via::Forward,
    };
    let mut record = Record::new(cx, conn, via, ProcessLookup::start(&client, cx.who()));
    // Boxed, so that the state of the opening phases does not take up memory while the tunnel lives.
    let opening = async {
        match &entry {
            Entry::Http => Box::pin(open(client, &mut record, cx)).await,
            Entry::Socks5 => Box::pin(socks::open(client, &mut record, cx)).await,
            Entry::Gateway(target) | Entry::Forward(target) => {
                Box::pin(transparent::open(client, target, &mut record, cx)).await
            }
        }
    };
    let opened = match until_stopped(stop, opening).await {
        Some(Session::Unknown(unknown)) => {
            let settling = Box::pin(detect_protocol(*unknown, &mut record, cx));
            // The client already has its tunnel, so the bytes that it sent are delivered within the drain time.
            tokio::select! {
                biased;
                opened = settling => opened,
                () = async { stop.cancelled().await; sleep(cx.limits().drain).await } => None,
            }
        }
        opened => opened,
    };
    match opened {
        // INVARIANT: `settle` never returns `Session::Unknown`.
        None | Some(Session::Unknown(_)) => {}
        Some(Session::Tunnel(Tunnel { client, upstream, early })) => {
            record.release_held();
            let moving = tunnel::run(client, upstream, early, &record.moved, cx.pool(), cx.limits(), stop);
            let ended = Box::pin(moving).await;
            record.close(ended.end, ended.error);
        }
        Some(Session::Exchange(exchange)) => {
            record.release_held();
            Box::pin(http::run(*exchange, &mut record, cx, stop)).await;
        }
    }
}

/// Waits for `opening`, and returns `None` if the run stops first.
async fn until_stopped<T>(stop: &CancellationToken, opening: impl Future<Output = Option<T>>) -> Option<T> {
    tokio::select! {
        biased;
        opened = opening => opened,
        () = stop.cancelled() => None,
    }
}

/// A connection that has its upstream.
enum Session {
    /// Bytes flow in both directions.
    Tunnel(Tunnel),
    /// The tunnel may carry any protocol, and the client has not sent enough to tell which.
    Unknown(Box<UnknownTunnel>),
    /// One request goes up, and its answer comes down.
    Exchange(Box<Exchange>),
}

/// Both ends of a tunnel, with the bytes that were already read.
struct Tunnel {
    client: Stream,
    upstream: Stream,
    early: Early,
}

/// Handles an HTTP client until bytes may go upstream. Returns `None` if they may not; the client then has its
/// answer and the record its line.
async fn open(client: Stream, record: &mut Record<'_>, cx: &Context) -> Option<Session> {
    let mut bytes = Vec::new();
    match read_head(&client, &mut bytes, record, cx, |head| head.parse_request()).await {
        Received::Request { request: ClientRequest::Connect(target), head_len } => {
            let first = bytes.split_off(head_len.min(bytes.len()));
            drop(bytes);
            Box::pin(open_tunnel(client, first, target, record, cx)).await
        }
        Received::Request { request: ClientRequest::Plain(plain), .. } => {
            record.via = Via::Http;
            record.method = Some(plain.method.clone());
            let reached = match Box::pin(reach(&plain.target, RequestKind::Request, record, cx)).await {
                Ok(reached) => reached,
                Err(refusal) => return send_refusal(client, &refusal, record, cx).await,
            };
            let Plain { target, path, .. } = plain;
            let upstream = reached.upstream;
            Some(Session::Exchange(Box::new(Exchange { client, bytes, target, path, upstream })))
        }
        Received::Fault(fault) => {
            Box::pin(record.deny_malformed(fault, &bytes)).await;
            drop(bytes);
            send_refusal(client, &Refusal::Malformed(fault), record, cx).await
        }
        // The client gets an answer, because it may be waiting for us to speak first. The record gets no line,
        // because nothing that could be denied was asked for.
        Received::Silence => send_refusal(client, &Refusal::Malformed(Fault::TooSlow), record, cx).await,
        Received::Nothing => None,
    }
}

/// Handles CONNECT: dials the target, then checks the first bytes of the tunnel.
async fn open_tunnel(
    mut client: Stream,
    first: Vec<u8>,
    target: Target,
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Session> {
    let reached = match Box::pin(reach(&target, RequestKind::Tunnel, record, cx)).await {
        Ok(reached) => reached,
        Err(refusal) => return send_refusal(client, &refusal, record, cx).await,
    };
    if let Err(error) = client.write_until(ESTABLISHED, Instant::now() + limits::REPLY).await {
        record.close(End::Error, Some(format!("client: {error}")));
        return None;
    }
    check_first_bytes(client, first, target, reached, record, cx).await
}

/// Checks the first bytes of a tunnel after its client was told that it is open. Every entry uses this. `first`
/// holds what the client sent after its request.
async fn check_first_bytes(
    client: Stream,
    first: Vec<u8>,
    target: Target,
    Connection { upstream, content, ech }: Connection,
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Session> {
    if content == Content::Http {
        return read_inner_request(client, first, target, upstream, record, cx).await;
    }
    let early = Early { up: first, down: Vec::new() };
    let mut unknown = UnknownTunnel {
        tunnel: Tunnel { client, upstream, early },
        target,
        ech,
        detector: Detector::default(),
    };
    let protocol = match content {
        Content::Tls => Protocol::Tls,
        Content::Any => unknown.detector.detect(&unknown.tunnel.early.up),
        Content::Http | Content::Unseen => Protocol::Other,
    };
    match protocol {
        Protocol::Tls => check_tls(unknown, record, cx).await,
        Protocol::Http => settle::check_request(unknown, false, record, cx).await,
        Protocol::Other => Some(unknown.tunnel.open()),
        Protocol::Unknown { .. } => Some(Session::Unknown(Box::new(unknown))),
    }
}

impl Tunnel {
    fn open(mut self) -> Session {
        self.early.up.shrink_to_fit();
        Session::Tunnel(self)
    }
}

/// Handles a tunnel that opens with TLS: the hello must name the target before anything goes upstream.
async fn check_tls(unknown: UnknownTunnel, record: &mut Record<'_>, cx: &Context) -> Option<Session> {
    let UnknownTunnel { tunnel: Tunnel { client, upstream, mut early }, target, ech, .. } = unknown;
    let by = Instant::now() + cx.limits().hello;
    match check_hello(&client, &mut early.up, &target, ech, record, by).await {
        Ok(HelloOutcome::Passed { len }) => {
            let tunnel = Tunnel { client, upstream, early };
            Box::pin(second::pass_hello(tunnel, len, &target, ech, record, cx)).await
        }
        Ok(HelloOutcome::Gone) => {
            record.close(End::Client, None);
            None
        }
        Err(fault) => {
            drop(early);
            alert_and_close(client, upstream, &target, fault, record, cx).await
        }
    }
}

/// Refuses a tunnel after it was opened, because of the first bytes of its client.
async fn alert_and_close(
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

/// Handles plain HTTP in a tunnel: the request must name the target.
async fn read_inner_request(
    client: Stream,
    mut bytes: Vec<u8>,
    target: Target,
    upstream: Stream,
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Session> {
    let fault = match read_head(&client, &mut bytes, record, cx, |head| head.parse_inner(&target)).await {
        Received::Request { request: path, .. } => {
            return Some(Session::Exchange(Box::new(Exchange { client, bytes, target, path, upstream })));
        }
        Received::Nothing => {
            record.close(End::Client, None);
            return None;
        }
        Received::Silence => Fault::TooSlow,
        Received::Fault(fault) => fault,
    };
    drop((upstream, bytes));
    record.deny_late(&target, fault.reason(), fault.to_string());
    send_refusal(client, &Refusal::Malformed(fault), record, cx).await
}

/// What the client sent before the first answer.
enum Received<T> {
    /// A request in the first bytes.
    Request { request: T, head_len: usize },
    /// Something malformed, incomplete or late.
    Fault(Fault),
    /// No byte until the deadline; the client is still connected.
    Silence,
    /// No byte at all: the client connected and closed.
    Nothing,
}

/// Reads one head under a single deadline (P19), and parses what it asks for.
async fn read_head<T>(
    client: &Stream,
    bytes: &mut Vec<u8>,
    record: &mut Record<'_>,
    cx: &Context,
    asks: impl for<'a> Fn(&'a Head<'a>) -> Result<T, Fault>,
) -> Received<T> {
    let by = Instant::now() + cx.limits().head;
    let mut parser = Parser::default();
    loop {
        match parser.advance(bytes) {
            Parsed::Incomplete => {}
            Parsed::Fault(fault) => return Received::Fault(fault),
            Parsed::Head(head) => {
                return match asks(&head) {
                    Ok(request) => Received::Request { request, head_len: head.len },
                    Err(fault) => Received::Fault(fault),
                };
            }
        }
        match timeout_at(by, client.read_some(bytes, limits::EARLY_BYTES)).await {
            Err(_) if bytes.is_empty() => return Received::Silence,
            Err(_) => return Received::Fault(Fault::TooSlow),
            Ok(Err(_) | Ok(0)) if bytes.is_empty() => return Received::Nothing,
            Ok(Err(_) | Ok(0)) => return Received::Fault(Fault::CutShort),
            Ok(Ok(_)) if !record.try_hold(bytes) => return Received::Fault(Fault::NoRoom),
            Ok(Ok(read)) => tracing::trace!(read, "head bytes"),
        }
    }
}

/// The outcome of reading a hello that is not refused.
enum HelloOutcome {
    /// The hello names the target; it ends after `len` bytes.
    Passed { len: usize },
    /// The client left without sending a byte.
    Gone,
}

/// Reads the ClientHello into `first` and checks its name. Nothing goes upstream before this passes.
async fn check_hello(
    client: &Stream,
    first: &mut Vec<u8>,
    target: &Target,
    ech: Ech,
    record: &mut Record<'_>,
    by: Instant,
) -> Result<HelloOutcome, HelloFault> {
    let start = Instant::now();
    let mut reader = Reader::new();
    loop {
        if let Some(hello) = reader.advance(first)? {
            let checked = hello.check(target, ech);
            record.note_hello(hello, start.elapsed(), checked.is_ok());
            return checked.map(|()| HelloOutcome::Passed { len: reader.len() });
        }
        let room = (limits::HELLO_BYTES - first.len().min(limits::HELLO_BYTES)).clamp(1, limits::EARLY_BYTES);
        match timeout_at(by, client.read_some(first, room)).await {
            Err(_) => return Err(HelloFault::Timeout),
            Ok(Err(_) | Ok(0)) if first.is_empty() => return Ok(HelloOutcome::Gone),
            Ok(Err(_) | Ok(0)) => return Err(HelloFault::Malformed),
            Ok(Ok(_)) if !record.try_hold(first) => return Err(HelloFault::NoRoom),
            Ok(Ok(_)) => {}
        }
    }
}

/// The fatal alert access_denied (RFC 8446 section 6.2).
const ACCESS_DENIED: &[u8] = &[21, 3, 3, 0, 2, 2, 49];

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
async fn send_refusal(
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
async fn send_and_close(
    mut client: Stream,
    reply: &[u8],
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Session> {
    record.release_permit();
    let wrote = client.write_until(reply, Instant::now() + limits::REPLY).await;
    record.close(End::Killed, None);
    if wrote.is_ok() {
        client.linger(cx.limits().linger).await;
    }
    None
}

/// Builds the answer for a client whose request is not read.
pub(crate) fn unread_reply(refusal: &Refusal, entry: &Entry, run: RunId, conn: ConnId) -> Vec<u8> {
    match entry {
        Entry::Http => refuse(refusal, run, conn).into_bytes(),
        Entry::Socks5 => socks::unread_reply(refusal),
        Entry::Gateway(target) | Entry::Forward(target) => {
            transparent::unread_reply(refusal, target, run, conn)
        }
    }
}

/// Refuses a connection because too many are open.
pub(crate) async fn refuse_busy(mut client: Stream, entry: Entry, conn: ConnId, cx: &Context) {
    let reply = unread_reply(&Refusal::Busy, &entry, cx.run(), conn);
    if client.write_until(&reply, Instant::now() + limits::REPLY).await.is_ok() {
        client.linger(cx.limits().linger).await;
    }
}
