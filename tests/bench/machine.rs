//! The properties of the machine, and what a measuring process needs from it.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, unshare};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::{Pid, getgid, getuid};

/// Returns the CPUs that this process may use.
pub(crate) fn cpus() -> CpuSet {
    sched_getaffinity(Pid::from_raw(0)).expect("the CPUs we may use")
}

/// Restricts this thread, and what it starts from now on, to these CPUs.
pub(crate) fn use_cpus(cpus: &CpuSet) {
    sched_setaffinity(Pid::from_raw(0), cpus).expect("sched_setaffinity");
}

/// Puts this process, and all that it starts, on the first CPU that it may use.
pub(crate) fn pin() {
    let allowed = cpus();
    let first =
        (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or(false)).expect("at least one CPU");
    let mut one = CpuSet::new();
    one.set(first).expect("a CPU number");
    use_cpus(&one);
}

/// Makes a name resolve to a loopback address, for this process and all that it starts, through a private hosts file.
/// Must be called while there is one thread.
pub(crate) fn name_loopback(name: &str, directory: &Path) -> io::Result<()> {
    let (uid, gid) = (getuid(), getgid());
    if unshare(CloneFlags::CLONE_NEWNS).is_err() {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUSER)?;
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let place = fs::canonicalize("/etc/hosts")?;
    let (hosts, before) = (directory.join("hosts"), fs::read_to_string(&place)?);
    fs::write(&hosts, format!("{before}\n127.0.0.1 {name}\n"))?;
    mount(Some(&hosts), &place, none, MsFlags::MS_BIND, none)?;
    Ok(())
}

/// Returns the time of the clock that every process of the machine shares.
pub(crate) fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).expect("the monotonic clock")
}

/// Raises the limit of descriptors: thousands of tunnels need thousands.
pub(crate) fn raise_open_files() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("RLIMIT_NOFILE");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("raising RLIMIT_NOFILE to its hard limit");
}

/// Returns how many files this process may open.
pub(crate) fn open_files() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft)
}

/// Returns the CPU time of this process: all threads, user and system.
pub(crate) fn own_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from).expect("own CPU clock")
}

/// Returns the CPU time of another process: all threads, user and system.
pub(crate) fn cpu_of(pid: u32) -> Duration {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid"));
    clock_getcpuclockid(pid).and_then(clock_gettime).map(Duration::from).expect("CPU clock of a process")
}

/// Returns the CPU time of every ended child and its descendants.
pub(crate) fn children_cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("getrusage");
    let of = |time: nix::sys::time::TimeVal| {
        Duration::from_secs(u64::try_from(time.tv_sec()).unwrap_or(0))
            + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap_or(0))
    };
    of(usage.user_time()) + of(usage.system_time())
}

/// Returns the resident memory of a process in bytes, from /proc; mapped code counts too.
pub(crate) fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("/proc/PID/status");
    let kilobytes: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .expect("VmRSS");
    kilobytes * 1024
}

/// Returns one line with commit, kernel, processor and load.
pub(crate) fn describe() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let git = |arguments: &[&str]| {
        Command::new("git")
            .args(arguments)
            .output()
            .ok()
            .filter(|output| output.status.success())
            .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short", "HEAD"]).unwrap_or_else(|| "unknown".into());
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| !changes.is_empty());
    let info = read("/proc/cpuinfo");
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown processor", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let cpus = info.lines().filter(|line| line.starts_with("processor")).count();
    format!(
        "commit {commit}{}, Linux {}, {cpus} x {model}, load {}",
        if changed { " with changes" } else { "" },
        read("/proc/sys/kernel/osrelease").trim(),
        read("/proc/loadavg").split_whitespace().next().unwrap_or("?"),
    )
}
