use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use exeat_policy::PolicyBuilder;
use exeat_record::{Header, Log, Mode, RunId, Sink};
use nix::sys::socket::MsgFlags;
use proptest::prelude::*;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::*;
use crate::Context;

/// Builds an IPv4 packet whose header has this many words.
fn v4(to: [u8; 4], proto: u8, words: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; usize::from(words.max(5)) * 4];
    packet[0] = 0x40 | words;
    packet[9] = proto;
    packet[12..16].copy_from_slice(&[192, 0, 2, 1]);
    packet[16..20].copy_from_slice(&to);
    packet.extend(rest);
    packet
}

fn v6(to: &str, next: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 40];
    packet[0] = 0x60;
    packet[6] = next;
    packet[24..].copy_from_slice(&to.parse::<Ipv6Addr>().unwrap().octets());
    packet.extend(rest);
    packet
}

/// Builds a header with ports, and the flags where TCP has them.
fn ports(to: u16, flags: u8) -> Vec<u8> {
    let [high, low] = to.to_be_bytes();
    [&[0x80, 0, high, low][..], &[0; 9], &[flags], &[0; 6]].concat()
}

/// Builds an extension header of IPv6, with 8 bytes and 8 for each of `more`.
fn extension(next: u8, more: u8) -> Vec<u8> {
    let mut header = vec![0; 8 + usize::from(more) * 8];
    (header[0], header[1]) = (next, more);
    header
}

fn parse_attempt(packet: &[u8]) -> Option<(String, u16, Proto)> {
    parse(packet).map(|(proto, to)| (to.ip().to_string(), to.port(), proto))
}

fn some(to: &str, port: u16, proto: Proto) -> Option<(String, u16, Proto)> {
    Some((to.to_owned(), port, proto))
}

/// D11: a packet that asks for a connection, or carries data without one, is an attempt, whatever its headers are.
#[test]
fn d11_detects_attempts_in_packets() {
    let syn = ports(443, SYN);
    let dns = ports(53, 0);
    for (packet, expect) in [
        (v4([8, 8, 8, 8], TCP, 5, &syn), some("8.8.8.8", 443, Proto::Tcp)),
        (v4([8, 8, 8, 8], UDP, 5, &dns), some("8.8.8.8", 53, Proto::Udp)),
        (v4([8, 8, 8, 8], TCP, 15, &syn), some("8.8.8.8", 443, Proto::Tcp)),
        (v4([8, 8, 8, 8], 132, 5, &syn), some("8.8.8.8", 0, Proto::Other(132))),
        (v4([255, 255, 255, 255], UDP, 5, &dns), some("255.255.255.255", 53, Proto::Udp)),
        (v6("2001:db8::1", TCP, &syn), some("2001:db8::1", 443, Proto::Tcp)),
        (v6("2001:db8::1", UDP, &dns), some("2001:db8::1", 53, Proto::Udp)),
        (v6("ff02::fb", UDP, &dns), some("ff02::fb", 53, Proto::Udp)),
        (v6("2001:db8::1", 59, &[]), some("2001:db8::1", 0, Proto::Other(59))),
        (
            v6(
                "2001:db8::1",
                HOP_BY_HOP,
                &[extension(DESTINATION, 2), extension(TCP, 0), syn.clone()].concat(),
            ),
            some("2001:db8::1", 443, Proto::Tcp),
        ),
        (
            v6("2001:db8::1", FRAGMENT, &[extension(UDP, 0), dns.clone()].concat()),
            some("2001:db8::1", 53, Proto::Udp),
        ),
        (
            v6("2001:db8::1", AUTHENTICATION, &[vec![UDP, 1], vec![0; 10], dns.clone()].concat()),
            some("2001:db8::1", 53, Proto::Udp),
        ),
        // Truncated: what is visible is reported.
        (v4([8, 8, 8, 8], TCP, 5, &syn[..13]), some("8.8.8.8", 443, Proto::Tcp)),
        (v4([8, 8, 8, 8], UDP, 5, &[]), some("8.8.8.8", 0, Proto::Udp)),
        (v6("2001:db8::1", ROUTING, &extension(TCP, 0)[..6]), some("2001:db8::1", 0, Proto::Other(ROUTING))),
        (
            v6("2001:db8::1", DESTINATION, &[extension(DESTINATION, 0).repeat(20), syn.clone()].concat()),
            some("2001:db8::1", 0, Proto::Other(DESTINATION)),
        ),
        // Later packets, answers, and what stays on the loopback.
        (v4([8, 8, 8, 8], TCP, 5, &ports(443, SYN | ACK)), None),
        (v4([8, 8, 8, 8], TCP, 5, &ports(443, ACK)), None),
        (v6("2001:db8::1", DESTINATION, &[extension(TCP, 0), ports(443, ACK)].concat()), None),
        (v6("2001:db8::1", FRAGMENT, &[vec![UDP, 0, 0, 8], vec![0; 4], dns.clone()].concat()), None),
        (v4([8, 8, 8, 8], ICMP, 5, &[3]), None),
        (v6("2001:db8::1", HOP_BY_HOP, &[extension(ICMPV6, 0), vec![0x8f]].concat()), None),
        (v4([127, 0, 0, 53], UDP, 5, &dns), None),
        (v6("::1", TCP, &syn), None),
        // Neither address family.
        (v4([8, 8, 8, 8], TCP, 4, &[0; 40]), None),
        (v4([8, 8, 8, 8], TCP, 5, &syn)[..19].to_vec(), None),
        (v6("2001:db8::1", TCP, &syn)[..39].to_vec(), None),
        (vec![0x50; 60], None),
        (vec![], None),
    ] {
        assert_eq!(parse_attempt(&packet), expect, "{packet:x?}");
    }
    let mut later = v4([8, 8, 8, 8], UDP, 5, &dns);
    later[7] = 1;
    assert_eq!(parse_attempt(&later), None);
}

