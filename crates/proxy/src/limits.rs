//! Defines every deadline and size of the proxy, with its unit, bound and reason. Nothing here decides policy.
//!
//! The constants are defaults; [`ProxyLimits`] holds those that a run may set. Each bounds what a stage can make the
//! host spend, so none may be unlimited. A limit that costs the host nothing, and that is off unless a policy sets it, has
//! no constant: it is an `Option` in [`ProxyLimits`].

use std::time::Duration;

/// Time for one whole request head, from accept to the empty line. There is one deadline for all of it, because a
/// timer per read would let one byte a minute hold a slot. Real clients send the head in one segment. Squid's
/// `request_start_timeout` family gives minutes and nginx `client_header_timeout` 60 s; a sandbox on the same
/// machine needs far less.
pub const HEAD: Duration = Duration::from_secs(10);

/// Bytes of a request head, with the empty line. nginx allows 4 x 8 KiB (`large_client_header_buffers`), Apache 8
/// KiB per field; real clients send under 1 KiB with CONNECT. Larger heads get 431.
pub const HEAD_BYTES: usize = 32 * 1024;

/// Bytes of the first line in a tunnel that may still be a request, although its first word is not a usual method.
/// Go's server accepts a head of 1 MiB, others 8 to 64 KiB. Such a line is not buffered.
pub const REQUEST_LINE: usize = 1024 * 1024 + 4096;

/// Fields in one head, as in Apache (`LimitRequestFields 100`) and hyper. More get 431.
pub const FIELDS: usize = 100;

/// Maximum wait for the process lookup, before a decision is written. The lookup takes a tenth of a millisecond and
/// starts at accept. A thread that gets no processor for longer than this delays nobody; the record then names no
/// process.
pub const WHO: Duration = Duration::from_millis(20);

/// Time for one name lookup, including the hosts file. glibc needs up to 5 s x 2 attempts per server
/// (resolv.conf(5)); most clients give up after 30 s.
pub const DNS: Duration = Duration::from_secs(10);

/// Addresses in one answer. More are an error and are not cut, because an address that was not checked must not
/// hide behind one that was. The largest honest answers (CDNs, both families) stay under 32.
pub const ANSWERS: usize = 64;

/// Lookups that run at once, each on a blocking thread (getaddrinfo cannot be cancelled). Waiting for a slot counts
/// against [`DNS`].
pub const LOOKUPS: usize = 32;

/// Bytes of `/etc/hosts`. Block lists of a few MB exist. A larger file is an error and is not cut.
pub const HOSTS_BYTES: u64 = 16 * 1024 * 1024;

/// Age at which the list of the host's own addresses is read again. Addresses change (DHCP, VPN), and one
/// getifaddrs costs about 50 us.
pub const OWN_ADDRESSES: Duration = Duration::from_secs(2);

/// Time to connect to an origin, for all its addresses together. RFC 8305 leaves it open. Browsers use 30 s or
/// more, as does Go's default dialer; a client that waits 15 s for a first byte has usually left.
pub const CONNECT: Duration = Duration::from_secs(15);

/// Delay before the next address is tried while another is pending (RFC 8305 section 5, "Connection Attempt Delay",
/// which recommends 250 ms).
pub const STAGGER: Duration = Duration::from_millis(250);

/// Addresses that one request may dial, so that it cannot open [`ANSWERS`] sockets.
pub const ATTEMPTS: usize = 8;

/// Bytes of one read while the head is incomplete. It bounds what a client may send after its CONNECT head and
/// before the decision and the dial end; the rest waits in the kernel's socket buffer.
pub const EARLY_BYTES: usize = 4 * 1024;

/// Bytes of all incomplete heads and hellos of a proxy: some 1000 heads of the largest size, or ordinary ones on
/// every connection. Beyond it, a client gets 503 or a closed connection.
pub const HELD_BYTES: usize = 32 * 1024 * 1024;

/// Divisor for what one connection may use of the rest of [`HELD_BYTES`]. The largest head stops growing with 2 MiB
/// left, and one of 1 KiB with 64 KiB left.
pub const HELD_PART: usize = 64;

