//! Makes the machine of the tests: a private network and mount namespace ("host") and a second network namespace
//! ("internet"), connected by a veth pair.
//!
//! The internet side answers for every address, so that public addresses work like real ones and the address guard
//! stays as it ships. Everything works offline, as real root and as an ordinary user (who becomes root of a user
//! namespace). Nothing outside these namespaces changes.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getgid, gettid, getuid};

use crate::dns::Dns;
use crate::origin::{Ca, Internet};

/// The host's own address of each family. It is public, so that only the own-address guard can refuse it.
pub const OWN4: Ipv4Addr = Ipv4Addr::new(93, 184, 200, 1);
/// See [`OWN4`].
pub const OWN6: Ipv6Addr = Ipv6Addr::new(0x2606, 0x2800, 0x200, 0, 0, 0, 0, 1);
/// The directory of binaries and homes: a private bind mount on `/home`.
pub const HOME: &str = "/home";
/// The clients that the set-up unpacks: `cargo xtask` installs them into `target/clients`.
pub const CLIENTS: &str = "/home/clients";
/// The Rust toolchain that runs the tests.
pub const TOOLCHAIN: &str = "/home/toolchain";
/// The uid of an ordinary user without a passwd entry, so that no test depends on one.
pub const ORDINARY: u32 = 54321;
/// The search path of every trial's run: only system directories, independent of the developer's.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const RESOLV: &str =
    "nameserver 127.0.0.53\nsearch evil-search.test\noptions ndots:5 timeout:15 attempts:1\n";
const NSSWITCH: &str = "passwd: files\ngroup: files\nhosts: files dns\n";
const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n\
                     93.184.216.1 hosts-file.test\n10.0.0.9 hosts-private.test\n";

/// The privileges of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Powers {
    /// Real root: trials run as root and as [`ORDINARY`].
    Root,
    /// Root of a user namespace that maps one id: trials run as that user alone.
    Mapped {
        /// The developer's uid outside.
        uid: u32,
        /// The developer's gid outside.
        gid: u32,
    },
}

/// The machine, which lives as long as the process.
pub struct Bench {
    /// The privileges of the process.
    pub powers: Powers,
    /// The stub resolver of the host.
    pub dns: Dns,
    /// The origins.
    pub internet: Internet,
    /// The certificate authority of every origin, as PEM.
    pub ca_pem: String,
    /// The directory with copies of the binaries.
    pub bin: PathBuf,
    scratch: PathBuf,
}

