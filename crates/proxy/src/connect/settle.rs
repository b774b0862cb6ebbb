//! Finds out what a tunnel carries from the first bytes of its client. Meanwhile it forwards what the server sends.

use exeat_record::CloseCause;
use tokio::time::{Instant, timeout_at};

use super::first::{check_tls, read_inner_request};
use super::session::{Session, Step, Tunnel, UnknownTunnel, alert_and_close, send_refusal};
use crate::context::Context;
use crate::head::Fault;
use crate::hello::HelloFault;
use crate::opening::Protocol;
use crate::record::Record;
use crate::reply::Refusal;
use crate::tunnel::{self};

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
        match timeout_at(
            by,
            unknown.tunnel.step(free, free == 0, is_server_open, &record.moved, Some(cx.pool())),
        )
        .await
        {
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
                record.close(CloseCause::Budget, Some(tunnel::TOTAL_IS_OVER.to_owned()));
                return None;
            }
            Err(_) => {
                record.close(CloseCause::Idle, None);
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
