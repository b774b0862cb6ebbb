//! The form of lines for the user: their prefix, color and escapes.

use std::io::IsTerminal;
use std::sync::OnceLock;

use exeat_policy::printable;

use crate::args::ColorWhen;
use crate::env_vars;

/// The name of the stage that lines for the user are about, if it has one.
static STAGE: OnceLock<String> = OnceLock::new();

/// Names the stage in every line from now on, to tell apart the lines of concurrent runs (`make -j`).
pub(crate) fn name_stage(stage: &str) {
    let _ = STAGE.set(printable(stage));
}

/// Returns the prefix of lines for the user: `exeat`, or `exeat: STAGE`.
pub(crate) fn speaker() -> String {
    STAGE.get().map_or_else(|| "exeat".to_owned(), |stage| format!("exeat: {stage}"))
}

/// Whether a stream gets color.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Paint(bool);

impl Paint {
    /// No color.
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

    /// Whether the stream gets color.
    pub(crate) fn is_on(self) -> bool {
        self.0
    }

    /// Colors text about a refusal or an error.
    pub(crate) fn bad(self, text: &str) -> String {
        self.wrap("\x1b[31m", text)
    }

    /// Colors text about something that was let through.
    pub(crate) fn good(self, text: &str) -> String {
        self.wrap("\x1b[32m", text)
    }

    /// Colors text about a failure that is not a denial.
    pub(crate) fn odd(self, text: &str) -> String {
        self.wrap("\x1b[33m", text)
    }

    /// Highlights commands to type next, and headings.
    pub(crate) fn strong(self, text: &str) -> String {
        self.wrap("\x1b[1m", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.0 && !text.trim().is_empty() { format!("{code}{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Escapes each line with [`printable`], and keeps the line feeds.
pub(crate) fn printable_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    lines.join("\n")
}
