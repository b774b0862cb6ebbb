//! What a decision costs at 1, 100 and 100 000 rules: one that hits by name, by wildcard, by address, and none. Promised: at
//! 100 000 rules less than three times what it costs at 100.
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
use exeat_policy::{Action, Day, Note, Origin, Policy, PolicyBuilder, Target};

fn policy(rules: u32) -> Policy {
    let mut builder = PolicyBuilder::new();
    let mut add = |text: String| {
        let origin = Origin::Flag { flag: "--allow".into() };
        builder.add(&text, Action::Allow, origin, Note::default()).unwrap();
    };
    for i in 0..rules {
        match i % 4 {
            0 => add(format!("host{i}.example.com")),
            1 => add(format!("*.wild{i}.example.org:443,8443")),
            2 => add(format!("93.{}.{}.0/24", i / 256 % 256, i % 256)),
            _ => add(format!("!denied{i}.example.com")),
        }
    }
    // What the cases below hit, the same at every size.
    add("api.example.com".into());
    add("*.cdn.example.com".into());
    add("192.0.3.0/24".into());
    builder.build()
}

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
        // The best of many, so that a busy machine does not break the promise for us.
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
