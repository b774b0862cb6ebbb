//! Tests whole connections over real sockets, against real loopback origins. Loopback is granted as for any user:
//! with an IP rule besides the name.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exeat_policy::{Action, Ech, HostName, Layers, Note, Origin, Policy, PolicyBuilder, Terms, TlsCheck};
use exeat_record::{Header, Log, Mode, Process, RunId, Sink, Under};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::guard::Resolve;
use crate::hello::tests::{entries, in_records, real, with_ech, with_server_name};
use crate::reply::Failure;
use crate::retry::tests::{plain as server_says_plain, record as tls_record, retry as server_says_retry};
use crate::{
    ConnectionSummary, Context, Entry, Listener, ProcessFinder, ProxyLimits, ServeReport, UpstreamProxy,
    limits, serve,
};

mod http;
mod resources;
mod socks;
mod threats;
mod upstream;
mod vectors;

/// Resolves from a table, and logs each question.
#[derive(Default)]
struct Names {
    answers: HashMap<&'static str, Result<Vec<IpAddr>, Failure>>,
    asked: Mutex<Vec<String>>,
    /// The delay of an answer.
    pause: Duration,
}

impl Resolve for Names {
    fn resolve(&self, name: &HostName) -> Result<Vec<IpAddr>, Failure> {
        self.asked.lock().unwrap().push(name.to_string());
        std::thread::sleep(self.pause);
        self.answers.get(name.as_str()).cloned().unwrap_or(Err(Failure::NoSuchName))
    }
}

/// An origin that stores what it receives on each connection, and sends a fixed greeting.
struct Server {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
    _task: JoinHandle<()>,
}

#[expect(clippy::disallowed_methods, reason = "the test owns the task")]
async fn origin(answer: &'static [u8]) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let seen: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let log = Arc::clone(&seen);
    let task = tokio::spawn(async move {
        let mut tasks = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let log = Arc::clone(&log);
            let place = {
                let mut log = log.lock().unwrap();
                log.push(Vec::new());
                log.len() - 1
            };
            tasks.spawn(async move {
                let _ = stream.write_all(answer).await;
                let mut buffer = vec![0; 65536];
                while let Ok(read) = stream.read(&mut buffer).await {
                    if read == 0 {
                        break;
                    }
                    log.lock().unwrap()[place].extend(&buffer[..read]);
                }
            });
        }
    });
    Server { addr, seen, _task: task }
}

impl Server {
    fn port(&self) -> u16 {
        self.addr.port()
    }

