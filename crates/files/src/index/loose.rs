//! Reads an index as git does whose repository has object names of another length. Which length git takes is for a configuration to say, and
//! a stage or a later run can change that. git then finds other entries in the same bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::{EXTENDED, IndexRoom, LENGTH, LONGEST_PATH, STAGE, STAT, is_marked};

/// Bytes before the first entry.
const HEAD: u64 = 12;
/// The further flags of an entry that git knows (`CE_EXTENDED_FLAGS`). It refuses an index with others.
const KNOWN: u16 = 0x6000;
/// Bytes that are read for one entry: more than the longest has.
const WINDOW: usize = 8192;

/// Returns whether every entry is harmless that git would read with object names of this length, or git gives up. git checks neither that a
/// path ends where its length says, nor that an entry lies in the file (`create_from_disk` of read-cache.c). `None`: it cannot be read
/// within `room`.
pub(super) fn check_loosely(
    file: &File,
    room: &mut IndexRoom,
    hash: usize,
    is_harmless: impl Fn(&[u8], bool) -> bool,
) -> Option<bool> {
    let size = file.metadata().ok()?.len();
    // git would read blocks of entries at the places that a table names.
    if is_marked(file, usize::try_from(size).ok()?, hash) {
        return None;
    }
    let head = window_at(file, 0)?;
    let number = |at: usize| Some(u32::from_be_bytes(*head.get(at..)?.first_chunk()?));
    let (version, entries) = (number(4)?, number(8)?);
    let (mut at, mut are_right) = (HEAD, true);
    // The path before, with the byte after it.
    let mut path = vec![0];
    for entry in 0..entries {
        if at >= size {
            break;
        }
        room.bytes = room.bytes.checked_sub(WINDOW as u64)?;
        let window = window_at(file, at)?;
        let mut rest = window.get(STAT + hash..)?;
        let flags = short(&mut rest)?;
        let more = if flags & EXTENDED == 0 { 0 } else { short(&mut rest)? };
        if more & !KNOWN != 0 {
            return Some(true);
        }
        let dropped = if version == 4 { offset(&mut rest)? } else { 0 };
        let kept = match u64::try_from(path.len() - 1).ok()?.checked_sub(dropped) {
            _ if version != 4 || entry == 0 => 0,
            Some(kept) => usize::try_from(kept).ok()?,
            None => return Some(true),
        };
        let before = WINDOW - rest.len();
        path.truncate(kept);
        let told = usize::from(flags & LENGTH);
        let length = if told < usize::from(LENGTH) {
            told
        } else {
            kept + rest.iter().take(LONGEST_PATH).position(|byte| *byte == 0)?
        };
        // With less than that git copies as many bytes as a number can count, and crashes.
        let Some(new) = (length + 1).checked_sub(kept) else { return Some(true) };
        path.extend(rest.get(..new)?);
        room.paths = room.paths.checked_sub(path.len())?;
        // For calls of the kernel a path ends at the first zero.
        let end = path.iter().position(|byte| *byte == 0);
        let is_unmerged = flags & STAGE != 0;
        let fits = |path: &[u8]| is_harmless(path, is_unmerged);
        are_right &= fits(path.get(..end.unwrap_or(length))?) && (end.is_some() || fits(&path));
        at += u64::try_from(if version == 4 { before + new } else { (before + length + 8) & !7 }).ok()?;
    }
    Some(are_right)
}

