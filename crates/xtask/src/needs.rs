//! Finds and installs what a machine needs: Debian packages, and a kernel that allows sandboxes.
//!
//! Only apt-get changes the machine: for a kernel setting, the command that sets it is printed and never run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::tree;

/// The purpose that the machine is prepared for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Build exeat, run it against local servers.
    Demo,
    /// Measure exeat against local servers.
    Bench,
    /// Drive clients and tools in tests.
    Test,
    /// Run tests, and the toolchain's formatter and linter.
    Ci,
    /// Run the client trials, including those that are too large for every run.
    Matrix,
    /// Build the fuzz targets with the fuzzer, which is C++, and run them without a sandbox.
    Fuzz,
}

/// A package that must be installed.
struct Need {
    /// The Debian package.
    package: &'static str,
    /// Checks whether it is installed.
    present: fn() -> bool,
    /// The purposes that need it.
    by: &'static [Needs],
}

/// The purposes that compile code.
const COMPILED: &[Needs] = &[Needs::Demo, Needs::Bench, Needs::Test, Needs::Ci, Needs::Matrix, Needs::Fuzz];
/// The purposes that run exeat.
const RUN: &[Needs] = &[Needs::Demo, Needs::Bench, Needs::Test, Needs::Ci, Needs::Matrix];
/// The purposes that drive clients and tools.
const TESTS: &[Needs] = &[Needs::Test, Needs::Ci, Needs::Matrix];
/// The purpose that also drives the large clients.
const MATRIX: &[Needs] = &[Needs::Matrix];

const NEEDS: &[Need] = &[
    Need { package: "gcc", present: || on_path("cc"), by: COMPILED },
    // Every program is linked with it.
    Need { package: "libc6-dev", present: c_library, by: COMPILED },
    Need { package: "g++", present: || on_path("c++"), by: &[Needs::Fuzz] },
    // exeat itself takes bwrap from these places only.
    Need {
        package: "bubblewrap",
        present: || is_file("/usr/bin/bwrap") || is_file("/usr/local/bin/bwrap"),
        by: RUN,
    },
    Need { package: "iproute2", present: || on_path("ip"), by: RUN },
    Need { package: "util-linux", present: || on_path("unshare") && on_path("nsenter"), by: RUN },
    Need { package: "curl", present: || on_path("curl"), by: RUN },
    Need { package: "ca-certificates", present: || is_file("/etc/ssl/certs/ca-certificates.crt"), by: RUN },
    Need { package: "git", present: || on_path("git"), by: TESTS },
    Need { package: "git-lfs", present: || on_path("git-lfs"), by: TESTS },
    Need { package: "mercurial", present: || on_path("hg"), by: TESTS },
    Need { package: "musl-tools", present: || on_path("musl-gcc"), by: TESTS },
    Need { package: "openssl", present: || on_path("openssl"), by: TESTS },
    Need { package: "python3", present: || on_path("python3"), by: TESTS },
    Need { package: "python3-pip", present: pip, by: TESTS },
    Need { package: "nodejs", present: || on_path("node"), by: TESTS },
    Need { package: "npm", present: || on_path("npm"), by: TESTS },
    Need { package: "make", present: || on_path("make"), by: TESTS },
    Need { package: "tmux", present: || on_path("tmux"), by: TESTS },
    Need { package: "default-jdk-headless", present: || on_path("javac"), by: TESTS },
    Need { package: "wget", present: || on_path("wget"), by: TESTS },
    Need { package: "golang-go", present: || on_path("go"), by: TESTS },
    Need { package: "openssh-client", present: || on_path("ssh") && on_path("ssh-keygen"), by: TESTS },
    // Contains Redis's server too; the package `redis-server` would also start it.
    Need {
        package: "redis-tools",
        present: || on_path("redis-cli") && on_path("redis-check-rdb"),
        by: TESTS,
    },
    Need { package: "postgresql-client", present: || on_path("psql"), by: TESTS },
    // Tests of terminals, completions and manual pages use these.
    Need { package: "jq", present: || on_path("jq"), by: TESTS },
    Need { package: "vim", present: || on_path("vim"), by: TESTS },
    Need { package: "less", present: || on_path("less"), by: TESTS },
    Need { package: "procps", present: || on_path("top"), by: TESTS },
    Need { package: "bsdutils", present: || on_path("script"), by: TESTS },
    Need { package: "zsh", present: || on_path("zsh"), by: TESTS },
    Need { package: "fish", present: || on_path("fish"), by: TESTS },
    Need { package: "man-db", present: || on_path("man"), by: TESTS },
    Need { package: "maven", present: || on_path("mvn"), by: MATRIX },
    Need { package: "chromium", present: || on_path("chromium"), by: MATRIX },
];

