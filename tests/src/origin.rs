//! The origins of the internet: TLS and plain HTTP, echo, a server that speaks first, half-closers and a bulk source,
//! on every address. Logs each connection and its bytes under the address that the client connected to.
//!
//! One thread serves them all; they are peers for tests, not models of a server.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream as StdStream, UdpSocket};
use std::os::unix::net::UnixStream as Pair;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

use crate::datagrams::Datagrams;
use crate::wait_for;

/// The ports of HTTP over TLS.
pub const TLS: [u16; 2] = [443, 8443];
/// The port of plain HTTP.
pub const HTTP: u16 = 80;
/// Returns all bytes; closes its side when the client does.
pub const ECHO: u16 = 7;
/// Greets first, then echoes, like a database or mail server.
pub const SERVER_FIRST: u16 = 5432;
/// Reads 8 bytes, a big-endian count, and sends that many.
pub const BULK: u16 = 9001;
/// Sends `bye`, closes its sending side, then reads until the client closes too.
pub const CLOSES_FIRST: u16 = 9002;
/// Reads until the client has closed its sending side, then sends the number of bytes.
pub const COUNTS: u16 = 9003;
/// Reads 8 bytes, a big-endian count, and sends that many; the next byte, at any time, breaks the connection.
pub const RESETS: u16 = 9004;
/// Reads nothing, and keeps the connection.
pub const NEVER_READS: u16 = 9005;
/// Real servers: SSH, PostgreSQL and Redis, once [`Internet::open`] has named them.
pub const SSH: u16 = 22;
/// Differs from [`SERVER_FIRST`], which has PostgreSQL's usual port.
pub const POSTGRES: u16 = 5433;
/// See [`SSH`].
pub const REDIS: u16 = 6379;
/// The ports of the origins in this module.
pub const ORIGINS: [u16; 10] =
    [443, 8443, HTTP, ECHO, SERVER_FIRST, BULK, CLOSES_FIRST, COUNTS, RESETS, NEVER_READS];
/// The greeting of [`SERVER_FIRST`].
pub const GREETING: &[u8] = b"220 origin ready\r\n";

/// The media type of files that are served byte for byte.
pub const BYTES: &str = "application/octet-stream";

/// The longest wait for bytes that have been sent.
const SETTLED: Duration = Duration::from_secs(10);

/// The bytes of one connection that are kept; more are only counted.
const KEPT: usize = 256 * 1024;

/// A connection.
#[derive(Debug)]
pub struct Visit {
    /// The address and port that the client connected to.
    pub to: SocketAddr,
    /// The number of bytes on the wire, including TLS.
    pub bytes: AtomicU64,
    /// Whether the client closed its sending side.
    pub eof: AtomicBool,
    state: Mutex<VisitState>,
}

#[derive(Debug, Default)]
struct VisitState {
    wire: Vec<u8>,
    sni: Option<String>,
    heads: Vec<String>,
}

impl Visit {
    /// Returns the first bytes on the wire.
    pub fn wire(&self) -> Vec<u8> {
        self.state.lock().expect("visit").wire.clone()
    }

    /// Returns the name in the TLS hello.
    pub fn sni(&self) -> Option<String> {
        self.state.lock().expect("visit").sni.clone()
    }

    /// Returns the heads of complete HTTP requests, decrypted.
    pub fn heads(&self) -> Vec<String> {
        self.state.lock().expect("visit").heads.clone()
    }
}

/// A real server for a port.
#[derive(Clone)]
pub enum Server {
    /// A server that listens on this Unix socket.
    Socket(PathBuf),
    /// A process for each connection, which is its input and output.
    PerConnection(Vec<String>),
}

/// The log of every origin, and the published files and servers.
#[derive(Clone, Default)]
pub struct Internet {
    /// Every datagram.
    pub datagrams: Datagrams,
    visits: Arc<Mutex<Vec<Arc<Visit>>>>,
    files: Arc<Mutex<HashMap<String, File>>>,
    servers: Arc<Mutex<HashMap<u16, Server>>>,
}

