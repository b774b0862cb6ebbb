//! Runs the `exeat` binary in a private directory.

#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The directory of one test, which is the working directory, HOME and state directory of its commands.
pub(crate) struct Home(pub(crate) PathBuf);

impl Home {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("exeat-cli-{}-{n}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        #[expect(clippy::disallowed_methods, reason = "these tests are about the process")]
        let mut command = Command::new(program);
        command.env_clear().env("HOME", &self.0).env("PATH", "/usr/bin:/bin").current_dir(&self.0);
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn exeat(&self, words: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_exeat"));
        command.args(words);
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> (i32, String, String) {
        result_of(self.exeat(words).output().unwrap())
    }

    pub(crate) fn with_stdin(&self, words: &[&str], input: &[u8]) -> (i32, String, String) {
        let mut child = self
            .exeat(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The reader may stop early, at its cap.
        let _ = child.stdin.take().unwrap().write_all(input);
        result_of(child.wait_with_output().unwrap())
    }

    pub(crate) fn file(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn result_of(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}
