//! System calls that reach beyond a network namespace.

use std::ffi::CString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;

use crate::{ProbeResult, check, number};

/// Makes a socket of any family.
pub(crate) fn socket(family: &str, kind: &str, protocol: &str) -> ProbeResult {
    // SAFETY: three integers.
    let fd = unsafe { libc::socket(number(family)?, number(kind)?, number(protocol)?) };
    check(fd.into())?;
    Ok("ok".into())
}

/// Sets up a ring, which would make socket calls without a filter.
pub(crate) fn io_uring() -> ProbeResult {
    let mut params = [0_u8; 120]; // struct io_uring_params
    // SAFETY: the kernel fills at most the struct's 120 bytes.
    check(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) })?;
    Ok("ok".into())
}

/// Makes a context for asynchronous I/O, of which the machine has a number for all.
pub(crate) fn io_setup() -> ProbeResult {
    let mut context = 0_u64;
    // SAFETY: the kernel fills in a number.
    check(unsafe { libc::syscall(libc::SYS_io_setup, 1, std::ptr::from_mut(&mut context)) })?;
    Ok("ok".into())
}

/// Calls getpid by the i386 entry, which a filter for one architecture would not see.
#[cfg(target_arch = "x86_64")]
pub(crate) fn i386() -> ProbeResult {
    let pid: i64;
    // SAFETY: int 0x80 with eax = 20 (getpid) takes no arguments and changes eax alone.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("rax") 20_i64 => pid, out("r8") _, out("r9") _, out("r10") _, out("r11") _)
    };
    if pid > 0 {
        Ok("ok".into())
    } else {
        Err(io::Error::from_raw_os_error(i32::try_from(-pid).unwrap_or(0)))
    }
}

/// Other architectures have no such entry.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn i386() -> ProbeResult {
    Ok("ENOSYS".into())
}

/// Calls getpid by the x32 entry.
pub(crate) fn x32() -> ProbeResult {
    // SAFETY: getpid takes no arguments.
    check(unsafe { libc::syscall(0x4000_0000 + libc::SYS_getpid) })?;
    Ok("ok".into())
}

/// Types a line into the terminal of standard input, or any that can be opened.
pub(crate) fn tiocsti() -> ProbeResult {
    let byte = b'#';
    // The driver reads 32 bits of the request; high bits must not deceive a filter.
    for request in [libc::TIOCSTI, libc::TIOCSTI | (1 << 32)] {
        // SAFETY: TIOCSTI reads one byte.
        check(unsafe { libc::syscall(libc::SYS_ioctl, 0, request, &raw const byte) })?;
    }
    Ok("ok".into())
}

/// Becomes `command` under a filter that refuses mount(2), as a container runtime's does.
pub(crate) fn without(call: libc::c_long, command: &[&str]) -> ProbeResult {
    let call = u32::try_from(call).map_err(io::Error::other)?;
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    // linux/bpf_common.h: load the call's number, compare, answer.
    let program =
        [(0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, refuse), (0x06, 0, 0, libc::SECCOMP_RET_ALLOW)];
    let mut program = program.map(|(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k });
    let length = u16::try_from(program.len()).map_err(io::Error::other)?;
    let filter = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    nix::sys::prctl::set_no_new_privs()?;
    // SAFETY: the pointer is to a program that lives through the call.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) })?;
    Err(Command::new(command[0]).args(&command[1..]).exec())
}

/// Makes a request on descriptor `fd` that affects more than its terminal, plainly and with high bits that the driver
/// ignores.
pub(crate) fn terminal_request(name: &str, fd: &str) -> ProbeResult {
    let request: u64 = match name {
        "TIOCLINUX" => libc::TIOCLINUX,
        "TIOCCONS" => libc::TIOCCONS,
        "TIOCSETD" => 0x5423,
        "TIOCEXCL" => libc::TIOCEXCL,
        _ => return Err(io::Error::other("no such request")),
    };
    let fd: i32 = number(fd)?;
    // The ordinary line discipline for TIOCSETD, "what is the shift state" for TIOCLINUX.
    let argument = if name == "TIOCLINUX" { 6_i32 } else { 0 };
    for request in [request, request | (1 << 32)] {
        // SAFETY: each of these reads or writes an int at the most.
        check(unsafe { libc::syscall(libc::SYS_ioctl, fd, request, &raw const argument) })?;
    }
    Ok("ok".into())
}

/// Makes a nested user namespace.
pub(crate) fn userns() -> ProbeResult {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER)?;
    Ok("ok".into())
}

/// Prints the number of the session keyring.
pub(crate) fn keyctl() -> ProbeResult {
    const KEYCTL_GET_KEYRING_ID: i64 = 0;
    const KEY_SPEC_SESSION_KEYRING: i64 = -3;
    // SAFETY: integers alone.
    check(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0) })?;
    Ok("ok".into())
}