/// The media type and content of a published path.
type File = (&'static str, Vec<u8>);

impl Internet {
    /// Publishes this content at this path of every host; `{host}` in a text becomes the requested host.
    pub fn publish(&self, path: &str, kind: &'static str, content: impl Into<Vec<u8>>) {
        self.files.lock().expect("files").insert(path.to_string(), (kind, content.into()));
    }

    /// Connects a port to a real server, on every address.
    pub fn open(&self, port: u16, server: Server) {
        self.servers.lock().expect("servers").insert(port, server);
    }

    /// Returns what is published at this path; `Some(None)` is a missing file in a published directory.
    fn file(&self, path: &str, host: &str) -> Option<Option<File>> {
        // apt asks for paths with `/./` in the middle.
        let path = path.split('?').next().unwrap_or(path).replace("/./", "/");
        let files = self.files.lock().expect("files");
        let Some((kind, content)) = files.get(&path).cloned() else {
            let top = path.split_inclusive('/').take(2).collect::<String>();
            return files.keys().any(|known| top.len() > 1 && known.starts_with(&top)).then_some(None);
        };
        if kind == BYTES {
            return Some(Some((kind, content)));
        }
        Some(Some((kind, String::from_utf8_lossy(&content).replace("{host}", host).into_bytes())))
    }

    /// Returns the connections to an address, oldest first.
    pub fn visits(&self, addr: IpAddr) -> Vec<Arc<Visit>> {
        let visits = self.visits.lock().expect("visits");
        visits.iter().filter(|visit| visit.to.ip() == addr).cloned().collect()
    }

    /// Returns every connection after the first `from`; see [`Internet::count`].
    pub fn since(&self, from: usize) -> Vec<Arc<Visit>> {
        self.visits.lock().expect("visits").iter().skip(from).cloned().collect()
    }

    /// Returns the number of connections so far.
    pub fn count(&self) -> usize {
        self.visits.lock().expect("visits").len()
    }

    /// Waits until the logs contain everything that was sent before this call. Makes a connection to each origin, and a
    /// datagram, and waits for those: an origin accepts connections in turn, and the kernel delivers in order. `mark`
    /// is an otherwise unused address of each family.
    pub fn wait_for_logs(&self, mark: (IpAddr, IpAddr)) {
        let before = self.visits(mark.0).len();
        for port in ORIGINS {
            let stream = StdStream::connect((mark.0, port)).expect("an origin takes every connection");
            drop(stream);
        }
        for addr in [mark.0, mark.1] {
            let any: SocketAddr = if addr.is_ipv4() {
                (Ipv4Addr::UNSPECIFIED, 0).into()
            } else {
                (Ipv6Addr::UNSPECIFIED, 0).into()
            };
            let had = self.datagrams.to(addr).len();
            let socket = UdpSocket::bind(any).expect("a socket");
            socket.send_to(b"settled", (addr, 9)).expect("the internet takes every datagram");
            wait_for(SETTLED, "a datagram that was sent", || {
                (self.datagrams.to(addr).len() > had).then_some(())
            });
        }
        wait_for(SETTLED, "connections that were made", || {
            (self.visits(mark.0).len() >= before + ORIGINS.len()).then_some(())
        });
    }

    fn arrived(&self, stream: &TcpStream) -> io::Result<Arc<Visit>> {
        let local = stream.local_addr()?;
        let to = SocketAddr::new(local.ip().to_canonical(), local.port());
        let visit = Arc::new(Visit {
            to,
            bytes: AtomicU64::new(0),
            eof: AtomicBool::new(false),
            state: Mutex::default(),
        });
        self.visits.lock().expect("visits").push(visit.clone());
        Ok(visit)
    }
}

/// The certificate authority of the bench: issues a certificate for any name that a client asks for.
pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Ca {
    /// Makes an authority for this process alone.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "exeat test authority");
        let key = KeyPair::generate().expect("key");
        let pem = params.self_signed(&key).expect("self-signed").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Returns the certificate that clients have to trust.
    pub fn pem(&self) -> String {
        self.pem.clone()
    }

    fn mint(&self, name: &str) -> CertifiedKey {
        let params = CertificateParams::new(vec![name.to_string()]).expect("a name");
        let key = KeyPair::generate().expect("key");
        let cert = params.signed_by(&key, &self.issuer).expect("signed");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("PKCS 8");
        let key = ring::sign::any_supported_type(&key).expect("a key that ring knows");
        CertifiedKey::new(vec![cert.der().clone()], key)
    }
}

impl Default for Ca {
    fn default() -> Self {
        Self::new()
    }
}

struct Mint {
    ca: Ca,
    made: Mutex<HashMap<String, Arc<CertifiedKey>>>,
}

impl std::fmt::Debug for Mint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mint")
    }
}

impl ResolvesServerCert for Mint {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().unwrap_or("no-name.test").to_string();
        let mut made = self.made.lock().expect("mint");
        Some(made.entry(name.clone()).or_insert_with(|| Arc::new(self.ca.mint(&name))).clone())
    }
}

