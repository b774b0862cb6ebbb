//! `exeat prove`: every attempt is held, and each gets out without its protection.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use e2e::case::{Backend, Cases, Cx};
use e2e::dns::Answer;
use e2e::run::{Done, Run};
use e2e::wait_for;

pub(crate) fn cases(list: &mut Cases) {
    list.users("prove::everything_holds", everything_holds);
    list.users("prove::other_views", other_views);
    list.users("prove::d11_without_a_network", without_a_network);
    list.users("prove::every_attempt_can_fail", every_attempt_can_fail);
    list.on_a_host_of_root(|list| list.once("prove::a_canary_is_seen", a_canary_is_seen));
    list.on_a_host_of_root(|list| list.once("prove::one_wall_less_lets_its_attempts_out", one_wall_less));
    list.once("prove::arguments", arguments);
    list.users("prove::b34_no_sandbox_is_125", no_sandbox);
    list.alone("prove::nothing_is_left", nothing_is_left);
    list.users("prove::its_runs_are_not_the_users", is_not_the_users);
}

/// Attempts that a kernel may lack, or refuse to everybody: other trials cover them, with separate reasons.
const MAY_BE_SKIPPED: [&str; 9] =
    ["protocols", "x32", "i386", "families", "vsock", "io-uring", "keyring", "terminal-input", "userfaultfd"];

/// Prepares a proof on a machine with everything that an attempt needs: a name server, credentials, a runtime
/// directory.
fn whole<'a>(cx: &'a Cx, options: &[&str]) -> Run<'a> {
    let (v4, v6) = cx.good_addrs();
    cx.bench().dns.set("example.com", Answer::Addrs(vec![v4, v6]));
    let runtime = cx.home().join("runtime");
    for directory in [runtime.clone(), cx.home().join(".aws"), cx.home().join(".local/state/exeat/runs")] {
        fs::create_dir_all(&directory).expect("a directory");
    }
    fs::write(cx.home().join(".netrc"), "machine example.com password secret").expect("a credential");
    for place in [
        "runtime",
        ".aws",
        ".netrc",
        ".local",
        ".local/state",
        ".local/state/exeat",
        ".local/state/exeat/runs",
    ] {
        cx.bench().give(&cx.home().join(place), cx.is_root());
    }
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).expect("chmod");
    let backend = (cx.backend() != Backend::Bwrap).then(|| ["--backend", cx.backend().name()]);
    let words = ["prove", "--format", "json"].iter().chain(backend.iter().flatten()).chain(options);
    cx.exeat_plain(words).env("XDG_RUNTIME_DIR", &runtime.display().to_string())
}

