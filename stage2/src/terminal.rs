//! A terminal of the sandbox's own: a pair from its own devpts, whose master the host side gets.
//!
//! It is made here and not by the host side, because only here is it a terminal that the stage can find: `tty` names it,
//! and `/dev/tty` and `/dev/pts` lead to it and to no other.

use exeat_contract::Terminal;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::sys;

/// Makes the terminal, leads a session on it, and puts it in the place of the streams that it is for. Returns the master.
pub(crate) fn take(terminal: &Terminal) -> rustix::io::Result<OwnedFd> {
    let master = open(c"/dev/ptmx", OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    sys::set_terminal(&slave, &terminal.settings, terminal.size)?;
    setsid()?;
    ioctl_tiocsctty(&slave)?;
    for (number, put) in [dup2_stdin, dup2_stdout, dup2_stderr].into_iter().enumerate() {
        if terminal.streams & (1 << number) != 0 {
            put(&slave)?;
        }
    }
    Ok(master)
}
