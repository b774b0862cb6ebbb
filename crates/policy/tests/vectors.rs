//! Checks every row of the fixture tables through the public interface: load, parse, admit, resolve, vet.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "helpers of tests may fail loudly")]

use std::collections::HashMap;
use std::net::IpAddr;

use exeat_policy::{
    Action, Day, Denial, Host, HostName, Note, Origin, OwnAddrs, Policy, PolicyBuilder, Reason, Target,
};

const HOSTS: &str = include_str!("fixtures/hosts.tsv");
const DNS: &str = include_str!("fixtures/dns.tsv");

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    NotLoaded,
    BadRequest,
    Deny(Reason),
    /// The target is admitted, but has no address: no policy refuses it, and nothing is dialed.
    NoAddress,
    Allow,
}

/// K33; H01, H02, H03, H04, H05, H06, H07, H08, H10, H11, H12, H13, H14, H16, H17, H19, H21: all rows.
#[test]
fn every_row_of_the_host_table_holds() {
    let dns = Dns::read();
    let mut wrong = Vec::new();
    let mut rows = 0;
    for line in HOSTS.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [id, rules, target, expected, reason] = fields.as_slice() else { panic!("{line}") };
        rows += 1;
        let outcome = run(rules, target, &dns);
        let holds = match (*expected, &outcome) {
            _ if reason.contains("[policy-error]") => outcome == Outcome::NotLoaded,
            ("allow", Outcome::Allow) | ("bad-request", Outcome::BadRequest) => true,
            ("deny", Outcome::Deny(_) | Outcome::NoAddress) => true,
            // The row says so: a name that cannot exist is refused earlier.
            ("deny", Outcome::BadRequest) => reason.contains("bad-request is fine too"),
            _ => false,
        };
        if !holds {
            wrong.push(format!("{id}: `{rules}` for `{target}`: {expected}, not {outcome:?} ({reason})"));
        }
    }
    assert!(rows > 140, "the table is read whole");
    assert!(wrong.is_empty(), "{} of {rows} rows fail:\n{}", wrong.len(), wrong.join("\n"));
}

/// D01, D04, D06, D07: the address refuses what a wildcard grants by name, except in rows that say otherwise.
#[test]
fn judges_every_row_of_the_dns_table() {
    let dns = Dns::read();
    let fine = ["pub", "pub6", "dual", "cnamepub", "rebind"];
    for name in dns.names() {
        let Some(label) = name.strip_suffix(".dns-case.test") else { continue };
        let outcome = run("*.dns-case.test:443", &format!("{name}:443"), &dns);
        match label {
            "nx" | "servfail" | "nodata" | "timeout" | "cnameloop" => {
                assert_eq!(outcome, Outcome::NoAddress, "{name}");
            }
            _ if fine.contains(&label) => assert_eq!(outcome, Outcome::Allow, "{name}"),
            "meta" | "alibaba" | "azure" | "oracle" | "nat64" => {
                assert_eq!(outcome, Outcome::Deny(Reason::MetadataIp), "{name}");
            }
            _ => assert_eq!(outcome, Outcome::Deny(Reason::PrivateIp), "{name}"),
        }
    }
}

/// D02: each answer is judged anew, and a bad second one is refused after a good first one.
#[test]
fn judges_each_answer_anew() {
    let policy = load("*.dns-case.test:443").unwrap();
    let target = || Target::parse(b"rebind.dns-case.test:443").unwrap();
    let first: IpAddr = "93.184.215.14".parse().unwrap();
    let second: IpAddr = "127.0.0.1".parse().unwrap();
    let vet = |ip| policy.admit(target(), today()).unwrap().vet(&[ip], &OwnAddrs::default());
    assert!(vet(first).is_ok());
    assert_eq!(vet(second).map(drop).map_err(|d| d.reason()), Err(Reason::PrivateIp));
}

fn today() -> Day {
    Day::from_ymd(2026, 11, 21).unwrap()
}

fn load(rules: &str) -> Option<Policy> {
    let mut builder = PolicyBuilder::new();
    for rule in rules.split(' ').filter(|rule| !rule.is_empty()) {
        let rule = String::from_utf8(unescape(rule)).ok()?;
        builder.add(&rule, Action::Allow, Origin::Flag { flag: "--allow".into() }, Note::default()).ok()?;
    }
    Some(builder.build())
}

fn run(rules: &str, target: &str, dns: &Dns) -> Outcome {
    let Some(policy) = load(rules) else { return Outcome::NotLoaded };
    let Ok(target) = Target::parse(&unescape(target)) else { return Outcome::BadRequest };
    let denied = |denial: Denial| Outcome::Deny(denial.reason());
    let admitted = match policy.admit(target, today()) {
        Ok(admitted) => admitted,
        Err(denial) => return denied(denial),
    };
    let answers = match &admitted.target().host {
        Host::Name(name) => dns.resolve(name),
        Host::Ip(ip) => vec![*ip],
    };
    if answers.is_empty() {
        return Outcome::NoAddress;
    }
    match admitted.vet(&answers, &OwnAddrs::default()) {
        Ok(vetted) => {
            assert!(!vetted.addrs().is_empty());
            Outcome::Allow
        }
        Err(denial) => denied(denial),
    }
}

/// Decodes `\xHH` as one byte, and leaves everything else unchanged.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((head, tail)) = rest.split_once("\\x") {
        bytes.extend_from_slice(head.as_bytes());
        let (hex, after) = tail.split_at(2);
        bytes.push(u8::from_str_radix(hex, 16).unwrap());
        rest = after;
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

/// The stub resolver of the table, which gives the first answers.
struct Dns(HashMap<String, Vec<(String, String)>>);

impl Dns {
    fn read() -> Self {
        let mut table: HashMap<String, Vec<(String, String)>> = HashMap::new();
        for line in DNS.lines().skip(1) {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, kind, value] = fields.as_slice() else { panic!("{line}") };
            table.entry((*name).into()).or_default().push(((*kind).into(), (*value).into()));
        }
        Self(table)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    fn resolve(&self, name: &HostName) -> Vec<IpAddr> {
        let mut name = name.as_str();
        // A chain of aliases ends; a loop of them has no address.
        for _ in 0..8 {
            let records = self.0.get(name).or_else(|| self.0.get("*")).unwrap();
            if let Some((_, next)) = records.iter().find(|(kind, _)| kind == "CNAME") {
                name = next;
                continue;
            }
            let addresses = records.iter().filter(|(kind, _)| matches!(kind.as_str(), "A" | "AAAA" | "SEQ1"));
            return addresses.map(|(_, value)| value.parse().unwrap()).collect();
        }
        Vec::new()
    }
}