fn attempts(done: &Done) -> Vec<Value> {
    done.json()["attempts"].as_array().expect("attempts").clone()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn listed(cx: &Cx) -> BTreeSet<String> {
    let done = cx.exeat_plain(["prove", "--list", "--format", "json"]).run();
    let list = done.exits(0).json();
    list.as_array().expect("a list").iter().map(|attempt| text(attempt, "id").to_owned()).collect()
}

fn everything_holds(cx: &Cx) {
    let done = whole(cx, &[]).run();
    done.exits(0);
    let all = done.json();
    assert_eq!(all["schema"], 1);
    assert_eq!(all["user"]["root"], cx.is_root());
    let found = attempts(&done);
    for bridge in ["handoff", "relay"] {
        let of_bridge = found.iter().filter(|attempt| attempt["bridge"] == bridge);
        let ids: BTreeSet<String> = of_bridge.map(|attempt| text(attempt, "id").to_owned()).collect();
        assert_eq!(ids, listed(cx), "{bridge}");
    }
    for attempt in &found {
        let may_be_skipped = MAY_BE_SKIPPED.contains(&text(attempt, "id")) && attempt["held"].is_null();
        assert!(attempt["held"] == true || may_be_skipped, "{attempt:#}");
        assert_ne!(text(attempt, "why"), "", "{attempt:#}");
    }
    // exeat asks the host's resolver only for the known name, and for nothing that a stage asked for.
    assert_eq!(cx.bench().dns.queries("exeat-prove.invalid").len(), 0);
    for secret in ["password", "machine example.com"] {
        assert!(!done.stdout().contains(secret), "a credential was printed");
    }
}

fn other_views(cx: &Cx) {
    for view in ["host", "minimal"] {
        let done = whole(cx, &["--fs", view, "--bridge", "handoff"]).run();
        done.exits(0);
        assert_eq!(done.json()["view"], view);
        assert!(attempts(&done).iter().all(|attempt| attempt["held"] != false), "{done:?}");
    }
}

/// An unreachable target proves nothing: attempts that need a network are skipped, and the others run.
fn without_a_network(cx: &Cx) {
    let unshare = ["unshare", "--user", "--map-current-user", "--net"];
    let done = cx.exeat_plain(["prove", "--format", "json", "--bridge", "handoff"]).under(unshare).run();
    done.exits(0);
    for attempt in attempts(&done) {
        assert_ne!(attempt["held"], false, "{attempt:#}");
        if ["tcp-v4", "tcp-v6", "udp-v4", "udp-v6", "dns-udp", "dns-tcp", "lookup"]
            .contains(&text(&attempt, "id"))
        {
            assert_eq!(attempt["held"], Value::Null, "{attempt:#}");
            assert!(text(&attempt, "why").starts_with("it does not succeed outside either"), "{attempt:#}");
        }
    }
}

/// The way to show that an attempt gets out.
#[derive(Clone, Copy)]
enum Without {
    /// Directly on the host, like the control of `exeat prove` itself.
    Sandbox,
    /// On the host as root, for attempts that only root may make.
    SandboxAsRoot,
    /// In new namespaces, as their root.
    Rights,
    /// In new namespaces, with other processes.
    Apart,
    /// Through a proxy that allows everything.
    Policy,
    /// With a separate function.
    Other(fn(&Cx)),
}

/// Each attempt, and the proof that it can get out. A missing attempt fails the test.
const SHOWN: &[(&str, Without)] = &[
    ("tcp-v4", Without::Sandbox),
    ("tcp-v6", Without::Sandbox),
    ("udp-v4", Without::Sandbox),
    ("udp-v6", Without::Sandbox),
    ("gateway-name", Without::Other(with_an_open_name_server)),
    ("gateway-port", Without::Other(with_an_open_name_server)),
    ("dns-tunnel", Without::Other(with_an_open_name_server)),
    ("host-tcp-v4", Without::Sandbox),
    ("host-tcp-v6", Without::Sandbox),
    ("host-udp-v4", Without::Sandbox),
    ("host-udp-v6", Without::Sandbox),
    ("dns-udp", Without::Sandbox),
    ("dns-tcp", Without::Sandbox),
    ("lookup", Without::Sandbox),
    ("protocols", Without::Sandbox),
    ("raw-sockets", Without::Rights),
    ("unix-tmp", Without::Sandbox),
    ("unix-runtime", Without::Sandbox),
    ("unix-home", Without::Sandbox),
    ("unix-workdir", Without::Sandbox),
    ("abstract", Without::Sandbox),
    ("other-run", Without::Other(other_run)),
    ("vsock", Without::Sandbox),
    ("families", Without::SandboxAsRoot),
    ("netlink", Without::Sandbox),
    ("io-uring", Without::Sandbox),
    ("denied-name", Without::Policy),
    ("private-name", Without::Policy),
    ("loopback-literal", Without::Policy),
    ("metadata", Without::Policy),
    ("server-name", Without::Policy),
    ("bridge-socket", Without::Other(bridge_socket)),
    ("environ", Without::Sandbox),
    ("keyring", Without::Sandbox),
    ("descriptors", Without::Sandbox),
    ("credentials", Without::Sandbox),
    ("record", Without::Sandbox),
    ("system-files", Without::Other(system_files)),
    ("own-files", Without::Sandbox),
    ("protected-files", Without::Sandbox),
    ("hard-link", Without::Sandbox),
    ("setuid-file", Without::Sandbox),
    ("sysctls", Without::Rights),
    ("kernel-files", Without::Rights),
    ("user-namespace", Without::Sandbox),
    ("namespaces", Without::Rights),
    ("mounts", Without::Rights),
    ("chroot", Without::Rights),
    ("i386", Without::Sandbox),
    ("x32", Without::Sandbox),
    ("terminal-input", Without::Sandbox),
    ("bpf", Without::SandboxAsRoot),
    ("perf", Without::SandboxAsRoot),
    ("userfaultfd", Without::Sandbox),
    ("rights", Without::Sandbox),
    ("become-root", Without::Rights),
    ("host-namespaces", Without::Sandbox),
    ("trace", Without::Apart),
    ("read-memory", Without::Apart),
    ("write-memory", Without::Apart),
    ("take-descriptor", Without::Apart),
    ("signal", Without::Other(signal)),
    ("survive", Without::Other(survive)),
];

fn every_attempt_can_fail(cx: &Cx) {
    let shown: BTreeSet<String> = SHOWN.iter().map(|(id, _)| (*id).to_owned()).collect();
    assert_eq!(shown, listed(cx), "an attempt that is not shown to get out anywhere");
    let of = |kind: fn(&Without) -> bool| {
        SHOWN.iter().filter(move |(_, how)| kind(how)).map(|(id, _)| *id).collect::<Vec<_>>()
    };

    // The controls of a full proof run without protection, except for those that are only a part of their attempt.
    let found = attempts(&whole(cx, &[]).run());
    let in_part = ["tcp-v4", "tcp-v6", "udp-v4", "udp-v6", "vsock", "netlink", "protocols"];
    let (part, same): (Vec<&str>, _) =
        of(|how| matches!(how, Without::Sandbox)).into_iter().partition(|id| in_part.contains(id));
    for id in same {
        let attempt = found.iter().find(|attempt| text(attempt, "id") == id).expect("every attempt is there");
        let out = attempt["outside"]["saw"] == "out";
        assert!(out || MAY_BE_SKIPPED.contains(&id) && attempt["held"].is_null(), "{attempt:#}");
    }
    got_out(&cx.outside(inside(cx, &json!({}), &part)).run(), &part);
    if cx.is_root() {
        let ids = of(|how| matches!(how, Without::SandboxAsRoot));
        got_out(&cx.outside(inside(cx, &json!({}), &ids)).run(), &ids);
    }

    let namespaces = "unshare --user --map-root-user --net --mount --pid --fork --mount-proc".split(' ');
    let ids = of(|how| matches!(how, Without::Rights));
    let apart = json!({"namespaces": host_namespaces()});
    got_out(&cx.outside(inside(cx, &apart, &ids)).under(namespaces.clone()).run(), &ids);
    // Without proof that the mounts are not the host's, no mount is touched.
    for spec in [json!({}), apart] {
        cx.outside(inside(cx, &spec, &["mounts"])).run().exits(0).shows("it would do harm on the host");
    }
    let ids = of(|how| matches!(how, Without::Apart));
    let beside = ["sh", "-c", "sleep 20 & \"$@\"; kill $!", "sh"];
    let run = cx.outside(inside(cx, &json!({"namespaces": host_namespaces()}), &ids));
    got_out(&run.under(beside).under(namespaces).run(), &ids);

    let ids = of(|how| matches!(how, Without::Policy));
    let proxy = permissive(TOKEN);
    let spec = json!({"token": TOKEN, "sockets": {"tcp4": "127.0.0.1:9", "origin4": "127.0.0.1:9"}});
    let run = cx.outside(inside(cx, &spec, &ids)).env("HTTPS_PROXY", &format!("http://127.0.0.1:{proxy}"));
    got_out(&run.run(), &ids);

    for (_, how) in SHOWN {
        if let Without::Other(show) = how {
            show(cx);
        }
    }
}

/// Tries a name server that answers for every name, and addresses that answer on every port.
fn with_an_open_name_server(cx: &Cx) {
    let (v4, v6) = cx.good_addrs();
    for name in ["granted.exeat-gateway.invalid", "denied.exeat-gateway.invalid"] {
        cx.bench().dns.set(name, Answer::Addrs(vec![v4, v6]));
    }
    let ids = ["gateway-name", "gateway-port", "dns-tunnel"];
    got_out(&cx.outside(inside(cx, &json!({}), &ids)).run(), &ids);
}

const TOKEN: &str = "a-word-that-nobody-knows";

/// Returns the arguments of the hidden mode.
fn inside(cx: &Cx, spec: &Value, ids: &[&str]) -> Vec<String> {
    let exeat = cx.bench().bin.join("exeat").display().to_string();
    let words = [exeat, "prove-inside".into(), "attempts".into(), spec.to_string()];
    words.into_iter().chain(ids.iter().map(|id| (*id).to_owned())).collect()
}

/// Checks that every attempt reports that it got out.
#[track_caller]
fn got_out(done: &Done, ids: &[&str]) {
    let stdout = done.stdout();
    let lines: Vec<Value> = stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    for id in ids {
        let line = lines.iter().find(|line| text(line, "id") == *id);
        let line = line.unwrap_or_else(|| panic!("`{id}` said nothing: {done:?}"));
        let is_lacking = MAY_BE_SKIPPED.contains(id) && text(line, "seen").contains("NOSUPPORT");
        assert!(text(line, "saw") == "out" || is_lacking, "with nothing to hold it: {line} in {done:?}");
    }
}

fn host_namespaces() -> Value {
    let number =
        |kind| fs::read_link(format!("/proc/self/ns/{kind}")).expect("a namespace").display().to_string();
    json!({"pid": number("pid"), "mnt": number("mnt")})
}

/// Starts a proxy that connects to nothing, allows everything, and answers like the attempt's origin.
fn permissive(token: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let serve = move |mut stream: TcpStream| {
        let mut buffer = [0; 4096];
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        let _ = stream.read(&mut buffer);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        let _ = stream.read(&mut buffer);
        let _ = stream.write_all(token.as_bytes());
    };
    thread::spawn(move || {
        listener.incoming().flatten().take(64).for_each(|stream| drop(thread::spawn(move || serve(stream))))
    });
    port
}

/// A stage of a run without separation.
fn other_run(cx: &Cx) {
    let exeat = cx.bench().bin.join("exeat").display().to_string();
    let mut other = cx.outside([exeat.as_str(), "prove-inside", "wait", &cx.good()]).stdin_open().start();
    other.until_prints("\n");
    let line: Value = serde_json::from_str(&other.printed()).expect("a line");
    got_out(&cx.outside(inside(cx, &json!({"other": line}), &["other-run"])).run(), &["other-run"]);
    other.wait().exits(0);
}

/// A bridge that answers every request.
fn bridge_socket(cx: &Cx) {
    let place = cx.home().join("exeat-run");
    fs::create_dir(&place).expect("a directory");
    let socket = place.join("proxy.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    for path in [&place, &socket] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("chmod");
    }
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten().take(4) {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        }
    });
    let place = place.display().to_string();
    let bwrap = ["bwrap", "--dev-bind", "/", "/", "--tmpfs", "/run", "--bind", &place, "/run/exeat", "--"];
    got_out(&cx.outside(inside(cx, &json!({}), &["bridge-socket"])).under(bwrap).run(), &["bridge-socket"]);
}

