//! Checks the socket of another proxy before the start of a run. It sends no request: the user who names the socket trusts its proxy.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use exeat_files::fault::{FileFault, PathUse};
use exeat_files::walk::{LinkRule, WalkError};

use crate::error::Error;
use crate::error::faults::OwnPath;

/// Describes what a run through another proxy cannot enforce.
pub(crate) fn missing(socket: &Path) -> String {
    format!("the proxy at unix:{} decides what is reachable", socket.display())
}

/// Returns the real path of the socket, if a proxy listens there and no stage can replace it.
///
/// # Errors
/// Returns an error when it is not a socket, nobody answers, or it is in one of the `writable` trees.
pub(crate) fn find(path: &Path, links: &LinkRule, writable: &[PathBuf]) -> Result<PathBuf, Error> {
    let dead = |source| Error::ViaDead { path: path.to_path_buf(), source };
    let real = match links.walk(path) {
        Ok(end) => end.real,
        Err(WalkError::Io(error)) => return Err(dead(error)),
        Err(link) => return Err(FileFault::from_walk(PathUse::ProxySocket, path, link).into()),
    };
    if !fs::metadata(&real).map_err(dead)?.file_type().is_socket() {
        return Err(Error::ViaNoSocket(path.to_path_buf()));
    }
    if let Some(tree) = writable.iter().find(|tree| real.starts_with(tree)) {
        return Err(Error::Inside { what: OwnPath::Via, path: path.to_path_buf(), tree: tree.clone() });
    }
    answers(&real).map_err(dead)?;
    Ok(real)
}

/// Checks that a listener exists. A connection that sends nothing leaves no record.
fn answers(path: &Path) -> io::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let client = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    match connect(client.as_raw_fd(), &UnixAddr::new(path)?) {
        // The queue is full (unix(7)), so a listener exists.
        Ok(()) | Err(Errno::EAGAIN) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn found(path: &Path, writable: &[PathBuf]) -> Result<PathBuf, Error> {
        find(path, &LinkRule::from_env(), writable)
    }

    /// K38: the path must lead to a socket with a listener that the stage cannot replace.
    #[test]
    fn k38_a_proxy_that_can_be_trusted_to_be_there() {
        let dir = std::env::temp_dir().join(format!("via-{}", std::process::id()));
        fs::create_dir_all(dir.join("tree")).unwrap();
        let dir = dir.canonicalize().unwrap();
        let writable = [dir.join("tree")];
        let place = dir.join("proxy.sock");
        assert!(
            matches!(found(&place, &writable), Err(error @ Error::ViaDead { .. }) if error.code() == 125)
        );
        fs::write(dir.join("file"), "").unwrap();
        let no_socket = found(&dir.join("file"), &writable);
        assert!(matches!(no_socket, Err(error @ Error::ViaNoSocket(_)) if error.code() == 2));

        let listener = UnixListener::bind(&place).unwrap();
        assert_eq!(found(&place, &writable).unwrap(), place);
        std::os::unix::fs::symlink(&place, dir.join("tree/link")).unwrap();
        // L01: a link that a stage could have left is refused.
        assert_eq!(found(&dir.join("tree/link"), &writable).unwrap_err().code(), 2);
        let _inside = UnixListener::bind(dir.join("tree/proxy.sock")).unwrap();
        std::os::unix::fs::symlink(dir.join("tree/proxy.sock"), dir.join("link")).unwrap();
        for inside in ["tree/proxy.sock", "link"] {
            let error = found(&dir.join(inside), &writable).unwrap_err();
            assert!(
                matches!(error, Error::Inside { what: OwnPath::Via, .. }) && error.code() == 2,
                "{error}"
            );
        }
        drop(listener);
        assert!(matches!(found(&place, &writable), Err(Error::ViaDead { .. })), "nobody listens any more");
        fs::remove_dir_all(&dir).unwrap();
    }
}
