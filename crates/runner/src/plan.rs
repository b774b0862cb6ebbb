//! From a request to what will be done: looks at the machine, changes nothing.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exeat_audit::place::Place;
use exeat_contract::{BridgeKind, DENIALS, SOCKET};
use exeat_policy::{Action, Policy};
use exeat_sandbox::bwrap::Argv;
use exeat_sandbox::{Enforcement, Held, Identity, Mount, SandboxSpec};
use nix::unistd::{Uid, User, geteuid};
use serde_json::json;

use crate::error::Error;
use crate::lists;
use crate::quarantine::Missing;
use crate::request::{AuditTo, Bridge, Cache, Request};
use crate::{dirs, environment, view};

/// What one run will do.
#[derive(Debug)]
pub struct Plan {
    pub(crate) command: Vec<OsString>,
    pub(crate) policy: Policy,
    pub(crate) bwrap: PathBuf,
    pub(crate) mounts: Vec<Mount>,
    /// Where the stage starts, inside.
    pub(crate) cwd: PathBuf,
    pub(crate) env: BTreeMap<OsString, OsString>,
    pub(crate) bridge: BridgeKind,
    pub(crate) identity: Identity,
    pub(crate) sockets_exposed: bool,
    pub(crate) missing: Vec<Missing>,
    pub(crate) enforcement: Enforcement,
    pub(crate) cache: Option<PathBuf>,
    /// Where the run directory is made.
    pub(crate) run_base: PathBuf,
    pub(crate) audit: AuditTo,
    pub(crate) place: Option<Place>,
    pub(crate) stage: Option<String>,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) timeout: Option<Duration>,
    notes: Vec<String>,
}

/// Works out what a request means on this machine.
///
/// # Errors
/// When the request cannot be met, or would let the stage write its own record.
pub fn plan(request: Request) -> Result<Plan, Error> {
    if request.command.is_empty() {
        return Err(Error::NoCommand);
    }
    let mut notes = Vec::new();
    let bwrap = exeat_sandbox::bwrap::find().map_err(Error::Sandbox)?;
    let cwd = canonical("the working directory", &request.cwd)?;
    let variable = |name: &str| request.host_env.get(OsStr::new(name)).map(OsString::as_os_str);
    let home = home_of(variable("HOME"));
    let place = Place::from_env(variable("XDG_STATE_HOME"), Some(home.as_os_str())).ok();
    let (identity, identity_held) = identity(&cwd, &mut notes)?;
    let other = match identity {
        Identity::Other { uid, gid } => Some((uid, gid)),
        Identity::Caller => None,
    };
    let root = other.is_none() && geteuid().is_root();

    let run_base = dirs::base(variable("XDG_RUNTIME_DIR").map(Path::new).filter(|_| other.is_none()));
    let cache_base = cache_base(identity, variable("XDG_CACHE_HOME"), &home);
    let cache = cache_base
        .as_ref()
        .filter(|_| request.files.cache == Cache::Private)
        .map(|base| view::cache_dir(base, &cwd));
    if cache.is_none() && request.files.cache == Cache::Private {
        notes.push("the package cache is in memory and ends with the run: there is no place for it that the stage's uid can write".into());
    }

    let mut own: Vec<PathBuf> =
        place.iter().filter_map(|place| place.dir().parent().map(Path::to_path_buf)).collect();
    own.extend(cache_base.iter().map(|base| base.join("exeat")));
    own.push(home.join(".config/exeat"));
    own.push(run_base.clone());
    let env = environment::build(&request.host_env, &request.env, request.files.cache, &home);
    let facts = view::Facts {
        cwd: &cwd,
        home: &home,
        path: variable("PATH"),
        named: named_trees(&env),
        cache: cache.as_deref(),
        own: &own,
        root,
        other,
    };
    let built = view::build(&request.files, &facts)?;
    notes.extend(built.notes);
    if let AuditTo::File(record) = &request.audit {
        outside(record, &cwd, &built.writable)?;
    }
    if let (AuditTo::Default, Some(place)) = (&request.audit, &place) {
        outside(&place.dir().join("record"), &cwd, &built.writable)?;
    }

    Ok(Plan {
        command: request.command,
        policy: request.policy,
        bwrap,
        mounts: built.mounts,
        cwd: built.cwd,
        env,
        bridge: match request.bridge {
            Bridge::Handoff => BridgeKind::Handoff,
            Bridge::Relay => BridgeKind::Relay,
        },
        identity,
        sockets_exposed: built.sockets_exposed,
        missing: built.missing,
        enforcement: Enforcement {
            net: Held::Full,
            fs: built.held,
            syscalls: exeat_sandbox::enforce::syscalls(),
            identity: identity_held,
        },
        cache,
        run_base,
        audit: request.audit,
        place,
        stage: request.stage,
        labels: request.labels,
        timeout: request.timeout,
        notes,
    })
}

