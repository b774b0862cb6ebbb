//! Settings for all rules at once, as a run enforces them: report mode, and addresses after a translator.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use e2e::audit::AuditLog;
use e2e::case::{Cases, Cx};
use e2e::dns::Answer;
use e2e::run::Run;

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("terms::report_mode_lets_names_through_and_says_so", report);
    list.matrix("terms::report_mode_enforces_the_rest", enforced);
    list.users("terms::report_mode_that_a_ceiling_forbids", forbidden);
    list.matrix("terms::h08_nat64_is_judged_by_the_address_inside", nat64);
}

fn addr(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Prepares `exeat run FLAGS -- ./probe ask-all targets`, with these targets in the file.
fn asking<'a>(cx: &'a Cx, flags: &[&str], targets: &[&str]) -> Run<'a> {
    cx.write("targets", &targets.iter().map(|target| format!("{target}\n")).collect::<String>());
    cx.exeat([&["run"], flags, &["--", cx.probe(), "ask-all", "targets"]].concat())
}

/// Returns verdict, reason and rule of every decision about a host.
#[track_caller]
fn decided(log: &AuditLog, host: &str) -> (Value, Value, Value) {
    let decisions = log.decisions(host);
    let of = |decision: &Value| ["verdict", "reason", "rule"].map(|key| decision[key].clone());
    let [verdict, reason, rule] = of(decisions.first().unwrap_or_else(|| panic!("nothing about {host}")));
    assert!(decisions.iter().all(|decision| of(decision) == [verdict.clone(), reason.clone(), rule.clone()]));
    (verdict, reason, rule)
}

/// A real client reaches a host that no rule allows; record, result and summary contain it.
fn report(cx: &Cx) {
    let (good, v4) = (cx.good(), cx.spare_addrs(0).0);
    let free = cx.name("free", Answer::Addrs(vec![v4]));
    let curl =
        |name: &str| format!("curl -sS -o /dev/null --max-time 20 --cacert ca.pem https://{name}/ && ");
    let script = format!("{}{}{}true", curl(&free), curl(&good), curl(&free));
    let flags =
        ["run", "--quiet", "--mode", "report", "--allow", &good, "--result", "result.json", "--", "sh", "-c"];
    let done = cx.exeat(flags.into_iter().chain([script.as_str()])).run();
    done.exits(0)
        .says("exeat: note: report mode: names that no rule allows are let through on ports 80 and 443");
    assert_eq!(cx.bench().internet.visits(v4).len(), 2);
    let log = done.record();
    log.sound();
    assert_eq!(decided(&log, &free), (json!("would_deny"), json!("default"), Value::Null));
    assert_eq!(decided(&log, &good), (json!("allow"), json!("rule"), json!(good)));
    assert_eq!(log.close_of(log.decisions(&free)[0])["sni_ok"], true);
    let (start, end) = (log.events("run_start")[0], log.events("run_end")[0]);
    assert_eq!(
        (&start["mode"], &end["allowed"], &end["denied"], &end["would_deny"]),
        (&json!("report"), &json!(1), &json!(0), &json!(2))
    );
    let mut result: Value =
        serde_json::from_slice(&std::fs::read(cx.dir().join("result.json")).expect("result")).expect("JSON");
    // Not every bridge knows who asked.
    if let Some(asked) = result["would_deny"][0].as_object_mut() {
        asked.remove("programs");
    }
    let would = json!([{"host": free, "port": 443, "reason": "default", "count": 2, "allow": [free]}]);
    assert_eq!((&result["denied"], &result["would_deny"]), (&json!([]), &would));

    // The last line, without `--quiet`, and the policy file's key.
    cx.write("policy.toml", "[network]\nmode = \"report\"\n");
    let done =
        cx.exeat(["run", "--policy", "policy.toml", "--", "sh", "-c", &format!("{}true", curl(&free))]).run();
    done.exits(0)
        .says("1 host would be denied, 1 reached")
        .says(&format!("would deny  1x  {free}:443   no rule allows it   --allow {free}"));
    // With the suggested flag, a rule allows it.
    let done = cx
        .exeat([
            "run",
            "--policy",
            "policy.toml",
            "--allow",
            &free,
            "--",
            "sh",
            "-c",
            &format!("{}true", curl(&free)),
        ])
        .run();
    assert_eq!(decided(&done.exits(0).record(), &free).0, "allow");
    // Plain HTTP on port 80 as well.
    let web = format!("http://{free}/");
    let done = cx.exeat(["run", "--policy", "policy.toml", "--", "curl", "-sS", "--fail", &web]).run();
    let log = done.exits(0).says(&format!("{free}:80   no rule allows it   --allow {free}:80")).record();
    assert_eq!(decided(&log, &free), (json!("would_deny"), json!("default"), Value::Null));
    // A flag has the last word.
    let done = asking(cx, &["--policy", "policy.toml", "--mode", "enforce"], &[&format!("{free}:443")]).run();
    done.prints("403\n");
}

