//! The proxy under load, and its use of resources.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use tokio::time::sleep;

/// Raises this process's limit of descriptors, which the proxy inherits, and returns it.
pub(crate) fn raise_open_files(needed: u64) -> u64 {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("RLIMIT_NOFILE");
    if hard < needed && setrlimit(Resource::RLIMIT_NOFILE, needed, needed).is_ok() {
        return needed;
    }
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("raising RLIMIT_NOFILE to its hard limit");
    hard
}

/// An `exeat proxy` with its files. Dropping this ends it.
pub(crate) struct Watched {
    child: Child,
    directory: PathBuf,
    socket: PathBuf,
}

/// The resources that it uses at a moment.
pub(crate) struct Look {
    pub(crate) descriptors: usize,
    pub(crate) rss_kb: u64,
    pub(crate) peak_kb: u64,
    pub(crate) cpu: Duration,
}

impl Watched {
    /// Starts the release binary, which `cargo xtask soak` builds in the directory of this program.
    pub(crate) fn start(origins: &[SocketAddr], connections: usize) -> Self {
        let this = std::env::current_exe().expect("own path");
        let exeat = this.with_file_name("exeat");
        assert!(exeat.is_file(), "{} is missing: run `cargo xtask soak`", exeat.display());
        let directory = std::env::temp_dir().join(format!("exeat-soak-{}", std::process::id()));
        fs::create_dir(&directory).expect("a directory");
        let socket = directory.join("socket");
        let mut command = Command::new(exeat);
        command.current_dir(&directory).env_clear().env("HOME", &directory);
        command.arg("proxy").arg("--listen").arg(format!("unix:{}", socket.display()));
        for origin in origins {
            command.args(["--allow", &origin.to_string()]);
        }
        for key in ["connections", "connections_per_host"] {
            command.arg("--set").arg(format!("limits.{key}={connections}"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("exeat proxy");
        let watched = Self { child, directory, socket };
        let end = Instant::now() + Duration::from_secs(10);
        while UnixStream::connect(&watched.socket).is_err() {
            assert!(Instant::now() < end, "exeat proxy does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        watched
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    fn proc(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.child.id()))
    }

    pub(crate) fn now(&self) -> Look {
        let status = fs::read_to_string(self.proc("status")).expect("the proxy lives");
        let field = |name: &str| -> u64 {
            let rest = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            rest.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).expect("a number")
        };
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        let cpu = clock_getcpuclockid(pid).and_then(clock_gettime).map(Duration::from).expect("its clock");
        let descriptors = fs::read_dir(self.proc("fd")).expect("its descriptors").count();
        Look { descriptors, rss_kb: field("VmRSS"), peak_kb: field("VmHWM"), cpu }
    }

    /// Resets the peak of the memory (proc(5), `clear_refs`).
    pub(crate) fn reset_peak(&self) {
        let _ = fs::write(self.proc("clear_refs"), "5");
    }

    /// Waits until it has at most this many descriptors, or their number is stable; at most half a minute, which is
    /// longer than any deadline of a client.
    pub(crate) async fn settled(&self, descriptors: Option<usize>) -> Look {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let before = self.now();
            sleep(Duration::from_millis(300)).await;
            let now = self.now();
            let rests =
                descriptors.map_or(before.descriptors == now.descriptors, |most| now.descriptors <= most);
            if rests || Instant::now() > end {
                return now;
            }
        }
    }

    pub(crate) async fn share_of_a_cpu(&self, time: Duration) -> f64 {
        let before = self.now().cpu;
        sleep(time).await;
        (self.now().cpu - before).as_secs_f64() / time.as_secs_f64()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}
