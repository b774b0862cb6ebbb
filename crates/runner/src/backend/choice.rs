//! Chooses what builds the sandbox of a run, before its start. A failed start changes nothing about the choice.

use exeat_policy::BackendName;
use exeat_record::place::RecordDir;
use exeat_sandbox::{Builder, Error as SandboxError, RefusingLayer, bwrap, is_nested};

use super::check::build_sandbox;
use super::memory::{Answer, Memory};
use super::{neither, unavailable};
use crate::error::{Error, chain};
use crate::identity::StageUser;

/// Bytes of the reason for a choice.
pub(super) const WHY: usize = 256;

/// The back end of a run, and the reason for it.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) builder: Builder,
    /// The reason for it, if it was left to exeat.
    pub(crate) why: Option<String>,
    /// The file that keeps the answer of a probe, if there is one to keep.
    memory: Option<Memory>,
}

impl Choice {
    /// Accepts the back end that the caller asked for. Nothing is tried.
    pub(crate) fn accept(builder: Builder) -> Self {
        Self { builder, why: None, memory: None }
    }

    fn found(builder: Builder, why: impl Into<String>, memory: Option<Memory>) -> Self {
        Self { builder, why: Some(clip(&why.into())), memory }
    }

    /// Returns the name, and why it was chosen if it was left to exeat.
    pub(crate) fn describe(&self) -> String {
        let name = self.builder.name();
        self.why.as_ref().map_or_else(|| name.to_owned(), |why| format!("{name} ({why})"))
    }

    /// Keeps the answer of the probe for later runs, once a sandbox was built.
    pub(crate) fn remember(&self) {
        if let (Some(memory), Some(why)) = (&self.memory, &self.why) {
            memory.write(&Answer { is_native: self.builder == Builder::Native, why: why.clone() });
        }
    }

    /// Deletes the answer after a failed start, so that the next run tries again.
    pub(crate) fn forget(&self) {
        if let Some(memory) = &self.memory {
            memory.forget();
        }
    }
}

/// Chooses what builds the sandbox for this user. `auto` is bubblewrap where it works, else exeat itself: each is tried by a whole sandbox
/// that ends before any command, unless an earlier answer holds.
///
/// # Errors
/// Returns an error if bubblewrap is asked for and no trusted path has it, and for `auto` if neither works.
pub(crate) fn choose(name: BackendName, who: &StageUser, place: Option<&RecordDir>) -> Result<Choice, Error> {
    let found = bwrap::find();
    match name {
        BackendName::Bwrap => found.map(Builder::for_bwrap).map(Choice::accept).map_err(Error::Sandbox),
        BackendName::BwrapAlone => found.map(Builder::BwrapAlone).map(Choice::accept).map_err(Error::Sandbox),
        BackendName::Native => Ok(Choice::accept(Builder::Native)),
        // Both fail inside a run. The start says so, and has the fix.
        BackendName::Auto if is_nested() => {
            Ok(Choice::accept(found.map_or(Builder::Native, Builder::for_bwrap)))
        }
        BackendName::Auto => {
            let place = crate::signing::key_place(place);
            let memory = place.and_then(|place| Memory::find(&place, found.as_deref().ok(), who));
            choose_working(found.map(Builder::for_bwrap), memory, |builder| {
                build_sandbox(builder, who).map(drop)
            })
        }
    }
}

/// Chooses as `auto` does, by trying, whatever was tried before.
///
/// # Errors
/// Returns an error if neither works.
pub(crate) fn choose_anew(who: &StageUser) -> Result<Choice, Error> {
    choose_working(bwrap::find().map(Builder::for_bwrap), None, |builder| {
        build_sandbox(builder, who).map(drop)
    })
}

