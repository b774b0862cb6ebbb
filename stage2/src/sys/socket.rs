//! Sockets.

use alloc::vec::Vec;
use core::mem;

use super::call::{Errno, Number, Result, syscall};
use super::descriptor::Descriptor;
use super::{address, address_mut};

pub(crate) const AF_UNIX: u16 = 1;
pub(crate) const AF_INET: u16 = 2;
pub(crate) const SOCK_STREAM: usize = 1;
pub(crate) const SOCK_DGRAM: usize = 2;
pub(crate) const SOCK_NONBLOCK: usize = 0o4000;
const SOCK_CLOEXEC: usize = 0o200_0000;
const MSG_NOSIGNAL: usize = 0x4000;

/// Makes a socket that is close-on-exec.
pub(crate) fn socket(family: u16, kind: usize) -> Result<Descriptor> {
    // SAFETY: takes numbers.
    let fd = unsafe { syscall(Number::Socket, [family.into(), kind | SOCK_CLOEXEC, 0, 0, 0, 0]) }?;
    // SAFETY: the descriptor is new.
    unsafe { Descriptor::from_answer(fd) }
}

/// Makes a pair of connected Unix sockets.
pub(crate) fn socket_pair() -> Result<(Descriptor, Descriptor)> {
    let mut pair = [0_i32; 2];
    let arguments = [AF_UNIX.into(), SOCK_STREAM | SOCK_CLOEXEC, 0, address_mut(&mut pair), 0, 0];
    // SAFETY: the kernel writes two numbers through the pointer.
    unsafe { syscall(Number::Socketpair, arguments) }?;
    // SAFETY: both descriptors are new.
    let [one, other] = pair.map(|number| unsafe { Descriptor::from_number(number) });
    Ok((one, other))
}

/// Connects to the Unix socket at `path`.
pub(crate) fn connect(socket: &Descriptor, path: &str) -> Result<()> {
    /// `struct sockaddr_un` (unix(7)).
    #[repr(C)]
    struct UnixAddress {
        family: u16,
        path: [u8; 108],
    }
    let mut to = UnixAddress { family: AF_UNIX, path: [0; 108] };
    // The path ends with NUL, so one byte stays zero.
    if path.len() >= to.path.len() {
        return Err(Errno::NAMETOOLONG);
    }
    to.path.iter_mut().zip(path.bytes()).for_each(|(place, byte)| *place = byte);
    let arguments = [socket.argument(), address(&to), mem::size_of::<UnixAddress>(), 0, 0, 0];
    // SAFETY: pointer and length describe the address.
    unsafe { syscall(Number::Connect, arguments) }.map(drop)
}

/// Listens on `127.0.0.1:port`.
pub(crate) fn listen_on_loopback(socket: &Descriptor, port: u16, backlog: u16) -> Result<()> {
    /// `struct sockaddr_in` (ip(7)): port and address in network order.
    #[repr(C)]
    struct InternetAddress {
        family: u16,
        port: [u8; 2],
        address: [u8; 4],
        rest: [u8; 8],
    }
    let at =
        InternetAddress { family: AF_INET, port: port.to_be_bytes(), address: [127, 0, 0, 1], rest: [0; 8] };
    let arguments = [socket.argument(), address(&at), mem::size_of::<InternetAddress>(), 0, 0, 0];
    // SAFETY: pointer and length describe the address.
    unsafe { syscall(Number::Bind, arguments) }?;
    // SAFETY: takes numbers.
    unsafe { syscall(Number::Listen, [socket.argument(), backlog.into(), 0, 0, 0, 0]) }.map(drop)
}

/// Accepts a connection, non-blocking and close-on-exec.
pub(crate) fn accept(listener: &Descriptor) -> Result<Descriptor> {
    let arguments = [listener.argument(), 0, 0, SOCK_NONBLOCK | SOCK_CLOEXEC, 0, 0];
    // SAFETY: with null pointers the kernel writes no address.
    let fd = unsafe { syscall(Number::Accept4, arguments) }?;
    // SAFETY: the descriptor is new.
    unsafe { Descriptor::from_answer(fd) }
}

