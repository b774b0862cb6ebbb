//! `exeat state`: handles what runs have set aside, with `exeat-files`, and their private caches, with `exeat-runner`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use exeat_audit::{Moment, table};
use exeat_compose::Machine;
use exeat_files::quarantine::{self, Item, Kind, SetAside, Standing, Trust, UnsettledRun};
use exeat_policy::printable;
use exeat_runner::{PrivateCache, PrivateCaches};
use serde_json::{Value, json};

use super::audit::place_of;
use crate::args::state::{RestoreArgs, StateListArgs, StatePruneArgs, TrustArgs};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::stdio;

/// The maximal number of listed entries per run, because the stage chose how many there are.
const NAMED: usize = 100;

/// The contents of the state directory.
struct State {
    dir: PathBuf,
    machine: Machine,
    /// Runs that go on, or were killed and are not settled.
    open: Vec<UnsettledRun>,
    runs: Vec<SetAside>,
}

impl State {
    fn read() -> Result<Self, Failure> {
        let machine = crate::request::here()?;
        let dir = place_of(&machine)?.state_dir().to_path_buf();
        // First, so that a run that ends meanwhile is skipped. One that starts meanwhile has another name.
        let open = quarantine::unsettled_runs(&dir);
        let mut runs = quarantine::set_aside(&dir);
        runs.iter_mut().flat_map(|aside| &mut aside.items).for_each(|(item, standing)| {
            if let Standing::Away(_) = standing
                && is_removed(item)
            {
                *standing = Standing::Gone;
            }
        });
        Ok(Self { dir, machine, open, runs })
    }

    fn open(&self, run: &str) -> Option<&UnsettledRun> {
        self.open.iter().find(|open| open.run == run)
    }

    /// Resolves a typed path. Follows the links before its last name, as far as they may be followed.
    fn place(&self, path: &Path) -> Result<PathBuf, Failure> {
        let (whole, links) = (self.machine.absolute(path), self.machine.links());
        // A path that ends with `..` has no last name to keep.
        let has_name = whole.file_name().is_some();
        let place = if has_name { links.place(&whole) } else { links.walk(&whole).map(|end| end.real) };
        match place {
            Ok(place) => Ok(place),
            // The directory above may have been set aside as well.
            Err(error) if error.is_absent() => Ok(whole),
            Err(error) => Err(Failure::input(format!("cannot use `{}`", path.display())).because(error)),
        }
    }

    /// Returns the private caches, if there are any.
    fn caches(&self) -> Result<Option<(PrivateCaches, Vec<PrivateCache>)>, Failure> {
        let path = self.machine.caches();
        let failed = |error: io::Error| {
            Failure::could(format!("cannot read the private caches in `{}`", path.display())).because(error)
        };
        let real = match self.machine.links().walk(&path) {
            Ok(end) => end.real,
            Err(error) if error.is_absent() => return Ok(None),
            Err(error) => return Err(failed(error.into())),
        };
        let caches = PrivateCaches::open(&real).map_err(failed)?;
        let list = caches.list().map_err(failed)?;
        Ok(Some((caches, list)))
    }
}

/// Returns whether the tree of an entry is there without a quarantine: exeat removed that when it was empty, or the user did.
fn is_removed(item: &Item) -> bool {
    let is_absent = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
    fs::symlink_metadata(&item.tree).is_ok_and(|tree| tree.is_dir())
        && fs::symlink_metadata(item.tree.join(quarantine::QUARANTINE)).is_err_and(is_absent)
}

fn is_here((_, standing): &(Item, Standing)) -> bool {
    matches!(standing, Standing::Here(_))
}

