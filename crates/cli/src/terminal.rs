//! The form of lines for the user: their prefix, color and escapes.

use std::io::IsTerminal;
use std::sync::OnceLock;

use exeat_policy::printable;

use crate::args::ColorWhen;
use crate::env_vars;

/// The stage that lines for the user are about, where it has a name.
static STAGE: OnceLock<String> = OnceLock::new();

/// Names the stage in every line from now on: of many runs at one time (`make -j`), nobody could tell whose line it is.
pub(crate) fn name_stage(stage: &str) {
    let _ = STAGE.set(printable(stage));
}

/// Returns how a line for the user begins: `exeat`, or `exeat: STAGE`.
pub(crate) fn speaker() -> String {
    STAGE.get().map_or_else(|| "exeat".to_owned(), |stage| format!("exeat: {stage}"))
}

/// Colour or none, for one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Paint(bool);

impl Paint {
    /// No colour.
    pub(crate) const PLAIN: Self = Self(false);

    /// Decides from `--color`, the stream and the environment.
    pub(crate) fn new(when: ColorWhen, stream: &impl IsTerminal) -> Self {
        let is = |name, what: fn(&std::ffi::OsStr) -> bool| std::env::var_os(name).is_some_and(|v| what(&v));
        Self(match when {
            ColorWhen::Always => true,
            ColorWhen::Never => false,
            ColorWhen::Auto => {
                stream.is_terminal()
                    && !is(env_vars::NO_COLOR, |v| !v.is_empty())
                    && !is(env_vars::TERM, |v| v == "dumb")
            }
        })
    }

    /// Whether there is colour.
    pub(crate) fn is_on(self) -> bool {
        self.0
    }

    /// Something was refused or went wrong.
    pub(crate) fn bad(self, text: &str) -> String {
        self.wrap("\x1b[31m", text)
    }

    /// Something was let through.
    pub(crate) fn good(self, text: &str) -> String {
        self.wrap("\x1b[32m", text)
    }

    /// Something failed that is nobody's policy.
    pub(crate) fn odd(self, text: &str) -> String {
        self.wrap("\x1b[33m", text)
    }

    /// Commands to type next, and headings.
    pub(crate) fn strong(self, text: &str) -> String {
        self.wrap("\x1b[1m", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.0 && !text.trim().is_empty() { format!("{code}{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Escapes as [`printable`] does, where lines stay lines.
pub(crate) fn printable_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    lines.join("\n")
}
