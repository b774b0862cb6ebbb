//! `exeat proxy` as a service: a policy that is reloaded, and runs that use it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::audit::{AuditLog, sha256_hex};
use e2e::case::{Cases, Cx};
use e2e::dns::Answer;
use e2e::run::Live;
use e2e::wait_for;
use nix::sys::signal::Signal;

pub(crate) fn cases(list: &mut Cases) {
    list.users("proxy::h16_a_changed_file_is_read_again", changed_file);
    list.once("proxy::h16_a_faulty_file_keeps_the_old_policy", faulty_file);
    list.once("proxy::an_open_tunnel_survives_a_reload", open_tunnel);
    list.once("proxy::k38_a_successor_and_a_second_signal", successor);
    list.once("proxy::a_ceiling_that_comes_later_counts", later_ceiling);
    list.once("proxy::stdin_is_not_read_again", from_stdin);
    list.matrix("proxy::k38_a_run_through_another_s_proxy", through_another);
    list.bridges("proxy::k38_a_proxy_that_ends_in_mid_run", ends_in_mid_run);
    list.once("proxy::k38_a_proxy_that_is_not_there", not_there);
    list.once("proxy::k38_two_runs_through_one_proxy", two_runs);
    list.users("proxy::k38_the_other_s_policy_is_the_only_one", only_one_policy);
    list.users("proxy::r01_no_descriptor_is_left", no_descriptors);
    list.users("proxy::r11_no_client_sends_a_descriptor", no_client_sends);
    list.once("proxy::r02_p19_slow_peers_in_flat_memory", slow_peers);
    list.once("proxy::l08_thousands_of_heads_in_little_memory", unfinished_heads);
}

/// The deadline for something that should take a second.
const SOON: Duration = Duration::from_secs(15);

/// An `exeat proxy` on a Unix socket, with its messages in a file.
struct Proxy<'a> {
    live: Live<'a>,
    socket: PathBuf,
    said: PathBuf,
}

impl<'a> Proxy<'a> {
    /// Starts a proxy with its record in the default place, and waits until it listens.
    fn start(cx: &'a Cx, name: &str, words: &[&str]) -> Self {
        Self::start_fed(cx, name, words, "")
    }

    fn start_fed(cx: &'a Cx, name: &str, words: &[&str], stdin: &str) -> Self {
        let socket = cx.home().join(format!("{name}.sock"));
        let said = cx.home().join(format!("{name}.said"));
        let listen = format!("unix:{}", socket.display());
        // Removes the messages of an earlier proxy.
        let _ = fs::remove_file(&said);
        let words = ["proxy", "--listen", &listen].into_iter().chain(words.iter().copied());
        let live = cx.exeat_plain(words).stdin(stdin).redirect(&format!("2>{}", said.display())).start();
        let proxy = Self { live, socket, said };
        proxy.says("listening on");
        proxy
    }

    fn messages(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Waits until it has printed this.
    fn says(&self, text: &str) {
        wait_for(SOON, &format!("`{text}`, of the proxy"), || self.messages().contains(text).then_some(()));
    }

    fn record(&self) -> PathBuf {
        let said = self.messages();
        let place = said.lines().find_map(|line| line.split_once("; record: "));
        place.unwrap_or_else(|| panic!("no record in {said}")).1.into()
    }

    /// Asks for a target. Returns the status and the connection.
    fn connect(&self, target: &str) -> (String, UnixStream) {
        let mut stream = UnixStream::connect(&self.socket).expect("the proxy's socket");
        stream.set_read_timeout(Some(SOON)).expect("a deadline");
        stream
            .write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes())
            .expect("a request");
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).expect("an answer") == 1 {
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).expect("ASCII");
        (head.split(' ').nth(1).unwrap_or("none").to_string(), stream)
    }

    fn ask(&self, target: &str) -> String {
        self.connect(target).0
    }

    /// Waits until a target gets this answer.
    fn answers(&self, target: &str, status: &str) {
        wait_for(SOON, &format!("{status} for {target}"), || (self.ask(target) == status).then_some(()));
    }

    fn end(self) -> String {
        self.live.signal(Signal::SIGTERM);
        self.live.wait().exits(0);
        fs::read_to_string(&self.said).unwrap_or_default()
    }
}

