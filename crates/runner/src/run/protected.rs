//! Handles the protected names of one run: holds them, moves aside what the stage made, and writes lines about them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use exeat_compose::Calls;
use exeat_files::layout::Mount;
use exeat_files::protected::let_through;
use exeat_files::quarantine::{
    Interrupted, Journal, Leftover, Leftovers, Live, QUARANTINE, Settlement, StateOfRun, Watch, WatchList,
    finish_until, settle_interrupted,
};
use exeat_files::request::{Files, WorkDir};
use exeat_files::stubs::Stub;
use exeat_record::{RunId, RunNote, What};
use exeat_sandbox::{Lease, has_writer, take_fd};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::cover::{Before, SavedFile};
use crate::plan::Plan;
use crate::remedy;
use crate::request::Request;
use crate::signals::Signals;
use crate::signing::{key_place, state_place};
use exeat_files::permissions::is_callers;

pub(super) fn quarantine_note(Leftover { path, moved }: &Leftover) -> RunNote {
    let path = path.display();
    let (what, words) = match moved {
        Ok(_) => (What::Quarantined, path.to_string()),
        // The reason comes first because a record cuts long texts at their end.
        Err(error) => (What::NotQuarantined, format!("{error}: {path}")),
    };
    let mut note = RunNote::new(what);
    note.error = Some(words);
    note
}

/// Holds the missing names of git, and those that a stub of another run holds. Returns a line for each that cannot be held: there, the
/// end of the run moves aside what a stage made.
pub(super) fn hold_stubs(plan: &Plan, state_of_run: &StateOfRun) -> (Vec<Stub>, Vec<String>) {
    let missing = plan.watched.iter().flat_map(|it| it.names.iter().map(|name| it.tree.join(&name.name)));
    let missing = missing.filter(|path| Stub::can_hold(path));
    let there = plan.mounts.iter().filter_map(|mount| match mount {
        Mount::ReadOnly { host, .. } => Some(host.clone()),
        _ => None,
    });
    let there: BTreeSet<PathBuf> = there.collect();
    let mut stubs = Vec::new();
    let mut lines: Vec<String> = linked_elsewhere(plan, &there).into_iter().collect();
    let names: BTreeSet<_> = missing.chain(there.into_iter().filter(|path| Stub::can_hold(path))).collect();
    if state_of_run.dir.is_none() {
        // Without a state directory nobody would recognize them as exeat's, and they would be moved as made by the stage.
        let mut names = names.iter().filter(|name| name.parent().is_some_and(Path::is_dir));
        lines.extend(names.next().map(|name| {
            format!(
                "`{}` and its like are not held, as there is no state directory of your own: what the stage makes there is moved",
                exeat_record::escape(name.as_os_str().as_bytes(), 1024)
            )
        }));
        return (stubs, lines);
    }
    for name in &names {
        match Stub::hold(name, state_of_run) {
            Ok(stub) => stubs.extend(stub),
            // A stage cannot create a name that the caller cannot create.
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied
                    && name.parent().is_some_and(|dir| is_callers(dir) == Some(false)) => {}
            Err(error) => lines.push(format!(
                "`{}` could not be held ({error}): what the stage makes there is moved at its end",
                exeat_record::escape(name.as_os_str().as_bytes(), 1024)
            )),
        }
    }
    (stubs, lines)
}

/// Returns a line on protected files with a second name in a writable tree: only the protected name is read-only.
fn linked_elsewhere(plan: &Plan, names: &BTreeSet<PathBuf>) -> Option<String> {
    let is_linked = |name: &&PathBuf| {
        plan.watched.iter().any(|list| name.starts_with(&list.tree))
            && std::fs::symlink_metadata(name).is_ok_and(|meta| meta.is_file() && meta.nlink() > 1)
    };
    let mut linked = names.iter().filter(is_linked);
    let first = linked.next()?;
    let others = match linked.count() {
        0 => String::new(),
        others => format!(", and {others} more protected files"),
    };
    let first = exeat_record::escape(first.as_os_str().as_bytes(), 1024);
    Some(format!(
        "`{first}`{others}: the file has more than one name (a hard link), and the stage may write to it through another one. \
         Make it one of its own: copy it, and rename the copy over it"
    ))
}

/// Returns the writable tree that contains a path, and the path below it.
fn place_of(plan: &Plan, path: &Path) -> Option<(PathBuf, String)> {
    let mut trees = plan.watched.iter().map(|list| list.tree.as_path());
    let tree = trees.rfind(|tree| path.starts_with(tree)).or_else(|| path.parent())?;
    Some((tree.to_path_buf(), path.strip_prefix(tree).ok()?.to_str()?.to_owned()))
}

