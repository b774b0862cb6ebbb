//! `cargo xtask test`: runs and counts every test of the workspace.
//!
//! Most tests need no privileges. Those that need root say so (`#[ignore = "needs root"]`, and the end-to-end trials
//! whose names end in `root_handoff` or `root_relay`). Root runs them with the rest; otherwise `sudo` runs them
//! afterwards, if it needs no password. The last line counts the tests that did not run.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{needs, steps, tree};

/// The command that runs the tests which an ordinary user without `sudo` leaves out.
const AS_ROOT: &str = "cargo xtask test --root";

/// The variables that test programs and the end-to-end harness read, which `sudo` passes on.
const PASSED_ON: &str =
    "--preserve-env=E2E_STRICT,E2E_ROOT,E2E_FULL,E2E_NIGHTLY,EXEAT_BIN,CARGO,CARGO_MANIFEST_DIR,PATH";

/// The user that runs tests without root. No account has this number, so that no test depends on an account.
const USER: &str = "54322";

/// The end-to-end trials that CI also runs as an ordinary user: the start and the end of a run.
const DIFFERENT_TRIALS: [&str; 2] = ["smoke::", "life::"];

/// The unit tests of which two return at once for root, who may read every directory.
const DIFFERENT_UNITS: &str = "quarantine::arrivals";

/// The areas of `cargo xtask test AREA`: name, crates, and modules of the end-to-end trials. A test checks that each
/// module is in an area.
const AREAS: &[(&str, &[&str], &[&str])] = &[
    ("policy", &["exeat-policy", "exeat-compose"], &["policy", "allow", "deny", "terms", "presets"]),
    (
        "record",
        &["exeat-record", "exeat-audit"],
        &["audit", "audit_read", "export", "learn", "ledger", "verify", "durable", "privacy"],
    ),
    (
        "proxy",
        &["exeat-proxy"],
        &["dns", "gateway", "http", "load", "proxy", "socks", "tls", "upstream", "vectors", "who"],
    ),
    ("files", &["exeat-files"], &["escape"]),
    (
        "sandbox",
        &["exeat-sandbox", "exeat-runner", "exeat-prove"],
        &["back_end", "doctor", "escape", "life", "limits", "prove", "smoke", "streams", "terminal"],
    ),
    ("cli", &["exeat-cli", "xtask"], &["cli", "exit", "schemas"]),
    ("clients", &[], &["clients"]),
];

/// Runs every test of the workspace; a test that cannot run here fails. `--root` runs only those that need root,
/// through `sudo`, which may ask for a password. `--user` runs, as root, those that differ for an ordinary user. The
/// name of an area as the first argument selects its tests.
pub(crate) fn test(arguments: &[String]) -> Result<(), String> {
    let (asked, arguments): (Vec<_>, Vec<_>) =
        arguments.iter().map(String::as_str).partition(|argument| ["--root", "--user"].contains(argument));
    // Builds the binary for the end-to-end tests with the features of the test build, so that nothing is compiled
    // twice.
    steps::finish(tree::cargo().args(["build", "--workspace", "--bins", "--tests"]), "the build")?;
    let mut total = Total::default();
    let area = arguments.first().and_then(|name| AREAS.iter().find(|(area, ..)| area == name));
    if asked.contains(&"--user") {
        if !arguments.is_empty() {
            return Err("`--user` selects its tests itself".to_owned());
        }
        run_as_asked(&asked, &[], &mut total)?;
    } else if let Some((_, crates, modules)) = area {
        // Trials select the whole workspace, because a part of it would be built with other features.
        let units: Vec<_> =
            crates.iter().flat_map(|package| ["-p".to_owned(), (*package).to_owned()]).collect();
        let units = (!units.is_empty()).then_some(units).into_iter();
        let trials = modules.iter().map(|module| {
            ["--workspace", "--test", "e2e", "--", &format!("{module}::")].map(str::to_owned).to_vec()
        });
        for words in units.chain(trials) {
            run_as_asked(&asked, &words, &mut total)?;
        }
    } else {
        let words = ["--workspace".to_owned()].into_iter();
        let words: Vec<String> = words.chain(arguments.iter().map(|word| (*word).to_owned())).collect();
        run_as_asked(&asked, &words, &mut total)?;
    }
    for name in &total.names {
        println!("failed: {name}");
    }
    println!("\n{}", total.line());
    if total.failed == 0 && total.passed > 0 { Ok(()) } else { Err("not every test passed".to_owned()) }
}

