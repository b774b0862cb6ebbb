//! Reads the index of a repository, which a stage can write: the paths that git tracks decide what is told, and whether an index is moved aside.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::names::open_regular;
use crate::protected::GIT_LINK;

/// Bytes of an index that are read. One of 100000 files has some 12 MiB.
const LONGEST: u64 = 256 << 20;
/// The longest path of an index that is read, in bytes.
const LONGEST_PATH: usize = 4096;
/// Bytes of all paths that are read. In an index of version 4 an entry may repeat the one before it with three bytes.
const LONGEST_PATHS: usize = 512 << 20;
/// Names in a path that is looked for.
const DEEPEST: usize = 32;
/// Bytes of an object's name: of SHA-1, and of SHA-256.
pub(crate) const HASHES: [usize; 2] = [20, 32];
/// Bytes of an entry before the object's name.
const STAT: usize = 40;

/// Finds those of these paths that git tracks, or tracks something in. Each belongs to the nearest working tree above it. Paths of more
/// than 32 names are not looked for.
pub fn tracked<'a>(paths: impl IntoIterator<Item = &'a Path>) -> BTreeSet<&'a Path> {
    let mut trees: BTreeMap<PathBuf, HashMap<&[u8], &Path>> = BTreeMap::new();
    for path in paths {
        let above = path.ancestors().skip(1);
        let mut roots = above.filter(|dir| fs::symlink_metadata(dir.join(GIT_LINK)).is_ok());
        if let Some((root, below)) = roots.next().and_then(|root| Some((root, path.strip_prefix(root).ok()?)))
        {
            trees.entry(root.to_path_buf()).or_default().insert(below.as_os_str().as_bytes(), path);
        }
    }
    trees.iter().filter_map(|(root, paths)| tracked_in(root, paths).ok()).flatten().collect()
}

