//! Builds policies of any size, for the bench and the test of the cost of decisions.

use exeat_policy::{Action, Note, Origin, Policy, PolicyBuilder};

/// Builds a policy with this many rules of all kinds, and three that are the same at every size.
pub(crate) fn policy(rules: u32) -> Policy {
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
    for rule in ["api.example.com", "*.cdn.example.com", "192.0.3.0/24"] {
        add(rule.into());
    }
    builder.build()
}
