//! The messages of the control socket, and their encoding.
//!
//! A frame is a length (`u32`, little endian, of what follows) and a body: one tag byte and fields. A byte string is a `u32` length
//! and its bytes. Descriptors come with a frame's first byte (`SCM_RIGHTS`, unix(7)), in this order. A [`Hello`] has the listener of
//! a handoff or the lifeline of a relay, and then the same for SOCKS5 if it is offered. A [`Go`] has standard input, output and
//! error. [`Message::Hardened`] has the master of the stage's terminal and then the notices of its calls, if it has these.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::assembly::Assembly;
use crate::construction::Construction;
use crate::wire::{Wire, wire};

/// Maximum size of one frame: execve(2) takes at most 6 MiB of arguments and environment (`_STK_LIM / 4 * 3`).
pub const MAX_FRAME: usize = 8 << 20;

wire! {
    /// A message in either direction.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Message {
        /// stage2 is ready: the bridge exists and nothing untrusted has run.
        Hello(hello: Hello) = 1,
        /// The host tells stage2 to become the stage.
        Go(go: Go) = 2,
        /// stage2 is about to `execve`, with this hardening. End of file after it means that the stage runs.
        Hardened {
            /// ABI version of the Landlock domain of the stage; 0 if the kernel has none.
            landlock: u32,
        } = 3,
        /// A step of stage2 failed, and stage2 ends.
        Failed {
            /// The step.
            step: Step,
            /// The kernel's answer, an `errno`; 0 if the step failed without a system call.
            errno: i32,
        } = 4,
        /// The host tells stage2 to build the sandbox around itself. Only the native back end sends it.
        Build(construction: Construction) = 5,
        /// A mount of the sandbox that stage2 builds failed, and stage2 ends.
        Unmounted {
            /// The number of the step in [`Construction::mounts`] or [`Assembly::mounts`].
            number: u32,
            /// The kernel's answer, an `errno`.
            errno: i32,
        } = 6,
        /// The host tells stage2 to make the file tree, and to become bubblewrap then.
        Assemble(assembly: Assembly) = 7,
    }
}

wire! {
    /// stage2's first message.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Hello {
        /// TCP port of the proxy on the sandbox's loopback.
        pub port: u16,
    }
}

wire! {
    /// The stage that stage2 becomes.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Go {
        /// The command and its arguments.
        pub argv: Vec<Vec<u8>>,
        /// The whole environment, in entries `NAME=VALUE`.
        pub env: Vec<Vec<u8>>,
        /// The working directory inside.
        pub cwd: Vec<u8>,
        /// A classic BPF program (a sequence of `struct sock_filter`, native endian) to install before `execve`; empty for none.
        pub filter: Vec<u8>,
        /// Another program, for the calls that the host gets a notice of before they run (seccomp_unotify(2)); empty for none.
        pub notice_filter: Vec<u8>,
        /// The stage's soft limit of open descriptors (RLIMIT_NOFILE, getrlimit(2)).
        pub descriptors: u64,
        /// The stage's hard limit of open descriptors; stage2's own hard limit applies if it is lower.
        pub most_descriptors: u64,
        /// TCP ports that the stage may connect to, on any address; it may then listen on none. `None` allows every port, and to listen.
        pub ports: Option<Vec<u16>>,
        /// The stage's terminal, made inside.
        pub terminal: Option<Terminal>,
    }
}

wire! {
    /// The properties of the terminal that stage2 makes in the sandbox.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Terminal {
        /// The standard streams that the terminal replaces: bit n for descriptor n. Not 0.
        pub streams: u8,
        /// Rows and columns, and both in pixels (`struct winsize`, ioctl_tty(2)).
        pub size: [u16; 4],
        /// The kernel's `struct termios`: four words of flags (native endian), line discipline, 19 control characters.
        pub settings: TerminalSettings,
    }
}

/// The kernel's `struct termios`, as TCSETS takes it (ioctl_tty(2)).
pub type TerminalSettings = [u8; 36];

/// Defines the steps of a process that is not this one, each with its number in a message and a description that follows "cannot".
#[macro_export]
macro_rules! steps {
    ($(#[$about:meta])* pub enum $name:ident { $($step:ident = $number:literal, $text:literal;)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name {
            $(#[doc = concat!("Cannot ", $text, ".")] $step = $number,)*
        }

        impl $name {
            /// Describes the step, worded to follow "cannot".
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$step => $text,)*
                }
            }

            /// Returns the step with a number.
            #[must_use]
            pub fn from_byte(byte: u8) -> Option<Self> {
                match byte {
                    $($number => Some(Self::$step),)*
                    _ => None,
                }
            }
        }
    };
}

