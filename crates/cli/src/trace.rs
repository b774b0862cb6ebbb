//! Prints diagnostics on stderr if `RUST_LOG` asks for them. Messages that a user must see are never printed this way.

use std::io::{self, Write};

use tracing_subscriber::EnvFilter;

use crate::env_vars;
use crate::stdio;

/// Starts diagnostics, if requested. Prints a warning for a filter that does not parse, and ignores it.
pub(crate) fn start() {
    let Some(filter) = std::env::var_os(env_vars::RUST_LOG).filter(|filter| !filter.is_empty()) else {
        return;
    };
    let parsed = filter.to_str().map(|text| EnvFilter::builder().parse(text));
    let Some(Ok(filter)) = parsed else {
        return stdio::line(
            "warning",
            "RUST_LOG is no filter, such as `debug` or `exeat_proxy=trace`: ignored",
        );
    };
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(|| Visible);
    // A second subscriber would be a bug that costs only diagnostics.
    let _ = subscriber.try_init();
}

/// Writes each event as one line to stderr, and escapes every byte that is not printable ASCII. Events quote what a stage
/// sent, and tracing's own escaping has had holes (RUSTSEC-2025-0055).
struct Visible;

impl Write for Visible {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        stdio::write_stderr(&escaped(event));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn escaped(event: &[u8]) -> String {
    let (event, end) = match event.strip_suffix(b"\n") {
        Some(event) => (event, "\n"),
        None => (event, ""),
    };
    let mut line = String::with_capacity(event.len() + 1);
    for byte in event {
        match byte {
            0x20..=0x7e => line.push(char::from(*byte)),
            _ => line.push_str(&format!("\\x{byte:02x}")),
        }
    }
    line + end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_printable_line() {
        assert_eq!(escaped(b"a\x1b[2J\nb\xc3\xa9\n"), "a\\x1b[2J\\x0ab\\xc3\\xa9\n");
        assert_eq!(escaped(b"half"), "half");
    }
}
