//! Describes faults of a file: the position, the text with a mark below it, and what was probably meant.

use std::fmt;
use std::ops::Range;

use crate::escape::{printable, visible};

/// Maximum faults that one error prints. The others are counted.
const MAX_SHOWN: usize = 20;

/// Maximum faults that one error holds. More guesses are not worth their time.
pub(super) const MAX_FAULTS: usize = 100;

/// The faults of a file.
///
/// It is displayed as `path:line:column`, the fault, the line with a mark below it, and what was probably meant.
/// Control and foreign characters of the file are escaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileError {
    path: String,
    problems: Vec<Problem>,
    total: usize,
}

/// A fault of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    /// The fault, without a full stop.
    pub message: String,
    /// The text that was probably meant.
    pub meant: Option<String>,
    source: String,
    mark: Range<usize>,
}

/// A fault before its line is known: the bytes, the message, and what was probably meant.
pub(super) type SpanFault = (Range<usize>, String, Option<String>);

impl FileError {
    /// Creates the error for at least one fault.
    pub(super) fn new(text: &str, path: &str, mut faults: Vec<SpanFault>) -> Self {
        faults.sort_by_key(|(at, ..)| at.start);
        let total = faults.len();
        faults.truncate(MAX_FAULTS);
        let text = &without_userinfo(text);
        let problems = faults.into_iter().map(|(at, message, meant)| problem(text, at, message, meant));
        Self { path: path.to_owned(), problems: problems.collect(), total }
    }

    /// Returns the name of the file, as it was given.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the first faults in the order of the file; at least one, at most a hundred.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().take(MAX_SHOWN).enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            let Problem { line, column, message, meant, source, mark } = problem;
            let margin = " ".repeat(line.to_string().len());
            writeln!(f, "{}:{line}:{column}: {message}", printable(&self.path))?;
            writeln!(f, "  {line} | {source}")?;
            let marks = "^".repeat(mark.len().max(1));
            write!(f, "  {margin} | {}{marks}", " ".repeat(mark.start))?;
            if let Some(meant) = meant {
                write!(f, "\n  {margin} = probably meant: {meant}")?;
            }
        }
        match self.total.checked_sub(MAX_SHOWN) {
            Some(more) if more > 0 => write!(f, "\n... and {more} more"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for FileError {}

/// Replaces everything between `://` and `@` with a star per byte, because people see it and it can be a password.
fn without_userinfo(text: &str) -> String {
    let mut hidden = Vec::new();
    for (at, mark) in text.match_indices("://") {
        let start = at + mark.len();
        let rest = text.get(start..).unwrap_or_default();
        let end = rest.find(['\n', '"', '\'']).unwrap_or(rest.len());
        hidden.extend(rest.get(..end).and_then(|rest| rest.rfind('@')).map(|end| start..start + end));
    }
    hide_parts(text, &hidden)
}

/// Replaces each byte of these parts with a star.
pub(super) fn hide_parts(text: &str, hidden: &[Range<usize>]) -> String {
    let mut shown = text.to_owned();
    for part in hidden {
        // The length stays equal, so that no offset moves.
        if shown.get(part.clone()).is_some() {
            shown.replace_range(part.clone(), &"*".repeat(part.len()));
        }
    }
    shown
}

/// Returns line and column of a byte, both from 1, with the column in characters.
fn line_and_column(text: &str, at: usize) -> (u32, u32) {
    let head = text.get(..at).unwrap_or(text);
    let line = head.bytes().filter(|b| *b == b'\n').count() + 1;
    let column = head.rsplit('\n').next().unwrap_or(head).chars().count() + 1;
    // The size of a file bounds both.
    (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
}

/// Maximum characters of a source line around the fault in a message.
const MAX_SOURCE: usize = 100;

fn problem(text: &str, at: Range<usize>, message: String, meant: Option<String>) -> Problem {
    let start = (0..=at.start.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let (line, column) = line_and_column(text, start);
    let head = text.get(..start).unwrap_or_default();
    let line_start = head.rfind('\n').map_or(0, |at| at + 1);
    let rest = text.get(line_start..).unwrap_or_default();
    let whole = rest.lines().next().unwrap_or_default();
    // A long line is shown from shortly before the fault.
    let before = text.get(line_start..start).unwrap_or_default();
    let skip = before.chars().count().saturating_sub(MAX_SOURCE / 2);
    let shown: String = whole.chars().skip(skip).take(MAX_SOURCE).collect();
    let before: String = before.chars().skip(skip).collect();
    let marked: String = text
        .get(start..at.end.max(start))
        .and_then(|marked| marked.lines().next())
        .unwrap_or_default()
        .chars()
        .take(MAX_SOURCE - before.chars().count().min(MAX_SOURCE))
        .collect();
    // It is escaped like the line, so that the mark is below the fault.
    let from = visible(&before).len();
    let mark = from..from + visible(&marked).len();
    Problem { line, column, message, meant, source: visible(&shown), mark }
}
