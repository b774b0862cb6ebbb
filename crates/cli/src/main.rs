//! The `exeat` command: parses the arguments, runs the command and returns its exit code.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod env_vars;
mod exit;
mod failure;
mod render;
mod request;
mod result;
mod stdio;
mod terminal;
mod trace;

use std::ffi::OsStr;
use std::process::ExitCode;

use nix::unistd::getppid;

use args::audit::AuditCommand;
use args::state::StateCommand;
use args::unread::wants_json;
use args::{Cli, Command, PolicyCommand};
use commands::{audit, check, doctor, env, generate, learn, policy, preset, prove, proxy, run, state};
use exit::Exit;
use terminal::Paint;

fn main() -> ExitCode {
    // Users do not type this: `exeat prove` runs it as a stage.
    if let Some(done) = exeat_prove::inside::run_if_requested() {
        return done.map_or_else(refuse_inside, |()| Exit::Yes).end();
    }
    // First, because this process gets another parent if its parent ends.
    let parent = getppid();
    let words: Vec<_> = std::env::args_os().collect();
    // Only for a failure: it takes as long as the parsing.
    let is_json = || wants_json(&words);
    let cli = match Cli::parse_words(&words) {
        Ok(cli) => cli,
        Err(error) => {
            let first = std::env::args_os().nth(1);
            let error = args::visible(args::guessed(error, first.as_deref().and_then(OsStr::to_str)));
            if !error.use_stderr() {
                // It is not a failure if the reader of the help has gone.
                let _ = error.print();
                return Exit::Yes.end();
            }
            let alone = args::spoken(&error);
            let (refusal, is_alone) = run::refusal_of_all(&words, error);
            if is_json() {
                stdio::say_json(&refusal.json(Exit::BadInput));
            } else if is_alone {
                stdio::write_stderr(&alone);
            } else {
                stdio::write_stderr(&refusal.report(Paint::new(args::ColorWhen::Auto, &std::io::stderr())));
            }
            run::refused(&refusal);
            return Exit::BadInput.end();
        }
    };
    trace::start();
    let out = Paint::new(cli.output.color, &std::io::stdout());
    let err = Paint::new(cli.output.color, &std::io::stderr());
    let done = match cli.command {
        Command::Run(args) => run::run(*args, parent, err),
        Command::Learn(args) => learn::run(*args, parent, err),
        Command::Check(args) => check::run(&args, out),
        Command::Proxy(args) => proxy::run(args, err),
        Command::Policy { command } => match command {
            PolicyCommand::Show(args) => policy::show(&args, out),
            PolicyCommand::Lint(args) => policy::lint(&args, out),
            PolicyCommand::Diff(args) => policy::diff(&args, out),
            PolicyCommand::Schema(args) => policy::schema(&args),
        },
        Command::Preset(args) => preset::run(&args, out),
        Command::Prove(args) => prove::run(&args, out),
        Command::Env(args) => env::run(args),
        Command::Doctor(args) => doctor::run(&args, out),
        Command::Audit { command } => match command {
            AuditCommand::Show(args) => audit::show::run(&args, out),
            AuditCommand::Summary(args) => audit::summary::run(&args, out),
            AuditCommand::Diff(args) => audit::diff::run(&args, out),
            AuditCommand::Prune(args) => audit::prune::run(&args),
            AuditCommand::List(args) => audit::list::run(&args, out),
            AuditCommand::Export(args) => audit::export::run(&args),
            AuditCommand::Replay(args) => audit::replay::run(&args),
            AuditCommand::Learn(args) => audit::learn::run(&args),
            AuditCommand::Lock(args) => audit::lock::run(&args),
            AuditCommand::Report(args) => audit::report::run(&args),
            AuditCommand::Verify(args) => audit::verify::run(&args, out),
            AuditCommand::Key(args) => audit::key::run(&args),
        },
        Command::State { command } => match command {
            StateCommand::List(args) => state::list(&args),
            StateCommand::Restore(args) => state::restore(&args),
            StateCommand::Prune(args) => state::prune(&args),
            StateCommand::Trust(args) => state::trust(&args),
        },
        Command::Completions { shell } => generate::completions(shell),
        Command::Man { command, out } => generate::man(&command, out.as_deref()),
    };
    done.unwrap_or_else(|failure| {
        let exit = failure.exit();
        failure.report_on_stderr(exit, is_json(), err);
        exit
    })
    .end()
}

/// Reports why the inside of a proof could not start its attempts.
fn refuse_inside(error: std::io::Error) -> Exit {
    stdio::write_stderr(&format!("exeat: prove-inside: {error}"));
    Exit::BadInput
}
