//! Chooses the kernel user of a stage, and builds the view of that user.
//!
//! Root avoids running hostile code as root. The stage becomes a user that no other process has, and its writable trees are mounted so
//! that it counts as their owner ([`Staged`]). It does not become an existing user such as nobody or the owner: a process of the same
//! user may look into the sandbox (ptrace(2), `/proc/PID/root`), where it would count as the owner without any filter. If no fresh user
//! is possible, the stage becomes the owner of the working directory, who gains nothing by it. If that is root, it keeps root's uid, and
//! a note says so.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use exeat_contract::NOBODY;
use exeat_files::fault::{FileFault, PathUse};
use exeat_files::layout::{Mount, Why};
use exeat_files::names::{future_path, is_absent};
use exeat_files::permissions::{Ids, is_root_s_to_make};
use exeat_files::quarantine::{self, Live};
use exeat_files::request::WorkDir;
use exeat_files::users::user_of;
use exeat_files::walk::{LinkRule, WalkError, cwd_by_name};
use exeat_record::place::RecordDir;
use exeat_sandbox::{Enforced, Identity, STAGE2_IMAGE};
use nix::unistd::{Uid, geteuid};

use crate::cache::{self, Steps};
use crate::dirs;
use crate::environment::{Environment, certificates, named_trees, stage_home};
use crate::error::Error;
use crate::request::Request;
use crate::signing::key_place;
use crate::staged::{MountSource, Staged, TreeFault};
use crate::uids::{Own, has_all, with_group};
use exeat_files::view;

/// The kernel user of a stage.
#[derive(Debug)]
pub(crate) enum StageUser {
    /// The caller, an ordinary user.
    Caller,
    /// A fresh user for this run, which root prefers.
    Own(Own),
    /// The owner of the working directory, with the reason.
    Owner(Ids, String),
    /// Root, with the reason.
    Kept(String),
}

impl StageUser {
    /// Returns the preferred user.
    ///
    /// # Errors
    /// Returns why no fresh user is available, as the end of a sentence.
    pub(crate) fn preferred() -> Result<Self, String> {
        if geteuid().is_root() { Own::take().map(Self::Own) } else { Ok(Self::Caller) }
    }

    /// Returns the user to use instead of a fresh one, for this reason. `dir` is where the stage starts or must write.
    pub(crate) fn fallback(why: String, dir: &Path) -> Result<Self, Error> {
        let meta = fs::metadata(dir).map_err(|source| FileFault::Path {
            what: PathUse::WorkingDirectory,
            path: dir.to_path_buf(),
            source,
        })?;
        let map = |name: &str| fs::read_to_string(name).unwrap_or_default();
        Ok(Self::owner(meta.uid(), &map("/proc/self/uid_map"), &map("/proc/self/gid_map"), why))
    }

    /// Returns the owner of a directory, in a user namespace with these maps (user_namespaces(7)).
    fn owner(uid: u32, map: &str, gids: &str, why: String) -> Self {
        // If the map has holes, nobody also stands for unmapped users.
        if uid == 0 || (uid == NOBODY && !has_all(map)) {
            return Self::Kept(why);
        }
        Self::Owner(with_group(uid, gids), why)
    }

    /// Returns the user for this directory, as far as it is known without a view.
    pub(crate) fn for_directory(dir: &Path) -> Result<Self, Error> {
        let first = Self::preferred().and_then(|who| match &who {
            Self::Own(own) => mounted_in(dir, own.ids()).map(|()| who),
            _ => Ok(who),
        });
        first.or_else(|why| Self::fallback(why, dir))
    }

