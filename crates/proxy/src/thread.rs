//! Work that blocks, on a thread of its own.

use std::io;
use std::thread::Builder;

use tokio::sync::oneshot;

/// Starts it. What is returned ends with its answer, or with an error where it panicked. It cannot be stopped.
///
/// Not on a thread of the runtime's: that panics where the system has no thread to give, and a stage can see to it that there is
/// none. Its processes count against the same limit as the caller's (RLIMIT_NPROC, getrlimit(2)).
///
/// # Errors
/// What clone(2) says; `work` is dropped then.
pub(crate) fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<oneshot::Receiver<T>> {
    let (tell, told) = oneshot::channel();
    // A receiver that is gone has lost interest.
    Builder::new().name(name.into()).spawn(move || drop(tell.send(work())))?;
    Ok(told)
}
