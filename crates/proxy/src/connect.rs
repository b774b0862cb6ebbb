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

use self::settle::{Any, settle};
use crate::head::{Asks, Fault, Head, Parsed, Parser, Plain};
use crate::hello::{HelloFault, Reader};
use crate::http::{self, Exchange};
use crate::limits;
use crate::opening::{Opening, Opens};
use crate::reach::{Carries, Reached, Wanted, reach};
use crate::record::Record;
use crate::reply::{ESTABLISHED, Refusal, refuse};
use crate::server::{Context, Entry};
use crate::stream::Stream;
use crate::tunnel::{self, Early};
use crate::who::Asked;

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
    let mut record = Record::new(cx, conn, via, Asked::of(&client, cx.who()));
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
    let opened = match until(stop, opening).await {
        Some(Opened::Any(any)) => {
            let settling = Box::pin(settle(*any, &mut record, cx));
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
        // INVARIANT: `settle` never returns `Any`.
        None | Some(Opened::Any(_)) => {}
        Some(Opened::Tunnel(Tunnel { client, upstream, early })) => {
            record.holds_nothing();
            let moving = tunnel::run(client, upstream, early, &record.moved, cx.pool(), cx.limits(), stop);
            let ended = Box::pin(moving).await;
            record.close(ended.end, ended.error);
        }
        Some(Opened::Exchange(exchange)) => {
            record.holds_nothing();
            Box::pin(http::run(*exchange, &mut record, cx, stop)).await;
        }
    }
}

/// Waits for `opening`, and returns `None` if the run stops first.
async fn until<T>(stop: &CancellationToken, opening: impl Future<Output = Option<T>>) -> Option<T> {
    tokio::select! {
        biased;
        opened = opening => opened,
        () = stop.cancelled() => None,
    }
}

