//! Who a stage is to the kernel, and what of the host's trees that leaves it: the view of that user.
//!
//! Root does not run hostile code as root where it can be avoided. The stage becomes a user that nobody else is, and the trees
//! that it must write are mounted so that it is taken for their owner ([`Staged`]). It is no user that others are, such as
//! nobody or the owner: a process of the same user may look into the sandbox (ptrace(2), `/proc/PID/root`), where it would be
//! taken for the owner as well, and no filter holds it. Where that cannot be had, the stage becomes the owner of the working
//! directory, who gains nothing by it, and where that is root, it keeps root's uid, and that is said.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
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
    /// Root's choice: a user of this run's own.
    Own(Ids),
    /// Who owns the working directory.
    Owner(Ids),
    /// Root, for this reason.
    Kept(String),
}

impl Who {
    /// Who a stage is to be.
    pub(crate) fn first() -> Self {
        match geteuid().is_root().then(unused) {
            None => Self::Caller,
            Some(Some(ids)) => Self::Own(ids),
            Some(None) => Self::Kept("the users of this container have no uid to spare".into()),
        }
    }

    /// Who it is instead where root's trees cannot be mounted for it, for this reason; it starts in this directory, or has to
    /// write it.
    pub(crate) fn instead(why: String, dir: &Path) -> Result<Self, Error> {
        let meta = fs::metadata(dir).map_err(|source| Error::Path {
            what: "the working directory",
            path: dir.to_path_buf(),
            source,
        })?;
        // In a container nobody may also stand for a user that it does not have.
        if meta.uid() == 0 || meta.uid() == NOBODY {
            return Ok(Self::Kept(why));
        }
        // The user's own group, not the directory's: that may be root's.
        let user = User::from_uid(Uid::from_raw(meta.uid())).ok().flatten();
        Ok(Self::Owner((meta.uid(), user.map_or(NOBODY, |user| user.gid.as_raw()))))
    }

    /// Who it is in this directory, as far as can be told without a view.
    pub(crate) fn here(dir: &Path) -> Result<Self, Error> {
        match Self::first() {
            Self::Own(ids) => match mounted_in(dir, ids) {
                Ok(()) => Ok(Self::Own(ids)),
                Err(why) => Self::instead(why, dir),
            },
            other => Ok(other),
        }
    }

    /// The same for the sandbox, and whether it holds.
    pub(crate) fn identity(&self) -> (Identity, Held) {
        match self {
            Self::Caller => (Identity::Caller, Held::Full),
            Self::Own((uid, gid)) | Self::Owner((uid, gid)) => {
                (Identity::Other { uid: *uid, gid: *gid }, Held::Full)
            }
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
            Self::Own(ids) | Self::Owner(ids) => Some(*ids),
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

/// Uids of which systemd says that nothing uses them ("Users, Groups, UIDs and GIDs on systemd systems"): between those of
/// containers and the end of what is a positive number everywhere.
const UNUSED: std::ops::RangeInclusive<u32> = 1_879_048_192..=2_147_483_646;
/// Those for services that have a user for as long as they run, in a container that has no others.
const PASSING: std::ops::RangeInclusive<u32> = 61_184..=65_519;

/// Whether a uid is one of those that a run has for itself: the number says nothing then.
pub(crate) fn is_own(uid: u32) -> bool {
    UNUSED.contains(&uid) || PASSING.contains(&uid)
}

/// A user that nobody else is: two runs at the same time have different ones.
pub(crate) fn unused() -> Option<Ids> {
    /// Numbers that are tried: in the smaller range somebody may have one.
    const TRIES: usize = 16;
    let known = |name: &str| fs::read_to_string(format!("/proc/self/{name}_map")).unwrap_or_default();
    let (uids, gids) = (known("uid"), known("gid"));
    let range = [UNUSED, PASSING]
        .into_iter()
        .find(|range| [&uids, &gids].iter().all(|map| has(map, *range.start()) && has(map, *range.end())))?;
    (0..TRIES).find_map(|_| {
        let id = range.start() + random()? % (range.end() - range.start() + 1);
        let is_taken = PASSING.contains(&id) && User::from_uid(Uid::from_raw(id)).ok().flatten().is_some();
        (!is_taken).then_some((id, id))
    })
}

/// Whether a user namespace with this map (user_namespaces(7)) has an id.
fn has(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut words = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        let (first, count) = (words.next(), words.nth(1));
        first
            .zip(count)
            .is_some_and(|(first, count)| (first..first.saturating_add(count)).contains(&id.into()))
    })
}

fn random() -> Option<u32> {
    let mut bytes = [0; 4];
    fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).ok()?;
    Some(u32::from_ne_bytes(bytes))
}

/// Whether root's trees can be mounted for this user, in this directory.
///
/// # Errors
/// Why not, as the end of a sentence.
pub(crate) fn mounted_in(dir: &Path, ids: Ids) -> Result<(), String> {
    Staged::new(ids)?
        .takes(dir)
        .map_err(|error| format!("the file system of the working directory does not take it: {error}"))
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
    /// [`Fault::Refused`] where trees cannot be mounted for [`Who::Own`], and only for that.
    pub(crate) fn view(&self, who: &Who) -> Result<Seen, Fault> {
        let Self { request, environment, cwd, home, place } = *self;
        let variable = |name: &str| request.host_env.get(OsStr::new(name)).map(OsString::as_os_str);
        let other = who.other();
        let mut notes = Vec::new();
        let mut staged = match who {
            // Other processes of the owner's could look into what is mounted for it.
            Who::Caller | Who::Kept(_) | Who::Owner(_) => None,
            Who::Own(ids) => Some(Staged::new(*ids).map_err(Fault::Refused)?),
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
        // Nobody has a home who is a user for this run alone.
        let owner = other.filter(|_| matches!(who, Who::Owner(_)));
        let mut facts = view::Facts {
            cwd,
            home,
            owners: owner.map(|ids| ids.0).into_iter().chain([geteuid().as_raw()]).collect(),
            path: variable("PATH"),
            stage_home: &home_of_stage,
            named,
            asked,
            certificates: certificates(request, environment),
            cache: cache.as_deref(),
            own: &own,
            root: geteuid().is_root(),
            other: other.map(|ids| view::Other { ids, by_descriptor }),
            tmp: request.limits.tmpfs_size,
        };
        let mut built = loop {
            let built = view::build(&request.files, &facts).map_err(Fault::Failed)?;
            let known = facts.owners.len();
            // What root shows of somebody's the stage reads as that user may.
            facts.owners.extend(view::owners(&built.mounts).filter(|_| facts.root));
            if facts.owners.len() == known {
                break built;
            }
        };
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
            (built.mounts, taken) = staged.arrange(mounts, cwd, matches!(who, Who::Own(_)))?;
            notes.extend(staged.notes().iter().cloned());
        }
        notes.append(&mut built.notes);
        Ok(Seen { built, taken, staged, cache, cache_maker, run_base, notes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b10_a_run_has_a_user_of_its_own() {
        let whole = "         0          0 4294967295\n";
        assert!(has(whole, *UNUSED.start()) && has(whole, *UNUSED.end()));
        let container = "0 100000 65536\n";
        assert!(
            !has(container, *UNUSED.start()) && has(container, *PASSING.end()) && !has("0 1000 1\n", 61_184)
        );
        assert!(!has("", 0) && !has("x y z", 0));
        let (one, other) = (unused().unwrap(), unused().unwrap());
        assert!(is_own(one.0) && is_own(other.0) && one != other, "{one:?} {other:?}");
    }
}
