//! Builds the replies on the wire: one function turns an outcome into a reply. It decides nothing. A reply never
//! contains a resolved address, a path, a person, or unchecked bytes of the stage.

use std::fmt::Write;
use std::time::Duration;

use exeat_policy::{Denial, Reason, Target};
use exeat_record::{ConnId, RunId};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::ext::ReasonPhrase;
use hyper::header::{CONNECTION, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use crate::head::Fault;

/// The answer when the upstream is connected. It has no fields (RFC 9110 section 9.3.6).
pub(crate) const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Time after which a client may try again if all slots were taken.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The reason why a request gets no tunnel.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The head was not a well-formed request for a target.
    Malformed(Fault),
    /// The request is plain HTTP, but the rule grants only TLS on this port.
    OnlyTls(Target),
    /// The policy denies the target. [`OnlyTls`](Self::OnlyTls), [`Crowded`](Self::Crowded) and [`UsedUp`](Self::UsedUp) are denials,
    /// too.
    DeniedByPolicy(Denial),
    /// The policy allows the target, but the connection failed.
    Failed(Target, Failure),
    /// The decision could not be recorded, so it is not acted on.
    NoRecord(Target),
    /// The record is full: it has reached its size, or the disk is full.
    RecordFull(Target),
    /// Too many connections to this host are open.
    Crowded(Target),
    /// The upload budget for this target is used up.
    UsedUp(Target),
    /// Other connections have taken all slots.
    Busy,
    /// Another proxy decides, and it cannot be reached.
    NoProxy,
}

/// Whether this process, or the machine, has no descriptor left: one comes back when a connection ends.
pub(crate) fn is_out_of_descriptors(error: &std::io::Error) -> bool {
    const EMFILE: i32 = nix::errno::Errno::EMFILE as i32;
    const ENFILE: i32 = nix::errno::Errno::ENFILE as i32;
    matches!(error.raw_os_error(), Some(EMFILE | ENFILE))
}

