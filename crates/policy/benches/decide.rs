//! What a decision costs at 1, 100 and 10 000 rules: one that hits by name, by wildcard, by address, and none.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "helpers of tests may fail loudly")]

use std::hint::black_box;

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
        for rules in [1, 100, 10_000] {
            let policy = policy(rules);
            let target = Target::parse(text.as_bytes()).unwrap();
            group.bench_with_input(BenchmarkId::from_parameter(rules), &target, |b, target| {
                b.iter(|| black_box(policy.admit(black_box(target.clone()), today)).is_ok());
            });
        }
        group.finish();
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
