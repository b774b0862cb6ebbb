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

pub mod decide;
pub mod effects;
pub mod file;
pub mod rule;
pub mod target;

/// One check.
pub type Check = fn(&[u8]);

/// Every target by the name of its program and its seeds.
pub const TARGETS: &[(&str, Check)] = &[
    ("decide", decide::check),
    ("effects", effects::check),
    ("file", file::check),
    ("rule", rule::check),
    ("target", target::check),
];
