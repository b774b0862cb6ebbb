//! B32: when exeat is killed, everything that it has started ends within two seconds.

use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use e2e::case::{Cases, Cx};
use e2e::leftover::living;
use e2e::run::Run;
use e2e::{rounds, wait_for};

use crate::life::{count, nothing_more_than, running};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b32_daemons_die_with_the_stage", daemons_die);
    list.alone("escape::b32_kill_9_leaves_nothing", kill_9);
    list.alone("escape::b32_kill_9_ends_all_in_two_seconds", kill_9_ends_all);
    list.alone("escape::b32_kill_9_of_every_process", kill_9_of_all);
    list.alone("escape::b32_kill_9_at_any_moment", kill_9_at_any_moment);
    list.alone("escape::b32_a_start_that_hangs_ends_too", hanging_start);
    list.alone("escape::b32_a_reaper_that_is_killed_at_once", no_reaper);
}

fn daemons_die(cx: &Cx) {
    let done = cx.sh(&[], "setsid sleep 7654.25 </dev/null >/dev/null 2>&1 & echo started").run();
    done.exits(0).prints("started\n");
    assert!(done.took < Duration::from_secs(10), "the run waits for its stage alone: {done:?}");
    wait_for(Duration::from_secs(5), "the end of the daemon", || (!running("7654.25")).then_some(()));
}

/// A13.
fn kill_9(cx: &Cx) {
    // The first run makes what stays by design: the cache of this working directory.
    cx.sh(&[&cx.good()], "true").run().exits(0);
    let before = count(cx);
    let mut live = cx.sh(&[&cx.good()], "setsid sleep 7654.5 & echo ready; exec sleep 7654.75").start();
    live.until_prints("ready").signal(Signal::SIGKILL);
    live.wait();
    nothing_more_than(cx, &before);
    assert!(!running("7654.5") && !running("7654.75"));
}

/// Whatever the stage does against it, with a terminal and without.
fn kill_9_ends_all(cx: &Cx) {
    cx.sh(&[&cx.good()], "true").run().exits(0);
    let before = count(cx);
    for script in [
        "echo ready; exec sleep 7654.5",
        "trap '' HUP INT TERM TSTP CONT; setsid sh -c 'trap \"\" HUP TERM; while :; do sleep 7654.5; done' & echo ready; while :; do sleep 1; done",
        "echo ready; kill -STOP $$",
    ] {
        let mut live = cx.sh(&[&cx.good()], script).start();
        live.until_prints("ready");
        live.signal(Signal::SIGKILL);
        wait_for(Duration::from_secs(2), "the end of everything", || {
            (!running("7654.5") && living().is_empty()).then_some(())
        });
        live.wait();

        let mut screen = cx.sh(&[&cx.good()], script).on_terminal();
        screen.until("ready\r\n");
        screen.until_raw(true);
        screen.signal(Signal::SIGKILL);
        wait_for(Duration::from_secs(2), "the end of everything", || {
            (!running("7654.5") && living().is_empty()).then_some(())
        });
        assert_eq!(screen.wait(), -9);
    }
    nothing_more_than(cx, &before);
}

/// Every process of the host side dies at once, as when a terminal or a CI job is ended by group or by parent.
fn kill_9_of_all(cx: &Cx) {
    cx.sh(&[&cx.good()], "true").run().exits(0);
    let before = count(cx);
    for n in 0..8 {
        let live = cx.sh(&[&cx.good()], "exec sleep 7654.5").start();
        thread::sleep(Duration::from_millis(15 * n));
        for pid in living() {
            let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
        }
        live.wait();
    }
    cx.sh(&[&cx.good()], "true").run().exits(0);
    nothing_more_than(cx, &before);
}

/// exeat is killed at many moments of the start, and as often while its stage runs.
fn kill_9_at_any_moment(cx: &Cx) {
    killed_at_any_moment(cx, |run| run);
}

/// Kills runs at moments that are spread over their start and their first milliseconds. The next start removes what has no process.
pub(super) fn killed_at_any_moment<'a>(cx: &'a Cx, prepare: impl Fn(Run<'a>) -> Run<'a>) {
    let start = || prepare(cx.sh(&[&cx.good()], "true")).run().exits(0).took;
    start();
    let before = count(cx);
    let whole = u64::try_from(start().as_micros()).expect("a short run");
    for round in 0..rounds(12, 1000) {
        for waits_for_stage in [false, true] {
            let script = "echo ready; setsid sleep 7654.5 & exec sleep 7654.5";
            let mut live = prepare(cx.sh(&[&cx.good()], script)).start();
            if waits_for_stage {
                live.until_prints("ready");
            }
            // Uneven, and independent of what the run does meanwhile.
            let moment = round * round * 7919 % if waits_for_stage { 20_000 } else { whole };
            thread::sleep(Duration::from_micros(moment));
            live.signal(Signal::SIGKILL);
            wait_for(Duration::from_secs(2), "the end of everything", || {
                (living().is_empty() && !running("7654.5")).then_some(())
            });
            live.wait();
        }
    }
    start();
    nothing_more_than(cx, &before);
}

