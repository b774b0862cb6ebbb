use std::sync::atomic::AtomicU64;
use std::time::Duration;

use exeat_record::{Header, Mode, RunId, Sink};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use super::*;

/// A forwarder, and the path of a proxy that does not listen yet.
struct Setup {
    dir: PathBuf,
    cx: Arc<Forward>,
    stop: CancellationToken,
    task: JoinHandle<ServeReport>,
}

impl Setup {
    #[expect(clippy::disallowed_methods, reason = "the test owns the task")]
    fn new(entry: Entry) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("exeat-forward-{}-{number}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let header =
            Header { run: RunId::new(), stage: None, policy_sha256: String::new(), mode: Mode::Enforce };
        let log = Log::start(Sink::create_file(&dir.join("record")).unwrap(), header).unwrap();
        let cx = Arc::new(Forward::new(dir.join("theirs"), log));
        let listener = Listener::Unix(UnixListener::bind(dir.join("ours")).unwrap());
        let stop = CancellationToken::new();
        let task = tokio::spawn(forward(listener, entry, Arc::clone(&cx), stop.clone()));
        Self { dir, cx, stop, task }
    }

    async fn client(&self) -> UnixStream {
        UnixStream::connect(self.dir.join("ours")).await.unwrap()
    }

    fn listen_as_other_proxy(&self) -> UnixListener {
        UnixListener::bind(self.dir.join("theirs")).unwrap()
    }

    /// Stops the forwarder and returns its record.
    async fn end(self) -> String {
        self.stop.cancel();
        self.task.await.unwrap();
        let record = std::fs::read_to_string(self.dir.join("record")).unwrap();
        std::fs::remove_dir_all(&self.dir).unwrap();
        record
    }
}

async fn accepted(theirs: &UnixListener) -> UnixStream {
    tokio::time::timeout(Duration::from_secs(10), theirs.accept()).await.unwrap().unwrap().0
}

async fn all(stream: &mut UnixStream) -> String {
    let mut heard = String::new();
    stream.read_to_string(&mut heard).await.unwrap();
    heard
}

/// K38, P22: any bytes pass unchanged, and each side ends on its own.
#[tokio::test]
async fn k38_forwards_bytes_and_ends_unread() {
    let setup = Setup::new(Entry::Http);
    let theirs = setup.listen_as_other_proxy();
    let mut client = setup.client().await;
    client.write_all(b"CONNECT evil.test:443 HTTP/9.9\n\0").await.unwrap();
    client.shutdown().await.unwrap();
    let mut there = accepted(&theirs).await;
    assert_eq!(all(&mut there).await, "CONNECT evil.test:443 HTTP/9.9\n\0");
    there.write_all(b"an answer").await.unwrap();
    drop(there);
    assert_eq!(all(&mut client).await, "an answer");
    assert_eq!(setup.cx.summary().connections, 1);
    assert_eq!(setup.cx.lost_connections(), LostConnections::default());
    assert_eq!(setup.end().await, "", "the other's record tells");
}

/// K38: without the other proxy, each client gets an error, and the record gets one line. A proxy that starts later
/// is used.
#[tokio::test]
async fn k38_answers_503_without_the_other_proxy() {
    let setup = Setup::new(Entry::Http);
    for _ in 0..3 {
        let mut client = setup.client().await;
        client.write_all(b"CONNECT allowed.test:443 HTTP/1.1\r\n\r\n").await.unwrap();
        client.shutdown().await.unwrap();
        let heard = all(&mut client).await;
        assert!(heard.starts_with("HTTP/1.1 503 the proxy of this run is not there\r\n"), "{heard}");
        assert!(!heard.contains("theirs"), "no path of the host's: {heard}");
    }
    let theirs = setup.listen_as_other_proxy();
    let _client = setup.client().await;
    accepted(&theirs).await;
    let LostConnections { count, why } = setup.cx.lost_connections();
    assert_eq!(count, 3);
    assert!(why.unwrap().starts_with("No such file"));
    let record = setup.end().await;
    assert_eq!(record.lines().count(), 1, "{record}");
    assert!(record.contains(r#""event":"note""#) && record.contains(r#""what":"proxy_lost""#), "{record}");
}

/// Only HTTP is forwarded, because the other proxy reads HTTP.
#[tokio::test]
async fn forwards_only_http() {
    let setup = Setup::new(Entry::Socks5);
    let theirs = setup.listen_as_other_proxy();
    let mut client = setup.client().await;
    client.write_all(b"CONNECT allowed.test:443 HTTP/1.1\r\n\r\n").await.unwrap();
    client.shutdown().await.unwrap();
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, [&[5, 0][..], &[5, 1, 0, 1, 0, 0, 0, 0, 0, 0]].concat());
    let wait = tokio::time::timeout(Duration::from_millis(50), theirs.accept());
    assert!(wait.await.is_err(), "nobody came");
    setup.end().await;
}

/// K38: the end of a run does not wait for a proxy whose queue is full.
#[tokio::test]
async fn stops_while_connecting() {
    use nix::sys::socket::{Backlog, listen};

    let setup = Setup::new(Entry::Http);
    let theirs = setup.listen_as_other_proxy();
    listen(&theirs, Backlog::new(0).unwrap()).unwrap();
    let mut queued = Vec::new();
    while let Ok(client) = UnixStream::connect(setup.dir.join("theirs")).await {
        queued.push(client);
    }
    let mut client = setup.client().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(setup.cx.summary().connections, 1);
    setup.stop.cancel();
    assert_eq!(setup.task.await.unwrap().aborted, 0);
    assert_eq!(all(&mut client).await, "");
    std::fs::remove_dir_all(&setup.dir).unwrap();
}
