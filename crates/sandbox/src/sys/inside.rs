//! A helper process in a sandbox's namespaces, without any right on the host (setns(2), ioctl_ns(2)).
//!
//! It is a copy of this process, since a process with threads may not enter a user namespace. In the network namespace it opens the
//! sockets of a gateway ([`super::netns`]), in the mount namespace it mounts ([`super::mounts`]), as long as this process asks. One
//! process does both: copying this process takes longer than all of its work. No process of the sandbox sees or may signal it, since
//! its other namespaces are the host's.

use std::ffi::{CStr, CString};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::libc;

use super::asks;
use super::helper::{Helper, become_owner, enter_user_of};
use super::mounts::{self, InsideMounts, KeptFile};
use super::netns::{self, NetStep, Network};
use super::quotas::{self, Quota, quotas};
use crate::spec::Identity;

/// A handle to the helper process, which ends with the last handle and whenever this process ends.
#[derive(Debug, Clone)]
pub struct InsideProcess(Result<Arc<Helper>, Errno>);

/// Files that the helper mounts again when the host replaces them, and its source of events.
#[derive(Debug)]
pub struct KeptFiles<'a> {
    /// A non-blocking inotify(7) instance. Only the helper reads its events.
    pub events: BorrowedFd<'a>,
    /// Other inotify instances, and one of fanotify(7), which the helper holds until it ends. The last close of one waits for the
    /// kernel, and nobody waits for the helper.
    pub others: Vec<BorrowedFd<'a>>,
    /// The files.
    pub files: Vec<KeptFile>,
}

impl InsideProcess {
    /// Starts the helper. The sandbox's process `pid` waits for this process, so its pid cannot be reused.
    #[must_use]
    pub(crate) fn start(pid: libc::pid_t, identity: Identity, kept: Option<KeptFiles<'_>>) -> Self {
        let start = || {
            let path = |name| CString::new(format!("/proc/{pid}/ns/{name}")).map_err(|_| Errno::EINVAL);
            let (net, mnt) = (path("net")?, path("mnt")?);
            let (user, quotas) = (identity.other(), quotas());
            let (mut files, events, open) = match kept {
                Some(KeptFiles { events, others, files }) => (
                    files,
                    events.as_raw_fd(),
                    others.iter().chain([&events]).map(AsRawFd::as_raw_fd).collect(),
                ),
                None => (Vec::new(), -1, Vec::new()),
            };
            // SAFETY: `serve` only makes system calls, and does not return.
            unsafe {
                Helper::start(c"sandbox-inside", &open, |control| {
                    serve(control, [&net, &mnt], user, &quotas, events, &mut files)
                })
            }
        };
        Self(start().map(Arc::new))
    }

    /// Enters the network namespace. If `open`, makes every address there local: a listener in the sandbox accepts a connection to
    /// any address, and without a listener the connection is refused at once.
    ///
    /// # Errors
    /// Returns the failed step with the kernel's answer.
    pub(crate) fn network(&self, open: bool) -> Result<Network, (NetStep, io::Error)> {
        let helper = self.0.as_ref().map_err(|errno| (NetStep::Tell, (*errno).into()))?;
        netns::enter(Arc::clone(helper), open)
    }

    /// Enters the mount namespace.
    ///
    /// # Errors
    /// Returns the error of clone(2) or setns(2).
    pub fn mounts(&self) -> io::Result<InsideMounts> {
        InsideMounts::enter(Arc::clone(self.0.as_ref().map_err(|errno| *errno)?))
    }
}

/// The opened namespaces, or the step that failed.
type Namespaces = Result<[RawFd; 2], (NetStep, Errno)>;

/// Becomes the sandbox's user, opens the two namespaces and enters the user namespace that owns them.
unsafe fn enter(paths: [&CStr; 2], user: Option<(u32, u32)>) -> Namespaces {
    become_owner(user).map_err(|errno| (NetStep::User, errno))?;
    let mut namespaces = [-1; 2];
    // SAFETY: each call takes numbers, constants or a C string.
    let entered = unsafe {
        let open = |path: &CStr| Errno::result(libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC));
        let opened = namespaces.iter_mut().zip(paths).try_for_each(|(namespace, path)| {
            *namespace = open(path)?;
            Ok(())
        });
        opened.and_then(|()| enter_user_of(namespaces[0]))
    };
    entered.map(|()| namespaces).map_err(|errno| (NetStep::Enter, errno))
}

/// Serves requests until this process ends.
///
/// # Safety
/// The caller must be the only thread of its process, and uses nothing afterwards.
unsafe fn serve(
    control: RawFd,
    paths: [&CStr; 2],
    user: Option<(u32, u32)>,
    quotas: &[Quota],
    events: RawFd,
    kept: &mut [KeptFile],
) -> ! {
    // SAFETY: each call takes numbers, constants or pointers to live locals; none takes a lock or allocates. The closed descriptors
    // are this process's copies, which nothing here uses again.
    unsafe {
        // As in stage2: a stage may have many descriptors in flight.
        let mut most: libc::rlimit = mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut most) == 0 {
            most.rlim_cur = most.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const most);
        }
        let namespaces = enter(paths, user);
        // If this is refused, the stage shares its user's quotas: docs/limits.md says where.
        let _ = quotas::set(quotas);
        let mut ask = [0_u8; mounts::ASK];
        // poll ignores a negative descriptor.
        let mut fds = [control, -1].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        loop {
            libc::poll(fds.as_mut_ptr(), 2, -1);
            // Handle events before an answer too, so that the answer is current.
            if fds[1].fd >= 0 {
                mounts::mount_renamed(events, kept);
            }
            if fds[0].revents == 0 {
                continue;
            }
            let read = libc::recv(control, ask.as_mut_ptr().cast(), ask.len(), libc::MSG_DONTWAIT);
            if read < 0 && [Errno::EINTR, Errno::EAGAIN].contains(&Errno::last()) {
                continue;
            }
            let asked = usize::try_from(read).ok().and_then(|length| ask.get(..length)).unwrap_or_default();
            match asked {
                [] => libc::_exit(0),
                [asks::NETWORK, open] => netns::answer_enter(control, namespaces, *open != 0),
                [asks::LISTEN, address @ ..] => netns::answer_listen(control, address),
                [asks::MOUNTS] => {
                    let entered = namespaces
                        .map_err(|(_, errno)| errno)
                        .and_then(|[_, mnt]| Errno::result(libc::setns(mnt, libc::CLONE_NEWNS)));
                    if entered.is_ok() {
                        // This process sleeps until it has to mount something, and a mount is urgent.
                        super::prefer_this_thread();
                        fds[1].fd = events;
                        mounts::mount_renamed(events, kept);
                    }
                    mounts::answer(control, entered.map(|_| mounts::Answer::default()));
                }
                asked => mounts::answer(control, mounts::answer_to(asked, events, kept)),
            }
        }
    }
}
