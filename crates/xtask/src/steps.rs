//! What each command does once the machine has what it needs.
//!
//! The demonstration and the measurements are programs of the `e2e` package, because they need its servers and namespaces.

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

/// Builds the book. Installs mdbook below the target directory if the machine does not have it.
pub(crate) fn docs() -> Result<(), String> {
    let tools = tree::target()?.join("tools");
    let installed = tools.join("bin/mdbook");
    let mdbook = tree::program("mdbook").unwrap_or(installed);
    if !mdbook.is_file() {
        println!("xtask: installing mdbook in {}", tools.display());
        finish(
            tree::cargo().args(["install", "--quiet", "--locked", "mdbook", "--root"]).arg(&tools),
            "the installation of mdbook",
        )?;
    }
    finish(Command::new(mdbook).arg("build").current_dir(tree::root()), "the book")
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
