use super::*;

fn parse_plain(text: &str) -> Result<RuleSpec, RuleError> {
    text.parse()
}

/// Checks that the text loads with this canonical spelling, which loads as the same rule.
fn check(text: &str, canonical: &str) {
    let spec = parse_plain(text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(spec.to_string(), canonical, "{text}");
    assert_eq!(parse_plain(canonical), Ok(spec), "{canonical}");
}

/// Checks that the text does not load, with this part as the fault and this guess.
fn check_fault(text: &str, marked: &str, meant: Option<&str>) {
    let error = parse_plain(text).map(|spec| panic!("{text} loads as {spec}")).unwrap_err();
    assert_eq!(text.get(error.span()), Some(marked), "{text}: {}", error.fault());
    assert_eq!(error.suggestion(), meant, "{text}: {}", error.fault());
    if let Some(meant) = meant {
        assert!(parse_plain(meant).is_ok(), "{meant}");
    }
}

/// K14: canonical spellings.
#[test]
fn rules_and_their_canonical_spelling() {
    check("api.example.com", "api.example.com:443");
    check("API.Example.COM.", "api.example.com:443");
    check("!api.example.com", "!api.example.com:*");
    check("!api.example.com:443", "!api.example.com:443");
    check("api.example.com:*", "api.example.com:*");
    check("api.example.com:8443,443,443", "api.example.com:443,8443");
    check("api.example.com:8000-8100,8101", "api.example.com:8000-8101");
    check("api.example.com:1-65535", "api.example.com:*");
    check("*.example.com", "*.example.com:443");
    check("*.Example.com.:80", "*.example.com:80");
    check("localhost:8080", "localhost:8080");
    check("93.184.215.14", "93.184.215.14:443");
    check("93.184.215.14/32:*", "93.184.215.14:*");
    check("10.0.0.0/8:5432", "10.0.0.0/8:5432");
    check("0.0.0.0/0", "0.0.0.0/0:443");
    check("[::1]:8080", "[::1]:8080");
    check("[2606:2800:021F::0001]", "[2606:2800:21f::1]:443");
    check("[2606:2800::/32]:8443", "[2606:2800::/32]:8443");
    check("[::1/128]", "[::1]:443");
    check("![::/0]", "![::/0]:*");
    check("[::ffff:10.0.0.1]:443", "[::ffff:10.0.0.1]:443");
    check("xn--bcher-kva.example", "xn--bcher-kva.example:443");
    // A deny wildcard may have any width.
    check("!*.com", "!*.com:*");
    check("!*.github.io:443", "!*.github.io:443");
    // Wildcards with one owner, also inside shared space.
    check("*.bucket.s3.amazonaws.com", "*.bucket.s3.amazonaws.com:443");
    check("*.someone.github.io", "*.someone.github.io:443");
    check("*.example.co.uk", "*.example.co.uk:443");
    check("*.datadoghq.com", "*.datadoghq.com:443");
}

/// H03, H05, H06, H07, H10, H11, H12, H14, H19, X02: texts that are not a rule, or are too wide.
#[test]
fn locates_rule_faults_and_guesses() {
    for (text, marked, meant) in [
        ("", "", None),
        ("!", "!", None),
        ("!!a.com", "!", Some("!a.com")),
        (" a.com", " ", Some("a.com")),
        ("a.com\n", "\n", Some("a.com")),
        ("a.com b.com", " ", None),
        ("\"a.com\"", "\"", Some("a.com")),
        ("a.com,", ",", Some("a.com")),
        ("a.com,b.com", ",", None),
        ("https://api.example.com/x", "https://", Some("api.example.com")),
        ("http://api.example.com", "http://", Some("api.example.com:80")),
        ("https://api.example.com:8443/x?y#z", "https://", Some("api.example.com:8443")),
        ("https://user:pw@api.example.com/x", "https://", Some("api.example.com")),
        ("ftp://[::1]/x", "ftp://", Some("[::1]")),
        ("api.example.com/v1", "/v1", Some("api.example.com")),
        ("//api.example.com", "//api.example.com", Some("api.example.com")),
        ("api.example.com?x", "?x", Some("api.example.com")),
        ("user@example.com", "user@", Some("example.com")),
        // H10, H11, H12: bytes that no host has.
        ("b\u{fc}cher.example", "\u{fc}", None),
        ("example\u{3002}com", "\u{3002}", Some("example.com")),
        ("ex%61mple.com", "%", None),
        ("under_score.example.com", "_", None),
        ("example..com", "", Some("example.com")),
        (".example.com", "", Some("*.example.com")),
        ("-a.example.com", "-a", None),
        ("a-.example.com", "a-", None),
        ("xn--.example", "xn--", None),
        ("*", "*", None),
        ("*x.com", "*", Some("*.x.com")),
        ("a.*.com", "*", None),
        ("example.*", "*", None),
        ("**.example.com", "*", Some("*.example.com")),
        ("*.*.example.com", "*", Some("*.example.com")),
        ("*.", "", None),
        ("*.com", "*.com", None),
        ("*.co.uk", "*.co.uk", None),
        ("*.test", "*.test", None),
        ("*com", "*", None),
        ("*.github.io", "*.github.io", None),
        ("*.s3.amazonaws.com", "*.s3.amazonaws.com", None),
        ("*.amazonaws.com", "*.amazonaws.com", None),
        ("*.us-east-1.amazonaws.com", "*.us-east-1.amazonaws.com", None),
        ("*.compute.amazonaws.com", "*.compute.amazonaws.com", None),
        ("*.blob.core.windows.net", "*.blob.core.windows.net", None),
        ("*.googleapis.com.", "*.googleapis.com.", None),
        ("*.kawasaki.jp", "*.kawasaki.jp", None),
        // H05, H06: spellings that a resolver would take for an address.
        ("127.1", "1", None),
        ("2130706433", "2130706433", None),
        ("0x7f.0.0.1", "1", None),
        ("127.0.0.01", "01", None),
        ("256.0.0.1", "1", None),
        ("127.0.0.1.", "1", None),
        ("*.0.0.1", "1", None),
        ("10.0.0.*", "*", Some("10.0.0.0/24")),
        ("10.1.*.*:5432", "*", Some("10.1.0.0/16:5432")),
        ("10.0.0.0/33:443", "33", None),
        ("10.0.0.0/:443", "", None),
        ("10.0.0.0/08", "08", Some("10.0.0.0/8")),
        ("10.0.0.0/-1", "-1", None),
        ("10.0.0.0/8/8", "8/8", None),
        ("10.0.0.0/255.0.0.0", "255.0.0.0", None),
        ("10.0.0.5/8:443", "10.0.0.5/8", Some("10.0.0.0/8:443")),
        ("[2606:2800::1/32]", "2606:2800::1/32", Some("[2606:2800::/32]")),
        ("[::1/129]", "129", None),
        ("[::1/]", "", None),
        // H03, H07: brackets.
        ("::1", "::1", Some("[::1]")),
        ("::1:8080", "::1:8080", Some("[::1]:8080")),
        ("2001:db8::53", "2001:db8::53", Some("[2001:db8::53]")),
        ("2001:db8::/32", "2001:db8::/32", Some("[2001:db8::/32]")),
        ("[2001:db8::]/32", "/32", Some("[2001:db8::/32]")),
        ("[::1", "[::1", None),
        ("[::1]443", "443", Some("[::1]:443")),
        ("[127.0.0.1]:443", "127.0.0.1", Some("127.0.0.1:443")),
        ("[example.com]", "example.com", None),
        ("[fe80::1%eth0]:443", "fe80::1%eth0", Some("[fe80::1]:443")),
        ("[]", "", None),
        // H19: ports.
        ("a.example.com:", "", Some("a.example.com")),
        ("a.example.com:0", "0", None),
        ("a.example.com:65536", "65536", None),
        ("a.example.com:0443", "0443", Some("a.example.com:443")),
        ("a.example.com:https", "https", Some("a.example.com:443")),
        ("a.example.com:443,", "", Some("a.example.com:443")),
        ("a.example.com:443,,80", "", None),
        ("a.example.com:8100-8000", "8100-8000", Some("a.example.com:8000-8100")),
        ("a.example.com:0-65535", "0-65535", None),
        ("a.example.com:443,*", "*", Some("a.example.com:*")),
        ("a.example.com:443 ,80", " ", Some("a.example.com:443,80")),
        ("a.example.com:80:443", "80:443", None),
        ("a.example.com:+443", "+443", None),
        ("a.example.com:-443", "-443", None),
        ("a.example.com:80-90-100", "80-90-100", None),
    ] {
        check_fault(text, marked, meant);
    }
}

#[test]
fn h20_loads_no_long_names() {
    let label = "a".repeat(64);
    assert!(parse_plain(&format!("{label}.com")).is_err());
    assert!(parse_plain(&"a.".repeat(128)).is_err());
    assert!(parse_plain(&format!("*.{}com", "a.".repeat(126))).is_err());
}

/// H14, X02: a wildcard over strangers loads only if the policy allows it.
#[test]
fn loads_allowed_wildcards() {
    let load = |text: &str, any, shared_suffix| {
        RuleSpec::parse(text, Action::Allow, Allowances { any, shared_suffix }).map(|spec| spec.to_string())
    };
    assert_eq!(load("*", true, false), Ok("*:443".into()));
    assert_eq!(load("*:80,443", true, false), Ok("*:80,443".into()));
    assert!(load("*", false, true).is_err());
    assert_eq!(load("*.github.io", false, true), Ok("*.github.io:443".into()));
    assert_eq!(load("*.com", false, true), Ok("*.com:443".into()));
    assert_eq!(load("*.com", true, false), Ok("*.com:443".into()));
    // No allowance changes the meaning of a wildcard.
    for text in ["*x.com", "a.*.com", "**", "*.*", "*.*.com", "*."] {
        assert!(load(text, true, true).is_err(), "{text}");
    }
}

#[test]
fn accepts_a_deny_rule_for_every_name() {
    for (text, default, shown) in [
        ("*", Action::Deny, "!*:*"),
        ("*:443", Action::Deny, "!*:443"),
        ("!*", Action::Allow, "!*:*"),
        ("!*:80,443", Action::Allow, "!*:80,443"),
    ] {
        let spec = RuleSpec::parse(text, default, Allowances::default());
        assert_eq!(spec.map(|spec| spec.to_string()).as_deref(), Ok(shown), "{text}");
    }
    for text in ["*", "*:443"] {
        let error = text.parse::<RuleSpec>().unwrap_err();
        assert_eq!(error.fault(), &RuleFault::Any, "{text}");
    }
}

#[test]
fn refuses_the_mark_in_a_list_of_deny_rules() {
    let load = |text: &str| RuleSpec::parse(text, Action::Deny, Allowances::default());
    assert_eq!(load("a.example.com").unwrap().to_string(), "!a.example.com:*");
    let error = load("!a.example.com").unwrap_err();
    assert_eq!((error.fault(), error.suggestion()), (&RuleFault::DoubleMark, Some("a.example.com")));
}

/// A01: a hostile rule cannot control the terminal.
#[test]
fn escapes_errors() {
    let error = parse_plain("a\u{1b}[31m.com").unwrap_err();
    assert_eq!(
        error.to_string(),
        "`a\\u{1b}[31m.com` is not a rule: a rule has no spaces and no control characters"
    );
}