    fn connections(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    fn bytes(&self) -> Vec<u8> {
        self.seen.lock().unwrap().concat()
    }
}

/// A proxy with its record. It has a TCP and a Unix listener for HTTP, and the same for SOCKS5.
struct Proxy {
    cx: Arc<Context>,
    names: Arc<Names>,
    tcp: SocketAddr,
    socks: SocketAddr,
    dir: PathBuf,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<ServeReport>>,
}

struct Setup {
    rules: Vec<(String, TlsCheck)>,
    names: Vec<(&'static str, Result<Vec<IpAddr>, Failure>)>,
    limits: ProxyLimits,
    terms: Terms,
    sink: Option<&'static str>,
    upstream: Option<UpstreamProxy>,
    who: Option<Arc<dyn ProcessFinder>>,
    lookup: Duration,
}

/// Grants `rules`, with names that resolve to loopback, and short limits.
fn setup(rules: &[&str]) -> Setup {
    let loopback = Ok(vec![IpAddr::from(Ipv4Addr::LOCALHOST)]);
    Setup {
        rules: rules.iter().map(|rule| ((*rule).to_owned(), TlsCheck::Auto)).collect(),
        names: vec![("allowed.test", loopback.clone()), ("evil.test", loopback)],
        limits: ProxyLimits {
            head: Duration::from_millis(600),
            hello: Duration::from_millis(500),
            linger: Duration::from_millis(300),
            dns: Duration::from_secs(2),
            connect: Duration::from_secs(2),
            drain: Duration::from_millis(300),
            ..ProxyLimits::default()
        },
        terms: Terms::default(),
        sink: None,
        upstream: None,
        who: None,
        lookup: Duration::ZERO,
    }
}

fn policy(rules: &[(String, TlsCheck)]) -> Policy {
    policy_on(rules, Terms::default())
}

fn policy_on(rules: &[(String, TlsCheck)], terms: Terms) -> Policy {
    let mut builder = PolicyBuilder::new();
    for (rule, tls) in rules {
        let note = Note { tls: *tls, ..Note::default() };
        builder.add(rule, Action::Allow, Origin::Flag { flag: "--allow".into() }, note).unwrap();
    }
    Layers { grants: builder, terms, ..Layers::default() }.build()
}

impl Setup {
    #[expect(clippy::disallowed_methods, reason = "the test owns the tasks")]
    async fn start(self) -> Proxy {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("exeat-proxy-{}-{number}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let sink = self.sink.map_or_else(|| dir.join("record.jsonl"), PathBuf::from);
        let run = RunId::new();
        let header = Header { run, stage: None, policy_sha256: String::new(), mode: Mode::Enforce };
        let log = Log::start(Sink::create_file(&sink).unwrap(), header).unwrap();
        let answers = self.names.into_iter().collect();
        let names = Arc::new(Names { answers, pause: self.lookup, ..Names::default() });
        let denials = std::fs::File::create(dir.join("denials.jsonl")).unwrap();
        let cx = Context::new(policy_on(&self.rules, self.terms), log, run)
            .with_denials(denials)
            .with_limits(self.limits)
            .with_upstream(self.upstream)
            .with_process_finder(self.who)
            .with_resolver(Arc::clone(&names) as Arc<dyn Resolve>);
        let cx = Arc::new(cx);
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = tcp.local_addr().unwrap();
        let unix = UnixListener::bind(dir.join("socket")).unwrap();
        let socks_tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socks = socks_tcp.local_addr().unwrap();
        let socks_unix = UnixListener::bind(dir.join("socks")).unwrap();
        let stop = CancellationToken::new();
        let tasks = [
            (Listener::Tcp(tcp), Entry::Http),
            (Listener::Unix(unix), Entry::Http),
            (Listener::Tcp(socks_tcp), Entry::Socks5),
            (Listener::Unix(socks_unix), Entry::Socks5),
        ];
        let tasks = tasks
            .map(|(listener, entry)| tokio::spawn(serve(listener, entry, Arc::clone(&cx), stop.clone())));
        Proxy { cx, names, tcp: addr, socks, dir, stop, tasks: tasks.into() }
    }
}

trait Client: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Client for T {}

#[derive(Debug, Clone, Copy)]
enum Transport {
    Tcp,
    Unix,
}

const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Unix];

impl Proxy {
    async fn connect(&self, way: Transport) -> Box<dyn Client> {
        match way {
            Transport::Tcp => Box::new(TcpSocket::new_v4().unwrap().connect(self.tcp).await.unwrap()),
            Transport::Unix => Box::new(UnixStream::connect(self.dir.join("socket")).await.unwrap()),
        }
    }

    /// Sends a CONNECT and reads the head of the answer.
    async fn ask(&self, way: Transport, target: &str) -> (Box<dyn Client>, String) {
        let mut client = self.connect(way).await;
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let head = read_head(&mut *client).await;
        (client, head)
    }

    /// Stops the proxy and returns its record.
    async fn end(self) -> Ended {
        self.stop.cancel();
        let mut reports = Vec::new();
        for task in self.tasks {
            reports.push(task.await.unwrap());
        }
        let text = std::fs::read_to_string(self.dir.join("record.jsonl")).unwrap_or_default();
        let denials = std::fs::read_to_string(self.dir.join("denials.jsonl")).unwrap();
        std::fs::remove_dir_all(&self.dir).unwrap();
        assert!(text.bytes().all(|byte| byte == b'\n' || (0x20..0x7f).contains(&byte)), "A01: {text}");
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let asked = self.names.asked.lock().unwrap().clone();
        Ended { lines, summary: self.cx.summary(), asked, denials, reports }
    }
}

struct Ended {
    lines: Vec<Value>,
    summary: ConnectionSummary,
    asked: Vec<String>,
    denials: String,
    reports: Vec<ServeReport>,
}

impl Ended {
    fn events(&self, event: &str) -> Vec<&Value> {
        self.lines.iter().filter(|line| line["event"] == event).collect()
    }

    /// Returns `verdict:reason` of each decision, in order.
    fn decisions(&self) -> Vec<String> {
        let word = |line: &Value, key: &str| line[key].as_str().unwrap().to_owned();
        self.events("decision")
            .iter()
            .map(|line| format!("{}:{}", word(line, "verdict"), word(line, "reason")))
            .collect()
    }

    /// Checks that every decided connection has one close, after its decision.
    fn closes_follow_decisions(&self) {
        for decision in self.events("decision") {
            let closes = self.events("close");
            let of_it: Vec<_> = closes.iter().filter(|close| close["conn"] == decision["conn"]).collect();
            assert_eq!(of_it.len(), 1, "{decision}");
            assert!(of_it[0]["seq"].as_u64() > decision["seq"].as_u64());
        }
    }
}

async fn read_head(client: &mut dyn Client) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        match timeout(Duration::from_secs(5), client.read_u8()).await.expect("an answer") {
            Ok(byte) => bytes.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(bytes).unwrap()
}

async fn read_to_end(client: &mut dyn Client) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = timeout(Duration::from_secs(5), client.read_to_end(&mut bytes)).await.expect("closed in time");
    bytes
}

/// Returns a port on which nothing listens. No other test gets the port while the socket is held.
fn closed_port() -> (TcpSocket, u16) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

async fn eventually(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(5), "it never held");
        sleep(Duration::from_millis(5)).await;
    }
}

