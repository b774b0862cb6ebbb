//! The start and end of a run: signals, deaths, and nothing left behind.

use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use e2e::case::{Cases, Cx};
use e2e::leftover::{Leftover, descendants};
use e2e::run::Live;
use e2e::wait_for;

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("life::signals_reach_the_stage", signals_reach);
    list.bridges("life::a_stubborn_stage_is_killed", stubborn);
    list.users("life::a_stage_has_its_grace_to_save_what_it_has", grace_to_save);
    list.once("life::grace_is_what_the_policy_says", grace_as_said);
    list.once("life::a_second_signal_ends_the_grace", second_signal);
    list.users("life::ends_with_its_parent", ends_with_parent);
    list.once("life::does_not_start_without_its_parent", no_start_without_parent);
    list.users("life::signals_that_only_tell", signals_that_only_tell);
    list.users("life::signals_that_are_refused", refused_signals);
    list.users("life::suspend_and_continue", suspend_and_continue);
    list.once("life::suspended_before_it_starts", suspended_before_it_starts);
    list.once("life::time_goes_on_while_suspended", time_goes_on);
    list.alone("life::r09_fifty_at_once", fifty_at_once);
    list.users("life::exact_exit_status", exact_exit_status);
    list.alone("life::r09_leftover_of_200_runs", two_hundred_runs);
    list.bridges("life::waits_for_no_relay", waits_for_no_relay);
    list.bridges("life::a_tunnel_that_is_stuck_costs_nothing", stuck);
    list.matrix("life::a_stage_may_serve", may_serve);
}

const TRAP: &str = "trap 'echo got-term; exit 3' TERM; trap 'echo got-int; exit 4' INT
                    echo ready; while :; do sleep 0.05; done";

fn signals_reach(cx: &Cx) {
    for (signal, word, code) in [(Signal::SIGTERM, "got-term", 3), (Signal::SIGINT, "got-int", 4)] {
        let mut live = cx.sh(&[], TRAP).start();
        live.until_prints("ready").signal(signal);
        let done = live.wait();
        done.exits(code).prints(&format!("ready\n{word}\n"));
        done.record();
    }
}

/// A stage that ignores the signal is killed after a grace period.
fn stubborn(cx: &Cx) {
    let mut live = cx.sh(&[], "trap '' TERM INT; echo ready; while :; do sleep 1; done").start();
    live.until_prints("ready").signal(Signal::SIGTERM);
    let done = live.wait();
    done.exits(137);
    assert!(done.took < Duration::from_secs(25), "{done:?}");
    done.record();
}

