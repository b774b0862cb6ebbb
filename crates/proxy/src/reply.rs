//! The words on the wire: one function turns an outcome into a reply. It decides nothing, and what it says never holds
//! a resolved address, a path, a person, or bytes that the stage sent and that were not checked.

use std::fmt::Write;
use std::time::Duration;

use exeat_audit::{ConnId, RunId};
use exeat_policy::{Denial, Reason, Target};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::ext::ReasonPhrase;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use crate::head::Fault;

/// What is sent once the upstream is there. No fields: RFC 9110 section 9.3.6.
pub(crate) const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Time after which a client may try again that found every place taken.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why a request gets no tunnel.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The head was not a well-formed request for a target.
    Malformed(Fault),
    /// A plain HTTP request for a port on which the rule grants TLS.
    OnlyTls(Target),
    /// Policy said no.
    Denied(Denial),
    /// Policy said yes, the world said no.
    Failed(Target, Failure),
    /// The decision could not be recorded, so that it is not acted upon.
    NoRecord(Target),
    /// Too many connections to this host are open.
    Crowded(Target),
    /// Nothing is left of what may be sent there.
    UsedUp(Target),
    /// All slots are taken.
    Busy,
    /// Somebody else's proxy decides, and it is not there.
    NoProxy,
}

/// Why an allowed target could not be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("DNS: no such name")]
    NoSuchName,
    #[error("DNS: the resolver failed")]
    Resolver,
    #[error("DNS: no answer in time")]
    ResolverTimeout,
    #[error("DNS: too many addresses in one answer")]
    TooManyAnswers,
    #[error("the host's own addresses or its hosts file cannot be read")]
    Host,
    #[error("connection refused")]
    Refused,
    #[error("no route")]
    NoRoute,
    #[error("connection reset")]
    Reset,
    #[error("no connection in time")]
    ConnectTimeout,
    #[error("out of descriptors or ports")]
    Resources,
    #[error("cannot connect")]
    Connect,
    #[error("the connection ended before an answer")]
    NoResponse,
    #[error("the answer is not well-formed HTTP")]
    BadResponse,
    #[error("the upstream proxy has no usable address")]
    UpstreamUnresolved,
    #[error("the upstream proxy cannot be reached")]
    UpstreamUnreached,
    #[error("the upstream proxy did not answer in time")]
    UpstreamTimeout,
    #[error("the upstream proxy wants credentials")]
    UpstreamAuth,
    #[error("the upstream proxy refused")]
    UpstreamRefused,
    #[error("the upstream proxy gave no usable answer")]
    UpstreamAnswer,
}

impl Failure {
    /// Status of the HTTP reply; error type of RFC 9209; code of the SOCKS5 reply; reason in the record.
    fn table(self) -> (u16, &'static str, u8, Reason) {
        match self {
            Self::NoSuchName => (502, "dns_error", 4, Reason::ResolveError),
            Self::Resolver => (502, "dns_error", 4, Reason::ResolveError),
            Self::ResolverTimeout => (504, "dns_timeout", 6, Reason::Timeout),
            Self::TooManyAnswers => (502, "dns_error", 4, Reason::ResolveError),
            Self::Host => (502, "proxy_internal_error", 1, Reason::ResolveError),
            Self::Refused => (502, "connection_refused", 5, Reason::ConnectError),
            Self::NoRoute => (502, "destination_ip_unroutable", 3, Reason::ConnectError),
            Self::Reset => (502, "connection_terminated", 4, Reason::ConnectError),
            Self::ConnectTimeout => (504, "connection_timeout", 6, Reason::Timeout),
            Self::Resources => (503, "proxy_internal_error", 1, Reason::ConnectError),
            Self::Connect => (502, "destination_unavailable", 4, Reason::ConnectError),
            Self::NoResponse => (502, "http_response_incomplete", 1, Reason::ConnectError),
            Self::BadResponse => (502, "http_protocol_error", 1, Reason::ConnectError),
            // A 407 would be a question to the client, who knows no answer.
            Self::UpstreamAuth => (502, "proxy_configuration_error", 1, Reason::ConnectError),
            Self::UpstreamUnresolved => (502, "destination_unavailable", 4, Reason::ConnectError),
            Self::UpstreamUnreached => (502, "destination_unavailable", 4, Reason::ConnectError),
            Self::UpstreamTimeout => (504, "connection_timeout", 6, Reason::Timeout),
            Self::UpstreamRefused => (502, "destination_unavailable", 4, Reason::ConnectError),
            Self::UpstreamAnswer => (502, "http_protocol_error", 1, Reason::ConnectError),
        }
    }