/// `exeat state list`.
pub(crate) fn list(args: &StateListArgs) -> Result<Exit, Failure> {
    let state = State::read()?;
    let dir = args.dir.as_deref().map(|dir| state.place(dir)).transpose()?;
    let is_asked = |path: &Path| dir.as_deref().is_none_or(|dir| path.starts_with(dir));
    let killed = state.open.iter().filter(|open| !open.is_live);
    let killed = killed.filter(|open| dir.is_none() || open.trees.iter().any(|tree| is_asked(tree)));
    let killed: Vec<&UnsettledRun> = killed.collect();
    let here = |aside: &SetAside| {
        let here = aside.items.iter().filter(|(item, _)| is_asked(&item.old_path()));
        here.filter_map(|(item, standing)| match standing {
            Standing::Here(kind) => Some((item.clone(), *kind)),
            Standing::Gone | Standing::Away(_) => None,
        })
        .collect::<Vec<_>>()
    };
    // The names of runs begin with their time.
    let runs = state.runs.iter().rev().map(|aside| (aside.run.as_str(), here(aside)));
    let runs: Vec<_> = runs.filter(|(_, here)| !here.is_empty()).collect();
    let mut caches = Vec::new();
    if let Some((all, list)) = state.caches()? {
        let list =
            list.into_iter().filter(|cache| dir.is_none() || cache.of.as_deref().is_some_and(is_asked));
        caches.extend(list.map(|cache| {
            let size = all.size(&cache);
            (cache, size)
        }));
    }
    if args.format.is_json() {
        let caches: Vec<Value> = caches.iter().map(cache_json).collect();
        stdio::out(&format!("{}\n", as_json(&state, &runs, &killed, caches)), true)?;
    } else {
        let is_empty = |(cache, size): &&(PrivateCache, (u64, bool))| !cache.is_used && *size == (0, true);
        let (empty, full): (Vec<_>, Vec<_>) = caches.iter().partition(is_empty);
        let mut text = as_text(&state, &runs, &killed);
        text.extend(full.into_iter().map(cache_text));
        if !empty.is_empty() {
            let _ = writeln!(text, "empty caches: {}", empty.len());
        }
        stdio::out(&text, false)?;
    }
    let away = away(&state.runs);
    let mut away = away.iter().filter(|path| is_asked(path));
    if let Some(path) = away.next() {
        let more = away.count();
        let more = if more == 0 { String::new() } else { format!(", nor in {more} other directories") };
        let path = path.display();
        stdio::line("note", &format!("what was set aside in `{path}` is not there any more{more}"));
    }
    if runs.is_empty() && killed.is_empty() && caches.is_empty() && !args.format.is_json() {
        stdio::line("note", "nothing that was set aside is left, and no cache");
    }
    Ok(Exit::Yes)
}

fn cache_json((cache, (bytes, is_whole)): &(PrivateCache, (u64, bool))) -> Value {
    json!({
        "path": cache.path.to_string_lossy(),
        "dir": cache.of.as_ref().map(|of| of.to_string_lossy()),
        "bytes": bytes,
        "bytes_are_all": is_whole,
        "last_use": cache.last_use.map(|time| Moment::from(time).to_string()),
        "running": cache.is_used,
        "home": cache.has_home,
    })
}

fn cache_text((cache, (bytes, is_whole)): &(PrivateCache, (u64, bool))) -> String {
    let size = table::bytes(*bytes);
    let size = if *is_whole { size } else { format!("more than {size}") };
    let last = match cache.last_use {
        _ if cache.is_used => ", in use".to_owned(),
        Some(time) => format!(", last used {}", day_and_time(&Moment::from(time))),
        None => String::new(),
    };
    let home = if cache.has_home { " with a home" } else { "" };
    format!("cache{home} of {}  {size}{last}\n  in {}\n", cache_name(cache), path_text(&cache.path))
}

/// Returns the working directory that a cache belongs to.
fn cache_name(cache: &PrivateCache) -> String {
    cache.of.as_deref().map_or_else(|| "a directory that is not known".into(), path_text)
}

/// Returns the trees that are not where they were, or whose quarantine is not.
fn away(runs: &[SetAside]) -> BTreeSet<&Path> {
    let items = runs.iter().flat_map(|aside| &aside.items);
    let away = items.filter(|(_, standing)| matches!(standing, Standing::Away(_)));
    away.map(|(item, _)| item.tree.as_path()).collect()
}

fn as_json(
    state: &State,
    runs: &[(&str, Vec<(Item, Kind)>)],
    killed: &[&UnsettledRun],
    caches: Vec<Value>,
) -> Value {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let all = runs.iter().flat_map(|(run, here)| here.iter().map(move |(item, kind)| (run, item, kind)));
    let set_aside = all.map(|(run, item, kind)| {
        let (from, to) = (path(&item.old_path()), path(&item.new_path()));
        let (word, bytes) = match kind {
            Kind::File(bytes) => ("file", Some(*bytes)),
            Kind::Directory => ("directory", None),
            Kind::Link => ("link", None),
            Kind::Other => ("other", None),
        };
        let (at, running) = (moment(item.at).to_string(), state.open(run).is_some_and(|open| open.is_live));
        json!({"run": run, "at": at, "from": from, "to": to, "kind": word, "bytes": bytes, "running": running})
    });
    let killed = killed.iter().map(|open| {
        json!({"run": open.run, "trees": open.trees.iter().map(|tree| path(tree)).collect::<BTreeSet<_>>()})
    });
    json!({"schema": 1, "set_aside": set_aside.collect::<Vec<_>>(), "killed": killed.collect::<Vec<_>>(), "caches": caches})
}

