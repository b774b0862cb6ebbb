//! Temporary files and package caches: where they are on the host, or in memory.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use exeat_contract::CACHE;
use exeat_files::walk::{LinkRule, clean};
use exeat_policy::Cache;
use exeat_record::RunId;
use exeat_sandbox::Mount;
use nix::unistd::geteuid;

use crate::cache::CACHE_OF_RUN;

/// Bytes of the private `/tmp` and `/var/tmp`, each: compilers spool there.
pub(crate) const TMP_SIZE: u64 = 1 << 30;

/// Where a file is written that is to be read at `path`: links are followed by their words, since inside they may dangle.
pub(super) fn resolved_place(path: &Path) -> Option<PathBuf> {
    /// As many links as the kernel follows (path_resolution(7)).
    const LINKS: usize = 40;
    let mut place = path.to_path_buf();
    for _ in 0..LINKS {
        let Ok(target) = fs::read_link(&place) else { return Some(place) };
        place = clean(&place.parent()?.join(target));
    }
    None
}

/// Where programs put what they need for a while.
pub(crate) const TMP: &str = "/tmp";

/// The `/tmp` of a run that has none on the disk.
pub(crate) fn tmp_in_memory(size: u64) -> Mount {
    Mount::Tmpfs { at: TMP.into(), size, mode: 0o1777 }
}

/// Returns a directory for one run in that which TMPDIR names, if a stage has its `/tmp` there: not where that would be another
/// machine-wide `/tmp`.
pub(crate) fn tmp_dir(named: Option<&Path>, links: &LinkRule) -> Option<PathBuf> {
    let named = named.filter(|dir| dir.is_absolute())?;
    let real = links.walk(named).ok()?.real;
    let is_usual = [TMP, "/var/tmp"].map(Path::new).contains(&real.as_path());
    let user = geteuid();
    let run = || real.join(format!("exeat-{user}")).join(format!("{CACHE_OF_RUN}{}", RunId::new()));
    (real.is_dir() && !is_usual).then(run)
}

/// The cache of a run that has no lasting one.
pub(crate) fn cache_in_memory() -> Mount {
    Mount::Tmpfs { at: CACHE.into(), size: TMP_SIZE, mode: 0o755 }
}

/// Returns the directory for a cache on the disk: of this working directory, or of one run alone.
pub(crate) fn cache_dir(base: &Path, cwd: &Path, kind: Cache) -> PathBuf {
    if kind == Cache::Run {
        return base.join("exeat").join(format!("{CACHE_OF_RUN}{}", RunId::new()));
    }
    let digest = exeat_record::sha256_hex(cwd.as_os_str().as_bytes());
    base.join("exeat").join(digest.get(..16).unwrap_or(&digest))
}
