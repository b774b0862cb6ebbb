//! Hosts that are not granted: the refusal, its reason, and nothing at the origin.

use std::time::Duration;

use e2e::case::{Cases, Cx};
use e2e::dns::Answer;
use e2e::wait_for;

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("deny::curl_is_refused", curl_is_refused);
    list.matrix("deny::h15_nothing_granted", nothing_granted);
    list.matrix("deny::h21_literal", literal);
    list.matrix("deny::d11_direct_attempts", direct_attempts);
    list.matrix("deny::p24_proxy_variables_ignored", proxy_ignored);
    list.bridges("deny::refusal_on_the_wire", refusal_on_the_wire);
    list.bridges("deny::h17_deny_wins", deny_wins);
    list.bridges("deny::h18_other_port", other_port);
    list.bridges("deny::malformed_targets", malformed_targets);
    list.bridges("deny::summary_counts", summary_counts);
    list.once("deny::summary_is_cut_at_ten", summary_is_cut);
    list.once("deny::quiet_says_nothing", quiet);
    list.bridges("deny::denials_file", denials_file);
    list.bridges("deny::refused_connection", refused_connection);
}

/// K49: the exact text of the manual, and the record in its default place.
fn curl_is_refused(cx: &Cx) {
    let bridge = if cx.bridge() == e2e::case::Bridge::Relay { "relay" } else { "handoff" };
    let bridge = format!("sandbox.bridge={bridge}");
    let mut words: Vec<String> = ["run", "--set", &bridge, "--allow"].map(str::to_string).to_vec();
    words.extend([cx.good(), "--".into()]);
    words.extend(cx.curl(&cx.evil_url()));
    let done = cx.exeat_plain(words).run();
    done.exits(56).prints("");
    let said = done.stderr();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{done:?}");
    assert_eq!(lines[0], "curl: (56) CONNECT tunnel failed, response 403");
    assert_eq!(lines[1], "exeat: 1 host denied, 0 reached; the stage exited 56");
    let evil = cx.evil();
    assert_eq!(lines[2], format!("  denied  1x  {evil}:443   no rule allows it   --allow {evil}"));
    let record = lines[3].strip_prefix("exeat: record: exeat audit show ").expect("the way to the record");
    let (run, seal) = record.split_once("  # ").expect("what the record ends with");
    assert!(seal.starts_with("root ") && seal.contains(", ledger "), "{seal}");
    assert_eq!(run.len(), 10, "{run}");

    let shown = cx.exeat_plain(["audit", "show", run]).run();
    shown.exits(0).shows(&evil).shows("deny");
}

/// K7.
fn nothing_granted(cx: &Cx) {
    let done = cx.run(&[], cx.curl(&cx.good_url())).run();
    done.exits(56).says("no rule allows it");
    let log = done.record();
    assert_eq!(log.decision(&cx.good())["reason"], "default");
    assert!(
        cx.bench().dns.queries(&cx.good()).is_empty(),
        "D10: a name is looked up only once it is granted"
    );
    assert!(cx.bench().internet.visits(cx.good_addrs().0).is_empty());
}

/// A name rule does not grant the address of the name, and an address rule does not grant the name.
fn literal(cx: &Cx) {
    let (v4, v6) = cx.good_addrs();
    for target in [format!("{v4}"), format!("[{v6}]")] {
        let done = cx.run(&[&cx.good()], ["curl", "-sSk", &format!("https://{target}/")]).run();
        done.exits(56).says("no IP rule allows this address").says(&format!("--allow {target}"));
        assert_eq!(done.record().events("decision")[0]["reason"], "ip_literal");
    }
    let done = cx.run(&[&v4.to_string()], cx.curl(&cx.good_url())).run();
    done.exits(56).says("no rule allows it");
    for addr in [v4, v6] {
        assert!(cx.bench().internet.visits(addr).is_empty());
    }
}

