//! Keeps the processors so busy that the sandbox's pid 1 may not run.

use std::fs;
use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, setsid};

use crate::{ProbeResult, check, number};

/// Ignores signals and starts processes that stay busy for some seconds: `plain`; `slowing` pid 1 with everything that may
/// help; `sessions`, which do so too, and each weigh as much as that of pid 1; `orphans`, which do so too, and pid 1 has to reap.
pub(crate) fn starve(how: &str, processes: &str, seconds: &str) -> ProbeResult {
    let end = Instant::now() + Duration::from_secs(number(seconds)?);
    for number in Signal::iterator().filter(|it| *it != Signal::SIGCHLD) {
        // SAFETY: no handler of ours runs. Two signals cannot be ignored.
        let _ = unsafe { signal(number, SigHandler::SigIgn) };
    }
    let slows = how != "plain";
    if slows {
        slow_pid_one();
    }
    for _ in 0..number(processes)? {
        let forked = loop {
            // Orphans may leave no number free for a moment.
            // SAFETY: one thread.
            if let Ok(forked) = unsafe { fork() } {
                break forked;
            }
        };
        if forked.is_child() {
            if slows {
                keep_on_first_processor(0);
            }
            if how == "sessions" {
                setsid()?;
            }
            while Instant::now() < end {
                if how == "orphans" {
                    make_orphans();
                } else {
                    black_box((0..10_000).sum::<u64>());
                }
            }
            // SAFETY: ends this process, which has written nothing.
            unsafe { libc::_exit(0) }
        }
    }
    println!("busy");
    while Instant::now() < end {
        black_box((0..10_000).sum::<u64>());
    }
    Ok("ok".into())
}

/// The kernel permits each of these for a process of the same user.
fn slow_pid_one() {
    let lowest: libc::c_int = 0;
    // SAFETY: these take numbers, and a live local.
    unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, 1, libc::SCHED_IDLE, &raw const lowest);
        libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, 1, 19);
        libc::syscall(libc::SYS_setpriority, libc::PRIO_PGRP, 1, 19);
    }
    keep_on_first_processor(1);
    for who in ["1", "self"] {
        // The weight of its session (sched(7)).
        let _ = fs::write(format!("/proc/{who}/autogroup"), "19");
    }
}

fn keep_on_first_processor(pid: libc::pid_t) {
    let first: u64 = 1;
    // SAFETY: a live local of that size.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, pid, size_of_val(&first), &raw const first) };
}

/// Leaves fifty children to pid 1 at once.
fn make_orphans() {
    // SAFETY: one thread; the children end without the exit handlers of the original.
    unsafe {
        if let Ok(ForkResult::Parent { child }) = fork() {
            let _ = waitpid(child, None);
            return;
        }
        for _ in 0..50 {
            if let Ok(ForkResult::Child) = fork() {
                libc::_exit(0);
            }
        }
        libc::_exit(0)
    }
}

/// Tries to change how the kernel treats a process, a group or a user; 0 is the caller's own.
pub(crate) fn slow(how: &str, whose: &str) -> ProbeResult {
    /// The first version of `struct sched_attr` (sched_setattr(2)): its size, and an ordinary process.
    const ATTRIBUTES: [u64; 6] = [48, 0, 0, 0, 0, 0];
    /// Of the class IOPRIO_CLASS_IDLE (include/uapi/linux/ioprio.h).
    const IDLE: libc::c_int = 3 << 13;
    let whose: libc::pid_t = number(whose)?;
    let (lowest, first): (libc::c_int, u64) = (0, 1);
    let nothing = std::ptr::null::<libc::rlimit>();
    // SAFETY: these take numbers, live locals, and null where nothing is asked.
    let answer = unsafe {
        match how {
            "policy" => {
                libc::syscall(libc::SYS_sched_setscheduler, whose, libc::SCHED_BATCH, &raw const lowest)
            }
            "parameters" => libc::syscall(libc::SYS_sched_setparam, whose, &raw const lowest),
            "attributes" => libc::syscall(libc::SYS_sched_setattr, whose, ATTRIBUTES.as_ptr(), 0),
            "processors" => {
                libc::syscall(libc::SYS_sched_setaffinity, whose, size_of_val(&first), &raw const first)
            }
            "limits" => libc::syscall(libc::SYS_prlimit64, whose, libc::RLIMIT_CORE, nothing, nothing),
            "priority" => libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, whose, 5),
            "priority-of-group" => libc::syscall(libc::SYS_setpriority, libc::PRIO_PGRP, whose, 5),
            "priority-of-user" => libc::syscall(libc::SYS_setpriority, libc::PRIO_USER, whose, 5),
            "disk" => libc::syscall(libc::SYS_ioprio_set, 1, whose, IDLE),
            "disk-of-group" => libc::syscall(libc::SYS_ioprio_set, 2, whose, IDLE),
            "disk-of-user" => libc::syscall(libc::SYS_ioprio_set, 3, whose, IDLE),
            _ => return Err(io::Error::other("no such change")),
        }
    };
    check(answer)?;
    Ok("ok".into())
}

/// Lowers the priority of another thread by its number.
pub(crate) fn slow_thread() -> ProbeResult {
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let _ = tell.send(nix::unistd::gettid());
        let _ = ended.recv();
    });
    let number = told.recv().map_err(io::Error::other)?;
    let said = slow("priority", &number.to_string());
    drop(end);
    let _ = thread.join();
    said
}
