//! The proxy as a client sees it, with cases that no ordinary client shows.

use std::env;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::{ProbeResult, name_of, number};

const PATIENCE: Duration = Duration::from_secs(25);

/// Sends a CONNECT, and prints everything that came back, on one line.
pub(crate) fn ask(target: &str) -> ProbeResult {
    let mut stream = dial()?;
    stream.write_all(head(target).as_bytes())?;
    let answer = read_head(&mut stream)?;
    let mut rest = Vec::new();
    if !answer.starts_with("HTTP/1.1 200") {
        let _ = stream.read_to_end(&mut rest);
    }
    Ok(format!("{answer}{}", String::from_utf8_lossy(&rest)).replace("\r\n", "\n"))
}

/// Sends this many bytes and closes its side; all of them must come back, and then the end.
pub(crate) fn echo(target: &str, count: &str) -> ProbeResult {
    let stream = tunnel(target)?;
    echo_through(stream, number(count)?)
}

/// Sends the first bytes in the same segment as the head.
pub(crate) fn early(target: &str) -> ProbeResult {
    let mut stream = dial()?;
    stream.write_all(format!("{}early bird", head(target)).as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    accepted(&read_head(&mut stream)?)?;
    let mut heard = String::new();
    stream.read_to_string(&mut heard)?;
    Ok(heard)
}

/// Reads the greeting of a server that speaks first.
pub(crate) fn greeting(target: &str) -> ProbeResult {
    let mut stream = tunnel(target)?;
    let mut heard = [0; 64];
    let count = stream.read(&mut heard)?;
    stream.write_all(b"and then we")?;
    let mut answer = [0; 11];
    stream.read_exact(&mut answer)?;
    let (heard, answer) = (String::from_utf8_lossy(&heard[..count]), String::from_utf8_lossy(&answer));
    Ok(format!("{} {answer}", heard.trim()))
}

/// Sends more bytes after the server has closed its side.
pub(crate) fn server_closes(target: &str) -> ProbeResult {
    let mut stream = tunnel(target)?;
    let mut heard = String::new();
    stream.read_to_string(&mut heard)?;
    for _ in 0..5 {
        stream.write_all(b"12345")?;
        thread::sleep(Duration::from_millis(20));
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(heard)
}

/// Closes its side, and then reads the answer.
pub(crate) fn client_closes(target: &str, count: &str) -> ProbeResult {
    let mut stream = tunnel(target)?;
    stream.write_all(&vec![b'c'; number(count)?])?;
    stream.shutdown(Shutdown::Write)?;
    let mut heard = String::new();
    stream.read_to_string(&mut heard)?;
    Ok(heard.trim().into())
}

/// Downloads this many bytes.
pub(crate) fn bulk(target: &str, count: &str) -> ProbeResult {
    let began = Instant::now();
    let got = download(tunnel(target)?, number(count)?, Duration::ZERO)?;
    Ok(format!("{got} bytes in {} ms", began.elapsed().as_millis()))
}

/// Asks for many bytes and reads them late: nothing in between may collect them.
pub(crate) fn slow_reader(target: &str, count: &str) -> ProbeResult {
    let got = download(tunnel(target)?, number(count)?, Duration::from_secs(2))?;
    Ok(format!("{got} bytes"))
}

/// Sends a CONNECT; if it is allowed, asks for 3 bytes and then for the end. Prints the status and how the stream
/// ended.
pub(crate) fn end_of(target: &str) -> ProbeResult {
    let mut stream = dial()?;
    stream.write_all(head(target).as_bytes())?;
    let answer = read_head(&mut stream)?;
    if accepted(&answer).is_ok() {
        stream.write_all(&3_u64.to_be_bytes())?;
        stream.read_exact(&mut [0; 3])?;
        stream.write_all(b"x")?;
    }
    let end = match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => "end".to_string(),
        Err(error) => name_of(&error),
    };
    Ok(format!("{} {end}", answer.split(' ').nth(1).unwrap_or("none")))
}

/// Asks for more than all buffers hold and reads none of it; then the origin breaks the connection. Keeps its side
/// until standard input ends.
pub(crate) fn stop_reading(target: &str) -> ProbeResult {
    let mut stream = tunnel(target)?;
    stream.write_all(&u64::MAX.to_be_bytes())?;
    thread::sleep(Duration::from_millis(500));
    stream.write_all(b"x")?;
    thread::sleep(Duration::from_millis(300));
    // Lets the proxy notice that the origin broke the connection, unless it has: then the write fails.
    let _ = stream.write_all(b"x");
    thread::sleep(Duration::from_millis(300));
    until_released("stopped")
}

/// Sends until nobody takes more, then closes with an unread answer, which is a reset. Stays until standard input ends.
pub(crate) fn break_off(target: &str) -> ProbeResult {
    let mut stream = dial()?;
    stream.write_all(head(target).as_bytes())?;
    // The close is a reset only if bytes have arrived.
    stream.peek(&mut [0])?;
    stream.set_write_timeout(Some(Duration::from_millis(500)))?;
    while stream.write_all(&[b'b'; 64 * 1024]).is_ok() {}
    drop(stream);
    thread::sleep(Duration::from_millis(300));
    until_released("broke off")
}

fn until_released(word: &str) -> ProbeResult {
    println!("{word}");
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok("ok".into())
}

/// Opens tunnels one after the other, in several threads; each echoes 64 bytes.
pub(crate) fn many(target: &str, each: &str, beside: &str) -> ProbeResult {
    let each: usize = number(each)?;
    let workers: Vec<_> = (0..number::<usize>(beside)?)
        .map(|_| {
            let target = target.to_string();
            thread::spawn(move || {
                let outcomes = (0..each).map(|_| tunnel(&target).and_then(|stream| echo_through(stream, 64)));
                outcomes.filter_map(|outcome| outcome.err().map(|error| name_of(&error))).collect::<Vec<_>>()
            })
        })
        .collect();
    let total = each * workers.len();
    let failed: Vec<String> =
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect();
    Ok(format!("{} of {total} {}", total - failed.len(), failed.first().map_or("", String::as_str))
        .trim()
        .into())
}

/// Opens tunnels and keeps them until standard input ends.
pub(crate) fn hold(target: &str, count: &str) -> ProbeResult {
    let tunnels = (0..number::<usize>(count)?).map(|_| tunnel(target)).collect::<io::Result<Vec<_>>>()?;
    println!("holding {}", tunnels.len());
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok("ok".into())
}

/// Sends the head byte by byte.
pub(crate) fn split_head(target: &str) -> ProbeResult {
    let mut stream = dial()?;
    stream.set_nodelay(true)?;
    for byte in head(target).bytes() {
        stream.write_all(&[byte])?;
    }
    accepted(&read_head(&mut stream)?)?;
    echo_through(stream, 64)
}

/// Sends a head without end, a byte a second. Prints the result, and after how many seconds it came.
pub(crate) fn slow_head(target: &str) -> ProbeResult {
    let began = Instant::now();
    let mut stream = dial()?;
    let head = head(target);
    stream.write_all(&head.as_bytes()[..head.len() - 2])?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut heard = Vec::new();
    let mut buffer = [0; 1024];
    let outcome = loop {
        match stream.read(&mut buffer) {
            Ok(0) => break "closed".to_string(),
            Ok(count) => heard.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if began.elapsed() > PATIENCE {
                    break "still open".to_string();
                }
                let _ = stream.write_all(b"X");
            }
            Err(error) => break name_of(&error),
        }
    };
    let heard = String::from_utf8_lossy(&heard);
    Ok(format!("{outcome} after {} s: {}", began.elapsed().as_secs(), heard.lines().next().unwrap_or("")))
}

