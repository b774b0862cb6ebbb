//! The gateway's entry, and that of a port of the host: the listener says who is asked for, and no byte is read for it.

use exeat_policy::{Port, Target};
use exeat_record::{ConnId, End, RunId};

use super::{ACCESS_DENIED, Opened, end_with, opened};
use crate::reach::{HTTP, Wanted, reach};
use crate::record::Record;
use crate::reply::{Refusal, refuse};
use crate::server::Context;
use crate::stream::Stream;

/// The fatal alert internal_error (RFC 8446 section 6.2).
const INTERNAL_ERROR: &[u8] = &[21, 3, 3, 0, 2, 2, 80];

/// Everything before the tunnel. `None`: there is none, and all was said and recorded.
pub(super) async fn open(
    client: Stream,
    target: &Target,
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Opened> {
    match Box::pin(reach(target, Wanted::Tunnel, record, cx)).await {
        Ok(reached) => opened(client, Vec::new(), target.clone(), reached, record, cx).await,
        Err(refusal) => {
            let answer = unheard(&refusal, target, cx.run(), record.conn());
            if !answer.is_empty() {
                return end_with(client, &answer, record, cx).await;
            }
            // No word of the client's protocol is known: a reset is at least no answer of the origin's.
            record.close(End::Killed, None);
            client.will_reset();
            None
        }
    }
}

/// What a client is told that is not listened to, as far as its port says what it speaks.
pub(super) fn unheard(refusal: &Refusal, target: &Target, run: RunId, conn: ConnId) -> Vec<u8> {
    match target.port {
        port if port.get() == HTTP => refuse(refusal, run, conn).into_bytes(),
        Port::HTTPS => match refusal {
            Refusal::Denied(_) | Refusal::OnlyTls(_) | Refusal::UsedUp(_) => ACCESS_DENIED.to_vec(),
            // An outage is no policy, also where there is no room for words.
            _ => INTERNAL_ERROR.to_vec(),
        },
        _ => Vec::new(),
    }
}
