//! B32: pid 1 ends the sandbox, and runs as the stage's user. Whatever the stage does with the processors, pid 1 runs in time.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use e2e::case::{Cases, Cx};
use e2e::leftover::living;
use e2e::run::Run;
use e2e::wait_for;

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b32_pid_one_is_not_slowed", refused);
    list.matrix("escape::b32_files_of_pid_one_are_read_only", files);
    list.alone("escape::b32_kill_9_ends_a_busy_stage", kill_9);
    list.alone("escape::b32_a_timeout_ends_a_busy_stage", timeout);
}

/// Ways to be busy, see the probe.
const WAYS: [&str; 4] = ["plain", "slowing", "sessions", "orphans"];
/// Seconds that the stage is busy if nobody ends it.
const BUSY: &str = "20";

fn refused(cx: &Cx) {
    let single = ["policy", "parameters", "attributes", "processors", "limits", "priority", "disk"];
    for how in single {
        cx.probing(&[], &format!("slow {how} 0")).run().exits(0).prints("ok\n");
        cx.probing(&[], &format!("slow {how} 1")).run().exits(0).prints("EPERM\n");
    }
    for how in ["priority-of-group", "priority-of-user", "disk-of-group", "disk-of-user"] {
        for whose in [0, 1] {
            cx.probing(&[], &format!("slow {how} {whose}")).run().exits(0).prints("EPERM\n");
        }
    }
    cx.probing(&[], "slow-thread").run().exits(0).prints("ok\n");
    let own = "nice -n 3 true && sleep 9 & renice -n 4 $! && taskset -p 1 $! && taskset 1 true && echo works";
    cx.sh(&[], own).run().exits(0).says("").shows("works\n");
}

/// A weight below 0 would need a right, so this is the lowest.
fn files(cx: &Cx) {
    let script =
        "for file in /proc/1/autogroup /proc/1/clear_refs /proc/1/task/1/clear_refs /proc/1/timerslack_ns; do
        [ -e $file ] || continue
        if (echo 1 >$file) 2>/dev/null; then echo $file; fi
    done
    [ $(cut -d ' ' -f 6 /proc/1/stat) != $(cut -d ' ' -f 6 /proc/self/stat) ] || echo 'the same session'";
    cx.sh(&[], script).run().exits(0).prints("");
    if cx.is_root() {
        // The stage keeps root's kernel uid.
        cx.sh(&[], script).under(["setpriv", "--bounding-set", "-sys_admin", "--"]).run().exits(0).prints("");
    }
}

fn kill_9(cx: &Cx) {
    for way in WAYS {
        let mut live = busy(cx, way, &[]).start();
        live.until_prints("busy").signal(Signal::SIGKILL);
        let began = Instant::now();
        // Every process of the stage has the standard output.
        live.wait();
        assert!(began.elapsed() < Duration::from_secs(2), "{way}: {:?}", began.elapsed());
        wait_for(Duration::from_secs(2), "the end of everything", || living().is_empty().then_some(()));
    }
}

/// What exeat may do then is up to the caller's own rights, of which an ordinary user has few.
fn timeout(cx: &Cx) {
    for way in WAYS {
        let done = busy(cx, way, &["--timeout", "4s", "--grace", "500ms"]).run();
        done.exits(124);
        // An ordinary user's exeat also waits for a processor, among processes that fork most of all.
        assert!(done.took < Duration::from_secs(12), "{way}: {:?}", done.took);
        wait_for(Duration::from_secs(2), "the end of everything", || living().is_empty().then_some(()));
    }
}

fn busy<'a>(cx: &'a Cx, way: &str, flags: &[&str]) -> Run<'a> {
    let stage = ["--", cx.probe(), "starve", way, "150", BUSY];
    cx.exeat(["run", "--pids", "600"].iter().chain(flags).chain(&stage))
}