/// Runs the tests that these arguments of `cargo test` select, as the requested user.
fn run_as_asked(asked: &[&str], arguments: &[String], total: &mut Total) -> Result<(), String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *asked {
        ["--root"] => run_as_root(&arguments, "sudo", total),
        ["--user"] => run_as_user(total),
        [] if needs::is_root() => {
            run(tree::cargo_with_all_signals().args(words(&arguments, "--include-ignored")), total)
        }
        [] => {
            let mut own = Total::default();
            run(tree::cargo_with_all_signals().args(words(&arguments, "")), &mut own)?;
            if own.left_out > 0 && needs::sudo() {
                run_as_root(&arguments, "sudo -n", &mut own)?;
            }
            total.add_all(own);
            Ok(())
        }
        _ => Err("`--root` and `--user` exclude each other".to_owned()),
    }
}

/// Runs every test without asking for a password, with these variables.
pub(crate) fn run_all(variables: &[(&str, &str)]) -> Result<(), String> {
    let mut cargo = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
    cargo.arg("test").envs(variables.iter().copied()).current_dir(tree::root());
    steps::finish(&mut cargo, "`cargo xtask test`")
}

/// Returns the words of a `cargo test` command, with one more option for the test programs.
fn words(arguments: &[&str], option: &str) -> Vec<String> {
    let mut words = vec!["test", "--no-fail-fast"];
    words.extend(arguments);
    if !option.is_empty() {
        if !words.contains(&"--") {
            words.push("--");
        }
        words.push(option);
    }
    words.into_iter().map(str::to_owned).collect()
}

/// Runs the tests that need root. As many must run as were left out before, so that a `sudo` which runs nothing fails.
fn run_as_root(arguments: &[&str], sudo: &str, total: &mut Total) -> Result<(), String> {
    let before = std::mem::take(&mut total.left_out);
    let mut runner: Vec<&str> = if needs::is_root() { Vec::new() } else { sudo.split(' ').collect() };
    if !runner.is_empty() {
        runner.push(PASSED_ON);
    }
    let mut own = Total::default();
    // No documentation test needs root, and each would be compiled to find that out.
    let mut words = words(arguments, "--ignored");
    words.splice(1..1, ["--lib", "--bins", "--tests"].map(str::to_owned));
    run(cargo_with_runner(&runner).args(words).env("E2E_ROOT", "1"), &mut own)?;
    let ran = own.passed + own.failed;
    if own.left_out > 0 || ran < before {
        own.failed += 1;
        own.names.push(format!("{ran} tests ran as root, and {before} need root"));
    }
    total.add_all(own);
    Ok(())
}

/// Runs the tests that differ for an ordinary user, with the test programs that are already built.
fn run_as_user(total: &mut Total) -> Result<(), String> {
    if !needs::is_root() {
        return Err("`--user` is for root; anybody else runs `cargo xtask test`".to_owned());
    }
    let home = PathBuf::from(format!("/var/tmp/exeat-user-{}", std::process::id()));
    std::fs::create_dir(&home).map_err(|error| format!("cannot make {}: {error}", home.display()))?;
    std::os::unix::fs::chown(&home, USER.parse().ok(), USER.parse().ok())
        .map_err(|error| format!("cannot give {} away: {error}", home.display()))?;
    let (home_is, temp_is) = (format!("HOME={}", home.display()), format!("TMPDIR={}", home.display()));
    let (uid, gid) = (format!("--reuid={USER}"), format!("--regid={USER}"));
    let runner = ["setpriv", &uid, &gid, "--clear-groups", "--", "env", &home_is, &temp_is];
    // Covers the whole workspace, because a part of it would be built with other features. Unit tests write next to
    // their programs, which belong to root here, so an ordinary user runs them in a separate tree.
    let trials = DIFFERENT_TRIALS.map(|filter| vec!["test", "--workspace", "--test", "e2e", "--", filter]);
    let units = vec!["test", "--workspace", "--lib", "--", DIFFERENT_UNITS];
    let mut outcome = Ok(());
    for words in trials.into_iter().chain([units]) {
        let mut command = in_readable_tree(&home, cargo_with_runner(&runner).args(words))?;
        outcome = outcome.and(run(&mut command, total));
    }
    let _ = std::fs::remove_dir_all(&home);
    outcome
}

/// Returns a cargo command that starts each test program with these words in front.
fn cargo_with_runner(runner: &[&str]) -> Command {
    let mut cargo = tree::cargo_with_all_signals();
    if !runner.is_empty() {
        cargo.args(["--config", &format!("target.\"cfg(unix)\".runner={runner:?}")]);
    }
    cargo
}

/// Runs a command in a private mount namespace in which everybody can read the tree and the build, because only root
/// may enter `/root`, where a checkout may be.
fn in_readable_tree(home: &Path, command: &Command) -> Result<Command, String> {
    const SCRIPT: &str = r#"set -e
mount --make-rprivate /
home=$1; shift
for tree in "$1" "$2"; do
  closed=$tree
  while [ "$closed" != / ]; do
    case $(stat -c %a "$closed") in *[1357]) ;; *) hides=$closed ;; esac
    closed=$(dirname "$closed")
  done
