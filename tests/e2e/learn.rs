//! Lock files, learned policies, and replays of runs under another policy.

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use e2e::case::{Bridge, Cases, Cx};
use e2e::dns::Answer;
use e2e::run::{Done, Run};

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("learn::the_learned_policy_allows_the_same_run_and_no_more", learned);
    list.users("learn::says_what_no_rule_allows_if_the_name_cannot_be_resolved", unresolved);
    list.users("learn::where_the_policy_is_written", written);
    list.users("learn::refuses_flags_with_which_nothing_can_be_learned", refused);
    list.bridges("learn::from_records_of_runs_that_enforced", from_records);
    list.users("learn::another_policy_is_asked_about_a_record", replayed);
    list.users("learn::the_policy_beside_a_record", stored_policy);
    list.matrix("learn::a_lock_refuses_new_targets", locked);
    list.users("learn::a_lock_is_written_from_records", lock_written);
    list.once("learn::a_stage_without_a_lock_does_not_start", lock_missing);
    list.once("learn::a_stage_cannot_write_its_lock", lock_protected);
}

/// Prepares `exeat run FLAGS -- ./probe ask-all targets`, with these targets in the file.
fn asking<'a>(cx: &'a Cx, flags: &[&str], targets: &[&str]) -> Run<'a> {
    cx.write("targets", &targets.iter().map(|target| format!("{target}\n")).collect::<String>());
    cx.exeat([&["run"], flags, &["--", cx.probe(), "ask-all", "targets"]].concat())
}

fn record_of(done: &Done) -> String {
    done.record_path().expect("a record").display().to_string()
}

fn addr(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Prepares `exeat learn FLAGS -- COMMAND`, over the trial's bridge.
fn learn<'a>(cx: &'a Cx, flags: &[&str], command: &[&str]) -> Run<'a> {
    let bridge = if cx.bridge() == Bridge::Relay { "relay" } else { "handoff" };
    cx.exeat([&["learn", "--set", &format!("sandbox.bridge={bridge}")], flags, &["--"], command].concat())
}

/// Returns the rules of a policy file, without its comments.
fn rules_of(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim).filter(|line| line.starts_with('"'));
    lines.map(|line| line.trim_matches(['"', ','].as_slice()).to_owned()).collect()
}

/// A learned policy allows the run that it was learned from, and refuses one more target.
fn learned(cx: &Cx) {
    let (v4, _) = cx.spare_addrs(0);
    let [free, web, more] = ["free", "web", "more"].map(|word| cx.name(word, Answer::Addrs(vec![v4])));
    let inner = cx.name("inner", Answer::Addrs(vec![addr("10.2.3.4")]));
    let shut = cx.name("shut", Answer::Addrs(vec![addr("10.2.3.5")]));
    let good = cx.good();
    let curl = |url: String| format!("curl -sS -o /dev/null --fail --max-time 20 --cacert ca.pem {url} && ");
    let same = format!(
        "{}{}{} ask {good}:7 && {} ask {inner}:443",
        curl(format!("https://{free}/")),
        curl(format!("http://{web}/")),
        cx.probe(),
        cx.probe()
    );
    let script = format!("{same}; {} ask {shut}:443; {} ask {free}:8443; exit 4", cx.probe(), cx.probe());
    let on_7 = format!("{good}:7");
    let flags = ["--allow", &on_7, "--allow", &inner, "--allow", "10.2.3.4", "-o", "learned.toml"];
    let done = learn(cx, &flags, &["sh", "-c", &script]).deadline(Duration::from_secs(90)).run();
    done.exits(4).says("report mode").says("would deny").says("exeat: note: learned policy: learned.toml");
    let text = fs::read_to_string(cx.dir().join("learned.toml")).expect("a policy");
    let mut expected = [
        format!("{free}:443"),
        format!("{web}:80"),
        on_7.clone(),
        format!("{inner}:443"),
        "10.2.3.4:443".into(),
    ];
    expected.sort();
    let mut rules = rules_of(&text);
    rules.sort();
    assert_eq!(rules, expected, "{text}");
    for said in [
        format!("#   \"{free}:8443\",  # 1x default; first"),
        format!("#   {shut}:443  1x private_ip; first"),
        format!("besides \"{shut}:443\" it takes rules for where that leads: \"10.2.3.5:443\" (private)"),
        "  # 1 connection, 1 that no rule allowed\n".to_owned(),
    ] {
        assert!(text.contains(&said), "no {said:?} in\n{text}");
    }
    assert!(!text.contains("tls ="), "{text}");

    let run = |script: &str| cx.exeat(["run", "--policy", "learned.toml", "--", "sh", "-c", script]);
    let done = run(&same).deadline(Duration::from_secs(90)).run();
    done.exits(0);
    let log = done.record();
    assert_eq!(log.events("run_end")[0]["denied"], 0, "{done:?}");
    assert_eq!(log.events("decision").len(), 4, "{done:?}");
    let done =
        run(&format!("{same} && {} ask {more}:443", cx.probe())).deadline(Duration::from_secs(90)).run();
    done.says(&format!("denied  1x  {more}:443"));
    assert_eq!(done.record().events("run_end")[0]["denied"], 1);
}