/// Servers that tests talk to: a Debian package, and its program. Installing one would start it now and at every boot,
/// so it is unpacked below [`clients`] if the machine does not have it.
const SERVERS: &[(&str, &str)] = &[("openssh-server", "sshd"), ("postgresql", "initdb")];

/// Clients and checkers that Debian does not have: Python packages, and one file of each.
const PYTHON_CLIENTS: &[(&str, &str)] = &[
    ("uv", "bin/uv"),
    ("aiohttp", "aiohttp/__init__.py"),
    // The published OCSF as JSON Schemas, and a validator for them. Pinned, because another release may read the same
    // schema another way.
    ("ocsf-json-schema==1.2.0", "ocsf_json_schema-1.2.0.dist-info/METADATA"),
    ("jsonschema==4.26.0", "jsonschema-4.26.0.dist-info/METADATA"),
];

/// Clients that Debian has under another name or not at all: npm packages, and their programs. Pinned, because later
/// ones need a newer Node.js than Debian's.
const NODE_CLIENTS: &[(&str, &str)] = &[("pnpm@10.34.9", "pnpm"), ("yarn@1.22.22", "yarn")];

/// Installs what is missing, or prints the command that would. Then tries to make a sandbox if one is needed.
pub(crate) fn provide(needs: Needs) -> Result<(), String> {
    let missing: Vec<&Need> =
        NEEDS.iter().filter(|need| need.by.contains(&needs)).filter(|need| !(need.present)()).collect();
    if !missing.is_empty() {
        install(&missing)?;
    }
    if needs == Needs::Ci {
        components()?;
    }
    if TESTS.contains(&needs) {
        fetch_crates()?;
        unpack_servers()?;
        python_clients()?;
        node_clients()?;
    }
    if needs == Needs::Fuzz { Ok(()) } else { sandboxes() }
}

/// Downloads the crates of all targets: tests read the dependency graph without a network, and a build fetches only what its own
/// target needs.
fn fetch_crates() -> Result<(), String> {
    let is_done = Command::new(env!("CARGO")).args(["fetch", "--locked", "--quiet"]).status();
    if is_done.is_ok_and(|status| status.success()) {
        Ok(())
    } else {
        Err("`cargo fetch` failed".to_string())
    }
}

/// Installs packages with apt-get, as root or through a `sudo` that asks for no password.
fn install(missing: &[&Need]) -> Result<(), String> {
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    install_packages(&packages)?;
    match missing.iter().find(|need| !(need.present)()) {
        Some(need) => Err(format!("`{}` is installed, but its program is not found", need.package)),
        None => Ok(()),
    }
}

pub(crate) fn install_packages(packages: &[&str]) -> Result<(), String> {
    let by_hand =
        format!("apt-get update && apt-get install -y --no-install-recommends {}", packages.join(" "));
    if !on_path("apt-get") {
        return Err(format!("missing on this machine: {} (names of Debian's packages)", packages.join(", ")));
    }
    if !is_root() && !sudo() {
        return Err(format!("missing packages. Install them with:\n  sudo sh -c '{by_hand}'"));
    }
    println!("xtask: installing {} with apt-get", packages.join(" "));
    // An update may fail for one source of several; what counts is whether the packages are available.
    let _ = apt(&["update"]);
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(packages);
    if apt(&arguments) { Ok(()) } else { Err(format!("apt-get failed. By hand:\n  {by_hand}")) }
}

