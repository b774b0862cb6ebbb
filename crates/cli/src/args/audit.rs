//! The arguments of `exeat audit`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use exeat_audit::Moment;
use exeat_audit::export::ocsf;
use exeat_audit::ledger::KeptHead;
use exeat_audit::query::HostFilter;
use exeat_policy::{Reason, Verdict};

use super::values::Label;
use super::{Format, PolicyArgs, words};

/// `exeat audit ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Show what a run tried to reach, and with what outcome
    Show(ShowArgs),
    /// Show what many runs reached together: per host who was let through, who was not, and which rules did it
    Summary(SummaryArgs),
    /// Show what records reached that others did not: hosts, ways and verdicts
    Diff(DiffArgs),
    /// List the recorded runs, the newest first
    List(ListArgs),
    /// Remove the records of runs that are older than a span; nothing else ever does
    Prune(PruneArgs),
    /// Write records in another schema, for a SIEM
    Export(ExportArgs),
    /// Say what another policy would have decided, and where that differs
    Replay(ReplayArgs),
    /// Print the smallest policy that covers what records say was let through
    Learn(LearnedArgs),
    /// Write down what each stage reached, for exeat run --locked
    Lock(LockArgs),
    /// Write one page for people: what ran, what it reached, what was denied and why
    Report(ReportArgs),
    /// Check that records are whole: nothing changed, nothing missing, signed to their end
    Verify(VerifyArgs),
    /// Print the public half of the key that signs your records
    Key(KeyArgs),
}

/// `--audit-key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyFrom {
    /// A file, created if it is missing.
    File(PathBuf),
    /// An open descriptor.
    Fd(i32),
    /// A variable of exeat's environment.
    Env(String),
    /// No key.
    Nothing,
}

impl KeyFrom {
    /// Returns the descriptor that the key is read from, if it is one.
    pub(crate) fn descriptor(&self) -> Option<super::Output> {
        match self {
            Self::Fd(n) => Some(super::Output::Fd(*n)),
            _ => None,
        }
    }
}

impl FromStr for KeyFrom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(number) = text.strip_prefix("fd:") {
            let fd = super::digits(number).and_then(|n| i32::try_from(n).ok());
            return fd.map(Self::Fd).ok_or_else(|| "a descriptor is written fd:N, such as fd:3".into());
        }
        match (text, text.strip_prefix("env:")) {
            ("", _) => Err("the path is empty".into()),
            ("none", _) => Ok(Self::Nothing),
            (_, Some("")) => Err("a variable is written env:NAME".into()),
            // A key that was typed here would be in the shell's history.
            _ if text.contains("PRIVATE KEY") => {
                Err("the key itself has no place on a command line: name its file".into())
            }
            (_, Some(name)) => Ok(Self::Env(name.into())),
            _ => Ok(Self::File(text.into())),
        }
    }
}

/// The records to read.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Records {
    /// Records, directories of them, or runs by the first letters of their names; - is standard input; otherwise the last run
    #[arg(value_name = "FILE|DIR|RUN", value_hint = ValueHint::AnyPath)]
    pub(crate) runs: Vec<PathBuf>,

    /// The last run (of those that the flags below select)
    #[arg(long, conflicts_with = "runs", help_heading = WHICH)]
    pub(crate) last: bool,

    /// Every run of the state directory, as with each of the flags below
    #[arg(long, conflicts_with = "last", help_heading = WHICH)]
    pub(crate) all: bool,

    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// The filters that select runs.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SelectionArgs {
    /// Only runs of this stage
    #[arg(long, value_name = "NAME", help_heading = WHICH)]
    pub(crate) stage: Vec<String>,

    /// Only runs with this label
    #[arg(long = "label", value_name = "K=V", help_heading = WHICH)]
    pub(crate) labels: Vec<Label>,

    /// Only runs that this user started
    #[arg(long, value_name = "NAME", help_heading = WHICH)]
    pub(crate) user: Vec<String>,

    /// Only runs on this machine
    #[arg(long, value_name = "NAME", help_heading = WHICH)]
    pub(crate) machine: Vec<String>,

    /// Only runs that were started in this directory or below it
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = WHICH)]
    pub(crate) dir: Vec<PathBuf>,

    /// Not before this time: 2026-11-21, '2026-11-21 10:20', RFC 3339 (all UTC), or back from now: 30m, 7d
    #[arg(long, value_name = "TIME", help_heading = WHICH, value_parser = parse_moment)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) since: Option<Moment>,

    /// Not after this time
    #[arg(long, value_name = "TIME", help_heading = WHICH, value_parser = parse_moment)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) until: Option<Moment>,
}