/// Defines [`Failure`]: each row has its name, its text, and what [`Row`] has of it.
macro_rules! failures {
    ($($name:ident $text:literal $status:literal $error:literal $socks:literal $reason:ident $($again:ident)?;)*) => {
        /// The reason why an allowed target could not be reached.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
        pub(crate) enum Failure {
            $(#[error($text)] $name,)*
        }

        impl Failure {
            /// Returns the table row of this failure.
            fn row(self) -> Row {
                match self {
                    $(Self::$name => Row::new($status, $error, $socks, Reason::$reason)$(.$again())?,)*
                }
            }
        }
    };
}

failures! {
    NoSuchName "DNS: no such name" 502 "dns_error" 4 ResolveError;
    Resolver "DNS: the resolver failed" 502 "dns_error" 4 ResolveError;
    ResolverTimeout "DNS: no answer in time" 504 "dns_timeout" 6 Timeout;
    TooManyAnswers "DNS: too many addresses in one answer" 502 "dns_error" 4 ResolveError;
    Host "the host's own addresses or its hosts file cannot be read" 502 "proxy_internal_error" 1 ResolveError;
    Refused "connection refused" 502 "connection_refused" 5 ConnectError;
    NoRoute "no route" 502 "destination_ip_unroutable" 3 ConnectError;
    Reset "connection reset" 502 "connection_terminated" 4 ConnectError;
    ConnectTimeout "no connection in time" 504 "connection_timeout" 6 Timeout;
    // Descriptors and ports become free when connections end.
    Resources "out of descriptors or ports" 503 "proxy_internal_error" 1 ConnectError retryable;
    Connect "cannot connect" 502 "destination_unavailable" 4 ConnectError;
    NoResponse "the connection ended before an answer" 502 "http_response_incomplete" 1 ConnectError;
    BadResponse "the answer is not well-formed HTTP" 502 "http_protocol_error" 1 ConnectError;
    UpstreamUnresolved "the upstream proxy has no usable address" 502 "destination_unavailable" 4 ConnectError;
    UpstreamUnreached "the upstream proxy cannot be reached" 502 "destination_unavailable" 4 ConnectError;
    UpstreamTimeout "the upstream proxy did not answer in time" 504 "connection_timeout" 6 Timeout;
    // A 407 would ask the client for credentials, which it does not have.
    UpstreamAuth "the upstream proxy wants credentials" 502 "proxy_configuration_error" 1 ConnectError;
    UpstreamRefused "the upstream proxy refused" 502 "destination_unavailable" 4 ConnectError;
    UpstreamAnswer "the upstream proxy gave no usable answer" 502 "http_protocol_error" 1 ConnectError;
}

impl Failure {
    /// Returns the reason for the record.
    pub(crate) fn reason(self) -> Reason {
        self.row().reason
    }
}

/// A row of the table: the answers of each entry to a refusal, and its record. docs/answers.md has the same rows.
#[derive(Debug, Clone, Copy)]
struct Row {
    /// Status of the HTTP reply.
    status: u16,
    /// Error type in `Proxy-Status` (RFC 9209 section 2.3).
    error: &'static str,
    /// Code of the SOCKS5 reply (RFC 1928 section 6). 6 is "TTL expired": the RFC names no code for a deadline, and
    /// others use this one.
    socks: u8,
    /// Reason in the record.
    reason: Reason,
    /// Whether the same request may succeed after [`RETRY_AFTER`].
    again: bool,
}

impl Row {
    fn new(status: u16, error: &'static str, socks: u8, reason: Reason) -> Self {
        Self { status, error, socks, reason, again: false }
    }

    fn retryable(self) -> Self {
        Self { again: true, ..self }
    }
}

impl Refusal {
    fn row(&self) -> Row {
        match self {
            Self::Malformed(Fault::NoRoom) => {
                Row::new(503, "connection_limit_reached", 1, Reason::BudgetConns).retryable()
            }
            Self::Malformed(fault) => Row::new(fault.status(), "http_request_error", 1, fault.reason()),
            Self::OnlyTls(_) => Row::new(403, "http_request_denied", 2, Reason::NotTls),
            Self::DeniedByPolicy(denial) => match denial.reason() {
                reason @ (Reason::PrivateIp | Reason::MetadataIp) => {
                    Row::new(403, "destination_ip_prohibited", 2, reason)
                }
                reason => Row::new(403, "http_request_denied", 2, reason),
            },
            Self::Failed(_, failure) => failure.row(),
            Self::NoRecord(_) => Row::new(503, "proxy_internal_error", 1, Reason::AuditUnavailable),
            Self::RecordFull(_) => Row::new(503, "proxy_internal_error", 1, Reason::RecordFull),
            Self::Crowded(_) => Row::new(429, "connection_limit_reached", 1, Reason::BudgetConns).retryable(),
            Self::UsedUp(_) => Row::new(429, "http_request_denied", 2, Reason::BudgetBytes),
            Self::Busy => Row::new(503, "connection_limit_reached", 1, Reason::BudgetConns).retryable(),
            Self::NoProxy => Row::new(503, "proxy_internal_error", 1, Reason::ConnectError),
        }
    }

    /// Returns the code of the SOCKS5 reply, which is all that a SOCKS5 client learns.
    pub(crate) fn socks_code(&self) -> u8 {
        self.row().socks
    }

    /// Returns the phrase of the status line, and the body.
    fn phrase_and_body(&self) -> (String, String) {
        match self {
            Self::Malformed(fault) => {
                let phrase = match fault.status() {
                    431 => "Request Header Fields Too Large",
                    408 => "Request Timeout",
                    503 => "Service Unavailable",
                    _ => "Bad Request",
                };
                (phrase.into(), format!("exeat cannot read this request: {fault}.\n"))
            }
            Self::OnlyTls(target) => (
                format!("exeat denied {target} (only TLS is allowed there)"),
                format!(
                    "exeat denied {target}: only TLS is allowed there, and this is a plain HTTP request.\n\
                     Use https://, which tunnels.\n"
                ),
            ),
            Self::DeniedByPolicy(denial) => denied_text(denial),
            Self::Failed(target, failure) => unreachable_text(target, &failure.to_string(), ": the policy lets it through"),
            // This answer does not depend on the decision: a denial that cannot be recorded gets it too.
            Self::NoRecord(target) => {
                unreachable_text(target, "the attempt cannot be recorded, and nothing goes out unrecorded", "")
            }
            Self::RecordFull(target) => unreachable_text(
                target,
                "the record of this run has no room for more, and nothing goes out unrecorded",
                "",
            ),
            Self::Crowded(target) => (
                format!("exeat has too many open connections to {}", target.host),
                format!(
                    "exeat has too many open connections to {} in this run. The host is allowed: once one of them is \
                     closed, the next one can be opened.\n",
                    target.host
                ),
            ),
            Self::UsedUp(target) => (
                format!("exeat denied {target} (its upload budget is used up)"),
                format!(
                    "exeat denied {target}: all that this run may send there has been sent.\n\
                     This is the sandbox's policy, not an outage. Retrying will not help in this run.\n"
                ),
            ),
            Self::Busy => (
                "exeat has too many open connections".into(),
                "exeat has too many open connections in this run. This is not a policy denial.\n".into(),
            ),
            Self::NoProxy => (
                "the proxy of this run is not there".into(),
                "This run goes through a proxy that somebody else keeps, and exeat could not connect to it.\n\
                 This is not a policy denial. There is no other way out: nothing was opened.\n"
                    .into(),
            ),
        }
    }
}

/// Builds a SOCKS5 reply. Its bound address is `0.0.0.0:0`, because the stage must not learn the real one.
pub(crate) fn socks_reply(code: u8) -> [u8; 10] {
    [5, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// A complete reply.
#[derive(Debug)]
pub(crate) struct Reply {
    row: Row,
    phrase: String,
    body: String,
}

/// Builds the reply to `refusal`.
pub(crate) fn refuse(refusal: &Refusal, run: RunId, conn: ConnId) -> Reply {
    let (phrase, mut body) = refusal.phrase_and_body();
    let _ = writeln!(body, "Run {run}, connection {conn}.");
    Reply { row: refusal.row(), phrase, body }
}

fn denied_text(denial: &Denial) -> (String, String) {
    let target = denial.target();
    let said = denial.said_inside();
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
    (format!("exeat denied {target} ({said})"), body)
}

fn unreachable_text(target: &Target, why: &str, decided: &str) -> (String, String) {
    (
        format!("exeat could not reach {target} ({why})"),
        format!("exeat could not reach {target}: {why}.\nThis is not a policy denial{decided}.\n"),
    )
}

impl Reply {
    /// Returns the header fields, without those that frame the message.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let status = format!("exeat; error={}; details=\"{}\"", self.row.error, self.row.reason);
        let mut fields =
            vec![("Proxy-Status", status), ("Content-Type", "text/plain; charset=utf-8".to_owned())];
        if self.row.again {
            fields.push(("Retry-After", RETRY_AFTER.as_secs().to_string()));
        }
        fields
    }

    /// Serializes the reply for the wire.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let mut text = format!("HTTP/1.1 {} {}\r\n", self.row.status, self.phrase);
        for (name, value) in self.fields() {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        let _ = write!(text, "Content-Length: {}\r\nConnection: close\r\n\r\n{}", self.body.len(), self.body);
        text.into_bytes()
    }

    /// Converts the reply for hyper.
    pub(crate) fn into_response(self) -> Response<Full<Bytes>> {
        let fields = self.fields();
        let mut response = Response::new(Full::from(self.body));
        *response.status_mut() = StatusCode::from_u16(self.row.status).unwrap_or(StatusCode::BAD_REQUEST);
        for (name, value) in fields {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                response.headers_mut().insert(name, value);
            }
        }
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        if let Ok(phrase) = ReasonPhrase::try_from(self.phrase.into_bytes()) {
            response.extensions_mut().insert(phrase);
        }
        response
    }
}

#[cfg(test)]
mod tests;
