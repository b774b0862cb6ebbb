//! Escapes untrusted text for messages.

use std::borrow::Cow;
use std::fmt::Write;

/// Maximum characters of untrusted text in one message.
const MAX_SHOWN: usize = 200;

/// Returns text as [`printable_ascii`] does, cut after 200 characters.
pub(crate) fn visible(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN).and_then(|(at, _)| text.get(..at)) {
        Some(start) => format!("{}...", printable_ascii(start)),
        None => printable_ascii(text).into_owned(),
    }
}

/// Escapes every character outside 0x20 to 0x7e as `\u{..}`: for text of clients and records, on terminals and pages.
///
/// Control characters would move a terminal's cursor, and bidirectional marks would reorder the line. Letters of
/// other scripts are escaped too, which exposes look-alikes. A backslash stays as it is, so that text that is escaped in
/// the record looks the same on the terminal.
pub fn printable_ascii(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, 0x20..=0x7e)) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() * 2);
    for c in text.chars() {
        match c {
            ' '..='~' => shown.push(c),
            // Writing to a String cannot fail.
            _ => drop(write!(shown, "\\u{{{:x}}}", u32::from(c))),
        }
    }
    Cow::Owned(shown)
}

/// Escapes everything that would move a cursor, hide or reorder text on a terminal. Letters of every script stay;
/// hosts are ASCII before they come here.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_format(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Quotes the text as one word of a POSIX shell, so that it can be pasted.
#[must_use]
pub fn shell_word(text: &str) -> String {
    let text = printable(text);
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Whether a character is invisible and changes how others are shown: zero-width, bidirectional, line-separator,
/// annotation and tag characters (Unicode TR36, section 2.5 and 3.2).
fn is_format(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A01: untrusted text never reaches a terminal unescaped.
    #[test]
    fn escapes_untrusted_text() {
        assert_eq!(visible("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(visible("ex\u{430}mple"), "ex\\u{430}mple");
        assert_eq!(visible(&"x".repeat(300)).len(), MAX_SHOWN + 3);
        assert_eq!(printable_ascii("\u{202e}a\n"), "\\u{202e}a\\u{a}");
        assert_eq!(printable("a\u{fff9}b\u{e0041}"), "a\\u{fff9}b\\u{e0041}");
        assert_eq!(printable("d\u{e9}j\u{e0}/\u{202e}x\n"), "d\u{e9}j\u{e0}/\\u{202e}x\\n");
    }

    #[test]
    fn quotes_a_word_where_a_shell_would_read_more() {
        for (text, word) in [
            ("run.jsonl", "run.jsonl"),
            ("/a b/c", "'/a b/c'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
            ("$(x)", "'$(x)'"),
            ("~/x", "'~/x'"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }
}
