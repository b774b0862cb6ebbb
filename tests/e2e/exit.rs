//! Exit codes: the stage's own, and never one of exeat's instead.

use std::fs;
use std::path::Path;

use std::time::Duration;

use e2e::case::{Cases, Cx};

use crate::schemas;

pub(crate) fn cases(list: &mut Cases) {
    list.bridges("exit::with_sigchld_ignored", sigchld_ignored);
    list.matrix("exit::stage_codes_pass_through", stage_codes);
    list.matrix("exit::signals_are_128_plus_n", signals);
    list.matrix("exit::not_found_is_127", not_found);
    list.matrix("exit::not_executable_is_126", not_executable);
    list.users("exit::bad_input_is_2", bad_input);
    list.once("exit::result_tells_causes_apart", result_cause);
    list.once("exit::a_refusal_ends_or_fails_a_run_that_is_to", on_denied);
    list.once("exit::a_storm_of_refusals_is_told_while_it_goes_on", storm);
    list.once("exit::every_result_holds_to_its_schema", by_schema);
    list.once("exit::the_result_has_who_was_reached_and_the_bytes", reached);
    list.users("exit::a_result_that_is_not_written_is_no_success", no_result);
    list.once("exit::a_refused_command_line_has_its_result", refused);
    list.users("exit::a_home_directory_that_is_absent_is_not_made", no_home);
    list.users("exit::limits_of_a_process_are_named", process_limits);
    list.users("exit::a_run_inside_a_run_says_so", nested);
    list.users("exit::a_run_inside_a_run_passes_where_the_outer_one_says_so", passed);
    list.users("exit::a_hard_limit_of_no_core_file_starts_a_run", no_core_file);
    list.once("exit::timeout_is_124", timeout);
}

/// The caller's hard limit is lower than the one that a stage usually has, and cannot be raised.
fn no_core_file(cx: &Cx) {
    let limited = ["bash", "-c", "ulimit -Hc 0; exec \"$@\"", "-"];
    let done = cx.sh(&[], "ulimit -Hc; exit 3").under(limited).run();
    done.exits(3).prints("0\n");
    let is_piped = fs::read("/proc/sys/kernel/core_pattern").expect("the pattern").starts_with(b"|");
    assert_eq!(done.stderr().contains("hands its memory to the program"), is_piped, "{done:?}");
}

/// N27.
fn stage_codes(cx: &Cx) {
    for code in [0, 1, 7, 125, 255] {
        cx.sh(&[], &format!("exit {code}")).run().exits(code).silent();
    }
}

/// N27.
fn signals(cx: &Cx) {
    for (name, number) in [("TERM", 15), ("KILL", 9), ("INT", 2), ("SEGV", 11)] {
        cx.sh(&[], &format!("ulimit -c 0; kill -{name} $$")).run().exits(128 + number);
    }
}

/// K28.
fn not_found(cx: &Cx) {
    cx.run(&[], ["no-such-command-anywhere"]).run().exits(127).says("no-such-command-anywhere");
    cx.run(&[], ["./no/such/file"]).run().exits(127);
}

/// K28.
fn not_executable(cx: &Cx) {
    cx.run(&[], ["./ca.pem"]).run().exits(126).says("ca.pem").says("  hint: chmod +x ./ca.pem\n");
    cx.run(&[], ["/etc"]).run().exits(126).says("  hint: /etc is a directory\n");
}

/// An invalid policy never starts anything.
fn bad_input(cx: &Cx) {
    let rules = [
        "*",
        "*.com",
        "https://x.test/",
        "user@x.test",
        "x..test",
        "x.test:0",
        "10.0.0.0/33",
        "x.test:70000",
        "bücher.test",
        "",
    ];
    for rule in rules {
        cx.run(&["fine.test", rule], ["touch", "started"]).run().exits(2).prints("");
    }
    let missing = cx.home().join("no-such-policy.toml").display().to_string();
    for words in [
        vec!["run", "--no-such-flag", "--", "touch", "started"],
        vec!["run", "--policy", &missing, "--", "touch", "started"],
        vec!["run", "--allow", "@/no/such/list", "--", "touch", "started"],
        vec!["run", "--set", "sandbox.bridge=rope", "--", "touch", "started"],
        vec!["run", "--allow", "x.test", "--"],
        vec!["no-such-command"],
    ] {
        cx.exeat(words).run().exits(2);
    }
    let broken = cx.home().join("broken.toml");
    std::fs::write(&broken, "schema = 1\n[network]\nallow = [\"ok.test\"]\nalow = [\"evil.test\"]\n")
        .expect("policy");
    let done = cx.exeat(["run", "--policy", broken.to_str().expect("ASCII"), "--", "touch", "started"]).run();
    done.exits(2).says("broken.toml:4");
    assert!(!cx.dir().join("started").exists());
}

