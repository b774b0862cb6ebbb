//! The stub resolver of the bench, on 127.0.0.53:53 over UDP and TCP: it answers from a table and logs every query. It
//! does not recurse, cache or sign.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

/// The answer for a name.
#[derive(Debug, Clone)]
pub enum Answer {
    /// These addresses, by family; a missing family gives an empty answer.
    Addrs(Vec<IpAddr>),
    /// An alias; the same answer contains the final addresses.
    Cname(String),
    /// The first query of a type gets the first list, the second the second, and so on; the last one stays.
    Sequence(Vec<Vec<IpAddr>>),
    /// No such name.
    NxDomain,
    /// The server failed.
    ServFail,
    /// The name exists, without addresses.
    NoData,
    /// The stub does not answer.
    Silence,
}

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// The name in lower case, without the last dot.
    pub name: String,
    /// 1 is A, 28 is AAAA.
    pub kind: u16,
}

#[derive(Default)]
struct State {
    zone: HashMap<String, Answer>,
    asked: HashMap<(String, u16), usize>,
    log: Vec<Query>,
}

/// The running stub.
#[derive(Clone)]
pub struct Dns {
    state: Arc<Mutex<State>>,
}

const A: u16 = 1;
const CNAME: u16 = 5;
const AAAA: u16 = 28;
const UDP_MAX: usize = 512;

impl Dns {
    /// Starts the stub in the network namespace of the caller.
    pub fn start() -> Self {
        let dns = Self { state: Arc::default() };
        let udp = UdpSocket::bind("127.0.0.53:53").expect("UDP 127.0.0.53:53");
        let tcp = TcpListener::bind("127.0.0.53:53").expect("TCP 127.0.0.53:53");
        let state = dns.clone();
        let serve_udp = move || {
            let mut query = [0; 1500];
            while let Ok((len, from)) = udp.recv_from(&mut query) {
                if let Some(reply) = state.reply(&query[..len], UDP_MAX) {
                    let _ = udp.send_to(&reply, from);
                }
            }
        };
        thread::Builder::new().name("dns-udp".into()).spawn(serve_udp).expect("dns thread");
        let state = dns.clone();
        let serve_tcp = move || {
            for stream in tcp.incoming().flatten() {
                let state = state.clone();
                thread::spawn(move || state.serve_stream(stream));
            }
        };
        thread::Builder::new().name("dns-tcp".into()).spawn(serve_tcp).expect("dns thread");
        dns
    }

    /// Sets what `name` answers; other names answer 93.184.215.14.
    pub fn set(&self, name: &str, answer: Answer) {
        self.state.lock().expect("dns state").zone.insert(name.to_ascii_lowercase(), answer);
    }

    /// Restarts every sequence.
    pub fn rewind(&self) {
        self.state.lock().expect("dns state").asked.clear();
    }

    /// Returns every query so far whose name contains `part`.
    pub fn queries(&self, part: &str) -> Vec<Query> {
        let state = self.state.lock().expect("dns state");
        state.log.iter().filter(|query| query.name.contains(part)).cloned().collect()
    }

    fn serve_stream(&self, mut stream: TcpStream) {
        let mut len = [0; 2];
        while stream.read_exact(&mut len).is_ok() {
            let mut query = vec![0; usize::from(u16::from_be_bytes(len))];
            if stream.read_exact(&mut query).is_err() {
                return;
            }
            let Some(reply) = self.reply(&query, usize::from(u16::MAX)) else { continue };
            let len = u16::try_from(reply.len()).expect("bounded by the table").to_be_bytes();
            if stream.write_all(&[&len, reply.as_slice()].concat()).is_err() {
                return;
            }
        }
    }

    fn reply(&self, query: &[u8], room: usize) -> Option<Vec<u8>> {
        let (name, kind, question) = parse(query)?;
        let mut state = self.state.lock().expect("dns state");
        state.log.push(Query { name: name.clone(), kind });
        let mut records = Vec::new();
        let code = state.resolve(&name, kind, &mut records)?;
        drop(state);

        let mut reply = Vec::with_capacity(room.min(4096));
        reply.extend_from_slice(&query[..2]);
        reply.extend_from_slice(&[0x81, 0x80 | code]); // response, recursion desired and available
        reply.extend_from_slice(&[0, 1]);
        reply.extend_from_slice(&u16::try_from(records.len()).expect("few records").to_be_bytes());
        reply.extend_from_slice(&[0, 0, 0, 0]);
        reply.extend_from_slice(question);
        for record in &records {
            reply.extend_from_slice(record);
        }
        if reply.len() > room {
            reply.truncate(12 + question.len());
            reply[2] |= 0x02; // truncated: ask again over TCP
            reply[6..8].fill(0);
        }
        Some(reply)
    }
}

impl State {
    /// Returns the response code and appends the records; `None` is silence.
    fn resolve(&mut self, name: &str, kind: u16, records: &mut Vec<Vec<u8>>) -> Option<u8> {
        let mut name = name.to_string();
        for _ in 0..8 {
            let answer = self.zone.get(&name).cloned();
            let answer = answer.unwrap_or(Answer::Addrs(vec![Ipv4Addr::new(93, 184, 215, 14).into()]));
            match answer {
                Answer::Silence => return None,
                Answer::NxDomain => return Some(3),
                Answer::ServFail => return Some(2),
                Answer::NoData => return Some(0),
                Answer::Cname(target) => {
                    records.push(record(&name, CNAME, &encode(&target)));
                    name = target;
                }
                Answer::Addrs(addrs) => {
                    push_addrs(&name, kind, &addrs, records);
                    return Some(0);
                }
                Answer::Sequence(lists) => {
                    let asked = self.asked.entry((name.clone(), kind)).or_default();
                    let turn = (*asked).min(lists.len().saturating_sub(1));
                    *asked += 1;
                    push_addrs(&name, kind, &lists[turn], records);
                    return Some(0);
                }
            }
        }
        Some(2)
    }
}

fn push_addrs(name: &str, kind: u16, addrs: &[IpAddr], records: &mut Vec<Vec<u8>>) {
    for addr in addrs {
        match addr {
            IpAddr::V4(v4) if kind == A => records.push(record(name, A, &v4.octets())),
            IpAddr::V6(v6) if kind == AAAA => records.push(record(name, AAAA, &v6.octets())),
            _ => {}
        }
    }
}

/// Encodes a resource record of class IN with a TTL of 0 seconds (RFC 1035 section 4.1.3).
fn record(name: &str, kind: u16, data: &[u8]) -> Vec<u8> {
    let mut bytes = encode(name);
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&[0, 1, 0, 0, 0, 0]);
    bytes.extend_from_slice(&u16::try_from(data.len()).expect("short").to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// Encodes a name.
fn encode(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(u8::try_from(label.len()).expect("a label is at most 63 bytes"));
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

/// Returns name, type and the bytes of the question.
fn parse(query: &[u8]) -> Option<(String, u16, &[u8])> {
    let mut at = 12;
    let mut labels = Vec::new();
    loop {
        let len = usize::from(*query.get(at)?);
        at += 1;
        if len == 0 {
            break;
        }
        let label = query.get(at..at + len)?;
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        at += len;
    }
    let kind = u16::from_be_bytes([*query.get(at)?, *query.get(at + 1)?]);
    Some((labels.join("."), kind, query.get(12..at + 4)?))
}