/// Whether a name can be resolved does not change what the policy says about it.
fn unresolved(cx: &Cx) {
    let gone = cx.name("gone", Answer::NxDomain);
    let script = format!("{} ask {gone}:443; exit 4", cx.probe());
    let done = learn(cx, &["-o", "learned.toml"], &["sh", "-c", &script]).run();
    done.exits(4)
        .says(&format!("would deny  1x  {gone}:443 "))
        .says("DNS: no such name (not a policy denial)");
    let run = cx.exeat(["run", "--mode", "report", "--", "sh", "-c", &script]).run();
    run.exits(4).says(&format!("would deny  1x  {gone}:443 "));
    let log = run.record();
    let decision = log.decision(&gone);
    assert_eq!((&decision["verdict"], &decision["reason"]), (&"would_deny".into(), &"default".into()));
    let close = &log.events("close")[0];
    assert!(close["error"].as_str().is_some_and(|why| why.ends_with("DNS: no such name")), "{close}");
    let end = &log.events("run_end")[0];
    assert_eq!((&end["would_deny"], &end["failed"]), (&1.into(), &1.into()), "{end}");
    let text = fs::read_to_string(cx.dir().join("learned.toml")).expect("a policy");
    assert!(
        text.contains("  # 1 connection, 1 that no rule allowed, 1 that failed: never reached\n"),
        "{text}"
    );
}

