//! Describes who started a run, and where, for the first line of its record. No decision depends on it.

use std::ffi::OsStr;

use exeat_files::users::user_of;
use exeat_record::Trace;
use nix::sys::utsname::uname;
use nix::unistd::{geteuid, getuid};

/// Returns the user who runs this program by name or number, followed by `as` and the effective user if that is another one.
pub fn user_name() -> Option<String> {
    let name = |uid| user_of(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name);
    let (real, effective) = (getuid(), geteuid());
    Some(if real == effective { name(real) } else { format!("{} as {}", name(real), name(effective)) })
}

/// Returns the machine's host name.
pub fn machine_name() -> Option<String> {
    let own = uname().ok()?;
    own.nodename().to_str().map(str::to_owned)
}

/// Parses a `TRACEPARENT` (W3C Trace Context, section 3.2.2). A malformed one gives `None`.
pub(crate) fn parse_trace(value: Option<&OsStr>) -> Option<Trace> {
    let mut parts = value?.to_str()?.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, digits| {
        let is_hex = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        text.len() == digits && text.bytes().all(is_hex) && text.bytes().any(|byte| byte != b'0')
    };
    let whole =
        version == "00" && hex(trace, 32) && hex(span, 16) && flags.len() == 2 && parts.next().is_none();
    whole.then(|| Trace { trace_id: trace.to_owned(), span_id: span.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_taken_only_as_the_standard_has_it() {
        let (id, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let good = format!("00-{id}-{span}-01");
        let found = parse_trace(Some(OsStr::new(&good))).unwrap();
        assert_eq!((found.trace_id.as_str(), found.span_id.as_str()), (id, span));
        let zeros = "0".repeat(32);
        for bad in [
            String::new(),
            "secret".into(),
            good.to_uppercase(),
            format!("{good}-more"),
            format!("01-{id}-{span}-01"),
            format!("00-{zeros}-{span}-01"),
            format!("00-{id}-{}-01", "0".repeat(16)),
        ] {
            assert_eq!(parse_trace(Some(OsStr::new(&bad))), None, "{bad}");
        }
    }
}