/// After a thousand refusals, each answer takes a millisecond more, up to a second. Only a fixed number of answers
/// is delayed at once.
#[tokio::test(start_paused = true)]
#[expect(clippy::disallowed_methods, reason = "the test owns the tasks")]
async fn bounds_the_delay_of_answers() {
    let run = RunId::new();
    let header = Header { run, stage: None, policy_sha256: String::new(), mode: Mode::Enforce };
    let nowhere = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
    let log = Log::start(Sink::from_fd(nowhere.into()).unwrap(), header).unwrap();
    let context = Arc::new(Context::new(PolicyBuilder::new().build(), log, run));
    let took = async |refusals| {
        let began = Instant::now();
        context.slow_down(refusals).await;
        began.elapsed().as_millis()
    };
    for (refusals, expect) in [(1, 0), (1000, 0), (1001, 1), (1500, 500), (2000, 1000), (1_000_000, 1000)] {
        assert_eq!(took(refusals).await, expect, "{refusals}");
    }
    let waiting: Vec<_> = (0..limits::SLOWED)
        .map(|_| {
            let context = Arc::clone(&context);
            tokio::spawn(async move { context.slow_down(2000).await })
        })
        .collect();
    // A runtime checks its timers after some 60 tasks.
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
    assert_eq!(took(2000).await, 0, "so many wait, and no more");
    for one in waiting {
        one.await.unwrap();
    }
    assert_eq!(took(2000).await, 1000);
}

/// With a real proxy, each answer after the thousandth takes at least its delay.
#[tokio::test]
async fn delays_answers_in_a_storm_of_refusals() {
    let proxy = setup(&[]).start().await;
    let ask = async || {
        let mut client = proxy.connect(Transport::Tcp).await;
        client.write_all(b"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n").await.unwrap();
        assert!(read_head(&mut *client).await.starts_with("HTTP/1.1 403"));
    };
    for _ in 0..limits::ANSWERED_AT_ONCE {
        ask().await;
    }
    let began = Instant::now();
    for _ in 0..40 {
        ask().await;
    }
    // One millisecond, two, and so on.
    assert!(began.elapsed() >= Duration::from_millis(40 * 41 / 2), "{:?}", began.elapsed());
    proxy.end().await;
}

/// K32, P04, X01: one allowed connection with early data, from head to close; the record has the bytes in each
/// direction.
#[tokio::test]
async fn opens_a_connect_tunnel() {
    for way in TRANSPORTS {
        let origin = origin(b"welcome").await;
        let port = origin.port();
        let proxy = setup(&[&format!("allowed.test:{port}"), &format!("127.0.0.1:{port}")]).start().await;
        let mut client = proxy.connect(way).await;
        // P04: bytes right after the head, in the same segment.
        let request =
            format!("CONNECT ALLOWED.test:{port} HTTP/1.1\r\nHost: allowed.test:{port}\r\n\r\nearly and ");
        client.write_all(request.as_bytes()).await.unwrap();
        assert_eq!(read_head(&mut *client).await, "HTTP/1.1 200 Connection established\r\n\r\n");
        client.write_all(b"later").await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(read_to_end(&mut *client).await, b"welcome");
        assert_eq!(origin.bytes(), b"early and later");

        let ended = proxy.end().await;
        assert_eq!(ended.decisions(), ["allow:rule"]);
        let (decision, close) = (ended.events("decision")[0], ended.events("close")[0]);
        assert_eq!(decision["host"], "allowed.test");
        assert_eq!(decision["port"], port);
        assert_eq!(decision["ips"][0], "127.0.0.1");
        assert_eq!(decision["rule"], format!("allowed.test:{port}"));
        assert_eq!((&close["bytes_up"], &close["bytes_down"]), (&15.into(), &7.into()));
        assert_eq!(close["ended_by"], "client");
        assert_eq!(close["ip"], "127.0.0.1");
        ended.closes_follow_decisions();
        assert_eq!(
            (ended.summary.reached, ended.summary.counts.allowed, ended.summary.counts.denied),
            (1, 1, 0)
        );
        assert_eq!(ended.asked, ["allowed.test"]);
    }
}

/// Finds the process after a delay.
struct Slow(Duration);

impl ProcessFinder for Slow {
    #[expect(clippy::disallowed_methods, reason = "the test outlives the task")]
    fn ask(&self, _: SocketAddr, _: SocketAddr) -> Option<oneshot::Receiver<Process>> {
        let (to, from) = oneshot::channel();
        let after = sleep(self.0);
        tokio::spawn(async move {
            after.await;
            to.send(Process { pid: 7, ppid: None, exe: None })
        });
        Some(from)
    }
}

