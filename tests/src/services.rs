//! Servers for real clients: OpenSSH, PostgreSQL and Redis on their ports of the internet, and one tiny package of each
//! kind at every web origin. The first trial that needs one makes it.
//!
//! The servers run as an ordinary user on the "host" and listen on Unix sockets: the origins' ports lead to them
//! (`origin`), so that every address of the internet has them and every connection is logged.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::audit::sha256_hex;
use crate::bench::{Bench, CLIENTS, HOME, ORDINARY, PATH, Powers};
use crate::origin::{BYTES, POSTGRES, REDIS, SSH, Server};
use crate::wait_for;

/// The content of the tiny packages.
pub const CONTENT: &str = "tiny and whole";
/// The account of SSH and PostgreSQL.
pub const LOGIN: &str = "git";

/// Returns a path for the files of servers and built clients.
fn place(name: &str) -> PathBuf {
    Path::new(HOME).join("services").join(name)
}

/// Makes the directory at first use, for the ordinary user.
fn home(bench: &Bench) {
    static MADE: OnceLock<()> = OnceLock::new();
    MADE.get_or_init(|| {
        let home = Path::new(HOME).join("services");
        fs::create_dir(&home).expect("services directory");
        bench.give(&home, false);
        // initdb and sshd need an account name, which the ordinary user lacks. The line comes before another of the
        // same number, which the developer may have.
        let uid = match bench.powers {
            Powers::Root => ORDINARY,
            Powers::Mapped { uid, .. } => uid,
        };
        let known = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let line = format!("{LOGIN}:x:{uid}:{uid}::{}:/bin/sh\n", home.display());
        fs::write(place("passwd"), line + &known).expect("passwd");
    });
}

/// Returns the words that run a command as the ordinary user, with the account [`LOGIN`].
fn as_service(bench: &Bench, words: &[&str]) -> Vec<String> {
    home(bench);
    let script = format!("mount --bind {} /etc/passwd && exec \"$@\"", place("passwd").display());
    let mut all: Vec<String> = ["unshare", "--mount", "sh", "-c"].map(str::to_string).to_vec();
    all.extend([script, "sh".into()]);
    all.extend(bench.become_user(false));
    all.extend(words.iter().map(|word| (*word).to_string()));
    all
}

/// Runs a command as the ordinary user to its end.
#[track_caller]
fn run(bench: &Bench, words: &[&str]) {
    let all = as_service(bench, words);
    let mut command = Command::new(&all[0]);
    command.args(&all[1..]).env_clear().env("PATH", PATH).env("HOME", place("")).env("LANG", "C.UTF-8");
    let output = command.current_dir(place("")).stdin(Stdio::null()).output().expect("a command starts");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&said));
}

/// Starts a server as the ordinary user; the end of the bench ends it.
fn start(bench: &Bench, words: &[&str]) {
    let all = as_service(bench, words);
    let mut command = Command::new(&all[0]);
    command.args(&all[1..]).env_clear().env("PATH", PATH).env("LANG", "C.UTF-8").current_dir(place(""));
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a server");
    crate::leftover::is_service(child.id());
    std::thread::spawn(move || child.wait());
}

/// Finds a program in its usual places, or where the set-up unpacked it.
pub fn program(name: &str) -> Option<PathBuf> {
    let unpacked = Path::new(CLIENTS).join("system/usr");
    let places = std::env::split_paths(PATH).chain([unpacked.join("sbin")]);
    let versions = [Path::new("/usr"), &unpacked]
        .into_iter()
        .flat_map(|usr| fs::read_dir(usr.join("lib/postgresql")).into_iter().flatten().flatten());
    let postgresql = versions.map(|version| version.path().join("bin"));
    places.chain(postgresql).map(|place| place.join(name)).find(|file| file.is_file())
}

