//! `exeat run`: the request to the runner, and its outcome to the caller. Signals, processes and connections are the
//! runner's.

use std::io;
use std::path::Path;

use exeat_runner::{Ended, Outcome};

use crate::args::{Output, Require, RunArgs};
use crate::commands::audit;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::machine::Machine;
use crate::render::{self, Ending, Paint, printable_lines};
use crate::request::{self, Asked};
use crate::result::{RunResult, Sink};
use crate::stdio;

/// Runs the command and answers with its exit code.
pub(crate) fn run(args: RunArgs, paint: Paint) -> Result<Exit, Failure> {
    let machine = Machine::here()?;
    if args.dry_run {
        return dry_run(args, machine);
    }
    apart(args.audit.as_ref(), args.result.as_ref(), &machine)?;
    request::inherited(&[("--audit", args.audit.as_ref()), ("--result", args.result.as_ref())])?;
    let sink = args.result.as_ref().map(Sink::open).transpose()?;
    let quiet = args.quiet;
    let place = audit::place_of(&machine).ok();

    let done = attempt(args, machine);
    if let Some(sink) = sink {
        let result = match &done {
            Ok((outcome, _)) => RunResult::of(outcome),
            Err(failure) => RunResult::failed(failure),
        };
        if let Err(error) = sink.write(&result) {
            // The stage has run: its exit code says more than ours would.
            stdio::say(&Failure::could("cannot write the result").because(error).report(paint));
        }
    }

    let (outcome, llm) = done?;
    for note in &outcome.notes {
        stdio::line("note", note);
    }
    if outcome.ended == Ended::NotFound {
        stdio::say(
            "  hint: --ro PATH shows the stage what lies outside of its view; with --fs minimal that is all but what is named\n",
        );
    }
    let silent = render::is_silent(&outcome.summary);
    if !quiet && silent && outcome.ended == Ended::Timeout {
        stdio::line("note", "the stage was stopped at its time limit (timeout)");
    }
    if !quiet && (!silent || matches!(outcome.ended, Ended::Limit(_))) {
        // The short name takes a look at every record there is, so only where it is printed.
        let record = outcome.audit.as_deref().map(|path| audit::name_of(path, place.as_ref()));
        let ending = Ending { summary: &outcome.summary, ended: Some(outcome.ended), record, llm };
        stdio::say(&ending.render(paint));
    }
    if let Some(through) = outcome.through.as_ref().filter(|_| !quiet) {
        stdio::say(&render::through(&outcome.summary, through));
    }
    Ok(outcome.ended.into())
}

/// The outcome, and whether the stage declared `Llm`.
fn attempt(args: RunArgs, machine: Machine) -> Result<(Outcome, bool), Failure> {
    let (quiet, require) = (args.quiet, args.require);
    let Asked { request, notes: hints, llm } = request::run(args, machine)?;
    let plan = exeat_runner::plan(request)?;
    match require {
        Some(Require::Full) => plan.require_full()?,
        None => {}
    }
    for hint in hints.iter().filter(|_| !quiet) {
        stdio::line("note", hint);
    }
    // What weakens a promise is said whatever `--quiet` says.
    for note in plan.notes() {
        stdio::line("note", note);
    }
    Ok((exeat_runner::run(plan)?, llm))
}

fn dry_run(args: RunArgs, machine: Machine) -> Result<Exit, Failure> {
    let json = args.json;
    let Asked { request, notes: hints, .. } = request::run(args, machine)?;
    let plan = exeat_runner::plan(request)?;
    for note in hints.iter().chain(plan.notes()) {
        stdio::line("note", note);
    }
    if json {
        stdio::json(&plan.to_json().to_string())?;
    } else {
        stdio::data(printable_lines(&plan.to_text()).as_bytes())?;
    }
    Ok(Exit::Yes)
}

/// The record and the result are two things: one would end in the middle of the other, or replace it.
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
