//! Finds out whether a TLS server asks for a second ClientHello. It reads no socket, and nothing behind the server's first message.
//!
//! The server is whoever a rule grants, and speaks TLS properly: only the client is distrusted here. What the server says is passed
//! on as it comes, whatever this finds.

/// The Random of a ServerHello that is a HelloRetryRequest (RFC 8446 section 4.1.3).
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2,
    0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// The longest record that some version of TLS has (RFC 5246 section 6.2.3).
pub(crate) const RECORD: usize = (1 << 14) + 2048;

// Handshake messages: HelloRequest (RFC 5246), ServerHello, and the HelloRetryRequest of drafts.
const HELLO_REQUEST: u8 = 0;
const SERVER_HELLO: u8 = 2;
const OLD_RETRY: u8 = 6;

/// What the first message of a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The server wants another hello.
    Retry,
    /// It does not, or does not speak TLS.
    Other,
}

/// Reads the bytes of a server up to its answer to each hello, however they are cut up.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// The header of a record, and how much of it is there.
    header: [u8; 5],
    header_len: usize,
    /// Bytes that are still to come of the record.
    left: usize,
    /// The beginning of a message up to the Random of a ServerHello, and how much of it is there.
    message: Vec<u8>,
    /// Bytes that are still to come of a message that was told.
    skip: usize,
}

impl Answers {
    /// Looks at bytes that follow those that were looked at before. `None`: there is no answer in them.
    pub(crate) fn look(&mut self, bytes: &[u8]) -> Option<Answer> {
        let mut answer = None;
        for &byte in bytes {
            // To the end, so that what follows a HelloRetryRequest is found where it stands.
            answer = answer.or(self.next(byte));
        }
        answer
    }

    fn next(&mut self, byte: u8) -> Option<Answer> {
        if self.left > 0 {
            self.left -= 1;
            let [content_type, ..] = self.header;
            return if content_type == 22 { self.in_message(byte) } else { None };
        }
        *self.header.get_mut(self.header_len)? = byte;
        self.header_len += 1;
        let is_record = match (self.header_len, self.header) {
            // Alerts and change_cipher_spec may stand in front.
            (1, [content_type, ..]) => matches!(content_type, 20..=22),
            (2, [_, major, ..]) => major == 3,
            (5, [_, _, _, high, low]) => {
                self.header_len = 0;
                self.left = usize::from(u16::from_be_bytes([high, low]));
                self.left <= RECORD
            }
            _ => true,
        };
        (!is_record).then_some(Answer::Other)
    }

    fn in_message(&mut self, byte: u8) -> Option<Answer> {
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.message.push(byte);
        let (&[kind, a, b, c], rest) = self.message.split_first_chunk::<4>()?;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let answer = match kind {
            HELLO_REQUEST => None,
            OLD_RETRY => Some(Answer::Retry),
            SERVER_HELLO if length >= 34 => {
                // The version, and the Random.
                let random = rest.get(2..34)?;
                Some(if random == RETRY { Answer::Retry } else { Answer::Other })
            }
            _ => Some(Answer::Other),
        };
        self.skip = length.saturating_sub(rest.len());
        self.message.clear();
        answer
    }
}

#[cfg(test)]
pub(crate) mod tests;
