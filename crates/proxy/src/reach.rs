//! Connects to a target, in this order for every entry: policy, limits, guard, record, dial. With an upstream
//! proxy, that proxy resolves names and is dialed instead. This file reads no requests and writes no answers,
//! because each entry has its own protocol for that.

use std::time::SystemTime;

use exeat_policy::{Admitted, Day, Ech, Port, Target, TlsCheck};
use exeat_record::RuleRef;
use tokio::time::Instant;

use crate::dial::dial;
use crate::guard::{Resolved, Unresolved};
use crate::record::Record;
use crate::reply::{Failure, Refusal};
use crate::server::Context;
use crate::stream::Stream;
use crate::upstream::through;

/// The port of plain HTTP.
pub(crate) const HTTP: u16 = 80;

/// A connection to a granted target.
pub(crate) struct Reached {
    pub(crate) upstream: Stream,
    pub(crate) carries: Carries,
    /// Whether a TLS hello may hide its server name.
    pub(crate) ech: Ech,
}

/// What a connection may carry, which determines what is checked before a byte goes upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carries {
    /// TLS, whose hello must name the target.
    Tls,
    /// Anything; if it opens with TLS, the hello must name the target.
    Any,
    /// HTTP requests for the target.
    Http,
    /// Anything, unchecked, because the rule turns the check off.
    Unseen,
}

/// What the client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A tunnel.
    Tunnel,
    /// A plain HTTP request.
    Request,
}

impl Carries {
    fn to(port: Port, tls: TlsCheck) -> Self {
        match tls {
            TlsCheck::Off => Self::Unseen,
            tls if tls.enforced_on(port) => Self::Tls,
            _ if port.get() == HTTP => Self::Http,
            _ => Self::Any,
        }
    }
}

/// Connects to a target for `wanted`. Every refusal is recorded before this returns.
pub(crate) async fn reach(
    target: &Target,
    wanted: Wanted,
    record: &mut Record<'_>,
    cx: &Context,
) -> Result<Reached, Refusal> {
    if cx.record_is_full() {
        return Err(record.full(target.clone()).await);
    }
    let admitted = match record.ruling().policy.admit(target.clone(), today()) {
        Ok(admitted) => admitted,
        Err(denial) => return Err(record.denied(denial, Vec::new(), None).await),
    };
    let rule = admitted.rule().map(RuleRef::from);
    let carries = Carries::to(target.port, admitted.tls());
    let ech = admitted.ech();
    if wanted == Wanted::Request && carries == Carries::Tls {
        return Err(record.only_tls(target.clone(), rule.as_ref()).await);
    }
    record.counted(target, rule.as_ref()).await?;
    record.budgeted(target, rule.as_ref(), admitted.upload_budgets()).await?;
    tracing::debug!(%target, rule = rule.as_ref().map(|rule| &rule.text), ?carries, "admitted");

    let dialled = match cx.next_hop(target) {
        Some(proxy) => {
            let entrusted = match admitted.entrust() {
                Ok(name) => name,
                // D15: the address of a literal is known, so it is checked here and forwarded as it is.
                Err(literal) => match judge(literal, record, cx).await?.vetted.entrust() {
                    Ok(literal) => literal,
                    Err(_) => return Err(record.unresolved(target.clone(), rule, Failure::Host).await),
                },
            };
            let entrusted = record.entrusted(entrusted, proxy).await?;
            through(proxy, entrusted, cx.guard(), cx.limits()).await
        }
        None => {
            let resolved = judge(admitted, record, cx).await?;
            let vetted = record.allowed(resolved).await?;
            dial(vetted, Instant::now() + cx.limits().connect).await
        }
    };
    match dialled {
        Ok(upstream) => {
            tracing::debug!(%target, addr = %upstream.addr, took = ?upstream.took, "dialled");
            record.dialled(target, upstream.addr, upstream.took).await?;
            Ok(Reached { upstream: Stream::Tcp(upstream.stream), carries, ech })
        }
        Err(error) => Err(record.not_dialled(target.clone(), error.failure, error.detail)),
    }
}

/// Resolves an admitted target and checks each of its addresses.
async fn judge(admitted: Admitted, record: &mut Record<'_>, cx: &Context) -> Result<Resolved, Refusal> {
    let target = admitted.target().clone();
    let rule = admitted.rule().map(RuleRef::from);
    match cx.guard().resolve(admitted, Instant::now() + cx.limits().dns).await {
        Ok(resolved) => Ok(resolved),
        Err(Unresolved::Denied { denial, ips, dns }) => Err(record.denied(denial, ips, dns).await),
        Err(Unresolved::Failed(failure)) => Err(record.unresolved(target, rule, failure).await),
    }
}

pub(crate) fn today() -> Day {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Day::from_unix(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}
