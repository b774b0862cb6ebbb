//! Merges the settings of policy files and effects that are not rules.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use exeat_files::fault::making_hint;
use exeat_files::protected::{self, LetThrough};
use exeat_files::request::{Bind, Bounds, Files, WorkDir};
use exeat_policy::file::{self, BindSpec, PathSpec, PolicyFile, SandboxSection, WrittenName};
use exeat_policy::{BackendName, Cache, EffectSet, Home, HostPort, Limits, OnExcess, View};

use crate::declaration::Declaration;
use crate::fault::{Fault, Position};
use crate::machine::Machine;
use crate::named::{INLINE, LoadedFile, differ, place_error};
use crate::request::{EnvRule, PolicyRequest};

/// The key of the back end, for messages.
const BACKEND: &str = "`sandbox.backend`";

/// The merged settings of policy files and effects that are not rules.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) stage: Option<String>,
    pub(crate) view: Option<View>,
    pub(crate) ro: Vec<Bind>,
    pub(crate) rw: Vec<Bind>,
    pub(crate) mask: Vec<PathBuf>,
    pub(crate) allow_write: Vec<LetThrough>,
    pub(crate) env: Vec<EnvRule>,
    pub(crate) limits: Limits,
    pub(crate) work: Option<WorkDir>,
    pub(crate) socks5: bool,
    pub(crate) cache: Option<Cache>,
    pub(crate) home: Option<Home>,
    pub(crate) sandbox: SandboxSection,
    pub(crate) audit_sync: bool,
    pub(crate) on_excess: Option<OnExcess>,
    pub(crate) host_ports: Vec<HostPort>,
    /// Host paths that are named to be shown.
    places: Vec<Place>,
    /// The file that set each value that only one file may set.
    by: Vec<(&'static str, String)>,
}

/// A host path that is named to be shown.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    /// The key or the effect, empty for a flag.
    key: &'static str,
    is_writable: bool,
    /// The file and the line, or the flag.
    file: String,
    line: Option<u32>,
}

pub(crate) fn bounds_of(ceiling: &LoadedFile, machine: &Machine) -> Result<Bounds, Fault> {
    let LoadedFile { file, base, shown, .. } = ceiling;
    let places = |binds: &Option<Vec<BindSpec>>, key: &str| {
        let Some(binds) = binds else { return Ok(None) };
        let placed = binds.iter().map(|bind| machine.place(&bind.host, base));
        placed
            .collect::<Result<Vec<_>, _>>()
            .map(Some)
            .map_err(|error| place_error(shown, None, &format!("fs.{key}"), error))
    };
    let mask = file.fs.mask.iter().map(|path| machine.place(path, base));
    Ok(Bounds {
        name: shown.clone(),
        view: file.fs.view,
        ro: places(&file.fs.ro, "ro")?,
        rw: places(&file.fs.rw, "rw")?,
        mask: mask
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| place_error(shown, None, "fs.mask", error))?,
        allow_write: file.fs.allow_write.as_ref().map(|names| names_to_write(names, shown)).transpose()?,
        env: file.env.pass.as_ref().map(|names| names.iter().map(Into::into).collect()),
    })
}

/// Calls [`agree`] for each value that is said.
macro_rules! agree_all {
    ($said:ident, $shown:ident, $($what:expr => $known:expr, $new:expr;)*) => {$(
        if let Some(new) = $new {
            agree(&mut $said.by, &mut $known, new, $shown, $what)?;
        }
    )*};
}

impl Settings {
    /// Returns the files that the stage sees and changes. A program that must not trust what the stage changed uses them.
    pub(crate) fn files(&self, bounds: &[Bounds]) -> Files {
        let work = self.work.iter().filter_map(|work| match work {
            WorkDir::Scratch => None,
            WorkDir::Host(path) => Some(Bind { host: path.clone(), guest: path.clone() }),
        });
        Files {
            view: self.view.unwrap_or_default(),
            ro: self.ro.clone(),
            rw: self.rw.iter().cloned().chain(work).collect(),
            mask: self.mask.clone(),
            bounds: bounds.to_vec(),
            ..Files::default()
        }
    }

    /// Returns what builds the sandbox, and the file that says so.
    pub(crate) fn backend(&self) -> Option<(BackendName, &str)> {
        let by = self.by.iter().find(|(about, _)| *about == BACKEND);
        Some((self.sandbox.backend?, by.map_or("", |(_, file)| file)))
    }

