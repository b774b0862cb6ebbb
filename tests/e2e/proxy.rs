//! `exeat proxy` as a service: a policy that is read again, and runs that go through it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
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
    list.once("proxy::a_ceiling_that_comes_later_counts", later_ceiling);
    list.once("proxy::stdin_is_not_read_again", from_stdin);
}

/// For something that should take a second.
const SOON: Duration = Duration::from_secs(15);

/// An `exeat proxy` on a Unix socket, with what it says in a file.
struct Proxy<'a> {
    live: Live<'a>,
    socket: PathBuf,
    said: PathBuf,
}

impl<'a> Proxy<'a> {
    /// Starts one, whose record is in the default place, and waits until it listens.
    fn start(cx: &'a Cx, name: &str, words: &[&str]) -> Self {
        Self::start_fed(cx, name, words, "")
    }

    fn start_fed(cx: &'a Cx, name: &str, words: &[&str], stdin: &str) -> Self {
        let socket = cx.home().join(format!("{name}.sock"));
        let said = cx.home().join(format!("{name}.said"));
        let listen = format!("unix:{}", socket.display());
        let words = ["proxy", "--listen", &listen].into_iter().chain(words.iter().copied());
        let live = cx.exeat_plain(words).stdin(stdin).redirect(&format!("2>{}", said.display())).start();
        let proxy = Self { live, socket, said };
        proxy.says("listening on");
        proxy
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Waits until it has said this.
    fn says(&self, text: &str) {
        wait_for(SOON, &format!("`{text}`, of the proxy"), || self.said().contains(text).then_some(()));
    }

    fn record(&self) -> PathBuf {
        let said = self.said();
        let place = said.lines().find_map(|line| line.split_once("; record: "));
        place.unwrap_or_else(|| panic!("no record in {said}")).1.into()
    }

    /// Asks for a target, and gives the status with the connection.
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

/// Puts a policy file into HOME, which no stage writes.
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

/// H16, K38: a change counts within a bounded time and without a restart, however it came to the disk; SIGHUP does not end
/// the proxy; the record says from where on which policy held.
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

    let times = |what: &str| proxy.said().matches(what).count();
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
    // Each decision is under the policy that was announced last, and that policy is kept.
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
    // The last one read what was there already.
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

/// H16: what cannot be read changes nothing, and is said and recorded, down to the line; nor does a file that is gone lift
/// what it said.
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
    assert!(proxy.said().contains("exeat: error: the policy stays as it was: "), "{}", proxy.said());
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

/// A fresh start would find it, and so does a reload: nothing is reachable for longer than the look takes.
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

/// What gave its text once says so, and holds; also where another file of the same policy has changed.
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
        (proxy.said().matches("stdin cannot be read again").count() == 2).then_some(())
    });
    assert_eq!(proxy.ask(&one), "200");
    let record = proxy.record();
    proxy.end();
    let notes = AuditLog::read(&record).sound().events("note").len();
    assert_eq!(notes, 2);
}
