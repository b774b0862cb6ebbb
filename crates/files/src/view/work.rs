//! The working directory of a stage, and whether the stage may write to it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::layout::{Mount, Why};
use crate::names::{first_below, holds, is_same, true_name};
use crate::request::{Bind, Files, WORK};
use crate::walk::clean;
use exeat_policy::View;
use nix::unistd::Uid;

use super::{Builder, Facts, Original, PRIVATE, Rank, home_of, protected};
use crate::lists;

impl<'a> Builder<'a> {
    /// Whether anything of the working directory may be shown.
    pub(super) fn shows_cwd(&self) -> bool {
        let cwd = self.facts.cwd;
        // `/run` itself is where stage2 and the proxy's socket are put.
        let never = [Path::new("/"), Path::new("/run")].contains(&cwd)
            || lists::KERNEL.iter().any(|place| cwd.starts_with(place));
        self.kind != View::Minimal && self.files.work.is_none() && !never
    }

    /// The working directory's tree, if it is to be shown.
    pub(super) fn working_directory(&mut self) -> Option<Original> {
        let cwd = self.facts.cwd;
        if self.kind == View::Minimal || self.files.work.is_some() {
            return None;
        }
        let shown = cwd.display();
        if !self.shows_cwd() {
            let mut named = self.files.ro.iter().chain(&self.files.rw).map(|bind| clean(&bind.host));
            if !named.any(|host| host == *cwd) {
                self.notes.push(format!(
                    "the working directory `{shown}` is not shown to the stage: it has its own instead, and what it writes there is \
                     gone with it; start exeat in another directory, or name this one (--rw .)"
                ));
            }
            return None;
        }
        if let Some(why) = holds_home(self.facts, cwd).filter(|_| self.kind != View::Host) {
            let mut named = self.files.ro.iter().chain(&self.files.rw).map(|bind| clean(&bind.host));
            if !named.any(|host| host == *cwd) {
                self.notes.push(format!(
                    "the working directory `{shown}` is empty for the stage but for what flags name: {why}"
                ));
            }
            self.is_cwd_empty = true;
            return None;
        }
        if self.is_masked(cwd, None) {
            self.notes.push(format!(
                "the working directory `{shown}` is hidden from the stage: credentials, or files of exeat's, are kept there; \
                 --ro . shows it, and --rw . makes it writable"
            ));
            self.is_cwd_empty = true;
            return None;
        }
        let mut tree = Original::new(cwd.to_path_buf(), cwd.to_path_buf(), true, Why::WorkingDirectory);
        let why = unwritable(self.facts, &self.own, cwd);
        let is_wide = why.is_some();
        let obeyed = || {
            obeyed(self.files, cwd).map(|path| {
                format!(
                    "programs on the host obey what is in `{}`; start exeat above that, or give it --rw . if the stage is to write there",
                    path.display()
                )
            })
        };
        if let Some(why) = why.or_else(obeyed).or_else(|| by_habit(self.files, self.facts, cwd)) {
            self.notes.push(format!("the working directory `{shown}` is read-only for the stage: {why}"));
            tree = Original::new(cwd.to_path_buf(), cwd.to_path_buf(), false, Why::WorkingDirectory);
        }
        if is_wide {
            tree.rank = Rank::Wide;
        }
        Some(tree)
    }

    /// Returns the directory in which the stage starts: its work directory, or the working directory if it is shown. If a ceiling excludes
    /// that, an empty directory has its name, so that relative paths fail and lead nowhere else.
    pub(super) fn start(&mut self, is_cut: bool) -> PathBuf {
        let at = if self.files.work.is_some() { Path::new(WORK) } else { self.facts.cwd };
        // The stage starts in an empty directory of that name rather than elsewhere.
        let is_wanted = is_cut || self.files.work.is_some() || self.is_cwd_empty;
        let is_root = at == Path::new("/");
        let is_private = self.kind == View::Host && PRIVATE.iter().any(|place| at == Path::new(place));
        match self.beneath(at) {
            _ if is_root || is_private => at.to_path_buf(),
            Some((true, true)) => at.to_path_buf(),
            None if is_wanted => {
                self.open_way(at);
                self.mounts.push(Mount::Dir { at: at.to_path_buf() });
                at.to_path_buf()
            }
            _ => "/tmp".into(),
        }
    }
}

