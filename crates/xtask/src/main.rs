//! `cargo xtask COMMAND`: set-up and checks, for people and for CI.
//!
//! Nothing here is shipped, no other crate depends on it, and it uses the standard library only: it is the first thing
//! that somebody who has just cloned the repository compiles.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "this program talks to people")]
#![expect(
    clippy::disallowed_methods,
    reason = "this program starts cargo, apt-get and the checks; exeat itself does so in `sandbox` only"
)]

mod needs;
mod steps;
mod tree;

use std::env;
use std::process::ExitCode;

use needs::Needs;

/// What `cargo xtask` can do. README.md and `--help` use these words; a test compares them.
const COMMANDS: &[(&str, &str)] = &[
    (
        "demo",
        "show the main job: one host allowed, one refused, one direct attempt, and the record of all three",
    ),
    ("test", "run every test; further arguments go to `cargo test --workspace`"),
    ("bench", "print what exeat costs: start-up, throughput, round trip, CPU, memory, each with its aim"),
    ("setup", "install what the other commands need, and try whether this machine can make sandboxes"),
    ("ci", "run what CI runs: format, lints, documentation, every test"),
];

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let command = arguments.next();
    let rest: Vec<String> = arguments.collect();
    let outcome = match command.as_deref() {
        Some("demo") => needs::provide(Needs::Demo).and_then(|()| steps::demo(&rest)),
        Some("test") => needs::provide(Needs::Test).and_then(|()| steps::test(&rest)),
        Some("bench") => needs::provide(Needs::Bench).and_then(|()| steps::bench(&rest)),
        Some("setup") => needs::provide(Needs::Ci),
        Some("ci") => needs::provide(Needs::Ci).and_then(|()| steps::ci()),
        Some("help" | "-h" | "--help") => {
            println!("{}", help());
            Ok(())
        }
        None => Err(format!("no command given\n\n{}", help())),
        Some(other) => Err(format!("`{other}` is not a command\n\n{}", help())),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The text of `--help`.
fn help() -> String {
    let mut text = String::from("usage: cargo xtask COMMAND\n\n");
    for (name, what) in COMMANDS {
        text.push_str(&format!("  {name:<6} {what}\n"));
    }
    text.push_str(
        "\nEvery command does the set-up that it needs (Debian or Ubuntu, a Rust toolchain): as root, or where `sudo` asks\n\
         for no password, it installs missing packages with apt-get; otherwise it prints the one command that would.",
    );
    text
}
