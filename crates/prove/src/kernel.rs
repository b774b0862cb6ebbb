//! Attempts on the kernel: its settings, its devices, and system calls that no stage needs.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use crate::sys::{self, Namespace};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::attempt::{Attempt, HARM, Saw, Spec, answer, apart_from_host, name, several, some};

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt::new("sysctls", "writable kernel settings, core_pattern among them", &["B10", "B29"], |_| {
        sysctls()
    }),
    Attempt::new("kernel-files", "sysrq-trigger, kcore, what /sys shows", &["B29"], |_| kernel_files()),
    Attempt::new("user-namespace", "a user namespace inside, by three calls", &["B22"], |_| user_namespace())
        .controlled(),
    Attempt::new("namespaces", "network and mount namespaces inside", &["B22"], |_| namespaces()),
    Attempt::new("mounts", "mounting, and uncovering what is hidden", &["B10"], mounts),
    Attempt::new("chroot", "another root", &["B10"], |_| {
        answer(nix::unistd::chroot("/tmp").map_err(Into::into), "chroot")
    }),
    Attempt::new("i386", "system calls of the i386 table", &["B07"], |_| answer(sys::i386(), "getpid"))
        .controlled(),
    Attempt::new("x32", "system calls of the x32 table", &["B07"], |_| answer(sys::x32(), "getpid"))
        .controlled(),
    Attempt::new("terminal-input", "typing into a terminal", &["B08"], |_| {
        answer(sys::push_input(), "a byte was typed")
    })
    .controlled(),
    Attempt::new("bpf", "BPF programs", &[], |_| answer(sys::bpf(), "a map")),
    Attempt::new("perf", "performance counters", &[], |_| answer(sys::perf(), "a counter")),
    Attempt::new("userfaultfd", "page faults handled in user space", &[], |_| {
        answer(sys::userfaultfd(), "a handler")
    })
    .controlled(),
];

/// Opens every setting for writing, and writes to none.
fn sysctls() -> Saw {
    let mut tried = 0;
    let mut out = Vec::new();
    match walk(Path::new("/proc/sys"), &mut tried, &mut out) {
        Err(error) => Saw::NotMade(format!("/proc/sys cannot be listed: {}", name(&error))),
        Ok(()) if tried == 0 => Saw::NotMade("/proc/sys is empty".into()),
        Ok(()) if out.is_empty() => Saw::Refused(format!("none of {tried} opens for writing")),
        Ok(()) => Saw::Out(some(&out)),
    }
}

fn walk(place: &Path, tried: &mut usize, out: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(place)?.flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            // Settings in a directory that cannot be listed cannot be named either.
            let _ = walk(&path, tried, out);
            continue;
        }
        *tried += 1;
        if OpenOptions::new().write(true).open(&path).is_ok() {
            out.push(path.display().to_string());
        }
    }
    Ok(())
}

fn kernel_files() -> Saw {
    let writing =
        ["/proc/sysrq-trigger", "/sys/power/state", "/sys/kernel/mm/ksm/run", "/sys/kernel/uevent_helper"];
    let reading = ["/proc/kcore", "/sys/class/net", "/sys/devices", "/sys/kernel/security", "/sys/fs/cgroup"];
    let written =
        writing.map(|path| (format!("writing {path}"), OpenOptions::new().write(true).open(path).map(drop)));
    let read = reading.map(|path| (format!("reading {path}"), open(Path::new(path))));
    several(written.into_iter().chain(read))
}

fn open(path: &Path) -> io::Result<()> {
    if path.is_dir() { fs::read_dir(path).map(drop) } else { File::open(path).map(drop) }
}

/// Makes each attempt in a separate process, because unshare(2) would change the next attempt.
fn user_namespace() -> Saw {
    several([
        ("clone".into(), sys::clone(Namespace::User)),
        ("clone3".into(), sys::clone3(Namespace::User)),
        ("unshare".into(), unshare(CloneFlags::CLONE_NEWUSER).map_err(Into::into)),
    ])
}

fn namespaces() -> Saw {
    let kinds = [
        ("net", Namespace::Net, CloneFlags::CLONE_NEWNET),
        ("mount", Namespace::Mount, CloneFlags::CLONE_NEWNS),
        ("pid", Namespace::Pid, CloneFlags::CLONE_NEWPID),
        ("IPC", Namespace::Ipc, CloneFlags::CLONE_NEWIPC),
    ];
    let cloned = kinds.map(|(what, kind, _)| (format!("clone, {what}"), sys::clone(kind)));
    let cloned3 = kinds.map(|(what, kind, _)| (format!("clone3, {what}"), sys::clone3(kind)));
    let unshared =
        kinds.map(|(what, _, flag)| (format!("unshare, {what}"), unshare(flag).map_err(io::Error::from)));
    several(cloned.into_iter().chain(cloned3).chain(unshared))
}

fn mounts(spec: &Spec) -> Saw {
    if !apart_from_host(spec, "mnt") {
        return Saw::NotMade(HARM.into());
    }
    let none: Option<&str> = None;
    let on = |place: &str, flags| mount(Some("tmpfs"), place, Some("tmpfs"), flags, none);
    several([
        ("a tmpfs on /tmp".into(), on("/tmp", MsFlags::empty()).map_err(io::Error::from)),
        ("unmounting /proc/sys".into(), umount2("/proc/sys", MntFlags::MNT_DETACH).map_err(Into::into)),
        (
            "remounting / writable".into(),
            mount(none, "/", none, MsFlags::MS_REMOUNT | MsFlags::MS_BIND, none).map_err(Into::into),
        ),
        ("fsopen".into(), sys::open_file_system()),
        ("open_tree".into(), sys::copy_tree()),
    ])
}
