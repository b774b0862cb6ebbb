//! `exeat run`: passes the request to the runner, and its outcome to the caller. The runner handles signals, processes and
//! connections.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue};
use exeat_compose::Machine;
use exeat_policy::file::View;
use exeat_policy::{HostPort, Limits, Policy};
use exeat_runner::{
    Ended, LineCallback, NewKey, OnDenied, Outcome, Oversight, Parent, Plan, RunResult, Settlement,
};
use nix::unistd::Pid;

use crate::args::audit::KeyFrom;
use crate::args::unread::{Places, all_refused, places};
use crate::args::{Command, OnDeniedWhat, Output, Require, RunArgs};
use crate::commands::{audit, not_found};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::render::{self, Ending};
use crate::request::{self, RunRequest};
use crate::result::{self, Sink};
use crate::stdio;
use crate::terminal::{Paint, name_stage, printable_lines};

/// Runs the command and returns its exit code.
pub(crate) fn run(args: RunArgs, parent: Pid, paint: Paint) -> Result<Exit, Failure> {
    if args.dry_run {
        return dry_run(args, crate::request::here()?);
    }
    if exeat_runner::is_passed() {
        return as_it_is(&args);
    }
    Ok(carry_out(args, parent, paint)?.exit)
}

/// Executes the command inside the sandbox of the run around this one, which passes inner runs through. The policy, limits and view of
/// the inner run then have no effect.
fn as_it_is(args: &RunArgs) -> Result<Exit, Failure> {
    let promised = [
        ("--require", args.require.is_some()),
        ("--result", args.result.is_some()),
        ("--audit", args.audit.is_some()),
    ];
    if let Some((flag, _)) = promised.iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::could(format!(
            "`{flag}`: a run inside a run executes its command as it is, and cannot keep that"
        ))
        .hint("leave the flag out, or start exeat outside"));
    }
    let Some((program, words)) = args.command.split_first() else {
        return Err(Failure::input("there is no command to run"));
    };
    if !args.quiet {
        let what = "inside a run: the command is executed as it is, under the policy and the record of the outer run; this run's own flags have no effect";
        stdio::line("note", what);
    }
    #[expect(clippy::disallowed_methods, reason = "the stage's own command, in the stage's own place")]
    let error = std::process::Command::new(program).args(words).exec();
    let ended = if error.kind() == io::ErrorKind::NotFound { Ended::NotFound } else { Ended::NotExecutable };
    let failure = Failure::could(format!("cannot execute `{}`", program.display())).because(error);
    failure.report_on_stderr(ended.into(), args.format.is_json(), Paint::PLAIN);
    Ok(ended.into())
}

/// A run that is over.
pub(crate) struct Finished {
    /// The exit code of the run.
    pub(crate) exit: Exit,
    /// Whether the command was executed.
    pub(crate) is_started: bool,
    /// The record; `None` if it was written to a descriptor.
    pub(crate) record: Option<PathBuf>,
    /// The policy of the run.
    pub(crate) policy: Policy,
    /// The services of this machine that the run offered.
    pub(crate) host_ports: Vec<HostPort>,
}

/// Runs the command and prints its summary. `parent` is the process that started this one.
pub(crate) fn carry_out(args: RunArgs, parent: Pid, paint: Paint) -> Result<Finished, Failure> {
    args.stage.iter().for_each(|stage| name_stage(stage));
    let on_denied = args.on_denied.map_or(OnDenied::Note, OnDenied::from);
    let machine = crate::request::here()?;
    apart(args.audit.as_ref(), args.result.as_ref(), &machine)?;
    request::inherited(&[("--result", args.result.as_ref())])?;
    let key = args.audit_key.as_ref().and_then(KeyFrom::descriptor);
    let record = request::inherited(&[("--audit", args.audit.as_ref()), ("--audit-key", key.as_ref())]);
    let policies = args.policy.descriptors();
    let policies: Vec<_> = policies.iter().map(|(flag, read)| (*flag, Some(read))).collect();
    let record = record.and_then(|()| request::inherited(&policies));
    let sink = args.result.as_ref().map(Sink::open).transpose()?;
    let (quiet, is_json) = (args.quiet, args.format.is_json());
    let place = audit::place_of(&machine).ok();

    let command = args.command.clone();
    let (stage, labels) = (args.stage.clone(), request::labels(args.labels.clone(), &machine));
    let done = record.and_then(|()| attempt(args, parent, machine));
    let mut no_result = false;
    if let Some(sink) = sink {
        let result = match &done {
            Ok(Done { outcome, .. }) => RunResult::from_outcome(outcome),
            Err(failure) => result::of_failure(failure).with_names(stage.as_deref(), &labels),
        };
        if let Err(failure) = sink.write(&result) {
            stdio::write_stderr(&failure.report(paint));
            no_result = true;
        }
    }

    let lost = done.as_ref().err().and_then(Failure::run_lost);
    for note in lost.map(|lost| lost.notes.as_slice()).unwrap_or_default() {
        stdio::line("note", note);
    }
    let Done { outcome, doubts, llm, limits, policy, host_ports, view } = done?;
    for note in &outcome.notes {
        stdio::line("note", note);
    }
    if let Some(why_not) = &outcome.why_not {
        let hint = if outcome.ended == Ended::NotFound {
            Some(not_found::hint(&command, &view))
        } else {
            not_found::hint_not_executable(&command)
        };
        let failure = Failure::could(why_not);
        let failure = if let Some(hint) = hint { failure.hint(hint) } else { failure };
        failure.report_on_stderr(outcome.ended.into(), is_json, paint);
    }
    let reason = render::reason(outcome.ended, &limits);
    // Finding the short name lists every record, so it is done only if the name is printed.
    let is_named = !quiet && (reason.is_some() || !render::is_silent(&outcome.summary));
    let record = outcome.audit.as_deref().filter(|_| is_named);
    let ending = Ending {
        summary: &outcome.summary,
        ended: Some(outcome.ended),
        reason,
        record: record.map(|path| audit::name_of(path, place.as_ref())),
        seal: render::seal(&outcome),
        llm,
        on_denied,
    };
    stdio::write_stderr(&if quiet { ending.render_reason() } else { ending.render(paint) });
    if let Some(through) = outcome.through.as_ref().filter(|_| !quiet) {
        stdio::write_stderr(&render::through(&outcome.summary, through));
    }
    for doubt in doubts.iter().filter(|_| !quiet) {
        stdio::line("note", doubt);
    }
    let exit = match Exit::from(outcome.ended) {
        // A caller that asked for the result would expect one after 0. Any other code says more than this one would.
        exit if no_result && exit.code() == 0 => Exit::CouldNot,
        exit => exit,
    };
    let is_started = !matches!(outcome.ended, Ended::NotFound | Ended::NotExecutable);
    Ok(Finished { exit, is_started, record: outcome.audit, policy, host_ports })
}

