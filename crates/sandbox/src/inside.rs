//! Measures what the processes of a sandbox use, from the host. Ends nothing and decides nothing.
//!
//! The source is the sandbox's own `/proc`, opened before anything untrusted runs. It lists only the processes of its pid namespace,
//! in the order of their pids: a process that forks and exits all the time is seen under one of its pids.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::dir::{Dir, Entry};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstatat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, TMPFS_MAGIC, fstatfs};

use crate::control::Stat;
use crate::sys;

/// Bytes read of a process's `status` or `smaps_rollup`: the line of supplementary groups can be long.
const FILE: u64 = 256 << 10;

/// Bytes of kernel memory that a file in memory takes beside its contents: an inode and a name (about 720 and 190 bytes on Linux 6.18,
/// slabinfo(5)).
const FILE_BYTES: u64 = 1024;

/// A sandbox opened for measurements. Dropping it releases the sandbox's file systems.
#[derive(Debug)]
pub struct Meter {
    /// The sandbox's `/proc`.
    proc: OwnedFd,
    /// The sandbox's file systems in memory.
    tmpfs: Vec<OwnedFd>,
    /// Its pid namespace.
    pids: OwnedFd,
    /// The pid of its pid 1 on the host, valid while the sandbox has another process.
    init: i32,
}

/// Resources that the processes of a sandbox use at one moment.
#[derive(Debug, Default)]
pub struct Usage {
    processes: Vec<Process>,
    /// Bytes in file systems in memory, with the files themselves.
    stored: u64,
}

#[derive(Debug, Default)]
struct Process {
    /// Pid in the sandbox's pid namespace.
    pid: i32,
    /// A thread that lives: the first one may have ended before the others, and then has no memory (`exit_mm`, kernel/exit.c).
    thread: i32,
    parent: i32,
    tasks: u64,
    /// In bytes: anonymous memory, resident or swapped out; resident shared memory; and the size of the address space.
    anonymous: u64,
    shared: u64,
    size: u64,
}

impl Meter {
    /// Opens the sandbox whose pid 1 is `init` on the host. The caller guarantees that `init` is that process before and after this
    /// call, and that nothing untrusted has run.
    pub(crate) fn open(init: i32, tmpfs: &[PathBuf]) -> io::Result<Self> {
        let root = PathBuf::from(format!("/proc/{init}/root"));
        let open = |path: &Path| -> io::Result<OwnedFd> {
            let inside = root.join(path.strip_prefix("/").unwrap_or(path));
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
            Ok(nix::fcntl::open(&inside, flags, Mode::empty())?)
        };
        let proc = open(Path::new("/proc"))?;
        if fstatfs(&proc)?.filesystem_type() != PROC_SUPER_MAGIC {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the sandbox's /proc is something else"));
        }
        let tmpfs = tmpfs.iter().map(|path| open(path)).collect::<io::Result<Vec<_>>>()?;
        let pids = File::open(format!("/proc/{init}/ns/pid"))?.into();
        Ok(Self { proc, tmpfs, pids, init })
    }

    /// Measures the current usage. Memory that forked processes share counts once for each: see [`Meter::memory`].
    ///
    /// # Errors
    /// Returns an error if the sandbox's `/proc` cannot be read. A process that ends meanwhile is skipped.
    pub fn usage(&self) -> io::Result<Usage> {
        let mut usage = Usage::default();
        for pid in self.pids()? {
            // A process that has ended since uses nothing.
            if let Some(text) = self.read(pid, "status")? {
                let process = Process::parse(pid, &text);
                let has_others = process.size == 0 && process.tasks > 1;
                let by_another = if has_others { self.by_another_thread(pid)? } else { None };
                usage.processes.push(by_another.unwrap_or(process));
            }
        }
        for place in &self.tmpfs {
            let found = fstatfs(place)?;
            if found.filesystem_type() == TMPFS_MAGIC {
                let used = found.blocks().saturating_sub(found.blocks_free());
                let block = u64::try_from(found.block_size()).unwrap_or(0);
                let files = found.files().saturating_sub(found.files_free());
                let bytes = used.saturating_mul(block).saturating_add(files.saturating_mul(FILE_BYTES));
                usage.stored = usage.stored.saturating_add(bytes);
            }
        }
        Ok(usage)
    }

