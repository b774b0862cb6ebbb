//! Tests the `exeat` binary as callers see it: exit codes, streams, generated files. Nothing here starts a sandbox.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

#[path = "support/home.rs"]
mod home;

use home::{Home, result_of};

const ALLOWED: &str = "allow  a.example.com:443  *.example.com (--allow)\n       also opens every other name below example.com, on 443\n";
const UNCHECKED: &str = "exeat: note: addresses were not checked (--resolve checks them)\n";

#[test]
fn check_says_yes() {
    let home = Home::new();
    let done = home.run(&["check", "--allow", "*.example.com", "a.example.com:443"]);
    assert_eq!(done, (0, ALLOWED.into(), UNCHECKED.into()));
}

#[test]
fn check_says_no_and_how() {
    let home = Home::new();
    let done = home.run(&["check", "--allow", "*.example.com", "example.com"]);
    assert_eq!(
        done,
        (1, "deny   example.com:443  no rule allows it  --allow example.com\n".into(), String::new())
    );
    let (code, out, _) = home.run(&["check", "--allow", "a.example", "a.example", "b.example"]);
    assert_eq!((code, out.lines().count()), (1, 2));
}

#[test]
fn check_judges_a_literal_without_looking_anything_up() {
    let home = Home::new();
    let done = home.run(&["check", "--allow", "10.2.3.4:443", "10.2.3.4"]);
    assert_eq!(done, (0, "allow  10.2.3.4:443  10.2.3.4:443 (--allow)\n".into(), String::new()));
    assert_eq!(home.run(&["check", "--allow", "127.0.0.0/8:*", "169.254.169.254:80"]).0, 1);
}

#[test]
fn check_in_json() {
    let home = Home::new();
    let (code, out, _) =
        home.run(&["check", "--format", "json", "--allow", "a.example", "a.example", "b.example:80"]);
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(code, 1);
    assert_eq!(lines.len(), 2);
    let word = |line: usize, key: &str| lines[line][key].as_str().unwrap_or("-").to_owned();
    assert_eq!(
        (word(0, "verdict"), word(0, "rule"), word(0, "rule_src")),
        ("allow".into(), "a.example".into(), "--allow".into())
    );
    assert_eq!((word(1, "verdict"), word(1, "reason")), ("deny".into(), "default".into()));
    assert_eq!(word(1, "flag"), "--allow b.example:80");
}

#[test]
fn bad_input_is_exit_2_on_stderr_only() {
    let home = Home::new();
    home.file("bad.toml", "[network]\nalow = []\n");
    for words in [
        &["check", "https://api.example.com/v1"][..],
        &["check", "--allow", "https://x.example/", "x.example"],
        &["check", "--policy", "bad.toml", "x.example"],
        &["check", "--policy", "missing.toml", "x.example"],
        &["check"],
        &["run"],
        &["run", "--allow", "*", "--", "true"],
        &["run", "--bogus", "true"],
        &["run", "--timeout", "90", "true"],
        &["run", "--memory", "0", "true"],
        &["run", "--pids", "0", "true"],
        &["run", "--set", "limits.open_files=15", "true"],
        &["run", "--audit", "fd:1", "true"],
        &["run", "--result", "fd:77", "true"],
        &["run", "--audit", "x", "--result", "./x", "true"],
        &["proxy"],
        &["proxy", "--listen", "tcp:0.0.0.0:3128"],
        &["proxy", "--listen", "unix:x", "--listen-anywhere"],
        &["audit", "show", "nothing-here"],
        &["audit", "show"],
        &["bogus"],
        &[],
    ] {
        let (code, out, err) = home.run(words);
        assert_eq!((code, out.as_str()), (2, ""), "{words:?}: {err}");
        assert!(!err.is_empty(), "{words:?}");
    }
}