/// The policy never overwrites a user's file, follows no link of the stage, and does not go to the stage's stdout.
fn written(cx: &Cx) {
    let good = cx.good();
    let ask = format!("echo mine; {} ask {good}:443", cx.probe());
    let done = learn(cx, &[], &["sh", "-c", &ask]).run();
    done.exits(0).says("exeat: learned policy; --output FILE writes it:\n# Learned from");
    assert!(done.stdout().starts_with("mine\n") && !done.stdout().contains("schema"), "{done:?}");
    done.says(&format!("\n  \"{good}:443\",\n"));

    cx.write("kept.toml", "mine\n");
    learn(cx, &["-o", "kept.toml"], &["touch", "started"])
        .run()
        .exits(2)
        .says("`kept.toml` is there already")
        .says("--force");
    assert!(!cx.dir().join("started").exists());
    learn(cx, &["-o", "kept.toml", "--force"], &["true"]).run().exits(0);
    assert!(fs::read_to_string(cx.dir().join("kept.toml")).expect("a policy").contains("schema = 1"));

    let precious = cx.home().join("precious");
    fs::write(&precious, "mine").expect("a file");
    cx.bench().give(&precious, cx.is_root());
    let link = format!("ln -s {} new.toml", precious.display());
    // Nothing ran, so nothing was learned.
    for (command, code) in [("no-such-command-anywhere", 127), ("/etc", 126)] {
        let done = learn(cx, &["-o", "none.toml"], &[command]).run();
        done.exits(code).says("exeat: note: nothing is learned: the command did not start");
        assert!(!cx.dir().join("none.toml").exists(), "{command}");
    }
    // A run that reached nothing leaves a file that allows nothing, and the next one replaces it.
    let done = learn(cx, &["-o", "empty.toml"], &["true"]).run();
    done.exits(0).says("it allows nothing, as nothing was reached; the next `exeat learn` replaces it");
    learn(cx, &["-o", "empty.toml"], &["sh", "-c", &ask]).run().exits(0);
    assert!(fs::read_to_string(cx.dir().join("empty.toml")).expect("a policy").contains(&good));
    learn(cx, &["-o", "empty.toml"], &["true"]).run().exits(2).says("`empty.toml` is there already");
    learn(cx, &["-o", "new.toml", "--quiet"], &["sh", "-c", &link]).run().exits(0).prints("");
    assert_eq!(fs::read_to_string(&precious).expect("a file"), "mine");
    let new = cx.dir().join("new.toml");
    assert!(fs::symlink_metadata(&new).expect("a policy").is_file());
    // The project's own name is protected from the stage, but exeat may write it.
    learn(cx, &["-o", ".exeat.toml"], &["sh", "-c", "echo x > .exeat.toml; true"]).run().exits(0);
    assert!(fs::read_to_string(cx.dir().join(".exeat.toml")).expect("a policy").starts_with("# Learned"));
    // Writes to a descriptor.
    let out = cx.home().join("policy.out");
    learn(cx, &["-o", "fd:3"], &["true"]).redirect(&format!("3>{}", out.display())).run().exits(0).prints("");
    assert!(fs::read_to_string(&out).expect("a policy").contains("allow = []"));
}

fn refused(cx: &Cx) {
    cx.write("site.toml", "[network]\nallow = [\"*.corp.example\"]\nreport = false\n");
    for (flags, said) in [
        (&["--ceiling", "site.toml"][..], "report mode is forbidden by the ceiling site.toml"),
        (&["--mode", "enforce"], "exeat audit learn --denied"),
        (&["--audit", "fd:2"], "a record on a descriptor cannot be read again"),
        (&["--via", "unix:/x"], "another proxy's"),
        (&["--locked"], "nothing to learn"),
        (&["-o", "-"], "stdout is the stage's"),
        (&["-o", "nowhere/x.toml"], "cannot write `nowhere/x.toml`"),
    ] {
        learn(cx, flags, &["touch", "started"]).run().exits(2).says(said);
    }
    assert!(!cx.dir().join("started").exists());
}

fn from_records(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let on_443 = format!("{good}:443");
    let record = record_of(&asking(cx, &["--allow", &good], &[&on_443, &format!("{evil}:443")]).run());
    let done = cx.exeat(["audit", "learn", &record]).run();
    done.exits(0).says_nothing_more();
    assert_eq!(rules_of(&done.stdout()), [on_443.as_str()]);
    done.shows(&format!("#   \"{evil}:443\",  # 1x default; first"));
    let done = cx.exeat(["audit", "learn", "--denied", "-o", "l.toml", &record]).run();
    done.exits(0).prints("").says_nothing_more();
    let text = fs::read_to_string(cx.dir().join("l.toml")).expect("a policy");
    assert_eq!(rules_of(&text), [on_443, format!("{evil}:443")]);
    cx.exeat(["audit", "learn", "-o", "l.toml", &record]).run().exits(2).says("is there already");
    cx.exeat(["policy", "lint", "l.toml"]).run().exits(0);
    // A foreign record: invalid hosts give no rules, and damage is reported.
    let hostile = r#"{"schema":"egress/1","seq":0,"ts":"x","mono_us":1,"event":"decision","run":"r","via":"connect","verdict":"allow","reason":"rule","host":"x\"]\nallow=[\"evil.example","port":443}"#;
    let hostile = cx.write("hostile.jsonl", &format!("{hostile}\nnot json\n"));
    let done = cx.exeat(["audit", "learn", hostile.to_str().expect("ASCII")]).run();
    done.exits(1)
        .shows("allow = []")
        .says("line 1 was changed, or lines before it are missing; and 2 more (exeat audit verify ");
    assert!(!done.stdout().contains("evil"), "{done:?}");
}

