//! The origin: plain TCP on loopback. The first byte of a connection says what the client wants.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

/// `D` and eight bytes of count: the server sends that many bytes, then closes.
pub(crate) const BULK: u8 = b'D';
/// `P`: the server returns every 64 bytes.
pub(crate) const PING: u8 = b'P';
/// `1`: the server sends one byte, then closes.
pub(crate) const ONCE: u8 = b'1';
/// `I`: the server sends 64 KiB, then stays idle until the client closes.
pub(crate) const IDLE: u8 = b'I';

/// The bytes that a tunnel moves before it becomes idle, so that its buffers have been used.
pub(crate) const IDLE_BYTES: usize = 64 * 1024;
/// The bytes of one round trip.
pub(crate) const PING_BYTES: usize = 64;

/// Listens on a free port of loopback and serves until the process ends.
pub(crate) fn start() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("its number");
    thread::spawn(move || {
        // Idle connections stay here; the clients close them.
        let mut idle = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut wish = [0];
            if stream.read_exact(&mut wish).is_err() {
                continue;
            }
            let _ = stream.set_nodelay(true);
            match wish[0] {
                ONCE => {
                    let _ = stream.write_all(&wish);
                }
                IDLE => {
                    let _ = stream.write_all(&vec![0; IDLE_BYTES]);
                    idle.push(stream);
                }
                BULK => {
                    thread::spawn(move || bulk(stream));
                }
                PING => {
                    thread::spawn(move || ping(stream));
                }
                _ => {}
            }
        }
    });
    address
}

fn bulk(mut stream: TcpStream) {
    let mut count = [0; 8];
    if stream.read_exact(&mut count).is_err() {
        return;
    }
    let mut left = usize::try_from(u64::from_be_bytes(count)).unwrap_or(0);
    let chunk = vec![0x5a; 256 * 1024];
    while left > 0 {
        let some = left.min(chunk.len());
        if stream.write_all(&chunk[..some]).is_err() {
            return;
        }
        left -= some;
    }
}

fn ping(mut stream: TcpStream) {
    let mut message = [0; PING_BYTES];
    while stream.read_exact(&mut message).is_ok() {
        if stream.write_all(&message).is_err() {
            return;
        }
    }
}