/// Sends one field of this many bytes.
pub(crate) fn huge_head(target: &str, size: &str) -> ProbeResult {
    let head = head(target);
    first_line(&format!("{}X-Pad: {}\r\n\r\n", &head[..head.len() - 2], "x".repeat(number(size)?)))
}

/// Sends this many fields.
pub(crate) fn many_fields(target: &str, count: &str) -> ProbeResult {
    let head = head(target);
    first_line(&format!("{}{}\r\n", &head[..head.len() - 2], "X-Pad: x\r\n".repeat(number(count)?)))
}

/// Sends a CONNECT for every line of a file (`\xHH` is a byte), and prints each status on a line.
pub(crate) fn ask_all(file: &str) -> ProbeResult {
    let mut said = Vec::new();
    for line in fs::read_to_string(file)?.lines() {
        said.push(status_of(line).unwrap_or_else(|error| name_of(&error)));
    }
    Ok(said.join("\n"))
}

/// Plays a script over TCP and prints what came back; see [`converse`].
pub(crate) fn bytes(file: &str) -> ProbeResult {
    let stream = dial()?;
    converse(stream.try_clone()?, stream, |stream| stream.shutdown(Shutdown::Write), file)
}

/// Plays a script directly on the proxy's socket.
pub(crate) fn bytes_unix(socket: &str, file: &str) -> ProbeResult {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    converse(stream.try_clone()?, stream, |stream| stream.shutdown(Shutdown::Write), file)
}

/// The wait for the first byte of an answer, in milliseconds: longer than the proxy waits for a head.
const FIRST_BYTE: u64 = 13_000;

