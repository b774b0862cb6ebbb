//! Compares decisions with those of a matcher that reads the rules again, label by label and bit by bit.
//!
//! The input has a target on its first line, addresses on its second, and a rule on each further one, followed by
//! the day of its expiry if it has one. The rules of a ceiling follow a line `--`. Names and addresses close to
//! those of the rules are tried too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use exeat_policy::{
    Action, AddrClass, Day, Denial, Host, Layers, Mode, Note, Origin, OwnAddrs, Policy, PolicyBuilder,
    Reason, RuleSpec, Target, Terms, Verdict, classify,
};

/// Maximum rules of one input. More make it slow and show nothing new.
const RULES: usize = 24;

/// Maximum layers of one input: grants and ceilings.
const LAYERS: usize = 3;

/// Checks an input in the form above.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut lines = text.split('\n');
    let asked = lines.next().and_then(|line| Target::parse(line.as_bytes()).ok());
    let answers: Vec<IpAddr> =
        lines.next().unwrap_or_default().split(' ').filter_map(|word| word.parse().ok()).take(4).collect();
    let rules: Vec<(&str, Option<Day>)> = lines
        .take(RULES)
        .map(|line| match line.split_once(' ') {
            Some((rule, day)) => (rule, day.parse().ok()),
            None => (line, None),
        })
        .collect();
    let layers: Vec<&[(&str, Option<Day>)]> = rules.split(|(line, _)| *line == "--").take(LAYERS).collect();
    let naive: Vec<Vec<NaiveRule>> = layers.iter().map(|rules| load(rules).1).collect();
    let policy = load(layers[0]).0.build();
    let backwards: Vec<_> = layers[0].iter().rev().chain(layers[0]).copied().collect();
    let other = load(&backwards).0.build();
    assert_eq!(policy.canonical_json(), other.canonical_json());
    let stack = |terms| {
        let ceilings = layers[1..].iter().map(|rules| ("ceiling".to_owned(), load(rules).0)).collect();
        Layers { grants: load(layers[0]).0, declared: None, ceilings, lock: None, terms }.build()
    };
    let stacks = [
        Terms::default(),
        Terms { mode: Mode::Report, ..Terms::default() },
        Terms { nat64: true, ..Terms::default() },
    ];
    let stacks = stacks.map(stack);

    let near = naive.iter().flatten().flat_map(NaiveRule::near);
    for target in asked.into_iter().chain(near.take(200)) {
        let outcome = admit(&policy, &naive[0], &target);
        // Order and repetition do not matter.
        assert_eq!(other.admit(target.clone(), today()).map(drop).map_err(|denial| denial.reason()), outcome);
        vet(&policy, &naive[0], &target, &answers);
        bounded(&stacks[0], &naive, &target);
        reported(&stacks, &naive, &target, &answers);
        translated(&stacks, &target, &answers);
    }
}

/// A target is granted if every layer grants it, and denied if one denies it.
fn bounded(stack: &Policy, layers: &[Vec<NaiveRule>], target: &Target) {
    let outcome = stack.admit(target.clone(), today());
    let expected: Vec<_> = layers.iter().map(|rules| expected(rules, target)).collect();
    let said = || format!("{target} by {layers:?}: {expected:?}, {:?}", outcome.as_ref().map(drop));
    let plain = match target.host.ip() {
        None => true,
        Some(ip) => ip.is_ipv4() && classify(ip) == AddrClass::Public,
    };
    let all = expected.iter().all(Result::is_ok);
    assert!(all || outcome.is_err(), "{}", said());
    if plain {
        assert_eq!(outcome.is_ok(), all, "{}", said());
        let denied = expected.contains(&Err(Reason::DenyRule));
        let reason = outcome.as_ref().err().map(Denial::reason);
        assert_eq!(reason == Some(Reason::DenyRule), denied, "{}", said());
        assert!(reason.is_none_or(|reason| expected.contains(&Err(reason))), "{}", said());
    }
    if let Err(denial) = &outcome {
        assert_eq!(denial.target(), target);
        assert!(!denial.said_inside().is_empty() && !denial.said_outside().is_empty());
    }
}

