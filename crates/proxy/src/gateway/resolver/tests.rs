use std::io::{Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream, UdpSocket as StdSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use exeat_policy::{Action, Note, Origin, Policy, PolicyBuilder, Target};
use exeat_record::{Header, Log, Mode, RunId, Sink, Under};
use simple_dns::rdata::RData;
use simple_dns::{Packet, RCODE};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::context::Entry;
use crate::gateway::dns::tests::ask;
use crate::gateway::names::tests::Loopback;
use crate::gateway::sockets::{Door, ListenerFactory};
use crate::server::{Listener, serve};

/// A name server on ordinary loopback ports, on its own thread as in a run.
struct Served {
    cx: Arc<Context>,
    listen: Arc<Loopback>,
    doors: UnboundedReceiver<Door>,
    udp: SocketAddr,
    tcp: SocketAddr,
    /// A tunnel that runs on the same thread.
    tunnel: Option<SocketAddr>,
    stop: CancellationToken,
    thread: Option<thread::JoinHandle<()>>,
    record: PathBuf,
}

fn policy(rules: &[String]) -> Policy {
    let mut builder = PolicyBuilder::new();
    for rule in rules {
        let flag = Origin::Flag { flag: "--allow".into() };
        builder.add(rule, Action::Allow, flag, Note::default()).unwrap();
    }
    builder.build()
}

/// Creates a context for these rules, and the path of its record.
pub(crate) fn context(rules: &[String]) -> (Arc<Context>, PathBuf) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let record = std::env::temp_dir().join(format!("exeat-names-{}-{number}", std::process::id()));
    let run = RunId::new();
    let header = Header { run, stage: None, policy_sha256: String::new(), mode: Mode::Enforce };
    let log = Log::start(Sink::create_file(&record).unwrap(), header).unwrap();
    (Arc::new(Context::new(policy(rules), log, run)), record)
}

fn start(rules: &[&str], tunnel: Option<SocketAddr>) -> Served {
    let mut rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
    rules.extend(tunnel.map(|to| to.to_string()));
    let (cx, record) = context(&rules);
    let listen = Arc::new(Loopback::default());
    let (new, doors) = unbounded_channel();
    let names = Arc::new(Names::new(Arc::clone(&listen) as Arc<dyn ListenerFactory>, new, limits::LISTENERS));
    let (udp, tcp) = (StdSocket::bind("127.0.0.1:0").unwrap(), StdListener::bind("127.0.0.1:0").unwrap());
    let (at_udp, at_tcp) = (udp.local_addr().unwrap(), tcp.local_addr().unwrap());
    let stop = CancellationToken::new();
    let beside = tunnel.map(|to| (StdListener::bind("127.0.0.1:0").unwrap(), to));
    let tunnel = beside.as_ref().map(|(listener, _)| listener.local_addr().unwrap());
    let thread = thread::spawn({
        let (cx, stop) = (Arc::clone(&cx), stop.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let attempts = Arc::new(Attempts::new(Arc::clone(&cx)));
                let server = Server::new(udp, tcp, names, Arc::clone(&attempts)).unwrap();
                let mut tasks = JoinSet::new();
                if let Some((listener, to)) = beside {
                    let target: Target = to.to_string().parse().unwrap();
                    let listener = Listener::tcp(listener).unwrap();
                    let serving =
                        serve(listener, Entry::Gateway(Arc::new(target)), Arc::clone(&cx), stop.clone());
                    tasks.spawn(async move {
                        let _report = serving.await;
                    });
                }
                server.serve(cx, stop).await;
                tasks.join_all().await;
                attempts.flush();
            });
        }
    });
    Served { cx, listen, doors, udp: at_udp, tcp: at_tcp, tunnel, stop, thread: Some(thread), record }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
        std::fs::remove_file(&self.record).unwrap();
    }
}

/// Returns the code of an answer, and the data of its records.
fn parse_answer(answer: &[u8]) -> (RCODE, Vec<String>) {
    let packet = Packet::parse(answer).unwrap();
    let records = packet.answers.iter().map(|record| match &record.rdata {
        RData::A(a) => Ipv4Addr::from_bits(a.address).to_string(),
        RData::AAAA(aaaa) => Ipv6Addr::from_bits(aaaa.address).to_string(),
        RData::PTR(ptr) => ptr.0.to_string(),
        other => panic!("{other:?}"),
    });
    (packet.rcode(), records.collect())
}

