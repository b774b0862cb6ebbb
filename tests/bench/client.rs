//! The client: a separate process, so that it can also run as a stage, inside the sandbox. Takes orders on stdin, one a
//! line, and answers each with one line of numbers.
//!
//! `bench client ORIGIN` connects to what ORIGIN resolves to; `bench client ORIGIN PROXY` asks PROXY for a tunnel; with
//! `env` for PROXY it takes the proxy from HTTPS_PROXY, as any client would.

use std::env;
use std::io::{self, BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use crate::machine;
use crate::server::{BULK, IDLE, IDLE_BYTES, ONCE, PING, PING_BYTES};

/// Serves orders until stdin ends.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let way = match arguments {
        [origin] => Route::direct(origin),
        [origin, proxy] => Ok(Route::through(origin, proxy_address(proxy))),
        _ => return ExitCode::from(2),
    };
    let way = way.expect("the origin's addresses");
    machine::raise_open_files();
    let mut idle = Vec::new();
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let mut words = line.split(' ');
        let order = words.next().unwrap_or_default();
        let number: usize = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let before = machine::own_cpu();
        let start = Instant::now();
        let result = match order {
            "bulk" => way.bulk(number),
            "several" => way.several(number),
            "ping" => way.ping(number),
            "once" => way.once(number),
            "ask" => way.ask(number),
            "idle" => way.idle(number).map(|streams| {
                idle = streams;
                0
            }),
            "drop" => {
                idle.clear();
                Ok(0)
            }
            _ => Err(io::Error::other("no such order")),
        };
        let (wall, cpu) = (start.elapsed(), machine::own_cpu() - before);
        let answer = match result {
            Ok(number) => format!("ok {} {} {number}", wall.as_nanos(), cpu.as_nanos()),
            Err(error) => format!("error {error}"),
        };
        println!("{answer}");
    }
    ExitCode::SUCCESS
}

/// The number of parallel downloads in `several`.
const SEVERAL: usize = 4;

struct Route {
    origin: String,
    /// The addresses of the origin, for a client that connects directly.
    known: Vec<SocketAddr>,
    proxy: Option<SocketAddr>,
}

impl Route {
    fn direct(origin: &str) -> io::Result<Self> {
        let known = origin.to_socket_addrs()?.collect();
        Ok(Self { origin: origin.to_owned(), known, proxy: None })
    }

    fn through(origin: &str, proxy: SocketAddr) -> Self {
        Self { origin: origin.to_owned(), known: Vec::new(), proxy: Some(proxy) }
    }

    fn connect(&self, wish: u8) -> io::Result<TcpStream> {
        let mut stream = match self.proxy {
            None => TcpStream::connect(&self.known[..])?,
            Some(proxy) => {
                let mut stream = TcpStream::connect(proxy)?;
                stream.set_nodelay(true)?;
                let origin = &self.origin;
                stream
                    .write_all(format!("CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\n\r\n").as_bytes())?;
                read_head(&mut stream)?;
                stream
            }
        };
        stream.set_nodelay(true)?;
        stream.write_all(&[wish])?;
        Ok(stream)
    }

    /// Downloads this many bytes.
    fn bulk(&self, bytes: usize) -> io::Result<u64> {
        let mut stream = self.connect(BULK)?;
        stream.write_all(&u64::try_from(bytes).unwrap_or(0).to_be_bytes())?;
        let mut buffer = vec![0; 256 * 1024];
        let mut left = bytes;
        while left > 0 {
            match stream.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                some => left = left.saturating_sub(some),
            }
        }
        Ok(0)
    }

    /// Downloads this many bytes in total, in several parallel streams.
    fn several(&self, bytes: usize) -> io::Result<u64> {
        thread::scope(|scope| {
            let streams: Vec<_> = (0..SEVERAL).map(|_| scope.spawn(|| self.bulk(bytes / SEVERAL))).collect();
            streams.into_iter().try_fold(0, |_, stream| stream.join().expect("a download does not panic"))
        })
    }

    /// Makes this many round trips of 64 bytes. Returns their median in nanoseconds.
    fn ping(&self, trips: usize) -> io::Result<u64> {
        let mut stream = self.connect(PING)?;
        let mut message = [7; PING_BYTES];
        let mut times = Vec::with_capacity(trips);
        for _ in 0..trips {
            let start = Instant::now();
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
            times.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        times.sort_unstable();
        Ok(times.get(trips / 2).copied().unwrap_or(0))
    }

    /// Makes this many connections, one after the other, with one byte back on each.
    fn once(&self, connections: usize) -> io::Result<u64> {
        for _ in 0..connections {
            let mut stream = self.connect(ONCE)?;
            stream.read_exact(&mut [0])?;
        }
        Ok(0)
    }

    /// Connects as often, and resolves the name for each connection, like a client without a cache.
    fn ask(&self, connections: usize) -> io::Result<u64> {
        for _ in 0..connections {
            let way = match self.proxy {
                None => Self::direct(&self.origin)?,
                Some(proxy) => Self::through(&self.origin, proxy),
            };
            way.once(1)?;
        }
        Ok(0)
    }

    /// Opens this many connections, each of which moves some bytes and then stays idle.
    fn idle(&self, connections: usize) -> io::Result<Vec<TcpStream>> {
        let mut buffer = vec![0; IDLE_BYTES];
        (0..connections)
            .map(|_| {
                let mut stream = self.connect(IDLE)?;
                stream.read_exact(&mut buffer)?;
                Ok(stream)
            })
            .collect()
    }
}

/// Reads the answer to CONNECT byte by byte, because the bytes after it belong to the tunnel.
fn read_head(stream: &mut TcpStream) -> io::Result<()> {
    // In practice one read takes all of it: the origin sends nothing before the client does.
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            some => head.extend_from_slice(&buffer[..some]),
        }
    }
    if head.starts_with(b"HTTP/1.1 200") {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned()))
}

fn proxy_address(word: &str) -> SocketAddr {
    let text = if word == "env" { env::var("HTTPS_PROXY").unwrap_or_default() } else { word.to_owned() };
    text.trim_start_matches("http://").trim_end_matches('/').parse().expect("the proxy's address and port")
}
