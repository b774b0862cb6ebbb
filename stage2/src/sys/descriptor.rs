//! Descriptors, and the calls that apply to any of them.

use alloc::vec::Vec;
use core::ffi::CStr;
use core::mem::ManuallyDrop;

use super::call::{Errno, Number, Result, syscall};
use super::{SIGNAL_SET, address, address_mut};

/// An open descriptor. Closed when dropped.
#[derive(Debug)]
pub(crate) struct Descriptor(i32);

impl Descriptor {
    /// Takes the descriptor that a system call returned.
    ///
    /// # Safety
    /// It must be open, and nothing else may own it.
    pub(super) unsafe fn from_answer(answer: usize) -> Result<Self> {
        i32::try_from(answer).map(Self).map_err(|_| Errno::OVERFLOW)
    }

    /// Takes a descriptor from a message.
    ///
    /// # Safety
    /// It must be open, and nothing else may own it.
    pub(super) unsafe fn from_number(number: i32) -> Self {
        Self(number)
    }

    pub(crate) fn number(&self) -> i32 {
        self.0
    }

    /// Returns the descriptor as an argument: the kernel reads only the low half.
    pub(super) fn argument(&self) -> usize {
        self.0.cast_unsigned() as usize
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: nothing else owns the descriptor. It is closed whatever the answer (close(2), "Dealing with error returns").
        let _ = unsafe { syscall(Number::Close, [self.argument(), 0, 0, 0, 0, 0]) };
    }
}

/// Takes a descriptor that this program was started with, which nothing else owns. Fails if it is not open.
pub(crate) fn take_inherited(number: i32) -> Result<Descriptor> {
    const F_SETFD: usize = 2;
    const FD_CLOEXEC: usize = 1;
    let arguments = [number.cast_unsigned() as usize, F_SETFD, FD_CLOEXEC, 0, 0, 0];
    // SAFETY: takes numbers.
    unsafe { syscall(Number::Fcntl, arguments) }?;
    Ok(Descriptor(number))
}

/// Returns standard input, output and error. They may be replaced, but are never closed.
pub(crate) fn standard_streams() -> [ManuallyDrop<Descriptor>; 3] {
    [0, 1, 2].map(|number| ManuallyDrop::new(Descriptor(number)))
}

pub(crate) const O_WRONLY: usize = 1;
pub(crate) const O_RDWR: usize = 2;
pub(crate) const O_ACCMODE: usize = 3;
pub(crate) const O_NOCTTY: usize = 0o400;
pub(crate) const O_APPEND: usize = 0o2000;
/// It differs between the two architectures (`arch/arm64/include/uapi/asm/fcntl.h`).
pub(crate) const O_NOFOLLOW: usize = if cfg!(target_arch = "aarch64") { 0o10_0000 } else { 0o40_0000 };
pub(crate) const O_CLOEXEC: usize = 0o200_0000;
pub(crate) const O_PATH: usize = 0o1000_0000;

/// Opens a file that exists.
pub(crate) fn open(path: &CStr, flags: usize) -> Result<Descriptor> {
    const AT_FDCWD: usize = (-100_isize).cast_unsigned();
    // SAFETY: `path` ends with NUL and lives across the call.
    let fd =
        unsafe { syscall(Number::Openat, [AT_FDCWD, path.as_ptr().expose_provenance(), flags, 0, 0, 0]) }?;
    // SAFETY: the descriptor is new.
    unsafe { Descriptor::from_answer(fd) }
}

pub(crate) fn read(fd: &Descriptor, buffer: &mut [u8]) -> Result<usize> {
    let arguments = [fd.argument(), buffer.as_mut_ptr().expose_provenance(), buffer.len(), 0, 0, 0];
    // SAFETY: pointer and length describe a buffer that may be written.
    unsafe { syscall(Number::Read, arguments) }
}

pub(crate) fn write(fd: &Descriptor, bytes: &[u8]) -> Result<usize> {
    let arguments = [fd.argument(), bytes.as_ptr().expose_provenance(), bytes.len(), 0, 0, 0];
    // SAFETY: pointer and length describe bytes that may be read.
    unsafe { syscall(Number::Write, arguments) }
}

/// Makes a standard stream (0, 1 or 2) a copy of `fd`, which stays open across `execve`.
pub(crate) fn replace_stream(fd: &Descriptor, number: usize) -> Result<()> {
    // dup3(2) returns an error for equal numbers, where dup2(2) does nothing.
    if fd.argument() == number {
        return Ok(());
    }
    // SAFETY: takes numbers. Users of a standard stream use whatever is open under its number.
    unsafe { syscall(Number::Dup3, [fd.argument(), number, 0, 0, 0, 0]) }.map(drop)
}

/// Returns the flags that `fd` was opened with (fcntl(2), F_GETFL).
pub(crate) fn open_flags(fd: &Descriptor) -> Result<usize> {
    const F_GETFL: usize = 3;
    // SAFETY: takes numbers.
    unsafe { syscall(Number::Fcntl, [fd.argument(), F_GETFL, 0, 0, 0, 0]) }
}

/// Marks every descriptor from `first` on as close-on-exec (close_range(2), Linux 5.11).
pub(crate) fn close_on_exec_from(first: u32) -> Result<()> {
    const CLOSE_RANGE_CLOEXEC: u32 = 1 << 2;
    close_range(first, u32::MAX, CLOSE_RANGE_CLOEXEC)
}

