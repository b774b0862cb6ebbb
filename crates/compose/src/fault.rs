//! Describes an error in an input, as text for people and as fields for programs.

use std::error::Error;
use std::fmt;

use exeat_policy::printable;

/// An error that prevents composing. The message is lower case without a full stop, and quotes the user's text in backticks.
#[derive(Debug)]
pub struct Fault {
    /// Whether the input is wrong; otherwise an operation failed on this machine.
    pub is_input: bool,
    /// The error message.
    pub message: String,
    /// The cause. The message never repeats it.
    pub source: Option<Box<dyn Error + Send + Sync>>,
    /// The suggestion of what the user can do.
    pub hint: Option<String>,
    /// The probable intention, for programs, where the message itself contains it.
    pub meant: Option<String>,
    /// The positions of the errors.
    pub places: Vec<Position>,
}

/// The position of an error in a file or a flag, for programs. The message contains it as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The file or the flag as the user named it.
    pub file: String,
    /// The line, starting at 1.
    pub line: Option<u32>,
    /// The column in characters, starting at 1; `None` where the whole file is meant.
    pub column: Option<u32>,
    /// The error at this position.
    pub error: String,
    /// The probable intention.
    pub meant: Option<String>,
}

/// Positions that one message shows. The others are counted, and programs get them.
const MAX_SHOWN: usize = 20;

impl Position {
    /// Creates the position of an error in a flag, or in a line of a file.
    pub fn new(file: impl Into<String>, line: Option<u32>, error: impl Into<String>) -> Self {
        Self { file: file.into(), line, column: None, error: error.into(), meant: None }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.file))?;
        for number in [self.line, self.column].into_iter().flatten() {
            write!(f, ":{number}")?;
        }
        write!(f, ": {}", self.error)
    }
}

impl Fault {
    /// Creates an error in the user's input.
    pub fn input(message: impl Into<String>) -> Self {
        Self {
            is_input: true,
            message: message.into(),
            source: None,
            hint: None,
            meant: None,
            places: Vec::new(),
        }
    }

    /// Creates an error at each of these positions: the message has a line for each, as fields have it for programs.
    pub fn at_each(places: Vec<Position>) -> Self {
        if let [place] = places.as_slice() {
            let meant = place.meant.as_ref().map(|meant| format!("probably meant: {meant}"));
            return Self { hint: meant, ..Self::input(place.to_string()).at(places) };
        }
        let line = |place: &Position| match &place.meant {
            Some(meant) => format!("{place}\n  = probably meant: {meant}"),
            None => place.to_string(),
        };
        let mut lines: Vec<String> = places.iter().take(MAX_SHOWN).map(line).collect();
        if let Some(more) = places.len().checked_sub(MAX_SHOWN).filter(|more| *more > 0) {
            lines.push(format!("... and {more} more"));
        }
        Self::input(lines.join("\n")).at(places)
    }

    /// Creates an error for an operation that failed on this machine.
    pub fn machine(message: impl Into<String>) -> Self {
        Self { is_input: false, ..Self::input(message) }
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: Some(source.into()), ..self }
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Adds the probable intention.
    #[must_use]
    pub fn suggest(self, meant: String) -> Self {
        Self { meant: Some(meant), ..self }
    }

    /// Adds where the errors are.
    #[must_use]
    pub fn at(self, places: Vec<Position>) -> Self {
        Self { places, ..self }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}