fn as_text(state: &State, runs: &[(&str, Vec<(Item, Kind)>)], killed: &[&UnsettledRun]) -> String {
    let mut text = String::new();
    for (run, here) in runs {
        let at = here.iter().map(|(item, _)| item.at).max().unwrap_or(0);
        let at = day_and_time(&moment(at));
        let note = match state.open(run) {
            Some(open) if open.is_live => " (it goes on)",
            _ => "",
        };
        let _ = writeln!(text, "{}  {at}{note}", printable(run));
        for (item, kind) in here.iter().take(NAMED) {
            let (from, to) = (item.old_path(), item.new_path());
            let _ = writeln!(text, "  {}  {}", path_text(&from), words(*kind));
            let _ = writeln!(text, "    now {}", path_text(&to));
        }
        if here.len() > NAMED {
            let _ = writeln!(text, "  and {} more (--format json names all)", here.len() - NAMED);
        }
    }
    for open in killed {
        let _ = writeln!(
            text,
            "{}  killed, and its directories are not checked yet: the next start does it",
            printable(&open.run)
        );
        for tree in open.trees.iter().collect::<BTreeSet<_>>() {
            let _ = writeln!(text, "  in {}", path_text(tree));
        }
    }
    text
}

fn path_text(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

fn words(kind: Kind) -> String {
    match kind {
        Kind::File(bytes) => format!("file, {}", table::bytes(bytes)),
        Kind::Directory => "directory".into(),
        Kind::Link => "link".into(),
        Kind::Other => "neither file nor directory".into(),
    }
}

fn moment(seconds: u64) -> Moment {
    Moment::from(UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH))
}

fn day_and_time(moment: &Moment) -> String {
    moment.as_str().get(..19).unwrap_or_default().replace('T', " ")
}

/// `exeat state restore`.
pub(crate) fn restore(args: &RestoreArgs) -> Result<Exit, Failure> {
    let mut state = State::read()?;
    let run = match &args.run {
        Some(name) => find(&state, name)?,
        None => only_run(&state)?,
    };
    if let Some(open) = state.open(&run) {
        let why = if open.is_live {
            "goes on, and would set it aside again"
        } else {
            "was killed, and its directories are not checked yet: start another run first"
        };
        stdio::line("warning", &format!("nothing is restored: {run} {why}"));
        return Ok(Exit::No);
    }
    let Some(index) = state.runs.iter().position(|aside| aside.run == run) else {
        return Err(unknown(&run));
    };
    let aside = state.runs.swap_remove(index);
    let mut wanted = vec![args.paths.is_empty(); aside.items.len()];
    for path in &args.paths {
        let place = state.place(path)?;
        let mut is_any = false;
        for (entry, wanted) in aside.items.iter().zip(&mut wanted) {
            if is_here(entry) && entry.0.old_path().starts_with(&place) {
                (*wanted, is_any) = (true, true);
            }
        }
        if !is_any {
            let message = format!("nothing of {run} that was at `{}` is in a quarantine", path.display());
            return Err(Failure::input(message).hint("exeat state list"));
        }
    }
    if aside.items.iter().all(|(_, standing)| matches!(standing, Standing::Gone)) {
        quarantine::tidy(&state.dir, aside);
        return Err(unknown(&run));
    }
    let (mut text, mut is_whole) = (String::new(), true);
    for ((item, standing), _) in aside.items.iter().zip(wanted).filter(|(_, wanted)| *wanted) {
        let from = item.old_path();
        match standing {
            Standing::Gone => continue,
            Standing::Away(error) => {
                is_whole = false;
                let (from, tree) = (from.display(), item.tree.display());
                let words =
                    format!("`{from}` is not restored: its quarantine in `{tree}` is not there: {error}");
                stdio::line("warning", &words);
                continue;
            }
            Standing::Here(_) => {}
        }
        match quarantine::restore(&run, item) {
            Ok(()) => {
                let _ = writeln!(text, "restored {}", path_text(&from));
            }
            Err(error) => {
                is_whole = false;
                let why = match error.kind() {
                    io::ErrorKind::AlreadyExists => "something else is there now".to_owned(),
                    io::ErrorKind::NotFound => "the directory that it was in is not there".to_owned(),
                    _ => error.to_string(),
                };
                let (from, to) = (from.display(), item.new_path());
                stdio::line("warning", &format!("`{from}` stays in `{}`: {why}", to.display()));
            }
        }
    }
    quarantine::tidy(&state.dir, aside);
    quarantine::remove_empty_directories(&state.dir);
    stdio::out(&text, false)?;
    Ok(if is_whole { Exit::Yes } else { Exit::No })
}

