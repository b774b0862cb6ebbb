//! Lists every key of a policy file: its value, its section and its meaning. The reader and the schema both use
//! this table.

use crate::escape::visible;
use crate::limits::Limit;
use crate::sandbox::{
    BackendName, Bridge, Cache, Home, Loopback, Nested, OnExcess, Transparent, Tty, UnixSockets, View,
};
use crate::terms::{Ech, Mode};

use super::rule::FileRole;

/// A key with its properties.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) section: &'static str,
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    /// The only role whose files may have it; `None` if both may.
    pub(crate) only: Option<FileRole>,
    /// The description for the schema, on one line.
    pub(crate) about: &'static str,
}

/// The form of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The version number of the file's language.
    Version,
    /// A section.
    Table,
    /// A list of sections.
    Tables,
    /// A stage's name.
    Stage,
    /// Any string.
    Text,
    /// True or false.
    Flag,
    /// A day.
    Day,
    /// Rules.
    Rules,
    /// Ports of this machine, as numbers or as `PORT:INNER`.
    HostPorts,
    /// Names of presets.
    Presets,
    /// `HOST[:DEST]`.
    Binds,
    /// Paths.
    Paths,
    /// Names that are protected in writable trees.
    Protected,
    /// Names of variables.
    Names,
    /// Variables with values.
    Variables,
    /// A length of time.
    Span,
    /// A number of bytes.
    Size,
    /// A number of bytes of memory, at least [`LEAST_MEMORY`](crate::LEAST_MEMORY).
    Memory,
    /// A whole number in the range of [`Limit::range`].
    Count(Limit),
    /// A section that names another proxy.
    NextHop,
    /// `http://host:port`.
    Upstream,
    /// `file:PATH` or `env:NAME`.
    Auth,
    /// Hosts that are reached directly.
    Bypass,
    /// A word of this list.
    OneOf(&'static [&'static str]),
    /// Kinds of effects.
    EffectKinds,
    /// A known key that this version does not support.
    Later,
}

const fn key(section: &'static str, name: &'static str, shape: Shape, about: &'static str) -> Key {
    Key { section, name, shape, only: None, about }
}

const fn policy(section: &'static str, name: &'static str, shape: Shape, about: &'static str) -> Key {
    Key { section, name, shape, only: Some(FileRole::Policy), about }
}

const fn ceiling(section: &'static str, name: &'static str, shape: Shape, about: &'static str) -> Key {
    Key { section, name, shape, only: Some(FileRole::Ceiling), about }
}

const fn later(section: &'static str, name: &'static str) -> Key {
    Key { section, name, shape: Shape::Later, only: None, about: "" }
}

/// The words for the check of the TLS server name. Without one it depends on the port.
pub(super) const TLS: &[&str] = &["sni", "off"];