/// Sends bytes without SIGPIPE. Returns how many the socket took.
pub(crate) fn send(socket: &Descriptor, bytes: &[u8]) -> Result<usize> {
    let arguments = [socket.argument(), bytes.as_ptr().expose_provenance(), bytes.len(), MSG_NOSIGNAL, 0, 0];
    // SAFETY: pointer and length describe bytes that the kernel may read; the address is null.
    unsafe { syscall(Number::Sendto, arguments) }
}

/// Ends the sending half of a connection.
pub(crate) fn end_sending(socket: &Descriptor) -> Result<()> {
    const SHUT_WR: usize = 1;
    // SAFETY: takes numbers.
    unsafe { syscall(Number::Shutdown, [socket.argument(), SHUT_WR, 0, 0, 0, 0]) }.map(drop)
}

/// Sends written bytes without delay (tcp(7), TCP_NODELAY).
pub(crate) fn set_no_delay(socket: &Descriptor) -> Result<()> {
    const IPPROTO_TCP: usize = 6;
    const TCP_NODELAY: usize = 1;
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, &1_i32)
}

/// Lets a close reset the connection (socket(7), SO_LINGER: on, for 0 seconds).
pub(crate) fn reset_on_close(socket: &Descriptor) -> Result<()> {
    const SOL_SOCKET: usize = 1;
    const SO_LINGER: usize = 13;
    set_option(socket, SOL_SOCKET, SO_LINGER, &[1_i32, 0])
}

fn set_option<T>(socket: &Descriptor, level: usize, option: usize, value: &T) -> Result<()> {
    let arguments = [socket.argument(), level, option, address(value), mem::size_of::<T>(), 0];
    // SAFETY: pointer and length describe the value, which the kernel reads.
    unsafe { syscall(Number::Setsockopt, arguments) }.map(drop)
}

/// Most descriptors of one message: three standard streams.
const MAX_PASSED: usize = 3;

/// A control message with descriptors (cmsg(3), unix(7)): `struct cmsghdr`, the numbers, and padding to a multiple of 8.
#[repr(C, align(8))]
struct Rights {
    length: usize,
    level: i32,
    kind: i32,
    numbers: [i32; MAX_PASSED],
}

impl Rights {
    const SOL_SOCKET: i32 = 1;
    const SCM_RIGHTS: i32 = 1;
    /// Bytes before the numbers.
    const HEADER: usize = mem::offset_of!(Self, numbers);

    const fn empty() -> Self {
        Self { length: 0, level: 0, kind: 0, numbers: [0; MAX_PASSED] }
    }
}

/// `struct msghdr` of a 64-bit kernel (recvmsg(2)), with one `struct iovec`.
#[repr(C)]
struct MessageHeader {
    name: usize,
    name_length: u32,
    buffers: usize,
    buffer_count: usize,
    control: usize,
    control_length: usize,
    flags: i32,
}

/// Sends bytes with descriptors, without SIGPIPE. Returns how many bytes the socket took; the descriptors go with the first byte.
pub(crate) fn send_with(socket: &Descriptor, bytes: &[u8], passed: &[&Descriptor]) -> Result<usize> {
    if passed.is_empty() {
        return send(socket, bytes);
    }
    let mut rights = Rights {
        length: Rights::HEADER + passed.len() * mem::size_of::<i32>(),
        level: Rights::SOL_SOCKET,
        kind: Rights::SCM_RIGHTS,
        numbers: [0; MAX_PASSED],
    };
    if passed.len() > MAX_PASSED {
        return Err(Errno::MSGSIZE);
    }
    rights.numbers.iter_mut().zip(passed).for_each(|(place, fd)| *place = fd.number());
    let buffer = [bytes.as_ptr().expose_provenance(), bytes.len()];
    let header = MessageHeader {
        name: 0,
        name_length: 0,
        buffers: address(&buffer),
        buffer_count: 1,
        control: address(&rights),
        // The kernel counts the padding to the next multiple of 8 (CMSG_SPACE, cmsg(3)).
        control_length: rights.length.next_multiple_of(8),
        flags: 0,
    };
    // SAFETY: the header describes bytes and a control message that live across the call.
    unsafe { syscall(Number::Sendmsg, [socket.argument(), address(&header), MSG_NOSIGNAL, 0, 0, 0]) }
}

