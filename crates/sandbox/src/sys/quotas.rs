//! Limits a stage to a part of the quotas that the kernel counts per user on the whole machine (namespaces(7), "The /proc/sys/user
//! directory").
//!
//! A user namespace has its own limits below those of the machine, and each use counts in it and in every namespace above. A process
//! with CAP_SYS_RESOURCE in the namespace may write them: see `set_permissions` in kernel/ucount.c.

use std::ffi::CString;
use std::fs;

use nix::errno::Errno;
use nix::libc;

/// A quota: its name below `/proc/sys/user`, the machine's setting, and the divisor for a stage.
const QUOTAS: [(&str, &str, u64); 2] = [
    // Editors, build tools and `tail -f` have one or two each.
    ("max_inotify_instances", "/proc/sys/fs/inotify/max_user_instances", 4),
    // A watch for each directory of a project.
    ("max_inotify_watches", "/proc/sys/fs/inotify/max_user_watches", 2),
];

/// A limit to write.
#[derive(Debug)]
pub(super) struct Quota {
    path: CString,
    value: Vec<u8>,
}

/// Computes the limits of a stage. Skips quotas that the kernel does not list.
pub(super) fn quotas() -> Vec<Quota> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let quota = |(name, of_machine, part): (&str, &str, u64)| {
        let path = format!("/proc/sys/user/{name}");
        // The second is lower in a container with its own limit.
        let most = [of_machine, &path].into_iter().filter_map(number).min()?;
        Some(Quota { path: CString::new(path).ok()?, value: (most / part).max(1).to_string().into_bytes() })
    };
    QUOTAS.into_iter().filter_map(quota).collect()
}

/// Sets the limits of this process's user namespace. Only makes system calls.
///
/// # Errors
/// Returns the last refusal: in most containers, `/proc/sys` is read-only. The other limits are set in any case.
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