steps! {
    /// A step of stage2, for messages "step: cause".
    pub enum Step {
        LoopbackUp = 1, "bring up the sandbox's loopback interface";
        BindProxyPort = 2, "bind the proxy's port on the sandbox's loopback";
        StartRelay = 3, "start the relay";
        SendHello = 4, "send the listener to the host side";
        ReadGo = 5, "read the host side's answer";
        TakeStreams = 6, "take over the stage's standard streams";
        EnterDirectory = 7, "enter the working directory";
        CloseDescriptors = 8, "close inherited descriptors";
        Landlock = 9, "enter a Landlock domain";
        Seccomp = 10, "install the stage's seccomp filter";
        Exec = 11, "execute the command";
        Terminal = 12, "give the stage a terminal of its own";
        ReadConstruction = 13, "read the host side's description of the sandbox";
        TakeUser = 14, "become the stage's user";
        MakeRoot = 15, "make the root of the sandbox's file tree";
        LeaveHost = 16, "leave the host's file tree";
        DropCapabilities = 17, "give up capabilities";
        StartStage = 18, "start the process that becomes the stage";
        Stage = 19, "attach the trees of the view";
        MakeNamespace = 20, "make a mount namespace";
        ExecuteBwrap = 21, "execute bubblewrap";
    }
}

/// The error for bytes that are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeError;

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("malformed control message")
    }
}

impl core::error::Error for DecodeError {}

impl Message {
    /// Encodes the message as a frame: length and body. `None` if it would exceed [`MAX_FRAME`].
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut out = vec![0; 4];
        self.put(&mut out)?;
        let body = out.len().checked_sub(4).filter(|len| *len <= MAX_FRAME)?;
        let length = u32::try_from(body).ok()?.to_le_bytes();
        out.get_mut(..4)?.copy_from_slice(&length);
        Some(out)
    }

    /// Decodes a frame without its length.
    ///
    /// # Errors
    /// Returns an error if the body is not exactly one message.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut rest = body;
        let message = Self::take(&mut rest).ok_or(DecodeError)?;
        if rest.is_empty() { Ok(message) } else { Err(DecodeError) }
    }
}

impl Wire for Step {
    fn put(&self, out: &mut Vec<u8>) -> Option<()> {
        (*self as u8).put(out)
    }

    fn take(rest: &mut &[u8]) -> Option<Self> {
        Self::from_byte(u8::take(rest)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Message> {
        vec![
            Message::Hello(Hello { port: 3128 }),
            Message::Go(Go {
                argv: vec![b"sh".to_vec(), b"-c".to_vec(), Vec::new()],
                env: vec![b"A=1".to_vec()],
                cwd: b"/work".to_vec(),
                filter: vec![0; 8],
                notice_filter: vec![1; 8],
                descriptors: 1024,
                most_descriptors: 4096,
                ports: Some(vec![3128, 1080]),
                terminal: None,
            }),
            Message::Go(Go {
                terminal: Some(Terminal { streams: 0b111, size: [24, 80, 640, 480], settings: [3; 36] }),
                ..Go::default()
            }),
            Message::Go(Go::default()),
            Message::Hardened { landlock: 7 },
            Message::Failed { step: Step::Exec, errno: 2 },
            Message::Build(crate::construction::sample()),
            Message::Build(Construction::default()),
            Message::Unmounted { number: 3, errno: 13 },
            Message::Assemble(crate::assembly::sample()),
            Message::Assemble(Assembly::default()),
        ]
    }

    #[test]
    fn messages_round_trip_and_their_prefixes_do_not_decode() {
        for message in samples() {
            let frame = message.encode().unwrap();
            let (length, body) = frame.split_at(4);
            assert_eq!(u32::from_le_bytes(length.try_into().unwrap()) as usize, body.len());
            assert_eq!(Message::decode(body), Ok(message));
            for cut in 0..body.len() {
                assert_eq!(Message::decode(&body[..cut]), Err(DecodeError), "prefix of {cut} bytes");
            }
            let longer = [body, &[0]].concat();
            assert_eq!(Message::decode(&longer), Err(DecodeError), "trailing byte");
        }
    }

    #[test]
    fn hostile_counts_do_not_allocate() {
        // A `Go`, whose first field is a list.
        let mut body = vec![2];
        body.extend(u32::MAX.to_le_bytes());
        assert_eq!(Message::decode(&body), Err(DecodeError));
        body.extend(u32::MAX.to_le_bytes());
        assert_eq!(Message::decode(&body), Err(DecodeError));
    }

    #[test]
    fn oversize_frames_are_not_made() {
        let go = Go { cwd: vec![b'x'; MAX_FRAME], ..Go::default() };
        assert_eq!(Message::Go(go).encode(), None);
    }
}
