//! Reads each file of a command line once and notes it for the record.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use exeat_files::fault::Excess;
use exeat_files::quarantine::Live;
use exeat_files::request::Bounds;
use exeat_files::users::home_of;
use exeat_policy::file::{self, PolicyFile, SET};
use exeat_policy::{
    Action, EffectKind, EffectSet, FileRole, Limits, Mode, Note, OnExcess, Origin, Policy, PolicyBuilder,
    Role, StoredPolicy, preset, printable, shell_word,
};
use exeat_record::{Source, SourceRole, sha256_hex, today};
use nix::unistd::geteuid;

use crate::declaration::Declaration;
use crate::fault::{Fault, Position};
use crate::file_state::FileState;
use crate::layers::UpperLayers;
use crate::machine::Machine;
use crate::named::{
    INLINE, INLINE_POLICY, LoadedFile, PROJECT_FILE, SITE_CEILING, STDIN, USER_CEILING, from_file, groups,
    parse, preset_fault,
};
use crate::project::{self, ProjectEntry};
use crate::request::{Effects, Site};
use crate::services::{Ask, Services};
use crate::settings::Settings;
use crate::text::{POLICY_FILE, inline_policy, is_stdin, lock_command, read_lock, read_policy, text_of};

pub(crate) struct Reading<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) sources: Vec<Source>,
    pub(crate) inspected: Vec<FileState>,
    pub(crate) once: Option<String>,
    pub(crate) notes: Vec<String>,
    /// See [`Composed::doubts`](crate::Composed::doubts).
    pub(crate) doubts: Vec<String>,
    pub(crate) redirected_by: Vec<&'static str>,
    /// The runs that were not settled before anything was read.
    runs: Live,
}

impl<'a> Reading<'a> {
    pub(crate) fn new(machine: &'a Machine) -> Self {
        let mut runs = Live::default();
        machine.read_runs(&mut runs);
        Self {
            machine,
            sources: Vec::new(),
            inspected: Vec::new(),
            once: None,
            notes: Vec::new(),
            doubts: Vec::new(),
            redirected_by: Vec::new(),
            runs,
        }
    }

    /// Refuses files that decide about the run and that the stage of another run may have made: the names were missing when that run started.
    /// A run that has ended since it was read here has moved them.
    pub(crate) fn check_deciding(&mut self, deciding: &[PathBuf]) -> Result<(), Fault> {
        self.machine.read_runs(&mut self.runs);
        for path in deciding {
            if let Some(why) = self.why_of_a_stage(path) {
                let shown = printable(&path.display().to_string());
                return Err(Fault::input(format!("`{shown}`, {why}"))
                .hint("wait until that run has ended; or, if it is yours, name a copy outside of that run's tree"));
            }
        }
        Ok(())
    }

    /// Returns why a file may be that of another run's stage, as the end of a sentence about it.
    fn why_of_a_stage(&self, path: &Path) -> Option<String> {
        let tree = printable(&self.runs.tree_of_writer(path)?.display().to_string());
        Some(format!(
            "or a directory above it, came or changed while another run was going on in `{tree}`, whose stage may have written it"
        ))
    }

    /// Refuses the user's ceiling if a stage may have made it. Without it the run would have fewer bounds, and with it the project's file counts.
    fn check_ceiling_maker(&mut self, ceiling: &Path) -> Result<(), Fault> {
        self.machine.read_runs(&mut self.runs);
        let Some(why) = self.why_of_a_stage(ceiling) else { return Ok(()) };
        let shown = printable(&ceiling.display().to_string());
        Err(Fault::input(format!("the ceiling `{shown}`, {why}"))
        .hint("wait until that run has ended; or, if it is yours, set HOME or XDG_CONFIG_HOME to a directory outside of that run's tree"))
    }

    /// Notes the state of a path that is about to be read.
    pub(crate) fn inspect(&mut self, path: &Path) {
        if is_stdin(path) {
            self.once = Some(STDIN.to_owned());
            return;
        }
        if path.to_str().is_some_and(|text| text.starts_with("fd:")) {
            self.once = Some(format!("`{}`", printable(&path.display().to_string())));
            return;
        }
        let seen = FileState::at(&self.machine.cwd.join(path));
        if seen.is_special() {
            self.once = Some(format!("`{}`", printable(&path.display().to_string())));
        }
        self.inspected.push(seen);
    }

