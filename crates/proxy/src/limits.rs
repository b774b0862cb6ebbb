//! Every deadline and every size of the proxy, each with its unit, bound and reason. Nothing here decides policy.
//!
//! The constants are the defaults; [`Limits`] carries the ones that a run may set. All of them bound what a stage can
//! make the host spend, so none may be "none".

use std::time::Duration;

/// Time for one whole request head, from accept to the empty line. One deadline for all of it: a timer per read lets
/// one byte a minute hold a slot. Real clients send the head in one segment; Squid's `request_start_timeout` family
/// gives minutes, nginx `client_header_timeout` gives 60 s, a sandbox on the same machine needs far less.
pub const HEAD: Duration = Duration::from_secs(10);

/// Bytes of request head, the empty line included. nginx allows 4 x 8 KiB (`large_client_header_buffers`), Apache
/// 8 KiB a field; a CONNECT head of real clients is under 1 KiB. Over it: 431.
pub const HEAD_BYTES: usize = 32 * 1024;

/// Bytes of a first line in a tunnel, at most, that may yet be a request's where its first word is no usual method. Go's server
/// takes a head of 1 MiB; others take 8 to 64 KiB. Such a line is not held.
pub const REQUEST_LINE: usize = 1024 * 1024 + 4096;

/// Fields in one head. The bound of Apache (`LimitRequestFields 100`) and of hyper. Over it: 431.
pub const FIELDS: usize = 100;

/// Wait for the process behind a connection, before its decision is written. A look takes a tenth of a millisecond and is begun when the
/// connection is accepted; a thread that gets no processor for longer than this holds nobody up. Without an answer the record says
/// nothing.
pub const WHO: Duration = Duration::from_millis(20);

/// Time for one name lookup, hosts file included. glibc's own worst case is 5 s x 2 attempts a server
/// (resolv.conf(5)); the client waits for us, and most give up after 30 s.
pub const DNS: Duration = Duration::from_secs(10);

/// Addresses taken from one answer; more is an error and not cut, because an address that was not looked at must not
/// hide behind one that was. The largest honest answers (CDNs, both families) stay under 32.
pub const ANSWERS: usize = 64;

/// Lookups that run at once, each on a blocking thread (getaddrinfo cannot be cancelled). Waiting for a slot counts
/// against [`DNS`].
pub const LOOKUPS: usize = 32;

/// Bytes of `/etc/hosts` that are read. Block lists of a few MB exist; a file larger than this is an error, not cut.
pub const HOSTS_BYTES: u64 = 16 * 1024 * 1024;

/// Age at which the list of the host's own addresses is read again: addresses change (DHCP, VPN), and one getifaddrs
/// costs about 50 us.
pub const OWN_ADDRESSES: Duration = Duration::from_secs(2);

/// Time for the connection to an origin, all its addresses together. RFC 8305 leaves it open; browsers use 30 s or
/// more, Go's default dialer 30 s; a client that waits 15 s for a first byte has usually gone.
pub const CONNECT: Duration = Duration::from_secs(15);

/// Delay before the next address is tried beside the one still pending: RFC 8305 section 5, "Connection Attempt
/// Delay", recommended 250 ms.
pub const STAGGER: Duration = Duration::from_millis(250);

/// Addresses that are dialled for one request, at most, so that one request cannot open [`ANSWERS`] sockets.
pub const ATTEMPTS: usize = 8;

/// Bytes of one read while the head is incomplete. It bounds what a client may send right behind its CONNECT head and
/// have held until decision and dial are through; the rest waits in the kernel's socket buffer.
pub const EARLY_BYTES: usize = 4 * 1024;

/// Bytes of heads and hellos that are not complete, of all connections of a proxy together: some 1000 of the largest heads, and
/// of ordinary ones as many as there are connections. Over it: 503, or the connection is closed.
pub const HELD_BYTES: usize = 32 * 1024 * 1024;

/// The part of what is left of [`HELD_BYTES`] that one connection may hold: the largest head stops growing with 2 MiB left, and one
/// of 1 KiB with 64 KiB left.
pub const HELD_PART: usize = 64;

/// Bytes by which the memory for a head or hello grows.
pub const HELD_STEP: usize = 1024;