/// N22, D16: direct attempts reach nobody, and no resolver answers, in either family; without a gateway there is no
/// route at all.
fn direct_attempts(cx: &Cx) {
    let (v4, v6) = cx.good_addrs();
    let own = ["dns-udp 127.0.0.53:53", "dns-tcp 127.0.0.53:53"].map(|it| format!("{it} {}", cx.evil()));
    let elsewhere = [
        format!("tcp {v4}:443"),
        format!("tcp [{v6}]:443"),
        format!("udp {v4}:443"),
        format!("udp [{v6}]:443"),
        format!("dns-udp {v4}:53 {}", cx.evil()),
        format!("dns-tcp {v4}:53 {}", cx.evil()),
        "dns-udp 8.8.8.8:53 anything.test".into(),
    ];
    let probe = cx.probe();
    let attempts = elsewhere.iter().chain(&own);
    let script: String = attempts.map(|words| format!("{probe} {words}\n")).collect();
    let outside = cx
        .outside(["sh", "-c", &format!("{probe} tcp {v4}:443; {probe} dns-udp 127.0.0.53:53 x.test")])
        .run();
    outside.shows("ok\nok: code 0");
    // The origin may write its log later.
    let visits = || cx.bench().internet.visits(v4).len();
    wait_for(Duration::from_secs(5), "the visit from outside", || (visits() == 1).then_some(()));

    for (gateway, refusal, answer) in
        [("on", "ECONNREFUSED", "ok: code 3"), ("off", "ENETUNREACH", "ECONNREFUSED")]
    {
        let good = cx.good();
        let gateway = format!("sandbox.transparent={gateway}");
        let words = ["run", "--set", &gateway, "--allow", &good, "--", "sh", "-c", &script];
        let done = cx.exeat(words).run();
        let said = done.exits(0).stdout();
        let lines: Vec<&str> = said.lines().collect();
        let (out, asked) = lines.split_at(elsewhere.len());
        assert!(out.iter().all(|line| *line == refusal), "{done:?}");
        assert!(asked.len() == own.len() && asked.iter().all(|line| line.starts_with(answer)), "{done:?}");
    }
    assert_eq!(visits(), 1);
    assert!(cx.bench().internet.visits(v6).is_empty());
}

/// D16: neither family gets out without the proxy.
fn proxy_ignored(cx: &Cx) {
    let (v4, v6) = cx.good_addrs();
    let good = cx.good();
    for addr in [v4.to_string(), format!("[{v6}]")] {
        let resolve = format!("{good}:443:{addr}");
        let direct =
            ["curl", "-sS", "--noproxy", "*", "--resolve", &resolve, "--cacert", "ca.pem", &cx.good_url()];
        cx.outside(direct).run().exits(0);
        cx.run(&[&good], direct).run().exits(7);
    }
    cx.sh(&[&good], &format!("unset HTTPS_PROXY https_proxy; curl -sS {}", cx.evil_url())).run().exits(6);
}

/// P22.
fn refusal_on_the_wire(cx: &Cx) {
    let evil = cx.evil();
    let done = cx.probing(&[&cx.good()], &format!("ask {evil}:443")).run();
    let answer = done.exits(0).stdout();
    let (head, body) = answer.split_once("\n\n").expect("head and body");
    let mut fields = head.lines();
    assert_eq!(
        fields.next(),
        Some(format!("HTTP/1.1 403 exeat denied {evil}:443 (no rule allows it)").as_str())
    );
    let fields: Vec<String> = fields.map(str::to_ascii_lowercase).collect();
    for field in [
        "proxy-status: exeat; error=http_request_denied; details=\"default\"",
        "content-type: text/plain; charset=utf-8",
        "connection: close",
    ] {
        assert!(fields.iter().any(|known| known == field), "no `{field}` in {head}");
    }
    let lines: Vec<&str> = body.lines().collect();
    assert_eq!(lines[0], format!("exeat denied {evil}:443: no rule allows this host."), "{body}");
    assert_eq!(
        lines[1],
        "This is the sandbox's policy, not an outage. Retrying, unsetting the proxy or using an IP address will not help."
    );
    assert_eq!(lines[2], format!("Whoever starts the run can allow it with:  --allow {evil}"));
    assert!(lines[3].starts_with("Run ") && lines[3].ends_with(", connection 1."), "{}", lines[3]);
}

/// K8.
fn deny_wins(cx: &Cx) {
    let good = cx.good();
    let deny = format!("!{good}");
    for rules in [[good.as_str(), deny.as_str()], [deny.as_str(), good.as_str()]] {
        let done = cx.probing(&rules, &format!("ask {good}:443")).run();
        done.shows("a deny rule forbids this host").says("denied by --");
        assert!(!done.stderr().contains("--allow allowed"), "a deny rule gets no flag: {done:?}");
        assert_eq!(done.record().decision(&good)["reason"], "deny_rule");
    }
    let done = cx
        .exeat(["run", "--allow", &good, "--deny", &good, "--", cx.probe(), "ask", &format!("{good}:443")])
        .run();
    done.shows("HTTP/1.1 403 ");
}

fn other_port(cx: &Cx) {
    let good = cx.good();
    let done = cx.probing(&[&good], &format!("ask {good}:8443")).run();
    done.shows("HTTP/1.1 403 ").shows("this host is allowed on port 443 only");
    done.says("allowed on 443 only").says(&format!("--allow {good}:8443"));
}