/// Report mode allows only names without a rule of the grants, on the ports of the web; everything else is
/// unchanged.
fn reported(stacks: &[Policy; 3], layers: &[Vec<NaiveRule>], target: &Target, answers: &[IpAddr]) {
    let [strict, loose, _] = stacks;
    let ask = |policy: &Policy| policy.admit(target.clone(), today());
    let (strict, loose) = (ask(strict), ask(loose));
    let said = || format!("{target} by {layers:?}: {strict:?}, {loose:?}");
    let (grants, above) = (expected(&layers[0], target), &layers[1..]);
    let denied = layers.iter().any(|rules| expected(rules, target) == Err(Reason::DenyRule));
    let passes = target.host.name().is_some()
        && [80, 443].contains(&target.port.get())
        && [Err(Reason::Default), Err(Reason::Port)].contains(&grants)
        && above.iter().all(|rules| expected(rules, target).is_ok())
        && !denied;
    let would_deny = loose.as_ref().ok().and_then(|admitted| admitted.would_deny());
    assert_eq!(would_deny.map(|denial| Err(denial.reason())), passes.then_some(grants), "{}", said());
    assert_eq!(loose.is_ok(), strict.is_ok() || passes, "{}", said());
    if let Ok(admitted) = loose
        && let Ok(vetted) = admitted.vet(answers, &OwnAddrs::default())
    {
        assert_eq!(vetted.decision().verdict == Verdict::WouldDeny, passes);
        assert_eq!(vetted.rule().is_none(), passes);
    }
}

/// If addresses behind a translator are judged by the one inside, no address opens that neither of its forms opens.
fn translated(stacks: &[Policy; 3], target: &Target, answers: &[IpAddr]) {
    let [off, _, on] = stacks;
    let ask = |policy: &Policy, target: &Target, answer: IpAddr| {
        let admitted = policy.admit(target.clone(), today()).map_err(|denial| denial.reason())?;
        admitted.vet(&[answer], &OwnAddrs::default()).map(drop).map_err(|denial| denial.reason())
    };
    for answer in answers {
        let IpAddr::V4(inner) = *answer else { continue };
        let outer = behind(inner);
        // A literal is its own answer.
        let behind = match target.host.ip() {
            Some(_) => Target { host: Host::Ip(outer), port: target.port },
            None => target.clone(),
        };
        let plain = match target.host.ip() {
            Some(_) => Target { host: Host::Ip(*answer), port: target.port },
            None => target.clone(),
        };
        let (closed, inside, judged) =
            (ask(off, &behind, outer), ask(off, &plain, *answer), ask(on, &behind, outer));
        let said = || format!("{behind} at {outer}: {closed:?}, {inside:?}, {judged:?}");
        if closed == Err(Reason::DenyRule) {
            assert_eq!(judged, closed, "{}", said());
        } else if off.layers().len() == 1 && target.host.name().is_some() {
            // With several layers, each may have a rule for another form.
            assert_eq!(judged.is_ok(), closed.is_ok() || inside.is_ok(), "{}", said());
        }
        assert!(
            judged.is_ok() || closed.is_err() && (inside.is_err() || closed == Err(Reason::DenyRule)),
            "{}",
            said()
        );
        assert!(judged.is_err() || !classify(*answer).is_never_dialed(), "{}", said());
    }
}

/// Returns the address by which a translator reaches another one.
fn behind(ip: Ipv4Addr) -> IpAddr {
    let [a, b, c, d] = ip.octets().map(u16::from);
    Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, a << 8 | b, c << 8 | d).into()
}

fn today() -> Day {
    Day::from_ymd(2026, 11, 21).unwrap()
}

fn load(rules: &[(&str, Option<Day>)]) -> (PolicyBuilder, Vec<NaiveRule>) {
    let mut builder = PolicyBuilder::new();
    builder.allow_any(true).allow_shared_suffix(true);
    let mut naive = Vec::new();
    for (text, expires) in rules {
        let note = Note { expires: *expires, ..Note::default() };
        let origin = Origin::Flag { flag: "--allow".into() };
        if builder.add(text, Action::Allow, origin, note).is_ok() {
            naive.push(NaiveRule::read(text, *expires));
        }
    }
    (builder, naive)
}

