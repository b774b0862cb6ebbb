//! Compares the data path with a direct socket: a 64-byte round trip, bulk transfer on one stream, and one CONNECT
//! from accept to close. Then it measures CPU of the proxy's threads per connection, and memory per idle tunnel.
//! Run it with `cargo bench -p exeat-proxy`; only ratios transfer to other machines.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a benchmark"
)]

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group};
use exeat_policy::{Action, Note, Origin, PolicyBuilder};
use exeat_proxy::{Context, Entry, Listener, ProxyLimits, serve};
use exeat_record::{Header, Log, Mode, RunId, Sink};
use tokio_util::sync::CancellationToken;

/// The name of the proxy's threads.
const THREADS: &str = "proxy";

/// Bytes of one bulk transfer.
const BULK: usize = 256 << 20;

/// Echoes 64 bytes at a time. A first byte of `b` asks for [`BULK`] bytes instead.
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
    let port = origin.port();
    for rule in [format!("127.0.0.1:{port}"), format!("[::1]:{port}"), format!("localhost:{port}")] {
        rules.add(&rule, Action::Allow, flag.clone(), Note::default()).unwrap();
    }
    let run = RunId::new();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{run}.jsonl"));
    let header = Header { run, stage: None, policy_sha256: String::new(), mode: Mode::Enforce };
    let log = Log::start(Sink::create_file(&path).unwrap(), header).unwrap();
    let limits = ProxyLimits { per_host: 100_000, ..ProxyLimits::default() };
    let cx = Arc::new(Context::new(rules.build(), log, run).with_limits(limits));
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name(THREADS)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let stop = CancellationToken::new();
            tokio::spawn(serve(Listener::tcp(listener).unwrap(), Entry::Http, cx, stop)).await.unwrap();
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
    tunnelled_to(proxy, &origin.to_string())
}

fn tunnelled_to(proxy: SocketAddr, target: &str) -> TcpStream {
    let mut stream = direct(proxy);
    stream.write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
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

/// Returns the CPU time of the proxy's threads, including system calls.
fn cpu_of_proxy() -> Duration {
    let mut nanos = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        if read("comm").trim() == THREADS {
            nanos += read("schedstat").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        }
    }
    Duration::from_nanos(nanos)
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Accepts connections and holds them, with one thread for all.
fn quiet_origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut held = Vec::with_capacity(8192);
        held.extend(listener.incoming());
    });
    addr
}

fn figures() {
    let origin = origin();
    let proxy = proxy(origin);
    let local = format!("localhost:{}", origin.port());
    let answered = |request: String| {
        let mut stream = direct(proxy);
        stream.write_all(request.as_bytes()).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    };
    // Each request has its own name, because answers about a target are delayed after a thousand refusals.
    let refusals = Cell::new(0_u32);
    let refused = || format!("a{}.test", refusals.replace(refusals.get() + 1));
    let kinds: [(&str, &dyn Fn()); 4] = [
        ("CONNECT literal, 64 bytes, close", &|| round_trip(&mut tunnelled(proxy, origin))),
        ("CONNECT name, 64 bytes, close", &|| round_trip(&mut tunnelled_to(proxy, &local))),
        ("CONNECT denied (403)", &|| {
            let host = refused();
            answered(format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        }),
        ("GET denied (403)", &|| {
            let host = refused();
            answered(format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        }),
    ];
    for (name, connection) in kinds {
        (0..200).for_each(|_| connection());
        let before = cpu_of_proxy();
        (0..3000).for_each(|_| connection());
        thread::sleep(Duration::from_millis(50));
        println!("{name}: {} us of the proxy's CPU", (cpu_of_proxy() - before).as_micros() / 3000);
    }

    // Each tunnel has four descriptors, all in this process.
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let files: usize = files.split_ascii_whitespace().nth(3).unwrap().parse().unwrap();
    let count = 5000.min(files / 5);
    let quiet = quiet_origin();
    let proxy = self::proxy(quiet);
    let mut held = Vec::with_capacity(count);
    held.push(tunnelled(proxy, quiet));
    let before = resident_kib();
    held.extend((1..count).map(|_| tunnelled(proxy, quiet)));
    thread::sleep(Duration::from_millis(200));
    println!("{count} idle tunnels: {} bytes each", (resident_kib() - before) * 1024 / count as u64);
}

criterion_group!(benches, all);

fn main() {
    benches();
    figures();
}
