//! Text from strangers, made safe to print. The record has its own rule; this one is for messages.

use std::fmt::Write;

/// The most characters of a stranger's text in one message.
const MAX_SHOWN: usize = 200;

/// Printable ASCII as it is, everything else escaped, cut after 200 characters.
///
/// Control characters would move a terminal's cursor, and bidirectional marks would reorder the line.
/// Letters of other scripts are escaped too: that shows a look-alike for what it is.
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

/// The text in any script, with what would move the cursor or reorder the line escaped.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        let invisible = matches!(
            c,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        );
        if c.is_control() || invisible {
            let _ = write!(shown, "{}", c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A01: nothing of a stranger's text reaches a terminal raw.
    #[test]
    fn text_of_strangers_is_escaped() {
        assert_eq!(visible("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(visible("ex\u{430}mple"), "ex\\u{430}mple");
        assert_eq!(visible(&"x".repeat(300)).len(), MAX_SHOWN + 3);
        assert_eq!(printable("d\u{e9}j\u{e0}/\u{202e}x\n"), "d\u{e9}j\u{e0}/\\u{202e}x\\u{a}");
    }
}
