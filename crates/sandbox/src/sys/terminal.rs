//! Wraps the ioctls of terminals that nix lacks (ioctl_tty(2)), and restores a terminal when this process dies.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use exeat_contract::TerminalSettings;
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Returns the rows and columns, and both in pixels.
///
/// # Errors
/// Returns the error of TIOCGWINSZ.
pub fn size(terminal: impl AsFd) -> io::Result<[u16; 4]> {
    let mut size = [0_u16; 4];
    // SAFETY: TIOCGWINSZ fills one `struct winsize`, which consists of four such numbers.
    Errno::result(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) })?;
    Ok(size)
}

/// Sets the size, from either side of a pair. If it changes, the foreground process group there gets SIGWINCH.
///
/// # Errors
/// Returns the error of TIOCSWINSZ.
pub fn set_size(terminal: impl AsFd, size: [u16; 4]) -> io::Result<()> {
    // SAFETY: TIOCSWINSZ reads one `struct winsize`, which consists of four such numbers.
    Errno::result(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &raw const size) })?;
    Ok(())
}

/// Sends SIGINT, SIGQUIT or SIGTSTP to the foreground process group of the terminal with this master, ahead of unread input.
///
/// # Errors
/// Returns the error of TIOCSIG.
pub fn signal_foreground(master: impl AsFd, signal: Signal) -> io::Result<()> {
    let number = signal as libc::c_int;
    // SAFETY: TIOCSIG takes a number.
    Errno::result(unsafe { libc::ioctl(master.as_fd().as_raw_fd(), libc::TIOCSIG, number) })?;
    Ok(())
}

/// Signals that end a process and that a run does not handle. SIGSEGV and SIGBUS belong to the standard library.
const DEADLY: [Signal; 13] = [
    Signal::SIGABRT,
    Signal::SIGALRM,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGIO,
    Signal::SIGPROF,
    Signal::SIGPWR,
    Signal::SIGSTKFLT,
    Signal::SIGSYS,
    Signal::SIGTRAP,
    Signal::SIGVTALRM,
    Signal::SIGXCPU,
    Signal::SIGXFSZ,
];

/// The terminal's descriptor, or -1, and its settings as words.
static TERMINAL: AtomicI32 = AtomicI32::new(-1);
static SETTINGS: [AtomicU32; 9] = [const { AtomicU32::new(0) }; 9];

/// Guards a terminal: a signal that ends this process restores it first, if this process is in its foreground.
#[derive(Debug)]
pub struct RestoredOnDeath {
    /// Stays open under this number until this value is dropped.
    terminal: OwnedFd,
}

impl RestoredOnDeath {
    /// Handles the deadly signals that have their default actions. A second value replaces the first.
    ///
    /// # Errors
    /// Returns the error of sigaction(2).
    pub fn new(terminal: OwnedFd, settings: &TerminalSettings) -> io::Result<Self> {
        let (words, _) = settings.as_chunks::<4>();
        for (place, word) in SETTINGS.iter().zip(words) {
            place.store(u32::from_ne_bytes(*word), Ordering::Relaxed);
        }
        TERMINAL.store(terminal.as_raw_fd(), Ordering::Release);
        // All signals are blocked in the handler: SIGTTOU would stop the dying process.
        let handler = SigHandler::Handler(restore_and_die);
        let action = SigAction::new(handler, SaFlags::SA_RESETHAND, SigSet::all());
        for signal in DEADLY {
            // SAFETY: the handler only makes system calls.
            let before = unsafe { sigaction(signal, &action) }?;
            if !matches!(before.handler(), SigHandler::SigDfl) {
                // SAFETY: this restores the previous action.
                unsafe { sigaction(signal, &before) }?;
            }
        }
        Ok(Self { terminal })
    }
}

impl Drop for RestoredOnDeath {
    fn drop(&mut self) {
        // The handlers stay, but now act like the default actions. A later value may have replaced this one.
        let own = self.terminal.as_raw_fd();
        let _ = TERMINAL.compare_exchange(own, -1, Ordering::AcqRel, Ordering::Relaxed);
    }
}

extern "C" fn restore_and_die(signal: libc::c_int) {
    let terminal = TERMINAL.load(Ordering::Acquire);
    if terminal >= 0 {
        let mut settings = [0_u32; 9];
        for (word, place) in settings.iter_mut().zip(&SETTINGS) {
            *word = place.load(Ordering::Relaxed);
        }
        let mut group: libc::pid_t = -1;
        // SAFETY: system calls on live locals of the sizes that the kernel reads and writes (ioctl_tty(2)).
        unsafe {
            let asked = libc::ioctl(terminal, libc::TIOCGPGRP, &raw mut group);
            if asked == 0 && group == libc::getpgrp() {
                libc::ioctl(terminal, libc::TCSETS, &raw const settings);
            }
        }
    }
    // SAFETY: takes a number. The default action is set again (SA_RESETHAND), and happens when this function returns.
    unsafe { libc::raise(signal) };
}
