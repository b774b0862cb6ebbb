//! The paths that permissions allow to a user: the caller, or the user that a stage becomes.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use crate::bounds::follow;

/// A kernel uid and gid.
pub type Ids = (u32, u32);

/// Returns whether the caller may change the mode of a path, as owner or root; `None` if it cannot be inspected.
#[must_use]
pub fn is_callers(path: &Path) -> Option<bool> {
    let caller = geteuid();
    let owner = fs::symlink_metadata(path).ok()?.uid();
    Some(caller.is_root() || owner == caller.as_raw())
}

/// Returns a symbolic link on the path that another user than root could have made or changed.
#[must_use]
pub fn doubtful_link(path: &Path) -> Option<PathBuf> {
    resolve_links(path).map_or_else(|| Some(path.to_path_buf()), |(link, _)| link)
}

/// Returns the first such link, and the target of the path; `None` if there are more links than the kernel follows.
#[must_use]
pub fn resolve_links(path: &Path) -> Option<(Option<PathBuf>, PathBuf)> {
    let (links, end) = follow(path)?;
    Some((links.into_iter().find(|link| !is_root_s_to_make(link)), end))
}

/// Returns whether only root can replace the entry at a path: in its directory, and in each one above.
#[must_use]
pub fn is_root_s_to_make(link: &Path) -> bool {
    link.ancestors().zip(link.ancestors().skip(1)).all(|(entry, dir)| {
        let about = |path: &Path| fs::symlink_metadata(path).ok().filter(|meta| meta.uid() == 0);
        about(dir).is_some_and(|dir| {
            dir.mode() & 0o022 == 0 || (dir.mode() & 0o1000 != 0 && about(entry).is_some())
        })
    })
}

/// Returns whether the permission bits let a user enter a directory and every one above it.
#[must_use]
pub fn is_open_to(who: Ids, path: &Path) -> bool {
    path.ancestors().all(|part| fs::metadata(part).is_ok_and(|meta| enters(&meta, who, None)))
}

/// Returns whether a user may enter one directory, in a tree in which an owner and this user are exchanged.
#[must_use]
pub fn enters(meta: &Metadata, who: Ids, owner: Option<Ids>) -> bool {
    let bit =
        match (is_mine(meta, who, owner), exchanged_id(meta.gid(), who.1, owner.map(|ids| ids.1)) == who.1) {
            (true, _) => 0o100,
            (false, true) => 0o010,
            (false, false) => 0o001,
        };
    !meta.is_dir() || meta.mode() & bit != 0
}

/// Returns whether a file belongs to others and is closed to everybody else.
#[must_use]
pub fn is_closed(meta: &Metadata, who: Ids) -> bool {
    const EVERYBODY: u32 = 0o007;
    !meta.is_symlink() && meta.uid() != who.0 && meta.gid() != who.1 && meta.mode() & EVERYBODY == 0
}

/// Returns whether a file belongs to this user in a tree with an exchanged owner.
#[must_use]
pub fn is_mine(meta: &Metadata, who: Ids, owner: Option<Ids>) -> bool {
    exchanged_id(meta.uid(), who.0, owner.map(|ids| ids.0)) == who.0
}

/// Maps an id in an exchange of two.
fn exchanged_id(id: u32, one: u32, other: Option<u32>) -> u32 {
    match other {
        Some(other) if id == one => other,
        Some(other) if id == other => one,
        _ => id,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// B10: the stage has the owner's permissions only in a tree where they are exchanged.
    #[test]
    fn b10_permissions_are_those_of_the_mount() {
        let dir = std::env::temp_dir().join(format!("staged-bits-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let mut seen = Vec::new();
        for mode in [0o700, 0o070, 0o007] {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            let meta = fs::metadata(&dir).unwrap();
            let owner = (meta.uid(), meta.gid());
            let who = (owner.0 + 1, owner.1 + 1);
            seen.push([None, Some(owner)].map(|owner| enters(&meta, who, owner)));
            assert!(is_mine(&meta, who, Some(owner)) && !is_mine(&meta, who, None));
            // A user who was exchanged with the owner is not the owner any more.
            assert!(!is_mine(&meta, owner, Some(who)));
        }
        assert_eq!(seen, [[false, true], [false, false], [true, false]]);
        fs::remove_dir(&dir).unwrap();
    }

    /// B10: root follows no link of another user into a place that is closed to that user.
    #[test]
    #[ignore = "needs root"]
    fn b10_a_link_that_another_user_could_have_made_is_doubtful() {
        let dir = std::env::temp_dir().join(format!("staged-links-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let dir = dir.canonicalize().unwrap();
        fs::create_dir(dir.join("tree")).unwrap();
        symlink(dir.join("tree"), dir.join("link")).unwrap();
        let doubt = |name: &str| doubtful_link(&dir.join(name));
        assert_eq!(doubt("tree"), None);
        assert_eq!(doubt("link"), None, "root's, in root's directory");
        for (mode, uid, is_doubtful) in
            [(0o777, 0, true), (0o1777, 0, false), (0o775, 0, true), (0o755, 1, true)]
        {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            std::os::unix::fs::chown(&dir, Some(uid), None).unwrap();
            assert_eq!(doubt("link"), is_doubtful.then(|| dir.join("link")), "{mode:o} of {uid}");
            assert_eq!(doubt("tree"), None, "no link");
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    /// B10: another user can make a link in root's directory if that user owns the directory above.
    #[test]
    #[ignore = "needs root"]
    fn b10_a_link_in_a_directory_that_another_user_could_have_put_there_is_doubtful() {
        let dir = std::env::temp_dir().join(format!("staged-above-{}", std::process::id()));
        fs::create_dir_all(dir.join("root-s")).unwrap();
        let dir = dir.canonicalize().unwrap();
        let link = dir.join("root-s/link");
        symlink("/", &link).unwrap();
        assert_eq!(doubtful_link(&link), None);
        std::os::unix::fs::chown(&dir, Some(1), None).unwrap();
        assert_eq!(doubtful_link(&link), Some(link));
        fs::remove_dir_all(&dir).unwrap();
    }
}
