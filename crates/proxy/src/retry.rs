//! Detects whether a TLS server asks for a second ClientHello. It reads no socket, and nothing after the server's
//! first message.
//!
//! A rule grants the server, so it is assumed to speak TLS properly; only the client is distrusted here. The
//! server's bytes are forwarded whatever this finds.

/// The Random of a ServerHello that is a HelloRetryRequest (RFC 8446 section 4.1.3).
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2,
    0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// The longest record that any version of TLS has (RFC 5246 section 6.2.3).
pub(crate) const RECORD: usize = (1 << 14) + 2048;

// Handshake messages: HelloRequest (RFC 5246), ServerHello, and the HelloRetryRequest of TLS 1.3 drafts.
const HELLO_REQUEST: u8 = 0;
const SERVER_HELLO: u8 = 2;
const OLD_RETRY: u8 = 6;

/// The first message of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The server asks for another hello.
    Retry,
    /// The server does not ask for one, or does not speak TLS.
    Other,
}

/// Reads the bytes of a server up to its answer to each hello, in pieces of any size.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// The header of a record, of which `header_len` bytes have arrived.
    header: [u8; 5],
    header_len: usize,
    /// Bytes of the record that have not arrived.
    left: usize,
    /// The beginning of a message, up to the Random of a ServerHello.
    message: Vec<u8>,
    /// Remaining bytes of a message that was reported.
    skip: usize,
}

impl Answers {
    /// Reads the next bytes. Returns `None` if they complete no answer.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> Option<Answer> {
        let mut answer = None;
        for &byte in bytes {
            // Every byte is read, so that what follows a HelloRetryRequest is parsed from the right position.
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
            // Alerts and change_cipher_spec may come first.
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
                // The version comes first, then the Random.
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