/// Reads what is at a place. After the end of a file its memory has zeros.
fn window_at(file: &File, at: u64) -> Option<[u8; WINDOW]> {
    let (mut window, mut have) = ([0; WINDOW], 0);
    while let Some(left) = window.get_mut(have..).filter(|left| !left.is_empty()) {
        match file.read_at(left, at + have as u64) {
            Ok(0) => break,
            Ok(read) => have += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    Some(window)
}

fn short(rest: &mut &[u8]) -> Option<u16> {
    let (number, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u16::from_be_bytes(*number))
}

/// Reads a number as git does, which takes one that is too long for zero, and stays before it (`decode_varint`).
fn offset(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for (at, byte) in rest.iter().enumerate() {
        value |= u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            *rest = rest.get(at + 1..)?;
            return Some(value);
        }
        value = value.wrapping_add(1);
        // Its seven highest bits have to be free.
        if value == 0 || value >> 57 != 0 {
            return Some(0);
        }
        value <<= 7;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::super::check_entries;
    use super::*;

    fn is_right(path: &std::path::Path) -> bool {
        let fits = |path: &[u8]| !path.starts_with(b"/") && !path.starts_with(b".git/");
        check_entries(&File::open(path).unwrap(), &mut { IndexRoom::FULL }, fits, is_harmless)
    }

    fn is_harmless(path: &[u8], _: bool) -> bool {
        !path.starts_with(b"/home/") && !path.starts_with(b".git/")
    }

    /// git writes the index, with each of its extensions.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "git writes the index")]
    fn b14_an_index_of_git_s_is_right_in_either_length() {
        let root = std::env::temp_dir().join(format!("loose-{}", std::process::id()));
        for format in ["sha1", "sha256"] {
            for (name, settings, script) in [
                ("DIRC", "", "git rm -q --cached -r ."),
                ("TREE", "", "git commit -qm 1"),
                ("DIRC", "index.version=3", "echo > new; git add -N new; git update-index --skip-worktree d/12"),
                ("DIRC", "index.version=4", "git add ."),
                ("UNTR", "core.untrackedCache=true", "git status"),
                ("FSMN", "core.fsmonitor=.git/monitor", "git update-index --fsmonitor"),
                ("link", "", "git commit -qm 1; git update-index --split-index; echo > later; git add later"),
                ("sdir", "", "git commit -qm 1; git sparse-checkout set --cone --sparse-index d"),
                ("EOIE", "index.recordEndOfIndexEntries=true", "git commit -qm 1"),
                ("IEOT", "index.recordOffsetTable=true", "git commit -qm 1"),
                (
                    "REUC",
                    "",
                    "git commit -qm 1; git checkout -qb b; echo b > a; git commit -qam b; git checkout -q -; echo c > a
                     git commit -qam c; git merge -q b || git add a",
                ),
                ("DIRC", "", "git commit -qm 1; git checkout -qb b; echo b > a; git commit -qam b; git checkout -q -; echo c > a
                     git commit -qam c; git merge -q b || true"),
            ] {
                let _ = fs::remove_dir_all(&root);
                fs::create_dir_all(&root).unwrap();
                let config = settings.replace('=', " ");
                let make = format!(
                    "git init -q --object-format={format}; printf '#!/bin/sh\nprintf 1' > .git/monitor; chmod +x .git/monitor
                     git config user.name a; git config user.email a@example.test; git config index.threads 4; {}
                     mkdir -p d e/f; for n in a ab 'a name of thirty bytes, or more' d/12 e/f/1 \u{43f}\u{443}\u{442}\u{44c}; do echo $n > \"$n\"; done
                     git add .; {script}; ls .git/sharedindex.* 2>&- || true",
                    if config.is_empty() { String::new() } else { format!("git config {config};") },
                );
                let done = Command::new("bash").arg("-ec").arg(&make).current_dir(&root).output().unwrap();
                assert!(done.status.success(), "{make}: {done:?}");
                let shared = String::from_utf8(done.stdout).unwrap();
                let shared = shared.lines().filter(|line| line.starts_with(".git/shared"));
                for index in shared.chain([".git/index"]) {
                    assert!(is_right(&root.join(index)), "{format}, {name}, {index}: {script}");
                }
                let index = fs::read(root.join(".git/index")).unwrap();
                assert!(index.windows(4).any(|it| it == name.as_bytes()), "{format}, {name}: {script}");
            }
        }
        fs::remove_dir_all(root).unwrap();
    }
}