/// Plays a script: one step a line, `send HEX`, `wait MS`, `shut`. Then reads to the end of the connection, while bytes
/// come (`quiet MS` is the longest pause after the first; `until-head` stops at the first empty line). Returns `closed`
/// or `open`, a blank, and the received bytes in hex.
fn converse<S: Read + Send + 'static, W: Write>(
    mut reader: S,
    mut writer: W,
    shut: impl Fn(&W) -> io::Result<()>,
    file: &str,
) -> ProbeResult {
    let script = fs::read_to_string(file)?;
    let quiet = script.lines().find_map(|line| line.strip_prefix("quiet ")).map_or(Ok(1500), number)?;
    let (send, chunks) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count) = reader.read(&mut buffer) {
            if count == 0 || send.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    let mut heard: Vec<u8> = Vec::new();
    for line in script.lines() {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("send", hex) => drop(writer.write_all(&unhex(hex)).and_then(|()| writer.flush())),
            ("wait", millis) => {
                let end = Instant::now() + Duration::from_millis(number(millis)?);
                match listen_until(&chunks, end, &mut heard) {
                    // The other side has closed: nobody reads the rest.
                    RecvTimeoutError::Disconnected => break,
                    RecvTimeoutError::Timeout => {}
                }
            }
            ("shut", _) => drop(shut(&writer)),
            _ => {}
        }
    }
    let head_alone = script.lines().any(|line| line == "until-head");
    let state = loop {
        if head_alone && heard.windows(4).any(|window| window == b"\r\n\r\n") {
            break "open";
        }
        // On a busy machine an answer may be late, and no row expects silence: the proxy closes a connection without an
        // answer.
        let patience = if heard.is_empty() { FIRST_BYTE.max(quiet) } else { quiet };
        match chunks.recv_timeout(Duration::from_millis(patience)) {
            Ok(chunk) => heard.extend(chunk),
            Err(RecvTimeoutError::Disconnected) => break "closed",
            Err(RecvTimeoutError::Timeout) => break "open",
        }
    };
    Ok(format!("{state} {}", hex(&heard)))
}

/// Reads until `end`. Returns why it stopped.
fn listen_until(chunks: &Receiver<Vec<u8>>, end: Instant, heard: &mut Vec<u8>) -> RecvTimeoutError {
    loop {
        match chunks.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(chunk) => heard.extend(chunk),
            Err(reason) => return reason,
        }
    }
}

fn status_of(target: &str) -> ProbeResult {
    let mut stream = dial()?;
    let target = unescape(target);
    let request = [b"CONNECT ", target.as_slice(), b" HTTP/1.1\r\nHost: ", &target, b"\r\n\r\n"].concat();
    stream.write_all(&request)?;
    let answer = read_head(&mut stream)?;
    Ok(answer.split(' ').nth(1).unwrap_or("none").to_string())
}

fn first_line(request: &str) -> ProbeResult {
    let mut stream = dial()?;
    let mut copy = stream.try_clone()?;
    let request = request.to_string();
    // A refusal may come before everything is sent: then the rest of the sending fails, which does not matter.
    let sender = thread::spawn(move || copy.write_all(request.as_bytes()));
    let answer = read_head(&mut stream)?;
    let _ = sender.join();
    Ok(answer.lines().next().unwrap_or("").to_string())
}

pub(crate) fn echo_through(mut stream: TcpStream, count: usize) -> ProbeResult {
    let sent: Vec<u8> = (0..=255).cycle().take(count).collect();
    let mut writer = stream.try_clone()?;
    let copy = sent.clone();
    let sender = thread::spawn(move || {
        writer.write_all(&copy)?;
        writer.shutdown(Shutdown::Write)
    });
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard)?;
    sender.join().map_err(|_| io::Error::other("sender"))??;
    if heard == sent { Ok(format!("ok: {count}")) } else { Ok(format!("{} of {count} bytes", heard.len())) }
}

fn download(mut stream: TcpStream, count: u64, pause: Duration) -> io::Result<u64> {
    stream.write_all(&count.to_be_bytes())?;
    thread::sleep(pause);
    let mut buffer = vec![0; 256 * 1024];
    let mut got = 0;
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(got),
            more => got += more as u64,
        }
    }
}

fn tunnel(target: &str) -> io::Result<TcpStream> {
    let mut stream = dial()?;
    stream.write_all(head(target).as_bytes())?;
    accepted(&read_head(&mut stream)?)?;
    Ok(stream)
}

fn accepted(answer: &str) -> io::Result<()> {
    let line = answer.lines().next().unwrap_or("nothing");
    if line.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(io::Error::other(line.to_string())) }
}

fn head(target: &str) -> String {
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")
}

/// Connects to the proxy in `HTTPS_PROXY`.
fn dial() -> io::Result<TcpStream> {
    let proxy = env::var("HTTPS_PROXY").map_err(|_| io::Error::other("no HTTPS_PROXY"))?;
    let addr: Result<SocketAddr, _> = proxy.trim_start_matches("http://").trim_end_matches('/').parse();
    let stream = TcpStream::connect(addr.map_err(io::Error::other)?)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Reads up to the empty line and no further, because the bytes after it belong to the tunnel.
fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? == 1 {
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\x") {
        bytes.extend(before.bytes());
        bytes.extend(unhex(&after[..2]));
        rest = &after[2..];
    }
    bytes.extend(rest.bytes());
    bytes
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .filter_map(|digit| digit.try_into().ok())
        .collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
