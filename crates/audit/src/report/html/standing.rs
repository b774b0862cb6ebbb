//! Says whether the records of the page can be trusted.

use std::fmt::{self, Write as _};

use super::cells::{code, many, number, text};
use crate::report::data::Source;
use crate::verify::{Ending, Standing};

/// The most records whose standing is listed one by one at the top.
pub(super) const FEW: usize = 3;

/// Returns a word for the standing of a record, and its class.
pub(super) fn standing_word(standing: Option<Standing>) -> (&'static str, &'static str) {
    match standing {
        Some(Standing::Whole) => ("good", "whole"),
        Some(Standing::Tampered) => ("bad", "CHANGED"),
        Some(Standing::Unfinished) => ("warn", "not complete"),
        Some(Standing::UnknownKey) => ("warn", "key not known"),
        None => ("warn", "not checked"),
    }
}

/// Summarizes the standing of many records: how many there are of each, and the names of those that are not whole.
pub(super) fn standings(files: &[Source], out: &mut String) -> fmt::Result {
    /// The most names that are listed.
    const LISTED: usize = 20;
    let every = |wanted: Option<Standing>| files.iter().filter(move |source| source.standing() == wanted);
    for (class, wanted, what) in [
        ("bad", Some(Standing::Tampered), "changed after being written. Do not rely on this page"),
        ("warn", None, "not checked"),
        ("warn", Some(Standing::UnknownKey), "signed by a key that is not known here"),
        ("warn", Some(Standing::Unfinished), "not complete, or not signed to the end"),
        (
            "good",
            Some(Standing::Whole),
            "whole: each line of them is as it was written, and none of their lines is missing",
        ),
    ] {
        let count = every(wanted).count();
        if count == 0 {
            continue;
        }
        let records = many(count as u64, "record is", "records are");
        write!(out, "<div class=\"box {class}\"><p><b>{records}</b> {what}.</p>")?;
        if wanted != Some(Standing::Whole) {
            let names: Vec<String> = every(wanted).take(LISTED).map(|source| code(&source.name)).collect();
            let more = match count.saturating_sub(LISTED) {
                0 => String::new(),
                more => format!(", and {} more", number(more as u64)),
            };
            write!(out, "<p>{}{more}</p>", names.join(", "))?;
        }
        out.push_str("</div>\n");
    }
    Ok(())
}

/// Says whether one record can be trusted. It is called verified only if it was verified.
pub(super) fn standing(source: &Source, named: bool, out: &mut String) -> fmt::Result {
    let of = if named { format!(" ({})", code(&source.name)) } else { String::new() };
    let Some(report) = &source.verified else {
        writeln!(
            out,
            "<div class=\"box warn\"><p><b>The record was not checked{of}.</b> Nobody looked whether it is as it was written.</p>"
        )?;
        flaws(source, out)?;
        out.push_str("</div>\n");
        return Ok(());
    };
    let signed = match &report.key {
        Some(key) => format!(" It is signed by the key {}.", code(&key.to_string())),
        None => String::new(),
    };
    let keys: Vec<String> = report.unknown_keys.iter().map(|id| code(id)).collect();
    let (class, said) = match report.standing() {
        Standing::Whole => (
            "good",
            format!(
                "<b>The record is whole{of}.</b> Each of its {} is as it was written, and none of them is missing.{signed}",
                many(report.lines, "line", "lines")
            ),
        ),
        Standing::Unfinished => {
            let (what, why) = match report.ending {
                Ending::Empty => ("empty", "Its run did not begin, or the file was emptied."),
                Ending::MidLine => ("not complete", "It ends in the middle of a line."),
                Ending::Unfinished => {
                    ("not complete", "The run has not ended, was killed, or the end was cut off.")
                }
                Ending::Sealed | Ending::Unsealed => (
                    "not signed to its end",
                    "Whoever can write that file could have written its end anew, which nobody could tell.",
                ),
            };
            ("warn", format!("<b>The record is {what}{of}.</b> Its lines fit together. {why}{signed}"))
        }
        Standing::UnknownKey => (
            "warn",
            format!(
                "<b>The record is not verified{of}.</b> Nothing contradicts it, but who signed it is not known here (key {}).",
                keys.join(", ")
            ),
        ),
        Standing::Tampered => (
            "bad",
            format!("<b>The record was changed after it was written{of}.</b> Do not rely on this page."),
        ),
    };
    writeln!(out, "<div class=\"box {class}\"><p>{said}</p>")?;
    if !report.findings.is_empty() {
        out.push_str("<ul>");
        for finding in &report.findings {
            write!(out, "<li>{}</li>", text(&finding.to_string()))?;
        }
        if report.more > 0 {
            write!(out, "<li>and {} more</li>", number(report.more))?;
        }
        out.push_str("</ul>");
    }
    out.push_str("</div>\n");
    Ok(())
}

fn flaws(source: &Source, out: &mut String) -> fmt::Result {
    if source.flaws.is_empty() {
        return Ok(());
    }
    out.push_str("<ul>");
    for flaw in &source.flaws {
        write!(out, "<li>{}</li>", text(flaw))?;
    }
    if source.more_flaws > 0 {
        write!(out, "<li>and {} more</li>", number(source.more_flaws))?;
    }
    out.push_str("</ul>\n");
    Ok(())
}
