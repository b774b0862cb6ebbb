//! K36, K49: tests the URL, the variable, and the list of exceptions.

use super::*;

fn target(text: &str) -> Target {
    Target::parse(text.as_bytes()).unwrap()
}

fn url(text: &str) -> Result<String, UpstreamFault> {
    text.parse::<UpstreamUrl>().map(|url| url.target().to_string())
}

fn variable(text: &str) -> Result<(String, Option<String>), UpstreamFault> {
    UpstreamUrl::from_variable(text).map(|(url, credentials)| {
        (url.target().to_string(), credentials.map(|bytes| String::from_utf8(bytes).unwrap()))
    })
}

fn no_proxy(text: &str) -> Bypass {
    Bypass::from_variable(text).unwrap().unwrap()
}

fn listed(text: &str) -> Result<Bypass, BypassError> {
    let mut bypass = Bypass::default();
    text.split(',').map(str::trim).try_for_each(|entry| bypass.add(entry)).map(|()| bypass)
}

/// K49 1: a URL with a port.
#[test]
fn k49_upstream_a_url_with_a_port() {
    assert_eq!(url("http://proxy.corp.example:3128"), Ok("proxy.corp.example:3128".into()));
    assert_eq!(url("HTTP://PROXY.corp.example.:3128"), Ok("proxy.corp.example:3128".into()));
}

/// K49 2.
#[test]
fn k49_upstream_a_closing_slash_means_nothing() {
    assert_eq!(url("http://proxy.corp.example:3128/"), Ok("proxy.corp.example:3128".into()));
    assert_eq!(url("http://proxy.corp.example:3128//"), Err(UpstreamFault::Path));
}

/// K49 3: programs disagree on the default port, so one is required.
#[test]
fn k49_upstream_a_port_is_needed() {
    assert_eq!(url("http://proxy.corp.example"), Err(UpstreamFault::NoPort));
    assert_eq!(variable("http://proxy.corp.example/"), Err(UpstreamFault::NoPort));
    for text in
        ["http://proxy.corp.example:0", "http://proxy.corp.example:65536", "http://proxy.corp.example:"]
    {
        assert!(matches!(url(text), Err(UpstreamFault::Target(_))), "{text}");
    }
}

/// K49 4.
#[test]
fn k49_upstream_addresses() {
    assert_eq!(url("http://10.0.0.1:8080"), Ok("10.0.0.1:8080".into()));
    assert_eq!(url("http://[2001:db8::1]:8080"), Ok("[2001:db8::1]:8080".into()));
    for text in ["http://2001:db8::1:8080", "http://[2001:db8::1", "http://0x7f.1:80", "http://1.2.3:80"] {
        assert!(url(text).is_err(), "{text}");
    }
}

/// K49 5: an unsupported scheme is reported as such.
#[test]
fn k49_upstream_other_schemes() {
    assert_eq!(url("https://proxy.corp.example:443"), Err(UpstreamFault::Scheme("https")));
    assert_eq!(url("socks5h://proxy.corp.example:1080"), Err(UpstreamFault::Scheme("socks5h")));
    assert_eq!(variable("SOCKS5://proxy.corp.example:1080"), Err(UpstreamFault::Scheme("socks5")));
    assert_eq!(url("ftp://proxy.corp.example:21"), Err(UpstreamFault::Shape));
    let said = UpstreamFault::Scheme("https").to_string();
    assert!(said.contains("not supported"), "{said}");
}

/// K49 6: the scheme may be missing only in the variable, as in other programs.
#[test]
fn k49_upstream_without_a_scheme() {
    assert_eq!(url("proxy.corp.example:3128"), Err(UpstreamFault::Shape));
    assert_eq!(variable("proxy.corp.example:3128"), Ok(("proxy.corp.example:3128".into(), None)));
}

