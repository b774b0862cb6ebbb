//! Attempts to read secrets of the host: environments, keyrings, descriptors, credentials, records.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::sys;

use crate::attempt::{Attempt, Node, Saw, Spec, answer, several};

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt::new("environ", "a secret in the caller's environment", &["B09", "B28", "B31"], environ)
        .controlled(),
    Attempt::new("keyring", "a key in the caller's session keyring", &["B29"], keyring).controlled(),
    Attempt::new("descriptors", "a file that the caller has open", &["B20"], descriptors).controlled(),
    Attempt::new("credentials", "credentials below the home directory", &["B13"], |spec| {
        open_nodes(&spec.hidden, "no listed file is there")
    })
    .controlled(),
    Attempt::new("record", "exeat's own record and state", &["A02"], |spec| {
        open_nodes(&spec.own, "there is no record")
    })
    .controlled()
    .beside_another_run(),
];

/// Reads the environment of every visible process, including this one.
fn environ(spec: &Spec) -> Saw {
    let Some(variable) = &spec.variable else { return Saw::NotMade("nothing was planted".into()) };
    let Ok(entries) = fs::read_dir("/proc") else { return Saw::NotMade("/proc cannot be listed".into()) };
    let mut read = 0;
    for entry in entries.flatten() {
        let Ok(bytes) = fs::read(entry.path().join("environ")) else { continue };
        read += 1;
        if bytes.windows(variable.len()).any(|window| window == variable.as_bytes()) {
            return Saw::Out(format!("it is in {}", entry.path().join("environ").display()));
        }
    }
    Saw::Refused(format!("not in {read} environments"))
}

fn keyring(spec: &Spec) -> Saw {
    match &spec.key {
        Some(key) => answer(sys::read_key(key), "the key's secret"),
        None => Saw::NotMade("no key could be planted".into()),
    }
}

fn descriptors(spec: &Spec) -> Saw {
    let Some(planted) = &spec.descriptor else { return Saw::NotMade("no file was opened".into()) };
    let Ok(entries) = fs::read_dir("/proc/self/fd") else {
        return Saw::NotMade("/proc/self/fd cannot be listed".into());
    };
    let mut open = 0;
    for entry in entries.flatten() {
        open += 1;
        if fs::metadata(entry.path()).is_ok_and(|meta| planted.is(&meta)) {
            return Saw::Out(format!("descriptor {}", entry.file_name().to_string_lossy()));
        }
    }
    Saw::Refused(format!("not among {open} open descriptors"))
}

/// Opens the files that the host side found, and compares their identity. Never reads their content.
fn open_nodes(nodes: &[Node], none: &str) -> Saw {
    if nodes.is_empty() {
        return Saw::NotMade(none.into());
    }
    several(nodes.iter().map(|node| (node.path.display().to_string(), open(node))))
}

fn open(node: &Node) -> io::Result<()> {
    let file = File::open(&node.path)?;
    let meta = file.metadata()?;
    if node.is(&meta) {
        return Ok(());
    }
    let covered = if meta.is_dir() || meta.size() == 0 { "covered" } else { "another file" };
    Err(io::Error::other(covered))
}