/// The process lookup runs in parallel with the name lookup: it adds no time, and has the whole lookup to finish.
#[tokio::test]
async fn looks_up_the_process_during_the_name_lookup() {
    let took = limits::WHO * 3;
    let who = Some(Arc::new(Slow(took)) as Arc<dyn ProcessFinder>);
    let proxy = Setup { who, lookup: took * 2, ..setup(&["evil.test:443"]) }.start().await;
    let (_, head) = proxy.ask(Transport::Tcp, "evil.test:443").await;
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    let ended = proxy.end().await;
    assert_eq!(ended.decisions(), ["deny:private_ip"]);
    assert_eq!(ended.events("decision")[0]["pid"], 7);
}

/// A head may arrive byte by byte.
#[tokio::test]
async fn reads_a_head_byte_by_byte() {
    let origin = origin(b"").await;
    let port = origin.port();
    let proxy = setup(&[&format!("127.0.0.1:{port}")]).start().await;
    let mut client = proxy.connect(Transport::Tcp).await;
    for byte in format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n").into_bytes() {
        client.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(read_head(&mut *client).await.starts_with("HTTP/1.1 200 "));
    proxy.end().await;
}

/// K32, P03, P22, D10: a denial is a 403 before any 200; it names its flag, looks nothing up, and ends the
/// connection.
#[tokio::test]
async fn answers_a_denial_with_403() {
    for way in TRANSPORTS {
        let origin = origin(b"").await;
        let port = origin.port();
        let proxy = setup(&[&format!("allowed.test:{port}")]).start().await;
        let (mut client, head) = proxy.ask(way, &format!("evil.test:{port}")).await;
        assert!(
            head.starts_with(&format!("HTTP/1.1 403 exeat denied evil.test:{port} (no rule allows it)\r\n"))
        );
        let _ = client.write_all(b"CONNECT allowed.test:443 HTTP/1.1\r\nHost: allowed.test\r\n\r\n").await;
        let body = String::from_utf8(read_to_end(&mut *client).await).unwrap();
        assert!(body.contains(&format!("--allow evil.test:{port}\n")), "{body}");
        assert!(body.ends_with("connection 1.\n"), "{body}");
        let ended = proxy.end().await;
        assert_eq!(ended.decisions(), ["deny:default"]);
        ended.closes_follow_decisions();
        assert!(ended.asked.is_empty());
        assert_eq!(origin.connections(), 0);
        let denied = &ended.summary.denied[0];
        assert_eq!((denied.host.as_str(), denied.port, denied.count), ("evil.test", port, 1));
        let line: Value = serde_json::from_str(&ended.denials).unwrap();
        assert_eq!(line["reason"], "default");
        assert_eq!(line["target"], format!("evil.test:{port}"));
    }
}

/// D01: a granted name resolves to loopback, without an IP rule. The reply does not contain the address.
#[tokio::test]
async fn refuses_a_name_with_a_private_address() {
    let origin = origin(b"").await;
    let port = origin.port();
    let proxy = setup(&[&format!("allowed.test:{port}")]).start().await;
    let (mut client, head) = proxy.ask(Transport::Unix, &format!("allowed.test:{port}")).await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    let body = read_to_end(&mut *client).await;
    assert!(!head.contains("127.0.0.1") && !String::from_utf8(body).unwrap().contains("127.0.0.1"));
    let ended = proxy.end().await;
    assert_eq!(ended.decisions(), ["deny:private_ip"]);
    assert_eq!(ended.events("decision")[0]["ips"][0], "127.0.0.1");
    assert!(!ended.denials.contains("127.0.0.1"));
    assert_eq!(ended.summary.denied[0].flag.as_deref(), Some(format!("--allow 127.0.0.1:{port}").as_str()));
    assert_eq!(origin.connections(), 0);
}

/// K32: failures are not denials: they are 502 and 504, with verdict `error` or a close with the error.
#[tokio::test]
async fn tells_failures_from_denials() {
    let (_held, dead) = closed_port();
    let mut setup =
        setup(&[&format!("allowed.test:{dead}"), "gone.test", "broken.test", &format!("127.0.0.1:{dead}")]);
    setup.names.push(("broken.test", Err(Failure::Resolver)));
    let proxy = setup.start().await;
    for (target, status, words) in [
        (format!("allowed.test:{dead}"), 502, "connection refused"),
        ("gone.test:443".into(), 502, "DNS: no such name"),
        ("broken.test:443".into(), 502, "DNS: the resolver failed"),
    ] {
        let (mut client, head) = proxy.ask(Transport::Tcp, &target).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        let body = String::from_utf8(read_to_end(&mut *client).await).unwrap();
        assert!(body.starts_with(&format!("exeat could not reach {target}: {words}.")), "{body}");
    }
    let ended = proxy.end().await;
    assert_eq!(ended.decisions(), ["allow:rule", "error:resolve_error", "error:resolve_error"]);
    ended.closes_follow_decisions();
    let refused = ended.events("close")[0];
    assert_eq!(refused["ended_by"], "error");
    assert!(refused["error"].as_str().unwrap().contains("refused"), "{refused}");
    assert_eq!(ended.summary.failed.len(), 3);
    assert_eq!(ended.summary.counts.denied, 0);
}