/// A replay under the run's own policy finds no differences; one under another policy lists them, without lookups.
fn replayed(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let (on_443, on_7) = (format!("{good}:443"), format!("{good}:7"));
    let targets = [on_443.as_str(), &on_7, &format!("{evil}:443"), "10.2.3.4:443"];
    let done = asking(cx, &["--allow", &on_443, "--allow", &on_7], &targets).run();
    done.prints("200\n200\n403\n403\n");
    let record = record_of(&done);
    let asked = cx.bench().dns.queries(&good).len();
    let same = cx.exeat(["audit", "replay", "--allow", &on_443, "--allow", &on_7, &record]).run();
    same.exits(0)
        .shows("4 as before, 0 now denied, 0 now allowed, 0 would now be denied")
        .says_nothing_more();
    cx.write("new.toml", &format!("[network]\nallow = [\"{good}\", \"{evil}\"]\n"));
    let done = cx.exeat(["audit", "replay", "--policy", "new.toml", &record]).run();
    done.exits(1)
        .shows(&format!("now deny            1x  {on_7}  [connect]  port: allowed on 443 only; was allow (rule) by {on_7} (--allow)"))
        .shows(&format!("now allow           1x  {evil}:443  [connect]  rule by {evil} (new.toml:2); addresses not checked; was deny (default)"))
        .shows("2 as before, 1 now denied, 1 now allowed, 0 would now be denied");
    let json =
        cx.exeat(["audit", "replay", "--policy", "new.toml", "--format", "json", &record]).run().json();
    assert_eq!((&json["now_denied"], &json["now_allowed"]), (&1.into(), &1.into()), "{json}");
    assert_eq!(cx.bench().dns.queries(&good).len(), asked, "a record is enough");
    // A ceiling applies too, and one that cannot be read is reported.
    cx.write("site.toml", "[network]\nallow = [\"*.corp.example\"]\n");
    let done = cx.exeat(["audit", "replay", "--allow", &on_443, "--ceiling", "site.toml", &record]).run();
    done.exits(1).shows("the ceiling site.toml does not allow it");
    cx.exeat(["audit", "replay", "--policy", "nowhere.toml", &record]).run().exits(2);
    cx.exeat(["audit", "replay", "nowhere.jsonl"]).run().exits(2);
    cx.exeat(["audit", "replay", "--policy", "-", "-"]).run().exits(2).says("stdin");
    // A policy that was learned from a run shows no difference for it.
    cx.exeat(["audit", "learn", "-o", "l.toml", &record]).run().exits(0);
    cx.exeat(["audit", "replay", "--policy", "l.toml", &record]).run().exits(0);
}