/// The heading of the flags that select runs.
const WHICH: &str = "Which runs";

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

    /// Only what came in this way: connect, http, socks5, transparent, forward, dns or direct
    #[arg(long, value_name = "WAY", help_heading = "Filter", value_parser = parse_via)]
    pub(crate) via: Vec<String>,

    /// Only what this program asked for: its path, or the last part of it
    #[arg(long, value_name = "NAME", help_heading = "Filter")]
    pub(crate) exe: Vec<String>,

    /// Show each line as it is written, until the run ends; with --all or a filter of runs, for every running or new run
    #[arg(short, long)]
    pub(crate) follow: bool,

    /// text (default), or json: the records as they are, one object per line
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) format: Format,
}

/// `exeat audit summary`.
#[derive(Debug, Args)]
#[command(after_help = SUMMARY_EXAMPLES)]
pub(crate) struct SummaryArgs {
    #[command(flatten)]
    pub(crate) records: Records,

    /// Only this host, or every host below a domain: *.example.com
    #[arg(long, value_name = "HOST", help_heading = "Filter")]
    pub(crate) host: Vec<HostFilter>,

    /// text (default), json, markdown, or github: for $GITHUB_STEP_SUMMARY
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) format: SummaryFormat,

    /// Sort by denied (default), up or down (bytes), failed, or attempts
    #[arg(long, value_name = "ORDER", default_value = "denied")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) sort: SummarySort,
}

/// `--sort` of a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SummarySort {
    /// Most refusals first.
    Denied,
    /// Most bytes to the host first.
    Up,
    /// Most bytes from the host first.
    Down,
    /// Most failures first.
    Failed,
    /// Most attempts first.
    Attempts,
}

/// `--format` of a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SummaryFormat {
    /// Text for a terminal.
    Text,
    /// A single JSON object.
    Json,
    /// Markdown tables.
    Markdown,
    /// Markdown tables for the summary of a GitHub job.
    Github,
}

/// `exeat audit diff`.
#[derive(Debug, Args)]
#[command(after_help = DIFF_EXAMPLES)]
pub(crate) struct DiffArgs {
    /// Baseline: a record, a directory, a run by the first letters of its name, - or a lock (egress.lock); with
    /// --baseline or --baseline-until one more record to compare
    #[arg(value_name = "BASELINE", value_hint = ValueHint::AnyPath)]
    #[arg(required_unless_present_any = ["baselines", "baseline_until"])]
    pub(crate) first: Option<PathBuf>,

    /// Baseline instead of the first argument; can be repeated
    #[arg(long = "baseline", value_name = "FILE|DIR|RUN", value_hint = ValueHint::AnyPath)]
    pub(crate) baselines: Vec<PathBuf>,

    /// Compare what the selected runs did until this time with what they have done since
    #[arg(long, value_name = "TIME", value_parser = parse_moment, allow_hyphen_values = true)]
    pub(crate) baseline_until: Option<Moment>,

    #[command(flatten)]
    pub(crate) records: Records,

    /// text (default), json or markdown
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) format: DiffFormat,
}

/// `--format` of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiffFormat {
    /// Text for a terminal.
    Text,
    /// A single JSON object.
    Json,
    /// A Markdown table.
    Markdown,
}

/// `exeat audit prune`.
#[derive(Debug, Args)]
#[command(after_help = PRUNE_EXAMPLES)]
pub(crate) struct PruneArgs {
    /// Runs whose record was last written to longer ago than this: 180d, 8w, 6mo, 2y
    #[arg(long, value_name = "SPAN", value_parser = parse_age_of_records)]
    pub(crate) older_than: Duration,

    #[command(flatten)]
    pub(crate) selection: SelectionArgs,

    /// Say what would be removed, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Remove records of runs that were killed, too: their end is not in the ledger either
    #[arg(long)]
    pub(crate) killed: bool,

    /// Remove records that are not whole (see exeat audit verify), too
    #[arg(long)]
    pub(crate) force: bool,
}

/// `exeat audit list`.
#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
#[command(mut_arg("runs", |arg| {
    arg.help("Records, directories of them, or runs by the first letters of their names; otherwise every run")
}))]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) records: Records,

    /// Only runs that are over and whose exit code is not 0 (the column FAILED counts connections)
    #[arg(long, help_heading = "Filter")]
    pub(crate) failed: bool,

    /// Only runs that asked for this host, or for a host below a domain: *.example.com
    #[arg(long, value_name = "HOST", help_heading = "Filter")]
    pub(crate) host: Vec<HostFilter>,

    /// Only runs in which something was denied, or would have been; unknown for runs without an end
    #[arg(long, help_heading = "Filter")]
    pub(crate) denied: bool,

    /// text (default), or json: one array
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) format: Format,
}