/// Watches files of the host that replaced covered ones, so that the end of the run looks at them, too.
pub(super) fn watch_remade<'a>(
    plan: &Plan,
    state_of_run: &StateOfRun,
    paths: impl Iterator<Item = &'a PathBuf>,
) -> Vec<Watch> {
    let watch = |path: &PathBuf| {
        let (tree, name) = place_of(plan, path)?;
        let list = WatchList { tree, removed: vec![name], ..WatchList::default() };
        Watch::start(list, state_of_run.clone()).ok()
    };
    paths.filter_map(watch).collect()
}

/// Returns the run with its state directory: what its stage makes under protected names is listed there.
pub(super) fn state_of_run(plan: &Plan, run: RunId) -> StateOfRun {
    // A directory that other users can write is not used.
    let place = key_place(plan.place.as_ref()).filter(|place| place.prepare().is_ok());
    StateOfRun { run: run.to_string(), dir: place.map(|place| place.state_dir().to_path_buf()) }
}

/// Files of the host that the end of a run puts back.
#[derive(Default)]
pub(super) struct PutBack {
    /// What they replaced.
    moved: Vec<Leftover>,
    lines: Vec<String>,
    /// Those that could not be put in place of what has the name. That is moved first.
    rest: Vec<(PathBuf, SavedFile)>,
    leases: Vec<Lease>,
}

impl PutBack {
    /// Replaces what may be the stage's by the saved files.
    pub(super) fn replace(doubtful: Vec<(PathBuf, SavedFile)>, watches: &[Watch]) -> Self {
        let mut all = Self::default();
        for (path, saved) in doubtful {
            let path_shown = exeat_record::escape(path.as_os_str().as_bytes(), 1024);
            let as_before = "what it said when it was covered last";
            all.lines.push(match saved.put_back(&path, watches) {
                Ok(Before::Same) => format!("`{path_shown}` says {as_before}: another run has put it back"),
                Ok(Before::Missing) => format!("`{path_shown}` was missing, and says again {as_before}"),
                Ok(Before::Replaced(moved, lease)) => {
                    all.moved.push(moved);
                    all.leases.push(lease);
                    format!("`{path_shown}` says again {as_before}: what came since may be the stage's")
                }
                Err(why) => {
                    tracing::debug!(path = %path_shown, %why, "not put back in one step");
                    all.rest.push((path, saved));
                    continue;
                }
            });
        }
        all
    }

    /// Returns the names that must be moved before [`PutBack::end`].
    pub(super) fn unmoved(&self) -> impl Iterator<Item = &PathBuf> {
        self.rest.iter().map(|(path, _)| path)
    }

    /// Writes the rest. Adds what was moved, and returns a line about each file.
    pub(super) fn end(self, found: &mut Leftovers) -> Vec<String> {
        self.moved.into_iter().for_each(|moved| found.add(moved));
        let rest = self.rest.iter().map(|(path, saved)| write_back(path, saved));
        self.lines.into_iter().chain(rest).collect()
    }
}

/// Writes a file of the host back after its replacement was moved. Returns a line about it.
fn write_back(path: &Path, saved: &SavedFile) -> String {
    let path_shown = exeat_record::escape(path.as_os_str().as_bytes(), 1024);
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        _ => return format!("`{path_shown}` may be the stage's: look at it before you use it"),
    }
    match saved.write(path) {
        Ok(()) => format!(
            "`{path_shown}` says again what it said when it was covered last: what came since may be the stage's"
        ),
        Err(error) => format!("`{path_shown}` could not be written again as it was: {error}"),
    }
}

/// Stores what is watched, for the next start if this process is killed, and for runs that start in the meantime. Returns a line if that
/// fails.
pub(super) fn journal(state_of_run: &StateOfRun, watches: &[Watch]) -> (Option<Journal>, Option<String>) {
    let written = match &state_of_run.dir {
        _ if watches.is_empty() => return (None, None),
        Some(state) => Journal::write(state, &state_of_run.run, watches),
        None => Err(io::Error::other("there is no state directory of your own")),
    };
    match written {
        Ok(journal) => (Some(journal), None),
        Err(error) => {
            let line = format!(
                "if exeat is killed, the names that the stage made stay in their places: \
                 what is watched cannot be written down ({error})"
            );
            (None, Some(line))
        }
    }
}

/// The longest time that a start spends on killed runs in other trees than its own.
const SETTLING: Duration = Duration::from_secs(2);

/// Moves aside what the stage has made under protected names.
pub(super) fn move_aside<'a>(
    watches: impl IntoIterator<Item = &'a Watch>,
    is_over: &dyn Fn() -> bool,
) -> Leftovers {
    finish_until(watches, has_writer, is_over)
}

/// The operations of this crate that composing a policy calls.
pub const CALLS: Calls = Calls { take_fd, read_runs };

