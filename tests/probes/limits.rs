//! Uses more of the machine than a stage may have.

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::thread;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::wait::wait;
use nix::unistd::{ForkResult, fork};

use crate::{ProbeResult, check, number};

const MEGABYTE: usize = 1 << 20;
const PAGE: usize = 4096;

/// Touches this much memory, and keeps it for some milliseconds.
pub(crate) fn hog(megabytes: &str, millis: &str) -> ProbeResult {
    let held = touched(number(megabytes)?);
    thread::sleep(Duration::from_millis(number(millis)?));
    black_box(&held);
    Ok("ok".into())
}

/// Starts processes that each touch this much private memory.
pub(crate) fn hogs(processes: &str, megabytes: &str, millis: &str) -> ProbeResult {
    let (megabytes, pause) = (number(megabytes)?, Duration::from_millis(number(millis)?));
    family(number(processes)?, || {
        let held = touched(megabytes);
        thread::sleep(pause);
        black_box(&held);
    })
}

/// Touches this much memory and forks processes that share it.
pub(crate) fn hog_shared(processes: &str, megabytes: &str, millis: &str) -> ProbeResult {
    let (held, pause) = (touched(number(megabytes)?), Duration::from_millis(number(millis)?));
    let said = family(number(processes)?, || thread::sleep(pause));
    black_box(&held);
    said
}

/// Touches this much memory and starts a child that stays in it, as between vfork(2) and execve(2).
pub(crate) fn hog_vfork(megabytes: &str, millis: &str) -> ProbeResult {
    extern "C" fn child(micros: *mut libc::c_void) -> libc::c_int {
        // SAFETY: takes a number.
        unsafe { libc::usleep(u32::try_from(micros.addr()).unwrap_or(0)) };
        0
    }
    let held = touched(number(megabytes)?);
    let micros = number::<usize>(millis)? * 1000;
    let mut stack = vec![0_u8; 64 << 10];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child has its own stack, which grows down from its end, and has ended when clone returns.
    unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        check(libc::clone(child, top, flags, std::ptr::without_provenance_mut(micros)).into())?;
    }
    black_box((&held, &stack));
    wait()?;
    Ok("ok".into())
}

/// Writes this much into unmapped memory files, next to descriptors of other files, and keeps them for some
/// milliseconds.
pub(crate) fn hog_memfd(megabytes: &str, descriptors: &str, millis: &str) -> ProbeResult {
    let beside: io::Result<Vec<_>> =
        (0..number(descriptors)?).map(|_: u32| File::open("/dev/null")).collect();
    let file = nix::sys::memfd::memfd_create(c"hog", nix::sys::memfd::MFdFlags::empty())?;
    // The same file counts once.
    let (mut file, again) = (File::from(file.try_clone()?), file);
    for _ in 0..number(megabytes)? {
        file.write_all(&[1; MEGABYTE])?;
    }
    thread::sleep(Duration::from_millis(number(millis)?));
    black_box((beside?, again));
    Ok("ok".into())
}

/// Touches this much in a second thread after the first one has ended, and keeps it for some milliseconds.
pub(crate) fn hog_thread(megabytes: &str, millis: &str) -> ProbeResult {
    let (megabytes, millis) = (number::<usize>(megabytes)?, number(millis)?);
    thread::spawn(move || {
        // By then the first thread has ended.
        let first = format!("/proc/self/task/{}/stat", std::process::id());
        while !std::fs::read_to_string(&first).is_ok_and(|stat| stat.contains(") Z ")) {
            thread::yield_now();
        }
        let kept = vec![1_u8; megabytes * MEGABYTE];
        thread::sleep(Duration::from_millis(millis));
        black_box(kept);
        println!("ok");
        std::process::exit(0);
    });
    // SAFETY: ends this thread alone; what it has borrowed stays as it is.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("exit(2) does not return")
}

/// Writes this much into a memory file that only a thread with descriptors of its own has open.
pub(crate) fn hog_thread_memfd(megabytes: &str, millis: &str) -> ProbeResult {
    let (megabytes, millis) = (megabytes.to_owned(), millis.to_owned());
    let holder = thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_FILES)?;
        hog_memfd(&megabytes, "0", &millis)
    });
    holder.join().map_err(|_| io::Error::other("the thread"))?
}

/// Makes empty files until the kernel refuses, prints their number, and keeps them for some milliseconds.
pub(crate) fn empty_files(place: &str, most: &str, millis: &str) -> ProbeResult {
    let mut made = 0;
    let refused = loop {
        if made == number::<u32>(most)? {
            break "nothing".to_owned();
        }
        match nix::sys::stat::mknod(
            format!("{place}/{made}").as_str(),
            nix::sys::stat::SFlag::S_IFREG,
            nix::sys::stat::Mode::S_IRUSR,
            0,
        ) {
            Ok(()) => made += 1,
            Err(errno) => break format!("{errno:?}"),
        }
    };
    thread::sleep(Duration::from_millis(number(millis)?));
    Ok(format!("{made}, then {refused}"))
}

/// Opens this many terminals, or as many as the kernel gives, and prints the number.
pub(crate) fn terminals(most: &str) -> ProbeResult {
    let open = |_: u32| File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/ptmx");
    let mut kept = Vec::new();
    for terminal in (0..number(most)?).map(open) {
        match terminal {
            Ok(terminal) => kept.push(terminal),
            Err(error) => return Ok(format!("{}, then {}", kept.len(), crate::name_of(&error))),
        }
    }
    Ok(format!("all {most}"))
}

