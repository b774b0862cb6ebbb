//! Turns the arguments of `exeat run`, its files and the state of the machine into a [`Request`]. Changes nothing except
//! descriptor 0, which it replaces after reading a policy from stdin.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read as _;
use std::mem::take;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use exeat_compose::{
    Composed, EnvRule, Fault, Machine, NextHop, PROJECT_FILE, PolicyRequest, compose_for_run,
    descriptor_not_open,
};
use exeat_files::request::Bind;
use exeat_policy::file::WrittenName;
use exeat_policy::{Cache, View, printable, shell_word};
use exeat_record::{MAX_LABEL_VALUE, MAX_LABELS, SigningKey};
use exeat_runner::discover::Clients;
use exeat_runner::{AuditTo, Request, Signing, UpstreamProxy};
use nix::sys::stat::{Mode, SFlag, fstat, umask};

use crate::args::audit::KeyFrom;
use crate::args::{EnvArgs, FsView, Label, Output, RunArgs, Variable};
use crate::failure::Failure;
use crate::stdio;

mod loopback;

/// Describes this machine.
///
/// # Errors
/// Fails if the umask would take the rights to exeat's own files from their owner.
pub(crate) fn here() -> Result<Machine, Failure> {
    // umask(2) reads by setting. There is one thread so far.
    let mask = umask(Mode::S_IRWXU);
    umask(mask);
    if mask.intersects(Mode::S_IRWXU) {
        let message = format!("with umask {:04o} exeat could not use the files that it makes", mask.bits());
        return Err(Failure::input(message).hint("umask 077"));
    }
    Ok(Machine::here(exeat_runner::CALLS)?)
}

/// Composes the policy of a command that inspects one. Fails without any: in a script, the variable that should name it may be empty.
pub(crate) fn compose_some(policy: &PolicyRequest, machine: &Machine) -> Result<Composed, Failure> {
    let composed = compose(policy, machine, false)?;
    if policy.is_empty() && composed.sources.is_empty() {
        let has_project = machine.cwd.join(PROJECT_FILE).is_file();
        let file = if has_project { PROJECT_FILE } else { "FILE" };
        return Err(Failure::input("there is no policy to look at: no file, no flag of one, and no ceiling")
            .hint(format!(
                "--policy {file} names one; --allow HOST and the other flags of a policy do, too"
            )));
    }
    Ok(composed)
}

/// Composes the policy of a command line. Prints a note if a package manager takes long to answer.
pub(crate) fn compose(
    policy: &PolicyRequest,
    machine: &Machine,
    is_quiet: bool,
) -> Result<Composed, Failure> {
    Ok(exeat_compose::compose(policy, machine, &Clients { say: &say(is_quiet) })?)
}

/// Prints lines about package managers, unless the caller wants silence.
fn say(is_quiet: bool) -> impl Fn(&str) {
    move |line| {
        if !is_quiet {
            stdio::line("note", line);
        }
    }
}

/// Creates the next hop of a run, and reads its credentials.
pub(crate) fn open(hop: &NextHop, machine: &Machine) -> Result<UpstreamProxy, Failure> {
    Ok(UpstreamProxy::new(hop.url().clone(), hop.bypass(), hop.credentials(&machine.env)?))
}

/// The request that results from the arguments of `exeat run`.
#[derive(Debug)]
pub(crate) struct RunRequest {
    pub(crate) request: Request,
    /// Notes for the user before the stage starts.
    pub(crate) notes: Vec<String>,
    /// Reasons that hosts of a preset may be missing, for the end of the run.
    pub(crate) doubts: Vec<String>,
    /// The stage declares `Llm`, whoever grants its hosts.
    pub(crate) llm: bool,
    /// The failure if a policy file names a path that does not exist, so that the run cannot be planned.
    pub(crate) missing: Option<Failure>,
}