    /// Returns the user for the sandbox, and whether it isolates fully.
    pub(crate) fn identity(&self) -> (Identity, Enforced) {
        let identity = match self.other() {
            Some((uid, gid)) => Identity::Other { uid, gid },
            None => Identity::Caller,
        };
        let held = match self {
            Self::Own(own) if !own.is_held() => Enforced::Partial {
                missing: "somebody holds the names of all uids that were tried, and another run may have the same uid".into(),
            },
            Self::Caller | Self::Own(_) => Enforced::Full,
            Self::Owner(_, why) => Enforced::Partial {
                missing: format!(
                    "the stage is the owner of the working directory, and no user of its own: {why}"
                ),
            },
            Self::Kept(why) => Enforced::Partial {
                missing: format!(
                    "the stage keeps root's kernel uid, and in its view file permissions do not hold it back: {why}"
                ),
            },
        };
        (identity, held)
    }

    /// Returns the change that would isolate fully.
    pub(crate) fn fix(&self) -> Option<&'static str> {
        match self {
            Self::Own(own) if !own.is_held() => Some(
                "end whoever holds `@exeat-uid-...` in /proc/net/unix, or give exeat a network namespace of its own",
            ),
            Self::Caller | Self::Own(_) => None,
            Self::Owner(..) => Some("start exeat as that user"),
            Self::Kept(_) => Some("start exeat as an ordinary user, or in a directory that one owns"),
        }
    }

    /// Returns the ids of the stage if they are not the caller's.
    fn other(&self) -> Option<Ids> {
        match self {
            Self::Caller | Self::Kept(_) => None,
            Self::Own(own) => Some(own.ids()),
            Self::Owner(ids, _) => Some(*ids),
        }
    }

    /// Returns the directory of caches, and the user who makes its contents if that is not the caller.
    fn cache_base(&self, xdg: Option<&OsStr>, home: &Path) -> (PathBuf, Option<Ids>) {
        if let Self::Owner(ids, _) = self {
            let user = user_of(Uid::from_raw(ids.0)).ok().flatten();
            let own = user.filter(|user| fs::metadata(&user.dir).is_ok_and(|meta| meta.uid() == ids.0));
            if let Some(user) = own {
                return (user.dir.join(".cache"), Some(*ids));
            }
        }
        let given = xdg.map(PathBuf::from).filter(|path| path.is_absolute());
        (given.unwrap_or_else(|| home.join(".cache")), None)
    }

    /// Returns the real path of the cache that this user can write, in its own trees if it has any.
    ///
    /// # Errors
    /// Returns the reason that there is none, as the end of a sentence.
    fn cache(
        &self,
        cache: PathBuf,
        maker: Option<Ids>,
        staged: Option<&mut Staged>,
        links: &LinkRule,
    ) -> Result<PathBuf, String> {
        let unusable = |error: io::Error| format!("`{}` cannot be used for it: {error}", cache.display());
        if let Err(error @ WalkError::Link { .. }) = links.walk_existing(&cache) {
            return Err(unusable(error.into()));
        }
        if let Some(dir) = anothers(&cache).filter(|_| maker.is_none() && !matches!(self, Self::Caller)) {
            return Err(format!(
                "`{}` is another user's, and what root makes there that user could not use; name a directory of root's by XDG_CACHE_HOME",
                dir.display()
            ));
        }
        match (self, staged) {
            (Self::Own(_), Some(staged)) => staged.cache(&cache).map_err(unusable),
            // What is mounted has no link in its path.
            (Self::Caller, _) => Ok(future_path(&cache)),
            (Self::Owner(..), _) if maker.is_some() => Ok(cache),
            // bubblewrap opens it by its path.
            (Self::Kept(_), _) => match Steps::toward(&cache) {
                Ok(steps) if is_root_s_to_make(steps.place()) => Ok(steps.end()),
                Ok(_) => {
                    Err(format!("another user than root could put something else at `{}`", cache.display()))
                }
                Err(error) => Err(unusable(error)),
            },
            _ => Err("there is no place for it that the stage's uid can write".into()),
        }
    }
}

/// Returns the innermost directory above a place that a user other than root owns.
fn anothers(place: &Path) -> Option<&Path> {
    place.ancestors().find(|above| fs::metadata(above).is_ok_and(|meta| meta.uid() != 0))
}