/// D01, H17, H18: names and ports, deny rules, addresses, ceilings and TLS names are still enforced.
fn enforced(cx: &Cx) {
    let (v4, _) = cx.spare_addrs(0);
    let free = cx.name("free", Answer::Addrs(vec![v4]));
    let [shut, port] = ["shut", "port"].map(|word| cx.name(word, Answer::Addrs(vec![v4])));
    let inner = cx.name("inner", Answer::Addrs(vec![addr("10.2.3.4")]));
    let meta = cx.name("meta", Answer::Addrs(vec![v4, addr("169.254.169.254")]));
    let targets = [
        format!("{free}:443"),
        format!("{shut}:443"),
        format!("{port}:8443"),
        format!("{port}:22"),
        format!("{v4}:443"),
        format!("{inner}:443"),
        format!("{meta}:443"),
        "localhost:443".into(),
    ];
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let done = asking(cx, &["--mode", "report", "--deny", &shut], &targets).run();
    done.prints("200\n403\n403\n403\n403\n403\n403\n403\n");
    let log = done.record();
    for (host, reason) in [
        (shut.as_str(), "deny_rule"),
        (&port, "default"),
        (&v4.to_string(), "ip_literal"),
        (&inner, "private_ip"),
        (&meta, "metadata_ip"),
    ] {
        assert_eq!(decided(&log, host).0, "deny", "{host}");
        assert_eq!(decided(&log, host).1, reason, "{host}");
    }
    // A target that is refused by its name or port is not looked up.
    assert!(cx.bench().dns.queries(&shut).is_empty() && cx.bench().dns.queries(&port).is_empty());

    // Another name in the hello.
    let seen = cx.bench().internet.visits(v4).len();
    let connect_to = format!("{shut}:443:{free}:443");
    let url = format!("https://{shut}/");
    let done =
        cx.exeat(["run", "--mode", "report", "--", "curl", "-sSk", "--connect-to", &connect_to, &url]).run();
    assert_ne!(done.code, Some(0), "{done:?}");
    let visits = cx.bench().internet.visits(v4);
    assert!(visits[seen..].iter().all(|visit| visit.bytes.load(Ordering::SeqCst) == 0), "{done:?}");

    // A ceiling is not a rule of the grants.
    let site = cx.home().join("site.toml");
    std::fs::write(&site, format!("[network]\nallow = [\"{free}\"]\n")).expect("file");
    let site = site.display().to_string();
    let done = asking(
        cx,
        &["--mode", "report", "--ceiling", &site],
        &[&format!("{free}:443"), &format!("{port}:443")],
    )
    .run();
    done.prints("200\n403\n");
    assert_eq!(done.record().decision(&port)["refused_by"], format!("ceiling {site}"));
    assert_eq!(decided(&done.record(), &free).0, "would_deny");
    assert!(cx.bench().dns.queries(&port).is_empty());
    // Neither is a declaration.
    let effects = json!([{"effect": "NetworkHosts", "hosts": [free]}]).to_string();
    let done = asking(
        cx,
        &["--mode", "report", "--effects", &effects],
        &[&format!("{free}:443"), &format!("{port}:443")],
    )
    .run();
    done.prints("200\n403\n");
    assert_eq!(decided(&done.record(), &free).0, "allow");
}

