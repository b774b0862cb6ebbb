//! Tests the messages of the `exeat` binary for newcomers: each one names what happened and what to do. Nothing here starts a sandbox.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::fs;

use exeat_record::RunId;

#[path = "support/home.rs"]
mod home;

use home::Home;

/// Runs commands, each with its exit code and the text that its stderr contains.
fn check(home: &Home, cases: &[(&[&str], i32, &str)]) {
    for (words, code, expect) in cases {
        let (exit, out, said) = home.run(words);
        assert!(exit == *code && said.contains(expect), "{words:?}: {exit}\n{out}{said}");
    }
}

fn empty_record(home: &Home) {
    let runs = home.0.join(".local/state/exeat/runs");
    fs::create_dir_all(&runs).unwrap();
    fs::write(runs.join(format!("{}.jsonl", RunId::new())), "").unwrap();
}

#[test]
fn l17_runs_without_a_first_line_are_counted_in_one_line() {
    let home = Home::new();
    empty_record(&home);
    empty_record(&home);
    for command in ["list", "show", "summary"] {
        let (exit, out, said) = home.run(&["audit", command, "--stage", "import"]);
        assert_eq!(exit, 0, "{out}{said}");
        assert_eq!(said.matches("2 records left out").count(), 1, "{said}");
        assert!(said.contains("exeat audit list shows all") && !said.contains(".jsonl"), "{said}");
    }
    let (_, out, said) = home.run(&["audit", "list", "--since", "1ms"]);
    assert!(out.is_empty() && !said.contains("left out"), "{out}{said}");
    let (_, out, _) = home.run(&["audit", "list", "--since", "1h"]);
    assert_eq!(
        out.lines()
            .filter(|line| line.contains("empty") || line.contains("killed") || line.contains("01"))
            .count(),
        2,
        "{out}"
    );
}

#[test]
fn a_command_that_looks_at_a_policy_needs_one() {
    let home = Home::new();
    empty_record(&home);
    let why = "there is no policy to look at";
    check(
        &home,
        &[
            (&["policy", "lint"], 2, why),
            (&["policy", "show"], 2, why),
            (&["audit", "replay"], 2, why),
            (&["policy", "lint", "--policy", ""], 2, "--policy"),
            (&["policy", "lint", ""], 2, "FILE"),
            (&["policy", "lint", "--deny", "a.example"], 0, ""),
        ],
    );
    let (exit, _, said) = home.with_stdin(&["policy", "lint", "-"], b"[network]\ndeny = [\"a.example\"]\n");
    assert_eq!(exit, 0, "{said}");
    home.file(".exeat.toml", "[network]\nallow = [\"a.example\"]\n");
    check(&home, &[(&["policy", "show"], 2, "--policy .exeat.toml")]);
    // The user's ceiling counts as a policy.
    fs::create_dir_all(home.0.join(".config/exeat")).unwrap();
    home.file(".config/exeat/policy.toml", "[network]\nallow = [\"a.example\"]\n");
    check(&home, &[(&["policy", "show"], 0, "")]);
}

/// A duration means the same in every place.
#[test]
fn thirty_m_are_minutes_everywhere() {
    let home = Home::new();
    empty_record(&home);
    for span in ["30m", "90s", "2w", "6mo", "1y", "1h30m"] {
        check(
            &home,
            &[
                (&["state", "prune", "--older-than", span], 0, ""),
                (&["audit", "prune", "--older-than", span, "--dry-run"], i32::from(span == "30m") * 2, ""),
                (&["audit", "list", "--since", span], 0, ""),
            ],
        );
    }
    check(&home, &[(&["state", "prune", "--all", "--dir", "."], 0, "")]);
}

/// Who writes `6m` for an age of records may mean months, and what is removed does not come back.
#[test]
fn an_age_of_some_minutes_removes_no_record() {
    let home = Home::new();
    for (span, code, said) in [
        ("6m", 2, "6m are minutes: 6mo for months, 360s for minutes"),
        ("1m", 2, "60s for minutes"),
        ("59m", 2, "59mo"),
        ("60m", 0, ""),
        ("6mo", 0, ""),
        ("360s", 0, ""),
    ] {
        check(&home, &[(&["audit", "prune", "--older-than", span], code, said)]);
    }
}

/// Also after a prune that has removed all: then runs were recorded here before.
#[test]
fn an_empty_list_says_nothing_about_the_past() {
    let home = Home::new();
    let (exit, _, said) = home.run(&["audit", "list"]);
    assert!(exit == 0 && said.contains("no record in `") && !said.contains("yet"), "{exit} {said}");
}