done
if [ -n "$hides" ]; then
  mkdir "$home.tree" "$home.target"
  mount --bind "$1" "$home.tree"; mount --bind "$2" "$home.target"
  mount -t tmpfs -o mode=755 none "$hides"
  mkdir -p "$1"; mount --bind "$home.tree" "$1"
  mkdir -p "$2"; mount --bind "$home.target" "$2"
fi
cd "$1"
shift 2
exec "$@""#;
    let mut wrapped = Command::new("unshare");
    wrapped.args(["-m", "sh", "-c", SCRIPT, "sh"]).arg(home).arg(tree::root()).arg(tree::target()?);
    wrapped.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            wrapped.env(name, value);
        }
    }
    Ok(wrapped)
}

/// Runs `cargo test`, shows what it prints, and adds the results to the total.
fn run(command: &mut Command, total: &mut Total) -> Result<(), String> {
    let debug = tree::target()?.join("debug");
    let mut child = command
        .env("E2E_STRICT", "1")
        .env("EXEAT_BIN", debug.join("exeat"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    let failed = total.failed;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.map_err(|error| format!("cannot read the tests' output: {error}"))?;
            let line = String::from_utf8_lossy(&line);
            let _ = writeln!(std::io::stdout(), "{line}");
            total.add(&line);
        }
    }
    let status = child.wait().map_err(|error| format!("cannot wait for cargo: {error}"))?;
    if !status.success() && total.failed == failed {
        // A test program that died, or that did not build, prints no result line.
        total.failed += 1;
    }
    Ok(())
}

/// The number of tests, from the lines that each test program prints at its end.
#[derive(Debug, Default, PartialEq, Eq)]
struct Total {
    passed: u64,
    failed: u64,
    /// The tests that need root and did not run.
    left_out: u64,
    /// The names of the tests that failed.
    names: Vec<String>,
}

impl Total {
    /// Adds `test result: ok. 5 passed; 0 failed; ...` and the name in `test NAME ... FAILED`; any other line adds nothing.
    fn add(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix("... FAILED")) {
            self.names.push(name.trim().to_owned());
        }
        let Some(rest) = line.trim().strip_prefix("test result: ") else { return };
        let count = |word: &str| -> u64 {
            rest.split([';', '.'])
                .filter_map(|part| part.trim().strip_suffix(word))
                .find_map(|number| number.trim().parse().ok())
                .unwrap_or(0)
        };
        self.passed += count("passed");
        self.failed += count("failed");
        self.left_out += count("ignored");
    }

    fn add_all(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.left_out += other.left_out;
        self.names.extend(other.names);
    }

    /// Returns the last line of the output.
    fn line(&self) -> String {
        let line = format!("{} passed, {} failed", self.passed, self.failed);
        match self.left_out {
            0 => line,
            count => format!("{line}, {count} left out: they need root (`{AS_ROOT}` runs them)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AREAS, Total, words};

    #[test]
    fn gives_each_module_of_the_trials_an_area() {
        let trials =
            std::fs::read_to_string(crate::tree::root().join("tests/e2e/main.rs")).unwrap_or_default();
        let modules: Vec<&str> =
            trials.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')).collect();
        assert!(modules.len() > 30);
        for module in modules {
            assert!(AREAS.iter().any(|(.., modules)| modules.contains(&module)), "{module}");
        }
    }

    #[test]
    fn counts_result_lines_and_nothing_else() {
        let mut total = Total::default();
        total.add(
            "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s",
        );
        total.add("test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s");
        total.add("test passed_in_name ... ok");
        total.add("test cut::short      ... FAILED");
        assert_eq!(total, Total { passed: 12, failed: 2, left_out: 1, names: vec!["cut::short".into()] });
        assert_eq!(
            total.line(),
            "12 passed, 2 failed, 1 left out: they need root (`cargo xtask test --root` runs them)"
        );
        assert_eq!(Total { passed: 1, ..Total::default() }.line(), "1 passed, 0 failed");
    }

    #[test]
    fn an_option_for_the_test_programs_comes_after_the_two_dashes() {
        let of = |arguments: &[&str], option| words(arguments, option).join(" ");
        assert_eq!(of(&[], ""), "test --no-fail-fast");
        assert_eq!(of(&["-p", "x"], "--ignored"), "test --no-fail-fast -p x -- --ignored");
        assert_eq!(of(&["--", "name"], "--ignored"), "test --no-fail-fast -- name --ignored");
    }
}
