//! Chooses the kernel user of a stage.
//!
//! Root avoids running hostile code as root. The stage becomes a user that no other process has, and its writable trees are mounted so
//! that it counts as their owner ([`Staged`]). It does not become an existing user such as nobody or the owner: a process of the same
//! user may look into the sandbox (ptrace(2), `/proc/PID/root`), where it would count as the owner without any filter. If no fresh user
//! is possible, the stage becomes the owner of the working directory, who gains nothing by it. If that is root, it keeps root's uid, and
//! a note says so.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use exeat_contract::NOBODY;
use exeat_files::fault::{FileFault, PathUse};
use exeat_files::names::future_path;
use exeat_files::permissions::{Ids, is_root_s_to_make};
use exeat_files::users::user_of;
use exeat_files::walk::{LinkRule, WalkError};
use exeat_sandbox::{Enforced, Identity};
use nix::unistd::{Uid, geteuid};

use crate::cache::Steps;
use crate::error::Error;
use crate::staged::Staged;
use crate::uids::{Own, has_all, with_group};

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
    pub(crate) fn other(&self) -> Option<Ids> {
        match self {
            Self::Caller | Self::Kept(_) => None,
            Self::Own(own) => Some(own.ids()),
            Self::Owner(ids, _) => Some(*ids),
        }
    }

    /// Returns the directory of caches, and the user who makes its contents if that is not the caller.
    pub(crate) fn cache_base(&self, xdg: Option<&OsStr>, home: &Path) -> (PathBuf, Option<Ids>) {
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
    pub(crate) fn cache(
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
