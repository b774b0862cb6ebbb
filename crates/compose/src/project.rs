//! Finds the project's policy file where the caller did not name it, and decides which parts apply.
//!
//! The author of the repository or a stage of another run may have written the file. So it applies only within a ceiling, and only
//! those of its keys that some ceiling bounds.

use std::fs::{Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use exeat_policy::Mode;
use exeat_policy::file::{PolicyFile, SandboxSection};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use crate::named::LoadedFile;

/// The entry at the path of the project's file.
pub(crate) enum ProjectEntry {
    /// The file does not exist.
    Nothing,
    /// The opened file; what is read is what was checked.
    File(std::fs::File),
    /// The entry cannot be used; the text says what it is.
    Unusable(&'static str),
}

/// Opens the file. Refuses a link, which could lead to any file of the user's, and a pipe, which could block.
pub(crate) fn find(path: &Path) -> io::Result<ProjectEntry> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags.bits()).open(path) {
        Ok(file) => file,
        Err(error) => {
            return match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ENOENT) => Ok(ProjectEntry::Nothing),
                Some(Errno::ELOOP) => Ok(ProjectEntry::Unusable("a link")),
                // `ENXIO` means a socket.
                Some(Errno::ENXIO) => Ok(ProjectEntry::Unusable("no regular file")),
                _ => Err(error),
            };
        }
    };
    let meta = file.metadata()?;
    Ok(if !meta.is_file() {
        ProjectEntry::Unusable("no regular file")
    } else if !is_trusted_owner(&meta) {
        ProjectEntry::Unusable("somebody else's")
    } else {
        ProjectEntry::File(file)
    })
}

/// Returns whether a file belongs to the caller or to root.
pub(crate) fn is_trusted_owner(meta: &Metadata) -> bool {
    [geteuid().as_raw(), 0].contains(&meta.uid())
}

/// Removes the keys that no ceiling bounds from an unnamed file, and returns their names. Hosts stay because every ceiling bounds
/// them, even one that names none. Masks and limits stay because they only narrow.
pub(crate) fn remove_unbounded(file: &mut PolicyFile, ceilings: &[LoadedFile]) -> Vec<&'static str> {
    let speaks = |about: fn(&PolicyFile) -> bool| ceilings.iter().any(|ceiling| about(&ceiling.file));
    let mut left_out = Vec::new();
    let mut drop_if = |set: bool, bounded: bool, key: &'static str| {
        let drop = set && !bounded;
        if drop {
            left_out.push(key);
        }
        drop
    };
    let reports = speaks(|ceiling| ceiling.report.is_some());
    if drop_if(file.mode == Some(Mode::Report), reports, "network.mode") {
        file.mode = None;
    }
    if drop_if(file.nat64 == Some(true), speaks(|ceiling| ceiling.nat64.is_some()), "network.nat64") {
        file.nat64 = None;
    }
    let upstream = speaks(|ceiling| ceiling.upstream.is_some());
    if drop_if(file.upstream.is_some(), upstream, "network.upstream") {
        file.upstream = None;
    }
    let view = speaks(|ceiling| ceiling.fs.view.is_some());
    if drop_if(file.fs.view.is_some(), view, "fs.view") {
        file.fs.view = None;
    }
    let filled = |list: &Option<Vec<_>>| list.as_ref().is_some_and(|list| !list.is_empty());
    if drop_if(filled(&file.fs.ro), speaks(|ceiling| ceiling.fs.ro.is_some()), "fs.ro") {
        file.fs.ro = None;
    }
    if drop_if(filled(&file.fs.rw), speaks(|ceiling| ceiling.fs.rw.is_some()), "fs.rw") {
        file.fs.rw = None;
    }
    // A service on this machine's loopback trusts every client.
    if drop_if(!file.host_ports.is_empty(), false, "network.host_port") {
        file.host_ports.clear();
    }
    // No ceiling bounds these.
    if drop_if(file.fs.cache.is_some(), false, "fs.cache") {
        file.fs.cache = None;
    }
    if drop_if(file.fs.home.is_some(), false, "fs.home") {
        file.fs.home = None;
    }
    if drop_if(file.sandbox != SandboxSection::default(), false, "sandbox") {
        file.sandbox = SandboxSection::default();
    }
    if drop_if(file.effects.on_excess.is_some(), false, "effects.on_excess") {
        file.effects.on_excess = None;
    }
    let filled = file.fs.allow_write.as_ref().is_some_and(|names| !names.is_empty());
    if drop_if(filled, speaks(|ceiling| ceiling.fs.allow_write.is_some()), "fs.allow_write") {
        file.fs.allow_write = None;
    }
    let env = speaks(|ceiling| ceiling.env.pass.is_some());
    if drop_if(file.env.pass.as_ref().is_some_and(|names| !names.is_empty()), env, "env.pass") {
        file.env.pass = None;
    }
    // A value can name a tree that becomes visible, as JAVA_HOME does.
    let env_and_trees = env && speaks(|ceiling| ceiling.fs.ro.is_some());
    if drop_if(!file.env.set.is_empty(), env_and_trees, "env.set") {
        file.env.set.clear();
    }
    left_out
}
