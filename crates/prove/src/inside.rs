//! The inside of a proof: makes the requested attempts and prints one JSON line for each. Runs as a stage, and as the
//! control on the host, and judges nothing.

use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Duration;

use crate::sys::{Apart, apart};
use serde::{Deserialize, Serialize};

use crate::attempt::{Attempt, Control, Saw, Spec, name};
use crate::attempts;

/// The longest duration of one attempt.
const LIMIT: Duration = Duration::from_secs(4);

/// An attempt and its result.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) id: String,
    #[serde(flatten)]
    pub(crate) saw: Saw,
}

/// The word that makes the binary the inside of a proof, as its first argument.
pub(crate) const INSIDE: &str = "prove-inside";

/// Makes attempts, if this process was started for them: `prove-inside attempts|controls SPEC [NAME...]`, or to stand by:
/// `prove-inside wait|survive TOKEN`. Returns `None` in any other process.
///
/// # Errors
/// Fails for unknown words, and if a line cannot be written.
#[must_use]
pub fn run_if_requested() -> Option<io::Result<()>> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != INSIDE {
        return None;
    }
    let words: Vec<String> = words.map(OsString::into_string).collect::<Result<_, _>>().ok()?;
    Some(run(&words))
}

fn run(words: &[String]) -> io::Result<()> {
    match words {
        [kind, spec, names @ ..] if kind == "attempts" || kind == "controls" => {
            let spec: Spec = serde_json::from_str(spec)?;
            for attempt in
                attempts().filter(|attempt| names.is_empty() || names.iter().any(|n| n == attempt.id))
            {
                let make = match (kind.as_str(), attempt.control) {
                    ("attempts", _) | (_, Control::Same) => attempt.make,
                    (_, Control::Other(make)) => make,
                    (_, Control::None) => continue,
                };
                print(attempt, alone(make, &spec))?;
            }
            Ok(())
        }
        [kind, token] if kind == "wait" => super::sockets::stand_by(token),
        // The token marks the process in the list of processes.
        [kind, _] if kind == "survive" => super::survive::outlive(),
        _ => Err(io::Error::other("nothing that it knows")),
    }
}

/// Makes an attempt in a separate process, which the sandbox may kill for it.
fn alone(make: fn(&Spec) -> Saw, spec: &Spec) -> Saw {
    let said = apart(LIMIT, || serde_json::to_vec(&make(spec)).unwrap_or_default());
    match said {
        Ok(Apart::Said(bytes)) => serde_json::from_slice(&bytes)
            .unwrap_or_else(|error| Saw::NotMade(format!("it said nothing that can be read: {error}"))),
        // seccomp kills a process that uses the system calls of another architecture.
        Ok(Apart::Killed(signal)) if signal == nix::libc::SIGSYS => Saw::Refused("killed by SIGSYS".into()),
        Ok(Apart::Killed(signal)) => Saw::NotMade(format!("killed by signal {signal}")),
        Ok(Apart::Late) => Saw::NotMade(format!("no answer in {} s", LIMIT.as_secs())),
        Err(error) => Saw::NotMade(format!("no process for it: {}", name(&error))),
    }
}

fn print(attempt: &Attempt, saw: Saw) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Line { id: attempt.id.to_owned(), saw })?;
    line.push(b'\n');
    // One immediate write, because the next attempt may end this process.
    io::stdout().lock().write_all(&line).and_then(|()| io::stdout().flush())
}