/// Every key of our own format, including keys of the design that this version does not support.
pub(crate) const KEYS: &[Key] = &[
    key("", "schema", Shape::Version, "the version of this language; 1"),
    key("", "$schema", Shape::Text, "for editors: where the JSON Schema of the file is; not read"),
    policy("", "stage", Shape::Stage, "the stage's name in every line of the record"),
    key("", "network", Shape::Table, "which hosts"),
    key("", "fs", Shape::Table, "which files"),
    key("", "env", Shape::Table, "which variables"),
    key("", "limits", Shape::Table, "how much"),
    key("", "effects", Shape::Table, "what is made of the effects that a stage declares"),
    key("", "sandbox", Shape::Table, "how the stage is held"),
    policy("", "audit", Shape::Table, "how the record is written"),
    policy(
        "network",
        "mode",
        Shape::OneOf(Mode::WORDS),
        "enforce, or report: names that no rule allows are let through on the ports 80 and 443, and recorded",
    ),
    key("network", "nat64", Shape::Flag, "judges addresses in 64:ff9b::/96 by the IPv4 address inside"),
    key(
        "network",
        "ech",
        Shape::OneOf(Ech::WORDS),
        "whether a TLS hello with an encrypted one inside is recorded or refused",
    ),
    policy("network", "socks5", Shape::Flag, "offers the stage SOCKS5 as well"),
    policy(
        "network",
        "host_port",
        Shape::HostPorts,
        "services on 127.0.0.1 of this machine that the stage finds on its own loopback: PORT or PORT:INNER",
    ),
    key("network", "presets", Shape::Presets, "named sets of hosts"),
    key("network", "allow", Shape::Rules, "hosts that are allowed; port 443 where none is given"),
    key(
        "network",
        "deny",
        Shape::Rules,
        "hosts that are denied, on every port where none is given; always wins",
    ),
    key("network", "rule", Shape::Tables, "rules that need a word of explanation"),
    key("network", "allow_any", Shape::Flag, "permits the allow rule `*` in this file"),
    key("network", "allow_shared_suffix", Shape::Flag, "permits wildcards on shared suffixes in this file"),
    ceiling("network", "report", Shape::Flag, "false: no run may use report mode"),
    ceiling("network", "require_hosts", Shape::Flag, "true: a bare `Network` effect is refused"),
    key("network.rule", "allow", Shape::Rules, "hosts that are allowed; port 443 where none is given"),
    key("network.rule", "deny", Shape::Rules, "hosts that are denied, on every port where none is given"),
    key("network.rule", "reason", Shape::Text, "why the rule exists"),
    key("network.rule", "approved_by", Shape::Text, "who agreed to it"),
    key("network.rule", "expires", Shape::Day, "the first day, in UTC, on which `allow` grants nothing"),
    key(
        "network.rule",
        "tls",
        Shape::OneOf(TLS),
        "whether the TLS server name is checked; on port 443 it is by default",
    ),
    key(
        "network.rule",
        "max_upload",
        Shape::Size,
        "what a run may send to each rule of `allow`, all connections together",
    ),
    key("network", "upstream", Shape::NextHop, "another proxy through which connections go"),
    key("network.upstream", "proxy", Shape::Upstream, "where it listens: http://host:port"),
    key("network.upstream", "auth", Shape::Auth, "where its user:password is: file:PATH or env:NAME"),
    key(
        "network.upstream",
        "bypass",
        Shape::Bypass,
        "hosts, addresses and networks that are reached without it",
    ),
    later("network.rule", "methods"),
    later("network.rule", "paths"),
    key("fs", "view", Shape::OneOf(View::WORDS), "what is shown before anything is listed"),
    key("fs", "ro", Shape::Binds, "shown read-only"),
    key("fs", "rw", Shape::Binds, "shown writable"),
    key("fs", "mask", Shape::Paths, "hidden"),
    key(
        "fs",
        "allow_write",
        Shape::Protected,
        "protected names that are left writable; .git: git's hooks and configuration",
    ),
    policy("fs", "cache", Shape::OneOf(Cache::WORDS), "where package managers keep what they download"),
    policy(
        "fs",
        "home",
        Shape::OneOf(Home::WORDS),
        "private: a HOME in the cache, writable, that lasts as it does",
    ),
    key("env", "pass", Shape::Names, "variables of the caller that are passed on"),
    policy("env", "set", Shape::Variables, "variables that are set"),
    key("limits", "timeout", Shape::Span, "wall time of the run"),
    key("limits", "grace", Shape::Span, "from SIGTERM for the stage to SIGKILL"),
    key("limits", "cpu_time", Shape::Span, "processor time of each process"),
    key("limits", "memory", Shape::Memory, "memory of all processes together"),
    key("limits", "pids", Shape::Count(Limit::Pids), "processes and threads at one time"),
    key("limits", "open_files", Shape::Count(Limit::OpenFiles), "descriptors of each process"),
    key("limits", "file_size", Shape::Size, "the largest file that a process may write"),
    key("limits", "tmpfs_size", Shape::Size, "each of the private `/tmp` and `/var/tmp`"),
    key("limits", "output_size", Shape::Size, "stdout and stderr together"),
    key("limits", "connections", Shape::Count(Limit::Connections), "connections at one time"),
    key(
        "limits",
        "connections_per_host",
        Shape::Count(Limit::ConnectionsPerHost),
        "connections to one host at one time",
    ),
    key("limits", "audit_size", Shape::Size, "the record of the run, 1 MiB at least"),
    key("effects", "allow", Shape::EffectKinds, "the kinds of effects that a stage may declare"),
    policy(
        "effects",
        "on_excess",
        Shape::OneOf(OnExcess::WORDS),
        "whether a stage that declares more than it is granted is refused, or runs with what is granted",
    ),
    policy("sandbox", "bridge", Shape::OneOf(Bridge::WORDS), "how connections reach the proxy"),
    policy(
        "sandbox",
        "loopback",
        Shape::OneOf(Loopback::WORDS),
        "proxy: the stage connects to nothing else on its loopback and binds no port",
    ),
    policy("sandbox", "unix_sockets", Shape::OneOf(UnixSockets::WORDS), "whether the stage has Unix sockets"),
    policy(
        "sandbox",
        "transparent",
        Shape::OneOf(Transparent::WORDS),
        "whether programs that ignore the proxy variables are served",
    ),
    policy("sandbox", "debuggable", Shape::Flag, "lets the stage trace its own processes"),
    policy("sandbox", "tty", Shape::OneOf(Tty::WORDS), "whether the stage has a terminal of its own"),
    policy(
        "sandbox",
        "nested",
        Shape::OneOf(Nested::WORDS),
        "whether an `exeat run` in the stage is refused, or executes its command as it is",
    ),
    key("sandbox", "backend", Shape::OneOf(BackendName::WORDS), "the program that builds the sandbox"),
    policy("audit", "sync", Shape::Flag, "has each line on the disk before anything is dialed or answered"),
];

