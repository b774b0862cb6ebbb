//! The id of a machine in the name of a ledger. All processes with one id share the ledger's lock, and a copy of the directory has another id.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use nix::sys::statfs::statfs;

use super::LedgerError;
use super::file::DIGITS;
use crate::file;
use crate::key::create_private;
use crate::{random_number, sha256_hex};

/// The file systems that several machines can mount at the same time (statfs(2)): AFS, Ceph, CIFS, GPFS, Lustre, NFS, SMB, SMB 2.
const SHARED: [u32; 8] =
    [0x5346_414f, 0x00c3_6400, 0xff53_4d42, 0x4750_4653, 0x0bd0_0bd0, 0x6969, 0x517b, 0xfe53_4d42];

/// Reads the id of this machine from the directory of the ledgers, or makes it there at first use.
///
/// The id is random, because the machine's own id (machine-id(5)) is often cloned with a disk. The name of its file depends on the
/// directory itself, so that a copy of the directory gets another id.
pub(super) fn id(dir: &Path) -> Result<String, LedgerError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| LedgerError::Io { path, source }
    };
    let path = id_path(dir).map_err(at(dir))?;
    if let Some(id) = read(&path).map_err(at(&path))? {
        return Ok(id);
    }
    let id = format!("{:0width$x}", random_number(), width = DIGITS);
    match create_private(&path, format!("{id}\n").as_bytes()) {
        Ok(()) => Ok(id),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let damaged = || io::Error::other("it holds no id: remove it");
            read(&path).and_then(|id| id.ok_or_else(damaged)).map_err(at(&path))
        }
        Err(error) => Err(at(&path)(error)),
    }
}

fn read(path: &Path) -> io::Result<Option<String>> {
    match file::open(path).and_then(read_short) {
        Ok(text) => {
            let id = text.trim_ascii();
            let is_id = id.len() == DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
            Ok(is_id.then(|| id.to_owned()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a file of one short line with one read(2), because every run does so. Ignores anything after that.
fn read_short(mut file: File) -> io::Result<String> {
    let mut text = [0; 256];
    let len = file.read(&mut text)?;
    Ok(String::from_utf8_lossy(text.get(..len).unwrap_or_default()).into_owned())
}

/// Returns the path of the id. Its name is a digest of the machine's own id and of the directory's inode and time of creation; on a
/// file system that several machines can mount, also of the machine's name.
fn id_path(dir: &Path) -> io::Result<PathBuf> {
    let meta = fs::metadata(dir)?;
    // Some file systems do not store it.
    let created = meta.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    let kind = statfs(dir)?.filesystem_type().0;
    #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a magic number has 32 bits")]
    let is_shared = SHARED.contains(&(kind as u32));
    let read = |path: &str| File::open(path).and_then(read_short).unwrap_or_default();
    let name = if is_shared { read("/proc/sys/kernel/hostname") } else { String::new() };
    let machine = read("/etc/machine-id");
    let text = format!("{machine}\0{}\0{}\0{name}", meta.ino(), created.as_nanos());
    let digest = sha256_hex(text.as_bytes());
    Ok(dir.join(format!("host-{}", digest.get(..DIGITS).unwrap_or(&digest))))
}
