//! Where things are: the repository, the target directory, programs on PATH.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The top of the repository.
pub(crate) fn root() -> PathBuf {
    // INVARIANT: this crate lives two directories below the top; cargo sets the variable when it runs us.
    let here = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.ancestors().nth(2).map_or_else(|| here.clone(), Path::to_path_buf)
}

/// The cargo that runs us, else the one on PATH.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// The same with no signal ignored: a shell that starts a job in the background, and some CI runners, ignore SIGINT and
/// SIGQUIT for all that they start, and tests that send these signals would see nothing happen.
pub(crate) fn cargo_with_all_signals() -> Command {
    const SIGNALS: &str = "--default-signal=INT,QUIT,HUP,TERM";
    // coreutils 8.31 and later; where it is older, the disposition stays what it is.
    if !Command::new("env").args([SIGNALS, "true"]).output().is_ok_and(|output| output.status.success()) {
        return cargo();
    }
    let mut command = Command::new("env");
    command.arg(SIGNALS).arg(cargo().get_program()).current_dir(root());
    command
}

/// Cargo's target directory, wherever its configuration puts it.
pub(crate) fn target() -> Result<PathBuf, String> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .output()
        .map_err(|error| format!("cannot run `cargo metadata`: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // One string of a large JSON object: not worth a JSON library that everybody would compile first.
    text.split_once("\"target_directory\":\"")
        .and_then(|(_, rest)| rest.split_once('"'))
        .map(|(path, _)| PathBuf::from(path))
        .ok_or_else(|| "`cargo metadata` names no target directory".to_owned())
}

/// The first program of this name on PATH or in the system's directories, which an ordinary user's PATH may lack.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}