proptest! {
    /// No packet stops the tap, and nothing is read beyond the packet.
    #[test]
    fn any_bytes_are_read(
        first in prop_oneof![Just(0x45_u8), Just(0x4f), Just(0x60), any::<u8>()],
        next in prop_oneof![Just(HOP_BY_HOP), Just(FRAGMENT), Just(AUTHENTICATION), any::<u8>()],
        mut packet in prop::collection::vec(prop_oneof![Just(0_u8), Just(DESTINATION), any::<u8>()], 0..200),
    ) {
        for (place, byte) in [(0, first), (6, next)] {
            if let Some(at) = packet.get_mut(place) {
                *at = byte;
            }
        }
        if let Some((proto, to)) = parse(&packet) {
            prop_assert!(!to.ip().is_loopback());
            prop_assert!(matches!(proto, Proto::Tcp | Proto::Udp) || to.port() == 0);
            let longer = [packet.clone(), vec![0xff; 64]].concat();
            prop_assert!(parse(&longer).is_none_or(|(_, longer)| longer.ip() == to.ip()));
        }
    }
}

/// A queue that replaces the kernel's.
#[derive(Debug)]
struct Queue(OwnedFd, Arc<AtomicU64>);

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PacketSource for Queue {
    fn read(&self, packet: &mut [u8]) -> io::Result<usize> {
        Ok(nix::sys::socket::recv(self.as_fd().as_raw_fd(), packet, MsgFlags::MSG_DONTWAIT)?)
    }

    fn missed_packets(&self) -> io::Result<u64> {
        Ok(self.1.swap(0, Ordering::Relaxed))
    }
}

struct Inside;

impl Places for Inside {
    fn name_at(&self, ip: IpAddr) -> Option<HostName> {
        (ip == IpAddr::from([198, 18, 0, 7])).then(|| "api.example.com".parse().unwrap())
    }

    fn listens_at(&self, at: SocketAddr) -> bool {
        at == SocketAddr::from(([198, 18, 0, 7], 443))
    }
}

struct Watched {
    missed: Arc<AtomicU64>,
    attempts: Arc<Attempts>,
    tap: Tap,
    record: std::path::PathBuf,
}

