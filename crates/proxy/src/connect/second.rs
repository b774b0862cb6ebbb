//! Forwards a checked ClientHello, and checks a second one against the same name. A TLS 1.3 server asks for a
//! second hello if the first lacks a key that it can use (RFC 8446 section 4.1.4). The second hello is in the clear
//! too.
//!
//! Until the server answers, the client's next handshake record stays here. After that, the tunnel only moves
//! bytes.

use exeat_policy::{Ech, Target};
use exeat_record::CloseCause;
use tokio::time::{Instant, timeout_at};

use super::session::{Session, Step, Tunnel, alert_and_close};
use crate::context::Context;
use crate::hello::{HelloFault, Reader};
use crate::record::Record;
use crate::retry::{Answer, Answers, RECORD};
use crate::tunnel;

/// The bytes that the client sends after its hello.
struct AfterHello {
    /// Number of waiting bytes that may go up.
    free: usize,
    /// Deadline for a second hello, once the server has asked for one.
    by: Option<Instant>,
    reader: Reader,
}

/// The state of the client's next record.
enum Next {
    /// The record has not fully arrived.
    Wait,
    /// The record waits for the server's answer.
    HeadMemory,
}

/// Forwards the hello in the first `len` bytes, and a second hello if the server asks for one.
pub(super) async fn pass_hello(
    mut tunnel: Tunnel,
    len: usize,
    target: &Target,
    ech: Ech,
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Session> {
    let total = Instant::now() + cx.limits().total;
    let mut answers = Answers::default();
    let mut after = AfterHello { free: len, by: None, reader: Reader::new() };
    let mut is_client_open = true;
    loop {
        let next = match after.advance(&tunnel.early.up, target, ech, record) {
            Ok(next) => next,
            Err(fault) => {
                return alert_and_close(tunnel.client, tunnel.upstream, target, fault, record, cx).await;
            }
        };
        let waiting = tunnel.early.up.len() - after.free.min(tunnel.early.up.len());
        if !is_client_open && waiting == 0 && after.free == 0 {
            // The client has finished, so it cannot name another server.
            return Some(tunnel.open());
        }
        let read_client = is_client_open && after.free == 0 && matches!(next, Next::Wait);
        let idle = Instant::now() + if is_client_open { cx.limits().idle } else { cx.limits().half_closed };
        let by = after.by.unwrap_or(idle).min(total);
        match timeout_at(by, tunnel.step(after.free, read_client, true, &record.moved, None)).await {
            Ok(Ok(Step::Up(count))) => after.free = after.free.saturating_sub(count),
            Ok(Ok(Step::Down)) => {}
            Ok(Ok(Step::Client(0))) if after.by.is_some() && waiting > 0 => {
                let fault = HelloFault::Malformed;
                return alert_and_close(tunnel.client, tunnel.upstream, target, fault, record, cx).await;
            }
            Ok(Ok(Step::Client(0))) => is_client_open = false,
            Ok(Ok(Step::Client(_))) if !record.try_hold(&tunnel.early.up) => {
                let Tunnel { client, upstream, early } = tunnel;
                drop(early);
                return alert_and_close(client, upstream, target, HelloFault::NoRoom, record, cx).await;
            }
            Ok(Ok(Step::Client(_))) => {}
            Ok(Ok(Step::Server(0))) if after.by.is_some() => {
                record.close(CloseCause::Upstream, None);
                return None;
            }
            Ok(Ok(Step::Server(0))) => return Some(tunnel.open()),
            Ok(Ok(Step::Server(_))) => match answers.advance(&tunnel.early.down) {
                Some(Answer::Other) if after.by.is_none() => return Some(tunnel.open()),
                Some(Answer::Retry) => after.by = Some(Instant::now() + cx.limits().hello),
                _ => {}
            },
            Ok(Err(broken)) => {
                tunnel.close_broken(&broken, record);
                return None;
            }
            Err(_) if after.by.is_some() => {
                let fault = HelloFault::Timeout;
                return alert_and_close(tunnel.client, tunnel.upstream, target, fault, record, cx).await;
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

impl AfterHello {
    /// Releases what may go up: records other than handshakes, such as early data, and the second hello once its
    /// name is checked.
    fn advance(
        &mut self,
        waiting: &[u8],
        target: &Target,
        ech: Ech,
        record: &mut Record<'_>,
    ) -> Result<Next, HelloFault> {
        loop {
            let rest = waiting.get(self.free..).unwrap_or_default();
            match *rest {
                [] => return Ok(Next::Wait),
                [20 | 21 | 23] | [20 | 21 | 23, 3] | [20 | 21 | 23, 3, _] | [20 | 21 | 23, 3, _, _] => {
                    return Ok(Next::Wait);
                }
                [20 | 21 | 23, 3, _, high, low, ..] => {
                    let length = usize::from(u16::from_be_bytes([high, low]));
                    match () {
                        () if length > RECORD && self.by.is_some() => return Err(HelloFault::Malformed),
                        () if length > RECORD => return Ok(Next::HeadMemory),
                        () if rest.len() < 5 + length => return Ok(Next::Wait),
                        () => self.free += 5 + length,
                    }
                }
                _ if self.by.is_none() => return Ok(Next::HeadMemory),
                [22, ..] => {
                    let Some(hello) = self.reader.advance(rest)? else { return Ok(Next::Wait) };
                    if let Err(fault) = hello.check(target, ech) {
                        record.note_second_hello(hello);
                        return Err(fault);
                    }
                    self.free += self.reader.len();
                    (self.by, self.reader) = (None, Reader::new());
                }
                _ => return Err(HelloFault::Malformed),
            }
        }
    }
}