/// Writes the result of a run whose arguments clap refused to each `--result` among them, so that an old file there is not taken
/// for this run's result. Ignores errors, because the refusal is on stderr in any case.
pub(crate) fn refused(failure: &Failure) {
    let words: Vec<OsString> = std::env::args_os().collect();
    let (Some(Places { results, audits, is_dry: false, .. }), Ok(machine)) =
        (places(&words), crate::request::here())
    else {
        return;
    };
    let named: Vec<_> = results.iter().map(|result| ("--result", Some(result))).collect();
    let apart = |result| audits.iter().all(|audit| apart(Some(audit), Some(result), &machine).is_ok());
    if request::inherited(&named).is_err() || !results.iter().all(apart) {
        return;
    }
    for sink in results.iter().filter_map(|result| Sink::open(result).ok()) {
        let _ = sink.write(&result::of_failure(failure));
    }
}

/// The refusal of a command line by clap, with the other faults in the values of its flags. Also returns whether there is no other.
pub(crate) fn refusal_of_all(words: &[OsString], first: clap::Error) -> (Failure, bool) {
    let alone = refusal(&first);
    let (refused, rest) = all_refused(words, first);
    let of_run = rest.and_then(|cli| match cli.command {
        Command::Run(args) => request::policy_of(&args, &request::here().ok()?).err(),
        _ => None,
    });
    let refused = refused.into_iter().map(|error| {
        let flag = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(flag)) => flag.split(' ').next().unwrap_or_default().to_owned(),
            _ => String::new(),
        };
        (flag, refusal(&crate::args::visible(error)))
    });
    let of_run = of_run.map(|failure| (String::new(), failure));
    let faults = refused.chain(of_run).filter_map(|(flag, failure)| match failure {
        Failure::Fault(fault) => Some((flag, fault)),
        _ => None,
    });
    let faults: Vec<_> = faults.collect();
    match faults.len() {
        0 | 1 => (alone, true),
        _ => (exeat_compose::join_faults(faults).map_or(alone, Failure::from), false),
    }
}

/// The refusal of arguments by clap, with what was probably meant.
pub(crate) fn refusal(error: &clap::Error) -> Failure {
    let text = in_one(error);
    let failure = match text.split_once("\n\n  tip: ") {
        Some((text, tips)) => Failure::input(text).hint(tips.replace("\n  tip: ", "; ")),
        None => Failure::input(text),
    };
    let suggested =
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    let meant = suggested.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => texts.first().cloned(),
        _ => None,
    });
    match meant {
        Some(meant) => failure.suggest(meant),
        None => failure,
    }
}

/// Returns clap's message without its prefix and the usage.
fn in_one(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let end = ["\n\nUsage:", "\n\nFor more information"].iter().filter_map(|tail| text.find(tail)).min();
    text.get(..end.unwrap_or(text.len())).unwrap_or(text).trim_end().to_owned()
}

/// The result of a run.
struct Done {
    outcome: Outcome,
    /// Reasons that hosts of a preset may be missing.
    doubts: Vec<String>,
    /// The stage declared `Llm`.
    llm: bool,
    /// The limits that applied.
    limits: Limits,
    policy: Policy,
    host_ports: Vec<HostPort>,
    view: not_found::View,
}