impl Proxy<'_> {
    /// Returns the numbers of its open descriptors.
    fn descriptors(&self) -> BTreeSet<u64> {
        let open = fs::read_dir(format!("/proc/{}/fd", self.live.pid())).expect("/proc/PID/fd");
        open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
    }

    /// Sets its descriptor limit: numbers from this one on are forbidden.
    fn may_open_below(&self, cx: &Cx, number: u64) {
        let pid = self.live.pid().to_string();
        let mut words = cx.bench().become_user(cx.is_root());
        words.extend(["prlimit", "--pid", &pid, &format!("--nofile={number}:")].map(str::to_owned));
        let set = Command::new(&words[0]).args(&words[1..]).status();
        assert!(set.expect("prlimit, from util-linux").success());
    }

    /// Returns an accepted client that has sent nothing.
    fn silent(&self) -> UnixStream {
        let before = self.descriptors().len();
        let stream = UnixStream::connect(&self.socket).expect("the proxy's socket");
        stream.set_read_timeout(Some(SOON)).expect("a deadline");
        wait_for(SOON, "an accepted connection", || (self.descriptors().len() > before).then_some(()));
        stream
    }
}

/// Sends a request and reads until the proxy closes or accepts.
fn ask_on(stream: &mut UnixStream, target: &str) -> String {
    stream
        .write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes())
        .expect("a request");
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") && stream.read(&mut byte).expect("an answer") == 1 {
        text.push(byte[0]);
    }
    String::from_utf8(text).expect("ASCII")
}

