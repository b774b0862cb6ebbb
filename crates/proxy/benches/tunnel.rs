//! The data path against a direct socket: a 64-byte round trip, bulk on one stream, and one CONNECT from accept to
//! close. `cargo bench -p exeat-proxy`; ratios, not absolute numbers, mean something on another machine.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, clippy::indexing_slicing, reason = "a benchmark")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use exeat_audit::{Header, Log, Mode, RunId, Sink};
use exeat_policy::{Action, Note, Origin, PolicyBuilder};
use exeat_proxy::{Context, Listener, serve};
use tokio_util::sync::CancellationToken;

/// Bytes of one bulk transfer.
const BULK: usize = 256 << 20;

/// Echoes 64 bytes at a time; a first byte of `b` asks for [`BULK`] bytes instead.
fn origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.set_nodelay(true).unwrap();
            thread::spawn(move || {
                let mut buffer = [0; 64];
                while stream.read_exact(&mut buffer).is_ok() {
                    if buffer[0] == b'b' {
                        let chunk = vec![0; 256 << 10];
                        for _ in 0..BULK / chunk.len() {
                            if stream.write_all(&chunk).is_err() {
                                return;
                            }
                        }
                    } else if stream.write_all(&buffer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    addr
}

fn proxy(origin: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let mut rules = PolicyBuilder::new();
    let flag = Origin::Flag { flag: "--allow".into() };
    rules.add(&origin.to_string(), Action::Allow, flag, Note::default()).unwrap();
    let run = RunId::new();
    let path = std::env::temp_dir().join(format!("exeat-bench-{run}.jsonl"));
    let header = Header { run, stage: None, policy_sha256: String::new(), mode: Mode::Enforce };
    let log = Log::start(Sink::create_file(&path).unwrap(), header).unwrap();
    std::fs::remove_file(&path).unwrap();
    let cx = Arc::new(Context::new(rules.build(), log, run));
    thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let stop = CancellationToken::new();
            tokio::spawn(serve(Listener::tcp(listener).unwrap(), cx, stop)).await.unwrap();
        });
    });
    addr
}

fn direct(origin: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(origin).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn tunnelled(proxy: SocketAddr, origin: SocketAddr) -> TcpStream {
    let mut stream = direct(proxy);
    write!(stream, "CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\n\r\n").unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200"));
    stream
}

fn round_trip(stream: &mut TcpStream) {
    let mut buffer = [b'x'; 64];
    stream.write_all(&buffer).unwrap();
    stream.read_exact(&mut buffer).unwrap();
}

fn bulk(stream: &mut TcpStream, buffer: &mut [u8]) {
    stream.write_all(&[b'b'; 64]).unwrap();
    let mut left = BULK;
    while left > 0 {
        let want = left.min(buffer.len());
        left -= stream.read(&mut buffer[..want]).unwrap();
    }
}

fn all(c: &mut Criterion) {
    let origin = origin();
    let proxy = proxy(origin);
    let mut streams = [("direct", direct(origin)), ("tunnel", tunnelled(proxy, origin))];

    let mut group = c.benchmark_group("round_trip_64");
    group.sample_size(30).measurement_time(Duration::from_secs(3));
    for (name, stream) in &mut streams {
        group.bench_function(*name, |b| b.iter(|| round_trip(stream)));
    }
    group.finish();

    let mut buffer = vec![0; 256 << 10];
    let mut group = c.benchmark_group("bulk");
    group.sample_size(10).throughput(Throughput::Bytes(BULK as u64));
    for (name, stream) in &mut streams {
        group.bench_function(*name, |b| b.iter(|| bulk(stream, &mut buffer)));
    }
    group.finish();

    let mut group = c.benchmark_group("connection");
    group.sample_size(30).measurement_time(Duration::from_secs(3));
    let exchange = |mut stream: TcpStream| {
        round_trip(&mut stream);
        stream.shutdown(Shutdown::Both).unwrap();
    };
    group.bench_function("direct", |b| b.iter(|| exchange(direct(origin))));
    group.bench_function("tunnel", |b| b.iter(|| exchange(tunnelled(proxy, origin))));
    group.finish();
}

criterion_group!(benches, all);
criterion_main!(benches);
