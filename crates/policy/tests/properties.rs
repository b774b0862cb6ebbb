//! Checks properties of all rules, names and addresses with generated ones.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "helpers of tests may fail loudly")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use exeat_policy::effect::{Effect, EffectKind, EffectSet};
use exeat_policy::file::{BindSpec, PathSpec};
use exeat_policy::{
    Action, AddrClass, Allowances, Day, FileRole, Host, HostName, HostPattern, Layers, Note, Origin,
    OwnAddrs, Pattern, Policy, PolicyBuilder, PolicyFile, Reason, RuleSpec, Size, Span, Target,
};
use proptest::prelude::*;

const WIDE: Allowances = Allowances { any: true, shared_suffix: true };

fn today() -> Day {
    Day::from_ymd(2026, 11, 21).unwrap()
}

fn policy(rules: &[String]) -> Policy {
    builder(rules).build()
}

fn builder(rules: &[String]) -> PolicyBuilder {
    let mut builder = PolicyBuilder::new();
    builder.allow_any(true).allow_shared_suffix(true);
    for rule in rules {
        let origin = Origin::Flag { flag: "--allow".into() };
        builder.add(rule, Action::Allow, origin, Note::default()).unwrap();
    }
    builder
}

/// Admits a target and vets one answer, as for a connection.
fn outcome(policy: &Policy, target: &str, answer: IpAddr, own: &OwnAddrs) -> Result<(), Reason> {
    let target: Target = target.parse().unwrap();
    let admitted = policy.admit(target, today()).map_err(|denial| denial.reason())?;
    admitted.vet(&[answer], own).map(drop).map_err(|denial| denial.reason())
}

/// Generates names from few letters and labels, so that they coincide.
fn name() -> BoxedStrategy<String> {
    prop::collection::vec("[ab]{1,2}|[aB]-a|a1", 1..5)
        .prop_map(|labels| format!("{}.t", labels.join(".")))
        .boxed()
}

fn v4() -> BoxedStrategy<Ipv4Addr> {
    // Generates special blocks often, so that rules and addresses coincide in them.
    prop_oneof![
        any::<u32>().prop_map(Ipv4Addr::from),
        (0_u8..4).prop_map(|d| Ipv4Addr::new(10, 0, 0, d)),
        (0_u8..4).prop_map(|d| Ipv4Addr::new(93, 184, 215, d)),
        Just(Ipv4Addr::new(169, 254, 169, 254)),
        Just(Ipv4Addr::LOCALHOST),
        Just(Ipv4Addr::UNSPECIFIED),
        Just(Ipv4Addr::BROADCAST),
    ]
    .boxed()
}

fn ip() -> BoxedStrategy<IpAddr> {
    prop_oneof![
        v4().prop_map(IpAddr::from),
        any::<u128>().prop_map(|bits| Ipv6Addr::from(bits).into()),
        v4().prop_map(|ip| ip.to_ipv6_mapped().into()),
        v4().prop_map(|ip| ip.to_ipv6_compatible().into()),
        (v4(), 0_usize..3).prop_map(|(ip, form)| {
            let [a, b, c, d] = ip.octets().map(u16::from);
            let (high, low) = (a << 8 | b, c << 8 | d);
            match form {
                0 => Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low).into(),
                1 => Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1).into(),
                _ => Ipv6Addr::new(0x2606, 0, 0, 0, 0, 0x5efe, high, low).into(),
            }
        }),
    ]
    .boxed()
}

fn host(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

fn net() -> impl Strategy<Value = String> {
    (ip(), 0_u8..=128).prop_map(|(ip, len)| match ip {
        IpAddr::V4(_) => exeat_policy::IpNet::new(ip, len % 33).unwrap().trunc().to_string(),
        IpAddr::V6(_) => format!("[{}]", exeat_policy::IpNet::new(ip, len).unwrap().trunc()),
    })
}

fn ports() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just(":*".to_owned()),
        (1_u16..5).prop_map(|port| format!(":{port}")),
        (1_u16..5, 0_u16..5).prop_map(|(first, more)| format!(":{first}-{},443", first + more)),
    ]
}

