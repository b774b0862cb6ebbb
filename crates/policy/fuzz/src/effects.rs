//! Checks that two readers of declared effects agree, and what a set of effects grants.

use exeat_policy::effect::{Effect, EffectKind, EffectSet};
use exeat_policy::{Action, Allowances, Origin, RuleSpec};

use super::file::{PATH, errors};

/// Checks a JSON array of effects, or one effect.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let parsed = EffectSet::parse(text, PATH);
    // The reader without positions accepts no byte order mark, and distinguishes one effect from a list.
    let bare = match text.trim_start().starts_with('[') {
        true => serde_json::from_str::<EffectSet>(text),
        false => serde_json::from_str::<Effect>(text).map(|effect| EffectSet::from_iter([effect])),
    };
    match &parsed {
        Ok(set) => {
            if !text.starts_with('\u{feff}') {
                assert_eq!(bare.as_ref().ok(), Some(set), "{bare:?}");
            }
            accepted(set);
        }
        Err(error) => {
            assert!(bare.is_err(), "{bare:?}: {error}");
            errors(text, error);
        }
    }
}

fn accepted(set: &EffectSet) {
    let written = serde_json::to_string(set).unwrap();
    assert_eq!(EffectSet::parse(&written, PATH).as_ref(), Ok(set), "{written}");
    for kind in EffectKind::ALL {
        assert_eq!(set.has(kind), set.iter().any(|effect| effect.kind() == kind));
    }
    // Only the two network effects grant hosts, and they grant exactly their rules.
    let network = set.has(EffectKind::Network) || set.has(EffectKind::NetworkHosts);
    for rule in set.rules() {
        assert!(network && rule.spec.action == Action::Allow, "{rule:?}");
        assert!(matches!(rule.origin, Origin::Effect { .. }), "{rule:?}");
        let shared = RuleSpec::parse(&rule.text, Action::Allow, Allowances::default());
        let named = shared.as_ref() == Ok(&rule.spec);
        assert!(named || set.has(EffectKind::Network), "{rule:?} takes an allowance");
    }
    for path in set.fs_read().chain(set.fs_write()) {
        let shown = path.to_string();
        assert!(shown.starts_with(['/', '~']) && !shown.split('/').any(|part| part == ".."), "{shown}");
    }
}