#[test]
fn names_the_lock_file_or_stage_that_is_missing() {
    let home = Home::new();
    let words = ["run", "--dry-run", "--stage", "fecth", "--locked", "--", "true"];
    check(
        &home,
        &[
            (&words, 2, "there is no `egress.lock`"),
            (&words, 2, "exeat audit lock --stage fecth --last -o egress.lock"),
        ],
    );
    home.file("egress.lock", "schema 1\nfetch a.example:443 connect\n");
    check(&home, &[(&words, 2, "probably meant: --stage fetch")]);
}

#[test]
fn names_the_entry_that_a_lock_loses() {
    let home = Home::new();
    let runs = home.0.join(".local/state/exeat/runs");
    fs::create_dir_all(&runs).unwrap();
    let run = RunId::new();
    let start = format!(
        r#"{{"schema":"egress/1","seq":0,"ts":"2026-11-21T10:20:32.123456Z","mono_us":1,"event":"run_start","run":"{run}","stage":"fetch"}}"#
    );
    home.file("run.jsonl", &format!("{start}\n"));
    home.file("egress.lock", "schema 1\nfetch index.example:443 connect\nother a.example:443 connect\n");
    let (_, _, said) = home.run(&["audit", "lock", "run.jsonl", "-o", "egress.lock"]);
    assert!(
        said.contains("removed 1 entry from `egress.lock`")
            && said.contains("fetch index.example:443 connect"),
        "{said}"
    );
    assert!(said.contains("--update"), "{said}");
    let (_, _, said) = home.run(&["audit", "lock", "run.jsonl", "-o", "egress.lock"]);
    assert!(!said.contains("removed"), "{said}");
}

#[test]
fn accepts_the_words_that_it_prints() {
    let home = Home::new();
    empty_record(&home);
    for word in ["deny", "denied", "allow", "allowed", "would_deny", "would deny", "error", "failed"] {
        check(&home, &[(&["audit", "show", "--verdict", word], 0, "")]);
    }
    check(&home, &[(&["audit", "show", "--verdict", "nope"], 2, "would_deny")]);
}

/// Checks that mistakes in arguments are reported by exeat, with what to do.
#[test]
fn reports_a_mistake_in_an_argument_with_its_fix() {
    let home = Home::new();
    home.file("p.toml", "[network]\nallow = [\"a.example\"]\n");
    check(
        &home,
        &[
            (&["run", "--tmeout", "1s", "x"], 2, "exeat: error: "),
            (&["run", "-v", "x"], 2, "exeat run -- COMMAND -v"),
            (&["run", "--pids", "abc", "x"], 2, "a whole number, such as 200"),
            (&["run", "--memory", "1KB", "x"], 2, "probably meant: \"1MB\""),
            (&["run", "--audit", "/dev/stdout", "x"], 2, "stdout is the stage's"),
            (&["run", "--result", "/proc/self/fd/1", "x"], 2, "stdout is the stage's"),
            (&["run", "--allow", "*", "x"], 2, "--set network.allow_any=true"),
            (&["run", "--dry-run", "--effects", "[", "x"], 2, "the text ends inside a list"),
            (&["policy", "check", "p.toml"], 2, "exeat policy lint FILE"),
            (&["check", "p.toml", "a.example"], 2, "exeat check --policy p.toml HOST"),
            (&["check", "--set", "network.allow_any=true", "--allow", "*", "a.example"], 0, ""),
            (&["check", "--set", "run.on_denied=\"fail\"", "a.example"], 2, "--on-denied"),
            (&["audit", "summary"], 2, "`exeat run` writes one"),
        ],
    );
    // One round is enough for all of them, whoever finds them.
    let words = [
        ["--timeout", "1"],
        ["--memory", "x"],
        ["--allow", "a..b"],
        ["--allow", "*x.example"],
        ["-p", "pipy"],
        ["--allow-write", "foo"],
        ["--set", "network.ehc=x"],
    ];
    let said_of = |format: &[&str]| {
        let (code, _, said) =
            home.run(&[&["run"], format, words.concat().as_slice(), &["--", "true"]].concat());
        assert_eq!(code, 2, "{said}");
        said
    };
    let said = said_of(&[]);
    for fault in [
        "for '--timeout",
        "for '--memory",
        "--allow: `a..b`",
        "--allow: `*x.example`",
        "--preset: there is no",
    ] {
        assert_eq!(said.matches(fault).count(), 1, "{fault}: {said}");
    }
    assert!(
        said.contains("--allow-write: `foo`") && said.contains("--set:1:9: there is no key `ehc`"),
        "{said}"
    );
    assert!(
        said.contains("= probably meant: pypi\n") && said.contains("= probably meant: --allow a.b\n"),
        "{said}"
    );
    let flags: Vec<_> = said_of(&["--format", "json", "--result", "r.json"])
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["file"].clone())
        .collect();
    let expected = ["--timeout", "--memory", "--allow-write", "--allow", "--allow", "--preset", "--set"];
    assert_eq!(flags, expected);
    let result = std::fs::read_to_string(home.0.join("r.json")).unwrap();
    let result: serde_json::Value = serde_json::from_str(&result).unwrap();
    assert_eq!(result["faults"].as_array().unwrap().len(), expected.len());
    // A flag that clap does not know ends the search, and what follows it may be the command's.
    let (_, _, said) = home.run(&["run", "--timeout", "1", "--strange", "--memory", "x", "--", "true"]);
    assert!(said.contains("--strange") && !said.contains("--memory"), "{said}");
    let (_, _, said) = home.run(&["run", "--allow-write", "foo", "--", "true"]);
    assert!(said.contains("docs/files.md lists the protected names"), "no name is near: {said}");
    let (_, _, said) = home.run(&["check", "--policy", "nope", "--format", "json", "a.example"]);
    assert!(
        said.contains(r#""file":"nope""#) && said.contains("cannot read the policy file `nope`"),
        "{said}"
    );
}

