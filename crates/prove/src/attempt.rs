//! Attempts to get out of the sandbox: how each is made, the data that it needs, and its result.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

/// An attempt to get out of the sandbox.
pub struct Attempt {
    /// Its name on the command line and in JSON.
    pub id: &'static str,
    /// A short description for the user.
    pub title: &'static str,
    /// The rows of docs/threats.md that the attempt tests.
    pub rows: &'static [&'static str],
    /// Makes the attempt, inside the sandbox.
    pub(crate) make: fn(&Spec) -> Saw,
    /// The check that the attempt can succeed on this machine.
    pub(crate) control: Control,
    /// The canaries that must not see the attempt.
    pub(crate) canaries: &'static [&'static str],
    /// The bytes that a canary receives if the attempt succeeds.
    pub(crate) trace: &'static str,
    /// Whether another run must be alive during the attempt.
    pub(crate) beside_another: bool,
}

impl Attempt {
    /// Creates an attempt without canaries and control.
    pub(crate) const fn new(
        id: &'static str,
        title: &'static str,
        rows: &'static [&'static str],
        make: fn(&Spec) -> Saw,
    ) -> Self {
        Self {
            id,
            title,
            rows,
            make,
            control: Control::None,
            canaries: &[],
            trace: id,
            beside_another: false,
        }
    }

    /// Sets the control: the same attempt, made outside, must succeed.
    pub(crate) const fn controlled(self) -> Self {
        Self { control: Control::Same, ..self }
    }

    /// Sets the control: another attempt, made outside, must succeed.
    pub(crate) const fn controlled_by(self, control: fn(&Spec) -> Saw) -> Self {
        Self { control: Control::Other(control), ..self }
    }

    /// Sets the canaries that listen during the attempt.
    pub(crate) const fn watched(self, canaries: &'static [&'static str]) -> Self {
        Self { canaries, ..self }
    }

    /// Keeps another run alive during the attempt.
    pub(crate) const fn beside_another_run(self) -> Self {
        Self { beside_another: true, ..self }
    }

    /// Sets the bytes that a canary receives, if these are not the attempt's name.
    pub(crate) const fn leaving(self, trace: &'static str) -> Self {
        Self { trace, ..self }
    }
}

/// The proof that the sandbox is the reason of a refusal: the attempt succeeds outside of it.
#[derive(Clone, Copy)]
pub(crate) enum Control {
    /// The attempt itself, on the host, as the caller.
    Same,
    /// A weaker attempt, on the host, as the caller.
    Other(fn(&Spec) -> Saw),
    /// No control. The attempt needs rights that the caller may lack, or something that exists only inside. It is made anyway.
    None,
}

/// The result of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "saw", content = "seen", rename_all = "kebab-case")]
pub enum Saw {
    /// The attempt got out.
    Out(String),
    /// The kernel or the proxy refused the attempt.
    Refused(String),
    /// The attempt could not be made.
    NotMade(String),
}

/// The data for the process inside: the addresses of the canaries, and the planted objects. Passed as a JSON argument.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Spec {
    /// A random word. Canaries answer it, and everything that is planted contains it.
    pub(crate) token: String,
    /// Listeners on the host's loopback, by their name.
    pub(crate) sockets: BTreeMap<String, SocketAddr>,
    /// A name server that the host uses.
    pub(crate) resolver: Option<SocketAddr>,
    /// Sockets in the file system, by their name; each has a datagram socket next to it, whose name ends with `.d`.
    pub(crate) paths: BTreeMap<String, PathBuf>,
    /// The name of an abstract socket.
    pub(crate) abstract_name: Option<String>,
    /// Another run that is alive.
    pub(crate) other: Option<Other>,
    /// The variable of the host's environment that holds a secret.
    pub(crate) variable: Option<String>,
    /// The key in the host's session keyring that holds a secret.
    pub(crate) key: Option<String>,
    /// Files and directories of the host that a stage may not see.
    pub(crate) hidden: Vec<Node>,
    /// Files and directories of the host that a stage may not write.
    pub(crate) read_only: Vec<Node>,
    /// Files of exeat, such as the record, that a stage may neither see nor write.
    pub(crate) own: Vec<Node>,
    /// A file that the caller of exeat has open.
    pub(crate) descriptor: Option<Node>,
    /// The host's namespaces: name and number.
    pub(crate) namespaces: BTreeMap<String, String>,
}

/// Another run of exeat.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Other {
    /// The port on which its stage listens, on its own loopback.
    pub(crate) port: u16,
    /// Its abstract socket.
    pub(crate) abstract_name: String,
    /// Its directory, sockets and processes, as the host names them.
    pub(crate) paths: Vec<PathBuf>,
}

/// The identity of a file or directory that no view can change: the numbers of the file system and of the inode.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) path: PathBuf,
    pub(crate) dev: u64,
    pub(crate) ino: u64,
}

impl Node {
    /// Reads the identity of the file at a path, following links.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let meta = std::fs::metadata(path)?;
        Ok(Self { path: path.to_owned(), dev: meta.dev(), ino: meta.ino() })
    }

    /// Whether the metadata is of the same object.
    pub(crate) fn is(&self, meta: &std::fs::Metadata) -> bool {
        (self.dev, self.ino) == (meta.dev(), meta.ino())
    }
}

/// Converts an answer of the kernel: success is a way out.
pub(crate) fn answer<T>(result: io::Result<T>, what: &str) -> Saw {
    match result {
        Ok(_) => Saw::Out(what.to_owned()),
        Err(error) => Saw::Refused(name(&error)),
    }
}

/// Converts the answers of several calls: each call that succeeds is a way out, and is named.
pub(crate) fn several<T>(calls: impl IntoIterator<Item = (String, io::Result<T>)>) -> Saw {
    let (mut out, mut refused): (Vec<String>, BTreeMap<String, usize>) = Default::default();
    for (what, result) in calls {
        match result {
            Ok(_) => out.push(what),
            Err(error) => *refused.entry(name(&error)).or_default() += 1,
        }
    }
    if !out.is_empty() {
        return Saw::Out(some(&out));
    }
    if refused.is_empty() {
        return Saw::NotMade("there is nothing to try".into());
    }
    let words: Vec<_> = refused
        .iter()
        .map(|(name, count)| if *count == 1 { name.clone() } else { format!("{count} x {name}") })
        .collect();
    Saw::Refused(words.join(", "))
}

/// The reason for not making an attempt if [`apart_from_host`] returns false.
pub(crate) const HARM: &str = "it would do harm on the host";

/// Returns whether this process is in another namespace of this kind than the host (namespaces(7)). Some attempts would damage the
/// host without it.
pub(crate) fn apart_from_host(spec: &Spec, kind: &str) -> bool {
    let here = std::fs::read_link(format!("/proc/self/ns/{kind}")).ok();
    let host = spec.namespaces.get(kind);
    host.is_some()
        && here.is_some_and(|here| Some(here.to_string_lossy().as_ref()) != host.map(String::as_str))
}

/// Formats the first few entries of a list.
pub(crate) fn some(list: &[String]) -> String {
    const FEW: usize = 4;
    let shown = list.iter().take(FEW).cloned().collect::<Vec<_>>().join(", ");
    if list.len() > FEW { format!("{shown} and {} more", list.len() - FEW) } else { shown }
}

/// Returns a name such as `ENETUNREACH`, because messages depend on the locale.
pub(crate) fn name(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => format!("{:?}", Errno::from_raw(code)),
        None if error.kind() == io::ErrorKind::TimedOut => "no answer".into(),
        None => error.to_string(),
    }
}
