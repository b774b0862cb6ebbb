use exeat_policy::{Action, Day, Note, Origin, OwnAddrs, Policy, PolicyBuilder};

use super::*;

fn policy(rules: &[&str]) -> Policy {
    let mut builder = PolicyBuilder::new();
    for rule in rules {
        let origin = Origin::File { path: "/secret/path/policy.toml".into(), line: 3 };
        let note = Note { approved_by: Some("someone@example.com".into()), ..Note::default() };
        builder.add(rule, Action::Allow, origin, note).unwrap();
    }
    builder.build()
}

fn target(text: &str) -> Target {
    Target::parse(text.as_bytes()).unwrap()
}

fn denial(rules: &[&str], asked: &str, answer: Option<&str>) -> Denial {
    match policy(rules).admit(target(asked), Day::from_unix(0)) {
        Err(denial) => denial,
        Ok(admitted) => admitted.vet(&[answer.unwrap().parse().unwrap()], &OwnAddrs::default()).unwrap_err(),
    }
}

fn text(refusal: &Refusal) -> String {
    let run = "01JD8Z3V5QAAAAAAAAAAAAAAAA".parse().unwrap();
    String::from_utf8(refuse(refusal, run, ConnId(7)).into_bytes()).unwrap()
}

#[test]
fn formats_a_denial_as_documented() {
    let text = text(&Refusal::DeniedByPolicy(denial(&[], "api.example.net:443", None)));
    let expected = "HTTP/1.1 403 exeat denied api.example.net:443 (no rule allows it)\r\n\
        Proxy-Status: exeat; error=http_request_denied; details=\"default\"\r\n\
        Content-Type: text/plain; charset=utf-8\r\n\
        Content-Length: 286\r\n\
        Connection: close\r\n\
        \r\n\
        exeat denied api.example.net:443: no rule allows this host.\n\
        This is the sandbox's policy, not an outage. Retrying, unsetting the proxy or using an IP address will not help.\n\
        Whoever starts the run can allow it with:  --allow api.example.net\n\
        Run 01JD8Z3V5QAAAAAAAAAAAAAAAA, connection 7.\n";
    assert_eq!(text, expected);
}

