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
