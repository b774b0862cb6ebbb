//! The bubblewrap back end: finding it, its arguments, what its failures mean.

pub mod argv;
pub mod probe;

pub use argv::{Argv, Word};
pub use probe::{find, trusted};
