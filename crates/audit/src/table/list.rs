//! Writes lists of runs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use exeat_policy::printable_ascii;
use exeat_record::{RunId, ascii_json};
use serde_json::json;

use super::{GREEN, RED, YELLOW, cell, day_and_time, line, plain, short_end};
use crate::query::Record;
use crate::runs::RunSummary;

/// The widest command for which the labels of other runs move to the right.
const COMMAND: usize = 40;

/// Writes a list of runs as a table. `names` has the short names of the runs. If a run has labels, the last column shows them.
pub fn list(
    runs: &[RunSummary],
    names: &BTreeMap<RunId, String>,
    out: &mut dyn Write,
    color: bool,
) -> io::Result<()> {
    if runs.is_empty() {
        return Ok(());
    }
    let name = |run: &RunSummary| match run.run {
        Some(run) => names.get(&run).cloned().unwrap_or_else(|| run.to_string()),
        None => run
            .path
            .file_name()
            .map_or_else(|| "-".to_owned(), |name| printable_ascii(&name.to_string_lossy()).into_owned()),
    };
    let width = runs.iter().map(|run| name(run).len()).max().unwrap_or_default();
    let mut heads =
        vec!["RUN", "STARTED (UTC)", "END", "ALLOWED", "DENIED", "WOULD", "FAILED", "STAGE", "COMMAND"];
    let ends: Vec<_> = runs.iter().map(end_of).collect();
    let end_width = ends.iter().map(|(end, _)| end.len()).max().unwrap_or_default().max(10);
    let mut widths = vec![width.cast_signed(), 19, end_width.cast_signed(), -7, -6, -5, -6, 16, 0];
    let has_labels = runs.iter().any(|run| !run.labels.is_empty());
    if has_labels {
        heads.push("LABELS");
        let command = runs.iter().map(|run| word(run.command.as_deref()).len()).max().unwrap_or_default();
        widths.pop();
        widths.extend([command.clamp("COMMAND".len(), COMMAND).cast_signed(), 0]);
    }
    writeln!(out, "{}", line(&widths, heads.into_iter().map(plain), false))?;
    for (run, (end, style)) in runs.iter().zip(ends) {
        let count = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        let number = |of: fn(&Record) -> Option<u64>, style| {
            let value = run.end.as_deref().and_then(of);
            (count(value), value.filter(|it| *it > 0).and(style))
        };
        let mut cells = vec![
            plain(name(run)),
            plain(run.started.as_deref().map_or_else(|| "-".to_owned(), day_and_time)),
            (end, style),
            number(|end| end.allowed, None),
            number(|end| end.denied, Some(RED)),
            number(|end| end.would_deny, Some(YELLOW)),
            number(not_reached, Some(YELLOW)),
            plain(word(run.stage.as_deref())),
            plain(word(run.command.as_deref())),
        ];
        if has_labels {
            let labels: Vec<_> = run.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            cells.push(plain(if labels.is_empty() {
                "-".into()
            } else {
                cell(&labels.join(" ")).into_owned()
            }));
        }
        writeln!(out, "{}", line(&widths, cells, color))?;
    }
    Ok(())
}

fn word(text: Option<&str>) -> Cow<'_, str> {
    text.map_or("-".into(), printable_ascii)
}

/// Returns the end of a run in words, and its color.
fn end_of(run: &RunSummary) -> (String, Option<&'static str>) {
    match (&run.end, &run.problem) {
        (_, Some(_)) => ("unreadable".to_owned(), Some(RED)),
        (None, None) if run.is_strange => ("no record".to_owned(), Some(RED)),
        (None, None) if run.running => ("running".to_owned(), Some(GREEN)),
        (None, None) => ("unfinished".to_owned(), Some(YELLOW)),
        (Some(end), None) => (short_end(end), None),
    }
}

/// Counts what failed without a denial: failed connections, and names and connections with the verdict `error`.
fn not_reached(end: &Record) -> Option<u64> {
    Some(end.failed?.saturating_add(end.errors.unwrap_or_default()))
}

/// Returns the JSON Schema of what [`list_json`] writes.
#[must_use]
pub fn list_schema() -> &'static str {
    include_str!("list.schema.json")
}

/// Writes a list of runs as one JSON array, one run a line. `list.schema.json` is its schema.
pub fn list_json(runs: &[RunSummary], out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"[")?;
    for (at, run) in runs.iter().enumerate() {
        let end = run.end.as_ref();
        let value = json!({
            "run": run.run,
            "path": run.path.to_string_lossy(),
            "started": run.started,
            "stage": run.stage,
            "command": run.command,
            "no": run.no,
            "user": run.user,
            "machine": run.machine,
            "dir": run.dir,
            "labels": run.labels,
            "finished": end.is_some(),
            "running": run.running,
            "cause": end.and_then(|end| end.cause.as_deref()),
            "exit": end.and_then(|end| end.exit),
            "limit": end.and_then(|end| end.limit.as_deref()),
            "signal": end.and_then(|end| end.signal.as_deref()),
            "allowed": end.and_then(|end| end.allowed),
            "denied": end.and_then(|end| end.denied),
            "would_deny": end.and_then(|end| end.would_deny),
            "failed": end.and_then(|end| end.failed),
            "errors": end.and_then(|end| end.errors),
            "problem": run.problem.as_deref().or(run.is_strange.then_some("no line of a record")),
            "signature": "not checked",
        });
        out.write_all(if at == 0 { b"\n  " } else { b",\n  " })?;
        ascii_json(out, &value.to_string())?;
    }
    out.write_all(if runs.is_empty() { b"]\n" } else { b"\n]\n" })
}
