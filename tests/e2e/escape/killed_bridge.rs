//! B24: the stage kills every visible process, including the relay.

use std::time::Duration;

use e2e::case::{Bridge, Cases, Cx};
use e2e::wait_for;
use nix::sys::signal::{Signal, kill};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b24_killed_bridge_opens_nothing", killed_bridge);
}

/// K29: the stage kills every visible process: itself, or if the kernel restricts signals (Landlock 6) with help from
/// the host. At most it loses its own network, which is then on record.
fn killed_bridge(cx: &Cx) {
    let (v4, v6) = cx.good_addrs();
    let script = format!(
        "{0} ask {good}:443 | head -n 1
         for p in /proc/[0-9]*; do p=${{p#/proc/}}; [ $p = 1 ] || [ $p = $$ ] || kill -9 $p 2>/dev/null; done
         echo tried; read -r go; sleep 1
         {0} ask {good}:443 | head -n 1
         {0} ask {evil}:443 | head -n 1
         {0} tcp {v4}:443; {0} tcp [{v6}]:443; {0} dns-udp 8.8.8.8:53 x.test",
        cx.probe(),
        good = cx.good(),
        evil = cx.evil(),
    );
    let mut live = cx.sh(&[&cx.good()], &script).stdin_open().start();
    live.until_prints("tried");
    // The relay is a process in the sandbox; a handoff has none.
    let relays = live.pids("stage2");
    assert!(relays.len() <= usize::from(cx.bridge() == Bridge::Relay), "{relays:?}");
    for relay in relays {
        kill(relay, Signal::SIGKILL).expect("it runs");
    }
    wait_for(Duration::from_secs(5), "the end of the relay", || live.pids("stage2").is_empty().then_some(()));
    let done = live.wait();
    let said = done.exits(0).stdout();
    let refused = "ECONNREFUSED";
    let (good, evil, lost) = match cx.bridge() {
        Bridge::Relay => (refused, refused, 1),
        Bridge::Handoff => ("HTTP/1.1 200", "HTTP/1.1 403", 0),
    };
    let expected = ["HTTP/1.1 200", "tried", good, evil, refused, refused, refused];
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{done:?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "`{line}` is not {expected}: {done:?}");
    }
    let log = done.record();
    let notes = log.events("note").into_iter().filter(|note| note["what"] == "bridge_lost").count();
    assert_eq!(notes, lost, "{done:?}");
}