/// Closes every descriptor that is not in `kept`.
pub(crate) fn close_all_except(kept: &[i32]) -> Result<()> {
    let mut kept: Vec<u32> = kept.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    kept.sort_unstable();
    let mut first = 0;
    for fd in kept {
        if let Some(last) = fd.checked_sub(1).filter(|last| *last >= first) {
            close_range(first, last, 0)?;
        }
        first = fd + 1;
    }
    close_range(first, u32::MAX, 0)
}

fn close_range(first: u32, last: u32, flags: u32) -> Result<()> {
    let arguments = [first as usize, last as usize, flags as usize, 0, 0, 0];
    // SAFETY: takes numbers. Callers only close descriptors that they give up or never owned.
    unsafe { syscall(Number::CloseRange, arguments) }.map(drop)
}

pub(crate) const POLLERR: i16 = 0x08;
pub(crate) const POLLHUP: i16 = 0x10;
pub(crate) const POLLNVAL: i16 = 0x20;

/// Returns the conditions of each descriptor that poll(2) always reports: POLLERR, POLLHUP and POLLNVAL.
pub(crate) fn conditions<const COUNT: usize>(fds: [&Descriptor; COUNT]) -> Result<[i16; COUNT]> {
    poll(fds, 0, Some(Timespec { seconds: 0, nanoseconds: 0 }))
}

/// Tells for each descriptor whether it is readable or has ended. Waits until one is, if `blocking`.
pub(crate) fn input<const COUNT: usize>(fds: [&Descriptor; COUNT], blocking: bool) -> Result<[bool; COUNT]> {
    const POLLIN: i16 = 0x01;
    loop {
        let timeout = (!blocking).then_some(Timespec { seconds: 0, nanoseconds: 0 });
        match poll(fds, POLLIN, timeout) {
            Err(Errno::INTR) => {}
            polled => return Ok(polled?.map(|returned| returned != 0)),
        }
    }
}

fn poll<const COUNT: usize>(
    fds: [&Descriptor; COUNT],
    events: i16,
    mut timeout: Option<Timespec>,
) -> Result<[i16; COUNT]> {
    let mut polled = fds.map(|fd| PollFd { fd: fd.0, events, returned: 0 });
    let until = timeout.as_mut().map_or(0, address_mut);
    let arguments = [polled.as_mut_ptr().expose_provenance(), COUNT, until, 0, SIGNAL_SET, 0];
    // SAFETY: pointer and length describe the array, and the timeout is live or null. The kernel writes to both.
    unsafe { syscall(Number::Ppoll, arguments) }?;
    Ok(polled.map(|polled| polled.returned))
}

/// `struct pollfd`.
#[repr(C)]
struct PollFd {
    fd: i32,
    events: i16,
    returned: i16,
}

/// `struct timespec` of a 64-bit kernel.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

pub(crate) const EPOLLIN: u32 = 0x01;
pub(crate) const EPOLLOUT: u32 = 0x04;
pub(crate) const EPOLLERR: u32 = 0x08;
pub(crate) const EPOLLHUP: u32 = 0x10;
pub(crate) const EPOLLRDHUP: u32 = 0x2000;

/// `struct epoll_event` (epoll_event(3type)): packed on x86-64 only.
#[derive(Clone, Copy)]
#[cfg_attr(target_arch = "x86_64", repr(C, packed))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C))]
pub(crate) struct EpollEvent {
    pub(crate) events: u32,
    pub(crate) token: u64,
}

/// An epoll set (epoll(7)).
pub(crate) struct Epoll(Descriptor);

impl Epoll {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: takes a number.
        let fd = unsafe { syscall(Number::EpollCreate1, [O_CLOEXEC, 0, 0, 0, 0, 0]) }?;
        // SAFETY: the descriptor is new.
        unsafe { Descriptor::from_answer(fd) }.map(Self)
    }

    pub(crate) fn add(&self, fd: &Descriptor, token: u64, events: u32) -> Result<()> {
        const EPOLL_CTL_ADD: usize = 1;
        self.control(EPOLL_CTL_ADD, fd, EpollEvent { events, token })
    }

    pub(crate) fn modify(&self, fd: &Descriptor, token: u64, events: u32) -> Result<()> {
        const EPOLL_CTL_MOD: usize = 3;
        self.control(EPOLL_CTL_MOD, fd, EpollEvent { events, token })
    }

    pub(crate) fn delete(&self, fd: &Descriptor) -> Result<()> {
        const EPOLL_CTL_DEL: usize = 2;
        self.control(EPOLL_CTL_DEL, fd, EpollEvent { events: 0, token: 0 })
    }

    fn control(&self, operation: usize, fd: &Descriptor, event: EpollEvent) -> Result<()> {
        let arguments = [self.0.argument(), operation, fd.argument(), address(&event), 0, 0];
        // SAFETY: the pointer is to a live event.
        unsafe { syscall(Number::EpollCtl, arguments) }.map(drop)
    }

    /// Waits for events, at most `timeout` milliseconds if given. Returns their number.
    pub(crate) fn wait(&self, events: &mut [EpollEvent], timeout: Option<u16>) -> Result<usize> {
        let timeout = timeout.map_or(usize::MAX, usize::from);
        let place = events.as_mut_ptr().expose_provenance();
        // SAFETY: pointer and length describe events that the kernel may write; the signal mask is null.
        unsafe {
            syscall(Number::EpollPwait, [self.0.argument(), place, events.len(), timeout, 0, SIGNAL_SET])
        }
    }
}
