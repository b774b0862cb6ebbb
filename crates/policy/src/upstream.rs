//! Parses the URL of an upstream proxy, its list of exceptions and the place of its credentials. Nothing here opens a
//! file or a connection.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::file::{BindError, PathSpec};
use crate::grammar::{Allowances, RuleError, RuleSpec};
use crate::name::HostName;
use crate::pattern::HostPattern;
use crate::port::PortSet;
use crate::rule::{Action, Pattern};
use crate::target::{Host, Target, TargetError};

/// Maximum entries of a [`Bypass`]. Each connection is compared with all of them.
pub const MAX_BYPASS: usize = 1000;

/// Maximum bytes of a text that names a proxy, several times what a name with credentials needs.
const MAX_URL: usize = 4096;

/// The address of an upstream proxy: `http://host:port`, without anything else.
///
/// The text can contain a password, so no error repeats it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UpstreamUrl(Target);

impl UpstreamUrl {
    /// Returns the host and port.
    pub fn target(&self) -> &Target {
        &self.0
    }

    /// Parses the value of a variable such as `https_proxy`. The scheme may be missing, and credentials may precede
    /// the host. They are returned as they are to be sent: `user:password`, percent-decoded.
    ///
    /// # Errors
    /// Returns an [`UpstreamFault`], which never repeats the text.
    pub fn from_variable(text: &str) -> Result<(Self, Option<Vec<u8>>), UpstreamFault> {
        let rest = match text.split_once("://") {
            Some(_) => after_scheme(text)?,
            None => text,
        };
        let (userinfo, authority) = match authority(rest)?.rsplit_once('@') {
            Some((userinfo, authority)) => (Some(userinfo), authority),
            None => (None, authority(rest)?),
        };
        let credentials = userinfo.map(credentials).transpose()?;
        Ok((Self(parse_place(authority)?), credentials))
    }
}

impl FromStr for UpstreamUrl {
    type Err = UpstreamFault;

    fn from_str(text: &str) -> Result<Self, UpstreamFault> {
        let authority = authority(after_scheme(text)?)?;
        if authority.contains('@') {
            return Err(UpstreamFault::Userinfo);
        }
        Ok(Self(parse_place(authority)?))
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.0)
    }
}

/// The credentials for an upstream proxy: the Basic scheme (RFC 7617). Printed as stars.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials(Vec<u8>);

/// The text is not `user:password`. The error does not repeat it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "credentials are one line, `user:password`, of at most {MAX_CREDENTIALS} bytes and without control characters"
)]
pub struct CredentialsError;

/// Maximum bytes of credentials; long tokens fit.
pub const MAX_CREDENTIALS: usize = 2048;

impl Credentials {
    /// Parses `user:password`; one line end after it is ignored.
    ///
    /// # Errors
    /// Returns a [`CredentialsError`] if the colon or the name before it is missing, or for a control character.
    pub fn parse(text: &[u8]) -> Result<Self, CredentialsError> {
        let line = text.strip_suffix(b"\n").unwrap_or(text);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let colon = line.iter().position(|&byte| byte == b':');
        let fits = line.len() <= MAX_CREDENTIALS && !line.iter().any(u8::is_ascii_control);
        if fits && colon.is_some_and(|at| at > 0) { Ok(Self(line.to_vec())) } else { Err(CredentialsError) }
    }

    /// Returns `user:password`.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(***)")
    }
}

/// The reason why a text is not the URL of a proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamFault {
    /// The scheme is not supported, such as `https://` or `socks5://`.
    #[error("an upstream proxy that is reached by `{0}://` is not supported; `http://host:port` is")]
    Scheme(&'static str),
    /// The scheme is missing, or no proxy has it.
    #[error("an upstream proxy is `http://host:port`")]
    Shape,
    /// The URL contains `user:password@`, which others could see.
    #[error("a user name and a password have no place in the URL")]
    Userinfo,
    /// Credentials contain an invalid `%` or a control character.
    #[error("the user name and the password in the URL cannot be read")]
    Credentials,
    /// Something follows the port.
    #[error("an upstream proxy is `http://host:port`, without a path")]
    Path,
    /// The port is missing. Programs that read such a URL disagree on the default.
    #[error("an upstream proxy is `http://host:port`, and the port is missing")]
    NoPort,
    /// The text after the scheme is not a host and a port.
    #[error("an upstream proxy is `http://host:port`: {0}")]
    Target(TargetError),
}

