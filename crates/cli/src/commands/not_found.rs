//! Explains why the sandbox does not have a command (exit code 127), and what to do.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use exeat_policy::shell_word;
use nix::fcntl::OFlag;

/// Bytes of the first line of a script that the kernel reads (BINPRM_BUF_SIZE of linux/binfmts.h).
const FIRST_LINE: u64 = 256;
/// Commands that only a shell has.
const BUILTINS: &[&str] = &[
    ".", "alias", "cd", "eval", "exec", "exit", "export", "set", "shift", "source", "trap", "ulimit",
    "umask", "unset",
];

/// Returns what to do about a command if the sandbox does not have it.
pub(super) fn hint(command: &[OsString]) -> String {
    if let Some(name) = assignment(command) {
        return format!("a variable is set by a flag: exeat run --env {name}=... -- COMMAND");
    }
    if let Some(line) = whole_line(command) {
        return format!("a line for a shell: exeat run -- sh -c {}", shell_word(&line));
    }
    if command.iter().skip(1).any(|word| word == "--") {
        return "options of exeat stand before COMMAND; one rule for each --allow".to_owned();
    }
    let Some(name) = command.first().map(Path::new) else { return NOT_SHOWN.to_owned() };
    let word = shell_word(&name.display().to_string());
    if name.as_os_str().as_bytes().contains(&b'/') {
        return of_file(name, &word);
    }
    if BUILTINS.iter().any(|known| name.as_os_str() == *known) {
        return format!("`{word}` is a command of the shell: exeat run -- sh -c '{word} ...'");
    }
    if is_program(name) {
        return format!("a file of the working directory is started as ./{word}");
    }
    match find_on_path(name) {
        Some(at) => format!("it is {} here: {}", shell_word(&at.display().to_string()), show(&at)),
        None => "no directory of PATH has it here either: install it, or name its file".to_owned(),
    }
}

const NOT_SHOWN: &str = "--ro PATH shows the stage what lies outside of its view; with --fs minimal that is all but what is named";

/// Explains it for a command that is a path.
fn of_file(path: &Path, word: &str) -> String {
    if fs::metadata(path).is_err() {
        return format!("there is no {word} here either");
    }
    let Some(line) = first_line(path) else { return show(path) };
    if line.ends_with(b"\r") {
        return format!("its first line ends with a carriage return: sed -i 's/\\r$//' {word}");
    }
    let interpreter =
        line.split(|byte| b" \t".contains(byte)).find(|part| !part.is_empty()).map(OsStr::from_bytes);
    match interpreter {
        Some(interpreter) if fs::metadata(interpreter).is_err() => {
            "its first line names a program that is not here".to_owned()
        }
        _ => show(path),
    }
}

/// Returns the flag that shows the directory of a file, or the file alone in a home directory or a temporary one.
fn show(path: &Path) -> String {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let homes = [env::var_os("HOME").map(PathBuf::from), Some(env::temp_dir()), Some("/".into())];
    let is_home = |dir: &&Path| homes.iter().flatten().any(|home| home == dir);
    let shown = real.parent().filter(|dir| !is_home(dir)).unwrap_or(&real).display().to_string();
    format!("--ro {} shows it to the stage, if its view does not have it", shell_word(&shown))
}

/// Returns what follows `#!` in the first line of a script.
fn first_line(path: &Path) -> Option<Vec<u8>> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let mut text = Vec::new();
    file.metadata().ok().filter(fs::Metadata::is_file)?;
    file.take(FIRST_LINE).read_to_end(&mut text).ok()?;
    Some(text.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?.to_vec())
}

fn find_on_path(name: &Path) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name))
        .find(|at| is_program(at))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Returns the command if it is a single word that looks like a line for a shell, and not like a file name.
fn whole_line(command: &[OsString]) -> Option<String> {
    let [word] = command else { return None };
    let word = word.to_str()?;
    (word.contains([' ', '|', '&', ';', '<', '>', '$', '`'])).then(|| word.to_owned())
}

/// Returns the name of the variable if the command starts with an assignment, as a line for a shell may: `FOO=1 env`.
fn assignment(command: &[OsString]) -> Option<String> {
    let (name, _) = command.first()?.to_str()?.split_once('=')?;
    let is_name = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
    (!name.is_empty() && name.bytes().all(is_name)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_name_the_cause() {
        let hint = |words: &[&str]| hint(&words.iter().map(OsString::from).collect::<Vec<_>>());
        // `exeat run --allow a.example b.example -- true`
        assert!(hint(&["b.example", "--", "true"]).contains("one rule for each --allow"));
        assert!(hint(&["A=1", "env"]).contains("--env A=..."));
        assert!(hint(&["a | b"]).contains("sh -c"));
        assert!(hint(&["cd", "x"]).contains("sh -c 'cd ...'"));
        assert!(hint(&["nope-nope", "-x"]).contains("no directory of PATH has it here either"));
        assert!(hint(&["sh", "-x"]).contains("--ro /"));
        assert!(hint(&["./nope-nope"]).contains("there is no ./nope-nope here either"));
        let dir = env::temp_dir().join(format!("exeat-not-found-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        for (line, said) in [
            ("#!/bin/sh\r", "carriage return"),
            ("#! /nope/sh -e", "names a program that is not here"),
            ("#!/bin/sh", "--ro "),
            ("\u{7f}ELF", "--ro "),
        ] {
            let file = dir.join("script");
            fs::write(&file, format!("{line}\necho x\n")).unwrap();
            assert!(hint(&[file.to_str().unwrap()]).contains(said), "{line}");
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
