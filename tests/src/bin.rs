//! Builds the binary under test once per process. Does not run it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Builds `exeat` in the profile of this test and returns its path. Cargo rebuilds a stale binary; a second call
/// returns the same path. `EXEAT_BIN` names a finished binary (an installed release, a package).
pub fn bin() -> &'static Path {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(|| env::var_os("EXEAT_BIN").map_or_else(build, PathBuf::from))
}

fn build() -> PathBuf {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([
        "build",
        "--quiet",
        "--package",
        "exeat-cli",
        "--bin",
        "exeat",
        "--message-format",
        "json-render-diagnostics",
    ]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let output = command
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "cargo build -p exeat-cli failed");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "exeat")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .expect("cargo names the executable that it built")
}