fn after_scheme(text: &str) -> Result<&str, UpstreamFault> {
    const KNOWN: [&str; 6] = ["https", "socks", "socks4", "socks4a", "socks5", "socks5h"];
    if text.len() > MAX_URL {
        return Err(UpstreamFault::Shape);
    }
    let (scheme, rest) = text.split_once("://").ok_or(UpstreamFault::Shape)?;
    if scheme.eq_ignore_ascii_case("http") {
        return Ok(rest);
    }
    let known = KNOWN.into_iter().find(|known| scheme.eq_ignore_ascii_case(known));
    Err(known.map_or(UpstreamFault::Shape, UpstreamFault::Scheme))
}

/// Returns the text before a single final slash.
fn authority(rest: &str) -> Result<&str, UpstreamFault> {
    if rest.len() > MAX_URL {
        return Err(UpstreamFault::Shape);
    }
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    // A password must have these encoded.
    if authority.contains(['/', '?', '#']) { Err(UpstreamFault::Path) } else { Ok(authority) }
}

fn parse_place(authority: &str) -> Result<Target, UpstreamFault> {
    Target::parse(authority.as_bytes()).map_err(|error| match error {
        TargetError::NoPort => UpstreamFault::NoPort,
        error => UpstreamFault::Target(error),
    })
}

/// Decodes `user:password` (RFC 3986 section 2.1). Without a colon the password is empty.
fn credentials(userinfo: &str) -> Result<Vec<u8>, UpstreamFault> {
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    let mut out = decode(user)?;
    // RFC 7617 section 2: the first colon ends the name.
    if out.is_empty() || out.contains(&b':') {
        return Err(UpstreamFault::Credentials);
    }
    out.push(b':');
    out.extend(decode(password)?);
    Ok(out)
}

fn decode(text: &str) -> Result<Vec<u8>, UpstreamFault> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let mut digit = || {
            let digit = bytes.next().and_then(|byte| char::from(byte).to_digit(16));
            digit.and_then(|digit| u8::try_from(digit).ok()).ok_or(UpstreamFault::Credentials)
        };
        let byte = if byte == b'%' { digit()? * 16 + digit()? } else { byte };
        if byte.is_ascii_control() {
            return Err(UpstreamFault::Credentials);
        }
        out.push(byte);
    }
    Ok(out)
}

/// The targets that are reached without the upstream proxy. `localhost` and names below it always are.
///
/// An entry covers only what it says, not the addresses of names, because names that go upstream are not resolved
/// here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bypass(Vec<RuleSpec>);

impl Bypass {
    /// Adds one entry: the host of a rule, on every port or the given ones, or `.name` for a name and all below it.
    ///
    /// # Errors
    /// Returns a [`BypassError`] and leaves the list unchanged.
    pub fn add(&mut self, text: &str) -> Result<(), BypassError> {
        self.push(text, false)
    }

    /// Parses the value of a variable such as `no_proxy`: entries separated by commas or spaces, without empty
    /// ones. A name also covers those below it, as in curl and Go. `None` means `*`, everything.
    ///
    /// # Errors
    /// Returns the [`BypassError`] of the first invalid entry.
    pub fn from_variable(text: &str) -> Result<Option<Self>, BypassError> {
        let mut bypass = Self::default();
        let entries = || text.split([',', ' ', '\t']).filter(|entry| !entry.is_empty());
        if entries().any(|entry| entry == "*") {
            return Ok(None);
        }
        entries().try_for_each(|entry| bypass.push(entry, true))?;
        Ok(Some(bypass))
    }

