//! The command: its strings, and the search along PATH as in execvp(3).

use alloc::ffi::CString;
use alloc::vec;
use alloc::vec::Vec;
use core::convert::Infallible;
use core::ffi::CStr;

use exeat_contract::Go;

use crate::sys::{self, Errno, execve};

/// The path that execvp(3) searches without PATH in the environment.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";
/// The shell that runs a text file without an interpreter line, as in execvp(3).
const SHELL: &CStr = c"/bin/sh";

pub(crate) struct Command {
    argv: Vec<CString>,
    env: Vec<CString>,
    cwd: CString,
    /// Paths to try, in order.
    candidates: Vec<CString>,
}

impl Command {
    /// Prepares the command. Returns `EINVAL` for a string with a NUL, or without a command.
    pub(crate) fn new(go: &Go) -> sys::Result<Self> {
        let strings = |list: &[Vec<u8>]| {
            list.iter().map(|bytes| c_string(bytes.clone())).collect::<sys::Result<Vec<_>>>()
        };
        let argv = strings(&go.argv)?;
        let name = argv.first().ok_or(Errno::INVAL)?.as_bytes();
        let path =
            go.env.iter().find_map(|pair| pair.strip_prefix(b"PATH=".as_slice())).unwrap_or(DEFAULT_PATH);
        let candidates = match name {
            [] => Vec::new(),
            _ if name.contains(&b'/') => vec![c_string(name.to_vec())?],
            _ => path
                .split(|byte| *byte == b':')
                .map(|dir| candidate(dir, name))
                .collect::<sys::Result<_>>()?,
        };
        Ok(Self { env: strings(&go.env)?, cwd: c_string(go.cwd.clone())?, argv, candidates })
    }

    pub(crate) fn cwd(&self) -> &CStr {
        &self.cwd
    }

    /// Becomes the command, or returns why it cannot: `ENOENT` if no path has it, else the most specific answer.
    pub(crate) fn execute(self) -> sys::Result<Infallible> {
        let mut answer = Errno::NOENT;
        for place in &self.candidates {
            let errno = execve(place, &self.argv, &self.env);
            match errno {
                Errno::NOEXEC => return self.execute_by_shell(place),
                Errno::NOENT | Errno::NOTDIR => {}
                // Found, but not executable: a later path may still have one that is.
                Errno::ACCESS => answer = errno,
                errno => return Err(errno),
            }
        }
        Err(answer)
    }

    fn execute_by_shell(&self, script: &CStr) -> sys::Result<Infallible> {
        let arguments = self.argv.iter().skip(1).map(CString::as_c_str);
        let argv: Vec<&CStr> = [SHELL, script].into_iter().chain(arguments).collect();
        Err(execve(SHELL, &argv, &self.env))
    }
}

fn candidate(dir: &[u8], name: &[u8]) -> sys::Result<CString> {
    // An empty element of PATH is the working directory.
    let dir = if dir.is_empty() { b".".as_slice() } else { dir };
    c_string([dir, b"/", name].concat())
}

fn c_string(bytes: Vec<u8>) -> sys::Result<CString> {
    CString::new(bytes).map_err(|_| Errno::INVAL)
}