/// Bytes by which the memory for a head or hello grows.
pub const HELD_STEP: usize = 1024;

/// Time for one whole ClientHello after the 200. Clients send it at once, and the round trip stays inside the
/// machine.
pub const HELLO: Duration = Duration::from_secs(10);

/// Bytes of a ClientHello, with record headers. One handshake message may span records of 2^14 bytes (RFC 8446
/// section 5.1); real ones with post-quantum key shares have about 2 KiB.
pub const HELLO_BYTES: usize = 64 * 1024;

/// Bytes that an origin may send before the head of its answer to a plain HTTP request is complete, including 1xx
/// answers. hyper bounds one head by [`FIELDS`] and [`HTTP_BUFFER`]; this bounds all of them (R10).
pub const RESPONSE_HEAD: u64 = 2 * HTTP_BUFFER as u64;

/// Bytes that hyper buffers for one side of a plain HTTP exchange. A tunnel uses the same size, see [`BUFFER`].
pub const HTTP_BUFFER: usize = BUFFER;

/// Bytes of all heads with which an upstream proxy answers one CONNECT. Squid and others stay under 1 KiB.
pub const UPSTREAM_HEAD: usize = 16 * 1024;

/// Interim answers (1xx) of an upstream proxy that are skipped.
pub const UPSTREAM_INTERIM: usize = 8;

/// Time in which a tunnel moves no byte in either direction. It allows long polls and LLM streams that pause. AWS
/// NLB uses 350 s. RFC 5382 asks NATs for 2 h 4 min on established TCP, which would let a stage hold its slots.
pub const IDLE: Duration = Duration::from_secs(15 * 60);

/// Time in which a tunnel moves no byte after one side closed its direction. A peer that has disappeared looks the
/// same, and must not hold its slot for long. HAProxy's documentation suggests 30 s for its `timeout client-fin`;
/// this is twice that, for servers that compute after the question ends.
pub const HALF_CLOSED: Duration = Duration::from_secs(60);

/// Bytes in both directions after which an open connection gets its first progress line. Each further line follows
/// when the bytes have doubled, so 10 GB make some fourteen lines.
pub const PROGRESS_FIRST: u64 = 1_000_000;

/// Time after which an open connection gets a progress line, if it has moved [`PROGRESS_LEAST`] or more since the
/// last one. An open tunnel wakes up after [`HALF_CLOSED`] anyway.
pub const PROGRESS: Duration = Duration::from_secs(60);

/// Minimum bytes for a progress line by time, so that quiet connections do not fill the record. See [`PROGRESS`].
pub const PROGRESS_LEAST: u64 = 64_000;

/// Lifetime of one tunnel, however much it moves. A day is longer than any known stage runs.
pub const TOTAL: Duration = Duration::from_secs(24 * 60 * 60);

/// Refusals of one target after which the observer of the run is told, because the client is probably in a loop.
pub const REFUSED_OFTEN: u64 = 20;

/// Targets that the observer is told about.
pub const REFUSED_TOLD: usize = 20;

/// Refusals of one target that are answered at once. Each further answer takes a millisecond more, up to
/// [`SLOWED_MOST`], so that a client in a loop uses little of the machine.
pub const ANSWERED_AT_ONCE: u64 = 1000;

/// Longest delay of such an answer. Clients that give up sooner also try again sooner.
pub const SLOWED_MOST: Duration = Duration::from_secs(1);

/// Delayed answers at one time. Beyond it, answers are not delayed, so that they do not fill the connection slots.
pub const SLOWED: usize = 64;

/// Time that an open tunnel gets to deliver what its client sent before the run stopped. A stage may send, close
/// and exit faster than its origin reads. The end of a run waits for this, so it is short.
pub const DRAIN: Duration = Duration::from_secs(2);

/// Time after [`DRAIN`] in which connections may write their `close` records; the rest are then aborted.
pub const CLOSING: Duration = Duration::from_millis(250);

