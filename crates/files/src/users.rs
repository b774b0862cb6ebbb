//! The user database, and whose home is where.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::{Uid, User, geteuid};

use crate::walk::{LinkRule, WalkError};

/// Returns HOME as the caller has it, or what the user database says, or `/`. Only [`walk_home`] says whether a link on the way is not
/// to be followed.
#[must_use]
pub fn home_of(variable: Option<&OsStr>) -> PathBuf {
    walk_home(variable).unwrap_or_else(|(home, _)| home)
}

/// Follows the way to the home directory by the link rule, as far as something is there.
///
/// # Errors
/// Returns the home's path and a [`WalkError::Link`] for a link that a stage could have made.
pub fn walk_home(variable: Option<&OsStr>) -> Result<PathBuf, (PathBuf, WalkError)> {
    let given = variable.map(PathBuf::from).filter(|path| path.is_absolute());
    let home = given
        .or_else(|| user_of(geteuid()).ok().flatten().map(|user| user.dir))
        .unwrap_or_else(|| "/".into());
    let links = LinkRule::without_home();
    let end = links.walk(&home).map(|end| end.real);
    // A missing path leads nowhere, but the part that exists may.
    match end.or_else(|_| links.walk_existing(&home).map(|_| home.clone())) {
        Err(link @ WalkError::Link { .. }) => Err((home, link)),
        end => Ok(end.unwrap_or(home)),
    }
}

/// The time that an answer is kept, because a start asks for the same user up to four times.
const KEPT: Duration = Duration::from_secs(1);

/// Describes a user from the user database.
///
/// # Errors
/// Returns an error if the database does not answer.
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

/// Returns `None` for a missing entry, also if a database reports it as an error (getpwnam(3), "ERRORS").
///
/// # Errors
/// Returns every other error.
pub fn entry<T>(entry: nix::Result<Option<T>>) -> nix::Result<Option<T>> {
    match entry {
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => Ok(None),
        other => other,
    }
}
