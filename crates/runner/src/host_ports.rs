//! Checks the services of this machine that a stage asks for: each needs a free port inside, and a rule of the policy. Nothing is opened
//! here.

use std::net::{IpAddr, Ipv4Addr};

use exeat_contract::{PROXY_PORT, SOCKS5_PORT};
use exeat_policy::{Action, Day, HostPort, Pattern, Policy, Role, TlsCheck};

use crate::error::faults::HostPortFault;

/// The maximal number: each has its own listener from the start.
const MOST: usize = 64;

/// Returns the services to serve, without duplicates.
///
/// # Errors
/// Returns an error when two services need one port inside, when exeat uses it, and when the policy does not grant one.
pub(crate) fn check(
    asked: &[HostPort],
    socks5: bool,
    policy: &Policy,
    today: Day,
) -> Result<Vec<HostPort>, HostPortFault> {
    let mut all: Vec<HostPort> = Vec::new();
    for port in asked {
        let taken = match port.inner.get() {
            PROXY_PORT => Some("the proxy is there"),
            SOCKS5_PORT if socks5 => Some("SOCKS5 is offered there"),
            _ => port.taken_by(),
        };
        if let Some(by) = taken {
            return Err(HostPortFault::Taken { port: *port, by });
        }
        match all.iter().find(|other| other.inner == port.inner) {
            Some(same) if same == port => continue,
            Some(other) => return Err(HostPortFault::Twice { port: *port, other: *other }),
            None => all.push(*port),
        }
        if let Err(denial) = policy.admit(port.target(), today) {
            let (rule_src, why) = (origin(*port, policy), denial.said_outside());
            return Err(HostPortFault::Denied { port: *port, rule_src, why });
        }
    }
    if all.len() > MOST { Err(HostPortFault::TooMany { asked: all.len(), most: MOST }) } else { Ok(all) }
}

/// Returns where the service was asked for, from its rule in the grants.
fn origin(port: HostPort, policy: &Policy) -> String {
    let grants = policy.layers().iter().filter(|layer| layer.role() == Role::Grants);
    let mut rules = grants.flat_map(|layer| policy.rules_of(layer));
    let here = IpAddr::from(Ipv4Addr::LOCALHOST);
    let found = rules.find(|rule| {
        let is_here =
            matches!(rule.pattern, Pattern::Net(net) if net.addr() == here && net.prefix_len() == 32);
        let is_so = rule.action == Action::Allow && rule.note.tls == TlsCheck::Off;
        is_here && is_so && rule.ports.single() == Some(port.port)
    });
    found.map_or_else(|| port.flag().to_string(), |rule| rule.origin.to_string())
}

#[cfg(test)]
mod tests {
    use exeat_policy::{Layers, Note, Origin, PolicyBuilder};

    use super::*;
    use crate::error::Error;

    fn ports(texts: &[&str]) -> Vec<HostPort> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn policy(asked: &[HostPort], deny: &[&str], ceiling: Option<&str>) -> Policy {
        let mut grants = PolicyBuilder::new();
        asked.iter().for_each(|port| port.grant(&mut grants, port.flag()));
        let origin = || Origin::File { path: "site.toml".into(), line: 3 };
        for rule in deny {
            grants.add(rule, Action::Deny, origin(), Note::default()).unwrap();
        }
        let ceiling = ceiling.map(|rule| {
            let mut rules = PolicyBuilder::new();
            rules.add(rule, Action::Allow, origin(), Note::default()).unwrap();
            ("site.toml".to_owned(), rules)
        });
        Layers { grants, ceilings: ceiling.into_iter().collect(), ..Layers::default() }.build()
    }

    fn says(asked: &[&str], socks5: bool, deny: &[&str], ceiling: Option<&str>) -> String {
        let asked = ports(asked);
        let policy = policy(&asked, deny, ceiling);
        match check(&asked, socks5, &policy, Day::from_unix(0)) {
            Ok(all) => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            Err(error) => {
                let error = Error::from(error);
                assert_eq!(error.code(), 2);
                error.to_string()
            }
        }
    }

    #[test]
    fn each_has_a_place_of_its_own_inside() {
        let of = |asked: &[&str]| says(asked, false, &[], None);
        assert_eq!(of(&["5432", "5432:5432", "5432:80"]), "5432 5432:80");
        assert_eq!(of(&["53:80", "3128:81", "1080"]), "53:80 3128:81 1080");
        assert_eq!(
            of(&["5432", "5433:5432"]),
            "port 5432 inside is asked for twice: by `5432` and by `5433:5432`"
        );
        assert_eq!(
            of(&["53"]),
            "no service of this machine can be at port 53 inside: names are answered there"
        );
        assert_eq!(
            of(&["80:3128"]),
            "no service of this machine can be at port 3128 inside: the proxy is there"
        );
        let socks5 = says(&["1080"], true, &[], None);
        assert_eq!(socks5, "no service of this machine can be at port 1080 inside: SOCKS5 is offered there");
        let many: Vec<String> = (1000..1065).map(|port| port.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(of(&many), "65 services of this machine are asked for; at most 64 are offered");
        assert_eq!(of(&many[1..]).split(' ').count(), 64);
    }

    /// A program that uses the library makes the same request; its own policy has to grant it.
    #[test]
    fn a_stage_s_port_is_granted_by_the_call() {
        let port: HostPort = "5432:80".parse().unwrap();
        let mut stage = crate::Stage::new("true");
        stage.allow("a.example.com").unwrap().host_port(port).current_dir("/");
        let rules = |stage: &crate::Stage| {
            let plan = stage.plan()?;
            assert_eq!(plan.host_ports, [port]);
            Ok::<_, Error>(
                plan.policy()
                    .rules()
                    .iter()
                    .map(|rule| format!("{rule} {}", rule.origin))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(rules(&stage).unwrap().last().unwrap(), "127.0.0.1:5432 --host-port 5432:80");
        let mut stage = crate::Stage::new("true");
        stage.policy(policy(&[], &[], None)).host_port(port).current_dir("/");
        assert!(matches!(rules(&stage), Err(Error::HostPorts(HostPortFault::Denied { .. }))));
        stage.policy(policy(&[port], &[], None));
        assert_eq!(rules(&stage).unwrap().len(), 1);
    }

    /// The error names the refusing layer and the request.
    #[test]
    fn refuses_a_port_that_the_policy_does_not_grant() {
        let of = |deny: &[&str], ceiling| says(&["5432:80"], false, deny, ceiling);
        for ceiling in ["127.0.0.1:5432", "127.0.0.0/8:*"] {
            assert_eq!(of(&[], Some(ceiling)), "5432:80");
        }
        let refused = "--host-port 5432:80: 127.0.0.1:5432: ";
        assert_eq!(of(&["127.0.0.0/8"], None), format!("{refused}denied by site.toml:3"));
        for ceiling in ["a.example.com", "127.0.0.1:80", "0.0.0.0/0:*", "localhost:*"] {
            let said = of(&[], Some(ceiling));
            assert!(
                said.starts_with(refused) && said.contains("the ceiling site.toml does not allow"),
                "{said}"
            );
        }
    }
}
