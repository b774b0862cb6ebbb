//! What was typed of a policy, and behind `exeat policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use exeat_policy::{Ech, EffectKind, HostPort, Mode};

use super::values::{parse_ech, parse_effect_kind, parse_mode};

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