    /// Measures a process by one of its threads that lives. `/proc` has a directory for each, and does not list it (`proc_pid_lookup`,
    /// fs/proc/base.c).
    fn by_another_thread(&self, pid: i32) -> io::Result<Option<Process>> {
        for thread in self.threads(pid)? {
            let found = self.read(thread, "status")?.map(|text| Process::parse(pid, &text));
            if let Some(process) = found.filter(|process| process.size > 0) {
                return Ok(Some(Process { thread, ..process }));
            }
        }
        Ok(None)
    }

    /// Lists the threads of a process by their pids in the sandbox, in ascending order; none if it has ended.
    pub(crate) fn threads(&self, pid: i32) -> io::Result<Vec<i32>> {
        let place = format!("{pid}/task");
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut tasks = match Dir::openat(&self.proc, place.as_str(), flags, Mode::empty()) {
            Ok(tasks) => tasks,
            Err(Errno::ENOENT | Errno::ESRCH | Errno::EACCES | Errno::EPERM) => return Ok(Vec::new()),
            Err(errno) => return Err(errno.into()),
        };
        // A process that ends while it is read has no further threads.
        let mut threads: Vec<i32> =
            tasks.iter().map_while(Result::ok).filter_map(|it| number_of(&it)).collect();
        threads.sort_unstable();
        Ok(threads)
    }

    /// Whether two threads of the sandbox surely share their descriptors (kcmp(2)).
    pub(crate) fn share_descriptors(&self, one: i32, other: i32) -> bool {
        let on_host = |thread| sys::pid_here(self.pids.as_fd(), thread).ok();
        on_host(one).zip(on_host(other)).is_some_and(|(one, other)| sys::share_descriptors(one, other))
    }

    /// Returns how many threads a process has; 1 if it has ended.
    pub(crate) fn count_threads(&self, pid: i32) -> u64 {
        // A directory has two links and one for each directory in it, here each thread.
        let threads = fstatat(&self.proc, format!("{pid}/task").as_str(), AtFlags::empty());
        threads.map_or(1, |task| links(&task).saturating_sub(2).max(1))
    }

