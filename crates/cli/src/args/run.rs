//! What was typed behind `exeat run` and `exeat learn`, and what other commands take of it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use exeat_policy::file::{BindSpec, PathSpec};
use exeat_policy::{Limits, MAX_CONNECTIONS, Size, Span};

use super::audit::KeyFrom;
use super::examples::RUN_EXAMPLES;
use super::policy::PolicyArgs;
use super::values::{Label, Output, Variable, ViaAt, parse_stage, parse_variable};

/// `exeat run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
#[command(override_usage = "exeat run [OPTIONS] [--] COMMAND [ARG]...")]
pub(crate) struct RunArgs {
    // First, because the help heading of the flattened policy would go on to it.
    /// The command and its arguments: the first word that is no option starts it
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

    /// What of the file tree the stage sees: project (default), host or minimal
    #[arg(long, value_name = "VIEW", help_heading = "Files", hide_possible_values = true)]
    pub(crate) fs: Option<FsView>,

    /// Package caches: private (default: writable, kept, one per working directory; with --ro . in memory) or none
    #[arg(long, value_name = "CACHE", help_heading = "Files", hide_possible_values = true)]
    pub(crate) cache: Option<CacheKind>,

    /// Pass a variable of yours to the stage, or set one
    #[arg(long, value_name = "NAME[=VALUE]", help_heading = "Environment", value_parser = parse_variable)]
    pub(crate) env: Vec<Variable>,

    /// Leave git's configuration and hooks in the working directory writable
    #[arg(long, help_heading = "Files")]
    pub(crate) allow_git_config: bool,

    /// Leave a protected name writable, such as .vscode or .claude/commands
    #[arg(long, value_name = "NAME", help_heading = "Files")]
    pub(crate) allow_write: Vec<String>,

    /// Where the record goes; otherwise a file per run in the state directory
    #[arg(long, value_name = "FILE|fd:N", help_heading = "Run", value_hint = ValueHint::FilePath)]
    pub(crate) audit: Option<Output>,

    /// Have each line of the record on the disk before anything is dialled or answered: slower
    #[arg(long, help_heading = "Run")]
    pub(crate) audit_sync: bool,
    /// The key that signs the record, or none; otherwise your own, made on first use
    #[arg(long, value_name = "FILE|fd:N|env:NAME|none", help_heading = "Run", value_hint = ValueHint::FilePath)]
    pub(crate) audit_key: Option<KeyFrom>,

    /// Write one JSON object about the run here at its end, or about why it did not start
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

    /// With --dry-run: as JSON
    #[arg(long, requires = "dry_run", help_heading = "Run")]
    pub(crate) json: bool,

    /// Refuse to run what holds only in part: full
    #[arg(long, value_name = "WHAT", help_heading = "Run", hide_possible_values = true)]
    pub(crate) require: Option<Require>,

    /// How the stage's connections reach the proxy: handoff (default) or relay
    #[arg(long, value_name = "KIND", help_heading = "Run", hide_possible_values = true)]
    pub(crate) bridge: Option<BridgeKind>,

    /// Offer the stage SOCKS5 as well
    #[arg(long, help_heading = "Run", conflicts_with = "via")]
    pub(crate) socks5: bool,

    /// What the stage has on its loopback: own (default), or proxy, which lets it connect to nothing else and bind no port
    #[arg(long, value_name = "WHAT", help_heading = "Run", hide_possible_values = true)]
    pub(crate) loopback: Option<LoopbackKind>,

    /// Unix sockets of the stage's own: auto (default; where none of the host's is in reach), on or off
    #[arg(long, value_name = "WHEN", help_heading = "Run", hide_possible_values = true)]
    pub(crate) unix_sockets: Option<UnixSocketsKind>,

    /// Let the stage trace its own processes, as strace and gdb do
    #[arg(long, help_heading = "Run")]
    pub(crate) debuggable: bool,

    /// A terminal of the stage's own in the place of yours: auto (default): when stdin and stdout are your terminal and exeat is
    /// in its foreground; or off
    #[arg(long, value_name = "WHEN", help_heading = "Run", hide_possible_values = true)]
    pub(crate) tty: Option<TtyWhen>,

    /// Serve programs that ignore the proxy variables too: auto (default; where this machine allows it), on (or do not
    /// start) or off
    #[arg(long, value_name = "WHEN", help_heading = "Run", hide_possible_values = true)]
    pub(crate) transparent: Option<TransparentWhen>,

    /// Go through somebody else's exeat proxy: its policy decides, and its record has the decisions
    #[arg(long, value_name = "unix:PATH", help_heading = "Run", value_hint = ValueHint::FilePath)]
    pub(crate) via: Option<ViaAt>,

