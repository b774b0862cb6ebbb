//! Reads the ledgers back: which runs there were, and whether each has its record.
//!
//! [`exeat_record::ledger`] writes them.

mod join;
mod read;

pub use join::{Joined, Mismatch, RecordFacts, join};
pub use read::{BadHead, Book, BookFault, HeadPosition, KeptHead};

#[cfg(test)]
mod tests;
