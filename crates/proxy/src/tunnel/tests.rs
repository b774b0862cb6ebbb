use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::*;

/// Returns a connected pair: our end, and the peer's.
async fn pair() -> (Stream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    let (peer, ours) = tokio::join!(socket.connect(listener.local_addr().unwrap()), listener.accept());
    (Stream::Tcp(ours.unwrap().0), peer.unwrap())
}

/// Like [`pair`], but the kernel buffers little between the two, so that bytes wait where we can see them.
async fn narrow_pair() -> (Stream, TcpStream) {
    const BUFFER: u32 = 16 * 1024;
    let listener = TcpSocket::new_v4().unwrap();
    listener.set_send_buffer_size(BUFFER).unwrap(); // accepted sockets inherit this
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listener.listen(1).unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(BUFFER).unwrap();
    let (peer, ours) = tokio::join!(socket.connect(listener.local_addr().unwrap()), listener.accept());
    (Stream::Tcp(ours.unwrap().0), peer.unwrap())
}

struct Running {
    client: TcpStream,
    origin: TcpStream,
    task: tokio::task::JoinHandle<(Ended, u64, u64)>,
    stop: CancellationToken,
}

async fn start(first: &[u8], limits: ProxyLimits) -> Running {
    start_between(pair().await, pair().await, first, limits)
}

#[expect(clippy::disallowed_methods, reason = "the test owns the task")]
fn start_between(
    (ours, client): (Stream, TcpStream),
    (theirs, origin): (Stream, TcpStream),
    first: &[u8],
    limits: ProxyLimits,
) -> Running {
    let (first, stop) = (first.to_vec(), CancellationToken::new());
    let token = stop.clone();
    let task = tokio::spawn(async move {
        let (moved, pool) = (Moved::default(), Pool::default());
        let ended =
            run(ours, theirs, Early { up: first, down: Vec::new() }, &moved, &pool, &limits, &token).await;
        (ended, moved.up(), moved.down())
    });
    Running { client, origin, task, stop }
}

async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    bytes
}

/// K49, P21: each end of stream is forwarded alone, and the other direction continues.
#[tokio::test]
async fn forwards_a_half_close_from_the_client() {
    let mut run = start(b"early ", ProxyLimits::default()).await;
    run.client.write_all(b"question").await.unwrap();
    run.client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut run.origin).await, b"early question");
    run.origin.write_all(b"answer").await.unwrap();
    drop(run.origin);
    assert_eq!(read_to_end(&mut run.client).await, b"answer");
    let (ended, up, down) = run.task.await.unwrap();
    assert_eq!((ended.end, ended.error, up, down), (CloseCause::Client, None, 14, 6));
}

/// P21: the same, started by the upstream.
#[tokio::test]
async fn forwards_a_half_close_from_the_upstream() {
    let mut run = start(b"", ProxyLimits::default()).await;
    run.origin.write_all(b"hello").await.unwrap();
    run.origin.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut run.client).await, b"hello");
    run.client.write_all(b"still here").await.unwrap();
    drop(run.client);
    assert_eq!(read_to_end(&mut run.origin).await, b"still here");
    let (ended, up, down) = run.task.await.unwrap();
    assert_eq!((ended.end, up, down), (CloseCause::Upstream, 10, 5));
}

/// A reset is a reset on the other side too, and the counts are exact.
#[tokio::test]
async fn forwards_a_reset() {
    let mut run = start(b"", ProxyLimits::default()).await;
    run.origin.write_all(b"12345").await.unwrap();
    let mut got = [0; 5];
    run.client.read_exact(&mut got).await.unwrap();
    run.origin.set_zero_linger().unwrap();
    drop(run.origin);
    let error = run.client.read(&mut got).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let (ended, up, down) = run.task.await.unwrap();
    assert_eq!((ended.end, up, down), (CloseCause::Error, 0, 5));
    assert!(ended.error.unwrap().starts_with("upstream: "));
}

/// K49: large transfers arrive whole in both directions.
#[tokio::test]
async fn moves_megabytes_both_ways() {
    let mut run = start(b"", ProxyLimits::default()).await;
    let data: Vec<u8> = (0..4_000_000u32).map(|n| n.to_le_bytes()[1]).collect();
    let (mut client_read, mut client_write) = run.client.split();
    let (mut origin_read, mut origin_write) = run.origin.split();
    let (mut up, mut down) = (Vec::new(), Vec::new());
    let sent = tokio::join!(
        async { client_write.write_all(&data).await.and(client_write.shutdown().await) },
        async { origin_write.write_all(&data).await.and(origin_write.shutdown().await) },
        origin_read.read_to_end(&mut up),
        client_read.read_to_end(&mut down),
    );
    assert!(sent.0.is_ok() && sent.1.is_ok());
    assert!(up == data && down == data);
    let (_, up, down) = run.task.await.unwrap();
    assert_eq!((up, down), (4_000_000, 4_000_000));
}

