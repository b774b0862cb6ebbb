//! Reads and checks the first bytes of a client: a request, or the ClientHello or request in a tunnel.

use exeat_policy::{Ech, Target};
use exeat_record::CloseCause;
use tokio::time::{Instant, timeout_at};

use super::second::pass_hello;
use super::session::{Session, Tunnel, UnknownTunnel, alert_and_close, send_refusal};
use super::settle::check_request;
use crate::context::Context;
use crate::head::{Fault, Head, Parsed, Parser};
use crate::hello::{HelloFault, Reader};
use crate::http::Exchange;
use crate::limits;
use crate::opening::{Detector, Protocol};
use crate::reach::{Connection, Content};
use crate::record::Record;
use crate::reply::Refusal;
use crate::stream::Stream;
use crate::tunnel::Early;

/// Checks the first bytes of a tunnel after its client was told that it is open. Every entry uses this. `first`
/// holds what the client sent after its request.
pub(super) async fn check_first_bytes(
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
        Protocol::Http => check_request(unknown, false, record, cx).await,
        Protocol::Other => Some(unknown.tunnel.open()),
        Protocol::Unknown { .. } => Some(Session::Unknown(Box::new(unknown))),
    }
}

/// Handles a tunnel that opens with TLS: the hello must name the target before anything goes upstream.
pub(super) async fn check_tls(
    unknown: UnknownTunnel,
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Session> {
    let UnknownTunnel { tunnel: Tunnel { client, upstream, mut early }, target, ech, .. } = unknown;
    let by = Instant::now() + cx.limits().hello;
    match check_hello(&client, &mut early.up, &target, ech, record, by).await {
        Ok(HelloOutcome::Passed { len }) => {
            let tunnel = Tunnel { client, upstream, early };
            Box::pin(pass_hello(tunnel, len, &target, ech, record, cx)).await
        }
        Ok(HelloOutcome::Gone) => {
            record.close(CloseCause::Client, None);
            None
        }
        Err(fault) => {
            drop(early);
            alert_and_close(client, upstream, &target, fault, record, cx).await
        }
    }
}

/// Handles plain HTTP in a tunnel: the request must name the target.
pub(super) async fn read_inner_request(
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
            record.close(CloseCause::Client, None);
            return None;
        }
        Received::Silence => Fault::TooSlow,
        Received::Fault(fault) => fault,
    };
    drop((upstream, bytes));
    record.deny_late(&target, fault.reason(), fault.to_string());
    send_refusal(client, &Refusal::Malformed(fault), record, cx).await
}

/// The bytes that the client sent before the first answer.
pub(super) enum Received<T> {
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
pub(super) async fn read_head<T>(
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
