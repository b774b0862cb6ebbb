//! `exeat check`: decides about targets without a run. Uses the same policy as a run, and resolves names only with
//! `--resolve`.

use std::net::Ipv6Addr;
use std::path::Path;

use exeat_policy::{
    Admitted, Day, Denial, Host, HostPort, Layer, Policy, Port, Rule, Size, Target, TargetError, Unserved,
    Vetted, printable,
};
use exeat_record::today;
use exeat_runner::{AddressCheckError, check_addresses};
use serde::Serialize;

use crate::args::CheckArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::stdio;
use crate::terminal::Paint;

/// Decides about every target, in the order in which they were given.
pub(crate) fn run(args: &CheckArgs, out: Paint) -> Result<Exit, Failure> {
    let machine = crate::request::here()?;
    let targets = args.targets.iter().map(|text| target(text)).collect::<Result<Vec<_>, _>>()?;
    let loaded = crate::request::compose(&args.policy.request(), &machine, false)?;
    for note in loaded.lines().map(String::as_str).chain(loaded.policy.terms().note()) {
        stdio::line("note", note);
    }
    let today = today();
    let answers: Vec<Answer> = targets
        .into_iter()
        .map(|target| {
            // The upstream proxy resolves the name, so it is not resolved here.
            let through = loaded.next_hop.as_ref().is_some_and(|hop| hop.carries(&target));
            answer(&loaded.policy, &loaded.host_ports, target, today, args.resolve && !through)
        })
        .collect();

    if args.format.is_json() {
        stdio::json(&json(&answers)?)?;
    } else {
        stdio::data(text(&answers, out).as_bytes())?;
    }
    if answers.iter().any(|answer| matches!(answer.said, Verdict::Granted(_))) {
        stdio::line(
            "note",
            &match &loaded.next_hop {
                None => "addresses were not checked (--resolve checks them)".to_owned(),
                Some(hop) => {
                    format!(
                        "names are left to the upstream proxy {}, and their addresses are not checked",
                        hop.description()
                    )
                }
            },
        );
    }
    let any = |verdict| answers.iter().any(|answer| answer.said.verdict() == verdict);
    // A denied target decides the exit code, even if another target has no answer.
    Ok(if any("deny") {
        Exit::No
    } else if any("error") {
        Exit::CouldNot
    } else {
        Exit::Yes
    })
}

/// The answer for one target.
struct Answer {
    target: String,
    said: Verdict,
    /// The flags that would allow the target.
    flag: Option<String>,
    without_proxy: Without,
}

/// The target that a program reaches if it ignores the proxy variables.
enum Without {
    /// The target, through the gateway.
    Gateway,
    /// The target, as a service of this machine at this port inside.
    HostPort(Port),
    /// Such a program does not reach the target.
    Nothing(Unserved),
}

impl Without {
    fn find(policy: &Policy, host_ports: &[HostPort], target: &Target, today: Day) -> Self {
        match host_ports.iter().find(|offered| offered.target() == *target) {
            Some(offered) => Self::HostPort(offered.inner),
            None => policy.unserved(target, today).map_or(Self::Gateway, Self::Nothing),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Gateway => "programs that ignore HTTPS_PROXY reach it too".into(),
            Self::HostPort(inner) => {
                format!("programs that ignore HTTPS_PROXY reach it too, at 127.0.0.1:{inner}")
            }
            Self::Nothing(why) => format!("programs that ignore HTTPS_PROXY do not reach it: {why}"),
        }
    }
}

enum Verdict {
    /// The rules grant the target; its addresses were not looked up.
    Granted(Admitted),
    /// The rules grant the target, and every address passes.
    Vetted(Vetted),
    Denied(Denial),
    /// The rules grant the target; its addresses could not be found.
    Failed(String),
}

impl Verdict {
    fn verdict(&self) -> &'static str {
        match self {
            Self::Granted(_) | Self::Vetted(_) if self.would_deny().is_some() => "would_deny",
            Self::Granted(_) | Self::Vetted(_) => "allow",
            Self::Denied(_) => "deny",
            Self::Failed(_) => "error",
        }
    }

    fn passes(&self) -> bool {
        matches!(self, Self::Granted(_) | Self::Vetted(_))
    }

    /// Returns the rule that grants the target, and the other rules that had to allow it.
    fn granted(&self) -> Option<(&Rule, Vec<&Rule>)> {
        match self {
            Self::Granted(admitted) => {
                Some(admitted.rule()?).map(|rule| (rule, above(rule, admitted.within())))
            }
            Self::Vetted(vetted) => Some(vetted.rule()?).map(|rule| (rule, above(rule, vetted.within()))),
            Self::Denied(_) | Self::Failed(_) => None,
        }
    }

    /// Returns the denial of a target that only report mode allows.
    fn would_deny(&self) -> Option<&Denial> {
        match self {
            Self::Granted(admitted) => admitted.would_deny(),
            Self::Vetted(vetted) => vetted.would_deny(),
            Self::Denied(_) | Self::Failed(_) => None,
        }
    }

    /// Returns the smallest upload budget of the rules.
    fn max_upload(&self) -> Option<Size> {
        let least = match self {
            Self::Granted(admitted) => admitted.upload_budgets().map(|(_, bytes)| bytes).min(),
            Self::Vetted(vetted) => vetted.upload_budgets().map(|(_, bytes)| bytes).min(),
            Self::Denied(_) | Self::Failed(_) => None,
        };
        least.and_then(Size::new)
    }
}

