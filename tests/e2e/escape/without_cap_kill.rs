//! B32, B11: started by root without CAP_KILL, as in many containers, exeat may not signal its stage, which is another
//! user, but still ends it.

use std::fs;
use std::os::unix::fs::chown;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};

use e2e::bench::ORDINARY;
use e2e::case::{Cases, Cx};
use e2e::leftover::living;
use e2e::run::Run;
use e2e::wait_for;

use crate::life::{count, nothing_more_than};

pub(super) fn cases(list: &mut Cases) {
    list.root("escape::b32_limits_and_signals_without_cap_kill", limits);
    list.root("escape::b11_uncovered_without_cap_kill", uncovered);
    list.root_alone("escape::b32_kill_9_without_cap_kill", kill_9);
    list.root_alone("escape::b32_kill_9_at_any_moment_without_cap_kill", kill_9_at_any_moment);
}

/// Runs a test with a separate user for the stage, and with the owner of the working directory.
fn each(cx: &Cx, test: impl Fn(&dyn for<'a> Fn(Run<'a>) -> Run<'a>)) {
    for caps in ["-kill", "-kill,-sys_admin,-sys_ptrace,-sys_resource"] {
        // The record, and other files of root's, are outside of the directory.
        let owner = if caps == "-kill" { 0 } else { ORDINARY };
        chown(cx.dir(), Some(owner), Some(owner)).expect("chown");
        test(&|run| run.under(["setpriv", "--bounding-set", caps, "--inh-caps", caps, "--"]));
    }
}

fn limits(cx: &Cx) {
    each(cx, |less| {
        let sh = |flag: &str, value: &str, script: &str| {
            less(cx.exeat(["run", flag, value, "--", "sh", "-c", script])).run()
        };
        let done = sh("--timeout", "1s", "exec sleep 60");
        assert!(done.exits(124).took < Duration::from_secs(5), "{done:?}");
        let done = sh("--timeout", "1s", "trap '' TERM; while :; do sleep 1; done");
        assert!(done.exits(124).took < Duration::from_secs(12), "{done:?}");
        let done = sh("--set", "limits.output_size=1kB", "yes | head -c 4000; exec sleep 60");
        assert!(done.exits(137).took < Duration::from_secs(5), "{done:?}");
        sh("--memory", "40MB", "x=x; while :; do x=$x$x; done").exits(137).says("memory limit of 40MB");
        let told =
            "trap 'echo usr1' USR1; trap 'echo term; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
        let mut live = less(cx.sh(&[], told)).start();
        live.until_prints("ready").signal(Signal::SIGUSR1);
        live.until_prints("usr1").signal(Signal::SIGTERM);
        live.wait().exits(3).prints("ready\nusr1\nterm\n");
    });
}

fn uncovered(cx: &Cx) {
    each(cx, |less| {
        let (own, script) = (cx.write("keys", "old"), "echo ready; sleep 3; echo it-went-on");
        let mut live = less(cx.exeat(["run", "--mask", "keys", "--", "sh", "-c", script])).start();
        live.until_prints("ready");
        let new = own.with_file_name("new");
        fs::write(&new, "").expect("a file");
        fs::rename(&new, &own).expect("a rename");
        live.wait().exits(137).prints("ready\n").says("was replaced, renamed or removed on the host");
    });
}

fn kill_9_at_any_moment(cx: &Cx) {
    each(cx, |less| super::killed_supervisor::killed_at_any_moment(cx, less));
}

/// Kills exeat, the reaper, and everything at once. The kernel also checks whether the process that dies may signal its
/// child (`group_send_sig_info`, kernel/signal.c).
fn kill_9(cx: &Cx) {
    each(cx, |less| {
        less(cx.sh(&[], "true")).run().exits(0);
        let before = count(cx);
        for victims in ["exeat", "sandbox-reaper", "all"] {
            let script = "setsid sleep 7655.5 & echo ready; exec sleep 7655.5";
            let mut live = less(cx.sh(&[], script)).start();
            live.until_prints("ready");
            let of_ours = |name: &str| live.pids(name);
            let victims = match victims {
                "exeat" => vec![live.pid()],
                "all" => [vec![live.pid()], of_ours("sandbox-reaper")].concat(),
                name => of_ours(name),
            };
            assert!(!victims.is_empty());
            for pid in victims {
                kill(pid, Signal::SIGKILL).expect("it runs");
            }
            wait_for(Duration::from_secs(3), "the end of everything", || living().is_empty().then_some(()));
            live.wait();
        }
        nothing_more_than(cx, &before);
    });
}