/// Checks that root's trees can be mounted for this user in this directory.
///
/// # Errors
/// Returns the reason, as the end of a sentence.
pub(crate) fn mounted_in(dir: &Path, ids: Ids) -> Result<(), String> {
    Staged::new(ids)?
        .check_mappable(dir)
        .map_err(|error| format!("the file system of the working directory does not take it: {error}"))
}

/// The input of a view, independent of the stage's user.
pub(crate) struct ViewInput<'a> {
    pub(crate) request: &'a Request,
    pub(crate) environment: &'a Environment,
    /// The working directory without links.
    pub(crate) cwd: &'a Path,
    pub(crate) home: &'a Path,
    /// The rule for links on paths.
    pub(crate) links: &'a LinkRule,
    /// The place of records.
    pub(crate) place: Option<&'a RecordDir>,
}

/// The view of one user.
pub(crate) struct UserView {
    pub(crate) built: view::Built,
    pub(crate) taken: Vec<Option<MountSource>>,
    pub(crate) staged: Option<Staged>,
    pub(crate) cache: Option<PathBuf>,
    pub(crate) cache_maker: Option<Ids>,
    /// The directory of all caches, if this run has none and hides it.
    pub(crate) hidden_caches: Option<PathBuf>,
    pub(crate) tmp: Option<PathBuf>,
    pub(crate) run_base: PathBuf,
    /// Lines for the caller.
    pub(crate) notes: Vec<String>,
}

