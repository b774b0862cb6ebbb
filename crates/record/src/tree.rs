//! The Merkle tree over the lines of a record (RFC 6962 section 2.1): its root depends on all lines and their order.
//!
//! Stores no line and no leaf, only one digest for each complete subtree, at most 64.

use sha2::{Digest as _, Sha256};

/// A SHA-256 digest.
pub type Hash = [u8; 32];

/// The tree over the entries that were pushed.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    /// The number of entries.
    len: u64,
    /// The roots of the complete subtrees, the largest first: one for each bit set in `len`.
    peaks: Vec<Hash>,
}

impl Tree {
    /// Adds the next line, its line feed included.
    pub fn push(&mut self, line: &[u8]) {
        self.push_leaf(leaf().chain_update(line));
    }

    /// Adds the next line as its [`leaf`].
    pub fn push_leaf(&mut self, leaf: Sha256) {
        let mut hash: Hash = leaf.finalize().into();
        let mut bits = self.len;
        while bits & 1 == 1 {
            if let Some(left) = self.peaks.pop() {
                hash = node(&left, &hash);
            }
            bits >>= 1;
        }
        self.peaks.push(hash);
        self.len += 1;
    }

    /// Returns the number of lines.
    pub fn lines(&self) -> u64 {
        self.len
    }

    /// Returns the root. Without a line it is the digest of the empty text.
    pub fn root(&self) -> Hash {
        let mut peaks = self.peaks.iter().rev();
        match peaks.next() {
            None => Sha256::digest([]).into(),
            Some(last) => peaks.fold(*last, |right, left| node(left, &right)),
        }
    }
}

/// Starts the digest of a line; the caller adds the line to it. 0x00 and 0x01 distinguish leaves from nodes (RFC 6962 section 2.1).
pub fn leaf() -> Sha256 {
    Sha256::new().chain_update([0])
}

fn node(left: &Hash, right: &Hash) -> Hash {
    Sha256::new().chain_update([1]).chain_update(left).chain_update(right).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex;

    /// The definition of RFC 6962 section 2.1, word by word.
    fn by_definition(entries: &[&[u8]]) -> Hash {
        match entries {
            [] => Sha256::digest([]).into(),
            [one] => Sha256::new().chain_update([0]).chain_update(one).finalize().into(),
            _ => {
                let mut k = 1;
                while k * 2 < entries.len() {
                    k *= 2;
                }
                node(&by_definition(&entries[..k]), &by_definition(&entries[k..]))
            }
        }
    }

    #[test]
    fn the_root_is_that_of_the_rfc() {
        let lines: Vec<String> = (0..200).map(|n| format!("line {n}\n")).collect();
        let entries: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        let mut tree = Tree::default();
        for n in 0..=entries.len() {
            assert_eq!(hex(&tree.root()), hex(&by_definition(&entries[..n])), "{n} entries");
            assert_eq!(tree.lines(), n as u64);
            tree.push(entries.get(n).unwrap_or(&&b""[..]));
        }
    }

    /// From the reference implementation of Certificate Transparency: its eight test leaves.
    #[test]
    fn the_root_is_that_of_other_implementations() {
        let leaves: [&[u8]; 8] = [
            b"",
            b"\x00",
            b"\x10",
            b"\x20\x21",
            b"\x30\x31",
            b"\x40\x41\x42\x43",
            b"\x50\x51\x52\x53\x54\x55\x56\x57",
            b"\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f",
        ];
        let mut tree = Tree::default();
        leaves.iter().for_each(|leaf| tree.push(leaf));
        assert_eq!(hex(&tree.root()), "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328");
    }
}
