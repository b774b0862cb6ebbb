//! Puts load on a real `exeat proxy`, on loopback: idle tunnels, sequential connections, and hostile clients with
//! honest ones. Prints what each costs, and fails if a bound is broken. Run it with `cargo xtask soak`.
//!
//! `soak [--idle N] [--sequential N] [--minutes N]`: by default 10000, or as many as the hard limit of open files allows, 100000, and 5
//! minutes in total. The table has the number that was done in time.
#![forbid(unsafe_code)]

mod clients;
mod origin;
mod watched;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clients::{Honest, Route, hostile};
use watched::Watched;

/// The most resident bytes of one idle tunnel: the state of two sockets and a future, without a buffer.
const IDLE_BYTES: f64 = 10_000.0;
/// The most that the resident size may grow, in kB: the allocator keeps some of the memory.
const KEPT_KB: u64 = 8 * 1024;
/// The most memory for hostile clients, in kB: a buffer or a head each, and what was already in use.
const HOSTILE_KB: u64 = 64 * 1024;
/// The longest time of the 99th percentile of honest connections during attacks.
const HONEST_P99: Duration = Duration::from_millis(500);
/// The largest share of one processor that an idle proxy uses.
const AT_REST: f64 = 0.02;

/// Idle tunnels, unless `--idle` says otherwise.
const IDLE: u64 = 10_000;
/// Descriptors for each tunnel here, and as many in the proxy.
const PER_TUNNEL: u64 = 2;
/// Tunnels for which there is room beside the idle ones.
const BESIDE: u64 = 1000;

struct Plan {
    idle: u64,
    sequential: usize,
    time: Duration,
}

fn plan() -> Result<Plan, String> {
    let limit = watched::raise_open_files(PER_TUNNEL * (IDLE + BESIDE));
    let room = (limit / PER_TUNNEL).saturating_sub(BESIDE);
    let mut plan = Plan { idle: room.min(IDLE), sequential: 100_000, time: Duration::from_secs(300) };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let number = words.next().and_then(|number| number.parse::<u32>().ok());
        let number = number.ok_or_else(|| format!("`{word}` takes a number"))?;
        match word.as_str() {
            "--idle" => plan.idle = number.into(),
            "--sequential" => plan.sequential = number as usize,
            "--minutes" => plan.time = Duration::from_secs(60 * u64::from(number.max(1))),
            _ => {
                return Err(format!(
                    "`{word}` is not an option; there are --idle, --sequential and --minutes"
                ));
            }
        }
    }
    Ok(plan)
}