/// N27: the result tells the same exit code of the stage and of exeat apart.
fn result_cause(cx: &Cx) {
    let result = |name: &str| cx.home().join(name).display().to_string();
    let read = |path: &str| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(Path::new(path)).expect("the result")).expect("JSON")
    };
    let stage = result("stage.json");
    cx.exeat(["run", "--result", &stage, "--", "sh", "-c", "exit 2"]).run().exits(2);
    assert_eq!((&read(&stage)["cause"], &read(&stage)["code"]), (&"exit".into(), &2.into()));
    let policy = result("policy.json");
    cx.exeat(["run", "--result", &policy, "--allow", "*", "--", "true"]).run().exits(2);
    assert_eq!(read(&policy)["cause"], "policy");
    assert!(read(&policy)["step"].is_null() && read(&policy)["error"].is_string());
    // The parts of the error, which a program need not take out of its text.
    let faulty = result("faulty.toml");
    fs::write(&faulty, "schema = 1\n[network]\nalow = [\"a.test\"]\nallow = [\"*.com\"]\n")
        .expect("a policy");
    let words = ["run", "--result", &policy, "--policy", &faulty, "--", "true"];
    let json: Vec<serde_json::Value> = cx
        .exeat([&words[..1], &["--format", "json"], &words[1..]].concat())
        .run()
        .exits(2)
        .stderr()
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let faults = read(&policy)["faults"].as_array().expect("the faults").clone();
    assert!(faults.len() == 2 && faults.len() == json.len(), "{faults:?} {json:?}");
    for (fault, json) in faults.iter().zip(&json) {
        for key in ["file", "line", "column", "error", "meant"] {
            assert_eq!(fault[key], json[key], "{key}: {fault} {json}");
        }
    }
    assert_eq!((&faults[0]["line"], &faults[0]["meant"]), (&3.into(), &"allow".into()), "{faults:?}");
    let absent = result("absent.json");
    let words = ["run", "--result", &absent, "-p", "npm", "--", "true"];
    cx.exeat(words).under(["/usr/bin/env", "PATH=/nowhere"]).run().exits(125);
    let said = read(&absent);
    assert_eq!(said["step"], "preset `npm` asks npm which hosts it uses, and npm is not on PATH", "{said}");
    assert_eq!(said["hint"], "name its hosts instead: --allow HOST", "{said}");
    let refused = result("refused.json");
    let exeat = cx.bench().bin.join("exeat").display().to_string();
    let script = format!(
        "echo 0 >/proc/sys/user/max_user_namespaces; {exeat} run --backend bwrap --result {refused} -- true"
    );
    cx.outside(["unshare", "-Ur", "sh", "-c", &script]).run().exits(125);
    let said = read(&refused);
    assert_eq!(said["because"], "the sysctl user.max_user_namespaces is 0", "{said}");
    assert!(said["step"].is_string() && said["hint"].is_string(), "{said}");
    let signal = result("signal.json");
    cx.exeat(["run", "--result", &signal, "--", "sh", "-c", "kill -9 $$"]).run().exits(137);
    assert_eq!(read(&signal)["cause"], "signal");
    assert_eq!((&read(&signal)["signal"], &read(&signal)["signal_number"]), (&"SIGKILL".into(), &9.into()));
    for (command, code, why) in
        [("no-such-command", 127, "no such command"), ("./ca.pem", 126, "ermission denied")]
    {
        let setup = result("setup.json");
        cx.exeat(["run", "--result", &setup, "--", command]).run().exits(code);
        let said = read(&setup);
        assert_eq!((&said["cause"], &said["code"]), (&"setup".into(), &code.into()));
        let error = said["error"].as_str().expect("why it did not run");
        assert!(error.contains(command) && error.contains(why), "{error}");
        let done = cx.exeat(["run", "--format", "json", "--", command]).run();
        let fault: serde_json::Value = serde_json::from_str(&done.exits(code).stderr()).expect("JSON");
        assert_eq!((&fault["exit"], &fault["cause"]), (&code.into(), &"setup".into()), "{fault}");
        assert!(fault["error"].as_str().is_some_and(|text| text.contains(why)), "{fault}");
    }
    let late = cx.exeat(["run", "--timeout", "200ms", "--", "sleep", "60"]).run();
    late.exits(124)
        .says("exeat: time limit of 200ms reached; the stage was stopped\nexeat: record: exeat audit show ");
    let quiet = cx.exeat(["run", "--quiet", "--timeout", "200ms", "--", "sleep", "60"]).run();
    assert_eq!(quiet.exits(124).stderr(), "exeat: time limit of 200ms reached; the stage was stopped\n");
}