#[test]
fn names_a_flag_that_a_ceiling_empties() {
    let home = Home::new();
    home.file("site.toml", "[network]\nallow = [\"a.example\"]\n");
    let words =
        ["check", "--ceiling", "site.toml", "--allow", "a.example", "--allow", "b.example", "a.example"];
    let (exit, _, said) = home.run(&words);
    assert_eq!(exit, 0);
    assert!(said.contains("--allow b.example: ") && !said.contains("--allow a.example"), "{said}");
    let (_, _, said) =
        home.run(&["check", "--effects", r#"{"effect":"Pure"}"#, "--allow", "b.example", "b.example"]);
    assert!(said.contains("--allow b.example: "), "{said}");
}

#[test]
fn help_and_pages_say_the_exit_code_of_a_refusal() {
    let home = Home::new();
    for words in [&["run", "--help"][..], &["--help"]] {
        let (_, out, _) = home.run(words);
        assert!(
            out.split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
                .contains("123 something was refused (--on-denied"),
            "{words:?}: {out}"
        );
    }
}

/// Checks that the doctor reads the policies that every run reads.
#[test]
fn a_ceiling_that_cannot_be_used_fails_the_doctor() {
    let home = Home::new();
    fs::create_dir_all(home.0.join(".config/exeat")).unwrap();
    home.file(".config/exeat/policy.toml", "[network]\nalow = []\n");
    let (exit, out, _) = home.run(&["doctor"]);
    assert!(exit == 1 && out.contains("policy.toml") && out.contains("exit code 2"), "{out}");
    assert!(out.contains("cannot run here") && !out.contains("everything holds"), "{out}");
    let column = |words: &str| {
        let line = out.lines().find(|line| line.contains(words));
        line.and_then(|line| line.find(words)).unwrap_or_else(|| panic!("no {words}: {out}"))
    };
    assert_eq!(column("alow = []"), column("^^^^"), "the mark is under the fault: {out}");
    home.file(".config/exeat/policy.toml", "[network]\nallow = []\n");
    let (_, out, _) = home.run(&["doctor"]);
    assert!(out.lines().any(|line| line.starts_with("ok") && line.contains("policy.toml")), "{out}");
}

#[test]
fn a_lock_in_the_place_of_the_command_is_told() {
    let home = Home::new();
    home.file("egress.lock", "schema 1\nimp a.example:443 connect\n");
    home.file("approved", "# by hand\nschema 1\nimp a.example:443 connect\n");
    for name in ["egress.lock", "approved"] {
        let meant = format!("probably meant: --locked={name}");
        check(&home, &[(&["run", "--locked", name, "--stage", "imp", "--", "true"], 2, &meant)]);
    }
}

#[test]
fn names_the_kind_of_file_that_cannot_be_read() {
    let home = Home::new();
    check(
        &home,
        &[
            (&["check", "--effects", "nope", "a.example"], 2, "cannot read the effects file `nope`"),
            (&["check", "--ceiling", "nope", "a.example"], 2, "cannot read the ceiling `nope`"),
            (&["check", "--allow", "@nope", "a.example"], 2, "cannot read the list of rules `nope`"),
        ],
    );
}

#[test]
fn names_the_directory_to_make() {
    let home = Home::new();
    empty_record(&home);
    for words in [
        &["run", "--audit", "my dir/x", "--", "true"][..],
        &["run", "--result", "my dir/x", "--", "true"],
        &["learn", "-o", "my dir/x", "--", "true"],
        &["audit", "lock", "--last", "-o", "my dir/x"],
        &["audit", "report", "--last", "-o", "my dir/x"],
    ] {
        check(&home, &[(words, 2, "hint: mkdir -p 'my dir'")]);
    }
    let script = r#"mkdir gone && cd gone && rmdir ../gone && exec "$0" run -- true"#;
    let mut shell = home.command("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_exeat")]);
    let (exit, _, said) = home::result_of(shell.output().unwrap());
    assert!(exit == 125 && said.contains("hint: change to a directory that exists"), "{said}");
}

