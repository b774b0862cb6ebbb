//! Makes the file tree of a sandbox before bubblewrap starts, which gets it as one mount. stage2 makes it, and becomes bubblewrap.
//!
//! One program makes the file tree on both back ends, from descriptors. bubblewrap reads the table of mounts for each mount that it
//! makes: with 40 of them this takes as long as all the rest of its work, and with 200 ten times as long.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use exeat_contract::{ASSEMBLE_WORD, Assembly, Message, MountStep};

use crate::STAGE2_IMAGE;
use crate::control::Control;
use crate::error::Error;
use crate::mount_steps::step_of;
use crate::spec::{Identity, Mount, SandboxSpec};
use crate::staging::Staging;
use crate::sys;

/// Time for the last words of a process that has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A file tree to make for bubblewrap.
#[derive(Debug)]
pub(crate) struct Tree {
    assembly: Assembly,
}

/// The connection to the process that makes the file tree. bubblewrap, which it becomes, has no end of it.
#[derive(Debug)]
pub(crate) struct Assembler {
    control: Control,
}

impl Tree {
    /// Describes the file tree.
    pub(crate) fn new(spec: &SandboxSpec, staging: Option<&Staging>) -> Self {
        // Only bubblewrap knows the sandbox's pid namespace.
        let step = |mount: &Mount| match mount {
            Mount::Proc => MountStep::Dir { at: b"/proc".to_vec() },
            other => step_of(other),
        };
        let mounts = spec.mounts.iter().map(step).collect();
        Self { assembly: Assembly { mounts, ..assembly_of(spec.identity, staging) } }
    }

    /// Describes the staged trees alone: bubblewrap makes the file tree.
    pub(crate) fn staged_alone(identity: Identity, staging: &Staging) -> Self {
        Self { assembly: assembly_of(identity, Some(staging)) }
    }

    /// Whether its process is started with the rights of this one, and becomes the stage's user itself.
    pub(crate) fn becomes_user(&self) -> bool {
        self.assembly.becomes_user
    }

    /// Returns the program that makes it, and the descriptors that this needs, in front of the connection to it.
    pub(crate) fn program(&self) -> io::Result<(sys::Program, Vec<RawFd>, (OwnedFd, UnixStream))> {
        let (ours, its) = UnixStream::pair()?;
        let word = CString::new(format!("{ASSEMBLE_WORD}{}", its.as_raw_fd()))?;
        let image = sys::sealed_program(STAGE2_IMAGE)?;
        let program = sys::Program::from_memory(image, vec![c"exeat-mounts".to_owned(), word]);
        let trees = self.assembly.staged.trees.iter().map(|(_, number)| *number);
        Ok((program, trees.chain([its.as_raw_fd()]).collect(), (its.into(), ours)))
    }

    /// Sends the description, with what is executed then.
    pub(crate) fn send(
        self,
        ours: UnixStream,
        program: &Path,
        arguments: &[&OsStr],
        wait: Duration,
    ) -> Result<Assembler, Error> {
        let arguments = arguments.iter().map(|word| word.as_bytes().to_vec()).collect();
        let program = program.as_os_str().as_bytes().to_vec();
        let control = Control::new(ours, 0);
        control.set_deadline(wait).map_err(Error::Control)?;
        // If the process has ended, it or its reaper has said why.
        let _ = control.send_assembly(Assembly { program, arguments, ..self.assembly })?;
        Ok(Assembler { control })
    }
}

impl Assembler {
    /// Returns the step that failed, if one did. Call it when the process has ended.
    pub(crate) fn failure(&mut self) -> Option<Message> {
        self.control.set_deadline(LAST_WORDS).ok()?;
        self.control.receive().ok()?.map(|(message, _)| message)
    }
}

fn assembly_of(identity: Identity, staging: Option<&Staging>) -> Assembly {
    let own = || (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    Assembly {
        staged: staging.map(Staging::contents).unwrap_or_default(),
        ids: identity.other().unwrap_or_else(own),
        // Otherwise the process is started as that user, and mounts in a user namespace.
        becomes_user: identity.other().is_some() && sys::may_mount(),
        ..Assembly::default()
    }
}