fn choose_working(
    bubblewrap: Result<Builder, SandboxError>,
    memory: Option<Memory>,
    works: impl Fn(&Builder) -> Result<(), Error>,
) -> Result<Choice, Error> {
    match (memory.as_ref().and_then(Memory::read), &bubblewrap) {
        (Some(Answer { is_native: true, why }), _) => return Ok(Choice::found(Builder::Native, why, memory)),
        (Some(Answer { is_native: false, why }), Ok(builder)) => {
            return Ok(Choice::found(builder.clone(), why, memory));
        }
        _ => {}
    }
    let not_bubblewrap = match bubblewrap {
        Err(error) => error,
        Ok(builder) => match works(&builder) {
            Ok(()) => return Ok(Choice::found(builder, "bubblewrap works here", memory)),
            Err(Error::Sandbox(error)) => error,
            // The place for sockets or the trees are missing: the start says the same, whatever builds the sandbox.
            Err(_) => return Ok(Choice::found(builder, "bubblewrap is installed", None)),
        },
    };
    let why = describe_failure(&not_bubblewrap);
    match works(&Builder::Native) {
        Ok(()) => {
            let memory = memory.filter(|_| is_lasting(&not_bubblewrap));
            Ok(Choice::found(Builder::Native, why, memory))
        }
        Err(Error::Sandbox(native)) => Err(Error::Backend(neither(
            unavailable("bwrap", &Error::Sandbox(not_bubblewrap)),
            unavailable("native", &Error::Sandbox(native)),
        ))),
        Err(_) => Ok(Choice::found(Builder::Native, why, None)),
    }
}

/// Says why bubblewrap was not taken.
fn describe_failure(error: &SandboxError) -> String {
    match error {
        SandboxError::NoBwrap { .. } => "no bubblewrap at a trusted path".to_owned(),
        SandboxError::Bwrap { path, layer: RefusingLayer::OldBwrap, .. } => {
            let version = bwrap::version(path).ok().filter(|version| is_version(version));
            format!("{} is too old", version.as_deref().unwrap_or("this bubblewrap"))
        }
        SandboxError::Bwrap { said, layer, .. } => {
            format!("bubblewrap does not work here: {}", layer.as_str().unwrap_or(said))
        }
        error => format!("bubblewrap does not work here: {}", chain(error)),
    }
}

/// Whether a text is what bubblewrap says of its version.
fn is_version(text: &str) -> bool {
    let number = text.strip_prefix("bubblewrap ");
    number.is_some_and(|number| {
        (1..=16).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    })
}

/// Whether a failure would come again: not if the machine was busy, or had no room for a moment.
fn is_lasting(error: &SandboxError) -> bool {
    let passing = ["Resource temporarily unavailable", "Cannot allocate memory", "No space left on device"];
    match error {
        SandboxError::NoBwrap { .. } => true,
        SandboxError::Bwrap { said, .. } => !passing.iter().any(|word| said.contains(word)),
        _ => false,
    }
}

