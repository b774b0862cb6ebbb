//! Asks real clients and stand-ins, in the real sandbox, which hosts they use. No test needs a network: the first
//! request of a client is refused, and that is the answer. Needs bubblewrap and curl; a client that is not installed is
//! left out, and fails under `E2E_STRICT=1`.

#![expect(
    clippy::disallowed_methods,
    reason = "asks npm for its registry, and starts itself as another user"
)]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's helpers fail the test")]

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exeat_compose::{Ask, Discovered};
use exeat_policy::preset::{self, Preset, PresetOrProfile};
use exeat_policy::{Action, Limits, Note, Origin, Policy, PolicyBuilder, RuleSpec};
use exeat_runner::discover::error::DiscoveryError;
use exeat_runner::discover::{Discovery, Times};
use exeat_runner::{Bind, Bounds, Error, Files};

/// A name that no resolver knows.
const MIRROR: &str = "mirror.invalid";

/// Allows one sandbox at a time: the machine is small, and one test changes the working directory.
static TURN: Mutex<()> = Mutex::new(());
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A home directory, a project in it, and a directory of programs.
struct Scene {
    root: PathBuf,
    home: PathBuf,
    project: PathBuf,
    env: BTreeMap<OsString, OsString>,
    files: Files,
    own: Vec<exeat_policy::Rule>,
    times: Times,
    limits: Limits,
    may_be_kept: bool,
    _turn: MutexGuard<'static, ()>,
}