/// Reads once into `buffer`. Returns the number of bytes, and their descriptors, which are close-on-exec.
pub(crate) fn receive_with(socket: &Descriptor, buffer: &mut [u8]) -> Result<(usize, Vec<Descriptor>)> {
    const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
    const MSG_CTRUNC: i32 = 0x08;
    let mut rights = Rights::empty();
    let buffer = [buffer.as_mut_ptr().expose_provenance(), buffer.len()];
    let mut header = MessageHeader {
        name: 0,
        name_length: 0,
        buffers: address(&buffer),
        buffer_count: 1,
        control: address_mut(&mut rights),
        // Without the padding, in which the kernel would put one descriptor more.
        control_length: Rights::HEADER + MAX_PASSED * mem::size_of::<i32>(),
        flags: 0,
    };
    let arguments = [socket.argument(), address_mut(&mut header), MSG_CMSG_CLOEXEC, 0, 0, 0];
    // SAFETY: the header describes a buffer and space for a control message, which the kernel may write and which live across the
    // call.
    let count = unsafe { syscall(Number::Recvmsg, arguments) }?;
    // The space is for one message, so no second one follows.
    let is_rights = header.control_length >= Rights::HEADER
        && (rights.level, rights.kind) == (Rights::SOL_SOCKET, Rights::SCM_RIGHTS);
    let passed =
        if is_rights { rights.length.saturating_sub(Rights::HEADER) / mem::size_of::<i32>() } else { 0 };
    // SAFETY: the kernel has opened these descriptors for this message.
    let passed =
        rights.numbers.into_iter().take(passed).map(|number| unsafe { Descriptor::from_number(number) });
    let passed: Vec<Descriptor> = passed.collect();
    if header.flags & MSG_CTRUNC != 0 {
        return Err(Errno::NOBUFS);
    }
    Ok((count, passed))
}

/// Flag of an interface that is up (netdevice(7)).
pub(crate) const IFF_UP: i16 = 1;

/// `struct ifreq` (netdevice(7)): a name that ends with NUL, and a union of 24 bytes that begins with the flags.
#[repr(C, align(8))]
struct InterfaceRequest {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

impl InterfaceRequest {
    fn new(name: &str, flags: i16) -> Result<Self> {
        let mut request = Self { name: [0; 16], flags, rest: [0; 22] };
        // The name ends with NUL, so one byte stays zero.
        if name.len() >= request.name.len() {
            return Err(Errno::NAMETOOLONG);
        }
        request.name.iter_mut().zip(name.bytes()).for_each(|(place, byte)| *place = byte);
        Ok(request)
    }
}

/// Reads the flags of an interface (netdevice(7), SIOCGIFFLAGS).
pub(crate) fn interface_flags(socket: &Descriptor, name: &str) -> Result<i16> {
    const SIOCGIFFLAGS: usize = 0x8913;
    let mut request = InterfaceRequest::new(name, 0)?;
    let arguments = [socket.argument(), SIOCGIFFLAGS, address_mut(&mut request), 0, 0, 0];
    // SAFETY: SIOCGIFFLAGS reads and writes one ifreq through the pointer.
    unsafe { syscall(Number::Ioctl, arguments) }?;
    Ok(request.flags)
}

/// Sets the flags of an interface (netdevice(7), SIOCSIFFLAGS).
pub(crate) fn set_interface_flags(socket: &Descriptor, name: &str, flags: i16) -> Result<()> {
    const SIOCSIFFLAGS: usize = 0x8914;
    let request = InterfaceRequest::new(name, flags)?;
    // SAFETY: SIOCSIFFLAGS reads one ifreq through the pointer.
    unsafe { syscall(Number::Ioctl, [socket.argument(), SIOCSIFFLAGS, address(&request), 0, 0, 0]) }.map(drop)
}
