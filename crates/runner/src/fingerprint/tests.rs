use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use exeat_compose::EnvRule;
use exeat_contract::BridgeKind;
use exeat_files::request::Bind;
use exeat_policy::{Action, Bridge, Cache, Note, Origin, PolicyBuilder, Transparent, Tty, View};
use exeat_sandbox::{Builder, Enforced};

use super::*;
use crate::plan::plan;
use crate::request::{AuditTo, Request};

/// Changes with their descriptions.
type Changes<'a, T> = Vec<(&'static str, Box<dyn FnOnce(&mut T) + 'a>)>;

/// A working directory, with directories for data and HOME next to it.
struct Dirs(PathBuf);

impl Dirs {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("fingerprint-{name}-{}", std::process::id()));
        for dir in ["work", "data", "home"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        Self(root.canonicalize().unwrap())
    }

    fn request(&self) -> Request {
        let var = |name: &str, value: OsString| (OsString::from(name), value);
        Request {
            command: vec!["true".into()],
            cwd: self.0.join("work"),
            policy: rules(&["a.example.com", "b.example.com"]),
            host_env: BTreeMap::from([
                var("HOME", self.0.join("home").into()),
                var("PATH", "/usr/bin".into()),
                var("CI", "1".into()),
            ]),
            bridge: Bridge::Handoff,
            tty: Tty::Auto,
            transparent: Transparent::Off,
            signing: crate::signing::Signing::Off,
            ..Request::default()
        }
    }

    fn of_request(&self, change: impl FnOnce(&mut Request)) -> Fingerprint {
        let mut request = self.request();
        change(&mut request);
        plan(request).unwrap().fingerprint()
    }

    fn of_plan(&self, change: impl FnOnce(&mut Plan)) -> Fingerprint {
        let mut plan = plan(self.request()).unwrap();
        change(&mut plan);
        plan.fingerprint()
    }
}

impl Drop for Dirs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Changes the plan's user to one that is not made for the run.
fn become_user(plan: &mut Plan, uid: u32, gid: u32) {
    (plan.own, plan.identity) = (None, Identity::Other { uid, gid });
}

fn rules(texts: &[&str]) -> exeat_policy::Policy {
    let mut builder = PolicyBuilder::new();
    for text in texts {
        let origin = Origin::Flag { flag: format!("--allow of {text}") };
        builder.add(text, Action::Allow, origin, Note::default()).unwrap();
    }
    builder.build()
}

/// A5: each option of the caller changes the fingerprint, and all fingerprints differ.
#[test]
fn a5_each_change_of_a_request_is_another_fingerprint() {
    let dirs = Dirs::new("request");
    let data = dirs.0.join("data");
    let bind = |guest: &str| Bind { host: data.clone(), guest: guest.into() };
    let changes: Changes<'_, Request> = vec![
        ("nothing", Box::new(|_| ())),
        (
            "one rule more",
            Box::new(|it| it.policy = rules(&["a.example.com", "b.example.com", "c.example.com"])),
        ),
        ("one rule less", Box::new(|it| it.policy = rules(&["a.example.com"]))),
        ("another port", Box::new(|it| it.policy = rules(&["a.example.com", "b.example.com:8443"]))),
        ("a denial", Box::new(|it| it.policy = rules(&["a.example.com", "!b.example.com"]))),
        ("shown", Box::new(|it| it.files.ro.push(bind("/data")))),
        ("shown elsewhere", Box::new(|it| it.files.ro.push(bind("/dat")))),
        ("writable", Box::new(|it| it.files.rw.push(bind("/data")))),
        ("hidden", Box::new(|it| it.files.mask.push(dirs.0.join("work")))),
        ("the whole tree", Box::new(|it| it.files.view = View::Host)),
        ("almost nothing", Box::new(|it| it.files.view = View::Minimal)),
        ("no cache", Box::new(|it| it.files.cache = Cache::None)),
        ("git's own files", Box::new(|it| it.files.allow_write = vec![".git".parse().unwrap()])),
        ("a protected name", Box::new(|it| it.files.allow_write = vec![".vscode".parse().unwrap()])),
        ("another directory", Box::new(|it| it.cwd = data.clone())),
        ("the other bridge", Box::new(|it| it.bridge = Bridge::Relay)),
        ("another way in", Box::new(|it| it.socks5 = true)),
        ("the caller's terminal", Box::new(|it| it.tty = Tty::Off)),
        ("the gateway", Box::new(|it| it.transparent = Transparent::On)),
        ("a variable more", Box::new(|it| it.env.push(EnvRule::Pass("CI".into())))),
        ("a variable less", Box::new(|it| it.env.push(EnvRule::Remove("SHELL".into())))),
        ("a time limit", Box::new(|it| it.limits.timeout = "1s".parse().ok())),
        ("another time limit", Box::new(|it| it.limits.timeout = "1001ms".parse().ok())),
        ("a memory limit", Box::new(|it| it.limits.memory = "1GiB".parse().ok())),
        ("a limit of processes", Box::new(|it| it.limits.pids = Some(100))),
        ("the same number of files", Box::new(|it| it.limits.open_files = Some(100))),
    ];
    let mut seen = BTreeMap::new();
    for (what, change) in changes {
        if let Some(other) = seen.insert(dirs.of_request(change), what) {
            panic!("`{what}` and `{other}` have one fingerprint");
        }
    }
}