/// Writes this much into a memory file that is also mapped and touched, as garbage collectors and browsers do.
pub(crate) fn hog_mapped_memfd(megabytes: &str, millis: &str) -> ProbeResult {
    let file = nix::sys::memfd::memfd_create(c"hog", nix::sys::memfd::MFdFlags::empty())?;
    let length = number::<usize>(megabytes)? * MEGABYTE;
    nix::unistd::ftruncate(&file, i64::try_from(length).map_err(io::Error::other)?)?;
    // SAFETY: a new mapping of a file that is as long, which nobody else has.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let place = libc::mmap(
            std::ptr::null_mut(),
            length,
            protection,
            libc::MAP_SHARED,
            std::os::fd::AsRawFd::as_raw_fd(&file),
            0,
        );
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        for page in (0..length).step_by(PAGE) {
            place.cast::<u8>().add(page).write_volatile(1);
        }
    }
    thread::sleep(Duration::from_millis(number(millis)?));
    Ok("ok".into())
}

/// Starts sleeping processes, up to a number or until the kernel refuses.
pub(crate) fn forks(most: &str, millis: &str) -> ProbeResult {
    let (most, pause) = (number(most)?, Duration::from_millis(number(millis)?));
    family(most, || thread::sleep(pause))
}

/// Forks as fast as it can, as does each child, up to a total that bounds the bomb without any limit. Each process
/// writes a byte to the file `shards` for each of its children; this one ends after some milliseconds.
pub(crate) fn bomb(most: &str, millis: &str) -> ProbeResult {
    let end = Instant::now() + Duration::from_millis(number(millis)?);
    let most: usize = number(most)?;
    // A byte for each permitted fork: all processes share this pipe, which holds this many.
    if most > 3000 {
        return Err(io::Error::other("a bomb for this machine too"));
    }
    let (mut take, mut put) = io::pipe()?;
    put.write_all(&vec![0; most])?;
    drop(put);
    let mut shards = File::options().append(true).create(true).open("shards")?;
    println!("lit");
    let parent = std::process::id();
    while Instant::now() < end {
        if !matches!(take.read(&mut [0]), Ok(1)) {
            thread::sleep(Duration::from_millis(20));
            continue;
        }
        // SAFETY: one thread, and the child does what its parent does.
        if let Ok(ForkResult::Parent { .. }) = unsafe { fork() } {
            shards.write_all(b"x")?;
        }
    }
    if std::process::id() != parent {
        std::process::exit(0);
    }
    Ok("ok".into())
}

/// Starts sleeping threads, up to a number or until the kernel refuses.
pub(crate) fn threads(most: &str) -> ProbeResult {
    let sleep = || thread::sleep(Duration::from_millis(500));
    let mut said = format!("all {most}");
    let mut all = Vec::new();
    for count in 0..number(most)? {
        match thread::Builder::new().stack_size(64 << 10).spawn(sleep) {
            Ok(thread) => all.push(thread),
            Err(error) => {
                said = format!("{count}, then {}", crate::name_of(&error));
                break;
            }
        }
    }
    all.into_iter()
        .try_for_each(|thread| thread.join())
        .map_err(|_| io::Error::other("a thread panicked"))?;
    Ok(said)
}

/// Opens a file this many times.
pub(crate) fn open_many(count: &str) -> ProbeResult {
    let files: io::Result<Vec<_>> = (0..number(count)?).map(|_: u32| File::open("/dev/null")).collect();
    files.map(|files| format!("ok: {}", files.len()))
}

/// Computes for some seconds of processor time, with SIGXCPU ignored on request.
pub(crate) fn spin(seconds: &str, ignoring: bool) -> ProbeResult {
    use nix::sys::signal::{SigHandler, Signal, signal};
    if ignoring {
        // SAFETY: no handler of ours runs.
        unsafe { signal(Signal::SIGXCPU, SigHandler::SigIgn) }?;
    }
    let most: i64 = number(seconds)?;
    while nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)?.tv_sec() < most {
        black_box((0..10_000).sum::<u64>());
    }
    Ok("ok".into())
}

/// Writes 64 bytes in turns to stdout and stderr, up to a total.
pub(crate) fn flood(bytes: &str) -> ProbeResult {
    for n in 0..number::<usize>(bytes)? / 64 {
        let line = [if n % 2 == 0 { b'o' } else { b'e' }; 64];
        if n % 2 == 0 {
            io::stdout().write_all(&line).and_then(|()| io::stdout().flush())?;
        } else {
            io::stderr().write_all(&line)?;
        }
    }
    Ok("ok".into())
}

fn touched(megabytes: usize) -> Vec<u8> {
    let mut held = vec![0; megabytes * MEGABYTE];
    for place in (0..held.len()).step_by(PAGE) {
        held[place] = 1;
    }
    held
}

/// Forks children that each run `child`, and waits for all.
fn family(most: usize, child: impl Fn()) -> ProbeResult {
    let mut said = format!("all {most}");
    let mut children = 0;
    for count in 0..most {
        // SAFETY: one thread.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                child();
                // SAFETY: ends this process; what it has not written, its parent has.
                unsafe { libc::_exit(0) }
            }
            Ok(ForkResult::Parent { .. }) => children += 1,
            Err(errno) => {
                said = format!("{count}, then {errno:?}");
                break;
            }
        }
    }
    for _ in 0..children {
        wait()?;
    }
    Ok(said)
}