/// Cuts a reason at its longest, and replaces what would not be one line.
fn clip(why: &str) -> String {
    let mut text = String::new();
    for c in why.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if text.len() + c.len_utf8() > WHY {
            break;
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::PathBuf;

    use super::*;

    fn bubblewrap() -> Builder {
        Builder::Bwrap("/usr/bin/bwrap".into())
    }

    fn refused(said: &str, layer: RefusingLayer) -> Error {
        Error::Sandbox(SandboxError::Bwrap { path: "/bin/false".into(), said: said.into(), layer })
    }

    fn no_bwrap() -> SandboxError {
        SandboxError::NoBwrap { looked: "/usr/bin/bwrap".into() }
    }

    #[test]
    fn takes_bubblewrap_where_it_works_and_else_exeat_itself() {
        let tried = Cell::new(0);
        let works = |_: &Builder| {
            tried.set(tried.get() + 1);
            Ok(())
        };
        let choice = choose_working(Ok(bubblewrap()), None, works).unwrap();
        assert_eq!((choice.builder.clone(), tried.get()), (bubblewrap(), 1), "the other one is not tried");
        assert_eq!(choice.describe(), "bwrap (bubblewrap works here)");

        let choice = choose_working(Err(no_bwrap()), None, |_| Ok(())).unwrap();
        assert_eq!(choice.describe(), "native (no bubblewrap at a trusted path)");

        for (said, layer, why) in [
            ("bwrap: Unknown option --size", RefusingLayer::OldBwrap, "this bubblewrap is too old"),
            (
                "bwrap: setting up uid map: Permission denied",
                RefusingLayer::AppArmor,
                "bubblewrap does not work here: AppArmor restricts unprivileged user namespaces",
            ),
            ("bwrap: no\nmounts", RefusingLayer::Unknown, "bubblewrap does not work here: bwrap: no mounts"),
        ] {
            let choice = choose_working(Ok(bubblewrap()), None, |builder| match builder {
                Builder::Native => Ok(()),
                _ => Err(refused(said, layer)),
            });
            assert_eq!(choice.unwrap().describe(), format!("native ({why})"));
        }
    }

    /// The fixes of both are named, and one that is the same only once.
    #[test]
    fn where_neither_works_both_causes_and_fixes_are_named() {
        let kernel = RefusingLayer::UsernsCloneSysctl;
        let native = || {
            let (what, source) = ("make namespaces".into(), nix::errno::Errno::EPERM);
            Error::Sandbox(SandboxError::Build { what, source, layer: kernel })
        };
        let neither = |of_bubblewrap: fn() -> Error| {
            let works = |builder: &Builder| match builder {
                Builder::Native => Err(native()),
                _ => Err(of_bubblewrap()),
            };
            choose_working(Ok(bubblewrap()), None, works).unwrap_err()
        };
        let error = neither(|| refused("bwrap: No permissions", RefusingLayer::UsernsCloneSysctl));
        assert_eq!(error.code(), 125);
        let said = chain(&error);
        assert!(said.contains("bubblewrap: ") && said.contains("exeat itself: "), "{said}");
        assert!(said.contains("No permissions") && said.contains("cannot make namespaces"), "{said}");
        assert_eq!(error.fix().unwrap(), "sudo sysctl -w kernel.unprivileged_userns_clone=1");
        let error = neither(|| refused("Unknown option --size", RefusingLayer::OldBwrap));
        assert_eq!(
            error.fix().unwrap(),
            "for bubblewrap: install bubblewrap 0.8 or later; for exeat itself: sudo sysctl -w kernel.unprivileged_userns_clone=1"
        );
    }

    /// A failure of something else that a run needs says nothing about a back end. The start reports it.
    #[test]
    fn other_failures_choose_nothing() {
        let choice = choose_working(Ok(bubblewrap()), None, |_| Err(Error::ChildrenUnseen)).unwrap();
        assert_eq!(choice.builder, bubblewrap());
        let choice = choose_working(Err(no_bwrap()), None, |_| Err(Error::ChildrenUnseen)).unwrap();
        assert_eq!(choice.builder, Builder::Native);
    }

    #[test]
    fn a_reason_is_one_short_line() {
        assert_eq!(clip("a\nb\u{1b}c"), "a b c");
        assert_eq!(clip(&"é".repeat(WHY)).len(), WHY);
        for (text, expect) in
            [("bubblewrap 0.6.2", true), ("bubblewrap ", false), ("bubblewrap 1\u{7}", false)]
        {
            assert_eq!(is_version(text), expect, "{text:?}");
        }
    }

    #[test]
    fn a_failure_that_may_pass_is_not_remembered() {
        let path = PathBuf::from("/usr/bin/bwrap");
        let said = |said: &str| SandboxError::Bwrap {
            path: path.clone(),
            said: said.into(),
            layer: RefusingLayer::Unknown,
        };
        assert!(is_lasting(&no_bwrap()) && is_lasting(&said("bwrap: Can't mount tmpfs: Invalid argument")));
        assert!(!is_lasting(&said("bwrap: Creating new namespace failed: Resource temporarily unavailable")));
        assert!(!is_lasting(&SandboxError::Late(std::time::Duration::from_secs(30))));
    }
}