impl ViewInput<'_> {
    /// Builds the view of this user.
    ///
    /// # Errors
    /// Returns [`TreeFault::Refused`] only if trees cannot be mounted for [`StageUser::Own`].
    pub(crate) fn view(&self, who: &StageUser) -> Result<UserView, TreeFault> {
        let Self { request, environment, cwd, home, links, place } = *self;
        let variable = |name: &str| request.host_env.get(OsStr::new(name)).map(OsString::as_os_str);
        let other = who.other();
        let mut notes = Vec::new();
        let mut staged = match who {
            // Other processes of the owner could look into trees that are mounted for it.
            StageUser::Caller | StageUser::Kept(_) | StageUser::Owner(..) => None,
            StageUser::Own(own) => Some(Staged::new(own.ids()).map_err(TreeFault::Refused)?),
        };
        let run_base = dirs::base(variable("XDG_RUNTIME_DIR").map(Path::new).filter(|_| other.is_none()));
        let (cache_base, cache_maker) = who.cache_base(variable("XDG_CACHE_HOME"), home);
        let cache = cache::cache_dir(&cache_base, cwd, request.files.cache);
        // If another user's home is HOME, root's state is beside its key.
        let key_place = key_place(place);
        let state = key_place.as_ref().map(RecordDir::state_dir);
        let mut live = Live::default();
        if let Some(state) = state {
            live.read(state);
        }
        let cache = (request.files.cache.is_on_disk())
            .then(|| {
                // A missing home directory is not created: `HOME` then names none, as for many users of services.
                if cache_base.parent() == Some(home) {
                    fs::metadata(home)
                        .map_err(|error| format!("`{}` cannot be used: {error}", home.display()))?;
                }
                let cache = who.cache(cache, cache_maker, staged.as_mut(), links)?;
                // That run knows its own places alone.
                if live.since(&cache).is_some() {
                    return Err(format!("the stage of another run can write to `{}`", cache.display()));
                }
                Ok(cache)
            })
            .transpose()
            .unwrap_or_else(|why| {
                notes.push(format!("the package cache is in memory and ends with the run: {why}"));
                None
            });
        // A limit of its size is enforced only in memory.
        let tmp = request.limits.tmpfs_size.is_none() && matches!(who, StageUser::Caller);
        let tmp = tmp.then(|| cache::tmp_dir(variable("TMPDIR").map(Path::new), links)).flatten();
        let tmp = tmp.filter(|dir| {
            let base = dir.parent().unwrap_or(dir);
            let why = if live.since(base).is_some() {
                // A run hides what its own TMPDIR names, and what it knows to be exeat's.
                "the stage of another run can write to"
            } else if fs::symlink_metadata(base).is_ok_and(|base| !base.is_dir()) {
                "TMPDIR has something that is not a directory at"
            } else {
                return true;
            };
            notes.push(format!("the stage's /tmp is in memory: {why} `{}`", base.display()));
            false
        });
        let mut own: Vec<PathBuf> =
            place.iter().filter_map(|place| place.dir().parent().map(Path::to_path_buf)).collect();
        own.extend(key_place.iter().filter_map(|place| place.dir().parent().map(Path::to_path_buf)));
        let caches = cache_base.join("exeat");
        own.push(caches.clone());
        let config = variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        own.extend(config.map(|config| config.join("exeat")));
        own.push(run_base.clone());
        // The key of this place is hidden even if another key signs this run, because it signs other runs.
        let binds = request.files.ro.iter().chain(&request.files.rw).map(|bind| bind.host.as_path());
        let near = cwd.ancestors().chain(binds).chain(match &request.files.work {
            Some(WorkDir::Host(dir)) => Some(dir.as_path()),
            _ => None,
        });
        let unseen: Vec<PathBuf> = request
            .signing
            .path(place)
            .into_iter()
            .chain(place.map(RecordDir::key_path))
            .map(|path| cwd.join(path))
            .chain(quarantine::directories(state, near))
            .collect();
        let home_of_stage = stage_home(request, home);
        let (named, asked) = named_trees(environment);
        let by_descriptor = staged.is_some();
        // A user for one run has no home.
        let owner = other.filter(|_| matches!(who, StageUser::Owner(..)));
        let home_words = variable("HOME").map(Path::new).filter(|home| home.is_absolute());
        let mut facts = view::Facts {
            cwd,
            cwd_link: variable("PWD").and_then(|pwd| untrusted_link(Path::new(pwd), cwd, links, &live)),
            home,
            home_words: home_words.unwrap_or(home),
            links,
            git: view::Everywhere::new(home, variable),
            owners: owner.map(|ids| ids.0).into_iter().chain([geteuid().as_raw()]).collect(),
            path: variable("PATH"),
            stage_home: &home_of_stage,
            nested: request.hardening.nested,
            named,
            asked,
            certificates: certificates(request, environment),
            cache: cache.as_deref(),
            caches: Some(&*caches).filter(|_| matches!(who, StageUser::Caller)),
            tmp_dir: tmp.as_deref(),
            own: &own,
            unseen: &unseen,
            shared: dirs::shared(),
            helper: STAGE2_IMAGE,
            live,
            root: geteuid().is_root(),
            other: other.map(|ids| view::Other { ids, by_descriptor }),
            tmp: request.limits.tmpfs_size,
        };
        let mut built = loop {
            let built =
                view::build(&request.files, &facts).map_err(|fault| TreeFault::Failed(fault.into()))?;
            let known = facts.owners.len();
            // The stage reads another user's trees that root shows as that user may.
            if facts.root {
                facts.owners.extend(view::owners(&built.mounts));
            }
            // A run that started in the meantime may have made them.
            let is_news = state.is_some_and(|state| facts.live.read(state));
            if facts.owners.len() == known && !is_news {
                break built;
            }
        };
        let mut taken = vec![None; built.mounts.len()];
        if let Some(staged) = &mut staged {
            let mut names = std::mem::take(&mut built.named);
            names.push((request.cwd.clone(), cwd.to_path_buf()));
            for (name, _) in &mut names {
                // The kernel resolves relative paths in the same way.
                *name = std::path::absolute(&*name).unwrap_or_else(|_| cwd.join(&*name));
            }
            staged.check_names(&names);
            let mounts = std::mem::take(&mut built.mounts);
            (built.mounts, taken) = staged.arrange(mounts, cwd, matches!(who, StageUser::Own(_)))?;
            notes.extend(staged.notes().iter().cloned());
        }
        notes.append(&mut built.notes);
        let is_hidden = |mount: &Mount| matches!(mount, Mount::Hidden { at, why: Why::Own, .. } if at.file_name() == caches.file_name());
        let hidden_caches =
            (cache.is_none() && built.mounts.iter().any(is_hidden)).then(|| future_path(&caches));
        Ok(UserView { built, taken, staged, cache, cache_maker, hidden_caches, tmp, run_base, notes })
    }
}