/// Connections served at once, per run. Each needs two descriptors (client and upstream), and the usual hard limit
/// is far above. More get 503 with `Retry-After`.
pub const CONNECTIONS: usize = 8192;

/// Connections to one host that are served at once, per run. A host is a name, or the address if the client asked
/// for an address. Browsers open 6 to a host and package managers some 50; the rest is for crawlers.
pub const PER_HOST: usize = 1024;

/// Connections over the limit that may wait for their 503 at once. Beyond it they are closed without an answer.
pub const BUSY: usize = 64;

/// Time for the client to read our reply and close, after a refusal. Without it, unread input would make the kernel
/// send a reset, which can destroy the reply on its way (RFC 9112 section 9.6).
pub const LINGER: Duration = Duration::from_secs(1);

/// Bytes that are read and discarded while lingering.
pub const LINGER_BYTES: usize = 256 * 1024;

/// Time to write one of our own short replies.
pub const REPLY: Duration = Duration::from_secs(5);

/// First and longest pause after a failed accept (EMFILE, ENFILE, ENOBUFS, ENOMEM), doubled each time. The listener
/// stays readable, so the loop would spin without a pause.
pub const ACCEPT_BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Bytes of one tunnel buffer. 16 KiB costs 1.5 times the CPU per byte, and 256 KiB gains nothing on one stream.
/// One direction holds at most this much for a slow reader.
pub const BUFFER: usize = 64 * 1024;

/// Free tunnel buffers in the pool (16 x 64 KiB = 1 MiB).
pub const BUFFERS_KEPT: usize = 16;

/// Reads by one direction of a tunnel, or by the gateway's name server, before it yields to other tasks.
pub const BURST: usize = 16;

/// Programs that the end-of-run summary names for one refused target.
pub const PROGRAMS: usize = 4;

/// Distinct denied `host:port:reason` entries in the summary, and as many failed ones. Later ones are only counted.
/// The terminal shows ten at the end of a run.
pub const TALLY: usize = 1024;

/// The longest invalid host name in the summary, in characters.
pub const WRONG_NAME: usize = 80;

/// Distinct targets that are counted as reached, and their hosts. Beyond it the count no longer grows.
pub const TALLY_REACHED: usize = 16 * 1024;

/// Lines and bytes of the denials file that the stage can read. Its last line says that it stopped.
pub const DENIALS: (u64, u64) = (1000, 256 * 1024);

/// Bytes of untrusted text (raw host, error, SNI) in one record line, escaped.
pub const TEXT: usize = 256;

/// Refused requests that get record lines of their own: a burst, and a rate per second. A stage that needs
/// something tries some dozens of times; a thousand refusals make about 1 MB. The others are counted
/// ([`FOLD_REFUSALS`]).
pub const REFUSALS: (u64, u64) = (1000, 1);

/// Failed or pending dials that get record lines of their own: a burst, and a rate per second. The others are
/// counted like refusals. A connection that opens always gets its own lines.
pub const FAILED_DIALS: (u64, u64) = (1000, 1);

/// Time for which equal refusals of a flood are counted before their line is written. `kill -9` can lose this much
/// of the counts.
pub const FOLD_REFUSALS: Duration = Duration::from_secs(1);

/// Record lines about a flood in each [`FOLD_REFUSALS`]; the oldest counts come first. A day of these is at most
/// 450 MB.
pub const FOLDED_LINES: usize = 8;

/// The number of [`FOLDED_LINES`] that name a host. The other refusals are counted by reason.
pub const FOLDED_APART: usize = 4;

/// Distinct attempts around the proxy that get record lines of their own in a run. An attempt is a destination and
/// its protocol, or a name. A program that ignores the proxy makes some dozens; later ones are counted together.
pub const ATTEMPTS_APART: usize = 1000;

/// Distinct attempts that get lines of their own: a burst, and a rate per second. Otherwise a stage that scans a
/// network would write the record at its speed.
pub const ATTEMPTS_RATE: (u64, u64) = (200, 50);

