//! Failures that end a command early, and the one function that prints them. A denial is an answer and not a failure.

use std::error::Error;
use std::io;
use std::path::Path;

use exeat_compose::Fault;
use exeat_policy::{os_words, shell_word};
use exeat_runner::{FaultParts, FaultPlace, RunLost};
use serde::Serialize;

use crate::exit::Exit;
use crate::stdio;
use crate::terminal::{Paint, printable_lines, speaker};

/// The reason why a command of exeat stopped. The message is lower case without a full stop, and quotes the user's text in backticks.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The user's input is wrong (exit code 2), or something that exeat needs does not work here (125).
    Fault(Fault),
    /// The runner failed. Its error knows whether the input was wrong.
    Run(Box<exeat_runner::Error>),
    /// Standard output cannot be written, for example because its reader has gone.
    Stdout(io::Error),
}

/// A line of `--format json` about a failure. Fields without a value are absent.
#[derive(Serialize)]
struct Line<'a> {
    schema: u32,
    exit: u8,
    cause: &'static str,
    /// The step of a start that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
    #[serde(flatten)]
    what: What<'a>,
    /// The layer of the host that refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    because: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum What<'a> {
    At(FaultPlace<'a>),
    Whole {
        error: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        meant: Option<&'a str>,
    },
}

/// The prefix of a hint that is a suggestion.
const MEANT: &str = "probably meant: ";

impl Failure {
    /// Creates a failure for wrong input of the user.
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::Fault(Fault::input(message))
    }

    /// Creates a failure for something that exeat could not do.
    pub(crate) fn could(message: impl Into<String>) -> Self {
        Self::Fault(Fault::machine(message))
    }

    /// Creates a failure for a file that cannot be written, with a hint if its directory is missing. The path follows `message`.
    pub(crate) fn not_written(message: &str, path: &Path, error: io::Error) -> Self {
        let shown = |path: &Path| path.display().to_string();
        let message = format!("{message} `{}`", shown(path));
        let failure = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::could(message),
            _ => Self::input(message),
        };
        let directory = path.parent().filter(|_| error.kind() == io::ErrorKind::NotFound);
        let failure = match directory.filter(|directory| !directory.as_os_str().is_empty()) {
            Some(directory) => failure.hint(format!("mkdir -p {}", shell_word(&shown(directory)))),
            None => failure,
        };
        failure.because(error)
    }

    /// Adds the cause, which the message must not repeat.
    pub(crate) fn because(self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.with(|fault| fault.because(source))
    }

    /// Adds a hint, which is printed on a separate line.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        self.with(|fault| fault.hint(hint))
    }

    /// Adds the probable meaning for programs, if the message itself contains it.
    pub(crate) fn suggest(self, meant: String) -> Self {
        self.with(|fault| fault.suggest(meant))
    }

    fn with(self, add: impl FnOnce(Fault) -> Fault) -> Self {
        match self {
            Self::Fault(fault) => Self::Fault(add(fault)),
            other => other,
        }
    }

    /// Returns the run that failed after its stage had started, if the stage left something to report.
    pub(crate) fn run_lost(&self) -> Option<&RunLost> {
        match self {
            Self::Run(error) => match &**error {
                exeat_runner::Error::RunLost(lost) => Some(lost),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the runner's error, if it is one.
    pub(crate) fn error(&self) -> Option<&exeat_runner::Error> {
        match self {
            Self::Run(error) => Some(error),
            _ => None,
        }
    }

    /// Returns the exit code for the failure.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Fault(fault) if fault.is_input => Exit::BadInput,
            Self::Fault(_) => Exit::CouldNot,
            Self::Run(error) => match error.code() {
                code if code == Exit::BadInput.code() => Exit::BadInput,
                // A signal stopped exeat before the stage started.
                signal @ 129..=192 => Exit::Signal(i32::from(signal) - 128),
                _ => Exit::CouldNot,
            },
            // The reader has enough, as in `exeat audit list | head -1`.
            Self::Stdout(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Yes,
            Self::Stdout(_) => Exit::CouldNot,
        }
    }

    /// Returns the cause in the result object.
    pub(crate) fn cause(&self) -> &'static str {
        match self {
            Self::Fault(fault) if fault.is_input => "policy",
            Self::Run(_) if self.exit() == Exit::BadInput => "policy",
            Self::Run(error) => error.cause_word(),
            Self::Fault(_) | Self::Stdout(_) => "setup",
        }
    }

    /// Formats the failure as plain text for programs, without the prefix.
    pub(crate) fn plain_text(&self) -> String {
        let text = self.report(Paint::PLAIN);
        let prefix = format!("{}: error: ", speaker());
        text.strip_prefix(&prefix).unwrap_or(&text).trim_end().to_owned()
    }

    /// Prints the failure on stderr, as JSON with the exit code for a program, or as text.
    pub(crate) fn report_on_stderr(&self, exit: Exit, is_json: bool, paint: Paint) {
        match is_json {
            true => stdio::say_json(&self.json(exit)),
            false => stdio::write_stderr(&self.report(paint)),
        }
    }

    /// Formats the failure as lines for stderr, each with its newline. Empty if the reader of stdout has gone.
    pub(crate) fn report(&self, paint: Paint) -> String {
        match self {
            Self::Fault(fault) => lines(&fault.message, fault.source(), None, fault.hint.as_deref(), paint),
            // The step that failed first does not show the cause.
            Self::Run(error) if error.is_of_nesting() => {
                let step = with_causes(&error.to_string(), error.source());
                let message = format!("{} ({step})", error.layer().unwrap_or_default());
                lines(&message, None, None, error.fix().as_deref(), paint)
            }
            Self::Run(error) => {
                lines(&error.to_string(), error.source(), error.layer(), error.fix().as_deref(), paint)
            }
            Self::Stdout(error) if error.kind() == io::ErrorKind::BrokenPipe => String::new(),
            Self::Stdout(error) => lines("cannot write to stdout", Some(error), None, None, paint),
        }
    }
}

