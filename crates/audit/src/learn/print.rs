//! Prints the policy file. Text from a record goes only into comments, on one line and printable.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use exeat_policy::preset::{self, Preset, Risk};
use exeat_policy::{
    Action, AddrClass, Allowances, Day, FileRole, Host, HostPort, Note, Origin, Pattern, Policy,
    PolicyBuilder, PolicyFile, Port, PortSet, RuleSpec, Target, TlsCheck, classify, platform_of,
    printable_ascii,
};
use exeat_record::RunId;

use super::{Known, Learned, TargetEvidence};
use crate::summary::Cited;
use crate::table::bytes;

/// The most presets that are suggested.
const MAX_PRESETS: usize = 8;

/// The most characters of a record's text in a comment.
const MAX_WORD: usize = 80;

/// The printed policy does not read back as intended: a bug in exeat.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the policy that was learned does not read back: {0}")]
pub struct Faulty(String);

struct Rule<'a> {
    notes: Vec<String>,
    seen: Option<&'a TargetEvidence>,
    evidence: &'a Cited,
}

type Rules<'a> = BTreeMap<Target, (TlsCheck, Rule<'a>)>;

impl Learned {
    /// Returns the policy file, with the evidence for each rule.
    ///
    /// # Errors
    ///
    /// Returns [`Faulty`] if the file does not grant exactly what it should.
    pub fn policy_file(&self, known: &Known<'_>) -> Result<String, Faulty> {
        let rules = self.rules(known);
        let host_ports = self.offered(known);
        let mut text = self.head();
        text.push_str("schema = 1\n");
        if let Some(stage) = &self.stage {
            let _ = writeln!(text, "stage = {}", toml(stage));
        }
        text.push_str("\n[network]\n");
        if self.socks5 {
            text.push_str("socks5 = true\n");
        }
        self.print_host_ports(&host_ports, &mut text);
        print_rules(&rules, TlsCheck::Auto, "allow", known.today, &mut text);
        if rules.values().any(|(tls, _)| *tls == TlsCheck::Off) {
            text.push_str(
                "\n[[network.rule]]\n# Not held to a TLS server name: the runs had it so.\ntls = \"off\"\n",
            );
            print_rules(&rules, TlsCheck::Off, "allow", known.today, &mut text);
        }
        self.print_refused(&rules, &mut text);
        print_presets(&rules, &mut text);
        self.print_rest(&mut text);
        read_back(&text, &rules, &host_ports, self.socks5)?;
        Ok(text)
    }

    fn rules<'a>(&'a self, known: &Known<'_>) -> Rules<'a> {
        let mut rules: Rules<'a> = BTreeMap::new();
        for (target, seen) in &self.targets {
            let wanted = known.denied && seen.is_candidate() && is_open(&target.host);
            if !seen.is_granted() && !wanted {
                continue;
            }
            let tls = seen.tls(target, known);
            let mut notes = vec![describe(seen)];
            notes.extend(risks(target));
            let rule = Rule { notes, seen: Some(seen), evidence: &seen.evidence };
            rules.insert(target.clone(), (tls, rule));
        }
        // The run reached an address that is not public, so it had a rule for that.
        for (target, seen) in self.targets.iter().filter(|(_, seen)| seen.is_granted()) {
            for ip in seen.special.iter().filter(|_| target.host.name().is_some()) {
                let address = Target { host: Host::Ip(*ip), port: target.port };
                let note = format!("where {target} leads ({})", classify(*ip));
                let (_, rule) = rules.entry(address).or_insert_with(|| {
                    (TlsCheck::Auto, Rule { notes: Vec::new(), seen: None, evidence: &seen.evidence })
                });
                rule.notes.push(note);
            }
        }
        rules
    }