/// A05: what cannot be recorded is not dialed.
#[tokio::test]
async fn refuses_everything_on_a_full_disk() {
    let origin = origin(b"").await;
    let port = origin.port();
    let mut setup = setup(&[&format!("127.0.0.1:{port}")]);
    setup.sink = Some("/dev/full");
    let proxy = setup.start().await;
    for target in [format!("127.0.0.1:{port}"), "evil.test:443".into()] {
        let (mut client, head) = proxy.ask(Transport::Tcp, &target).await;
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert!(head.contains("details=\"audit_unavailable\""), "{head}");
        let body = String::from_utf8(read_to_end(&mut *client).await).unwrap();
        assert!(!body.contains("allows"), "the second one is allowed by nothing: {body}");
    }
    proxy.end().await;
    assert_eq!(origin.connections(), 0);
}

/// P19, R03: the head has one deadline, also if its bytes keep coming.
#[tokio::test]
async fn refuses_a_slow_head() {
    let proxy = setup(&[]).start().await;
    let mut client = proxy.connect(Transport::Tcp).await;
    let start = Instant::now();
    let trickle = async {
        for _ in 0..100 {
            if client.write_all(b"G").await.is_err() {
                break;
            }
            sleep(Duration::from_millis(50)).await;
            let mut reply = [0; 16];
            if let Ok(Ok(read)) = timeout(Duration::from_millis(1), client.read(&mut reply)).await {
                return String::from_utf8_lossy(&reply[..read]).into_owned();
            }
        }
        String::new()
    };
    assert_eq!(trickle.await, "HTTP/1.1 408 Req");
    assert!(start.elapsed() < Duration::from_secs(2));
    let ended = proxy.end().await;
    assert_eq!(ended.decisions(), ["deny:timeout"]);
    ended.closes_follow_decisions();
}

/// A client that sends nothing asks for nothing, so nothing is denied, whether it leaves or stays until the
/// deadline.
#[tokio::test]
async fn records_nothing_about_a_silent_client() {
    for way in TRANSPORTS {
        let proxy = setup(&[]).start().await;
        drop(proxy.connect(way).await);
        let mut silent = proxy.connect(way).await;
        let reply = String::from_utf8(read_to_end(&mut *silent).await).unwrap();
        assert!(reply.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{reply}");
        let ended = proxy.end().await;
        assert!(ended.events("decision").is_empty() && ended.events("close").is_empty(), "{:?}", ended.lines);
        assert_eq!((ended.summary.connections, ended.summary.counts.denied), (2, 0));
        assert!(ended.denials.is_empty());
    }
}

/// P20: an endless head gets 431, and the reply arrives although we stop reading.
#[tokio::test]
async fn refuses_a_huge_head() {
    for way in TRANSPORTS {
        let proxy = setup(&[]).start().await;
        let mut client = proxy.connect(way).await;
        let huge = format!("CONNECT a.test:443 HTTP/1.1\r\nX: {}", "v".repeat(limits::HEAD_BYTES + 5000));
        let _ = client.write_all(huge.as_bytes()).await;
        let reply = read_to_end(&mut *client).await;
        assert!(reply.starts_with(b"HTTP/1.1 431 "), "{:?}", String::from_utf8_lossy(&reply));
        proxy.end().await;
    }
}

/// R01: over the limit a client gets 503 with `Retry-After`; a slot that is released can be used again.
#[tokio::test]
async fn refuses_too_many_connections() {
    let origin = origin(b"").await;
    let target = format!("127.0.0.1:{}", origin.port());
    let mut setup = setup(&[&target]);
    setup.limits.connections = 2;
    let proxy = setup.start().await;
    let held = [proxy.ask(Transport::Tcp, &target).await, proxy.ask(Transport::Unix, &target).await];
    let (_, head) = proxy.ask(Transport::Tcp, &target).await;
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("\r\nRetry-After: 1\r\n"), "{head}");
    drop(held);
    sleep(Duration::from_millis(100)).await;
    assert!(proxy.ask(Transport::Tcp, &target).await.1.starts_with("HTTP/1.1 200 "));
    let ended = proxy.end().await;
    assert_eq!(ended.reports.iter().map(|report| report.busy).sum::<u64>(), 1);
    assert_eq!((ended.summary.connections, ended.summary.turned_away), (4, 1));
    // A08: a flood of these writes nothing; the note of the run counts them.
    assert_eq!(ended.decisions().len(), 3);
}