fn on_denied(cx: &Cx) {
    let ask = format!("curl -s --max-time 20 {}; ", cx.evil_url());
    for (what, script, code) in [
        ("end", ask.clone() + "sleep 60", 123),
        ("end", ask.clone() + "exit 4", 123),
        ("end", "exit 4".to_owned(), 4),
        ("fail", ask.clone() + "exit 0", 123),
        ("fail", ask.clone() + "exit 4", 4),
        ("fail", "exit 0".to_owned(), 0),
        ("note", ask.clone() + "exit 0", 0),
    ] {
        let result = cx.home().join("denied.json");
        let place = result.display().to_string();
        let words = ["run", "--on-denied", what, "--result", &place, "--", "sh", "-c", &script];
        let done = cx.exeat(words).run();
        done.exits(code);
        assert!(done.took < std::time::Duration::from_secs(50), "{done:?}");
        let text = std::fs::read_to_string(&result).expect("the result");
        let expect = if code == 123 { "denied" } else { "exit" };
        assert!(text.contains(&format!(r#""cause":"{expect}","code":{code},"#)), "{what} {script}: {text}");
        assert_eq!(done.record().events("run_end")[0]["cause"], expect);
    }
    cx.exeat(["run", "--on-denied", "end", "--via", "unix:/x", "--", "true"]).run().exits(2);
    // With many runs at once, each line names its run.
    for (what, words) in
        [("fail", "the stage exited 0, and the run 123"), ("end", "the refusal ended the run")]
    {
        let script = ask.clone() + "exit 0";
        let done = cx.exeat(["run", "--stage", "s3", "--on-denied", what, "--", "sh", "-c", &script]).run();
        done.exits(123).says("exeat: s3: 1 host denied, 0 reached; ").says(words).says("exeat: s3: record: ");
        assert!(
            done.stderr().lines().all(|line| line.starts_with("exeat: s3: ") || line.starts_with(' ')),
            "{done:?}"
        );
    }
}

/// The message appears once, and before the end.
fn storm(cx: &Cx) {
    let asks = format!("for n in $(seq 45); do curl -s --max-time 20 {}; done; echo over >&2", cx.evil_url());
    let done = cx.sh(&[], &asks).run();
    let said = done.stderr();
    let told = format!("exeat: {0}:443 refused 20 times so far: --allow {0}\n", cx.evil());
    assert_eq!(said.matches(&told).count(), 1, "{said}");
    assert!(said.find(&told) < said.find("over\n"), "{said}");
}

/// Each way to end a run, with the reached, refused, moved and unreached targets.
fn by_schema(cx: &Cx) {
    let results = cx.home().join("results");
    let place = results.display().to_string();
    let (good, url, evil) = (cx.good(), cx.good_url(), cx.evil_url());
    let curl =
        format!("curl -s --max-time 20 --cacert ca.pem -o /dev/null {url} {evil} https://127.0.0.1:1/");
    let left =
        format!("mkdir .vscode; echo x > .envrc; {curl}; curl -s --noproxy '' https://127.0.0.1:1/; true");
    let report = format!("curl -s --max-time 20 --cacert ca.pem -o /dev/null {url}");
    let asks = format!("curl -s --max-time 20 {evil}; true");
    let faulty = cx.home().join("faulty.toml").display().to_string();
    fs::write(&faulty, "schema = 1\n[network]\nalow = []\nallow = [\"*.com\"]\n").expect("a policy");
    let ceiling = cx.home().join("ceiling.toml").display().to_string();
    fs::write(&ceiling, format!("schema = 1\n[network]\nallow = [\"{good}\"]\n")).expect("a ceiling");
    let runs: Vec<(Vec<&str>, &str)> = vec![
        (vec!["--allow", &good, "--allow", "127.0.0.1:1", "--stage", "a", "--label", "b=c"], &left),
        (vec!["--audit-key", "none"], "true"),
        (vec!["--mode", "report"], &report),
        (vec!["--ceiling", &ceiling, "--deny", &good], &curl),
        (vec![], "exit 3"),
        (vec![], "kill -9 $$"),
        (vec!["--timeout", "200ms"], "sleep 60"),
        (vec!["--set", "limits.output_size=1kB"], "yes"),
        (vec!["--on-denied", "fail"], &asks),
        (vec!["--allow", "*"], "true"),
        (vec!["--policy", &faulty], "true"),
        (vec!["--set", "network.ehc=refuse"], "true"),
        (vec!["--audit", "/no/such/directory/x"], "true"),
    ];
    for (flags, script) in &runs {
        let result = ["run", "--result", "fd:3"];
        let words = [&result[..], flags, &["--", "sh", "-c", script]].concat();
        cx.exeat(words).redirect(&format!("3>>{place}")).run();
    }
    cx.exeat(["run", "--result", "fd:3", "--", "no-such-command"]).redirect(&format!("3>>{place}")).run();
    let words = ["run", "--result", "fd:3", "--", "sh", "-c", "echo ready; exec sleep 60"];
    let mut live = cx.exeat(words).redirect(&format!("3>>{place}")).start();
    live.until_prints("ready").signal(nix::sys::signal::Signal::SIGTERM);
    live.wait();
    let text = std::fs::read_to_string(&results).expect("the results");
    assert_eq!(text.lines().count(), runs.len() + 2);
    schemas::validate(cx, "result", &text);
    let first: serde_json::Value =
        serde_json::from_str(text.lines().next().expect("a result")).expect("JSON");
    assert_eq!((&first["stage"], &first["labels"]["b"]), (&"a".into(), &"c".into()), "{first}");
    assert!(first["duration_ms"].as_u64().is_some_and(|took| took > 0), "{first}");
    assert_eq!(first["failed"][0]["reason"], "connect_error", "{first}");
    assert!(first["quarantined"].is_array() && first["denied"][0]["host"] == cx.evil(), "{first}");
    // Who refused: the grants name nobody.
    assert!(
        first["denied"][0]["refused_by"].is_null() && first["denied"][0]["rule_src"].is_null(),
        "{first}"
    );
    let bound: serde_json::Value =
        serde_json::from_str(text.lines().nth(3).expect("a result")).expect("JSON");
    let of = |host: &str| {
        let denied = bound["denied"].as_array().into_iter().flatten();
        let found = denied.clone().find(|it| it["host"] == host).unwrap_or_else(|| panic!("{host}: {bound}"));
        (found["reason"].clone(), found["refused_by"].clone(), found["rule_src"].clone())
    };
    let null = serde_json::Value::Null;
    assert_eq!(of(&good), ("deny_rule".into(), null.clone(), "--deny".into()), "{bound}");
    assert_eq!(of(&cx.evil()), ("default".into(), format!("ceiling {ceiling}").into(), null), "{bound}");
}

/// The byte counts equal those of the record.
fn reached(cx: &Cx) {
    let result = cx.home().join("reached.json");
    let (good, url) = (cx.good(), cx.good_url());
    let curl = format!("curl -sS --max-time 20 --cacert ca.pem -o /dev/null {url}; ");
    let words = ["run", "--result", result.to_str().expect("ASCII"), "--allow", &good, "--", "sh", "-c"];
    let done = cx.exeat(words.iter().copied().chain([curl.repeat(2).as_str()])).run();
    done.exits(0);
    let text = std::fs::read_to_string(&result).expect("the result");
    let said: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let record = done.record();
    let closes = record.events("close");
    let sum = |key: &str| closes.iter().filter_map(|close| close[key].as_u64()).sum::<u64>();
    let expect = serde_json::json!([{"host": good, "port": 443, "connections": 2,
                                     "bytes_up": sum("bytes_up"), "bytes_down": sum("bytes_down")}]);
    assert_eq!(said["reached"], expect, "{text}");
    assert!(sum("bytes_down") > 0);
}

/// A run whose result cannot be written does not exit with 0; the stage's own code has priority.
fn no_result(cx: &Cx) {
    for (code, expect) in [(0, 125), (3, 3)] {
        let name = format!("result-{code}.json");
        let script = format!("mkdir {name}; exit {code}");
        let done = cx.exeat(["run", "--result", &name, "--", "sh", "-c", &script]).run();
        done.exits(expect).says("exeat: error: cannot write the result to `");
        assert_eq!(done.record().events("run_end")[0]["exit"], code);
    }
}

/// A run with invalid arguments replaces an earlier result, so that nobody takes it for its own.
fn refused(cx: &Cx) {
    let path = cx.home().join("refused.json");
    let place = path.to_str().expect("ASCII");
    for words in [
        vec!["--timeout", "1"],
        vec!["--label", "x"],
        vec!["--bad"],
        vec!["--tmeout", "1s"],
        vec!["--audit", "fd:77"],
    ] {
        for last in [false, true] {
            let earlier = r#"{"schema":1,"run":null,"cause":"exit","code":0}"#;
            std::fs::write(&path, earlier).expect("an old result");
            let (before, after) = if last { (&words[..], &[][..]) } else { (&[][..], &words[..]) };
            let words = [&["run"], before, &["--result", place], after, &["--", "touch", "started"]].concat();
            cx.exeat_plain(words.iter()).run().exits(2);
            let text = std::fs::read_to_string(&path).expect("the result");
            let said: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!((&said["cause"], &said["code"]), (&"policy".into(), &2.into()), "{words:?}: {text}");
            let error = said["error"].as_str().expect("why it did not run");
            assert!(!error.contains("Usage") && !error.contains("error:"), "{error}");
        }
    }
    // A file of the user's is neither removed nor replaced.
    std::fs::write(&path, "mine").expect("a file");
    for flag in ["--allow=x.test", "--allwo=x.test"] {
        let words = ["run", flag, "--result", place, "--", "touch", "started"];
        cx.exeat_plain(words).run().exits(2);
        assert_eq!(std::fs::read_to_string(&path).expect("the file"), "mine");
    }
    let policy = cx.exeat_plain(["run", "--policy", "fd:77", "--", "true"]).run();
    policy.exits(2).says("77<FILE");
    cx.exeat_plain(["run", "--timeout", "1", "--result", "fd:3", "--", "true"])
        .redirect("3>by-fd.json")
        .run()
        .exits(2);
    let text = std::fs::read_to_string(cx.dir().join("by-fd.json")).expect("the result");
    assert!(
        text.contains(r#""cause":"policy","code":2,"error":"invalid value '1' for '--timeout"#),
        "{text}"
    );
    // The command's arguments are not exeat's, and `-` is not a file name.
    std::fs::write(&path, "the command's").expect("a file");
    cx.exeat(["run", "--timeout", "1", "--", "prog", "--result", place]).run().exits(2);
    assert_eq!(std::fs::read_to_string(&path).expect("a file"), "the command's");
    for flag in ["--result", "--audit"] {
        cx.exeat_plain(["run", flag, "-", "--", "touch", "started"]).run().exits(2).says("fd:3");
    }
    assert!(!cx.dir().join("-").exists() && !cx.dir().join("started").exists());
}

/// `HOME` names a missing directory, as for many users of services.
fn no_home(cx: &Cx) {
    cx.outside(["git", "init", "-q", "."]).run().exits(0);
    let (home, record) = (cx.home().join("absent"), cx.home().join("record.jsonl").display().to_string());
    let exeat = |words: &[&str]| cx.exeat_plain(words).env("HOME", &home.display().to_string()).run();
    let done = exeat(&["run", "--", "true"]);
    done.exits(125).says("absent`: no such file or directory").says("XDG_STATE_HOME=DIR");
    exeat(&["doctor"]).shows("absent`: no such file or directory");
    // Git's names are not held here, so nothing counts as the stage's.
    let script = "ls .git/commondir; echo evil >.git/commondir; exit 7";
    let done = exeat(&["run", "--audit", &record, "--audit-key", "none", "--", "sh", "-c", script]);
    done.exits(7).says("the package cache is in memory").says(".git/commondir` and its like are not held");
    assert!(!done.stdout().contains("commondir"), "{done:?}");
    assert_eq!(done.stderr().matches("` was moved to `").count(), 1, "{done:?}");
    cx.outside(["git", "status", "--short"]).run().exits(0);
    assert!(!home.exists());
}

/// The kernel ends these stages without a message.
fn process_limits(cx: &Cx) {
    let run = |flags: &[&str], script: &str| {
        let words = [&["run"], flags, &["--", "sh", "-c", script]].concat();
        cx.exeat(words.iter()).run()
    };
    let reached = "exeat: cpu_time limit of 1s reached; ";
    run(&["--set", "limits.cpu_time=1s"], "while :; do :; done")
        .exits(152)
        .says(reached)
        .says("the stage was killed by SIGXCPU");
    run(&["--set", "limits.cpu_time=1s"], "sh -c 'while :; do :; done'; exit $?")
        .exits(152)
        .says(reached)
        .says("as a shell does");
    let write = "exec head -c 2000000 /dev/zero >file";
    let quiet = run(&["--quiet", "--set", "limits.file_size=1MB"], write);
    let line = "exeat: file_size limit of 1MB reached; the stage was killed by SIGXFSZ\n";
    assert_eq!(quiet.exits(153).stderr(), line, "{quiet:?}");
    // Without the limit the cause is unknown.
    let other = run(&[], "kill -XFSZ $$");
    assert_eq!(other.exits(153).stderr(), "", "{other:?}");
}

/// exeat's own filter refuses the namespaces, not a container's.
fn nested(cx: &Cx) {
    let exeat = cx.bench().bin.join("exeat");
    let bind = exeat.display().to_string();
    let inside = ["run", "--ro", &bind, "--", "env", "-u", "EXEAT"];
    for words in [vec![&bind, "run", "--", "true"], vec!["XDG_STATE_HOME=/tmp/s", &bind, "run", "--", "true"]]
    {
        let done = cx.exeat(inside.iter().copied().chain(words)).run();
        done.exits(125)
            .says("exeat: error: a run inside a run: exeat does not nest (")
            .says("hint: run the command as it is");
        assert!(!done.stderr().contains("docker"), "{done:?}");
    }
}

/// The command runs directly: the outer run's protection holds, and the inner run's options do not apply.
fn passed(cx: &Cx) {
    let exeat = cx.bench().bin.join("exeat");
    let bind = exeat.display().to_string();
    let evil = cx.evil();
    let inner = |words: &[&str]| {
        let outer =
            ["run", "--ro", &bind, "--set", "sandbox.nested=pass", "--", &bind, "run", "--allow", &evil];
        cx.exeat([&outer, words].concat()).run()
    };
    let curl = format!("curl -sS --max-time 20 https://{evil}/ || exit 7");
    let done = inner(&["--", "sh", "-c", &curl]);
    done.exits(7).says("the command is executed as it is");
    assert_eq!(done.record().decision(&evil)["verdict"], "deny", "the inner policy holds: {done:?}");
    let done = inner(&["--quiet", "--", "sh", "-c", "grep -c . /run/exeat/nested; kill -TERM $$"]);
    assert_eq!(done.exits(143).stderr(), "", "{done:?}");
    done.prints("1\n");
    inner(&["--", "/nowhere/at-all"]).exits(127);
    // An explicit request that cannot be met is an error, not a note.
    for flag in ["--require=full", "--result=/tmp/r", "--audit=/tmp/a"] {
        inner(&[flag, "--", "true"]).exits(125).says("cannot keep that");
    }
    // No variable enables it, inside or on the host.
    let host = cx.exeat(["run", "--", "test", "-e", "/run/exeat/nested"]).env("EXEAT_NESTED", "pass").run();
    host.exits(1);
}

fn timeout(cx: &Cx) {
    let done = cx.exeat(["run", "--timeout", "1s", "--", "sleep", "1000"]).run();
    done.exits(124);
    assert!(done.took.as_secs() < 20, "{done:?}");
}

/// A daemon's children may inherit an ignored SIGCHLD: the kernel then reaps children, and nobody learns their exit
/// status.
fn sigchld_ignored(cx: &Cx) {
    // A shell's trap does not work: dash does not change an ignored signal.
    let ignoring = ["env", "--ignore-signal=CHLD"];
    cx.sh(&[], "exit 4").under(ignoring).deadline(Duration::from_secs(20)).run().exits(4);
}
