//! One connection, from its first byte to its close record. This file is the order of the phases; each phase decides
//! in a file of its own.
//!
//! Written as absences: no upstream socket is opened before its decision is written; nothing dials a name; no path
//! reaches `dial` without a `Vetted`; after a refusal nothing more is read as a request.

mod socks;

use exeat_audit::{ConnId, End, Via};
use exeat_policy::Target;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::head::{Fault, Parsed, Parser};
use crate::hello::{HelloFault, Reader};
use crate::http;
use crate::limits;
use crate::reach::{Carries, Reached, reach};
use crate::record::Record;
use crate::reply::{ESTABLISHED, Refusal, refuse};
use crate::server::{Context, Entry};
use crate::stream::Stream;
use crate::tunnel;

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
    };
    let mut record = Record::new(cx, conn, via);
    // Boxed, so that what only the opening needs is gone while the tunnel lives.
    let opening = Box::pin(async {
        match entry {
            Entry::Http => open(client, &mut record, cx).await,
            Entry::Socks5 => socks::open(client, &mut record, cx).await,
        }
    });
    let opened = tokio::select! {
        biased;
        opened = opening => opened,
        () = stop.cancelled() => None,
    };
    let Some(Opened { client, upstream, first }) = opened else { return };
    let moving = tunnel::run(client, upstream, first, &record.moved, cx.pool(), cx.limits(), stop);
    let ended = moving.await;
    record.close(ended.end, ended.error);
}

/// A connection with its upstream, ready for the tunnel.
struct Opened {
    client: Stream,
    upstream: Stream,
    /// Bytes of the client that were read already, and go first.
    first: Vec<u8>,
}

/// Everything before the tunnel. `None`: there is none, and all was said and recorded.
async fn open(mut client: Stream, record: &mut Record<'_>, cx: &Context) -> Option<Opened> {
    let mut bytes = Vec::new();
    let (target, head_len) = match read_head(&client, &mut bytes, cx).await {
        Arrived::Connect { target, head_len } => (target, head_len),
        Arrived::Other => {
            let client = http::answer(client, bytes, record, cx).await?;
            record.close(End::Killed, None);
            linger(client, cx).await;
            return None;
        }
        Arrived::Fault(fault) => {
            record.malformed(fault, &bytes);
            say_no(client, &Refusal::Malformed(fault), record, cx).await;
            return None;
        }
        Arrived::Silence => {
            // Told, because it may be a client that waits for us to speak first; not recorded, because it asked for
            // nothing that could be denied.
            say_no(client, &Refusal::Malformed(Fault::TooSlow), record, cx).await;
            return None;
        }
        Arrived::Nothing => return None,
    };
    let first = bytes.split_off(head_len.min(bytes.len()));
    drop(bytes);

    let reached = match reach(&target, record, cx).await {
        Ok(reached) => reached,
        Err(refusal) => {
            say_no(client, &refusal, record, cx).await;
            return None;
        }
    };
    if let Err(error) = client.write_until(ESTABLISHED, Instant::now() + limits::REPLY).await {
        record.close(End::Error, Some(format!("client: {error}")));
        return None;
    }
    look_inside(client, first, &target, reached, record, cx).await
}