/// R07: many connections at once.
#[tokio::test]
async fn serves_two_hundred_at_once() {
    let origin = origin(b"hi").await;
    let target = format!("127.0.0.1:{}", origin.port());
    let proxy = setup(&[&target]).start().await;
    let mut clients = Vec::new();
    for number in 0..200 {
        clients.push(proxy.ask(TRANSPORTS[number % 2], &target).await);
    }
    for (client, head) in &mut clients {
        assert!(head.starts_with("HTTP/1.1 200 "));
        assert_eq!(client.read_u16().await.unwrap(), 0x6869);
    }
    let ended = proxy.end().await;
    assert_eq!(ended.decisions().len(), 200);
    ended.closes_follow_decisions();
    assert!(ended.events("close").iter().all(|close| close["ended_by"] == "killed"), "the run stopped them");
    assert_eq!(ended.reports.iter().map(|report| report.aborted).sum::<u64>(), 0);
}

/// T01, T02, T03, T04, T05, T06, T07, T10: the verdict for each first flight, and that nothing reaches the origin
/// unless the hello names the target.
#[tokio::test]
async fn checks_the_name_in_the_hello() {
    let allowed = real("allowed.test", &["h2"]);
    let name = |name: &[u8]| with_server_name(Some(&entries(&[(0, name)])), 0);
    for (first, verdict) in [
        (allowed.clone(), None),
        (name(b"ALLOWED.test"), None),
        (in_records(&allowed, 1), None),
        (with_server_name(Some(&entries(&[(0, b"allowed.test")])), 40_000), None),
        (real("evil.test", &[]), Some("sni_mismatch")),
        (name(b"allowed.test."), Some("sni_mismatch")),
        (name(b"x.allowed.test"), Some("sni_mismatch")),
        (with_server_name(None, 0), Some("sni_missing")),
        (
            with_server_name(Some(&entries(&[(0, b"allowed.test"), (0, b"evil.test")])), 0),
            Some("hello_malformed"),
        ),
        (name(b"allowed.test\0.evil.test"), Some("hello_malformed")),
        (b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(), Some("not_tls")),
        (allowed[..40].to_vec(), Some("hello_timeout")),
        (vec![], Some("hello_timeout")),
        (in_records(&with_server_name(None, 20_000), 1), Some("hello_too_large")),
    ] {
        let origin = origin(b"").await;
        let port = origin.port();
        let mut setup = setup(&[&format!("127.0.0.1:{port}")]);
        setup.rules.push((format!("allowed.test:{port}"), TlsCheck::Sni));
        let proxy = setup.start().await;
        let (mut client, head) = proxy.ask(Transport::Tcp, &format!("allowed.test:{port}")).await;
        assert!(head.starts_with("HTTP/1.1 200 "));
        for part in first.chunks(7000) {
            let _ = client.write_all(part).await;
            sleep(Duration::from_millis(1)).await;
        }
        if let Some(reason) = verdict {
            read_to_end(&mut *client).await;
            let ended = proxy.end().await;
            assert_eq!(ended.decisions(), ["allow:rule".to_owned(), format!("deny:{reason}")]);
            ended.closes_follow_decisions();
            assert_eq!(origin.bytes(), b"", "{reason}: zero upstream");
            assert_eq!(ended.events("close")[0]["bytes_up"], 0);
            assert_eq!(ended.summary.denied[0].reason.as_str(), reason);
        } else {
            eventually(|| origin.bytes().len() == first.len()).await;
            assert_eq!(origin.bytes(), first, "unchanged");
            drop(client);
            sleep(Duration::from_millis(50)).await;
            let ended = proxy.end().await;
            assert_eq!(ended.decisions(), ["allow:rule"]);
            let close = ended.events("close")[0];
            assert!(close["sni"].as_str().unwrap().eq_ignore_ascii_case("allowed.test"));
            assert_eq!(close["sni_ok"], true);
        }
    }
}