/// A connection that has its upstream.
enum Opened {
    /// Bytes flow in both directions.
    Tunnel(Tunnel),
    /// The tunnel may carry any protocol, and the client has not sent enough to tell which.
    Any(Box<Any>),
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
async fn open(client: Stream, record: &mut Record<'_>, cx: &Context) -> Option<Opened> {
    let mut bytes = Vec::new();
    match read_head(&client, &mut bytes, record, cx, |head| head.asks()).await {
        Arrived::Asked { asks: Asks::Connect(target), head_len } => {
            let first = bytes.split_off(head_len.min(bytes.len()));
            drop(bytes);
            Box::pin(tunnel_to(client, first, target, record, cx)).await
        }
        Arrived::Asked { asks: Asks::Plain(plain), .. } => {
            record.via = Via::Http;
            record.method = Some(plain.method.clone());
            let reached = match Box::pin(reach(&plain.target, Wanted::Request, record, cx)).await {
                Ok(reached) => reached,
                Err(refusal) => return say_no(client, &refusal, record, cx).await,
            };
            let Plain { target, path, .. } = plain;
            let upstream = reached.upstream;
            Some(Opened::Exchange(Box::new(Exchange { client, bytes, target, path, upstream })))
        }
        Arrived::Fault(fault) => {
            Box::pin(record.malformed(fault, &bytes)).await;
            drop(bytes);
            say_no(client, &Refusal::Malformed(fault), record, cx).await
        }
        // The client gets an answer, because it may be waiting for us to speak first. The record gets no line,
        // because nothing that could be denied was asked for.
        Arrived::Silence => say_no(client, &Refusal::Malformed(Fault::TooSlow), record, cx).await,
        Arrived::Nothing => None,
    }
}

/// Handles CONNECT: dials the target, then checks the first bytes of the tunnel.
async fn tunnel_to(
    mut client: Stream,
    first: Vec<u8>,
    target: Target,
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Opened> {
    let reached = match Box::pin(reach(&target, Wanted::Tunnel, record, cx)).await {
        Ok(reached) => reached,
        Err(refusal) => return say_no(client, &refusal, record, cx).await,
    };
    if let Err(error) = client.write_until(ESTABLISHED, Instant::now() + limits::REPLY).await {
        record.close(End::Error, Some(format!("client: {error}")));
        return None;
    }
    opened(client, first, target, reached, record, cx).await
}

/// Checks the first bytes of a tunnel after its client was told that it is open. Every entry uses this. `first`
/// holds what the client sent after its request.
async fn opened(
    client: Stream,
    first: Vec<u8>,
    target: Target,
    Reached { upstream, carries, ech }: Reached,
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Opened> {
    if carries == Carries::Http {
        return request_inside(client, first, target, upstream, record, cx).await;
    }
    let early = Early { up: first, down: Vec::new() };
    let mut any =
        Any { tunnel: Tunnel { client, upstream, early }, target, ech, opening: Opening::default() };
    let opens = match carries {
        Carries::Tls => Opens::Tls,
        Carries::Any => any.opening.look(&any.tunnel.early.up),
        Carries::Http | Carries::Unseen => Opens::Other,
    };
    match opens {
        Opens::Tls => named(any, record, cx).await,
        Opens::Http => settle::request(any, false, record, cx).await,
        Opens::Other => Some(any.tunnel.open()),
        Opens::Unknown { .. } => Some(Opened::Any(Box::new(any))),
    }
}

impl Tunnel {
    fn open(mut self) -> Opened {
        self.early.up.shrink_to_fit();
        Opened::Tunnel(self)
    }
}

/// Handles a tunnel that opens with TLS: the hello must name the target before anything goes upstream.
async fn named(any: Any, record: &mut Record<'_>, cx: &Context) -> Option<Opened> {
    let Any { tunnel: Tunnel { client, upstream, mut early }, target, ech, .. } = any;
    let by = Instant::now() + cx.limits().hello;
    match check_hello(&client, &mut early.up, &target, ech, record, by).await {
        Ok(Hello::Passed { len }) => {
            let tunnel = Tunnel { client, upstream, early };
            Box::pin(second::pass_hello(tunnel, len, &target, ech, record, cx)).await
        }
        Ok(Hello::Gone) => {
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
) -> Option<Opened> {
    record.late(target, fault.reason(), fault.to_string());
    let _ = client.write_until(alert(fault), Instant::now() + limits::REPLY).await;
    drop(upstream);
    client.linger(cx.limits().linger).await;
    None
}

/// Handles plain HTTP in a tunnel: the request must name the target.
async fn request_inside(
    client: Stream,
    mut bytes: Vec<u8>,
    target: Target,
    upstream: Stream,
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Opened> {
    let fault = match read_head(&client, &mut bytes, record, cx, |head| head.inside(&target)).await {
        Arrived::Asked { asks: path, .. } => {
            return Some(Opened::Exchange(Box::new(Exchange { client, bytes, target, path, upstream })));
        }
        Arrived::Nothing => {
            record.close(End::Client, None);
            return None;
        }
        Arrived::Silence => Fault::TooSlow,
        Arrived::Fault(fault) => fault,
    };
    drop((upstream, bytes));
    record.late(&target, fault.reason(), fault.to_string());
    say_no(client, &Refusal::Malformed(fault), record, cx).await
}

/// What the client sent before the first answer.
enum Arrived<T> {
    /// A request in the first bytes.
    Asked { asks: T, head_len: usize },
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
) -> Arrived<T> {
    let by = Instant::now() + cx.limits().head;
    let mut parser = Parser::default();
    loop {
        match parser.advance(bytes) {
            Parsed::Incomplete => {}
            Parsed::Fault(fault) => return Arrived::Fault(fault),
            Parsed::Head(head) => {
                return match asks(&head) {
                    Ok(asks) => Arrived::Asked { asks, head_len: head.len },
                    Err(fault) => Arrived::Fault(fault),
                };
            }
        }
        match timeout_at(by, client.read_some(bytes, limits::EARLY_BYTES)).await {
            Err(_) if bytes.is_empty() => return Arrived::Silence,
            Err(_) => return Arrived::Fault(Fault::TooSlow),
            Ok(Err(_) | Ok(0)) if bytes.is_empty() => return Arrived::Nothing,
            Ok(Err(_) | Ok(0)) => return Arrived::Fault(Fault::CutShort),
            Ok(Ok(_)) if !record.holds(bytes) => return Arrived::Fault(Fault::NoRoom),
            Ok(Ok(read)) => tracing::trace!(read, "head bytes"),
        }
    }
}

/// The outcome of reading a hello that is not refused.
enum Hello {
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
) -> Result<Hello, HelloFault> {
    let start = Instant::now();
    let mut reader = Reader::new();
    loop {
        if let Some(hello) = reader.advance(first)? {
            let checked = hello.check(target, ech);
            record.hello(hello, start.elapsed(), checked.is_ok());
            return checked.map(|()| Hello::Passed { len: reader.len() });
        }
        let room = (limits::HELLO_BYTES - first.len().min(limits::HELLO_BYTES)).clamp(1, limits::EARLY_BYTES);
        match timeout_at(by, client.read_some(first, room)).await {
            Err(_) => return Err(HelloFault::Timeout),
            Ok(Err(_) | Ok(0)) if first.is_empty() => return Ok(Hello::Gone),
            Ok(Err(_) | Ok(0)) => return Err(HelloFault::Malformed),
            Ok(Ok(_)) if !record.holds(first) => return Err(HelloFault::NoRoom),
            Ok(Ok(_)) => {}
        }
    }
}

/// The fatal alert access_denied (RFC 8446 section 6.2).
const ACCESS_DENIED: &[u8] = &[21, 3, 3, 0, 2, 2, 49];

/// Returns the fatal TLS alert (RFC 8446 section 6) for a fault, so that a client prints more than "end of file".
fn alert(fault: HelloFault) -> &'static [u8] {
    match fault {
        HelloFault::NoName | HelloFault::OtherName | HelloFault::Hidden => ACCESS_DENIED,
        HelloFault::Malformed | HelloFault::TooLarge => &[21, 3, 3, 0, 2, 2, 50], // decode_error
        HelloFault::NoRoom => &[21, 3, 3, 0, 2, 2, 80],                           // internal_error
        HelloFault::NotTls | HelloFault::Timeout | HelloFault::Undecided => &[],
    }
}

/// Answers with a refusal, then closes in a way that lets the answer arrive.
async fn say_no(client: Stream, refusal: &Refusal, record: &mut Record<'_>, cx: &Context) -> Option<Opened> {
    let reply = refuse(refusal, cx.run(), record.conn()).into_bytes();
    // Boxed, so that its state is not part of every connection that waits for a head.
    Box::pin(end_with(client, &reply, record, cx)).await
}

/// Writes the last bytes of a connection, then closes in a way that lets them arrive.
async fn end_with(mut client: Stream, reply: &[u8], record: &mut Record<'_>, cx: &Context) -> Option<Opened> {
    record.leave();
    let wrote = client.write_until(reply, Instant::now() + limits::REPLY).await;
    record.close(End::Killed, None);
    if wrote.is_ok() {
        client.linger(cx.limits().linger).await;
    }
    None
}

/// Builds the answer for a client whose request is not read.
pub(crate) fn unheard(refusal: &Refusal, entry: &Entry, run: RunId, conn: ConnId) -> Vec<u8> {
    match entry {
        Entry::Http => refuse(refusal, run, conn).into_bytes(),
        Entry::Socks5 => socks::unheard(refusal),
        Entry::Gateway(target) | Entry::Forward(target) => transparent::unheard(refusal, target, run, conn),
    }
}

/// Refuses a connection because too many are open.
pub(crate) async fn too_many(mut client: Stream, entry: Entry, conn: ConnId, cx: &Context) {
    let reply = unheard(&Refusal::Busy, &entry, cx.run(), conn);
    if client.write_until(&reply, Instant::now() + limits::REPLY).await.is_ok() {
        client.linger(cx.limits().linger).await;
    }
}