    /// Returns the services of this machine, and whether the stage's port is known.
    fn offered(&self, known: &Known<'_>) -> Vec<(HostPort, bool)> {
        let of = |port: &Port, inner: Option<Port>| {
            let offered = known.host_ports.iter().find(|offered| offered.port == *port);
            let inner = offered.map(|offered| offered.inner).or(inner);
            (HostPort { port: *port, inner: inner.unwrap_or(*port) }, inner.is_some())
        };
        self.host_ports.iter().map(|(port, forwarded)| of(port, forwarded.inner)).collect()
    }

    fn head(&self) -> String {
        let mut text = String::from(
            "# Learned from what runs did, so as wide as they were: read it before it is used.\n\
             # `exeat policy lint FILE` points out what is risky, `exeat audit replay --policy FILE RUN` what it would have refused.\n",
        );
        for run in &self.starts {
            let command =
                run.command.as_deref().map(|word| format!(" ({})", comment(word))).unwrap_or_default();
            let mode =
                run.mode.as_deref().map(|mode| format!(", mode {}", comment(mode))).unwrap_or_default();
            let _ = writeln!(text, "# run {}{command}, {}{mode}", comment(&run.run), comment(&run.ts));
        }
        if self.more_runs > 0 {
            let _ = writeln!(text, "# and {} more runs", self.more_runs);
        }
        text
    }

    fn print_host_ports(&self, host_ports: &[(HostPort, bool)], text: &mut String) {
        if host_ports.is_empty() {
            return;
        }
        text.push_str("host_port = [\n");
        for (offered, is_known) in host_ports {
            if let Some(forwarded) = self.host_ports.get(&offered.port) {
                let times = times(forwarded.count);
                let _ = writeln!(text, "  # {times}; {}", cite(&forwarded.evidence));
            }
            text.push_str("  # risk: it opens a service on the loopback of this machine, which other machines cannot reach\n");
            if !is_known {
                text.push_str("  # the record does not say where the stage found it: PORT:INNER, if not at the same port\n");
            }
            let _ = writeln!(text, "  \"{offered}\",");
        }
        text.push_str("]\n");
    }

    fn print_refused(&self, rules: &Rules<'_>, text: &mut String) {
        let refused = |seen: &TargetEvidence| !seen.refused.is_empty() || !seen.taken_back.is_empty();
        let all: Vec<_> = self.targets.iter().filter(|(_, seen)| refused(seen)).collect();
        let others = all.into_iter().filter(|(target, _)| !rules.contains_key(*target));
        let (wanting, others): (Vec<_>, Vec<_>) =
            others.partition(|(target, seen)| seen.is_candidate() && is_open(&target.host));
        if !wanting.is_empty() {
            text.push_str("\n# Refused for want of a rule, and not granted here. In `allow` a line grants what it names:\n");
            for (target, seen) in wanting {
                let _ = writeln!(text, "#   \"{target}\",  # {}; {}", reasons(seen), cite(&seen.evidence));
            }
        }
        if !others.is_empty() {
            text.push_str("\n# Refused, and refused again whatever rule grants the name:\n");
            for (target, seen) in others {
                let _ = writeln!(text, "#   {target}  {}; {}", reasons(seen), cite(&seen.evidence));
                for hint in hints(target, seen) {
                    let _ = writeln!(text, "#     {hint}");
                }
            }
        }
        let asked: Vec<_> = self
            .names
            .iter()
            .filter(|(name, _)| !rules.keys().any(|target| target.host.name() == Some(*name)))
            .collect();
        if !asked.is_empty() {
            text.push_str("\n# Only asked for by name, and told that there is no such name; on which port is not known:\n");
            for (name, evidence) in asked {
                let _ = writeln!(text, "#   {name}  {}", cite(evidence));
            }
        }
    }

