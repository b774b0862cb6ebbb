//! Computes one value from everything that restricts a stage. A stored approval of it expires when any of that changes.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

use exeat_contract::CACHE;
use exeat_files::layout::{EMPTY_DIR_SIZE, EMPTY_FILE, EmptyEntry, Mount};
use exeat_files::quarantine::{MissingName, Pattern, WatchList};
use exeat_policy::Loopback;
use exeat_sandbox::bwrap::Argv;
use exeat_sandbox::{Enforcement, Identity, SandboxSpec, seccomp};
use serde::{Deserialize, Serialize};

use crate::cache::of_any_run;
use crate::plan::{FILTERS, Plan};
use crate::staged::{MountSource, Staged, TreeSummary};
use exeat_files::view::scratch::TMP;

/// The first field of the hash. It changes with the format.
const FORM: &str = "exeat isolation 1";

/// A hash over what a plan lets a stage see, write, reach and use: SHA-256, as 64 lower-case hexadecimal digits.
///
/// Two plans with the same fingerprint restrict a stage equally. A change of any of these changes it:
///
/// - the back end, its executable, the bridge, exeat's version and helper;
/// - each mount in its order: the host path, the place, whether it is writable or masked, its memory; exeat's own files;
///   the protected names that do not exist yet;
/// - the stage's kernel user, its working directory, and the enforcement ([`Plan::enforcement`]), so that an approval does
///   not cover a kernel or a working directory that holds less;
/// - the network rules of all layers in canonical form; the upstream proxy and its bypass list; or the socket of another
///   proxy, whose rules are not known here;
/// - the names of environment variables, and the limits; whether the stage gets the caller's terminal or its own.
///
/// The command, values of variables, labels, the place of the record, the run directory, times, and the contents of trees and caches are
/// not part of it. An approval covers the restrictions, not the command.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint(String);

/// The text is not a fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint is 64 lower-case hexadecimal digits")]
pub struct FingerprintError;

impl Fingerprint {
    /// Returns the 64 digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = FingerprintError;

    fn try_from(text: String) -> Result<Self, FingerprintError> {
        let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == 64 && text.bytes().all(digit) { Ok(Self(text)) } else { Err(FingerprintError) }
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        text.to_owned().try_into()
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.0
    }
}

impl Plan {
    /// Computes the [`Fingerprint`] of this plan.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let mut it = Fields::default();
        it.text("form", FORM);
        it.text("version", env!("CARGO_PKG_VERSION"));
        it.text("backend", self.choice.builder.name());
        if let Some(bwrap) = self.choice.builder.bwrap() {
            it.path("executable", bwrap);
        }
        it.every_sandbox(self);
        it.text("bridge", self.bridge.argument(self.socks5));
        it.text("tty", self.tty.as_str());
        it.text("transparent", self.transparent.as_str());
        it.number("host ports", length(self.host_ports.len()));
        for port in &self.host_ports {
            it.text("host port", &port.to_string());
        }
        match self.identity {
            Identity::Caller => it.text("identity", "caller"),
            // The number differs in each run.
            Identity::Other { .. } if self.own.is_some() => it.text("identity", "its own"),
            Identity::Other { uid, gid } => {
                it.text("identity", "other").number("uid", uid.into()).number("gid", gid.into())
            }
        };
        it.text("unix sockets", if self.unix_sockets { "yes" } else { "connected pairs only" });
        it.text("loopback", if self.loopback == Loopback::Proxy { "the proxy alone" } else { "its own" });
        let Enforcement { net, fs, syscalls, identity } = &self.enforcement;
        for (aspect, held) in [("net", net), ("fs", fs), ("syscalls", syscalls), ("identity", identity)] {
            it.text(aspect, &held.to_string());
        }
        it.number("mounts", length(self.mounts.len()));
        for mount in &self.mounts {
            it.mount(mount);
        }
        it.trees(self);
        it.number("watched", length(self.watched.len()));
        for list in &self.watched {
            it.watched(list);
        }
        it.path("starts in", &self.cwd);
        it.text("policy", self.policy.canonical_json());
        if let Some(socket) = &self.via {
            it.path("via", socket);
        }
        if let Some(upstream) = &self.upstream {
            it.text("upstream", &upstream.to_string()).text("directly", &upstream.bypass().to_string());
        }
        it.number("variables", length(self.env.len()));
        for name in self.env.keys() {
            it.words("variable", name);
        }
        it.limits(self);
        Fingerprint(it.digest())
    }
}