    /// Lists the sections that only a stage can use.
    pub(crate) fn stage_only(&self) -> Vec<&'static str> {
        let Self { view, ro, rw, mask, env, limits, socks5, host_ports, sandbox, .. } = self;
        let fs = view.is_some() || !(ro.is_empty() && rw.is_empty() && mask.is_empty());
        let limits = limits.set().any(|(limit, _)| !limit.is_of_proxy());
        let parts = [
            ("[network] socks5", *socks5),
            ("[network] host_port", !host_ports.is_empty()),
            ("[fs]", fs),
            ("[env]", !env.is_empty()),
            ("[limits]", limits),
            ("[sandbox]", *sandbox != SandboxSection::default()),
        ];
        parts.into_iter().filter(|(_, is_said)| *is_said).map(|(name, _)| name).collect()
    }

    /// Reports the paths that are named to be shown and do not exist. The runner checks too, one at a time and without file and line.
    pub(crate) fn missing(&self) -> Option<Fault> {
        let missing: Vec<&Place> = self.places.iter().filter(|place| is_missing(&place.path)).collect();
        let named = missing.iter().map(|place| {
            let Place { path, key, is_writable, file, line } = place;
            let key = if key.is_empty() { String::new() } else { format!(" (`{key}`)") };
            let how = if *is_writable { "writable" } else { "read-only" };
            Position::new(file, *line, format!("there is no `{}` to show {how}{key}", path.display()))
        });
        let failure = Fault::at_each(named.collect());
        let written: Vec<&PathBuf> =
            missing.iter().filter(|place| place.is_writable).map(|place| &place.path).collect();
        let make = making_hint(&written);
        let it = if missing.len() == 1 { "it" } else { "them" };
        let first = match (written.len(), missing.len()) {
            (_, 0) => return None,
            (0, 1) => "check the path".to_owned(),
            (0, _) => "check the paths".to_owned(),
            (made, all) if made == all => make,
            _ => format!("{make}; check what is read-only"),
        };
        Some(failure.hint(format!("{first}; or leave {it} out")))
    }

    /// Notes where flags and the declaration name paths. What a stage can do without is not missing.
    pub(crate) fn name_places(
        &mut self,
        args: &PolicyRequest,
        declaration: Option<&Declaration>,
        machine: &Machine,
    ) -> Result<(), Fault> {
        for (binds, file, is_writable) in [(&args.ro, "--ro", false), (&args.rw, "--rw", true)] {
            for bind in binds {
                let (path, file) = (bind.host.clone(), file.to_owned());
                self.places.push(Place { path, key: "", is_writable, file, line: None });
            }
        }
        let Some(declaration) = declaration.filter(|_| self.on_excess != Some(OnExcess::Narrow)) else {
            return Ok(());
        };
        let Declaration { set, shown, .. } = declaration;
        let read = set.fs_read().map(|path| (path, "FsRead", false));
        for (path, key, is_writable) in read.chain(set.fs_write().map(|path| (path, "FsWrite", true))) {
            let line = declaration.line(path);
            let path =
                machine.place(path, &machine.base).map_err(|error| place_error(shown, line, key, error))?;
            self.places.push(Place { path, key, is_writable, file: shown.clone(), line });
        }
        Ok(())
    }

    /// Grants the paths of effects as declared.
    pub(crate) fn show(&mut self, effects: &EffectSet, machine: &Machine) -> Result<(), Fault> {
        let is_narrow = self.on_excess == Some(OnExcess::Narrow);
        for (list, paths, tag) in [
            (&mut self.ro, effects.fs_read().collect::<Vec<_>>(), "FsRead"),
            (&mut self.rw, effects.fs_write().collect::<Vec<_>>(), "FsWrite"),
        ] {
            for path in paths {
                let path = machine
                    .place(path, &machine.base)
                    .map_err(|error| place_error(INLINE, None, tag, error))?;
                // The view names what it leaves out.
                if !(is_narrow && is_missing(&path)) {
                    list.push(Bind { host: path.clone(), guest: path });
                }
            }
        }
        Ok(())
    }

    pub(crate) fn add(
        &mut self,
        file: PolicyFile,
        base: &Path,
        shown: &str,
        machine: &Machine,
    ) -> Result<(), Fault> {
        if let Some(stage) = file.stage {
            agree(&mut self.by, &mut self.stage, stage, shown, "the stage's name")?;
        }
        if let Some(view) = file.fs.view {
            agree(&mut self.by, &mut self.view, view, shown, "the view")?;
        }
        for (list, binds, key) in [(&mut self.ro, file.fs.ro, "ro"), (&mut self.rw, file.fs.rw, "rw")] {
            for bind in binds.into_iter().flatten() {
                let line = bind.line;
                let bind = machine.place_bind(&bind, base);
                let bind = bind.map_err(|error| place_error(shown, line, &format!("fs.{key}"), error))?;
                let (path, file, is_writable) = (bind.host.clone(), shown.to_owned(), key == "rw");
                self.places.push(Place { path, key, is_writable, file, line });
                list.push(bind);
            }
        }
        for path in &file.fs.mask {
            let path = machine.place(path, base);
            self.mask.push(path.map_err(|error| place_error(shown, None, "fs.mask", error))?);
        }
        if let Some(work) = file.work {
            let work = match work {
                file::WorkDir::Scratch => WorkDir::Scratch,
                file::WorkDir::Host(path) => WorkDir::Host(
                    machine
                        .place(&path, base)
                        .map_err(|error| place_error(shown, None, "work_host", error))?,
                ),
            };
            agree(&mut self.by, &mut self.work, work, shown, "where the stage works")?;
        }
        let names = file.fs.allow_write.unwrap_or_default();
        self.allow_write.extend(names_to_write(&names, shown)?);
        self.socks5 |= file.socks5 == Some(true);
        self.audit_sync |= file.audit_sync == Some(true);
        self.set_agreed((file.fs.cache, file.fs.home), file.effects.on_excess, file.sandbox, shown)?;
        self.host_ports.extend(file.host_ports.iter().map(|(port, _)| port));
        self.env.extend(file.env.pass.into_iter().flatten().map(|name| EnvRule::Pass(name.into())));
        for (name, value) in file.env.set {
            let value = match value.parse::<PathSpec>() {
                Ok(path @ PathSpec::Home(_)) => machine
                    .place(&path, base)
                    .map_err(|error| place_error(shown, None, &format!("env.set.{name}"), error))?
                    .into_os_string(),
                _ => value.into(),
            };
            self.env.push(EnvRule::Set(name.into(), value));
        }
        // Grants of several policies add up; limits each apply.
        self.limits = self.limits.min(file.limits);
        Ok(())
    }

    /// Sets values that two files must agree about.
    fn set_agreed(
        &mut self,
        (cache, home): (Option<Cache>, Option<Home>),
        on_excess: Option<OnExcess>,
        sandbox: SandboxSection,
        shown: &str,
    ) -> Result<(), Fault> {
        agree_all! { self, shown,
            "`fs.cache`" => self.cache, cache;
            "`fs.home`" => self.home, home;
            "`effects.on_excess`" => self.on_excess, on_excess;
            "`sandbox.bridge`" => self.sandbox.bridge, sandbox.bridge;
            "`sandbox.loopback`" => self.sandbox.loopback, sandbox.loopback;
            "`sandbox.unix_sockets`" => self.sandbox.unix_sockets, sandbox.unix_sockets;
            "`sandbox.transparent`" => self.sandbox.transparent, sandbox.transparent;
            "`sandbox.debuggable`" => self.sandbox.debuggable, sandbox.debuggable;
            "`sandbox.tty`" => self.sandbox.tty, sandbox.tty;
            "`sandbox.nested`" => self.sandbox.nested, sandbox.nested;
            BACKEND => self.sandbox.backend, sandbox.backend;
        }
        Ok(())
    }
}

