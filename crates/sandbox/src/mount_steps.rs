//! The mounts of a file tree in stage2's words, and its failures in those of people.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use exeat_contract::{Message, MountStep, Step};
use nix::errno::Errno;

use crate::bwrap::probe;
use crate::error::Error;
use crate::layer::RefusingLayer;
use crate::spec::{Mount, SandboxSpec};

pub(crate) fn step_of(mount: &Mount) -> MountStep {
    let bytes = |path: &PathBuf| path.as_os_str().as_bytes().to_vec();
    match mount {
        Mount::ReadOnly { host, at } => {
            MountStep::Bind { source: bytes(host), at: bytes(at), is_writable: false }
        }
        Mount::Writable { host, at } => {
            MountStep::Bind { source: bytes(host), at: bytes(at), is_writable: true }
        }
        Mount::Tmpfs { at, size, mode } => MountStep::Tmpfs { at: bytes(at), size: *size, mode: *mode },
        Mount::Dir { at } => MountStep::Dir { at: bytes(at) },
        Mount::Pin { at } => MountStep::Pin { at: bytes(at) },
        Mount::Symlink { target, at } => MountStep::Symlink { target: bytes(target), at: bytes(at) },
        Mount::File { at, bytes: contents, mode } => {
            MountStep::File { at: bytes(at), bytes: contents.0.to_vec(), mode: *mode }
        }
        Mount::CoverFile { at, bytes: contents } => {
            MountStep::CoverFile { at: bytes(at), bytes: contents.0.to_vec() }
        }
        Mount::Proc => MountStep::Proc,
        Mount::Dev { shm } => MountStep::Dev { shm: *shm },
        Mount::Freeze { at } => MountStep::Freeze { at: bytes(at) },
    }
}

/// Explains a failure that stage2 reported before its hello.
pub(crate) fn explain(message: &Message, spec: &SandboxSpec) -> Error {
    let (mount, what, errno) = match *message {
        Message::Unmounted { number, errno } => {
            let mount = usize::try_from(number).ok().and_then(|number| spec.mounts.get(number));
            (mount, mount.map_or_else(|| "mount a file".to_owned(), words_for), errno)
        }
        Message::Failed { step: Step::TakeUser, errno } => {
            return Error::User(io::Error::from_raw_os_error(errno));
        }
        Message::Failed { step, errno } if is_of_build(step) => (None, step.as_str().to_owned(), errno),
        Message::Failed { step, errno } => {
            return Error::Stage2 { step, source: Errno::from_raw(errno) };
        }
        _ => return Error::Control(io::ErrorKind::InvalidData.into()),
    };
    let source = Errno::from_raw(errno);
    let layer = match (source, mount) {
        (Errno::EPERM, Some(Mount::Proc)) => RefusingLayer::MaskedProc,
        (Errno::EPERM | Errno::EACCES | Errno::ENOSPC, _) => probe::host_layer(),
        _ => RefusingLayer::Unknown,
    };
    Error::Build { what, source, layer }
}

/// Whether the step belongs to the making of the sandbox or of its file tree.
fn is_of_build(step: Step) -> bool {
    matches!(
        step,
        Step::ReadConstruction
            | Step::MakeRoot
            | Step::LeaveHost
            | Step::DropCapabilities
            | Step::StartStage
            | Step::Stage
            | Step::MakeNamespace
            | Step::ExecuteBwrap
    )
}

/// Describes a mount, worded to follow "cannot".
fn words_for(mount: &Mount) -> String {
    match mount {
        Mount::ReadOnly { host, at } | Mount::Writable { host, at } if host == at => {
            format!("mount `{}`", at.display())
        }
        Mount::ReadOnly { host, at } | Mount::Writable { host, at } => {
            format!("mount `{}` at `{}`", host.display(), at.display())
        }
        Mount::Tmpfs { at, .. } => format!("mount a file system in memory at `{}`", at.display()),
        Mount::Dir { at } | Mount::Pin { at } | Mount::File { at, .. } | Mount::Symlink { at, .. } => {
            format!("make `{}`", at.display())
        }
        Mount::CoverFile { at, .. } => format!("mount a file of exeat at `{}`", at.display()),
        Mount::Proc => "mount the sandbox's `/proc`".to_owned(),
        Mount::Dev { .. } => "make the sandbox's `/dev`".to_owned(),
        Mount::Freeze { at } => format!("make `{}` read-only", at.display()),
    }
}
