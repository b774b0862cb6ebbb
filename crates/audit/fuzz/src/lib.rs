//! What must hold for any bytes. Each module has one function, `check`, which panics where it does not.
//!
//! The programs in `bin/` give these functions to libFuzzer; `tests/fuzz_seeds.rs` of the crate above includes this
//! file and gives them every committed seed. So nothing here may use more than what both can see.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a check fails loudly"
)]

pub mod edit;
pub mod read;

/// One check.
pub type Check = fn(&[u8]);

/// Every target by the name of its program and its seeds.
pub const TARGETS: &[(&str, Check)] = &[("edit", edit::check), ("read", read::check)];
