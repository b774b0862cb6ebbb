//! What was typed behind `exeat audit`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use exeat_audit::export::ocsf;
use exeat_audit::query::HostFilter;
use exeat_policy::{Reason, Verdict};

use super::words;

/// `exeat audit ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Show what a run tried to reach, and what became of it
    Show(ShowArgs),
    /// List the recorded runs, the newest first
    List(ListArgs),
    /// Write records in the words of another schema, for a SIEM
    Export(ExportArgs),
}

/// Which records are read.
#[derive(Debug, Args)]
pub(crate) struct Records {
    /// Records, or runs by the first letters of their names; - is standard input; otherwise the last run
    #[arg(value_name = "FILE|RUN", value_hint = ValueHint::FilePath)]
    pub(crate) runs: Vec<PathBuf>,

    /// The last run
    #[arg(long, conflicts_with = "runs")]
    pub(crate) last: bool,
}

/// `exeat audit show`.
#[derive(Debug, Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) records: Records,

    /// Only this verdict: allow, deny, would_deny or error
    #[arg(long, value_name = "VERDICT", help_heading = "Filter", value_parser = parse_verdict)]
    pub(crate) verdict: Vec<Verdict>,

    /// Only this host, or every host below a domain: *.example.com
    #[arg(long, value_name = "HOST", help_heading = "Filter")]
    pub(crate) host: Vec<HostFilter>,

    /// Only this reason, such as default, port, deny_rule or private_ip
    #[arg(long, value_name = "REASON", help_heading = "Filter", value_parser = parse_reason)]
    pub(crate) reason: Vec<Reason>,

    /// The records as they stand, one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `exeat audit list`.
#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub(crate) struct ListArgs {
    /// As one JSON array
    #[arg(long)]
    pub(crate) json: bool,
}

/// `exeat audit export`.
#[derive(Debug, Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) records: Records,

    /// What to write: ocsf (default), or jsonl: the lines as they stand
    #[arg(long, value_name = "FORMAT", default_value = "ocsf", hide_default_value = true)]
    #[arg(hide_possible_values = true)]
    pub(crate) format: ExportFormat,

    /// Version of OCSF: 1.1, 1.3 (default), 1.5 or 1.8
    #[arg(long, value_name = "VERSION", default_value = "1.3", hide_default_value = true)]
    pub(crate) ocsf: ocsf::Version,
}

/// A schema that records can be written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Open Cybersecurity Schema Framework.
    Ocsf,
    /// The record's own.
    Jsonl,
}

fn parse_verdict(text: &str) -> Result<Verdict, String> {
    text.parse().map_err(|_| words(&Verdict::ALL))
}

fn parse_reason(text: &str) -> Result<Reason, String> {
    text.parse().map_err(|_| words(&Reason::ALL))
}

const SHOW_EXAMPLES: &str = "\
Examples:
  exeat audit show
  exeat audit show 01JD8Z3V5Q --verdict deny
  exeat audit show run.jsonl --host '*.example.com' --json

Exit codes: 0 the record is whole so far, 1 it is damaged, 2 bad input.";

const LIST_EXAMPLES: &str = "\
Examples:
  exeat audit list
  exeat audit list --json | jq -r '.[].run'";

const EXPORT_EXAMPLES: &str = "\
Examples:
  exeat audit export > events.jsonl
  exeat audit export --ocsf 1.1 01JD8Z3V5Q run.jsonl
  tail -c +1 -f run.jsonl | exeat audit export - | send-to-siem

Exit codes: 0 the records are whole so far, 1 one is damaged, 2 bad input.";