impl Failure {
    /// Returns the error with its causes as one line.
    pub(crate) fn whole(&self) -> String {
        match self {
            Self::Fault(fault) => with_causes(&fault.message, fault.source()),
            Self::Run(error) => with_causes(&error.to_string(), error.source()),
            Self::Stdout(error) => with_causes("cannot write to stdout", Some(error)),
        }
    }

    /// Returns the parts of the failure for programs.
    pub(crate) fn parts(&self) -> FaultParts<'_> {
        let (hint, told) = match self {
            Self::Fault(fault) => (fault.hint.clone(), fault.meant.as_deref()),
            Self::Run(error) => (error.fix(), None),
            Self::Stdout(_) => (None, None),
        };
        let suggested = hint.as_deref().and_then(|hint| hint.strip_prefix(MEANT));
        let meant = told.or(suggested).map(str::to_owned);
        let hint = hint.as_deref().filter(|_| suggested.is_none()).map(str::to_owned);
        let (step, because) = match self {
            Self::Run(error) => (Some(os_words(&error.to_string()).into_owned()), error.layer()),
            Self::Fault(_) | Self::Stdout(_) => (None, None),
        };
        let places = if let Self::Fault(fault) = self { fault.places.as_slice() } else { &[] };
        FaultParts { step, because, hint, meant, faults: places.iter().map(FaultPlace::from).collect() }
    }

    /// Formats the failure as JSON objects, one per line. Empty if the reader of stdout has gone.
    pub(crate) fn json(&self, exit: Exit) -> String {
        if matches!(self, Self::Stdout(error) if error.kind() == io::ErrorKind::BrokenPipe) {
            return String::new();
        }
        let FaultParts { step, because, hint, meant, faults } = self.parts();
        let whats: Vec<What<'_>> = if faults.is_empty() {
            vec![What::Whole { error: self.whole(), meant: meant.as_deref() }]
        } else {
            faults.into_iter().map(What::At).collect()
        };
        let (exit, cause, hint) = (exit.code(), self.cause(), hint.as_deref());
        let lines = whats.into_iter().map(|what| {
            let line = Line { schema: 1, exit, cause, step: step.clone(), what, because, hint };
            // Text and numbers always serialize.
            serde_json::to_string(&line).unwrap_or_default() + "\n"
        });
        lines.collect()
    }
}