fn grant() -> BoxedStrategy<String> {
    let host = prop_oneof![
        name(),
        name().prop_map(|name| format!("*.{name}")),
        Just("*".to_owned()),
        ip().prop_map(host),
        net(),
    ];
    (host, ports()).prop_map(|(host, ports)| format!("{host}{ports}")).boxed()
}

fn rule() -> impl Strategy<Value = String> {
    (grant(), prop::bool::weighted(0.2)).prop_map(|(rule, deny)| if deny { format!("!{rule}") } else { rule })
}

fn target() -> impl Strategy<Value = String> {
    let host = prop_oneof![name(), ip().prop_map(host)];
    let port = prop_oneof![1_u16..6, Just(443_u16)];
    (host, port).prop_map(|(host, port)| format!("{host}:{port}"))
}

/// The matcher in its simplest form.
fn naive(pattern: &HostPattern, name: &str) -> bool {
    let labels = |text: &str| text.split('.').map(str::to_owned).rev().collect::<Vec<_>>();
    match pattern {
        HostPattern::Any => true,
        HostPattern::Exact(exact) => labels(exact.as_str()) == labels(name),
        HostPattern::Subdomains(base) => {
            let (base, name) = (labels(base.as_str()), labels(name));
            name.len() > base.len() && base.iter().zip(&name).all(|(a, b)| a == b)
        }
    }
}

fn path() -> BoxedStrategy<String> {
    "(/|~/)[a-z .:\\\\\"\u{e9}]{1,3}(/[a-z]{1,3}){0,2}"
        .prop_filter("no `..`", |path| !path.contains(".."))
        .boxed()
}

fn host_rule() -> BoxedStrategy<String> {
    let target = prop_oneof![
        name(),
        name().prop_map(|name| format!("*.a.{name}")),
        v4().prop_map(|ip| ip.to_string())
    ];
    (target, prop_oneof![Just(""), Just(":443"), Just(":80,443"), Just(":*")])
        .prop_map(|(target, ports)| format!("{target}{ports}"))
        .boxed()
}

fn effect() -> BoxedStrategy<Effect> {
    prop_oneof![
        any::<u64>().prop_map(|cents| Effect::Cost { cents }),
        Just(Effect::Fallible),
        path().prop_map(|path| Effect::FsRead { path: path.parse().unwrap() }),
        path().prop_map(|path| Effect::FsWrite { path: path.parse().unwrap() }),
        "\\PC{0,6}|[\"\\\\\u{0}\n]{0,3}".prop_map(|model| Effect::Llm { model }),
        Just(Effect::Network),
        prop::collection::btree_set(host_rule().prop_map(|rule| rule.parse().unwrap()), 0..4)
            .prop_map(|hosts| Effect::NetworkHosts { hosts }),
        Just(Effect::NonDeterministic),
        Just(Effect::Process),
        Just(Effect::Pure),
        Just(Effect::Unknown),
    ]
    .boxed()
}

/// Generates a member of an object that may be an effect, with near-misses of every field.
fn member() -> BoxedStrategy<(String, String)> {
    let key = prop::sample::select(vec!["cents", "path", "model", "hosts", "host"]);
    let value = prop::sample::select(vec![
        "1",
        "-1",
        "1.0",
        "18446744073709551615",
        "18446744073709551616",
        "null",
        "\"/a\"",
        "\"a\"",
        "\"~/a/../b\"",
        "[]",
        "[\"a.test\"]",
        "[\"!a.test\"]",
        "[\"*\"]",
        "[1]",
        "{}",
    ]);
    (key, value).prop_map(|(key, value)| (key.to_owned(), value.to_owned())).boxed()
}