impl Served {
    fn client(&self) -> StdSocket {
        let client = StdSocket::bind("127.0.0.1:0").unwrap();
        client.connect(self.udp).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        client
    }

    fn ask(&self, question: &[u8]) -> (RCODE, Vec<String>) {
        let client = self.client();
        client.send(question).unwrap();
        let mut answer = [0; 2000];
        let len = client.recv(&mut answer).unwrap();
        parse_answer(&answer[..len])
    }

    fn stop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok() || thread::panicking());
        }
    }

    /// Returns the recorded questions, sorted: verdict, reason, and the name or the raw text.
    fn recorded(mut self) -> Vec<String> {
        self.stop();
        let text = std::fs::read_to_string(&self.record).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let mut said: Vec<String> = lines
            .filter(|line| line["event"] == "dns")
            .map(|line| {
                let word = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
                let asked = word("host") + &word("host_raw");
                format!("{}:{} {asked} {}", word("verdict"), word("reason"), word("error"))
                    .trim_end()
                    .to_owned()
            })
            .collect();
        said.sort_unstable();
        said.dedup();
        said
    }

    fn names(&self, name: &str, kind: u16) -> (RCODE, Vec<String>) {
        self.ask(&ask(name, kind))
    }

    fn connect(&self) -> StdStream {
        #[expect(clippy::disallowed_methods, reason = "a client of the test's")]
        let client = StdStream::connect(self.tcp).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        client
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes()[..], message].concat()
}

fn read_framed(client: &mut StdStream) -> (RCODE, Vec<String>) {
    let mut len = [0; 2];
    client.read_exact(&mut len).unwrap();
    let mut answer = vec![0; usize::from(u16::from_be_bytes(len))];
    client.read_exact(&mut answer).unwrap();
    parse_answer(&answer)
}

const V4: &str = "198.18.0.1";
const V6: &str = "fd65:7865:6174::1";