    /// The word for the record.
    pub(crate) fn reason(self) -> Reason {
        self.table().3
    }
}

impl Refusal {
    /// The code of a SOCKS5 reply (RFC 1928 section 6), which is all that such a client is told. 6 is "TTL expired": no code
    /// is named for a deadline, and this is the one that others take.
    pub(crate) fn socks_code(&self) -> u8 {
        match self {
            Self::Denied(_) | Self::OnlyTls(_) | Self::UsedUp(_) => 2,
            Self::Failed(_, failure) => failure.table().2,
            Self::Malformed(_) | Self::NoRecord(_) | Self::Crowded(_) | Self::Busy | Self::NoProxy => 1,
        }
    }
}

/// A SOCKS5 reply. The address that was bound is nobody's business inside: `0.0.0.0:0`.
pub(crate) fn socks_reply(code: u8) -> [u8; 10] {
    [5, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// One reply, complete.
#[derive(Debug)]
pub(crate) struct Reply {
    status: u16,
    phrase: String,
    /// Type and details of RFC 9209.
    error: &'static str,
    details: &'static str,
    retry_after: Option<Duration>,
    body: String,
}

/// The reply to `refusal`.
pub(crate) fn refuse(refusal: &Refusal, run: RunId, conn: ConnId) -> Reply {
    let mut reply = reply(refusal);
    let _ = writeln!(reply.body, "Run {run}, connection {conn}.");
    reply
}

fn reply(refusal: &Refusal) -> Reply {
    match refusal {
        Refusal::Malformed(fault) => malformed(*fault),
        Refusal::OnlyTls(target) => Reply {
            status: 403,
            phrase: format!("exeat denied {target} (only TLS is allowed there)"),
            error: "http_request_denied",
            details: Reason::NotTls.as_str(),
            retry_after: None,
            body: format!(
                "exeat denied {target}: only TLS is allowed there, and this is a plain HTTP request.\n\
                 Use https://, which tunnels.\n"
            ),
        },
        Refusal::Denied(denial) => denied(denial),
        Refusal::Failed(target, failure) => {
            let (status, error, _, reason) = failure.table();
            let mut reply =
                unreachable(target, status, error, reason, &failure.to_string(), ": a rule allows it");
            // Descriptors and ports come back as connections end.
            reply.retry_after = (*failure == Failure::Resources).then_some(RETRY_AFTER);
            reply
        }
        Refusal::NoRecord(target) => {
            let why = "the attempt cannot be recorded, and nothing goes out unrecorded";
            // What the decision was does not count: a refusal that cannot be recorded gets this answer as well.
            unreachable(target, 503, "proxy_internal_error", Reason::AuditUnavailable, why, "")
        }
        Refusal::NoProxy => Reply {
            status: 503,
            phrase: "the proxy of this run is not there".into(),
            error: "proxy_internal_error",
            details: "no_proxy",
            retry_after: None,
            body:
                "This run goes through a proxy that somebody else keeps, and exeat could not connect to it.\n\
                   This is not a policy denial. There is no other way out: nothing was opened.\n"
                    .into(),
        },
        Refusal::Crowded(target) => Reply {
            status: 429,
            phrase: format!("exeat has too many open connections to {}", target.host),
            error: "connection_limit_reached",
            details: Reason::BudgetConns.as_str(),
            retry_after: Some(RETRY_AFTER),
            body: format!(
                "exeat has too many open connections to {} in this run. The host is allowed: once one of them is closed,\n                 the next one can be opened.\n",
                target.host
            ),
        },
        Refusal::UsedUp(target) => Reply {
            status: 429,
            phrase: format!("exeat denied {target} (its upload budget is used up)"),
            error: "http_request_denied",
            details: Reason::BudgetBytes.as_str(),
            retry_after: None,
            body: format!(
                "exeat denied {target}: all that this run may send there has been sent.\n                 This is the sandbox's policy, not an outage. Retrying will not help in this run.\n"
            ),
        },
        Refusal::Busy => Reply {
            status: 503,
            phrase: "exeat has too many open connections".into(),
            error: "connection_limit_reached",
            details: Reason::BudgetConns.as_str(),
            retry_after: Some(RETRY_AFTER),
            body: "exeat has too many open connections in this run. This is not a policy denial.\n".into(),
        },
    }
}

fn malformed(fault: Fault) -> Reply {
    let phrase = match fault.status() {
        431 => "Request Header Fields Too Large",
        408 => "Request Timeout",
        _ => "Bad Request",
    };
    Reply {
        status: fault.status(),
        phrase: phrase.into(),
        error: "http_request_error",
        details: fault.reason().as_str(),
        retry_after: None,
        body: format!("exeat cannot read this request: {fault}.\n"),
    }
}

fn denied(denial: &Denial) -> Reply {
    let target = denial.target();
    let said = denial.said_inside();
    let error = match denial.reason() {
        Reason::PrivateIp | Reason::MetadataIp => "destination_ip_prohibited",
        _ => "http_request_denied",
    };
    let spelt = if denial.reason() == Reason::Default { "no rule allows this host" } else { &said };
    let mut body = format!(
        "exeat denied {target}: {spelt}.\n\
         This is the sandbox's policy, not an outage. Retrying, unsetting the proxy or using an IP address will not help.\n"
    );
    match denial.flag_inside() {
        Some(flag) => body.push_str(&format!("Whoever starts the run can allow it with:  {flag}\n")),
        None if denial.flag().is_some() => {
            body.push_str("An IP rule is needed besides the name; the end-of-run summary names it.\n");
        }
        None => {}
    }
    Reply {
        status: 403,
        phrase: format!("exeat denied {target} ({said})"),
        error,
        details: denial.reason().as_str(),
        retry_after: None,
        body,
    }
}

fn unreachable(
    target: &Target,
    status: u16,
    error: &'static str,
    reason: Reason,
    why: &str,
    decided: &str,
) -> Reply {
    Reply {
        status,
        phrase: format!("exeat could not reach {target} ({why})"),
        error,
        details: reason.as_str(),
        retry_after: None,
        body: format!("exeat could not reach {target}: {why}.\nThis is not a policy denial{decided}.\n"),
    }
}

impl Reply {
    /// The fields, without those that say where the message ends.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let status = format!("exeat; error={}; details=\"{}\"", self.error, self.details);
        let mut fields =
            vec![("Proxy-Status", status), ("Content-Type", "text/plain; charset=utf-8".to_owned())];
        if let Some(after) = self.retry_after {
            fields.push(("Retry-After", after.as_secs().to_string()));
        }
        fields
    }

    /// As it goes to the wire.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let mut text = format!("HTTP/1.1 {} {}\r\n", self.status, self.phrase);
        for (name, value) in self.fields() {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        let _ = write!(text, "Content-Length: {}\r\nConnection: close\r\n\r\n{}", self.body.len(), self.body);
        text.into_bytes()
    }

    /// As hyper takes it.
    pub(crate) fn into_response(self) -> Response<Full<Bytes>> {
        let fields = self.fields();
        let mut response = Response::new(Full::from(self.body));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_REQUEST);
        for (name, value) in fields {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                response.headers_mut().insert(name, value);
            }
        }
        if let Ok(phrase) = ReasonPhrase::try_from(self.phrase.into_bytes()) {
            response.extensions_mut().insert(phrase);
        }
        response
    }
}

#[cfg(test)]
mod tests;
