//! Reads the index of a repository, which a stage can write: the paths that git tracks decide what is told, and whether an index is moved aside.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read as _, Seek as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::git_path::git_file_path;
use crate::names::open_regular;
use crate::protected::GIT_LINK;

mod loose;

/// Bytes of an index that are read. One of 100000 files has some 12 MiB.
const LONGEST: u64 = 256 << 20;
/// The longest path of an index that is read, in bytes.
const LONGEST_PATH: usize = 4096;
/// Bytes of all paths that are read. In an index of version 4 an entry may repeat the one before it with three bytes.
const LONGEST_PATHS: usize = 512 << 20;
/// Names in a path that is looked for.
const DEEPEST: usize = 32;
/// Bytes of an object's name: of SHA-1, and of SHA-256.
const HASHES: [usize; 2] = [20, 32];
/// Bytes of an entry before the object's name.
const STAT: usize = 40;
/// The flags of an entry: two bytes more follow; the versions of a conflict; the length of the path.
const EXTENDED: u16 = 0x4000;
const STAGE: u16 = 0x3000;
const LENGTH: u16 = 0x0fff;
/// The extension at the end of an index: where the extensions begin, and a hash of 20 bytes.
const LAST_NAME: &[u8; 4] = b"EOIE";
/// Bytes of that extension.
const LAST_EXTENSION: usize = 32;

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
        let read = each_entry(
            open_index(root)?,
            hash,
            &mut { LONGEST_PATHS },
            |IndexEntry { path, is_skipped, .. }| {
                let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
                let ends = slashes.chain([path.len()]).take(DEEPEST).filter(|_| !is_skipped);
                found.extend(ends.filter_map(|end| paths.get(path.get(..end)?)));
            },
        );
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
        let mut text = Vec::new();
        open_regular(&git)?.take(1 << 16).read_to_end(&mut text)?;
        let to = git_file_path(&text).ok_or(io::ErrorKind::InvalidData)?;
        // The kernel follows each `..` of it.
        fs::canonicalize(root.join(to))?
    } else {
        git
    };
    Ok(BufReader::new(open_regular(&git.join("index"))?.take(LONGEST)))
}

/// An entry of an index (gitformat-index(5)).
struct IndexEntry<'a> {
    /// Its path in the working tree.
    path: &'a [u8],
    /// Whether it is not to be in the working tree.
    is_skipped: bool,
    /// Its place in the file, in bytes.
    start: usize,
    /// Whether its path takes no part from the entry before it.
    is_whole: bool,
}