/// A5: each part of a plan that the machine or exeat decides changes the fingerprint.
#[test]
fn a5_each_part_of_a_plan_is_in_the_fingerprint() {
    let dirs = Dirs::new("plan");
    let partial = |why: &str| Enforced::Partial { missing: why.into() };
    let changes: Changes<'_, Plan> = vec![
        ("nothing", Box::new(|_| ())),
        ("the executable", Box::new(|it| it.choice.builder = Builder::Bwrap("/opt/bwrap".into()))),
        ("the back end", Box::new(|it| it.choice.builder = Builder::Native)),
        ("the bridge", Box::new(|it| it.bridge = BridgeKind::Relay)),
        ("another way in", Box::new(|it| it.socks5 = true)),
        ("the caller's terminal", Box::new(|it| it.tty = Tty::Off)),
        ("the gateway", Box::new(|it| it.transparent = Transparent::On)),
        ("a service of this machine", Box::new(|it| it.host_ports = vec!["80".parse().unwrap()])),
        ("its place inside", Box::new(|it| it.host_ports = vec!["80:81".parse().unwrap()])),
        ("the identity", Box::new(|it| become_user(it, 1, 2))),
        ("the identity's numbers", Box::new(|it| become_user(it, 2, 1))),
        ("host sockets", Box::new(|it| it.unix_sockets = !it.unix_sockets)),
        ("tracing", Box::new(|it| it.debuggable = true)),
        ("the loopback", Box::new(|it| it.loopback = Loopback::Proxy)),
        ("the network", Box::new(|it| it.enforcement.net = Enforced::Absent)),
        ("the files", Box::new(|it| it.enforcement.fs = partial("x"))),
        ("the system calls", Box::new(|it| it.enforcement.syscalls = Enforced::Absent)),
        ("what they lack", Box::new(move |it| it.enforcement.syscalls = partial("y"))),
        ("what the identity lacks", Box::new(move |it| it.enforcement.identity = partial("z"))),
        ("the order of mounts", Box::new(|it| it.mounts.reverse())),
        ("a mount less", Box::new(|it| drop(it.mounts.pop()))),
        ("a watched name less", Box::new(|it| it.watched[0].names.truncate(1))),
        ("a pointer less", Box::new(|it| it.watched[0].pointers.clear())),
        ("a watched tree less", Box::new(|it| drop(it.watched.pop()))),
        ("where it starts", Box::new(|it| it.cwd = "/".into())),
        (
            "our files",
            Box::new(|it| {
                edit(it, |mount| {
                    if let Mount::File { bytes, .. } = mount {
                        bytes.to_mut().push(b'x')
                    }
                })
            }),
        ),
        (
            "modes",
            Box::new(|it| {
                edit(it, |mount| {
                    if let Mount::Tmpfs { mode, .. } = mount {
                        *mode ^= 1
                    }
                })
            }),
        ),
        (
            "sizes",
            Box::new(|it| {
                edit(it, |mount| {
                    if let Mount::Tmpfs { size, .. } = mount {
                        *size += 1
                    }
                })
            }),
        ),
        (
            "/dev/shm",
            Box::new(|it| {
                edit(it, |mount| {
                    if let Mount::Dev { shm } = mount {
                        *shm += 1
                    }
                })
            }),
        ),
    ];
    let mut seen = BTreeMap::new();
    for (what, change) in changes {
        if let Some(other) = seen.insert(dirs.of_plan(change), what) {
            panic!("`{what}` and `{other}` have one fingerprint");
        }
    }
}