fn length(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Names and values, each after its length, so that no value looks like the next name.
#[derive(Debug, Default)]
pub(crate) struct Fields(Vec<u8>);

impl Fields {
    /// Returns the digest of all fields in hexadecimal digits.
    pub(crate) fn digest(&self) -> String {
        exeat_record::sha256_hex(&self.0)
    }

    pub(crate) fn bytes(&mut self, name: &str, value: &[u8]) -> &mut Self {
        for part in [name.as_bytes(), value] {
            self.0.extend(length(part.len()).to_be_bytes());
            self.0.extend(part);
        }
        self
    }

    pub(crate) fn text(&mut self, name: &str, value: &str) -> &mut Self {
        self.bytes(name, value.as_bytes())
    }

    pub(crate) fn words(&mut self, name: &str, value: &OsStr) -> &mut Self {
        self.bytes(name, value.as_bytes())
    }

    pub(crate) fn path(&mut self, name: &str, value: &Path) -> &mut Self {
        self.words(name, value.as_os_str())
    }

    pub(crate) fn number(&mut self, name: &str, value: u64) -> &mut Self {
        self.bytes(name, &value.to_be_bytes())
    }

    fn mount(&mut self, mount: &Mount) -> &mut Self {
        match mount {
            Mount::ReadOnly { host, at, .. } => {
                self.text("mount", "read-only").path("host", host).path("at", at)
            }
            Mount::Writable { host, at, .. } => {
                let host = if [CACHE, TMP].map(Path::new).contains(&at.as_path()) {
                    of_any_run(host)
                } else {
                    Cow::Borrowed(&**host)
                };
                self.text("mount", "writable").path("host", &host).path("at", at)
            }
            Mount::Hidden { at, entry: EmptyEntry::File, .. } => {
                self.text("mount", "read-only").path("host", Path::new(EMPTY_FILE)).path("at", at)
            }
            Mount::Hidden { at, entry: EmptyEntry::Dir { mode }, .. } => {
                self.memory(at, EMPTY_DIR_SIZE, *mode)
            }
            Mount::Tmpfs { at, size, mode } => self.memory(at, *size, *mode),
            Mount::Dir { at } => self.text("mount", "directory").path("at", at),
            Mount::Symlink { target, at } => self.text("mount", "link").path("target", target).path("at", at),
            Mount::File { at, bytes, mode } => self
                .text("mount", "file")
                .path("at", at)
                .bytes("bytes", bytes)
                .number("mode", u64::from(*mode)),
            Mount::CoverFile { at, bytes } => {
                self.text("mount", "cover").path("at", at).bytes("bytes", bytes)
            }
            Mount::Proc => self.text("mount", "proc"),
            Mount::Dev { shm } => self.text("mount", "dev").number("shm", *shm),
        }
    }

    fn memory(&mut self, at: &Path, size: u64, mode: u32) -> &mut Self {
        self.text("mount", "tmpfs").path("at", at).number("size", size).number("mode", u64::from(mode))
    }

    /// Adds what every sandbox contains, whatever its mounts: a build that restricts less has another fingerprint.
    fn every_sandbox(&mut self, plan: &Plan) {
        let bare = SandboxSpec {
            mounts: Vec::new(),
            bridge: plan.bridge,
            socks5: plan.socks5,
            identity: plan.identity,
            debuggable: plan.debuggable,
        };
        for word in &Argv::new(&bare, FILTERS).options {
            self.text("option", &word.to_string());
        }
        let filters = seccomp::base(plan.debuggable).and_then(|base| Ok((base, seccomp::no_unix_sockets()?)));
        // A stage does not start if its filters do not compile.
        if let Ok((base, no_unix_sockets)) = filters {
            for program in base.iter().chain([&no_unix_sockets]) {
                self.bytes("filter", program);
            }
        }
    }

    /// Adds the trees with mapped users, and mounts whose source is not their path.
    fn trees(&mut self, plan: &Plan) {
        let trees: Vec<_> = plan.staged.iter().flat_map(Staged::summaries).collect();
        self.number("trees", length(trees.len()));
        for TreeSummary { name, host, owner } in &trees {
            let is_cache = plan.cache.as_ref() == Some(host);
            self.text("tree", name).path(
                "host",
                if is_cache { of_any_run(host) } else { Cow::Borrowed(host.as_path()) }.as_ref(),
            );
            if let Some((uid, gid)) = owner {
                self.number("owner", (*uid).into()).number("group", (*gid).into());
            }
        }
        for (number, source) in plan.taken.iter().enumerate() {
            if let Some(MountSource { name, below }) = source {
                self.number("taken", length(number)).text("from", name).path("below", below);
            }
        }
    }

    /// Adds the protected names of a tree that do not exist yet.
    fn watched(&mut self, list: &WatchList) {
        // The deeper directories belong to the contents of the tree, and names let through in them are in `fs`.
        let WatchList { tree, names, patterns, links, pointers, bare, repositories, held, .. } = list;
        self.path("tree", tree).number("names", length(names.len()));
        for MissingName { name, obeyed } in names {
            self.text("name", name).text("obeyed", &obeyed.to_string());
        }
        self.number("patterns", length(patterns.len()));
        for Pattern { dir, name, known, obeyed } in patterns {
            self.text("pattern", name).text("in", dir).text("obeyed", &obeyed.to_string());
            self.number("known", length(known.len()));
            for name in known {
                self.text("known", name);
            }
        }
        self.number("links", length(links.len()));
        for (name, target) in links {
            self.text("link", name).path("to", target);
        }
        self.number("pointers", length(pointers.len()));
        for name in pointers {
            self.text("pointer", name);
        }
        self.number("bare", length(bare.len()));
        for name in bare {
            self.text("bare", name);
        }
        self.number("repositories", length(repositories.len()));
        for name in repositories {
            self.text("repository", name);
        }
        self.number("held", length(held.len()));
        for dir in held {
            self.path("held", &dir.0);
        }
    }

    fn limits(&mut self, plan: &Plan) -> &mut Self {
        let limits = plan.limits.lines();
        self.number("limits", length(limits.len()));
        for limit in &limits {
            self.text("limit", limit);
        }
        self
    }
}

#[cfg(test)]
mod tests;
