//! Checks a raw request head strictly. It does not read sockets, decide, or frame bodies. It says whether the bytes
//! so far are a prefix of a well-formed head, a whole head, or neither, and why not.
//!
//! It is stricter than RFC 9112 wherever leniency has made two parsers disagree: CRLF only, single spaces, no
//! obs-fold, no leading empty line, one `Host`, digits-only `Content-Length`, and `Transfer-Encoding` only as
//! `chunked`.

use std::ops::Range;

use exeat_policy::{Host, Reason, Target, TargetError};
use hyper::http::uri::PathAndQuery;

use crate::limits;

/// The state of the bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    /// A prefix of a well-formed head.
    Incomplete,
    /// A whole head; what follows it starts at `head.len`.
    Head(Head<'a>),
    /// No continuation can make this a well-formed head.
    Fault(Fault),
}

/// A well-formed request head, borrowed from the bytes that were checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    /// The method: a token.
    pub(crate) method: &'a [u8],
    /// The request-target: visible ASCII, not parsed further.
    pub(crate) target: &'a [u8],
    pub(crate) version: Version,
    /// The value of the single `Host` field. HTTP/1.1 always has one.
    pub(crate) host: Option<&'a [u8]>,
    /// Whether the head announces a body (`Content-Length` other than 0, or `Transfer-Encoding`).
    pub(crate) body: bool,
    /// Length of the head in bytes, with the empty line.
    pub(crate) len: usize,
}

/// The supported HTTP versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// HTTP/1.0, with which Python's http.client opened tunnels for decades.
    Http10,
    Http11,
}

/// The ways in which a head can be malformed. Their texts go into the body of the reply, and none looks like a
/// status line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("a control byte, or a byte that is not ASCII, where none may be")]
    Byte,
    #[error("a line feed without a carriage return before it")]
    BareLf,
    #[error("a carriage return without a line feed behind it")]
    BareCr,
    #[error("the request line is not method, target and version with single spaces between")]
    RequestLine,
    #[error("the version is neither 1.1 nor 1.0")]
    Version,
    #[error("a field is folded over two lines, or the first one starts with a space")]
    Folded,
    #[error("a field name is not a token, or has no colon right behind it")]
    FieldName,
    #[error("the head has more than {} fields", limits::FIELDS)]
    TooManyFields,
    #[error("the head is longer than {} bytes", limits::HEAD_BYTES)]
    TooLarge,
    #[error("there is no Host field")]
    NoHost,
    #[error("more than one Host field")]
    TwoHosts,
    #[error("Content-Length is given twice, or is not a number")]
    ContentLength,
    #[error("Transfer-Encoding is not `chunked` alone, or stands beside Content-Length, or in version 1.0")]
    TransferEncoding,
    #[error("a field is named almost like Content-Length or Transfer-Encoding")]
    LookAlike,
    #[error("a GET or HEAD request with a Content-Length or a Transfer-Encoding")]
    BodyOfGet,
    #[error("a CONNECT request has no body")]
    ConnectBody,
    #[error("the Host field names another host than the request target")]
    OtherHost,
    #[error("the request target of CONNECT is not `host:port`")]
    Authority,
    #[error("no host name has the character `{}`: only letters, digits, `-` and `.`", .0.escape_ascii())]
    HostByte(u8),
    #[error("the connection ended inside the request head")]
    CutShort,
    #[error("the request head did not arrive in time")]
    TooSlow,
    #[error("requests that are not complete take up all the memory that there is for them")]
    NoRoom,
    #[error("this is a proxy: it takes CONNECT, and requests for http:// targets")]
    NotAProxyRequest,
    #[error("only http:// targets are forwarded; https:// takes CONNECT")]
    Scheme,
    #[error("the request target is not `http://host[:port]/path`")]
    AbsoluteForm,
    #[error("the Host field is not a host")]
    HostField,
    #[error("the request does not name the host of this tunnel")]
    OtherHostInside,
    #[error("this tunnel takes requests for its host, in plain HTTP")]
    NotForTunnel,
    #[error("a request in a tunnel that has carried something else before")]
    NotFirst,
    #[error("the body is malformed or cut short")]
    Body,
}

/// The state of the check between reads, so that each byte is read once in whatever pieces the head arrives.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    /// The start of the current line.
    line: usize,
    /// Number of bytes that were checked.
    seen: usize,
    /// The request line, once it is complete.
    request: Option<RequestLine>,
    /// Number of fields so far.
    fields: usize,
    /// The position of the value of `Host`.
    host: Option<Range<usize>>,
    /// Whether `Content-Length` was other than 0; `None` before the field.
    content_length: Option<bool>,
    /// Whether there is a `Transfer-Encoding`.
    transfer_encoding: bool,
}

