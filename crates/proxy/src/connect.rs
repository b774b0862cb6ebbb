//! One connection, from its first byte to its close record. This file is the order of the phases; each phase decides
//! in a file of its own.
//!
//! Written as absences: no upstream socket is opened before its decision is written; nothing dials a name; no path
//! reaches `dial` without a `Vetted`, or another proxy without an `Entrusted`; after a refusal nothing more is read as a request.

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

/// Serves one client connection to its end.
///
/// Dropping the future closes both sides; if a decision was written, its close is too.
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
    // Each boxed, so that it takes up what it needs itself, and nothing while the tunnel lives.
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
            // It is a tunnel already: what its client has sent is delivered.
            tokio::select! {
                biased;
                opened = settling => opened,
                () = async { stop.cancelled().await; sleep(cx.limits().drain).await } => None,
            }
        }
        opened => opened,
    };
    match opened {
        // INVARIANT: `settle` leaves nothing open.
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

/// What comes of `opening`, unless the run is over before.
async fn until<T>(stop: &CancellationToken, opening: impl Future<Output = Option<T>>) -> Option<T> {
    tokio::select! {
        biased;
        opened = opening => opened,
        () = stop.cancelled() => None,
    }
}

/// A connection with its upstream.
enum Opened {
    /// Bytes go both ways.
    Tunnel(Tunnel),
    /// It may carry anything, and nobody has said a word yet.
    Any(Box<Any>),
    /// One request goes up, and its answer down.
    Exchange(Box<Exchange>),
}

/// Both ends, and the bytes that were read already.
struct Tunnel {
    client: Stream,
    upstream: Stream,
    early: Early,
}

/// Everything before bytes may go upstream. `None`: they may not, and all was said and recorded.
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
        // Told, because it may be a client that waits for us to speak first; not recorded, because it asked for
        // nothing that could be denied.
        Arrived::Silence => say_no(client, &Refusal::Malformed(Fault::TooSlow), record, cx).await,
        Arrived::Nothing => None,
    }
}

/// CONNECT: from the target to a tunnel whose first bytes were looked at.
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

/// What becomes of a tunnel whose client was told yes, by what it may carry; `first` is what the client has said behind
/// its request. The same for every entry.
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

/// A tunnel that opens with TLS: its hello names the target, or nothing goes upstream.
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

/// Refuses a tunnel that stands, because of what its client sent first.
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

/// A tunnel to the port of plain HTTP, or one that opens with a request: the request names the target.
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

/// What came before the first answer.
enum Arrived<T> {
    /// A request, in the first bytes.
    Asked { asks: T, head_len: usize },
    /// Something malformed, cut short or late.
    Fault(Fault),
    /// Not a byte until the deadline; the client is still there.
    Silence,
    /// Nothing at all: the client connected and went away.
    Nothing,
}

/// Reads one head, with one deadline for all of it (P19), and what it asks for.
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

/// How a first flight turned out that is not to be refused.
enum Hello {
    /// It names the target, in the first `len` bytes.
    Passed { len: usize },
    /// The client left without a byte.
    Gone,
}

/// Reads the ClientHello into `first` and checks its name. Nothing goes upstream until this has passed.
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

/// A fatal TLS alert (RFC 8446 section 6) for a client that speaks TLS, so that it prints more than "end of file".
fn alert(fault: HelloFault) -> &'static [u8] {
    match fault {
        HelloFault::NoName | HelloFault::OtherName | HelloFault::Hidden => ACCESS_DENIED,
        HelloFault::Malformed | HelloFault::TooLarge => &[21, 3, 3, 0, 2, 2, 50], // decode_error
        HelloFault::NoRoom => &[21, 3, 3, 0, 2, 2, 80],                           // internal_error
        HelloFault::NotTls | HelloFault::Timeout | HelloFault::Undecided => &[],
    }
}

/// Answers with a refusal, then closes so that the answer arrives.
async fn say_no(client: Stream, refusal: &Refusal, record: &mut Record<'_>, cx: &Context) -> Option<Opened> {
    let reply = refuse(refusal, cx.run(), record.conn()).into_bytes();
    // Boxed: its room would be part of every connection that waits for a head.
    Box::pin(end_with(client, &reply, record, cx)).await
}

/// Writes the last that is said on a connection, then closes so that it arrives.
async fn end_with(mut client: Stream, reply: &[u8], record: &mut Record<'_>, cx: &Context) -> Option<Opened> {
    record.leave();
    let wrote = client.write_until(reply, Instant::now() + limits::REPLY).await;
    record.close(End::Killed, None);
    if wrote.is_ok() {
        client.linger(cx.limits().linger).await;
    }
    None
}

/// The answer to a client that is not listened to.
pub(crate) fn unheard(refusal: &Refusal, entry: &Entry, run: RunId, conn: ConnId) -> Vec<u8> {
    match entry {
        Entry::Http => refuse(refusal, run, conn).into_bytes(),
        Entry::Socks5 => socks::unheard(refusal),
        Entry::Gateway(target) | Entry::Forward(target) => transparent::unheard(refusal, target, run, conn),
    }
}

/// Answers on a connection for which there is no room.
pub(crate) async fn too_many(mut client: Stream, entry: Entry, conn: ConnId, cx: &Context) {
    let reply = unheard(&Refusal::Busy, &entry, cx.run(), conn);
    if client.write_until(&reply, Instant::now() + limits::REPLY).await.is_ok() {
        client.linger(cx.limits().linger).await;
    }
}
