//! Measures a decision at 1, 100 and 100 000 rules: a hit by name, by wildcard, by address, and a miss. At 100 000
//! rules it must cost less than three times as much as at 100.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    reason = "helpers of tests may fail loudly"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use exeat_policy::{Day, Target};

#[path = "../tests/support/rules.rs"]
mod rules;

use rules::policy;

fn decide(c: &mut Criterion) {
    let today = Day::from_unix(1_795_000_000);
    let cases = [
        ("exact", "api.example.com:443"),
        ("wildcard", "a.b.cdn.example.com:443"),
        ("miss", "a.b.c.other.example.net:443"),
        ("ip", "192.0.3.77:443"),
    ];
    for (name, text) in cases {
        let mut group = c.benchmark_group(name);
        for rules in [1, 100, 100_000] {
            let policy = policy(rules);
            let target = Target::parse(text.as_bytes()).unwrap();
            group.bench_with_input(BenchmarkId::from_parameter(rules), &target, |b, target| {
                b.iter(|| black_box(policy.admit(black_box(target.clone()), today)).is_ok());
            });
        }
        group.finish();
        // The best of many counts, so that a busy machine does not fail the bench.
        let [few, many] = [100, 100_000].map(|rules| {
            let policy = policy(rules);
            let target = Target::parse(text.as_bytes()).unwrap();
            let once = || {
                let start = Instant::now();
                for _ in 0..1000 {
                    let _ = black_box(policy.admit(black_box(target.clone()), today));
                }
                start.elapsed()
            };
            (0..50).map(|_| once()).min().unwrap_or(Duration::MAX)
        });
        println!("{name}: 1000 decisions in {few:?} at 100 rules, in {many:?} at 100 000");
        assert!(many < few * 3, "{name}: {few:?} at 100 rules, {many:?} at 100 000");
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(200))
        .measurement_time(std::time::Duration::from_millis(600))
        .sample_size(30)
        .without_plots();
    targets = decide
}
criterion_main!(benches);
