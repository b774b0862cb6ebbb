//! Parses the values of arguments.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use exeat_policy::{BackendName, Mode};

/// `--color`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// `--format` of the commands that print text or JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// Text for people.
    #[default]
    Text,
    /// JSON for programs. An error that ends the command early is JSON on stderr.
    Json,
}

impl Format {
    /// Whether the format is JSON.
    pub(crate) fn is_json(self) -> bool {
        self == Self::Json
    }
}

/// `FILE|fd:N`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    /// A path.
    File(PathBuf),
    /// An open descriptor of this process.
    Fd(i32),
}

impl FromStr for Output {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(number) = text.strip_prefix("fd:") else {
            return match text {
                "" => Err("the path is empty".into()),
                "-" => Err("stdout is the stage's, where exeat never writes: fd:3 with 3>FILE behind the command; for a file of this name: ./-".into()),
                "/dev/stdin" | "/dev/fd/0" | "/proc/self/fd/0" => Err("this is the stage's stdin".into()),
                "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => {
                    Err("stdout is the stage's, where exeat never writes: fd:3 with 3>FILE behind the command".into())
                }
                path => Ok(Self::File(path.into())),
            };
        };
        match digits(number).and_then(|n| i32::try_from(n).ok()) {
            Some(0) => Err("descriptor 0 is the stage's stdin".into()),
            Some(1) => Err("descriptor 1 is the stage's stdout, where exeat never writes".into()),
            Some(fd) => Ok(Self::Fd(fd)),
            None => {
                Err("a descriptor is written fd:N, such as fd:3; for a file of this name: ./fd:...".into())
            }
        }
    }
}

/// `--label K=V`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label {
    /// The part before the first `=`.
    pub(crate) key: String,
    /// The part after the first `=`.
    pub(crate) value: String,
}

impl FromStr for Label {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Self { key: key.into(), value: value.into() }),
            _ => Err("a label is written KEY=VALUE".into()),
        }
    }
}

/// `--env NAME[=VALUE]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Variable {
    /// Pass the caller's value on.
    Pass(OsString),
    /// Set a value.
    Set(OsString, OsString),
}

/// `--via`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ViaAt(pub(crate) PathBuf);

impl FromStr for ViaAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("the path is empty".into()),
            Some(path) => Ok(Self(path.into())),
            None => Err("a proxy to go through is written unix:PATH".into()),
        }
    }
}

/// `--listen`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListenAt {
    /// `unix:PATH`.
    Unix(PathBuf),
    /// `tcp:IP:PORT`.
    Tcp(SocketAddr),
}

impl FromStr for ListenAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("unix", "")) => Err("the path is empty".into()),
            Some(("unix", path)) => Ok(Self::Unix(path.into())),
            Some(("tcp", addr)) => addr.parse().map(Self::Tcp).map_err(|_| match addr.rsplit_once(':') {
                Some(("localhost" | "", port)) if digits(port).is_some() => {
                    format!("a tcp listener needs an address: tcp:127.0.0.1:{port}")
                }
                _ if digits(addr).is_some() => {
                    format!("a tcp listener needs an address: tcp:127.0.0.1:{addr}")
                }
                _ => "a tcp listener is written tcp:IP:PORT, such as tcp:127.0.0.1:3128".into(),
            }),
            _ => Err("a listener is written unix:PATH or tcp:IP:PORT".into()),
        }
    }
}

pub(super) fn parse_variable(text: &str) -> Result<Variable, String> {
    match text.split_once('=') {
        _ if text.is_empty() || text.starts_with('=') => Err("the name of the variable is empty".into()),
        _ if name_of(text).contains(char::is_whitespace) => Err(spaced(text)),
        _ if !is_name(text) => {
            Err("a `*` stands only at the end of a name that is passed, as in SLURM_*".into())
        }
        Some((name, value)) => Ok(Variable::Set(name.into(), value.into())),
        None => Ok(Variable::Pass(text.into())),
    }
}

/// Whether the name has no `*`, except for one at the end of a name that is passed.
fn is_name(text: &str) -> bool {
    let name = name_of(text);
    let stem = if text.contains('=') { name } else { name.strip_suffix('*').unwrap_or(name) };
    !stem.is_empty() && !stem.contains('*')
}

fn name_of(text: &str) -> &str {
    text.split_once('=').map_or(text, |(name, _)| name)
}

/// Returns the message for a variable whose name has a space: most likely two are meant. Omits the value, which may be a secret.
fn spaced(text: &str) -> String {
    let value = if text.contains('=') { "=..." } else { "" };
    let names: Vec<&str> = name_of(text).split_whitespace().collect();
    let flags = names.iter().map(|name| format!("--env {name}")).collect::<Vec<_>>().join(" ");
    let meant = if names.is_empty() { String::new() } else { format!("; probably meant: {flags}{value}") };
    format!("the name of a variable has no space{meant}")
}

/// Parses a stage's name within the bounds of a policy file, because every line of the record contains it.
pub(super) fn parse_stage(text: &str) -> Result<String, String> {
    exeat_policy::file::stage_fault(text).map_or_else(|| Ok(text.into()), |fault| Err(fault.into()))
}

pub(super) fn parse_mode(text: &str) -> Result<Mode, String> {
    text.parse().map_err(|_| words(&Mode::ALL))
}

/// `--backend`.
pub(super) fn backend_parser() -> impl TypedValueParser<Value = BackendName> {
    PossibleValuesParser::new(BackendName::WORDS)
        .try_map(|word| word.parse::<BackendName>().map_err(|_| words(BackendName::WORDS)))
}

pub(super) fn words(all: &[impl ToString]) -> String {
    let all: Vec<_> = all.iter().map(ToString::to_string).collect();
    format!("one of {}", all.join(", "))
}

/// `--pids`.
pub(super) fn parse_count(text: &str) -> Result<u32, String> {
    let count = digits(text).and_then(|count| u32::try_from(count).ok());
    count.ok_or_else(|| "a whole number, such as 200".into())
}

/// Parses plain decimal digits. `parse` alone would accept a sign.
pub(super) fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}
