//! Finds the repository, the target directory, and programs on PATH.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the top directory of the repository.
pub(crate) fn root() -> PathBuf {
    // INVARIANT: this crate lives two directories below the top; cargo sets the variable.
    let here = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.ancestors().nth(2).map_or_else(|| here.clone(), Path::to_path_buf)
}

/// Returns the cargo that runs this program, or else the one on PATH.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Returns cargo with no signal ignored. A shell that starts a background job, and some CI runners, ignore SIGINT and
/// SIGQUIT for all children, so that tests which send these signals would see no effect.
pub(crate) fn cargo_with_all_signals() -> Command {
    const SIGNALS: &str = "--default-signal=INT,QUIT,HUP,TERM";
    // Needs coreutils 8.31; with an older one the signals stay as they are.
    if !Command::new("env").args([SIGNALS, "true"]).output().is_ok_and(|output| output.status.success()) {
        return cargo();
    }
    let mut command = Command::new("env");
    command.arg(SIGNALS).arg(cargo().get_program()).current_dir(root());
    command
}

/// Returns cargo's target directory, as its configuration sets it.
pub(crate) fn target() -> Result<PathBuf, String> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .output()
        .map_err(|error| format!("cannot run `cargo metadata`: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // A JSON library for one string would cost everybody compile time.
    text.split_once("\"target_directory\":\"")
        .and_then(|(_, rest)| rest.split_once('"'))
        .map(|(path, _)| PathBuf::from(path))
        .ok_or_else(|| "`cargo metadata` names no target directory".to_owned())
}

/// Finds the first program of this name on PATH or in the system's directories, which an ordinary user's PATH may lack.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}
