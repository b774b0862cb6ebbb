//! Finds bubblewrap, builds its arguments and explains its failures.

pub mod argv;
pub mod probe;

pub use argv::{Argv, Word};
pub use probe::{find, trusted, version};
