//! Names and addresses: which resolver is asked, when, and which answers are accepted.

use std::net::IpAddr;
use std::time::Duration;

use e2e::bench::{OWN4, OWN6};
use e2e::case::{Cases, Cx};
use e2e::dns::Answer;

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("dns::d01_private_answer", private_answer);
    list.bridges("dns::d02_rebinding", rebinding);
    list.bridges("dns::d03_mixed_answer", mixed_answer);
    list.bridges("dns::d04_alias_to_private", alias_to_private);
    list.bridges("dns::d06_special_addresses", special_addresses);
    list.bridges("dns::d09_own_address", own_address);
    list.bridges("dns::d10_denied_names_are_not_looked_up", denied_names);
    list.bridges("dns::h22_absolute_names_only", absolute_names_only);
    list.bridges("dns::one_lookup_a_decision", one_lookup);
    list.bridges("dns::failures_are_502", failures);
    list.once("dns::d13_silence_is_504", silence);
    list.once("dns::d13_huge_answer", huge_answer);
    list.once("dns::r08_chains_and_floods", chains_and_floods);
}

fn addr(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Asks for `name:443` with a rule for it.
fn ask(cx: &Cx, name: &str) -> e2e::run::Done {
    cx.probing(&[name], &format!("ask {name}:443")).run()
}

fn private_answer(cx: &Cx) {
    let name = cx.name("inner", Answer::Addrs(vec![addr("10.2.3.4")]));
    let done = ask(cx, &name);
    done.shows("HTTP/1.1 403 ")
        .shows("its address is not public")
        .shows("An IP rule is needed besides the name");
    assert!(!done.stdout().contains("10.2.3.4"), "a resolved address went inside: {done:?}");
    done.says("resolves to 10.2.3.4 (private)").says("--allow 10.2.3.4:443");
    let log = done.record();
    let decision = log.decision(&name);
    assert_eq!(
        (&decision["verdict"], &decision["reason"]),
        (&"deny".into(), &"private_ip".into()),
        "{decision}"
    );
    assert!(decision["ips"].to_string().contains("10.2.3.4"), "{decision}");
}

/// D14: nothing is resolved again between check and dial; the next answer decides about the next request.
fn rebinding(cx: &Cx) {
    let (v4, _) = cx.good_addrs();
    let name = cx.name("turn", Answer::Sequence(vec![vec![v4], vec![addr("127.0.0.1")]]));
    let done =
        cx.sh(&[&format!("{name}:7")], &format!("{0} echo {name}:7 10; {0} ask {name}:7", cx.probe())).run();
    done.shows("ok: 10\nHTTP/1.1 403 ");
    assert_eq!(cx.bench().internet.visits(v4).len(), 1);
}

/// A refused address, at any position, refuses the answer.
fn mixed_answer(cx: &Cx) {
    let (v4, v6) = cx.good_addrs();
    let answers = [
        vec![v4, addr("10.0.0.1")],
        vec![addr("10.0.0.1"), v4],
        vec![v4, addr("::1")],
        vec![addr("127.0.0.1"), v6],
    ];
    for (n, answer) in answers.into_iter().enumerate() {
        let name = cx.name(&format!("mixed{n}"), Answer::Addrs(answer));
        ask(cx, &name).shows("HTTP/1.1 403 ");
    }
    for addr in [v4, v6] {
        assert!(cx.bench().internet.visits(addr).is_empty());
    }
}

/// R08: the addresses at the end of a chain decide; a loop ends.
fn alias_to_private(cx: &Cx) {
    let inner = cx.name("db", Answer::Addrs(vec![addr("10.1.2.3")]));
    let bad = cx.name("alias", Answer::Cname(inner));
    ask(cx, &bad).shows("HTTP/1.1 403 ");
    let edge = cx.name("edge", Answer::Addrs(vec![cx.good_addrs().0]));
    let fine = cx.name("front", Answer::Cname(edge));
    ask(cx, &fine).shows("HTTP/1.1 200 ");
    let loops = cx.name("loop", Answer::NoData);
    cx.bench().dns.set(&loops, Answer::Cname(loops.clone()));
    ask(cx, &loops).shows("HTTP/1.1 502 ");
}

/// The metadata addresses of clouds, also embedded in other addresses.
const METADATA: [&str; 6] =
    ["169.254.169.254", "fd00:ec2::254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "a9fe:a9fe"];

/// D05, D07.
fn special_addresses(cx: &Cx) {
    let special = [
        "0.0.0.0",
        "::",
        "127.0.0.1",
        "::1",
        "169.254.169.254",
        "fd00:ec2::254",
        "168.63.129.16",
        "100.64.0.1",
        "100.100.100.200",
        "192.0.0.192",
        "198.18.0.1",
        "203.0.113.5",
        "224.0.0.251",
        "ff02::fb",
        "255.255.255.255",
        "240.0.0.1",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "fe80::1",
        "fc00::1",
        "fec0::1",
    ];
    let names: Vec<String> = special
        .iter()
        .enumerate()
        .map(|(n, text)| cx.name(&format!("s{n}"), Answer::Addrs(vec![addr(text)])))
        .collect();
    cx.write("targets", &names.iter().map(|name| format!("{name}:443\n")).collect::<String>());
    let rules: Vec<&str> = names.iter().map(String::as_str).collect();
    let done = cx.probing(&rules, "ask-all targets").run();
    let answers = done.stdout();
    let log = done.record();
    for ((text, name), answer) in special.iter().zip(&names).zip(answers.lines()) {
        let decision = log.decision(name);
        // Metadata addresses have a separate reason, and no address rule is suggested.
        let is_metadata = METADATA.iter().any(|it| text.ends_with(it));
        let reason = if is_metadata { "metadata_ip" } else { "private_ip" };
        assert_eq!(
            (answer, &decision["verdict"], &decision["reason"]),
            ("403", &"deny".into(), &reason.into()),
            "{text}: {decision}"
        );
    }
    assert_eq!(answers.lines().count(), special.len(), "{done:?}");
}

/// The host's own addresses are refused, although they are public.
fn own_address(cx: &Cx) {
    for (word, own) in [("own4", IpAddr::from(OWN4)), ("own6", IpAddr::from(OWN6))] {
        let name = cx.name(word, Answer::Addrs(vec![own]));
        let done = ask(cx, &name);
        done.shows("HTTP/1.1 403 ");
        assert_eq!(done.record().decision(&name)["reason"], "private_ip");
    }
}

/// X04: a lookup tells the operator of the name's servers something, so a denied name is not looked up.
fn denied_names(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let targets =
        [format!("secret.{evil}:443"), format!("{good}:444"), format!("x.{good}:443"), format!("{evil}:443")];
    cx.write("targets", &targets.join("\n"));
    cx.probing(&[&good], "ask-all targets").run().prints("403\n403\n403\n403\n");
    assert!(cx.bench().dns.queries(&good).is_empty());
}

/// The resolv.conf of the bench contains `search` and `ndots:5`.
fn absolute_names_only(cx: &Cx) {
    let name = cx.name("gone", Answer::NxDomain);
    ask(cx, &name).shows("HTTP/1.1 502 ");
    let asked_for: Vec<String> =
        cx.bench().dns.queries("gone.case").into_iter().map(|query| query.name).collect();
    assert!(asked_for.contains(&name));
    let mine: Vec<_> = asked_for.iter().filter(|query| query.starts_with(&name) && **query != name).collect();
    assert!(mine.is_empty(), "{mine:?}");
}

fn one_lookup(cx: &Cx) {
    cx.run(&[&cx.good()], cx.curl(&cx.good_url())).run().exits(0);
    let mut kinds: Vec<u16> =
        cx.bench().dns.queries(&cx.good()).into_iter().map(|query| query.kind).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [1, 28], "one A, one AAAA");
}

fn failures(cx: &Cx) {
    let answers = [
        ("nx", Answer::NxDomain, "no such name"),
        ("servfail", Answer::ServFail, ""),
        ("nodata", Answer::NoData, ""),
    ];
    for (word, answer, why) in answers {
        let name = cx.name(word, answer);
        let done = ask(cx, &name);
        done.shows("HTTP/1.1 502 ")
            .shows(&format!("exeat could not reach {name}:443"))
            .says("(not a policy denial)");
        assert!(done.stderr().contains(why), "{done:?}");
        assert_eq!(done.record().decision(&name)["verdict"], "error");
    }
}

/// The resolver does not answer: the client gets 504 within the proxy's limit.
fn silence(cx: &Cx) {
    let name = cx.name("silent", Answer::Silence);
    let done = ask(cx, &name);
    done.shows("HTTP/1.1 504 ");
    assert!(done.took < Duration::from_secs(20), "{done:?}");
}

/// R08: an answer with too many addresses is an error, and no address is used, in particular not the refused one at its
/// end.
fn huge_answer(cx: &Cx) {
    let mut many: Vec<IpAddr> = (1..=70).map(|n| addr(&format!("93.186.0.{n}"))).collect();
    many.push(addr("10.9.9.9"));
    let name = cx.name("many", Answer::Addrs(many.clone()));
    let done = ask(cx, &name);
    done.shows("HTTP/1.1 502 ").says("too many addresses in one answer");
    assert_eq!(done.record().decision(&name)["verdict"], "error");
    assert!(many.iter().all(|addr| cx.bench().internet.visits(*addr).is_empty()));
}

/// R08: an answer of 50 kB over TCP, and chains of aliases, are bounded, and judged by their last addresses.
fn chains_and_floods(cx: &Cx) {
    let many: Vec<IpAddr> =
        (0..1000_u16).map(|n| IpAddr::from([93, 187, n.to_be_bytes()[0], n.to_be_bytes()[1]])).collect();
    let flood = cx.name("flood", Answer::Addrs(many.clone()));
    let done = ask(cx, &flood);
    done.shows("HTTP/1.1 502 ").says("too many addresses");
    assert!(done.took < Duration::from_secs(20), "{done:?}");
    assert!(many.iter().all(|addr| cx.bench().internet.visits(*addr).is_empty()));

    let (v4, _) = cx.good_addrs();
    for (word, end, status) in [("far", addr("10.1.2.3"), 403), ("near", v4, 200), ("flooded", many[0], 502)]
    {
        let answer = if word == "flooded" { Answer::Cname(flood.clone()) } else { Answer::Addrs(vec![end]) };
        let mut next = cx.name(&format!("{word}-end"), answer);
        for hop in 0..5 {
            next = cx.name(&format!("{word}-hop{hop}"), Answer::Cname(next));
        }
        ask(cx, &next).shows(&format!("HTTP/1.1 {status} "));
    }
}
