//! What was typed, and nothing else: no file is read here and no default depends on the machine. What it means is in
//! `request.rs`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use exeat_policy::file::{BindSpec, PathSpec};
use exeat_policy::{Ech, EffectKind, HostPort, Limits, MAX_CONNECTIONS, Mode, Size, Span};

pub(crate) mod audit;
pub(crate) mod state;
pub(crate) mod unread;

use audit::{AuditCommand, KeyFrom};
use state::StateCommand;

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
    /// Colour: auto (default), always or never
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    #[arg(hide_default_value = true)]
    pub(crate) color: ColorWhen,

    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The error with what was typed made visible: clap prints it as it came, and a line feed in a value would make a line
/// that looks like ours.
pub(crate) fn visible(mut error: clap::Error) -> clap::Error {
    let shown = |text: &String| crate::render::printable(text);
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

/// The error with the command that was probably meant, where clap sees none: it takes `rnu` for nothing.
pub(crate) fn guessed(mut error: clap::Error, first: Option<&str>) -> clap::Error {
    let typed = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(typed)) if first == Some(typed) => typed.clone(),
        _ => return error,
    };
    let cli = <Cli as clap::CommandFactory>::command();
    let names = cli.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name);
    let guess = exeat_policy::file::nearest(&typed, names).map(str::to_owned);
    if let Some(guess) = guess.filter(|_| error.get(ContextKind::SuggestedSubcommand).is_none()) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![guess]));
    }
    error
}

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
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
        /// What to do.
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// List the presets, or show one
    #[command(after_help = PRESET_EXAMPLES)]
    Preset(PresetArgs),
    /// Print the environment that a stage would get, and why
    #[command(after_help = ENV_EXAMPLES)]
    Env(EnvArgs),
    /// Try each step that a run takes on this host, and say what mends those that fail
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Read the records of runs
    Audit {
        /// What to read.
        #[command(subcommand)]
        command: AuditCommand,
    },
    /// Look at what runs have set aside: list it, restore it, delete it
    State {
        /// What to do.
        #[command(subcommand)]
        command: StateCommand,
    },
    /// Print the completion script of a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// Write one page per command into this directory instead
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        out: Option<PathBuf>,
    },
}

/// The policy, for every command that needs one. All of them add up; a deny rule always wins.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Policy")]
pub(crate) struct PolicyArgs {
    /// Allow a host, *.domain or address, on port 443 or the ports given; @FILE: a rule a line
    #[arg(long, value_name = "RULE|@FILE")]
    pub(crate) allow: Vec<String>,

    /// Deny a host, *.domain or address on every port or the ports given; always wins
    #[arg(long, value_name = "RULE|@FILE")]
    pub(crate) deny: Vec<String>,

    /// Allow a target without checking the TLS server name, for servers that speak first
    #[arg(long, value_name = "RULE")]
    pub(crate) tls_off: Vec<String>,

    /// Put a service of this machine, 127.0.0.1:PORT, on the stage's own loopback, at INNER if given
    #[arg(long, value_name = "PORT[:INNER]")]
    pub(crate) host_port: Vec<HostPort>,

    /// Allow what a preset names, such as npm or python (see exeat preset); auto: what the files here call for
    #[arg(short, long, value_name = "NAME")]
    pub(crate) preset: Vec<String>,

    /// What no rule allows: enforce (default: refused) or report (names on the web's ports pass, and are recorded)
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub(crate) mode: Option<Mode>,

    /// Judge addresses of a NAT64 translator (64:ff9b::/96) by the IPv4 address inside
    #[arg(long)]
    pub(crate) nat64: bool,

    /// A TLS hello that hides its server name: record (default) or refuse, which breaks browsers
    #[arg(long, value_name = "WHAT", value_parser = parse_ech)]
    pub(crate) ech: Option<Ech>,

    /// Read a policy file, TOML or JSON; - is stdin
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) policy: Vec<PathBuf>,

    /// Allow nothing beyond this policy file, whatever else is said
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) ceiling: Vec<PathBuf>,

    /// What the stage declares, as JSON; without grants it is what is allowed
    #[arg(long, value_name = "FILE|JSON", value_hint = ValueHint::FilePath)]
    pub(crate) effects: Option<String>,

    /// Refuse a stage that declares another kind of effect, such as network-hosts or fs-write
    #[arg(long, value_name = "KIND,...", value_delimiter = ',', requires = "effects")]
    #[arg(value_parser = parse_effect_kind)]
    pub(crate) allow_effects: Vec<EffectKind>,

    /// When the stage declares more than it is granted: refuse (default) or narrow
    #[arg(long, value_name = "WHAT", requires = "effects", default_value = "refuse")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) on_excess: Excess,

    #[command(flatten)]
    pub(crate) upstream: UpstreamArgs,
}