/// Starts a real sshd on [`SSH`]. Returns the private key for [`LOGIN`].
pub fn ssh(bench: &Bench) -> &'static str {
    static KEY: OnceLock<String> = OnceLock::new();
    KEY.get_or_init(|| {
        let sshd = program("sshd").expect("sshd");
        home(bench);
        for key in ["host-key", "login-key"] {
            run(bench, &["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key]);
        }
        let at = |name: &str| place(name).display().to_string();
        let options = [
            format!("HostKey={}", at("host-key")),
            format!("AuthorizedKeysFile={}", at("login-key.pub")),
            "UsePAM=no".into(),
            "PasswordAuthentication=no".into(),
            "KbdInteractiveAuthentication=no".into(),
            "StrictModes=no".into(),
            "PidFile=none".into(),
            format!("SetEnv=PATH={PATH}"),
        ];
        let mut words = vec![sshd.to_str().expect("ASCII"), "-i", "-e", "-f", "/dev/null"];
        words.extend(options.iter().flat_map(|option| ["-o", option]));
        bench.internet.open(SSH, Server::PerConnection(as_service(bench, &words)));
        fs::read_to_string(place("login-key")).expect("the key")
    })
}

/// Starts a real PostgreSQL on [`POSTGRES`], with the user [`LOGIN`] and no password. It also listens on the host's
/// loopback, on port 5432.
pub fn postgresql(bench: &Bench) {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        let bin = |name: &str| program(name).expect("PostgreSQL").display().to_string();
        let data = place("postgresql").display().to_string();
        run(bench, &[&bin("initdb"), "-D", &data, "-U", LOGIN, "--auth=trust", "--no-sync", "--no-locale"]);
        let settings =
            ["listen_addresses=127.0.0.1", "fsync=off", "autovacuum=off", "unix_socket_directories="];
        let directory = format!("{}{}", settings[3], place("").display());
        let postgres = bin("postgres");
        let mut words = vec![postgres.as_str(), "-D", &data];
        words.extend(["-c", settings[0], "-c", settings[1], "-c", settings[2], "-c", &directory]);
        start(bench, &words);
        let socket = place(".s.PGSQL.5432");
        until_it_answers("PostgreSQL", &socket);
        bench.internet.open(POSTGRES, Server::Socket(socket));
    });
}

/// Starts a real Redis on [`REDIS`], without a password.
pub fn redis(bench: &Bench) {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        home(bench);
        let server = program("redis-server").unwrap_or_else(|| {
            // Debian's redis-tools has the same program by another name; the name decides what it does.
            let name = place("redis-server");
            symlink(program("redis-check-rdb").expect("Redis"), &name).expect("a link");
            name
        });
        let socket = place("redis");
        let words = ["--port", "0", "--save", "", "--protected-mode", "no", "--unixsocket"];
        let mut all = vec![server.to_str().expect("ASCII")];
        all.extend(words);
        all.push(socket.to_str().expect("ASCII"));
        start(bench, &all);
        until_it_answers("Redis", &socket);
        bench.internet.open(REDIS, Server::Socket(socket));
    });
}

fn until_it_answers(what: &str, socket: &Path) {
    wait_for(Duration::from_secs(20), what, || std::os::unix::net::UnixStream::connect(socket).ok());
}

/// Publishes one tiny package of each kind at every web origin. Returns the directory of the same git repository, for
/// SSH.
///
/// `/simple/` is a Python index, `/npm/` an npm registry, `/index/` a sparse cargo index, `/apt/` a Debian repository,
/// `/maven/` a Maven one and `/repo.git` a repository for git's plain HTTP.
pub fn packages(bench: &Bench) -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        home(bench);
        let script = place("make.sh");
        fs::write(&script, MAKE).expect("script");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
        run(bench, &["sh", "-e", "make.sh", CONTENT]);
        let made = |name: &str| fs::read(place("made").join(name)).expect("what make.sh made");
        let publish = |path: &str, kind: &'static str, content: Vec<u8>| {
            bench.internet.publish(path, kind, content);
        };
        let text = |path: &str, kind: &'static str, text: &str| publish(path, kind, text.into());

        text("/simple/tiny/", "text/html", "<a href=\"/simple/tiny-1.0-py3-none-any.whl\">tiny-1.0-py3-none-any.whl</a>");
        publish("/simple/tiny-1.0-py3-none-any.whl", BYTES, made("tiny-1.0-py3-none-any.whl"));

        let sha1 = String::from_utf8(made("tiny-1.0.0.sha1")).expect("ASCII");
        let versions = format!(
            r#"{{"name":"tiny","dist-tags":{{"latest":"1.0.0"}},"versions":{{"1.0.0":{{"name":"tiny","version":"1.0.0",
                "dist":{{"shasum":"{}","tarball":"https://{{host}}/npm/tiny-1.0.0.tgz"}}}}}}}}"#,
            sha1.trim()
        );
        text("/npm/tiny", "application/json", &versions);
        publish("/npm/tiny-1.0.0.tgz", BYTES, made("tiny-1.0.0.tgz"));

        let krate = made("tiny-1.0.0.crate");
        let line = format!(
            r#"{{"name":"tiny","vers":"1.0.0","deps":[],"cksum":"{}","features":{{}},"yanked":false}}"#,
            sha256_hex(&krate)
        );
        text("/index/config.json", "application/json", r#"{"dl":"https://{host}/index/crates"}"#);
        text("/index/ti/ny/tiny", "text/plain", &line);
        publish("/index/crates/tiny/1.0.0/download", BYTES, krate);

        let deb = made("tiny.deb");
        let packages = format!(
            "Package: tiny\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <nobody@example.com>\nDescription: tiny\n\
             Filename: ./tiny.deb\nSize: {}\nSHA256: {}\n",
            deb.len(),
            sha256_hex(&deb)
        );
        let release = format!(
            "Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n {} {} Packages\n",
            sha256_hex(packages.as_bytes()),
            packages.len()
        );
        text("/apt/Packages", "text/plain", &packages);
        text("/apt/Release", "text/plain", &release);
        publish("/apt/tiny.deb", BYTES, deb);

        text(
            "/maven/org/example/tiny/1.0/tiny-1.0.pom",
            "text/xml",
            "<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId><artifactId>tiny</artifactId>\
             <version>1.0</version><packaging>pom</packaging><description>tiny</description></project>",
        );

        let repository = place("made").join("repo.git");
        publish_tree(bench, &repository, &repository);
        repository
    })
}