/// Visits the entries of an index, and returns the rest of it. `hash` is the length of an object's name in bytes. `None`: it is not an
/// index, its objects have names of another length, a path has more than 4096 bytes (`PATH_MAX` of linux/limits.h), or all have more
/// than `room`, from which they are taken.
fn each_entry<R: BufRead>(
    index: R,
    hash: usize,
    room: &mut usize,
    mut visit: impl FnMut(IndexEntry<'_>),
) -> Option<Bytes<R>> {
    const SKIPPED: u16 = 0x4000;
    let mut index = Bytes { index, at: 0 };
    let [signature, version, entries] = [index.number()?, index.number()?, index.number()?];
    if signature.to_be_bytes() != *b"DIRC" || !(2..=4).contains(&version) {
        return None;
    }
    let mut path = Vec::new();
    for _ in 0..entries {
        let start = index.at;
        index.skip(STAT + hash)?;
        let flags = index.short()?;
        // git looks at the flag alone, not at the version.
        let is_extended = flags & EXTENDED != 0;
        let more = if is_extended { index.short()? } else { 0 };
        if version == 4 {
            let dropped = index.offset()?;
            path.truncate(path.len().checked_sub(dropped)?);
        } else {
            path.clear();
        }
        let is_whole = path.is_empty();
        index.read_name(&mut path)?;
        *room = room.checked_sub(path.len())?;
        let told = usize::from(flags & LENGTH);
        if told != path.len().min(usize::from(LENGTH)) {
            return None;
        }
        visit(IndexEntry { path: &path, is_skipped: more & SKIPPED != 0, start, is_whole });
        // After the zero that ends a path, zeros fill eight bytes; in the last version there are none.
        let length = index.at - start;
        index.skip(if version == 4 { 0 } else { length.next_multiple_of(8) - length })?;
    }
    Some(index)
}

/// The rest of what one run reads of indexes.
#[derive(Debug)]
pub(crate) struct IndexRoom {
    /// Bytes of the files.
    bytes: u64,
    /// Bytes of the paths. In an index of version 4 an entry may repeat the one before it with three bytes.
    paths: usize,
}

impl IndexRoom {
    /// For one run. The index of 100000 files has some 12 MiB.
    pub(crate) const FULL: Self = Self { bytes: 1 << 30, paths: LONGEST_PATHS };
}

/// Returns whether every path of an index fits, and whether the paths are harmless that git would find with object names of the other
/// length. `is_harmless` gets a path, and whether it has a conflict. A file that is not an index is wrong, and so is one that needs more
/// than `room`, from which everything that is read is taken.
pub(crate) fn check_entries(
    file: &File,
    room: &mut IndexRoom,
    fits: impl Fn(&[u8]) -> bool,
    is_harmless: impl Fn(&[u8], bool) -> bool,
) -> bool {
    let [sha1, sha256] = HASHES;
    let mut is_right = |hash| check_strictly(file, room, hash, &fits) == Some(true);
    let other = if is_right(sha1) {
        sha256
    } else if is_right(sha256) {
        sha1
    } else {
        return false;
    };
    loose::check_loosely(file, room, other, is_harmless) == Some(true)
}

/// Returns whether git has written an index with object names of this length, every path of it fits, and git reads the same entries when it
/// reads several blocks of them at once. Then it goes by a table in the index, "IEOT", which it finds by "EOIE" at the end
/// (gitformat-index(5), read-cache.c). Returns `None` for any other file, and if `room` does not suffice.
fn check_strictly(
    mut file: &File,
    room: &mut IndexRoom,
    hash: usize,
    fits: impl Fn(&[u8]) -> bool,
) -> Option<bool> {
    let size = usize::try_from(file.metadata().ok()?.len()).ok()?;
    let is_marked = is_marked(file, size, hash);
    let mut are_right = true;
    file.rewind().ok()?;
    let mut index = BufReader::new(file.take(room.bytes));
    let end = size.checked_sub(hash)?;
    let checked = check_all(&mut index, end, hash, is_marked, &mut room.paths, |entry| {
        are_right &= fits(entry.path);
    });
    room.bytes = index.into_inner().limit();
    Some(checked? && are_right)
}

/// Returns whether git finds a table of blocks in an index of this size.
fn is_marked(file: &File, size: usize, hash: usize) -> bool {
    let at = size.checked_sub(hash + LAST_EXTENSION).and_then(|at| u64::try_from(at).ok());
    let mut mark = [0; 4];
    at.is_some_and(|at| file.read_exact_at(&mut mark, at).is_ok()) && mark == *LAST_NAME
}

/// Returns whether the extensions of an index are as git writes them. The last one ends at `end`.
fn check_all(
    index: impl BufRead,
    end: usize,
    hash: usize,
    is_marked: bool,
    room: &mut usize,
    mut visit: impl FnMut(&IndexEntry<'_>),
) -> Option<bool> {
    let (mut is_right, mut has_last) = (true, false);
    // Where blocks may begin.
    let mut starts = Vec::new();
    let mut rest = each_entry(index, hash, room, |entry| {
        visit(&entry);
        starts.push(Some(entry.start).filter(|_| entry.is_whole));
    })?;
    let first = rest.at;
    while rest.at < end {
        let (at, name, length) = (rest.at, rest.take::<4>()?, usize::try_from(rest.number()?).ok()?);
        let next = rest.at.checked_add(length)?;
        if name == *b"IEOT" {
            is_right &= rest.has_blocks_at(length, &starts)?;
        } else if name == *LAST_NAME && is_marked && at + LAST_EXTENSION == end {
            // git finds it nowhere else.
            has_last = usize::try_from(rest.number()?) == Ok(first);
        }
        rest.skip(next.checked_sub(rest.at)?)?;
    }
    // git goes by the bytes at the place of the last extension, whatever else they belong to.
    Some(is_right && has_last == is_marked && rest.at == end)
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

    /// Reads a table of blocks of entries, of this length in bytes: their places, and how many entries each has. Returns whether they have
    /// all entries in their order.
    fn has_blocks_at(&mut self, length: usize, starts: &[Option<usize>]) -> Option<bool> {
        let mut left = starts.iter();
        let mut are_right = self.number()? == 1;
        for _ in 0..length.checked_sub(4)? / 8 {
            let [at, count] = [self.number()?, self.number()?].map(|number| usize::try_from(number).ok());
            are_right &= left.as_slice().first().copied().flatten() == at && count? > 0;
            are_right &= count? <= left.len();
            left.nth(count?.saturating_sub(1));
        }
        Some(are_right && left.next().is_none())
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
    use std::io::Write as _;
    use std::process::{Command, Stdio};

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
                let _ = HASHES
                    .map(|hash| check_all(&index[..end], end, hash, true, &mut { LONGEST_PATHS }, |_| ()));
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
        assert!(
            each_entry(
                &[first.clone(), entry(0xfff, b"\0\0")].concat()[..],
                20,
                &mut { LONGEST_PATHS },
                |_| ()
            )
            .is_some()
        );
        let longer =
            each_entry(&[first, entry(0xfff, b"\0b\0")].concat()[..], 20, &mut { LONGEST_PATHS }, |_| ())
                .is_some();
        assert!(!longer, "4097 bytes");
        let count = LONGEST_PATHS / 4096 + 1;
        let mut all = [head(u32::try_from(count).unwrap()), entry(0xfff, &name)].concat();
        all.extend(entry(0xfff, b"\0\0").repeat(count - 1));
        let mut visited = 0;
        assert!(each_entry(&all[..], 20, &mut { LONGEST_PATHS }, |_| visited += 1).is_none());
        assert_eq!(visited, count - 1);
    }

    /// git reads blocks of entries at the places that a table at the end names. An index whose table names others hides entries.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "git writes the index")]
    fn b14_an_index_has_its_blocks_where_its_entries_are() {
        let root = std::env::temp_dir().join(format!("blocks-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let git = |words: &str, input: &[u8]| {
            let mut git = Command::new("git");
            git.arg("-C").arg(&root).args(words.split(' ')).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut git = git.spawn().unwrap();
            git.stdin.take().unwrap().write_all(input).unwrap();
            let done = git.wait_with_output().unwrap();
            assert!(done.status.success(), "{words}");
            String::from_utf8(done.stdout).unwrap()
        };
        for version in ["2", "4"] {
            git("init -q", b"");
            git("config index.threads 4", b"");
            git(&format!("config index.version {version}"), b"");
            let object = git("hash-object -w --stdin", b"x");
            // A block has at least 10000 entries.
            let lines: String =
                (0..30_000).map(|number| format!("100644 {} 0\tf{number}\n", object.trim())).collect();
            git("update-index --index-info", lines.as_bytes());
            let path = root.join(".git/index");
            let good = fs::read(&path).unwrap();
            let check = |index: &[u8]| {
                fs::write(&path, index).unwrap();
                check_entries(&File::open(&path).unwrap(), &mut { IndexRoom::FULL }, |_| true, |_, _| true)
            };
            let place = |name: &[u8]| good.windows(4).rposition(|it| it == name).unwrap();
            let (table, last) = (place(b"IEOT"), place(b"EOIE"));
            assert!(check(&good), "version {version}");
            // The number of a version, the place and the number of a block, the place of the extensions, their names.
            for byte in [table + 11, table + 15, table + 19, table + 23, last + 11, last + 1, table + 1] {
                let mut bad = good.clone();
                bad[byte] ^= 8;
                let is_good = check(&bad);
                // git does not use a table of another name, nor one that it does not find.
                assert_eq!(
                    is_good,
                    byte == table + 1 || byte == last + 1,
                    "version {version}, byte {byte} of {table}, {last}"
                );
            }
            // An extension before them holds what git would take for the last one.
            let entries = &good[..table];
            let inner = [&b"ZZZZ"[..], &32_u32.to_be_bytes(), &good[last..last + 32]].concat();
            assert!(!check(&[entries, &inner, &[0; 20]].concat()), "version {version}");
            fs::remove_dir_all(&root).unwrap();
            fs::create_dir_all(&root).unwrap();
        }
        fs::remove_dir_all(root).unwrap();
    }
}
