//! Defines and parses the command line. Reads no file, and no default depends on the machine. `request.rs` interprets the
//! arguments.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use clap::{Args, Parser, Subcommand, ValueHint};

pub(crate) mod audit;
mod examples;
mod policy;
mod run;
pub(crate) mod state;
pub(crate) mod unread;
mod values;

use audit::{AuditCommand, KeyFrom};
use examples::{
    CHECK_EXAMPLES, COMPLETIONS_EXAMPLES, DOCTOR_EXAMPLES, ENV_EXAMPLES, EXAMPLES, EXAMPLES_LONG,
    LEARN_EXAMPLES, MAN_EXAMPLES, POLICY_EXAMPLES, PRESET_EXAMPLES, PROVE_EXAMPLES, PROXY_EXAMPLES,
};
use exeat_policy::BackendName;
pub(crate) use policy::{
    PolicyArgs, PolicyCommand, PolicyDiffArgs, PolicyLintArgs, PolicySchemaArgs, PolicyShowArgs, SchemaOf,
};
pub(crate) use run::{BridgeKind, FsView, LearnArgs, OnDeniedWhat, Require, RunArgs};
use state::StateCommand;
pub(crate) use values::{ColorWhen, Format, Label, ListenAt, Output, Variable, ViaAt};
use values::{backend_parser, digits, parse_stage, parse_variable, words};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "exeat",
    version,
    about = "Run a command so that it can reach only the hosts you name",
    long_about = "exeat runs a command (a stage) so that it can reach only the hosts you name, and writes down every \
                  attempt.\n\nThe stage has no network at all: its only way out is a proxy on this side, which checks \
                  each name, port, address and TLS server name. No root, no daemon, no fallback.",
    after_help = EXAMPLES,
    after_long_help = EXAMPLES_LONG,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The options of every command.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Color: auto (default), always or never
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    #[arg(hide_default_value = true)]
    pub(crate) color: ColorWhen,
}

/// A command line that begins with `exeat run`.
#[derive(Debug, Parser)]
struct RunLine {
    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    run: RunArgs,
}

impl Cli {
    /// Parses a command line. For `exeat run` it first describes this command alone: the description of all takes as long as the rest of
    /// the parsing. Help and errors come from the whole description.
    ///
    /// # Errors
    /// Returns clap's error, or what it prints for `--help`.
    pub(crate) fn parse_words(words: &[OsString]) -> Result<Self, clap::Error> {
        parse_run(words).map_or_else(|| Self::try_parse_from(words), Ok)
    }
}

/// Parses a command line of `exeat run`. Returns `None` for any other one and for one with an error.
fn parse_run(words: &[OsString]) -> Option<Cli> {
    let (_, words) = words.split_first()?;
    if words.first()? != "run" {
        return None;
    }
    let RunLine { output, run } = RunLine::try_parse_from(words).ok()?;
    Some(Cli { output, command: Command::Run(Box::new(run)) })
}

/// Escapes the typed text in an error. clap prints it unchanged, and a line feed in a value would start a line that
/// looks like a message of exeat.
pub(crate) fn visible(mut error: clap::Error) -> clap::Error {
    let shown = |text: &String| exeat_policy::printable(text);
    let typed: Vec<_> = error
        .context()
        .filter_map(|(kind, value)| match value {
            ContextValue::String(text) => Some((kind, ContextValue::String(shown(text)))),
            ContextValue::Strings(texts) => {
                Some((kind, ContextValue::Strings(texts.iter().map(shown).collect())))
            }
            _ => None, // clap's own words
        })
        .collect();
    for (kind, value) in typed {
        error.insert(kind, value);
    }
    error
}

/// Formats an error with the prefix `exeat: `. In the output of `make`, `error:` alone could come from any program.
pub(crate) fn spoken(error: &clap::Error) -> String {
    let text = error.render();
    match crate::terminal::Paint::new(ColorWhen::Auto, &std::io::stderr()).is_on() {
        true => format!("exeat: {}", text.ansi()),
        false => format!("exeat: {text}"),
    }
}

