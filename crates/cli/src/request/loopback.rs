//! Rules for this machine's loopback, which clients in a sandbox do not ask a proxy about.

use std::net::{Ipv4Addr, Ipv6Addr};

use exeat_policy::{Action, HostPattern, HostPort, Pattern, Policy, Role, Rule};

/// Returns a note about rules for loopback addresses, if there are any.
///
/// An address is also what a name needs that leads there: where a rule for a name has one of the same ports, that is taken to be
/// what was meant.
pub(super) fn note(policy: &Policy, host_ports: &[HostPort]) -> Option<String> {
    let grants = policy.layers().iter().filter(|layer| layer.role() == Role::Grants);
    let rules: Vec<&Rule> =
        grants.flat_map(|layer| policy.rules_of(layer)).filter(|rule| rule.action == Action::Allow).collect();
    let is_for_a_name = |address: &Rule| {
        rules.iter().any(|rule| {
            matches!(rule.pattern, Pattern::Name(_)) && !is_loopback(rule) && rule.ports.meets(&address.ports)
        })
    };
    let is_offered = |rule: &Rule| {
        rule.ports.single().is_some_and(|port| host_ports.iter().any(|offered| offered.port == port))
    };
    let found = |rule: &&&Rule| {
        is_loopback(rule) && !is_offered(rule) && (rule.pattern.net().is_none() || !is_for_a_name(rule))
    };
    let rule = rules.iter().find(found)?;
    let fix = match rule.ports.single() {
        Some(port) => format!("`--host-port {port}` puts this machine's service there"),
        None => "`--host-port PORT` puts a service of this machine there".to_owned(),
    };
    Some(format!(
        "`{}`: clients look for loopback addresses in the sandbox and do not ask the proxy (NO_PROXY names them); {fix}",
        rule.text
    ))
}

/// Returns a note about a rule for this machine's own name, which the stage's `/etc/hosts` gives to the loopback.
pub(super) fn note_own_name(policy: &Policy) -> Option<String> {
    let own = nix::sys::utsname::uname().ok()?;
    let own = own.nodename().to_str()?;
    let mut grants = policy.layers().iter().filter(|layer| layer.role() == Role::Grants);
    let is_own = |rule: &&Rule| {
        rule.action == Action::Allow
            && matches!(&rule.pattern, Pattern::Name(HostPattern::Exact(name)) if name.as_str() == own)
    };
    let rule = grants.find_map(|layer| policy.rules_of(layer).iter().find(is_own))?;
    Some(format!(
        "`{}`: programs that do not ask the proxy look for this machine's own name in the sandbox, and do not reach it; \
         another name of the machine has no such exception",
        rule.text
    ))
}

/// Whether it is about what the stage's NO_PROXY names.
fn is_loopback(rule: &Rule) -> bool {
    match &rule.pattern {
        Pattern::Name(HostPattern::Exact(name)) => name.as_str() == "localhost",
        Pattern::Name(_) => false,
        Pattern::Net(net) => {
            net.addr().is_loopback()
                && (rule.covers_ip(Ipv4Addr::LOCALHOST.into()) || rule.covers_ip(Ipv6Addr::LOCALHOST.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use exeat_policy::{Note, Origin, PolicyBuilder};

    use super::*;

    fn warning_for(rules: &[&str]) -> Option<String> {
        beside(rules, &[])
    }

    fn beside(rules: &[&str], host_ports: &[HostPort]) -> Option<String> {
        let mut builder = PolicyBuilder::new();
        for rule in rules {
            builder
                .add(rule, Action::Allow, Origin::Flag { flag: "--allow".into() }, Note::default())
                .unwrap();
        }
        note(&builder.build(), host_ports)
    }

    #[test]
    fn a_rule_that_no_client_asks_about_is_said() {
        for rules in [
            &["127.0.0.1:8765"][..],
            &["localhost:8765", "127.0.0.1:8765"],
            &["[::1]:8765"],
            &["127.0.0.0/8:*"],
            &["api.example.com", "127.0.0.1:8765"],
        ] {
            let said = warning_for(rules).unwrap();
            let fix = if rules == ["127.0.0.0/8:*"] { "`--host-port PORT`" } else { "`--host-port 8765`" };
            assert!(said.contains(fix), "{rules:?}: {said}");
        }
        for rules in [
            &["dev.example:8765", "127.0.0.1:8765"][..],
            &["*.dev.example:8765", "127.0.0.0/8:8000-9000"],
            &["127.0.0.2:8765"],
            &["!127.0.0.1:8765"],
            &["10.0.0.0/8:*", "api.example.com"],
            &["0.0.0.0/0:443"],
            &[],
        ] {
            assert_eq!(warning_for(rules), None, "{rules:?}");
        }
    }

    /// On the stage's own loopback it is what is meant.
    #[test]
    fn a_service_of_this_machine_is_where_clients_look() {
        let offered: [HostPort; 1] = ["8765:80".parse().unwrap()];
        assert_eq!(beside(&["127.0.0.1:8765", "localhost:8765"], &offered), None);
        assert!(beside(&["127.0.0.1:80"], &offered).is_some());
        assert!(beside(&["127.0.0.1:8765-8766"], &offered).is_some());
    }
}
