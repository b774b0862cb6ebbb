//! Connects to a target, in this order for every entry: policy, limits, guard, record, dial. With an upstream
//! proxy, that proxy resolves names and is dialed instead. This file reads no requests and writes no answers,
//! because each entry has its own protocol for that.

use exeat_policy::{Admitted, Ech, Port, Target, TlsCheck};
use exeat_record::{RuleRef, today};
use tokio::time::Instant;

use crate::context::Context;
use crate::dial::dial;
use crate::guard::{Resolved, Unresolved};
use crate::record::Record;
use crate::reply::{Failure, Refusal};
use crate::stream::Stream;
use crate::upstream::open_through;

/// The port of plain HTTP.
pub(crate) const HTTP: u16 = 80;

/// A connection to a granted target.
pub(crate) struct Connection {
    pub(crate) upstream: Stream,
    pub(crate) content: Content,
    /// Whether a TLS hello may hide its server name.
    pub(crate) ech: Ech,
}

/// The protocol that a connection may carry, which determines the checks before a byte goes upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// TLS, whose hello must name the target.
    Tls,
    /// Anything; if it opens with TLS, the hello must name the target.
    Any,
    /// HTTP requests for the target.
    Http,
    /// Anything, unchecked, because the rule turns the check off.
    Unseen,
}

/// The kind of connection that the client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// A tunnel.
    Tunnel,
    /// A plain HTTP request.
    Request,
}

impl Content {
    fn for_port(port: Port, tls: TlsCheck) -> Self {
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
    wanted: RequestKind,
    record: &mut Record<'_>,
    cx: &Context,
) -> Result<Connection, Refusal> {
    if cx.record_is_full() {
        return Err(record.refuse_full(target.clone()).await);
    }
    let admitted = match record.ruling().policy.admit(target.clone(), today()) {
        Ok(admitted) => admitted,
        Err(denial) => return Err(record.deny_by_policy(denial, Vec::new(), None).await),
    };
    let rule = admitted.rule().map(RuleRef::from);
    let content = Content::for_port(target.port, admitted.tls());
    let ech = admitted.ech();
    if wanted == RequestKind::Request && content == Content::Tls {
        return Err(record.deny_plain_http(target.clone(), rule.as_ref()).await);
    }
    record.count_connection(target, rule.as_ref()).await?;
    record.set_budgets(target, rule.as_ref(), admitted.upload_budgets()).await?;
    tracing::debug!(%target, rule = rule.as_ref().map(|rule| &rule.text), ?content, "admitted");

    let dialed = match cx.upstream_for(target) {
        Some(proxy) => {
            let entrusted = match admitted.entrust() {
                Ok(name) => name,
                // D15: the address of a literal is known, so it is checked here and forwarded as it is.
                Err(literal) => match resolve_checked(literal, record, cx).await?.vetted.entrust() {
                    Ok(literal) => literal,
                    Err(_) => {
                        return Err(record.record_unresolved(target.clone(), rule, Failure::Host).await);
                    }
                },
            };
            let entrusted = record.allow_entrusted(entrusted, proxy).await?;
            open_through(proxy, entrusted, cx.guard(), cx.limits()).await
        }
        None => {
            let resolved = resolve_checked(admitted, record, cx).await?;
            let vetted = record.allow(resolved).await?;
            dial(vetted, Instant::now() + cx.limits().connect).await
        }
    };
    match dialed {
        Ok(upstream) => {
            tracing::debug!(%target, addr = %upstream.addr, took = ?upstream.took, "dialed");
            record.record_dialed(target, upstream.addr, upstream.took).await?;
            Ok(Connection { upstream: Stream::Tcp(upstream.stream), content, ech })
        }
        Err(error) => Err(record.record_dial_failure(target.clone(), error.failure, error.detail)),
    }
}

/// Resolves an admitted target and checks each of its addresses.
async fn resolve_checked(
    admitted: Admitted,
    record: &mut Record<'_>,
    cx: &Context,
) -> Result<Resolved, Refusal> {
    let target = admitted.target().clone();
    let rule = admitted.rule().map(RuleRef::from);
    let would_deny = admitted.would_deny().map(|denial| (admitted.decision(), denial.clone()));
    match cx.guard().resolve(admitted, Instant::now() + cx.limits().dns).await {
        Ok(resolved) => Ok(resolved),
        Err(Unresolved::Denied { denial, ips, dns }) => Err(record.deny_by_policy(denial, ips, dns).await),
        Err(Unresolved::Failed(failure)) => Err(match would_deny {
            Some((decided, denial)) => record.record_unresolved_report(decided, &denial, failure).await,
            None => record.record_unresolved(target, rule, failure).await,
        }),
    }
}
