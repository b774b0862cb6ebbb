//! Runs each command once the machine has what it needs.
//!
//! The demonstration and the measurements are programs of the `e2e` package, because they need its servers and
//! namespaces.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::size::{self, Size};
use crate::tree;

/// Runs the demonstration.
pub(crate) fn demo(arguments: &[String]) -> Result<(), String> {
    let binaries = release()?;
    finish(Command::new(binaries.join("demo")).args(arguments).current_dir(tree::root()), "the demonstration")
}

/// The arguments of `bench` that skip criterion's benches.
const WITHOUT_CRITERION: &[&str] = &["--quick", "--start", "--gateway", "--check"];

/// Measures what exeat costs: criterion's benches, then the program that prints aims and marks.
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

/// Puts load on a real proxy, and fails if a bound is broken.
pub(crate) fn soak(arguments: &[String]) -> Result<(), String> {
    let binaries = release()?;
    finish(Command::new(binaries.join("soak")).args(arguments).current_dir(tree::root()), "the soak")
}

/// Builds `exeat` and the programs in one step, so that they share every dependency, and returns their directory.
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

/// Tries every client of docs/clients.md, including those that only this command installs.
pub(crate) fn matrix(arguments: &[String]) -> Result<(), String> {
    let mut cargo = tree::cargo_with_all_signals();
    cargo.args(["test", "-p", "e2e", "--test", "e2e", "--", "clients::"]).args(arguments);
    finish(cargo.env("E2E_STRICT", "1").env("E2E_NIGHTLY", "1"), "the matrix")
}

/// Runs the steps of CI in their order, from `.ci/run`.
pub(crate) fn ci() -> Result<(), String> {
    finish(Command::new("bash").arg(".ci/run").current_dir(tree::root()).stdin(Stdio::null()), "CI")
}

/// Prints the size of each crate, then every circle of more than two files.
pub(crate) fn size() -> Result<(), String> {
    let sizes = size::measure(&tree::root())?;
    println!("{:<9} {:>6} {:>6} {:>7}  longest file", "crate", "lines", "files", "circle");
    for size in &sizes {
        let longest = size.files.iter().max_by_key(|file| file.length);
        let longest =
            longest.map_or_else(String::new, |file| format!("{} {}", file.length, file.path.display()));
        let (lines, files, circle) = (size.code(), size.files.len(), size.largest_circle());
        println!("{:<9} {lines:>6} {files:>6} {circle:>7}  {longest}", size.name);
    }
    let lines: usize = sizes.iter().map(Size::code).sum();
    let files: usize = sizes.iter().map(|size| size.files.len()).sum();
    println!("{:<9} {lines:>6} {files:>6}          median length {}", "all", size::median(&sizes));
    for circle in sizes.iter().flat_map(|size| &size.circles).filter(|circle| circle.len() > 2) {
        let files: Vec<String> = circle.iter().map(|path| path.display().to_string()).collect();
        println!("\na circle of {} files:\n  {}", files.len(), files.join("\n  "));
    }
    Ok(())
}

/// Runs rustup, and returns whether it succeeded.
pub(crate) fn rustup(words: &[&str]) -> bool {
    Command::new("rustup").args(words).status().is_ok_and(|status| status.success())
}

/// Runs a command on the same streams, and fails if it does.
pub(crate) fn finish(command: &mut Command, what: &str) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("cannot start {what}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{what} failed ({status})")) }
}