/// `exeat audit export`.
#[derive(Debug, Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) records: Records,

    /// ocsf (default), ecs, or jsonl: the lines as they are
    #[arg(long, value_name = "FORMAT", default_value = "ocsf", hide_default_value = true)]
    #[arg(hide_possible_values = true)]
    pub(crate) format: ExportFormat,

    /// Version of OCSF: 1.1, 1.3 (default), 1.5 or 1.8
    #[arg(long, value_name = "VERSION", default_value = "1.3", hide_default_value = true)]
    pub(crate) ocsf: ocsf::Version,
}

/// `exeat audit report`.
#[derive(Debug, Args)]
#[command(after_help = REPORT_EXAMPLES)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub(crate) records: Records,

    /// Write the page to this file, replacing it; - is standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: PathBuf,

    /// A key that may have signed them: a vkey, or a file of vkeys, or a public key in PEM; otherwise your own
    #[arg(long, value_name = "VKEY|FILE")]
    pub(crate) key: Vec<String>,
}

/// A schema that records can be written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Open Cybersecurity Schema Framework.
    Ocsf,
    /// Elastic Common Schema.
    Ecs,
    /// The record's own format.
    Jsonl,
}

/// `exeat audit replay`.
#[derive(Debug, Args)]
#[command(after_help = REPLAY_EXAMPLES)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    pub(crate) records: Records,

    /// text (default) or json
    #[arg(long, value_name = "FORMAT", default_value = "text", hide_default_value = true)]
    #[arg(hide_possible_values = true)]
    pub(crate) format: Format,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
}

/// `exeat audit learn`.
#[derive(Debug, Args)]
#[command(after_help = LEARN_EXAMPLES)]
pub(crate) struct LearnedArgs {
    #[command(flatten)]
    pub(crate) records: Records,

    /// Also grant what was refused for lack of a rule; otherwise it is in comments
    #[arg(long)]
    pub(crate) denied: bool,

    /// Write to this file instead of stdout
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,

    /// With --output: replace a file that is there
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
}

/// `exeat audit lock`.
#[derive(Debug, Args)]
#[command(after_help = LOCK_EXAMPLES)]
pub(crate) struct LockArgs {
    #[command(flatten)]
    pub(crate) records: Records,

    /// Write to this file instead of stdout; keep its lists of stages that no record here has
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,

    /// With --output: add to the lists of the stages, and remove nothing from them
    #[arg(long, requires = "output")]
    pub(crate) update: bool,
}

/// `exeat audit verify`.
#[derive(Debug, Args)]
#[command(after_help = VERIFY_EXAMPLES)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) records: Records,

    /// A key that may have signed them: a vkey, or a file of vkeys, or a public key in PEM; otherwise your own
    #[arg(long, value_name = "VKEY|FILE")]
    pub(crate) key: Vec<String>,

    /// With --all: 1 also for runs that were killed, go on, or are not signed, in which nothing was changed
    #[arg(long)]
    pub(crate) strict: bool,

    /// With --all: a ledger must have this head, from --result or stderr of an earlier run: 'NUMBER DIGITS', or digits
    #[arg(long, value_name = "HEAD", requires = "all")]
    pub(crate) head: Vec<KeptHead>,

    /// text (default), or json: an object per record, and one for all
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub(crate) format: Format,
}

/// `exeat audit key`.
#[derive(Debug, Args)]
#[command(after_help = KEY_EXAMPLES)]
pub(crate) struct KeyArgs {
    /// The key, as `exeat run` takes it; otherwise your own, which the first run makes
    #[arg(long, value_name = "FILE|fd:N|env:NAME", value_hint = ValueHint::FilePath)]
    pub(crate) audit_key: Option<KeyFrom>,
}

/// Parses a verdict. Accepts the words of summaries and tables as well.
fn parse_verdict(text: &str) -> Result<Verdict, String> {
    let word = match text {
        "allowed" => "allow",
        "denied" => "deny",
        "would deny" | "would-deny" => "would_deny",
        "failed" => "error",
        word => word,
    };
    word.parse().map_err(|_| words(&Verdict::ALL))
}

fn parse_reason(text: &str) -> Result<Reason, String> {
    text.parse().map_err(|_| words(&Reason::ALL))
}

fn parse_moment(text: &str) -> Result<Moment, String> {
    Moment::typed(text, SystemTime::now()).map_err(|error| error.to_string())
}

pub(super) fn parse_age(text: &str) -> Result<Duration, String> {
    exeat_policy::parse_age(text).map_err(|error| error.to_string())
}

/// Parses the age of records that are to be removed. Refuses less than an hour in minutes, because `6m` may mean months, and what is removed
/// does not come back.
fn parse_age_of_records(text: &str) -> Result<Duration, String> {
    match text.strip_suffix('m').and_then(|count| count.parse::<u64>().ok()) {
        Some(minutes @ 1..60) => {
            Err(format!("{text} are minutes: {minutes}mo for months, {}s for minutes", minutes * 60))
        }
        _ => parse_age(text),
    }
}

