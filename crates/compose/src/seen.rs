//! Files as they were looked at, so that a change is noticed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file of a policy as it was looked at, by its path: whatever is there later is compared with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    path: PathBuf,
    /// `None`: nothing is there, or nothing that we may look at.
    stamp: Option<Stamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    changed: [(i64, i64); 2],
    regular: bool,
}

impl Seen {
    /// What is at this absolute path now. Look before you read: then a change between the two counts as one.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        let stamp = fs::metadata(path).ok().map(|meta| Stamp {
            file: (meta.dev(), meta.ino()),
            size: meta.size(),
            changed: [(meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())],
            regular: meta.is_file(),
        });
        Self { path: path.to_path_buf(), stamp }
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is something else than a file: a pipe gives what it holds once, and may keep its reader waiting.
    #[must_use]
    pub fn is_no_file(&self) -> bool {
        self.stamp.as_ref().is_some_and(|stamp| !stamp.regular)
    }

    /// The same path, now.
    #[must_use]
    pub fn again(&self) -> Self {
        Self::at(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_no_file() {
        let dir = std::env::temp_dir().join(format!("seen-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("file");
        fs::write(&file, "one").unwrap();
        let pipe = dir.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(Seen::at(&pipe).is_no_file());
        assert!(!Seen::at(&file).is_no_file() && !Seen::at(&dir.join("absent")).is_no_file());
        fs::remove_dir_all(&dir).unwrap();
    }
}