/// The process that becomes bubblewrap hangs before its execve, as on a file system that does not answer.
const HELD: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef long call_type(long number, ...);

/* Constructors of other libraries call these functions before one of this library could run. */
static call_type *real(void)
{
    static call_type *found;
    if (!found)
        found = (call_type *)dlsym(RTLD_NEXT, "syscall");
    return found;
}

int prctl(int option, ...)
{
    va_list rest;
    va_start(rest, option);
    unsigned long word = va_arg(rest, unsigned long);
    va_end(rest);
    static int struck;
    char name[16] = "";
    real()(SYS_prctl, PR_GET_NAME, name, 0, 0, 0);
    if (option == PR_SET_PDEATHSIG && strcmp(name, "sandbox-reaper") == 0 && getenv("NO_REAPER") && !struck++) {
        pid_t reaper = getppid();
        kill(reaper, SIGKILL);
        while (getppid() == reaper)
            usleep(1000);
    }
    return (int)real()(SYS_prctl, option, word, 0, 0, 0);
}

static void hold(void)
{
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    if (strcmp(name, "sandbox-reaper") == 0) {
        prctl(PR_SET_NAME, "held-start");
        for (;;)
            pause();
    }
}

int execve(const char *path, char *const argv[], char *const envp[])
{
    hold();
    return (int)real()(SYS_execve, path, argv, envp);
}

long syscall(long number, ...)
{
    va_list rest;
    long words[6];
    va_start(rest, number);
    for (int n = 0; n < 6; n++)
        words[n] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_execveat)
        hold();
    return real()(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
"#;

/// Builds the library for `LD_PRELOAD`.
fn build_library(cx: &Cx) -> String {
    let source = cx.write("held.c", HELD);
    let library = source.with_extension("so").display().to_string();
    let source = source.display().to_string();
    cx.outside(["cc", "-shared", "-fPIC", "-o", &library, &source]).run().exits(0);
    library
}

fn hanging_start(cx: &Cx) {
    let library = build_library(cx);
    cx.sh(&[], "true").run().exits(0);
    let before = count(cx);
    let ends =
        [(Signal::SIGKILL, false), (Signal::SIGTERM, false), (Signal::SIGTERM, true), (Signal::SIGINT, true)];
    let all = ["bwrap", "bwrap-alone"].into_iter().flat_map(|backend| ends.map(|end| (backend, end)));
    for (backend, (signal, whole_group)) in all {
        let live = on_bubblewrap(cx, backend).env("LD_PRELOAD", &library).own_group().start();
        wait_for(Duration::from_secs(10), "a start that hangs", || {
            (live.states("held-start") == ['S']).then_some(())
        });
        if whole_group {
            nix::sys::signal::killpg(live.pid(), signal).expect("exeat runs");
        } else {
            live.signal(signal);
        }
        wait_for(Duration::from_secs(2), "the end of everything", || living().is_empty().then_some(()));
        let done = live.wait();
        done.prints("");
        if signal != Signal::SIGKILL {
            done.exits(128 + signal as i32);
        }
    }
    nothing_more_than(cx, &before);
}

/// These trials delay calls that only the start of bubblewrap makes.
fn on_bubblewrap<'a>(cx: &'a Cx, backend: &str) -> Run<'a> {
    cx.exeat(["run", "--set", &format!("sandbox.backend={backend}"), "--", "sh", "-c", "echo it-ran"])
}

/// The reaper's child has not requested a signal for its parent's death yet, and must not become bubblewrap then.
fn no_reaper(cx: &Cx) {
    let library = build_library(cx);
    cx.sh(&[], "true").run().exits(0);
    let before = count(cx);
    for backend in ["bwrap", "bwrap-alone", "bwrap"] {
        let done = on_bubblewrap(cx, backend).env("LD_PRELOAD", &library).env("NO_REAPER", "1").run();
        done.exits(125).prints("");
        let mut left = Vec::new();
        for _ in 0..20 {
            left = living();
            thread::sleep(Duration::from_millis(10));
        }
        for pid in &left {
            let _ = nix::sys::signal::kill(*pid, Signal::SIGKILL);
        }
        assert!(left.is_empty(), "became bubblewrap without a reaper");
    }
    nothing_more_than(cx, &before);
}
