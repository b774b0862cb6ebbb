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
    // The names of records contain the time.
    std::thread::sleep(std::time::Duration::from_millis(20));
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
                (&["audit", "prune", "--older-than", span], 0, ""),
                (&["audit", "list", "--since", span], 0, ""),
            ],
        );
    }
    check(&home, &[(&["state", "prune", "--all", "--dir", "."], 0, "")]);
}

#[test]
fn names_the_lock_file_or_stage_that_is_missing() {
    let home = Home::new();
    let words = ["run", "--dry-run", "--stage", "fecth", "--locked", "--", "true"];
    check(
        &home,
        &[(&words, 2, "there is no `egress.lock`"), (&words, 2, "exeat audit lock --last -o egress.lock")],
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
    home.file("egress.lock", "schema 1\nfetch pypi.org:443 connect\nother a.example:443 connect\n");
    let (_, _, said) = home.run(&["audit", "lock", "run.jsonl", "-o", "egress.lock"]);
    assert!(
        said.contains("removed 1 entry from `egress.lock`") && said.contains("fetch pypi.org:443 connect"),
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
    let (_, _, said) = home.run(&["run", "--allow-write", "foo", "--", "true"]);
    assert!(said.contains("docs/files.md lists the protected names"), "no name is near: {said}");
    let (_, _, said) = home.run(&["check", "--policy", "nope", "--format", "json", "a.example"]);
    assert!(said.contains(r#""file":"nope""#) && said.contains("cannot read `nope`"), "{said}");
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