/// R01: a proxy without free descriptors reports it, waits without spinning, and serves again when one is free. Open
/// connections do not notice.
fn no_descriptors(cx: &Cx) {
    let target = format!("{}:7", cx.good_addrs().0);
    let proxy = Proxy::start(cx, "proxy", &["--allow", &target]);
    let beside = Proxy::start(cx, "beside", &["--allow", &target]);
    let mut early = proxy.silent();
    let had = proxy.descriptors();
    let free = (0..).find(|number| !had.contains(number)).expect("a number");
    proxy.may_open_below(cx, free);
    let answer = ask_on(&mut early, &target);
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\r\nRetry-After: 1\r\n"), "{answer}");

    // The closed connection frees a descriptor; these need more.
    let mut waiting: Vec<_> =
        (0..20).map(|_| UnixStream::connect(&proxy.socket).expect("the backlog")).collect();
    drop(early);
    let (ticks, began) = (proxy.live.ticks(), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let spent = proxy.live.ticks() - ticks;
    assert!(spent < 10, "{spent} ticks of CPU in {:?}", began.elapsed());
    assert!(proxy.descriptors().len() <= had.len());
    assert_eq!(beside.ask(&target), "200");

    proxy.may_open_below(cx, 1000);
    for stream in &mut waiting[10..] {
        stream.set_read_timeout(Some(SOON)).expect("a deadline");
        assert!(ask_on(stream, &target).starts_with("HTTP/1.1 200 "));
    }
    drop(waiting);
    proxy.end();
    beside.end();
}

/// R11: no client sends the proxy a descriptor, whose close could block it for all of them.
fn no_client_sends(cx: &Cx) {
    cx.needs_linux(6, 16);
    let proxy = Proxy::start(cx, "proxy", &[]);
    let said = Command::new(cx.dir().join(cx.probe())).arg("pass-to").arg(&proxy.socket).output();
    assert_eq!(String::from_utf8_lossy(&said.expect("the probe").stdout), "EPERM\n");
    assert_eq!(proxy.ask("a.example:443"), "403");
    proxy.end();
}

/// The number of peers that do not read, do not finish, or do not start.
const PEERS: usize = 60;

/// The most memory of one peer of each of the five kinds, in kB: a buffer for a tunnel, four for a plain request, a
/// head, and their state. Then the most for everything else.
const EACH_KB: u64 = 2 * 72 + 2 * 320 + 40;
const BESIDES_KB: u64 = 8 * 1024;

/// R02, P19, P20: a slow peer costs one buffer a direction, or one head. Others are served meanwhile.
fn slow_peers(cx: &Cx) {
    let good = cx.good();
    let targets = [7, 80, 9001, 9005].map(|port| format!("{good}:{port}"));
    let mut words = Vec::new();
    targets.iter().for_each(|target| words.extend(["--allow", target]));
    let proxy = Proxy::start(cx, "proxy", &words);
    let [echo, _, bulk, never_reads] = &targets;
    let rest = proxy.live.memory_kb("VmRSS");
    let mut held = Vec::new();
    for _ in 0..PEERS {
        // An origin sends without end, and the client does not read.
        let (status, mut stream) = proxy.connect(bulk);
        assert_eq!(status, "200");
        stream.write_all(&(1_u64 << 30).to_be_bytes()).expect("a number");
        held.push(stream);
        // The same with a plain request.
        let mut stream = UnixStream::connect(&proxy.socket).expect("the proxy's socket");
        let request = format!("GET http://{good}/bytes/2000000 HTTP/1.1\r\nHost: {good}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("a request");
        held.push(stream);
        // A client sends without end, and the origin does not read; in a tunnel, and in a request.
        let (_, stream) = proxy.connect(never_reads);
        held.push(stream);
        let mut stream = UnixStream::connect(&proxy.socket).expect("the proxy's socket");
        let head =
            format!("POST http://{never_reads}/ HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("a request");
        held.push(stream);
        // A head without an end.
        let mut stream = UnixStream::connect(&proxy.socket).expect("the proxy's socket");
        stream
            .write_all(format!("GET http://{good}/ HTTP/1.1\r\nX: {}", "x".repeat(20_000)).as_bytes())
            .expect("a head");
        held.push(stream);
    }
    // Every peer that may still send does.
    let block = vec![b'x'; 64 * 1024];
    for _ in 0..20 {
        for stream in held.chunks(5).flat_map(|chunk| &chunk[2..4]) {
            stream.set_nonblocking(true).expect("a mode");
            let mut stream = stream;
            while matches!(stream.write(&block), Ok(1..)) {}
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let grown = proxy.live.memory_kb("VmHWM") - rest;
    let most = PEERS as u64 * EACH_KB + BESIDES_KB;
    assert!(grown < most, "it held {grown} kB for {} slow peers", held.len());
    assert_eq!(proxy.ask(echo), "200");
    drop(held);
    proxy.end();
}

/// L08: 8000 unfinished heads and hellos together take less than 70 MiB: 32 MiB of bytes, and under 3 kB for each
/// connection. An honest client is served meanwhile.
fn unfinished_heads(cx: &Cx) {
    let good = cx.good();
    let (echo, tls) = (format!("{good}:7"), format!("{good}:8443"));
    let proxy = Proxy::start(cx, "proxy", &["--allow", &echo, "--allow", &tls]);
    let rest = proxy.live.memory_kb("VmRSS");
    let head = format!("GET http://{good}/ HTTP/1.1\r\nHost: {good}\r\nX: {}", "a".repeat(32_600));
    // A record of 16 KiB, which is not the last.
    let record = [&[22, 3, 1, 0x40, 0, 1, 0, 0xfa, 0, 3, 3][..], &[b'a'; 16_379]].concat();
    let hello = record.repeat(3);
    let mut held = Vec::new();
    // The first KiB of each, and then 4 KiB more of each at a time: growing buffers leave holes behind.
    let bytes = |number: usize| if number.is_multiple_of(8) { &hello[..] } else { head.as_bytes() };
    for number in 0..8000 {
        let mut stream = if number % 8 == 0 {
            match proxy.connect(&tls) {
                (status, stream) if status == "200" => stream,
                _ => continue,
            }
        } else {
            UnixStream::connect(&proxy.socket).expect("the proxy's socket")
        };
        stream.set_nonblocking(true).expect("a mode");
        // A refused head is not read to its end.
        let _ = stream.write(&bytes(number)[..1024]);
        held.push((number, stream));
        if number % 500 == 0 {
            assert_eq!(proxy.ask(&echo), "200", "beside {number}");
        }
    }
    for part in 0..8 {
        for (number, stream) in &mut held {
            let more = bytes(*number).get(1024 + part * 4096..).unwrap_or_default();
            let _ = stream.write(more.get(..4096).unwrap_or(more));
        }
        assert_eq!(proxy.ask(&echo), "200", "beside part {part}");
    }
    let grown = proxy.live.memory_kb("VmHWM") - rest;
    assert!(grown < 70 * 1024, "it held {grown} kB for {} clients", held.len());
    drop(held);
    proxy.end();
}

/// Writes a policy file into HOME, which no stage writes.
fn policy(cx: &Cx, name: &str, rules: &[&str]) -> PathBuf {
    let path = cx.home().join(name);
    fs::write(&path, text(rules)).expect("a policy");
    cx.bench().give(&path, cx.is_root());
    path
}

fn text(rules: &[&str]) -> String {
    let rules: Vec<_> = rules.iter().map(|rule| format!("{rule:?}")).collect();
    format!("[network]\nallow = [{}]\n", rules.join(", "))
}

fn words(path: &Path) -> &str {
    path.to_str().expect("ASCII")
}

/// H16, K38: a change applies within a bounded time and without a restart, however the file was written; SIGHUP does
/// not end the proxy; the record says from when each policy held.
fn changed_file(cx: &Cx) {
    let (one, two) = (format!("{}:7", cx.good()), cx.name("two", Answer::Addrs(vec![cx.spare_addrs(0).0])));
    let two = format!("{two}:7");
    let file = policy(cx, "policy.toml", &[&one]);
    let rules = cx.home().join("more.rules");
    fs::write(&rules, "").expect("a list");
    cx.bench().give(&rules, cx.is_root());
    let list = format!("@{}", rules.display());
    let proxy = Proxy::start(cx, "proxy", &["--policy", words(&file), "--allow", &list]);
    assert_eq!((proxy.ask(&one), proxy.ask(&two)), ("200".into(), "403".into()));

    let began = Instant::now();
    fs::write(&file, text(&[&two])).expect("a change in place");
    proxy.answers(&two, "200");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(proxy.ask(&one), "403");

    let new = policy(cx, "policy.toml.new", &[&one]);
    fs::rename(&new, &file).expect("an editor's way");
    proxy.answers(&one, "200");
    assert_eq!(proxy.ask(&two), "403");

    fs::write(&rules, format!("{two}\n")).expect("a change in a list");
    proxy.answers(&two, "200");
    assert_eq!(proxy.ask(&one), "200");

    let times = |what: &str| proxy.messages().matches(what).count();
    let before = times("the policy was read again");
    proxy.live.signal(Signal::SIGHUP);
    wait_for(SOON, "another reading", || (times("the policy was read again") > before).then_some(()));
    assert_eq!(proxy.ask(&one), "200");

    let record = proxy.record();
    proxy.end();
    let log = AuditLog::read(&record);
    log.sound();
    let notes: Vec<_> =
        log.events("note").into_iter().filter(|note| note["what"] == "policy_reload").collect();
    assert_eq!(notes.len(), 4, "{notes:#?}");
    assert!(notes.iter().all(|note| note.get("error").is_none()), "{notes:#?}");
    // Each decision follows the policy that was announced last, and that policy is stored.
    let mut holds = log.records()[0]["policy_sha256"].clone();
    let mut digests = vec![holds.clone()];
    for line in log.records() {
        match line["event"].as_str() {
            Some("note") => {
                holds = line["policy_sha256"].clone();
                digests.push(holds.clone());
                let digest = holds.as_str().expect("a digest");
                let kept = record.with_extension(format!("policy-{}.json", &digest[..16]));
                let kept = fs::read(&kept).unwrap_or_else(|error| panic!("{}: {error}", kept.display()));
                assert_eq!(sha256_hex(&kept), digest);
            }
            Some("decision") => assert_eq!(line["policy_sha256"], holds, "{line}"),
            _ => {}
        }
    }
    assert_ne!(digests[0], digests[1]);
    assert_ne!(digests[2], digests[3]);
    // The last reload found no change.
    assert_eq!(digests[3], digests[4]);
    let sources = log.events("policy");
    assert_eq!(sources.len(), 2 * 5, "{sources:#?}");
    let now = sha256_hex(&fs::read(&file).expect("the policy"));
    let last = sources.iter().rev().find(|source| source["role"] == "policy").expect("a source");
    assert_eq!(last["file_sha256"], now.as_str());
    cx.exeat_plain(["audit", "show", words(&record)])
        .run()
        .exits(0)
        .shows("policy reload")
        .shows("from here on");
}

/// H16: a file that cannot be read changes nothing, and is reported and recorded with its line; a missing file does not
/// lift its rules either.
fn faulty_file(cx: &Cx) {
    let (one, two) = (format!("{}:7", cx.good()), format!("{}:8", cx.good()));
    let file = policy(cx, "policy.toml", &[&one]);
    let bound = policy(cx, "bound.toml", &[&one]);
    let record = cx.home().join("proxy.jsonl");
    let flags = ["--policy", words(&file), "--ceiling", words(&bound), "--audit", words(&record)];
    let proxy = Proxy::start(cx, "proxy", &flags);
    assert_eq!(proxy.ask(&one), "200");

    fs::write(&file, "[network]\nallow = [\"*x.com\"]\n").expect("a fault");
    proxy.says("policy.toml:2:11");
    assert!(proxy.messages().contains("exeat: error: the policy stays as it was: "), "{}", proxy.messages());
    assert_eq!((proxy.ask(&one), proxy.ask(&two)), ("200".into(), "403".into()));

    fs::write(&file, text(&[&one, &two])).expect("mended");
    proxy.says("the policy was read again");
    assert_eq!(proxy.ask(&two), "403", "the ceiling bounds it still");
    fs::remove_file(&bound).expect("the ceiling");
    proxy.says("bound.toml`: no such file");
    assert_eq!(proxy.ask(&two), "403", "a ceiling that is gone lifts nothing");
    nix::unistd::mkfifo(&bound, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    proxy.says("bound.toml` is no file any more");
    assert_eq!((proxy.ask(&one), proxy.ask(&two)), ("200".into(), "403".into()));

    let said = proxy.end();
    let log = AuditLog::read(&record);
    let notes: Vec<_> = log.sound().events("note").into_iter().collect();
    assert_eq!(notes.len(), 4, "{notes:#?}\n{said}");
    for (note, faulty) in notes.iter().zip([true, false, true, true]) {
        assert_eq!(note["what"], "policy_reload");
        assert_eq!(
            (note.get("error").is_some(), note.get("policy_sha256").is_some()),
            (faulty, !faulty),
            "{note}"
        );
    }
    assert!(!record.with_extension("policy.json").exists(), "nobody asked for it");
}

/// A07, K38: a proxy that was told to end gives up its socket at once, to one that starts while it drains; a second
/// signal ends the drain, with the `close` of every connection on record.
fn successor(cx: &Cx) {
    let target = format!("{}:7", cx.good_addrs().0);
    let first = Proxy::start(cx, "proxy", &["--allow", &target]);
    let record = first.record();
    let (status, mut tunnel) = first.connect(&target);
    assert_eq!(status, "200");
    tunnel.write_all(b"open").expect("the tunnel takes it");
    tunnel.read_exact(&mut [0; 4]).expect("the tunnel gives it");
    first.live.signal(Signal::SIGTERM);
    wait_for(SOON, "the place to be free", || (!first.socket.exists()).then_some(()));
    let second = Proxy::start(cx, "proxy", &["--allow", &target]);
    first.live.signal(Signal::SIGTERM);
    first.live.wait().exits(0);
    assert_eq!(second.ask(&target), "200");
    second.end();

    let log = AuditLog::read(&record);
    log.sound();
    let events: Vec<_> = log.records().iter().filter_map(|line| line["event"].as_str()).collect();
    assert_eq!(events[events.len() - 4..], ["decision", "close", "run_end", "checkpoint"], "{events:?}");
    assert_eq!(log.events("close")[0]["ended_by"], "killed");
}

fn open_tunnel(cx: &Cx) {
    let one = format!("{}:7", cx.good());
    let file = policy(cx, "policy.toml", &[&one]);
    let proxy = Proxy::start(cx, "proxy", &["--policy", words(&file)]);
    let (status, mut tunnel) = proxy.connect(&one);
    assert_eq!(status, "200");
    fs::write(&file, text(&[])).expect("closed");
    proxy.answers(&one, "403");
    tunnel.write_all(b"still open").expect("the tunnel takes it");
    let mut heard = [0; 10];
    tunnel.read_exact(&mut heard).expect("the tunnel gives it");
    assert_eq!(&heard, b"still open");
    drop(tunnel);
    let record = proxy.record();
    proxy.end();
    AuditLog::read(&record).sound();
}

/// A reload reads a new ceiling as a fresh start would: its hosts become unreachable within the reload's interval.
fn later_ceiling(cx: &Cx) {
    let one = format!("{}:7", cx.good());
    let proxy = Proxy::start(cx, "proxy", &["--allow", &one]);
    assert_eq!(proxy.ask(&one), "200");
    let config = cx.home().join(".config/exeat");
    fs::create_dir_all(&config).expect("the configuration directory");
    fs::write(config.join("policy.toml"), text(&[])).expect("the user's ceiling");
    proxy.answers(&one, "403");
    fs::remove_file(config.join("policy.toml")).expect("lifted by the user");
    proxy.answers(&one, "200");
    proxy.end();
}

/// A policy from stdin cannot be reloaded: this is reported, and it holds, even if another file of the policy changes.
fn from_stdin(cx: &Cx) {
    let one = format!("{}:7", cx.good());
    let list = cx.home().join("list");
    fs::write(&list, "").expect("a list");
    let more = format!("@{}", list.display());
    let proxy = Proxy::start_fed(cx, "proxy", &["--policy", "-", "--allow", &more], &text(&[&one]));
    proxy.live.signal(Signal::SIGHUP);
    proxy.says("the policy stays as it was: stdin cannot be read again");
    assert_eq!(proxy.ask(&one), "200");
    fs::write(&list, "other.test:7\n").expect("a change");
    wait_for(SOON, "a second word", || {
        (proxy.messages().matches("stdin cannot be read again").count() == 2).then_some(())
    });
    assert_eq!(proxy.ask(&one), "200");
    let record = proxy.record();
    proxy.end();
    let notes = AuditLog::read(&record).sound().events("note").len();
    assert_eq!(notes, 2);
}

/// Returns the proxy's address for a run.
fn place(proxy: &Proxy<'_>) -> String {
    format!("unix:{}", proxy.socket.display())
}

/// K38: the other proxy's policy decides and its record has the details; the rest of this run's record names it. The
/// sandbox does not contain the socket.
fn through_another(cx: &Cx) {
    let good = format!("{}:7", cx.good());
    let proxy = Proxy::start(cx, "proxy", &["--allow", &good]);
    let via = place(&proxy);
    let probe = cx.probe();
    let script = format!(
        "{probe} echo {good} 3000000; {probe} client-closes {good} 1000; {probe} ask {}:7 | head -n 1
         {probe} unix {}; {probe} tcp 93.184.216.34:7; ls /run/exeat/denials.jsonl",
        cx.evil(),
        proxy.socket.display()
    );
    let done = cx.exeat(["run", "--via", &via, "--", "sh", "-c", &script]).run();
    let said = done.exits(0).stdout();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "ok: 3000000", "{done:?}");
    assert_eq!(lines[1], "c".repeat(1000), "{done:?}");
    assert!(lines[2].starts_with("HTTP/1.1 403 exeat denied"), "{done:?}");
    assert_eq!(lines[3..], ["ENOENT", "ENETUNREACH", "/run/exeat/denials.jsonl"], "{done:?}");
    done.says(&format!("exeat: decisions are in the record of the proxy at {via}\n"));

    let own = done.record();
    let start = &own.records()[0];
    assert_eq!(start["proxy"], via.as_str(), "{start}");
    assert_eq!(start["enforcement"]["net"], format!("partial: the proxy at {via} decides what is reachable"));
    assert!(start.get("policy_sha256").is_none(), "{start}");
    assert!(own.events("decision").is_empty());
    assert_eq!(own.events("run_end")[0]["connections"], 3);
    let record = proxy.record();
    proxy.end();
    let theirs = AuditLog::read(&record);
    theirs.sound();
    let verdicts: Vec<_> = theirs.events("decision").iter().map(|line| line["verdict"].clone()).collect();
    assert_eq!(verdicts, ["allow", "allow", "deny"]);
    let close = theirs.close_of(theirs.decisions(&cx.good())[0]);
    assert_eq!((&close["bytes_up"], &close["bytes_down"]), (&3_000_000.into(), &3_000_000.into()));
    let shown = cx.exeat_plain(["audit", "show", words(done.record_path().expect("a record"))]).run();
    shown.exits(0).shows(&format!("proxy     {via} (its record has the decisions)"));
}

/// K38: without the proxy nothing gets out, and a proxy that replaces it is used.
fn ends_in_mid_run(cx: &Cx) {
    let good = format!("{}:7", cx.good());
    let proxy = Proxy::start(cx, "proxy", &["--allow", &good]);
    let probe = cx.probe();
    let ask = format!("{probe} ask {good} | head -n 1");
    let script = format!(
        "{ask}; {probe} hold {good} 1 <&3 >held & {ask}
         while ! grep -q holding held; do sleep 0.05; done; echo first
         until [ -e gone ]; do sleep 0.05; done; {ask}; {ask}; {probe} tcp {}:7; echo second
         until [ -e back ]; do sleep 0.05; done; {ask}",
        cx.good_addrs().0
    );
    let script = format!("exec 3<&0; {script}");
    let via = place(&proxy);
    let run = cx.exeat(["run", "--via", &via, "--", "sh", "-c", &script]).stdin_open();
    let mut live = run.start();
    live.until_prints("first");
    proxy.live.signal(Signal::SIGKILL);
    proxy.live.wait();
    cx.write("gone", "");
    live.until_prints("second");
    let again = Proxy::start(cx, "proxy", &["--allow", &good]);
    cx.write("back", "");
    let done = live.wait();
    let said = done.exits(0).stdout();
    let lines: Vec<&str> = said.lines().collect();
    let [one, two, "first", three, four, "ENETUNREACH", "second", five] = lines[..] else {
        panic!("{done:?}")
    };
    for ok in [one, two, five] {
        assert!(ok.starts_with("HTTP/1.1 200"), "{done:?}");
    }
    for lost in [three, four] {
        assert_eq!(lost, "HTTP/1.1 503 the proxy of this run is not there", "{done:?}");
    }
    done.says(&format!("exeat: 2 connections found no proxy at {via}: "));
    let own = done.record();
    let notes = own.events("note");
    assert_eq!(notes.len(), 1, "written once: {notes:?}");
    assert_eq!(notes[0]["what"], "proxy_lost");
    again.end();
}

/// K38: a fault of the proxy's address is reported before anything starts.
fn not_there(cx: &Cx) {
    let at = |path: &Path| format!("unix:{}", path.display());
    let run = |via: &str| cx.exeat(["run", "--via", via, "--", "touch", "started"]).run();
    let home = cx.home().join("proxy.sock");
    run(&at(&home)).exits(125).says("cannot connect to the proxy at `unix:").says("no such file");
    drop(std::os::unix::net::UnixListener::bind(&home).expect("what a killed proxy leaves"));
    cx.bench().give(&home, cx.is_root());
    run(&at(&home)).exits(125).says("connection refused").says("hint: exeat proxy --listen unix:");
    fs::remove_file(&home).expect("the socket");
    fs::write(&home, "").expect("a file");
    run(&at(&home)).exits(2).says("is no socket");
    fs::remove_file(&home).expect("the file");
    let _root = std::os::unix::net::UnixListener::bind(&home).expect("a socket");
    fs::set_permissions(&home, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("root's alone");
    if cx.bench().powers == e2e::bench::Powers::Root {
        run(&at(&home)).exits(125).says("permission denied");
    }
    let inside = cx.dir().join("proxy.sock");
    let _inside = std::os::unix::net::UnixListener::bind(&inside).expect("a socket");
    cx.bench().give(&inside, cx.is_root());
    run(&at(&inside)).exits(2).says("which the stage can write");
    for wrong in ["/run/proxy.sock", "tcp:127.0.0.1:3128", "unix:"] {
        run(wrong).exits(2);
    }
    assert!(!cx.dir().join("started").exists());
}

/// K38: each run has a separate sandbox and record, and the proxy's record has both.
fn two_runs(cx: &Cx) {
    let good = format!("{}:7", cx.good());
    let proxy = Proxy::start(cx, "proxy", &["--allow", &good]);
    let (via, probe) = (place(&proxy), cx.probe());
    let start = |name: &str| {
        let script = format!(
            "{probe} hold {good} 1 >{name} & while ! grep -q holding {name}; do sleep 0.05; done; echo here
             until [ -e go ]; do sleep 0.05; done; {probe} echo {good} 1000"
        );
        cx.exeat(["run", "--via", &via, "--", "sh", "-c", &script]).stdin_open().start()
    };
    let mut runs = ["one", "two"].map(start);
    for run in &mut runs {
        run.until_prints("here");
    }
    cx.write("go", "");
    for run in runs {
        let done = run.wait();
        assert!(done.exits(0).stdout().ends_with("ok: 1000\n"), "{done:?}");
        assert_eq!(done.record().events("run_end")[0]["connections"], 2);
    }
    let record = proxy.record();
    proxy.end();
    let theirs = AuditLog::read(&record);
    assert_eq!(theirs.sound().decisions(&cx.good()).len(), 4);
}

/// K38, H16: this run's own rules about hosts could not be enforced, so they are refused; other settings hold.
fn only_one_policy(cx: &Cx) {
    let good = format!("{}:7", cx.good());
    let proxy = Proxy::start(cx, "proxy", &["--allow", &good]);
    let via = place(&proxy);
    let file = |name: &str, text: &str| {
        let path = cx.home().join(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let empty = file("empty.toml", "[network]\nallow = []\n");
    let none = file("none.json", r#"{"ro_binds": [], "network": false, "env_allowlist": []}"#);
    let bound = file("bound.toml", "[limits]\npids = 1000\n");
    let reads = r#"[{"effect": "FsRead", "path": "/usr"}]"#;
    for (flags, said) in [
        (["--allow", &good], "`--allow` says nothing with `--via`"),
        (["--deny", &good], "`--deny` says nothing with `--via`"),
        (["--tls-off", &good], "`--tls-off` says nothing with `--via`"),
        (["--mode", "report"], "`--mode` says nothing with `--via`"),
        (["-p", "npm"], "`--preset` says nothing with `--via`"),
        (["--policy", &empty], "empty.toml says which hosts are reachable"),
        (["--policy", &none], "none.json says which hosts are reachable"),
        (["--effects", reads], "`--effects` cannot be held with `--via`"),
        (["--ceiling", &bound], "bound.toml bounds the hosts of every run"),
    ] {
        let words = ["run", "--via", &via].into_iter().chain(flags).chain(["--", "touch", "started"]);
        cx.exeat(words).run().exits(2).says(said);
        cx.exeat_plain(["env", "--via", &via].into_iter().chain(flags)).run().exits(2).says(said);
    }
    for (flags, said) in [
        (&["--set", "network.socks5=true"][..], "--set says which hosts are reachable"),
        (&["--set", "limits.connections_per_host=3"], "connections to one host"),
        (&["--set", "sandbox.transparent=on"], "the transparent gateway"),
        (&["--host-port", "5432"], "`--host-port` says nothing with `--via`"),
    ] {
        let words = ["run", "--via", &via].into_iter().chain(flags.iter().copied());
        let words = words.chain(["--", "touch", "started"]);
        cx.exeat(words).run().exits(2).says(said);
    }
    cx.exeat(["run", "--via", &via, "--require", "full", "--", "touch", "started"])
        .run()
        .exits(125)
        .says("network: partial: the proxy at unix:");
    let plan = cx.exeat(["run", "--dry-run", "--via", &via, "--", "touch", "started"]).run();
    plan.exits(0).shows(&format!("via          {via}\n")).shows("those of the proxy that it goes through");
    let plan =
        cx.exeat(["run", "--dry-run", "--format", "json", "--via", &via, "--", "touch", "started"]).run();
    assert_eq!(plan.exits(0).json()["via"], via.as_str());
    cx.exeat_plain(["env", "--via", &via]).run().exits(0).shows("HTTPS_PROXY=");
    assert!(!cx.dir().join("started").exists());

    let rest = file(
        "rest.toml",
        "[fs]\nmask = [\"work/hidden\"]\n[env]\nset = { WORD = \"word\" }\n[limits]\ntimeout = \"30s\"\n",
    );
    cx.write("hidden", "secret");
    let result = cx.home().join("result.json");
    let script = format!("cat hidden 2>/dev/null; echo $WORD; {} ask {good}", cx.probe());
    let words =
        ["run", "--via", &via, "--policy", &rest, "--result", words(&result), "--", "sh", "-c", &script];
    let done = cx.exeat(words).run();
    assert!(done.exits(0).stdout().starts_with("word\nHTTP/1.1 200 "), "{done:?}");
    let result: serde_json::Value =
        serde_json::from_slice(&fs::read(&result).expect("the result")).expect("JSON");
    assert_eq!(result["via"], via.as_str());

    // The user's ceiling, which is not named.
    let config = cx.home().join(".config/exeat");
    fs::create_dir_all(&config).expect("the configuration directory");
    fs::write(config.join("policy.toml"), text(&[&good])).expect("the user's ceiling");
    cx.exeat(["run", "--via", &via, "--", "touch", "started"])
        .run()
        .exits(2)
        .says("policy.toml bounds the hosts");
    fs::remove_dir_all(cx.home().join(".config")).expect("the ceiling");
    proxy.end();
}