/// Adds the runs that are not settled.
fn read_runs(host_env: &BTreeMap<OsString, OsString>, runs: &mut Live) {
    if let Some(place) = key_place(state_place(host_env).ok().as_ref()) {
        runs.read(place.state_dir());
    }
}

/// Settles runs that were killed, those in these trees in any case. Call it before the policy is composed, which reads files that their
/// stages may have left.
#[must_use]
pub fn settle_killed(host_env: &BTreeMap<OsString, OsString>, trees: &[&Path]) -> Settlement {
    let place = state_place(host_env).ok();
    let Some(place) = key_place(place.as_ref()).filter(|place| place.prepare().is_ok()) else {
        return Settlement::default();
    };
    let until = Instant::now() + SETTLING;
    settle_interrupted(place.state_dir(), trees, has_writer, &|| Instant::now() > until)
}

/// Settles what is left of killed runs in the trees of a request besides its working directory. Call it before planning: the plan would
/// take what their stages left for the caller's.
pub fn settle_killed_of(request: &Request, settled: &mut Settlement) {
    let Files { rw, declared, work, .. } = &request.files;
    let work = work.iter().filter_map(|work| match work {
        WorkDir::Host(dir) => Some(dir),
        WorkDir::Scratch => None,
    });
    let declared = declared.iter().flat_map(|declared| &declared.write);
    let trees = rw.iter().map(|bind| &bind.host).chain(work).chain(declared);
    let trees: Vec<PathBuf> = trees.filter_map(|tree| tree.canonicalize().ok()).collect();
    let trees: Vec<&Path> = trees.iter().map(PathBuf::as_path).collect();
    if trees.is_empty() || settled.waiting == 0 {
        return;
    }
    let Settlement { runs, waiting } = settle_killed(&request.host_env, &trees);
    settled.runs.extend(runs);
    settled.waiting = waiting;
}

/// Returns the lines about killed runs that were settled before a start that did not come.
pub fn settled_lines(settled: Settlement) -> Vec<String> {
    let mut found = Leftovers::default();
    let mut lines = settlement_lines(settled, &mut found);
    lines.extend(quarantine_lines(&found));
    lines.extend(quarantine_more_lines(&found));
    lines
}

/// The line for a search that a signal ended.
pub(super) const CUT: &str =
    "a signal ended the search for what the stage has left: the next start goes on with it";

/// Searches in its own thread for what the stage left, so that a signal can end the search. A signal in the first second counts as a
/// repetition of the one that ended the stage.
pub(super) async fn look_until_signal(
    signals: Option<Signals>,
    look: impl Fn(&dyn Fn() -> bool) -> Leftovers + Send + Sync + 'static,
) -> Leftovers {
    const FIRST: Duration = Duration::from_secs(1);
    let Some(mut signals) = signals else { return look(&|| false) };
    let (began, look, is_over) = (Instant::now(), Arc::new(look), Arc::new(AtomicBool::new(false)));
    let (done, mut found) = oneshot::channel();
    let there = (Arc::clone(&look), Arc::clone(&is_over));
    let body = move || drop(done.send(there.0(&|| there.1.load(Ordering::Relaxed))));
    if thread::Builder::new().name("look".into()).spawn(body).is_err() {
        return look(&|| false);
    }
    loop {
        tokio::select! {
            found = &mut found => return found.unwrap_or_else(|_| look(&|| false)),
            _ = signals.next() => is_over.store(began.elapsed() > FIRST, Ordering::Relaxed),
        }
    }
}

/// Adds the leftovers of killed runs, and returns a line for each run.
pub(super) fn settlement_lines(interrupted: Settlement, found: &mut Leftovers) -> Vec<String> {
    let mut lines = Vec::new();
    if interrupted.waiting > 0 {
        lines.push(format!(
            "what {} killed runs left in other directories is not all moved aside yet: the next start goes on with it",
            interrupted.waiting
        ));
    }
    for Interrupted { run, found: left, passed } in interrupted.runs {
        if !left.is_empty() {
            lines.push(format!(
                "the run {run} was killed before its end: what its stage had left was moved aside now"
            ));
        }
        lines.extend(passed.into_iter().map(|why| {
            format!(
                "the run {run} was killed before its end, and what its stage has left is not known: {why}"
            )
        }));
        found.extend(left);
    }
    lines
}

