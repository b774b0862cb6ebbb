//! Checks what must hold for any bytes. Each module has one function, `check`, which panics if it does not hold.
//!
//! The programs in `bin/` pass libFuzzer's bytes, and `tests/fuzz_seeds.rs` of the policy crate includes this file
//! and passes every committed seed. So this file may use only what both can see.
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

/// A check of some bytes.
pub type Check = fn(&[u8]);

/// Every target, by the name of its program and its seeds.
pub const TARGETS: &[(&str, Check)] = &[
    ("decide", decide::check),
    ("effects", effects::check),
    ("file", file::check),
    ("rule", rule::check),
    ("target", target::check),
];
