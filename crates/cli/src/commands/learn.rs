//! `exeat learn`: runs a command in report mode, and prints the policy that its record requires. `exeat-audit` derives the
//! policy.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use exeat_audit::learn::{Known, Learned, allows_nothing};
use exeat_audit::query::{self, Filter};
use exeat_audit::summary::Summary;
use exeat_files::place;
use exeat_policy::{Mode, printable};
use exeat_record::today;
use nix::fcntl::OFlag;
use nix::unistd::Pid;

use crate::args::{LearnArgs, Output};
use crate::commands::run::{self, Finished};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::request;
use crate::stdio;
use crate::terminal::Paint;

/// Runs the command, and returns its exit code.
pub(crate) fn run(args: LearnArgs, parent: Pid, paint: Paint) -> Result<Exit, Failure> {
    let LearnArgs { run: mut args, output, force } = args;
    can_learn(&args)?;
    args.policy.mode = Some(Mode::Report);
    if args.dry_run {
        return run::run(args, parent, paint);
    }
    request::inherited(&[("--output", output.as_ref())])?;
    request::inherited(&[("--result", args.result.as_ref())])?;
    let sink = output.as_ref().map(|output| Sink::open(output, force)).transpose()?;
    let quiet = args.quiet;
    let finished = run::carry_out(args, parent, paint)?;
    let exit = finished.exit;
    if !finished.is_started {
        // A policy that allows nothing would look like one of a run that reached nothing.
        stdio::line("note", "nothing is learned: the command did not start");
        return Ok(exit);
    }
    let learned = learned(&finished).and_then(|(text, is_any)| match sink {
        Some(sink) => sink.write(&text, is_any, quiet),
        None => {
            stdio::write_stderr("exeat: learned policy; --output FILE writes it:\n");
            stdio::write_stderr(&text);
            Ok(())
        }
    });
    match learned {
        // The stage has run, and its exit code says more than that of this failure.
        Err(failure) if exit != Exit::Stage(0) => {
            stdio::write_stderr(&failure.report(paint));
            Ok(exit)
        }
        learned => learned.map(|()| exit),
    }
}

/// Checks that the record of a run can contain what it reached.
fn can_learn(args: &crate::args::RunArgs) -> Result<(), Failure> {
    let not = |what: &str, hint: &str| Err(Failure::input(format!("exeat learn: {what}")).hint(hint));
    if args.policy.mode == Some(Mode::Enforce) {
        return not("it runs in report mode", "of a run that enforces: exeat audit learn --denied");
    }
    if args.via.is_some() {
        return not("with --via the record is another proxy's", "exeat audit learn FILE reads that one");
    }
    if args.locked.is_some() {
        return not("with --locked there is nothing to learn", "leave out --locked");
    }
    if matches!(args.audit, Some(Output::Fd(_))) {
        return not("a record on a descriptor cannot be read again", "--audit FILE");
    }
    Ok(())
}

/// Returns the learned policy, and whether it allows anything.
fn learned(finished: &Finished) -> Result<(String, bool), Failure> {
    let Some(record) = &finished.record else {
        return Err(Failure::could("the run left no record to learn from"));
    };
    let unreadable = |error| Failure::could(format!("cannot read `{}`", record.display())).because(error);
    let mut summary = Summary::for_grants();
    let mut reader = query::read(record).map_err(unreadable)?;
    summary.read(&mut reader, &Filter::default()).and_then(|_| summary.finish()).map_err(unreadable)?;
    let known = Known {
        policy: Some(&finished.policy),
        host_ports: &finished.host_ports,
        denied: false,
        today: today(),
    };
    let learned = Learned::new(&summary);
    let text = learned.policy_file(&known);
    text.map(|text| (text, learned.is_any())).map_err(|error| Failure::could("cannot learn").because(error))
}

/// The output file of the policy, opened before the stage runs.
struct Sink {
    output: place::Output,
    /// The name of the file; `None` for a descriptor.
    shown: Option<String>,
}

impl Sink {
    fn open(output: &Output, force: bool) -> Result<Self, Failure> {
        match output {
            Output::Fd(n) => {
                let output = place::Output::Stream(request::take_fd("--output", *n)?.into());
                Ok(Self { output, shown: None })
            }
            Output::File(path) => {
                Ok(Self { output: output_at(path, force)?, shown: Some(path.display().to_string()) })
            }
        }
    }

    fn write(self, text: &str, is_any: bool, quiet: bool) -> Result<(), Failure> {
        give_way(&self.output);
        let written = self.output.write(0o666, |out| out.write_all(text.as_bytes()));
        match (written, self.shown) {
            (Ok(()), Some(shown)) if !quiet => {
                let nothing = if is_any {
                    ""
                } else {
                    " (it allows nothing, as nothing was reached; the next `exeat learn` replaces it)"
                };
                stdio::line("note", &format!("learned policy: {shown}{nothing}"));
                Ok(())
            }
            (Ok(()), _) => Ok(()),
            (Err(error), _) => {
                // The policy is the purpose of the run, so it must not be lost.
                stdio::write_stderr(text);
                Err(Failure::could("cannot write the learned policy").because(error))
            }
        }
    }
}

/// Removes a policy that `exeat learn` wrote after a run that reached nothing, so that the next one can take its place.
pub(crate) fn give_way(output: &place::Output) {
    if let place::Output::Whole(place) = output
        && is_empty_policy(place.path())
    {
        // Otherwise the write reports that the file is there.
        let _ = place.remove();
    }
}

/// Returns whether the file is a policy that `exeat learn` wrote, and allows nothing.
fn is_empty_policy(path: &Path) -> bool {
    /// More than such a file has, with its comments about what was refused.
    const MOST: u64 = 1 << 20;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits());
    let mut text = String::new();
    options.open(path).is_ok_and(|file| {
        let is_small = file.metadata().is_ok_and(|meta| meta.is_file() && meta.len() <= MOST);
        is_small && file.take(MOST).read_to_string(&mut text).is_ok()
    }) && allows_nothing(&text)
}

/// Opens the output for a policy file. Fails without `force` if the file exists, because it may be somebody's work.
pub(crate) fn output_at(path: &Path, force: bool) -> Result<place::Output, Failure> {
    let shown = printable(&path.display().to_string());
    let output =
        place::Output::open(path).map_err(|error| Failure::not_written("cannot write", path, error))?;
    if matches!(output, place::Output::Whole(_))
        && !force
        && path.symlink_metadata().is_ok()
        && !is_empty_policy(path)
    {
        return Err(Failure::input(format!("`{shown}` is there already")).hint("--force replaces it"));
    }
    Ok(match output {
        place::Output::Whole(place) if !force => place::Output::Whole(place.only_new()),
        output => output,
    })
}
