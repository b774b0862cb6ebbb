//! What each command does once the machine has what it needs.
//!
//! The demonstration and the measurements are programs of the `e2e` package, because they need its servers and namespaces.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::tree;

/// The main job, for real.
pub(crate) fn demo(arguments: &[String]) -> Result<(), String> {
    let binaries = release()?;
    finish(Command::new(binaries.join("demo")).args(arguments).current_dir(tree::root()), "the demonstration")
}

/// Arguments of `bench` with which only its own program measures.
const WITHOUT_CRITERION: &[&str] = &["--quick", "--start", "--gateway", "--check"];

/// What exeat costs: criterion's benches, then the program that prints aims and marks.
pub(crate) fn bench(arguments: &[String]) -> Result<(), String> {
    let binaries = release()?;
    for (package, bench) in [("exeat-policy", "decide"), ("exeat-policy", "load"), ("exeat-proxy", "tunnel")]
    {
        let file = tree::root()
            .join("crates")
            .join(package.trim_start_matches("exeat-"))
            .join("benches")
            .join(bench);
        if arguments.iter().any(|argument| WITHOUT_CRITERION.contains(&argument.as_str()))
            || !file.with_extension("rs").is_file()
        {
            continue;
        }
        println!("# cargo bench -p {package} --bench {bench}");
        finish(tree::cargo().args(["bench", "--quiet", "-p", package, "--bench", bench]), "a bench")?;
    }
    finish(Command::new(binaries.join("bench")).args(arguments).current_dir(tree::root()), "the measurement")
}

/// Load on a real proxy; its table, and whether every bound held.
pub(crate) fn soak(arguments: &[String]) -> Result<(), String> {
    let binaries = release()?;
    finish(Command::new(binaries.join("soak")).args(arguments).current_dir(tree::root()), "the soak")
}

/// Builds `exeat` and the programs in one go, so that they share every dependency, and returns where they are.
fn release() -> Result<PathBuf, String> {
    finish(
        tree::cargo().args(["build", "--release", "-p", "exeat-cli", "-p", "e2e", "--bins"]),
        "the release build",
    )?;
    Ok(tree::target()?.join("release"))
}

/// Every test of the workspace, end to end included; a test that cannot run here fails.
pub(crate) fn test(arguments: &[String]) -> Result<(), String> {
    let debug = tree::target()?.join("debug");
    // The binary that end-to-end tests drive, built with the features that the test build uses: nothing is compiled twice.
    finish(tree::cargo().args(["build", "--workspace", "--bins", "--tests"]), "the build")?;
    let mut child = tree::cargo_with_all_signals()
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(arguments)
        .env("E2E_STRICT", "1")
        .env("EXEAT_BIN", debug.join("exeat"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    let mut total = Total::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.map_err(|error| format!("cannot read the tests' output: {error}"))?;
            let line = String::from_utf8_lossy(&line);
            let _ = writeln!(std::io::stdout(), "{line}");
            total.add(&line);
        }
    }
    let status = child.wait().map_err(|error| format!("cannot wait for cargo: {error}"))?;
    if !status.success() && total.failed == 0 {
        // A test program that died, or that did not build, prints no result line.
        total.failed = 1;
    }
    for name in &total.names {
        println!("failed: {name}");
    }
    println!("\n{} passed, {} failed", total.passed, total.failed);
    if total.failed == 0 && total.passed > 0 { Ok(()) } else { Err("not every test passed".to_owned()) }
}

/// Every client of docs/clients.md, those too that only this command installs.
pub(crate) fn matrix(arguments: &[String]) -> Result<(), String> {
    let mut cargo = tree::cargo_with_all_signals();
    cargo.args(["test", "-p", "e2e", "--test", "e2e", "--", "clients::"]).args(arguments);
    finish(cargo.env("E2E_STRICT", "1").env("E2E_NIGHTLY", "1"), "the matrix")
}

/// The steps live in `.ci/run`, in the order in which CI takes them.
pub(crate) fn ci() -> Result<(), String> {
    finish(Command::new("bash").arg(".ci/run").current_dir(tree::root()).stdin(Stdio::null()), "CI")
}

/// Runs a command with our own streams.
pub(crate) fn finish(command: &mut Command, what: &str) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("cannot start {what}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{what} failed ({status})")) }
}

/// Tests counted from the lines that each test program prints at its end.
#[derive(Debug, Default, PartialEq, Eq)]
struct Total {
    passed: u64,
    failed: u64,
    /// The tests that failed, as their programs name them.
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
    }
}

#[cfg(test)]
mod tests {
    use super::Total;

    #[test]
    fn counts_result_lines_and_nothing_else() {
        let mut total = Total::default();
        total.add(
            "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s",
        );
        total.add("test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s");
        total.add("test passed_in_name ... ok");
        total.add("test cut::short      ... FAILED");
        assert_eq!(total, Total { passed: 12, failed: 2, names: vec!["cut::short".into()] });
    }
}
