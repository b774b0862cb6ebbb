//! The arguments about policies, and those of `exeat policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use exeat_compose::{Effects, PolicyRequest};
use exeat_policy::{HostPort, Mode};

use super::Format;
use super::values::{Output, parse_mode};

/// The policy arguments of every command that needs a policy. They add up, and a deny rule always wins.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Policy")]
pub(crate) struct PolicyArgs {
    /// Allow a host, *.domain or address, on port 443 or those given
    #[arg(long, value_name = "RULE|@FILE")]
    pub(crate) allow: Vec<String>,

    /// Deny one on every port, or on those given; always wins
    #[arg(long, value_name = "RULE|@FILE")]
    pub(crate) deny: Vec<String>,

    /// Allow one without checking the TLS server name
    #[arg(long, value_name = "RULE")]
    pub(crate) tls_off: Vec<String>,

    /// Put a service of your loopback on the stage's, at INNER if given
    #[arg(long, value_name = "PORT[:INNER]")]
    pub(crate) host_port: Vec<HostPort>,

    /// Allow what a preset names, such as npm (see exeat preset), or auto
    #[arg(short, long, value_name = "NAME")]
    pub(crate) preset: Vec<String>,

    /// enforce (default), or report: only record what no rule allows
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub(crate) mode: Option<Mode>,

    /// Read a policy file, TOML or JSON, or take JSON itself; - is stdin
    #[arg(long, value_name = "FILE|fd:N|JSON", value_hint = ValueHint::FilePath)]
    pub(crate) policy: Vec<PathBuf>,

    /// Allow nothing beyond this policy file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) ceiling: Vec<PathBuf>,

    /// Effects of the stage: bound other grants, or are the only grant
    #[arg(long, value_name = "FILE|JSON", value_hint = ValueHint::FilePath)]
    pub(crate) effects: Option<String>,

    /// Go through another HTTP proxy, http://HOST:PORT; env or none
    #[arg(long, value_name = "URL")]
    pub(crate) upstream_proxy: Option<String>,

    /// Set any key of a policy file, as limits.open_files=1024
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

impl PolicyArgs {
    /// Converts the arguments into a request, which `exeat-compose` composes.
    pub(crate) fn request(&self) -> PolicyRequest {
        let Self {
            allow,
            deny,
            tls_off,
            host_port,
            preset,
            mode,
            policy,
            ceiling,
            effects,
            upstream_proxy,
            set,
        } = self.clone();
        PolicyRequest {
            allow,
            deny,
            tls_off,
            host_port,
            preset,
            mode,
            policy,
            ceiling,
            effects: effects.map(|effects| Effects::File(effects.into())),
            upstream_proxy,
            set,
            uses_project: true,
            ..PolicyRequest::default()
        }
    }

    /// Lists the descriptors that are read, each with its flag.
    pub(crate) fn descriptors(&self) -> Vec<(&'static str, Output)> {
        let of = |flag: &'static str, paths: &[PathBuf]| {
            let named = paths.iter().filter_map(|path| path.to_str()?.parse().ok());
            named.map(|named| (flag, named)).collect::<Vec<_>>()
        };
        let effects: Vec<PathBuf> = self.effects.iter().map(PathBuf::from).collect();
        [of("--policy", &self.policy), of("--ceiling", &self.ceiling), of("--effects", &effects)].concat()
    }
}

/// `exeat policy ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Print the effective policy, each rule with its origin
    Show(PolicyShowArgs),
    /// Point out rules that are risky, dead or duplicate
    Lint(PolicyLintArgs),
    /// Say what going from policy A to policy B opens and closes
    Diff(PolicyDiffArgs),
    /// Print the JSON Schema of a policy file, a record or an output
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

    /// text (default), or json: one object
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = "Output")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) format: Format,
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

    /// text (default), or json: an object per finding
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = "Output")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) format: Format,
}

/// `exeat policy diff`.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 no difference, 1 a difference, 2 bad input.")]
pub(crate) struct PolicyDiffArgs {
    /// The policy file before, or a policy as JSON
    #[arg(value_name = "A", value_hint = ValueHint::FilePath)]
    pub(crate) before: PathBuf,

    /// The policy file after
    #[arg(value_name = "B", value_hint = ValueHint::FilePath)]
    pub(crate) after: PathBuf,

    /// A and B are ceilings
    #[arg(long)]
    pub(crate) ceiling: bool,

    /// text (default), or json: an object per difference
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) format: Format,
}

/// `exeat policy schema`.
#[derive(Debug, Args)]
pub(crate) struct PolicySchemaArgs {
    /// Kind of file: policy (default), ceiling, effects, result (what --result writes), record (its lines); or what a command
    /// prints with --format json: check, policy-show, plan (run --dry-run), audit-list, state-list
    #[arg(
        value_name = "FILE",
        default_value = "policy",
        hide_possible_values = true,
        hide_default_value = true
    )]
    pub(crate) of: SchemaOf,
}

/// The format that `exeat policy schema` describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum SchemaOf {
    /// A policy file.
    #[default]
    Policy,
    /// A ceiling.
    Ceiling,
    /// The effects of a stage.
    Effects,
    /// The object that `--result` writes.
    Result,
    /// A line of a record.
    Record,
    /// A line of `exeat check`.
    Check,
    /// The object of `exeat policy show`.
    PolicyShow,
    /// The object of `exeat run --dry-run`.
    Plan,
    /// The array of `exeat audit list`.
    AuditList,
    /// The object of `exeat state list`.
    StateList,
}