#[derive(Debug, Clone)]
struct RequestLine {
    method: Range<usize>,
    target: Range<usize>,
    version: Version,
}

impl Parser {
    /// Checks the new bytes of `bytes`, which must begin with those of the previous call. After a head or a fault,
    /// the parser must not be used again.
    pub(crate) fn advance<'a>(&mut self, bytes: &'a [u8]) -> Parsed<'a> {
        while let Some(&byte) = bytes.get(self.seen) {
            let at = self.seen;
            if at >= limits::HEAD_BYTES {
                return Parsed::Fault(Fault::TooLarge);
            }
            self.seen += 1;
            let after_cr = at > self.line && bytes.get(at - 1) == Some(&b'\r');
            match byte {
                b'\n' if after_cr => match self.handle_line(bytes, at - 1) {
                    Ok(None) => self.line = self.seen,
                    Ok(Some(head)) => return Parsed::Head(head),
                    Err(fault) => return Parsed::Fault(fault),
                },
                b'\n' => return Parsed::Fault(Fault::BareLf),
                _ if after_cr => return Parsed::Fault(Fault::BareCr),
                b'\r' => {}
                _ if !self.is_allowed(byte) => return Parsed::Fault(Fault::Byte),
                _ => {}
            }
        }
        Parsed::Incomplete
    }

    /// Whether `byte` is allowed in the current line: visible ASCII and SP in the request line, and also HTAB and
    /// obs-text in a field (RFC 9110 section 5.5).
    fn is_allowed(&self, byte: u8) -> bool {
        match byte {
            b' '..=b'~' => true,
            b'\t' | 0x80.. => self.request.is_some(),
            _ => false,
        }
    }

    /// Handles a complete line, which ends before `end`.
    fn handle_line<'a>(&mut self, bytes: &'a [u8], end: usize) -> Result<Option<Head<'a>>, Fault> {
        let line = bytes.get(self.line..end).unwrap_or_default();
        match &self.request {
            None => self.request = Some(parse_request_line(line)?),
            Some(request) if line.is_empty() => return self.finish(bytes, request).map(Some),
            Some(_) => self.handle_field(line)?,
        }
        Ok(None)
    }

    fn handle_field(&mut self, line: &[u8]) -> Result<(), Fault> {
        self.fields += 1;
        if self.fields > limits::FIELDS {
            return Err(Fault::TooManyFields);
        }
        if matches!(line.first(), Some(b' ' | b'\t')) {
            return Err(Fault::Folded);
        }
        let colon = line.iter().position(|&byte| byte == b':').ok_or(Fault::FieldName)?;
        let (name, rest) = line.split_at(colon);
        if !is_token(name) {
            return Err(Fault::FieldName);
        }
        let rest = rest.get(1..).unwrap_or_default();
        let value = trim(rest);
        if name.eq_ignore_ascii_case(b"host") {
            let blanks = rest.iter().take_while(|&&byte| is_blank(byte)).count();
            let start = self.line + colon + 1 + blanks;
            if self.host.replace(start..start + value.len()).is_some() {
                return Err(Fault::TwoHosts);
            }
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let digits = (1..=18).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
            let other_than_0 = value.iter().any(|&byte| byte != b'0');
            if !digits || self.content_length.replace(other_than_0).is_some() {
                return Err(Fault::ContentLength);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if !value.eq_ignore_ascii_case(b"chunked") || self.transfer_encoding {
                return Err(Fault::TransferEncoding);
            }
            self.transfer_encoding = true;
        } else if looks_like_framing(name) {
            return Err(Fault::LookAlike);
        }
        Ok(())
    }

    fn finish<'a>(&self, bytes: &'a [u8], request: &RequestLine) -> Result<Head<'a>, Fault> {
        if self.transfer_encoding && (self.content_length.is_some() || request.version == Version::Http10) {
            return Err(Fault::TransferEncoding);
        }
        if self.host.is_none() && request.version == Version::Http11 {
            return Err(Fault::NoHost); // RFC 9112 section 3.2
        }
        let framed = self.transfer_encoding || self.content_length.is_some();
        let method = bytes.get(request.method.clone()).unwrap_or_default();
        if framed && matches!(method, b"GET" | b"HEAD") {
            return Err(Fault::BodyOfGet); // RFC 9110 section 9.3.1: it has no meaning, and servers read it differently
        }
        Ok(Head {
            method,
            target: bytes.get(request.target.clone()).unwrap_or_default(),
            version: request.version,
            host: self.host.clone().and_then(|range| bytes.get(range)),
            body: self.transfer_encoding || self.content_length == Some(true),
            len: self.seen,
        })
    }
}