    fn print_rest(&self, text: &mut String) {
        let mut lines = Vec::new();
        let upstream = self.targets.values().filter(|seen| seen.is_granted() && seen.upstream).count();
        if upstream > 0 {
            lines.push(format!(
                "{upstream} of these were left to an upstream proxy: where they lead is not known, and the proxy is not in this file."
            ));
        }
        let cut = self.targets.values().filter(|seen| seen.special_more).count();
        if cut > 0 {
            lines.push(format!("{cut} names led to more addresses that are not public than are listed."));
        }
        if self.elsewhere > 0 {
            lines.push(format!(
                "{} runs went through another exeat proxy, whose record has what they reached.",
                self.elsewhere
            ));
        }
        if self.beyond > 0 {
            lines.push(format!(
                "{} attempts have no line here: there are more targets than are told apart.",
                self.beyond
            ));
        }
        if !lines.is_empty() {
            text.push('\n');
        }
        for line in lines {
            let _ = writeln!(text, "# {line}");
        }
    }
}

/// Whether a rule can be suggested without a warning: for a name, or a public address.
fn is_open(host: &Host) -> bool {
    host.ip().is_none_or(|ip| classify(ip) == AddrClass::Public)
}

fn print_rules(rules: &Rules<'_>, which: TlsCheck, key: &str, today: Day, text: &mut String) {
    let chosen: Vec<_> = rules.iter().filter(|(_, (tls, _))| *tls == which).collect();
    if chosen.is_empty() {
        let _ = writeln!(text, "{key} = []");
        return;
    }
    let findings = findings(rules, today);
    let _ = writeln!(text, "{key} = [");
    for (target, (_, rule)) in chosen {
        for note in &rule.notes {
            let _ = writeln!(text, "  # {note}");
        }
        for risk in findings.get(&target.to_string()).into_iter().flatten() {
            let _ = writeln!(text, "  # risk: {risk}");
        }
        let sent = rule.seen.filter(|seen| seen.bytes_up > 0 || seen.bytes_down > 0);
        let sent =
            sent.map(|seen| format!("{} sent, {} received; ", bytes(seen.bytes_up), bytes(seen.bytes_down)));
        let _ = writeln!(text, "  # {}{}", sent.unwrap_or_default(), cite(rule.evidence));
        let _ = writeln!(text, "  \"{target}\",");
    }
    text.push_str("]\n");
}

/// Returns what `exeat policy lint` would report on the rules.
fn findings(rules: &Rules<'_>, today: Day) -> BTreeMap<String, BTreeSet<String>> {
    let policy = policy_of(rules.iter().map(|(target, (tls, _))| (target, *tls)));
    let mut said: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for finding in policy.review(today) {
        said.entry(finding.rule.text.clone())
            .or_default()
            .insert(printable_ascii(&finding.to_string()).into_owned());
    }
    said
}

fn policy_of<'a>(rules: impl Iterator<Item = (&'a Target, TlsCheck)>) -> Policy {
    let mut builder = PolicyBuilder::new();
    for (target, tls) in rules {
        let text = target.to_string();
        let origin = Origin::Flag { flag: "learned".into() };
        // Reading the file back reports what cannot be a rule.
        let _ = builder.add(&text, Action::Allow, origin, Note { tls, ..Note::default() });
    }
    builder.build()
}

fn describe(seen: &TargetEvidence) -> String {
    let mut said =
        if seen.is_granted() { times(seen.let_through) } else { String::from("refused in these runs") };
    for (count, what) in [(seen.would_deny, "that no rule allowed"), (seen.failed, "that failed")] {
        if count > 0 {
            let _ = write!(said, ", {count} {what}");
        }
    }
    if seen.is_granted() && seen.failed >= seen.let_through {
        said.push_str(": never reached");
    }
    if !seen.taken_back.is_empty() || (!seen.refused.is_empty() && !seen.is_granted()) {
        let _ = write!(said, "; {}", reasons(seen));
    }
    said
}

fn times(count: u64) -> String {
    if count == 1 { "1 connection".into() } else { format!("{count} connections") }
}