/// The policy that is stored with a record works with `--policy`, includes its ceilings, and is the same policy.
fn stored_policy(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    cx.write(
        "rich.toml",
        &format!(
            "schema = 1\n[network]\nech = \"refuse\"\nallow = [\"*.example.net:443,8000-8010\", \"10.0.0.0/8:5432\"]\n\
             deny = [\"{evil}\"]\n[[network.rule]]\nallow = [\"{good}:443\", \"{good}:7\"]\ntls = \"off\"\n\
             max_upload = \"10MB\"\nexpires = 2999-01-01\nreason = \"a \\\"word\\\"\"\napproved_by = \"ada\"\n"
        ),
    );
    cx.write("site.toml", &format!("[network]\nallow_any = true\nallow = [\"*\", \"{good}:7\"]\n"));
    let rich = ["--policy", "rich.toml", "--ceiling", "site.toml"];
    let targets =
        [format!("{good}:443"), format!("{good}:7"), format!("{evil}:443"), "a.example.net:8001".to_owned()];
    let targets = targets.each_ref().map(String::as_str);
    cx.write("targets", &(targets.join("\n") + "\n"));
    let words = ["run"].into_iter().chain(rich).chain(["--", cx.probe(), "ask-all", "targets"]);
    cx.exeat_plain(words).run().exits(0);
    let place = std::fs::read_dir(cx.home().join(".local/state/exeat/runs")).expect("the place");
    let paths = place.flatten().map(|entry| entry.path().display().to_string());
    let record = paths.into_iter().find(|path| path.ends_with(".jsonl")).expect("a record");
    let stored = record.replace(".jsonl", ".policy.json");
    let replay = |more: &[&str]| {
        let words = ["audit", "replay", "--policy", &stored].into_iter().chain(more.iter().copied());
        cx.exeat(words.chain([record.as_str()])).run()
    };
    replay(&[]).exits(0).shows("4 as before, 0 now denied").says("the policy of a record");
    let shown = |words: &[&str]| {
        let words = ["policy", "show", "--format", "json"].into_iter().chain(words.iter().copied());
        cx.exeat(words).run().json()["policy_sha256"].clone()
    };
    let digest = shown(&rich);
    assert!(digest.is_string(), "{digest}");
    assert_eq!(shown(&["--policy", &stored]), digest);
    // Its ceiling also bounds additional grants.
    replay(&["--allow", "a.example.net:8001"]).exits(0);
    let text = std::fs::read_to_string(&stored).expect("the policy");
    cx.write("changed.json", &text.replace("\"schema\"", " \"schema\""));
    cx.exeat(["audit", "replay", "--policy", "changed.json", &record])
        .run()
        .exits(2)
        .says("as it was stored");
}

/// A granted target that the lock lacks is refused, and recorded under the lock's name.
fn locked(cx: &Cx) {
    let good = cx.good();
    let (on_443, on_7) = (format!("{good}:443"), format!("{good}:7"));
    let flags = ["--stage", "import", "--allow", &on_443, "--allow", &on_7];
    let done = asking(cx, &flags, &[&on_443]).run();
    done.exits(0).prints("200\n");
    cx.exeat(["audit", "lock", "-o", "egress.lock", &record_of(&done)]).run().exits(0).silent();
    let lock = fs::read_to_string(cx.dir().join("egress.lock")).expect("a lock");
    assert!(lock.ends_with(&format!("\nschema 1\nimport {on_443} connect\n")), "{lock}");

    let flags = [&flags[..], &["--locked"]].concat();
    asking(cx, &flags, &[&on_443]).run().exits(0).prints("200\n").silent();
    let done = asking(cx, &flags, &[&on_443, &on_7]).run();
    done.exits(0).prints("200\n403\n").says("the lock egress.lock does not have this port");
    let log = done.record();
    let denied = log.decisions(&good)[1];
    assert_eq!(
        (&denied["reason"], &denied["refused_by"]),
        (&"port".into(), &"lock egress.lock".into()),
        "{denied}"
    );
    assert!(!done.stderr().contains("--allow"), "no flag helps: {done:?}");
    let read: Vec<_> = log.events("policy").iter().map(|policy| policy["role"].clone()).collect();
    assert_eq!(read, ["lock"]);

    // Report mode does not lift it.
    let flags = [&flags[..], &["--mode", "report"]].concat();
    asking(cx, &flags, &[&on_7, &format!("{}:443", cx.evil())]).run().prints("403\n403\n");
    // The lock alone allows nothing.
    let done = asking(cx, &["--stage", "import", "--locked"], &[&on_443]).run();
    done.prints("403\n").says(&format!("no rule allows it   --allow {good}"));
}

