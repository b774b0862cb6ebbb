//! Runs with an upstream proxy: a second `exeat proxy` on the host, which looks names up by itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use e2e::audit::AuditLog;
use e2e::case::{Cases, Cx};
use e2e::run::Live;
use e2e::wait_for;
use nix::sys::signal::Signal;

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("upstream::k36_d10_a_run_through_the_company_s_proxy", through);
    list.matrix("upstream::k49_exceptions_and_no_fallback", exceptions);
    list.users("upstream::a03_p13_no_credential_comes_near_the_stage", secrets);
    list.once("upstream::k36_policies_know_of_it", policies);
    list.users("upstream::l15_a_ceiling_bounds_the_upstream_proxy", bounded);
    list.once("upstream::l15_a_reload_within_a_narrower_ceiling", narrowed);
    list.once("upstream::h16_a_reload_names_no_other_proxy", reloaded);
}

/// The deadline for something that should take a second.
const SOON: Duration = Duration::from_secs(15);

/// A password that must not appear anywhere, and its form on the wire.
const SECRET: &str = "hunter2-of-upstream";
const CODED: &str = "dXNlcjpodW50ZXIyLW9mLXVwc3RyZWFt";

/// The company's proxy: on the host's loopback, with a separate policy.
struct Company<'a> {
    live: Live<'a>,
    url: String,
    record: PathBuf,
    said: PathBuf,
}

impl<'a> Company<'a> {
    fn start(cx: &'a Cx, words: &[&str]) -> Self {
        let said = cx.home().join("company.said");
        let record = cx.home().join("company.jsonl");
        let audit = record.display().to_string();
        let flags = ["proxy", "--listen", "tcp:127.0.0.1:0", "--audit", &audit];
        let words = flags.into_iter().chain(words.iter().copied());
        let live = cx.exeat_plain(words).redirect(&format!("2>{}", said.display())).start();
        let url = wait_for(SOON, "the company's proxy", || {
            let said = fs::read_to_string(&said).unwrap_or_default();
            let place = said.lines().find_map(|line| line.split_once("listening on tcp:"))?.1;
            Some(format!("http://{}", place.split(';').next()?))
        });
        Self { live, url, record, said }
    }