fn reasons(seen: &TargetEvidence) -> String {
    let of = |((reason, by), count): (&(_, Option<String>), &u64)| match by {
        Some(by) => format!("{count}x {reason} ({})", comment(by)),
        None => format!("{count}x {reason}"),
    };
    let late = seen.taken_back.iter().map(|(reason, count)| format!("{count}x {reason}"));
    seen.refused.iter().map(of).chain(late).collect::<Vec<_>>().join(", ")
}

/// Suggests what to write for a refused target, if anything can grant it.
fn hints(target: &Target, seen: &TargetEvidence) -> Vec<String> {
    use exeat_policy::Reason;
    let mut hints = Vec::new();
    let reasons: BTreeSet<Reason> =
        seen.refused.keys().map(|(reason, _)| *reason).chain(seen.taken_back.keys().copied()).collect();
    if reasons.contains(&Reason::PrivateIp) {
        let openable = |ip: &&std::net::IpAddr| {
            let class = classify(**ip);
            class != AddrClass::Metadata && !class.is_never_dialed()
        };
        let addresses: Vec<String> = seen
            .special
            .iter()
            .filter(openable)
            .map(|ip| {
                format!("\"{}\" ({})", Target { host: Host::Ip(*ip), port: target.port }, classify(*ip))
            })
            .collect();
        if !addresses.is_empty() {
            hints.push(format!(
                "besides \"{target}\" it takes rules for where that leads: {}",
                addresses.join(", ")
            ));
        }
    } else if target.host.ip().is_some() && seen.is_candidate() {
        hints.push(format!("\"{target}\" would grant this address, which is not public"));
    }
    if [Reason::NotTls, Reason::HelloTimeout, Reason::HelloMalformed]
        .iter()
        .any(|reason| reasons.contains(reason))
    {
        hints.push(format!(
            "a server that speaks first, or no TLS: a [[network.rule]] with allow = [\"{target}\"] and tls = \"off\", which checks no name"
        ));
    }
    hints
}

fn risks(target: &Target) -> Vec<String> {
    let mut risks = Vec::new();
    if let Host::Name(name) = &target.host
        && let Some(platform) = platform_of(name)
    {
        risks.push(format!("risk: anyone can get a name below {platform}, so say whose this one is"));
    }
    if target.port.get() == 80 {
        risks.push("risk: plain HTTP, which anybody on the way can read and change".into());
    }
    let high = preset::groups().iter().filter(|group| group.risk == Risk::High && covers(group, target));
    for group in high {
        risks.push(format!("risk: high, says the preset {}{}", group.name, flags(group)));
    }
    risks
}

fn flags(group: &Preset) -> String {
    let flags: Vec<_> = group.flags.iter().map(|flag| flag.as_str()).collect();
    if flags.is_empty() { String::new() } else { format!(" ({})", flags.join(", ")) }
}

fn covers(group: &Preset, target: &Target) -> bool {
    group.allow.iter().any(|rule| rule.spec.action == Action::Allow && spec_covers(&rule.spec, target))
}

fn spec_covers(spec: &RuleSpec, target: &Target) -> bool {
    let is_host = match (&spec.pattern, &target.host) {
        (Pattern::Name(pattern), Host::Name(name)) => pattern.matches(name),
        (Pattern::Net(net), Host::Ip(ip)) => net.contains(ip),
        _ => false,
    };
    is_host && spec.ports.contains(target.port)
}

