//! Directories that cannot be looked into. A stage can close any directory of the caller's and open it in the next run, so what is
//! in one is not nothing: it is not known.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use exeat_sandbox::Fix;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat, geteuid};

use crate::bounds::follow;

/// Whether a name was not found because nothing has it, and not because somebody keeps it from being seen.
pub(super) fn is_absent(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ENAMETOOLONG))
}

/// What keeps a path from being looked at: the path itself, or a directory above it. `None` where no stage of the caller's could
/// look either, or open it.
pub(super) fn keeper(path: &Path) -> Option<PathBuf> {
    let place = follow(path).map_or_else(|| path.to_path_buf(), |(_, place)| place);
    let (keeper, meta) =
        place.ancestors().find_map(|above| Some((above, fs::symlink_metadata(above).ok()?)))?;
    // Another user's, that lets nobody else in: root's stage may be that user.
    let caller = geteuid();
    let is_in_reach = caller.is_root() || meta.uid() == caller.as_raw() || may_search(keeper).is_ok();
    // What cannot be looked at in a directory that can be searched is a mount that does not answer: no stage closes anything so.
    if *keeper != place && may_search(keeper).is_ok() {
        return None;
    }
    is_in_reach.then(|| keeper.to_path_buf())
}

/// Whether names in a directory can be looked up.
pub(super) fn may_search(dir: &Path) -> io::Result<()> {
    Ok(faccessat(AT_FDCWD, dir, AccessFlags::X_OK, AtFlags::AT_EACCESS)?)
}

/// The line for the caller.
pub(super) fn told(dir: &Path) -> String {
    let fix = match fs::read_dir(dir).map(drop).and_then(|()| may_search(dir)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Fix::command_on("chmod u+rwx", dir).text
        }
        _ => {
            return format!(
                "`{}` is read-only for the stage: what programs on the host obey in it cannot be seen",
                dir.display()
            );
        }
    };
    format!(
        "`{}` is read-only for the stage: it is closed, so what programs on the host obey in it is not known; `{fix}` opens it",
        dir.display()
    )
}