fn admit(policy: &Policy, naive: &[NaiveRule], target: &Target) -> Result<(), Reason> {
    let outcome = policy.admit(target.clone(), today());
    let said = || {
        format!("{target} by {:?}: {:?}", naive, outcome.as_ref().map(|a| a.rule().map(ToString::to_string)))
    };
    let (port, expected) = (target.port.get(), expected(naive, target));
    let got = outcome.as_ref().map(drop).map_err(Denial::reason);
    // Each rule is checked too: reviews and lists use the matcher, and decisions use the index.
    for (rule, naive) in policy.rules().iter().zip(naive) {
        let covers = match &target.host {
            Host::Name(name) => rule.covers_name(name),
            Host::Ip(ip) => rule.covers_ip(*ip),
        };
        assert_eq!(covers, naive.covers(&target.host), "{target} by {rule}");
        assert_eq!(rule.ports.contains(target.port), naive.has(port), "{target} by {rule}");
        assert_eq!(rule.is_live(today()), naive.is_live(), "{rule}");
    }
    match target.host.ip() {
        None => assert_eq!(got, expected, "{}", said()),
        // Public IPv4 contains no inner address, so rules alone decide.
        Some(ip @ IpAddr::V4(_)) if classify(ip) == AddrClass::Public => {
            assert_eq!(got, expected, "{}", said());
        }
        // Special space needs more than a rule that covers it, and never less.
        Some(ip) => {
            assert!(got.is_err() || expected.is_ok() && !classify(ip).is_never_dialed(), "{}", said());
            assert!(expected != Err(Reason::DenyRule) || got == expected, "{}", said());
            if ip.is_ipv4() {
                assert_eq!(got == Err(Reason::DenyRule), expected == Err(Reason::DenyRule), "{}", said());
            }
        }
    }
    match &outcome {
        Ok(admitted) => {
            assert_eq!(admitted.target(), target);
            let rule = admitted.rule().unwrap();
            let rule = NaiveRule::read(&rule.text, rule.note.expires);
            assert!(
                !rule.deny && rule.is_live() && rule.has(port) && rule.covers(&target.host),
                "{}",
                said()
            );
        }
        Err(denial) => refused(denial, target),
    }
    got
}

/// Returns what these rules decide about `target`, whatever the class of an address.
fn expected(naive: &[NaiveRule], target: &Target) -> Result<(), Reason> {
    let port = target.port.get();
    let covering: Vec<&NaiveRule> = naive.iter().filter(|rule| rule.covers(&target.host)).collect();
    let some = |deny: bool, here: bool, live: bool| {
        covering
            .iter()
            .any(|rule| rule.deny == deny && rule.has(port) == here && (deny || rule.is_live() == live))
    };
    if some(true, true, true) {
        Err(Reason::DenyRule)
    } else if some(false, true, true) {
        Ok(())
    } else if some(false, true, false) {
        Err(Reason::Expired)
    } else if some(false, false, true) {
        Err(Reason::Port)
    } else if target.host.ip().is_some() {
        Err(Reason::IpLiteral)
    } else {
        Err(Reason::Default)
    }
}