/// Generates rules about few blocks, special and public, so that those of two policies coincide.
fn near_net() -> BoxedStrategy<String> {
    let base = prop::sample::select(vec![
        "0.0.0.0",
        "8.0.0.0",
        "10.0.0.0",
        "10.1.2.3",
        "93.184.215.14",
        "100.100.100.200",
        "127.0.0.1",
        "168.63.129.16",
        "169.254.169.254",
        "169.254.7.7",
        "172.16.0.0",
        "192.0.0.192",
        "192.168.1.1",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:10.1.2.3",
        "64:ff9b::a01:203",
        "64:ff9b:1::a01:203",
        "64:ff9b::5db8:d70e",
        "2001::5db8:d70e",
        "2002:a01:203::1",
        "2002:5db8:d70e::",
        "2606::5efe:a01:203",
        "2606::5efe:5db8:d70e",
        "2606:4700::1",
        "2001:db8::1",
        "fc00::",
        "fd00:ec2::254",
        "fe80::a9fe:a9fe",
        "fec0::1",
        "ff02::1",
        "100::1",
    ]);
    let len = prop_oneof![
        4 => Just(128_u8),
        1 => 0_u8..=32,
        1 => prop::sample::select(vec![0_u8, 3, 7, 8, 10, 12, 16, 23, 24, 32, 48, 64, 96, 104, 112, 120, 128]),
    ];
    (base, len)
        .prop_map(|(base, len)| {
            let ip: IpAddr = base.parse().unwrap();
            let len = if ip.is_ipv4() { len.min(32) } else { len };
            let net = exeat_policy::IpNet::new(ip, len).unwrap().trunc();
            if ip.is_ipv4() { net.to_string() } else { format!("[{net}]") }
        })
        .boxed()
}

fn near_rule() -> BoxedStrategy<String> {
    let name = "([ab]\\.){0,2}[ab]\\.t";
    let host = prop_oneof![
        2 => name.prop_map(|name| name),
        2 => name.prop_map(|name| format!("*.{name}")),
        1 => Just("*".to_owned()),
        6 => near_net(),
    ];
    let ports = prop::sample::select(vec!["", ":443", ":80,443", ":80", ":*", ":1-100", ":79-80"]);
    (host, ports, prop::bool::weighted(0.25))
        .prop_map(|(host, ports, deny)| format!("{}{host}{ports}", if deny { "!" } else { "" }))
        .boxed()
}

/// Rules of the grants, and of a ceiling if there is one.
type Written = (Vec<String>, Option<Vec<String>>);

fn near_policy() -> BoxedStrategy<Written> {
    let ceiling = prop::option::weighted(0.2, prop::collection::vec(near_rule(), 1..4));
    (prop::collection::vec(near_rule(), 0..5), ceiling).boxed()
}

fn built((grants, ceiling): &Written) -> Policy {
    let ceilings = ceiling.iter().map(|rules| ("c".to_owned(), builder(rules))).collect();
    Layers { grants: builder(grants), ceilings, ..Layers::default() }.build()
}

/// Generates targets that two policies may decide differently: the ends of the rules, the borders of special
/// blocks, and their neighbors.
struct Candidates {
    names: Vec<String>,
    ips: Vec<IpAddr>,
    ports: Vec<u16>,
}