/// Turns the arguments of `exeat run` into a request.
pub(crate) fn run(args: RunArgs, machine: Machine) -> Result<RunRequest, Failure> {
    if args.command.first().is_none_or(|command| command.is_empty()) {
        return Err(Failure::input("there is no command to run")
            .hint("exeat run --allow api.example.com -- curl -sS https://api.example.com/"));
    }
    if let Some(first) = args.command.first().map(Path::new).filter(|_| args.locked.is_some())
        && exeat_compose::is_lock(first, &machine)
    {
        let shown = first.display().to_string();
        return Err(Failure::input(format!("`{shown}` is a lock, and stands where COMMAND does"))
            .hint(format!("probably meant: --locked={}", exeat_policy::shell_word(&shown))));
    }
    let policy = policy_of(&args, &machine)?;
    // A stage that cannot change the working directory gets no persistent cache either, unless one is requested.
    let is_cwd = |bind: &Bind| {
        bind.guest == machine.cwd && machine.links().walk(&bind.host).is_ok_and(|end| end.real == machine.cwd)
    };
    let is_read_only = policy.ro.iter().any(is_cwd);
    let mut composed = compose_for_run(&policy, &machine, &Clients { say: &say(args.quiet) })?;
    let told = loopback::note(&composed.policy, &composed.host_ports).filter(|_| args.via.is_none());
    composed.notes.extend(told);
    composed.notes.extend(loopback::note_own_name(&composed.policy).filter(|_| args.via.is_none()));
    composed.notes.extend(unset(&args.env, &machine));
    let notes = not_redirected(&composed.redirected_by, &composed.environment, &machine).collect::<Vec<_>>();
    composed.notes.extend(notes);
    composed.keep_secrets();
    keep_key(args.audit_key.as_ref(), &composed.environment)?;
    composed.files.cache = composed.cache.unwrap_or_else(|| usual_cache(is_read_only, &machine));
    Ok(RunRequest {
        notes: take(&mut composed.notes),
        doubts: take(&mut composed.doubts),
        llm: composed.llm,
        missing: composed.missing.take().map(Failure::from),
        request: Request {
            command: args.command,
            via: args.via.map(|at| machine.absolute(&at.0)),
            labels: labels(args.labels, &machine),
            audit: audit(args.audit.as_ref(), &machine)?,
            signing: signing(args.audit_key.as_ref(), &machine)?,
            ..Request::from_composed(composed, machine)?
        },
    })
}

/// Takes what the flags say about the policy. Fails with every fault in their values.
pub(crate) fn policy_of(args: &RunArgs, machine: &Machine) -> Result<PolicyRequest, Failure> {
    let mut faults = Vec::new();
    let mut policy = PolicyRequest {
        via: args.via.is_some(),
        lock: args.locked.clone(),
        stage: args.stage.clone(),
        view: args.fs.map(View::from),
        env: args.env.iter().cloned().map(rule).collect(),
        limits: args.limits.clone().into(),
        ..args.policy.request()
    };
    policy.sandbox.backend = args.backend;
    let mut keep = |flag: &str, fault: Fault| faults.push((flag.to_owned(), fault));
    match exeat_compose::names_to_write(&written(&args.allow_write), "--allow-write") {
        Ok(names) => policy.allow_write = names,
        Err(fault) => keep("--allow-write", fault),
    }
    let no_place = |flag: &str, error| Fault::input(flag).because(error);
    for (flag, binds, list) in [("--ro", &args.ro, &mut policy.ro), ("--rw", &args.rw, &mut policy.rw)] {
        for bind in binds {
            match machine.place_bind(bind, &machine.base) {
                Ok(bind) => list.push(bind),
                Err(error) => keep(flag, no_place(flag, error)),
            }
        }
    }
    for path in &args.mask {
        match machine.place(path, &machine.base) {
            Ok(path) => policy.mask.push(path),
            Err(error) => keep("--mask", no_place("--mask", error)),
        }
    }
    if let Err(Failure::Fault(fault)) = check_labels(&args.labels) {
        keep("--label", fault);
    }
    faults.extend(exeat_compose::flag_faults(&policy));
    match exeat_compose::join_faults(faults) {
        Some(fault) => Err(fault.into()),
        None => Ok(policy),
    }
}

/// Returns values of a flag as names of a policy file.
fn written(names: &[String]) -> Vec<WrittenName> {
    names.iter().map(|name| WrittenName { name: name.clone(), line: None }).collect()
}

/// Creates the request whose environment `exeat env` prints: a run with these options and any command.
pub(crate) fn env(args: EnvArgs, machine: Machine) -> Result<(Request, Vec<String>), Failure> {
    let policy = PolicyRequest {
        via: args.via.is_some(),
        env: args.env.iter().cloned().map(rule).collect(),
        ..args.policy.request()
    };
    let mut composed = compose(&policy, &machine, false)?;
    let doubts = take(&mut composed.doubts);
    composed.notes.extend(doubts);
    composed.notes.extend(unset(&args.env, &machine));
    composed.keep_secrets();
    composed.files.cache = composed.cache.unwrap_or_else(|| usual_cache(false, &machine));
    let notes = take(&mut composed.notes);
    let request = Request {
        command: vec!["true".into()],
        via: args.via.map(|at| machine.absolute(&at.0)),
        signing: Signing::Off,
        ..Request::from_composed(composed, machine)?
    };
    Ok((request, notes))
}