/// `exeat proxy` does not call a limit unused that it then enforces.
#[test]
fn a_proxy_without_a_stage_names_only_what_it_does_not_use() {
    let home = Home::new();
    let note = "[limits] of the policy: for exeat run; not used here";
    let said = |set: &str| {
        let (code, _, err) = home.run(&["proxy", "--listen", "unix:no/such/directory", "--set", set]);
        assert_ne!(code, 0, "{set}: {err}");
        err
    };
    let err = said("limits.audit_size=1000");
    assert!(err.contains("`audit_size` of 1kB is too small") && !err.contains(note), "{err}");
    assert!(!said("limits.connections=5").contains(note));
    assert!(said("limits.pids=5").contains(note));
}

/// Every fault is one JSON object on its line, with the same fields for a file, a flag and a setting.
#[test]
fn faults_are_json_where_json_is_asked_for() {
    let home = Home::new();
    home.file("bad.toml", "[network]\nalow = []\n[limits]\npids = 0\n");
    let faults = |words: &[&str], code: i32| -> Vec<serde_json::Value> {
        let (exit, out, err) = home.run(words);
        assert_eq!((exit, out.as_str()), (code, ""), "{words:?}: {err}");
        let faults = err.lines().filter(|line| !line.starts_with("exeat: note: "));
        let faults =
            faults.map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{words:?}: {err}")));
        faults.collect()
    };
    for words in [
        &["run", "--format", "json", "--policy", "bad.toml", "--", "true"][..],
        &["check", "--policy", "bad.toml", "a.example", "--format=json"],
        &["policy", "show", "bad.toml", "--format", "json"],
        &["policy", "lint", "bad.toml", "--format", "json"],
        &["policy", "diff", "bad.toml", "bad.toml", "--format", "json"],
        &["learn", "--format", "json", "--policy", "bad.toml", "--", "true"],
    ] {
        let [key, number] = faults(words, 2).try_into().unwrap();
        let place = |fault: &serde_json::Value| {
            assert_eq!(
                (&fault["schema"], &fault["exit"], &fault["cause"]),
                (&1.into(), &2.into(), &"policy".into())
            );
            (fault["file"].clone(), fault["line"].clone(), fault["column"].clone())
        };
        assert_eq!(place(&key), ("bad.toml".into(), 2.into(), 1.into()), "{words:?}");
        assert_eq!(
            (&key["meant"], &key["error"]),
            (&"allow".into(), &"there is no key `alow` in `[network]`".into())
        );
        assert_eq!(place(&number), ("bad.toml".into(), 4.into(), 8.into()), "{words:?}");
        assert!(number.get("meant").is_none());
    }
    let [set] = faults(&["run", "--format=json", "--set", "network.ehc=x", "x"], 2).try_into().unwrap();
    assert_eq!(
        (&set["file"], &set["line"], &set["column"], &set["meant"]),
        (&"--set".into(), &1.into(), &9.into(), &"ech".into())
    );
    let [rule] = faults(&["check", "--format=json", "--allow", "*x.example", "x"], 2).try_into().unwrap();
    assert_eq!(
        (&rule["file"], &rule["column"], &rule["meant"]),
        (&"--allow".into(), &1.into(), &"*.x.example".into())
    );
    let [flag] = faults(&["run", "--format", "json", "--alow", "x", "--", "true"], 2).try_into().unwrap();
    assert_eq!(flag["meant"], "--allow");
    let [path] =
        faults(&["run", "--format", "json", "--ro", "nothing-here", "--", "true"], 2).try_into().unwrap();
    let missing = home.0.join("nothing-here");
    assert_eq!(
        (&path["file"], &path["error"]),
        (&"--ro".into(), &format!("there is no `{}` to show read-only", missing.display()).into())
    );
    assert!(path["hint"].as_str().unwrap().starts_with("check the path"), "{path}");
    let [word] = faults(&["run", "--format", "json", "--", ""], 2).try_into().unwrap();
    assert_eq!(word["error"], "there is no command to run");
}

