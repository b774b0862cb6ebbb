//! What was tried, as one line of a record tells it, read as strictly as a request is.
//!
//! Decides nothing, and trusts nothing: a record may come from anywhere, so its host is parsed again and comes out in its
//! one canonical spelling, or the line is no attempt. What else it says stays with the record.

use std::net::IpAddr;

use exeat_policy::{Host, Port, Reason, Target, Verdict};
use exeat_record::Via;

use crate::query::{Kind, Record};

/// One attempt at a host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// What was asked for.
    pub target: Target,
    /// How it was asked for.
    pub via: Via,
    /// What became of it.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// How many equal ones the line stands for.
    pub count: u64,
    /// The connection had been let through, and was refused by what came over it.
    pub late: bool,
}

impl Attempt {
    /// Whether the rules let it through, as far as this line knows: also in report mode, and where it then failed.
    pub fn is_let_through(&self) -> bool {
        is_let_through(self.verdict, self.reason)
    }
}

/// Whether the rules let an attempt with this decision through. One that is taken back later was let through as well.
pub(crate) fn is_let_through(verdict: Verdict, reason: Reason) -> bool {
    match verdict {
        Verdict::Allow | Verdict::WouldDeny => true,
        Verdict::Error => {
            matches!(reason, Reason::DnsEmpty | Reason::ResolveError | Reason::ConnectError | Reason::Timeout)
        }
        Verdict::Deny => false,
    }
}

/// Whether what came over the connection shows that it was not for this host, so that letting it through was in vain. A
/// budget that ran out shows nothing of the kind.
pub(crate) fn is_taken_back(late: bool, verdict: Verdict, reason: Reason) -> bool {
    late && verdict == Verdict::Deny && reason != Reason::BudgetBytes
}

impl Record {
    /// The attempt that this line tells of; `None` where it tells of none, of one without host and port, or of one in words
    /// that this version does not know.
    pub fn attempt(&self) -> Option<Attempt> {
        // UDP and the like are let out to nobody, so no rule is about them.
        if self.event != Kind::Decision || self.proto.is_some() {
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

    /// Whether it is the decision of an attempt that was let through.
    pub fn is_let_through(&self) -> bool {
        self.is_decision() && matches!(self.verdict(), Some(Verdict::Allow | Verdict::WouldDeny))
    }

    /// The host that it is about, if that is one.
    pub fn asked_host(&self) -> Option<Host> {
        asked_host(self.host.as_deref()?)
    }
}

/// Reads a host as a record spells it: an IPv6 address stands without its brackets.
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

    fn asked(host: &str) -> Option<String> {
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
            assert_eq!(asked(host).as_deref(), Some(target));
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
            assert_eq!(asked(hostile), None, "{hostile:?}");
        }
    }

    #[test]
    fn what_is_no_attempt_at_a_host_and_port() {
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
    fn what_was_let_through_and_what_was_taken_back() {
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
        // Plain HTTP where TLS is granted is refused at once: nothing was let through that could be taken back.
        assert_eq!(check("deny", "not_tls", ""), (false, false));
        assert_eq!(check("deny", "budget_bytes", ip), (false, false));
    }
}