/// D10: granted names and all other questions, on both kinds of sockets. Nothing is looked up elsewhere.
#[test]
fn d10_gives_addresses_to_granted_names_only() {
    let mut served = start(&["a.test:443,8443", "*.wild.test"], None);
    let ok = |records: &[&str]| (RCODE::NoError, records.iter().map(ToString::to_string).collect());
    let none: (RCODE, Vec<String>) = (RCODE::NameError, Vec::new());
    let of_v6 = format!("1{}.4.7.1.6.5.6.8.7.5.6.d.f.ip6.arpa", ".0".repeat(19));
    let loopback_v6 = format!("1{}.ip6.arpa", ".0".repeat(31));
    let cases = [
        // Before the name has addresses, and after that.
        ("1.0.18.198.in-addr.arpa", 12, ok(&[])),
        ("a.test", 65, ok(&[])),
        ("a.test", 1, ok(&[V4])),
        ("A.tesT", 28, ok(&[V6])),
        ("a.test", 255, ok(&[V4, V6])),
        ("a.test", 1, ok(&[V4])),
        ("a.test", 16, ok(&[])),
        ("a.test", 64, ok(&[])),
        ("a.test", 6, ok(&[])),
        ("x.wild.test", 1, ok(&["198.18.0.2"])),
        ("y.x.wild.test", 28, ok(&["fd65:7865:6174::3"])),
        ("1.0.18.198.in-addr.arpa", 12, ok(&["a.test"])),
        (&of_v6, 12, ok(&["a.test"])),
        ("1.0.18.198.in-addr.arpa", 1, ok(&[])),
        ("9.0.18.198.in-addr.arpa", 12, ok(&[])),
        ("8.8.8.8.in-addr.arpa", 12, ok(&[])),
        ("1.0.0.127.in-addr.arpa", 12, ok(&["localhost"])),
        (&loopback_v6, 12, ok(&["localhost"])),
        // Names that are not granted.
        ("b.test", 1, none.clone()),
        ("b.test", 28, none.clone()),
        ("b.test", 16, none.clone()),
        ("wild.test", 1, none.clone()),
        ("a.test.evil.test", 1, none.clone()),
        ("test", 1, none.clone()),
        // Text that is not a host name.
        ("_443._tcp.a.test", 33, ok(&[])),
        ("_443._tcp.a.test", 1, none.clone()),
        ("_443._tcp.b.test", 33, none.clone()),
        ("_a.localhost", 16, ok(&[])),
        ("a b.wild.test", 1, none.clone()),
        ("127.0.0.1", 1, none.clone()),
        ("", 2, ok(&[])),
        // The name of this machine.
        ("localhost", 1, ok(&["127.0.0.1"])),
        ("LOCALHOST", 28, ok(&["::1"])),
        ("a.localhost", 1, ok(&["127.0.0.1"])),
        ("localhost", 16, ok(&[])),
        ("localhost.test", 1, none.clone()),
    ];
    for (name, kind, expect) in &cases {
        assert_eq!(served.names(name, *kind), *expect, "{name} {kind}");
    }
    // The same on one connection: first one after another, then all at once.
    let mut client = served.connect();
    for (name, kind, expect) in &cases[1..] {
        client.write_all(&framed(&ask(name, *kind))).unwrap();
        assert_eq!(read_framed(&mut client), *expect, "{name} {kind}");
    }
    let all: Vec<u8> = cases[1..].iter().flat_map(|(name, kind, _)| framed(&ask(name, *kind))).collect();
    client.write_all(&all).unwrap();
    for (name, kind, expect) in &cases[1..] {
        assert_eq!(read_framed(&mut client), *expect, "{name} {kind}");
    }
    let doors: Vec<String> =
        std::iter::from_fn(|| served.doors.try_recv().ok()).map(|door| door.target.to_string()).collect();
    let twice = ["a.test:443", "a.test:8443", "x.wild.test:443", "y.x.wild.test:443"];
    assert_eq!(doors, twice.map(|target| [target; 2]).concat());
    assert_eq!(served.listen.asked.lock().unwrap().len(), doors.len(), "only what is granted");
    // Answered questions, and those about addresses or this machine, are not recorded.
    let recorded = [
        "deny:default a.test.evil.test",
        "deny:default b.test",
        "deny:default localhost.test",
        "deny:default test",
        "deny:default wild.test",
        "deny:malformed 127.0.0.1",
        "deny:malformed _443._tcp.a.test",
        "deny:malformed _443._tcp.b.test",
        "deny:malformed a b.wild.test",
    ];
    assert_eq!(served.recorded(), recorded);
}

/// The current policy judges each question, and a name keeps its addresses.
#[test]
fn judges_every_question_by_the_current_policy() {
    let served = start(&["a.test"], None);
    let replace = |rules: &[&str]| {
        let under = Under { policy_sha256: String::new(), mode: Mode::Enforce };
        let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
        served.cx.replace_policy(policy(&rules), Arc::new(under));
    };
    let ok = (RCODE::NoError, vec![V4.to_owned()]);
    assert_eq!(served.names("a.test", 1), ok);
    replace(&["b.test"]);
    assert_eq!(served.names("a.test", 1), (RCODE::NameError, Vec::new()));
    assert_eq!(served.names("b.test", 1), (RCODE::NoError, vec!["198.18.0.2".to_owned()]));
    replace(&["a.test"]);
    assert_eq!(served.names("a.test", 1), ok);
}

/// A port that the stage uses fails a name for as long as the stage uses it.
#[test]
fn answers_a_failure_for_a_name_that_cannot_be_served() {
    let served = start(&["a.test:80,443"], None);
    *served.listen.failing.lock().unwrap() = Some((443, io::ErrorKind::AddrInUse));
    assert_eq!(served.names("a.test", 1), (RCODE::ServerFailure, Vec::new()));
    *served.listen.failing.lock().unwrap() = None;
    assert_eq!(served.names("a.test", 1), (RCODE::NoError, vec![V4.to_owned()]));
    let why = "the stage itself listens on port 443, so that the gateway cannot";
    assert_eq!(served.recorded(), [format!("error:resolve_error a.test {why}")]);
}

