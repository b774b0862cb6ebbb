//! What a C library would bring: the entry, the four functions on memory that compiled code calls, the end by a panic.

use core::arch::{asm, naked_asm};
use core::panic::PanicInfo;
use core::slice;

/// The entry. The kernel leaves the number of arguments at the stack pointer, and the pointers to them behind it
/// (System V ABI, "Process Initialization"; the same on both architectures).
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _start() -> ! {
    // The outermost frame has no caller. A call finds the stack aligned to 16 bytes before it pushes the return address.
    #[cfg(target_arch = "x86_64")]
    naked_asm!("xor ebp, ebp", "mov rdi, rsp", "and rsp, -16", "call {begin}", "ud2", begin = sym begin);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x29, #0", "mov x30, #0", "mov x0, sp", "bl {begin}", "brk #1", begin = sym begin);
}

unsafe extern "C" fn begin(stack: *const usize) -> ! {
    // SAFETY: `stack` is what the kernel left: a count, and so many pointers to strings that end with NUL and are never
    // freed. The second of them is read only where there are two.
    let word = unsafe {
        (*stack > 1).then(|| {
            let text = stack.cast::<*const u8>().add(2).read();
            slice::from_raw_parts(text, length(text))
        })
    };
    super::exit_now(crate::run(word).into())
}

/// Bytes before the NUL.
///
/// # Safety
/// There is one.
unsafe fn length(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: nothing behind the NUL is read, and it ends the loop. Volatile, so that this is not made a call of strlen.
    while unsafe { text.add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}

/// Nothing can be told of it here but that it was: the host side sees the end of the connection.
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    /// As a shell says of a process that abort(3) has ended.
    const ABORTED: i32 = 128 + 6;
    crate::control::say(&["stage2: a fault of its own\n"]);
    super::exit_now(ABORTED)
}

// Compiled code calls the functions below by name, for whatever it copies or compares. None of them may be compiled to a
// call of itself, as a plain loop is: on x86-64 the processor has instructions for the first three, elsewhere the loops
// are volatile, one byte at a time. Little goes through them: the kernel moves the bytes of a connection.

/// memcpy(3).
///
/// # Safety
/// As in C.
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

/// memmove(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // Upwards, the copy writes into what it has still to read only when `to` begins inside of `from`.
    if to.addr().wrapping_sub(from.addr()) >= count {
        // SAFETY: the caller's promise is passed on.
        return unsafe { memcpy(to, from, count) };
    }
    for at in (0..count).rev() {
        // SAFETY: the caller may read and write `count` bytes.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
    to
}

/// memset(3).
///
/// # Safety
/// As in C.
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

/// memcmp(3).
///
/// # Safety
/// As in C.
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

/// bcmp(3): what compilers call where the order does not matter.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    // SAFETY: the caller's promise is passed on.
    unsafe { memcmp(left, right, count) }
}