/// T08: a hello that may hide another name is recorded. If the policy says so, it is refused before a byte goes
/// upstream.
#[tokio::test]
async fn t08_records_or_refuses_a_hidden_name() {
    for ech in Ech::ALL {
        let origin = origin(b"").await;
        let port = origin.port();
        let mut given = setup(&[&format!("127.0.0.1:{port}")]);
        given.rules.push((format!("allowed.test:{port}"), TlsCheck::Sni));
        given.terms.ech = ech;
        let proxy = given.start().await;
        let (mut client, _) = proxy.ask(Transport::Tcp, &format!("allowed.test:{port}")).await;
        let hello = with_ech(b"allowed.test");
        client.write_all(&hello).await.unwrap();
        if ech == Ech::Refuse {
            read_to_end(&mut *client).await;
            assert!(origin.bytes().is_empty());
        } else {
            eventually(|| origin.bytes().len() == hello.len()).await;
        }
        drop(client);
        sleep(Duration::from_millis(50)).await;
        let ended = proxy.end().await;
        let late = ended.decisions().get(1).cloned();
        assert_eq!(late.as_deref(), (ech == Ech::Refuse).then_some("deny:ech"));
        let close = ended.events("close")[0];
        assert_eq!((&close["ech"], &close["sni"]), (&true.into(), &"allowed.test".into()));
    }
}

/// T01, T03, T05, T06: on a port that may carry anything, TLS must name its host too, and other protocols pass.
#[tokio::test]
async fn t01_tls_on_any_port_names_its_host() {
    let name = |name: &[u8]| with_server_name(Some(&entries(&[(0, name)])), 0);
    for (first, reason) in [
        (name(b"allowed.test"), None),
        (b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(), None),
        (b"\x16not TLS".to_vec(), Some("not_tls")),
        // Some servers skip an alert before a hello, or ignore the version.
        ([&[21, 3, 1, 0, 2, 1, 0x5a][..], &name(b"evil.test")].concat(), Some("not_tls")),
        ([&[22, 2, 0][..], &name(b"evil.test")[3..]].concat(), Some("not_tls")),
        (vec![0x80, 0x2e, 1, 3, 1, 0, 3, 0, 0, 0, 32], Some("not_tls")),
        (vec![0x80, 0x2e, 0, 3, 1], None),
        // What may become a hello does not pass in part, even if the rest comes late.
        (vec![0x80, 0x2e], Some("hello_timeout")),
        (vec![0x80], Some("hello_timeout")),
        (b"\x16".to_vec(), Some("hello_timeout")),
        (name(b"evil.test"), Some("sni_mismatch")),
        (in_records(&name(b"evil.test"), 1), Some("sni_mismatch")),
        (with_server_name(None, 0), Some("sni_missing")),
        (name(b"allowed.test")[..60].to_vec(), Some("hello_timeout")),
    ] {
        for early in [true, false] {
            let origin = origin(b"").await;
            let target = format!("allowed.test:{}", origin.port());
            let proxy = setup(&[&target, &format!("127.0.0.1:{}", origin.port())]).start().await;
            let mut client = proxy.connect(Transport::Tcp).await;
            let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").into_bytes();
            let together = if early { [head.clone(), first.clone()].concat() } else { head };
            client.write_all(&together).await.unwrap();
            assert!(read_head(&mut *client).await.starts_with("HTTP/1.1 200 "));
            if !early {
                // The first bytes may arrive in any pieces.
                for piece in [&first[..1], &first[1..]] {
                    client.write_all(piece).await.unwrap();
                    sleep(Duration::from_millis(20)).await;
                }
            }
            if reason.is_some() {
                read_to_end(&mut *client).await;
                assert!(origin.bytes().is_empty(), "{reason:?}");
            } else {
                eventually(|| origin.bytes() == first).await;
            }
            drop(client);
            let ended = proxy.end().await;
            let late = ended.decisions().get(1).cloned();
            assert_eq!(late, reason.map(|reason| format!("deny:{reason}")), "early {early}");
        }
    }
}

/// T01, T06: a server that speaks first is heard at once, and the client's hello is still checked.
#[tokio::test]
async fn t01_checks_the_hello_after_a_server_that_speaks_first() {
    // This is more than the sockets between hold: some of it waits for the client, which still speaks first.
    static GREETING: [u8; 8 << 20] = [b'g'; 8 << 20];
    for (first, reason) in [
        (b"plain".to_vec(), None),
        (with_server_name(Some(&entries(&[(0, b"allowed.test")])), 0), None),
        (with_server_name(Some(&entries(&[(0, b"evil.test")])), 0), Some("sni_mismatch")),
    ] {
        for (greeting, read) in [(10_000, true), (8 << 20, true), (8 << 20, false)] {
            let origin = origin(&GREETING[..greeting]).await;
            let target = format!("allowed.test:{}", origin.port());
            let proxy = setup(&[&target, &format!("127.0.0.1:{}", origin.port())]).start().await;
            let (mut client, _) = proxy.ask(Transport::Tcp, &target).await;
            if read {
                let mut heard = vec![0; greeting];
                timeout(Duration::from_secs(5), client.read_exact(&mut heard)).await.unwrap().unwrap();
                assert_eq!(heard, GREETING[..greeting]);
            } else {
                sleep(Duration::from_millis(200)).await;
            }
            client.write_all(&first).await.unwrap();
            match reason {
                None => {
                    // An origin that is still sending reads only when it is done.
                    if !read {
                        // Nothing of its greeting is lost on the way.
                        let mut heard = vec![0; greeting];
                        let all = timeout(Duration::from_secs(5), client.read_exact(&mut heard)).await;
                        assert!(all.is_ok_and(|all| all.is_ok()), "all of the greeting");
                    }
                    eventually(|| origin.bytes() == first).await;
                }
                Some(_) => {
                    let _ =
                        timeout(Duration::from_secs(5), client.read_to_end(&mut Vec::new())).await.unwrap();
                }
            }
            drop(client);
            sleep(Duration::from_millis(50)).await;
            let ended = proxy.end().await;
            assert_eq!(origin.bytes().is_empty(), reason.is_some(), "{greeting} {read}");
            let late = ended.decisions().get(1).cloned();
            assert_eq!(late, reason.map(|reason| format!("deny:{reason}")));
            if read {
                assert_eq!(ended.events("close")[0]["bytes_down"], greeting);
            }
        }
    }
}

