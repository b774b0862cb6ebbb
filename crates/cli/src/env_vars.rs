//! The environment variables that the command line reads itself. What a stage gets in its environment is not
//! here: the plan says it (`exeat run --dry-run`).

/// Set and not empty: no color, whatever the terminal (<https://no-color.org>). `--color` wins.
pub(crate) const NO_COLOR: &str = "NO_COLOR";

/// `dumb`: no color.
pub(crate) const TERM: &str = "TERM";

/// Diagnostics on stderr, in the syntax of `tracing_subscriber::EnvFilter`: `debug`, `exeat_proxy=trace`. Not set: none.
pub(crate) const RUST_LOG: &str = "RUST_LOG";