/// After the client was told of its connection: what has to be seen before a byte goes upstream, the same for every entry.
async fn look_inside(
    mut client: Stream,
    mut first: Vec<u8>,
    target: &Target,
    Reached { upstream, carries }: Reached,
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Opened> {
    if carries == Carries::Tls {
        let by = Instant::now() + cx.limits().hello;
        match check_hello(&client, &mut first, target, record, by).await {
            Ok(Hello::Passed) => {}
            Ok(Hello::Gone) => {
                record.close(End::Client, None);
                return None;
            }
            Err(fault) => {
                record.late(target, fault);
                let _ = client.write_until(alert(fault), Instant::now() + limits::REPLY).await;
                drop(upstream);
                linger(client, cx).await;
                return None;
            }
        }
    }
    first.shrink_to_fit();
    Some(Opened { client, upstream, first })
}

/// What came before the first answer.
enum Arrived {
    /// A CONNECT request for a target, in the first bytes.
    Connect { target: Target, head_len: usize },
    /// Another well-formed request.
    Other,
    /// Something malformed, cut short or late.
    Fault(Fault),
    /// Not a byte until the deadline; the client is still there.
    Silence,
    /// Nothing at all: the client connected and went away.
    Nothing,
}

/// Reads one head, with one deadline for all of it (P19).
async fn read_head(client: &Stream, bytes: &mut Vec<u8>, cx: &Context) -> Arrived {
    let by = Instant::now() + cx.limits().head;
    let mut parser = Parser::default();
    loop {
        let read = match timeout_at(by, client.read_some(bytes, limits::EARLY_BYTES)).await {
            Err(_) if bytes.is_empty() => return Arrived::Silence,
            Err(_) => return Arrived::Fault(Fault::TooSlow),
            Ok(Err(_) | Ok(0)) if bytes.is_empty() => return Arrived::Nothing,
            Ok(Err(_) | Ok(0)) => return Arrived::Fault(Fault::CutShort),
            Ok(Ok(read)) => read,
        };
        tracing::trace!(read, "head bytes");
        match parser.advance(bytes) {
            Parsed::Incomplete => {}
            Parsed::Fault(fault) => return Arrived::Fault(fault),
            Parsed::Head(head) if head.method == b"CONNECT" => {
                return match head.connect_target() {
                    Ok(target) => Arrived::Connect { target, head_len: head.len },
                    Err(fault) => Arrived::Fault(fault),
                };
            }
            Parsed::Head(_) => return Arrived::Other,
        }
    }
}

/// How a first flight turned out that is not to be refused.
enum Hello {
    /// It names the target.
    Passed,
    /// The client left without a byte.
    Gone,
}

/// Reads the ClientHello into `first` and checks its name. Nothing goes upstream until this has passed.
async fn check_hello(
    client: &Stream,
    first: &mut Vec<u8>,
    target: &Target,
    record: &mut Record<'_>,
    by: Instant,
) -> Result<Hello, HelloFault> {
    let start = Instant::now();
    let mut reader = Reader::new();
    let mut new = first.len();
    loop {
        if let Some(hello) = reader.advance(first, new)? {
            let checked = hello.check(target);
            record.hello(hello, start.elapsed(), checked.is_ok());
            return checked.map(|()| Hello::Passed);
        }
        let room = (limits::HELLO_BYTES - first.len().min(limits::HELLO_BYTES)).clamp(1, limits::EARLY_BYTES);
        new = match timeout_at(by, client.read_some(first, room)).await {
            Err(_) => return Err(HelloFault::Timeout),
            Ok(Err(_) | Ok(0)) if first.is_empty() => return Ok(Hello::Gone),
            Ok(Err(_) | Ok(0)) => return Err(HelloFault::Malformed),
            Ok(Ok(read)) => read,
        };
    }
}

/// A fatal TLS alert (RFC 8446 section 6) for a client that speaks TLS, so that it prints more than "end of file".
fn alert(fault: HelloFault) -> &'static [u8] {
    match fault {
        HelloFault::NoName | HelloFault::OtherName => &[21, 3, 3, 0, 2, 2, 49], // access_denied
        HelloFault::Malformed | HelloFault::TooLarge => &[21, 3, 3, 0, 2, 2, 50], // decode_error
        HelloFault::NotTls | HelloFault::Timeout => &[],
    }
}

/// Answers with a refusal, then closes so that the answer arrives.
async fn say_no(client: Stream, refusal: &Refusal, record: &mut Record<'_>, cx: &Context) {
    let reply = refuse(refusal, cx.run(), record.conn()).into_bytes();
    end_with(client, &reply, record, cx).await;
}

/// Writes the last that is said on a connection, then closes so that it arrives.
async fn end_with(mut client: Stream, reply: &[u8], record: &mut Record<'_>, cx: &Context) {
    let wrote = client.write_until(reply, Instant::now() + limits::REPLY).await;
    record.close(End::Killed, None);
    if wrote.is_ok() {
        linger(client, cx).await;
    }
}

/// Answers on a connection for which there is no room.
pub(crate) async fn too_many(mut client: Stream, entry: Entry, conn: ConnId, cx: &Context) {
    let reply = match entry {
        Entry::Http => refuse(&Refusal::Busy, cx.run(), conn).into_bytes(),
        Entry::Socks5 => socks::too_many(),
    };
    if client.write_until(&reply, Instant::now() + limits::REPLY).await.is_ok() {
        linger(client, cx).await;
    }
}

/// Closes in the order of RFC 9112 section 9.6: our end first, then what the client still sends is thrown away for a
/// moment; closing with unread input would reset the connection and could destroy the reply. None of it is parsed.
async fn linger(client: Stream, cx: &Context) {
    client.finish();
    let drain = async {
        let mut thrown = 0;
        let mut scratch = Vec::new();
        while thrown < limits::LINGER_BYTES {
            match client.read_some(&mut scratch, limits::EARLY_BYTES).await {
                Ok(read) if read > 0 => thrown += read,
                _ => break,
            }
            scratch.clear();
        }
    };
    let _ = timeout(cx.limits().linger, drain).await;
}