impl Bench {
    /// Makes the machine. Call it first in `main`: it needs a process with one thread.
    ///
    /// `probe` is the probe binary that cargo built; the sandbox sees a copy.
    pub fn set_up(exeat: &Path, probe: Option<&Path>) -> Self {
        let threads = fs::read_dir("/proc/self/task").expect("/proc").count();
        assert_eq!(threads, 1, "namespaces are made before any thread");
        let exeat = fs::read(exeat).expect("the exeat binary");
        let probe = probe.map(|path| fs::read(path).expect("the probe binary"));

        let powers = enter_namespaces();
        nix::sys::prctl::set_child_subreaper(true).expect("PR_SET_CHILD_SUBREAPER");
        let tools = tools();
        let scratch = private_mounts();
        for (place, directory) in tools {
            fs::create_dir(place).expect("a place for tools");
            bind(&PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())), Path::new(place));
        }
        let bin = PathBuf::from(HOME).join("bin");
        fs::create_dir(&bin).expect("bin directory");
        install(&bin.join("exeat"), &exeat);
        if let Some(probe) = probe {
            install(&bin.join("probe"), &probe);
        }

        ip("link set lo up");
        let ca = Ca::new();
        let ca_pem = ca.pem();
        let internet = start_internet(ca);
        let dns = Dns::start();
        Self { powers, dns, internet, ca_pem, bin, scratch }
    }

    /// Returns the words that make a command run as the ordinary user; none for root.
    pub fn become_user(&self, root: bool) -> Vec<String> {
        match self.powers {
            _ if root => vec![],
            Powers::Root => vec![
                "setpriv".into(),
                format!("--reuid={ORDINARY}"),
                format!("--regid={ORDINARY}"),
                "--clear-groups".into(),
                "--".into(),
            ],
            Powers::Mapped { uid, gid } => vec![
                "unshare".into(),
                "--user".into(),
                format!("--map-user={uid}"),
                format!("--map-group={gid}"),
                "--".into(),
            ],
        }
    }

    /// Returns the uid of the trial's user, as its processes and files show it.
    pub fn uid(&self, root: bool) -> u32 {
        match self.powers {
            _ if root => 0,
            Powers::Root => ORDINARY,
            Powers::Mapped { uid, .. } => uid,
        }
    }

    /// Gives a directory to the user of a trial.
    pub fn give(&self, path: &Path, root: bool) {
        if !root && self.powers == Powers::Root {
            lchown(path, Some(ORDINARY), Some(ORDINARY)).expect("chown");
        }
    }

    /// Ends the processes that trials left, and removes the only directory outside of the namespaces.
    pub fn tear_down(&self) {
        for pid in crate::leftover::everything() {
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        let _ = nix::mount::umount2(HOME, nix::mount::MntFlags::MNT_DETACH);
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// Opens the directories of programs that trials use. They are opened before a mount covers them, and after the
/// namespaces are made, because only a mount of the same namespace can be bound. Missing directories are left out.
fn tools() -> Vec<(&'static str, fs::File)> {
    // target/debug/deps/e2e-HASH, and target/debug/bench.
    let program = std::env::current_exe().expect("this program");
    let clients = program.ancestors().map(|above| above.join("clients")).find(|place| place.is_dir());
    let cargo = std::env::var_os("CARGO").map(PathBuf::from);
    let toolchain = cargo.and_then(|cargo| Some(cargo.parent()?.parent()?.to_path_buf()));
    [(CLIENTS, clients), (TOOLCHAIN, toolchain)]
        .into_iter()
        .filter_map(|(place, directory)| Some((place, fs::File::open(directory?).ok()?)))
        .collect()
}

fn install(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("copy of a binary");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("chmod");
}

fn enter_namespaces() -> Powers {
    let (uid, gid) = (getuid(), getgid());
    let private = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
    if uid.is_root() && unshare(private).is_ok() {
        return Powers::Root;
    }
    unshare(private | CloneFlags::CLONE_NEWUSER)
        .expect("unshare(user, net, mount): are user namespaces allowed?");
    fs::write("/proc/self/setgroups", "deny").expect("setgroups");
    fs::write("/proc/self/uid_map", format!("0 {uid} 1")).expect("uid_map");
    fs::write("/proc/self/gid_map", format!("0 {gid} 1")).expect("gid_map");
    Powers::Mapped { uid: uid.as_raw(), gid: gid.as_raw() }
}

/// Mounts a private /tmp, /dev/shm and /home, and the resolver's files. Returns the directory on disk for /home: people
/// work on a disk and not on a tmpfs, which older kernels cannot idmap.
fn private_mounts() -> PathBuf {
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private propagation");
    let scratch = PathBuf::from(format!("/var/tmp/exeat-e2e-{}", std::process::id()));
    fs::create_dir(&scratch).expect("scratch directory");
    fs::set_permissions(&scratch, fs::Permissions::from_mode(0o755)).expect("chmod");
    bind(&scratch, Path::new(HOME));
    for place in ["/tmp", "/dev/shm"] {
        mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=1777"))
            .expect("private tmpfs");
    }

    let etc = scratch.join("etc");
    fs::create_dir(&etc).expect("etc");
    for (name, text) in [("resolv.conf", RESOLV), ("nsswitch.conf", NSSWITCH), ("hosts", HOSTS)] {
        let source = etc.join(name);
        fs::write(&source, text).expect("etc file");
        fs::set_permissions(&source, fs::Permissions::from_mode(0o644)).expect("chmod");
        bind(&source, &real_target(&Path::new("/etc").join(name)));
    }
    scratch
}

/// Returns the target of a bind mount over `path`, after symbolic links. A dangling link (into a /run without a
/// resolver) gets a private /run in which its target exists.
fn real_target(path: &Path) -> PathBuf {
    if let Ok(real) = fs::canonicalize(path) {
        return real;
    }
    let link = fs::read_link(path).unwrap_or_else(|_| panic!("{} exists", path.display()));
    let target = Path::new("/etc").join(link);
    assert!(
        target.starts_with("/run") || target.starts_with("/etc/../run"),
        "{} points to nowhere",
        path.display()
    );
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), Some("mode=0755")).expect("private /run");
    fs::create_dir_all(target.parent().expect("a parent")).expect("directories under /run");
    fs::write(&target, "").expect("a mount point");
    fs::canonicalize(path).expect("the link resolves now")
}