    /// Whether the sandbox has more processes and threads than `most`. Stops counting there, and takes a hundredth of the time of
    /// [`Meter::usage`].
    ///
    /// # Errors
    /// Returns an error as [`Meter::usage`] does.
    pub fn has_more_tasks_than(&self, most: u64) -> io::Result<bool> {
        let mut tasks = 0_u64;
        for entry in self.entries()?.iter() {
            let entry = entry?;
            let Some(pid) = number_of(&entry) else { continue };
            tasks = tasks.saturating_add(self.count_threads(pid));
            if tasks > most {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the bytes of memory in `usage`, with shared memory counted once, and with open memory files. This walks page tables:
    /// after `by`, the rest is counted as in [`Usage::memory_at_most`].
    ///
    /// # Errors
    /// Returns an error as [`Meter::usage`] does.
    pub fn memory(&self, usage: &Usage, files: u64, by: Instant) -> io::Result<u64> {
        let (mut anonymous, mut shared) = (0_u64, 0_u64);
        for process in &usage.processes {
            let counted = process.anonymous.saturating_add(process.shared);
            if counted == 0 {
                continue;
            }
            // Between vfork(2) and execve(2) a child runs in its parent's memory.
            let twin = usage.processes.iter().find(|other| other.may_lend_to(process));
            let on_host = |process: &Process| self.on_host(process.thread, || by <= Instant::now());
            let pair = twin.and_then(|parent| on_host(parent).zip(on_host(process)));
            let lent = pair.is_some_and(|(parent, child)| sys::share_memory(parent, child));
            if lent {
                continue;
            }
            let part = if Instant::now() < by { self.share_of(process.thread)? } else { None };
            let (its_anonymous, its_shared) = part.unwrap_or((process.anonymous, process.shared));
            anonymous = anonymous.saturating_add(its_anonymous);
            shared = shared.saturating_add(its_shared);
        }
        Ok(usage.stored.saturating_add(anonymous).saturating_add(shared.max(files)))
    }

    /// Returns a process's proportional shares of anonymous and shared memory, as one of its threads has them: 0 if it has ended, `None` if the kernel does not
    /// report them.
    fn share_of(&self, pid: i32) -> io::Result<Option<(u64, u64)>> {
        let Some(text) = self.read(pid, "smaps_rollup")? else { return Ok(Some((0, 0))) };
        let swapped = field(&text, "SwapPss:").map_or(0, kib);
        let anonymous = field(&text, "Pss_Anon:").map(|it| kib(it).saturating_add(swapped));
        Ok(anonymous.zip(field(&text, "Pss_Shmem:").map(kib)))
    }

    /// The sandbox's `/proc`.
    pub(crate) fn proc(&self) -> BorrowedFd<'_> {
        self.proc.as_fd()
    }

    /// Returns the host pid of one of the sandbox's processes. The caller guarantees that it outlives this call. `is_over` stops the
    /// search: a stage may have any number of processes.
    pub(crate) fn on_host(&self, pid: i32, is_over: impl Fn() -> bool) -> Option<i32> {
        sys::pid_here(self.pids.as_fd(), pid).ok().or_else(|| self.by_descent(pid, is_over))
    }

    /// Finds the host pid through the kernel's lists of children, step by step from pid 1.
    fn by_descent(&self, pid: i32, is_over: impl Fn() -> bool) -> Option<i32> {
        /// Generations at most.
        const DEPTH: usize = 64;
        let parent = |&pid: &i32| {
            let parent = Stat::parse(&self.read(pid, "stat").ok()??)?.parent;
            (parent > 0).then_some(parent)
        };
        let mut line: Vec<i32> = std::iter::successors(Some(pid), parent).take(DEPTH).collect();
        (line.pop()? == 1).then_some(())?;
        line.into_iter().rev().try_fold(self.init, |of, wanted| child(of, wanted, &is_over))
    }

    /// Lists the sandbox's processes by their pids there.
    pub(crate) fn pids(&self) -> io::Result<Vec<i32>> {
        let mut pids = Vec::new();
        for entry in self.entries()?.iter() {
            pids.extend(number_of(&entry?));
        }
        Ok(pids)
    }

    fn entries(&self) -> io::Result<Dir> {
        // Opened anew: the position in a directory belongs to the open file description.
        let directory =
            openat(&self.proc, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Dir::from_fd(directory)?)
    }

    /// Reads a file of a process, or returns `None` if the process has ended.
    fn read(&self, pid: i32, name: &str) -> io::Result<Option<String>> {
        let path = format!("{pid}/{name}");
        let mut bytes = Vec::with_capacity(2048);
        let read = openat(&self.proc, path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(io::Error::from)
            .and_then(|file| File::from(file).take(FILE).read_to_end(&mut bytes));
        match read {
            Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ENOENT | Errno::ESRCH) => Ok(None),
                // A file that exeat may not read is an empty text, so that its process is counted by other means.
                Some(Errno::EACCES | Errno::EPERM) => Ok(Some(String::new())),
                _ => Err(error),
            },
        }
    }
}

impl Usage {
    /// Returns the number of processes and threads, including bubblewrap's pid 1.
    #[must_use]
    pub fn tasks(&self) -> u64 {
        self.processes.iter().map(|process| process.tasks).sum()
    }

    /// Returns an upper bound of the memory in use, in bytes: shared memory counts for each process. `files` is the size of their
    /// memory files. Such a file may also be mapped, so the larger of mapped shared memory and memory files counts.
    #[must_use]
    pub fn memory_at_most(&self, files: u64) -> u64 {
        let sum = |part: fn(&Process) -> u64| self.processes.iter().map(part).fold(0, u64::saturating_add);
        let shared = sum(|process| process.shared).max(files);
        self.stored.saturating_add(sum(|process| process.anonymous)).saturating_add(shared)
    }
}

impl Process {
    /// Parses `/proc/PID/status` (proc_pid_status(5)).
    fn parse(pid: i32, status: &str) -> Self {
        let number = |name| field(status, name);
        Self {
            pid,
            thread: pid,
            parent: number("PPid:").and_then(|parent| i32::try_from(parent).ok()).unwrap_or(0),
            tasks: number("Threads:").unwrap_or(1),
            // A zombie has no memory lines.
            anonymous: number("RssAnon:")
                .unwrap_or(0)
                .saturating_add(number("VmSwap:").unwrap_or(0))
                .saturating_mul(1024),
            shared: number("RssShmem:").map_or(0, kib),
            size: number("VmSize:").map_or(0, kib),
        }
    }

