//! The kernel's interface: system calls behind safe functions. No policy here.
//!
//! stage2 has no library but `exeat-contract`, so that one compiler call builds it: see `build.rs` of `exeat-sandbox`. What takes the
//! place of a C library is [`heap`], and `start` in a freestanding build.

mod call;
mod descriptor;
mod heap;
mod process;
mod restrict;
mod socket;
#[cfg(freestanding)]
mod start;

pub(crate) use call::{Errno, Result};
pub(crate) use descriptor::*;
pub(crate) use process::*;
pub(crate) use restrict::*;
pub(crate) use socket::*;

/// Bytes of the kernel's signal set (rt_sigaction(2), "C library/kernel differences").
const SIGNAL_SET: usize = 8;

/// The address of a value that the kernel reads.
fn address<T>(value: &T) -> usize {
    (&raw const *value).expose_provenance()
}

/// The address of a value that the kernel writes.
fn address_mut<T>(value: &mut T) -> usize {
    (&raw mut *value).expose_provenance()
}