    /// Reads every ceiling once: those of the site and the user where they exist, then the named ones.
    pub(crate) fn ceilings(&mut self, named: &[PathBuf], site: Site) -> Result<Vec<LoadedFile>, Fault> {
        if site.has_ceilings {
            self.machine.check_home()?;
        }
        let read_unnamed = [PathBuf::from(SITE_CEILING), self.machine.config().join(USER_CEILING)];
        let read_unnamed = read_unnamed.into_iter().filter(|_| site.has_ceilings);
        let mut all = Vec::new();
        let mut taken = Vec::new();
        for path in read_unnamed {
            self.inspect(&path);
            let identity = self.identity(&path);
            // A ceiling that exists and cannot be read sets unknown bounds, so it is an error.
            match fs::symlink_metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => continue,
                _ if path != Path::new(SITE_CEILING) => {
                    check_ceiling_owner(&path)?;
                    self.check_ceiling_maker(&path)?;
                    if let Some((file, dir)) = &identity {
                        self.check_ceiling_place(&path, (file, dir), named)?;
                    }
                }
                _ => {}
            }
            taken.extend(identity);
            all.push(self.read_file(&path, FileRole::Ceiling)?);
        }
        for path in named {
            let identity = self.identity(path);
            if identity.as_ref().is_some_and(|identity| taken.contains(identity)) {
                // The link that names it may change its target later, so it is watched, too.
                self.inspect(path);
                continue;
            }
            taken.extend(identity);
            all.push(self.inspect_and_read(path, FileRole::Ceiling)?);
        }
        Ok(all)
    }

    /// Refuses a ceiling of the user below the working directory, where a stage of an earlier run can have written it: an unnamed
    /// ceiling also activates the project's file. No stage writes to a home that is the working directory, or that the user database
    /// names.
    fn check_ceiling_place(
        &self,
        ceiling: &Path,
        (file, dir): (&Path, &Path),
        named: &[PathBuf],
    ) -> Result<(), Fault> {
        let cwd = &self.machine.cwd;
        let is_below = file.starts_with(cwd) || dir.starts_with(cwd);
        if !is_below || cwd.parent().is_none() {
            return Ok(());
        }
        let is_named = named.iter().filter_map(|named| self.identity(named)).any(|(named, _)| named == file);
        let (home, usual) = (self.machine.home_or_database(), home_of(None));
        let is_usual = home == usual && dir.starts_with(&usual);
        if is_named || home == *cwd || is_usual && usual.starts_with(cwd) {
            return Ok(());
        }
        let shown = printable(&ceiling.display().to_string());
        let why = format!(
            "the ceiling `{shown}` is below the working directory, where a stage could have written it"
        );
        let word = shell_word(&file.display().to_string());
        Err(Fault::input(why)
            .hint(format!("move HOME or XDG_CONFIG_HOME elsewhere; or, if it is yours: --ceiling {word}")))
    }

    /// Returns what identifies a ceiling: the file and the directory where its relative paths start; `None` without a file.
    fn identity(&self, path: &Path) -> Option<(PathBuf, PathBuf)> {
        if is_stdin(path) {
            return None;
        }
        let path = self.machine.cwd.join(path);
        let base = path.parent()?.canonicalize().ok()?;
        path.canonicalize().ok().filter(|file| file.is_file()).map(|file| (file, base))
    }

    /// Reads the project's own file if the caller did not name it and a ceiling bounds its grants.
    pub(crate) fn project(
        &mut self,
        named: &[PathBuf],
        ceilings: &[LoadedFile],
    ) -> Result<Option<LoadedFile>, Fault> {
        let path = self.machine.cwd.join(PROJECT_FILE);
        let is_it = |named: &PathBuf| {
            let real = |path: &Path| fs::canonicalize(path).ok();
            real(&self.machine.cwd.join(named)).is_some_and(|named| Some(named) == real(&path))
        };
        // A caller who names a policy has made a choice.
        if !named.is_empty() {
            if !named.iter().any(is_it) {
                self.inspect(&path);
            }
            return Ok(None);
        }
        self.inspect(&path);
        let found = project::find(&path);
        self.machine.read_runs(&mut self.runs);
        let is_there = !matches!(found, Ok(ProjectEntry::Nothing));
        if let Some(why) = is_there.then(|| self.why_of_a_stage(&path)).flatten() {
            self.notes.push(format!(
                "{PROJECT_FILE} was found and not used: it, {why}; if it is yours, use it after the end of that run, or name a copy \
                 outside of its tree with --policy"
            ));
            return Ok(None);
        }
        let file = match found.map_err(|error| unreadable_project(&path, error))? {
            ProjectEntry::Nothing => return Ok(None),
            ProjectEntry::File(file) if !ceilings.is_empty() => file,
            found => {
                let why = match found {
                    ProjectEntry::Unusable(what) => format!(": it is {what}"),
                    _ => String::new(),
                };
                self.notes.push(format!(
                    "{PROJECT_FILE} was found and not used{why}; --policy {PROJECT_FILE} uses it"
                ));
                return Ok(None);
            }
        };
        let text = text_of(file, PROJECT_FILE)?;
        let base = self.machine.cwd.clone();
        let mut file = parse(&text, PROJECT_FILE, FileRole::Policy)?;
        if file.work.is_some() {
            self.notes.push(format!(
                "{PROJECT_FILE} was found and not used: it is an isolation policy; --policy {PROJECT_FILE} uses it"
            ));
            return Ok(None);
        }
        self.note_source(SourceRole::Policy, PROJECT_FILE, &text);
        let left_out = project::remove_unbounded(&mut file, ceilings);
        self.notes.push(format!("{PROJECT_FILE} was found and is used, within the ceilings"));
        if !left_out.is_empty() {
            self.notes.push(format!(
                "{PROJECT_FILE}: left out, because no ceiling bounds it: {}; --policy {PROJECT_FILE} uses all of it",
                left_out.join(", ")
            ));
        }
        Ok(Some(LoadedFile { file, base, shown: PROJECT_FILE.to_owned(), weak: true }))
    }

    /// Notes a source for the record, with the full path because another run has another working directory.
    pub(crate) fn note_source(&mut self, role: SourceRole, file: &str, text: &str) {
        let file = match file {
            STDIN | INLINE | INLINE_POLICY => file.to_owned(),
            file if file.starts_with("fd:") => file.to_owned(),
            file => self.machine.absolute(Path::new(file)).display().to_string(),
        };
        self.sources.push(Source { role, file, sha256: sha256_hex(text.as_bytes()) });
    }

    fn inspect_and_read(&mut self, path: &Path, role: FileRole) -> Result<LoadedFile, Fault> {
        self.inspect(path);
        self.read_file(path, role)
    }

    /// Reads `--policy`: a policy file, or the policy stored beside a record.
    pub(crate) fn policy(
        &mut self,
        path: &Path,
        stored: &mut Vec<(String, StoredPolicy)>,
    ) -> Result<LoadedFile, Fault> {
        if inline_policy(path).is_none() {
            self.inspect(path);
        }
        let (text, base, shown) = read_policy(POLICY_FILE, path, self.machine)?;
        let file = match StoredPolicy::parse(&text, &shown) {
            None => parse(&text, &shown, FileRole::Policy)?,
            Some(read) => {
                let name = printable(&shown);
                let mut policy = read
                    .map_err(|error| Fault::at_each(vec![Position::new(&shown, None, error.to_string())]))?;
                self.notes.push(format!(
                    "{name} is the policy of a record: its rules, without files, variables, limits, and where each rule stood"
                ));
                let file = std::mem::take(&mut policy.grants);
                stored.push((shown.clone(), policy));
                file
            }
        };
        self.note_source(SourceRole::Policy, &shown, &text);
        Ok(LoadedFile { file, base, shown, weak: false })
    }

    /// Parses `--set`: keys of a policy file that win over those of files.
    pub(crate) fn settings(&self, settings: &[String]) -> Result<Option<LoadedFile>, Fault> {
        let base = self.machine.base.clone();
        Ok(settings_of(settings)?.map(|file| LoadedFile { file, base, shown: SET.to_owned(), weak: false }))
    }

    fn read_file(&mut self, path: &Path, role: FileRole) -> Result<LoadedFile, Fault> {
        let what = if role == FileRole::Ceiling { "ceiling" } else { POLICY_FILE };
        let (text, base, shown) = read_policy(what, path, self.machine)?;
        let file = parse(&text, &shown, role)?;
        let role = if role == FileRole::Ceiling { SourceRole::Ceiling } else { SourceRole::Policy };
        self.note_source(role, &shown, &text);
        Ok(LoadedFile { file, base, shown, weak: false })
    }

    /// Reads `--locked` and returns the stage's targets in the lock as the rules of a layer.
    pub(crate) fn lock(
        &mut self,
        path: &Path,
        stage: Option<&str>,
    ) -> Result<(String, PolicyBuilder), Fault> {
        let shown = path.display().to_string();
        self.inspect(path);
        let (text, lock) = read_lock(path, &shown, self.machine).map_err(|failure| {
            failure.hint(format!("correct or remove it; {}", lock_command(&shown, stage)))
        })?;
        let Some(lock) = lock else {
            let why = format!("there is no `{}`, to which --locked holds the run", printable(&shown));
            return Err(Fault::input(why).hint(lock_command(&shown, stage)));
        };
        if !lock.has(stage) {
            let of = match stage {
                Some(stage) => format!("the stage `{}`", printable(stage)),
                None => "a stage without a name".to_owned(),
            };
            let failure = Fault::input(format!("`{}` has nothing of {of}", printable(&shown)));
            let meant = stage.and_then(|stage| file::nearest(stage, lock.stages().flatten()));
            return Err(match meant {
                Some(meant) => failure.hint(format!("probably meant: --stage {}", shell_word(meant))),
                None => failure.hint(lock_command(&shown, stage)),
            });
        }
        let mut rules = PolicyBuilder::new();
        for entry in lock.entries_of(stage) {
            let text = entry.target.to_string();
            let origin = Origin::File { path: shown.clone(), line: entry.line };
            rules.add(&text, Action::Allow, origin, Note::default()).map_err(|error| {
                Fault::at_each(vec![Position::new(&shown, Some(entry.line), error.to_string())])
            })?;
        }
        self.note_source(SourceRole::Lock, &shown, &text);
        Ok((shown, rules))
    }

    /// Reads `--effects FILE|JSON`. Text that starts with `[` or `{` is JSON.
    pub(crate) fn effects(&mut self, effects: &Effects) -> Result<Declaration, Fault> {
        let argument = match effects {
            Effects::File(argument) => argument,
            Effects::Set(set) => {
                return Ok(Declaration { set: set.clone(), shown: INLINE.to_owned(), lines: Vec::new() });
            }
        };
        let inline = argument.to_str().filter(|text| text.trim_start().starts_with(['[', '{']));
        let (text, shown) = if let Some(text) = inline {
            (text.to_owned(), INLINE.to_owned())
        } else {
            self.inspect(argument);
            let (text, _, shown) = read_policy("effects file", argument, self.machine)?;
            (text, shown)
        };
        let (set, lines) = EffectSet::parse_with_lines(&text, &shown).map_err(from_file)?;
        self.note_source(SourceRole::Effects, &shown, &text);
        Ok(Declaration { set, shown, lines })
    }

    /// Adds the hosts of presets, asking package managers for their hosts.
    pub(crate) fn presets<S: Services>(
        &mut self,
        names: &[(String, Option<Origin>)],
        grants: &mut PolicyBuilder,
        above: &UpperLayers<'_>,
        said: &Settings,
        (bounds, limits): (&[Bounds], Limits),
        (services, asks_anew): (&S, bool),
    ) -> Result<(), S::Error> {
        // Each group, and whether the caller named it.
        let mut chosen: Vec<(&'static preset::Preset, bool)> = Vec::new();
        for (name, origin) in names {
            let named = name != "auto" || origin.is_some();
            let groups = if named { groups(name, origin.as_ref())? } else { self.detect_presets()? };
            for group in groups {
                match chosen.iter_mut().find(|(known, _)| known.name == group.name) {
                    Some((_, is_named)) => *is_named |= named,
                    None => chosen.push((group, named)),
                }
            }
        }
        if chosen.is_empty() {
            return Ok(());
        }
        let variables = chosen.iter().flat_map(|(group, _)| &group.redirected_by);
        self.redirected_by.extend(variables.map(String::as_str));
        for rule in preset::always_denied().map_err(|error| preset_fault(&error, None))? {
            rule.add_to(grants);
        }
        for (group, _) in &chosen {
            group.add_to(grants);
        }
        let asking: Vec<_> = chosen.into_iter().filter(|(group, _)| group.from_client.is_some()).collect();
        if asking.is_empty() {
            return Ok(());
        }
        let own = grants.clone().build();
        // What is granted bounds the questions to a client, whatever mode the run has.
        let finish = |grants: PolicyBuilder| {
            above.policy(grants, None, Mode::Enforce).unwrap_or_else(|_| PolicyBuilder::new().build())
        };
        let ask = Ask {
            cwd: self.machine.cwd.clone(),
            files: said.files(bounds),
            host_env: self.machine.env.clone(),
            own: own.rules(),
            finish: &finish,
            limits,
            may_be_kept: !asks_anew,
        };
        let answers = services.ask_clients(ask, &asking)?;
        for ((group, _), found) in asking.into_iter().zip(answers) {
            let client = group.from_client.map(|client| client.as_str()).unwrap_or_default();
            // A mixed repository contains lock files of programs that are not installed; the stage cannot run them either.
            let Some(found) = found else {
                self.notes.push(format!("--preset auto: {} left out: {client} is not on PATH", group.name));
                continue;
            };
            for rule in &found.rules {
                rule.add_to(grants);
            }
            self.notes.extend(found.notes);
            self.doubts.extend(found.doubt);
            let hosts: Vec<_> = found.rules.iter().map(|rule| rule.text.as_str()).collect();
            let hosts = if hosts.is_empty() { "no host".to_owned() } else { hosts.join(", ") };
            self.notes.push(format!("preset {}: {client} uses {hosts}", group.name));
        }
        Ok(())
    }

    /// Detects presets for `--preset auto` from the files in the working directory.
    fn detect_presets(&mut self) -> Result<Vec<&'static preset::Preset>, Fault> {
        let entries = fs::read_dir(&self.machine.cwd).map_err(|error| {
            Fault::input("`--preset auto`: cannot list the working directory").because(error)
        })?;
        let names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        let found = preset::detect(names.iter().map(String::as_str));
        let shown: Vec<_> = found.iter().map(|group| group.name.as_str()).collect();
        self.notes.push(match shown.as_slice() {
            [] => "--preset auto: no file here chooses a preset".to_owned(),
            shown => format!("--preset auto: {}", shown.join(", ")),
        });
        Ok(found)
    }

    /// Finds declared hosts that are not granted. With `narrow` they are left out, and a note says so.
    pub(crate) fn hosts_beyond(
        &mut self,
        policy: &Policy,
        on_excess: OnExcess,
        effects: &EffectSet,
    ) -> Vec<Excess> {
        if effects.has(EffectKind::Network) {
            self.notes.push("the stage declares `Network`: ports 80 and 443 of every public host".into());
        }
        let hosts = policy.excess(today()).into_iter().map(|excess| {
            let ports = format!("{}:{}", excess.rule.pattern, excess.ports);
            let target = if excess.ports == excess.rule.ports { &excess.rule.text } else { &ports };
            let (by, flag) = match (excess.missing_in, excess.denied_by) {
                (_, Some(deny)) => (format!("denied by {} ({})", deny.text, deny.origin), None),
                (Some(layer), _) if layer.role() == Role::Ceiling => {
                    (format!("the ceiling {} does not allow it", layer.name().unwrap_or_default()), None)
                }
                _ => ("no rule allows it".to_owned(), Some(format!("--allow {}", shell_word(&ports)))),
            };
            Excess { said: format!("{}: `{target}`: {by}", excess.rule.origin), flag, can_be_left_out: true }
        });
        if on_excess == OnExcess::Narrow {
            self.notes.extend(hosts.map(|host| format!("left out: {}", host.said)));
            return Vec::new();
        }
        hosts.collect()
    }
}

