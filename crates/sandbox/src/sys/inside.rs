//! A process of ours in a sandbox's namespaces, from the host's side, without a right on the host (setns(2), ioctl_ns(2)).
//!
//! It is a copy of this one, since a process with threads may not enter a user namespace. In the network namespace it opens what a
//! gateway needs ([`super::netns`]), in the mount namespace it mounts ([`super::mounts`]), for as long as this process asks. One process
//! does both: to copy this one takes longer than all that it does. No process of the sandbox sees it or may signal it: it is in the
//! host's other namespaces.

use std::ffi::{CStr, CString};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::libc;

use super::helper::{Helper, become_owner, enter_user_of};
use super::mounts::{self, InsideMounts, Kept};
use super::netns::{self, NetStep, Network};
use super::quotas::{self, Quota, quotas};
use crate::spec::Identity;

/// The process. It ends with the last of these, and when this process ends in whatever way.
#[derive(Debug, Clone)]
pub struct InsideProcess(Result<Arc<Helper>, Errno>);

/// What it mounts when the host replaces a file, and how it hears of that.
#[derive(Debug)]
pub struct KeptFiles<'a> {
    /// An inotify(7) instance that does not block. The process has its events for itself.
    pub events: BorrowedFd<'a>,
    /// Other instances, and one of fanotify(7), which it has open until it ends: the last close of one waits for the kernel, and nobody waits for
    /// the process.
    pub others: Vec<BorrowedFd<'a>>,
    /// The files.
    pub files: Vec<Kept>,
}

/// Requests, by their first byte. A path stands for itself.
pub(super) mod asks {
    /// Enter the network, and whether it is to be open.
    pub(in super::super) const NETWORK: u8 = b'n';
    /// Make a listener on an address.
    pub(in super::super) const LISTEN: u8 = b'l';
    /// Enter the mount namespace.
    pub(in super::super) const MOUNTS: u8 = b'm';
    /// Tell what has happened to a file.
    pub(in super::super) const STATUS: u8 = b'?';
    /// Mount the file that has a name now.
    pub(in super::super) const MOUNT_ANEW: u8 = b'=';
}

impl InsideProcess {
    /// Starts it beside the sandbox in which this process waits for this one, so that its number is its own.
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
            // SAFETY: `serve` makes system calls only, and does not return.
            unsafe {
                Helper::start(c"sandbox-inside", &open, |control| {
                    serve(control, [&net, &mnt], user, &quotas, events, &mut files)
                })
            }
        };
        Self(start().map(Arc::new))
    }

    /// Enters the network namespace. Where it is to be `open`, every address there is made local: a connection to any reaches
    /// whoever listens there, and is refused at once where nobody does.
    ///
    /// # Errors
    /// The step that failed, and what the kernel said.
    pub(crate) fn network(&self, open: bool) -> Result<Network, (NetStep, io::Error)> {
        let helper = self.0.as_ref().map_err(|errno| (NetStep::Tell, (*errno).into()))?;
        netns::enter(Arc::clone(helper), open)
    }

    /// Enters the mount namespace.
    ///
    /// # Errors
    /// What clone(2) and setns(2) say.
    pub fn mounts(&self) -> io::Result<InsideMounts> {
        InsideMounts::enter(Arc::clone(self.0.as_ref().map_err(|errno| *errno)?))
    }
}

/// The namespaces, open, and the step that failed.
type Namespaces = Result<[RawFd; 2], (NetStep, Errno)>;

/// Becomes the user whose the sandbox is, opens the two namespaces, and enters the user namespace that owns them.
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

/// The process, to its end.
///
/// # Safety
/// The caller is the only thread of its process, and uses nothing afterwards.
unsafe fn serve(
    control: RawFd,
    paths: [&CStr; 2],
    user: Option<(u32, u32)>,
    quotas: &[Quota],
    events: RawFd,
    kept: &mut [Kept],
) -> ! {
    // SAFETY: each call takes numbers, constants or pointers to live locals; none takes a lock or allocates. The descriptors that
    // are closed are this process's copies, which nothing here uses again.
    unsafe {
        // As in stage2: a stage may have many descriptors in flight.
        let mut most: libc::rlimit = mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut most) == 0 {
            most.rlim_cur = most.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const most);
        }
        let namespaces = enter(paths, user);
        // Where it is refused the stage has what its user has: docs/limits.md says where.
        let _ = quotas::set(quotas);
        let mut ask = [0_u8; mounts::ASK];
        // A negative descriptor is passed over by poll.
        let mut fds = [control, -1].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        loop {
            libc::poll(fds.as_mut_ptr(), 2, -1);
            // Before an answer too: it tells how things are now.
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
                        // It sleeps until something is to be mounted, and that is in a hurry.
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
