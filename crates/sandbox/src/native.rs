//! Builds a sandbox without bubblewrap: stage2 is pid 1 of new namespaces, and makes the file tree that the spec describes.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use exeat_contract::{BUILD_WORD, Construction, NOBODY};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};

use crate::STAGE2_IMAGE;
use crate::bwrap::probe;
use crate::child::Lifeline;
use crate::control::Control;
use crate::error::Error;
use crate::layer::RefusingLayer;
use crate::mount_steps::step_of;
use crate::seccomp::Program;
use crate::spec::{Identity, SandboxSpec};
use crate::staging::Staging;
use crate::sys::{self, BirthStep, PidFd};

/// The pid 1 of a sandbox that exeat builds. Dropping it ends the sandbox.
#[derive(Debug)]
pub(crate) struct Init {
    process: PidFd,
    /// Its pid on the host.
    pub(crate) pid: i32,
    lifeline: Lifeline,
    over: bool,
}

impl Init {
    /// Starts pid 1 and sends it the description of the sandbox. It answers with stage2's hello, or with the step that failed.
    ///
    /// The sandbox ends when the thread that calls this ends.
    pub(crate) fn spawn(
        spec: &SandboxSpec,
        filters: &[Program],
        staging: Option<&Staging>,
        held: Option<&OwnedFd>,
    ) -> Result<(Self, Control), Error> {
        let prepare = |what| move |source| Error::Prepare { what, source };
        let program = sys::sealed_program(STAGE2_IMAGE).map_err(prepare("stage2"))?;
        let (ours, its) = UnixStream::pair().map_err(prepare("a pair of sockets"))?;
        // The kernel names the sender of each message.
        setsockopt(&ours, sockopt::PassCred, &true)
            .map_err(|errno| prepare("a pair of sockets")(errno.into()))?;
        let (line, its_line) = UnixStream::pair().map_err(prepare("a pair of sockets"))?;
        let construction = Construction {
            lifeline: its_line.as_raw_fd(),
            staged: staging.map(Staging::contents).unwrap_or_default(),
            mounts: spec.mounts.iter().map(step_of).collect(),
            filters: filters.iter().map(|program| program.to_vec()).collect(),
            becomes_user: spec.identity.other().is_some(),
            held: held.map(AsRawFd::as_raw_fd),
            bridge: spec.bridge,
            socks5: spec.socks5,
        };
        let trees = construction.staged.trees.iter().map(|(_, number)| *number);
        let kept = [its.as_raw_fd(), its_line.as_raw_fd()]
            .into_iter()
            .chain(trees)
            .chain(construction.held)
            .collect();
        let argument = CString::new(format!("{BUILD_WORD}{}", its.as_raw_fd()));
        let argument = argument.map_err(|error| prepare("its argument")(error.into()))?;
        let started = sys::start_in_namespaces(&program, &argument, kept);
        // Only pid 1 has its ends now.
        drop((its, its_line));
        let (pid, process) = started.map_err(|(step, errno)| refused(step, errno))?;
        let init = Self { process, pid, lifeline: Lifeline::new(line), over: false };
        init.write_maps(spec.identity)?;
        // When memory runs out, the kernel should kill the stage, and not exeat. Written here, the stage cannot undo it.
        let _ = fs::write(format!("/proc/{pid}/oom_score_adj"), "1000");
        let control = Control::new(ours, pid);
        control.send_construction(construction)?;
        Ok((init, control))
    }

    /// Writes the maps of users and groups (user_namespaces(7)). The process waits for a message, so its pid is its own.
    fn write_maps(&self, identity: Identity) -> Result<(), Error> {
        let place = |name: &str| format!("/proc/{}/{name}", self.pid);
        let (uid, gid) = identity
            .other()
            .unwrap_or_else(|| (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw()));
        let written = || -> io::Result<()> {
            // Pid 1 drops the groups of root, and then has no capability to get others.
            if identity.other().is_none() {
                fs::write(place("setgroups"), "deny")?;
            }
            fs::write(place("uid_map"), format!("{NOBODY} {uid} 1\n"))?;
            fs::write(place("gid_map"), format!("{NOBODY} {gid} 1\n"))
        };
        written().map_err(|source| {
            let errno = source.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
            let layer = probe::host_layer();
            Error::Build { what: "map the stage's user".into(), source: errno, layer }
        })
    }

    /// Returns a connection that can end the sandbox from elsewhere.
    pub(crate) fn lifeline(&self) -> Lifeline {
        self.lifeline.clone()
    }

    /// Waits for its end and returns its exit code, or `None` if a signal killed it.
    pub(crate) fn wait(&mut self) -> io::Result<Option<i32>> {
        let status = self.process.reap()?;
        self.over = true;
        Ok(libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)))
    }
}

impl AsFd for Init {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}

impl Drop for Init {
    fn drop(&mut self) {
        if !self.over {
            // The owner of a user namespace may signal every process in it, unless a security module refuses.
            if self.process.signal(libc::SIGKILL).is_err() {
                self.lifeline.cut();
            }
            let _ = self.process.reap();
        }
    }
}

fn refused(step: BirthStep, errno: Errno) -> Error {
    let what = match step {
        BirthStep::Namespaces => "make namespaces",
        BirthStep::Prepare => "prepare its first process",
        BirthStep::Execute => "execute stage2 from memory",
        BirthStep::Killed => "start its first process, which was killed",
    };
    let layer = match step {
        BirthStep::Namespaces | BirthStep::Prepare => probe::host_layer(),
        BirthStep::Execute | BirthStep::Killed => RefusingLayer::Unknown,
    };
    Error::Build { what: what.into(), source: errno, layer }
}