/// Time for one whole ClientHello after the 200. It follows the 200 at once; one round trip inside a machine.
pub const HELLO: Duration = Duration::from_secs(10);

/// Bytes of ClientHello that are held before refusing, record headers included. One handshake message may span
/// records of 2^14 (RFC 8446 section 5.1); with post-quantum key shares real ones are about 2 KiB.
pub const HELLO_BYTES: usize = 64 * 1024;

/// Bytes that an origin may send before the head of its answer to a plain HTTP request is complete, 1xx answers
/// included. hyper bounds one head by [`FIELDS`] and [`HTTP_BUFFER`]; this bounds all of them (R10).
pub const RESPONSE_HEAD: u64 = 2 * HTTP_BUFFER as u64;

/// Bytes that hyper holds of one side of a plain HTTP exchange: as a tunnel does, see [`BUFFER`].
pub const HTTP_BUFFER: usize = BUFFER;

/// Bytes of the heads with which an upstream proxy answers a CONNECT, together. Squid's and the like are under 1 KiB.
pub const UPSTREAM_HEAD: usize = 16 * 1024;

/// Answers of an upstream proxy that are passed over because another one is to follow (1xx).
pub const UPSTREAM_INTERIM: usize = 8;

/// Time in which a tunnel moves no byte in either direction. Long enough for long polls and LLM streams that think;
/// AWS NLB uses 350 s, RFC 5382 asks NATs for 2 h 4 min on established TCP, which would let a stage pin its slots.
pub const IDLE: Duration = Duration::from_secs(15 * 60);

/// Time in which a tunnel moves no byte when one side has closed its direction. A peer that is gone altogether looks the
/// same, and must not keep its slot for long. HAProxy's documentation suggests 30 s for its `timeout client-fin`; a server
/// that goes on computing for a client that has only finished its question gets twice that.
pub const HALF_CLOSED: Duration = Duration::from_secs(60);

/// Bytes after which an open connection has its first progress line in the record, both directions together; the others follow
/// when these have doubled, so that 10 GB are some fourteen lines.
pub const PROGRESS_FIRST: u64 = 1_000_000;

/// Time after which what an open connection has moved is on record, if that is [`PROGRESS_LEAST`] or more since its last line.
/// An open tunnel wakes up after [`HALF_CLOSED`] anyway.
pub const PROGRESS: Duration = Duration::from_secs(60);

/// See [`PROGRESS`]: connections that move little do not fill the record.
pub const PROGRESS_LEAST: u64 = 64_000;

/// Life of one tunnel, whatever it moves. A day: longer than any stage that we know of.
pub const TOTAL: Duration = Duration::from_secs(24 * 60 * 60);

/// Refusals of one target after which whoever watches the run is told: a client that asks so often goes on asking.
pub const REFUSED_OFTEN: u64 = 20;

/// Targets of which that is told, at most.
pub const REFUSED_TOLD: usize = 20;

/// Refusals of one target that are answered at once. Each one after these is answered a millisecond later than the one before
/// it, up to [`SLOWED_MOST`]: a client that asks in a loop takes little of the machine then.
pub const ANSWERED_AT_ONCE: u64 = 1000;

/// What such an answer waits for at most. Clients that give up sooner try again sooner.
pub const SLOWED_MOST: Duration = Duration::from_secs(1);

/// Answers that wait at one time, at most; others are given at once, so that none of them fills the places of connections.
pub const SLOWED: usize = 64;

/// Time that an open tunnel gets to deliver what its client sent before the run stopped: a stage may send, close and
/// exit faster than an origin takes it. The end of a run waits for it, so it is short.
pub const DRAIN: Duration = Duration::from_secs(2);

/// Time on top of [`DRAIN`] in which connections may write their `close` records; what is left is aborted.
pub const CLOSING: Duration = Duration::from_millis(250);

/// Connections served at once, per run. Each costs two descriptors (client and upstream), and the usual hard limit is
/// far above; over it: 503 with `Retry-After`.
pub const CONNECTIONS: usize = 8192;

/// Connections to one host that are served at once, per run: the same name, or the same address where one was asked for.
/// Browsers open 6 to a host and package managers some 50; the rest is room for crawlers.
pub const PER_HOST: usize = 1024;

/// Over-limit connections that may be waiting for their 503 at once; beyond it they are closed without a word.
pub const BUSY: usize = 64;