fn parse_via(text: &str) -> Result<String, String> {
    const WAYS: [&str; 7] = ["connect", "http", "socks5", "transparent", "forward", "dns", "direct"];
    if WAYS.contains(&text) { Ok(text.to_owned()) } else { Err(words(&WAYS)) }
}

const SHOW_EXAMPLES: &str = "\
Examples:
  exeat audit show
  exeat audit show 01JD8Z3V5Q --verdict deny
  exeat audit show run.jsonl --host '*.example.com' --format json
  exeat audit show --last --since 2h --via direct
  exeat audit show --follow --verdict deny
  exeat audit show -f --all
  exeat audit show -f --stage nightly --format json

Exit codes: 0 no damage found (signatures: exeat audit verify), 1 it is damaged, 2 bad input.";

const SUMMARY_EXAMPLES: &str = "\
Examples:
  exeat audit summary
  exeat audit summary --stage nightly --since 7d
  exeat audit summary records/2026-11 --label ticket=OPS-7
  exeat audit summary run.jsonl --format github >> \"$GITHUB_STEP_SUMMARY\"
  exeat audit summary --sort up
  exeat audit summary --format json | jq -r '.unused_rules[].rule'

Exit codes: 0 no damage found (signatures: exeat audit verify), 1 a record is damaged, 2 bad input.";
const VERIFY_EXAMPLES: &str = "\
Examples:
  exeat audit verify
  exeat audit verify --all
  exeat audit verify --all --head '1412 ab12cd34ef56ab78'
  exeat audit verify records --key exeat-audit+1a2b3c4d+AbCd...
  exeat audit verify run.jsonl --key audit.pub --format json

Exit codes: 0 whole, 1 changed, missing, or not signed to its end, 2 bad input,
125 signed by a key that is not known here. With --all, which asks the ledgers,
0 also for runs that were killed, go on or are not signed.";

const KEY_EXAMPLES: &str = "\
Examples:
  exeat audit key > audit.pub
  exeat audit key --audit-key env:AUDIT_KEY";

const REPLAY_EXAMPLES: &str = "\
Examples:
  exeat audit replay --policy .exeat.toml.new
  exeat audit replay --policy .exeat.toml --ceiling site.toml records/*.jsonl
  exeat audit replay --policy new.toml --last --format json | jq '.differences[] | select(.now.verdict == \"deny\")'

Exit codes: 0 no difference, 1 a difference, or a damaged record, 2 bad input.";

const LEARN_EXAMPLES: &str = "\
Examples:
  exeat audit learn
  exeat audit learn monday.jsonl tuesday.jsonl -o .exeat.toml
  exeat audit learn --last --denied

Exit codes: 0 done, 1 a record is damaged (what could be read of it is used), 2 bad input.";

const LOCK_EXAMPLES: &str = "\
Examples:
  exeat audit lock
  exeat audit lock --last -o egress.lock
  exeat audit lock monday.jsonl tuesday.jsonl --update -o egress.lock
  exeat run --locked --policy .exeat.toml -- npm ci

Exit codes: 0 done, 1 a record is damaged (what could be read of it is used), 2 bad input.";

const LIST_EXAMPLES: &str = "\
Examples:
  exeat audit list
  exeat audit list --since 7d --failed
  exeat audit list --host '*.example.com'
  exeat audit list --format json | jq -r '.[].run'";

const DIFF_EXAMPLES: &str = "\
Examples:
  exeat audit diff last-release.jsonl
  exeat audit diff 01JD8Z3V5Q 01JE0 --format markdown
  exeat audit diff egress.lock
  exeat audit diff --stage nightly --baseline-until 2026-11-01
  exeat audit diff --baseline records/2026-10 records/2026-11

Exit codes: 0 nothing new, 1 something new, 2 bad input, 125 cannot tell (a record
cannot be read, or there are too many hosts).";

const PRUNE_EXAMPLES: &str = "\
Examples:
  exeat audit prune --older-than 180d --dry-run
  exeat audit prune --older-than 2y
  exeat audit prune --older-than 180d --killed

Exit codes: 0 done, 1 a record was kept because it is not whole, 2 bad input.";

const EXPORT_EXAMPLES: &str = "\
Examples:
  exeat audit export > events.jsonl
  exeat audit export --ocsf 1.1 01JD8Z3V5Q run.jsonl
  tail -c +1 -f run.jsonl | exeat audit export - | send-to-siem

Exit codes: 0 no damage found (signatures: exeat audit verify), 1 a record is damaged, 2 bad input.";

const REPORT_EXAMPLES: &str = "\
Examples:
  exeat audit report -o report.html
  exeat audit report -o - 01JD8Z3V5Q run.jsonl > report.html

Exit codes: 0 no damage found, 1 a record is damaged (the page says so), 2 bad input.";
