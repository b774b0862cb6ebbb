//! Collects what determines the file view of a stage, and builds the view for its user.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use exeat_files::layout::{Mount, Why};
use exeat_files::names::{future_path, is_absent};
use exeat_files::permissions::Ids;
use exeat_files::quarantine::{self, Live};
use exeat_files::request::WorkDir;
use exeat_files::view;
use exeat_files::walk::{LinkRule, WalkError, cwd_by_name};
use exeat_record::place::RecordDir;
use exeat_sandbox::STAGE2_IMAGE;
use nix::unistd::geteuid;

use crate::environment::{Environment, certificates, named_trees, stage_home};
use crate::identity::StageUser;
use crate::request::Request;
use crate::signing::key_place;
use crate::staged::{MountSource, Staged, TreeFault};
use crate::{cache, dirs};

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
            // A run hides what its own TMPDIR names, and what it knows to be exeat's.
            let is_hidden = live.since(base).is_none();
            if !is_hidden {
                let base = base.display();
                notes.push(format!(
                    "the stage's /tmp is in memory: the stage of another run can write to `{base}`"
                ));
            }
            is_hidden
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
