//! `cargo xtask nightly`: checks that take too long for every change, with a total like that of CI.
//!
//! A part that this machine cannot run (no such toolchain, no emulator) counts as left out, with the reason, and never
//! as passed.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::dist::{self, Built};
use crate::fuzz::Plan;
use crate::steps::rustup;
use crate::{needs, steps, testing, tree};

/// The result of a part. A part that passed prints nothing.
enum Outcome {
    Passed,
    LeftOut(String),
}

type Part = fn() -> Result<Outcome, String>;

/// The parts: name, description and code.
const PARTS: &[(&str, &str, Part)] = &[
    ("tests", "every test with the full matrix, Maven, Chromium and 1 000 kills", every_test),
    ("oldest", "the oldest Rust that Cargo.toml allows", oldest_rust),
    ("aarch64", "the workspace for aarch64, and the tests of its parsers and decisions there", aarch64),
    ("static", "one static executable, and what a run does with it", static_binary),
    ("record", "a gigabyte of record in constant memory", gigabyte),
    ("benches", "the benches that assert what they measure", benches),
    ("fuzz", "every fuzz target, an hour in all", fuzz),
    ("soak", "idle tunnels, a hundred thousand connections, and hostile clients", soak),
    ("packages", "a package of every crate, and the command built from them alone, offline", packages),
    ("book", "the pages of docs/ as a book", book),
    ("machine", "`exeat prove`, and `--memory` through a cgroup, on the kernels that apt offers", machine),
];

/// The variable with the minutes of the part `fuzz`.
const FUZZ_MINUTES: &str = "EXEAT_FUZZ_MINUTES";

/// The target of [`aarch64`].
const ARM: &str = "aarch64-unknown-linux-gnu";

/// The exit code of `.ci/machine/run` where apt offers no kernel for it.
const NO_KERNEL: i32 = 77;

/// Runs the named parts, or all.
pub(crate) fn run(asked: &[String]) -> Result<(), String> {
    if let Some(unknown) = asked.iter().find(|name| !PARTS.iter().any(|(known, ..)| known == *name)) {
        let known: Vec<&str> = PARTS.iter().map(|(name, ..)| *name).collect();
        return Err(format!("`{unknown}` is not a part; the parts are {}", known.join(", ")));
    }
    let (mut passed, mut failed, mut left_out) = (0, Vec::new(), Vec::new());
    for (name, what, part) in
        PARTS.iter().filter(|(name, ..)| asked.is_empty() || asked.iter().any(|it| it == name))
    {
        println!("== {name}: {what}");
        match part() {
            Ok(Outcome::Passed) => {
                passed += 1;
                println!("== {name}: ok");
            }
            Ok(Outcome::LeftOut(why)) => {
                println!("== {name}: left out: {why}");
                left_out.push(format!("{name} ({why})"));
            }
            Err(why) => {
                println!("== {name}: FAILED: {why}");
                failed.push(*name);
            }
        }
    }
    for name in &failed {
        println!("failed: {name}");
    }
    let out = if left_out.is_empty() {
        String::new()
    } else {
        format!(", {} left out: {}", left_out.len(), left_out.join("; "))
    };
    println!("\n{passed} passed, {} failed{out}", failed.len());
    if failed.is_empty() { Ok(()) } else { Err("not every part passed".to_owned()) }
}

fn every_test() -> Result<Outcome, String> {
    needs::provide(needs::Needs::Matrix)?;
    testing::run_all(&[("E2E_FULL", "1"), ("E2E_NIGHTLY", "1")])?;
    Ok(Outcome::Passed)
}

fn oldest_rust() -> Result<Outcome, String> {
    let manifest =
        std::fs::read_to_string(tree::root().join("Cargo.toml")).map_err(|error| error.to_string())?;
    let version = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'))
        .ok_or("Cargo.toml names no `rust-version`")?;
    if !rustup(&["toolchain", "install", version, "--profile", "minimal"]) {
        return Ok(Outcome::LeftOut(format!("rustup cannot install Rust {version}")));
    }
    // Uses a separate target directory: with a shared one, both toolchains would recompile everything in turns.
    let mut cargo = toolchain_cargo(version);
    cargo
        .args(["check", "--workspace", "--all-targets", "--locked", "--target-dir"])
        .arg(directory_for("oldest")?);
    run_part(&mut cargo, "the check")
}