impl Plan {
    /// The effective policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Lines that the caller must see before the stage starts.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The sandbox, with the files of a run directory.
    pub(crate) fn spec(&self, socket: PathBuf, denials: PathBuf) -> SandboxSpec {
        let mut mounts = self.mounts.clone();
        mounts.push(Mount::ReadOnly { host: socket, at: SOCKET.into() });
        mounts.push(Mount::ReadOnly { host: denials, at: DENIALS.into() });
        SandboxSpec { mounts, bridge: self.bridge, identity: self.identity }
    }

    /// What a run would give to bubblewrap.
    fn argv(&self) -> Argv {
        let dir = self.run_base.join("exeat-XXXXXX");
        Argv::new(&self.spec(dir.join("proxy.sock"), dir.join("denials.jsonl")), FILTERS)
    }

    /// The plan for people.
    #[must_use]
    pub fn to_text(&self) -> String {
        let argv = self.argv();
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "command      {}", shown(&self.command));
        let _ = writeln!(out, "starts in    {}", self.cwd.display());
        let _ = writeln!(out, "bridge       {}", self.bridge.as_str());
        let Enforcement { net, fs, syscalls, identity } = &self.enforcement;
        for (aspect, held) in
            [("network", net), ("files", fs), ("syscalls", syscalls), ("identity", identity)]
        {
            let _ = writeln!(out, "{aspect:<12} {held}");
        }
        let _ = writeln!(out, "\nrules");
        if self.policy.is_empty() {
            let _ = writeln!(out, "  none: nothing is reachable");
        }
        for rule in self.policy.rules() {
            let verb = if rule.action == Action::Deny { "deny " } else { "allow" };
            let _ = writeln!(out, "  {verb}  {}  ({})", rule.text.trim_start_matches('!'), rule.origin);
        }
        let _ = writeln!(out, "\nenvironment");
        for name in self.env.keys() {
            let _ = writeln!(out, "  {}", name.display());
        }
        let _ = write!(out, "\nbubblewrap   {} mounts\n  {}", argv.mount_count(), self.bwrap.display());
        for word in &argv.options {
            let word = word.to_string();
            out.push_str(if word.starts_with("--") { " \\\n    " } else { " " });
            out.push_str(&word);
        }
        let _ = writeln!(out, " \\\n    -- {}", shown(&argv.command));
        out
    }

    /// The plan as one JSON object. Environment values are left out: they can hold secrets.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let argv = self.argv();
        let words = |list: &[OsString]| {
            list.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let Enforcement { net, fs, syscalls, identity } = &self.enforcement;
        let rules = self.policy.rules().iter().map(|rule| {
            let verdict = if rule.action == Action::Deny { "deny" } else { "allow" };
            json!({"rule": rule.text, "action": verdict, "rule_src": rule.origin.to_string()})
        });
        json!({
            "schema": 1,
            "command": words(&self.command),
            "cwd": self.cwd.to_string_lossy(),
            "bridge": self.bridge.as_str(),
            "stage": self.stage,
            "rules": rules.collect::<Vec<_>>(),
            "environment": words(&self.env.keys().cloned().collect::<Vec<_>>()),
            "enforcement": {
                "net": net.to_string(), "fs": fs.to_string(), "syscalls": syscalls.to_string(), "identity": identity.to_string(),
            },
            "bwrap": self.bwrap.to_string_lossy(),
            "options": argv.options.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "helper": words(&argv.command),
            "mounts": argv.mount_count(),
            "notes": self.notes,
        })
    }
}