/// Parses the keys of `--set`; `None` without any.
pub(crate) fn settings_of(settings: &[String]) -> Result<Option<PolicyFile>, Fault> {
    if settings.is_empty() {
        return Ok(None);
    }
    PolicyFile::parse_settings(settings, &|| preset::names().collect()).map(Some).map_err(from_file)
}

/// Reports the directory where it cannot be entered, as after `sudo -u`, and otherwise the file.
fn unreadable_project(path: &Path, error: io::Error) -> Fault {
    let is_hidden =
        fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    match path.parent().filter(|_| is_hidden) {
        Some(dir) => Fault::input(format!("cannot look into the working directory `{}`", dir.display()))
            .because(error)
            .hint("start exeat in a directory that its user may enter"),
        None => Fault::input(format!("cannot read `{PROJECT_FILE}`")).because(error),
    }
}

/// Refuses another user's ceiling: an unnamed ceiling also activates the project's file. Under `sudo -E` the home directory belongs
/// to another user.
fn check_ceiling_owner(ceiling: &Path) -> Result<(), Fault> {
    // Checks the name itself and its target.
    for about in [fs::symlink_metadata(ceiling), fs::metadata(ceiling)].into_iter().flatten() {
        if !project::is_trusted_owner(&about) {
            let shown = printable(&ceiling.display().to_string());
            let (owner, own) = (about.uid(), geteuid());
            let why = format!("the ceiling `{shown}` belongs to uid {owner}, and exeat runs as uid {own}");
            return Err(Fault::input(why)
                .hint("set HOME and XDG_CONFIG_HOME to directories of your own, as `sudo -H` does"));
        }
    }
    // A path that cannot be inspected cannot be read either, and the reader reports it.
    Ok(())
}
