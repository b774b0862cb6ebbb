//! Manages the temporary files of a proof on the host: a directory with projects, sockets and an open file.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A directory with a random name, removed with its content when the value is dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates the directory with two projects: one for the stage, and one for the control outside.
    pub(crate) fn new() -> io::Result<Self> {
        let base = std::env::temp_dir();
        let path = nix::unistd::mkdtemp(&base.join("exeat-prove-XXXXXX"))?;
        let scratch = Self { path };
        // A stage that runs as another user must be able to enter the directory, but not to list it.
        fs::set_permissions(&scratch.path, Permissions::from_mode(0o711))?;
        for project in [scratch.work(), scratch.outside()] {
            fs::create_dir(&project)?;
            fs::create_dir_all(project.join(".git/hooks"))?;
            fs::write(project.join(".git/config"), "[core]\n\tbare = false\n")?;
        }
        Ok(scratch)
    }

    /// Returns the working directory of the stage.
    pub(crate) fn work(&self) -> PathBuf {
        self.path.join("work")
    }

    /// Returns the directory of the control.
    pub(crate) fn outside(&self) -> PathBuf {
        self.path.join("outside")
    }

    /// Returns the path of a name in the directory.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a file that all programs started from here inherit.
    pub(crate) fn open_file(&self) -> io::Result<(PathBuf, File)> {
        let path = self.at("open-file");
        fs::write(&path, "of the host\n")?;
        let file = File::open(&path)?;
        nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))?;
        Ok((path, file))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Returns the name server that the host asks first: resolv.conf(5).
pub(crate) fn resolver() -> Option<std::net::SocketAddr> {
    let text = fs::read_to_string("/etc/resolv.conf").ok()?;
    let servers = text.lines().filter_map(|line| line.strip_prefix("nameserver"));
    let mut servers = servers.filter_map(|server| server.trim().parse::<std::net::IpAddr>().ok());
    servers.next().map(|server| (server, 53).into())
}

/// Lists the sockets of live runs by the names with which they were bound: proc_pid_net(5), `/proc/net/unix`.
pub(crate) fn sockets_of_runs() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split_whitespace().last());
    names
        .filter(|name| name.contains("/exeat-") && name.ends_with("/proxy.sock"))
        .map(Path::new)
        .map(Path::to_owned)
        .collect()
}
