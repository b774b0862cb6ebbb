//! Escapes untrusted text for messages. The record has its own rule.

use std::fmt::Write;

/// Maximum characters of untrusted text in one message.
const MAX_SHOWN: usize = 200;

/// Printable ASCII as it is, everything else escaped, cut after 200 characters.
/// Returns printable ASCII unchanged and escapes everything else. Cuts the text after 200 characters.
/// Control characters would move a terminal's cursor, and bidirectional marks would reorder the line. Letters of
/// other scripts are escaped too, which exposes look-alikes.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == MAX_SHOWN {
            shown.push_str("...");
            break;
        }
        if matches!(c, ' '..='~') {
            shown.push(c);
        } else {
            // Writing to a String cannot fail.
            let _ = write!(shown, "{}", c.escape_unicode());
        }
    }
    shown
}

/// Makes everything visible that would move a cursor, hide or reorder text on a terminal. Letters of every script stay as they
/// are; hosts are ASCII before they come here.
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

/// Quotes the text as one word of a POSIX shell, so that what is printed can be pasted.
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

/// Whether a character has no shape of its own and changes how others are shown: zero-width, bidirectional, line-separator, annotation and tag
/// characters (Unicode TR36, section 2.5 and 3.2).
pub fn is_format(c: char) -> bool {
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