fn main() -> ExitCode {
    let plan = match plan() {
        Ok(plan) => plan,
        Err(why) => {
            eprintln!("soak: {why}");
            return ExitCode::from(2);
        }
    };
    let needed = PER_TUNNEL * (plan.idle + BESIDE);
    let limit = watched::raise_open_files(needed);
    if limit < needed || plan.idle == 0 {
        eprintln!(
            "soak: the limit of open files is {limit} (`ulimit -Hn`), and {} idle tunnels need {needed}",
            plan.idle
        );
        return ExitCode::from(2);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let broken = runtime.block_on(soak(&plan));
    for what in &broken {
        println!("BROKEN: {what}");
    }
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs every part in turn. Returns the bounds that were broken.
async fn soak(plan: &Plan) -> Vec<String> {
    let began = Instant::now();
    let idle = usize::try_from(plan.idle).unwrap_or(usize::MAX);
    let origins = origin::start().await;
    let proxy = Watched::start(&origins, idle + 4000);
    let way = Route { proxy: proxy.socket().to_path_buf(), origins };
    let mut broken = Vec::new();
    let mut check = |holds: bool, what: String| {
        if !holds {
            broken.push(what);
        }
    };
    // Fills one-time caches, and touches every path once.
    let mut warm = Honest::default();
    warm.run(&way, 500, Duration::from_secs(20)).await;
    let rest = proxy.settled(None).await;
    println!(
        "{:<28}{:>9}{:>8}{:>10}{:>10}{:>14}{:>26}{:>9}",
        "", "served", "failed", "p50", "p99", "descriptors", "RSS before/peak/after kB", "CPU"
    );

    // Idle tunnels, with honest clients.
    proxy.reset_peak();
    let before = proxy.now();
    let mut held = Vec::new();
    let mut failed = 0;
    for number in 0..idle {
        match way.idle(number).await {
            Ok(stream) => held.push(stream),
            Err(_) => failed += 1,
        }
    }
    let full = proxy.now();
    let each = (full.rss_kb.saturating_sub(before.rss_kb) * 1024) as f64 / idle.max(1) as f64;
    let mut beside = Honest::default();
    beside.run(&way, 2000, Duration::from_secs(30)).await;
    let count = held.len();
    drop(held);
    let after = proxy.settled(Some(rest.descriptors)).await;
    row("idle tunnels", count, failed, None, &before, &after);
    row("  honest ones beside", beside.served(), beside.failed, beside.quantiles(), &before, &after);
    println!("{:<28}{each:>9.0} bytes each, {} descriptors while open", "", full.descriptors);
    check(
        failed == 0 && beside.failed == 0,
        format!("{failed} idle and {} honest ones failed", beside.failed),
    );
    check(each <= IDLE_BYTES, format!("{each:.0} bytes for an idle tunnel, and {IDLE_BYTES} are the most"));
    check(
        after.descriptors == rest.descriptors,
        format!("descriptors leak: {} and then {}", rest.descriptors, after.descriptors),
    );

    // Sequential connections.
    proxy.reset_peak();
    let before = proxy.now();
    let mut sequential = Honest::default();
    sequential.run(&way, plan.sequential, plan.time.mul_f64(0.8).saturating_sub(began.elapsed())).await;
    let after = proxy.settled(Some(rest.descriptors)).await;
    row(
        "one after the other",
        sequential.served(),
        sequential.failed,
        sequential.quantiles(),
        &before,
        &after,
    );
    check(sequential.failed == 0, format!("{} of them failed", sequential.failed));
    check(
        after.descriptors == rest.descriptors,
        format!("descriptors leak: {} and then {}", rest.descriptors, after.descriptors),
    );
    check(
        after.rss_kb <= before.rss_kb + KEPT_KB,
        format!("memory grows: {} kB and then {}", before.rss_kb, after.rss_kb),
    );

    // Hostile clients, with honest ones.
    proxy.reset_peak();
    let before = proxy.now();
    let time = (plan.time / 5).min(Duration::from_secs(40));
    let mut beside = Honest::default();
    let crowd = hostile(&way);
    let tried = tokio::select! {
        tried = crowd => tried,
        () = beside.run(&way, usize::MAX, time) => clients::tried(),
    };
    let after = proxy.settled(Some(rest.descriptors)).await;
    row("honest beside hostile", beside.served(), beside.failed, beside.quantiles(), &before, &after);
    println!("{:<28}{tried}", "");
    check(beside.failed == 0, format!("{} honest ones failed beside hostile ones", beside.failed));
    let p99 = beside.quantiles().map_or(Duration::MAX, |(_, p99)| p99);
    check(p99 <= HONEST_P99, format!("p99 of {p99:?} beside hostile ones, and {HONEST_P99:?} is the most"));
    check(
        after.descriptors == rest.descriptors,
        format!("descriptors leak: {} and then {}", rest.descriptors, after.descriptors),
    );
    check(
        after.peak_kb <= before.rss_kb + HOSTILE_KB,
        format!("hostile ones make it hold {} kB", after.peak_kb),
    );
    check(
        after.rss_kb <= before.rss_kb + HOSTILE_KB / 2,
        format!("memory grows: {} kB and then {}", before.rss_kb, after.rss_kb),
    );

    let share = proxy.share_of_a_cpu(Duration::from_secs(2)).await;
    println!(
        "{:<28}{:.1} % of a CPU; {:.0} s in all",
        "at rest",
        share * 100.0,
        began.elapsed().as_secs_f64()
    );
    check(share <= AT_REST, format!("{share:.2} of a CPU with nothing to do"));
    broken
}

fn row(
    what: &str,
    served: usize,
    failed: usize,
    quantiles: Option<(Duration, Duration)>,
    before: &watched::Look,
    after: &watched::Look,
) {
    let ms = |time: Option<Duration>| {
        time.map_or(String::new(), |time| format!("{:.2} ms", time.as_secs_f64() * 1000.0))
    };
    let descriptors = format!("{} / {}", before.descriptors, after.descriptors);
    let memory = format!("{} / {} / {}", before.rss_kb, after.peak_kb, after.rss_kb);
    println!(
        "{what:<28}{served:>9}{failed:>8}{:>10}{:>10}{descriptors:>14}{memory:>26}{:>7.1} s",
        ms(quantiles.map(|(p50, _)| p50)),
        ms(quantiles.map(|(_, p99)| p99)),
        (after.cpu - before.cpu).as_secs_f64(),
    );
}
