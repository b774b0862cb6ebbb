//! Runs blocking work on a separate thread.

use std::io;
use std::thread::Builder;

use tokio::sync::oneshot;

/// Starts `work`. The receiver gets its result, or an error if it panicked. It cannot be stopped.
///
/// The threads of the runtime are not used, because the runtime panics when the system has no thread left. A stage
/// can cause that: its processes count against the same limit as the caller's (RLIMIT_NPROC, getrlimit(2)).
///
/// # Errors
/// Returns the error of clone(2), and drops `work`.
pub(crate) fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<oneshot::Receiver<T>> {
    let (tell, told) = oneshot::channel();
    // A dropped receiver means that the result is not needed any more.
    Builder::new().name(name.into()).spawn(move || drop(tell.send(work())))?;
    Ok(told)
}
