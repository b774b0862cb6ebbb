//! What the arguments mean: arguments, files and the machine in, a [`Request`] out. The only module that looks at the
//! machine before the runner does; it changes nothing but descriptor 0, and that only for a policy on stdin.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use exeat_policy::file::{self, BindSpec, FileRule, MAX_FILE_BYTES, PathSpec, PolicyFile};
use exeat_policy::{
    Action, FileError, FileRole, Limits, Note, Origin, Policy, PolicyBuilder, RuleError, TlsCheck,
};
use exeat_runner::{AuditTo, Bind, Bridge, Cache, EnvRule, Files, Request, View};

use crate::args::{BridgeKind, CacheKind, FsView, Output, PolicyArgs, RunArgs, Variable};
use crate::env_vars;
use crate::failure::Failure;

/// The project's policy file. In this version it is used where `--policy` names it, and only said to exist otherwise.
const PROJECT_FILE: &str = ".exeat.toml";

/// What of the machine the meaning of arguments depends on.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    /// Absolute, as the kernel says it: without symbolic links.
    pub(crate) cwd: PathBuf,
    /// Our own environment.
    pub(crate) env: BTreeMap<OsString, OsString>,
}

impl Machine {
    /// This one.
    pub(crate) fn here() -> Result<Self, Failure> {
        let cwd = std::env::current_dir()
            .map_err(|error| Failure::could("cannot tell the working directory").because(error))?;
        Ok(Self { cwd, env: std::env::vars_os().collect() })
    }

    /// The path from here on, without `.` in it; links and `..` stay as they are.
    pub(crate) fn absolute(&self, path: &Path) -> PathBuf {
        self.cwd.join(path).components().collect()
    }

    fn home(&self) -> Option<&Path> {
        let home = Path::new(self.env.get(&OsString::from(env_vars::HOME))?);
        home.is_absolute().then_some(home)
    }
}

/// The policy of a command line, with what its files say besides rules.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// All rules together.
    pub(crate) policy: Policy,
    /// The stage's name in the files.
    pub(crate) stage: Option<String>,
    view: Option<View>,
    ro: Vec<Bind>,
    rw: Vec<Bind>,
    mask: Vec<PathBuf>,
    env: Vec<EnvRule>,
    allow_git_config: bool,
    /// A project file that lies here and was not named.
    pub(crate) unused: Option<&'static str>,
}

impl Loaded {
    /// What to tell the user of `exeat proxy`, which starts no stage that could be shown files or given variables.
    pub(crate) fn note_without_stage(&self) -> Option<&'static str> {
        let Self { view, ro, rw, mask, env, allow_git_config, .. } = self;
        let fs = view.is_some() || *allow_git_config || !(ro.is_empty() && rw.is_empty() && mask.is_empty());
        match (fs, !env.is_empty()) {
            (false, false) => None,
            (true, false) => Some("[fs] of the policy is for exeat run; not used here"),
            (false, true) => Some("[env] of the policy is for exeat run; not used here"),
            (true, true) => Some("[fs] and [env] of the policy are for exeat run; not used here"),
        }
    }

    /// What to tell the user about a policy file that was found and not used.
    pub(crate) fn note(&self) -> Option<String> {
        self.unused.map(|file| format!("{file} was found and not used; --policy {file} uses it"))
    }
}

/// Reads and joins the policy of a command line.
pub(crate) fn load(args: &PolicyArgs, machine: &Machine) -> Result<Loaded, Failure> {
    let mut builder = PolicyBuilder::new();
    // The first rule that grants a target is the one that counts, and this is the more specific word.
    for rule in &args.tls_off {
        if rule.starts_with(['!', '@']) {
            return Err(Failure::input(format!("`--tls-off {rule}`: one allow rule is needed here")));
        }
        let note = Note { tls: TlsCheck::Off, ..Note::default() };
        add(&mut builder, "--tls-off", rule, Action::Allow, note)?;
    }
    for (flag, action, rules) in
        [("--allow", Action::Allow, &args.allow), ("--deny", Action::Deny, &args.deny)]
    {
        for rule in rules {
            match rule.strip_prefix('@') {
                Some(path) => {
                    for rule in read_rules(flag, path, action, machine)? {
                        rule.apply(&mut builder);
                    }
                }
                None => add(&mut builder, flag, rule, action, Note::default())?,
            }
        }
    }

    let mut said = Said::default();
    if args.policy.iter().filter(|path| is_stdin(path)).count() > 1 {
        return Err(Failure::input("`--policy -` stands twice, and stdin is read once"));
    }
    for path in &args.policy {
        let (text, base, shown) = read_policy(path, machine)?;
        let file = PolicyFile::parse(&text, &shown, FileRole::Policy, &[]).map_err(from_file)?;
        file.apply(&mut builder).map_err(from_file)?;
        said.add(file, &base, &shown, machine)?;
    }
    Ok(Loaded {
        policy: builder.build(),
        stage: said.stage.map(|(stage, _)| stage),
        view: said.view.map(|(view, _)| view),
        ro: said.ro,
        rw: said.rw,
        mask: said.mask,
        env: said.env,
        allow_git_config: said.allow_git_config,
        unused: unused(&args.policy, machine),
    })
}