/// Joins a new session keyring, puts a secret there, and becomes `command`.
pub(crate) fn with_key(name: &str, command: &[&str]) -> ProbeResult {
    const KEYCTL_JOIN_SESSION_KEYRING: i64 = 1;
    const KEYCTL_SETPERM: i64 = 5;
    const KEY_SPEC_SESSION_KEYRING: i64 = -3;
    let (kind, name) = (CString::new("user")?, CString::new(name)?);
    let secret = b"a-secret-of-the-host";
    // SAFETY: C strings that live through the calls, and the secret's true length.
    let key = unsafe {
        check(libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<u8>()))?;
        check(libc::syscall(
            libc::SYS_add_key,
            kind.as_ptr(),
            name.as_ptr(),
            secret.as_ptr(),
            secret.len(),
            KEY_SPEC_SESSION_KEYRING,
        ))?
    };
    // SAFETY: integers alone: everything for possessor and user.
    check(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_SETPERM, key, 0x3f3f_0000) })?;
    Err(Command::new(command[0]).args(&command[1..]).exec())
}

/// Searches for that secret and reads it.
pub(crate) fn read_key(name: &str) -> ProbeResult {
    const KEYCTL_SEARCH: i64 = 10;
    const KEYCTL_READ: i64 = 11;
    const KEY_SPEC_SESSION_KEYRING: i64 = -3;
    let (kind, name) = (CString::new("user")?, CString::new(name)?);
    let mut secret = [0_u8; 64];
    // SAFETY: C strings that live through the calls; the kernel writes at most the buffer's length.
    let count = unsafe {
        let key = check(libc::syscall(
            libc::SYS_keyctl,
            KEYCTL_SEARCH,
            KEY_SPEC_SESSION_KEYRING,
            kind.as_ptr(),
            name.as_ptr(),
            0,
        ))?;
        check(libc::syscall(libc::SYS_keyctl, KEYCTL_READ, key, secret.as_mut_ptr(), secret.len()))?
    };
    let count = usize::try_from(count).unwrap_or(0).min(secret.len());
    Ok(format!("ok: {}", String::from_utf8_lossy(&secret[..count])))
}

/// Mounts a tmpfs, which could uncover what a mask hides.
pub(crate) fn mount_tmpfs(place: &str) -> ProbeResult {
    let none: Option<&str> = None;
    nix::mount::mount(Some("tmpfs"), place, Some("tmpfs"), nix::mount::MsFlags::empty(), none)?;
    Ok("ok".into())
}

/// Removes a mask.
pub(crate) fn unmount(place: &str) -> ProbeResult {
    nix::mount::umount2(place, nix::mount::MntFlags::MNT_DETACH)?;
    Ok("ok".into())
}

/// Becomes another user.
pub(crate) fn setuid(uid: &str) -> ProbeResult {
    nix::unistd::setuid(nix::unistd::Uid::from_raw(number(uid)?))?;
    Ok("ok".into())
}

/// Makes a BPF map.
pub(crate) fn bpf() -> ProbeResult {
    let attributes: [u32; 32] =
        [2, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: BPF_MAP_CREATE reads the attributes' true size.
    check(unsafe { libc::syscall(libc::SYS_bpf, 0, attributes.as_ptr(), size_of_val(&attributes)) })?;
    Ok("ok".into())
}

/// Makes a file of memory that no other process can map by its name, and that counts as that of a mapped file.
pub(crate) fn secret_memory() -> ProbeResult {
    /// memfd_secret(2), on every architecture.
    const MEMFD_SECRET: libc::c_long = 447;
    // SAFETY: takes numbers; the descriptor stays open until the end.
    check(unsafe { libc::syscall(MEMFD_SECRET, 0) })?;
    Ok("ok".into())
}

/// Makes a page-fault handler in user space.
pub(crate) fn userfaultfd() -> ProbeResult {
    const UFFD_USER_MODE_ONLY: i64 = 1;
    // SAFETY: one integer.
    check(unsafe { libc::syscall(libc::SYS_userfaultfd, UFFD_USER_MODE_ONLY) })?;
    Ok("ok".into())
}

/// Waits for SIGTSTP, and starts a timer for SIGCONT, which continues this process while everything else is stopped.
/// Then makes a watched name, and stops again or continues.
pub(crate) fn go_on(milliseconds: &str, then: &str) -> ProbeResult {
    let milliseconds: i64 = number(milliseconds)?;
    // SAFETY: every structure is a live local, and zeroes are a value of each.
    unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGTSTP);
        libc::sigaddset(&raw mut signals, libc::SIGCONT);
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut()).into())?;
        println!("ready");
        let mut came = 0;
        while came != libc::SIGTSTP {
            libc::sigwait(&raw const signals, &raw mut came);
        }
        let mut event: libc::sigevent = std::mem::zeroed();
        (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, libc::SIGCONT);
        let mut timer: libc::timer_t = std::mem::zeroed();
        check(libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer).into())?;
        let mut after: libc::itimerspec = std::mem::zeroed();
        after.it_value.tv_sec = milliseconds / 1000;
        after.it_value.tv_nsec = milliseconds % 1000 * 1_000_000;
        check(libc::timer_settime(timer, 0, &raw const after, std::ptr::null_mut()).into())?;
        while came != libc::SIGCONT {
            libc::sigwait(&raw const signals, &raw mut came);
        }
    }
    std::fs::create_dir(".vscode")?;
    std::fs::write(".vscode/tasks.json", "x")?;
    if then == "stop" {
        // SAFETY: takes a number.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
    std::thread::sleep(std::time::Duration::from_secs(60));
    Ok("ok".into())
}
