//! Escapes untrusted text for messages.

use std::borrow::Cow;
use std::fmt::Write;
use std::io;

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

/// Words the operating system's errors in a text as exeat does: `No such file or directory (os error 2)` loses its capital, because it is
/// inside a sentence, and its number, which adds nothing.
///
/// Apply it to text that a person reads. Only what the standard library writes for that number is changed.
#[must_use]
pub fn os_words(text: &str) -> Cow<'_, str> {
    const MARK: &str = " (os error ";
    if !text.contains(MARK) {
        return Cow::Borrowed(text);
    }
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once(MARK) {
        let found =
            after.split_once(')').and_then(|(number, after)| Some((number.parse::<i32>().ok()?, after)));
        let Some((number, after)) = found else {
            shown.extend([before, MARK]);
            rest = after;
            continue;
        };
        let whole = io::Error::from_raw_os_error(number).to_string();
        let words = whole.split_once(MARK).map_or(whole.as_str(), |(words, _)| words);
        match before.strip_suffix(words) {
            Some(start) => shown.extend([start, &uncapitalized(words)]),
            // Somebody else's words, such as a file's name.
            None => shown.push_str(rest.get(..rest.len() - after.len()).unwrap_or_default()),
        }
        rest = after;
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

/// Acronyms keep their capitals.
fn uncapitalized(words: &str) -> String {
    let mut chars = words.chars();
    match (chars.next(), chars.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() => first.to_lowercase().chain(chars).collect(),
        _ => words.to_owned(),
    }
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
    fn words_an_error_of_the_system_in_one_way() {
        let error = |number| io::Error::from_raw_os_error(number);
        for (text, words) in [
            (format!("cannot open `a`: {}", error(2)), "cannot open `a`: no such file or directory"),
            (format!("{}; b: {}", error(13), error(28)), "permission denied; b: no space left on device"),
            ("no number".into(), "no number"),
            ("a (os error 2)".into(), "a (os error 2)"),
            ("(os error x) (os error 2".into(), "(os error x) (os error 2"),
            (
                format!(" (os error 99999999999): {}", error(2)),
                " (os error 99999999999): no such file or directory",
            ),
        ] {
            assert_eq!(os_words(&text), words);
        }
        assert_eq!(uncapitalized("RTNETLINK answers"), "RTNETLINK answers");
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