/// The request in a head.
pub(crate) enum ClientRequest {
    Connect(Target),
    Plain(Plain),
}

impl Head<'_> {
    /// Parses what the head asks for, strictly by its form.
    pub(crate) fn parse_request(&self) -> Result<ClientRequest, Fault> {
        match self.method {
            b"CONNECT" => self.parse_connect().map(ClientRequest::Connect),
            _ => self.parse_absolute().map(ClientRequest::Plain),
        }
    }

    /// Parses the target of a CONNECT request.
    ///
    /// Only the request target decides. A `Host` with another host or port is refused, because such a request is
    /// ambiguous. Letter case, one trailing dot and a missing port are accepted, because real clients vary in them.
    pub(crate) fn parse_connect(&self) -> Result<Target, Fault> {
        if self.body {
            return Err(Fault::ConnectBody);
        }
        let target = Target::parse(self.target)
            .map_err(|error| self.fault_of_host(self.target, &error, Fault::Authority))?;
        match self.host {
            Some(host) if !names_target(host, &target) => Err(Fault::OtherHost),
            _ => Ok(target),
        }
    }
}

/// A request for a plain `http://` target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plain {
    /// The method, a token of any length.
    pub(crate) method: String,
    pub(crate) target: Target,
    /// Path and query for the origin.
    pub(crate) path: PathAndQuery,
}

impl Head<'_> {
    /// Parses a request in absolute-form (RFC 9112 section 3.2.2); the port defaults to 80.
    ///
    /// Only the request target decides. `Host` must be well-formed, but its value does not matter and is not
    /// forwarded.
    pub(crate) fn parse_absolute(&self) -> Result<Plain, Fault> {
        let Some(colon) = self.target.iter().position(|&byte| byte == b':') else {
            return Err(Fault::NotAProxyRequest);
        };
        let (scheme, rest) = self.target.split_at(colon);
        if !scheme.first().is_some_and(u8::is_ascii_alphabetic) {
            return Err(Fault::NotAProxyRequest); // such as origin-form
        }
        if !scheme.eq_ignore_ascii_case(b"http") {
            return Err(Fault::Scheme);
        }
        let rest = rest.strip_prefix(b"://").ok_or(Fault::AbsoluteForm)?;
        let end = rest.iter().position(|byte| b"/?#".contains(byte)).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let target = match Target::parse(authority) {
            Ok(target) => target,
            Err(_) => Target::parse(&[authority, b":80"].concat())
                .map_err(|error| self.fault_of_host(authority, &error, Fault::AbsoluteForm))?,
        };
        match self.host {
            Some(host) if !is_host(host) => Err(Fault::HostField),
            _ => {
                let method = String::from_utf8_lossy(self.method).into_owned();
                Ok(Plain { method, target, path: self.parse_path(path)? })
            }
        }
    }

    /// Returns the fault of a target: a wrong character of its host, if it surely is one, and else the form.
    fn fault_of_host(&self, authority: &[u8], error: &TargetError, form: Fault) -> Fault {
        match wrong_byte(authority, error) {
            // A password may contain a slash, so the `@` may stand behind the authority.
            Some(byte) if !self.target.contains(&b'@') => Fault::HostByte(byte),
            _ => form,
        }
    }

    /// Parses a request inside a tunnel to `target`. It must be for that host, in origin-form or absolute-form, and
    /// so must `Host`, because a shared front end would route by it (P02).
    pub(crate) fn parse_inner(&self, target: &Target) -> Result<PathAndQuery, Fault> {
        if self.method == b"CONNECT" {
            return Err(Fault::NotForTunnel);
        }
        let path = match self.target.first() {
            Some(b'/') => self.parse_path(self.target)?,
            _ if self.method == b"OPTIONS" && self.target == b"*" => self.parse_path(b"")?,
            _ => match self.parse_absolute()? {
                plain if plain.target == *target => plain.path,
                _ => return Err(Fault::OtherHostInside),
            },
        };
        match self.host {
            Some(host) if names_target(host, target) => Ok(path),
            Some(_) => Err(Fault::OtherHostInside),
            None => Err(Fault::NoHost),
        }
    }

    /// Parses path and query in origin-form. A request has no fragment.
    fn parse_path(&self, path: &[u8]) -> Result<PathAndQuery, Fault> {
        let text = match path.first() {
            _ if path.contains(&b'#') => return Err(Fault::AbsoluteForm),
            None if self.method == b"OPTIONS" => b"*".to_vec(),
            None => b"/".to_vec(),
            Some(b'?') => [b"/", path].concat(),
            Some(_) => path.to_vec(),
        };
        PathAndQuery::try_from(text).map_err(|_| Fault::AbsoluteForm)
    }
}