/// R01: questions that wait for listeners are bounded. Later ones are told to ask again, and known or denied names
/// are answered meanwhile.
#[test]
fn r01_bounds_waiting_questions() {
    let served = start(&["a.test", "*.wild.test"], None);
    assert_eq!(served.names("a.test", 1).0, RCODE::NoError);
    served.listen.shut.store(true, Ordering::Relaxed);
    let waiting: Vec<StdSocket> = (0..limits::LISTENING)
        .map(|number| {
            let client = served.client();
            client.send(&ask(&format!("n{number}.wild.test"), 1)).unwrap();
            client
        })
        .collect();
    assert_eq!(served.names("one-more.wild.test", 1), (RCODE::ServerFailure, Vec::new()));
    assert_eq!(served.names("a.test", 1).0, RCODE::NoError);
    assert_eq!(served.names("b.test", 1).0, RCODE::NameError);
    let mut client = served.connect();
    client.write_all(&framed(&ask("one-more.wild.test", 1))).unwrap();
    assert_eq!(read_framed(&mut client).0, RCODE::ServerFailure);
    served.listen.shut.store(false, Ordering::Relaxed);
    for client in waiting {
        let mut answer = [0; 2000];
        let len = client.recv(&mut answer).unwrap();
        assert_eq!(parse_answer(&answer[..len]).0, RCODE::NoError);
    }
    assert_eq!(served.names("one-more.wild.test", 1).0, RCODE::NoError);
}

/// A malformed datagram with a whole header gets an answer; any other gets none.
#[test]
fn answers_or_drops_malformed_datagrams() {
    let served = start(&["a.test"], None);
    let question = ask("a.test", 1);
    assert_eq!(served.ask(&question[..12]).0, RCODE::FormatError);
    let long = [&question[..], &[0; 4000]].concat();
    assert_eq!(served.ask(&long).0, RCODE::FormatError);
    let client = served.client();
    client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut response = question.clone();
    response[2] |= 0x80;
    for mute in [&[][..], &question[..11], &response] {
        client.send(mute).unwrap();
    }
    assert!(client.recv(&mut [0; 100]).is_err(), "no answer");
    client.send(&question).unwrap();
    assert!(client.recv(&mut [0; 100]).is_ok());
}

/// R01: a connection ends with a message that is too long, truncated, or not a question. There are sixteen at a
/// time.
#[test]
fn r01_bounds_connections_to_the_name_server() {
    let served = start(&["a.test"], None);
    let question = ask("a.test", 1);
    let mut response = question.clone();
    response[2] |= 0x80;
    let over = u16::try_from(limits::QUESTION_BYTES + 1).unwrap().to_be_bytes();
    for bytes in
        [&over[..], &[0xff, 0xff], &[0, 0], &[0, 5, 1, 2, 3, 4, 5], &framed(&response), &[0], &[0, 9, 1]]
    {
        let mut client = served.connect();
        client.write_all(bytes).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0; 100]).unwrap_or(0), 0, "{bytes:?}");
    }
    // A malformed message that can be answered does not end the connection.
    let mut client = served.connect();
    client.write_all(&framed(&question[..12])).unwrap();
    assert_eq!(read_framed(&mut client).0, RCODE::FormatError);
    client.write_all(&framed(&question)).unwrap();
    assert_eq!(read_framed(&mut client).0, RCODE::NoError);
    drop(client);

    let mut held: Vec<StdStream> = (0..limits::NAME_CONNECTIONS).map(|_| served.connect()).collect();
    for client in &mut held {
        client.write_all(&framed(&question)).unwrap();
        assert_eq!(read_framed(client).0, RCODE::NoError);
    }
    let mut next = served.connect();
    next.write_all(&framed(&question)).unwrap();
    next.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(next.read(&mut [0; 1]).is_err(), "it waits");
    // Datagrams are still answered.
    assert_eq!(served.names("a.test", 1).0, RCODE::NoError);
    drop(held.pop());
    next.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(read_framed(&mut next).0, RCODE::NoError);
}

