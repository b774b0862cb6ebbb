//! The egress record as it is read back: whether it is whole, what it says, and what can be made of it.
//!
//! This crate does not decide anything and writes no record: `exeat-record` does. It trusts nothing in a record, and no key
//! but those that it is given.
#![forbid(unsafe_code)]

mod attempt;
pub mod diff;
pub mod export;
pub mod follow;
pub mod learn;
pub mod ledger;
pub mod lock;
mod moment;
pub mod query;
pub mod replay;
pub mod report;
pub mod runs;
pub mod select;
mod signed_note;
pub mod summary;
pub mod table;
#[cfg(test)]
#[path = "../../record/src/testing.rs"]
mod testing;
pub mod verify;

pub use attempt::Attempt;
pub use moment::{Moment, MomentError};