impl Scene {
    fn new() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        let root = std::env::temp_dir().join(format!("discover-{}-{number}", std::process::id()));
        fs::create_dir(&root).unwrap();
        let root = root.canonicalize().unwrap();
        let (home, project) = (root.join("home"), root.join("home/project"));
        fs::create_dir_all(&project).unwrap();
        fs::create_dir(root.join("bin")).unwrap();
        let mut env: BTreeMap<OsString, OsString> =
            std::env::vars_os().filter(|(name, _)| is_kept(name)).collect();
        // The tester's tools stay usable, although HOME changes.
        let real = PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/".into()));
        for (name, dir) in [("RUSTUP_HOME", ".rustup"), ("PYENV_ROOT", ".pyenv")] {
            if real.join(dir).is_dir() {
                env.entry(name.into()).or_insert_with(|| real.join(dir).into());
            }
        }
        env.insert("HOME".into(), home.clone().into());
        Self {
            root,
            home,
            project,
            env,
            files: Files::default(),
            own: Vec::new(),
            times: Times::default(),
            limits: Limits::default(),
            may_be_kept: true,
            _turn: turn,
        }
    }

    /// Makes a scene in which the only client is a stand-in.
    fn with_program(name: &str, script: &str) -> Self {
        let mut place = Self::new();
        place.program("bin", name, script);
        let path = format!("{}:/usr/bin:/bin", place.root.join("bin").display());
        place.env.insert("PATH".into(), path.into());
        place
    }

    fn program(&self, dir: &str, name: &str, script: &str) -> PathBuf {
        let path = self.root.join(dir).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/bash\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn ask(&self, preset: &str) -> Result<Discovered, Error> {
        let ask = Ask {
            may_be_kept: self.may_be_kept,
            cwd: self.project.clone(),
            files: self.files.clone(),
            host_env: self.env.clone(),
            own: &self.own,
            finish: &PolicyBuilder::build,
            limits: self.limits,
        };
        Discovery::start(ask, self.times)?.ask(group(preset))
    }

    /// Returns the rules, or the reason as text.
    fn hosts(&self, preset: &str) -> Vec<String> {
        let found = self.ask(preset).unwrap_or_else(|error| panic!("{error}"));
        texts(&found)
    }

    fn has(&self, program: &str) -> bool {
        let path = self.env.get(OsStr::new("PATH")).cloned().unwrap_or_default();
        let has = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
        if !has {
            eprintln!("left out: {program} is not installed");
            assert!(!is_strict(), "{program} is not installed");
        }
        has
    }

    /// Returns the records of the discovery's runs.
    fn records(&self) -> Vec<String> {
        let dir = self.home.join(".local/state/exeat/runs");
        let mut files: Vec<PathBuf> =
            walk(&dir).into_iter().filter(|path| path.extension() == Some("jsonl".as_ref())).collect();
        files.sort();
        files.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Whether a test that cannot run here fails.
fn is_strict() -> bool {
    std::env::var_os("E2E_STRICT").is_some()
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let of = |path: PathBuf| if path.is_dir() { walk(&path) } else { vec![path] };
    entries.flatten().flat_map(|entry| of(entry.path())).collect()
}

/// Whether a variable is kept: none with the tester's own settings is.
fn is_kept(name: &OsStr) -> bool {
    let name = name.to_string_lossy().to_ascii_lowercase();
    !["npm_config_", "pip_", "uv_", "cargo_", "yarn_", "xdg_"].iter().any(|start| name.starts_with(start))
}

fn group(name: &str) -> &'static Preset {
    match preset::find(name) {
        Some(PresetOrProfile::Group(group)) => group,
        other => panic!("{other:?}"),
    }
}

fn texts(found: &Discovered) -> Vec<String> {
    found.rules.iter().map(|rule| rule.text.clone()).collect()
}

fn why(result: Result<Discovered, Error>) -> DiscoveryError {
    match result {
        Err(Error::Preset { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

/// User settings that name a mirror: the preset, the client, a file below HOME and its content.
const SETTINGS: [(&str, &str, &str, &str); 3] = [
    ("npm", "npm", ".npmrc", "registry=https://HOST/npm/\n"),
    ("pypi", "pip", ".config/pip/pip.conf", "[global]\nindex-url = https://HOST/simple\n"),
    (
        "crates",
        "cargo",
        ".cargo/config.toml",
        "[source.crates-io]\nreplace-with = \"m\"\n[source.m]\nregistry = \"sparse+https://HOST/index/\"\n",
    ),
];

/// K34: without settings a client names its default registry, and the rule names the preset.
#[test]
fn k34_clients_say_which_registry_they_use() {
    let place = Scene::new();
    for (preset, client, ..) in SETTINGS {
        if !place.has(client) {
            continue;
        }
        let start = Instant::now();
        let found = place.ask(preset).unwrap_or_else(|error| panic!("{error}"));
        eprintln!("{client}: {} hosts in {:?}, {:?}", found.rules.len(), start.elapsed(), found.notes);
        assert!(!found.rules.is_empty(), "{client}");
        for rule in &found.rules {
            assert_eq!(rule.origin.to_string(), format!("preset:{preset}#{}", rule.text));
            assert_eq!(rule.spec, rule.text.parse::<RuleSpec>().unwrap());
        }
        if client == "npm" {
            let mut npm = Command::new("npm");
            npm.args(["config", "get", "registry"]).env_clear().envs(&place.env).current_dir(&place.root);
            let said = String::from_utf8(npm.output().unwrap().stdout).unwrap();
            let host = said.trim().trim_start_matches("https://").trim_end_matches('/');
            assert_eq!(texts(&found)[..1], [host.to_owned()]);
        }
    }
}

#[test]
fn a_mirror_in_the_users_settings_is_honoured() {
    let place = Scene::new();
    for (preset, client, file, text) in SETTINGS {
        if place.has(client) {
            place.file(file, &text.replace("HOST", "mirror.invalid:8443"));
            assert_eq!(place.hosts(preset), ["mirror.invalid:8443"], "{client}");
        }
    }
}

#[test]
fn a_mirror_in_the_users_environment_is_honoured() {
    for (preset, client, name, value) in [
        ("npm", "npm", "npm_config_registry", "https://mirror.invalid/"),
        ("pypi", "pip", "PIP_INDEX_URL", "https://mirror.invalid/simple"),
        ("npm", "npm", "npm_config_userconfig", "HOME/elsewhere"),
        ("pypi", "pip", "PIP_CONFIG_FILE", "HOME/elsewhere"),
    ] {
        let mut place = Scene::new();
        let text = if client == "npm" { SETTINGS[0].3 } else { SETTINGS[1].3 };
        place.file("elsewhere", &text.replace("HOST", MIRROR));
        place.env.insert(name.into(), value.replace("HOME", place.home.to_str().unwrap()).into());
        if place.has(client) {
            assert_eq!(place.hosts(preset), [MIRROR], "{name}");
        }
    }
}

/// H23: settings in the working directory, and in every directory above it, are ignored.
#[test]
fn h23_ignores_the_projects_settings() {
    let place = Scene::new();
    let before = std::env::current_dir().unwrap();
    for (_, _, file, text) in SETTINGS {
        place.file(file, &text.replace("HOST", MIRROR));
        let local = file.trim_start_matches(".config/pip/");
        place.file(&format!("project/{local}"), &text.replace("HOST", "evil.invalid"));
    }
    place.file("project/package.json", "{}");
    place.file("project/Cargo.toml", "[package]\nname = \"p\"\nversion = \"0.0.0\"\n");
    place.file("project/src/lib.rs", "");
    std::env::set_current_dir(&place.project).unwrap();
    let found = SETTINGS.map(|(preset, client, ..)| place.has(client).then(|| (client, place.hosts(preset))));
    std::env::set_current_dir(before).unwrap();
    for (client, hosts) in found.into_iter().flatten() {
        assert_eq!(hosts, [MIRROR], "{client}");
    }
}

/// H23: a program that the stage could have written is ignored too, whatever PATH contains, and so is one that the view
/// shows only because a variable names its tree.
#[test]
fn h23_ignores_programs_in_the_project() {
    let evil = "curl -s https://evil.invalid; exit 1";
    let mut place = Scene::with_program("pip", "curl -s https://mirror.invalid; exit 1");
    place.program("home/project/.venv/bin", "pip", evil);
    let venv = place.project.join(".venv");
    let path = place.env[OsStr::new("PATH")].clone();
    let mut with_venv = OsString::from(venv.join("bin"));
    with_venv.push(":");
    with_venv.push(&path);
    place.env.insert("PATH".into(), with_venv);
    place.env.insert("VIRTUAL_ENV".into(), venv.clone().into());
    assert_eq!(place.hosts("pypi"), [MIRROR]);
    // A link to it, or a directory that is a link, counts the same.
    fs::remove_file(place.root.join("bin/pip")).unwrap();
    symlink(venv.join("bin/pip"), place.root.join("bin/pip")).unwrap();
    symlink(venv.join("bin"), place.root.join("linked")).unwrap();
    place.env.insert("PATH".into(), format!("{0}/bin:{0}/linked:/usr/bin:/bin", place.root.display()).into());
    if !Path::new("/usr/bin/pip").exists() && !Path::new("/usr/bin/pip3").exists() {
        assert_eq!(why(place.ask("pypi")), DiscoveryError::InUntrustedTree { tree: place.project.clone() });
    }
    // Any tree that the stage may write counts like the project.
    let other = place.root.join("other");
    place.program("other/bin", "npm", evil);
    place.files.rw.push(Bind { host: other.clone(), guest: other.clone() });
    place.env.insert("PATH".into(), other.join("bin").into());
    assert_eq!(why(place.ask("npm")), DiscoveryError::InUntrustedTree { tree: other });
}

/// H23: settings that the stage could have written do not count as the user's, and a note reports them.
#[test]
fn h23_ignores_settings_that_the_stage_could_write() {
    let script = r#"for f in "$HOME/.npmrc" "$npm_config_userconfig"; do grep -qs evil "$f" && curl -s https://evil.invalid; done
        curl -s https://mirror.invalid; exit 1"#;
    let mut place = Scene::with_program("npm", script);
    place.file("project/settings", "evil\n");
    symlink(place.project.join("settings"), place.home.join(".npmrc")).unwrap();
    place.env.insert("npm_config_userconfig".into(), place.project.join("settings").into());
    let found = place.ask("npm").unwrap();
    assert_eq!(texts(&found), [MIRROR]);
    assert!(found.notes.iter().any(|note| note.contains(".npmrc` is not asked")), "{:?}", found.notes);
    // In the repository above the working directory, the file belongs to the project too.
    fs::create_dir(place.project.join(".git")).unwrap();
    fs::create_dir(place.project.join("sub")).unwrap();
    place.project.push("sub");
    assert_eq!(place.hosts("npm"), [MIRROR]);
    // The same file counts once only the user can write it.
    fs::rename(place.home.join("project/settings"), place.home.join("settings")).unwrap();
    place.env.insert("npm_config_userconfig".into(), place.home.join("settings").into());
    assert_eq!(place.hosts("npm"), ["evil.invalid", MIRROR]);
}

#[test]
fn a_client_that_is_absent_is_named() {
    let mut place = Scene::new();
    place.env.insert("PATH".into(), place.root.join("bin").into());
    let error = place.ask("npm").unwrap_err();
    assert_eq!(error.to_string(), "preset `npm` asks npm which hosts it uses, and npm is not on PATH");
    assert_eq!((error.code(), error.fix().as_deref()), (125, Some("name its hosts instead: --allow HOST")));
}

/// A01: a client's last line is quoted, and cannot move the cursor.
#[test]
fn a_client_that_fails_without_asking_is_quoted() {
    let place = Scene::with_program("npm", r"printf 'first\nbad \e[2Jword\n\n' >&2; exit 7");
    let why = why(place.ask("npm"));
    assert_eq!(why.to_string(), r"it exited 7 without asking for any: `bad \x1b[2Jword`");
    assert!(place.records()[0].contains(r#""stage":"preset:npm""#));
}

#[test]
fn a_client_that_succeeds_without_asking_needs_no_host() {
    let place = Scene::with_program("npm", "exit 0");
    let found = place.ask("npm").unwrap();
    assert_eq!((found.rules.len(), found.notes), (0, vec!["preset `npm`: npm needs no host".to_owned()]));
}

#[test]
fn stops_a_slow_client() {
    let mut place = Scene::with_program("npm", "exec sleep 100");
    place.times.round = Duration::from_millis(500);
    let start = Instant::now();
    assert_eq!(why(place.ask("npm")).to_string(), "it asked for none in 0.5 s");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop(place);
    // A client that asked before the deadline has given its answer.
    let mut place = Scene::with_program("npm", "curl -s https://mirror.invalid; exec sleep 100");
    place.times.round = Duration::from_millis(1500);
    assert_eq!(place.hosts("npm"), [MIRROR]);
    // One deadline covers all rounds.
    place.may_be_kept = false;
    place.times.all = Duration::from_secs(5);
    assert_eq!(why(place.ask("npm")), DiscoveryError::NoTime { limit: Duration::from_secs(5) });
}

/// Returns a line of shell that asks the proxy for a target.
fn connect(target: &str) -> String {
    format!(
        "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n\\r\\n' >&3; read -t 5 <&3; exec 3>&-"
    )
}

/// Returns a client that asks the proxy for these targets and fails.
fn asks_for(targets: &[&str]) -> String {
    let lines: Vec<String> = targets.iter().map(|target| connect(target)).collect();
    format!("{}; exit 1", lines.join("; "))
}

/// D06, D09, H08: an address in the settings is opened only if it may be a mirror's. The user must write a rule for
/// others.
#[test]
fn addresses_of_other_kinds_are_not_opened() {
    for (target, class, flag) in [
        ("127.0.0.1:8443", "loopback", true),
        ("[::1]:8443", "loopback", true),
        ("[::ffff:127.0.0.1]:443", "IPv4-mapped", true),
        ("[64:ff9b::10.1.2.3]:443", "NAT64", true),
        ("169.254.7.7:443", "link-local", true),
        ("[fe80::1]:443", "link-local", true),
        ("100.64.1.2:443", "carrier-grade NAT", true),
        ("192.0.2.1:443", "documentation", true),
        ("0.0.0.0:443", "unspecified", false),
        ("224.0.0.1:443", "multicast", false),
    ] {
        let place = Scene::with_program("npm", &asks_for(&[target]));
        let why = why(place.ask("npm"));
        let DiscoveryError::Special { class: found, flag: shown, .. } = &why else {
            panic!("{target}: {why:?}")
        };
        assert_eq!(found.as_str(), class, "{target}");
        assert_eq!(shown.is_some(), flag, "{target}: {why}");
        drop(place);
        // If the client also asked for a valid host, the address is left out, with one note.
        let place = Scene::with_program("npm", &asks_for(&["mirror.invalid:443", target]));
        let found = place.ask("npm").unwrap();
        assert_eq!(texts(&found), [MIRROR], "{target}");
        let notes: Vec<_> =
            found.notes.iter().filter(|note| note.contains("which no preset opens")).collect();
        assert_eq!(notes.len(), 1, "{target}: {:?}", found.notes);
        assert_eq!(notes[0].contains("; --allow "), flag, "{target}: {notes:?}");
    }
    // A metadata address ends the discovery, in every form, and no flag permits it.
    for target in ["169.254.169.254:80", "[::ffff:169.254.169.254]:443", "[64:ff9b::a9fe:a9fe]:443"] {
        let place = Scene::with_program("npm", &asks_for(&["mirror.invalid:443", target]));
        let error = place.ask("npm").unwrap_err();
        assert!(!format!("{error} {:?}", error.fix()).contains("--allow"), "{error}");
        assert!(!error.to_string().is_empty() && !place.records().concat().contains(r#""verdict":"allow""#));
    }
    // A mirror's address is accepted with the port that the user has set.
    let mirrors = ["10.9.8.7:8443", "[fd12:3456::7]:443", "93.184.215.14:443"];
    let place = Scene::with_program("npm", &asks_for(&mirrors));
    assert_eq!(place.hosts("npm"), mirrors);
}

/// D09: an address of this machine does not count as a mirror's.
#[test]
fn d09_own_addresses_are_not_opened() {
    let addrs = exeat_proxy::own_addresses().unwrap();
    let routed = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    // Sends nothing: the kernel names the source address that it would use.
    if routed.connect("192.0.2.1:9").is_err() {
        return assert!(!is_strict(), "this machine has no address of its own");
    }
    let own = routed.local_addr().unwrap().ip();
    assert!(addrs.contains(own));
    let place = Scene::with_program("npm", &asks_for(&[&format!("{own}:8443")]));
    let why = why(place.ask("npm")).to_string();
    assert!(why.contains("(this host's own)") && why.contains(&format!("--allow {own}:8443")), "{why}");
}

/// A rule of the user's opens an address that the preset does not, and the client then gets through.
#[test]
fn a_users_rule_opens_an_address_that_a_preset_does_not() {
    let place = || {
        let mut place = Scene::with_program("npm", &asks_for(&["127.0.0.1:9"]));
        let mut own = PolicyBuilder::new();
        own.add("127.0.0.1:9", Action::Allow, Origin::Flag { flag: "--allow".into() }, Note::default())
            .unwrap();
        place.own = own.build().rules().to_vec();
        place
    };
    let found = place().ask("npm").unwrap();
    assert_eq!(texts(&found), [""; 0]);
    assert!(found.doubt.as_ref().unwrap().contains("s: 127.0.0.1:9"), "{:?}", found.doubt);
}

/// An index can add names on the user's ports and on 443, but not on others, such as a mail server's.
#[test]
fn an_index_leads_to_no_port_of_its_choice() {
    let script = r#"curl -s https://index.invalid:8443/
        grep -q '"default"' "$EXEAT_DENIALS" && exit 1
        for port in 8443 443 25; do curl -s https://files.invalid:$port/; done; exit 1"#;
    let place = Scene::with_program("npm", script);
    let found = place.ask("npm").unwrap();
    assert_eq!(texts(&found), ["index.invalid:8443", "files.invalid:8443", "files.invalid"]);
    let left = |note: &String| note.contains("`files.invalid:25` is not among its hosts");
    assert!(found.notes.iter().any(left), "{:?}", found.notes);
}

/// H23: every repository around the working directory belongs to the project, not only the nearest one.
#[test]
fn h23_ignores_settings_in_enclosing_repositories() {
    let mut place = Scene::with_program("pip", "curl -s https://mirror.invalid; exit 1");
    place.program("home/project/bin", "pip", "curl -s https://evil.invalid; exit 1");
    let outer = place.project.clone();
    place.project.push("sub/deep");
    fs::create_dir_all(place.project.join("dir")).unwrap();
    fs::create_dir(outer.join(".git")).unwrap();
    fs::write(outer.join("sub/.git"), "gitdir: ../.git/modules/sub\n").unwrap();
    fs::create_dir(place.project.join(".git")).unwrap();
    // HOME does not count as a project, although some people keep it in a repository.
    fs::create_dir(place.home.join(".git")).unwrap();
    let ours = place.root.join("bin");
    let path = format!("{}/bin:{}:/usr/bin:/bin", outer.display(), ours.display());
    place.env.insert("PATH".into(), path.into());
    assert_eq!(place.hosts("pypi"), [MIRROR]);
    place.file(".pip/pip.conf", "");
    assert!(place.ask("pypi").unwrap().notes.iter().all(|note| !note.contains("is not asked")));
}

/// The ceilings' limits bound a client in each round.
#[test]
fn limits_hold_in_every_round() {
    let mut place = Scene::with_program("npm", "curl -s https://index.invalid/; exec sleep 100");
    place.times.round = Duration::from_millis(700);
    assert_eq!(place.hosts("npm"), ["index.invalid"]);
    let records = place.records();
    assert_eq!(records.len(), 2);
    for record in records {
        assert!(record.contains("pids=512") && record.contains("memory=2GiB"), "{record}");
    }
    place.limits.pids = Some(64);
    place.limits.timeout = Some("200ms".parse().unwrap());
    place.program("bin", "npm", "exec sleep 100");
    assert_eq!(why(place.ask("npm")).to_string(), "it asked for none in 0.2 s");
    // A client that forks without end is stopped, or refused by the kernel, and does not hang the run.
    place.limits.timeout = None;
    place.limits.pids = Some(16);
    place.program("bin", "npm", "for n in {1..100}; do sleep 5 & done; exit 9");
    let start = Instant::now();
    assert!(matches!(why(place.ask("npm")), DiscoveryError::Failed { .. } | DiscoveryError::Late { .. }));
    assert!(start.elapsed() < Duration::from_secs(10));
}

/// A target that is not a host and port ends the discovery; a client's settings cannot grant a denied host.
#[test]
fn rejects_invalid_targets() {
    let connect = |target: &str| asks_for(&[target]);
    let place = Scene::with_program("npm", &connect("a..b:443"));
    assert_eq!(why(place.ask("npm")), DiscoveryError::Malformed);
    drop(place);
    let place = Scene::with_program("npm", &connect("metadata.google.internal:443"));
    assert!(matches!(why(place.ask("npm")), DiscoveryError::Denied { .. }));
    drop(place);
    let place = Scene::with_program("npm", &connect("169.254.169.254:443"));
    assert!(matches!(why(place.ask("npm")), DiscoveryError::Denied { .. }));
    drop(place);
    let mut place = Scene::with_program("npm", &connect("mirror.invalid:443"));
    let mut own = PolicyBuilder::new();
    own.add("*.invalid", Action::Deny, Origin::Flag { flag: "--deny".into() }, Note::default()).unwrap();
    place.own = own.build().rules().to_vec();
    assert!(matches!(why(place.ask("npm")), DiscoveryError::Denied { .. }));
    drop(place);
    let many = "for n in {1..20}; do curl -s https://h$n.invalid; done; exit 1";
    assert_eq!(why(Scene::with_program("npm", many).ask("npm")), DiscoveryError::TooMany);
}

/// An index names the host of its files, which the next round finds; only names are accepted.
#[test]
fn finds_hosts_that_a_found_host_names() {
    let script = r#"curl -s https://index.invalid/
        grep -q '"default"' "$EXEAT_DENIALS" && exit 1
        curl -s https://files.invalid/; curl -s https://10.9.8.7/; exit 1"#;
    let place = Scene::with_program("npm", script);
    let found = place.ask("npm").unwrap();
    assert_eq!(texts(&found), ["index.invalid", "files.invalid"]);
    assert!(
        found.notes.iter().any(|note| note.contains("`10.9.8.7:443` is not among its hosts")),
        "{:?}",
        found.notes
    );
    assert!(found.doubt.as_ref().unwrap().contains("s: 10.9.8.7:443"), "{:?}", found.doubt);
    // Every round has a record, and allowed only hosts that were found before it.
    let records = place.records();
    assert_eq!(records.len(), 3);
    assert!(!records[0].contains(r#""verdict":"allow""#));
    drop(place);
    // The user's own settings may contain an address.
    let place = Scene::with_program("npm", "curl -s https://10.9.8.7/; exit 1");
    assert_eq!(place.hosts("npm"), ["10.9.8.7:443"]);
}

#[test]
fn finds_and_reports_a_mirror_on_plain_http() {
    let place = Scene::with_program("npm", "curl -s http://mirror.invalid/; exit 1");
    let found = place.ask("npm").unwrap();
    assert_eq!(texts(&found), ["mirror.invalid:80"]);
    assert!(found.notes.iter().any(|note| note.contains("plain http")), "{:?}", found.notes);
}

/// A ceiling also bounds the later rounds.
#[test]
fn a_ceiling_bounds_every_round() {
    let place = Scene::with_program("npm", "curl -s https://index.invalid/; exit 1");
    let rounds = AtomicU32::new(0);
    let finish = |_: PolicyBuilder| -> Policy {
        rounds.fetch_add(1, Ordering::SeqCst);
        PolicyBuilder::new().build()
    };
    let ask = Ask {
        may_be_kept: true,
        cwd: place.project.clone(),
        files: Files::default(),
        host_env: place.env.clone(),
        own: &[],
        finish: &finish,
        limits: Limits::default(),
    };
    let found = Discovery::start(ask, Times::default()).unwrap().ask(group("npm")).unwrap();
    assert_eq!(
        (texts(&found), rounds.into_inner()),
        (vec!["index.invalid".to_owned()], 3),
        "for what is kept, and in two rounds"
    );
    assert!(place.records().iter().all(|record| !record.contains(r#""verdict":"allow""#)));
}

/// Asking a client takes seconds, so its answer is kept.
#[test]
fn an_answer_is_kept_until_the_settings_change() {
    let place = Scene::with_program("npm", "curl -s https://index.invalid/; exit 0");
    let settings = place.file(".npmrc", "registry=https://one.invalid/");
    assert_eq!(place.hosts("npm"), ["index.invalid"]);
    let rounds = place.records().len();
    assert_eq!(place.hosts("npm"), ["index.invalid"]);
    assert_eq!(place.records().len(), rounds, "it was asked again");
    fs::write(settings, "registry=https://two.invalid/").unwrap();
    assert_eq!(place.hosts("npm"), ["index.invalid"]);
    assert!(place.records().len() > rounds, "it was not asked");
}

/// A client that fails takes as long, so its answer is kept for a while, with the hosts that it asked for or without.
#[test]
fn the_answer_of_a_client_that_failed_is_kept_until_it_is_asked_anew() {
    const FORGETS: &str = " s ago; `exeat preset npm --ask` forgets that and asks again)";
    for script in ["curl -s https://index.invalid/; exit 1", "exit 7"] {
        let mut place = Scene::with_program("npm", script);
        let settings = place.file(".npmrc", "x");
        // Without the age of an answer, and whether it has one.
        let ask = |place: &Scene| {
            let said = match place.ask("npm") {
                Ok(found) => (texts(&found), found.doubt.unwrap()),
                Err(error) => (Vec::new(), error.to_string()),
            };
            let rounds = place.records().len();
            match said.1.split_once(" (asked ") {
                Some((why, end)) => ((said.0, why.to_owned()), end.ends_with(FORGETS), rounds),
                None => (said, false, rounds),
            }
        };
        let (first, is_earlier, rounds) = ask(&place);
        assert!(!is_earlier, "{first:?}");
        assert_eq!(ask(&place), (first.clone(), true, rounds), "{script}");
        // Other limits, as of a ceiling, may let it finish; so may other settings.
        place.limits.pids = Some(100);
        assert!(!ask(&place).1, "{script}");
        place.limits.pids = None;
        assert!(ask(&place).1, "{script}");
        fs::write(&settings, "y").unwrap();
        assert!(!ask(&place).1, "{script}");
        fs::write(&settings, "x").unwrap();
        assert!(ask(&place).1, "{script}");
        // Whoever asks anew forgets what failed with any settings.
        fs::write(&settings, "z").unwrap();
        place.may_be_kept = false;
        assert!(!ask(&place).1, "{script}");
        fs::write(&settings, "x").unwrap();
        place.may_be_kept = true;
        let (_, is_earlier, now) = ask(&place);
        assert!(!is_earlier && now > rounds, "{script}");
    }
}

/// A client that had no time left because of the others would have had it alone.
#[test]
fn a_client_without_time_is_asked_again() {
    let mut place = Scene::with_program("npm", "exec sleep 100");
    // A second beside what a kill may take.
    place.times.all = Duration::from_secs(6);
    for _ in 0..2 {
        assert!(matches!(why(place.ask("npm")), DiscoveryError::Late { .. }));
    }
}

/// The client starts in an empty directory. It sees its user's settings, but nothing else of the home or the project,
/// and its output is not shown.
#[test]
fn the_view_is_empty_but_for_settings() {
    // The stand-in itself, and the hidden places, lie in /tmp.
    let script = r#"echo stdout
        printf "%s|" "$(ls -A | grep -vc ^discover-)" $(cd "$HOME" && find . -type f) "$PWD" "$SECRET" >&2
        exit 3"#;
    let mut place = Scene::with_program("npm", script);
    place.file(".npmrc", "x");
    place.file(".ssh/id", "x");
    place.file("project/x", "x");
    place.env.insert("SECRET".into(), "secret".into());
    let why = why(place.ask("npm")).to_string();
    assert!(why.ends_with("`0|./.npmrc|/tmp||`"), "{why}");
}

/// K1: a mask of a ceiling hides settings from clients too; a ceiling's list of trees does not concern them.
#[test]
fn k1_a_ceilings_mask_hides_settings() {
    let mut place =
        Scene::with_program("npm", r#"printf %s "$(cat "$HOME/.npmrc" 2>/dev/null)" >&2; exit 3"#);
    let settings = place.file(".npmrc", "x");
    let shown = Bounds { name: "site.toml".into(), ro: Some(Vec::new()), ..Bounds::default() };
    place.files.bounds = vec![shown.clone()];
    assert!(why(place.ask("npm")).to_string().ends_with("`x`"));
    place.files.bounds = vec![Bounds { mask: vec![settings], ..shown }];
    let why = why(place.ask("npm")).to_string();
    assert!(why.ends_with("without asking for any"), "{why}");
}

/// Runs these tests again as an ordinary user.
#[test]
#[ignore = "needs root"]
fn as_an_ordinary_user() {
    let root = std::env::temp_dir().join(format!("discover-user-{}", std::process::id()));
    fs::create_dir(&root).unwrap();
    chown(&root, Some(1001), Some(1001)).unwrap();
    // Copied, because the user may not be able to execute it where it was built.
    let this = root.join("tests");
    fs::copy(std::env::current_exe().unwrap(), &this).unwrap();
    let mut again = Command::new(&this);
    again.env_clear().uid(1001).gid(1001).current_dir(&root);
    again.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", &root).env("TMPDIR", &root);
    // A child that another test forked meanwhile may hold the copy open for writing until it executes: ETXTBSY.
    let busy = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ExecutableFileBusy;
    let mut tries = 0;
    let done = loop {
        match again.output() {
            Err(error) if busy(&error) && tries < 100 => std::thread::sleep(Duration::from_millis(20)),
            output => break output.unwrap(),
        }
        tries += 1;
    };
    fs::remove_dir_all(&root).unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}{err}");
}
