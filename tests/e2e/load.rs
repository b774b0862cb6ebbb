//! Many connections, many bytes, and the memory of exeat meanwhile.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use e2e::case::{Cases, Cx};

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("load::r07_100_tunnels_in_parallel", parallel);
    list.bridges("load::r07_1000_tunnels_one_by_one", sequential);
    list.bridges("load::r02_download_of_1_gb_in_flat_memory", download);
    list.bridges("load::r02_slow_reader_is_not_buffered_for", slow_reader);
    list.once("load::idle_tunnels_are_cheap", idle);
    list.bridges("load::x09_an_upload_is_cut_at_the_byte", upload_budget);
    list.bridges("load::r01_connections_to_one_host", per_host);
}

/// The most memory of exeat, in kB: an unoptimized binary at rest uses about half.
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

/// X09: a rule's upload budget goes out, also inside TLS, and not a byte more; then nothing is dialed.
fn upload_budget(cx: &Cx) {
    const LIMIT: u64 = 300_000;
    let good = cx.good();
    let policy = cx.home().join("policy.toml");
    let text = format!("[[network.rule]]\nallow = [\"{good}\"]\nmax_upload = \"300kB\"\n");
    fs::write(&policy, text).expect("a policy");
    cx.bench().give(&policy, cx.is_root());
    let url = cx.good_url();
    let upload =
        |bytes: u64| format!("head -c {bytes} /dev/zero | curl -sS --cacert ca.pem --data-binary @- {url}");
    let script = format!("{}; {}; {}", upload(100_000), upload(1_000_000), upload(1));
    let policy = policy.display().to_string();
    let done = cx.exeat(["run", "--policy", &policy, "--", "sh", "-c", &script]).run();
    assert_ne!(done.code, Some(0), "{done:?}");
    done.shows("POST 100000").says("response 429");
    done.says(&format!("the upload budget of 300kB is used up (grants {good}:443)"));

    let log = done.record();
    let closes = log.events("close");
    let sent: Vec<_> = closes.iter().map(|close| close["bytes_up"].as_u64().expect("a number")).collect();
    assert_eq!(sent.iter().sum::<u64>(), LIMIT, "{sent:?}");
    assert_eq!((closes.len(), &closes[1]["ended_by"]), (3, &"budget".into()), "{closes:?}");
    let reasons: Vec<_> = log.events("decision").iter().map(|line| line["reason"].clone()).collect();
    assert_eq!(reasons, ["rule", "rule", "budget_bytes", "budget_bytes"]);
    let (v4, v6) = cx.good_addrs();
    let visits: Vec<_> = [v4, v6].iter().flat_map(|addr| cx.bench().internet.visits(*addr)).collect();
    let arrived: u64 = visits.iter().map(|visit| visit.bytes.load(Ordering::SeqCst)).sum();
    assert!(
        visits.len() == 2 && arrived <= LIMIT,
        "{arrived} bytes on the wire, {} connections",
        visits.len()
    );
}

/// R01: the flag holds, and each connection beyond it gets an answer and a line of the record.
fn per_host(cx: &Cx) {
    let good = cx.good();
    let target = format!("{good}:7");
    let holding = |count: &str| {
        let words = ["run", "--allow", &target, "--set", "limits.connections_per_host=5", "--"];
        cx.exeat(words.into_iter().chain([cx.probe(), "hold", &target, count])).run()
    };
    holding("5").exits(0).shows("holding 5\n");
    let done = holding("6");
    let log = done.record();
    let reasons: Vec<_> = log.events("decision").iter().map(|line| line["reason"].clone()).collect();
    assert_eq!(reasons, ["rule", "rule", "rule", "rule", "rule", "budget_conns"], "{done:?}");
    done.says("5 connections to this host are open, and no more at one time");
}

/// Samples the highest resident size of exeat until it ends.
fn peak_of(live: &mut e2e::run::Live<'_>) -> u64 {
    let mut peak = 0;
    while !live.ended() {
        peak = peak.max(live.memory_kb("VmHWM"));
        std::thread::sleep(Duration::from_millis(5));
    }
    peak
}