/// Turns the arguments of `exeat run` into a request.
pub(crate) fn run(args: RunArgs, machine: Machine) -> Result<(Request, Vec<String>), Failure> {
    if args.command.first().is_none_or(|command| command.is_empty()) {
        return Err(Failure::input("there is no command to run")
            .hint("exeat run --allow api.example.com -- curl -sS https://api.example.com/"));
    }
    let loaded = load(&args.policy, &machine)?;
    let notes = loaded.note().into_iter().collect();
    let Loaded { policy, stage, view, mut ro, mut rw, mut mask, mut env, allow_git_config, .. } = loaded;
    let allow_git_config = allow_git_config || args.allow_git_config;

    let here = |flag: &'static str| move |error| place_error(flag, error);
    for bind in &args.ro {
        ro.push(place_bind(bind, &machine.cwd, &machine).map_err(here("--ro"))?);
    }
    for bind in &args.rw {
        rw.push(place_bind(bind, &machine.cwd, &machine).map_err(here("--rw"))?);
    }
    for path in &args.mask {
        mask.push(place(path, &machine.cwd, &machine).map_err(here("--mask"))?);
    }
    env.extend(args.env.into_iter().map(|variable| match variable {
        Variable::Pass(name) => EnvRule::Pass(name),
        Variable::Set(name, value) => EnvRule::Set(name, value),
    }));

    let view = args.fs.map(View::from).or(view).unwrap_or_default();
    let cache = match args.cache {
        None | Some(CacheKind::Private) => Cache::Private,
        Some(CacheKind::None) => Cache::None,
    };
    let bridge = match args.bridge {
        None | Some(BridgeKind::Handoff) => Bridge::Handoff,
        Some(BridgeKind::Relay) => Bridge::Relay,
    };
    let request = Request {
        command: args.command,
        policy,
        files: Files { view, ro, rw, mask, cache, allow_git_config, ..Files::default() },
        env,
        bridge,
        stage: args.stage.or(stage),
        labels: args.labels.into_iter().map(|label| (label.key, label.value)).collect(),
        audit: audit(args.audit.as_ref(), &machine)?,
        limits: args.limits.into(),
        cwd: machine.cwd,
        host_env: machine.env,
    };
    Ok((request, notes))
}

/// Where the record goes.
pub(crate) fn audit(output: Option<&Output>, machine: &Machine) -> Result<AuditTo, Failure> {
    Ok(match output {
        None => AuditTo::Default,
        Some(Output::File(path)) => AuditTo::File(machine.absolute(path)),
        Some(Output::Fd(n)) => AuditTo::Fd(take_fd("--audit", *n)?),
    })
}

/// Whether the descriptors that the arguments name were open when we began. Asked before the first one is opened here:
/// a number that the caller forgot to open would otherwise be one of ours.
pub(crate) fn inherited(outputs: &[(&str, Option<&Output>)]) -> Result<(), Failure> {
    for (flag, output) in outputs {
        let Some(Output::Fd(n)) = output else { continue };
        if let Err(error) = fs::symlink_metadata(format!("/proc/self/fd/{n}")) {
            return Err(not_open(flag, *n, error));
        }
    }
    Ok(())
}