fn candidates(policies: [&Policy; 2]) -> Candidates {
    let mut names = vec!["q".to_owned(), "q.t".to_owned()];
    let mut v4: Vec<Ipv4Addr> = Vec::new();
    let mut v6: Vec<Ipv6Addr> = Vec::new();
    let mut ports = vec![81_u16, 444];
    let blocks = [
        "0.0.0.0/8",
        "0.0.0.0/32",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "255.255.255.255/32",
        "169.254.169.254/32",
        "169.254.170.2/32",
        "100.100.100.200/32",
        "168.63.129.16/32",
        "192.0.0.192/32",
        "192.31.196.0/24",
        "::/128",
        "::1/128",
        "::/96",
        "::ffff:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "100::/8",
        "2001::/23",
        "2001::/32",
        "2001:2::/48",
        "2001:10::/28",
        "2001:20::/28",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
        "::/8",
        "2000::/3",
        "4000::/3",
        "e000::/4",
        "f000::/5",
        "f800::/6",
        "fe00::/9",
        "fd00:ec2::254/128",
        "fe80::a9fe:a9fe/128",
    ];
    let mut nets: Vec<exeat_policy::IpNet> = blocks.iter().map(|block| block.parse().unwrap()).collect();
    for rule in policies.iter().flat_map(|policy| policy.rules()) {
        ports.extend(rule.ports.ranges().map(|(first, _)| first.get()));
        match &rule.pattern {
            Pattern::Name(HostPattern::Any) => {}
            Pattern::Name(HostPattern::Exact(name) | HostPattern::Subdomains(name)) => {
                names.extend([name.to_string(), format!("q.{name}"), format!("r.q.{name}")]);
            }
            Pattern::Net(net) => nets.push(*net),
        }
    }
    for net in &nets {
        match net {
            exeat_policy::IpNet::V4(net) => {
                let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
                let around =
                    [first.wrapping_sub(1), first, first + (last - first) / 2, last, last.wrapping_add(1)];
                v4.extend(around.map(Ipv4Addr::from_bits));
            }
            exeat_policy::IpNet::V6(net) => {
                let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
                let around =
                    [first.wrapping_sub(1), first, first + (last - first) / 2, last, last.wrapping_add(1)];
                v6.extend(around.map(Ipv6Addr::from_bits));
            }
        }
    }
    // Each IPv4 candidate also appears in the forms that contain it, below the prefixes of the rules' networks.
    let own = policies.iter().flat_map(|policy| policy.rules()).filter_map(|rule| rule.pattern.net());
    let prefixes: Vec<u128> = own
        .filter_map(|net| match net {
            exeat_policy::IpNet::V6(net) => Some(net.network().to_bits()),
            exeat_policy::IpNet::V4(_) => None,
        })
        .collect();
    for ip in &v4 {
        let bits = u128::from(ip.to_bits());
        v6.extend([ip.to_ipv6_mapped(), ip.to_ipv6_compatible()]);
        for prefix in &prefixes {
            v6.push(Ipv6Addr::from_bits(prefix >> 32 << 32 | bits));
            v6.push(Ipv6Addr::from_bits(prefix >> 64 << 64 | 0x5efe << 32 | bits));
            v6.push(Ipv6Addr::from_bits(0x2002 << 112 | bits << 80 | prefix & u128::from(u64::MAX)));
        }
    }
    let mut ips: Vec<IpAddr> =
        v4.into_iter().map(IpAddr::from).chain(v6.into_iter().map(IpAddr::from)).collect();
    names.sort_unstable();
    names.dedup();
    ips.sort_unstable();
    ips.dedup();
    ports.sort_unstable();
    ports.dedup();
    Candidates { names, ips, ports }
}