/// Flags of bubblewrap, docker, env and make, and what does it here.
const ELSEWHERE: [(&[&str], &str); 6] = [
    (
        &["-C", "-w", "--chdir", "--cwd", "--directory", "--workdir"],
        "the stage starts in the working directory: cd first",
    ),
    (&["-e", "--env-file", "--setenv"], "a variable is --env NAME or --env NAME=VALUE"),
    (&["-v", "--bind", "--mount", "--ro-bind", "--volume"], "a path is --ro PATH or --rw PATH"),
    (&["--net", "--network"], "a host is --allow HOST"),
    (&["--publish"], "a server in the stage cannot be reached from outside"),
    (&["-i", "-t", "-it", "--interactive", "--rm", "--tty"], "that needs no flag"),
];

fn here_for(flag: &str) -> Option<&'static str> {
    ELSEWHERE.iter().find_map(|(flags, here)| flags.contains(&flag).then_some(*here))
}

/// Adds a suggestion to an error where clap has none, as for `exeat rnu`.
pub(crate) fn guessed(mut error: clap::Error, first: Option<&str>) -> clap::Error {
    if let (Some("policy"), Some(ContextValue::String(typed))) =
        (first, error.get(ContextKind::InvalidSubcommand))
        && typed == "check"
    {
        let tip =
            "exeat policy lint FILE looks for mistakes; exeat check --policy FILE HOST asks it about a host";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
        error.remove(ContextKind::SuggestedSubcommand);
        return error;
    }
    if let (Some("run" | "learn"), Some(ContextValue::String(flag))) =
        (first, error.get(ContextKind::InvalidArg))
        && error.kind() == clap::error::ErrorKind::UnknownArgument
        && (error.get(ContextKind::SuggestedArg).is_none() || here_for(flag).is_some())
    {
        let after = format!(
            "a flag of the command stands after it: exeat run -- COMMAND {}",
            exeat_policy::printable(flag)
        );
        let tip = here_for(flag).map_or_else(|| after.clone(), |here| format!("here {here}; {after}"));
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
        return error;
    }
    let typed = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(typed)) if first == Some(typed) => typed.clone(),
        _ => return error,
    };
    let cli = <Cli as clap::CommandFactory>::command();
    let names = cli.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name);
    let guess = exeat_policy::file::nearest(&typed, names).map(str::to_owned);
    if error.get(ContextKind::SuggestedSubcommand).is_some() {
        return error;
    }
    match guess {
        Some(guess) => {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![guess]));
        }
        // As with `exeat npm ci`.
        None => {
            let tip = StyledStr::from(format!(
                "to run a command: exeat run -- {} ...",
                exeat_policy::printable(&typed)
            ));
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
        }
    }
    error
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command in the sandbox and exit with its code
    Run(Box<RunArgs>),
    /// Run a command in report mode, and write the policy that it needs
    #[command(after_help = LEARN_EXAMPLES, override_usage = "exeat learn [OPTIONS] [--] COMMAND [ARG]...")]
    Learn(Box<LearnArgs>),
    /// Decide about targets without running anything, and say why
    Check(CheckArgs),
    /// Serve the host side alone: a proxy that enforces the policy
    Proxy(ProxyArgs),
    /// Try to get out of a sandbox on this machine, and say what was refused
    #[command(after_help = PROVE_EXAMPLES)]
    Prove(ProveArgs),
    /// Look at policies: what holds, what is risky, what a change opens
    #[command(after_help = POLICY_EXAMPLES)]
    Policy {
        /// The command of `exeat policy`.
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// List the presets, or show one
    #[command(after_help = PRESET_EXAMPLES)]
    Preset(PresetArgs),
    /// Print the environment that a stage would get, and why
    #[command(after_help = ENV_EXAMPLES)]
    Env(EnvArgs),
    /// Try each step that a run takes on this host, and say how to fix failures
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Read the records of runs
    Audit {
        /// The command of `exeat audit`.
        #[command(subcommand)]
        command: AuditCommand,
    },
    /// Look at what runs have set aside: list it, restore it, delete it
    State {
        /// The command of `exeat state`.
        #[command(subcommand)]
        command: StateCommand,
    },
    /// Print the completion script of a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell; otherwise that of SHELL
        shell: Option<clap_complete::Shell>,
    },
    /// Print the manual page
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// The command whose page it is; otherwise that of exeat
        #[arg(value_name = "COMMAND", conflicts_with = "out")]
        command: Vec<String>,

        /// Write one page per command into this directory instead
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        out: Option<PathBuf>,
    },
}

