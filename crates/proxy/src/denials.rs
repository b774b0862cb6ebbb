//! Writes the denials that the stage itself may read, one JSON line each. A line holds only what the stage sent or
//! may know. Best effort: the audit log is the record, not this file.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use exeat_policy::Reason;
use exeat_record::Proto;
use serde::Serialize;

use crate::limits;

/// The denials file, and how much was written to it.
#[derive(Debug)]
pub(crate) struct Denials(Mutex<Open>);

#[derive(Debug)]
struct Open {
    /// `None` once it is full or cannot be written.
    file: Option<File>,
    /// The lines that are in it.
    known: HashSet<Vec<u8>>,
    lines: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    target: &'a str,
    /// `None` for TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    proto: Option<String>,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    flag: Option<&'a str>,
}

impl Denials {
    pub(crate) fn new(file: File) -> Self {
        Self(Mutex::new(Open { file: Some(file), known: HashSet::new(), lines: 0, bytes: 0 }))
    }

    /// Appends one denial. `flag` must come from [`Denial::flag_inside`], because the stage reads it.
    ///
    /// [`Denial::flag_inside`]: exeat_policy::Denial::flag_inside
    pub(crate) fn write(&self, target: &str, proto: Proto, reason: Reason, flag: Option<&str>) {
        let proto = (proto != Proto::Tcp).then(|| proto.to_string());
        let line = Line { target, proto, reason: reason.as_str(), flag };
        let Ok(mut line) = serde_json::to_vec(&line) else { return };
        line.push(b'\n');
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // As many as there are lines.
        if open.file.is_none() || !open.known.insert(line.clone()) {
            return;
        }
        let (lines, bytes) = limits::DENIALS;
        open.lines += 1;
        open.bytes += line.len() as u64;
        let full = open.lines >= lines || open.bytes >= bytes;
        if full {
            line =
                b"{\"stopped\":\"too many denials; the rest is in the record on the host only\"}\n".to_vec();
        }
        let failed = open.file.as_mut().is_some_and(|file| file.write_all(&line).is_err());
        if full || failed {
            open.file = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_the_denials_file_with_a_notice() {
        let path = std::env::temp_dir().join(format!("exeat-denials-{}", std::process::id()));
        let denials = Denials::new(File::create(&path).unwrap());
        for number in 0..limits::DENIALS.0 + 5 {
            let flag = format!("--allow h{number}.test");
            for _ in 0..3 {
                denials.write(&format!("h{number}.test:443"), Proto::Tcp, Reason::Default, Some(&flag));
            }
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len() as u64, limits::DENIALS.0);
        assert_eq!(lines[0], r#"{"target":"h0.test:443","reason":"default","flag":"--allow h0.test"}"#);
        assert!(lines.last().unwrap().contains("stopped"));
        assert!(text.len() as u64 <= limits::DENIALS.1);
    }
}