fn read_result(path: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(path).expect("the result");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The stage needs longer than the 5 seconds at a terminal, and less than the 8 elsewhere.
fn grace_to_save(cx: &Cx) {
    let script = "trap 'sleep 6; echo saved > saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let result = cx.home().join("saved.json");
    let words = ["run", "--result", result.to_str().expect("ASCII"), "--", "sh", "-c", script];
    let mut live = cx.exeat(words).start();
    live.until_prints("ready").signal(Signal::SIGTERM);
    let done = live.wait();
    done.exits(0)
        .says("exeat: stopped by SIGTERM; the stage ended by itself 6")
        .says(" s later, with code 0");
    assert_eq!(std::fs::read_to_string(cx.dir().join("saved")).expect("what was saved"), "saved\n");
    let said = read_result(&result);
    assert_eq!(
        (&said["cause"], &said["signal"], &said["signal_number"], &said["stopped_by"], &said["code"]),
        (&"stopped".into(), &"SIGTERM".into(), &15.into(), &"signal".into(), &0.into())
    );
    let record = done.record();
    let ends = record.events("run_end");
    assert_eq!(
        (&ends[0]["cause"], &ends[0]["signal"], &ends[0]["signal_number"], &ends[0]["exit"]),
        (&"stopped".into(), &"SIGTERM".into(), &15.into(), &0.into())
    );
}

fn grace_as_said(cx: &Cx) {
    let script = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let policy = cx.write("grace.toml", "schema = 1\n[limits]\ngrace = \"1s\"\n").display().to_string();
    for flags in [vec!["--set", "limits.grace=1s"], vec!["--policy", &policy]] {
        let words = [&["run"], &flags[..], &["--", "sh", "-c", script]].concat();
        let mut live = cx.exeat(words).start();
        live.until_prints("ready").signal(Signal::SIGTERM);
        let done = live.wait();
        // At least a second, and not the default eight.
        done.exits(137).says("; the stage was killed ");
        let after: f64 = done
            .stderr()
            .split("the stage was killed ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next())
            .and_then(|number| number.parse().ok())
            .expect("how long it took");
        assert!((1.0..8.0).contains(&after), "{done:?}");
        assert_eq!(done.record().events("run_end")[0]["cause"], "stopped");
    }
    // The same grace follows the time limit.
    let done = cx
        .exeat(["run", "--timeout", "200ms", "--set", "limits.grace=300ms", "--", "sh", "-c", script])
        .run();
    done.exits(124);
    assert!(done.took < Duration::from_secs(5), "{done:?}");
}

fn second_signal(cx: &Cx) {
    let script = "trap 'echo told' TERM; echo ready; while :; do sleep 0.05; done";
    let mut live = cx.exeat(["run", "--set", "limits.grace=1h", "--", "sh", "-c", script]).start();
    live.until_prints("ready").signal(Signal::SIGTERM);
    live.until_prints("told").signal(Signal::SIGINT);
    let done = live.wait();
    done.exits(137).says("exeat: stopped by SIGTERM; the stage was killed ");
    done.record();
}

/// Only the parent is killed.
fn ends_with_parent(cx: &Cx) {
    let (result, exeat) = (cx.home().join("orphan.json"), cx.bench().bin.join("exeat").display().to_string());
    let saved = cx.dir().join("saved");
    let stage = "trap 'echo saved > saved; exit 5' TERM; echo ready > ready; while :; do sleep 0.05; done";
    let script = format!(
        "'{exeat}' run --end-with-parent --result '{}' -- sh -c \"$STAGE\" & echo $!; wait",
        result.display()
    );
    let live = cx.outside(["sh", "-c", &script]).env("STAGE", stage).start();
    wait_for(Duration::from_secs(20), "the stage", || cx.dir().join("ready").exists().then_some(()));
    assert!(!result.exists());
    live.signal(Signal::SIGKILL);
    let said = wait_for(Duration::from_secs(20), "the result", || {
        std::fs::read_to_string(&result).ok().filter(|text| !text.is_empty())
    });
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(
        (&said["cause"], &said["signal"], &said["stopped_by"], &said["code"]),
        (&"stopped".into(), &"SIGTERM".into(), &"parent".into(), &5.into())
    );
    assert!(saved.exists());
    live.wait();
}

/// The parent ends while exeat waits for the end of its policy: nothing starts.
fn no_start_without_parent(cx: &Cx) {
    let (result, exeat) = (cx.home().join("none.json"), cx.bench().bin.join("exeat").display().to_string());
    let script = format!(
        "{{ while kill -0 $$; do sleep 0.05; done 2>/dev/null; echo schema = 1; }} | \
             '{exeat}' run --end-with-parent --result '{result}' --policy /dev/stdin -- touch started >/dev/null 2>&1 & \
         until grep -q exeat /proc/$!/comm; do sleep 0.05; done; sleep 1; kill -9 $$",
        result = result.display()
    );
    cx.outside(["sh", "-c", &script]).run();
    let said = wait_for(Duration::from_secs(20), "the result", || {
        std::fs::read_to_string(&result).ok().filter(|text| !text.is_empty())
    });
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(
        (&said["cause"], &said["stopped_by"], &said["code"]),
        (&"stopped".into(), &"parent".into(), &143.into())
    );
    let error = said["error"].as_str().expect("why it did not run");
    assert!(error.contains("before the command was started"), "{said}");
    assert!(!cx.dir().join("started").exists());
}

/// These signals reach the stage, and start no grace period.
fn signals_that_only_tell(cx: &Cx) {
    let told = [
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
        (Signal::SIGWINCH, "WINCH"),
        (Signal::SIGCONT, "CONT"),
    ];
    let traps: String = told.iter().map(|(_, word)| format!("trap 'echo {word}' {word}; ")).collect();
    let script = format!("{traps}echo ready; while :; do sleep 0.05; done");
    let mut live = cx.sh(&[], &script).start();
    live.until_prints("ready");
    for (signal, word) in told {
        live.signal(signal);
        live.until_prints(word);
    }
    // Longer than the grace period.
    thread::sleep(Duration::from_millis(8500));
    assert!(!live.ended());
    live.signal(Signal::SIGTERM);
    live.wait().exits(143).prints("ready\nUSR1\nUSR2\nWINCH\nCONT\n").record();
}

/// Makes the kernel refuse all of exeat's signals, as under a security module.
const REFUSED: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>

long syscall(long number, ...)
{
    static long (*real)(long, ...);
    long a[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_pidfd_send_signal) {
        errno = EPERM;
        return -1;
    }
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
"#;

/// A signal that cannot be passed on is reported, and the reaper ends the stage.
fn refused_signals(cx: &Cx) {
    let source = cx.write("refused.c", REFUSED);
    let library = source.with_extension("so").display().to_string();
    let source = source.display().to_string();
    cx.outside(["cc", "-shared", "-fPIC", "-o", &library, &source, "-ldl"]).run().exits(0);
    let mut live = cx.sh(&[], TRAP).env("LD_PRELOAD", &library).start();
    live.until_prints("ready").signal(Signal::SIGTERM);
    let done = live.wait();
    done.exits(137)
        .prints("ready\n")
        .says("SIGTERM could not be passed on to the stage: operation not permitted");
    assert!(done.took < Duration::from_secs(15), "{done:?}");
    done.record();
}

/// Tries a stage that keeps the default for SIGTSTP, one that catches it and continues, and one that ignores it.
fn suspend_and_continue(cx: &Cx) {
    let loops = "echo ready; while :; do sleep 0.05; done";
    // A child that was stopped before it became `sleep` counts too. If it came from vfork(2), its parent waits for it ('D').
    let stopped = |live: &Live<'_>| {
        let states = live.states("sh");
        states.contains(&'T') && states.iter().all(|state| "TD".contains(*state))
    };
    for (script, said) in [
        (format!("trap 'echo cont' CONT; {loops}"), "ready\ncont\n"),
        (format!("trap 'echo tstp' TSTP; {loops}"), "ready\ntstp\n"),
        (format!("trap '' TSTP; {loops}"), "ready\n"),
    ] {
        let mut live = cx.sh(&[], &script).own_group().start();
        live.until_prints("ready").signal(Signal::SIGTSTP).until_stopped(true);
        wait_for(Duration::from_secs(5), "the stage to be stopped", || stopped(&live).then_some(()));
        live.signal(Signal::SIGCONT).until_stopped(false);
        wait_for(Duration::from_secs(5), "the stage to go on", || (!stopped(&live)).then_some(()));
        live.until_prints(said.lines().last().expect("a line"));
        // A signal that continues both must not be passed on a second time.
        thread::sleep(Duration::from_millis(200));
        live.signal(Signal::SIGTERM);
        live.wait().exits(143).prints(said).record();
    }
}

/// A stop that comes too early is kept for the stage, unless it was revoked.
fn suspended_before_it_starts(cx: &Cx) {
    for n in 0..6 {
        let mut live = cx.sh(&[], "echo ready; exec sleep 1000").own_group().start();
        thread::sleep(Duration::from_millis(4 * n));
        live.signal(Signal::SIGTSTP).until_stopped(true);
        live.signal(Signal::SIGCONT);
        live.until_prints("ready").signal(Signal::SIGTERM);
        live.wait().exits(143);
    }
}

fn time_goes_on(cx: &Cx) {
    let mut live = cx
        .exeat(["run", "--timeout", "1s", "--", "sh", "-c", "echo ready; exec sleep 1000"])
        .own_group()
        .start();
    live.until_prints("ready").signal(Signal::SIGTSTP).until_stopped(true);
    thread::sleep(Duration::from_millis(1500));
    live.until_stopped(true).signal(Signal::SIGCONT);
    let done = live.wait();
    done.exits(124);
    assert!(done.took < Duration::from_secs(5), "{done:?}");
}

/// Returns whether any process of this machine has this word on its command line.
pub(crate) fn running(word: &str) -> bool {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    entries
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .any(|line| line.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes()))
}

/// Counts the directories where a run may leave files, as the trial sees them.
pub(crate) fn count(cx: &Cx) -> Leftover {
    // A short process closes the inotify instances of a run; that of an earlier run must not count.
    let end = std::time::Instant::now() + Duration::from_secs(2);
    let is_closing = || descendants().iter().any(|process| process.ends_with(" sandbox-inside"));
    while is_closing() && std::time::Instant::now() < end {
        thread::sleep(Duration::from_millis(5));
    }
    Leftover::now(&[cx.home(), Path::new("/tmp"), Path::new("/run/user"), Path::new("/dev/shm")])
}

/// Waits until the count is as before; the kernel needs a moment to end a PID namespace.
pub(crate) fn nothing_more_than(cx: &Cx, before: &Leftover) {
    let end = std::time::Instant::now() + Duration::from_secs(10);
    while count(cx) != *before && std::time::Instant::now() < end {
        thread::sleep(Duration::from_millis(20));
    }
    let after = count(cx);
    assert!(after == *before, "left behind:\nbefore {before:#?}\nafter {after:#?}");
}

/// Starts all at once, half of them on terminals: none sees the others.
fn fifty_at_once(cx: &Cx) {
    cx.sh(&[&cx.good()], "true").run().exits(0);
    let before = count(cx);
    let began = std::time::Instant::now();
    let script =
        |n: usize| format!("read -r word; echo own-{n}-$word; ls /proc | grep -c '^[0-9]'; exit {n}");
    let mut screens: Vec<_> =
        (0..25).map(|n| cx.sh(&[], &script(n)).deadline(Duration::from_secs(120)).on_terminal()).collect();
    let lives: Vec<_> = (25..50)
        .map(|n| (n, cx.sh(&[], &script(n)).stdin("here\n").deadline(Duration::from_secs(120)).start()))
        .collect();
    for (n, screen) in screens.iter_mut().enumerate() {
        screen.types("here\r");
        let shown = screen.until(&format!("own-{n}-here\r\n"));
        assert_eq!(shown.matches("own-").count(), 1, "{shown}");
        assert_eq!(screen.wait(), i32::try_from(n).expect("small"));
    }
    for (n, live) in lives {
        let done = live.wait();
        let said = done.exits(i32::try_from(n).expect("small")).stdout();
        // pid 1, the shell, `ls` and `grep`; the relay if there is one.
        let processes: u32 = said.lines().nth(1).and_then(|count| count.parse().ok()).unwrap_or(99);
        assert!(said.starts_with(&format!("own-{n}-here\n")) && processes <= 5, "{said}");
    }
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    drop(screens);
    nothing_more_than(cx, &before);
}

/// With a terminal and without.
fn exact_exit_status(cx: &Cx) {
    let codes =
        [0, 1, 2, 3, 63, 64, 77, 100, 123, 124, 125, 126, 127, 128, 129, 130, 137, 143, 200, 254, 255];
    for code in codes {
        let script = format!("exit {code}");
        cx.sh(&[], &script).run().exits(code);
        assert_eq!(cx.sh(&[], &script).on_terminal().wait(), code);
    }
    for signal in [1, 2, 3, 6, 9, 13, 14, 15, 31] {
        let script = format!("kill -{signal} $$");
        cx.sh(&[], &script).run().exits(128 + signal);
        let code = if signal == 2 { -2 } else { 128 + signal };
        assert_eq!(cx.sh(&[], &script).on_terminal().wait(), code);
    }
}

/// Four at a time; every fourth is killed while its stage runs, at a varying moment.
fn two_hundred_runs(cx: &Cx) {
    cx.sh(&[&cx.good()], "true").run().exits(0);
    let before = count(cx);
    thread::scope(|scope| {
        for worker in 0..4 {
            scope.spawn(move || {
                for n in 0..50 {
                    if n % 8 == 5 {
                        assert_eq!(cx.sh(&[&cx.good()], "exit 6").on_terminal().wait(), 6);
                    } else if n % 4 == 3 {
                        let live = cx.sh(&[&cx.good()], "exec sleep 1000").start();
                        thread::sleep(Duration::from_millis(7 * ((n + worker) % 13)));
                        live.signal(Signal::SIGKILL);
                        live.wait();
                    } else {
                        cx.sh(&[&cx.good()], "exit 5").run().exits(5);
                    }
                }
            });
        }
    });
    // The next start removes what a run leaves that was killed in its first milliseconds.
    cx.sh(&[&cx.good()], "true").run().exits(0);
    nothing_more_than(cx, &before);
    assert!(descendants().is_empty(), "{:?}", descendants());
}

/// K29: a stage that waits for all its children must not wait for a process of exeat's.
fn waits_for_no_relay(cx: &Cx) {
    let script = "import os\ntry:\n os.wait()\nexcept ChildProcessError:\n print('no child')\n";
    if !Path::new("/usr/bin/python3").exists() {
        cx.cannot("python3 is not installed");
    }
    cx.run(&[], ["python3", "-c", script]).run().exits(0).prints("no child\n");
}

/// If a side has closed and the other takes no bytes, exeat does not use processor time.
fn stuck(cx: &Cx) {
    let good = cx.good();
    for (words, state) in [("stop-reading", "stopped"), ("break-off", "broke off")] {
        let port = if words == "stop-reading" { 9004 } else { 9005 };
        let run = cx.probing(&[&format!("{good}:{port}")], &format!("{words} {good}:{port}"));
        let mut live = run.stdin_open().start();
        live.until_prints(state);
        let before = live.ticks();
        thread::sleep(Duration::from_secs(1));
        let spent = live.ticks() - before;
        assert!(spent < 20, "{spent} hundredths of a second of processor time in a second: {words}");
        live.wait().exits(0);
    }
}

/// K9: the stage has a private loopback.
fn may_serve(cx: &Cx) {
    cx.probing(&[], "serve 8080").run().exits(0).prints("ok: hello\n");
}