/// H03, H04, H05, H07, H12, H19: each gets 400, without a lookup.
fn malformed_targets(cx: &Cx) {
    let good = cx.good();
    let targets = [
        "evil.test\\x00.%:443",
        "%",
        "%:0",
        "%:65979",
        "%:443/",
        "user@%:443",
        "[%]:443",
        "127.1:443",
        "0x7f.1:443",
        "[::1%25lo]:443",
        "017700000001:443",
        "%:+443",
        "http://%:443",
        "*:443",
        "%..:443",
    ];
    let lines: Vec<String> = targets.iter().map(|target| target.replace('%', &good)).collect();
    cx.write("targets", &lines.join("\n"));
    let done = cx.probing(&[&format!("{good}:*")], "ask-all targets").run();
    done.exits(0).prints(&"400\n".repeat(targets.len()));
    let log = done.record();
    let decisions = log.events("decision");
    assert_eq!(decisions.len(), targets.len());
    for decision in decisions {
        assert_eq!(
            (&decision["verdict"], &decision["reason"]),
            (&"deny".into(), &"malformed".into()),
            "{decision}"
        );
    }
    assert!(cx.bench().dns.queries(&good).is_empty());
}

/// The summary has a line per host, with counts, and the most important one last.
fn summary_counts(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let inner = cx.name("wiki", Answer::Addrs(vec!["10.2.3.4".parse().expect("an address")]));
    let gone = cx.name("files", Answer::NxDomain);
    let targets = [
        &format!("{evil}:443"),
        &format!("{evil}:443"),
        &format!("{good}:8443"),
        &format!("{inner}:443"),
        &format!("{gone}:443"),
        &format!("{good}:443"),
    ];
    cx.write("targets", &targets.map(String::as_str).join("\n"));
    let probe = cx.probe();
    let done = cx.sh(&[&good, &inner, &gone], &format!("{probe} ask-all targets; exit 1")).run();
    done.exits(1).prints("403\n403\n403\n403\n502\n200\n");
    let said = done.stderr();
    let lines: Vec<String> =
        said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines[0], "exeat: 3 hosts denied, 1 failed, 1 reached; the stage exited 1", "{said}");
    for line in [
        format!("denied 2x {evil}:443 no rule allows it --allow {evil}"),
        format!("denied 1x {good}:8443 allowed on 443 only --allow {good}:8443"),
        format!("denied 1x {inner}:443 resolves to 10.2.3.4 (private) --allow 10.2.3.4:443"),
        format!("failed 1x {gone}:443 DNS: no such name (not a policy denial)"),
    ] {
        assert!(lines.contains(&line), "no `{line}` in\n{said}");
    }
    assert!(lines.last().is_some_and(|line| line.starts_with("exeat: record: ")), "{said}");
    assert_eq!(lines.len(), 6, "{said}");
}

fn summary_is_cut(cx: &Cx) {
    let targets: Vec<String> = (0..17).map(|n| format!("n{n}.{}:443", cx.evil())).collect();
    cx.write("targets", &targets.join("\n"));
    let done = cx.probing(&[], "ask-all targets").run();
    done.says("exeat: 17 hosts denied, 0 reached; the stage exited 0")
        .says("... and 7 more: exeat audit show ");
    done.says("--verdict deny");
    assert_eq!(done.stderr().matches("  denied ").count(), 10, "{done:?}");
}

fn quiet(cx: &Cx) {
    let mut words = vec!["run".to_string(), "--quiet".into(), "--".into()];
    words.extend([cx.probe().into(), "ask".into(), format!("{}:443", cx.evil())]);
    cx.exeat(words).run().exits(0).shows("403").silent();
}

/// K42: the stage may see the target, reason and flag of its refusals, but no address or path.
fn denials_file(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let inner = cx.name("wiki", Answer::Addrs(vec!["10.2.3.4".parse().expect("an address")]));
    cx.write("targets", &format!("{evil}:443\n{inner}:443\n"));
    let script = format!(
        "{} ask-all targets >seen; cat \"$EXEAT_DENIALS\"; echo forged >>\"$EXEAT_DENIALS\"",
        cx.probe()
    );
    let done = cx.sh(&[&good, &inner], &script).run();
    let text = done.stdout();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].to_string().contains(&evil) && lines[0].to_string().contains("default"), "{text}");
    assert!(lines[1].to_string().contains("private_ip"), "{text}");
    assert!(!text.contains("10.2.3.4"), "a resolved address went inside: {text}");
    assert!(done.stderr().contains("ead-only file system"), "the stage wrote to the file: {done:?}");
}

/// A port without a listener is a failure, not a refusal.
fn refused_connection(cx: &Cx) {
    let good = cx.good();
    let done = cx.probing(&[&format!("{good}:9")], &format!("ask {good}:9")).run();
    done.shows("HTTP/1.1 502 ")
        .shows(&format!("exeat could not reach {good}:9"))
        .says("(not a policy denial)");
    let log = done.record();
    assert_eq!(log.decision(&good)["verdict"], "allow");
    assert_eq!(log.close_of(log.decision(&good))["ended_by"], "error");
}