/// A file that belongs to the caller.
fn system_files(cx: &Cx) {
    let nodes: Vec<Value> =
        [cx.write("of-the-host", "x"), cx.dir().to_path_buf()].iter().map(|path| node(path)).collect();
    got_out(
        &cx.outside(inside(cx, &json!({"read_only": nodes}), &["system-files"])).run(),
        &["system-files"],
    );
}

fn node(path: &Path) -> Value {
    let meta = fs::metadata(path).expect("it is there");
    json!({"path": path, "dev": meta.dev(), "ino": meta.ino()})
}

/// A first process that obeys signals: it ends, and so does the process that would have reported it.
fn signal(cx: &Cx) {
    let run = cx.outside(inside(cx, &json!({"namespaces": host_namespaces()}), &["signal"]));
    let first = ["sh", "-c", "trap 'exit 9' TERM INT HUP; \"$@\" & wait", "sh"];
    let namespaces = "unshare --user --map-root-user --pid --fork --mount-proc".split(' ');
    run.under(first).under(namespaces).run().prints("").exits(9);
}

/// Without a sandbox the survivor survives.
fn survive(cx: &Cx) {
    let word = format!("survivor-{}", cx.good());
    let exeat = cx.bench().bin.join("exeat").display().to_string();
    let mut run = cx.outside([exeat.as_str(), "prove-inside", "survive", &word]).start();
    run.until_prints("alive");
    run.signal(Signal::SIGKILL);
    wait_for(Duration::from_secs(10), "the end of its parent", || run.ended().then_some(()));
    // The parent has been reaped; only one process is left, and stays.
    let left = wait_for(Duration::from_secs(10), "the survivor alone", || {
        let left = find_processes(&word);
        (left.len() == 1).then_some(left)
    });
    left.iter().for_each(|pid| kill(*pid, Signal::SIGKILL).expect("it lives"));
}