/// Seccomp programs of a run, for the dry run: `seccomp::base` has this many.
const FILTERS: usize = 2;

fn shown(words: &[OsString]) -> String {
    let quote = |word: &OsString| {
        let text = word.to_string_lossy().into_owned();
        let safe = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
        if !text.is_empty() && text.chars().all(safe) {
            text
        } else {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

fn canonical(what: &'static str, path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize().map_err(|source| Error::Path { what, path: path.to_path_buf(), source })
}

/// HOME as the caller has it, or what the user database says, or `/`.
fn home_of(variable: Option<&OsStr>) -> PathBuf {
    let given = variable.map(PathBuf::from).filter(|path| path.is_absolute());
    let home = given
        .or_else(|| User::from_uid(geteuid()).ok().flatten().map(|user| user.dir))
        .unwrap_or_else(|| "/".into());
    home.canonicalize().unwrap_or(home)
}

/// Who the stage is to the kernel. Root does not run hostile code as root where it can be avoided: the owner of the working
/// directory is used, because the stage must write there.
fn identity(cwd: &Path, notes: &mut Vec<String>) -> Result<(Identity, Held), Error> {
    if !geteuid().is_root() {
        return Ok((Identity::Caller, Held::Full));
    }
    let meta = fs::metadata(cwd).map_err(|source| Error::Path {
        what: "the working directory",
        path: cwd.to_path_buf(),
        source,
    })?;
    let mapped = meta.uid() != exeat_contract::NOBODY;
    if meta.uid() != 0 && mapped {
        // The user's own group, not the directory's: that may be root's.
        let user = User::from_uid(Uid::from_raw(meta.uid())).ok().flatten();
        let gid = user.map_or(exeat_contract::NOBODY, |user| user.gid.as_raw());
        return Ok((Identity::Other { uid: meta.uid(), gid }, Held::Full));
    }
    let missing = "the stage keeps root's kernel uid: in its view, file permissions do not hold it back";
    notes.push(format!("{missing} (start exeat as an ordinary user, or in a directory that one owns)"));
    Ok((Identity::Caller, Held::Partial { missing: missing.into() }))
}

/// The user's cache directory; of the user that the stage becomes, when it becomes another one.
fn cache_base(identity: Identity, xdg: Option<&OsStr>, home: &Path) -> Option<PathBuf> {
    match identity {
        Identity::Caller => {
            let given = xdg.map(PathBuf::from).filter(|path| path.is_absolute());
            Some(given.unwrap_or_else(|| home.join(".cache")))
        }
        Identity::Other { uid, .. } => {
            let user = User::from_uid(Uid::from_raw(uid)).ok().flatten()?;
            let owned = fs::metadata(&user.dir).is_ok_and(|meta| meta.uid() == uid);
            owned.then(|| user.dir.join(".cache"))
        }
    }
}

/// What variables that are passed on point at.
fn named_trees(env: &BTreeMap<OsString, OsString>) -> Vec<PathBuf> {
    let names = lists::TOOLCHAIN_VARIABLES.iter().chain(lists::CERTIFICATES);
    names.filter_map(|name| env.get(OsStr::new(name))).map(PathBuf::from).collect()
}

/// The stage must not be able to write or replace its own record.
fn outside(record: &Path, cwd: &Path, writable: &[PathBuf]) -> Result<(), Error> {
    let absolute = cwd.join(record);
    // The file may not exist yet, and the directories above it neither.
    let mut parent = absolute.parent().unwrap_or(Path::new("/"));
    let resolved = loop {
        match (parent.canonicalize(), parent.parent()) {
            (Ok(resolved), _) => break resolved,
            (Err(_), Some(above)) => parent = above,
            (Err(_), None) => break PathBuf::from("/"),
        }
    };
    let device =
        ["/dev", "/proc"].iter().any(|place| absolute.as_os_str().as_bytes().starts_with(place.as_bytes()));
    match writable.iter().find(|tree| resolved.starts_with(tree)) {
        Some(tree) if !device => Err(Error::RecordInside { record: absolute, tree: tree.clone() }),
        _ => Ok(()),
    }
}
