//! Names the environment variables that the command line reads itself. The plan (`exeat run --dry-run`) lists those of a
//! stage.

/// Set and not empty: no color, whatever the terminal (<https://no-color.org>). `--color` wins.
pub(crate) const NO_COLOR: &str = "NO_COLOR";

/// `dumb`: no color.
pub(crate) const TERM: &str = "TERM";

/// Diagnostics on stderr, in the syntax of `tracing_subscriber::EnvFilter`: `debug`, `exeat_proxy=trace`. Not set: none.
pub(crate) const RUST_LOG: &str = "RUST_LOG";