/// R01: a connection without a question, or with an unfinished one, is closed.
#[tokio::test(start_paused = true)]
async fn r01_closes_idle_name_server_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for begun in [&[][..], &[0], &[0, 30, 1, 2]] {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        let mut client = socket.connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(begun).await.unwrap();
        let (mut accepted, _) = listener.accept().await.unwrap();
        let start = tokio::time::Instant::now();
        let mut buffer = [0; limits::QUESTION_BYTES];
        let received = timeout(limits::NAME_IDLE, receive(&mut accepted, &mut buffer)).await;
        assert!(received.is_err() && start.elapsed() >= limits::NAME_IDLE, "{begun:?}");
    }
}

/// Sends `bytes` through the tunnel, waits for the end, and returns how long that took.
fn push(served: &Served, origin: &StdListener, bytes: usize) -> Duration {
    let begun = Instant::now();
    let counted = thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let (mut stream, _) = origin.accept().unwrap();
            let mut buffer = vec![0; 1 << 16];
            let mut counted = 0;
            while let Ok(read @ 1..) = stream.read(&mut buffer) {
                counted += read;
            }
            counted
        });
        #[expect(clippy::disallowed_methods, reason = "a client of the test's")]
        let mut client = StdStream::connect(served.tunnel.unwrap()).unwrap();
        let chunk = vec![b'x'; 1 << 16];
        for _ in 0..bytes / chunk.len() {
            client.write_all(&chunk).unwrap();
        }
        drop(client);
        reading.join().unwrap()
    });
    assert_eq!(counted, bytes);
    begun.elapsed()
}

/// R01: a flood of questions, for known and for denied names, does not stop tunnels on the same thread.
#[test]
fn r01_serves_tunnels_during_a_flood_of_questions() {
    const BYTES: usize = 64 << 20;
    let origin = StdListener::bind("127.0.0.1:0").unwrap();
    let served = start(&["a.test"], Some(origin.local_addr().unwrap()));
    assert_eq!(served.names("a.test", 1).0, RCODE::NoError);
    let alone = push(&served, &origin, BYTES);
    let over = AtomicBool::new(false);
    let sent = AtomicU64::new(0);
    let beside = thread::scope(|scope| {
        for name in ["a.test", "b.test"] {
            let (served, over, sent) = (&served, &over, &sent);
            scope.spawn(move || {
                let client = served.client();
                let question = ask(name, 1);
                let end = Instant::now() + Duration::from_secs(20);
                while !over.load(Ordering::Relaxed) && Instant::now() < end {
                    sent.fetch_add(u64::from(client.send(&question).is_ok()), Ordering::Relaxed);
                }
            });
        }
        while sent.load(Ordering::Relaxed) < 1000 {
            thread::yield_now();
        }
        let beside = push(&served, &origin, BYTES);
        over.store(true, Ordering::Relaxed);
        beside
    });
    println!("{BYTES} bytes: {alone:?} alone, {beside:?} beside {} questions", sent.load(Ordering::Relaxed));
    assert!(beside < Duration::from_secs(15), "{beside:?}");
    // The first of these may still find a full queue.
    let client = served.client();
    client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let answered =
        (0..50).any(|_| client.send(&ask("a.test", 1)).is_ok() && client.recv(&mut [0; 100]).is_ok());
    assert!(answered, "it serves on");
}

#[test]
fn resolves_the_own_name_to_loopback() {
    // A machine may have a name that is not a host name.
    let Some(own) = read_own_name() else {
        return assert!(
            std::env::var_os("E2E_STRICT").is_none(),
            "this machine has no name that is one of a host"
        );
    };
    let served = start(&[], None);
    assert_eq!(served.names(own.as_str(), 1), (RCODE::NoError, vec!["127.0.0.1".to_owned()]));
    assert_eq!(served.names(own.as_str(), 28), (RCODE::NoError, vec!["::1".to_owned()]));
    assert_eq!(served.names(&format!("a.{own}"), 1).0, RCODE::NameError);
    assert_eq!(served.recorded(), [format!("deny:default a.{own}")]);
}