#[test]
fn names_a_limit_that_a_ceiling_lowers() {
    let home = Home::new();
    home.file("site.toml", "[limits]\ntimeout = \"30s\"\npids = 900\n");
    let words = [
        "run",
        "--dry-run",
        "--ceiling",
        "site.toml",
        "--timeout",
        "1h",
        "--pids",
        "50",
        "--memory",
        "1GB",
        "true",
    ];
    let (exit, _, said) = home.run(&words);
    assert!(exit == 0 && said.contains("--timeout 1h: the ceiling site.toml allows 30s"), "{said}");
    assert!(!said.contains("--pids") && !said.contains("--memory"), "{said}");
}

#[test]
fn prints_the_manual_page_of_a_command() {
    let home = Home::new();
    for (words, heading) in
        [(&["man", "run"][..], ".TH exeat-run 1"), (&["man", "audit", "lock"], ".TH exeat-audit-lock 1")]
    {
        let (exit, out, said) = home.run(words);
        assert!(exit == 0 && out.contains(heading), "{out}{said}");
    }
    check(&home, &[(&["man", "nope"], 2, "there is no command `exeat nope`")]);
}

#[test]
fn says_that_flags_select_no_run() {
    let home = Home::new();
    empty_record(&home);
    check(
        &home,
        &[(&["audit", "list", "--stage", "nosuch"], 0, "no record is of the runs that the flags select")],
    );
}

#[test]
fn names_the_rules_of_a_file_that_a_ceiling_empties() {
    let home = Home::new();
    home.file("site.toml", "[network]\nallow = [\"*.corp.example\"]\n");
    home.file("p.toml", "[network]\nallow = [\"a.corp.example\", \"b.example\",\n\"c.example\"]\n");
    let words = ["check", "--ceiling", "site.toml", "--policy", "p.toml", "a.corp.example"];
    let (exit, _, said) = home.run(&words);
    assert_eq!(exit, 0, "{said}");
    assert!(
        said.contains("p.toml:2 `b.example`: ") && said.contains("and 1 more (exeat policy lint)"),
        "{said}"
    );
    // A stage may declare less than a policy for many stages grants.
    home.file("p.toml", "[network]\nallow = [\"b.example\", \"c.example\"]\n");
    let effects = r#"[{"effect":"NetworkHosts","hosts":["b.example"]}]"#;
    let (_, _, said) = home.run(&["check", "--policy", "p.toml", "--effects", effects, "b.example"]);
    assert!(!said.contains("c.example"), "{said}");
}

#[test]
fn the_result_of_a_refused_run_names_its_stage() {
    let home = Home::new();
    let words =
        ["run", "--stage", "nn", "--label", "t=7", "--effects", "nope", "--result", "r.json", "--", "true"];
    assert_eq!(home.run(&words).0, 2);
    let result = fs::read_to_string(home.0.join("r.json")).unwrap();
    assert!(result.contains(r#""stage":"nn","labels":{"t":"7"}"#), "{result}");
}

#[test]
fn names_the_damaged_record() {
    let home = Home::new();
    home.file("my run.jsonl", "no record\n");
    for words in [
        &["audit", "report", "my run.jsonl", "-o", "x"][..],
        &["audit", "diff", "my run.jsonl", "my run.jsonl"],
    ] {
        let (exit, _, said) = home.run(words);
        assert!(exit != 0 && said.contains("exeat audit verify 'my run.jsonl'"), "{exit} {said}");
    }
}

#[test]
fn check_answers_for_loopback_as_the_sandbox_does() {
    let home = Home::new();
    let run = |words: &[&str]| home.run(words);
    let (exit, out, _) = run(&["check", "localhost:5432"]);
    assert!(exit == 1 && out.ends_with("  --host-port 5432\n"), "{out}");
    for target in ["localhost:80", "127.0.0.1:80"] {
        let (exit, out, _) = run(&["check", "--host-port", "5432:80", target]);
        assert!(exit == 0 && out.contains("reach it too, at 127.0.0.1:80"), "{out}");
    }
    assert_eq!(run(&["check", "--host-port", "5432:80", "localhost:5432"]).0, 1);
    check(&home, &[(&["check", "b\u{fc}cher.example"], 2, "hint: a host name has only ASCII")]);
}

#[test]
fn a_broken_lock_is_removed_first() {
    let home = Home::new();
    home.file("egress.lock", "");
    let hint =
        "hint: correct or remove it; after a run without --locked: exeat audit lock --last -o egress.lock";
    check(&home, &[(&["run", "--locked", "--", "true"], 2, hint)]);
    check(&home, &[(&["run", "--locked", "--", "true"], 2, "the first line must be `schema 1`")]);
}
