//! The entries of the gateway and of a host port. The listener determines the target, so no byte of the client is
//! read for it.

use exeat_policy::{Port, Target};
use exeat_record::{CloseCause, ConnId, RunId};

use super::first::check_first_bytes;
use super::session::{ACCESS_DENIED, Session, send_and_close};
use crate::context::Context;
use crate::reach::{HTTP, RequestKind, reach};
use crate::record::Record;
use crate::reply::{Refusal, refuse};
use crate::stream::Stream;

/// The fatal alert internal_error (RFC 8446 section 6.2).
const INTERNAL_ERROR: &[u8] = &[21, 3, 3, 0, 2, 2, 80];

/// Dials the target for a client. Returns `None` if no tunnel was opened; the client then has its answer and the
/// record its line.
pub(super) async fn open(
    client: Stream,
    target: &Target,
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Session> {
    match Box::pin(reach(target, RequestKind::Tunnel, record, cx)).await {
        Ok(reached) => check_first_bytes(client, Vec::new(), target.clone(), reached, record, cx).await,
        Err(refusal) => {
            let answer = unread_reply(&refusal, target, cx.run(), record.conn());
            if !answer.is_empty() {
                return send_and_close(client, &answer, record, cx).await;
            }
            // The client's protocol is unknown. A reset at least does not look like an answer of the origin.
            record.close(CloseCause::Killed, None);
            client.will_reset();
            None
        }
    }
}

/// Builds the answer for a client whose request is not read, as far as its port determines what it speaks.
pub(super) fn unread_reply(refusal: &Refusal, target: &Target, run: RunId, conn: ConnId) -> Vec<u8> {
    match target.port {
        port if port.get() == HTTP => refuse(refusal, run, conn).into_bytes(),
        Port::HTTPS => match refusal {
            Refusal::DeniedByPolicy(_) | Refusal::OnlyTls(_) | Refusal::UsedUp(_) => ACCESS_DENIED.to_vec(),
            // The alert must tell an outage from a policy denial, because an alert has no room for words.
            Refusal::Malformed(_)
            | Refusal::Failed(..)
            | Refusal::NoRecord(_)
            | Refusal::RecordFull(_)
            | Refusal::Crowded(_)
            | Refusal::Busy
            | Refusal::NoProxy => INTERNAL_ERROR.to_vec(),
        },
        _ => Vec::new(),
    }
}
