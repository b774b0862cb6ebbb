//! The ledgers as they are read back: which runs there were, and whether each has its record.
//!
//! How a run takes its number is [`exeat_record::ledger`]'s.

mod join;
mod read;

pub use join::{Fault, Joined, Seen, join};
pub use read::{BadHead, Book, Found, KeptHead, Told};

#[cfg(test)]
mod tests;