/// Returns whether `sudo` works without a password.
pub(crate) fn sudo() -> bool {
    quietly(Command::new("sudo").args(["-n", "true"]))
}

/// Runs apt-get as root, and returns whether it succeeded.
fn apt(arguments: &[&str]) -> bool {
    let mut command = Command::new(if is_root() { "env" } else { "sudo" });
    if !is_root() {
        command.args(["-n", "env"]);
    }
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]);
    command.args(["-o", "Dpkg::Use-Pty=0"]).args(arguments);
    // Hides hundreds of lines about packages; errors and warnings stay.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Returns the directory for servers and clients that are not installed on this machine.
fn clients() -> Result<PathBuf, String> {
    Ok(tree::target()?.join("clients"))
}

fn unpack_servers() -> Result<(), String> {
    let clients = clients()?;
    let system = clients.join("system");
    for (package, program) in SERVERS {
        let there = |usr: &Path| is_file(usr.join("sbin").join(program)) || in_postgresql(usr, program);
        if !there(Path::new("/usr")) && !there(&system.join("usr")) {
            unpack(package, &clients, &system)?;
        }
    }
    Ok(())
}

/// Checks for a PostgreSQL program, which lies in a directory named after its version.
fn in_postgresql(usr: &Path, program: &str) -> bool {
    let versions = fs::read_dir(usr.join("lib/postgresql")).into_iter().flatten().flatten();
    versions.into_iter().any(|version| is_file(version.path().join("bin").join(program)))
}

/// Downloads a package, installs the libraries that it is linked with, and unpacks it.
fn unpack(package: &str, clients: &Path, system: &Path) -> Result<(), String> {
    fs::create_dir_all(system).map_err(|error| format!("cannot make {}: {error}", system.display()))?;
    // A new machine knows no packages yet, and an old list may name versions that no longer exist.
    if is_root() || sudo() {
        let _ = apt(&["update"]);
    }
    // `postgresql` depends on the version that the distribution has.
    let known = dependencies(package);
    let version =
        known.iter().find(|name| name.strip_prefix(package).is_some_and(|rest| rest.starts_with('-')));
    let package = version.map_or(package, String::as_str);
    // PostgreSQL's query compiler is optional.
    let known = dependencies(package);
    let libraries: Vec<&str> = known
        .iter()
        .map(String::as_str)
        .filter(|name| name.starts_with("lib") && !name.starts_with("libllvm") && !installed(name))
        .collect();
    if !libraries.is_empty() {
        install_packages(&libraries)?;
    }
    println!("xtask: unpacking {package} into {}", system.display());
    output(Command::new("apt-get").args(["-qq", "download", package]).current_dir(clients))?;
    let name = format!("{package}_");
    let file = fs::read_dir(clients)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&name)))
        .ok_or_else(|| format!("apt-get left no {package}"))?;
    output(Command::new("dpkg-deb").arg("-x").arg(&file).arg(system))?;
    fs::remove_file(&file).map_err(|error| format!("cannot remove {}: {error}", file.display()))
}

/// Returns the names of a package's dependencies; none for a package that apt does not know.
fn dependencies(package: &str) -> Vec<String> {
    let said = output(Command::new("apt-cache").args(["depends", "--important", package]).env("LC_ALL", "C"));
    let lines = said.unwrap_or_default();
    lines.lines().filter_map(|line| line.trim().strip_prefix("Depends: ")).map(str::to_owned).collect()
}

fn installed(package: &str) -> bool {
    let status = output(Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}\n", package]));
    status.is_ok_and(|status| status.lines().any(|line| line == "installed"))
}

