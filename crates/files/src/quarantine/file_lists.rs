//! Files of a repository that list other files of it by name: the index of packs, the parts of the graph of commits, and the tables of
//! references. git checks none of these names. It reads the files, and renames or deletes them when it makes larger ones: with `../` in a
//! name, those of another repository.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;

/// Such files in the directory of a repository: the index of packs (gitformat-pack(5)), the parts of the graph of commits
/// (gitformat-commit-graph(5)), and the tables of references ("reftable" in the technical documentation of git).
pub(super) const FILE_LISTS: [&str; 3] = [
    "objects/pack/multi-pack-index",
    "objects/info/commit-graphs/commit-graph-chain",
    "reftable/tables.list",
];
/// The directory with the parts of an index of packs, and the end of their names.
pub(super) const PARTS: &str = "objects/pack/multi-pack-index.d";
const PART: &[u8] = b".midx";
/// The ends of the names of lists that are texts: of tables, and of parts of a graph.
const TEXTS: [&[u8]; 2] = [b".list", b"-chain"];
/// Bytes of the head of an index of packs, and of a row of its table: the name and the place of a chunk.
const HEAD: usize = 12;
const ROW: usize = 12;
/// The chunk with the names of the packs.
const NAMES: &[u8] = b"PNAM";

/// Returns whether a name is that of a part of an index of packs.
pub(super) fn is_part(name: &OsStr) -> bool {
    name.as_encoded_bytes().ends_with(PART)
}

/// Returns whether such a file names only files in its own directory. The bytes that are read are taken from `room`; without any, no list is
/// right.
pub(super) fn is_right_list(name: &OsStr, file: &File, room: &mut u64) -> bool {
    let is_text = TEXTS.iter().any(|end| name.as_encoded_bytes().ends_with(end));
    if is_text { names_own_files(file, room) } else { names_own_packs(file, room) }.unwrap_or(false)
}

fn names_own_files(file: &File, room: &mut u64) -> Option<bool> {
    let mut text = Vec::new();
    let read = file.take(*room).read_to_end(&mut text).ok()?;
    *room = room.checked_sub(read as u64).filter(|left| *left > 0)?;
    Some(!text.contains(&b'/'))
}

/// Whatever the size of the chunk is: an older git does not ask for it, and reads as many names as there are packs.
fn names_own_packs(mut file: &File, room: &mut u64) -> Option<bool> {
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, 0).ok()?;
    let [signature @ .., _, _, chunks, _, a, b, c, d] = head;
    if signature != *b"MIDX" {
        return None;
    }
    let mut has_names = false;
    for row in 0..=u64::from(chunks) {
        let mut bytes = [0; ROW];
        file.read_exact_at(&mut bytes, HEAD as u64 + row * ROW as u64).ok()?;
        let (name, at) = bytes.split_first_chunk::<4>()?;
        if name != NAMES {
            continue;
        }
        // Which of two counts is for a version of git to say.
        if has_names {
            return None;
        }
        has_names = true;
        file.seek(SeekFrom::Start(u64::from_be_bytes(at.try_into().ok()?))).ok()?;
        let mut names = BufReader::new(file.take(*room));
        let mut name = Vec::new();
        for _ in 0..u32::from_be_bytes([a, b, c, d]) {
            name.clear();
            *room = room.checked_sub(names.read_until(0, &mut name).ok()? as u64)?;
            if name.len() < 2 || name.last() != Some(&0) || name.contains(&b'/') {
                return None;
            }
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn is_right(path: &Path) -> bool {
        is_right_list(path.file_name().unwrap(), &File::open(path).unwrap(), &mut { 1 << 20 })
    }

    /// git writes the index of packs.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "git says what such an index is")]
    fn b14_an_index_of_packs_names_its_own() {
        let root = std::env::temp_dir().join(format!("packs-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let script = "git init -q .; export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a
            for i in 1 2; do git commit -q --allow-empty -m $i; git repack -q -d; done; git multi-pack-index write; chmod u+w .git/objects/pack/*";
        let done = Command::new("sh").args(["-ec", script]).current_dir(&root).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        let path = root.join(".git/objects/pack/multi-pack-index");
        let good = fs::read(&path).unwrap();
        assert!(is_right(&path));
        let second = good.windows(5).rposition(|it| it == b"pack-").unwrap();
        for at in [second, second + 10] {
            let mut bad = good.clone();
            bad[at..at + 3].copy_from_slice(b"../");
            fs::write(&path, bad).unwrap();
            assert!(!is_right(&path), "{at}");
        }
        for end in 0..second {
            fs::write(&path, &good[..end]).unwrap();
            assert!(!is_right(&path), "{end} bytes");
        }
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn b14_a_list_of_tables_names_its_own() {
        let path = std::env::temp_dir().join(format!("tables-{}", std::process::id())).join("tables.list");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let name = "0x000000000001-0x000000000002-0dffbe52.ref\n";
        for (text, expected) in
            [("", true), (name, true), (&format!("{name}../{name}"), false), ("/x.ref\n", false)]
        {
            fs::write(&path, text).unwrap();
            assert_eq!(is_right(&path), expected, "{text}");
        }
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
