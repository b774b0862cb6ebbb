//! The kernel's interface: system calls in safe functions. It contains no policy.
//!
//! The only library of stage2 is `exeat-contract`, so that one compiler call builds it: see `build.rs` of `exeat-sandbox`. [`heap`],
//! and `start` in a freestanding build, replace a C library.

mod call;
mod descriptor;
mod heap;
mod mount;
mod privileges;
mod process;
mod restrict;
mod socket;
#[cfg(freestanding)]
mod start;

pub(crate) use call::{Errno, Result};
pub(crate) use descriptor::*;
pub(crate) use mount::*;
pub(crate) use privileges::*;
pub(crate) use process::*;
pub(crate) use restrict::*;
pub(crate) use socket::*;

/// Size of the kernel's signal set (rt_sigaction(2), "C library/kernel differences").
const SIGNAL_SET: usize = 8;

/// Returns the address of a value that the kernel reads.
fn address<T>(value: &T) -> usize {
    (&raw const *value).expose_provenance()
}

/// Returns the address of a text that the kernel reads.
fn address_of(text: &core::ffi::CStr) -> usize {
    text.as_ptr().expose_provenance()
}

/// Returns the address of a value that the kernel writes.
fn address_mut<T>(value: &mut T) -> usize {
    (&raw mut *value).expose_provenance()
}
