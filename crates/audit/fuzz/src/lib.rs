//! Checks that must hold for any bytes. Each module has one function, `check`, which panics if they do not.
//!
//! The programs in `bin/` pass these functions to libFuzzer; `tests/fuzz_seeds.rs` of the parent crate includes this file and runs
//! them on every committed seed. So this file may use only what both can see.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a check fails loudly"
)]

pub mod edit;
pub mod read;

pub type Check = fn(&[u8]);

/// Every target: the name of its program and of its seed directory, and its check.
pub const TARGETS: &[(&str, Check)] = &[("edit", edit::check), ("read", read::check)];