/// Serves forever in the network namespace of the calling thread; `ready` gets the log once all ports listen.
pub fn serve(ca: Ca, ready: impl FnOnce(Internet)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async move {
        let internet = Internet { datagrams: Datagrams::start(), ..Internet::default() };
        let mint = Arc::new(Mint { ca, made: Mutex::default() });
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("protocol versions")
            .with_no_client_auth()
            .with_cert_resolver(mint);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        for port in TLS {
            let (acceptor, files) = (acceptor.clone(), internet.clone());
            listen(&internet, port, move |stream, visit| tls(acceptor.clone(), stream, visit, files.clone()))
                .await;
        }
        let files = internet.clone();
        listen(&internet, HTTP, move |stream, visit| http(stream, visit, files.clone())).await;
        for port in [SSH, POSTGRES, REDIS] {
            let servers = internet.servers.clone();
            listen(&internet, port, move |stream, _| {
                let server = servers.lock().expect("servers").get(&port).cloned();
                real_server(stream, server)
            })
            .await;
        }
        listen(&internet, ECHO, echo).await;
        listen(&internet, SERVER_FIRST, server_first).await;
        listen(&internet, BULK, bulk).await;
        listen(&internet, CLOSES_FIRST, closes_first).await;
        listen(&internet, COUNTS, counts).await;
        listen(&internet, RESETS, resets).await;
        listen(&internet, NEVER_READS, never_reads).await;
        ready(internet);
        std::future::pending::<()>().await;
    });
}

async fn listen<F, Fut>(internet: &Internet, port: u16, handle: F)
where
    F: Fn(Logged, Arc<Visit>) -> Fut + Send + 'static,
    Fut: Future<Output = io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind(("::", port)).await.expect("an origin's port");
    let internet = internet.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let Ok(visit) = internet.arrived(&stream) else { continue };
            tokio::spawn(handle(Logged { stream, visit: visit.clone() }, visit));
        }
    });
}

async fn tls(acceptor: TlsAcceptor, stream: Logged, visit: Arc<Visit>, files: Internet) -> io::Result<()> {
    let stream = acceptor.accept(stream).await?;
    visit.state.lock().expect("visit").sni = stream.get_ref().1.server_name().map(str::to_string);
    http(stream, visit, files).await
}

/// Serves HTTP/1.1 with keep-alive: a published path sends its file, `/bytes/N` N bytes, everything else a line with
/// host, method and body length.
async fn http(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    visit: Arc<Visit>,
    files: Internet,
) -> io::Result<()> {
    let mut pending = Vec::new();
    loop {
        let Some(head) = read_until(&mut stream, &mut pending, b"\r\n\r\n").await? else { return Ok(()) };
        let head = String::from_utf8_lossy(&head).into_owned();
        let Some(body) = read_body(&mut stream, &mut pending, &head).await? else { return Ok(()) };
        visit.state.lock().expect("visit").heads.push(head.clone());
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let close = field(&head, "connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let host = field(&head, "host").unwrap_or("nobody");
        let count = path.rsplit_once("/bytes/").and_then(|(_, count)| count.parse().ok());
        let hello = || format!("hello from {host}: {method} {body}\n").into_bytes();
        let (status, kind, answer) = match (files.file(path, host), count) {
            (Some(Some((kind, content))), _) => ("200 OK", kind, content),
            (Some(None), _) => ("404 Not Found", BYTES, Vec::new()),
            (None, Some(count)) => ("200 OK", BYTES, vec![b'x'; count]),
            (None, None) => ("200 OK", "text/plain", hello()),
        };
        let connection = if close { "Connection: close\r\n" } else { "" };
        let length = answer.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nContent-Type: {kind}\r\n{connection}\r\n"
        );
        let answer = if method == "HEAD" { Vec::new() } else { answer };
        stream.write_all(&[head.as_bytes(), &answer].concat()).await?;
        stream.flush().await?;
        if close {
            return stream.shutdown().await;
        }
    }
}

