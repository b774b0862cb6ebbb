//! Measures loading a policy of 100 000 rules: parsing the file and building the policy. It must take less than 250
//! ms as lists. With a table for each rule, which is the most text per rule, it must take less than five times as long.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    reason = "helpers of tests may fail loudly"
)]

use std::fmt::Write;
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use exeat_policy::{FileRole, PolicyBuilder, PolicyFile};

const RULES: u32 = 100_000;
const PROMISED: Duration = Duration::from_millis(250);
/// Times that tables may take as long as lists. The parser allocates more for them, which machines differ in.
const PROMISED_NOTED: u32 = 5;

fn rule(i: u32) -> String {
    match i % 4 {
        0 => format!("host{i}.example.com"),
        1 => format!("*.wild{i}.example.org:443,8443"),
        2 => format!("93.{}.{}.0/24", i / 256 % 256, i % 256),
        _ => format!("!denied{i}.example.com"),
    }
}

fn listed() -> String {
    let rules: Vec<String> = (0..RULES).map(|i| format!("  \"{}\"", rule(i))).collect();
    rules.join(",\n")
}

/// Writes each rule in its own table.
fn rule_tables() -> String {
    let mut text = String::new();
    for i in 0..RULES {
        writeln!(text, "[[network.rule]]\nallow = [\"{}\"]\nreason = \"number {i}\"", rule(i)).unwrap();
    }
    text
}

fn load_one(text: &str) {
    let file = PolicyFile::parse(text, "policy", FileRole::Policy, &Vec::new).unwrap();
    let mut builder = PolicyBuilder::new();
    file.apply(&mut builder);
    assert_eq!(black_box(builder.build()).rules().len(), RULES as usize);
}

/// Returns the processor time of this thread so far (Documentation/scheduler/sched-stats.rst of the kernel).
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

fn load(c: &mut Criterion) {
    let mut group = c.benchmark_group("load");
    let mut lists = PROMISED;
    for (name, text) in [
        ("toml", format!("[network]\nallow = [\n{}\n]\n", listed())),
        ("json", format!("{{\"network\": {{\"allow\": [\n{}\n]}}}}\n", listed())),
        ("toml-noted", rule_tables()),
    ] {
        group.bench_function(name, |b| b.iter(|| load_one(black_box(&text))));
        // Processor time and the best of ten count, so that a busy machine does not fail the bench.
        let best = (0..10).map(|_| {
            let start = processor_time();
            load_one(&text);
            processor_time().saturating_sub(start)
        });
        let best = best.min().unwrap_or_default();
        let promised = if name == "toml-noted" { lists * PROMISED_NOTED } else { PROMISED };
        lists = lists.min(best);
        println!("load/{name}: {RULES} rules in {best:?}, promised {promised:?}");
        assert!(best < promised, "{name} took {best:?}");
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(200))
        .measurement_time(std::time::Duration::from_millis(1000))
        .sample_size(10)
        .without_plots();
    targets = load
}
criterion_main!(benches);
