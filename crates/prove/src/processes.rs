//! Attempts on other processes, and to gain rights.

use std::fs::{self, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};

use crate::sys;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::{Gid, Pid, Uid, getpid, getppid, setgid, setgroups, setuid};

use crate::attempt::{Attempt, HARM, Saw, Spec, apart_from_host, several, some};

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt::new("rights", "capabilities, and programs that bring rights along", &["B10", "B21"], |_| {
        rights()
    })
    .controlled(),
    Attempt::new("become-root", "becoming root, or another user", &["B10", "B21"], |_| become_root()),
    Attempt::new("host-namespaces", "being in a namespace of the host", &["B28", "D16"], host_namespaces)
        .controlled(),
    Attempt::new("trace", "tracing the processes beside it", &["B23"], |spec| {
        beside(spec, |pid| ptrace::seize(pid, ptrace::Options::empty()).map_err(Into::into))
    }),
    Attempt::new("read-memory", "reading their memory", &["B23"], |spec| beside(spec, read_memory)),
    Attempt::new("write-memory", "writing their memory", &["B38"], |spec| beside(spec, write_memory)),
    Attempt::new("take-descriptor", "taking their descriptors", &["B23"], |spec| {
        beside(spec, |pid| sys::take_descriptor_of(pid.as_raw()))
    }),
    Attempt::new("signal", "ending the sandbox's first process", &["B24"], signal),
];

/// Looks for a right that this process has, or could get by executing a program: proc_pid_status(5).
fn rights() -> Saw {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if field("CapEff:").is_none() {
        return Saw::NotMade("/proc/self/status cannot be read".into());
    }
    let mut out = Vec::new();
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        if let Some(value) = field(set).filter(|value| value.bytes().any(|byte| byte != b'0')) {
            out.push(format!("{set} {value}"));
        }
    }
    for (name, held) in [("NoNewPrivs:", "1"), ("Seccomp:", "2")] {
        if let Some(value) = field(name).filter(|value| *value != held) {
            out.push(format!("{name} {value}"));
        }
    }
    if out.is_empty() {
        Saw::Refused("no capability in any set, no new privileges, a filter".into())
    } else {
        Saw::Out(some(&out))
    }
}

fn become_root() -> Saw {
    let (root, other) = (Uid::from_raw(0), Uid::from_raw(1));
    several(
        [
            ("setgroups".into(), setgroups(&[Gid::from_raw(0)])),
            ("setgid 0".into(), setgid(Gid::from_raw(0))),
            ("setuid 1".into(), setuid(other)),
            ("setuid 0".into(), setuid(root)),
        ]
        .map(|(what, result): (String, nix::Result<()>)| (what, result.map_err(io::Error::from))),
    )
}

fn host_namespaces(spec: &Spec) -> Saw {
    if spec.namespaces.is_empty() {
        return Saw::NotMade("the host's namespaces are not known".into());
    }
    let mut out = Vec::new();
    for (name, number) in &spec.namespaces {
        let here = fs::read_link(format!("/proc/self/ns/{name}"));
        if here.is_ok_and(|here| here.to_string_lossy() == *number) {
            out.push(name.clone());
        }
    }
    if out.is_empty() {
        Saw::Refused(format!("{} of its own", spec.namespaces.len()))
    } else {
        Saw::Out(format!("in the host's {}", some(&out)))
    }
}

/// Makes an attempt on every process except this one and the one that waits for it, which belong to the stage.
fn beside(spec: &Spec, reach: impl Fn(Pid) -> io::Result<()>) -> Saw {
    if !apart_from_host(spec, "pid") {
        return Saw::NotMade(HARM.into());
    }
    let own = [getpid(), getppid()];
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw));
    let pids: Vec<Pid> = pids.filter(|pid| !own.contains(pid)).collect();
    several(pids.into_iter().map(|pid| (format!("process {pid}"), reach(pid))))
}

/// Reads one byte of the first readable mapping.
fn read_memory(pid: Pid) -> io::Result<()> {
    // Without the map the call is still useful: it is refused before the kernel reads the address.
    let base = mapping(pid).unwrap_or(0x1000);
    let mut byte = [0];
    let mut local = [io::IoSliceMut::new(&mut byte)];
    let remote = [RemoteIoVec { base, len: 1 }];
    process_vm_readv(pid, &mut local, &remote).map(drop).map_err(Into::into)
}

/// Writes one byte of the first writable mapping, with its present value.
fn write_memory(pid: Pid) -> io::Result<()> {
    let mut memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    let start = SeekFrom::Start(u64::try_from(mapping(pid)?).map_err(io::Error::other)?);
    let mut byte = [0];
    memory.seek(start)?;
    io::Read::read_exact(&mut memory, &mut byte)?;
    memory.seek(start)?;
    memory.write_all(&byte)
}

/// Returns the start of the first writable mapping of a process.
fn mapping(pid: Pid) -> io::Result<usize> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let line = maps.lines().find(|line| line.contains(" rw"));
    let start = line.and_then(|line| line.split('-').next()).unwrap_or_default();
    usize::from_str_radix(start, 16).map_err(io::Error::other)
}

/// Sends signals to the first process of the namespace. The kernel delivers only those with a handler there, and not SIGKILL
/// (pid_namespaces(7)). If the process did end, the missing line of this attempt would show it.
fn signal(spec: &Spec) -> Saw {
    if !apart_from_host(spec, "pid") {
        return Saw::NotMade(HARM.into());
    }
    let first = Pid::from_raw(1);
    let sent: Vec<_> = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGKILL]
        .into_iter()
        .map(|signal| kill(first, signal))
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(20));
    match sent.iter().find_map(|result| result.err()) {
        Some(errno) => Saw::Refused(format!("{errno:?}")),
        None => Saw::Refused("it did not heed them".into()),
    }
}
