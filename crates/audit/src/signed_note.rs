//! Checks whether a checkpoint was signed, and by which key.
//!
//! Reads no file and trusts no key: the caller chooses the keys.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use exeat_record::VerifyingKey;
use exeat_record::checkpoint::{Checkpoint, Signed};

/// The result of checking a signed note.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    /// A given key signed it.
    Good {
        /// The index of the key.
        key: usize,
        /// The checkpoint that it signed.
        checkpoint: Checkpoint,
        /// The note, and its signature alone.
        signed: Signed,
    },
    /// No given key has this name and id.
    UnknownKey,
    /// A given key has this name and id, but did not sign this.
    BadSignature,
    /// The text is not what exeat writes.
    Malformed,
}

/// Checks a signed note, which must match what exeat writes byte for byte: the text of a checkpoint and one signature.
pub(crate) fn check(note: &str, keys: &[VerifyingKey]) -> Checked {
    let Some((checkpoint, name, id, signature)) = parse(note) else { return Checked::Malformed };
    let mut known = false;
    for (at, key) in keys.iter().enumerate() {
        if key.name() != name || key.id().as_slice() != id {
            continue;
        }
        known = true;
        if key.has_signed(checkpoint.text().as_bytes(), &signature) {
            let signed = Signed { note: note.to_owned(), sig: BASE64.encode(signature) };
            return Checked::Good { key: at, checkpoint, signed };
        }
    }
    if known { Checked::BadSignature } else { Checked::UnknownKey }
}

/// Splits a note into its checkpoint, the name and id of the claimed key, and the signature.
fn parse(note: &str) -> Option<(Checkpoint, &str, Vec<u8>, Vec<u8>)> {
    let (text, signature) = note.split_once("\n\n")?;
    let mut lines = text.split('\n');
    let (origin, n, root, line) = (lines.next()?, lines.next()?, lines.next()?, lines.next()?);
    let (name, bytes) = signature.strip_prefix("\u{2014} ")?.strip_suffix('\n')?.split_once(' ')?;
    let bytes = BASE64.decode(bytes).ok()?;
    let (id, signature) = bytes.split_at_checked(4)?;
    let checkpoint = Checkpoint {
        origin: origin.to_owned(),
        n: n.parse().ok()?,
        root: BASE64.decode(root).ok()?.try_into().ok()?,
        line: line.strip_prefix("line ")?.to_owned(),
    };
    // Accept nothing else, and only the one spelling that exeat writes.
    let exact = lines.next().is_none() && checkpoint.text().strip_suffix('\n') == Some(text);
    exact.then(|| (checkpoint, name, id.to_vec(), signature.to_vec()))
}

#[cfg(test)]
mod tests;
