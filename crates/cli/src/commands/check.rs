//! `exeat check`: the decision without a run. It asks the same policy as a run does, and looks nothing up unless
//! `--resolve` says so.

use std::net::Ipv6Addr;

use exeat_policy::{Admitted, Day, Denial, Host, Layer, Policy, Port, Rule, Target, TargetError, Vetted};
use exeat_runner::{Unchecked, check_addresses};
use serde::Serialize;

use crate::args::CheckArgs;
use crate::clock::today;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::load::{self, FileFlags};
use crate::machine::Machine;
use crate::render::{Paint, printable};
use crate::stdio;

/// Decides about every target, in the order in which they were given.
pub(crate) fn run(args: &CheckArgs, out: Paint) -> Result<Exit, Failure> {
    let machine = Machine::here()?;
    let targets = args.targets.iter().map(|text| target(text)).collect::<Result<Vec<_>, _>>()?;
    let loaded = load::load(&args.policy, FileFlags::default(), &machine)?;
    for note in &loaded.notes {
        stdio::line("note", note);
    }
    let today = today();
    let answers: Vec<Answer> =
        targets.into_iter().map(|target| answer(&loaded.policy, target, today, args.resolve)).collect();

    if args.json {
        stdio::json(&json(&answers)?)?;
    } else {
        stdio::data(text(&answers, out).as_bytes())?;
    }
    if answers.iter().any(|answer| matches!(answer.said, Said::Granted(_))) {
        stdio::say("exeat: note: addresses were not checked (--resolve checks them)\n");
    }
    let any = |verdict| answers.iter().any(|answer| answer.said.verdict() == verdict);
    // One "no" answers for all of them, whatever could not be told about the others.
    Ok(if any("deny") {
        Exit::No
    } else if any("error") {
        Exit::CouldNot
    } else {
        Exit::Yes
    })
}

/// What was found out about one target.
struct Answer {
    target: String,
    said: Said,
}

enum Said {
    /// The rules grant it; where it leads was not looked up.
    Granted(Admitted),
    /// The rules grant it, and every address passes.
    Vetted(Vetted),
    Denied(Denial),
    /// The rules grant it; its addresses could not be found.
    Failed(String),
}

impl Said {
    fn verdict(&self) -> &'static str {
        match self {
            Self::Granted(_) | Self::Vetted(_) => "allow",
            Self::Denied(_) => "deny",
            Self::Failed(_) => "error",
        }
    }
}

fn answer(policy: &Policy, target: Target, today: Day, resolve: bool) -> Answer {
    let shown = target.to_string();
    let said = match policy.admit(target, today) {
        Err(denial) => Said::Denied(denial),
        // A literal is its own address: nothing has to be looked up to judge it.
        Ok(admitted) if resolve || admitted.target().host.ip().is_some() => match check_addresses(admitted) {
            Ok(vetted) => Said::Vetted(vetted),
            Err(Unchecked::Denied(denial)) => Said::Denied(denial),
            Err(Unchecked::Failed(why)) => Said::Failed(why),
        },
        Ok(admitted) => Said::Granted(admitted),
    };
    Answer { target: shown, said }
}

fn text(answers: &[Answer], paint: Paint) -> String {
    let width = answers.iter().map(|answer| answer.target.len()).max().unwrap_or(0);
    let mut out = String::new();
    for Answer { target, said } in answers {
        let verdict = said.verdict();
        let (painted, why) = match said {
            Said::Granted(admitted) => (
                paint.good(verdict),
                format!("{}{}", named(admitted.rule()), within(admitted.rule(), admitted.within())),
            ),
            Said::Vetted(vetted) => {
                let mut why = format!("{}{}", named(vetted.rule()), within(vetted.rule(), vetted.within()));
                if let Some(opened_by) = vetted.opened_by().filter(|rule| rule.id != vetted.rule().id) {
                    why.push_str(&format!(" and {}", named(opened_by)));
                }
                if vetted.target().host.ip().is_none() {
                    let addrs: Vec<_> = vetted.addrs().iter().map(|addr| addr.ip().to_string()).collect();
                    why.push_str(&format!("  {}", addrs.join(" ")));
                }
                (paint.good(verdict), why)
            }
            Said::Denied(denial) => {
                let flag = denial.flag().map(|flag| format!("  {}", paint.strong(&flag))).unwrap_or_default();
                (paint.bad(verdict), format!("{}{flag}", printable(&denial.said_outside())))
            }
            Said::Failed(why) => (paint.odd(verdict), format!("{} (not a policy denial)", printable(why))),
        };
        let pad = " ".repeat("allow".len().saturating_sub(verdict.len()));
        out.push_str(&format!("{painted}{pad}  {target:width$}  {why}\n"));
        if let Some(also) = also(said) {
            out.push_str(&format!("{:7}also opens {also}\n", ""));
        }
    }
    out
}

