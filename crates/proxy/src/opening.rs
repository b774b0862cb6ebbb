//! Determines from the first bytes of a client whether a tunnel carries TLS, plain HTTP, or something else. It
//! reads no socket and stores no bytes; it says how many bytes may go on before the answer is known.
//!
//! A request is whatever some server takes for one, not only what RFC 9112 allows. Some servers skip empty lines
//! first, ignore the case of a method, accept any bytes as a method (wsgiref of Python), or accept other separators than
//! one space. The strict parser in `head.rs` then refuses such a request.

use crate::hello;
use crate::limits;

/// The protocol in a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// TLS, well-formed or not.
    Tls,
    /// A request, well-formed or not.
    Http,
    /// Neither.
    Other,
    /// There are not enough bytes to tell. The first `free` waiting bytes may go on.
    Unknown {
        /// These bytes contain no complete request.
        free: usize,
    },
}

/// The methods that clients send. A first word that may become one of them waits until it is complete. Any other
/// word goes on without its line end, so that a protocol without lines loses no time. `PRI` is the preface of
/// HTTP/2 (RFC 9113 section 3.4). `PROXY` precedes a request, for a server that trusts it.
const METHODS: [&[u8]; 11] =
    [b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI", PROXY];

const PROXY: &[u8] = b"PROXY";

/// The end of a request line contains this, in some word after the method.
const HTTP: &[u8] = b"HTTP/";

/// The beginning of a PROXY header of version 2, as far as it is needed to recognize one.
const PROXY_2: &[u8] = b"\r\n\r\n";

/// The state of the check of the first bytes.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    part: Part,
    /// Number of waiting bytes that were checked.
    checked: usize,
    /// Number of bytes that were checked in all.
    total: usize,
    /// Whether the bytes before the first word differ from [`PROXY_2`].
    other_lead: bool,
    word: Start,
    /// The second word.
    object: Start,
    /// Length of the prefix of [`HTTP`] that the current word matches; `None` if the word begins differently.
    matched: Option<usize>,
    /// Whether a word after the first begins with [`HTTP`].
    is_request: bool,
    /// Position of a carriage return that may be a line end, among the waiting bytes.
    line_end: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Part {
    /// Before the first word.
    #[default]
    Lead,
    /// In the first word.
    Word,
    /// In the rest of the first line.
    Line,
}

/// The first bytes of a word, in upper case.
#[derive(Debug, Default)]
struct Start {
    bytes: [u8; 8],
    /// Length of the whole word.
    len: usize,
    ended: bool,
}

impl Start {
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.len) {
            *place = byte.to_ascii_uppercase();
        }
        self.len += 1;
    }

    fn prefix(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }

    fn equals(&self, word: &[u8]) -> bool {
        self.prefix() == word && self.len == word.len()
    }
}

impl Detector {
    /// Checks `waiting`, which must begin with the bytes that waited before.
    pub(crate) fn detect(&mut self, waiting: &[u8]) -> Protocol {
        if self.total == self.checked {
            // No byte has gone on yet.
            match hello::opens_with_tls(waiting) {
                Some(true) => return Protocol::Tls,
                Some(false) => {}
                None => return Protocol::Unknown { free: 0 },
            }
        }
        for &byte in waiting.get(self.checked..).unwrap_or_default() {
            if let Some(opens) = self.next(byte) {
                return opens;
            }
            self.checked += 1;
            self.total += 1;
        }
        match self.may_be_method() {
            // The parser of heads reports what is wrong with it.
            true if waiting.len() >= limits::HEAD_BYTES => Protocol::Http,
            true => Protocol::Unknown { free: 0 },
            false if self.total >= limits::REQUEST_LINE => Protocol::Other,
            false => Protocol::Unknown { free: self.line_end.unwrap_or(waiting.len()) },
        }
    }

    /// Classifies a stream that ends here. Some servers take the end of the stream for the end of a line.
    pub(crate) fn finish(&self) -> Protocol {
        if self.part == Part::Line { self.at_line_end() } else { Protocol::Other }
    }

    /// Notes that the first `count` waiting bytes have gone on.
    pub(crate) fn note_forwarded(&mut self, count: usize) {
        self.checked = self.checked.saturating_sub(count);
        self.line_end = self.line_end.map(|at| at.saturating_sub(count));
    }

    /// Whether any byte has gone on.
    pub(crate) fn has_forwarded(&self) -> bool {
        self.total > self.checked
    }

    fn next(&mut self, byte: u8) -> Option<Protocol> {
        match self.part {
            Part::Lead if is_gap(byte) => {
                self.other_lead |= PROXY_2.get(self.total) != Some(&byte);
            }
            Part::Lead if byte == 0 && self.total == PROXY_2.len() && !self.other_lead => {
                return Some(Protocol::Http);
            }
            Part::Word if byte == b'\n' => return Some(Protocol::Other),
            Part::Word if is_gap(byte) => {
                if self.word.equals(PROXY) {
                    return Some(Protocol::Http);
                }
                self.part = Part::Line;
                self.end_word(byte);
            }
            Part::Lead | Part::Word => {
                self.part = Part::Word;
                self.word.push(byte);
            }
            Part::Line if byte == b'\n' => return Some(self.at_line_end()),
            Part::Line if is_gap(byte) => self.end_word(byte),
            Part::Line => {
                self.line_end = None;
                if !self.object.ended {
                    self.object.push(byte);
                }
                self.matched = self.matched.filter(|&at| HTTP.get(at) == Some(&byte.to_ascii_uppercase()));
                self.matched = self.matched.map(|at| at + 1);
                self.is_request |= self.matched == Some(HTTP.len());
            }
        }
        None
    }

    fn end_word(&mut self, byte: u8) {
        self.object.ended = self.object.len > 0;
        self.matched = Some(0);
        self.line_end = (byte == b'\r').then_some(self.checked);
    }

    /// Whether the first word is one of [`METHODS`], or can become one.
    fn may_be_method(&self) -> bool {
        match self.part {
            Part::Lead => false,
            Part::Word => METHODS
                .iter()
                .any(|method| self.word.len <= method.len() && method.starts_with(self.word.prefix())),
            Part::Line => METHODS.iter().any(|method| self.word.equals(method)),
        }
    }

    fn at_line_end(&self) -> Protocol {
        let object = self.object.prefix();
        // HTTP/0.9 has no version in its request line.
        let is_old = self.may_be_method()
            && (object.starts_with(b"/") || object.starts_with(b"HTTP:") || object.starts_with(b"HTTPS:"));
        if self.is_request || is_old { Protocol::Http } else { Protocol::Other }
    }
}

/// Whether some server takes this byte for a space between words, as C's `isspace` or Python's `split` does.
fn is_gap(byte: u8) -> bool {
    matches!(byte, 0x09..=0x0d | 0x1c..=0x20 | 0x85 | 0xa0)
}

#[cfg(test)]
mod tests;
