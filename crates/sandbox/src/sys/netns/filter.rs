//! The socket filters of the taps.

use nix::libc::sock_filter;

/// Bytes kept of each packet: its headers.
const KEPT: u32 = 128;
/// Offset of the IP header (linux/filter.h, SKF_NET_OFF). Offset 0 of an IPv6 packet is after this header.
const NET: u32 = -0x10_0000_i32 as u32;
const SYN_AND_ACK: u32 = 0x12;
const SYN: u32 = 0x02;

const fn word(at: u32) -> sock_filter {
    sock_filter { code: 0x20, jt: 0, jf: 0, k: at }
}
const fn byte(at: u32) -> sock_filter {
    sock_filter { code: 0x30, jt: 0, jf: 0, k: at }
}
/// Loads the byte at this offset after the IPv4 header, whose length is in the index.
const fn byte_behind(at: u32) -> sock_filter {
    sock_filter { code: 0x50, jt: 0, jf: 0, k: at }
}
/// Sets the index to the length of the IPv4 header.
const fn index_is_header() -> sock_filter {
    sock_filter { code: 0xb1, jt: 0, jf: 0, k: 0 }
}
const fn and(mask: u32) -> sock_filter {
    sock_filter { code: 0x54, jt: 0, jf: 0, k: mask }
}
/// Skips `then` instructions if equal, else `or`.
const fn equal(value: u32, then: u8, or: u8) -> sock_filter {
    sock_filter { code: 0x15, jt: then, jf: or, k: value }
}
const fn give(bytes: u32) -> sock_filter {
    sock_filter { code: 0x06, jt: 0, jf: 0, k: bytes }
}

/// SYN without ACK, to any address except 127.0.0.0/8.
pub(super) const TCP_4: [sock_filter; 8] = [
    byte(16),
    equal(127, 5, 0),
    index_is_header(),
    byte_behind(13),
    and(SYN_AND_ACK),
    equal(SYN, 0, 1),
    give(KEPT),
    give(0),
];
/// Any datagram, to any address except 127.0.0.0/8.
pub(super) const UDP_4: [sock_filter; 4] = [byte(16), equal(127, 1, 0), give(KEPT), give(0)];
/// SYN without ACK, to any address except ::1.
pub(super) const TCP_6: [sock_filter; 13] = [
    word(NET + 24),
    equal(0, 0, 6),
    word(NET + 28),
    equal(0, 0, 4),
    word(NET + 32),
    equal(0, 0, 2),
    word(NET + 36),
    equal(1, 4, 0),
    byte(13),
    and(SYN_AND_ACK),
    equal(SYN, 0, 1),
    give(KEPT),
    give(0),
];
/// Any datagram, to any address except ::1.
pub(super) const UDP_6: [sock_filter; 10] = [
    word(NET + 24),
    equal(0, 0, 6),
    word(NET + 28),
    equal(0, 0, 4),
    word(NET + 32),
    equal(0, 0, 2),
    word(NET + 36),
    equal(1, 1, 0),
    give(KEPT),
    give(0),
];