/// Takes an inherited descriptor over, so that no stage inherits it.
pub(crate) fn take_fd(flag: &str, n: i32) -> Result<std::os::fd::OwnedFd, Failure> {
    exeat_runner::take_fd(n).map_err(|error| not_open(flag, n, error))
}

fn not_open(flag: &str, n: i32, error: io::Error) -> Failure {
    let failure = Failure::input(format!("`{flag} fd:{n}`: descriptor {n} is not open"));
    let failure = if error.kind() == io::ErrorKind::NotFound { failure } else { failure.because(error) };
    failure.hint(format!("open it for exeat: exeat run {flag} fd:{n} ... {n}>FILE"))
}

/// What policy files say besides rules, so far; each with the file that said it.
#[derive(Debug, Default)]
struct Said {
    stage: Option<(String, String)>,
    view: Option<(View, String)>,
    ro: Vec<Bind>,
    rw: Vec<Bind>,
    mask: Vec<PathBuf>,
    env: Vec<EnvRule>,
    allow_git_config: bool,
}

impl Said {
    fn add(&mut self, file: PolicyFile, base: &Path, shown: &str, machine: &Machine) -> Result<(), Failure> {
        // What is not kept yet is refused: a run without its limits would pass for one with them.
        for (given, what) in [
            (file.limits != Limits::default(), "`[limits]`"),
            (file.work.is_some(), "an isolation policy (`ro_binds` and so on)"),
        ] {
            if given {
                return Err(Failure::input(format!("{shown}: {what} is not supported by this version")));
            }
        }
        if let Some(stage) = file.stage {
            agree(&mut self.stage, stage, shown, "the stage's name")?;
        }
        if let Some(view) = file.fs.view {
            agree(&mut self.view, view_of(view), shown, "the view")?;
        }
        for (list, binds, key) in [(&mut self.ro, file.fs.ro, "ro"), (&mut self.rw, file.fs.rw, "rw")] {
            for bind in binds.unwrap_or_default() {
                let bind = place_bind(&bind, base, machine);
                list.push(bind.map_err(|error| place_error(&format!("{shown}: fs.{key}"), error))?);
            }
        }
        for path in &file.fs.mask {
            let path = place(path, base, machine);
            self.mask.push(path.map_err(|error| place_error(&format!("{shown}: fs.mask"), error))?);
        }
        self.allow_git_config |= file.fs.allow_git_config.unwrap_or_default();
        let passed = file.env.pass.unwrap_or_default();
        self.env.extend(passed.into_iter().map(|name| EnvRule::Pass(name.into())));
        self.env
            .extend(file.env.set.into_iter().map(|(name, value)| EnvRule::Set(name.into(), value.into())));
        Ok(())
    }
}

/// Two files may say the same; where they differ, only the user knows which one is meant.
fn agree<T: PartialEq>(
    known: &mut Option<(T, String)>,
    new: T,
    shown: &str,
    what: &str,
) -> Result<(), Failure> {
    match known {
        Some((old, by)) if *old != new => {
            Err(Failure::input(format!("`{by}` and `{shown}` differ about {what}"))
                .hint("leave it to one of the files"))
        }
        _ => {
            *known = Some((new, shown.to_owned()));
            Ok(())
        }
    }
}

fn add(
    builder: &mut PolicyBuilder,
    flag: &str,
    rule: &str,
    action: Action,
    note: Note,
) -> Result<(), Failure> {
    builder
        .add(rule, action, Origin::Flag { flag: flag.into() }, note)
        .map_err(|error| from_rule(flag, &error))
}

fn from_rule(flag: &str, error: &RuleError) -> Failure {
    let failure = Failure::input(format!("{flag}: {error}"));
    match error.meant() {
        Some(meant) => {
            // Inside `--deny` a marked text would be refused again, and under `--allow` it denies.
            failure.hint(format!("probably meant: {flag} {}", crate::render::shell_word(meant)))
        }
        None => failure,
    }
}

fn from_file(error: FileError) -> Failure {
    Failure::input(error.to_string())
}

fn read_rules(flag: &str, path: &str, action: Action, machine: &Machine) -> Result<Vec<FileRule>, Failure> {
    if path.is_empty() {
        return Err(Failure::input(format!("`{flag} @`: the path of a file follows the `@`")));
    }
    let text = text_of(open(&machine.cwd.join(path), path)?, path)?;
    file::parse_rule_lines(&text, path, action).map_err(from_file)
}