/// What else the rule that decided allows.
fn also(said: &Said) -> Option<String> {
    match said {
        Said::Granted(admitted) => admitted.rule().also_opens(admitted.target()),
        Said::Vetted(vetted) => vetted.rule().also_opens(vetted.target()),
        Said::Denied(_) | Said::Failed(_) => None,
    }
}

/// The rules of ceilings and of what is declared that had to allow it too. Effects alone are both, and are said once.
fn above<'a>(
    rule: &Rule,
    within: impl Iterator<Item = (&'a Layer, &'a Rule)>,
) -> impl Iterator<Item = &'a Rule> {
    within.map(|(_, other)| other).filter(|other| other.text != rule.text || other.origin != rule.origin)
}

fn within<'a>(rule: &Rule, all: impl Iterator<Item = (&'a Layer, &'a Rule)>) -> String {
    above(rule, all).map(|rule| format!(", within {}", named(rule))).collect()
}

fn origins<'a>(rule: &Rule, all: impl Iterator<Item = (&'a Layer, &'a Rule)>) -> Vec<String> {
    above(rule, all).map(|rule| format!("{} ({})", rule.text, rule.origin)).collect()
}

fn named(rule: &Rule) -> String {
    printable(&format!("{} ({})", rule.text, rule.origin))
}

/// One line of `--json`. Absent is what there is not: a rule where none decided, addresses where none were looked up.
#[derive(Serialize)]
struct Line<'a> {
    target: &'a str,
    verdict: &'static str,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule_src: Option<String>,
    /// The rules of ceilings, and of what is declared, that allowed it too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    within: Vec<String>,
    /// What else the rule opens.
    #[serde(skip_serializing_if = "Option::is_none")]
    also: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    said: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flag: Option<String>,
    /// Whether the addresses passed too; `false`: they were not looked at.
    addresses_checked: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<String>,
}

fn json(answers: &[Answer]) -> Result<String, Failure> {
    let mut out = String::new();
    for Answer { target, said } in answers {
        let line = Line {
            target,
            verdict: said.verdict(),
            reason: "rule",
            rule: None,
            rule_src: None,
            within: Vec::new(),
            also: also(said),
            said: None,
            flag: None,
            addresses_checked: false,
            ips: Vec::new(),
        };
        let by = |rule: Option<&'_ Rule>| rule.map(|rule| rule.origin.to_string());
        let line = match said {
            Said::Granted(admitted) => {
                let rule = admitted.rule();
                let within = origins(rule, admitted.within());
                Line { rule: Some(&rule.text), rule_src: by(Some(rule)), within, ..line }
            }
            Said::Vetted(vetted) => {
                let rule = vetted.rule();
                let ips = vetted.addrs().iter().map(|addr| addr.ip().to_string()).collect();
                Line {
                    rule: Some(&rule.text),
                    rule_src: by(Some(rule)),
                    within: origins(rule, vetted.within()),
                    addresses_checked: true,
                    ips,
                    ..line
                }
            }
            Said::Denied(denial) => Line {
                reason: denial.reason().as_str(),
                rule: denial.rule().map(|rule| rule.text.as_str()),
                rule_src: by(denial.rule()),
                said: Some(denial.said_outside()),
                flag: denial.flag(),
                addresses_checked: denial.addr().is_some(),
                ips: denial.addr().map(|addr| addr.to_string()).into_iter().collect(),
                ..line
            },
            Said::Failed(why) => Line { reason: "resolve_error", said: Some(why.clone()), ..line },
        };
        let line = serde_json::to_string(&line)
            .map_err(|error| Failure::could("cannot write the answer").because(error))?;
        out.push_str(&line);
        out.push('\n');
    }
    Ok(out)
}

/// A target as people write it: the port may be missing, an IPv6 address may stand without brackets.
fn target(text: &str) -> Result<Target, Failure> {
    if let Ok(ip) = text.parse::<Ipv6Addr>() {
        return Ok(Target { host: Host::Ip(ip.into()), port: Port::HTTPS });
    }
    let parsed = match Target::parse(text.as_bytes()) {
        Err(TargetError::NoPort) => Target::parse(format!("{text}:{}", Port::HTTPS).as_bytes()),
        parsed => parsed,
    };
    parsed.map_err(|error| {
        let failure = Failure::input(format!("`{text}` is not a target")).because(error);
        match meant(text) {
            Some(meant) => failure.hint(format!("probably meant: exeat check {meant}")),
            None => failure.hint("a target is a host, host:port, address:port or [v6]:port"),
        }
    })
}

/// The target inside a URL or an address of the `user@host` kind, if there is one.
fn meant(text: &str) -> Option<Target> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("https", text));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let port = match scheme.to_ascii_lowercase().as_str() {
        "http" | "ws" => 80,
        "ftp" => 21,
        "ssh" | "git+ssh" => 22,
        "git" => 9418,
        "postgres" | "postgresql" => 5432,
        _ => 443,
    };
    let target = Target::parse(host.as_bytes());
    target.or_else(|_| Target::parse(format!("{host}:{port}").as_bytes())).ok()
}

#[cfg(test)]
mod tests;
