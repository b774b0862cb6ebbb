//! What is wrong with an input, in words for people and in fields for programs.

use std::error::Error;
use std::fmt;

/// Why something could not be composed. The message is lower case, without a full stop, the user's text in backticks.
#[derive(Debug)]
pub struct Fault {
    /// Whether the input is wrong; otherwise something does not work on this machine.
    pub is_input: bool,
    /// What happened.
    pub message: String,
    /// What caused it; the message never repeats it.
    pub source: Option<Box<dyn Error + Send + Sync>>,
    /// What to do.
    pub hint: Option<String>,
    /// What was probably meant, for programs; where the message says so itself.
    pub meant: Option<String>,
    /// Where it is.
    pub places: Vec<Place>,
}

/// Where something is wrong in a file or a flag, for programs: the message has it in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file as it was named, or the flag.
    pub file: String,
    /// From 1.
    pub line: Option<u32>,
    /// In characters, from 1; none where it is the file as a whole.
    pub column: Option<u32>,
    /// What is wrong there.
    pub error: String,
    /// What was probably meant.
    pub meant: Option<String>,
}

impl Fault {
    /// Blames the user's input.
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

    /// Blames the machine: exeat could not do its part.
    pub fn could(message: impl Into<String>) -> Self {
        Self { is_input: false, ..Self::input(message) }
    }

    /// Adds what caused it.
    #[must_use]
    pub fn because(self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: Some(source.into()), ..self }
    }

    /// Adds what to do.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Adds what was probably meant.
    #[must_use]
    pub fn meant(self, meant: String) -> Self {
        Self { meant: Some(meant), ..self }
    }

    /// Adds where it is.
    #[must_use]
    pub fn at(self, places: Vec<Place>) -> Self {
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
