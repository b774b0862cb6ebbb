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

impl<'a> ViewInput<'a> {
    /// Builds the view of this user.
    ///
    /// # Errors
    /// Returns [`TreeFault::Refused`] only if trees cannot be mounted for [`StageUser::Own`].
    pub(crate) fn view(&self, who: &StageUser) -> Result<UserView, TreeFault> {
        let Self { request, environment, cwd, home, links, .. } = *self;
        let other = who.other();
        let mut staged = match who {
            // Other processes of the owner could look into trees that are mounted for it.
            StageUser::Caller | StageUser::Kept(_) | StageUser::Owner(..) => None,
            StageUser::Own(own) => Some(Staged::new(own.ids()).map_err(TreeFault::Refused)?),
        };
        // If another user's home is HOME, root's state is beside its key.
        let key_place = key_place(self.place);
        let state = key_place.as_ref().map(RecordDir::state_dir);
        let mut live = Live::default();
        if let Some(state) = state {
            live.read(state);
        }
        let dirs = self.dirs_on_disk(who, staged.as_mut(), &live);
        let own = self.own_dirs(key_place.as_ref(), &dirs);
        let unseen = self.unseen(state);
        let home_of_stage = stage_home(request, home);
        let (named, asked) = named_trees(environment);
        let by_descriptor = staged.is_some();
        // A user for one run has no home.
        let owner = other.filter(|_| matches!(who, StageUser::Owner(..)));
        let home_words = self.variable("HOME").map(Path::new).filter(|home| home.is_absolute());
        let pwd = self.variable("PWD").map(Path::new);
        let facts = view::Facts {
            cwd,
            cwd_link: pwd.and_then(|pwd| untrusted_link(pwd, cwd, links, &live)),
            home,
            home_words: home_words.unwrap_or(home),
            links,
            git: view::Everywhere::new(home, |name| self.variable(name)),
            owners: owner.map(|ids| ids.0).into_iter().chain([geteuid().as_raw()]).collect(),
            path: self.variable("PATH"),
            stage_home: &home_of_stage,
            nested: request.hardening.nested,
            named,
            asked,
            certificates: certificates(request, environment),
            cache: dirs.cache.as_deref(),
            caches: Some(&*dirs.caches).filter(|_| matches!(who, StageUser::Caller)),
            tmp_dir: dirs.tmp.as_deref(),
            own: &own,
            unseen: &unseen,
            shared: dirs::shared(),
            helper: STAGE2_IMAGE,
            live,
            root: geteuid().is_root(),
            other: other.map(|ids| view::Other { ids, by_descriptor }),
            tmp: request.limits.tmpfs_size,
        };
        let mut built = self.build(facts, state)?;
        let DirsOnDisk { run_base, caches, cache, cache_maker, tmp, mut notes } = dirs;
        let taken = match &mut staged {
            Some(staged) => {
                let taken = self.arrange(staged, &mut built, who)?;
                notes.extend(staged.notes().iter().cloned());
                taken
            }
            None => vec![None; built.mounts.len()],
        };
        notes.append(&mut built.notes);
        let is_hidden = |mount: &Mount| matches!(mount, Mount::Hidden { at, why: Why::Own, .. } if at.file_name() == caches.file_name());
        let hidden_caches =
            (cache.is_none() && built.mounts.iter().any(is_hidden)).then(|| future_path(&caches));
        Ok(UserView { built, taken, staged, cache, cache_maker, hidden_caches, tmp, run_base, notes })
    }

