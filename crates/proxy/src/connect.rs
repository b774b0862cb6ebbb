//! Serves one connection, from its first byte to its close record. This file holds the order of the phases; each
//! phase decides in its own file.
//!
//! Invariants: no upstream socket opens before its decision is written. Nothing dials a name. `dial` needs a
//! `Vetted`, and an upstream proxy needs an `Entrusted`. After a refusal, no further byte is read as a request.

mod first;
mod second;
mod session;
mod settle;
mod socks;
mod transparent;

use std::future::Future;

use exeat_policy::Target;
use exeat_record::{CloseCause, ConnId, RunId, Via};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::first::{Received, check_first_bytes, read_head};
use self::session::{Session, Tunnel, send_refusal};
use self::settle::detect_protocol;
use crate::context::{Context, Entry};
use crate::head::{ClientRequest, Fault, Plain};
use crate::http::{self, Exchange};
use crate::limits;
use crate::reach::{RequestKind, reach};
use crate::record::Record;
use crate::reply::{ESTABLISHED, Refusal, refuse};
use crate::stream::Stream;
use crate::tunnel;
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
        record.close(CloseCause::Error, Some(format!("client: {error}")));
        return None;
    }
    check_first_bytes(client, first, target, reached, record, cx).await
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
