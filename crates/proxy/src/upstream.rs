//! Opens a tunnel through another HTTP proxy with CONNECT. It decides nothing, and looks up only that proxy's own
//! name. It may ask only for an [`Entrusted`], and sends nothing else from the client.

use std::fmt;
use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use exeat_policy::{Bypass, Credentials, Entrusted, Target, UpstreamUrl};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::dial::{DialError, Upstream, dial_proxy};
use crate::guard::Guard;
use crate::limits::{self, ProxyLimits};
use crate::reply::Failure;

/// An HTTP proxy that connections go through. Only configuration creates one. A ceiling must name it, or allow its
/// host and its addresses. Without a ceiling, every address is allowed except those that are never dialed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamProxy {
    url: UpstreamUrl,
    bypass: Bypass,
    credentials: Option<Credentials>,
}

impl UpstreamProxy {
    /// Creates a proxy at `url` for all targets except `bypass`.
    #[must_use]
    pub fn new(url: UpstreamUrl, bypass: Bypass, credentials: Option<Credentials>) -> Self {
        Self { url, bypass, credentials }
    }

    /// Returns its URL.
    #[must_use]
    pub fn url(&self) -> &UpstreamUrl {
        &self.url
    }

    /// Returns the credentials that it gets.
    #[must_use]
    pub fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// Returns its host and port.
    #[must_use]
    pub fn target(&self) -> &Target {
        self.url.target()
    }

    /// Returns the targets that do not go through it.
    #[must_use]
    pub fn bypass(&self) -> &Bypass {
        &self.bypass
    }

    /// Whether exeat authenticates to it.
    #[must_use]
    pub fn has_credentials(&self) -> bool {
        self.credentials.is_some()
    }

    /// Returns a note for whoever starts a run, because an upstream proxy weakens the checks.
    #[must_use]
    pub fn note(&self) -> String {
        format!(
            "names go through the upstream proxy {self}, which looks them up itself: their addresses are not checked here"
        )
    }

    /// Whether `target` goes through this proxy.
    pub(crate) fn applies_to(&self, target: &Target) -> bool {
        !self.bypass.covers(target)
    }
}

/// Formats it as `host:port`, as in the record.
impl fmt::Display for UpstreamProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target().fmt(f)
    }
}

/// Opens a tunnel to the entrusted target. The lookup of the proxy's name has the deadline of lookups, and all steps
/// after it share that of connections. Bytes after the proxy's answer are not read: they belong to the tunnel.
///
/// Dropping the future closes the connection.
pub(crate) async fn open_through(
    proxy: &UpstreamProxy,
    entrusted: Entrusted,
    guard: &Guard,
    limits: &ProxyLimits,
) -> Result<Upstream, DialError> {
    let failed = |failure, detail| DialError { failure, detail: format!("upstream proxy {proxy}: {detail}") };
    let start = Instant::now();
    let addrs = guard.resolve_proxy(proxy.target(), &entrusted, start + limits.dns).await;
    let addrs = addrs.map_err(|(failure, detail)| failed(failure, detail))?;
    let by = Instant::now() + limits.connect;
    let mut upstream = dial_proxy(&addrs, by).await.map_err(|error| {
        let failure = match error.failure {
            Failure::ConnectTimeout => Failure::UpstreamTimeout,
            Failure::Resources => Failure::Resources,
            _ => Failure::UpstreamUnreached,
        };
        failed(failure, error.detail)
    })?;
    let asked = timeout_at(by, request_tunnel(&mut upstream.stream, proxy, entrusted.target())).await;
    asked
        .unwrap_or_else(|_| Err((Failure::UpstreamTimeout, "no answer in time".to_owned())))
        .map_err(|(failure, detail)| failed(failure, detail))?;
    upstream.took = start.elapsed();
    Ok(upstream)
}

/// The reason why an upstream proxy opened no tunnel: for the reply, and as text for the record.
type TunnelFailure = (Failure, String);

