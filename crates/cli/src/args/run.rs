//! The arguments of `exeat run` and `exeat learn`, and those that other commands share with them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use exeat_policy::file::{BindSpec, PathSpec};
use exeat_policy::{BackendName, Limits, Size, Span};
use exeat_record::lock;

use super::Format;
use super::audit::KeyFrom;
use super::examples::RUN_EXAMPLES;
use super::policy::PolicyArgs;
use super::values::{
    Label, Output, Variable, ViaAt, backend_parser, parse_count, parse_stage, parse_variable,
};

/// `exeat run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
#[command(override_usage = "exeat run [OPTIONS] [--] COMMAND [ARG]...")]
pub(crate) struct RunArgs {
    // First, because otherwise the help heading of the flattened policy would apply to it.
    /// The command and its arguments; options of exeat stand before it
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// Show a path read-only, at DEST if given
    #[arg(long, value_name = "PATH[:DEST]", help_heading = "Files", value_hint = ValueHint::AnyPath)]
    pub(crate) ro: Vec<BindSpec>,

    /// Show a path writable, at DEST if given
    #[arg(long, value_name = "PATH[:DEST]", help_heading = "Files", value_hint = ValueHint::AnyPath)]
    pub(crate) rw: Vec<BindSpec>,

    /// Hide a path
    #[arg(long, value_name = "PATH", help_heading = "Files", value_hint = ValueHint::AnyPath)]
    pub(crate) mask: Vec<PathSpec>,

    /// View of the files: project (default), host or minimal
    #[arg(long, value_name = "VIEW", help_heading = "Files", hide_possible_values = true)]
    pub(crate) fs: Option<FsView>,

    /// Pass a variable, several (SLURM_*), or set one (ps shows its value)
    #[arg(long, value_name = "NAME[=VALUE]", help_heading = "Environment", value_parser = parse_variable)]
    pub(crate) env: Vec<Variable>,

    /// Leave a protected name writable, such as .vscode or .git
    #[arg(long, value_name = "NAME", help_heading = "Files")]
    pub(crate) allow_write: Vec<String>,

    /// Write the record here; otherwise into the state directory
    #[arg(long, value_name = "FILE|fd:N", help_heading = "Run", value_hint = ValueHint::FilePath)]
    pub(crate) audit: Option<Output>,

    /// The key that signs the record; otherwise your own, made on first use
    #[arg(long, value_name = "FILE|fd:N|env:NAME|none", help_heading = "Run", value_hint = ValueHint::FilePath)]
    pub(crate) audit_key: Option<KeyFrom>,

    /// Write one JSON object here: about the run, or why it did not start
    #[arg(long, value_name = "FILE|fd:N", help_heading = "Run", value_hint = ValueHint::FilePath)]
    pub(crate) result: Option<Output>,

    /// A name for the stage, in every line of the record
    #[arg(long, value_name = "NAME", help_heading = "Run", value_parser = parse_stage)]
    pub(crate) stage: Option<String>,

    /// A label for the record
    #[arg(long = "label", value_name = "K=V", help_heading = "Run")]
    pub(crate) labels: Vec<Label>,

    /// Print the plan and run nothing
    #[arg(long, help_heading = "Run")]
    pub(crate) dry_run: bool,

    /// text (default), or json: the plan of --dry-run, why nothing started
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = "Run")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) format: Format,

    /// Refuse to run unless everything holds: full
    #[arg(long, value_name = "WHAT", help_heading = "Run", hide_possible_values = true)]
    pub(crate) require: Option<Require>,

    /// Build with: auto (default), bwrap or native
    #[arg(long, value_name = "NAME", help_heading = "Run", hide_possible_values = true, value_parser = backend_parser())]
    pub(crate) backend: Option<BackendName>,

    /// Go through somebody else's exeat proxy: its policy decides
    #[arg(long, value_name = "unix:PATH", help_heading = "Run", value_hint = ValueHint::FilePath)]
    pub(crate) via: Option<ViaAt>,

    /// Reach nothing that the stage's list in egress.lock or FILE does not have
    #[arg(long, value_name = "FILE", help_heading = "Run", conflicts_with = "via", value_hint = ValueHint::FilePath)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = lock::FILE)]
    pub(crate) locked: Option<PathBuf>,

    /// On a refusal: note it (default), end the run, or fail it
    #[arg(long, value_name = "WHAT", help_heading = "Run", hide_possible_values = true)]
    pub(crate) on_denied: Option<OnDeniedWhat>,

    /// End the run, as SIGTERM would, when what started exeat ends
    #[arg(long, help_heading = "Run")]
    pub(crate) end_with_parent: bool,

    /// No summary at the end, only what was moved and why exeat ended it
    #[arg(short, long, help_heading = "Run")]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// `exeat learn`.
#[derive(Debug, Args)]
pub(crate) struct LearnArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,

    /// Write the policy here; otherwise it is on stderr, after the summary
    #[arg(short, long, value_name = "FILE|fd:N", help_heading = "Learn", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<Output>,

    /// With --output: replace a file that is there
    #[arg(long, requires = "output", help_heading = "Learn")]
    pub(crate) force: bool,
}

/// The limits of a stage.
#[derive(Debug, Args, Clone)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Stop the stage after this time, such as 10m; exit code 124
    #[arg(long, value_name = "DURATION")]
    pub(crate) timeout: Option<Span>,

    /// Time from SIGTERM to SIGKILL; otherwise 8s
    #[arg(long, value_name = "DURATION")]
    pub(crate) grace: Option<Span>,

    /// Memory of all processes, such as 2GiB; above it, killed
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,

    /// Processes and threads at one time
    #[arg(long, value_name = "NUMBER", value_parser = parse_count)]
    pub(crate) pids: Option<u32>,
}

impl From<LimitArgs> for Limits {
    fn from(args: LimitArgs) -> Self {
        let LimitArgs { timeout, grace, memory, pids } = args;
        Self { timeout, grace, memory, pids, ..Self::default() }
    }
}

/// `--on-denied`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnDeniedWhat {
    /// Denials are reported at the end.
    Note,
    /// The first denial ends the run.
    End,
    /// A run that would exit 0 exits 123.
    Fail,
}

/// `--fs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FsView {
    /// The system, the toolchains on PATH, and the working directory.
    Project,
    /// The whole tree read-only, credentials masked.
    Host,
    /// Only what is declared.
    Minimal,
}

/// `--require`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Require {
    /// Every aspect of the sandbox holds.
    Full,
}

/// `--bridge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BridgeKind {
    /// The listener is handed to the proxy.
    Handoff,
    /// A process in the sandbox copies the data.
    Relay,
}