/// Another proxy as the next hop. The texts can be passwords in the wrong place: whoever reads them does not repeat them.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct UpstreamArgs {
    /// Go through another HTTP proxy, http://HOST:PORT; env: that of https_proxy and no_proxy; none
    #[arg(long, value_name = "URL")]
    pub(crate) upstream_proxy: Option<String>,

    /// Where the user:password for it is: file:PATH, readable by its owner alone, or env:NAME
    #[arg(long, value_name = "WHERE")]
    pub(crate) upstream_auth: Option<String>,

    /// What is reached without it: hosts, *.domains, .domains, addresses and networks
    #[arg(long, value_name = "LIST")]
    pub(crate) upstream_bypass: Option<String>,
}

/// `--on-excess`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Excess {
    /// Exit 2, and nothing runs.
    #[default]
    Refuse,
    /// Run with what is granted.
    Narrow,
}

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

/// `exeat check`.
#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct CheckArgs {
    /// What to decide about.
    #[arg(help = "host, host:port, address:port or [v6]:port; port 443 when none is given")]
    #[arg(required = true, value_name = "TARGET", value_hint = ValueHint::Hostname)]
    pub(crate) targets: Vec<String>,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// Resolve names now and check the addresses as a run would
    #[arg(long, help_heading = "Output")]
    pub(crate) resolve: bool,

    /// One JSON object per target
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
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

    /// Over this bridge alone: handoff or relay
    #[arg(long, value_name = "KIND", help_heading = "Run", hide_possible_values = true)]
    pub(crate) bridge: Option<BridgeKind>,

    /// In this view: project (default), host or minimal
    #[arg(long, value_name = "VIEW", help_heading = "Run", hide_possible_values = true)]
    pub(crate) fs: Option<FsView>,

    /// One JSON object
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// `exeat doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print what mends the steps that fail, for a shell, and change nothing
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    pub(crate) fix: bool,

    /// One JSON object
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// `exeat proxy`.
#[derive(Debug, Args)]
#[command(after_help = PROXY_EXAMPLES)]
pub(crate) struct ProxyArgs {
    /// Where to listen
    #[arg(long, value_name = "unix:PATH|tcp:IP:PORT", value_hint = ValueHint::FilePath)]
    pub(crate) listen: ListenAt,

    /// Where to listen for SOCKS5, besides
    #[arg(long, value_name = "unix:PATH|tcp:IP:PORT", value_hint = ValueHint::FilePath)]
    pub(crate) listen_socks5: Option<ListenAt>,

    /// Accept a tcp address that is not loopback
    #[arg(long)]
    pub(crate) listen_anywhere: bool,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// Where the record goes; otherwise a file in the state directory
    #[arg(long, value_name = "FILE|fd:N", help_heading = "Run", value_hint = ValueHint::FilePath)]
    pub(crate) audit: Option<Output>,

    /// Have each line of the record on the disk before anything is dialled or answered: slower
    #[arg(long, help_heading = "Run")]
    pub(crate) audit_sync: bool,
    /// The key that signs the record, or none; otherwise your own, made on first use
    #[arg(long, value_name = "FILE|fd:N|env:NAME|none", help_heading = "Run", value_hint = ValueHint::FilePath)]
    pub(crate) audit_key: Option<KeyFrom>,

    /// A name for the stage, in every line of the record
    #[arg(long, value_name = "NAME", help_heading = "Run", value_parser = parse_stage)]
    pub(crate) stage: Option<String>,

    /// No summary at the end
    #[arg(long, help_heading = "Run")]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) limits: ConnectionArgs,
}

/// `exeat policy ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Print the effective policy, each rule with where it was written
    Show(PolicyShowArgs),
    /// Point out rules that are risky, dead or double
    Lint(PolicyLintArgs),
    /// Say what going from policy A to policy B opens and closes
    Diff(PolicyDiffArgs),
    /// Print the JSON Schema of a policy file
    Schema(PolicySchemaArgs),
}

/// `exeat policy show`.
#[derive(Debug, Args)]
pub(crate) struct PolicyShowArgs {
    /// Policy files, as with --policy
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) files: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// As one JSON object
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// `exeat policy lint`.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 nothing found, 1 something found, 2 bad input.")]
pub(crate) struct PolicyLintArgs {
    /// Policy files, as with --policy
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) files: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// One JSON object per finding
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// `exeat policy diff`.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 no difference, 1 a difference, 2 bad input.")]
pub(crate) struct PolicyDiffArgs {
    /// The policy file before
    #[arg(value_name = "A", value_hint = ValueHint::FilePath)]
    pub(crate) before: PathBuf,