    /// Returns a variable of the caller.
    fn variable(&self, name: &str) -> Option<&'a OsStr> {
        self.request.host_env.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// Chooses the directories on disk that the run makes for this user. A stage of another run must not be able to write there.
    fn dirs_on_disk(&self, who: &StageUser, staged: Option<&mut Staged>, live: &Live) -> DirsOnDisk {
        let Self { request, cwd, home, links, .. } = *self;
        let mut notes = Vec::new();
        let is_same_user = who.other().is_none();
        let run_base = dirs::base(self.variable("XDG_RUNTIME_DIR").map(Path::new).filter(|_| is_same_user));
        let (cache_base, cache_maker) = who.cache_base(self.variable("XDG_CACHE_HOME"), home);
        let cache = cache::cache_dir(&cache_base, cwd, request.files.cache);
        let cache = (request.files.cache.is_on_disk())
            .then(|| {
                // A missing home directory is not created: `HOME` then names none, as for many users of services.
                if cache_base.parent() == Some(home) {
                    fs::metadata(home)
                        .map_err(|error| format!("`{}` cannot be used: {error}", home.display()))?;
                }
                let cache = who.cache(cache, cache_maker, staged, links)?;
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
        let tmp = tmp.then(|| cache::tmp_dir(self.variable("TMPDIR").map(Path::new), links)).flatten();
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
        DirsOnDisk { run_base, caches: cache_base.join("exeat"), cache, cache_maker, tmp, notes }
    }

    /// Returns the directories of exeat's own.
    fn own_dirs(&self, key_place: Option<&RecordDir>, dirs: &DirsOnDisk) -> Vec<PathBuf> {
        let above = |place: &RecordDir| place.dir().parent().map(Path::to_path_buf);
        let mut own: Vec<PathBuf> = self.place.into_iter().chain(key_place).filter_map(above).collect();
        own.push(dirs.caches.clone());
        let config = self.variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        own.extend(config.map(|config| config.join("exeat")));
        own.push(dirs.run_base.clone());
        own
    }

    /// Returns the keys and the quarantines that no stage sees. `state`: the state directory.
    fn unseen(&self, state: Option<&Path>) -> Vec<PathBuf> {
        let Self { request, cwd, place, .. } = *self;
        let binds = request.files.ro.iter().chain(&request.files.rw).map(|bind| bind.host.as_path());
        let near = cwd.ancestors().chain(binds).chain(match &request.files.work {
            Some(WorkDir::Host(dir)) => Some(dir.as_path()),
            _ => None,
        });
        // The key of this place is hidden even if another key signs this run, because it signs other runs.
        request
            .signing
            .path(place)
            .into_iter()
            .chain(place.map(RecordDir::key_path))
            .map(|path| cwd.join(path))
            .chain(quarantine::directories(state, near))
            .collect()
    }

    /// Builds the view, and builds it anew as long as that shows more owners of files, or other runs have started.
    fn build(&self, mut facts: view::Facts<'_>, state: Option<&Path>) -> Result<view::Built, TreeFault> {
        loop {
            let built =
                view::build(&self.request.files, &facts).map_err(|fault| TreeFault::Failed(fault.into()))?;
            let known = facts.owners.len();
            // The stage reads another user's trees that root shows as that user may.
            if facts.root {
                facts.owners.extend(view::owners(&built.mounts));
            }
            // A run that started in the meantime may have made them.
            let is_news = state.is_some_and(|state| facts.live.read(state));
            if facts.owners.len() == known && !is_news {
                return Ok(built);
            }
        }
    }

    /// Has the mounts come from trees that are mounted for the stage's user. Returns their sources.
    fn arrange(
        &self,
        staged: &mut Staged,
        built: &mut view::Built,
        who: &StageUser,
    ) -> Result<Vec<Option<MountSource>>, TreeFault> {
        let mut names = std::mem::take(&mut built.named);
        names.push((self.request.cwd.clone(), self.cwd.to_path_buf()));
        for (name, _) in &mut names {
            // The kernel resolves relative paths in the same way.
            *name = std::path::absolute(&*name).unwrap_or_else(|_| self.cwd.join(&*name));
        }
        staged.check_names(&names);
        let mounts = std::mem::take(&mut built.mounts);
        let (mounts, taken) = staged.arrange(mounts, self.cwd, matches!(who, StageUser::Own(_)))?;
        built.mounts = mounts;
        Ok(taken)
    }
}

/// The directories on disk that a run makes.
struct DirsOnDisk {
    /// The directory in which the run directory is made.
    run_base: PathBuf,
    /// The directory of all caches.
    caches: PathBuf,
    cache: Option<PathBuf>,
    /// The user who makes the cache, if it is not the caller.
    cache_maker: Option<Ids>,
    tmp: Option<PathBuf>,
    /// Lines on those that are in memory instead.
    notes: Vec<String>,
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
