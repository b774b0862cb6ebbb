//! Reads the attempt that a line of a record describes, as strictly as the proxy reads a request.
//!
//! Decides nothing and trusts nothing: a record may come from anywhere, so its host is parsed again into its one canonical spelling; a
//! line whose host does not parse is not an attempt.

use std::net::IpAddr;

use exeat_policy::{Host, Port, Reason, RuleEffect, Target, Verdict};
use exeat_record::Via;

use crate::query::{LineKind, Record};

/// An attempt at a host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The host and port that were requested.
    pub target: Target,
    /// The way in which the request arrived.
    pub via: Via,
    /// The verdict on record.
    pub verdict: Verdict,
    /// The reason on record.
    pub reason: Reason,
    /// The number of equal attempts that the line stands for.
    pub count: u64,
    /// Whether the connection was first let through, then refused because of its content.
    pub late: bool,
}

impl Attempt {
    /// Whether the rules let the attempt through, as far as this line shows: also in report mode, and if it failed later.
    pub fn is_let_through(&self) -> bool {
        is_let_through(self.verdict, self.reason)
    }
}

/// Whether the rules let an attempt with this decision through, even if the connection was refused later.
pub(crate) fn is_let_through(verdict: Verdict, reason: Reason) -> bool {
    match verdict {
        Verdict::Allow | Verdict::WouldDeny => true,
        Verdict::Error => {
            matches!(reason, Reason::DnsEmpty | Reason::ResolveError | Reason::ConnectError | Reason::Timeout)
        }
        Verdict::Deny => false,
    }
}

/// Whether the content of the connection showed that it was not for this host. A budget that ran out does not show that.
pub(crate) fn is_taken_back(late: bool, verdict: Verdict, reason: Reason) -> bool {
    late && verdict == Verdict::Deny && reason != Reason::BudgetBytes
}

impl Record {
    /// Returns the attempt that this line describes; `None` if it describes none, has no host and port, or uses words that this version
    /// does not know.
    pub fn attempt(&self) -> Option<Attempt> {
        // UDP and the like never leave the sandbox, so no rule is about them.
        if self.event != LineKind::Decision || self.proto.is_some() {
            return None;
        }
        let port = Port::new(self.port?)?;
        Some(Attempt {
            target: Target { host: self.asked_host()?, port },
            via: self.via.as_deref()?.parse().ok()?,
            verdict: self.verdict()?,
            reason: self.reason()?,
            count: self.count.unwrap_or(1),
            late: self.ip.is_some(),
        })
    }

    /// Whether the line is the decision on an attempt that was let through.
    pub fn is_let_through(&self) -> bool {
        self.is_decision() && matches!(self.verdict(), Some(Verdict::Allow | Verdict::WouldDeny))
    }

    /// Returns who approved that the attempt is let through, `Some(None)` if nobody did; `None` if it was not let through. A rule that
    /// would have denied it in a run that enforces approves nothing.
    pub fn approval(&self) -> Option<Option<&str>> {
        let is_allowed = self.reason().is_none_or(|reason| reason.effect_of_rule() == RuleEffect::Allows);
        self.is_let_through().then(|| self.approved_by.as_deref().filter(|_| is_allowed))
    }

    /// Returns the host that the line is about, if it parses.
    pub fn asked_host(&self) -> Option<Host> {
        asked_host(self.host.as_deref()?)
    }
}

/// Reads a host as a record spells it: an IPv6 address has no brackets.
pub(crate) fn asked_host(host: &str) -> Option<Host> {
    match host.parse::<IpAddr>() {
        Ok(ip) => Some(Host::Ip(ip)),
        Err(_) => Host::parse(host).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(fields: &str) -> Record {
        let line = format!(
            r#"{{"schema":"egress/1","seq":3,"ts":"2026-11-21T10:20:32.123456Z","mono_us":1,"run":"01JD8Z3V5QABCDEFGHJKMNPQRS",{fields}}}"#
        );
        Record::parse(line.as_bytes()).unwrap()
    }

    fn parse(host: &str) -> Option<String> {
        let host = serde_json::to_string(host).unwrap();
        let fields = format!(
            r#""event":"decision","via":"connect","verdict":"allow","reason":"rule","port":443,"host":{host}"#
        );
        record(&fields).attempt().map(|attempt| attempt.target.to_string())
    }

    #[test]
    fn a_host_is_read_as_strictly_as_in_a_request() {
        for (host, target) in [
            ("api.example.com", "api.example.com:443"),
            ("API.example.com.", "api.example.com:443"),
            ("10.2.3.4", "10.2.3.4:443"),
            ("2001:db8::1", "[2001:db8::1]:443"),
        ] {
            assert_eq!(parse(host).as_deref(), Some(target));
        }
        for hostile in [
            "x\"]\nallow=[\"evil",
            "*.example.com",
            "*",
            "",
            "a b",
            "a\nb",
            "a:80",
            "10.0.0.0/8",
            "ä.example",
            "010.2.3.4",
            "[::1]:80",
        ] {
            assert_eq!(parse(hostile), None, "{hostile:?}");
        }
    }

    #[test]
    fn ignores_lines_without_an_attempt_at_a_host_and_port() {
        for fields in [
            r#""event":"dns","via":"dns","verdict":"deny","reason":"default","host":"a.example""#,
            r#""event":"close","host":"a.example","port":443"#,
            r#""event":"decision","via":"connect","verdict":"allow","reason":"rule","host":"a.example""#,
            r#""event":"decision","via":"connect","verdict":"allow","reason":"rule","host":"a.example","port":0"#,
            r#""event":"decision","via":"direct","proto":"udp","verdict":"deny","reason":"direct","host":"a.example","port":53"#,
            r#""event":"decision","via":"later","verdict":"allow","reason":"rule","host":"a.example","port":443"#,
            r#""event":"decision","via":"connect","verdict":"maybe","reason":"rule","host":"a.example","port":443"#,
        ] {
            assert_eq!(record(fields).attempt(), None, "{fields}");
        }
    }

    #[test]
    fn tells_passed_attempts_from_those_refused_later() {
        let check = |verdict: &str, reason: &str, more: &str| {
            let fields = format!(
                r#""event":"decision","via":"connect","verdict":"{verdict}","reason":"{reason}","host":"a.example","port":443{more}"#
            );
            let attempt = record(&fields).attempt().unwrap();
            (attempt.is_let_through(), is_taken_back(attempt.late, attempt.verdict, attempt.reason))
        };
        let ip = r#","ip":"192.0.2.1""#;
        assert_eq!(check("allow", "rule", ""), (true, false));
        assert_eq!(check("would_deny", "default", ""), (true, false));
        assert_eq!(check("error", "connect_error", ""), (true, false));
        assert_eq!(check("error", "audit_unavailable", ""), (false, false));
        assert_eq!(check("deny", "default", ""), (false, false));
        assert_eq!(check("deny", "sni_mismatch", ip), (false, true));
        // Plain HTTP where TLS is granted is refused at once, so there is nothing to take back.
        assert_eq!(check("deny", "not_tls", ""), (false, false));
        assert_eq!(check("deny", "budget_bytes", ip), (false, false));
    }
}
