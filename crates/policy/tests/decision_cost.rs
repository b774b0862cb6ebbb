//! Checks that a decision costs the same at 10 000 rules as at 100, within 2x, because rules are looked up and not
//! scanned. The bench `decide` checks 100 000 rules within 3x, in a release build.
#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use exeat_policy::{Day, Policy, Target};

#[path = "support/rules.rs"]
mod rules;

use rules::policy;

#[test]
fn decides_at_10_000_rules_as_fast_as_at_100() {
    let (few, many) = (policy(100), policy(10_000));
    let today = Day::from_unix(1_795_000_000);
    for text in
        ["api.example.com:443", "a.b.cdn.example.com:443", "a.b.c.other.example.net:443", "192.0.3.77:443"]
    {
        let target = Target::parse(text.as_bytes()).unwrap();
        let once = |policy: &Policy| {
            let start = Instant::now();
            for _ in 0..100 {
                let _ = black_box(policy.admit(black_box(target.clone()), today));
            }
            start.elapsed()
        };
        // The sizes take turns and the best of many runs counts, so that a busy machine does not fail the test.
        let (mut at_few, mut at_many) = (Duration::MAX, Duration::MAX);
        for _ in 0..200 {
            at_few = at_few.min(once(&few));
            at_many = at_many.min(once(&many));
        }
        assert!(
            at_many < at_few * 2,
            "{text}: 100 decisions in {at_few:?} at 100 rules, {at_many:?} at 10 000"
        );
    }
}
