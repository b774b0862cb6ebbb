//! Reads fields from the front of a byte slice. It knows no format.

/// The bytes that are left to read.
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// Reads a big-endian number of up to 4 bytes.
    pub(crate) fn number(&mut self, bytes: usize) -> Option<usize> {
        Some(self.take(bytes)?.iter().fold(0, |number, &byte| (number << 8) | usize::from(byte)))
    }

    /// Reads a byte string that follows its length, which itself takes `width` bytes.
    pub(crate) fn prefixed(&mut self, width: usize) -> Option<&'a [u8]> {
        let count = self.number(width)?;
        self.take(count)
    }
}