    /// The policy file after
    #[arg(value_name = "B", value_hint = ValueHint::FilePath)]
    pub(crate) after: PathBuf,

    /// One JSON object per difference
    #[arg(long)]
    pub(crate) json: bool,
}

/// `exeat policy schema`.
#[derive(Debug, Args)]
pub(crate) struct PolicySchemaArgs {
    /// Of which file: policy (default), ceiling or effects
    #[arg(
        value_name = "FILE",
        default_value = "policy",
        hide_possible_values = true,
        hide_default_value = true
    )]
    pub(crate) of: SchemaOf,
}

/// What `exeat policy schema` describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum SchemaOf {
    /// A policy file.
    #[default]
    Policy,
    /// A ceiling.
    Ceiling,
    /// The effects of a stage.
    Effects,
}

/// `exeat preset`.
#[derive(Debug, Args)]
pub(crate) struct PresetArgs {
    /// The preset to show; otherwise all are listed
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Ask the package manager which hosts it uses here
    #[arg(long, requires = "name")]
    pub(crate) ask: bool,

    /// With --ask: allow a target besides, such as the private address of a mirror
    #[arg(long, value_name = "RULE", requires = "ask")]
    pub(crate) allow: Vec<String>,

    /// With --ask: within this ceiling
    #[arg(long, value_name = "FILE", requires = "ask", value_hint = ValueHint::FilePath)]
    pub(crate) ceiling: Vec<PathBuf>,

    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `exeat env`.
#[derive(Debug, Args)]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// Package caches: private (default) or none
    #[arg(long, value_name = "CACHE", help_heading = "Files", hide_possible_values = true)]
    pub(crate) cache: Option<CacheKind>,

    /// Pass a variable of yours to the stage, or set one
    #[arg(long, value_name = "NAME[=VALUE]", help_heading = "Environment", value_parser = parse_variable)]
    pub(crate) env: Vec<Variable>,

    /// Those of a stage that is offered SOCKS5 as well
    #[arg(long, help_heading = "Environment", conflicts_with = "via")]
    pub(crate) socks5: bool,

    /// Go through somebody else's exeat proxy: its policy decides, and its record has the decisions
    #[arg(long, value_name = "unix:PATH", help_heading = "Run", value_hint = ValueHint::FilePath)]
    pub(crate) via: Option<ViaAt>,

    /// As one JSON array
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
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

/// `FILE|fd:N`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    /// A path.
    File(PathBuf),
    /// An open descriptor of this process.
    Fd(i32),
}

impl FromStr for Output {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(number) = text.strip_prefix("fd:") else {
            return match text {
                "" => Err("the path is empty".into()),
                "-" => Err("stdout is the stage's, where exeat never writes: fd:3 with 3>FILE behind the command; for a file of this name: ./-".into()),
                path => Ok(Self::File(path.into())),
            };
        };
        match digits(number).and_then(|n| i32::try_from(n).ok()) {
            Some(0) => Err("descriptor 0 is the stage's stdin".into()),
            Some(1) => Err("descriptor 1 is the stage's stdout, where exeat never writes".into()),
            Some(fd) => Ok(Self::Fd(fd)),
            None => {
                Err("a descriptor is written fd:N, such as fd:3; for a file of this name: ./fd:...".into())
            }
        }
    }
}

/// `--label K=V`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label {
    /// Before the first `=`.
    pub(crate) key: String,
    /// After it.
    pub(crate) value: String,
}

impl FromStr for Label {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Self { key: key.into(), value: value.into() }),
            _ => Err("a label is written KEY=VALUE".into()),
        }
    }
}

/// `--env NAME[=VALUE]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Variable {
    /// Pass the caller's value on.
    Pass(OsString),
    /// Set a value.
    Set(OsString, OsString),
}

/// `--via`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ViaAt(pub(crate) PathBuf);

impl FromStr for ViaAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("the path is empty".into()),
            Some(path) => Ok(Self(path.into())),
            None => Err("a proxy to go through is written unix:PATH".into()),
        }
    }
}

/// `--listen`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListenAt {
    /// `unix:PATH`.
    Unix(PathBuf),
    /// `tcp:IP:PORT`.
    Tcp(SocketAddr),
}

