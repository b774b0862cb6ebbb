//! The arguments of `exeat state`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueHint};

use super::Format;
use super::audit::parse_age;

/// `exeat state ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum StateCommand {
    /// List what was set aside and still stands in a quarantine, runs that were killed, and private caches
    List(StateListArgs),
    /// Move what a run has set aside back to its place
    Restore(RestoreArgs),
    /// Delete what runs have set aside, or private caches
    Prune(StatePruneArgs),
    /// Show later runs a repository that a stage may have made
    Trust(TrustArgs),
}

/// `exeat state list`.
#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub(crate) struct StateListArgs {
    /// Only what was set aside in this directory and below, and caches of such directories
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,

    /// text (default), or json: one object
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) format: Format,
}

/// `exeat state restore`.
#[derive(Debug, Args)]
#[command(after_help = RESTORE_EXAMPLES)]
pub(crate) struct RestoreArgs {
    /// The run, or the first letters of it; without it, the only run that has set something aside in this directory's tree
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,

    /// Only what was at these paths, or below them; otherwise all
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
}

/// `exeat state prune`.
#[derive(Debug, Args)]
#[command(after_help = PRUNE_EXAMPLES, group(ArgGroup::new("which").args(["older_than", "all"]).required(true)))]
pub(crate) struct StatePruneArgs {
    /// Only the quarantines of this directory and of those below it, and caches of such directories
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,

    /// Set aside, or last used, longer ago than this: 30m, 30d, 6mo, 1y
    #[arg(long, value_name = "SPAN", value_parser = parse_age)]
    pub(crate) older_than: Option<Duration>,

    /// Whatever its age
    #[arg(long)]
    pub(crate) all: bool,

    /// Delete private caches, and nothing that was set aside
    #[arg(long)]
    pub(crate) caches: bool,

    /// Say what would be deleted, and delete nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `exeat state trust`.
#[derive(Debug, Args)]
#[command(after_help = TRUST_EXAMPLES)]
pub(crate) struct TrustArgs {
    /// The top of the working tree, which has a directory `.git`
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
}

const LIST_EXAMPLES: &str = "\
Examples:
  exeat state list
  exeat state list --dir .
  exeat state list --format json | jq -r '.set_aside[].from'";

const RESTORE_EXAMPLES: &str = "\
Examples:
  exeat state restore
  exeat state restore 01JD8Z3V5Q
  exeat state restore 01JD8Z3V5Q .vscode

Exit codes: 0 done, 1 something could not be restored and is where it was, 2 bad input.";

const PRUNE_EXAMPLES: &str = "\
Examples:
  exeat state prune --older-than 30d --dry-run
  exeat state prune --all --dir .
  exeat state prune --caches --older-than 90d

Exit codes: 0 done, 1 something could not be deleted, 2 bad input.";

const TRUST_EXAMPLES: &str = "\
A run in a subdirectory is shown the repository around it, unless a stage may have made its .git directory.
Check .git/config and .git/hooks first.

Examples:
  exeat state trust ~/work/app

Exit codes: 0 it is trusted, 1 a run whose stage may have made it goes on, or was killed and is not checked yet, 2 bad input.";