/// N25: extra pipes of Node are sockets, which cannot be opened by a path.
#[test]
fn a_policy_on_a_descriptor() {
    use std::io::Write as _;
    let home = Home::new();
    let check = |script: &str, input: std::process::Stdio| {
        let mut shell = home.command("sh");
        let exeat = env!("CARGO_BIN_EXE_exeat");
        shell.args(["-c", &format!("exec 7<&0 </dev/null; {exeat} {script}")]).stdin(input);
        let done = shell.output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let socket = |text: &str| {
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.write_all(text.as_bytes()).unwrap();
        std::process::Stdio::from(std::os::fd::OwnedFd::from(theirs))
    };
    let policy = "[network]\nallow = [\"a.example\"]\n";
    let (code, said) = check("check --policy fd:7 a.example", socket(policy));
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = check("check --policy fd:7 b.example", socket(policy));
    assert_eq!(code, Some(1), "{said}");
    let (code, said) = check("check --policy fd:7 b.example", socket("[network]\nalow = []\n"));
    assert!(code == Some(2) && said.starts_with("exeat: error: fd:7:2:1: there is no key `alow`"), "{said}");
    let (code, said) = check("check --policy fd:8 a.example", socket(policy));
    assert!(code == Some(2) && said.contains("descriptor 8 is not open"), "{said}");
    let (code, said) = check("check --policy fd:7 --policy fd:7 a.example", socket(policy));
    assert!(code == Some(2) && said.contains("descriptor 7 is not open"), "{said}");
}

/// N25.
#[test]
fn a_policy_on_stdin() {
    let home = Home::new();
    let words = ["check", "--policy", "-", "a.example"];
    let toml = b"[network]\nallow = [\"a.example\"]\n";
    let (code, out, _) = home.with_stdin(&words, toml);
    assert_eq!((code, out.as_str()), (0, "allow  a.example:443  a.example (stdin:2)\n"));
    assert_eq!(home.with_stdin(&words, br#"{"network": {"allow": ["a.example"]}}"#).0, 0);
    let (code, _, err) = home.with_stdin(&words, &vec![b'\n'; (16 << 20) + 1]);
    assert_eq!((code, err.as_str()), (2, "exeat: error: `stdin` is larger than 16777216 bytes\n"));
}

/// K12, H23: exeat does not ask whether to trust the file.
#[test]
fn an_unnamed_project_file_is_reported_and_not_used() {
    let home = Home::new();
    home.file(".exeat.toml", "[network]\nallow = [\"a.example\"]\n");
    let note = "exeat: note: .exeat.toml was found and not used; --policy .exeat.toml uses it\n";
    let (code, _, err) = home.run(&["check", "a.example"]);
    assert_eq!((code, err.as_str()), (1, note));
    let (code, out, err) = home.run(&["check", "--policy", ".exeat.toml", "a.example"]);
    assert_eq!((code, err.as_str()), (0, UNCHECKED));
    assert_eq!(out, "allow  a.example:443  a.example (.exeat.toml:2)\n");
}

/// The runner does not know file and line, and would name one at a time.
#[test]
fn paths_that_are_missing_are_named_at_once_with_their_places() {
    let home = Home::new();
    home.file("p.toml", "schema = 1\n[fs]\nro = [\"/usr:/data\", \"in\"]\nrw = [\n  \"out\",\n]\n");
    let effects = |path: &str| {
        format!(
            "[{{\"effect\": \"FsRead\", \"path\": \"{path}/a\"}},\n{{\"effect\": \"FsWrite\", \"path\": \"{path}/b\"}}]"
        )
    };
    let place = home.0.display().to_string();
    home.file("e.json", &effects(&place));
    let words =
        ["run", "--dry-run", "--policy", "p.toml", "--effects", "e.json", "--rw", "more", "--", "true"];
    let (code, out, said) = home.run(&words);
    let expect = format!(
        "exeat: error: p.toml:3: there is no `{place}/in` to show read-only (`ro`)\n\
         p.toml:5: there is no `{place}/out` to show writable (`rw`)\n\
         --rw: there is no `{place}/more` to show writable\n\
         e.json:1: there is no `{place}/a` to show read-only (`FsRead`)\n\
         e.json:2: there is no `{place}/b` to show writable (`FsWrite`)\n  \
         hint: mkdir -p {place}/b {place}/more {place}/out for a directory, mkdir -p {place} && touch {place}/b {place}/more \
         {place}/out for a file; check what is read-only; or leave them out\n"
    );
    assert_eq!((code, out.as_str(), said), (2, "", expect));
    let places = |of: &str| -> Vec<(String, Option<u64>)> {
        let lines = of.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.map(|line| (line["file"].as_str().unwrap().to_owned(), line["line"].as_u64())).collect()
    };
    let json: Vec<&str> = ["run", "--format", "json"].into_iter().chain(words.into_iter().skip(1)).collect();
    let named = [("p.toml", Some(3)), ("p.toml", Some(5)), ("--rw", None)];
    let named = named.into_iter().chain([("e.json", Some(1)), ("e.json", Some(2))]);
    let named: Vec<_> = named.map(|(file, line)| (file.to_owned(), line)).collect();
    assert_eq!(places(&home.run(&json).2), named);
    for missing in ["out", "more", "b"] {
        fs::create_dir(home.0.join(missing)).unwrap();
    }
    let (_, _, said) = home.run(&words);
    assert!(said.contains("`ro`)\ne.json:1") && said.contains("hint: check the paths; or leave"), "{said}");
    for missing in ["in", "a"] {
        fs::create_dir(home.0.join(missing)).unwrap();
    }
    assert!(home.run(&words).2.contains("nothing shows it"), "the next fault");
    // An output may be a file: the hint for that makes one.
    let effects = r#"{"effect": "FsWrite", "path": "~/store/new.csv"}"#;
    let one = ["run", "--dry-run", "--effects", effects, "--", "true"];
    let (code, _, said) = home.run(&one);
    let hint = said.split_once("for a directory, ").and_then(|(_, rest)| rest.split_once(" for a file"));
    let (make, _) = hint.unwrap_or_else(|| panic!("{code}: {said}"));
    assert!(home.command("sh").args(["-c", make]).status().unwrap().success(), "{make}");
    assert!(home.0.join("store/new.csv").is_file() && home.run(&one).0 == 0, "{make}");
    // A stage that can do without has no fault, also if nothing but its declaration grants.
    fs::remove_dir(home.0.join("b")).unwrap();
    let narrow = ["--set", "effects.on_excess=narrow", "--", "true"];
    let narrow: Vec<_> = ["run", "--dry-run", "--effects", "e.json"].into_iter().chain(narrow).collect();
    let (code, _, said) = home.run(&narrow);
    assert!(code == 0 && said.contains("left out: ") && said.contains("/b`"), "{said}");
    // A command that only decides about hosts does not need the path.
    assert_eq!(home.run(&["check", "--policy", "p.toml", "a.example"]).0, 1);
    fs::remove_dir(home.0.join("out")).unwrap();
    assert_eq!(home.run(&["check", "--policy", "p.toml", "a.example"]).0, 1);
}

/// A program finds each fault where a person reads it.
#[test]
fn faults_of_files_have_their_places_as_fields_too() {
    type Place<'a> = (&'a str, Option<u64>);
    let home = Home::new();
    let allow = "schema = 1\n[fs]\nallow_write = [\n  \".vscod\",\n  \".git\",\n  \"nothing\",\n]\n";
    home.file("allow.toml", allow);
    home.file("preset.toml", "schema = 1\n[network]\npresets = [\"npn\"]\n");
    home.file("other.toml", "schema = 1\n[fs]\nview = \"host\"\n");
    home.file("view.toml", "schema = 1\n[fs]\nview = \"minimal\"\n");
    fs::write(home.0.join("bytes.toml"), b"schema = 1\n\xff\n").unwrap();
    let both = ["--policy", "other.toml", "--policy", "view.toml"];
    let cases: [(&[&str], &[Place<'_>]); 5] = [
        (&["--policy", "allow.toml"], &[("allow.toml", Some(4)), ("allow.toml", Some(6))]),
        (&["--ceiling", "allow.toml"], &[("allow.toml", Some(4)), ("allow.toml", Some(6))]),
        (&["--policy", "preset.toml"], &[("preset.toml", Some(3))]),
        (&["--policy", "bytes.toml"], &[("bytes.toml", Some(2))]),
        (&both, &[("other.toml", None), ("view.toml", None)]),
    ];
    for (words, expected) in cases {
        let run = |format: &[&str]| home.run(&[&["run"], format, words, &["--", "true"]].concat());
        let (code, _, said) = run(&["--format", "json", "--result", "r.json"]);
        let result = fs::read_to_string(home.0.join("r.json")).unwrap();
        let result: serde_json::Value = serde_json::from_str(&result).unwrap();
        let lines = said.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let of_result = result["faults"].as_array().unwrap();
        let place = |it: &serde_json::Value| (it["file"].as_str().unwrap().to_owned(), it["line"].as_u64());
        let expected: Vec<_> = expected.iter().map(|(file, line)| ((*file).to_owned(), *line)).collect();
        assert_eq!(
            (code, lines.map(|it| place(&it)).collect::<Vec<_>>()),
            (2, expected.clone()),
            "{words:?}"
        );
        assert_eq!(of_result.iter().map(place).collect::<Vec<_>>(), expected, "{words:?}");
        let (_, _, text) = run(&[]);
        for (file, line) in expected {
            let at = line.map_or(file.clone(), |line| format!("{file}:{line}:"));
            assert!(text.contains(&at), "{words:?}: {text}");
        }
    }
    let (_, _, text) = home.run(&["run", "--policy", "allow.toml", "--", "true"]);
    assert!(text.contains("= probably meant: .vscode\n") && text.contains("  hint: docs/files.md"), "{text}");
}

#[test]
fn tells_two_rules_in_one_argument_apart() {
    let home = Home::new();
    for rules in ["a.example,b.example", "a.example b.example"] {
        let (code, _, said) = home.run(&["check", "--allow", rules, "a.example"]);
        assert!(code == 2 && said.contains("hint: one rule each: --allow RULE --allow RULE"), "{said}");
    }
}

#[test]
fn a_failed_start_writes_its_result_too() {
    let home = Home::new();
    let (code, _, _) = home.run(&["run", "--result", "r.json", "--allow", "*.com", "--", "true"]);
    let result: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(home.0.join("r.json")).unwrap()).unwrap();
    assert_eq!(code, 2);
    assert_eq!((result["cause"].as_str(), result["code"].as_u64()), (Some("policy"), Some(2)));
    assert_eq!(result["schema"].as_u64(), Some(1));
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let home = Home::new();
    for words in [
        &["check", "--allow", "a.example", "a.example"][..],
        &["audit", "list", "--format", "json"],
        &["completions", "bash"],
        &["man"],
        &["--help"],
        &["run", "--help"],
    ] {
        let mut child = home.exeat(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}: {err}");
        assert!(!err.contains("panicked") && !err.contains("error"), "{words:?}: {err}");
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let home = Home::new();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = home.exeat(&["completions", "bash"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(output.stderr, b"exeat: error: cannot write to stdout: no space left on device\n");
}

#[test]
fn color_is_for_terminals_or_by_request() {
    let home = Home::new();
    let (_, out, _) = home.run(&["check", "--allow", "a.example", "a.example"]);
    assert!(!out.contains('\u{1b}'));
    let (_, out, _) = home.run(&["check", "--color", "always", "--allow", "a.example", "a.example"]);
    assert!(out.starts_with("\u{1b}[32mallow\u{1b}[0m  a.example:443"), "{out:?}");
}

#[test]
fn records_are_found_listed_and_shown() {
    let home = Home::new();
    assert_eq!(home.run(&["audit", "list"]).0, 0);
    assert_eq!(home.run(&["audit", "list", "--format", "json"]).1, "[]\n");

    let (old, new) = ("01JD8Z3V5QABCDEFGHJKMNPQRS", "01JD9Z3V5QABCDEFGHJKMNPQRS");
    let runs = home.0.join(".local/state/exeat/runs");
    fs::create_dir_all(&runs).unwrap();
    for run in [old, new] {
        let line = |seq: u32, rest: &str| {
            format!(
                r#"{{"schema":"egress/1","seq":{seq},"ts":"2026-11-21T10:20:32.123456Z","mono_us":1,"run":"{run}",{rest}}}"#
            )
        };
        let text = [
            line(0, r#""event":"run_start","command":"curl""#),
            line(
                1,
                r#""event":"decision","conn":1,"host":"a.example","port":443,"verdict":"allow","reason":"rule","rule":"a.example","rule_src":"--allow""#,
            ),
            line(
                2,
                r#""event":"decision","conn":2,"host":"b.example","port":443,"verdict":"deny","reason":"default""#,
            ),
        ];
        fs::write(runs.join(format!("{run}.jsonl")), text.join("\n") + "\n").unwrap();
    }

    let (code, out, _) = home.run(&["audit", "list"]);
    assert_eq!((code, out.lines().count()), (0, 3));
    assert!(out.lines().nth(1).unwrap().starts_with("01JD9Z3V5Q "), "the newest first: {out}");

    for words in [&["audit", "show"][..], &["audit", "show", "--last"], &["audit", "show", "01jd9"]] {
        let (code, out, err) = home.run(words);
        assert_eq!(code, 1, "written by hand, so not chained: {err}");
        assert!(out.contains(new) && out.contains("a.example:443") && out.contains("b.example:443"), "{out}");
    }
    let file = runs.join(format!("{old}.jsonl"));
    let (_, out, _) = home.run(&["audit", "show", file.to_str().unwrap(), "--verdict", "deny"]);
    assert!(out.contains(old) && out.contains("b.example:443") && !out.contains("a.example:443"), "{out}");
    let (_, out, _) = home.run(&["audit", "show", "--format", "json", "--host", "a.example"]);
    assert_eq!(out.lines().count(), 1);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap()["host"], "a.example");

    let (code, _, err) = home.run(&["audit", "show", "01J"]);
    assert_eq!(code, 2);
    assert!(err.contains("several runs"), "{err}");
}

/// Runs a checker if this machine has it; with `E2E_STRICT` a missing one is a failure.
fn checker(home: &Home, program: &str, args: &[&str], input: &Path) -> Option<Output> {
    if !["/usr/bin", "/bin"].iter().any(|dir| Path::new(dir).join(program).exists()) {
        assert!(std::env::var_os("E2E_STRICT").is_none(), "{program} is missing");
        eprintln!("skipped: {program} is missing");
        return None;
    }
    Some(home.command(program).args(args).arg(input).output().unwrap())
}

#[test]
fn completions_are_scripts_of_their_shells() {
    let home = Home::new();
    for (shell, words) in
        [("bash", "--upstream-proxy"), ("zsh", "--upstream-proxy"), ("fish", "upstream-proxy")]
    {
        let (code, script, _) = home.run(&["completions", shell]);
        assert_eq!(code, 0);
        assert!(script.contains(words), "{shell}");
        home.file(shell, &script);
        if let Some(output) = checker(&home, shell, &["-n"], &home.0.join(shell)) {
            assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

#[test]
fn completions_are_for_the_shell_of_the_caller() {
    let home = Home::new();
    let output = home.exeat(&["completions"]).env("SHELL", "/usr/bin/fish").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("complete -c exeat"));
    let (code, _, said) = home.run(&["completions"]);
    assert_eq!(code, 2);
    assert!(said.contains("hint: exeat completions bash"), "{said}");
}

/// Tries each common mistake, with the words that correct it.
#[test]
fn corrects_common_mistakes() {
    let home = Home::new();
    for (words, expected) in [
        (&["npm", "ci"][..], "to run a command: exeat run -- npm ..."),
        (&["preset", "show", "npm"], "hint: exeat preset npm"),
        (&["preset", "claude"], "probably meant: agent-claude"),
        (&["run", "-p", "claude", "--", "true"], "probably meant: agent-claude"),
    ] {
        let (code, _, said) = home.run(words);
        assert_eq!(code, 2, "{words:?}");
        assert!(said.contains(expected), "{words:?}: {said}");
    }
    let (code, shown, _) = home.run(&["preset", "npm", "crates"]);
    assert_eq!(code, 0);
    assert!(shown.contains("npm  ") && shown.contains("crates  "), "{shown}");
}

#[test]
fn manual_pages_are_clean() {
    let home = Home::new();
    let (code, page, _) = home.run(&["man"]);
    assert_eq!(code, 0);
    assert!(page.contains(".TH exeat 1"), "{page}");
    let (code, out, _) = home.run(&["man", "--out", "pages/man1"]);
    assert_eq!((code, out.as_str()), (0, ""));
    let mut names: Vec<String> = fs::read_dir(home.0.join("pages/man1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "exeat-audit-diff.1",
            "exeat-audit-export.1",
            "exeat-audit-key.1",
            "exeat-audit-learn.1",
            "exeat-audit-list.1",
            "exeat-audit-lock.1",
            "exeat-audit-prune.1",
            "exeat-audit-replay.1",
            "exeat-audit-report.1",
            "exeat-audit-show.1",
            "exeat-audit-summary.1",
            "exeat-audit-verify.1",
            "exeat-audit.1",
            "exeat-check.1",
            "exeat-completions.1",
            "exeat-doctor.1",
            "exeat-env.1",
            "exeat-learn.1",
            "exeat-man.1",
            "exeat-policy-diff.1",
            "exeat-policy-lint.1",
            "exeat-policy-schema.1",
            "exeat-policy-show.1",
            "exeat-policy.1",
            "exeat-preset.1",
            "exeat-prove.1",
            "exeat-proxy.1",
            "exeat-run.1",
            "exeat-state-list.1",
            "exeat-state-prune.1",
            "exeat-state-restore.1",
            "exeat-state-trust.1",
            "exeat-state.1",
            "exeat.1",
        ]
    );
    for name in names {
        let page = home.0.join("pages/man1").join(&name);
        let args = ["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"];
        if let Some(output) = checker(&home, "man", &args, &page) {
            assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{name}");
        }
    }
}

#[test]
fn diagnostics_are_asked_for_by_rust_log() {
    let home = Home::new();
    let words = ["check", "--allow", "a.example", "a.example"];
    let output = home.exeat(&words).env("RUST_LOG", "exeat=[bad").output().unwrap();
    let (code, _, err) = result_of(output);
    assert_eq!(code, 0);
    assert!(err.starts_with("exeat: warning: RUST_LOG"), "{err}");
}

#[test]
fn the_version_and_the_help_of_a_command() {
    let home = Home::new();
    assert_eq!(
        home.run(&["--version"]),
        (0, format!("exeat {}\n", env!("CARGO_PKG_VERSION")), String::new())
    );
    let (code, out, _) = home.run(&["help", "run"]);
    assert_eq!(code, 0);
    assert!(BufReader::new(out.as_bytes()).lines().any(|line| line.unwrap().starts_with("Examples:")));
}
