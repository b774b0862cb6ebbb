//! Records the state of files, so that a later change is noticed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The state of one policy file or its absence, to compare with a later state of the same path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileState {
    path: PathBuf,
    /// `None` where nothing exists or the caller may not inspect it.
    stamp: Option<Stamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    changed: [(i64, i64); 2],
    regular: bool,
}

impl FileState {
    /// Records the current state of this absolute path. Call it before reading, so that a change in between is noticed.
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

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the entry exists and is not a regular file. A pipe gives its content once and may block its reader.
    #[must_use]
    pub fn is_special(&self) -> bool {
        self.stamp.as_ref().is_some_and(|stamp| !stamp.regular)
    }

    /// Records the current state of the same path.
    #[must_use]
    pub fn current(&self) -> Self {
        Self::at(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_a_special_file() {
        let dir = std::env::temp_dir().join(format!("seen-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("file");
        fs::write(&file, "one").unwrap();
        let pipe = dir.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(FileState::at(&pipe).is_special());
        assert!(!FileState::at(&file).is_special() && !FileState::at(&dir.join("absent")).is_special());
        fs::remove_dir_all(&dir).unwrap();
    }
}