/// Time for the client to take our reply and close, after a refusal. Without the wait, unread input would make the
/// kernel send a reset that can destroy the reply on its way (RFC 9112 section 9.6).
pub const LINGER: Duration = Duration::from_secs(1);

/// Bytes that are read and thrown away while lingering.
pub const LINGER_BYTES: usize = 256 * 1024;

/// Time for our own short replies to be written.
pub const REPLY: Duration = Duration::from_secs(5);

/// First and longest pause after a failed accept (EMFILE, ENFILE, ENOBUFS, ENOMEM), doubled each time: the listener
/// stays readable, so without a pause the loop would spin.
pub const ACCEPT_BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Bytes of one tunnel buffer. 64 KiB is the knee: 16 KiB costs 1.5 times the CPU per byte, 256 KiB gains nothing on
/// one stream. It is also what one direction may hold for a slow reader.
pub const BUFFER: usize = 64 * 1024;

/// Tunnel buffers that are kept for reuse (16 x 64 KiB = 1 MiB).
pub const BUFFERS_KEPT: usize = 16;

/// Reads that one direction of a tunnel, or the gateway's name server, does before it lets other tasks run.
pub const BURST: usize = 16;

/// Programs that the end of a run names with one refused target.
pub const PROGRAMS: usize = 4;

/// Distinct denied (and, apart, failed) `host:port:reason` lines that the summary keeps. What comes later is counted
/// together. The end of a run shows ten.
pub const TALLY: usize = 1024;

/// Distinct hosts that are counted as reached; beyond it the count stays.
pub const TALLY_REACHED: usize = 16 * 1024;

/// Lines and bytes of the denials file that the stage can read. The last line says that it stopped.
pub const DENIALS: (u64, u64) = (1000, 256 * 1024);

/// Bytes of attacker-chosen text (raw host, error, SNI) that go into one record, escaped.
pub const TEXT: usize = 256;

/// Refused requests that have lines of their own: so many at once, and so many more in each second. A stage that is refused what it
/// needs tries some dozens of times; the lines of a thousand are about 1 MB. What is beyond it is counted ([`FOLD_REFUSALS`]).
pub const REFUSALS: (u64, u64) = (1000, 1);

/// Dials that fail, or are under way, that have lines of their own: so many at once, and so many more in each second. What is
/// beyond it is counted as refusals are; a connection that stands has lines of its own whatever failed before.
pub const FAILED_DIALS: (u64, u64) = (1000, 1);

/// How long equal refusals of a flood are counted before a line tells of them: what `kill -9` can lose of their counts.
pub const FOLD_REFUSALS: Duration = Duration::from_secs(1);

/// Lines that tell of a flood, in each such time; where there is more to tell, the oldest comes first. A day of it is 450 MB at most.
pub const FOLDED_LINES: usize = 8;

/// Those of them that name a host; what else is refused is counted by its reason.
pub const FOLDED_APART: usize = 4;

/// Different attempts around the proxy (a place and its protocol, or a name that was asked for) that have lines of their own in a
/// run's record. A program that honestly leaves the proxy out tries some dozens; what comes later is counted together.
pub const ATTEMPTS_APART: usize = 1000;

/// How many such may begin at once, and then in each second: a stage that scans a network is not to write the record at its speed.
pub const ATTEMPTS_RATE: (u64, u64) = (200, 50);

/// How long equal attempts are counted before the next line tells of them, at first and at most: doubled with each line. With
/// [`ATTEMPTS_APART`] that is less than two lines a second, a day of which is some 100 MB (A08).
pub const FOLD: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// Lines for such that are written in one go: about a millisecond.
pub const FOLDS_AT_ONCE: usize = 100;

/// Lines about attempts that are written one by one at the end of a record whose disk is full; the others are added up.
pub const FOLDS_LAST: usize = 32;

/// Bytes of a packet that the tap looks at. IPv4 has 60 bytes of header at most (RFC 791), IPv6 40 and its extensions, which
/// Linux lets no ordinary program add.
pub const PACKET: usize = 128;

/// Headers between that of IPv6 and the one that says what is carried. RFC 8200 section 4.1 has each once, one of them twice.
pub const PACKET_HEADERS: usize = 8;