fn find_processes(word: &str) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|part| part == word.as_bytes())
    })
    .map(Pid::from_raw)
    .collect()
}

/// A Python program that removes or adds an option of bubblewrap's, for each sandbox.
const WEAKER: &str = r#"#!/usr/bin/python3
import glob, os, sys
strict, words = '/usr/local/sbin/strict', sys.argv[1:]
if words[:1] != ['--args']: os.execv(strict, [strict, *words])
args = [os.fsdecode(word) for word in open(int(words[1]), 'rb').read().split(b'\0')[:-1]]
# Before the root of the sandbox is read-only.
def add(*words):
    at = len(args) - 1 - args[::-1].index('--remount-ro')
    args[at:at] = words
def show(path): add('--bind', path, path)
def drop(word, values):
    while word in args: at = args.index(word); del args[at:at + 1 + values]
def uncover(name):
    at = [n for n, word in enumerate(args) if word.endswith(name) and args[n - 2].startswith('--ro-bind')][0]
    del args[at - 2:at + 1]
def share(kind):
    at = args.index('--unshare-all')
    args[at:at + 1] = ['--unshare-' + it for it in ('ipc', 'pid', 'net', 'uts', 'cgroup') if it != kind]
scratch = [word for word in args if 'exeat-prove-' in word and word.endswith('/work')][:1]
EDIT
file = os.memfd_create('args', 0)
os.write(file, b''.join(os.fsencode(word) + b'\0' for word in args))
os.lseek(file, 0, 0)
os.execv(strict, [strict, '--args', str(file), *words[2:]])
"#;