/// Returns what a connection would get, for each answer alone and for all of them.
fn vet(policy: &Policy, naive: &[NaiveRule], target: &Target, answers: &[IpAddr]) {
    let port = target.port.get();
    let near = naive.iter().filter_map(NaiveRule::first).take(4);
    let mut sets: Vec<Vec<IpAddr>> = answers.iter().copied().chain(near).map(|ip| vec![ip]).collect();
    sets.push(answers.to_vec());
    for answers in sets {
        let Ok(admitted) = policy.admit(target.clone(), today()) else { return };
        // A literal is its own answer.
        let literal = target.host.ip();
        let judged: Vec<IpAddr> = literal.map_or(answers.clone(), |ip| vec![ip]);
        let outcome = admitted.vet(&answers, &OwnAddrs::default());
        let said =
            || format!("{target} at {judged:?} by {naive:?}: {:?}", outcome.as_ref().map(|v| v.addrs()));
        let on = |deny: bool, ip: IpAddr| {
            naive
                .iter()
                .any(|rule| rule.deny == deny && rule.is_live() && rule.has(port) && rule.covers_ip(ip))
        };
        let denied = judged.iter().any(|ip| on(true, *ip));
        let public = |ip: &IpAddr| classify(*ip) == AddrClass::Public;
        match &outcome {
            Ok(vetted) => {
                assert!(!judged.is_empty() && !denied, "{}", said());
                assert!(judged.iter().all(|ip| !classify(*ip).is_never_dialed()), "{}", said());
                // A name reaches special space only with a rule that covers the address and lies entirely in such
                // space.
                for ip in judged.iter().filter(|ip| !public(ip)) {
                    let opens = |rule: &NaiveRule| {
                        let ends = rule.first().into_iter().chain(rule.last());
                        !rule.deny
                            && rule.is_live()
                            && rule.has(port)
                            && rule.covers_ip(*ip)
                            && ends.into_iter().all(|ip| classify(ip) != AddrClass::Public)
                    };
                    assert!(naive.iter().any(opens), "{}", said());
                }
                assert_eq!(vetted.opened_by().is_some(), judged.iter().any(|ip| !public(ip)), "{}", said());
                assert!(vetted.addrs().iter().all(|addr| judged.contains(&addr.ip()) && addr.port() == port));
                assert_eq!(vetted.decision().verdict, Verdict::Allow);
            }
            Err(denial) => {
                refused(denial, target);
                let all_public = judged.iter().all(public) && judged.iter().all(IpAddr::is_ipv4);
                assert!(judged.is_empty() || denied || !all_public, "{}", said());
                assert!(!denied || denial.reason() == Reason::DenyRule, "{}", said());
                assert_eq!(judged.is_empty(), denial.reason() == Reason::DnsEmpty, "{}", said());
                // The stage never learns an address that it did not ask for.
                if literal.is_none() {
                    let inside = format!("{} {:?}", denial.said_inside(), denial.flag_inside());
                    assert!(
                        judged.iter().all(|ip| !inside.contains(&ip.to_string())),
                        "{inside}: {}",
                        said()
                    );
                }
            }
        }
    }
}

/// Checks what holds for every refusal.
fn refused(denial: &Denial, target: &Target) {
    assert_eq!(denial.target(), target);
    let decision = denial.decision();
    assert_eq!(decision.reason, denial.reason());
    assert_eq!(decision.verdict == Verdict::Error, denial.reason() == Reason::DnsEmpty);
    assert!(!denial.said_inside().is_empty() && !denial.said_outside().is_empty());
    for rule in denial.flag().iter().flat_map(|flag| flag.split(' ')).filter(|word| *word != "--allow") {
        let spec: RuleSpec = rule.parse().unwrap_or_else(|error| panic!("{denial}: {error}"));
        assert!(spec.ports.contains(target.port) && !rule.contains('*'), "{denial}: {rule}");
    }
}

/// A rule in its simplest form, from texts that the crate accepts.
#[derive(Debug)]
struct NaiveRule {
    deny: bool,
    host: NaiveHost,
    ports: Vec<(u16, u16)>,
    expires: Option<Day>,
}

#[derive(Debug)]
enum NaiveHost {
    Any,
    Exact(Vec<String>),
    Below(Vec<String>),
    /// The bits of an address, how many of them count, and its family.
    Net(u128, u32, u32),
}

impl NaiveRule {
    fn read(text: &str, expires: Option<Day>) -> Self {
        let (deny, body) = match text.strip_prefix('!') {
            Some(body) => (true, body),
            None => (false, text),
        };
        let (host, ports) = match body.strip_prefix('[') {
            Some(rest) => {
                let (inner, rest) = rest.split_once(']').unwrap();
                (net(inner), rest.strip_prefix(':'))
            }
            None => {
                let (host, ports) = match body.split_once(':') {
                    Some((host, ports)) => (host, Some(ports)),
                    None => (body, None),
                };
                let numeric = host.contains('/') || host.parse::<Ipv4Addr>().is_ok();
                let host = match host.strip_prefix("*.") {
                    _ if host == "*" => NaiveHost::Any,
                    _ if numeric => net(host),
                    Some(base) => NaiveHost::Below(labels(base)),
                    None => NaiveHost::Exact(labels(host)),
                };
                (host, ports)
            }
        };
        let range = |item: &str| {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            (first.parse().unwrap(), last.parse().unwrap())
        };
        let ports = match ports {
            None if deny => vec![(1, 65535)],
            None => vec![(443, 443)],
            Some("*") => vec![(1, 65535)],
            Some(ports) => ports.split(',').map(range).collect(),
        };
        Self { deny, host, ports, expires }
    }

