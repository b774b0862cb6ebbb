//! Text, numbers and tables of the page. Text of a record gets into the page only through [`text`]: as printable ASCII, without the
//! characters that mean something to HTML.

use std::fmt::{self, Write as _};

use exeat_policy::{Verdict, printable_ascii};

use crate::Moment;
use crate::summary::Traffic;
use crate::table::{bytes, day_and_time};

/// Escapes text of a record for the page, or for an attribute in double quotation marks.
pub(super) fn text(text: &str) -> impl fmt::Display + '_ {
    struct Text<'a>(&'a str);
    impl fmt::Display for Text<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            for c in printable_ascii(self.0).chars() {
                match c {
                    '&' => f.write_str("&amp;")?,
                    '<' => f.write_str("&lt;")?,
                    '>' => f.write_str("&gt;")?,
                    '"' => f.write_str("&quot;")?,
                    '\'' => f.write_str("&#39;")?,
                    c => f.write_char(c)?,
                }
            }
            Ok(())
        }
    }
    Text(text)
}

pub(super) fn code(words: &str) -> String {
    format!("<code>{}</code>", text(words))
}

/// Formats a host with its port, a rule, or a file with its line. It may break only after a dot, or in brackets after a colon, and never
/// in the last part, which has the number.
pub(super) fn place(words: &str) -> String {
    let shown = printable_ascii(words);
    let (main, rest) = shown.split_at(shown.find(' ').unwrap_or(shown.len()));
    // Keep the last part of an address together with its port.
    let (sign, end) = match main.rfind("]:") {
        Some(end) => (':', end),
        None => ('.', main.len()),
    };
    let (breakable, port) = main.split_at(end);
    format!("{}{}", parts(breakable, sign, port), text(rest))
}

/// Formats a path, which may break after its slashes.
pub(super) fn path(words: &str) -> String {
    parts(&printable_ascii(words), '/', "")
}

/// Formats text that may break only after a sign; `tail` stays with the last part.
pub(super) fn parts(words: &str, sign: char, tail: &str) -> String {
    /// The longest text that is never broken.
    const SHORT: usize = 22;
    /// The longest part that is never broken.
    const WHOLE: usize = 30;
    let short = words.len() + tail.len() <= SHORT;
    let mut parts: Vec<String> = match short {
        true => vec![words.to_owned()],
        false => words.split_inclusive(sign).map(str::to_owned).collect(),
    };
    if let Some(last) = parts.last_mut() {
        last.push_str(tail);
    }
    let mut out = String::from("<code class=\"at\">");
    let last = parts.len().saturating_sub(1);
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            out.push_str("<wbr>");
        }
        // A part that is too long for a line may break anywhere, but not in its number.
        let (name, number) = match part.rfind(':').filter(|_| at == last && part.len() > WHOLE) {
            Some(colon) => part.split_at(colon),
            None if part.len() > WHOLE => (part.as_str(), ""),
            None => ("", part.as_str()),
        };
        if !name.is_empty() {
            let _ = write!(out, "<span class=\"any\">{}</span>", text(name));
        }
        if !number.is_empty() {
            let _ = write!(out, "<span class=\"whole\">{}</span>", text(number));
        }
    }
    out.push_str("</code>");
    out
}

/// Formats free text, where only words that are too long for a column may break.
pub(super) fn prose(words: &str) -> String {
    /// The longest word that is never broken.
    const WHOLE: usize = 30;
    let part = |word: &str| match word.len() > WHOLE {
        true => format!("<span class=\"any\">{}</span>", text(word)),
        false => text(word).to_string(),
    };
    printable_ascii(words).split(' ').map(part).collect::<Vec<_>>().join(" ")
}

/// Formats a number with its digits in threes, and the singular or plural word for it.
pub(super) fn many(count: u64, one: &str, more: &str) -> String {
    format!("{} {}", number(count), if count == 1 { one } else { more })
}

pub(super) fn number(count: u64) -> String {
    let digits = count.to_string();
    let mut shown = String::with_capacity(digits.len() * 2);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(' ');
        }
        shown.push(digit);
    }
    shown
}

/// A table: rows under a head.
pub(super) struct Table<'a> {
    caption: &'a str,
    heads: &'a [&'a str],
    body: String,
}

/// A cell: its class, and its content as HTML.
pub(super) type Cell = (&'static str, String);

impl<'a> Table<'a> {
    pub(super) fn new(caption: &'a str, heads: &'a [&'a str]) -> Table<'a> {
        Table { caption, heads, body: String::new() }
    }

    pub(super) fn row(&mut self, cells: &[Cell]) {
        self.body.push_str("<tr>");
        for ((class, cell), head) in cells.iter().zip(self.heads) {
            let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
            let _ = match cell.as_str() {
                "" => write!(self.body, "<td{class}></td>"),
                cell => write!(self.body, "<td{class} data-l=\"{head}\">{cell}</td>"),
            };
        }
        self.body.push_str("</tr>\n");
    }

    /// Writes the table, or nothing if it has no rows. `left` is the number of rows left out.
    pub(super) fn finish(self, left: u64, out: &mut String) {
        if self.body.is_empty() {
            return;
        }
        let _ = write!(out, "<table><caption>{}</caption><thead><tr>", self.caption);
        for head in self.heads {
            let numeric = matches!(
                *head,
                "Attempts"
                    | "Reached"
                    | "Denied"
                    | "Would be denied"
                    | "Failed"
                    | "Sent"
                    | "Received"
                    | "Times"
                    | "Lines"
                    | "Runs"
            );
            let class = if numeric { " class=\"n\"" } else { "" };
            let _ = write!(out, "<th scope=\"col\"{class}>{head}</th>");
        }
        let _ = write!(out, "</tr></thead>\n<tbody>\n{}</tbody></table>\n", self.body);
        if left > 0 {
            let _ = writeln!(out, "<p class=\"left\">and {} more, not listed here</p>", number(left));
        }
    }
}

pub(super) fn count(class: &'static str, count: u64) -> Cell {
    match count {
        0 => ("n", "<span class=\"soft\">0</span>".to_owned()),
        count if class.is_empty() => ("n", number(count)),
        count => ("n", format!("<b class=\"{class}\">{}</b>", number(count))),
    }
}

pub(super) fn verdict(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Allow => ("allowed", "good"),
        Verdict::Deny => ("denied", "held"),
        Verdict::WouldDeny => ("would be denied", "warn"),
        Verdict::Error => ("failed", ""),
    }
}

/// Formats bytes. Connections that are open may have moved more.
pub(super) fn size(count: u64, open: u64) -> String {
    match (count, open) {
        (count, 0) => bytes(count),
        (0, _) => "<b class=\"warn\">unknown</b>".to_owned(),
        (count, _) => format!("<b class=\"warn\">at least {}</b>", bytes(count)),
    }
}

/// Formats bytes both ways; empty without a connection.
pub(super) fn sizes(traffic: &Traffic) -> [Cell; 2] {
    match traffic {
        Traffic { bytes_up: 0, bytes_down: 0, open: 0, .. } => [("n", String::new()), ("n", String::new())],
        Traffic { bytes_up, bytes_down, open, .. } => {
            [("n", size(*bytes_up, *open)), ("n", size(*bytes_down, *open))]
        }
    }
}

/// Formats a moment for a table.
pub(super) fn when(at: Option<Moment>) -> Cell {
    ("t", at.map(|at| text(&day_and_time(at.as_str())).to_string()).unwrap_or_default())
}
