//! Checks the text of a rule: its canonical spelling, its errors, and its guesses.

use exeat_policy::{Action, Allowances, HostPattern, IpNet, Pattern, RuleSpec};

/// Checks one rule as an author typed it.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for default in [Action::Allow, Action::Deny] {
        let strict = RuleSpec::parse(text, default, Allowances::default());
        for (any, shared_suffix) in [(false, false), (false, true), (true, false), (true, true)] {
            let allowances = Allowances { any, shared_suffix };
            let parsed = RuleSpec::parse(text, default, allowances);
            match &parsed {
                Ok(spec) => {
                    let shown = spec.to_string();
                    // The canonical spelling contains the action.
                    assert_eq!(
                        RuleSpec::parse(&shown, Action::Allow, allowances).as_ref(),
                        Ok(spec),
                        "{shown}"
                    );
                    assert!(
                        spec.action == Action::Deny || default == Action::Allow,
                        "a deny list grants {shown}"
                    );
                    assert!(!spec.ports.is_empty(), "{shown} has no port");
                    if let Pattern::Net(net) = &spec.pattern {
                        assert_eq!(net.trunc(), *net);
                    }
                }
                Err(error) => {
                    assert_eq!(error.text(), text);
                    assert!(text.get(error.span()).is_some(), "{:?} is no part of {text:?}", error.span());
                    assert!(printable(&error.to_string()), "{error:?}");
                    if let Some(meant) = error.suggestion() {
                        suggestion(text, meant, default);
                    }
                }
            }
            // An allowance lets more texts load, and changes nothing for those that load without it.
            if strict.is_ok() {
                assert_eq!(parsed, strict);
            }
        }
        if default == Action::Allow {
            assert_eq!(text.parse::<RuleSpec>(), strict);
        }
    }
}

fn printable(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// Checks that a guess loads, and grants nothing that the text does not spell.
fn suggestion(text: &str, meant: &str, default: Action) {
    let said = || format!("{meant:?} for {text:?}");
    assert_ne!(meant, text);
    assert!(printable(meant), "{}", said());
    let spec = RuleSpec::parse(meant, default, Allowances::default());
    let spec = spec.unwrap_or_else(|error| panic!("{}: {error}", said()));
    let marked =
        text.trim_start_matches(|c: char| c.is_whitespace() || "\"'`,;".contains(c)).starts_with('!');
    let deny = spec.action == Action::Deny;
    assert!(if deny { text.contains('!') || default == Action::Deny } else { !marked }, "{}", said());

    // As the repair reads it: full stops of other scripts are dots, and empty labels are dropped.
    let mut typed = text.to_lowercase().replace(['\u{3002}', '\u{ff0e}', '\u{ff61}'], ".");
    while typed.contains("..") {
        typed = typed.replace("..", ".");
    }
    match &spec.pattern {
        Pattern::Name(HostPattern::Exact(name)) => {
            assert!(stands_in(&typed, name.as_str(), |before| before != Some('.')), "{}", said());
        }
        Pattern::Name(HostPattern::Subdomains(base)) => {
            let wild = |before| matches!(before, Some('.' | '*'));
            assert!(stands_in(&typed, base.as_str(), wild), "{}", said());
        }
        Pattern::Name(HostPattern::Any) => panic!("{}", said()),
        Pattern::Net(net) => net_is_spelled(&typed, net, &said),
    }
    if spec.action == Action::Allow {
        let numbers = numbers(&typed);
        let star = typed.contains('*');
        for (first, last) in spec.ports.ranges() {
            let spelled = |port: u16| numbers.contains(&u64::from(port)) || matches!(port, 443 | 80 | 22);
            let all = first.get() == 1 && last.get() == u16::MAX && star;
            assert!(
                all || spelled(first.get()) && spelled(last.get()),
                "port {first} or {last} in {}",
                said()
            );
        }
    }
}

/// Whether `name` appears in `typed` as whole labels up to the end of the name, after a character that `before`
/// accepts.
fn stands_in(typed: &str, name: &str, before: impl Fn(Option<char>) -> bool) -> bool {
    let label = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    typed.match_indices(name).any(|(at, _)| {
        let ahead = typed[..at].chars().next_back();
        let behind = &typed[at + name.len()..];
        let behind = behind.strip_prefix('.').unwrap_or(behind);
        !ahead.is_some_and(label) && before(ahead) && !behind.starts_with(label)
    })
}

fn net_is_spelled(typed: &str, net: &IpNet, said: &impl Fn() -> String) {
    let numbers = numbers(typed);
    let len = net.prefix_len();
    let single = len == net.max_prefix_len();
    let starred = net.addr().is_ipv4() && len.is_multiple_of(8) && typed.contains('*');
    assert!(single || starred || numbers.contains(&u64::from(len)), "/{len} in {}", said());
    if let IpNet::V4(net) = net
        && !single
    {
        // Whole octets of the prefix are spelled unchanged.
        let whole = usize::from(len / 8);
        for octet in net.addr().octets().iter().take(whole) {
            assert!(numbers.contains(&u64::from(*octet)), "{octet} in {}", said());
        }
    }
}

/// Returns every run of digits, with or without leading zeros.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|run| run.parse().ok()).collect()
}