fn edit(plan: &mut Plan, change: impl FnMut(&mut Mount)) {
    plan.mounts.iter_mut().for_each(change);
}

/// A5: the fingerprint ignores everything that does not restrict the stage.
#[test]
fn a5_ignores_everything_that_does_not_restrict_the_stage() {
    let dirs = Dirs::new("same");
    let before = dirs.of_request(|_| ());
    let mut seen = BTreeSet::from([before]);
    seen.insert(
        dirs.of_request(|it| it.policy = rules(&["B.example.com:443", "a.example.com", "a.example.com"])),
    );
    seen.insert(dirs.of_request(|it| it.command = vec!["other".into(), "--option".into()]));
    seen.insert(dirs.of_request(|it| it.env.push(EnvRule::Set("SHELL".into(), "/bin/other".into()))));
    seen.insert(dirs.of_request(|it| it.labels.push(("k".into(), "v".into()))));
    seen.insert(dirs.of_request(|it| it.stage = Some("name".into())));
    seen.insert(dirs.of_request(|it| it.audit = AuditTo::File(dirs.0.join("record"))));
    // Contents, and times with them.
    fs::write(dirs.0.join("work/new"), "x").unwrap();
    seen.insert(dirs.of_request(|_| ()));
    seen.insert(dirs.of_plan(|it| it.run_base = "/elsewhere".into()));
    assert_eq!(seen.len(), 1, "{seen:?}");
}

/// A5: a saved fingerprint parses, and no other text does.
#[test]
fn a5_a_fingerprint_is_64_digits() {
    let dirs = Dirs::new("text");
    let it = dirs.of_request(|_| ());
    assert_eq!(it.to_string().parse::<Fingerprint>(), Ok(it.clone()));
    let json = serde_json::to_string(&it).unwrap();
    assert_eq!(json, format!("\"{it}\""));
    assert_eq!(serde_json::from_str::<Fingerprint>(&json).unwrap(), it);
    let (upper, short) = (it.as_str().to_uppercase(), "0".repeat(63));
    for wrong in ["", "0", &short, &format!("{it}0"), &format!("g{short}"), &upper] {
        assert_eq!(wrong.parse::<Fingerprint>(), Err(FingerprintError), "{wrong}");
    }
}

/// Two fields never join into the same bytes as two others.
#[test]
fn a_value_cannot_look_like_the_next_name() {
    let bytes = |pairs: &[(&str, &str)]| {
        let mut fields = Fields::default();
        for (name, value) in pairs {
            fields.text(name, value);
        }
        fields.0
    };
    assert_ne!(bytes(&[("a", "bc"), ("d", "")]), bytes(&[("a", "b"), ("cd", "")]));
    assert_ne!(bytes(&[("a", "b")]), bytes(&[("ab", "")]));
}

/// A5: another user changes the fingerprint, but not another number for a user of the run's own.
#[test]
fn a5_another_owner_is_another_fingerprint() {
    let dirs = Dirs::new("owners");
    let of = |uid| dirs.of_plan(|plan| become_user(plan, uid, uid));
    assert_ne!(of(61_500), of(62_000));
    assert_ne!(of(2_000_200_001), of(2_000_200_002));
    if nix::unistd::geteuid().is_root() {
        assert_eq!(dirs.of_plan(|_| ()), dirs.of_plan(|_| ()));
    }
}
