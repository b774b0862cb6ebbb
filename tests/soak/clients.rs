//! The honest and hostile clients.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::origin::{BULK, IDLE, ONCE};

/// A client that waits longer counts as not served.
const PATIENCE: Duration = Duration::from_secs(10);

/// The path to the origins.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) proxy: PathBuf,
    pub(crate) origins: Vec<SocketAddr>,
}

impl Route {
    async fn tunnel(&self, number: usize, first: &[u8]) -> io::Result<UnixStream> {
        let origin = self.origins[number % self.origins.len()];
        let mut stream = UnixStream::connect(&self.proxy).await?;
        stream.write_all(format!("CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\n\r\n").as_bytes()).await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut head).await? == 0 {
                break;
            }
        }
        if !head.starts_with(b"HTTP/1.1 200 ") {
            return Err(io::Error::other(String::from_utf8_lossy(&head).into_owned()));
        }
        stream.write_all(first).await?;
        Ok(stream)
    }

    /// Opens a tunnel that has moved a byte each way, and is now idle.
    pub(crate) async fn idle(&self, number: usize) -> io::Result<UnixStream> {
        let mut stream = self.tunnel(number, &[IDLE]).await?;
        stream.read_u8().await?;
        Ok(stream)
    }
}

/// Clients that open a tunnel, move a byte each way and close; and the time that each took.
#[derive(Default)]
pub(crate) struct Honest {
    took: Vec<Duration>,
    pub(crate) failed: usize,
}

impl Honest {
    /// Runs this many clients, one after the other, until the time is over.
    pub(crate) async fn run(&mut self, way: &Route, count: usize, time: Duration) {
        let end = Instant::now() + time;
        for number in 0..count {
            let start = Instant::now();
            if start > end {
                break;
            }
            let once = async { way.tunnel(number, &[ONCE]).await?.read_u8().await };
            match timeout(PATIENCE, once).await {
                Ok(Ok(ONCE)) => self.took.push(start.elapsed()),
                _ => self.failed += 1,
            }
        }
    }

    pub(crate) fn served(&self) -> usize {
        self.took.len()
    }

    /// Returns the median and the 99th percentile.
    pub(crate) fn quantiles(&self) -> Option<(Duration, Duration)> {
        let mut took = self.took.clone();
        took.sort_unstable();
        Some((*took.get(took.len() / 2)?, *took.get(took.len() * 99 / 100)?))
    }
}

/// The kinds of hostile clients: name, number at a time, and count so far.
static KINDS: [(&str, usize, AtomicU64); 7] = [
    ("heads byte by byte", 200, AtomicU64::new(0)),
    ("half hellos", 200, AtomicU64::new(0)),
    ("malformed heads", 4, AtomicU64::new(0)),
    ("endless heads", 4, AtomicU64::new(0)),
    ("connect and close", 4, AtomicU64::new(0)),
    ("slow readers", 100, AtomicU64::new(0)),
    ("half-closed", 100, AtomicU64::new(0)),
];

/// Describes the attempts so far.
pub(crate) fn tried() -> String {
    let kinds = KINDS.iter().map(|(name, _, came)| format!("{} {name}", came.load(Ordering::Relaxed)));
    kinds.collect::<Vec<_>>().join(", ")
}

/// Runs all kinds in parallel, and restarts each that ends, until the future is dropped.
pub(crate) async fn hostile(way: &Route) -> String {
    let mut tasks = JoinSet::new();
    for (kind, (_, count, came)) in KINDS.iter().enumerate() {
        for number in 0..*count {
            let way = way.clone();
            tasks.spawn(async move {
                loop {
                    came.fetch_add(1, Ordering::Relaxed);
                    // How it ends does not matter; a short rest leaves the honest clients a processor.
                    let _ = attack(kind, number, &way).await;
                    sleep(Duration::from_millis(2)).await;
                }
            });
        }
    }
    while tasks.join_next().await.is_some() {}
    tried()
}

async fn attack(kind: usize, number: usize, way: &Route) -> io::Result<()> {
    let mut stream = match kind {
        1 => way.tunnel(number, &[0x16, 3, 1, 2, 0, 1, 0]).await?,
        5 => way.tunnel(number, &[BULK]).await?,
        6 => way.tunnel(number, &[IDLE]).await?,
        _ => UnixStream::connect(&way.proxy).await?,
    };
    match kind {
        0 => {
            for byte in b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nX: ".iter().chain(std::iter::repeat(&b'x')) {
                stream.write_all(&[*byte]).await?;
                sleep(Duration::from_millis(500)).await;
            }
        }
        2 => {
            stream.write_all(b"CONNECT 127.0.0.1:1 HTTP/1.1\nHost: a\r\n\r\n").await?;
            stream.read_to_end(&mut Vec::new()).await?;
        }
        3 => loop {
            stream.write_all(&[b'x'; 16 * 1024]).await?;
        },
        5 => loop {
            stream.read_exact(&mut [0; 1024]).await?;
            sleep(Duration::from_millis(200)).await;
        },
        // Waits until the proxy or the origin closes the connection.
        1 | 6 => {
            if kind == 6 {
                stream.shutdown().await?;
            }
            stream.read_to_end(&mut Vec::new()).await?;
        }
        _ => {}
    }
    Ok(())
}
