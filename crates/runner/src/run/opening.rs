//! Prepares a run up to the point at which its sandbox can start: directories, the watch on protected names, the record.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use exeat_files::quarantine::{Journal, StateOfRun, Survey, Watch};
use exeat_files::stubs::Stub;
use exeat_record::RunId;

use super::outcome::end_dirs;
use super::protected::{hold_stubs, journal, state_of_run};
use super::record::{OpenRecord, open_log};
use super::streams::{Flags, Streams};
use crate::cache::UsedCache;
use crate::error::Error;
use crate::plan::Plan;

/// What a run holds while its sandbox exists.
pub(super) struct Opened {
    pub(super) state_of_run: StateOfRun,
    pub(super) dirs: UsedDirs,
    pub(super) watches: Arc<[Watch]>,
    pub(super) flags: Option<Flags>,
    pub(super) journal: Option<Journal>,
    /// The lock of the journal, for the thread that waits for the sandbox.
    pub(super) held: Option<OwnedFd>,
    pub(super) survey: Survey,
    pub(super) stubs: Vec<Stub>,
    pub(super) record: OpenRecord,
    /// Lines on what could not be prepared.
    pub(super) notes: Vec<String>,
    /// Lines on names that could not be held.
    pub(super) not_made: Vec<String>,
}

impl Opened {
    /// Makes, watches and opens what the plan needs. The record has no line yet.
    pub(super) fn open(
        plan: &Plan,
        run: RunId,
        mut dirs: UsedDirs,
        streams: &Streams,
    ) -> Result<Self, Error> {
        let prepare = |what| move |source| Error::Prepare { what, source };
        let state_of_run = state_of_run(plan, run);
        dirs.hide(plan, &state_of_run);
        let watches = Watch::start_all(plan.watched.iter().cloned(), &state_of_run);
        let watches: Arc<[Watch]> = watches.map_err(prepare("the watch on protected names"))?.into();
        let flags = streams.own.then(|| Flags::save(&streams.fds)).transpose();
        let flags = flags.map_err(prepare("the flags of the standard streams"))?;
        let (journal, no_journal) = journal(&state_of_run, &watches);
        let survey = Survey::start(Arc::clone(&watches));
        if let Some(why) = no_journal.clone().filter(|_| plan.is_full_required) {
            return Err(Error::NotHeld(why));
        }
        // This is the last step that can fail without a line in the record.
        let record = match open_log(plan, run) {
            Ok(record) => record,
            Err(error) => {
                journal.into_iter().for_each(Journal::remove);
                return Err(error);
            }
        };
        let held = journal.as_ref().map(Journal::keep_locked).transpose();
        let held = held.map_err(prepare("the journal of what is watched"))?;
        let (stubs, not_made) = hold_stubs(plan, &state_of_run);
        let notes = dirs.take_notes().chain(no_journal).collect();
        Ok(Self { state_of_run, dirs, watches, flags, journal, held, survey, stubs, record, notes, not_made })
    }
}

/// The directories on disk that a run uses besides its trees.
pub(super) struct UsedDirs {
    cache: Option<UsedCache>,
    tmp: Option<UsedCache>,
    /// The reason that the cache cannot be used, or not hidden.
    no_cache: Option<String>,
    /// The same about the stage's `/tmp`.
    no_tmp: Option<String>,
}

impl UsedDirs {
    /// Makes the package cache and the stage's `/tmp`, if the plan has them on disk.
    pub(super) fn make(plan: &mut Plan) -> Self {
        let or_line =
            |made: Result<_, String>| made.map_or_else(|line| (None, Some(line)), |used| (used, None));
        let (cache, no_cache) = or_line(plan.make_cache());
        let (tmp, no_tmp) = or_line(plan.make_tmp());
        Self { cache, tmp, no_cache, no_tmp }
    }

    /// Notes their places, which the view of every run hides.
    fn hide(&mut self, plan: &Plan, state_of_run: &StateOfRun) {
        let hide = |dir: Option<&Path>| dir.map_or(Ok(()), |dir| state_of_run.hide(dir)).err();
        let base = plan.tmp.as_deref().and_then(Path::parent).filter(|_| self.tmp.is_some());
        self.no_tmp = self.no_tmp.take().or_else(|| {
            hide(base).map(|error| format!("other runs may see the files in the stage's /tmp: {error}"))
        });
        // Every run hides the usual place.
        let caches = plan.cache.as_deref().and_then(Path::parent).filter(|_| self.cache.is_some());
        let caches = caches.filter(|caches| !caches.ends_with(".cache/exeat"));
        self.no_cache = self
            .no_cache
            .take()
            .or_else(|| hide(caches).map(|error| format!("other runs may see the package cache: {error}")));
    }

    fn take_notes(&mut self) -> impl Iterator<Item = String> + use<> {
        self.no_cache.take().into_iter().chain(self.no_tmp.take())
    }

    /// Ends their use. Returns a line for each that is left.
    pub(super) fn end(self, plan: &Plan) -> Vec<String> {
        end_dirs(plan, self.cache, self.tmp)
    }
}