/// Returns the name through which a shell entered the working directory, with the end of that way, if a stage could have made a link there.
/// The link may be gone, or a directory again.
fn untrusted_link(pwd: &Path, cwd: &Path, links: &LinkRule, live: &Live) -> Option<(PathBuf, PathBuf)> {
    if !pwd.is_absolute() {
        return None;
    }
    if let Some(name) = cwd_by_name(pwd.as_os_str(), cwd) {
        return match links.walk(name) {
            Ok(end) if end.real == cwd => None,
            Err(WalkError::Link { link, end }) => Some((link, end)),
            // A live stage has exchanged the link since.
            _ => Some((pwd.to_path_buf(), cwd.to_path_buf())),
        };
    }
    let is_gone = fs::metadata(pwd).is_err_and(|error| is_absent(&error));
    let may_be_led = is_gone || live.may_have_led(pwd, cwd) || may_another_have_led(pwd, cwd);
    may_be_led.then(|| (pwd.to_path_buf(), cwd.to_path_buf()))
}

/// Returns whether somebody else than root, who is the caller, may have had a path lead to a directory outside of what is theirs.
fn may_another_have_led(pwd: &Path, cwd: &Path) -> bool {
    let above: Vec<&Path> = pwd.ancestors().collect();
    let is_others = |dir: &Path| {
        fs::symlink_metadata(dir)
            .is_ok_and(|meta| meta.uid() != 0 || meta.mode() & 0o022 != 0 && meta.mode() & 0o1000 == 0)
    };
    let top = above.into_iter().rev().find(|dir| is_others(dir));
    geteuid().is_root() && top.is_some_and(|top| !cwd.starts_with(top))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B10: the owner of a directory is used unless the number may stand for another user.
    #[test]
    fn b10_the_owner_of_a_directory_is_used_unless_the_number_is_ambiguous() {
        let whole = "0 0 4294967295\n";
        let owner = |uid, map| StageUser::owner(uid, map, map, "why".into());
        assert!(matches!(owner(NOBODY, whole), StageUser::Owner((NOBODY, _), _)));
        assert!(matches!(owner(NOBODY, "0 100000 65536\n"), StageUser::Kept(_)));
        assert!(matches!(owner(0, whole), StageUser::Kept(_)));
        assert!(matches!(owner(54_321, ""), StageUser::Owner((54_321, NOBODY), _)));
        assert!(matches!(owner(54_399, whole), StageUser::Owner((54_399, NOBODY), _)));
        assert!(matches!(owner(54_399, "0 0 60000\n"), StageUser::Owner((54_399, 54_399), _)));
    }

    /// B10: a stage that shares its uid is only partly isolated, and the report says why.
    #[test]
    fn b10_another_user_s_uid_holds_in_part() {
        for who in [StageUser::Owner((1, 1), "no such thing".into()), StageUser::Kept("no such thing".into())]
        {
            let Enforced::Partial { missing } = who.identity().1 else { panic!("{who:?}") };
            assert!(missing.ends_with(": no such thing") && who.fix().is_some(), "{missing}");
        }
        assert_eq!(StageUser::Caller.identity(), (Identity::Caller, Enforced::Full));
    }
}
