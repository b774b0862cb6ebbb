//! Prints a command as a person would type it, runs it, and shows its output.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The directory and user of the commands.
pub(crate) struct Shell {
    directory: PathBuf,
    /// Hidden words before each command, which make it run as another user.
    before: Vec<String>,
    environment: Vec<(String, String)>,
    /// Whether the caller's environment is removed.
    clear: bool,
}

impl Shell {
    /// Makes a shell in this directory.
    pub(crate) fn new(directory: &Path, before: Vec<String>) -> Self {
        Self { directory: directory.to_owned(), before, environment: vec![], clear: false }
    }

    /// Sets a variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Removes all variables that are not set here.
    pub(crate) fn clear(mut self) -> Self {
        self.clear = true;
        self
    }

    /// Runs a command line. Returns its exit code, or 255 after a signal.
    pub(crate) fn run(&self, line: &str) -> i32 {
        println!("   $ {line}");
        let _ = std::io::stdout().flush();
        self.shell(line).stderr(our_stdout()).status().expect("sh").code().unwrap_or(255)
    }

    /// Runs a command line. Returns its exit code and its stderr, which is also shown.
    pub(crate) fn run_and_read(&self, line: &str) -> (i32, String) {
        println!("   $ {line}");
        let _ = std::io::stdout().flush();
        let output = self.shell(line).stderr(Stdio::piped()).output().expect("sh");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        print!("{}{said}", String::from_utf8_lossy(&output.stdout));
        (output.status.code().unwrap_or(255), said)
    }

    fn shell(&self, line: &str) -> Command {
        let mut words = self.before.iter().map(String::as_str).chain(["sh", "-c", line]);
        let mut command = Command::new(words.next().unwrap_or("sh"));
        command.args(words).current_dir(&self.directory).stdin(Stdio::null());
        if self.clear {
            command.env_clear();
        }
        for (name, value) in &self.environment {
            command.env(name, value);
        }
        command
    }
}

/// Joins both streams, so that the output stays in order in a pipe.
fn our_stdout() -> Stdio {
    std::io::stdout().as_fd().try_clone_to_owned().map_or_else(|_| Stdio::inherit(), Stdio::from)
}