/// Formats the message with its causes as one line, then the origin and the hint if they are known.
fn lines(
    message: &str,
    source: Option<&dyn Error>,
    layer: Option<&str>,
    hint: Option<&str>,
    paint: Paint,
) -> String {
    let text = with_causes(message, source);
    let mut out = format!("{}: {} {}\n", speaker(), paint.bad("error:"), printable_lines(&text));
    for (word, text) in [("because:", layer), ("hint:", hint)] {
        if let Some(text) = text {
            out.push_str(&format!("  {} {}\n", paint.strong(word), printable_lines(text)));
        }
    }
    out
}

fn with_causes(message: &str, mut source: Option<&dyn Error>) -> String {
    let mut text = message.to_owned();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    os_words(&text).into_owned()
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<exeat_runner::Error> for Failure {
    fn from(error: exeat_runner::Error) -> Self {
        match error {
            exeat_runner::Error::Policy(fault) => Self::Fault(*fault),
            error => Self::Run(Box::new(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use exeat_compose::Position;

    use super::*;

    fn report(failure: &Failure) -> String {
        failure.report(Paint::PLAIN)
    }

    #[test]
    fn the_chain_is_one_line_and_the_hint_another() {
        let failure =
            Failure::could("cannot open `/x/y`").because(io::Error::from_raw_os_error(2)).hint("mkdir -p /x");
        assert_eq!(
            report(&failure),
            "exeat: error: cannot open `/x/y`: no such file or directory\n  hint: mkdir -p /x\n"
        );
        assert_eq!(failure.exit().code(), 125);
    }

    /// bubblewrap does not say which setting of the host refused.
    #[test]
    fn the_layer_that_refused_stands_before_the_hint() {
        let said = io::Error::other("bwrap: setting up uid map: Permission denied");
        let layer = "AppArmor restricts unprivileged user namespaces";
        assert_eq!(
            lines("cannot set up the sandbox", Some(&said), Some(layer), Some("allow it"), Paint::PLAIN),
            "exeat: error: cannot set up the sandbox: bwrap: setting up uid map: Permission denied\n\
             \x20 because: AppArmor restricts unprivileged user namespaces\n\
             \x20 hint: allow it\n"
        );
    }

    /// Text and JSON have the same words, for a fault at a place, too.
    #[test]
    fn a_program_reads_the_words_that_a_person_reads() {
        let place =
            |error: String| Position { file: "p.toml".into(), line: None, column: None, error, meant: None };
        let error = io::Error::from_raw_os_error(2);
        let fault = Fault::input(format!("p.toml: {error}")).at(vec![place(error.to_string())]);
        let failure = Failure::Fault(fault);
        assert_eq!(report(&failure), "exeat: error: p.toml: no such file or directory\n");
        let json = failure.json(Exit::BadInput);
        assert!(json.contains("\"error\":\"no such file or directory\""), "{json}");
    }

    #[test]
    fn hostile_text_moves_no_cursor() {
        let failure = Failure::input("`\u{1b}[2J\u{202e}` is no rule\nsecond line");
        assert_eq!(report(&failure), "exeat: error: `\\u{1b}[2J\\u{202e}` is no rule\nsecond line\n");
    }

    #[test]
    fn a_closed_stdout_is_not_an_error() {
        let closed = Failure::Stdout(io::ErrorKind::BrokenPipe.into());
        assert_eq!((report(&closed).as_str(), closed.exit().code()), ("", 0));
        let full = Failure::Stdout(io::Error::from_raw_os_error(28));
        assert_eq!(report(&full), "exeat: error: cannot write to stdout: no space left on device\n");
        assert_eq!(full.exit().code(), 125);
    }
}