async fn request_tunnel(
    stream: &mut TcpStream,
    proxy: &UpstreamProxy,
    target: &Target,
) -> Result<(), TunnelFailure> {
    let broken = |error: io::Error| (Failure::UpstreamAnswer, error.to_string());
    stream.write_all(connect_request(proxy, target).as_bytes()).await.map_err(broken)?;
    let (mut heads, mut interim) = (0, 0);
    loop {
        let head = read_head(stream, limits::UPSTREAM_HEAD - heads).await?;
        heads += head.len();
        match parse_status(&head) {
            None => return Err((Failure::UpstreamAnswer, "the answer is not well-formed HTTP".to_owned())),
            // RFC 9110 section 9.3.6: no content follows, whatever the fields say.
            Some(200..=299) => return Ok(()),
            // RFC 9110 section 15.2: any number of interim answers may come first. 101 may not, because no switch
            // was requested.
            Some(100 | 102..=199) if interim < limits::UPSTREAM_INTERIM => interim += 1,
            Some(407) if proxy.has_credentials() => {
                return Err((
                    Failure::UpstreamAuth,
                    "answered 407: the credentials are not taken".to_owned(),
                ));
            }
            Some(407) => {
                return Err((Failure::UpstreamAuth, "answered 407: it wants credentials".to_owned()));
            }
            Some(status) => return Err((Failure::UpstreamRefused, format!("answered {status}"))),
        }
    }
}

/// Builds the CONNECT request. Only the target comes from the client, and it was parsed and is written anew.
fn connect_request(proxy: &UpstreamProxy, target: &Target) -> String {
    let credentials = match &proxy.credentials {
        Some(credentials) => {
            format!("Proxy-Authorization: Basic {}\r\n", STANDARD.encode(credentials.as_bytes()))
        }
        None => String::new(),
    };
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{credentials}\r\n")
}

/// Reads one head of at most `most` bytes, and not a byte more. It peeks before it reads.
async fn read_head(stream: &mut TcpStream, most: usize) -> Result<Vec<u8>, TunnelFailure> {
    let broken = |error: io::Error| (Failure::UpstreamAnswer, error.to_string());
    let unusable = |what: &str| Err((Failure::UpstreamAnswer, what.to_owned()));
    let mut head = Vec::new();
    let mut chunk = vec![0; limits::EARLY_BYTES];
    loop {
        let there = stream.peek(&mut chunk).await.map_err(broken)?;
        let seen = head.len();
        head.extend_from_slice(chunk.get(..there).unwrap_or_default());
        let end = find_head_end(&head, seen);
        head.truncate(end.unwrap_or(head.len()));
        if there == 0 {
            return unusable("it closed the connection instead of an answer");
        }
        let taken = chunk.get_mut(..head.len() - seen).unwrap_or_default();
        // These bytes have arrived, so this does not wait.
        stream.read_exact(taken).await.map_err(broken)?;
        if head.len() > most {
            return unusable("the head of its answer is too large");
        }
        if end.is_some() {
            return Ok(head);
        }
        // Stop as soon as this cannot become an answer.
        let begins = head.len().min(ANSWER_START.len());
        if head.get(..begins) != ANSWER_START.get(..begins) {
            return unusable("the answer is not HTTP");
        }
    }
}

/// The beginning of every answer.
const ANSWER_START: &[u8] = b"HTTP/1.";

/// Finds the end of the first head in `bytes`. The first `seen` bytes contain no end.
fn find_head_end(bytes: &[u8], seen: usize) -> Option<usize> {
    const END: &[u8] = b"\r\n\r\n";
    let from = seen.saturating_sub(END.len() - 1);
    let at = bytes.get(from..)?.windows(END.len()).position(|four| four == END)?;
    Some(from + at + END.len())
}

/// Parses the status of a whole head. The head must be well-formed: lines end in CRLF, each field has a name and a
/// colon, and no line is folded.
fn parse_status(head: &[u8]) -> Option<u16> {
    let head = head.strip_suffix(b"\r\n\r\n")?;
    let mut lines = Vec::new();
    let mut rest = head;
    while let Some(at) = rest.windows(2).position(|two| two == b"\r\n") {
        let (line, next) = rest.split_at_checked(at)?;
        lines.push(line);
        rest = next.get(2..)?;
    }
    lines.push(rest);
    let odd = |line: &&[u8]| line.iter().any(|&byte| byte != b'\t' && byte.is_ascii_control());
    if lines.iter().any(odd) || lines.len() > 1 + limits::FIELDS {
        return None;
    }
    let (first, fields) = lines.split_first()?;
    let rest = first.strip_prefix(ANSWER_START)?;
    let [b'0' | b'1', b' ', a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', reason @ ..] = rest else {
        return None;
    };
    if !(reason.is_empty() || reason.starts_with(b" ")) {
        return None;
    }
    let is_field = |line: &&[u8]| {
        let name = line.iter().position(|&byte| byte == b':').and_then(|at| line.get(..at));
        name.is_some_and(|name| !name.is_empty() && name.iter().all(|&byte| byte.is_ascii_graphic()))
    };
    let digit = |byte: &u8| u16::from(byte - b'0');
    fields.iter().all(is_field).then(|| digit(a) * 100 + digit(b) * 10 + digit(c))
}

#[cfg(test)]
mod tests;