/// Makes one bind mount.
pub fn bind(source: &Path, target: &Path) {
    let none: Option<&str> = None;
    mount(Some(source), target, none, MsFlags::MS_BIND, none)
        .unwrap_or_else(|error| panic!("bind {} on {}: {error}", source.display(), target.display()));
}

/// Makes the second namespace on a thread that also has all the origins' sockets.
fn start_internet(ca: Ca) -> Internet {
    let (tell_namespace, namespace) = mpsc::channel::<String>();
    let (tell_wired, wired) = mpsc::channel::<()>();
    let (tell_ready, ready) = mpsc::channel::<Internet>();
    let serve = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("the internet's network namespace");
        let _ = tell_namespace.send(format!("/proc/{}/task/{}/ns/net", std::process::id(), gettid()));
        let _ = wired.recv();
        without_waits();
        ip("link set lo up");
        ip("addr add 93.184.200.2/24 dev inet0");
        ip("-6 addr add 2606:2800:200::2/64 dev inet0 nodad");
        ip("link set inet0 up");
        // Table main has it after the connected route; in table local it would also catch the replies.
        ip("route add local default dev lo table main");
        ip("-6 route add local default dev lo table main");
        crate::origin::serve(ca, |internet| {
            let _ = tell_ready.send(internet);
        });
    };
    thread::Builder::new().name("internet".into()).spawn(serve).expect("internet thread");

    let namespace = namespace.recv().expect("the internet starts");
    without_waits();
    ip(&format!("link add host0 type veth peer name inet0 netns {namespace}"));
    ip(&format!("addr add {OWN4}/24 dev host0"));
    ip(&format!("-6 addr add {OWN6}/64 dev host0 nodad"));
    ip("link set host0 up");
    tell_wired.send(()).expect("the internet waits");
    let internet = ready.recv().expect("origins listen");
    ip("route add default via 93.184.200.2");
    ip("-6 route add default via 2606:2800:200::2");
    internet
}

/// Turns off duplicate-address detection and reverse-path filters, which would cost time or packets. Ignores failures,
/// as some containers mount /proc/sys read-only.
fn without_waits() {
    for (file, value) in [
        ("ipv6/conf/all/accept_dad", "0"),
        ("ipv6/conf/default/accept_dad", "0"),
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
    ] {
        let _ = fs::write(Path::new("/proc/sys/net").join(file), value);
    }
}

fn ip(args: &str) {
    let output =
        Command::new("ip").args(args.split(' ')).env("PATH", PATH).output().expect("ip, from iproute2");
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns address number `n` of the internet, in each family: one for every name of every trial.
pub fn address(n: u32) -> (IpAddr, IpAddr) {
    let [_, more, high, low] = n.to_be_bytes();
    // 93.185.0.0 and the addresses after it are one block of public addresses.
    let v4 = Ipv4Addr::new(93, 185 + more, high, low);
    let v6 = Ipv6Addr::new(0x2606, 0x2800, 0x21f, 0, 0, u16::from(more), u16::from(high), u16::from(low));
    (v4.into(), v6.into())
}