    /// Reach nothing that the stage's list in egress.lock does not have (see exeat audit lock)
    #[arg(long, help_heading = "Run", conflicts_with = "via")]
    pub(crate) locked: bool,

    /// With --locked: this file in the place of egress.lock
    #[arg(long, value_name = "FILE", requires = "locked", help_heading = "Run", value_hint = ValueHint::FilePath)]
    pub(crate) lock_file: Option<PathBuf>,

    /// No summary at the end
    #[arg(long, help_heading = "Run")]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// `exeat learn`.
#[derive(Debug, Args)]
pub(crate) struct LearnArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,

    /// Write the policy here; otherwise it is on stderr, behind the summary
    #[arg(short, long, value_name = "FILE|fd:N", help_heading = "Learn", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<Output>,

    /// With --output: replace a file that is there
    #[arg(long, requires = "output", help_heading = "Learn")]
    pub(crate) force: bool,
}

/// `--tty`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TtyWhen {
    /// Where standard input and output are one terminal, and exeat is in its foreground.
    Auto,
    /// Never.
    Off,
}

/// `--transparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransparentWhen {
    /// Where the machine allows it.
    Auto,
    /// Or nothing starts.
    On,
    /// Never.
    Off,
}

/// What a stage may use of the machine.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Stop the stage after this time, such as 90s or 10m; the exit code is then 124
    #[arg(long, value_name = "DURATION")]
    pub(crate) timeout: Option<Span>,

    /// Processor time of each process, in whole seconds
    #[arg(long, value_name = "DURATION")]
    pub(crate) cpu_time: Option<Span>,

    /// Memory of all processes together, such as 2GiB; above it the stage is killed
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,

    /// Processes and threads at one time
    #[arg(long, value_name = "NUMBER")]
    pub(crate) pids: Option<u32>,

    /// Open files of each process
    #[arg(long, value_name = "NUMBER")]
    pub(crate) open_files: Option<u32>,

    /// The largest file that may be written
    #[arg(long, value_name = "SIZE")]
    pub(crate) file_size: Option<Size>,

    /// Size of the private /tmp and /var/tmp, each; otherwise 1GiB
    #[arg(long, value_name = "SIZE")]
    pub(crate) tmpfs_size: Option<Size>,

    /// Bytes of stdout and stderr together; after them the stage is killed
    #[arg(long, value_name = "SIZE")]
    pub(crate) output_size: Option<Size>,

    #[command(flatten)]
    pub(crate) connections: ConnectionArgs,
}

/// What the proxy serves.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct ConnectionArgs {
    /// Connections at one time
    #[arg(long, value_name = "NUMBER", value_parser = connections())]
    pub(crate) connections: Option<u32>,

    /// Connections to one host at one time
    #[arg(long, value_name = "NUMBER", value_parser = connections())]
    pub(crate) connections_per_host: Option<u32>,

    /// Bytes of the record; after them nothing more is let out. Otherwise 1GiB
    #[arg(long, value_name = "SIZE")]
    pub(crate) audit_size: Option<Size>,
}

fn connections() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=MAX_CONNECTIONS.into())
}

impl From<LimitArgs> for Limits {
    fn from(args: LimitArgs) -> Self {
        let LimitArgs { timeout, cpu_time, memory, pids, open_files, file_size, .. } = args;
        let LimitArgs { tmpfs_size, output_size, connections, .. } = args;
        let of_machine = Self {
            timeout,
            cpu_time,
            memory,
            pids,
            open_files,
            file_size,
            tmpfs_size,
            output_size,
            ..Self::default()
        };
        of_machine.overridden_by(connections.into())
    }
}

impl From<ConnectionArgs> for Limits {
    fn from(args: ConnectionArgs) -> Self {
        let ConnectionArgs { connections, connections_per_host, audit_size } = args;
        Self { connections, connections_per_host, audit_size, ..Self::default() }
    }
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

/// `--cache`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheKind {
    /// exeat's own, writable, one per working directory.
    Private,
    /// None.
    None,
}

/// `--require`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Require {
    /// Every aspect of the sandbox holds.
    Full,
}

/// `--loopback`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoopbackKind {
    /// Its own servers.
    Own,
    /// The proxy alone.
    Proxy,
}

/// `--unix-sockets`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnixSocketsKind {
    /// By the view.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// `--bridge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BridgeKind {
    /// The listener is handed to the proxy.
    Handoff,
    /// A process in the sandbox copies.
    Relay,
}