impl FromStr for ListenAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("unix", "")) => Err("the path is empty".into()),
            Some(("unix", path)) => Ok(Self::Unix(path.into())),
            Some(("tcp", addr)) => addr.parse().map(Self::Tcp).map_err(|_| match addr.rsplit_once(':') {
                Some(("localhost" | "", port)) if digits(port).is_some() => {
                    format!("a tcp listener needs an address: tcp:127.0.0.1:{port}")
                }
                _ if digits(addr).is_some() => {
                    format!("a tcp listener needs an address: tcp:127.0.0.1:{addr}")
                }
                _ => "a tcp listener is written tcp:IP:PORT, such as tcp:127.0.0.1:3128".into(),
            }),
            _ => Err("a listener is written unix:PATH or tcp:IP:PORT".into()),
        }
    }
}

fn parse_effect_kind(text: &str) -> Result<EffectKind, String> {
    text.parse().map_err(|error: exeat_policy::effect::EffectKindError| match error.meant() {
        Some(meant) => format!("probably meant: {meant}"),
        None => words(&EffectKind::ALL),
    })
}

fn parse_variable(text: &str) -> Result<Variable, String> {
    match text.split_once('=') {
        _ if text.is_empty() || text.starts_with('=') => Err("the name of the variable is empty".into()),
        _ if name_of(text).contains(char::is_whitespace) => Err(spaced(text)),
        Some((name, value)) => Ok(Variable::Set(name.into(), value.into())),
        None => Ok(Variable::Pass(text.into())),
    }
}

fn name_of(text: &str) -> &str {
    text.split_once('=').map_or(text, |(name, _)| name)
}

/// What to say of a variable whose name has a space: most likely two of them are meant. The value may be a secret.
fn spaced(text: &str) -> String {
    let value = if text.contains('=') { "=..." } else { "" };
    let names: Vec<&str> = name_of(text).split_whitespace().collect();
    let flags = names.iter().map(|name| format!("--env {name}")).collect::<Vec<_>>().join(" ");
    let meant = if names.is_empty() { String::new() } else { format!("; probably meant: {flags}{value}") };
    format!("the name of a variable has no space{meant}")
}

/// The same bounds as in a policy file: the name stands in every line of the record.
fn parse_stage(text: &str) -> Result<String, String> {
    exeat_policy::file::stage_fault(text).map_or_else(|| Ok(text.into()), |fault| Err(fault.into()))
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    text.parse().map_err(|_| words(&Mode::ALL))
}

fn parse_ech(text: &str) -> Result<Ech, String> {
    text.parse().map_err(|_| words(&Ech::ALL))
}

fn words(all: &[impl ToString]) -> String {
    let all: Vec<_> = all.iter().map(ToString::to_string).collect();
    format!("one of {}", all.join(", "))
}

/// Plain decimal digits only: `parse` alone would take a sign.
fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

const EXAMPLES: &str = "\
Examples:
  exeat run --allow api.example.com -- curl -sS https://api.example.com/
  exeat check --allow '*.example.com' a.example.com
  exeat audit show

`exeat help COMMAND` shows the options and examples of a command.";

const EXAMPLES_LONG: &str = "\
Examples:
  exeat run --allow api.example.com -- curl -sS https://api.example.com/
  exeat check --allow '*.example.com' a.example.com
  exeat audit show

Rules:
  api.example.com              this host, port 443
  *.example.com                one or more labels below example.com, never example.com itself
  archive.example.org:80,443   these ports; 8000-8099 is a range, * is every port
  10.2.3.4:5432                an address; also 10.20.0.0/16:5432 and [2001:db8::1]:443
  !stats.example.com           in a list of allow rules: deny

Exit codes:
  the stage's own; 128+n when it died of signal n; 126 not executable; 127 not found; 124 --timeout
  reached; 152 --cpu-time, 153 --file-size reached; 137 another limit reached, or SIGKILL (--result
  tells which); 125 exeat could not do its part, and nothing ran; 2 bad arguments or policy.
  check: 0 allowed, 1 denied, 2 bad input, 125 could not tell.

Environment:
  RUST_LOG   diagnostics on stderr, such as debug or exeat_proxy=trace
  NO_COLOR   no colour

`exeat help COMMAND` shows the options and examples of a command.";

const RUN_EXAMPLES: &str = "\
Examples:
  exeat run --allow api.example.com -- curl -sS https://api.example.com/
  exeat run --allow '*.example.com' --allow 'db.corp.example:5432' -- make test
  exeat run --policy .exeat.toml --timeout 10m -- npm ci
  exeat run --dry-run --allow api.example.com -- curl https://api.example.com/
  exeat run --result fd:3 --label job=42 -- ./stage.sh 3>result.json