/// Whether nothing exists at a path.
fn is_missing(path: &Path) -> bool {
    let absent = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    fs::metadata(path).is_err_and(|error| absent.contains(&error.kind()))
}

/// Sets a value. Two files may set the same value; where they differ, only the user knows which one is meant.
fn agree<T: PartialEq>(
    by: &mut Vec<(&'static str, String)>,
    known: &mut Option<T>,
    new: T,
    shown: &str,
    what: &'static str,
) -> Result<(), Fault> {
    if known.as_ref().is_some_and(|known| *known != new) {
        let first = by.iter().find(|(about, _)| *about == what).map_or("", |(_, file)| file);
        return Err(differ(first, shown, what));
    }
    *known = Some(new);
    by.push((what, shown.to_owned()));
    Ok(())
}

/// Parses the protected names that stay writable. `from` is the file or the flag.
///
/// # Errors
/// Returns a fault with every name that is none.
pub fn names_to_write(names: &[WrittenName], from: &str) -> Result<Vec<LetThrough>, Fault> {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for WrittenName { name, line } in names {
        match name.parse::<LetThrough>() {
            Ok(name) => good.push(name),
            Err(error) => {
                let shown = exeat_record::escape(name.as_bytes(), 256);
                let key = if from == "--allow-write" { "" } else { "fs.allow_write: " };
                let place = Position::new(from, *line, format!("{key}`{shown}`: {error}"));
                bad.push(Position { meant: meant_to_write(name).map(str::to_owned), ..place });
            }
        }
    }
    if bad.is_empty() {
        return Ok(good);
    }
    let is_clear = bad.iter().all(|place| place.meant.is_some());
    let fault = Fault::at_each(bad);
    let list = "docs/files.md lists the protected names; .vscode is one, .claude/commands lies in one";
    Err(if is_clear { fault } else { fault.hint(list) })
}

/// Returns the protected name that is closest to another one.
fn meant_to_write(name: &str) -> Option<&'static str> {
    let known = || protected::names().map(|(name, _)| name);
    let lies_in = |known: &&str| known.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
    known().find(lies_in).or_else(|| exeat_policy::file::nearest(name, known()))
}
