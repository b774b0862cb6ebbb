//! The user database, and whose home is where.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::{Uid, User, geteuid};

use crate::names::true_name;

/// Returns HOME as the caller has it, or what the user database says, or `/`.
#[must_use]
pub fn home_of(variable: Option<&OsStr>) -> PathBuf {
    let given = variable.map(PathBuf::from).filter(|path| path.is_absolute());
    let home = given
        .or_else(|| user_of(geteuid()).ok().flatten().map(|user| user.dir))
        .unwrap_or_else(|| "/".into());
    true_name(&home).unwrap_or(home)
}

/// How long an answer is kept: a start asks for the same user up to four times.
const KEPT: Duration = Duration::from_secs(1);

/// Describes a user from the user database.
///
/// # Errors
/// When it does not answer.
pub fn user_of(uid: Uid) -> nix::Result<Option<User>> {
    static ANSWERS: Mutex<Vec<(Uid, Instant, Option<User>)>> = Mutex::new(Vec::new());
    let answers = || ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    let is_fresh = |at: Instant| now.saturating_duration_since(at) < KEPT;
    if let Some((.., user)) = answers().iter().find(|(of, at, _)| *of == uid && is_fresh(*at)) {
        return Ok(user.clone());
    }
    // Without the lock: the database may be far away.
    let user = entry(User::from_uid(uid))?;
    let mut answers = answers();
    answers.retain(|(of, at, _)| *of != uid && is_fresh(*at));
    answers.push((uid, now, user.clone()));
    Ok(user)
}

/// Takes it as no entry where a database calls that an error (getpwnam(3), "ERRORS").
///
/// # Errors
/// Any other error.
pub fn entry<T>(entry: nix::Result<Option<T>>) -> nix::Result<Option<T>> {
    match entry {
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => Ok(None),
        other => other,
    }
}
