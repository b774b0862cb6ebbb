//! The files of the ledgers: their names, and what is read of their lines to write the next one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;

use crate::checkpoint::Checkpoint;
use crate::line::{LEDGER_SCHEMA, MAX_LINE, SIG};
use crate::tree::Hash;
use crate::{file, sha256_hex};

/// The word of the line that a run writes at its start.
pub const START: &str = "start";

/// The word of the line that a run writes at its end.
pub const END: &str = "end";

/// The word of the line that a run writes at its end which could take no number at its start.
pub const LATE: &str = "late";

/// The word of the line that says that a record was removed by `exeat audit prune`.
pub const PRUNED: &str = "pruned";

/// The name of a ledger in what its lines sign.
pub(super) fn origin(name: &str) -> String {
    format!("exeat-ledger/{name}")
}

/// Digits of a machine's id, and of what it is filed under.
pub(super) const DIGITS: usize = 16;

/// How the name of a ledger's file begins.
const BEGIN: &str = "ledger-";

/// The name of the file of a ledger.
pub fn file_name(name: &str) -> String {
    format!("{BEGIN}{name}.jsonl")
}

/// The name of the ledger that a file of this name holds: the id of a key and that of a machine. A copy that somebody left beside it
/// under a name of their own is none.
fn name_of(file: &str) -> Option<&str> {
    let name = file.strip_prefix(BEGIN)?.strip_suffix(".jsonl")?;
    let (key, host) = name.split_once('-')?;
    let is_id = |id: &str, digits| id.len() == digits && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_id(key, 8) && is_id(host, DIGITS)).then_some(name)
}

/// The names of the ledgers in a directory, in order. One that does not exist has none.
pub fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().to_str().and_then(name_of).map(str::to_owned));
    }
    names.sort_unstable();
    Ok(names)
}

/// What the other ledgers of a directory end with, by name: the digest of the last line. Not of more than `most`, and not of those
/// that cannot be read.
pub(super) fn heads(dir: &Path, own: &str, most: usize) -> BTreeMap<String, String> {
    let head = |name: &str| -> io::Result<Option<String>> {
        let mut file = file::open(&dir.join(file_name(name)))?;
        let from = file.metadata()?.len().saturating_sub(2 * MAX_LINE as u64);
        file.seek(SeekFrom::Start(from))?;
        let mut tail = Vec::new();
        file.take(2 * MAX_LINE as u64).read_to_end(&mut tail)?;
        let is_line = |line: &&[u8]| line.ends_with(b"\n") && Fields::parse(line).is_some();
        Ok(tail.split_inclusive(|&byte| byte == b'\n').rfind(is_line).map(sha256_hex))
    };
    let others = names(dir).unwrap_or_default().into_iter().filter(|name| name != own).take(most);
    others.filter_map(|name| head(&name).ok()?.map(|head| (name, head))).collect()
}

/// The fields of a line on which the next line and the signature depend.
#[derive(Deserialize)]
pub(super) struct Fields {
    schema: String,
    pub(super) seq: u64,
    pub(super) last: Option<u64>,
    pub(super) prev: Option<String>,
    pub(super) sig: Option<String>,
}

impl Fields {
    /// Reads the fields of a line. Returns `None` for what is not a line of a ledger.
    pub(super) fn parse(line: &[u8]) -> Option<Fields> {
        let fields: Fields = serde_json::from_slice(line.trim_ascii_end()).ok()?;
        (fields.schema == LEDGER_SCHEMA).then_some(fields)
    }
}

/// Returns what is signed of a line of the ledger with this name, and the signature. `seq`, `prev` and `sig` are the line's fields.
/// `None` where the line does not end in its signature.
pub fn signed_text(
    name: &str,
    raw: &[u8],
    seq: u64,
    prev: Option<&str>,
    sig: Option<&str>,
) -> Option<(String, Vec<u8>)> {
    // To the byte as it is written: nothing stands after the signature.
    let own = raw.get(..raw.len().checked_sub(SIGNATURE + 3)?)?.strip_suffix(SIG)?;
    let checkpoint = Checkpoint {
        origin: origin(name),
        n: seq,
        root: digest(prev.unwrap_or_default()),
        line: sha256_hex(own),
    };
    Some((checkpoint.text(), BASE64.decode(sig?).ok()?))
}

/// Characters of a signature in base64; a quotation mark, a brace and a line feed end the line.
const SIGNATURE: usize = 88;

/// The bytes of a digest in hexadecimal; zeros for what is none.
pub fn digest(text: &str) -> Hash {
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let pair = std::str::from_utf8(pair).ok();
        *byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()).unwrap_or(0);
    }
    bytes
}