/// Finds the run whose name starts with `name`. Fails if there are several or none.
fn find(state: &State, name: &str) -> Result<String, Failure> {
    let runs = state.runs.iter().map(|aside| &aside.run).chain(state.open.iter().map(|open| &open.run));
    let runs: BTreeSet<&String> = runs.filter(|run| !name.is_empty() && run.starts_with(name)).collect();
    let mut runs = runs.into_iter();
    match (runs.next(), runs.next()) {
        (Some(run), None) => Ok(run.clone()),
        (Some(_), Some(_)) => Err(Failure::input(format!("more than one run begins with `{name}`"))),
        (None, _) => Err(unknown(name)),
    }
}

/// Returns the only run of which something is left in the working directory's tree, or in trees below that directory. Names the runs if
/// there are several, the last one first, and those of other directories if there is none.
fn only_run(state: &State) -> Result<String, Failure> {
    let cwd = &state.machine.cwd;
    let is_of_cwd = |item: &Item| cwd.starts_with(&item.tree) || item.old_path().starts_with(cwd);
    let left = state.runs.iter().rev().flat_map(|aside| {
        let items = aside.items.iter().filter(|entry| is_here(entry));
        items.map(|(item, _)| (aside.run.as_str(), item))
    });
    let (here, elsewhere): (Vec<_>, Vec<_>) = left.partition(|(_, item)| is_of_cwd(item));
    let mut runs: Vec<&str> = here.into_iter().map(|(run, _)| run).collect();
    runs.dedup();
    let named =
        |lines: &[String]| lines.iter().take(NAMED).map(|line| format!("\n  {line}")).collect::<String>();
    let hint = |run: &str| format!("exeat state restore {}; exeat state list says what", printable(run));
    match runs.as_slice() {
        [run] => Ok((*run).to_owned()),
        [last, ..] => {
            let runs: Vec<_> = runs.iter().map(|run| printable(run)).collect();
            let message = format!("several runs have set something aside here:{}", named(&runs));
            Err(Failure::input(message).hint(hint(last)))
        }
        [] => {
            if elsewhere.is_empty() {
                return Err(Failure::input("nothing that a run set aside is left"));
            }
            let line =
                |(run, item): &(&str, &Item)| format!("{}  in {}", printable(run), path_text(&item.tree));
            let mut lines: Vec<_> = elsewhere.iter().map(line).collect();
            lines.dedup();
            let message = format!(
                "nothing that a run set aside in `{}` is left, but in other directories:{}",
                cwd.display(),
                named(&lines)
            );
            Err(Failure::input(message)
                .hint("name the run: exeat state restore RUN; exeat state list says what"))
        }
    }
}

fn unknown(name: &str) -> Failure {
    Failure::input(format!("nothing that a run `{name}` set aside is left")).hint("exeat state list")
}

/// `exeat state trust`.
pub(crate) fn trust(args: &TrustArgs) -> Result<Exit, Failure> {
    let state = State::read()?;
    let git = state.place(&args.dir)?.join(".git");
    let trusted = quarantine::trust_repository(&state.dir, &git)
        .map_err(|error| Failure::input(format!("cannot trust `{}`", git.display())).because(error))?;
    match trusted {
        Trust::Added => stdio::out(&format!("trusted {}\n", path_text(&git)), false)?,
        Trust::Unneeded => {
            stdio::line(
                "note",
                &format!("no stage is known to have made `{}`: runs are shown it", git.display()),
            );
        }
        Trust::Unsettled => {
            let why = "a run whose stage may have made it goes on, or was killed and is not checked yet: try again after the next run";
            stdio::line("warning", &format!("`{}` is not trusted: {why}", git.display()));
            return Ok(Exit::No);
        }
    }
    Ok(Exit::Yes)
}

