//! Parses paths of a policy. Nothing here reads a file system or knows where HOME is.

use std::fmt;
use std::str::FromStr;

/// A path before it is resolved. The caller knows what it is relative to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathSpec {
    /// `/data`.
    Absolute(String),
    /// `~` or `~/datasets`: the part after `~/`, empty for HOME itself.
    Home(String),
    /// `out`: relative to the policy file, or on a command line to the working directory.
    Relative(String),
}

/// A bind `HOST[:GUEST]`: the path to show, and where to show it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BindSpec {
    /// The path on the host.
    pub host: PathSpec,
    /// The path inside, absolute or below HOME; `None` if it is the same as on the host.
    pub guest: Option<PathSpec>,
    /// The line of the file, from 1; `None` if it is not from a file.
    pub line: Option<u32>,
}

/// The reason why a text is not a path or bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// A side has no path.
    #[error("the path is empty")]
    Empty,
    /// The path contains a NUL, or another control character that would garble a report.
    #[error("a path has no control characters")]
    Control,
    /// `~user`.
    #[error("`~` is your own home only, as in `~/data`")]
    OtherHome,
    /// Two colons or more.
    #[error("a bind is HOST or HOST:GUEST; a path with a colon in it cannot be given here")]
    Colons,
    /// A path is relative, and there is nothing to be relative to.
    #[error("a path here is absolute or starts with `~/`")]
    Relative,
    /// A relative path inside.
    #[error("the path inside is absolute or starts with `~/`")]
    RelativeGuest,
    /// `..` in the path inside.
    #[error("the path inside has no `..`")]
    DotDot,
}

impl FromStr for PathSpec {
    type Err = BindError;

    fn from_str(text: &str) -> Result<Self, BindError> {
        if text.is_empty() {
            return Err(BindError::Empty);
        }
        if text.chars().any(char::is_control) {
            return Err(BindError::Control);
        }
        match text.strip_prefix('~') {
            Some("") => Ok(Self::Home(String::new())),
            Some(rest) => {
                let below = rest.strip_prefix('/').ok_or(BindError::OtherHome)?;
                Ok(Self::Home(below.trim_start_matches('/').to_owned()))
            }
            None if text.starts_with('/') => Ok(Self::Absolute(text.to_owned())),
            None => Ok(Self::Relative(text.to_owned())),
        }
    }
}

impl PathSpec {
    /// Parses a path with the same meaning everywhere: absolute or below HOME.
    pub(crate) fn fixed(text: &str) -> Result<Self, BindError> {
        match text.parse()? {
            Self::Relative(_) => Err(BindError::Relative),
            path => Ok(path),
        }
    }

    /// Parses a path inside the sandbox.
    pub(crate) fn guest(text: &str) -> Result<Self, BindError> {
        let path: Self = text.parse()?;
        if matches!(path, Self::Relative(_)) {
            return Err(BindError::RelativeGuest);
        }
        if path.has_dots() {
            return Err(BindError::DotDot);
        }
        Ok(path)
    }

    /// Whether a component is `..`.
    pub(crate) fn has_dots(&self) -> bool {
        self.text().split('/').any(|part| part == "..")
    }

    fn text(&self) -> &str {
        match self {
            Self::Absolute(text) | Self::Home(text) | Self::Relative(text) => text,
        }
    }
}

impl FromStr for BindSpec {
    type Err = BindError;

    fn from_str(text: &str) -> Result<Self, BindError> {
        let (host, guest) = match text.split_once(':') {
            Some((_, guest)) if guest.contains(':') => return Err(BindError::Colons),
            Some((host, guest)) => (host, Some(guest)),
            None => (text, None),
        };
        let host = host.parse()?;
        let guest = guest.map(PathSpec::guest).transpose()?;
        Ok(Self { host, guest, line: None })
    }
}

/// Formats it as in a policy.
impl fmt::Display for PathSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absolute(text) | Self::Relative(text) => f.write_str(text),
            Self::Home(below) if below.is_empty() => f.write_str("~"),
            Self::Home(below) => write!(f, "~/{below}"),
        }
    }
}

/// Formats it as in a policy, if neither path contains a colon.
impl fmt::Display for BindSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.guest {
            Some(guest) => write!(f, "{}:{guest}", self.host),
            None => self.host.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Result<(PathSpec, Option<PathSpec>), BindError>) {
        let expect = expect.map(|(host, guest)| BindSpec { host, guest, line: None });
        assert_eq!(text.parse::<BindSpec>(), expect, "{text:?}");
        if let Ok(bind) = expect {
            assert_eq!(bind.to_string().parse(), Ok(bind), "{text:?}");
        }
    }

    /// A3: `~` is HOME, and a relative path stays relative until it is resolved.
    #[test]
    fn parses_binds() {
        let home = |text: &str| PathSpec::Home(text.into());
        let absolute = |text: &str| PathSpec::Absolute(text.into());
        let relative = |text: &str| PathSpec::Relative(text.into());
        check("/data", Ok((absolute("/data"), None)));
        check("~", Ok((home(""), None)));
        check("~/datasets:/data", Ok((home("datasets"), Some(absolute("/data")))));
        check("~//etc", Ok((home("etc"), None)));
        check("out", Ok((relative("out"), None)));
        check("../out", Ok((relative("../out"), None)));
        check("a:~/b", Ok((relative("a"), Some(home("b")))));
        check("", Err(BindError::Empty));
        check(":/data", Err(BindError::Empty));
        check("/data:", Err(BindError::Empty));
        check("/a:/b:ro", Err(BindError::Colons));
        check("~other/x", Err(BindError::OtherHome));
        check("/a:b", Err(BindError::RelativeGuest));
        check("/a:/b/../etc", Err(BindError::DotDot));
        check("/a\n/b", Err(BindError::Control));
        check("/a\0", Err(BindError::Control));
    }
}