/// `exeat check`.
#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct CheckArgs {
    /// The targets to decide about.
    #[arg(help = "host, host:port, address:port or [v6]:port; port 443 when none is given")]
    #[arg(required = true, value_name = "TARGET", value_hint = ValueHint::Hostname)]
    pub(crate) targets: Vec<String>,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// Resolve names now and check the addresses as a run would
    #[arg(long, help_heading = "Output")]
    pub(crate) resolve: bool,

    /// text (default), or json: an object per target, or an error
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = "Output")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) format: Format,
}

/// `exeat prove`.
#[derive(Debug, Args)]
pub(crate) struct ProveArgs {
    /// The attempts to make; otherwise all
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// List the attempts and make none
    #[arg(long)]
    pub(crate) list: bool,

    /// Use only this bridge: handoff or relay
    #[arg(long, value_name = "KIND", help_heading = "Run", hide_possible_values = true)]
    pub(crate) bridge: Option<BridgeKind>,

    /// The view: project (default), host or minimal
    #[arg(long, value_name = "VIEW", help_heading = "Run", hide_possible_values = true)]
    pub(crate) fs: Option<FsView>,

    /// Build with: auto (default), bwrap or native
    #[arg(long, value_name = "NAME", help_heading = "Run", hide_possible_values = true, value_parser = backend_parser())]
    pub(crate) backend: Option<BackendName>,

    /// text (default), or json: one object
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = "Output")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) format: Format,
}

/// `exeat doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print shell commands that fix the steps that fail, and change nothing
    #[arg(long, conflicts_with = "format", help_heading = "Output")]
    pub(crate) fix: bool,

    /// text (default), or json: one object
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = "Output")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) format: Format,
}

/// `exeat proxy`.
#[derive(Debug, Args)]
#[command(after_help = PROXY_EXAMPLES)]
pub(crate) struct ProxyArgs {
    /// Address to listen on
    #[arg(long, value_name = "unix:PATH|tcp:IP:PORT", value_hint = ValueHint::FilePath)]
    pub(crate) listen: ListenAt,

    /// Address to listen on for SOCKS5
    #[arg(long, value_name = "unix:PATH|tcp:IP:PORT", value_hint = ValueHint::FilePath)]
    pub(crate) listen_socks5: Option<ListenAt>,

    /// Accept a tcp address that is not loopback
    #[arg(long)]
    pub(crate) listen_anywhere: bool,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// Write the record here; otherwise into the state directory
    #[arg(long, value_name = "FILE|fd:N", help_heading = "Run", value_hint = ValueHint::FilePath)]
    pub(crate) audit: Option<Output>,

    /// The key that signs the record, or none; otherwise your own, made on first use
    #[arg(long, value_name = "FILE|fd:N|env:NAME|none", help_heading = "Run", value_hint = ValueHint::FilePath)]
    pub(crate) audit_key: Option<KeyFrom>,

    /// A name for the stage, in every line of the record
    #[arg(long, value_name = "NAME", help_heading = "Run", value_parser = parse_stage)]
    pub(crate) stage: Option<String>,

    /// No summary at the end
    #[arg(long, help_heading = "Run")]
    pub(crate) quiet: bool,
}

/// `exeat preset`.
#[derive(Debug, Args)]
pub(crate) struct PresetArgs {
    /// The presets to show; otherwise all are listed
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// Ask the package manager which hosts it uses here
    #[arg(long, requires = "names")]
    pub(crate) ask: bool,

    /// With --ask: also allow a target, such as the private address of a mirror
    #[arg(long, value_name = "RULE", requires = "ask")]
    pub(crate) allow: Vec<String>,

    /// With --ask: within this ceiling
    #[arg(long, value_name = "FILE", requires = "ask", value_hint = ValueHint::FilePath)]
    pub(crate) ceiling: Vec<PathBuf>,

    /// text (default) or json
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) format: Format,
}

/// `exeat env`.
#[derive(Debug, Args)]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// Pass a variable of yours to the stage, or several (SLURM_*), or set one
    #[arg(long, value_name = "NAME[=VALUE]", help_heading = "Environment", value_parser = parse_variable)]
    pub(crate) env: Vec<Variable>,

    /// Go through somebody else's exeat proxy: its policy decides, and its record has the decisions
    #[arg(long, value_name = "unix:PATH", help_heading = "Run", value_hint = ValueHint::FilePath)]
    pub(crate) via: Option<ViaAt>,

    /// text (default), or json: one array
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = "Output")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) format: Format,
}

#[cfg(test)]
mod book;
#[cfg(test)]
mod tests;