/// `exeat state prune`.
pub(crate) fn prune(args: &StatePruneArgs) -> Result<Exit, Failure> {
    let mut state = State::read()?;
    let before = match args.older_than {
        None => u64::MAX,
        Some(age) => {
            let before = SystemTime::now().checked_sub(age);
            let before = before.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            before.ok_or_else(|| Failure::input("that is before all time"))?.as_secs()
        }
    };
    let verb = if args.dry_run { "would delete" } else { "deleted" };
    let dir = args.dir.as_deref().map(|dir| state.place(dir)).transpose()?;
    let is_asked = |path: &Path| dir.as_deref().is_none_or(|dir| path.starts_with(dir));
    if args.caches {
        let is_asked = |cache: &PrivateCache| dir.is_none() || cache.of.as_deref().is_some_and(is_asked);
        return prune_caches(&state, args.dry_run, before, verb, &is_asked);
    }
    let (mut count, mut is_whole) = (0_usize, true);
    for mut aside in std::mem::take(&mut state.runs) {
        // The entries of a run in one tree are deleted together.
        let (items, others) =
            std::mem::take(&mut aside.items).into_iter().partition(|(item, _)| is_asked(&item.tree));
        aside.items = items;
        let newest = aside.items.iter().map(|(item, _)| item.at).max().unwrap_or(0);
        let here = aside.items.iter().filter(|entry| is_here(entry));
        let here: Vec<&Item> = here.map(|(item, _)| item).collect();
        if newest >= before || here.is_empty() {
            continue;
        }
        if state.open(&aside.run).is_some() {
            stdio::line(
                "note",
                &format!(
                    "{} goes on, or was killed and is not checked yet: what it set aside stays",
                    aside.run
                ),
            );
            continue;
        }
        let failed = if args.dry_run { Vec::new() } else { quarantine::delete(&aside) };
        for (tree, error) in &failed {
            is_whole = false;
            let words =
                format!("not all that {} set aside in `{}` is deleted: {error}", aside.run, tree.display());
            stdio::line("warning", &words);
        }
        let gone = here.iter().filter(|item| failed.iter().all(|(tree, _)| *tree != item.tree));
        let gone: Vec<_> = gone.collect();
        count += gone.len();
        let mut text = String::new();
        for item in gone.iter().take(NAMED) {
            let _ = writeln!(
                text,
                "{verb} {} (from {})",
                path_text(&item.new_path()),
                path_text(&item.old_path())
            );
        }
        if gone.len() > NAMED {
            let _ = writeln!(text, "{verb} {} more of {}", gone.len() - NAMED, printable(&aside.run));
        }
        drop(here);
        if !args.dry_run {
            aside.items.extend::<Vec<_>>(others);
            quarantine::tidy(&state.dir, aside);
        }
        stdio::out(&text, false)?;
    }
    if !args.dry_run {
        quarantine::remove_empty_directories(&state.dir);
    }
    let plural = if count == 1 { "" } else { "s" };
    let what = if args.dry_run { "would be deleted" } else { "deleted" };
    stdio::out(&format!("{count} name{plural} {what}\n"), false)?;
    Ok(if is_whole { Exit::Yes } else { Exit::No })
}

/// `exeat state prune --caches`.
fn prune_caches(
    state: &State,
    is_dry: bool,
    before: u64,
    verb: &str,
    is_asked: &dyn Fn(&PrivateCache) -> bool,
) -> Result<Exit, Failure> {
    let Some((all, list)) = state.caches()? else {
        stdio::out("0 caches deleted\n", false)?;
        return Ok(Exit::Yes);
    };
    let (mut count, mut is_whole) = (0_usize, true);
    for cache in list.iter().filter(|cache| is_asked(cache)) {
        // A cache without a note was last used by an older version.
        let last = cache.last_use.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        if last.is_some_and(|last| last.as_secs() >= before) {
            continue;
        }
        let (bytes, counted_all) = all.size(cache);
        let more = if counted_all { "" } else { "more than " };
        let deleted = if is_dry { Ok(!cache.is_used) } else { all.delete(cache) };
        match deleted {
            Ok(true) => {
                count += 1;
                let (path, of) = (path_text(&cache.path), cache_name(cache));
                let home = if cache.has_home { " with a home" } else { "" };
                let what = format!("{verb} {path} (cache{home} of {of}, {more}{})\n", table::bytes(bytes));
                stdio::out(&what, false)?;
            }
            Ok(false) => stdio::line("note", &format!("`{}` is in use, and stays", cache.path.display())),
            Err(error) => {
                is_whole = false;
                let words = format!("not all of `{}` is deleted: {error}", cache.path.display());
                stdio::line("warning", &words);
            }
        }
    }
    let plural = if count == 1 { "" } else { "s" };
    let what = if is_dry { "would be deleted" } else { "deleted" };
    stdio::out(&format!("{count} cache{plural} {what}\n"), false)?;
    Ok(if is_whole { Exit::Yes } else { Exit::No })
}
