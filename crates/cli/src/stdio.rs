//! The two streams. Data goes to stdout, words to stderr; neither ever panics because a reader went away.

use std::io::{self, Write};

use crate::failure::Failure;

/// Writes data to stdout.
pub(crate) fn data(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(Failure::Stdout)
}

/// Writes JSON values to stdout, each on its line. What is not printable ASCII is escaped, so that a name in it paints no
/// terminal.
pub(crate) fn json(text: &str) -> Result<(), Failure> {
    let mut ascii = Vec::with_capacity(text.len());
    for line in text.lines() {
        exeat_audit::ascii_json(&mut ascii, line).map_err(Failure::Stdout)?;
        ascii.push(b'\n');
    }
    data(&ascii)
}

/// Writes what was asked for to stdout: JSON values, or text.
pub(crate) fn out(text: &str, is_json: bool) -> Result<(), Failure> {
    if is_json { json(text) } else { data(text.as_bytes()) }
}

/// Writes words to stderr. One write, so that lines of the stage do not get in between; a closed stderr changes
/// nothing about a run.
pub(crate) fn say(text: &str) {
    if !text.is_empty() {
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
}

/// One line for the user on stderr, of a kind: `note`, `warning`.
pub(crate) fn line(kind: &str, text: &str) {
    say(&format!("exeat: {kind}: {}\n", crate::render::printable(text)));
}
