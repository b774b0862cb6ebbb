//! The project's own policy file, where nobody named it: what of it may count.
//!
//! Whoever wrote the repository wrote it, and so may have a stage of another run. So it counts only within a ceiling, and of
//! what it says only what some ceiling speaks about.

use std::fs::{Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use exeat_policy::Mode;
use exeat_policy::file::{PolicyFile, SandboxSection};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use crate::named::Named;

/// What lies where the project's file would be.
pub(crate) enum Found {
    /// No such file.
    Nothing,
    /// A file, opened so that it is the one that was looked at.
    File(std::fs::File),
    /// Something that is not used, and what it is.
    Unusable(&'static str),
}

/// Looks for the file. It is no link, which could lead to anything of the user's, and not a pipe, which could keep us waiting.
pub(crate) fn find(path: &Path) -> io::Result<Found> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags.bits()).open(path) {
        Ok(file) => file,
        Err(error) => {
            return match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ENOENT) => Ok(Found::Nothing),
                Some(Errno::ELOOP) => Ok(Found::Unusable("a link")),
                // A socket.
                Some(Errno::ENXIO) => Ok(Found::Unusable("no regular file")),
                _ => Err(error),
            };
        }
    };
    let meta = file.metadata()?;
    Ok(if !meta.is_file() {
        Found::Unusable("no regular file")
    } else if !is_ours(&meta) {
        Found::Unusable("somebody else's")
    } else {
        Found::File(file)
    })
}

/// Whether a file belongs to the caller, or to root.
pub(crate) fn is_ours(meta: &Metadata) -> bool {
    [geteuid().as_raw(), 0].contains(&meta.uid())
}

/// Takes out of an unnamed file what no ceiling speaks about, and says what that was. Hosts need no care: every ceiling bounds
/// them, also one that names none. Masks and limits only narrow.
pub(crate) fn keep_what_is_bounded(file: &mut PolicyFile, ceilings: &[Named]) -> Vec<&'static str> {
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
    // What listens on this machine's loopback trusts whoever reaches it.
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
    // A value can name a tree that is shown then, as JAVA_HOME does.
    let env_and_trees = env && speaks(|ceiling| ceiling.fs.ro.is_some());
    if drop_if(!file.env.set.is_empty(), env_and_trees, "env.set") {
        file.env.set.clear();
    }
    left_out
}
