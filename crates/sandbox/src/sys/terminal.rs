//! The ioctls of terminals that nix does not wrap (ioctl_tty(2)), and a terminal that is put in order when this process dies.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use exeat_contract::TerminalSettings;
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Rows, columns, and both in pixels.
///
/// # Errors
/// What TIOCGWINSZ says.
pub fn size(terminal: impl AsFd) -> io::Result<[u16; 4]> {
    let mut size = [0_u16; 4];
    // SAFETY: TIOCGWINSZ fills one `struct winsize`, which is four of these numbers.
    Errno::result(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) })?;
    Ok(size)
}

/// Sets the size; of a pair, from either side. Whoever is in the foreground there gets SIGWINCH, if it is another one.
///
/// # Errors
/// What TIOCSWINSZ says.
pub fn set_size(terminal: impl AsFd, size: [u16; 4]) -> io::Result<()> {
    // SAFETY: TIOCSWINSZ reads one `struct winsize`, which is four of these numbers.
    Errno::result(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &raw const size) })?;
    Ok(())
}

/// Sends SIGINT, SIGQUIT or SIGTSTP to whoever is in the foreground of the terminal with this master, past what waits to be
/// read there.
///
/// # Errors
/// What TIOCSIG says.
pub fn signal_foreground(master: impl AsFd, signal: Signal) -> io::Result<()> {
    let number = signal as libc::c_int;
    // SAFETY: TIOCSIG takes a number.
    Errno::result(unsafe { libc::ioctl(master.as_fd().as_raw_fd(), libc::TIOCSIG, number) })?;
    Ok(())
}

/// Signals that end a process, and that no run takes over. Not SIGSEGV and SIGBUS: the standard library has those.
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

/// The terminal, or -1; and its settings, by words.
static TERMINAL: AtomicI32 = AtomicI32::new(-1);
static SETTINGS: [AtomicU32; 9] = [const { AtomicU32::new(0) }; 9];

/// While this lives, a signal that ends this process restores a terminal first, if this process is in its foreground.
#[derive(Debug)]
pub struct RestoredOnDeath {
    /// Under this number until the end of this value.
    terminal: OwnedFd,
}

impl RestoredOnDeath {
    /// Takes the deadly signals over that have their default actions. One at a time: a second one replaces the first.
    ///
    /// # Errors
    /// What sigaction(2) says.
    pub fn new(terminal: OwnedFd, settings: &TerminalSettings) -> io::Result<Self> {
        let (words, _) = settings.as_chunks::<4>();
        for (place, word) in SETTINGS.iter().zip(words) {
            place.store(u32::from_ne_bytes(*word), Ordering::Relaxed);
        }
        TERMINAL.store(terminal.as_raw_fd(), Ordering::Release);
        // Everything is blocked meanwhile: SIGTTOU would stop the process that dies.
        let handler = SigHandler::Handler(restore_and_die);
        let action = SigAction::new(handler, SaFlags::SA_RESETHAND, SigSet::all());
        for signal in DEADLY {
            // SAFETY: the handler makes system calls only.
            let before = unsafe { sigaction(signal, &action) }?;
            if !matches!(before.handler(), SigHandler::SigDfl) {
                // SAFETY: what was there before is put back.
                unsafe { sigaction(signal, &before) }?;
            }
        }
        Ok(Self { terminal })
    }
}

impl Drop for RestoredOnDeath {
    fn drop(&mut self) {
        // The handlers stay, and do nothing but what the default actions do. A later value may have taken this one's place.
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
    // SAFETY: takes a number. The action is the default one again (SA_RESETHAND), and is taken when this returns.
    unsafe { libc::raise(signal) };
}