/// K35, R03: idle and total limits, and the stop of a run.
#[tokio::test]
async fn ends_a_tunnel_at_its_limits() {
    let short = Duration::from_millis(400);
    let mut idle = start(b"", ProxyLimits { idle: short, ..ProxyLimits::default() }).await;
    for _ in 0..4 {
        tokio::time::sleep(short / 4).await;
        idle.client.write_all(b"x").await.unwrap(); // one direction is enough to be alive
    }
    assert!(!idle.task.is_finished());
    let (ended, up, _) = idle.task.await.unwrap();
    assert_eq!((ended.end, up), (CloseCause::Idle, 4));

    // A client that has disappeared looks like one that has only finished its direction.
    let mut half = start(b"", ProxyLimits { half_closed: short, ..ProxyLimits::default() }).await;
    tokio::time::sleep(short * 2).await;
    assert!(!half.task.is_finished(), "nobody has finished");
    half.client.shutdown().await.unwrap();
    assert_eq!(half.task.await.unwrap().0.end, CloseCause::Idle);

    let total = start(b"", ProxyLimits { total: short, ..ProxyLimits::default() }).await;
    assert_eq!(total.task.await.unwrap().0.end, CloseCause::Budget);

    let stopped = start(b"", ProxyLimits { drain: short, ..ProxyLimits::default() }).await;
    stopped.stop.cancel();
    assert_eq!(stopped.task.await.unwrap().0.end, CloseCause::Killed, "its client was still there");
}

/// A stage sends, closes and exits. Its bytes arrive, although the run ends before the origin has read them.
#[tokio::test]
async fn delivers_the_bytes_of_a_finished_client() {
    for answers in [false, true] {
        let mut run = start_between(pair().await, narrow_pair().await, b"early ", ProxyLimits::default());
        let data: Vec<u8> = (0..1 << 20).map(|n: u32| n.to_le_bytes()[1]).collect();
        run.client.write_all(&data).await.unwrap();
        drop(run.client);
        run.stop.cancel();
        if answers {
            // This goes to a client that has left: the second part detects that.
            for _ in 0..2 {
                run.origin.write_all(b"an answer that nobody reads").await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let got = read_to_end(&mut run.origin).await;
        assert!(got.strip_prefix(b"early ").is_some_and(|rest| rest == data), "{} bytes", got.len());
        let start = Instant::now();
        let (ended, up, _) = run.task.await.unwrap();
        assert_eq!((ended.end, ended.error, up), (CloseCause::Client, None, 6 + (1 << 20)));
        assert!(start.elapsed() < limits::DRAIN / 2, "nobody waits for an origin that stays");
    }
}

/// An origin that reads nothing delays the end of the run only by the drain time.
#[tokio::test]
async fn bounds_the_drain() {
    let drain = Duration::from_millis(100);
    let limits = ProxyLimits { drain, ..ProxyLimits::default() };
    let mut run = start_between(pair().await, narrow_pair().await, b"", limits);
    run.client.write_all(&vec![0; 1 << 20]).await.unwrap();
    drop(run.client);
    run.stop.cancel();
    let (ended, up, _) = run.task.await.unwrap();
    assert_eq!(ended.end, CloseCause::Killed);
    assert!(up < 1 << 20, "{up}");
}

/// R02: a slow reader stops the sender; only one buffer and what the kernel holds is stored.
#[tokio::test]
async fn stops_the_sender_for_a_slow_reader() {
    let limits = ProxyLimits { drain: Duration::from_millis(50), ..ProxyLimits::default() };
    let run = start(b"", limits).await;
    let chunk = vec![0u8; 1 << 20];
    let mut sent = 0;
    loop {
        match tokio::time::timeout(Duration::from_millis(300), run.origin.writable()).await {
            Err(_) => break,
            Ok(ready) => ready.unwrap(),
        }
        if let Ok(count) = run.origin.try_write(&chunk) {
            sent += count;
        }
    }
    assert!(sent < 32 << 20, "{sent} bytes were taken from the sender, none of them read");
    run.stop.cancel();
    let (_, _, down) = run.task.await.unwrap();
    assert!(down <= sent as u64 && sent as u64 - down < 16 << 20);
}

/// Thousands of tunnels are mostly idle: besides two sockets, they cost only their future.
#[tokio::test]
async fn holds_no_buffer_for_an_idle_tunnel() {
    let ((ours, _client), (theirs, _origin)) = (pair().await, pair().await);
    for accepted in [&ours, &theirs] {
        // The runtime considers an accepted socket readable until a read shows otherwise; in the proxy, the head is
        // that read.
        let Stream::Tcp(stream) = accepted else { panic!() };
        let _ = stream.try_read(&mut [0]);
    }
    let (moved, pool, limits, stop) =
        (Moved::default(), Pool::default(), ProxyLimits::default(), CancellationToken::new());
    let future = run(ours, theirs, Early::default(), &moved, &pool, &limits, &stop);
    let size = std::mem::size_of_val(&future);
    println!("a tunnel's future has {size} bytes");
    assert!(size < 3 * 1024 + 128, "{size}");
    let _ = tokio::time::timeout(Duration::from_millis(50), future).await;
    assert!(pool.0.lock().unwrap().is_empty(), "no buffer was ever made");
}
