//! The SOCKS5 entry. It reads the target and answers in SOCKS5; the steps between are those of CONNECT.

use exeat_policy::Target;
use exeat_record::CloseCause;
use tokio::time::{Instant, timeout_at};

use super::first::check_first_bytes;
use super::session::{Session, send_and_close};
use crate::context::Context;
use crate::limits;
use crate::reach::{RequestKind, reach};
use crate::record::Record;
use crate::reply::{Refusal, socks_reply};
use crate::socks::{Fault, NO_AUTHENTICATION, Parsed, Parser, VERSION};
use crate::stream::Stream;

/// The answer to a greeting that offers a supported method.
const METHOD: [u8; 2] = [VERSION, NO_AUTHENTICATION];
/// The answer to a greeting that offers no supported method (RFC 1928 section 3).
const NO_METHOD: [u8; 2] = [VERSION, 0xff];
/// The reply code for an open connection.
const SUCCEEDED: u8 = 0;

/// Handles a SOCKS5 client until its tunnel is open. Returns `None` if no tunnel was opened; the client then has its
/// answer and the record its line.
pub(super) async fn open(mut client: Stream, record: &mut Record<'_>, cx: &Context) -> Option<Session> {
    let mut bytes = Vec::new();
    let mut parser = Parser::default();
    let (target, len) = match read_request(&mut client, &mut parser, &mut bytes, record, cx).await {
        Received::Request { target, len } => (target, len),
        Received::Fault(fault) => {
            record.deny_malformed_socks(fault, parser.name(&bytes)).await;
            drop(bytes);
            let answer: &[u8] = match fault {
                Fault::Methods => &NO_METHOD,
                // Before the greeting is answered, SOCKS5 has no way to say why, and other protocols would not
                // understand it.
                _ if !parser.greeted() => &[],
                _ => &socks_reply(fault.code()),
            };
            return send_and_close(client, answer, record, cx).await;
        }
        Received::Nothing => return None,
    };
    let first = bytes.split_off(len.min(bytes.len()));
    drop(bytes);

    let reached = match Box::pin(reach(&target, RequestKind::Tunnel, record, cx)).await {
        Ok(reached) => reached,
        Err(refusal) => return send_and_close(client, &socks_reply(refusal.socks_code()), record, cx).await,
    };
    if let Err(error) = client.write_until(&socks_reply(SUCCEEDED), Instant::now() + limits::REPLY).await {
        record.close(CloseCause::Error, Some(format!("client: {error}")));
        return None;
    }
    check_first_bytes(client, first, target, reached, record, cx).await
}

/// Builds both answers, to the greeting and to the request, for a client whose request is not read.
pub(super) fn unread_reply(refusal: &Refusal) -> Vec<u8> {
    [&METHOD[..], &socks_reply(refusal.socks_code())].concat()
}

/// The bytes that the client sent before the first answer to a request.
enum Received {
    /// A request for a target in the first bytes.
    Request { target: Target, len: usize },
    /// Something malformed, incomplete or late.
    Fault(Fault),
    /// No byte at all, so nothing was asked for.
    Nothing,
}

/// Reads greeting and request under a single deadline, which includes the answer between them (P19).
async fn read_request(
    client: &mut Stream,
    parser: &mut Parser,
    bytes: &mut Vec<u8>,
    record: &mut Record<'_>,
    cx: &Context,
) -> Received {
    let by = Instant::now() + cx.limits().head;
    loop {
        match timeout_at(by, client.read_some(bytes, limits::EARLY_BYTES)).await {
            Err(_) | Ok(Err(_) | Ok(0)) if bytes.is_empty() => return Received::Nothing,
            Err(_) => return Received::Fault(Fault::TooSlow),
            Ok(Err(_) | Ok(0)) => return Received::Fault(Fault::CutShort),
            Ok(Ok(_)) if !record.try_hold(bytes) => return Received::Fault(Fault::NoRoom),
            Ok(Ok(_)) => {}
        }
        let mut parsed = parser.advance(bytes);
        if parsed == Parsed::Greeting {
            if client.write_until(&METHOD, by).await.is_err() {
                return Received::Fault(Fault::CutShort);
            }
            // The request may have arrived together with the greeting.
            parsed = parser.advance(bytes);
        }
        match parsed {
            Parsed::Incomplete | Parsed::Greeting => {}
            Parsed::Request { target, len } => return Received::Request { target, len },
            Parsed::Fault(fault) => return Received::Fault(fault),
        }
    }
}