/// Writing a lock replaces one stage and keeps others; `--update` only adds; writing twice gives the same file.
fn lock_written(cx: &Cx) {
    let good = cx.good();
    let (a, b) = (format!("{good}:443"), format!("{good}:7"));
    let run = |stage: &[&str], target: &str| {
        record_of(asking(cx, &[stage, &["--allow", &a, "--allow", &b]].concat(), &[target]).run().exits(0))
    };
    let (one, two, unnamed) = (run(&["--stage", "one"], &a), run(&["--stage", "two"], &a), run(&[], &b));
    let lock = |is_less: bool, words: &[&str]| {
        let done = cx.exeat([&["audit", "lock", "-o", "x.lock"], words].concat()).run();
        done.exits(0).prints("");
        assert_eq!(done.stderr().contains("removed 1 entry from `x.lock`"), is_less, "{done:?}");
        let text = fs::read_to_string(cx.dir().join("x.lock")).expect("a lock");
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    let all =
        ["schema 1".into(), format!("- {b} connect"), format!("one {a} connect"), format!("two {a} connect")];
    assert_eq!(lock(false, &[&unnamed, &two, &one]), all);
    assert_eq!(lock(false, &[&one]), all);
    let other = run(&["--stage", "one"], &b);
    assert_eq!(lock(false, &["--update", &other]).len(), 5);
    let replaced = lock(true, &[&other]);
    assert!(replaced.len() == 4 && replaced.contains(&format!("one {b} connect")), "{replaced:?}");
    // Without a file name the lock goes to stdout.
    cx.exeat(["audit", "lock", &one]).run().exits(0).shows(&format!("one {a} connect\n"));
    // A lock has no refused requests, but has stages that reached nothing.
    let none = record_of(&asking(cx, &["--stage", "none"], &[&format!("{}:443", cx.evil())]).run());
    let done = cx.exeat(["audit", "lock", &none]).run();
    done.exits(0).shows("\nnone\n");
    assert!(!done.stdout().contains(&cx.evil()), "{done:?}");
}

fn lock_missing(cx: &Cx) {
    let start = |flags: &[&str]| cx.exeat([&["run"], flags, &["--", "touch", "started"]].concat()).run();
    start(&["--locked"])
        .exits(2)
        .says("there is no `egress.lock`, to which --locked holds the run")
        .says("hint: after a run without --locked: exeat audit lock --last -o egress.lock");
    cx.write("other.lock", "schema 1\nother a.example:443 connect\n");
    start(&["--locked=other.lock", "--stage", "import"])
        .exits(2)
        .says("`other.lock` has nothing of the stage `import`")
        .says("exeat audit lock --stage import --last -o other.lock");
    cx.write("bad.lock", "schema 1\n<<<<<<< HEAD\n");
    start(&["--locked=bad.lock"]).exits(2).says("bad.lock:2: a line begins with a stage");
    // A file that is not a lock is not overwritten.
    cx.write("notes.txt", "mine\n");
    let record = record_of(&cx.run(&[], ["true"]).run());
    cx.exeat(["audit", "lock", "-o", "notes.txt", &record])
        .run()
        .exits(2)
        .says("notes.txt:1: the first line must be");
    assert_eq!(fs::read_to_string(cx.dir().join("notes.txt")).expect("notes"), "mine\n");
    // The stage's name may come from its policy.
    cx.write("p.toml", "stage = \"other\"\n");
    start(&["--locked=other.lock", "--policy", "p.toml"]).exits(0);
    assert!(cx.dir().join("started").exists());
}

fn lock_protected(cx: &Cx) {
    cx.write("egress.lock", "schema 1\n");
    let script = "echo x >> egress.lock; echo x > egress.lock.new; mv egress.lock.new egress.lock; exit 3";
    cx.run(&[], ["sh", "-c", script]).run().exits(3);
    assert_eq!(fs::read_to_string(cx.dir().join("egress.lock")).expect("a lock"), "schema 1\n");
}