/// Time between two lines about equal attempts, first and longest; it doubles with each line. With
/// [`ATTEMPTS_APART`] that is less than two lines a second, some 100 MB a day (A08).
pub const FOLD: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// Lines about attempts that are written in one go, which takes about a millisecond.
pub const FOLDS_AT_ONCE: usize = 100;

/// Lines about single attempts that are written at the end of a record whose disk is full. The other counts are
/// added up.
pub const FOLDS_LAST: usize = 32;

/// Bytes of a packet that the tap reads. IPv4 has at most 60 bytes of header (RFC 791), IPv6 has 40 and its
/// extensions, which Linux does not let ordinary programs add.
pub const PACKET: usize = 128;

/// Extension headers of IPv6 that the tap skips. RFC 8200 section 4.1 lists each once, and one of them twice.
pub const PACKET_HEADERS: usize = 8;

/// Packets that the tap reads before it pauses for [`TAP_PAUSE`]; this limits it to a twentieth of a processor. The
/// kernel counts packets that do not fit in the queue meanwhile.
pub const TAP_BURST: usize = 256;

/// Pause of the tap after [`TAP_BURST`] packets.
pub const TAP_PAUSE: Duration = Duration::from_millis(5);

/// Packets that the tap reads at the end of a run. It is more than the queue of a socket holds: at most 2 MiB, as
/// the kernel doubles the requested size (socket(7)), at some 700 bytes per packet.
pub const TAP_LAST: usize = 4096;

/// Interval at which the tap reads its drop counter, and due lines about attempts are written.
pub const TAP_LOOK: Duration = Duration::from_secs(1);

/// Bytes of a question to the gateway's name server. Header, one name and the usual EDNS fields are under 400, and
/// clients pad only on encrypted connections (RFC 8467). A longer question is malformed, and ends a connection.
pub const QUESTION_BYTES: usize = QUESTION_SIZE as usize;

/// [`QUESTION_BYTES`] as a 16-bit number, which clients with EDNS are told.
pub(crate) const QUESTION_SIZE: u16 = 1024;

/// Bytes of an answer of the name server: what any client accepts in a datagram (RFC 1035 section 2.3.4). The
/// longest name with everything that may follow it needs 326, the name of an address 368.
pub const ANSWER_BYTES: usize = 512;

/// Names that the gateway gives addresses to in a run. A stage may ask for any number of names below a granted
/// wildcard, and each entry lasts as long as the run.
pub const NAMES: usize = 4096;

/// Listeners of the gateway: two for each port of each name. Each is a descriptor of the host, which often has
/// 4096, and connections need descriptors too.
pub const LISTENERS: usize = 2048;

/// Time to open all listeners of one name. A client waits five seconds for an answer (resolv.conf(5)).
pub const LISTEN: Duration = Duration::from_secs(3);

/// Questions that wait for listeners at once. Real stages begin with a handful of names. Beyond it a client is told
/// to ask again.
pub const LISTENING: usize = 32;

/// Connections to the name server at once; others wait in the accept queue. Clients connect only after a truncated
/// answer, and no answer here is truncated.
pub const NAME_CONNECTIONS: usize = 16;

/// Time between two questions on such a connection. RFC 7766 section 6.2.3 recommends some seconds.
pub const NAME_IDLE: Duration = Duration::from_secs(10);

/// Bytes of a record: some 700 000 connections. New connections are then refused, and the run goes on.
pub const AUDIT_SIZE: u64 = 1 << 30;

/// Divisor of [`AUDIT_SIZE`] for the part that is reserved for later lines: closes of open connections, counts, and
/// the end.
pub const AUDIT_KEPT: u64 = 4;

/// Upper bound of that reserve. 8192 connections have a close line of some 700 bytes each, and few of them a late
/// refusal.
pub const AUDIT_KEPT_MOST: u64 = 16 << 20;

/// The limits of one run. The defaults are the constants of this module.
#[derive(Debug, Clone)]
pub struct ProxyLimits {
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

impl Default for ProxyLimits {
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
