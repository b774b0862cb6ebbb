//! Prints a command as a person would type it, runs it as it stands, and shows what it says.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where and as whom commands run.
pub(crate) struct Shell {
    directory: PathBuf,
    /// The words before each command, which make it run as somebody else; not shown.
    before: Vec<String>,
    environment: Vec<(String, String)>,
    /// Leave out the caller's own environment.
    clear: bool,
}

impl Shell {
    /// Commands in this directory.
    pub(crate) fn new(directory: &Path, before: Vec<String>) -> Self {
        Self { directory: directory.to_owned(), before, environment: vec![], clear: false }
    }

    /// With this variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With these variables and no others.
    pub(crate) fn clear(mut self) -> Self {
        self.clear = true;
        self
    }

    /// Runs a command line; its exit code, and 255 when it died of a signal.
    pub(crate) fn run(&self, line: &str) -> i32 {
        println!("   $ {line}");
        let _ = std::io::stdout().flush();
        self.shell(line).stderr(our_stdout()).status().expect("sh").code().unwrap_or(255)
    }

    /// The same, and what it said on stderr, which is shown too.
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

/// Both streams in one, so that the story stays in order wherever it goes.
fn our_stdout() -> Stdio {
    std::io::stdout().as_fd().try_clone_to_owned().map_or_else(|_| Stdio::inherit(), Stdio::from)
}
