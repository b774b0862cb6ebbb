//! Replaces a C library: the entry, the memory functions that compiled code calls, and the end by a panic.

use core::arch::{asm, naked_asm};
use core::panic::PanicInfo;
use core::slice;

/// The entry point. The stack pointer points to the number of arguments, followed by pointers to them (System V ABI, "Process
/// Initialization"; the same on both architectures).
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _start() -> ! {
    // The outermost frame has no caller. A call needs a stack aligned to 16 bytes before it pushes the return address.
    #[cfg(target_arch = "x86_64")]
    naked_asm!("xor ebp, ebp", "mov rdi, rsp", "and rsp, -16", "call {begin}", "ud2", begin = sym begin);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x29, #0", "mov x30, #0", "mov x0, sp", "bl {begin}", "brk #1", begin = sym begin);
}

unsafe extern "C" fn begin(stack: *const usize) -> ! {
    // SAFETY: `stack` is the kernel's: a count, followed by that many pointers to strings that end with NUL and are never freed. The
    // second pointer is read only if there are two.
    let word = unsafe {
        (*stack > 1).then(|| {
            let text = stack.cast::<*const u8>().add(2).read();
            slice::from_raw_parts(text, length(text))
        })
    };
    super::exit_now(crate::run(word).into())
}

/// Returns the number of bytes before the NUL.
///
/// # Safety
/// The text must have a NUL.
unsafe fn length(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: the loop ends at the NUL and reads nothing after it. Volatile, so that the compiler does not make it a call of strlen.
    while unsafe { text.add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}

/// Reports only that it happened: the host side sees the end of the connection.
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    /// A shell's exit code for a process that abort(3) ended.
    const ABORTED: i32 = 128 + 6;
    crate::control::print(&["stage2: a fault of its own\n"]);
    super::exit_now(ABORTED)
}

// Compiled code calls the functions below by name to copy and compare. Each must not be compiled to a call of itself, as a plain loop
// would be: on x86-64 the processor has instructions for the first three; the other loops are volatile, byte by byte. They move few
// bytes, since the kernel moves those of a connection.

/// Implements memcpy(3).
///
/// # Safety
/// The caller promises the same as in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: copies `count` bytes, which the caller may read and write. The direction flag is clear (System V ABI).
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    for at in 0..count {
        // SAFETY: as above.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
    to
}

/// Implements memmove(3).
///
/// # Safety
/// The caller promises the same as in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // An upward copy overwrites unread bytes only if `to` begins inside `from`.
    if to.addr().wrapping_sub(from.addr()) >= count {
        // SAFETY: the caller guarantees it.
        return unsafe { memcpy(to, from, count) };
    }
    for at in (0..count).rev() {
        // SAFETY: the caller may read and write `count` bytes.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
    to
}

/// Implements memset(3).
///
/// # Safety
/// The caller promises the same as in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    let [byte, ..] = byte.to_le_bytes();
    // SAFETY: writes `count` bytes, which the caller may write. The direction flag is clear (System V ABI).
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "rep stosb",
            inout("rcx") count => _, inout("rdi") to => _, in("al") byte,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    for at in 0..count {
        // SAFETY: as above.
        unsafe { to.add(at).write_volatile(byte) };
    }
    to
}

/// Implements memcmp(3).
///
/// # Safety
/// The caller promises the same as in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    for at in 0..count {
        // SAFETY: the caller may read `count` bytes of both.
        let (left, right) = unsafe { (left.add(at).read_volatile(), right.add(at).read_volatile()) };
        if left != right {
            return i32::from(left) - i32::from(right);
        }
    }
    0
}

/// Implements bcmp(3), which compilers call if the order does not matter.
///
/// # Safety
/// The caller promises the same as in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    // SAFETY: the caller guarantees it.
    unsafe { memcmp(left, right, count) }
}