/// Whether a directory holds more than a toolchain: homes, other programs' files, or the kernel's.
pub(super) fn is_too_much(real: &Path, home: &Path) -> bool {
    const FOR_EVERYTHING: [&str; 8] = ["/home", "/media", "/mnt", "/run", "/srv", "/tmp", "/var", "/var/tmp"];
    home.starts_with(real)
        || FOR_EVERYTHING.iter().any(|dir| real == Path::new(dir))
        || real.parent() == Some(Path::new("/home"))
        || [".local", ".config"].iter().any(|name| real == home.join(name))
        || lists::KERNEL.iter().any(|place| real.starts_with(place))
}

/// Returns the reason that a working directory is read-only for a stage, if it is.
pub(super) fn unwritable(facts: &Facts<'_>, own: &[PathBuf], cwd: &Path) -> Option<String> {
    let within = |trees: &[&str]| trees.iter().any(|tree| cwd.starts_with(tree));
    let is = |what: &str| Some(what.to_owned());
    if let Some(why) = holds_home(facts, cwd) {
        Some(why)
    } else if within(lists::SYSTEM)
        || within(&["/nix", "/gnu"])
        || ["/var", "/boot"].map(Path::new).contains(&cwd)
    {
        is("it belongs to the system")
    } else if within(&["/run"])
        || ["/tmp", "/var/tmp"].map(Path::new).iter().any(|place| place.starts_with(cwd))
    {
        is("other programs' temporary files and sockets are in it")
    } else {
        let own = first_below(cwd, own.iter().map(PathBuf::as_path));
        own.map(|own| format!("exeat's own files are in it, at `{}`", own.display()))
    }
}

/// Returns the reason that a working directory is only shown if it is named: it is a home directory or contains some.
pub(super) fn holds_home(facts: &Facts<'_>, cwd: &Path) -> Option<String> {
    let why = if is_same(cwd, facts.home) {
        "it is the home directory"
    } else if holds(cwd, facts.home) {
        "the home directory lies in it"
    } else if is_home_of_owner(facts, cwd) {
        "it is its owner's home directory"
    } else if cwd == Path::new("/home") {
        "home directories lie in it"
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// Returns the reason that a working directory is read-only although it could be a project: programs or settings are in it, or a link
/// that a stage could have made leads there. `--rw` of it or of a directory above overrides the first two.
pub(super) fn by_habit(files: &Files, facts: &Facts<'_>, cwd: &Path) -> Option<String> {
    if let Some((link, _)) = &facts.cwd_link {
        return Some(format!(
            "the shell came here by `{}`, where a stage could have made a symbolic link; cd {} first",
            link.display(),
            cwd.display()
        ));
    }
    let is_named = |bind: &Bind| bind.guest == bind.host && cwd.starts_with(clean(&bind.host));
    if files.rw.iter().any(is_named) {
        return None;
    }
    let fix = "give it --rw . if the stage is to write there";
    if let Some(dir) = facts.links.kept_directory(cwd) {
        return Some(format!("programs of yours, or their settings, are kept in `{}`; {fix}", dir.display()));
    }
    let path = facts.path.map(std::env::split_paths).into_iter().flatten();
    let mut programs = path.filter(|dir| dir.is_absolute()).filter_map(|dir| true_name(&dir).ok());
    programs
        .find(|dir| cwd.starts_with(dir))
        .map(|dir| format!("`{}` is on PATH, and programs are started from there; {fix}", dir.display()))
}

/// Whether root starts a stage in somebody else's home directory. Where the user database does not answer, the line about that
/// user's credentials says so.
pub(super) fn is_home_of_owner(facts: &Facts<'_>, cwd: &Path) -> bool {
    let owner = facts.root.then(|| fs::metadata(cwd).ok()).flatten().map(|meta| Uid::from_raw(meta.uid()));
    let home = owner.and_then(|owner| home_of(owner).ok().flatten());
    home.is_some_and(|home| is_same(cwd, &home))
}

/// The protected path that the working directory is, or lies in, unless the caller has named that, or something in it, to be
/// writable.
pub(super) fn obeyed<'a>(files: &Files, cwd: &'a Path) -> Option<&'a Path> {
    let path = protected::around(cwd)?;
    let is_asked_for = |bind: &Bind| {
        let real = true_name(&bind.host).ok().filter(|_| bind.guest == bind.host);
        real.is_some_and(|real| cwd.starts_with(&real) && real.starts_with(path))
    };
    (!files.rw.iter().any(is_asked_for)).then_some(path)
}