/// The text of a policy file, the directory that its paths are relative to, and its name in messages.
fn read_policy(path: &Path, machine: &Machine) -> Result<(String, PathBuf, String), Failure> {
    if is_stdin(path) {
        let text = text_of(io::stdin().lock(), "stdin")?;
        close_stdin()?;
        return Ok((text, machine.cwd.clone(), "stdin".to_owned()));
    }
    let shown = path.display().to_string();
    let file = open(&machine.cwd.join(path), &shown)?;
    // A pipe (`--policy <(...)`) lies in no directory of the user's.
    let regular = file.metadata().is_ok_and(|meta| meta.is_file());
    let beside = path.parent().filter(|_| regular).map(|parent| machine.cwd.join(parent));
    let base = beside.unwrap_or_else(|| machine.cwd.clone());
    Ok((text_of(file, &shown)?, base, shown))
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn open(path: &Path, shown: &str) -> Result<File, Failure> {
    File::open(path).map_err(|error| Failure::input(format!("cannot read `{shown}`")).because(error))
}

/// At most [`MAX_FILE_BYTES`] of UTF-8; more is refused, so that a rule cannot be lost at the end.
fn text_of(from: impl Read, shown: &str) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let most = u64::try_from(MAX_FILE_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    from.take(most)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::input(format!("cannot read `{shown}`")).because(error))?;
    if bytes.len() > MAX_FILE_BYTES {
        return Err(Failure::input(format!("`{shown}` is larger than {MAX_FILE_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = good.split(|byte| *byte == b'\n').count();
        Failure::input(format!("{shown}:{line}: the text is not UTF-8"))
    })
}

/// The policy was the whole of stdin. What is left of it (a terminal's next line) is not for the stage.
fn close_stdin() -> Result<(), Failure> {
    let closed =
        File::open("/dev/null").and_then(|null| nix::unistd::dup2_stdin(null).map_err(io::Error::from));
    closed.map_err(|error| Failure::could("cannot close stdin after the policy").because(error))
}

/// The project's file, if it lies here and none of the named files is the same.
fn unused(named: &[PathBuf], machine: &Machine) -> Option<&'static str> {
    let found = fs::canonicalize(machine.cwd.join(PROJECT_FILE)).ok()?;
    let used =
        named.iter().any(|path| fs::canonicalize(machine.cwd.join(path)).is_ok_and(|path| path == found));
    (!used).then_some(PROJECT_FILE)
}

#[derive(Debug, thiserror::Error)]
enum PlaceError {
    #[error("`~` is HOME, and HOME is not set to an absolute path")]
    NoHome,
}

fn place_error(what: &str, error: PlaceError) -> Failure {
    Failure::input(what).because(error)
}

/// A bind with both paths absolute. The guest's path holds no `..`: bubblewrap would take it by its letters.
fn place_bind(bind: &BindSpec, base: &Path, machine: &Machine) -> Result<Bind, PlaceError> {
    let host = place(&bind.host, base, machine)?;
    let guest = match &bind.guest {
        Some(guest) => place(guest, base, machine)?,
        None => host.clone(),
    };
    Ok(Bind { host, guest: without_dots(&guest) })
}

fn place(path: &PathSpec, base: &Path, machine: &Machine) -> Result<PathBuf, PlaceError> {
    Ok(match path {
        PathSpec::Absolute(path) => PathBuf::from(path),
        PathSpec::Home(below) if below.is_empty() => machine.home().ok_or(PlaceError::NoHome)?.to_owned(),
        PathSpec::Home(below) => machine.home().ok_or(PlaceError::NoHome)?.join(below),
        PathSpec::Relative(path) => base.join(path).components().collect(),
    })
}

/// The path by its letters: `/a/b/../c` is `/a/c`, whatever `b` is.
fn without_dots(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

fn view_of(view: file::View) -> View {
    match view {
        file::View::Project => View::Project,
        file::View::Host => View::Host,
        file::View::Minimal => View::Minimal,
    }
}

impl From<FsView> for View {
    fn from(view: FsView) -> Self {
        match view {
            FsView::Project => Self::Project,
            FsView::Host => Self::Host,
            FsView::Minimal => Self::Minimal,
        }
    }
}

#[cfg(test)]
mod tests;
