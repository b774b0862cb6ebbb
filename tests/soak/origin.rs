//! The origins: a few ports of loopback, so that there are enough addresses.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// `1`: the origin sends one byte, then closes.
pub(crate) const ONCE: u8 = b'1';
/// `I`: the origin sends one byte, then stays idle until the client closes.
pub(crate) const IDLE: u8 = b'I';
/// `D`: the origin sends bytes without end.
pub(crate) const BULK: u8 = b'D';

const PORTS: usize = 8;

pub(crate) async fn start() -> Vec<SocketAddr> {
    let mut all = Vec::new();
    for _ in 0..PORTS {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        all.push(listener.local_addr().expect("its number"));
        tokio::spawn(async move {
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream));
                }
            }
        });
    }
    all
}

async fn serve(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let Ok(wish) = stream.read_u8().await else { return };
    let mut byte = [0];
    match wish {
        ONCE => drop(stream.write_all(&[wish]).await),
        IDLE => {
            let _ = stream.write_all(&[wish]).await;
            let _ = stream.read(&mut byte).await;
        }
        BULK => {
            static CHUNK: [u8; 64 * 1024] = [0x5a; 64 * 1024];
            while stream.write_all(&CHUNK).await.is_ok() {}
        }
        _ => {}
    }
}
