//! Plants secrets and sockets for a stage to find, and lists those that exist anyway.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use exeat_compose::Machine;
use exeat_files::lists;

use crate::attempt::Node;
use crate::canary::{Canaries, Files};
use crate::scratch::Scratch;

/// Returns the name of the variable with a secret.
pub(super) fn variable(token: &str) -> String {
    format!("EXEAT_PROVE_{token}")
}

/// Creates sockets in the file system: in `/tmp`, the runtime directory, the home directory and the working directory.
pub(super) fn host_sockets(
    canaries: &Canaries,
    scratch: &Scratch,
    machine: &Machine,
    token: &str,
) -> (BTreeMap<String, PathBuf>, Vec<Files>) {
    let name = format!(".exeat-prove-{token}");
    let runtime = machine.env.get(OsStr::new("XDG_RUNTIME_DIR")).map(PathBuf::from);
    let runtime = runtime.or_else(|| Some(format!("/run/user/{}", nix::unistd::geteuid()).into()));
    let places = [
        ("unix-tmp", Some(scratch.at("host.sock"))),
        ("unix-runtime", runtime.map(|place| place.join(&name))),
        ("unix-home", Some(machine.home_or_database().join(&name))),
        ("unix-workdir", Some(scratch.work().join("host.sock"))),
    ];
    let mut files = Vec::new();
    let made = places.into_iter().filter_map(|(canary, path)| {
        let path = path?;
        files.push(canaries.path(canary, &path).ok()?);
        Some((canary.to_owned(), path))
    });
    (made.collect(), files)
}

/// Returns the listed credentials that the caller can open.
pub(super) fn hidden(machine: &Machine) -> Vec<Node> {
    const OTHERS_READ: u32 = 0o004;
    let home = machine.home_or_database();
    let of_user = lists::CREDENTIALS.iter().map(|name| home.join(name));
    // A file that everybody may read is not hidden if the stage runs as another user.
    let of_system = lists::SYSTEM_CREDENTIALS
        .iter()
        .map(PathBuf::from)
        .filter(|path| fs::metadata(path).is_ok_and(|meta| meta.mode() & OTHERS_READ == 0));
    let opened = of_user.chain(of_system).filter(|path| fs::File::open(path).is_ok());
    opened.filter_map(|path| Node::at(&path).ok()).collect()
}

/// Returns the files and directories of exeat.
pub(super) fn own(machine: &Machine) -> Vec<Node> {
    let state = machine.env.get(OsStr::new("XDG_STATE_HOME")).map(PathBuf::from);
    let state = state.unwrap_or_else(|| machine.home_or_database().join(".local/state"));
    let places = [state.join("exeat"), state.join("exeat/runs"), machine.config().join("exeat")];
    places.iter().filter_map(|place| Node::at(place).ok()).collect()
}

/// Returns files and directories of the system that no stage may write.
pub(super) fn read_only() -> Vec<Node> {
    let places = ["/etc/hosts", "/etc/resolv.conf", "/etc", "/usr", "/usr/bin"];
    places.iter().filter_map(|place| Node::at(Path::new(place)).ok()).collect()
}

/// Returns the namespaces of this process: namespaces(7).
pub(super) fn namespaces() -> BTreeMap<String, String> {
    let names = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
    let numbers = names.into_iter().filter_map(|name| {
        let number = fs::read_link(format!("/proc/self/ns/{name}")).ok()?;
        Some((name.to_owned(), number.to_string_lossy().into_owned()))
    });
    numbers.collect()
}