/// The table of lines 1 and 3, and what never goes inside.
#[test]
fn keeps_addresses_paths_and_people_out_of_replies() {
    for (rules, asked, answer, line1, line3) in [
        (
            &["a.test"][..],
            "a.test:8443",
            None,
            "this host is allowed on port 443 only",
            "--allow a.test:8443",
        ),
        (&["a.test", "!a.test"], "a.test:443", None, "a deny rule forbids this host", ""),
        (&["a.test"], "a.test:443", Some("10.2.3.4"), "its address is not public", "An IP rule is needed"),
        (
            &["a.test"],
            "a.test:443",
            Some("169.254.169.254"),
            "its address is cloud metadata, and no name opens it",
            "",
        ),
        (&[], "192.0.2.1:443", None, "no IP rule allows this address", ""),
        (&[], "93.184.215.14:443", None, "no IP rule allows this address", "--allow 93.184.215.14:443"),
    ] {
        let denial = denial(rules, asked, answer);
        if asked.starts_with("192") {
            continue; // the policy decides what documentation addresses get
        }
        let text = text(&Refusal::DeniedByPolicy(denial));
        assert!(text.starts_with(&format!("HTTP/1.1 403 exeat denied {asked} ({line1})\r\n")), "{text}");
        assert!(text.contains(&format!("exeat denied {asked}: {line1}.\n")), "{text}");
        assert!(text.contains(line3), "{text}");
        assert_eq!(text.contains("--allow"), line3.contains("--allow"), "{text}");
        for secret in ["10.2.3.4", "169.254", "/secret", "someone@"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}

#[test]
fn separates_failures_from_denials() {
    for (failure, status) in [
        (Failure::NoSuchName, 502),
        (Failure::Resolver, 502),
        (Failure::ResolverTimeout, 504),
        (Failure::Refused, 502),
        (Failure::ConnectTimeout, 504),
        (Failure::Resources, 503),
    ] {
        let text = text(&Refusal::Failed(target("a.test:443"), failure));
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
        assert!(text.contains("\r\n\r\nexeat could not reach a.test:443: "), "{text}");
        assert!(text.contains("not a policy denial: the policy lets it through.\n"), "{text}");
        assert!(text.contains("Proxy-Status: exeat; error="), "{text}");
        // R01: descriptors become free again.
        assert_eq!(text.contains("\r\nRetry-After: 1\r\n"), failure == Failure::Resources, "{text}");
    }
    let unrecorded = text(&Refusal::NoRecord(target("a.test:443")));
    assert!(unrecorded.contains("details=\"audit_unavailable\""), "{unrecorded}");
    assert!(unrecorded.contains("not a policy denial.\n"), "no word on what a rule says: {unrecorded}");
    assert!(text(&Refusal::Busy).contains("Retry-After: 1\r\n"));
}

/// Every reply is framed: its length is that of the body.
#[test]
fn frames_every_reply() {
    for refusal in every() {
        let text = text(&refusal);
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{text}");
        assert!(body.ends_with("connection 7.\n"));
    }
}

/// Returns one of each kind of refusal, fault and failure.
fn every() -> Vec<Refusal> {
    use Failure::*;
    let to = || target("a.test:443");
    let failures = [
        NoSuchName,
        Resolver,
        ResolverTimeout,
        TooManyAnswers,
        Host,
        Refused,
        NoRoute,
        Reset,
        ConnectTimeout,
        Resources,
        Connect,
        NoResponse,
        BadResponse,
        UpstreamUnresolved,
        UpstreamUnreached,
        UpstreamTimeout,
        UpstreamAuth,
        UpstreamRefused,
        UpstreamAnswer,
    ];
    let faults = [
        Fault::BareCr,
        Fault::TooSlow,
        Fault::TooLarge,
        Fault::Scheme,
        Fault::OtherHostInside,
        Fault::NotForTunnel,
    ];
    let denials = [
        denial(&[], "a.test:443", None),
        denial(&["a.test"], "a.test:8443", None),
        denial(&[], "93.184.215.14:443", None),
        denial(&["a.test"], "a.test:443", Some("10.2.3.4")),
        denial(&["a.test"], "a.test:443", Some("169.254.169.254")),
        denial(&["a.test", "!a.test"], "a.test:443", None),
    ];
    let mut all = vec![
        Refusal::OnlyTls(to()),
        Refusal::NoRecord(to()),
        Refusal::RecordFull(to()),
        Refusal::Crowded(to()),
        Refusal::UsedUp(to()),
        Refusal::Busy,
        Refusal::NoProxy,
    ];
    all.extend(failures.map(|failure| Refusal::Failed(to(), failure)));
    all.extend(faults.map(Refusal::Malformed));
    all.extend(denials.map(Refusal::DeniedByPolicy));
    for refusal in &all {
        // A new refusal does not compile here: add it above, too.
        match refusal {
            Refusal::Malformed(_)
            | Refusal::OnlyTls(_)
            | Refusal::DeniedByPolicy(_)
            | Refusal::Failed(..)
            | Refusal::NoRecord(_)
            | Refusal::RecordFull(_)
            | Refusal::Crowded(_)
            | Refusal::UsedUp(_)
            | Refusal::Busy
            | Refusal::NoProxy => {}
        }
    }
    all
}

/// The published table has a row for each refusal, with its reason, its status and its SOCKS5 code. Both ways of
/// writing HTTP, bytes and hyper, give the same reply.
#[test]
fn documents_every_answer() {
    let page = include_str!("../../../../docs/answers.md");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    for refusal in every() {
        let row = refusal.row();
        let (reason, status, code) =
            (format!("`{}`", row.reason), row.status.to_string(), format!("{:02}", row.socks));
        let is_there = rows.iter().any(|cells| {
            cells[1].contains(&reason)
                && cells[2].starts_with(&status)
                && cells[2].contains("Retry-After") == row.again
                && (cells[3].is_empty() || cells[3].contains(&code))
        });
        assert!(is_there, "{reason} {status} {code}, again {}: {refusal:?}", row.again);

        let run = "01JD8Z3V5QAAAAAAAAAAAAAAAA".parse().unwrap();
        let bytes = text(&refusal);
        let response = refuse(&refusal, run, ConnId(7)).into_response();
        assert!(bytes.starts_with(&format!("HTTP/1.1 {status} ")));
        assert_eq!(response.status().as_u16(), row.status);
        let phrase = response.extensions().get::<ReasonPhrase>().unwrap();
        assert!(bytes.contains(std::str::from_utf8(phrase.as_bytes()).unwrap()));
        for (name, value) in response.headers() {
            let line = format!("\r\n{name}: {}\r\n", value.to_str().unwrap());
            assert!(bytes.to_ascii_lowercase().contains(&line.to_ascii_lowercase()), "{line}");
        }
        assert!(!bytes.contains("  the") && !bytes.contains("   "), "{bytes}");
    }
}
