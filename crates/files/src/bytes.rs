//! Paths in JSON: as text where they are UTF-8, else as a list of bytes.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize as _, Serializer};

#[derive(Deserialize)]
#[serde(untagged)]
enum Either {
    Text(String),
    Bytes(Vec<u8>),
}

pub(crate) fn serialize<S: Serializer>(path: impl AsRef<Path>, to: S) -> Result<S::Ok, S::Error> {
    let path = path.as_ref();
    match path.to_str() {
        Some(text) => text.serialize(to),
        None => path.as_os_str().as_bytes().serialize(to),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    Ok(match Either::deserialize(from)? {
        Either::Text(text) => PathBuf::from(text),
        Either::Bytes(bytes) => PathBuf::from(OsString::from_vec(bytes)),
    })
}
