//! Explains why the sandbox does not have a command (exit code 127) or cannot execute it (126), and what to do.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use exeat_files::ways::Ways;
use exeat_policy::shell_word;
use nix::fcntl::OFlag;

/// Bytes of the first line of a script that the kernel reads (BINPRM_BUF_SIZE of linux/binfmts.h).
const FIRST_LINE: u64 = 256;
/// Bytes of a program in which linkers put its program headers and the name of its loader.
const ELF_HEADERS: u64 = 4096;
/// The type of the program header that names the loader (elf(5)).
const PT_INTERP: usize = 3;
/// Commands that only a shell has.
const BUILTINS: &[&str] = &[
    ".", "alias", "cd", "eval", "exec", "exit", "export", "set", "shift", "source", "trap", "ulimit",
    "umask", "unset",
];

/// What a stage sees, and what would show it more.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The paths of a minimal view, `None` for another view.
    pub(super) minimal: Option<Vec<PathBuf>>,
    pub(super) ways: Ways,
}

/// Returns what to do about a command if the sandbox does not have it.
pub(super) fn hint(command: &[OsString], view: &View) -> String {
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
        return of_file(name, &word, view);
    }
    if BUILTINS.iter().any(|known| name.as_os_str() == *known) {
        return format!("`{word}` is a command of the shell: exeat run -- sh -c '{word} ...'");
    }
    if is_program(name) {
        return format!("a file of the working directory is started as ./{word}");
    }
    match find_on_path(name) {
        Some(at) => format!("it is {} here: {}", shell_word(&at.display().to_string()), show(&at, view)),
        None => "no directory of PATH has it here either: install it, or name its file".to_owned(),
    }
}

/// Returns what to do about a command that cannot be executed, if a file of this machine shows it.
pub(super) fn hint_not_executable(command: &[OsString]) -> Option<String> {
    let path = Path::new(command.first().filter(|name| name.as_os_str().as_bytes().contains(&b'/'))?);
    let word = shell_word(&path.display().to_string());
    let meta = fs::metadata(path).ok()?;
    if meta.is_dir() {
        Some(format!("{word} is a directory"))
    } else if !is_program(path) {
        Some(format!("chmod +x {word}"))
    } else {
        None
    }
}

const NOT_SHOWN: &str = "--ro PATH shows the stage what lies outside of its view; with --fs minimal that is all but what is named";

/// Explains it for a command that is a path.
fn of_file(path: &Path, word: &str, view: &View) -> String {
    if fs::metadata(path).is_err() {
        return format!("there is no {word} here either");
    }
    let Some(line) = first_line(path) else { return show(path, view) };
    if line.ends_with(b"\r") {
        return format!("its first line ends with a carriage return: sed -i 's/\\r$//' {word}");
    }
    match interpreter(&line) {
        Some(interpreter) if fs::metadata(&interpreter).is_err() => {
            "its first line names a program that is not here".to_owned()
        }
        _ => show(path, view),
    }
}

/// Returns what shows all that a minimal view lacks of a program: its directory, that of the file behind its link, and what loads it. In
/// many distributions `/lib` and `/lib64` are links into `/usr`, which `--ro /usr` does not show (file-hierarchy(7)).
fn show_in_minimal(path: &Path, real: &Path, view: &View) -> Option<String> {
    let minimal = view.minimal.as_ref()?;
    let has = |path: &Path| minimal.iter().any(|dir| path.starts_with(dir));
    let script = first_line(real).and_then(|line| interpreter(&line));
    let runs: Vec<PathBuf> = [path, real].into_iter().map(Path::to_path_buf).chain(script).collect();
    let loader = runs.last().and_then(|last| loader(&last.canonicalize().ok()?));
    let dirs = loader.iter().filter_map(|loader| loader.parent()).chain([Path::new("/lib")]);
    let dirs = dirs.filter(|dir| loader.is_some() && dir.is_dir()).map(Path::to_path_buf);
    let mut missing: Vec<PathBuf> = Vec::new();
    for needed in runs.iter().map(|file| shown_with(file)).chain(dirs).filter(|needed| !has(needed)) {
        if !missing.contains(&needed) {
            missing.push(needed);
        }
    }
    let way = view.ways.to_show(&missing);
    match &loader {
        _ if missing.is_empty() => None,
        Some(loader) if runs.iter().all(|file| has(file)) => {
            let loader = shell_word(&loader.display().to_string());
            Some(format!("the view has no {loader}, which loads it: {way}"))
        }
        _ if view.ways.are_declared() => {
            Some(format!("a minimal view has what is declared and granted, and this needs {way}"))
        }
        _ => Some(format!("a minimal view has what flags name, and this needs {way}")),
    }
}

/// Returns the program that loads a file: its PT_INTERP (elf(5)). Reads 64-bit little-endian files, as all targets of exeat have them.
fn loader(path: &Path) -> Option<PathBuf> {
    let start = start_of(path, ELF_HEADERS)?;
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let all = start.get(at..at.checked_add(bytes)?)?.iter().rev();
        usize::try_from(all.fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte))).ok()
    };
    start.strip_prefix(b"\x7fELF\x02\x01")?;
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut headers = (0..count).filter_map(|n| table.checked_add(n.checked_mul(size)?));
    let at = headers.find(|at| number(*at, 4) == Some(PT_INTERP))?;
    let (from, length) = (number(at.checked_add(8)?, 8)?, number(at.checked_add(32)?, 8)?);
    let name = start.get(from..from.checked_add(length)?)?.strip_suffix(b"\0")?;
    Some(PathBuf::from(OsStr::from_bytes(name))).filter(|loader| loader.is_absolute())
}