/// Returns the length of the body, or `None` if the client closed in the middle of it.
async fn read_body(
    stream: &mut (impl AsyncRead + Unpin),
    pending: &mut Vec<u8>,
    head: &str,
) -> io::Result<Option<usize>> {
    if field(head, "transfer-encoding").is_some() {
        let Some(body) = read_until(stream, pending, b"0\r\n\r\n").await? else { return Ok(None) };
        return Ok(Some(body.len()));
    }
    let length = field(head, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
    while pending.len() < length {
        if stream.read_buf(pending).await? == 0 {
            return Ok(None);
        }
    }
    pending.drain(..length);
    Ok(Some(length))
}

async fn read_until(
    stream: &mut (impl AsyncRead + Unpin),
    pending: &mut Vec<u8>,
    mark: &[u8],
) -> io::Result<Option<Vec<u8>>> {
    loop {
        if let Some(at) = pending.windows(mark.len()).position(|window| window == mark) {
            return Ok(Some(pending.drain(..at + mark.len()).collect()));
        }
        if stream.read_buf(pending).await? == 0 {
            return Ok(None);
        }
    }
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .find_map(|(key, value)| key.eq_ignore_ascii_case(name).then(|| value.trim()))
}

async fn echo(mut stream: Logged, _: Arc<Visit>) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return stream.shutdown().await;
        }
        stream.write_all(&buffer[..count]).await?;
    }
}

async fn server_first(mut stream: Logged, visit: Arc<Visit>) -> io::Result<()> {
    stream.write_all(GREETING).await?;
    echo(stream, visit).await
}

async fn bulk(mut stream: Logged, _: Arc<Visit>) -> io::Result<()> {
    const BLOCK: &[u8] = &[0x5a; 256 * 1024];
    let mut left = stream.read_u64().await?;
    while left > 0 {
        let count = left.min(BLOCK.len() as u64);
        stream.write_all(&BLOCK[..usize::try_from(count).expect("one block")]).await?;
        left -= count;
    }
    stream.shutdown().await
}

async fn closes_first(mut stream: Logged, visit: Arc<Visit>) -> io::Result<()> {
    stream.write_all(b"bye").await?;
    stream.shutdown().await?;
    read_to_end(&mut stream).await?;
    visit.eof.store(true, Ordering::SeqCst);
    Ok(())
}

async fn counts(mut stream: Logged, _: Arc<Visit>) -> io::Result<()> {
    let count = read_to_end(&mut stream).await?;
    stream.write_all(format!("got {count}\n").as_bytes()).await?;
    stream.shutdown().await
}

async fn resets(mut stream: Logged, _: Arc<Visit>) -> io::Result<()> {
    let count = stream.read_u64().await?;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let writing = async {
        tokio::io::copy(&mut tokio::io::repeat(b'r').take(count), &mut writer).await?;
        std::future::pending::<io::Result<u64>>().await
    };
    tokio::select! {
        byte = reader.read_u8() => drop(byte?),
        failed = writing => drop(failed?),
    }
    reader.unsplit(writer).stream.set_zero_linger()
}

async fn never_reads(stream: Logged, _: Arc<Visit>) -> io::Result<()> {
    let _kept = stream;
    std::future::pending().await
}

/// Relays both directions between a client and a real server; a port without one is closed at once.
async fn real_server(mut client: Logged, server: Option<Server>) -> io::Result<()> {
    let mut server = match server {
        None => return Ok(()),
        Some(Server::Socket(path)) => UnixStream::connect(path).await?,
        Some(Server::PerConnection(words)) => {
            let (ours, theirs) = Pair::pair()?;
            let mut child = Command::new(&words[0])
                .args(&words[1..])
                .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs.try_clone()?)))
                .stdout(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
                .stderr(Stdio::null())
                .spawn()?;
            std::thread::spawn(move || child.wait());
            ours.set_nonblocking(true)?;
            UnixStream::from_std(ours)?
        }
    };
    tokio::io::copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

async fn read_to_end(stream: &mut Logged) -> io::Result<u64> {
    let mut buffer = vec![0; 64 * 1024];
    let mut total = 0;
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(total),
            count => total += count as u64,
        }
    }
}

/// A stream whose incoming bytes are logged.
pub struct Logged {
    stream: TcpStream,
    visit: Arc<Visit>,
}

impl AsyncRead for Logged {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Poll::Ready(Ok(())) = polled {
            let new = &buf.filled()[before..];
            if new.is_empty() {
                self.visit.eof.store(true, Ordering::SeqCst);
            }
            self.visit.bytes.fetch_add(new.len() as u64, Ordering::SeqCst);
            let mut state = self.visit.state.lock().expect("visit");
            let room = KEPT.saturating_sub(state.wire.len()).min(new.len());
            state.wire.extend_from_slice(&new[..room]);
        }
        polled
    }
}

impl AsyncWrite for Logged {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
