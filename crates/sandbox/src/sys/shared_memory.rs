//! Starts processes that share this process's memory (clone(2), CLONE_VM): the kernel copies no tables of pages, and none of the pages
//! that either process writes later.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use nix::errno::Errno;
use nix::libc;

/// The stack of such a process. It makes a few system calls.
pub(super) type Stack = [MaybeUninit<u8>; 32 << 10];

/// Starts a process that runs `begin` on a stack of its own, and ends with its result. Writes its pidfd to `descriptor` if the flags ask
/// for one.
///
/// # Safety
/// The stack, and what `begin` uses of the argument, must live until the process has ended or executed a program. `begin` may only make
/// system calls. Without CLONE_VFORK this thread goes on at once: then these must not fail, since both have one errno.
pub(super) unsafe fn clone_in_memory(
    begin: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
    flags: c_int,
    stack: &mut Stack,
    descriptor: *mut c_int,
) -> nix::Result<libc::pid_t> {
    // SAFETY: the end of the stack is one past its last byte. It grows down, and is aligned to 16 bytes.
    Errno::result(unsafe {
        let top = stack.as_mut_ptr().add(stack.len());
        let top = top.sub(top.addr() % 16);
        libc::clone(begin, top.cast(), flags | libc::CLONE_VM, argument, descriptor)
    })
}
