//! The files of the ledgers: their names, and the fields of a line that the next line needs.

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

/// The event of the line that a run writes at its start.
pub const START: &str = "start";

/// The event of the line that a run writes at its end.
pub const END: &str = "end";

/// The event of the line that a run writes at its end if it could not take a number at its start.
pub const LATE: &str = "late";

/// The event of the line that says that `exeat audit prune` removed a record.
pub const PRUNED: &str = "pruned";

/// Returns the name of a ledger in the text that its lines sign.
pub(super) fn origin(name: &str) -> String {
    format!("exeat-ledger/{name}")
}

/// The number of digits of a machine's id, and of the name of its file.
pub(super) const DIGITS: usize = 16;

/// The prefix of the name of a ledger's file.
const BEGIN: &str = "ledger-";

/// Returns the name of a ledger's file.
pub fn file_name(name: &str) -> String {
    format!("{BEGIN}{name}.jsonl")
}

/// Returns the name of the ledger in a file of this name: the id of a key and the id of a machine. A copy under any other name is not a
/// ledger.
fn name_of(file: &str) -> Option<&str> {
    let name = file.strip_prefix(BEGIN)?.strip_suffix(".jsonl")?;
    let (key, host) = name.split_once('-')?;
    let is_id = |id: &str, digits| id.len() == digits && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_id(key, 8) && is_id(host, DIGITS)).then_some(name)
}

/// Returns the names of the ledgers in a directory, sorted. A directory that does not exist has none.
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

/// Returns the digest of the last line of each other ledger in a directory, by name. Returns at most `most`, and leaves out those that
/// cannot be read.
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

/// The fields of a line that the next line and the signature depend on.
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
    // Compare byte for byte: nothing may follow the signature.
    let own = raw.get(..raw.len().checked_sub(SIGNATURE + 3)?)?.strip_suffix(SIG)?;
    let checkpoint = Checkpoint {
        origin: origin(name),
        n: seq,
        root: digest(prev.unwrap_or_default()),
        line: sha256_hex(own),
    };
    Some((checkpoint.text(), BASE64.decode(sig?).ok()?))
}

/// The characters of a signature in base64. A quotation mark, a brace and a line feed end the line.
const SIGNATURE: usize = 88;

/// Reads a digest in hexadecimal. Text that is not a digest becomes zeros.
pub fn digest(text: &str) -> Hash {
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let pair = std::str::from_utf8(pair).ok();
        *byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()).unwrap_or(0);
    }
    bytes
}