fn answer(policy: &Policy, host_ports: &[HostPort], target: Target, today: Day, resolve: bool) -> Answer {
    let shown = target.to_string();
    // Programs look for loopback addresses in the sandbox, where only a service of this machine can be.
    let is_inside = target.host.ip().map_or_else(|| shown.starts_with("localhost:"), |ip| ip.is_loopback());
    let host_port = is_inside.then(|| format!("--host-port {}", target.port));
    let is_offered = host_ports.iter().any(|offered| offered.target() == target);
    let inner = host_ports.iter().find(|offered| is_inside && !is_offered && offered.inner == target.port);
    let target = inner.map_or(target, |offered| offered.target());
    let without_proxy = Without::find(policy, host_ports, &target, today);
    let said = match policy.admit(target, today) {
        Err(denial) => Verdict::Denied(denial),
        // An address literal can be checked without a lookup.
        Ok(admitted) if resolve || admitted.target().host.ip().is_some() => match check_addresses(admitted) {
            Ok(vetted) => Verdict::Vetted(vetted),
            Err(AddressCheckError::Denied(denial)) => Verdict::Denied(denial),
            Err(AddressCheckError::Failed(why)) => Verdict::Failed(why),
        },
        Ok(admitted) => Verdict::Granted(admitted),
    };
    let flag = match &said {
        Verdict::Denied(denial) => denial.flag(),
        said => said.would_deny().and_then(Denial::flag),
    };
    let flag = flag.map(|flag| host_port.unwrap_or(flag));
    Answer { target: shown, said, flag, without_proxy }
}

fn text(answers: &[Answer], paint: Paint) -> String {
    let width = answers.iter().map(|answer| answer.target.len()).max().unwrap_or(0);
    let verdicts = answers.iter().map(|answer| answer.said.verdict().len());
    let column = verdicts.max().unwrap_or(0).max("allow".len());
    let mut out = String::new();
    for Answer { target, said, flag, without_proxy } in answers {
        let verdict = said.verdict();
        let refused = |denial: &Denial| {
            let flag = flag.as_ref().map(|flag| format!("  {}", paint.strong(flag))).unwrap_or_default();
            format!("{}{flag}", printable(&denial.said_outside()))
        };
        let (painted, mut why) = match said {
            Verdict::Granted(_) | Verdict::Vetted(_) => match (said.granted(), said.would_deny()) {
                (Some((rule, within)), _) => {
                    let within =
                        within.into_iter().map(|rule| format!(", within {}", rule_with_origin(rule)));
                    (paint.good(verdict), format!("{}{}", rule_with_origin(rule), within.collect::<String>()))
                }
                (None, denial) => (paint.odd(verdict), denial.map(refused).unwrap_or_default()),
            },
            Verdict::Denied(denial) => (paint.bad(verdict), refused(denial)),
            Verdict::Failed(why) => (paint.odd(verdict), format!("{} (not a policy denial)", printable(why))),
        };
        if let Verdict::Vetted(vetted) = said {
            let grant = vetted.rule().map(|rule| rule.id);
            if let Some(opened_by) = vetted.opened_by().filter(|rule| Some(rule.id) != grant) {
                why.push_str(&format!(" and {}", rule_with_origin(opened_by)));
            }
            if vetted.target().host.ip().is_none() {
                let addrs: Vec<_> = vetted.addrs().iter().map(|addr| addr.ip().to_string()).collect();
                why.push_str(&format!("  {}", addrs.join(" ")));
            }
        }
        let pad = " ".repeat(column.saturating_sub(verdict.len()));
        out.push_str(&format!("{painted}{pad}  {target:width$}  {why}\n"));
        // The usual case gets no line.
        if said.passes() && !matches!(without_proxy, Without::Gateway) {
            out.push_str(&format!("{:1$}  {2}\n", "", column, without_proxy.text()));
        }
        if let Some(also) = also(said) {
            out.push_str(&format!("{:1$}  also opens {also}\n", "", column));
        }
        if let Some(size) = said.max_upload() {
            out.push_str(&format!("{:1$}  at most {size} are sent in a run\n", "", column));
        }
    }
    out
}

/// Describes the other targets of the rule that decided.
fn also(said: &Verdict) -> Option<String> {
    match said {
        Verdict::Granted(admitted) => admitted.rule()?.also_opens(admitted.target()),
        Verdict::Vetted(vetted) => vetted.rule()?.also_opens(vetted.target()),
        Verdict::Denied(_) | Verdict::Failed(_) => None,
    }
}

/// Returns the rules of ceilings and declarations that had to allow the target too. Omits the granting rule: if there are only effects,
/// they are grant and declaration at once.
fn above<'a>(rule: &Rule, within: impl Iterator<Item = (&'a Layer, &'a Rule)>) -> Vec<&'a Rule> {
    let others = within.map(|(_, other)| other);
    others.filter(|other| other.text != rule.text || other.origin != rule.origin).collect()
}