/// Returns a line for each variable that a flag passes and that is not set.
fn unset<'a>(variables: &'a [Variable], machine: &'a Machine) -> impl Iterator<Item = String> + 'a {
    variables.iter().filter_map(|variable| match variable {
        // The environment itself reports a pattern without variables.
        Variable::Pass(name) if name.as_bytes().ends_with(b"*") => None,
        Variable::Pass(name) if !machine.env.contains_key(name) => {
            Some(format!("--env: `{}` is not set here, so it is not passed", name.display()))
        }
        _ => None,
    })
}

/// Returns a line on each variable of the caller that would send a preset's client to another host, and that the stage does not get.
fn not_redirected<'a>(
    names: &'a [&'static str],
    env: &'a [EnvRule],
    machine: &'a Machine,
) -> impl Iterator<Item = String> + 'a {
    let is_told = |name: &str| {
        env.iter().any(|rule| match rule {
            EnvRule::Pass(it) | EnvRule::Set(it, _) | EnvRule::Remove(it) => it == OsStr::new(name),
        })
    };
    names.iter().filter(move |name| machine.env.contains_key(OsStr::new(name)) && !is_told(name)).map(|name| {
        format!(
            "`{name}` is set here and not passed, so the stage asks another host: --env {name} passes it; a host that no preset grants needs a rule (--allow HOST, or --host-port PORT for this machine's)"
        )
    })
}

fn rule(variable: Variable) -> EnvRule {
    match variable {
        Variable::Pass(name) => EnvRule::Pass(name),
        Variable::Set(name, value) => EnvRule::Set(name, value),
    }
}

/// The labels that a job of a scheduler gives a run, and the variables that they come from.
const JOB_LABELS: [(&str, &str); 6] = [
    ("slurm_job", "SLURM_JOB_ID"),
    ("slurm_array_job", "SLURM_ARRAY_JOB_ID"),
    ("slurm_array_task", "SLURM_ARRAY_TASK_ID"),
    ("github_run", "GITHUB_RUN_ID"),
    ("github_job", "GITHUB_JOB"),
    ("gitlab_job", "CI_JOB_ID"),
];

/// Checks that there are not too many labels, and that each key is given once.
pub(crate) fn check_labels(given: &[Label]) -> Result<(), Failure> {
    if given.len() > MAX_LABELS {
        let why = format!("{} labels are given, and a record has at most {MAX_LABELS}", given.len());
        return Err(Failure::input(why));
    }
    let twice =
        given.iter().enumerate().find(|(at, label)| given.iter().take(*at).any(|it| it.key == label.key));
    match twice {
        Some((_, label)) => Err(Failure::input(format!("the label `{}` is given twice", label.key))),
        None => Ok(()),
    }
}

/// Adds the labels of a job to the given ones, up to the maximal number of labels.
pub(crate) fn labels(given: Vec<Label>, machine: &Machine) -> Vec<(String, String)> {
    let mut all: Vec<_> = given.into_iter().map(|label| (label.key, label.value)).collect();
    let is_plain = |value: &&str| {
        (1..=MAX_LABEL_VALUE).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_graphic())
    };
    for (key, variable) in JOB_LABELS {
        let value = machine.env.get(OsStr::new(variable)).and_then(|value| value.to_str()).filter(is_plain);
        if let Some(value) = value
            && all.len() < MAX_LABELS
            && all.iter().all(|(known, _)| known != key)
        {
            all.push((key.to_owned(), value.to_owned()));
        }
    }
    all
}

/// Returns the default cache. A read-only stage leaves nothing to the next one, so its cache ends with the run. So does that of a
/// stage in a temporary directory, whose path another task may use again.
fn usual_cache(is_read_only: bool, machine: &Machine) -> Cache {
    let tmpdir = machine.env.get(OsStr::new("TMPDIR")).map(Path::new).filter(|dir| dir.is_absolute());
    let mut temporary = ["/tmp", "/var/tmp"].map(Path::new).into_iter().chain(tmpdir);
    if is_read_only || temporary.any(|dir| machine.cwd.starts_with(dir)) {
        Cache::Run
    } else {
        Cache::Private
    }
}

