//! Files and descriptors.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use nix::sys::stat::{SFlag, fstat};

use crate::{ProbeResult, number};

/// Opens an existing file for writing, and writes nothing.
pub(crate) fn write(path: &str) -> ProbeResult {
    OpenOptions::new().write(true).open(path)?;
    Ok("ok".into())
}

/// Reads a file or lists a directory, and prints its size.
pub(crate) fn read(path: &str) -> ProbeResult {
    if Path::new(path).is_dir() {
        return Ok(format!("ok: {} entries", fs::read_dir(path)?.count()));
    }
    Ok(format!("ok: {} bytes", fs::read(path)?.len()))
}

/// Creates a file.
pub(crate) fn create(path: &str) -> ProbeResult {
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(b"planted\n")?;
    Ok("ok".into())
}

/// Lists the open descriptors and their targets.
pub(crate) fn fds() -> ProbeResult {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")?.flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        // The listing's own descriptor is gone when its link is read, or is this directory.
        if target.as_os_str().is_empty() || target.to_string_lossy().ends_with("/fd") {
            continue;
        }
        found.push(format!("{}={}", entry.file_name().to_string_lossy(), target.display()));
    }
    found.sort();
    Ok(found.join(" "))
}

/// Prints the kind of a descriptor: pipe, file, device or socket.
pub(crate) fn fd_kind(which: &str) -> ProbeResult {
    // SAFETY: borrowed for one fstat; a closed number gives EBADF.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(number(which)?) };
    let kind = SFlag::from_bits_truncate(fstat(fd)?.st_mode) & SFlag::S_IFMT;
    Ok(match kind {
        SFlag::S_IFIFO => "pipe",
        SFlag::S_IFREG => "file",
        SFlag::S_IFCHR => "device",
        SFlag::S_IFSOCK => "socket",
        _ => "other",
    }
    .into())
}

/// Writes at most this many megabytes into a file of this directory, removes it, and prints how far it came.
pub(crate) fn fill(place: &str, megabytes: &str) -> ProbeResult {
    let path = Path::new(place).join("probe-fill");
    let block = vec![0x5a; 1 << 20];
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    let mut written = 0;
    let mut outcome = Ok(());
    while outcome.is_ok() && written < number::<u64>(megabytes)? {
        outcome = file.write_all(&block);
        written += 1;
    }
    fs::remove_file(&path)?;
    match outcome {
        Ok(()) => Ok(format!("ok: {written} MB")),
        Err(error) => Err(error),
    }
}

/// Counts the kernel settings that can be opened for writing, and prints the first few.
pub(crate) fn writable_sysctls() -> ProbeResult {
    let mut found = Vec::new();
    sysctls(Path::new("/proc/sys"), &mut found)?;
    Ok(if found.is_empty() {
        "none".into()
    } else {
        format!("{}: {}", found.len(), found[..found.len().min(5)].join(" "))
    })
}

fn sysctls(place: &Path, found: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(place)?.flatten() {
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            sysctls(&path, found)?;
        } else if OpenOptions::new().write(true).open(&path).is_ok() {
            found.push(path.display().to_string());
        }
    }
    Ok(())
}
