//! Escaping of hostile bytes, so that they are safe to write and to print.
//!
//! Does not know what the bytes mean. For any input, the output has only 0x20 to 0x7e, so that a client cannot
//! forge, hide or reverse a line by the bytes that it sends.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The mark where text was cut.
pub(crate) const CUT: &str = "...";

/// Returns bytes as printable ASCII: `\xNN` for every byte outside 0x20 to 0x7e, `\\` for a backslash.
///
/// The result has at most `max` bytes. A result that was cut ends in `...` if `max` leaves space for that, and never in
/// a part of an escape.
pub fn escape(bytes: &[u8], max: usize) -> String {
    let mut text = String::new();
    let mut fits = 0; // the length up to which `...` still has room
    for &byte in bytes {
        match byte {
            b'\\' => text.push_str("\\\\"),
            0x20..=0x7e => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
        if text.len() > max {
            text.truncate(fits);
            if max >= CUT.len() {
                text.push_str(CUT);
            }
            return text;
        }
        if text.len() + CUT.len() <= max {
            fits = text.len();
        }
    }
    text
}

/// Returns the bytes that `c` takes in a JSON string of this crate, which writes every character outside ASCII as `\uXXXX`.
pub(crate) fn json_width(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        ' '..='~' => 1,
        _ if u32::from(c) > 0xffff => 12,
        _ => 6,
    }
}

/// Returns text that takes at most `max` bytes in a JSON string. Text that is too long loses its end.
pub fn clip(text: &str, max: usize) -> Cow<'_, str> {
    let mut width = 0;
    let mut fits = 0; // the byte index up to which `...` still has room
    for (at, c) in text.char_indices() {
        width += json_width(c);
        if width > max {
            return Cow::Owned(format!("{}{CUT}", text.get(..fits).unwrap_or_default()));
        }
        if width + CUT.len() <= max {
            fits = at + c.len_utf8();
        }
    }
    Cow::Borrowed(text)
}

/// Returns text that takes at most `max` bytes in a JSON string. Text that is too long loses its beginning.
///
/// For paths, whose end says most.
pub(crate) fn clip_front(text: &str, max: usize) -> Cow<'_, str> {
    let mut width = 0;
    let mut fits = text.len();
    for (at, c) in text.char_indices().rev() {
        width += json_width(c);
        if width > max {
            return Cow::Owned(format!("{CUT}{}", text.get(fits..).unwrap_or_default()));
        }
        if width + CUT.len() <= max {
            fits = at;
        }
    }
    Cow::Borrowed(text)
}

#[cfg(test)]
mod tests;