fn forbidden(cx: &Cx) {
    let site = cx.home().join("site.toml");
    std::fs::write(&site, "[network]\nreport = false\nallow = [\"*.test\"]\nallow_shared_suffix = true\n")
        .expect("file");
    let site = site.display().to_string();
    let flags = ["run", "--mode", "report", "--ceiling", &site, "--", "touch", "started"];
    let done = cx.exeat(flags).run();
    done.exits(2).says(&format!("report mode is forbidden by the ceiling {site}"));
    assert!(!cx.dir().join("started").exists());
}

/// Returns the address by which a translator reaches another one.
fn behind(ip: Ipv4Addr) -> IpAddr {
    let [a, b, c, d] = ip.octets().map(u16::from);
    Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, a << 8 | b, c << 8 | d).into()
}

fn nat64(cx: &Cx) {
    let IpAddr::V4(public) = cx.spare_addrs(0).0 else { panic!("an IPv4 address") };
    let outer = behind(public);
    let name = |word: &str, inner: &str| {
        cx.name(word, Answer::Addrs(vec![behind(inner.parse().expect("an address"))]))
    };
    let free = cx.name("free", Answer::Addrs(vec![outer]));
    let [inner, meta, nobody] =
        [name("inner", "10.2.3.4"), name("meta", "169.254.169.254"), name("nobody", "0.0.0.0")];
    let own = name("own", &e2e::bench::OWN4.to_string());
    let hosts = [&free, &inner, &meta, &nobody, &own];
    let targets: Vec<String> = hosts.iter().map(|host| format!("{host}:443")).collect();
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let mut flags: Vec<&str> = hosts.iter().flat_map(|host| ["--allow", host.as_str()]).collect();

    let done = asking(cx, &flags, &targets).run();
    done.prints("403\n403\n403\n403\n403\n");
    done.says(&format!(
        "resolves to {outer} (NAT64 of {public}; --set network.nat64=true judges the address inside)"
    ));
    assert!(cx.bench().internet.visits(outer).is_empty());

    flags.extend(["--set", "network.nat64=true"]);
    let done = asking(cx, &flags, &targets).run();
    done.prints("200\n403\n403\n403\n403\n");
    done.says("(NAT64 of 10.2.3.4, private)")
        .says("--allow 10.2.3.4:443")
        .says("(NAT64 of 169.254.169.254, cloud metadata)");
    assert!(!done.stdout().contains("10.2.3.4"));
    let log = done.record();
    assert_eq!(log.decision(&free)["ips"], json!([outer.to_string()]));
    assert_eq!(
        log.close_of(log.decision(&free))["ip"],
        outer.to_string(),
        "the dialed address is the answer"
    );
    assert_eq!(decided(&log, &meta).1, "metadata_ip");
    assert_eq!(decided(&log, &own).1, "private_ip");

    // A rule for the embedded address opens it, and a deny rule for either form closes it.
    let opened = asking(cx, &[&flags[..], &["--allow", "10.2.3.4"]].concat(), &targets).run();
    opened.prints("200\n200\n403\n403\n403\n");
    for form in [public.to_string(), format!("[{outer}]")] {
        let done = asking(cx, &[&flags[..], &["--deny", &form]].concat(), &targets[..1]).run();
        done.prints("403\n");
        assert_eq!(decided(&done.record(), &free).1, "deny_rule");
    }
    // A real client, end to end.
    let url = format!("https://{free}/");
    let done = cx
        .exeat(
            [
                &["run", "--set", "network.nat64=true", "--allow", &free, "--"],
                &cx.curl(&url).iter().map(String::as_str).collect::<Vec<_>>()[..],
            ]
            .concat(),
        )
        .run();
    done.exits(0);
    // A bare address needs a rule for it or for the embedded one.
    let literal = format!("[{outer}]:443");
    asking(cx, &["--set", "network.nat64=true"], &[&literal]).run().prints("403\n");
    asking(cx, &["--set", "network.nat64=true", "--allow", &public.to_string()], &[&literal])
        .run()
        .prints("200\n");
    asking(cx, &["--allow", &public.to_string()], &[&literal]).run().prints("403\n");
}
