//! Runs canaries: sockets on the host that note every visitor while a stage tries to get out, and answer with a secret word.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{self as unix, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The longest wait for a visitor's first bytes.
const PATIENCE: Duration = Duration::from_millis(300);
/// The maximal number of bytes that are kept of a visit.
const KEPT: u64 = 4096;
/// The maximal number of kept visits, so that no stage fills the host's memory.
const VISITS: usize = 4096;
/// The pause of a canary after a failed accept(2), which fails at once and repeatedly without free descriptors.
const REST: Duration = Duration::from_millis(20);

/// A visit to a canary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Visit {
    /// The name of the canary.
    pub(crate) canary: String,
    /// The bytes that the visitor sent, as far as they are readable.
    pub(crate) said: String,
}

/// The visits that the canaries noted.
#[derive(Debug, Default)]
pub(crate) struct Visits {
    pub(crate) visits: Vec<Visit>,
    /// Whether a visit may have gone unnoticed.
    pub(crate) missed: bool,
}

/// The canaries of one proof. Their threads end with the process.
#[derive(Debug, Clone)]
pub(crate) struct Canaries {
    token: String,
    seen: Arc<Mutex<Visits>>,
}

impl Canaries {
    /// Creates a set without canaries.
    pub(crate) fn new(token: &str) -> Self {
        Self { token: token.to_owned(), seen: Arc::default() }
    }

    /// Takes the visits since the last call.
    pub(crate) fn take(&self) -> Visits {
        // Connections that the kernel has accepted are noted soon.
        std::thread::sleep(Duration::from_millis(50));
        std::mem::take(&mut *self.lock_visits())
    }

    fn lock_visits(&self) -> MutexGuard<'_, Visits> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, canary: &str, said: &[u8]) {
        let mut seen = self.lock_visits();
        if seen.visits.len() < VISITS {
            seen.visits
                .push(Visit { canary: canary.into(), said: String::from_utf8_lossy(said).into_owned() });
        } else {
            seen.missed = true;
        }
    }

    /// Returns the visitor, or notes that the kernel could not provide one.
    fn came<T>(&self, came: io::Result<T>) -> Option<T> {
        came.inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                self.lock_visits().missed = true;
                std::thread::sleep(REST);
            }
        })
        .ok()
    }

    /// Creates listeners on both loopbacks, on the same port if possible. Omits a family that this machine lacks.
    pub(crate) fn tcp(&self, names: [&str; 2]) -> Vec<(String, SocketAddr)> {
        let mut out = Vec::new();
        let v4 = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let port =
            v4.as_ref().ok().and_then(|listener| listener.local_addr().ok()).map_or(0, |addr| addr.port());
        let v6 = TcpListener::bind((Ipv6Addr::LOCALHOST, port))
            .or_else(|_| TcpListener::bind((Ipv6Addr::LOCALHOST, 0)));
        for (name, listener) in names.into_iter().zip([v4, v6]) {
            let Ok(listener) = listener else { continue };
            let Ok(addr) = listener.local_addr() else { continue };
            out.push((name.to_owned(), addr));
            let (canaries, name) = (self.clone(), name.to_owned());
            std::thread::spawn(move || {
                for stream in listener.incoming().filter_map(|came| canaries.came(came)) {
                    let _ = stream.set_read_timeout(Some(PATIENCE));
                    canaries.hear(&name, stream);
                }
            });
        }
        out
    }

    /// Creates datagram sockets on both loopbacks.
    pub(crate) fn udp(&self, names: [&str; 2]) -> Vec<(String, SocketAddr)> {
        let mut out = Vec::new();
        let loopbacks: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        for (name, loopback) in names.into_iter().zip(loopbacks) {
            let Ok(socket) = UdpSocket::bind((loopback, 0)) else { continue };
            let Ok(addr) = socket.local_addr() else { continue };
            out.push((name.to_owned(), addr));
            let (canaries, name) = (self.clone(), name.to_owned());
            std::thread::spawn(move || {
                let mut said = [0; 512];
                loop {
                    let Some((count, from)) = canaries.came(socket.recv_from(&mut said)) else { continue };
                    canaries.note(&name, said.get(..count).unwrap_or_default());
                    let _ = socket.send_to(canaries.token.as_bytes(), from);
                }
            });
        }
        out
    }

    /// Listens on a stream socket in the file system, with a datagram socket next to it. Every user may connect, so that only the
    /// sandbox prevents it.
    pub(crate) fn path(&self, name: &str, path: &Path) -> io::Result<Files> {
        let mut beside = path.to_owned().into_os_string();
        beside.push(".d");
        let files = Files(vec![path.to_owned(), beside.into()]);
        let [stream, datagram] = files.0.as_slice() else { return Err(io::ErrorKind::InvalidInput.into()) };
        let listener = UnixListener::bind(stream)?;
        let socket = UnixDatagram::bind(datagram)?;
        for path in &files.0 {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))?;
        }
        self.listen(name, listener);
        let (canaries, name) = (self.clone(), name.to_owned());
        std::thread::spawn(move || {
            let mut said = [0; 512];
            loop {
                let Some(count) = canaries.came(socket.recv(&mut said)) else { continue };
                canaries.note(&name, said.get(..count).unwrap_or_default());
            }
        });
        Ok(files)
    }

    /// Creates a stream socket without a file.
    pub(crate) fn abstract_name(&self, name: &str, abstract_name: &str) -> io::Result<()> {
        let addr = unix::SocketAddr::from_abstract_name(abstract_name)?;
        self.listen(name, UnixListener::bind_addr(&addr)?);
        Ok(())
    }

    fn listen(&self, name: &str, listener: UnixListener) {
        let (canaries, name) = (self.clone(), name.to_owned());
        std::thread::spawn(move || {
            for stream in listener.incoming().filter_map(|came| canaries.came(came)) {
                let _ = stream.set_read_timeout(Some(PATIENCE));
                canaries.hear(&name, stream);
            }
        });
    }

    /// Reads the first bytes, answers, and closes.
    fn hear(&self, name: &str, mut stream: impl Read + Write) {
        let mut said = vec![0; usize::try_from(KEPT).unwrap_or(4096)];
        let count = stream.read(&mut said).unwrap_or(0);
        self.note(name, said.get(..count).unwrap_or_default());
        let _ = stream.write_all(self.token.as_bytes());
    }
}

/// Files that are removed when the value is dropped.
#[derive(Debug)]
pub(crate) struct Files(pub(crate) Vec<PathBuf>);

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_note_is_known() {
        let canaries = Canaries::new("token");
        (0..VISITS).for_each(|_| canaries.note("tcp4", b"it"));
        assert!(!canaries.lock_visits().missed);
        canaries.note("tcp4", b"it");
        let seen = canaries.take();
        assert_eq!((seen.visits.len(), seen.missed), (VISITS, true));
        assert!(!canaries.take().missed);
        assert_eq!(canaries.came::<()>(Err(io::ErrorKind::Interrupted.into())), None);
        assert!(!canaries.lock_visits().missed);
        assert_eq!(canaries.came::<()>(Err(io::Error::from_raw_os_error(nix::libc::EMFILE))), None);
        assert!(canaries.lock_visits().missed);
    }
}