/// Finds those of these paths, by their places in a working tree, that its index has.
fn tracked_in<'a>(root: &Path, paths: &HashMap<&[u8], &'a Path>) -> io::Result<BTreeSet<&'a Path>> {
    for hash in HASHES {
        let mut found = BTreeSet::new();
        let read = each_path(open_index(root)?, hash, |path, is_skipped| {
            let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
            let ends = slashes.chain([path.len()]).take(DEEPEST).filter(|_| !is_skipped);
            found.extend(ends.filter_map(|end| paths.get(path.get(..end)?)));
        });
        if read.is_some() {
            return Ok(found);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// Opens the index of a working tree.
fn open_index(root: &Path) -> io::Result<impl BufRead + use<>> {
    let git = root.join(GIT_LINK);
    let git = if fs::symlink_metadata(&git)?.is_file() {
        let mut text = String::new();
        open_regular(&git)?.take(1 << 16).read_to_string(&mut text)?;
        let to = text.strip_prefix("gitdir:").map(str::trim).unwrap_or_default();
        // The kernel follows each `..` of it.
        fs::canonicalize(root.join(to))?
    } else {
        git
    };
    Ok(BufReader::new(open_regular(&git.join("index"))?.take(LONGEST)))
}

/// Visits the paths of an index (gitformat-index(5)), each with whether it is not to be in the working tree. `hash` is the length of an
/// object's name in bytes. `None`: it is none, its objects have names of another length, a path has more than 4096 bytes (`PATH_MAX` of
/// linux/limits.h), or all have more than 512 MiB.
pub(crate) fn each_path(index: impl BufRead, hash: usize, mut visit: impl FnMut(&[u8], bool)) -> Option<()> {
    const EXTENDED: u16 = 0x4000;
    const SKIPPED: u16 = 0x4000;
    const LENGTH: u16 = 0x0fff;
    let mut index = Bytes { index, at: 0 };
    let [signature, version, entries] = [index.number()?, index.number()?, index.number()?];
    if signature.to_be_bytes() != *b"DIRC" || !(2..=4).contains(&version) {
        return None;
    }
    let (mut path, mut paths) = (Vec::new(), 0);
    for _ in 0..entries {
        let start = index.at;
        index.skip(STAT + hash)?;
        let flags = index.short()?;
        let is_extended = version > 2 && flags & EXTENDED != 0;
        let more = if is_extended { index.short()? } else { 0 };
        if version == 4 {
            let dropped = index.offset()?;
            path.truncate(path.len().checked_sub(dropped)?);
        } else {
            path.clear();
        }
        index.read_name(&mut path)?;
        paths += path.len();
        let told = usize::from(flags & LENGTH);
        if paths > LONGEST_PATHS || told != path.len().min(usize::from(LENGTH)) {
            return None;
        }
        visit(&path, more & SKIPPED != 0);
        // After the zero that ends a path, zeros fill eight bytes; in the last version there are none.
        let length = index.at - start;
        index.skip(if version == 4 { 0 } else { length.next_multiple_of(8) - length })?;
    }
    Some(())
}

/// An index that is read, with the number of bytes that were read.
struct Bytes<R> {
    index: R,
    at: usize,
}

impl<R: BufRead> Bytes<R> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.index.read_exact(&mut bytes).ok()?;
        self.at += N;
        Some(bytes)
    }

    fn number(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn short(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn skip(&mut self, mut count: usize) -> Option<()> {
        self.at += count;
        while count > 0 {
            let there = self.index.fill_buf().ok()?.len().min(count);
            if there == 0 {
                return None;
            }
            self.index.consume(there);
            count -= there;
        }
        Some(())
    }

    /// Reads the rest of a path, and the zero that ends it.
    fn read_name(&mut self, path: &mut Vec<u8>) -> Option<()> {
        let before = path.len();
        (&mut self.index).take(LONGEST_PATH as u64 + 1).read_until(0, path).ok()?;
        self.at += path.len() - before;
        (path.len() > before && path.pop() == Some(0) && path.len() <= LONGEST_PATH).then_some(())
    }

    /// Reads a number as git writes it in packs ("offset encoding").
    fn offset(&mut self) -> Option<usize> {
        let mut value = 0_usize;
        for _ in 0..5 {
            let [byte] = self.take()?;
            value = (value << 7) | usize::from(byte & 0x7f);
            if byte & 0x80 == 0 {
                return Some(value);
            }
            value += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Git itself writes the index, in each of its versions and with both kinds of names.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "git says what an index is")]
    fn finds_the_tracked_paths_in_every_version_of_the_index() {
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
                let _ = HASHES.map(|hash| each_path(&index[..end], hash, |_, _| ()));
            }
            fs::remove_dir_all(&root).unwrap();
        }
    }

    /// In version 4 each entry can be as long as the one before it, and take a byte more.
    #[test]
    fn l08_a_small_index_with_long_paths_is_not_read_to_its_end() {
        let head = |entries: u32| [&b"DIRC"[..], &4_u32.to_be_bytes(), &entries.to_be_bytes()].concat();
        let entry = |flags: u16, rest: &[u8]| [&[0; 60][..], &flags.to_be_bytes(), rest].concat();
        let name = [&[0][..], &[b'a'; 4096], &[0]].concat();
        let first = [head(2), entry(0xfff, &name)].concat();
        assert_eq!(each_path(&[first.clone(), entry(0xfff, b"\0\0")].concat()[..], 20, |_, _| ()), Some(()));
        assert_eq!(
            each_path(&[first, entry(0xfff, b"\0b\0")].concat()[..], 20, |_, _| ()),
            None,
            "4097 bytes"
        );
        let count = LONGEST_PATHS / 4096 + 1;
        let mut all = [head(u32::try_from(count).unwrap()), entry(0xfff, &name)].concat();
        all.extend(entry(0xfff, b"\0\0").repeat(count - 1));
        let mut visited = 0;
        assert_eq!(each_path(&all[..], 20, |_, _| visited += 1), None);
        assert_eq!(visited, count - 1);
    }
}
