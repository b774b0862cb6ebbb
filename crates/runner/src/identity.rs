//! Who a stage is to the kernel, and what of the host's trees that leaves it: the view of that user.
//!
//! Root does not run hostile code as root where it can be avoided. The owner of the working directory is used, because the
//! stage must write there. Where root owns that, the stage becomes nobody, and root's trees are mounted for it ([`Staged`]).

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use exeat_audit::place::Place;
use exeat_contract::NOBODY;
use exeat_sandbox::{Held, Identity};
use nix::unistd::{Uid, User, geteuid};

use crate::dirs;
use crate::environment::Environment;
use crate::error::Error;
use crate::names::true_name;
use crate::plan::{certificates, named_trees, stage_home, to_be};
use crate::request::{Cache, Request};
use crate::staged::{Fault, Ids, Staged, Taken};
use crate::view;

/// Who a stage is to the kernel.
#[derive(Debug)]
pub(crate) enum Who {
    /// The caller, who is an ordinary user.
    Caller,
    /// Root's choice: who owns the working directory.
    Owner(Ids),
    /// Nobody, for root in a directory of its own.
    Nobody,
    /// Root, for this reason.
    Kept(String),
}

impl Who {
    /// Who a stage is to be that starts in, or has to write, this directory.
    pub(crate) fn of(dir: &Path) -> Result<Self, Error> {
        if !geteuid().is_root() {
            return Ok(Self::Caller);
        }
        let meta = fs::metadata(dir).map_err(|source| Error::Path {
            what: "the working directory",
            path: dir.to_path_buf(),
            source,
        })?;
        // In a container nobody may also stand for a user that it does not have.
        if meta.uid() == 0 || meta.uid() == NOBODY {
            return Ok(Self::Nobody);
        }
        // The user's own group, not the directory's: that may be root's.
        let user = User::from_uid(Uid::from_raw(meta.uid())).ok().flatten();
        Ok(Self::Owner((meta.uid(), user.map_or(NOBODY, |user| user.gid.as_raw()))))
    }

    /// The same for the sandbox, and whether it holds.
    pub(crate) fn identity(&self) -> (Identity, Held) {
        match self {
            Self::Caller => (Identity::Caller, Held::Full),
            Self::Owner((uid, gid)) => (Identity::Other { uid: *uid, gid: *gid }, Held::Full),
            Self::Nobody => (Identity::Other { uid: NOBODY, gid: NOBODY }, Held::Full),
            Self::Kept(why) => {
                let missing = format!(
                    "the stage keeps root's kernel uid, and in its view file permissions do not hold it back: {why}"
                );
                (Identity::Caller, Held::Partial { missing })
            }
        }
    }

    /// The user that it becomes.
    fn other(&self) -> Option<Ids> {
        match self {
            Self::Caller | Self::Kept(_) => None,
            Self::Owner(ids) => Some(*ids),
            Self::Nobody => Some((NOBODY, NOBODY)),
        }
    }

    /// The directory of caches, and who makes what is in it, where that is not the caller.
    fn cache_base(&self, xdg: Option<&OsStr>, home: &Path) -> (PathBuf, Option<Ids>) {
        if let Self::Owner(ids) = self {
            let user = User::from_uid(Uid::from_raw(ids.0)).ok().flatten();
            let own = user.filter(|user| fs::metadata(&user.dir).is_ok_and(|meta| meta.uid() == ids.0));
            if let Some(user) = own {
                return (user.dir.join(".cache"), Some(*ids));
            }
        }
        let given = xdg.map(PathBuf::from).filter(|path| path.is_absolute());
        (given.unwrap_or_else(|| home.join(".cache")), None)
    }
}

/// What a view is made from, whoever the stage is.
pub(crate) struct Base<'a> {
    pub(crate) request: &'a Request,
    pub(crate) environment: &'a Environment,
    /// The working directory, without links.
    pub(crate) cwd: &'a Path,
    pub(crate) home: &'a Path,
    /// Where records are kept.
    pub(crate) place: Option<&'a Place>,
}

