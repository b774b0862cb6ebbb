//! Attempts on files of the host that a stage may see and not change, and on files that a user of the host would run later.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::libc;
use nix::unistd::{AccessFlags, access};

use crate::attempt::{Attempt, Node, Saw, name, several};

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt::new("system-files", "writing to the host's files", &["B19"], |spec| {
        several(spec.read_only.iter().map(|node| (node.path.display().to_string(), write(node))))
    }),
    Attempt::new("own-files", "writing to exeat's own record and state", &["A02"], |spec| {
        several(spec.own.iter().map(|node| (node.path.display().to_string(), write(node))))
    })
    .controlled()
    .beside_another_run(),
    Attempt::new("protected-files", "a project's git configuration and hooks", &["B11", "B15"], |_| {
        protected()
    })
    .controlled(),
    Attempt::new("hard-link", "a hard link to a protected file", &["B35"], |_| hard_link()).controlled(),
    Attempt::new("setuid-file", "leaving a setuid file behind", &["B21"], |_| setuid_file()).controlled(),
];

/// Files that [`super::scratch`] creates in the working directory.
const CONFIG: &str = ".git/config";
const HOOKS: &str = ".git/hooks";

/// Opens a file for writing, and writes nothing.
fn write(node: &Node) -> io::Result<()> {
    let path = &node.path;
    if !path.is_dir() {
        let file = OpenOptions::new().append(true).open(path)?;
        return same(node, &file);
    }
    same(node, &File::open(path)?)?;
    // An unnamed file, which disappears when it is closed.
    match OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).mode(0o600).open(path) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            access(path, AccessFlags::W_OK).map_err(Into::into)
        }
        other => other.map(drop),
    }
}

/// Checks that the file is the host's. The stage may change another file at the same path.
fn same(node: &Node, file: &File) -> io::Result<()> {
    if node.is(&file.metadata()?) { Ok(()) } else { Err(io::Error::other("another file")) }
}

fn protected() -> Saw {
    if !Path::new(CONFIG).exists() {
        return Saw::NotMade("the view does not show the working directory".into());
    }
    let hook = Path::new(HOOKS).join("post-checkout");
    let planted = File::create_new(&hook).and_then(|_| fs::remove_file(&hook));
    let renamed = fs::rename(".git", ".git-moved").and_then(|()| fs::rename(".git-moved", ".git"));
    let replaced = fs::rename(CONFIG, "config-moved").and_then(|()| fs::rename("config-moved", CONFIG));
    several([
        (format!("writing {CONFIG}"), OpenOptions::new().append(true).open(CONFIG).map(drop)),
        (format!("a new file in {HOOKS}"), planted),
        ("renaming .git".into(), renamed),
        (format!("renaming {CONFIG}"), replaced),
    ])
}

fn hard_link() -> Saw {
    if !Path::new(CONFIG).exists() {
        return Saw::NotMade("the view does not show the working directory".into());
    }
    let linked = fs::hard_link(CONFIG, "linked");
    let written = linked.and_then(|()| OpenOptions::new().append(true).open("linked")).map(drop);
    let _ = fs::remove_file("linked");
    several([(format!("writing a link to {CONFIG}"), written)])
}

/// Creates a setuid file in the working directory, where a user of the host would find it.
fn setuid_file() -> Saw {
    let path = Path::new("with-rights");
    if let Err(error) = File::create_new(path) {
        return Saw::NotMade(format!("no file in the working directory: {}", name(&error)));
    }
    let set = fs::set_permissions(path, Permissions::from_mode(0o4755)).and_then(|()| {
        let mode = fs::metadata(path)?.permissions().mode();
        if mode & libc::S_ISUID != 0 { Ok(()) } else { Err(io::Error::other("the bit was dropped")) }
    });
    let _ = fs::remove_file(path);
    several([("a setuid file".into(), set)])
}
