//! Modes of protected files. They are read-only for the stage, but not for one that has a descriptor from a run before, whose mounts are gone.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat};

use super::descriptors::{id_of, kind, open_beneath, retry_opened, stat_in};
use super::modes::set_mode;
use super::{Leftover, Watch};

/// The bits that let others read or write a file, let it run, or have it run as another user.
const MORE: u32 = 0o6177;

impl Watch {
    /// Notes the modes of protected files.
    pub(super) fn note_file_modes(&self) {
        let mut found = Vec::new();
        for name in &self.list.read_only {
            let _ = self.visit_all(Path::new(name), |below, _, _, stat| {
                if kind(stat) == SFlag::S_IFREG {
                    let path = Path::new(name);
                    let path = if below == Path::new("") { path.to_path_buf() } else { path.join(below) };
                    found.push((path, id_of(stat), stat.st_mode));
                }
                Ok(())
            });
        }
        // In this order: what was read before the stage runs is the caller's.
        if !self.noted.has_stage.load(Ordering::SeqCst) {
            *self.noted.modes.lock().unwrap_or_else(PoisonError::into_inner) = found;
        }
    }

    /// Takes from protected files what their modes allow in addition to those at the start.
    pub(super) fn settle_file_modes(&self) -> Vec<Leftover> {
        let noted = self.noted.modes.lock().unwrap_or_else(PoisonError::into_inner);
        // Files of one directory follow each other. The numbers tell whether they are those that were noted.
        let mut opened: Option<(&Path, OwnedFd)> = None;
        let restored = noted.iter().filter_map(|(path, id, mode)| {
            let (dir, name) = (path.parent()?, path.file_name()?);
            if opened.as_ref().is_none_or(|(known, _)| *known != dir) {
                opened = Some((dir, open_beneath(&self.tree, dir).ok()?));
            }
            let (_, above) = opened.as_ref()?;
            let now = stat_in(above.as_fd(), name).ok().filter(|stat| id_of(stat) == *id)?;
            if now.st_mode & !mode & MORE == 0 {
                return None;
            }
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let file = retry_opened(above.as_fd(), || openat(above, name, flags, Mode::empty())).ok()?;
            let now = fstat(&file).ok().filter(|stat| id_of(stat) == *id)?.st_mode;
            let more = now & !mode & MORE;
            let set = (more != 0).then(|| set_mode(file.as_fd(), Mode::from_bits_truncate(now & !more)))?;
            let why = match set {
                Ok(()) => "somebody let more users write to it or run it, and that is undone".into(),
                Err(errno) => {
                    format!("somebody let more users write to it or run it, and it stays so ({errno})")
                }
            };
            Some(Leftover { path: self.list.tree.join(path), moved: Err(io::Error::other(why)) })
        });
        restored.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::super::{StateOfRun, WatchList, finish};
    use super::*;

    #[test]
    fn l10_the_modes_of_protected_files_are_restored() {
        let tree = std::env::temp_dir().join(format!("file-modes-{}", std::process::id()));
        fs::create_dir_all(tree.join(".git/hooks")).unwrap();
        // Before the run, what a stage sets, and afterwards.
        let files = [
            (".git/config", 0o640, 0o666, 0o640),
            (".git/hooks/pre-commit", 0o644, 0o755, 0o644),
            (".git/hooks/post-commit", 0o755, 0o400, 0o400),
        ];
        let set =
            |name: &str, mode| fs::set_permissions(tree.join(name), Permissions::from_mode(mode)).unwrap();
        for (name, before, ..) in files {
            fs::write(tree.join(name), "").unwrap();
            set(name, before);
        }
        let read_only = [".git/config", ".git/hooks", ".git/missing"].map(str::to_owned).into();
        let repositories = vec![".git".into()];
        let list = WatchList { tree: tree.clone(), repositories, read_only, ..WatchList::default() };
        let watch = Watch::start(list, StateOfRun { run: "RUN".into(), dir: None }).unwrap();
        watch.note_nested(&|| false);
        watch.stage_starts();
        files.iter().for_each(|(name, _, during, _)| set(name, *during));
        let told = finish([&watch]).named;
        for (name, .., after) in files {
            assert_eq!(fs::metadata(tree.join(name)).unwrap().mode() & 0o7777, after, "{name}");
        }
        assert_eq!(told.len(), 2, "{told:?}");
        fs::remove_dir_all(tree).unwrap();
    }
}