/// Returns the byte that no host name has, if it is in the host of a target. What comes before an `@` or after a colon may be a password.
/// Delimiters of URIs (RFC 3986 section 2.2) and `%` mean that the target has another form.
pub(crate) fn wrong_byte(target: &[u8], error: &TargetError) -> Option<u8> {
    let TargetError::Byte { at } = error else { return None };
    let byte = *target.get(*at)?;
    let is_in_host = !target.contains(&b'@') && !target.get(..*at)?.contains(&b':');
    (is_in_host && !b":/?#[]@!$&'()*+,;=%".contains(&byte)).then_some(byte)
}

impl Fault {
    /// Returns the reason for the record.
    pub(crate) fn reason(self) -> Reason {
        match self {
            Self::Scheme => Reason::Scheme,
            Self::OtherHostInside => Reason::HostMismatch,
            Self::TooSlow => Reason::Timeout,
            Self::NoRoom => Reason::BudgetConns,
            _ => Reason::Malformed,
        }
    }

    /// Returns the status of the answer.
    pub(crate) fn status(self) -> u16 {
        match self {
            Self::TooManyFields | Self::TooLarge => 431,
            Self::TooSlow => 408,
            Self::NoRoom => 503,
            _ => 400,
        }
    }
}

/// Whether a `Host` value names `target`, with or without its port.
fn names_target(host: &[u8], target: &Target) -> bool {
    if let Ok(given) = Target::parse(host) {
        return given == *target;
    }
    match &target.host {
        Host::Name(name) => {
            host.strip_suffix(b".").unwrap_or(host).eq_ignore_ascii_case(name.as_str().as_bytes())
        }
        Host::Ip(ip) => {
            let bare = host.strip_prefix(b"[").and_then(|host| host.strip_suffix(b"]")).unwrap_or(host);
            std::str::from_utf8(bare).ok().and_then(|text| text.parse().ok()) == Some(*ip)
        }
    }
}

/// Whether a `Host` value is well-formed (RFC 9110 section 7.2): a host and a port, no list, no userinfo.
fn is_host(value: &[u8]) -> bool {
    let (host, closing) = match value.strip_prefix(b"[") {
        Some(rest) => (rest, true),
        None => (value, false),
    };
    let bytes = host.iter().all(|byte| byte.is_ascii_alphanumeric() || b".-_:]".contains(byte));
    bytes && !host.is_empty() && closing == host.contains(&b']')
}

fn parse_request_line(line: &[u8]) -> Result<RequestLine, Fault> {
    let mut words = line.split(|&byte| byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Fault::RequestLine);
    };
    if !is_token(method) || target.is_empty() {
        return Err(Fault::RequestLine);
    }
    let version = match version {
        b"HTTP/1.1" => Version::Http11,
        b"HTTP/1.0" => Version::Http10,
        _ => return Err(Fault::Version),
    };
    let target_at = method.len() + 1;
    Ok(RequestLine { method: 0..method.len(), target: target_at..target_at + target.len(), version })
}

fn trim(mut value: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = value
        && is_blank(*first)
    {
        value = rest;
    }
    while let [rest @ .., last] = value
        && is_blank(*last)
    {
        value = rest;
    }
    value
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Whether a name resembles a framing field, such as `Content_Length`, `_Content-Length` or `Content-Len***`. Some
/// reader may take it for that field.
fn looks_like_framing(name: &[u8]) -> bool {
    let letters: Vec<u8> =
        name.iter().filter(|byte| byte.is_ascii_alphanumeric()).map(u8::to_ascii_lowercase).collect();
    let is = |first: &[u8], last: &[u8]| {
        let begins = match letters.strip_prefix(first) {
            // Another character may replace the hyphen.
            Some(rest) => last.starts_with(rest) || last.starts_with(rest.get(1..).unwrap_or_default()),
            None => first.starts_with(&letters),
        };
        let whole = name.len() > first.len() + last.len();
        whole && begins || letters.starts_with(first) && letters.ends_with(last)
    };
    is(b"content", b"length") || is(b"transfer", b"encoding")
}

/// Whether the bytes are a token (RFC 9110 section 5.6.2).
fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty()
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

#[cfg(test)]
mod tests;
