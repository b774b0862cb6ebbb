//! Credentials and capabilities of this process, and the signals and children of a pid 1.

use super::call::{Errno, Number, Result, syscall};
use super::descriptor::{Descriptor, O_CLOEXEC};
use super::{SIGNAL_SET, address, address_mut};

/// Becomes this user and group in the user namespace, without supplementary groups. Keeps the capabilities: none of the ids is 0
/// (capabilities(7), "Effect of user ID changes on capabilities").
pub(crate) fn become_user(id: u32) -> Result<()> {
    set_ids(id, id)
}

fn set_ids(uid: u32, gid: u32) -> Result<()> {
    let (uid, gid) = (uid as usize, gid as usize);
    // SAFETY: these take numbers; with a count of 0, setgroups(2) reads no memory.
    unsafe {
        syscall(Number::Setgroups, [0; 6])?;
        syscall(Number::Setresgid, [gid, gid, gid, 0, 0, 0])?;
        syscall(Number::Setresuid, [uid, uid, uid, 0, 0, 0])?;
    }
    Ok(())
}

/// The capability to mount, and that to make places in directories that nobody may enter, such as masks.
const MOUNT: u32 = 1 << 21;
const MAKE_PLACES: u32 = 1 << 1;

/// Becomes this user and group, without supplementary groups, and keeps the capability to mount until it executes a program
/// (capabilities(7), "Effect of user ID changes on capabilities"). It opens files with that user's rights alone.
pub(crate) fn become_user_that_mounts(uid: u32, gid: u32) -> Result<()> {
    const PR_SET_KEEPCAPS: usize = 8;
    // SAFETY: takes numbers.
    unsafe { syscall(Number::Prctl, [PR_SET_KEEPCAPS, 1, 0, 0, 0, 0]) }?;
    set_ids(uid, gid)?;
    // The change has cleared the effective set, and kept the permitted one. Not every root has the second one.
    set_capabilities(MOUNT, MOUNT | MAKE_PLACES).or_else(|_| set_capabilities(MOUNT, MOUNT))
}

/// Lets a process of [`become_user_that_mounts`] make places in directories that nobody may enter. It opens no source after that.
pub(crate) fn allow_places() -> Result<()> {
    set_capabilities(MOUNT | MAKE_PLACES, MOUNT | MAKE_PLACES).or_else(|_| set_capabilities(MOUNT, MOUNT))
}

fn set_capabilities(effective: u32, permitted: u32) -> Result<()> {
    const LINUX_CAPABILITY_VERSION_3: u32 = 0x2008_0522;
    let (this_process, sets) = ([LINUX_CAPABILITY_VERSION_3, 0], [[effective, permitted, 0_u32], [0; 3]]);
    // SAFETY: pointers to live structs of the layout of that version (capget(2)).
    unsafe { syscall(Number::Capset, [address(&this_process), address(&sets), 0, 0, 0, 0]) }.map(drop)
}

/// Maps one user and one group in the user namespace of this process to its own on the host (user_namespaces(7)).
pub(crate) fn map_user(inside: u32, uid: u32, gid: u32) -> Result<()> {
    let line = |outside: u32| {
        let digits = |number: u32| crate::mounts::number(number.into(), 10);
        [digits(inside), digits(outside), alloc::vec![b'1']].join(&b' ')
    };
    for (name, text) in [
        (c"/proc/self/setgroups", b"deny".to_vec()),
        (c"/proc/self/uid_map", line(uid)),
        (c"/proc/self/gid_map", line(gid)),
    ] {
        super::write(&super::open(name, super::O_WRONLY | O_CLOEXEC)?, &text)?;
    }
    Ok(())
}

/// Gives up every capability, and the ability to get one.
pub(crate) fn drop_capabilities() -> Result<()> {
    const PR_CAPBSET_DROP: usize = 24;
    const PR_CAP_AMBIENT: usize = 47;
    const PR_CAP_AMBIENT_CLEAR_ALL: usize = 4;
    // SAFETY: these take numbers.
    unsafe {
        for capability in 0..64 {
            match syscall(Number::Prctl, [PR_CAPBSET_DROP, capability, 0, 0, 0, 0]) {
                // The kernel has no more.
                Err(Errno::INVAL) => break,
                other => other?,
            };
        }
        syscall(Number::Prctl, [PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0])?;
    }
    set_capabilities(0, 0)
}

