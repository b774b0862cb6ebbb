//! Finds the paths that git tracks, from the index of their repository. A stage can write that file: it decides what is told, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::names::open_regular;
use crate::protected::GIT_LINK;

/// Bytes of an index that are read. One of 100000 files has some 12 MiB.
const LONGEST: u64 = 64 << 20;
/// Bytes of an object's name: of SHA-1, and of SHA-256.
const HASHES: [usize; 2] = [20, 32];
/// Bytes of an entry before the object's name.
const STAT: usize = 40;

/// Finds those of these paths that git tracks, or tracks something in. Each belongs to the nearest working tree above it.
pub fn tracked<'a>(paths: impl IntoIterator<Item = &'a Path>) -> BTreeSet<&'a Path> {
    let mut trees: BTreeMap<PathBuf, Vec<(&Path, &Path)>> = BTreeMap::new();
    for path in paths {
        let above = path.ancestors().skip(1);
        let mut roots = above.filter(|dir| fs::symlink_metadata(dir.join(GIT_LINK)).is_ok());
        if let Some((root, below)) = roots.next().and_then(|root| Some((root, path.strip_prefix(root).ok()?)))
        {
            trees.entry(root.to_path_buf()).or_default().push((path, below));
        }
    }
    let mut found = BTreeSet::new();
    for (root, paths) in trees {
        let Ok(index) = index_of(&root) else { continue };
        let names = HASHES.iter().find_map(|hash| names(&index, *hash)).unwrap_or_default();
        let is_tracked = |below: &Path| {
            let below = below.as_os_str().as_bytes();
            // In order, so that what lies in a directory comes soon after the directory's own place.
            let inside = [below, b"/"].concat();
            names.contains(below)
                || names.range(inside.clone()..).next().is_some_and(|name| name.starts_with(&inside))
        };
        found.extend(paths.into_iter().filter(|(_, below)| is_tracked(below)).map(|(path, _)| path));
    }
    found
}

/// Reads the index of a working tree.
fn index_of(root: &Path) -> io::Result<Vec<u8>> {
    let git = root.join(GIT_LINK);
    let git = if fs::symlink_metadata(&git)?.is_file() {
        let text = String::from_utf8(read(&git, 1 << 16)?).map_err(io::Error::other)?;
        let to = text.strip_prefix("gitdir:").map(str::trim).unwrap_or_default();
        // The kernel follows each `..` of it.
        fs::canonicalize(root.join(to))?
    } else {
        git
    };
    read(&git.join("index"), LONGEST)
}

/// Reads a regular file through no link.
fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    if file.metadata()?.len() > most {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Lists the paths of an index (gitformat-index(5)), but for those that are not to be in the working tree. `None`: it is none, or its
/// objects have longer names.
fn names(index: &[u8], hash: usize) -> Option<BTreeSet<Vec<u8>>> {
    const EXTENDED: u16 = 0x4000;
    const SKIPPED: u16 = 0x4000;
    const LENGTH: u16 = 0x0fff;
    let number = |at: usize| Some(u32::from_be_bytes(index.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let short = |at: usize| Some(u16::from_be_bytes(index.get(at..at.checked_add(2)?)?.try_into().ok()?));
    let version = number(4).filter(|version| index.starts_with(b"DIRC") && (2..=4).contains(version))?;
    let (mut at, mut names, mut last) = (12, BTreeSet::new(), Vec::new());
    for _ in 0..number(8)? {
        let flags = short(at + STAT + hash)?;
        let mut name_at = at + STAT + hash + 2;
        let is_extended = version > 2 && flags & EXTENDED != 0;
        let more = if is_extended { short(name_at)? } else { 0 };
        name_at += if is_extended { 2 } else { 0 };
        if version == 4 {
            let (dropped, read) = offset(index.get(name_at..)?)?;
            name_at += read;
            last.truncate(last.len().checked_sub(dropped)?);
        } else {
            last.clear();
        }
        let rest = index.get(name_at..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        last.extend_from_slice(rest.get(..end)?);
        let told = usize::from(flags & LENGTH);
        if last.is_empty() || told != last.len().min(usize::from(LENGTH)) {
            return None;
        }
        if more & SKIPPED == 0 {
            names.insert(last.clone());
        }
        let length = name_at + end - at;
        // One zero at least, and as many as fill eight bytes; the last version has one.
        at += if version == 4 { length + 1 } else { (length / 8 + 1) * 8 };
    }
    Some(names)
}

/// Reads a number as git writes it in packs ("offset encoding"): the number, and its length in bytes.
fn offset(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut value = 0_usize;
    for (number, byte) in bytes.iter().take(5).enumerate() {
        value = (value << 7) | usize::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((value, number + 1));
        }
        value += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Git itself writes the index, in each of its versions and with both kinds of names.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "git says what an index is")]
    fn the_index_tells_what_git_tracks() {
        let root = std::env::temp_dir().join(format!("index-{}", std::process::id()));
        for (version, format) in
            [("2", "sha1"), ("3", "sha1"), ("4", "sha1"), ("2", "sha256"), ("4", "sha256")]
        {
            fs::create_dir_all(root.join(".vscode")).unwrap();
            for name in [
                ".npmrc",
                ".vscode/settings.json",
                "a",
                "a-long-name-of-a-file",
                ".vscode-other",
                "later",
                "x",
            ] {
                fs::write(root.join(name), name).unwrap();
            }
            let git = |words: &str| {
                let done = Command::new("git").arg("-C").arg(&root).args(words.split(' ')).output().unwrap();
                assert!(done.status.success(), "{words}: {done:?}");
            };
            git(&format!("init -q --object-format={format}"));
            git(&format!(
                "-c index.version={version} add .npmrc .vscode a a-long-name-of-a-file .vscode-other x"
            ));
            git(&format!("update-index --index-version {version}"));
            if version != "2" {
                git("add -N later");
                git("update-index --skip-worktree x");
            }
            let all = [".npmrc", ".vscode", ".vscode/settings.json", ".vscod", "a", "b", "x", ".git/config"];
            let all = all.map(|name| root.join(name));
            let found: Vec<_> = tracked(all.iter().map(PathBuf::as_path)).into_iter().collect();
            let mut expected = vec![
                root.join(".npmrc"),
                root.join(".vscode"),
                root.join(".vscode/settings.json"),
                root.join("a"),
            ];
            expected.extend((version == "2").then(|| root.join("x")));
            assert_eq!(found, expected, "{version}, {format}");
            // A cut or foreign index says nothing, and breaks nothing.
            let index = fs::read(root.join(".git/index")).unwrap();
            for end in 0..index.len() {
                let _ = HASHES.map(|hash| names(&index[..end], hash));
            }
            fs::remove_dir_all(&root).unwrap();
        }
    }
}