    fn push(&mut self, text: &str, below: bool) -> Result<(), BypassError> {
        let parse = |text: &str| {
            if text.starts_with('!') {
                return Err(BypassError::Mark);
            }
            // An entry grants nothing, so the owners of a suffix do not matter. Without ports it covers all of
            // them.
            let all = Allowances { any: false, shared_suffix: true };
            let spec = RuleSpec::parse(text, Action::Deny, all)?;
            if spec.pattern == Pattern::Name(HostPattern::Any) { Err(BypassError::All) } else { Ok(spec) }
        };
        let suffix = text.strip_prefix('.');
        let bare = suffix.unwrap_or(text);
        let bracketed = is_bare_ipv6(bare).then(|| format!("[{bare}]"));
        let spec = parse(bracketed.as_deref().unwrap_or(bare))?;
        let (spec, also) = match (&spec.pattern, suffix.is_some() || below) {
            (Pattern::Name(HostPattern::Exact(name)), true) => {
                let pattern = Pattern::Name(HostPattern::Subdomains(name.clone()));
                let also = RuleSpec { pattern, ..spec.clone() };
                (spec, Some(also))
            }
            (Pattern::Name(HostPattern::Exact(_)), false) => (spec, None),
            _ if suffix.is_some() => return Err(BypassError::Suffix),
            _ => (spec, None),
        };
        for spec in [Some(spec), also].into_iter().flatten() {
            if !self.0.contains(&spec) {
                if self.0.len() >= MAX_BYPASS {
                    return Err(BypassError::TooMany);
                }
                self.0.push(spec);
            }
        }
        Ok(())
    }

    /// Whether `target` is reached directly.
    pub fn covers(&self, target: &Target) -> bool {
        let is_localhost =
            |name: &HostName| name.as_str() == "localhost" || name.as_str().ends_with(".localhost");
        if target.host.name().is_some_and(is_localhost) {
            return true;
        }
        self.0.iter().any(|spec| spec.ports.contains(target.port) && covers(&spec.pattern, &target.host))
    }

    /// Whether the list has no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the entries in canonical spelling, sorted.
    pub fn entries(&self) -> Vec<String> {
        let entry = |spec: &RuleSpec| {
            if spec.ports == PortSet::all() {
                spec.pattern.to_string()
            } else {
                format!("{}:{}", spec.pattern, spec.ports)
            }
        };
        let mut entries: Vec<String> = self.0.iter().map(entry).collect();
        entries.sort_unstable();
        entries
    }
}

/// Formats the entries with commas between them.
impl fmt::Display for Bypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.entries().join(","))
    }
}

fn covers(pattern: &Pattern, host: &Host) -> bool {
    match (pattern, host) {
        (Pattern::Name(pattern), Host::Name(name)) => pattern.matches(name),
        (Pattern::Net(net), Host::Ip(ip)) => net.contains(ip),
        _ => false,
    }
}

/// Whether the text is `::1` or `fe80::/10` without brackets, as such lists have them.
fn is_bare_ipv6(text: &str) -> bool {
    let address = text.split_once('/').map_or(text, |(address, _)| address);
    address.parse::<Ipv6Addr>().is_ok()
}

/// The reason why a text is not an entry of a [`Bypass`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BypassError {
    /// The text is not a host of a rule.
    #[error("{0}")]
    Rule(#[from] RuleError),
    /// `!`.
    #[error("an exception has no `!`")]
    Mark,
    /// The entry `*` would leave nothing to the upstream proxy.
    #[error("`*` would leave nothing to the upstream proxy")]
    All,
    /// A dot precedes an address or a wildcard.
    #[error("a dot stands only before a name")]
    Suffix,
    /// There are more than [`MAX_BYPASS`] entries.
    #[error("there are more than {MAX_BYPASS} exceptions")]
    TooMany,
}

/// The place of the credentials for an upstream proxy: `file:PATH` or `env:NAME`. It never contains them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthSpec {
    /// A file that contains `user:password` in one line.
    File(PathSpec),
    /// A variable of the caller with `user:password`.
    Env(String),
}

/// The reason why a text is not a place of credentials. No error repeats it, because it can be a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthSpecError {
    /// The text has neither form.
    #[error("credentials are named by `file:PATH` or `env:NAME`, and never given")]
    Shape,
    /// The path is invalid.
    #[error("`file:` names no file: {0}")]
    Path(BindError),
    /// The name of the variable is invalid.
    #[error("`env:` is followed by the name of a variable")]
    Name,
}

impl FromStr for AuthSpec {
    type Err = AuthSpecError;

    fn from_str(text: &str) -> Result<Self, AuthSpecError> {
        match text.split_once(':') {
            Some(("file", path)) => path.parse().map(Self::File).map_err(AuthSpecError::Path),
            Some(("env", name)) => {
                let is_name = !name.is_empty()
                    && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                    && !name.starts_with(|c: char| c.is_ascii_digit());
                if is_name { Ok(Self::Env(name.to_owned())) } else { Err(AuthSpecError::Name) }
            }
            _ => Err(AuthSpecError::Shape),
        }
    }
}

#[cfg(test)]
mod tests;