/// Finds a target and an address of its name that one policy allows and the other does not.
fn witness(ours: &Policy, theirs: &Policy, candidates: &Candidates) -> Option<String> {
    let own = OwnAddrs::default();
    let passes = |policy: &Policy, target: &Target, answer: Option<IpAddr>| {
        let admitted = policy.admit(target.clone(), today());
        admitted.is_ok_and(|admitted| answer.is_none_or(|answer| admitted.vet(&[answer], &own).is_ok()))
    };
    let Candidates { names, ips, ports } = candidates;
    for port in ports.iter().filter_map(|port| exeat_policy::Port::new(*port)) {
        let mut granted = None;
        for name in names {
            let target = Target { host: Host::Name(name.parse().unwrap()), port };
            if passes(ours, &target, None) {
                if !passes(theirs, &target, None) {
                    return Some(target.to_string());
                }
                granted = Some(target);
            }
        }
        for ip in ips {
            let target = Target { host: Host::Ip(*ip), port };
            if passes(ours, &target, Some(*ip)) && !passes(theirs, &target, Some(*ip)) {
                return Some(target.to_string());
            }
            if let Some(target) = &granted
                && passes(ours, target, Some(*ip))
                && !passes(theirs, target, Some(*ip))
            {
                return Some(format!("{target} at {ip}"));
            }
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A change of policy opens something exactly if some target is decided differently, in both directions.
    #[test]
    fn finds_no_difference_between_equal_decisions_only(old in near_policy(), new in near_policy()) {
        // Half of each policy is shared, because unrelated policies differ anyway.
        let mut new = new;
        new.0.extend(old.0.iter().cloned());
        let (old, new) = (built(&old), built(&new));
        let candidates = candidates([&old, &new]);
        for (ours, theirs) in [(&new, &old), (&old, &new)] {
            let opens = ours.opens(theirs, today());
            let witness = witness(ours, theirs, &candidates);
            prop_assert_eq!(opens.is_empty(), witness.is_none(), "{:?} {:?}", opens, witness);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// K33: the matcher equals the simplest one.
    #[test]
    fn matches_like_the_simplest_matcher(pattern in name(), wild in any::<bool>(), asked in name()) {
        let text = if wild { format!("*.{pattern}") } else { pattern };
        let Pattern::Name(pattern) = RuleSpec::parse(&text, Action::Allow, WIDE).unwrap().pattern else { panic!() };
        let asked: HostName = asked.parse().unwrap();
        prop_assert_eq!(pattern.matches(&asked), naive(&pattern, asked.as_str()));
    }

    /// K13: a stack of layers grants only what each layer grants, so it is never wider than any of them. A deny
    /// rule of one layer applies to all.
    #[test]
    fn k13_grants_only_targets_of_every_layer(
        layers in prop::collection::vec(prop::collection::vec(rule(), 0..8), 1..4),
        declares in any::<bool>(),
        target in target(),
        answer in ip(),
    ) {
        let mut rest = layers.iter();
        let grants = builder(rest.next().unwrap());
        let declared = if declares { rest.next().map(|rules| builder(rules)) } else { None };
        let ceilings = rest.map(|rules| ("c".to_owned(), builder(rules))).collect();
        let stack = Layers { grants, declared, ceilings, ..Layers::default() }.build();
        let own = OwnAddrs::default();
        let together = outcome(&stack, &target, answer, &own);
        let alone: Vec<_> =
            layers.iter().map(|rules| outcome(&policy(rules), &target, answer, &own)).collect();
        prop_assert_eq!(together.is_ok(), alone.iter().all(Result::is_ok), "{:?} {:?}", together, alone);
        if let Err(reason) = together {
            let denied = alone.contains(&Err(Reason::DenyRule));
            prop_assert!(alone.contains(&Err(reason)) || denied, "{reason:?} {alone:?}");
        }
    }

    /// The listed intersection equals the decisions, except for deny rules.
    #[test]
    fn lists_the_intersection_that_decides(
        layers in prop::collection::vec(prop::collection::vec(grant(), 0..8), 1..4),
        target in target(),
    ) {
        let mut rest = layers.iter();
        let grants = builder(rest.next().unwrap());
        let ceilings = rest.map(|rules| ("c".to_owned(), builder(rules))).collect();
        let stack = Layers { grants, ceilings, ..Layers::default() }.build();
        let target: Target = target.parse().unwrap();
        let listed = stack.effective().allow.iter().any(|rule| {
            let host = match (&rule.pattern, target.host.name(), target.host.ip()) {
                (Pattern::Name(pattern), Some(name), _) => pattern.matches(name),
                (Pattern::Net(net), _, Some(ip)) => net.contains(&ip),
                _ => false,
            };
            host && rule.ports.contains(target.port)
        });
        let public = target.host.ip().is_none_or(|ip| exeat_policy::classify(ip) == AddrClass::Public);
        let decided = stack.admit(target, today()).is_ok();
        if public {
            prop_assert_eq!(listed, decided);
        } else {
            prop_assert!(listed || !decided);
        }
    }

    /// The index finds what a scan over all rules finds.
    #[test]
    fn finds_the_same_rules_by_index_and_by_scan(rules in prop::collection::vec(rule(), 0..12), target in target()) {
        let policy = policy(&rules);
        let target: Target = target.parse().unwrap();
        let covers = |action: Action| policy.rules().iter().any(|rule| {
            let host = match (target.host.name(), target.host.ip()) {
                (Some(name), _) => rule.covers_name(name),
                (_, Some(ip)) => rule.covers_ip(ip),
                _ => false,
            };
            rule.action == action && rule.ports.contains(target.port) && host
        });
        let (allow, deny) = (covers(Action::Allow), covers(Action::Deny));
        match policy.admit(target.clone(), today()) {
            Ok(_) => prop_assert!(allow && !deny),
            // H17: deny rules come first.
            Err(denial) if deny => prop_assert_eq!(denial.reason(), Reason::DenyRule),
            Err(denial) if denial.reason() == Reason::DenyRule => prop_assert!(target.host.ip().is_some()),
            Err(denial) => prop_assert!(!allow || target.host.ip().is_some(), "{}", denial),
        }
    }

    #[test]
    fn rule_display_then_parse_is_identity(text in rule()) {
        let spec = RuleSpec::parse(&text, Action::Allow, WIDE).unwrap();
        prop_assert_eq!(RuleSpec::parse(&spec.to_string(), Action::Allow, WIDE), Ok(spec));
    }

    #[test]
    fn target_display_then_parse_is_identity(text in target()) {
        let target: Target = text.parse().unwrap();
        prop_assert_eq!(target.to_string().parse(), Ok(target));
    }

    #[test]
    fn never_denies_more_with_another_grant(
        rules in prop::collection::vec(rule(), 0..8), more in grant(), target in target(), answer in ip(), own in ip(),
    ) {
        let own = OwnAddrs::new([own]);
        if outcome(&policy(&rules), &target, answer, &own).is_ok() {
            let mut rules = rules;
            rules.push(more);
            prop_assert_eq!(outcome(&policy(&rules), &target, answer, &own), Ok(()));
        }
    }

    #[test]
    fn never_allows_more_with_another_deny_rule(
        rules in prop::collection::vec(rule(), 0..8), more in grant(), target in target(), answer in ip(),
    ) {
        let own = OwnAddrs::default();
        let before = outcome(&policy(&rules), &target, answer, &own);
        let mut rules = rules;
        rules.insert(0, format!("!{more}"));
        prop_assert!(before.is_ok() || outcome(&policy(&rules), &target, answer, &own).is_err());
    }

    /// Order changes neither the outcome nor the digest.
    #[test]
    fn ignores_order(
        rules in prop::collection::vec(rule(), 0..8), target in target(), answer in ip(),
    ) {
        let own = OwnAddrs::default();
        let mut backwards = rules.clone();
        backwards.reverse();
        backwards.extend(rules.clone());
        let (one, other) = (policy(&rules), policy(&backwards));
        prop_assert_eq!(outcome(&one, &target, answer, &own), outcome(&other, &target, answer, &own));
        prop_assert_eq!(one.canonical_json(), other.canonical_json());
    }

    /// The suggested flags are rules that load without allowances, and following them ends the refusal.
    #[test]
    fn suggests_flags_that_work(
        rules in prop::collection::vec(rule(), 0..6), target in target(), answers in prop::collection::vec(ip(), 1..4),
    ) {
        let mut rules = rules;
        let own = OwnAddrs::new(answers.iter().copied().take(1));
        for round in 0..4 {
            let policy = policy(&rules);
            let result = policy.admit(target.parse().unwrap(), today()).and_then(|ok| ok.vet(&answers, &own));
            let Err(denial) = result else { break };
            let Some(flag) = denial.flag() else { break };
            prop_assert!(round < 2, "{flag} did not help: {denial}");
            if let Some(inside) = denial.flag_inside() {
                prop_assert_eq!(&inside, &flag);
            }
            for rule in flag.split(' ').filter(|word| *word != "--allow") {
                prop_assert!(rule.parse::<RuleSpec>().is_ok(), "{rule}");
                prop_assert!(!rule.contains('*'), "{rule}");
                rules.push(rule.to_owned());
            }
        }
    }

    /// The text for the stage never contains an address that it did not ask for.
    #[test]
    fn keeps_addresses_out_of_inside_messages(rules in prop::collection::vec(rule(), 0..6), name in name(), answer in ip()) {
        let target: Target = format!("{name}:443").parse().unwrap();
        let result = policy(&rules).admit(target, today()).and_then(|ok| ok.vet(&[answer], &OwnAddrs::default()));
        if let Err(denial) = result {
            let said = format!("{} {}", denial.said_inside(), denial.flag_inside().unwrap_or_default());
            prop_assert!(!said.contains(&answer.to_string()), "{said}");
            prop_assert!(!said.contains("--allow") || !said.contains(&host(answer)), "{said}");
        }
    }

    /// H21: grants of names and grants of addresses never overlap.
    #[test]
    fn separates_names_from_addresses(name in name(), ip in ip()) {
        let names = policy(&["*:*".into()]);
        let literal = format!("{}:443", host(ip));
        prop_assert!(names.admit(literal.parse().unwrap(), today()).is_err());
        let nets = policy(&["0.0.0.0/0:*".into(), "[::/0]:*".into(), format!("{}:*", host(ip))]);
        let named = format!("{name}:443");
        prop_assert!(nets.admit(named.parse().unwrap(), today()).is_err());
    }

    #[test]
    fn no_bytes_break_the_target_parser(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(target) = Target::parse(&bytes) {
            prop_assert!(bytes.iter().all(u8::is_ascii));
            prop_assert_eq!(Target::parse(target.to_string().as_bytes()), Ok(target));
        }
    }

    /// Generates near-misses, which random bytes seldom are.
    #[test]
    fn no_likely_text_breaks_the_target_parser(text in "[a0.:\\[\\]%@xf1-]{0,24}") {
        if let Ok(target) = Target::parse(text.as_bytes()) {
            prop_assert_eq!(Target::parse(target.to_string().as_bytes()), Ok(target));
        }
    }

    #[test]
    fn no_text_breaks_the_rule_parser(text in "\\PC{0,40}|[a0.:\\[\\]%@xf1*!/, \u{e9}\u{3002}-]{0,24}") {
        for action in [Action::Allow, Action::Deny] {
            if let Err(error) = RuleSpec::parse(&text, action, Allowances::default()) {
                prop_assert!(text.get(error.span()).is_some(), "{:?} in {text:?}", error.span());
                if let Some(meant) = error.suggestion() {
                    prop_assert!(RuleSpec::parse(meant, action, Allowances::default()).is_ok());
                }
            }
        }
    }

    #[test]
    fn no_text_breaks_the_file_parser(
        text in "\\PC{0,60}|(\\[network\\]\n)?(allow|deny|rule|x) ?= ?[\\[{\"a.,*\\\\\u{e9}\n\\]}]{0,20}|\\{[\"network:{}\\[\\],a\\\\ \n]{0,40}",
    ) {
        if let Err(error) = PolicyFile::parse(&text, "policy", FileRole::Policy, &Vec::new) {
            prop_assert!(!error.problems().is_empty());
            prop_assert!(!error.to_string().is_empty());
        }
    }

    /// N31: written effects are read again by both readers, in any order and with repetitions.
    #[test]
    fn n31_reads_written_effects_back(effects in prop::collection::vec(effect(), 0..6)) {
        let set: EffectSet = effects.iter().cloned().collect();
        let json = serde_json::to_string(&set).unwrap();
        prop_assert_eq!(EffectSet::parse(&json, "x").unwrap(), set.clone());
        prop_assert_eq!(serde_json::from_str::<EffectSet>(&json).unwrap(), set.clone());
        let mut twice: Vec<_> = effects.iter().chain(&effects).map(|effect| serde_json::to_string(effect).unwrap()).collect();
        twice.reverse();
        let again = EffectSet::parse(&format!("[{}]", twice.join(", ")), "x").unwrap();
        prop_assert_eq!(serde_json::to_string(&again).unwrap(), json);
        for kind in EffectKind::ALL {
            prop_assert_eq!(set.has(kind), effects.iter().any(|effect| effect.kind() == kind));
        }
    }

    /// The reader with positions and the one without accept the same objects as effects.
    #[test]
    fn reads_effects_alike_in_both_readers(
        kind in prop::sample::select(EffectKind::ALL.to_vec()),
        members in prop::collection::vec(member(), 0..3),
    ) {
        let members: Vec<String> = members.iter().map(|(key, value)| format!(", \"{key}\": {value}")).collect();
        let text = format!("{{\"effect\": \"{}\"{}}}", kind.tag(), members.concat());
        let bare = serde_json::from_str::<Effect>(&text);
        match EffectSet::parse(&text, "x") {
            Ok(set) => prop_assert_eq!(set.iter().next().cloned(), bare.ok()),
            Err(error) => prop_assert!(bare.is_err(), "{text}: {error}"),
        }
    }

    #[test]
    fn no_text_breaks_the_effect_parser(text in "\\PC{0,60}|[\\[{\"efct:NworkHs,\\]}\\\\ \n]{0,40}") {
        if let Err(error) = EffectSet::parse(&text, "x") {
            prop_assert!(!error.problems().is_empty() && !error.to_string().is_empty());
        }
    }

    /// A file of generated values gives these values again, in TOML and in JSON, as a policy and as a ceiling.
    #[test]
    fn reads_written_files_back(
        allow in prop::collection::vec(host_rule(), 0..4),
        binds in prop::option::of(prop::collection::vec("(/|~/)?[a-z]{1,3}(/[a-z]{1,3})?", 0..3)),
        names in prop::option::of(prop::collection::vec("[A-Z_\u{e9}\"\\\\]{1,5}", 0..3)),
        millis in prop::option::of(1_u64..1_000_000_000_000),
        bytes in prop::option::of(1_u64..),
        pids in prop::option::of(1_u32..),
        ceiling in any::<bool>(),
    ) {
        let span = millis.and_then(|millis| Span::new(std::time::Duration::from_millis(millis)));
        let size = bytes.and_then(Size::new);
        let mut limits = serde_json::Map::new();
        let mut put = |key: &str, value: Option<serde_json::Value>| limits.extend(value.map(|value| (key.to_owned(), value)));
        put("timeout", span.map(|span| span.to_string().into()));
        put("memory", size.map(|size| size.to_string().into()));
        put("pids", pids.map(Into::into));
        let mut document = serde_json::json!({
            "schema": 1, "network": {"allow": allow}, "fs": {"mask": ["m"]}, "env": {}, "limits": limits,
        });
        if let Some(binds) = &binds {
            document["fs"]["rw"] = binds.clone().into();
        }
        if let Some(names) = &names {
            document["env"]["pass"] = names.clone().into();
        }
        let role = if ceiling { FileRole::Ceiling } else { FileRole::Policy };
        let json = serde_json::to_string_pretty(&document).unwrap();
        let toml = toml::to_string(&document).unwrap();
        for text in [json, toml] {
            let file = PolicyFile::parse(&text, "x", role, &Vec::new).unwrap_or_else(|error| panic!("{error}"));
            let texts: Vec<&String> = file.rules.iter().map(|rule| &rule.text).collect();
            prop_assert_eq!(texts, allow.iter().collect::<Vec<_>>());
            let specs: Vec<RuleSpec> = allow.iter().map(|rule| rule.parse().unwrap()).collect();
            prop_assert_eq!(file.rules.iter().map(|rule| rule.spec.clone()).collect::<Vec<_>>(), specs);
            let parsed = binds.as_ref().map(|binds| binds.iter().map(|bind| bind.parse::<BindSpec>().unwrap()).collect::<Vec<_>>());
            let shown = file.fs.rw.iter().flatten().map(|bind| bind.to_string().parse::<BindSpec>().unwrap());
            prop_assert_eq!(shown.collect::<Vec<_>>(), parsed.clone().unwrap_or_default());
            let rw = file.fs.rw.map(|binds| {
                binds.into_iter().map(|bind| BindSpec { line: None, ..bind }).collect::<Vec<_>>()
            });
            prop_assert_eq!(rw, parsed);
            prop_assert_eq!(file.fs.mask, ["m".parse::<PathSpec>().unwrap()]);
            prop_assert_eq!(&file.env.pass, &names);
            prop_assert_eq!((file.limits.timeout, file.limits.memory, file.limits.pids), (span, size, pids));
        }
    }
}