/// Replaces bubblewrap with such a program. `HOME` in its action is the user's.
fn weaker(cx: &Cx, edit: &str) -> String {
    let text = WEAKER.replace("EDIT", &edit.replace("HOME", &format!("'{}'", cx.home().display())));
    format!(
        "mount -t tmpfs none /usr/local/sbin
         cp /usr/bin/bwrap /usr/local/sbin/strict
         cat >/usr/local/sbin/weaker <<'END'\n{text}END
         chmod 755 /usr/local/sbin/weaker
         mount --bind /usr/local/sbin/weaker /usr/bin/bwrap"
    )
}

/// With a bubblewrap that shares the host's network, a real proof reports what does not hold, from the stage's output
/// and from the host's listeners. One that mounts something else does not start.
fn a_canary_is_seen(cx: &Cx) {
    let shared = weaker(cx, "args.append('--share-net')");
    let done = cx
        .exeat_plain(["prove", "host-tcp-v4", "vsock", "--bridge", "handoff", "--backend", "bwrap-alone"])
        .in_mounts(&shared)
        .run();
    done.exits(1).shows("NOT HELD").shows("2 attempts: 1 held, 1 not held, 0 skipped");
    // L05: the cover of a mount differs from what was judged.
    let other = weaker(cx, "args += ['--bind', '/tmp', '/tmp']");
    let done = cx
        .exeat_plain(["prove", "unix-tmp", "--bridge", "handoff", "--backend", "bwrap-alone"])
        .in_mounts(&other)
        .run();
    done.exits(125).says("was replaced");
}