    fn is_live(&self) -> bool {
        self.deny || self.expires.is_none_or(|day| day > today())
    }

    fn has(&self, port: u16) -> bool {
        self.ports.iter().any(|(first, last)| *first <= port && port <= *last)
    }

    fn covers(&self, host: &Host) -> bool {
        match host {
            Host::Ip(ip) => self.covers_ip(*ip),
            Host::Name(name) => {
                let name = labels(name.as_str());
                match &self.host {
                    NaiveHost::Any => true,
                    NaiveHost::Exact(exact) => name == *exact,
                    NaiveHost::Below(base) => {
                        name.len() > base.len()
                            && name.iter().rev().zip(base.iter().rev()).all(|(a, b)| a == b)
                    }
                    NaiveHost::Net(..) => false,
                }
            }
        }
    }

    fn covers_ip(&self, ip: IpAddr) -> bool {
        let NaiveHost::Net(bits, len, width) = self.host else { return false };
        let (asked, asked_width) = number(ip);
        width == asked_width && (len == 0 || bits >> (width - len) == asked >> (width - len))
    }

    fn first(&self) -> Option<IpAddr> {
        let NaiveHost::Net(bits, _, width) = self.host else { return None };
        Some(address(bits, width))
    }

    fn last(&self) -> Option<IpAddr> {
        let NaiveHost::Net(bits, len, width) = self.host else { return None };
        let rest = width - len;
        Some(address(if rest == 128 { u128::MAX } else { bits | ((1 << rest) - 1) }, width))
    }

    /// Returns targets at the edges of what the rule covers.
    fn near(&self) -> Vec<Target> {
        let hosts: Vec<String> = match &self.host {
            NaiveHost::Any => vec!["a.test".into()],
            NaiveHost::Exact(labels) | NaiveHost::Below(labels) => {
                let name = labels.join(".");
                let parent = labels[1..].join(".");
                vec![
                    format!("a.{name}"),
                    format!("a.b.{name}"),
                    format!("x{name}"),
                    format!("{name}.a"),
                    name,
                    parent,
                ]
            }
            NaiveHost::Net(..) => {
                let ends = [self.first().unwrap(), self.last().unwrap()];
                let around = ends.into_iter().flat_map(|ip| {
                    let (bits, width) = number(ip);
                    let mut near =
                        vec![ip, address(bits.wrapping_add(1), width), address(bits.wrapping_sub(1), width)];
                    if let IpAddr::V4(v4) = ip {
                        near.extend([IpAddr::V6(v4.to_ipv6_mapped()), behind(v4)]);
                    }
                    near
                });
                around.map(|ip| Host::Ip(ip).to_string()).collect()
            }
        };
        let edges = |(first, last): &(u16, u16)| [*first, *last, first.wrapping_sub(1), last.wrapping_add(1)];
        let mut ports: Vec<u16> = self.ports.iter().take(3).flat_map(edges).chain([443]).collect();
        ports.sort_unstable();
        ports.dedup();
        let all = hosts.iter().flat_map(|host| ports.iter().map(move |port| format!("{host}:{port}")));
        all.filter_map(|text| text.parse().ok()).collect()
    }
}

fn labels(name: &str) -> Vec<String> {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name.split('.').map(str::to_owned).collect()
}

fn net(text: &str) -> NaiveHost {
    let (ip, len) = match text.split_once('/') {
        Some((ip, len)) => (ip, Some(len.parse().unwrap())),
        None => (text, None),
    };
    let (bits, width) = number(ip.parse().unwrap());
    NaiveHost::Net(bits, len.unwrap_or(width), width)
}

fn number(ip: IpAddr) -> (u128, u32) {
    match ip {
        IpAddr::V4(ip) => (u128::from(u32::from(ip)), 32),
        IpAddr::V6(ip) => (u128::from(ip), 128),
    }
}

fn address(bits: u128, width: u32) -> IpAddr {
    match width {
        32 => Ipv4Addr::from(
            (bits & u128::from(u32::MAX)).to_be_bytes().last_chunk().copied().unwrap_or([0; 4]),
        )
        .into(),
        _ => Ipv6Addr::from(bits).into(),
    }
}
