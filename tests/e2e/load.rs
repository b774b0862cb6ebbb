//! Many connections, many bytes, and the memory of exeat meanwhile.

use std::time::Duration;

use e2e::case::{Cases, Cx};

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("load::r07_100_tunnels_in_parallel", parallel);
    list.bridges("load::r07_1000_tunnels_one_by_one", sequential);
    list.bridges("load::r02_download_of_1_gb_in_flat_memory", download);
    list.bridges("load::r02_slow_reader_is_not_buffered_for", slow_reader);
    list.once("load::idle_tunnels_are_cheap", idle);
}

/// The most that exeat may hold, in kB: an unoptimised binary at rest has about half of it.
const FLAT_KB: u64 = 48 * 1024;

fn parallel(cx: &Cx) {
    let good = cx.good();
    let done = cx.probing(&[&format!("{good}:7")], &format!("many {good}:7 1 100")).run();
    done.exits(0).prints("100 of 100\n");
    assert_eq!(done.record().decisions(&good).len(), 100);
}

fn sequential(cx: &Cx) {
    let good = cx.good();
    let done = cx
        .probing(&[&format!("{good}:7")], &format!("many {good}:7 1000 1"))
        .deadline(Duration::from_secs(90))
        .run();
    done.exits(0).prints("1000 of 1000\n");
    assert_eq!(done.record().decisions(&good).len(), 1000);
}

fn download(cx: &Cx) {
    let good = cx.good();
    let count = 1_u64 << 30;
    let words = format!("bulk {good}:9001 {count}");
    let mut live = cx.probing(&[&format!("{good}:9001")], &words).deadline(Duration::from_secs(120)).start();
    let peak = peak_of(&mut live);
    let done = live.wait();
    done.exits(0).shows(&format!("{count} bytes in "));
    assert!(peak > 0 && peak < FLAT_KB, "exeat held {peak} kB");
    let log = done.record();
    assert_eq!(log.close_of(log.decision(&good))["bytes_down"], count);
}

fn slow_reader(cx: &Cx) {
    let good = cx.good();
    let mut live =
        cx.probing(&[&format!("{good}:9001")], &format!("slow-reader {good}:9001 100000000")).start();
    let peak = peak_of(&mut live);
    live.wait().exits(0).prints("100000000 bytes\n");
    assert!(peak > 0 && peak < FLAT_KB, "exeat held {peak} kB");
}

fn idle(cx: &Cx) {
    let good = cx.good();
    let run = cx.probing(&[&format!("{good}:7")], &format!("hold {good}:7 400"));
    let mut live = run.stdin_open().start();
    live.until_prints("holding 400");
    let held = live.memory_kb("VmRSS");
    assert!(held > 0 && held < FLAT_KB, "exeat holds {held} kB for 400 tunnels");
}

/// The highest resident size that exeat reaches, sampled until it ends.
fn peak_of(live: &mut e2e::run::Live<'_>) -> u64 {
    let mut peak = 0;
    while !live.ended() {
        peak = peak.max(live.memory_kb("VmHWM"));
        std::thread::sleep(Duration::from_millis(5));
    }
    peak
}