fn aarch64() -> Result<Outcome, String> {
    if !rustup(&["target", "add", ARM]) {
        return Ok(Outcome::LeftOut(format!("rustup cannot install {ARM}")));
    }
    if !["aarch64-linux-gnu-gcc", "qemu-aarch64"].iter().all(|program| tree::program(program).is_some()) {
        let packages = ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user"];
        needs::install_packages(&packages)?;
    }
    let arm = |words: &[&str]| {
        let mut cargo = tree::cargo();
        // Before `--`, after which words are for the tests.
        let (command, words) = words.split_at(1);
        cargo.args(command).args(["--target", ARM]).args(words);
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64 -L /usr/aarch64-linux-gnu");
        cargo
    };
    steps::finish(&mut arm(&["check", "--workspace", "--all-targets"]), "the check for aarch64")?;
    // Skips the tests that measure time, because an emulator distorts it.
    steps::finish(
        &mut arm(&["test", "--lib", "-p", "exeat-contract", "-p", "exeat-policy", "--", "--skip", "quickly"]),
        "the tests on aarch64",
    )?;
    // Skips `log` and `sink` for the same reason.
    let parts = ["--", "line::", "verify::", "tree::", "replay::", "select::", "export::"];
    run_part(
        arm(&["test", "--lib", "-p", "exeat-record", "-p", "exeat-audit"]).args(parts),
        "the tests of records on aarch64",
    )
}

fn static_binary() -> Result<Outcome, String> {
    let exeat = match dist::static_executable()? {
        Built::At(exeat) => exeat,
        Built::Nothing(why) => return Ok(Outcome::LeftOut(why)),
    };
    let mut cargo = tree::cargo_with_all_signals();
    cargo.args(["test", "-p", "e2e", "--test", "e2e", "--", "allow::"]);
    run_part(cargo.env("E2E_STRICT", "1").env("EXEAT_BIN", exeat), "the trials with the static executable")
}

fn gigabyte() -> Result<Outcome, String> {
    let mut cargo = tree::cargo();
    cargo.args(["test", "--release", "-p", "exeat-cli", "--test", "audit", "--", "--nocapture"]);
    cargo.arg("l17_records_of_any_size_are_read_in_constant_memory");
    run_part(cargo.env("EXEAT_TRIAL_MB", "1024"), "the reading")
}

fn benches() -> Result<Outcome, String> {
    for bench in ["decide", "load"] {
        steps::finish(
            tree::cargo().args(["bench", "--quiet", "-p", "exeat-policy", "--bench", bench]),
            "a bench",
        )?;
    }
    steps::bench(&["--check".to_owned()])?;
    Ok(Outcome::Passed)
}

/// Runs every fuzz target for an equal part of an hour, or of the minutes that [`FUZZ_MINUTES`] names.
fn fuzz() -> Result<Outcome, String> {
    let minutes = match std::env::var(FUZZ_MINUTES) {
        Ok(text) => text
            .parse::<u32>()
            .map_err(|_| format!("{FUZZ_MINUTES} is `{text}`, and not a number of minutes"))?,
        Err(_) => 60,
    };
    let plan = Plan::all_within(Duration::from_secs(u64::from(minutes) * 60))?;
    needs::provide(needs::Needs::Fuzz)?;
    plan.run()?;
    Ok(Outcome::Passed)
}

fn soak() -> Result<Outcome, String> {
    needs::provide(needs::Needs::Bench)?;
    steps::soak(&[])?;
    Ok(Outcome::Passed)
}

fn packages() -> Result<Outcome, String> {
    dist::packages(&directory_for("packages")?)?;
    Ok(Outcome::Passed)
}

fn book() -> Result<Outcome, String> {
    steps::docs()?;
    Ok(Outcome::Passed)
}

fn machine() -> Result<Outcome, String> {
    if std::env::consts::ARCH != "x86_64" {
        return Ok(Outcome::LeftOut("its kernel is one of x86-64".to_owned()));
    }
    steps::finish(tree::cargo().args(["build", "-p", "exeat-cli"]), "the build")?;
    let exeat = tree::target()?.join("debug/exeat");
    let script = tree::root().join(".ci/machine/run");
    let mut command = Command::new("bash");
    command.arg(script).arg(exeat).arg(directory_for("machine")?);
    let status = command.status().map_err(|error| format!("cannot start bash: {error}"))?;
    match status.code() {
        Some(0) => Ok(Outcome::Passed),
        Some(NO_KERNEL) => Ok(Outcome::LeftOut("apt offers no Debian kernel for cloud machines".to_owned())),
        _ => Err(format!("the virtual machine failed ({status})")),
    }
}

fn run_part(command: &mut Command, what: &str) -> Result<Outcome, String> {
    steps::finish(command, what).map(|()| Outcome::Passed)
}

/// Returns a directory for this part below the target directory.
fn directory_for(name: &str) -> Result<PathBuf, String> {
    Ok(tree::target()?.join("nightly").join(name))
}

/// Returns the cargo of another toolchain, without the variables that this one has set.
fn toolchain_cargo(version: &str) -> Command {
    let mut cargo = Command::new("rustup");
    cargo.args(["run", version, "cargo"]).current_dir(tree::root());
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN"] {
        cargo.env_remove(name);
    }
    cargo
}