/// Returns the lines about names that have one. A name that was moved several times has one line.
pub(super) fn quarantine_lines(found: &Leftovers) -> impl Iterator<Item = String> {
    let mut lines: Vec<(&Leftover, u64)> = Vec::new();
    for it in &found.named {
        let is_same = |other: &Leftover| it.moved.is_ok() && other.moved.is_ok() && other.path == it.path;
        match lines.iter_mut().find(|(other, _)| is_same(other)) {
            Some((_, times)) => *times += 1,
            None => lines.push((it, 1)),
        }
    }
    lines.into_iter().map(|(found, times)| match times {
        1 => quarantine_line(found),
        2 => format!("{} (1 more time)", quarantine_line(found)),
        _ => format!("{} ({} more times)", quarantine_line(found), times - 1),
    })
}

fn quarantine_line(found: &Leftover) -> String {
    let path = exeat_record::escape(found.path.as_os_str().as_bytes(), 1024);
    let why = "the stage may have made it, and something on the host could run or obey it";
    let kept = let_through(&found.path)
        .map(|name| format!("; --allow-write {name} leaves it in place"))
        .unwrap_or_default();
    match &found.moved {
        Ok(new) => {
            let new = exeat_record::escape(new.as_os_str().as_bytes(), 1024);
            format!("`{path}` was moved to `{new}`: {why}{kept}")
        }
        // exeat's own errors need no addition.
        Err(error) if error.get_ref().is_some() => format!("`{path}` is left where it is: {error}"),
        Err(error) => format!(
            "`{path}` could not be moved aside ({error}): if the stage made it, something on the host could run or obey it"
        ),
    }
}

/// Returns notes that count the names without their own note.
pub(super) fn quarantine_more_notes(found: &Leftovers) -> impl Iterator<Item = RunNote> {
    let more = [(What::Quarantined, found.more_moved), (What::NotQuarantined, found.more_left)];
    more.into_iter().filter(|(_, count)| *count > 0).map(|(what, count)| {
        let mut note = RunNote::new(what);
        note.count = Some(count);
        note.error = Some("as many more, which have no note of their own".into());
        note
    })
}

/// Returns lines that count the names without their own line, and lines on what the caller can do.
pub(super) fn quarantine_more_lines(found: &Leftovers) -> impl Iterator<Item = String> {
    let moved = (found.more_moved > 0).then(|| {
        format!(
            "{} more were moved aside, which the stage made as well: look into `{QUARANTINE}`",
            found.more_moved
        )
    });
    let unlisted = found.unlisted.as_ref().map(|why| {
        format!(
            "`exeat state list` does not know all that was moved aside, because it could not be listed: {why}"
        )
    });
    let left = (found.more_left > 0).then(|| {
        format!(
            "{} more are left where they are, or could not be moved aside: something on the host could run or obey them",
            found.more_left
        )
    });
    let closed = found.closed.first().map(|dir| {
        let dir = exeat_record::escape(dir.as_os_str().as_bytes(), 1024);
        let more = found.closed.len() as u64 - 1 + found.more_closed;
        let more = if more > 0 { format!(" and {more} more directories") } else { String::new() };
        format!("`{dir}`{more} let other users write since the start of the run, and no longer: protected names are in there")
    });
    moved.into_iter().chain(left).chain(unlisted).chain(closed).chain(remedy::moved_lines(&found.named))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use nix::sys::signal::{Signal, raise};

    use super::*;

    #[test]
    fn counts_the_moves_of_one_name() {
        for (moves, said) in [(1, "leaves it in place"), (2, " (1 more time)"), (3, " (2 more times)")] {
            let moved = || Leftover { path: "/a/.envrc".into(), moved: Ok("/a/q/.envrc".into()) };
            let found = Leftovers { named: (0..moves).map(|_| moved()).collect(), ..Leftovers::default() };
            let lines: Vec<_> = quarantine_lines(&found).collect();
            assert!(lines.len() == 1 && lines[0].ends_with(said), "{lines:?}");
        }
    }

    /// The signal repeats; the first one counts as a repetition of the one that ended the stage.
    #[test]
    fn l18_a_signal_ends_the_search_for_leftovers() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let signals = Signals::listen(&[Signal::SIGUSR2]).unwrap();
            let (over, asked) = channel::<()>();
            let sender = thread::spawn(move || {
                while asked.recv_timeout(Duration::from_millis(50)) == Err(RecvTimeoutError::Timeout) {
                    raise(Signal::SIGUSR2).unwrap();
                }
            });
            let look = |is_over: &dyn Fn() -> bool| {
                while !is_over() {
                    thread::sleep(Duration::from_millis(5));
                }
                Leftovers { is_cut: true, ..Leftovers::default() }
            };
            let began = Instant::now();
            assert!(look_until_signal(Some(signals), look).await.is_cut);
            assert!(began.elapsed() > Duration::from_secs(1));
            drop(over);
            sender.join().unwrap();
            let signals = Signals::listen(&[Signal::SIGUSR2]).unwrap();
            assert!(!look_until_signal(Some(signals), |_| Leftovers::default()).await.is_cut);
        });
    }
}