/// Returns what shows a file.
fn show(path: &Path, view: &View) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let real = path.canonicalize().unwrap_or_else(|_| path.clone());
    if let Some(hint) = show_in_minimal(&path, &real, view) {
        return hint;
    }
    let way = view.ways.to_show(&[parent_of(&real)]);
    format!("{way} shows it to the stage, if its view does not have it")
}

/// Returns the directory of a file, or the file alone in a home directory or a temporary one.
fn parent_of(file: &Path) -> &Path {
    let homes = [env::var_os("HOME").map(PathBuf::from), Some(env::temp_dir()), Some("/".into())];
    let is_home = |dir: &&Path| homes.iter().flatten().any(|home| home == dir);
    file.parent().filter(|dir| !is_home(dir)).unwrap_or(file)
}

/// Returns what to show for a file in a minimal view. Programs in `/usr` read other directories there.
fn shown_with(file: &Path) -> PathBuf {
    let usr = Path::new("/usr");
    if file.starts_with(usr) { usr.to_path_buf() } else { parent_of(file).to_path_buf() }
}

/// Returns the program that the first line of a script names.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let mut words = line.split(|byte| b" \t".contains(byte)).filter(|part| !part.is_empty());
    words.next().map(|word| PathBuf::from(OsStr::from_bytes(word)))
}

/// Returns what follows `#!` in the first line of a script.
fn first_line(path: &Path) -> Option<Vec<u8>> {
    let text = start_of(path, FIRST_LINE)?;
    Some(text.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?.to_vec())
}

fn start_of(path: &Path, most: u64) -> Option<Vec<u8>> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let mut text = Vec::new();
    file.metadata().ok().filter(fs::Metadata::is_file)?;
    file.take(most).read_to_end(&mut text).ok()?;
    Some(text)
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
        let hint =
            |words: &[&str]| hint(&words.iter().map(OsString::from).collect::<Vec<_>>(), &View::default());
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
        let file = dir.join("script");
        let command = [file.clone().into_os_string()];
        fs::write(&file, "echo x\n").unwrap();
        assert_eq!(hint_not_executable(&command).unwrap(), format!("chmod +x {}", file.display()));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(hint_not_executable(&command), None);
        assert!(hint_not_executable(&[dir.clone().into_os_string()]).unwrap().ends_with("is a directory"));
        fs::remove_dir_all(dir).unwrap();
    }

    /// The view has the file already, so showing it again does not help.
    #[test]
    fn a_loader_that_the_view_does_not_have_is_named() {
        let dir = env::temp_dir().join(format!("exeat-loader-{}", std::process::id()));
        fs::create_dir_all(dir.join("ld")).unwrap();
        let name = format!("{}/ld/ld.so\0", dir.display());
        let mut elf = b"\x7fELF\x02\x01".to_vec();
        elf.resize(64 + 56, 0);
        (elf[32], elf[54], elf[56]) = (64, 56, 1);
        (elf[64], elf[64 + 8], elf[64 + 32]) = (3, 120, u8::try_from(name.len()).unwrap());
        elf.extend_from_slice(name.as_bytes());
        let (bin, ld) = (dir.join("bin"), dir.join("ld"));
        fs::create_dir_all(&bin).unwrap();
        let file = bin.join("tool");
        fs::write(&file, &elf).unwrap();
        let hint = |shown: &[&Path]| {
            let minimal = shown.iter().map(|path| path.to_path_buf()).collect();
            hint(&[file.clone().into()], &View { minimal: Some(minimal), ..View::default() })
        };
        let said = hint(&[&bin]);
        assert!(said.contains("/ld/ld.so, which loads it: --ro ") && said.contains("/ld"), "{said}");
        // One hint names all that is missing.
        let said = hint(&[]);
        let all = format!("this needs --ro {} --ro {}", bin.display(), ld.display());
        assert!(said.contains(&all), "{said}");
        assert!(
            hint(&[ld.as_path(), Path::new("/lib")]).ends_with(&format!("this needs --ro {}", bin.display()))
        );
        assert!(hint(&[&bin, &ld, Path::new("/lib")]).contains("if its view does not have it"));
        let script = bin.join("script");
        fs::write(&script, "#!/bin/sh -e\n").unwrap();
        let said =
            super::hint(&[script.into()], &View { minimal: Some(vec![bin.clone()]), ..View::default() });
        assert!(said.contains("--ro /bin") && said.contains("--ro /lib"), "{said}");
        // No bytes of a file do harm.
        for end in 0..elf.len() {
            fs::write(&file, &elf[..end]).unwrap();
            assert!(!hint(&[&bin]).contains("which loads it"), "{end}");
        }
        for at in 6..120 {
            let mut odd = elf.clone();
            odd[at] = 0xff;
            fs::write(&file, &odd).unwrap();
            let _ = hint(&[&bin]);
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