/// With `tls = "off"`, and on a port other than 443, nothing waits for a hello.
#[tokio::test]
async fn forwards_without_a_hello() {
    let origin = origin(b"220 smtp").await;
    let port = origin.port();
    let mut setup = setup(&[&format!("127.0.0.1:{port}")]);
    setup.rules.push((format!("allowed.test:{port}"), TlsCheck::Off));
    let proxy = setup.start().await;
    let (mut client, _) = proxy.ask(Transport::Tcp, &format!("allowed.test:{port}")).await;
    let mut banner = [0; 8];
    client.read_exact(&mut banner).await.unwrap();
    assert_eq!(&banner, b"220 smtp");
    proxy.end().await;
}

/// H16: a new policy applies to new requests, its digest is in their lines, and open connections stay open.
#[tokio::test]
async fn replaces_the_policy_while_serving() {
    let origin = origin(b"").await;
    let target = format!("127.0.0.1:{}", origin.port());
    let proxy = setup(&[&target]).start().await;
    let (mut open, head) = proxy.ask(Transport::Tcp, &target).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let under = |digest: &str| Arc::new(Under { policy_sha256: digest.into(), mode: Mode::Enforce });
    proxy.cx.replace_policy(policy(&[]), under("closed"));
    let (_, head) = proxy.ask(Transport::Unix, &target).await;
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    proxy.cx.replace_policy(policy(&[(target.clone(), TlsCheck::Auto)]), under("opened"));
    let (_, head) = proxy.ask(Transport::Tcp, &target).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    open.write_all(b"still open").await.unwrap();
    let arrived = async {
        while origin.bytes() != b"still open" {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(5), arrived).await.unwrap();
    let ended = proxy.end().await;
    let digests: Vec<_> = ended.events("decision").iter().map(|line| line["policy_sha256"].clone()).collect();
    assert_eq!(digests, ["", "closed", "opened"]);
}

/// A05, A07: a connection that does not end in the drain time is cut, and still gets its close record.
#[tokio::test]
async fn cuts_connections_after_the_drain() {
    let origin = origin(b"").await;
    let target = format!("127.0.0.1:{}", origin.port());
    let proxy = setup(&[&target]).start().await;
    let (mut client, _) = proxy.ask(Transport::Tcp, &target).await;
    let start = Instant::now();
    let ended = proxy.end().await;
    assert!(start.elapsed() < Duration::from_secs(1));
    ended.closes_follow_decisions();
    assert_eq!(ended.events("close")[0]["ended_by"], "killed");
    assert!(read_to_end(&mut *client).await.is_empty());
}

/// A05, A07: without a drain, every connection still gets its close record.
#[tokio::test]
async fn closes_every_connection_without_a_drain() {
    let origin = origin(b"").await;
    let target = format!("127.0.0.1:{}", origin.port());
    let mut setup = setup(&[&target]);
    setup.limits.drain = Duration::from_secs(60);
    let proxy = setup.start().await;
    let (mut client, _) = proxy.ask(Transport::Tcp, &target).await;
    client.write_all(b"no TLS").await.unwrap();
    while origin.bytes().is_empty() {
        sleep(Duration::from_millis(5)).await;
    }
    let cx = Arc::clone(&proxy.cx);
    let cut = async {
        sleep(Duration::from_millis(100)).await;
        cx.cut();
    };
    let (ended, ()) =
        timeout(Duration::from_secs(10), async { tokio::join!(proxy.end(), cut) }).await.unwrap();
    ended.closes_follow_decisions();
    assert_eq!(ended.events("close")[0]["ended_by"], "killed");
    assert_eq!(ended.reports.iter().map(|report| report.aborted).sum::<u64>(), 1);
    assert!(read_to_end(&mut *client).await.is_empty());
}