Exit codes: the stage's own; 128+n when it died of signal n; 126 not executable; 127 not found;
124 --timeout reached; 152 --cpu-time reached, 153 --file-size reached; 137 another limit reached, or
SIGKILL (--result tells which); 125 exeat could not set the sandbox up; 2 bad arguments or policy.";

const LEARN_EXAMPLES: &str = "\
Examples:
  exeat learn -o .exeat.toml -- npm ci
  exeat run --policy .exeat.toml -- npm ci
  exeat learn --allow db.corp.example:5432 --allow 10.20.0.7:5432 -- ./import.sh

Names that no rule allows are let through on ports 80 and 443. Everything else is enforced as in a
run: what that refused is in the policy as comments. Allow more, and learn again.

Exit codes: those of exeat run; 125 also when the policy cannot be written and the stage exited 0.";

const CHECK_EXAMPLES: &str = "\
Examples:
  exeat check --allow '*.example.com' a.example.com
  exeat check --policy .exeat.toml --resolve api.example.com:8443 10.2.3.4:443
  exeat check --allow @hosts.txt --json api.example.com | jq -r .reason

Exit codes: 0 every target is allowed, 1 one is denied, 2 bad input, 125 could not tell.";

const POLICY_EXAMPLES: &str = "\
Examples:
  exeat policy show .exeat.toml --ceiling site.toml
  exeat policy lint .exeat.toml
  exeat policy diff .exeat.toml.old .exeat.toml
  exeat policy schema > exeat-policy.schema.json

A policy file:
  schema = 1
  [network]
  presets = [\"python\"]                         # see exeat preset
  allow   = [\"api.example.com\", \"*.cdn.example.com\", \"archive.example.org:80,443\"]
  deny    = [\"telemetry.example.com\"]          # always wins
  [[network.rule]]                             # a rule with a note
  allow   = [\"db.corp.example:5432\", \"10.20.0.0/16:5432\"]
  reason  = \"read-only replica\"
  expires = 2027-03-31
  [fs]
  ro = [\"~/datasets:/data\"]
  rw = [\"out\"]                                 # relative to this file
  [env]
  pass = [\"CI\"]
  [limits]
  timeout = \"10m\"
  memory  = \"2GiB\"

What holds in the end is what the stage declares (--effects), and what is granted (--policy,
--preset, --allow), and every ceiling (/etc/exeat/policy.toml, ~/.config/exeat/policy.toml,
--ceiling). Without --effects everything counts as declared; with --effects alone, what is
declared is granted.";

const PRESET_EXAMPLES: &str = "\
Examples:
  exeat preset
  exeat preset python
  exeat preset npm --ask
  exeat run -p npm -- npm ci";

const ENV_EXAMPLES: &str = "\
Examples:
  exeat env
  exeat env --policy .exeat.toml --env CI --json";

const DOCTOR_EXAMPLES: &str = "\
Exit codes: 0 a command can be run here, 1 it cannot.

Examples:
  exeat doctor
  exeat doctor --fix
  exeat doctor --json | jq '.steps[] | select(.found != \"held\")'";

const PROXY_EXAMPLES: &str = "\
Examples:
  exeat proxy --listen unix:/run/user/1000/exeat.sock --allow api.example.com
  exeat proxy --listen tcp:127.0.0.1:3128 --policy .exeat.toml

It serves until SIGINT or SIGTERM. The policy is read again when one of its files changes, and at
SIGHUP; a faulty one changes nothing. Any local user may use a tcp listener.";

const PROVE_EXAMPLES: &str = "\
Examples:
  exeat prove
  exeat prove --bridge relay server-name private-name
  exeat prove --json | jq -r '.attempts[] | select(.held != true) | .id + \": \" + .why'

Each attempt is made in a run of its own making, and, where that shows something, outside as well.
It takes a few seconds, opens sockets on the loopback of this machine, and asks its name server for
example.com. Nothing of it stays.

Exit codes: 0 everything that could be tried held, 1 something did not, 2 bad input, 125 could not
tell.";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  exeat completions bash > ~/.local/share/bash-completion/completions/exeat
  exeat completions fish > ~/.config/fish/completions/exeat.fish
  exeat completions zsh > \"${fpath[1]}/_exeat\"";

const MAN_EXAMPLES: &str = "\
Examples:
  exeat man | man -l -
  exeat man --out ~/.local/share/man/man1";

#[cfg(test)]
mod tests;