fn rule_with_origin(rule: &Rule) -> String {
    printable(&format!("{} ({})", rule.text, rule.origin))
}

/// A line of `--format json`. Fields without a value are absent: the rule if none decided, the addresses if none were looked up.
#[derive(Serialize)]
struct Line<'a> {
    schema: u32,
    target: &'a str,
    verdict: &'static str,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule_src: Option<String>,
    /// The rules of ceilings and declarations that also allowed the target.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    within: Vec<String>,
    /// Whether a program that ignores the proxy variables reaches the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    without_proxy: Option<bool>,
    /// `without_proxy` in words, with the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    without_proxy_said: Option<String>,
    /// Other targets of the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    also: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    said: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flag: Option<String>,
    /// The maximal number of bytes that a run may send.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_upload: Option<u64>,
    /// Whether the addresses were checked as well.
    addresses_checked: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<String>,
}

fn json(answers: &[Answer]) -> Result<String, Failure> {
    let mut out = String::new();
    for Answer { target, said, flag, without_proxy } in answers {
        let line = Line {
            schema: 1,
            target,
            verdict: said.verdict(),
            reason: "rule",
            rule: None,
            rule_src: None,
            within: Vec::new(),
            without_proxy: said.passes().then_some(!matches!(without_proxy, Without::Nothing(_))),
            without_proxy_said: said.passes().then(|| without_proxy.text()),
            also: also(said),
            said: None,
            flag: None,
            max_upload: said.max_upload().map(Size::get),
            addresses_checked: false,
            ips: Vec::new(),
        };
        let by = |rule: Option<&'_ Rule>| rule.map(|rule| rule.origin.to_string());
        let line = match (said.granted(), said.would_deny()) {
            (Some((rule, within)), _) => {
                let within = within.iter().map(|rule| format!("{} ({})", rule.text, rule.origin)).collect();
                Line { rule: Some(&rule.text), rule_src: by(Some(rule)), within, ..line }
            }
            (None, Some(denial)) => Line {
                reason: denial.reason().as_str(),
                said: Some(denial.said_outside()),
                flag: flag.clone(),
                ..line
            },
            (None, None) => line,
        };
        let line = match said {
            Verdict::Granted(_) => line,
            Verdict::Vetted(vetted) => {
                let ips = vetted.addrs().iter().map(|addr| addr.ip().to_string()).collect();
                Line { addresses_checked: true, ips, ..line }
            }
            Verdict::Denied(denial) => Line {
                reason: denial.reason().as_str(),
                rule: denial.rule().map(|rule| rule.text.as_str()),
                rule_src: by(denial.rule()),
                said: Some(denial.said_outside()),
                flag: flag.clone(),
                addresses_checked: denial.addr().is_some(),
                ips: denial.addr().map(|addr| addr.to_string()).into_iter().collect(),
                ..line
            },
            Verdict::Failed(why) => Line { reason: "resolve_error", said: Some(why.clone()), ..line },
        };
        let line = serde_json::to_string(&line)
            .map_err(|error| Failure::could("cannot write the answer").because(error))?;
        out.push_str(&line);
        out.push('\n');
    }
    Ok(out)
}

/// Parses a target as people write it: without a port, or with an IPv6 address without brackets.
fn target(text: &str) -> Result<Target, Failure> {
    // Hosts do not have such names, and `exeat policy show` takes a file without a flag.
    if (text.ends_with(".toml") || text.ends_with(".json")) && Path::new(text).is_file() {
        return Err(Failure::input(format!("`{text}` is a policy file, where a target stands"))
            .hint(format!("exeat check --policy {} HOST", exeat_policy::shell_word(text))));
    }
    if let Ok(ip) = text.parse::<Ipv6Addr>() {
        return Ok(Target { host: Host::Ip(ip.into()), port: Port::HTTPS });
    }
    let parsed = match Target::parse(text.as_bytes()) {
        Err(TargetError::NoPort) => Target::parse(format!("{text}:{}", Port::HTTPS).as_bytes()),
        parsed => parsed,
    };
    parsed.map_err(|error| {
        let wrong = match error {
            TargetError::Byte { at } => text.get(at..).and_then(|rest| rest.chars().next()),
            _ => None,
        };
        let failure = Failure::input(format!("`{text}` is not a target"));
        let failure = match wrong {
            Some(wrong) => failure.because(format!(
                "`{}` is in no host name, only letters, digits, `-` and `.`",
                printable(&wrong.to_string())
            )),
            None => failure.because(error),
        };
        match target_in(text) {
            Some(meant) => failure.hint(format!("probably meant: exeat check {meant}")),
            None if !text.is_ascii() => {
                failure.hint("a host name has only ASCII: write its A-label, `xn--...`")
            }
            None => failure.hint("a target is a host, host:port, address:port or [v6]:port"),
        }
    })
}

/// Returns the target in a URL or in an address of the form `user@host`, if there is one.
fn target_in(text: &str) -> Option<Target> {
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