    /// Whether `child` may run in this process's memory (vfork(2)). Only the kernel can confirm it.
    fn may_lend_to(&self, child: &Self) -> bool {
        child.parent == self.pid
            && (self.anonymous, self.shared, self.size) == (child.anonymous, child.shared, child.size)
    }
}

/// Returns the child of a process that has this pid in its own pid namespace.
fn child(of: i32, wanted: i32, is_over: impl Fn() -> bool) -> Option<i32> {
    let tasks = fs::read_dir(format!("/proc/{of}/task")).ok()?;
    let children = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children =
        children.flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<i32>>());
    children.take_while(|_| !is_over()).find(|child| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).ok();
        let inside =
            status.as_deref().and_then(|text| line(text, "NSpid:")?.split_whitespace().last()?.parse().ok());
        inside == Some(wanted)
    })
}

/// Returns the pid that an entry of `/proc` names.
fn number_of(entry: &Entry) -> Option<i32> {
    entry.file_name().to_str().ok()?.parse().ok()
}

fn line<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name))
}

fn field(text: &str, name: &str) -> Option<u64> {
    line(text, name)?.split_whitespace().next()?.parse().ok()
}

fn kib(number: u64) -> u64 {
    number.saturating_mul(1024)
}

/// Returns how many links a file has. The type of the number differs between architectures.
#[cfg_attr(target_arch = "x86_64", expect(clippy::useless_conversion, reason = "on aarch64 it is an u32"))]
fn links(about: &FileStat) -> u64 {
    u64::from(about.st_nlink)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_gives_tasks_and_memory_and_a_name_forges_none() {
        let status = "Name:\tRssAnon: 9 kB\nState:\tS (sleeping)\nPPid:\t7\nVmSize:\t   900 kB\nRssAnon:\t    12 kB\n\
                      RssFile:\t 50 kB\nRssShmem:\t     4 kB\nVmSwap:\t   3 kB\nThreads:\t3\n";
        let process = Process::parse(8, status);
        let found = (process.parent, process.tasks, process.anonymous, process.shared, process.size);
        assert_eq!(found, (7, 3, 15 << 10, 4 << 10, 900 << 10));
        let zombie = Process::parse(9, "Name:\tx\nState:\tZ (zombie)\nPPid:\t7\nThreads:\t1\n");
        assert_eq!((zombie.tasks, zombie.anonymous), (1, 0));
        let usage = Usage { processes: vec![process, zombie], stored: 100 };
        assert_eq!((usage.tasks(), usage.memory_at_most(0)), (4, 100 + (19 << 10)));
        // The larger of mapped and open memory counts.
        let at_most = [1 << 10, 4 << 10, 1 << 20].map(|files| usage.memory_at_most(files));
        assert_eq!(at_most, [100 + (19 << 10), 100 + (19 << 10), 100 + (15 << 10) + (1 << 20)]);
    }

    /// Before Linux 6.11 the kernel does not translate pids; the lists of children lead to the same pid.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "starts a child and a grandchild to look for")]
    fn descent_leads_to_the_number_that_the_kernel_gives() {
        // Treats this machine as a sandbox.
        let open = |path: &str| OwnedFd::from(File::open(path).unwrap());
        let inside =
            Meter { proc: open("/proc"), tmpfs: Vec::new(), pids: open("/proc/self/ns/pid"), init: 1 };
        let mut shell = std::process::Command::new("sh");
        let shell = shell.args(["-c", "sleep 20 & read x; kill $!"]);
        let mut shell = shell.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = i32::try_from(shell.id()).unwrap();
        let by = Instant::now() + std::time::Duration::from_secs(10);
        let sleep = loop {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
            match children.split_whitespace().next() {
                Some(child) => break child.parse().unwrap(),
                None => assert!(Instant::now() < by, "no child of {pid}"),
            }
        };
        for pid in [pid, sleep] {
            assert_eq!(inside.on_host(pid, || false), Some(pid));
            assert_eq!(inside.by_descent(pid, || false), Some(pid));
            assert_eq!(inside.by_descent(pid, || true), None, "the time is over");
        }
        assert_eq!(inside.by_descent(i32::MAX, || false), None);
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