fn attempt(args: RunArgs, parent: Pid, machine: Machine) -> Result<Done, Failure> {
    let quiet = args.quiet;
    // First, because the parent may end at any time.
    let parent = args.end_with_parent.then(|| Parent::hold(parent)).transpose().map_err(|error| {
        Failure::could("cannot watch the process that started exeat, for --end-with-parent").because(error)
    })?;
    let on_denied = args.on_denied.map_or(OnDenied::Note, OnDenied::from);
    if on_denied != OnDenied::Note && args.via.is_some() {
        return Err(Failure::input(
            "`--on-denied`: with `--via` somebody else's proxy refuses, and this run does not know",
        ));
    }
    let live: Option<LineCallback> = if quiet { None } else { Some(Box::new(stdio::say_now)) };
    let oversight = Oversight { parent, on_denied, live };
    // What the stage of a killed run has left must not decide about this one.
    let mut settled = exeat_runner::settle_killed(&machine.env, &[&machine.cwd]);
    let prepared = prepare(args, machine, &mut settled);
    let Prepared { mut plan, key, hints, doubts, llm, limits, host_ports, view } = match prepared {
        Ok(prepared) => prepared,
        Err(failure) => {
            for line in exeat_runner::settled_lines(settled) {
                stdio::line("note", &line);
            }
            return Err(failure);
        }
    };
    plan.report_settled(settled);
    key.keep();
    for hint in hints.iter().filter(|_| !quiet) {
        stdio::line("note", hint);
    }
    // `--quiet` does not suppress notes about weakened promises.
    for note in plan.notes() {
        stdio::line("note", note);
    }
    let policy = plan.policy().clone();
    plan.record_doubts(doubts.clone());
    let outcome = exeat_runner::run(plan, oversight)?;
    Ok(Done { outcome, doubts, llm, limits, policy, host_ports, view })
}

/// A run that can start. The fields that [`Done`] has, too, are as there.
struct Prepared {
    plan: Plan,
    key: NewKey,
    /// Notes for the user before the stage starts.
    hints: Vec<String>,
    doubts: Vec<String>,
    llm: bool,
    limits: Limits,
    host_ports: Vec<HostPort>,
    view: not_found::View,
}

/// Plans the run, and settles the killed runs that are left in its trees.
fn prepare(args: RunArgs, machine: Machine, settled: &mut Settlement) -> Result<Prepared, Failure> {
    let require = args.require;
    let RunRequest { request, notes: hints, doubts, llm, missing } = request::run(args, machine)?;
    missing.map_or(Ok(()), Err)?;
    // A policy file may have named the stage.
    request.stage.iter().for_each(|stage| name_stage(stage));
    let limits = request.limits;
    let host_ports = request.host_ports.clone();
    let is_minimal = request.files.view == View::Minimal;
    let key = exeat_runner::prepare_key(&request.signing, &request.host_env)?;
    exeat_runner::settle_killed_of(&request, settled);
    let mut plan = exeat_runner::plan(request)?;
    match require {
        Some(Require::Full) => plan.require_full()?,
        None => {}
    }
    let view = not_found::View { minimal: is_minimal.then(|| plan.shown()), ways: plan.ways().clone() };
    Ok(Prepared { plan, key, hints, doubts, llm, limits, host_ports, view })
}

impl From<OnDeniedWhat> for OnDenied {
    fn from(what: OnDeniedWhat) -> Self {
        match what {
            OnDeniedWhat::Note => Self::Note,
            OnDeniedWhat::End => Self::End,
            OnDeniedWhat::Fail => Self::Fail,
        }
    }
}

fn dry_run(args: RunArgs, machine: Machine) -> Result<Exit, Failure> {
    let json = args.format.is_json();
    let RunRequest { request, notes: hints, doubts, missing, .. } = request::run(args, machine)?;
    missing.map_or(Ok(()), Err)?;
    let plan = exeat_runner::plan(request)?;
    for note in hints.iter().chain(plan.notes()).chain(&doubts) {
        stdio::line("note", note);
    }
    if json {
        stdio::json(&plan.to_json().to_string())?;
    } else {
        stdio::data(printable_lines(&plan.to_text()).as_bytes())?;
    }
    Ok(Exit::Yes)
}

/// Checks that the record and the result go to different places: one would otherwise end up inside the other, or replace it.
fn apart(audit: Option<&Output>, result: Option<&Output>, machine: &Machine) -> Result<(), Failure> {
    let same = match (audit, result) {
        (Some(Output::Fd(audit)), Some(Output::Fd(result))) => audit == result,
        (Some(Output::File(audit)), Some(Output::File(result))) => {
            let (audit, result) = (machine.cwd.join(audit), machine.cwd.join(result));
            audit == result || same_file(&audit, &result).unwrap_or(false)
        }
        _ => false,
    };
    if same { Err(Failure::input("`--audit` and `--result` name the same place")) } else { Ok(()) }
}

fn same_file(a: &Path, b: &Path) -> io::Result<bool> {
    Ok(a.canonicalize()? == b.canonicalize()?)
}
