use std::sync::Mutex;

use tokio::net::{TcpListener, TcpSocket, UnixStream};
use tokio::time::Instant;

use super::*;

/// Returns a fixed answer, and stores the addresses of the question. Without an answer, it leaves the question
/// open.
#[derive(Default)]
struct Table {
    answer: Option<Process>,
    asked: Mutex<Vec<(SocketAddr, SocketAddr)>>,
    open: Mutex<Vec<oneshot::Sender<Process>>>,
}

impl ProcessFinder for Table {
    fn ask(&self, client: SocketAddr, server: SocketAddr) -> Option<oneshot::Receiver<Process>> {
        self.asked.lock().unwrap().push((client, server));
        let (to, from) = oneshot::channel();
        match &self.answer {
            Some(process) => to.send(process.clone()).unwrap(),
            None => self.open.lock().unwrap().push(to),
        }
        Some(from)
    }
}

async fn accepted() -> (Stream, SocketAddr, SocketAddr, tokio::net::TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let client = TcpSocket::new_v4().unwrap().connect(server).await.unwrap();
    let (stream, peer) = listener.accept().await.unwrap();
    (Stream::Tcp(stream), peer, server, client)
}

#[tokio::test]
async fn keeps_the_found_process() {
    let process = Process { pid: 7, ppid: Some(1), exe: Some("/bin/x".into()) };
    let table = Table { answer: Some(process.clone()), ..Table::default() };
    let (stream, peer, server, _client) = accepted().await;
    let mut asked = ProcessLookup::start(&stream, Some(&table));
    assert_eq!(*table.asked.lock().unwrap(), [(peer, server)]);
    for _ in 0..2 {
        asked.finish().await;
        assert_eq!(asked.process(), Some(&process));
    }
}

/// The wait is short, and a late answer is ignored.
#[tokio::test]
async fn abandons_a_late_process_lookup() {
    let table = Table::default();
    let (stream, ..) = accepted().await;
    let mut asked = ProcessLookup::start(&stream, Some(&table));
    let start = Instant::now();
    asked.finish().await;
    assert!(start.elapsed() >= limits::WHO && start.elapsed() < limits::WHO * 100, "{:?}", start.elapsed());
    let late = table.open.lock().unwrap().pop().unwrap();
    assert!(late.is_closed() && asked.process().is_none());
    // The finder has ended.
    let mut asked = ProcessLookup::start(&stream, Some(&table));
    table.open.lock().unwrap().clear();
    asked.finish().await;
    assert!(asked.process().is_none());
}

#[tokio::test]
async fn starts_no_lookup_for_a_unix_socket() {
    let table = Table::default();
    let (one, _other) = UnixStream::pair().unwrap();
    let mut asked = ProcessLookup::start(&Stream::Unix(one), Some(&table));
    asked.finish().await;
    assert!(asked.process().is_none() && table.asked.lock().unwrap().is_empty());
}