/// Publishes every file of a bare repository below `/repo.git/`: after `git update-server-info` git needs no more.
fn publish_tree(bench: &Bench, top: &Path, directory: &Path) {
    for entry in fs::read_dir(directory).expect("a repository").flatten() {
        let path = entry.path();
        if path.is_dir() {
            publish_tree(bench, top, &path);
        } else {
            let name = path.strip_prefix(top).expect("below it").display().to_string();
            bench.internet.publish(&format!("/repo.git/{name}"), BYTES, fs::read(&path).expect("a file"));
        }
    }
}

/// Builds the packages with what a Debian machine has: Python for the wheel, tar, dpkg-deb and git.
const MAKE: &str = r#"
mkdir made && cd made
python3 - "$1" <<'EOF'
import sys, zipfile
with zipfile.ZipFile('tiny-1.0-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('tiny.py', 'print(%r)\n' % sys.argv[1])
    info = 'tiny-1.0.dist-info/'
    wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n')
    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    wheel.writestr(info + 'RECORD', 'tiny.py,,\n%sMETADATA,,\n%sWHEEL,,\n%sRECORD,,\n' % (info, info, info))
EOF
mkdir package && printf '{"name":"tiny","version":"1.0.0"}' >package/package.json
tar -czf tiny-1.0.0.tgz package
sha1sum <tiny-1.0.0.tgz | cut -c 1-40 >tiny-1.0.0.sha1
mkdir -p tiny-1.0.0/src && : >tiny-1.0.0/src/lib.rs
printf '[package]\nname = "tiny"\nversion = "1.0.0"\nedition = "2021"\n' >tiny-1.0.0/Cargo.toml
tar -czf tiny-1.0.0.crate tiny-1.0.0
mkdir -p deb/DEBIAN
printf 'Package: tiny\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <nobody@example.com>\nDescription: tiny\n' >deb/DEBIAN/control
dpkg-deb --root-owner-group -Zgzip --build deb tiny.deb >/dev/null
git init -q -b main work && cd work
printf '%s\n' "$1" >file && git add file
git -c user.name=n -c user.email=n@example.com commit -qm one
cd .. && git clone -q --bare work repo.git && git -C repo.git update-server-info
"#;

/// Builds a program once, as the ordinary user: `script` makes `$1` from `source`.
pub fn built(bench: &Bench, name: &str, source: &str, script: &str) -> PathBuf {
    home(bench);
    let directory = place(&format!("build-{name}"));
    fs::create_dir(&directory).expect("a directory to build in");
    bench.give(&directory, false);
    fs::write(directory.join(name), source).expect("source");
    run(bench, &["sh", "-ec", &format!("cd {}\n{script}", directory.display())]);
    directory
}