/// The keys of a published isolation policy. See [`isolation`](super::isolation).
pub(super) const ISOLATION: &[Key] = &[
    key("isolation", "ro_binds", Shape::Tables, "shown read-only"),
    key("isolation", "rw_binds", Shape::Tables, "shown writable"),
    key("isolation", "work_host", Shape::Text, "the directory to work in"),
    key("isolation", "network", Shape::Flag, "whether there is a network"),
    key("isolation", "env_allowlist", Shape::Names, "variables that are passed on"),
    key("isolation.bind", "host", Shape::Text, "the path on the host"),
    key("isolation.bind", "sandbox", Shape::Text, "the path inside"),
];

/// Words of other programs and of earlier designs for our keys.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("ceiling", "--ceiling FILE, on the command line"),
    ("ceilings", "--ceiling FILE, on the command line"),
    ("allow_git_config", "fs.allow_write = [\".git\"]"),
    ("audit_sync", "audit.sync"),
    ("allow_effects", "effects.allow"),
    ("net", "network"),
    ("mem", "limits.memory"),
    ("ro_binds", "fs.ro"),
    ("rw_binds", "fs.rw"),
    ("env_allowlist", "env.pass"),
    ("allow_write", "fs.rw"),
    ("allowed_write_paths", "fs.rw"),
    ("deny_read", "fs.mask"),
    ("forbidden_paths", "fs.mask"),
    ("deny_write_within_allow", "fs.ro"),
    ("allowed_domains", "network.allow"),
    ("denied_domains", "network.deny"),
    ("allow_network", "network.allow"),
    ("cpu_time_secs", "limits.cpu_time"),
    ("wall_time_secs", "limits.timeout"),
    ("max_rss_bytes", "limits.memory"),
    ("max_open_fds", "limits.open_files"),
    ("max_output_bytes", "limits.output_size"),
];

/// Words for settings that only flags of a run have, with these flags.
const FLAGS_ALONE: [(&str, &str); 8] = [
    ("run", "--on-denied, --require, --end-with-parent, --result, --audit, --label"),
    ("on_denied", "--on-denied"),
    ("require", "--require"),
    ("end_with_parent", "--end-with-parent"),
    ("result", "--result"),
    ("label", "--label"),
    ("labels", "--label"),
    ("quiet", "--quiet"),
];

/// Reports an unknown key, and with `guess` the key that was probably meant.
pub(super) fn unknown(
    keys: &'static [Key],
    section: &str,
    name: &str,
    guess: bool,
) -> (String, Option<String>) {
    let place = match section {
        "" | "isolation" => "at the top".to_owned(),
        "isolation.bind" => "in a bind".to_owned(),
        _ => format!("in `[{section}]`"),
    };
    let message = format!("there is no key `{}` {place}", visible(name));
    let folded = name.replace('-', "_").to_ascii_lowercase();
    if let Some((_, flags)) = FLAGS_ALONE.iter().find(|(key, _)| *key == folded) {
        return (format!("{message}: only flags of `exeat run` say it: {flags}"), None);
    }
    (message, if guess { key_meant(keys, section, name) } else { None })
}

/// Guesses a key: the same word in another section, a synonym, a similar word here, or a similar word anywhere.
fn key_meant(keys: &'static [Key], section: &str, name: &str) -> Option<String> {
    let full = |key: &Key| match key.section {
        "" | "isolation" | "isolation.bind" => key.name.to_owned(),
        section => format!("{section}.{}", key.name),
    };
    let folded = name.replace('-', "_").to_ascii_lowercase();
    let known = || keys.iter().filter(|key| key.shape != Shape::Later);
    if let Some(key) = known().find(|key| key.section == section && key.name == folded) {
        return Some(key.name.to_owned());
    }
    if let Some(key) = known().find(|key| key.name == folded) {
        return Some(full(key));
    }
    if let Some((_, ours)) = OTHER_WORDS.iter().find(|(word, _)| *word == folded) {
        return Some((*ours).to_owned());
    }
    let here = nearest(&folded, known().filter(|key| key.section == section).map(|key| key.name));
    here.map(str::to_owned).or_else(|| {
        let there = nearest(&folded, known().map(|key| key.name))?;
        known().find(|key| key.name == there).map(full)
    })
}

/// Returns the closest word to `typed`, if at most a third of its letters differ, or if it has the same letters, four at least. Two
/// swapped letters count as one difference. Text of more than 40 bytes has no close word.
pub fn nearest<'w>(typed: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    // A typing error changes a letter or two. Longer texts are not typing errors, and are slow to compare.
    if typed.len() > 40 {
        return None;
    }
    let ranked = words.into_iter().map(|word| (strsim::osa_distance(typed, word), word));
    // Of three letters one is a slip; two of them make another word.
    let sorted = |word: &str| {
        let mut letters = word.as_bytes().to_vec();
        letters.sort_unstable();
        letters
    };
    let letters = sorted(typed);
    let is_near = |edits: usize, word: &str| {
        edits <= word.len().div_ceil(3) && 2 * edits < typed.len()
            || letters.len() > 3 && sorted(word) == letters
    };
    ranked.filter(|(edits, word)| is_near(*edits, word)).min().map(|(_, word)| word)
}