/// Returns the destination of the record.
pub(crate) fn audit(output: Option<&Output>, machine: &Machine) -> Result<AuditTo, Failure> {
    Ok(match output {
        None => AuditTo::Default,
        Some(Output::File(path)) if machine.absolute(path).is_dir() => {
            let word = shell_word(&path.display().to_string());
            let why = format!("--audit: `{}` is a directory", printable(&path.display().to_string()));
            return Err(Failure::input(why).hint(format!("name a new file in it: --audit {word}/NAME.jsonl")));
        }
        Some(Output::File(path)) => {
            let place = machine.links().place(&machine.absolute(path));
            AuditTo::File(
                place.map_err(|error| {
                    Failure::not_written("cannot write the record to", path, error.into())
                })?,
            )
        }
        Some(Output::Fd(n)) => {
            let fd = take_fd("--audit", *n)?;
            let is_filled = fstat(&fd).is_ok_and(|stat| {
                SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG && stat.st_size > 0
            });
            if is_filled {
                let why = format!("--audit: descriptor {n} is a file that holds something");
                return Err(Failure::input(why).hint("a record is the only one in its file: open a new one"));
            }
            AuditTo::Fd(fd)
        }
    })
}

/// Returns the key that signs the record.
pub(crate) fn signing(from: Option<&KeyFrom>, machine: &Machine) -> Result<Signing, Failure> {
    /// The maximal size of a key in bytes; longer input is not a key.
    const MOST: u64 = 16 * 1024;
    let key = |text: &str, whence: String| {
        let key = SigningKey::from_pem(text);
        key.map(Signing::Key).map_err(|error| Failure::input(format!("{whence}: {error}")))
    };
    match from {
        None => Ok(Signing::Own),
        Some(KeyFrom::Nothing) => Ok(Signing::Off),
        Some(KeyFrom::File(path)) => {
            let place = machine.links().place_at_end(&machine.absolute(path));
            place.map(Signing::File).map_err(|error| {
                Failure::input(format!("cannot use the key `{}`", path.display())).because(error)
            })
        }
        Some(KeyFrom::Env(name)) => {
            let whence = format!("`--audit-key env:{name}`");
            let value = machine.env.get(OsStr::new(name));
            let value =
                value.ok_or_else(|| Failure::input(format!("{whence}: there is no such variable")))?;
            key(value.to_str().unwrap_or_default(), whence)
        }
        Some(KeyFrom::Fd(n)) => {
            let mut text = String::new();
            let read = File::from(take_fd("--audit-key", *n)?).take(MOST).read_to_string(&mut text);
            read.map_err(|error| Failure::input(format!("cannot read `--audit-key fd:{n}`")).because(error))?;
            key(&text, format!("`--audit-key fd:{n}`"))
        }
    }
}

/// Fails if the stage would get the variable that contains the key.
fn keep_key(from: Option<&KeyFrom>, env: &[EnvRule]) -> Result<(), Failure> {
    let Some(KeyFrom::Env(key)) = from else { return Ok(()) };
    let shown = env.iter().any(|rule| match rule {
        EnvRule::Pass(name) | EnvRule::Set(name, _) => {
            let prefix = name.as_bytes().strip_suffix(b"*");
            name == OsStr::new(key) || prefix.is_some_and(|prefix| key.as_bytes().starts_with(prefix))
        }
        _ => false,
    });
    match shown {
        true => Err(Failure::input(format!(
            "`{key}` holds the key that signs the record: the stage may not have it"
        ))),
        false => Ok(()),
    }
}

/// Checks that the caller has opened the descriptors that the arguments name. Must be called before exeat opens any: the number of a
/// descriptor that the caller forgot would otherwise belong to one of exeat's.
pub(crate) fn inherited(outputs: &[(&str, Option<&Output>)]) -> Result<(), Failure> {
    for (flag, output) in outputs {
        let Some(Output::Fd(n)) = output else { continue };
        if let Err(error) = fs::symlink_metadata(format!("/proc/self/fd/{n}")) {
            return Err(descriptor_not_open(flag, *n, error).into());
        }
    }
    Ok(())
}

/// Takes an inherited descriptor over, so that no stage inherits it.
pub(crate) fn take_fd(flag: &str, n: i32) -> Result<std::os::fd::OwnedFd, Failure> {
    exeat_runner::take_fd(n).map_err(|error| descriptor_not_open(flag, n, error).into())
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