/// Packets that the tap takes before it lets others run, and how long it then waits when there are more: at most a twentieth of
/// a processor. Those that find no room meanwhile are counted by the kernel.
pub const TAP_BURST: usize = 256;

/// See [`TAP_BURST`].
pub const TAP_PAUSE: Duration = Duration::from_millis(5);

/// Packets that the tap takes at the end of a run. More than the queue of a socket holds: 2 MiB at most, as the kernel doubles what
/// it is asked for (socket(7)), at some 700 bytes for each.
pub const TAP_LAST: usize = 4096;

/// How often the tap asks what it missed, and what is folded is looked at.
pub const TAP_LOOK: Duration = Duration::from_secs(1);

/// Bytes of a question to the gateway's name server: header, one name and what EDNS adds are under 400, and a client that pads
/// (RFC 8467) does so on encrypted connections alone. A longer one is malformed, and ends a connection.
pub const QUESTION_BYTES: usize = QUESTION_SIZE as usize;

/// The same as a number of 16 bits, which is told to clients that speak EDNS.
pub(crate) const QUESTION_SIZE: u16 = 1024;

/// Bytes of an answer of the name server, at most: what any client takes in a datagram (RFC 1035 section 2.3.4). The longest name and
/// everything that may follow it are 326, the name of an address 368.
pub const ANSWER_BYTES: usize = 512;

/// Names in a run that the gateway gives addresses to, at most. Below a granted wildcard a stage may ask for as many as it likes,
/// and an entry stays for as long as the run does.
pub const NAMES: usize = 4096;

/// Listeners of the gateway, at most: two for each port of each name. Each is a descriptor of the host's, of which there are often 4096;
/// connections need them too.
pub const LISTENERS: usize = 2048;

/// Time for all listeners of one name. A client waits five seconds for an answer (resolv.conf(5)).
pub const LISTEN: Duration = Duration::from_secs(3);

/// Questions that wait for listeners at once. Real stages begin with a handful of names; over it a client is told to ask again.
pub const LISTENING: usize = 32;

/// Connections to the name server at once; others wait to be accepted. Clients use them when told that an answer was cut off, which none is.
pub const NAME_CONNECTIONS: usize = 16;

/// Time in which a client of such a connection asks the next question. RFC 7766 section 6.2.3 wants seconds.
pub const NAME_IDLE: Duration = Duration::from_secs(10);

/// Bytes of a record, at most: some 700 000 connections. New ones are then refused, and the run goes on.
pub const AUDIT_SIZE: u64 = 1 << 30;

/// The part of [`AUDIT_SIZE`] that is kept for what comes after: the closes of connections that are open, counts, and the end.
pub const AUDIT_KEPT: u64 = 4;

/// It is no more than this: 8192 connections have a close of some 700 bytes each, and few of them a late refusal.
pub const AUDIT_KEPT_MOST: u64 = 16 << 20;

/// The limits of one run: the defaults are the constants of this module.
#[derive(Debug, Clone)]
pub struct Limits {
    /// See [`HEAD`].
    pub head: Duration,
    /// See [`DNS`].
    pub dns: Duration,
    /// See [`CONNECT`].
    pub connect: Duration,
    /// See [`HELLO`].
    pub hello: Duration,
    /// See [`IDLE`].
    pub idle: Duration,
    /// See [`HALF_CLOSED`].
    pub half_closed: Duration,
    /// See [`PROGRESS`].
    pub progress: Duration,
    /// See [`TOTAL`].
    pub total: Duration,
    /// See [`DRAIN`].
    pub drain: Duration,
    /// See [`LINGER`].
    pub linger: Duration,
    /// See [`CONNECTIONS`].
    pub connections: usize,
    /// See [`PER_HOST`].
    pub per_host: usize,
    /// See [`LISTENERS`].
    pub listeners: usize,
    /// See [`AUDIT_SIZE`].
    pub audit_size: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: HEAD,
            dns: DNS,
            connect: CONNECT,
            hello: HELLO,
            idle: IDLE,
            half_closed: HALF_CLOSED,
            progress: PROGRESS,
            total: TOTAL,
            drain: DRAIN,
            linger: LINGER,
            connections: CONNECTIONS,
            per_host: PER_HOST,
            listeners: LISTENERS,
            audit_size: AUDIT_SIZE,
        }
    }
}