/// K49 7: no error repeats what could be a password.
#[test]
fn k49_upstream_userinfo_in_the_url_is_refused() {
    for text in ["http://user:hunter2@proxy.corp.example:3128", "http://hunter2@proxy.corp.example:3128"] {
        assert_eq!(url(text), Err(UpstreamFault::Userinfo), "{text}");
    }
    for text in [
        "http://user:hunter2@proxy.corp.example:3128",
        "https://user:hunter2@proxy.corp.example:3128",
        "user:hunter2@proxy.corp.example:3128",
        "http://proxy.corp.example:3128/hunter2",
        "http://proxy.corp.example:hunter2",
        "hunter2://proxy.corp.example:3128",
    ] {
        let error = url(text).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}

/// K49 8.
#[test]
fn k49_upstream_userinfo_in_the_variable() {
    let at = |credentials: &str| Ok(("proxy.corp.example:3128".to_owned(), Some(credentials.to_owned())));
    assert_eq!(variable("http://user:hunter2@proxy.corp.example:3128"), at("user:hunter2"));
    assert_eq!(variable("http://u%40d:p%3a%2F%25@proxy.corp.example:3128/"), at("u@d:p:/%"));
    assert_eq!(variable("http://user@proxy.corp.example:3128"), at("user:"));
    assert_eq!(variable("http://u:p@q@proxy.corp.example:3128"), at("u:p@q"));
    for text in [
        "http://u:%0d%0aX@p.example:1",
        "http://u:%4@p.example:1",
        "http://:p@p.example:1",
        "http://a%3ab:p@p.example:1",
    ] {
        assert_eq!(variable(text), Err(UpstreamFault::Credentials), "{text}");
    }
}

/// K49 9.
#[test]
fn k49_upstream_nothing_and_garbage() {
    for text in [
        "",
        "http://",
        "http:///",
        "http://:3128",
        "://",
        "http://a b:1",
        "http://a:1\r\nX: y",
        "http://a:1?q",
        "http://a:1#f",
    ] {
        assert!(url(text).is_err() && variable(text).is_err(), "{text:?}");
    }
    assert_eq!(url(&format!("http://{}:1", "a".repeat(5000))), Err(UpstreamFault::Shape));
}

/// K49 10: in the variable a name is also a suffix, as in other programs; in our list it is only itself.
#[test]
fn k49_no_proxy_names() {
    let bypass = no_proxy("corp.example");
    for (host, direct) in [
        ("corp.example:443", true),
        ("a.corp.example:443", true),
        ("a.b.corp.example:80", true),
        ("notcorp.example:443", false),
        ("corp.example.evil.test:443", false),
        ("example:443", false),
    ] {
        assert_eq!(bypass.covers(&target(host)), direct, "{host}");
    }
    let bypass = listed("corp.example").unwrap();
    assert!(bypass.covers(&target("corp.example:443")) && !bypass.covers(&target("a.corp.example:443")));
}

/// K49 11.
#[test]
fn k49_no_proxy_suffixes() {
    for bypass in [no_proxy(".corp.example"), listed(".corp.example").unwrap()] {
        assert!(bypass.covers(&target("corp.example:443")) && bypass.covers(&target("a.b.corp.example:443")));
        assert!(!bypass.covers(&target("xcorp.example:443")));
    }
    for bypass in [no_proxy("*.corp.example"), listed("*.corp.example").unwrap()] {
        assert!(!bypass.covers(&target("corp.example:443")) && bypass.covers(&target("a.corp.example:443")));
    }
    assert_eq!(listed(".10.0.0.1"), Err(BypassError::Suffix));
    assert_eq!(listed(".*.corp.example"), Err(BypassError::Suffix));
}

/// K49 12: `*` is everything in the variable, and a mistake in our list.
#[test]
fn k49_no_proxy_star() {
    assert_eq!(Bypass::from_variable("*"), Ok(None));
    assert_eq!(Bypass::from_variable("a.example, *"), Ok(None));
    assert_eq!(listed("*"), Err(BypassError::All));
    assert_eq!(listed("*:443"), Err(BypassError::All));
    assert_eq!(listed(".*"), Err(BypassError::All));
}

/// K49 13: addresses, networks, ports.
#[test]
fn k49_no_proxy_addresses_and_ports() {
    let bypass =
        no_proxy("10.0.0.0/8,192.0.2.1,::1,[2001:db8::5],2001:db8:1::/48,b.example:8080,[2001:db8::6]:443");
    for (host, direct) in [
        ("10.255.0.1:443", true),
        ("11.0.0.1:443", false),
        ("192.0.2.1:1", true),
        ("192.0.2.2:1", false),
        ("[::1]:443", true),
        ("[2001:db8::5]:443", true),
        ("[2001:db8:1:2::3]:443", true),
        ("[2001:db8:2::3]:443", false),
        ("b.example:8080", true),
        ("x.b.example:8080", true),
        ("b.example:443", false),
        ("[2001:db8::6]:443", true),
        ("[2001:db8::6]:80", false),
        // The addresses of a name are not considered.
        ("ten.example:443", false),
    ] {
        assert_eq!(bypass.covers(&target(host)), direct, "{host}");
    }
}

/// K49 14: case, blanks, empty entries and repeats are accepted; anything invalid is refused.
#[test]
fn k49_no_proxy_spellings() {
    let bypass = no_proxy(" A.Example. ,,b.example\tc.example, a.example ");
    for host in ["a.example:443", "b.example:443", "x.c.example:1"] {
        assert!(bypass.covers(&target(host)), "{host}");
    }
    assert_eq!(bypass.entries().len(), 6, "{bypass}");
    assert_eq!(Bypass::from_variable(""), Ok(Some(Bypass::default())));
    for text in
        ["<local>", "192.168.*", "http://a.example", "a.example/x", "a*.example", "!a.example", "10.0.0.1/8"]
    {
        assert!(Bypass::from_variable(text).is_err(), "{text}");
        assert!(listed(text).is_err(), "{text}");
    }
    assert!(listed("a.example,,b.example").is_err(), "an empty entry of ours is a mistake");
}

/// The proxy's own `localhost` is another machine.
#[test]
fn always_bypasses_localhost() {
    for host in ["localhost:443", "a.localhost:80"] {
        assert!(Bypass::default().covers(&target(host)), "{host}");
    }
    assert!(!Bypass::default().covers(&target("notlocalhost:80")));
}

#[test]
fn bounds_a_bypass() {
    let many = (0..=MAX_BYPASS).map(|n| format!("h{n}.example")).collect::<Vec<_>>().join(",");
    assert_eq!(listed(&many), Err(BypassError::TooMany));
}

#[test]
fn parses_the_place_of_credentials() {
    assert_eq!("file:/x".parse(), Ok(AuthSpec::File(PathSpec::Absolute("/x".into()))));
    assert_eq!("env:PROXY_AUTH".parse(), Ok(AuthSpec::Env("PROXY_AUTH".into())));
    for text in ["user:hunter2", "hunter2", "env:hunter2=x", "env:", "file:", "file:~hunter2", "env:2hunter2"]
    {
        let error = text.parse::<AuthSpec>().unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}

/// P13, A03: invalid credentials are refused, and neither errors nor debug output show any.
#[test]
fn p13_credentials_are_one_line_and_printed_as_stars() {
    let parsed = Credentials::parse(b"Aladdin:open sesame\n").unwrap();
    assert_eq!(parsed.as_bytes(), b"Aladdin:open sesame");
    assert_eq!(format!("{parsed:?}"), "Credentials(***)");
    for good in [&b"u:"[..], b"u:p:q", b"u:p\r\n", "\u{fc}:p".as_bytes()] {
        assert!(Credentials::parse(good).is_ok(), "{good:?}");
    }
    let long = [&b"u:"[..], &[b'x'; MAX_CREDENTIALS]].concat();
    for bad in [&b""[..], b"\n", b"u", b":p", b"u:p\n\n", b"u:p\r\nX: y", b"u:\0", b"u:p\nv:q\n", &long] {
        assert_eq!(Credentials::parse(bad), Err(CredentialsError), "{bad:?}");
    }
}
