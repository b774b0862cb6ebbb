//! Checkpoints: signed lines of a record that cover all lines before them.
//!
//! The text follows C2SP's tlog-checkpoint, and its signed form C2SP's signed-note, so that other tools can check it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::SigningKey;
use crate::tree::Hash;

/// The statement that is signed: the run's first `n` lines have this root, and the checkpoint's own line, up to its signature, has this
/// digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The name of the log.
    pub origin: String,
    /// The number of lines before the checkpoint.
    pub n: u64,
    /// The root over these lines.
    pub root: Hash,
    /// The SHA-256 of the checkpoint's own line up to its signature, in hexadecimal.
    pub line: String,
}

/// Returns the name of a run's log in its checkpoints.
pub fn origin(run: &str) -> String {
    format!("exeat-run/{run}")
}

impl Checkpoint {
    /// Returns the text that is signed: origin, size and root, and one extension line.
    pub fn text(&self) -> String {
        format!("{}\n{}\n{}\nline {}\n", self.origin, self.n, BASE64.encode(self.root), self.line)
    }

    /// Signs the text, and returns the signed note.
    pub fn sign(&self, key: &SigningKey) -> Signed {
        let text = self.text();
        let signature = key.sign(text.as_bytes());
        let public = key.verifying();
        let mut named = public.id().to_vec();
        named.extend(signature);
        let note = format!("{text}\n\u{2014} {} {}\n", public.name(), BASE64.encode(named));
        Signed { note, sig: BASE64.encode(signature) }
    }
}

/// A checkpoint with its signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// The signed note.
    pub note: String,
    /// The signature in base64.
    pub sig: String,
}

#[cfg(test)]
mod tests;
