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

/// Defines the system calls that stage2 makes, each with its number on x86_64 (arch/x86/entry/syscalls/syscall_64.tbl) and on aarch64
/// (include/uapi/asm-generic/unistd.h).
macro_rules! numbers {
    ($($call:ident $x86_64:literal $aarch64:literal;)*) => {
        /// The number of a system call on this architecture.
        #[derive(Clone, Copy)]
        #[repr(usize)]
        pub(super) enum Number {
            $($call = if cfg!(target_arch = "x86_64") { $x86_64 } else { $aarch64 },)*
        }
    };
}

numbers! {
    Read 0 63;
    Write 1 64;
    Close 3 57;
    Mmap 9 222;
    Munmap 11 215;
    RtSigaction 13 134;
    RtSigprocmask 14 135;
    Ioctl 16 29;
    Socket 41 198;
    Connect 42 203;
    Sendto 44 206;
    Sendmsg 46 211;
    Recvmsg 47 212;
    Shutdown 48 210;
    Bind 49 200;
    Listen 50 201;
    Socketpair 53 199;
    Setsockopt 54 208;
    Clone 56 220;
    Execve 59 221;
    Wait4 61 260;
    Kill 62 129;
    Fcntl 72 25;
    Chdir 80 49;
    Fchdir 81 50;
    Umask 95 166;
    Getppid 110 173;
    Setsid 112 157;
    Setgroups 116 159;
    Setresuid 117 147;
    Setresgid 119 149;
    Capset 126 91;
    PivotRoot 155 41;
    Prctl 157 167;
    Umount2 166 39;
    ExitGroup 231 94;
    EpollCtl 233 21;
    Openat 257 56;
    Mkdirat 258 34;
    Unlinkat 263 35;
    Symlinkat 266 36;
    Faccessat 269 48;
    Ppoll 271 73;
    Unshare 272 97;
    EpollPwait 281 22;
    Accept4 288 242;
    Signalfd4 289 74;
    EpollCreate1 291 20;
    Dup3 292 24;
    Prlimit64 302 261;
    Seccomp 317 277;
    Statx 332 291;
    OpenTree 428 428;
    MoveMount 429 429;
    Fsopen 430 430;
    Fsconfig 431 431;
    Fsmount 432 432;
    CloseRange 436 436;
    Openat2 437 437;
    MountSetattr 442 442;
    LandlockCreateRuleset 444 444;
    LandlockAddRule 445 445;
    LandlockRestrictSelf 446 446;
}
