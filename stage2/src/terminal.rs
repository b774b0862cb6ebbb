//! A terminal of the sandbox's own: a pair from its own devpts, whose master the host side gets.
//!
//! It is made here and not by the host side, because only here the stage can find it: `tty` names it, and `/dev/tty` and `/dev/pts`
//! lead to it and to no other.

use exeat_contract::Terminal;

use crate::sys::{self, Descriptor};

/// Makes the terminal, leads a session on it, and makes it those standard streams that it is for. Returns the master.
pub(crate) fn take(terminal: &Terminal) -> sys::Result<Descriptor> {
    let (master, slave) = sys::open_terminal(&terminal.settings, terminal.size)?;
    sys::lead_session()?;
    sys::control_terminal(&slave)?;
    for number in 0..3 {
        if terminal.streams & (1 << number) != 0 {
            sys::replace_stream(&slave, number)?;
        }
    }
    Ok(master)
}