/// Asks for a signal when the parent thread ends (PR_SET_PDEATHSIG(2const)). A change of the user cancels it.
pub(crate) fn ask_for_parent_death(signal: u32) -> Result<()> {
    const PR_SET_PDEATHSIG: usize = 1;
    // SAFETY: takes numbers.
    unsafe { syscall(Number::Prctl, [PR_SET_PDEATHSIG, signal as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Sets the name of this process (PR_SET_NAME(2const)).
pub(crate) fn set_name(name: &core::ffi::CStr) -> Result<()> {
    const PR_SET_NAME: usize = 15;
    // SAFETY: the name ends with NUL.
    unsafe { syscall(Number::Prctl, [PR_SET_NAME, super::address_of(name), 0, 0, 0, 0]) }.map(drop)
}

/// Sets the mask of permission bits for new files, and returns the old one (umask(2)).
pub(crate) fn set_umask(mask: usize) -> usize {
    // SAFETY: takes a number. The call always succeeds.
    unsafe { syscall(Number::Umask, [mask, 0, 0, 0, 0, 0]) }.unwrap_or(0)
}

pub(crate) const SIGKILL: u32 = 9;
pub(crate) const SIGTERM: u32 = 15;
pub(crate) const SIGCHLD: u32 = 17;

/// Makes a descriptor that is readable when one of these signals, which are blocked, has come (signalfd(2)).
pub(crate) fn signal_descriptor(signals: [u32; 2]) -> Result<Descriptor> {
    let set: u64 = signals.iter().fold(0, |set, signal| set | 1 << (signal - 1));
    // SAFETY: the pointer is to a live signal set of the size given. The descriptor is new.
    unsafe {
        let fd = syscall(Number::Signalfd4, [usize::MAX, address(&set), SIGNAL_SET, O_CLOEXEC, 0, 0])?;
        Descriptor::from_answer(fd)
    }
}

/// A signal that has come.
#[derive(Clone, Copy)]
pub(crate) struct Signal {
    pub(crate) number: u32,
    /// Whether its sender is outside of this pid namespace.
    pub(crate) is_from_outside: bool,
}

/// Takes the next of the signals that have come.
pub(crate) fn take_signal(signals: &Descriptor) -> Result<Signal> {
    /// `struct signalfd_siginfo` (signalfd(2)), of 128 bytes, up to the sender's pid.
    const PID: usize = 12;
    let mut came = [0; 128];
    super::read(signals, &mut came)?;
    let number =
        |at: usize| came.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes);
    // A sender of another namespace has no pid here.
    Ok(Signal { number: number(0).unwrap_or(0), is_from_outside: number(PID) == Some(0) })
}

/// The end of a child.
pub(crate) struct Ended {
    pub(crate) pid: usize,
    /// Its exit code, or 128 and the signal that killed it.
    pub(crate) code: u8,
}

/// Reaps a child that has ended. Returns `None` if no child has; `ECHILD` if there is none. Waits for one if `blocking`.
pub(crate) fn reap(blocking: bool) -> Result<Option<Ended>> {
    const WNOHANG: usize = 1;
    const WALL: usize = 0x4000_0000;
    let mut status = 0_i32;
    let flags = WALL | if blocking { 0 } else { WNOHANG };
    let any = usize::MAX;
    // SAFETY: the pointer is to a live number.
    let pid = unsafe { syscall(Number::Wait4, [any, address_mut(&mut status), flags, 0, 0, 0]) }?;
    let [low, code, ..] = status.to_le_bytes();
    // The layout of wait(2): the low 7 bits are the signal.
    let code = match low & 0x7f {
        0 => code,
        signal => 128 | signal,
    };
    Ok((pid != 0).then_some(Ended { pid, code }))
}

/// Kills every process of the namespace except this one, its pid 1 (kill(2)).
pub(crate) fn kill_all() {
    // SAFETY: takes numbers. It fails only if no other process exists.
    let _ = unsafe { syscall(Number::Kill, [usize::MAX, SIGKILL as usize, 0, 0, 0, 0]) };
}

/// Gives SIGCHLD its default action: the caller may have ignored it, and then the kernel drops the status of children.
pub(crate) fn restore_sigchld() -> Result<()> {
    super::process::restore_default(SIGCHLD)
}