/// Installs them with the system's own Python: some are compiled for one version, and trials see only the system's.
fn python_clients() -> Result<(), String> {
    let place = clients()?.join("python");
    let missing: Vec<&str> = PYTHON_CLIENTS
        .iter()
        .filter(|(_, file)| !is_file(place.join(file)))
        .map(|(package, _)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("xtask: installing {} into {} with pip", missing.join(" "), place.display());
    let mut pip = Command::new(if is_file("/usr/bin/python3") { "/usr/bin/python3" } else { "python3" });
    pip.args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "--upgrade", "--target"]);
    output(pip.arg(&place).args(&missing)).map(drop)
}

fn node_clients() -> Result<(), String> {
    let place = clients()?.join("node");
    if NODE_CLIENTS.iter().all(|(_, program)| is_file(place.join("node_modules/.bin").join(program))) {
        return Ok(());
    }
    let packages: Vec<&str> = NODE_CLIENTS.iter().map(|(package, _)| *package).collect();
    println!("xtask: installing {} into {} with npm", packages.join(" "), place.display());
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]);
    output(npm.arg(&place).args(&packages)).map(drop)
}

/// Runs a command to its end, and returns what it printed, or its error message.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("cannot start {name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Checks for rustfmt and clippy. The toolchain is the user's, so missing parts are reported, not installed.
fn components() -> Result<(), String> {
    let missing: Vec<&str> = [("fmt", "rustfmt"), ("clippy", "clippy")]
        .into_iter()
        .filter(|(command, _)| !quietly(tree::cargo().args([command, "--version"])))
        .map(|(_, component)| component)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("the toolchain lacks parts. Add them with:\n  rustup component add {}", missing.join(" ")))
}

/// Makes an empty sandbox, as exeat would, and reports what prevents it.
fn sandboxes() -> Result<(), String> {
    let output = Command::new(if is_file("/usr/bin/bwrap") { "/usr/bin/bwrap" } else { "bwrap" })
        .args([
            "--unshare-all",
            "--unshare-user",
            "--ro-bind",
            "/",
            "/",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "/bin/true",
        ])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start bwrap: {error}"))?;
    // The tests make a private "host" with unshare, which may be forbidden where bwrap is allowed.
    let host = quietly(Command::new("unshare").args(["-Urnm", "true"]));
    if output.status.success() && host {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let said = if output.status.success() { "`unshare -Urnm true` failed".to_owned() } else { said };
    let why = OBSTACLES
        .iter()
        .find(|(file, bad, _)| fs::read_to_string(file).is_ok_and(|text| text.trim() == *bad))
        .map_or_else(
            || {
                "Inside a container the runtime's seccomp filter may refuse it. With Docker:\n  \
                 docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined ..."
                    .to_owned()
            },
            |(file, bad, fix)| format!("{file} is {bad}. This allows it:\n  {fix}"),
        );
    Err(format!("this machine refuses to make a user namespace: {said}\n{why}"))
}

/// Kernel settings that forbid user namespaces: the file, the value that does, and the command that allows them.
const OBSTACLES: &[(&str, &str, &str)] = &[
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000"),
];

fn on_path(program: &str) -> bool {
    tree::program(program).is_some()
}

fn is_file(path: impl AsRef<Path>) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// The C compiler prints a full path when it knows the library, the bare name when it does not.
fn c_library() -> bool {
    Command::new("cc")
        .arg("-print-file-name=crt1.o")
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().starts_with('/'))
}

/// Checks for the system's pip, which trials use; another may come first on PATH.
fn pip() -> bool {
    ["python3", "/usr/bin/python3"]
        .into_iter()
        .filter(|python| *python == "python3" || is_file(python))
        .all(|python| quietly(Command::new(python).args(["-m", "pip", "--version"])))
}

/// Returns whether the effective uid is 0.
pub(crate) fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:"))
            .and_then(|uids| uids.split_whitespace().nth(1))
            == Some("0")
    })
}

/// Runs a command without input or output, and returns whether it succeeded.
fn quietly(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