/// Removes one wall, with the attempts that it alone holds: these get out, and all others are held. Missing attempts
/// are held by two walls, or by exeat and its helper, whose options nothing changes.
const ALONE: &[(&str, &[&str])] = &[
    (
        "args.append('--share-net')",
        &[
            "tcp-v4",
            "tcp-v6",
            "udp-v4",
            "udp-v6",
            "host-tcp-v4",
            "host-tcp-v6",
            "host-udp-v4",
            "host-udp-v6",
            "dns-udp",
            "dns-tcp",
            "lookup",
            "gateway-name",
            "gateway-port",
            "dns-tunnel",
            "host-namespaces",
        ],
    ),
    ("share('uts')", &["host-namespaces"]),
    ("share('ipc')", &["host-namespaces"]),
    ("share('cgroup')", &["host-namespaces"]),
    (
        "drop('--add-seccomp-fd', 1)",
        &["protocols", "vsock", "netlink", "io-uring", "setuid-file", "terminal-input", "userfaultfd"],
    ),
    // The filter holds it too.
    (
        "drop('--add-seccomp-fd', 1); drop('--disable-userns', 0)",
        &[
            "protocols",
            "vsock",
            "netlink",
            "io-uring",
            "setuid-file",
            "user-namespace",
            "terminal-input",
            "userfaultfd",
        ],
    ),
    ("args[args.index('--cap-drop')] = '--cap-add'", &["namespaces", "chroot", "rights"]),
    ("at = args.index('/proc/sys'); del args[at - 1:at + 2]", &["sysctls"]),
    ("show('/sys')", &["kernel-files"]),
    ("show(HOME + '/.netrc')", &["credentials"]),
    ("show(HOME + '/.local/state/exeat')", &["record", "own-files"]),
    ("[show(path) for path in glob.glob(HOME + '/.exeat-prove-*')]", &["unix-home"]),
    ("[show(path) for path in glob.glob(HOME + '/runtime/.exeat-prove-*')]", &["unix-runtime"]),
    ("[show(path[:-4] + 'host.sock') for path in scratch]", &["unix-tmp"]),
];

/// The missing covers that exeat notices in the sandbox, which then does not start.
const NOTICED: [&str; 3] = ["uncover('/work/host.sock')", "uncover('.git/config')", "uncover('.git/hooks')"];

fn one_wall_less(cx: &Cx) {
    let all = listed(cx);
    // With a shared network the bridge's port is shared too, so only one run can have it.
    let beside_none = all
        .iter()
        .map(String::as_str)
        .filter(|id| !["other-run", "record", "own-files", "survive"].contains(id));
    // Such a bubblewrap fails the probe of `auto`, and changes options that only it gets if it makes the file tree.
    let usual = ["--bridge", "handoff", "--backend", "bwrap-alone"];
    let beside_none: Vec<&str> = usual.into_iter().chain(beside_none).collect();
    for (edit, expected) in ALONE {
        let is_network = edit.contains("--share-net");
        let words = if is_network { &beside_none[..] } else { &usual };
        let done = whole(cx, words).in_mounts(&weaker(cx, edit)).run();
        for attempt in attempts(done.exits(1)) {
            let id = text(&attempt, "id");
            let may_be_lacking = MAY_BE_SKIPPED.contains(&id) && attempt["held"] != false;
            let gets_out = expected.contains(&id) && !may_be_lacking;
            assert_eq!(attempt["held"] == false, gets_out, "{edit}: {attempt:#}");
        }
    }
    for edit in NOTICED {
        let done = whole(cx, &usual).in_mounts(&weaker(cx, edit)).run();
        done.exits(125).says("was replaced");
    }
}

