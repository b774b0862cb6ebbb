//! Quotas that the kernel keeps for a user on the whole machine, of which a stage may have a part alone (namespaces(7), "The
//! /proc/sys/user directory").
//!
//! A user namespace has limits of its own below those of the machine, and what a process takes counts in its own and in every
//! namespace above. Who holds CAP_SYS_RESOURCE in it writes them: see `set_permissions` in kernel/ucount.c.

use std::ffi::CString;
use std::fs;

use nix::errno::Errno;
use nix::libc;

/// A quota: its name below `/proc/sys/user`, the setting of the whole machine, and which part of it a stage may have.
const QUOTAS: [(&str, &str, u64); 2] = [
    // Editors, build tools and `tail -f` have one or two each.
    ("max_inotify_instances", "/proc/sys/fs/inotify/max_user_instances", 4),
    // One for each directory of a project.
    ("max_inotify_watches", "/proc/sys/fs/inotify/max_user_watches", 2),
];

/// A limit to be written.
#[derive(Debug)]
pub(super) struct Quota {
    path: CString,
    value: Vec<u8>,
}

/// Works out the limits of a stage. What the kernel does not tell of, it does not have.
pub(super) fn quotas() -> Vec<Quota> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let quota = |(name, of_machine, part): (&str, &str, u64)| {
        let path = format!("/proc/sys/user/{name}");
        // The second is lower in a container that has a limit of its own.
        let most = [of_machine, &path].into_iter().filter_map(number).min()?;
        Some(Quota { path: CString::new(path).ok()?, value: (most / part).max(1).to_string().into_bytes() })
    };
    QUOTAS.into_iter().filter_map(quota).collect()
}

/// Sets the limits of the user namespace that this process is in. Makes system calls only.
///
/// # Errors
/// The last refusal: where `/proc/sys` is read-only, as in most containers. The others are set all the same.
pub(super) fn set(quotas: &[Quota]) -> Result<(), Errno> {
    let mut done = Ok(());
    for Quota { path, value } in quotas {
        // SAFETY: takes a C string and a live slice; the descriptor is closed once.
        let set = unsafe {
            Errno::result(libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC)).and_then(|file| {
                let written = Errno::result(libc::write(file, value.as_ptr().cast(), value.len()));
                libc::close(file);
                written
            })
        };
        done = set.map(drop).and(done);
    }
    done
}
