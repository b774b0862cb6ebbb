//! Uses up the quotas that the user has on the whole machine.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use nix::libc;
use nix::sys::inotify::{InitFlags, Inotify};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};

use crate::{ProbeResult, check, name_of, number};

/// The most descriptors in one message (SCM_MAX_FD, include/net/scm.h).
const AT_ONCE: usize = 253;

/// Puts as many descriptors in flight as the kernel allows, prints the number, and keeps them for some milliseconds.
pub(crate) fn in_flight(millis: &str) -> ProbeResult {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let file = File::open("/dev/null")?;
    let numbers = [file.as_raw_fd(); AT_ONCE];
    let (mut kept, mut count): (Vec<(OwnedFd, OwnedFd)>, usize) = (Vec::new(), 0);
    let refused = 'all: loop {
        let flags = SockFlag::SOCK_NONBLOCK;
        let pair = match socketpair(AddressFamily::Unix, SockType::Stream, None, flags) {
            Ok(pair) => pair,
            Err(errno) => break errno,
        };
        let from = pair.0.as_raw_fd();
        kept.push(pair);
        loop {
            let part = [ControlMessage::ScmRights(&numbers)];
            match sendmsg::<()>(from, &[IoSlice::new(b"x")], &part, MsgFlags::empty(), None) {
                Ok(_) => count += AT_ONCE,
                Err(nix::errno::Errno::EAGAIN) => break,
                Err(errno) => break 'all errno,
            }
        }
    };
    println!("{count} in flight, then {refused:?}");
    thread::sleep(Duration::from_millis(number(millis)?));
    Ok("kept".into())
}

/// Sends a descriptor to itself.
pub(crate) fn pass() -> ProbeResult {
    let (from, _to) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty())?;
    let part = [ControlMessage::ScmRights(&[0])];
    sendmsg::<()>(from.as_raw_fd(), &[IoSlice::new(b"x")], &part, MsgFlags::empty(), None)?;
    Ok("ok".into())
}

/// Sends a descriptor to the listener of a Unix socket.
pub(crate) fn pass_to(path: &str) -> ProbeResult {
    let stream = UnixStream::connect(path)?;
    let part = [ControlMessage::ScmRights(&[0])];
    sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(b"x")], &part, MsgFlags::empty(), None)?;
    Ok("ok".into())
}

/// Makes inotify instances, up to a number or until the kernel refuses, and keeps them for some milliseconds.
pub(crate) fn inotify_instances(most: &str, millis: &str) -> ProbeResult {
    let made = |_: usize| Inotify::init(InitFlags::empty()).map_err(io::Error::from);
    let mut kept = Vec::new();
    let mut said = format!("all {most}");
    for next in (0..number(most)?).map(made) {
        match next {
            Ok(instance) => kept.push(instance),
            Err(error) => {
                said = format!("{}, then {}", kept.len(), name_of(&error));
                break;
            }
        }
    }
    println!("{said}");
    thread::sleep(Duration::from_millis(number(millis)?));
    Ok("kept".into())
}

/// Takes a lease on a file (`F_SETLEASE`), or a delegation (`F_SETDELEG`, which kernels before 6.19 do not know).
pub(crate) fn lease(path: &str, kind: &str) -> ProbeResult {
    let file = File::open(path)?;
    let kind_of_delegation = [libc::F_RDLCK, 0];
    // SAFETY: takes numbers, and a live local that is as long as `struct delegation`.
    let taken = unsafe {
        if kind == "lease" {
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK)
        } else {
            libc::fcntl(file.as_raw_fd(), 1040, kind_of_delegation.as_ptr())
        }
    };
    check(taken.into())?;
    Ok("ok".into())
}
