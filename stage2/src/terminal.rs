//! Makes a terminal on the sandbox's own devpts, and passes its master to the host side.
//!
//! stage2 makes it, because the stage finds only a terminal from inside: `tty` names it, and `/dev/tty` and `/dev/pts` lead to it
//! alone.

use exeat_contract::Terminal;

use crate::sys::{self, Descriptor};

/// Makes the terminal, starts a session on it, and puts it on the requested standard streams. Returns the master.
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