    fn place(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    fn end(self) -> AuditLog {
        self.live.signal(Signal::SIGTERM);
        self.live.wait().exits(0);
        AuditLog::read(&self.record)
    }
}

fn get(url: &str) -> String {
    format!("curl -sS -o /dev/null --max-time 20 --cacert ca.pem {url}")
}

/// Returns the number of connections to the granted host, in either family.
fn visits(cx: &Cx) -> usize {
    let (v4, v6) = cx.good_addrs();
    [v4, v6].iter().map(|addr| cx.bench().internet.visits(*addr).len()).sum()
}

/// K36, D10, D15: allowed targets go through the upstream proxy, which alone looks them up; denied ones never reach it,
/// although it would allow them. The record names it in every decision.
fn through(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let company = Company::start(cx, &["--allow", &format!("{good}:80,443"), "--allow", &evil]);
    let script = format!(
        "{} && {} && ! {} 2>/dev/null",
        get(&cx.good_url()),
        get(&format!("http://{good}/")),
        get(&cx.evil_url())
    );
    let rule = format!("{good}:80,443");
    let flags = ["run", "--upstream-proxy", &company.url, "--allow", &rule, "--", "sh", "-c", &script];
    let done = cx.exeat(flags).run();
    done.exits(0).says(&format!("exeat: note: names go through the upstream proxy {}", company.place()));
    let asked: Vec<_> = cx.bench().dns.queries(&good);
    assert!(asked.len() <= 4, "each of two connections is looked up once, in both families: {asked:?}");
    assert_eq!(visits(cx), 2);

    let log = done.record();
    log.sound();
    assert_eq!(log.events("run_start")[0]["upstream"], company.place());
    for decision in log.decisions(&good) {
        assert_eq!((&decision["verdict"], &decision["upstream"]), (&"allow".into(), &company.place().into()));
        assert!(decision.get("ips").is_none() && decision.get("dns_us").is_none(), "{decision}");
        assert_eq!(log.close_of(decision)["ip"], "127.0.0.1");
    }
    assert_eq!(log.close_of(log.decisions(&good)[0])["sni_ok"], true, "checked as without it");
    assert_eq!(log.decision(&evil)["verdict"], "deny");
    assert!(log.decision(&evil).get("upstream").is_none());

    let theirs = company.end();
    assert_eq!(theirs.decisions(&good).len(), 2);
    assert!(theirs.decisions(&evil).is_empty(), "a denied name reached the upstream proxy");
}

/// K49: exceptions go directly, with every address checked; everything else fails if the upstream proxy is unreachable.
fn exceptions(cx: &Cx) {
    // Nothing listens on the discard port of the bench.
    let gone = ["run", "--upstream-proxy", "http://127.0.0.1:9", "--allow", &cx.good()].map(str::to_owned);
    let run = |more: &[&str]| {
        let script = format!("{}; echo ended $?", get(&cx.good_url()));
        let words = gone.iter().map(String::as_str).chain(more.iter().copied());
        cx.exeat(words.chain(["--", "sh", "-c", &script])).run()
    };
    let done = run(&["--set", &format!("network.upstream.bypass=[\".{}\"]", cx.good())]);
    done.exits(0).shows("ended 0");
    let log = done.record();
    let decision = log.decision(&cx.good());
    assert!(decision.get("upstream").is_none() && decision["ips"].is_array(), "{decision}");
    assert_eq!(visits(cx), 1);

    cx.bench().dns.rewind();
    let done = run(&[]);
    done.exits(0).shows("ended 56").says("the upstream proxy cannot be reached");
    assert_eq!(visits(cx), 1, "there is no way around it");
    let log = done.record();
    let error = log.close_of(log.decision(&cx.good()))["error"].clone();
    assert!(error.as_str().is_some_and(|error| error.contains("127.0.0.1:9")), "{error}");
}

/// A03, P13: the stage, the messages and the record do not contain the password, wherever it is stored.
fn secrets(cx: &Cx) {
    let company = Company::start(cx, &["--allow", &cx.good()]);
    let auth = cx.write("auth", &format!("user:{SECRET}\n"));
    let mode = |mode| fs::set_permissions(&auth, fs::Permissions::from_mode(mode)).expect("a mode");
    mode(0o600);
    let with_user = company.url.replace("http://", &format!("http://user:{SECRET}@"));
    let look = format!("{}; env; cat auth; cat /proc/*/environ /proc/*/cmdline; true", get(&cx.good_url()));
    for flags in [
        &["--upstream-proxy", &company.url, "--set", "network.upstream.auth=file:auth"][..],
        &[
            "--upstream-proxy",
            &company.url,
            "--set",
            "network.upstream.auth=file:auth",
            "--ro",
            "auth",
            "--fs",
            "host",
        ],
        &["--upstream-proxy", &company.url, "--set", "network.upstream.auth=env:WHO", "--env", "WHO"],
        &["--upstream-proxy", "env", "--env", "https_proxy", "--env", "HTTPS_PROXY"],
    ] {
        if !flags.contains(&"network.upstream.auth=file:auth") {
            // The visibility of unrelated files is tested elsewhere.
            let _ = fs::remove_file(&auth);
        }
        let run = |command: &[&str], tail: &[&str]| {
            let words = command.iter().chain(flags).chain(&["--allow"]).copied();
            let good = cx.good();
            let words: Vec<String> =
                words.chain([good.as_str()]).chain(tail.iter().copied()).map(str::to_owned).collect();
            let run = cx.exeat(words).env("WHO", &format!("user:{SECRET}")).env("RUST_LOG", "trace");
            run.env("https_proxy", &with_user).env("HTTPS_PROXY", &with_user).run()
        };
        let hides = |text: &str| {
            assert!(!text.contains(SECRET) && !text.contains(CODED), "{flags:?}: {text}");
        };
        let done = run(&["run"], &["--", "sh", "-c", &look]);
        done.exits(0);
        hides(&done.stdout());
        hides(&done.stderr());
        hides(&format!("{:?}", done.record().records()));
        assert_eq!(done.record().decision(&cx.good())["upstream"], company.place(), "{done:?}");
        for words in [&["run", "--dry-run"][..], &["run", "--dry-run", "--format", "json"]] {
            let done = run(words, &["--", "true"]);
            done.exits(0).shows(company.place());
            hides(&done.stdout());
            hides(&done.stderr());
        }
        if !flags.contains(&"--ro") {
            let done = run(&["env"], &[]);
            done.exits(0).shows(company.place());
            hides(&done.stdout());
            hides(&done.stderr());
        }
    }
    // A password in the wrong place is refused and not repeated.
    cx.write("auth", &format!("user:{SECRET}\n"));
    mode(0o640);
    for flags in [
        &["--upstream-proxy", &company.url, "--set", "network.upstream.auth=file:auth"][..],
        &["--upstream-proxy", &with_user],
        &["--upstream-proxy", &company.url, "--set", &format!("network.upstream.auth=user:{SECRET}")],
    ] {
        let done = cx.exeat(["run"].iter().chain(flags).chain(&["--", "true"]).copied()).run();
        done.exits(2);
        assert!(!done.stderr().contains(SECRET), "{}", done.stderr());
    }
    let theirs = fs::read_to_string(&company.said).expect("what the company's proxy said");
    assert!(!theirs.contains(SECRET));
    let log = company.end();
    assert_eq!(log.decisions(&cx.good()).len(), 4);
    assert!(!format!("{:?}", log.records()).contains(SECRET));
}

/// K36: commands that read policies know which names the upstream proxy resolves; nothing is looked up for them.
fn policies(cx: &Cx) {
    let text = format!(
        "[network]\nallow = [{:?}]\ndeny = [\"10.0.0.0/8\"]\n[network.upstream]\nproxy = \"http://proxy.test:3128\"\n",
        cx.good()
    );
    cx.write("policy.toml", &text);
    cx.exeat(["policy", "lint", "policy.toml"]).run().exits(1).shows("[upstream]").shows("`10.0.0.0/8`");
    cx.exeat(["policy", "show", "policy.toml"])
        .run()
        .exits(0)
        .shows("through the upstream proxy proxy.test:3128");
    let target = format!("{}:443", cx.good());
    let check = cx.exeat(["check", "--resolve", "--policy", "policy.toml", &target]).run();
    check.exits(0).says("names are left to the upstream proxy proxy.test:3128");
    assert!(cx.bench().dns.queries(&cx.good()).is_empty(), "{:?}", cx.bench().dns.queries(&cx.good()));

    // H16: a ceiling's upstream proxy holds.
    cx.write("ceiling.toml", &text);
    let run = |flags: &[&str]| {
        let words =
            ["run", "--ceiling", "ceiling.toml"].iter().chain(flags).chain(&["--dry-run", "--", "true"]);
        cx.exeat(words.copied()).run()
    };
    run(&[]).exits(0).shows("upstream     proxy.test:3128");
    for flags in [&["--upstream-proxy", "none"][..], &["--upstream-proxy", "http://other.test:3128"]] {
        run(flags).exits(2).says("sets the upstream proxy proxy.test:3128");
    }
}

/// H16: a changed file cannot redirect a running proxy.
fn reloaded(cx: &Cx) {
    let file = cx.home().join("policy.toml");
    let text = |proxy: &str| format!("[network]\nallow = []\n[network.upstream]\nproxy = \"{proxy}\"\n");
    fs::write(&file, text("http://proxy.test:3128")).expect("a policy");
    let company = Company::start(cx, &["--policy", file.to_str().expect("ASCII")]);
    fs::write(&file, text("http://other.test:3128")).expect("a change");
    wait_for(SOON, "a refusal", || {
        let said = fs::read_to_string(&company.said).unwrap_or_default();
        said.contains("the policy stays as it was: it names another upstream proxy").then_some(())
    });
    let notes = company.end();
    assert!(notes.events("note")[0]["error"].as_str().is_some_and(|error| error.contains("upstream")));
}

/// L15: every ceiling must allow a run's upstream proxy; otherwise nothing is sent there.
fn bounded(cx: &Cx) {
    let company = Company::start(cx, &["--allow", &cx.good()]);
    let good = cx.good();
    cx.write("ceiling.toml", &format!("[network]\nallow = [{good:?}]\n"));
    cx.write("both.toml", &format!("[network]\nallow = [{good:?}, {:?}]\n", company.place()));
    let upstream = format!("[network.upstream]\nproxy = {:?}\n", company.url);
    cx.write("policy.toml", &format!("[network]\nallow = [{good:?}]\n{upstream}"));
    cx.write("own.toml", &format!("[network]\nallow = [{good:?}]\n{upstream}"));
    let script = get(&cx.good_url());
    let run = |ceilings: &[&str], flags: &[&str]| {
        let ceilings = ceilings.iter().flat_map(|ceiling| ["--ceiling", ceiling]);
        let words = ["run"].into_iter().chain(ceilings).chain(flags.iter().copied());
        cx.exeat(words.chain(["--", "sh", "-c", &script])).env("https_proxy", &company.url).run()
    };
    let flag = ["--allow", &good, "--upstream-proxy", &company.url];
    let env = ["--allow", &good, "--upstream-proxy", "env"];
    for flags in [&flag[..], &env, &["--policy", "policy.toml"]] {
        for ceilings in [&["ceiling.toml"][..], &["both.toml", "ceiling.toml"], &["own.toml", "ceiling.toml"]]
        {
            let done = run(ceilings, flags);
            done.exits(2).says(company.place()).says("the ceiling ceiling.toml does not allow");
        }
        run(&["both.toml"], flags).exits(0);
        run(&["own.toml"], flags).exits(0);
    }
    run(&["own.toml", "ceiling.toml"], &["--allow", &good]).exits(2).says("ceiling.toml does not allow");
    let listen = ["proxy", "--listen", "unix:socket", "--ceiling", "ceiling.toml", "--policy", "policy.toml"];
    cx.exeat_plain(listen).run().exits(2).says("the ceiling ceiling.toml does not allow");
    assert_eq!(company.end().decisions(&good).len(), 6, "only what the ceilings allow came there");
}

/// L15: if a ceiling stops allowing the upstream proxy, the new policy is rejected with a reason.
fn narrowed(cx: &Cx) {
    let ceiling = cx.home().join("ceiling.toml");
    let allow = |more: &str| format!("[network]\nallow = [\"a.test\"{more}]\n");
    fs::write(&ceiling, allow(", \"proxy.test:3128\"")).expect("a ceiling");
    let at = ceiling.to_str().expect("ASCII");
    let company = Company::start(cx, &["--ceiling", at, "--upstream-proxy", "http://proxy.test:3128"]);
    fs::write(&ceiling, allow("")).expect("a change");
    wait_for(SOON, "a refusal", || {
        let said = fs::read_to_string(&company.said).unwrap_or_default();
        said.contains("the policy stays as it was: the upstream proxy proxy.test:3128").then_some(())
    });
    company.end();
}
