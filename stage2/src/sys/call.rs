//! System calls: the instruction, the numbers, and the kernel's errors.

use core::arch::asm;

/// An error number of the kernel (errno(3)). The numbers are the same on both architectures (include/uapi/asm-generic/errno.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(i32);

impl Errno {
    pub(crate) const PERM: Self = Self(1);
    pub(crate) const NOENT: Self = Self(2);
    pub(crate) const SRCH: Self = Self(3);
    pub(crate) const INTR: Self = Self(4);
    pub(crate) const IO: Self = Self(5);
    pub(crate) const TOOBIG: Self = Self(7);
    pub(crate) const NOEXEC: Self = Self(8);
    pub(crate) const CHILD: Self = Self(10);
    pub(crate) const AGAIN: Self = Self(11);
    pub(crate) const NOMEM: Self = Self(12);
    pub(crate) const ACCESS: Self = Self(13);
    pub(crate) const BUSY: Self = Self(16);
    pub(crate) const NOTDIR: Self = Self(20);
    pub(crate) const INVAL: Self = Self(22);
    pub(crate) const NFILE: Self = Self(23);
    pub(crate) const MFILE: Self = Self(24);
    pub(crate) const ROFS: Self = Self(30);
    pub(crate) const PIPE: Self = Self(32);
    pub(crate) const NAMETOOLONG: Self = Self(36);
    pub(crate) const NOSYS: Self = Self(38);
    pub(crate) const BADMSG: Self = Self(74);
    pub(crate) const OVERFLOW: Self = Self(75);
    pub(crate) const BADFD: Self = Self(77);
    pub(crate) const NOTSOCK: Self = Self(88);
    pub(crate) const MSGSIZE: Self = Self(90);
    pub(crate) const OPNOTSUPP: Self = Self(95);
    pub(crate) const NETDOWN: Self = Self(100);
    pub(crate) const CONNRESET: Self = Self(104);
    pub(crate) const NOBUFS: Self = Self(105);
    pub(crate) const NOTCONN: Self = Self(107);
    pub(crate) const CONNREFUSED: Self = Self(111);

    pub(crate) const fn from_number(number: i32) -> Self {
        Self(number)
    }

    pub(crate) const fn number(self) -> i32 {
        self.0
    }
}

/// The result of a system call.
pub(crate) type Result<T> = core::result::Result<T, Errno>;

/// Makes a system call. Returns its result if it succeeds.
///
/// # Safety
/// The effects of the call with these arguments must be sound, as for any use of syscall(2).
pub(super) unsafe fn syscall(number: Number, arguments: [usize; 6]) -> Result<usize> {
    let [a, b, c, d, e, f] = arguments;
    let answer: isize;
    // SAFETY: the registers are those of syscall(2) for the architecture; the caller promises the rest. The kernel may write memory
    // that the arguments point to, so this is neither `nomem` nor `readonly`.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as usize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack, preserves_flags),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "svc 0",
            in("x8") number as usize,
            inlateout("x0") a => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack, preserves_flags),
        );
    }
    // The last page of numbers are errors (syscall(2), IS_ERR_VALUE in include/linux/err.h).
    match i32::try_from(answer) {
        Ok(error @ -4095..=-1) => Err(Errno(-error)),
        _ => Ok(answer.cast_unsigned()),
    }
}

/// The numbers of the system calls that stage2 makes (arch/x86/entry/syscalls/syscall_64.tbl).
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum Number {
    Read = 0,
    Write = 1,
    Close = 3,
    Mmap = 9,
    Munmap = 11,
    RtSigaction = 13,
    RtSigprocmask = 14,
    Ioctl = 16,
    Socket = 41,
    Connect = 42,
    Sendto = 44,
    Sendmsg = 46,
    Recvmsg = 47,
    Shutdown = 48,
    Bind = 49,
    Listen = 50,
    Socketpair = 53,
    Setsockopt = 54,
    Clone = 56,
    Execve = 59,
    Wait4 = 61,
    Kill = 62,
    Fcntl = 72,
    Chdir = 80,
    Fchdir = 81,
    Umask = 95,
    Getppid = 110,
    Setsid = 112,
    Setgroups = 116,
    Setresuid = 117,
    Setresgid = 119,
    Capset = 126,
    PivotRoot = 155,
    Prctl = 157,
    Umount2 = 166,
    ExitGroup = 231,
    EpollCtl = 233,
    Openat = 257,
    Mkdirat = 258,
    Unlinkat = 263,
    Symlinkat = 266,
    Faccessat = 269,
    Ppoll = 271,
    Unshare = 272,
    EpollPwait = 281,
    Accept4 = 288,
    Signalfd4 = 289,
    EpollCreate1 = 291,
    Dup3 = 292,
    Prlimit64 = 302,
    Seccomp = 317,
    Statx = 332,
    OpenTree = 428,
    MoveMount = 429,
    Fsopen = 430,
    Fsconfig = 431,
    Fsmount = 432,
    CloseRange = 436,
    Openat2 = 437,
    MountSetattr = 442,
    LandlockCreateRuleset = 444,
    LandlockAddRule = 445,
    LandlockRestrictSelf = 446,
}

/// The numbers of the system calls that stage2 makes (include/uapi/asm-generic/unistd.h).
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum Number {
    EpollCreate1 = 20,
    EpollCtl = 21,
    EpollPwait = 22,
    Dup3 = 24,
    Fcntl = 25,
    Ioctl = 29,
    Mkdirat = 34,
    Unlinkat = 35,
    Symlinkat = 36,
    Umount2 = 39,
    PivotRoot = 41,
    Faccessat = 48,
    Chdir = 49,
    Fchdir = 50,
    Openat = 56,
    Close = 57,
    Read = 63,
    Write = 64,
    Ppoll = 73,
    Signalfd4 = 74,
    Capset = 91,
    ExitGroup = 94,
    Unshare = 97,
    Kill = 129,
    RtSigaction = 134,
    RtSigprocmask = 135,
    Setresuid = 147,
    Setresgid = 149,
    Setsid = 157,
    Setgroups = 159,
    Umask = 166,
    Prctl = 167,
    Getppid = 173,
    Socket = 198,
    Socketpair = 199,
    Bind = 200,
    Listen = 201,
    Connect = 203,
    Sendto = 206,
    Setsockopt = 208,
    Shutdown = 210,
    Sendmsg = 211,
    Recvmsg = 212,
    Munmap = 215,
    Clone = 220,
    Execve = 221,
    Mmap = 222,
    Accept4 = 242,
    Wait4 = 260,
    Prlimit64 = 261,
    Seccomp = 277,
    Statx = 291,
    OpenTree = 428,
    MoveMount = 429,
    Fsopen = 430,
    Fsconfig = 431,
    Fsmount = 432,
    CloseRange = 436,
    Openat2 = 437,
    MountSetattr = 442,
    LandlockCreateRuleset = 444,
    LandlockAddRule = 445,
    LandlockRestrictSelf = 446,
}