/// What one user sees.
pub(crate) struct Seen {
    pub(crate) built: view::Built,
    pub(crate) taken: Vec<Option<Taken>>,
    pub(crate) staged: Option<Staged>,
    pub(crate) cache: Option<PathBuf>,
    pub(crate) cache_maker: Option<Ids>,
    pub(crate) run_base: PathBuf,
    /// Lines for the caller.
    pub(crate) notes: Vec<String>,
}

impl Base<'_> {
    /// The view of this user.
    ///
    /// # Errors
    /// [`Fault::Refused`] where root's trees cannot be mounted for [`Who::Nobody`], and only for that.
    pub(crate) fn view(&self, who: &Who) -> Result<Seen, Fault> {
        let Self { request, environment, cwd, home, place } = *self;
        let variable = |name: &str| request.host_env.get(OsStr::new(name)).map(OsString::as_os_str);
        let other = who.other();
        let mut notes = Vec::new();
        let mut staged = match who {
            Who::Caller | Who::Kept(_) => None,
            Who::Owner(ids) => Staged::new(*ids).ok(),
            Who::Nobody => Some(Staged::new((NOBODY, NOBODY)).map_err(Fault::Refused)?),
        };
        let run_base = dirs::base(variable("XDG_RUNTIME_DIR").map(Path::new).filter(|_| other.is_none()));
        let (cache_base, cache_maker) = who.cache_base(variable("XDG_CACHE_HOME"), home);
        let cache = Some(view::cache_dir(&cache_base, cwd)).filter(|cache| {
            request.files.cache == Cache::Private
                && match &mut staged {
                    _ if other.is_none() || cache_maker.is_some() => true,
                    Some(staged) => staged.cache(cache).is_ok(),
                    None => false,
                }
        });
        if cache.is_none() && request.files.cache == Cache::Private {
            notes.push("the package cache is in memory and ends with the run: there is no place for it that the stage's uid can write".into());
        }
        let mut own: Vec<PathBuf> =
            place.iter().filter_map(|place| place.dir().parent().map(Path::to_path_buf)).collect();
        own.push(cache_base.join("exeat"));
        let config = variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        own.extend(config.iter().chain([&home.join(".config")]).map(|config| config.join("exeat")));
        own.push(run_base.clone());
        // Where they are, not how they are named: they are compared with the working directory, which has no links.
        let own: Vec<PathBuf> =
            own.iter().map(|path| true_name(path).unwrap_or_else(|_| to_be(path))).collect();
        let home_of_stage = stage_home(request);
        let (named, asked) = named_trees(environment);
        let by_descriptor = staged.is_some();
        let facts = view::Facts {
            cwd,
            home,
            path: variable("PATH"),
            stage_home: &home_of_stage,
            named,
            asked,
            certificates: certificates(request, environment),
            cache: cache.as_deref(),
            own: &own,
            root: matches!(who, Who::Kept(_)),
            other: other.map(|ids| view::Other { ids, by_descriptor }),
            tmp: request.limits.tmpfs_size,
        };
        let mut built = view::build(&request.files, &facts).map_err(Fault::Failed)?;
        let mut taken = vec![None; built.mounts.len()];
        if let Some(staged) = &mut staged {
            let mut names = std::mem::take(&mut built.named);
            names.push((request.cwd.clone(), cwd.to_path_buf()));
            for (name, _) in &mut names {
                // As the kernel takes a relative one.
                *name = std::path::absolute(&*name).unwrap_or_else(|_| cwd.join(&*name));
            }
            staged.named(&names);
            let mounts = std::mem::take(&mut built.mounts);
            (built.mounts, taken) = staged.arrange(mounts, cwd, matches!(who, Who::Nobody))?;
            notes.extend(staged.notes().iter().cloned());
        }
        notes.append(&mut built.notes);
        Ok(Seen { built, taken, staged, cache, cache_maker, run_base, notes })
    }
}
