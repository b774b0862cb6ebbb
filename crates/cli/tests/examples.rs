//! Runs the examples of the docs pages: each command works if the files that it names exist.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

#[path = "support/home.rs"]
mod home;
#[path = "support/pages.rs"]
mod pages;

use home::{Home, result_of};

/// Commands of examples that are not run here, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    ("audit diff --stage nightly --baseline-until", "needs a run of an earlier month: the units of `diff`"),
    ("check --format json --set network.ehc", "shows how a fault looks"),
    ("run --via unix:", "needs a proxy that listens: the trials `proxy::`"),
    ("state restore", "needs a file that a run moved: the trials `escape::`"),
];

/// Programs that the examples start.
const PROGRAMS: [&str; 5] = ["aider", "claude", "make", "npm", "psql"];

fn write_program(home: &Home, name: &str, text: &str) {
    home.file(name, text);
    fs::set_permissions(home.0.join(name), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Creates the shell that runs a line of a page in the project. Commands that follow a record or serve do not end: they get two seconds.
fn shell(home: &Home, line: &str) -> Command {
    let mut command = home.command("timeout");
    let exeat = Path::new(env!("CARGO_BIN_EXE_exeat")).parent().unwrap();
    let path = format!("{}:{}:/usr/bin:/bin", exeat.display(), home.0.join("bin").display());
    command.args(["2", "bash", "-o", "pipefail", "-c", line]).env("PATH", path);
    command.env("XDG_RUNTIME_DIR", &home.0).env("GITHUB_STEP_SUMMARY", home.0.join("summary"));
    command.current_dir(home.0.join("project"));
    command
}

/// Creates a home with the files that the examples name, and with the record of one run.
fn furnished() -> (Home, String) {
    let home = Home::new();
    for dir in
        ["datasets", "agents/claude/a/b/home", ".local/state/exeat", "bin", "project/out", "project/secrets"]
    {
        fs::create_dir_all(home.0.join(dir)).unwrap();
    }
    for program in PROGRAMS {
        // npm answers with its registry.
        write_program(&home, &format!("bin/{program}"), "#!/bin/sh\necho https://registry.example/\n");
    }
    for script in ["job.sh", "import.sh", "test-with-database.sh", "test-with-database-and-model.sh"] {
        write_program(&home, &format!("project/{script}"), "#!/bin/sh\n");
    }
    let policy = "schema = 1\n[network]\nallow = [\"api.example.com\"]\n";
    for name in [".exeat.toml", "policy.toml", "new.toml", "grants.toml", "a.toml", "b.toml", "OLD", "NEW"] {
        home.file(&format!("project/{name}"), policy);
    }
    home.file("project/stage.json", r#"[{"effect": "NetworkHosts", "hosts": ["api.example.com"]}]"#);
    home.file("project/import.py", "");
    let result = home.0.join("project/result.json");
    let words = ["run", "--stage", "import", "--label", "ticket=OPS-7", "--result", result.to_str().unwrap()];
    let (exit, out, err) = home.run(&[&words[..], &["--", "true"]].concat());
    assert_eq!(exit, 0, "{out}{err}");
    let result: serde_json::Value = serde_json::from_slice(&fs::read(result).unwrap()).unwrap();
    let run = result.get("run").and_then(serde_json::Value::as_str).unwrap().to_owned();
    let record = home.0.join(format!(".local/state/exeat/runs/{run}.jsonl"));
    for (dir, names) in [
        ("", &["a.jsonl", "b.jsonl", "run.jsonl", "last-release.jsonl", "FILE", "OTHER"][..]),
        ("records/2026-10", &["a.jsonl"]),
        ("records/2026-11", &["b.jsonl"]),
        ("records", &["c.jsonl"]),
        ("runs", &["d.jsonl"]),
    ] {
        let dir = home.0.join("project").join(dir);
        fs::create_dir_all(&dir).unwrap();
        names.iter().for_each(|name| assert!(fs::copy(&record, dir.join(name)).is_ok()));
    }
    let prepared =
        "exeat audit key > audit.pub && cp audit.pub ci.pub && exeat audit lock --last -o egress.lock";
    let (exit, out, err) = result_of(shell(&home, prepared).output().unwrap());
    assert_eq!(exit, 0, "{out}{err}");
    (home, run)
}

/// The command as it can be run here: with the name of a run that exists, and without starting what `exeat run` starts.
fn adapted(command: &str, run: &str) -> String {
    let words = command.split(' ').map(|word| {
        let name = word.trim_matches('\'');
        let is_run =
            name == "RUN" || name.starts_with("01") && name.chars().all(|c| c.is_ascii_alphanumeric());
        if is_run { run.to_owned() } else { word.replace("RUN.policy", &format!("{run}.policy")) }
    });
    let command = words.filter(|word| word != "OTHER..." && word != "...").collect::<Vec<_>>().join(" ");
    let command = command.replace("/run/user/1000", ".");
    if command.contains("--dry-run") {
        command
    } else {
        command.replacen("exeat run ", "exeat run --dry-run ", 1)
    }
}

#[test]
fn runs_the_examples_of_the_pages() {
    let (home, run) = furnished();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (page, text) in pages::pages() {
        for (command, is_whole) in pages::commands(&text) {
            let is_elsewhere =
                ELSEWHERE.iter().any(|(words, _)| command.starts_with(&format!("exeat {words}")));
            // Of a message, and not a command: "exeat denied ...".
            let is_command = ["audit", "check", "policy", "proxy", "run", "state"]
                .iter()
                .any(|word| command.starts_with(&format!("exeat {word} ")));
            if !is_whole || !is_command || is_elsewhere {
                continue;
            }
            count += 1;
            let (exit, out, err) = result_of(shell(&home, &adapted(&command, &run)).output().unwrap());
            // Only a proxy, and the reader of a record that grows, have no end of their own.
            let is_endless = exit == 124 && (command.contains("proxy") || command.contains("show"));
            if ![0, 1, 3].contains(&exit) && !is_endless {
                wrong.push(format!("{page}: `{command}`: {exit}\n{out}{err}"));
            }
        }
    }
    assert!(count > 80, "the commands are no longer where this test looks for them: {count}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