fn arguments(cx: &Cx) {
    let done = cx.exeat_plain(["prove", "no-such-attempt"]).run();
    done.exits(2).says("there is no attempt `no-such-attempt`").says("exeat prove --list");
    let done = cx.exeat_plain(["prove", "--bridge", "relay", "denied-name"]).run();
    done.exits(0).shows("a name that no rule allows").shows("1 attempt: 1 held, 0 not held, 0 skipped");
    // If no attempt can run, nothing is proved.
    let done = cx.exeat_plain(["prove", "--bridge", "relay", "tcp-v4"]);
    done.under(["unshare", "--user", "--map-current-user", "--net"]).run().exits(125).shows("1 skipped");
    cx.exeat_plain(["prove-inside", "attempts", "no spec"]).run().exits(2);
    // A ceiling applies to a proof as to any run: attempts that it prevents cannot run, and do not count as held.
    fs::create_dir_all(cx.home().join(".config/exeat")).expect("a directory");
    let ceiling = cx.home().join(".config/exeat/policy.toml");
    fs::write(&ceiling, "schema = 1\n[network]\nallow = []\n").expect("a ceiling");
    let done = cx
        .exeat_plain(["prove", "--format", "json", "server-name", "denied-name", "--bridge", "relay"])
        .run();
    let held: Vec<Value> = attempts(done.exits(0)).iter().map(|attempt| attempt["held"].clone()).collect();
    assert_eq!(held, [json!(true), Value::Null], "{done:?}");
    fs::write(&ceiling, "schema = 1\n[fs]\nro = []\nrw = []\n").expect("a ceiling");
    cx.exeat_plain(["prove"]).run().exits(125).prints("").says("does not see exeat itself").says("`fs.ro`");
}

/// The message equals that of a run.
fn no_sandbox(cx: &Cx) {
    // Neither back end can mount.
    let probe = cx.bench().bin.join("probe").display().to_string();
    let around = [probe.as_str(), "without-mount", &probe, "without-move-mount"];
    let run = cx.exeat_plain(["run", "true"]).under(around).run();
    let prove = cx.exeat_plain(["prove"]).under(around).run();
    prove.exits(125).prints("");
    let first = |done: &Done| {
        done.stderr().lines().find(|line| line.contains("error:")).unwrap_or_default().to_owned()
    };
    assert_eq!(first(run.exits(125)), first(&prove));
}

/// No process, file or socket is left, also after a Ctrl-C in the middle.
fn nothing_is_left(cx: &Cx) {
    let left = || {
        let names_in = |place: &Path| {
            let entries = fs::read_dir(place).into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            names.filter(|name| name.contains("exeat-")).collect::<Vec<_>>()
        };
        let mut found =
            [names_in(Path::new("/tmp")), names_in(cx.home()), names_in(&cx.home().join("runtime"))].concat();
        found.extend(e2e::leftover::living().iter().map(|pid| format!("process {pid}")));
        found
    };
    let gone = |what: &str| {
        wait_for(Duration::from_secs(5), what, || left().is_empty().then_some(()));
    };
    gone("what other trials left");
    whole(cx, &[]).run().exits(0);
    gone("everything to be gone");
    let run = whole(cx, &[]).start();
    wait_for(Duration::from_secs(10), "a start", || {
        left().iter().any(|name| name.starts_with("exeat-prove-")).then_some(())
    });
    run.signal(Signal::SIGTERM);
    let done = run.wait();
    assert_eq!(done.code, Some(143), "{done:?}");
    gone("everything to be gone after a signal");
    for pause in [40, 80, 120, 200, 300] {
        let run = whole(cx, &[]).start();
        thread::sleep(Duration::from_millis(pause));
        run.signal(Signal::SIGTERM);
        run.wait();
        gone("everything to be gone after a signal");
    }
    // The notes about its runs are removed as well, because they do not belong to the user.
    for notes in ["runs", "live"] {
        let noted = fs::read_dir(cx.home().join(".local/state/exeat").join(notes));
        assert_eq!(noted.into_iter().flatten().count(), 0, "{notes}");
    }
}

/// The user's next run does not report the run that a proof kills, and no ledger names a missing record.
fn is_not_the_users(cx: &Cx) {
    cx.exeat_plain(["prove", "survive", "server-name", "--bridge", "handoff"]).run().exits(0);
    let next = cx.sh(&[], "true").run();
    assert!(!next.exits(0).stderr().contains("killed"), "{next:?}");
    let verified = cx.exeat_plain(["audit", "verify", "--all"]).run();
    assert!(!verified.stdout().contains("exeat-prove"), "{verified:?}");
}