impl Watched {
    fn over(ours: OwnedFd) -> Self {
        let run = RunId::new();
        let record = std::env::temp_dir().join(format!("exeat-tap-{run}.jsonl"));
        let header = Header { run, stage: None, policy_sha256: "ab".repeat(32), mode: Mode::Enforce };
        let log = Log::start(Sink::create_file(&record).unwrap(), header).unwrap();
        let cx = Arc::new(Context::new(PolicyBuilder::new().build(), log, run));
        let attempts = Arc::new(Attempts::new(cx));
        let missed = Arc::new(AtomicU64::new(0));
        let queue = Box::new(Queue(ours, Arc::clone(&missed)));
        let tap = Tap::new(queue, Arc::new(Inside), Arc::clone(&attempts)).unwrap();
        Self { missed, attempts, tap, record }
    }
}

fn lines(record: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(record).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// D11: packets to other destinations are recorded, with the name of a synthetic address. A destination with a
/// listener gets its own decision. The last packets are read too, and missed ones are counted.
#[tokio::test]
async fn d11_records_packets_that_lead_nowhere() {
    let (stage, ours) = UnixDatagram::pair().unwrap();
    let Watched { missed, attempts, tap, record } = Watched::over(ours.into());
    let stop = CancellationToken::new();
    let watching = tap.watch(stop.clone());
    let sending = async {
        for to in [443, 22] {
            stage.send(&v4([198, 18, 0, 7], TCP, 5, &ports(to, SYN))).unwrap();
        }
        stage.send(&v4([198, 18, 0, 7], UDP, 5, &ports(443, 0))).unwrap();
        stage.send(&v6("2001:db8::1", TCP, &ports(443, SYN))).unwrap();
        missed.store(5, Ordering::Relaxed);
        while lines(&record).len() < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        missed.store(2, Ordering::Relaxed);
        stop.cancel();
        stage.send(&v4([8, 8, 8, 8], UDP, 5, &ports(53, 0))).unwrap();
    };
    timeout(Duration::from_secs(10), async { tokio::join!(watching, sending) }).await.unwrap();
    attempts.flush();
    let lines = lines(&record);
    std::fs::remove_file(&record).unwrap();
    let mut told: Vec<_> = lines
        .iter()
        .filter(|line| line["event"] == "decision")
        .map(|line| format!("{}:{} {}", line["host"], line["port"], line["proto"]).replace('"', ""))
        .collect();
    told.sort();
    let expect =
        ["2001:db8::1:443 null", "8.8.8.8:53 udp", "api.example.com:22 null", "api.example.com:443 udp"];
    assert_eq!(told, expect);
    let missed: Vec<_> = lines.iter().filter(|line| line["what"] == "tap_drops").collect();
    assert_eq!(missed.iter().map(|line| line["count"].as_u64().unwrap()).sum::<u64>(), 7, "{missed:?}");
}

/// A stage that sends without end does not stop the proxy, which runs on the same thread.
#[tokio::test]
async fn yields_the_thread_during_a_flood() {
    // A stream accepts packets faster than they are read, so there is always one.
    let (mut stage, ours) = UnixStream::pair().unwrap();
    let Watched { attempts, tap, record, .. } = Watched::over(ours.into());
    let mut packet = v4([8, 8, 8, 8], UDP, 5, &ports(9, 0));
    packet.resize(limits::PACKET, 0);
    let going = Arc::new(AtomicU64::new(1));
    let flood = {
        let (going, packets) = (Arc::clone(&going), packet.repeat(256));
        std::thread::spawn(move || {
            let mut sent = 0;
            while going.load(Ordering::Relaxed) == 1 {
                stage.write_all(&packets).unwrap();
                sent += 256;
            }
            sent
        })
    };
    let stop = CancellationToken::new();
    let others = async {
        let from = Instant::now();
        let mut turns = 0;
        while from.elapsed() < Duration::from_millis(500) {
            tokio::time::sleep(Duration::from_millis(1)).await;
            turns += 1;
        }
        going.store(0, Ordering::Relaxed);
        while !flood.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stop.cancel();
        turns
    };
    let (turns, ()) =
        timeout(Duration::from_secs(20), async { tokio::join!(others, tap.watch(stop.clone())) })
            .await
            .expect("the thread is the tap's alone");
    attempts.flush();
    let told: u64 = lines(&record).iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum();
    std::fs::remove_file(&record).unwrap();
    assert!(turns > 50, "{turns} turns in half a second");
    assert_eq!(told, flood.join().unwrap());
}