/// Prints presets that cover some of the rules. The reader chooses, because each grants more than was seen.
fn print_presets(rules: &Rules<'_>, text: &mut String) {
    let mut found: Vec<(&Preset, BTreeSet<&Target>)> = preset::groups()
        .iter()
        .map(|group| (group, rules.keys().filter(|target| covers(group, target)).collect()))
        .filter(|(_, covered): &(_, BTreeSet<_>)| !covered.is_empty())
        .collect();
    found.sort_by_key(|(group, covered)| (std::cmp::Reverse(covered.len()), group.allow.len(), &group.name));
    let mut told: BTreeSet<&Target> = BTreeSet::new();
    let mut lines = Vec::new();
    for (group, covered) in found {
        if covered.is_subset(&told) || lines.len() == MAX_PRESETS {
            continue;
        }
        let hosts: Vec<_> = covered.iter().take(4).map(ToString::to_string).collect();
        let more = if covered.len() > hosts.len() { ", ..." } else { "" };
        lines.push(format!(
            "#   {}: risk {}{}; {} rules, for {}{more}",
            group.name,
            group.risk,
            flags(group),
            group.allow.len(),
            hosts.join(", ")
        ));
        told.extend(covered);
    }
    if !lines.is_empty() {
        text.push_str("\n# Presets that cover some of these, and grant more than was seen (`exeat preset NAME`, `presets = [...]` in [network]):\n");
        for line in lines {
            text.push_str(&line);
            text.push('\n');
        }
    }
}

/// Names the first run, its lines, and their time.
fn cite(evidence: &Cited) -> String {
    let run =
        evidence.run.parse().map_or_else(|_| "an unnamed run".to_owned(), |run: RunId| format!("run {run}"));
    let lines: Vec<_> = evidence.lines.iter().map(ToString::to_string).collect();
    let more = if evidence.more_lines { ", ..." } else { "" };
    let others = match evidence.runs {
        0 | 1 => String::new(),
        2 => " and 1 more run".to_owned(),
        runs => format!(" and {} more runs", runs - 1),
    };
    format!("first {}, {run} seq {}{more}{others}", comment(&evidence.first), lines.join(", "))
}

/// Makes text of a record fit for a comment: printable, on one line, not long.
fn comment(text: &str) -> String {
    let text = printable_ascii(text);
    match text.char_indices().nth(MAX_WORD).and_then(|(at, _)| text.get(..at)) {
        Some(start) => format!("{start}..."),
        None => text.into_owned(),
    }
}

/// Writes a basic string of TOML (TOML 1.0, "String").
fn toml(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            ' '..='~' => out.push(c),
            _ => {
                let _ = write!(out, "\\U{:08X}", u32::from(c));
            }
        }
    }
    out.push('"');
    out
}

/// Reads the printed policy as `--policy` would, and compares it with the intended one.
fn read_back(
    text: &str,
    rules: &Rules<'_>,
    host_ports: &[(HostPort, bool)],
    socks5: bool,
) -> Result<(), Faulty> {
    let file = PolicyFile::parse(text, "learned", FileRole::Policy, &Vec::new)
        .map_err(|error| Faulty(error.to_string()))?;
    let mut meant: Vec<_> = Vec::new();
    for (target, (tls, _)) in rules {
        let spec = RuleSpec::parse(&target.to_string(), Action::Allow, Allowances::default())
            .map_err(|error| Faulty(error.to_string()))?;
        let exact = spec.ports == PortSet::one(target.port) && spec_covers(&spec, target);
        let single = match &spec.pattern {
            Pattern::Name(pattern) => matches!(pattern, exeat_policy::HostPattern::Exact(_)),
            Pattern::Net(net) => net.prefix_len() == net.max_prefix_len(),
        };
        if !exact || !single {
            return Err(Faulty(format!("`{target}`")));
        }
        meant.push((spec, *tls));
    }
    let mut read: Vec<_> = file.rules.iter().map(|rule| (rule.spec.clone(), rule.note.tls)).collect();
    let order = |(spec, tls): &(RuleSpec, TlsCheck)| (spec.pattern.clone(), spec.ports.clone(), *tls);
    read.sort_by_key(order);
    meant.sort_by_key(order);
    let offered = file.host_ports.iter().map(|(port, _)| port).eq(host_ports.iter().map(|(port, _)| port));
    let plain = file.presets.is_empty() && file.mode.is_none() && file.socks5.unwrap_or(false) == socks5;
    if read == meant && offered && plain { Ok(()) } else { Err(Faulty("it grants something else".into())) }
}
