//! The control socket, one connection to the host side that `execve` closes; and the standard streams.

use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use exeat_contract::message::MAX_FRAME;
use exeat_contract::{Assembly, Construction, Go, Message};

use crate::sys::{self, Descriptor, Errno};

/// The connection to the host side.
pub(crate) struct Control(Descriptor);

impl Control {
    pub(crate) fn connect(path: &str) -> sys::Result<Self> {
        let socket = sys::socket(sys::AF_UNIX, sys::SOCK_STREAM)?;
        sys::connect(&socket, path)?;
        Ok(Self(socket))
    }

    /// Sends a frame with the descriptors at its first byte.
    pub(crate) fn send(&self, message: &Message, mut passed: &[&Descriptor]) -> sys::Result<()> {
        let frame = message.encode().ok_or(Errno::MSGSIZE)?;
        let mut rest = frame.as_slice();
        while !rest.is_empty() {
            match sys::send_with(&self.0, rest, passed) {
                Ok(count) => {
                    rest = rest.get(count..).unwrap_or_default();
                    passed = &[];
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Takes over the socket that this program was started with, if its argument is this word with the number of the socket. The inner
    /// `None`: there is no such socket.
    pub(crate) fn inherit(argument: &[u8], word: &str) -> Option<Option<Self>> {
        let number = core::str::from_utf8(argument.strip_prefix(word.as_bytes())?).ok()?.parse().ok()?;
        Some(sys::take_inherited(number).ok().map(Self))
    }

    /// Waits for the description of the sandbox. The host side has a deadline, and kills this process.
    pub(crate) fn receive_construction(&self) -> sys::Result<Construction> {
        match self.receive()? {
            (Message::Build(construction), _) => Ok(construction),
            _ => Err(Errno::BADMSG),
        }
    }

    /// Waits for the description of the file tree, as long as for that of a sandbox.
    pub(crate) fn receive_assembly(&self) -> sys::Result<Assembly> {
        match self.receive()? {
            (Message::Assemble(assembly), _) => Ok(assembly),
            _ => Err(Errno::BADMSG),
        }
    }

    /// Waits for the host side's answer without a deadline: the host side has one, and kills the sandbox.
    pub(crate) fn receive_go(&self) -> sys::Result<(Go, Vec<Descriptor>)> {
        match self.receive()? {
            (Message::Go(go), passed) => Ok((go, passed)),
            _ => Err(Errno::BADMSG),
        }
    }

    fn receive(&self) -> sys::Result<(Message, Vec<Descriptor>)> {
        let mut head = [0; 4];
        let (count, passed) = sys::receive_with(&self.0, &mut head)?;
        if count == 0 {
            return Err(Errno::CONNRESET);
        }
        self.read_exact(head.get_mut(count..).ok_or(Errno::BADMSG)?)?;
        let length = usize::try_from(u32::from_le_bytes(head)).map_err(|_| Errno::BADMSG)?;
        if length > MAX_FRAME {
            return Err(Errno::MSGSIZE);
        }
        let mut body = vec![0; length];
        self.read_exact(&mut body)?;
        let message = Message::decode(&body).map_err(|_| Errno::BADMSG)?;
        Ok((message, passed))
    }

    fn read_exact(&self, mut rest: &mut [u8]) -> sys::Result<()> {
        while !rest.is_empty() {
            match sys::read(&self.0, rest) {
                // The host side closed before the go: nothing may run.
                Ok(0) => return Err(Errno::CONNRESET),
                Ok(count) => rest = rest.get_mut(count..).ok_or(Errno::BADMSG)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// Makes the three descriptors standard input, output and error.
pub(crate) fn take_streams(streams: Vec<Descriptor>) -> sys::Result<()> {
    let streams = <[Descriptor; 3]>::try_from(streams).map_err(|_| Errno::BADMSG)?;
    streams.iter().enumerate().try_for_each(|(number, stream)| sys::replace_stream(stream, number))
}

/// Opens the standard streams that are closed: [`take_streams`] would overwrite a socket with such a number.
pub(crate) fn hold_standard_numbers() -> sys::Result<()> {
    let streams = sys::standard_streams();
    for condition in sys::conditions(streams.each_ref().map(|stream| &**stream))? {
        if condition & sys::POLLNVAL != 0 {
            // The lowest free number is the missing one. It is never closed.
            mem::forget(sys::open(c"/dev/null", sys::O_RDWR)?);
        }
    }
    Ok(())
}

/// Prints words on standard error, which is bubblewrap's: the host quotes them if the sandbox does not start.
pub(crate) fn print(parts: &[&str]) {
    let [_, _, error] = sys::standard_streams();
    for part in parts {
        // If nobody reads it, the error has no recipient either.
        let _ = sys::write(&error, part.as_bytes());
    }
}

/// Describes an error of connect(2) in the C library's words.
pub(crate) fn describe(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS => "Permission denied",
        Errno::AGAIN => "Resource temporarily unavailable",
        Errno::CONNREFUSED => "Connection refused",
        Errno::NOENT => "No such file or directory",
        Errno::PERM => "Operation not permitted",
        _ => "the socket does not answer",
    }
}
