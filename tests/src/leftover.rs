//! Counts processes, mounts, sockets and files, to show that a run leaves nothing behind. Removes nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use nix::unistd::Pid;

/// The files that a run may leave: its record, and if it was killed its journal, which the next start settles.
const EXPECTED: [&str; 3] = ["/exeat/live/", "/exeat/runs/", "/audit-"];

/// A count. The harness reaps its descendants, so that it also finds processes that lost their parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    processes: BTreeSet<String>,
    mounts: Vec<String>,
    sockets: BTreeSet<String>,
    files: BTreeSet<PathBuf>,
}

impl Leftover {
    /// Counts now. `files` are the directories to list; records are left out.
    pub fn now(files: &[&Path]) -> Self {
        let mut found = BTreeSet::new();
        for place in files {
            walk(place, &mut found);
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        Self {
            processes: descendants(),
            mounts: mounts.lines().map(str::to_string).collect(),
            sockets: unix_sockets(),
            files: found,
        }
    }
}

/// The servers of the machine, which run until its end and belong to no trial.
static SERVICES: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Marks a process, and all that it starts, as a server.
pub(crate) fn is_service(pid: u32) {
    SERVICES.lock().expect("services").insert(pid);
}

/// Returns the living descendants of this process, including the machine's servers.
pub(crate) fn everything() -> Vec<Pid> {
    pids(&under(std::process::id(), &BTreeSet::new()))
}

fn pids(lines: &BTreeSet<String>) -> Vec<Pid> {
    lines.iter().filter_map(|line| line.split(' ').next()?.parse().ok()).map(Pid::from_raw).collect()
}

/// Returns the living descendants of this process, including orphans, without the machine's servers.
pub fn living() -> Vec<Pid> {
    pids(&descendants())
}

/// Returns the processes of [`living`] as `pid name`.
pub fn descendants() -> BTreeSet<String> {
    below(std::process::id())
}

/// Returns the living descendants of a process as `pid name`, without the machine's servers.
pub fn below(root: u32) -> BTreeSet<String> {
    under(root, &SERVICES.lock().expect("services"))
}

fn under(root: u32, left_out: &BTreeSet<u32>) -> BTreeSet<String> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((head, tail)) = stat.rsplit_once(") ") else { continue };
        let mut words = tail.split(' ');
        let state = words.next().unwrap_or("Z");
        let parent = words.next().and_then(|word| word.parse::<u32>().ok()).unwrap_or(0);
        let name = head.split_once('(').map_or("", |(_, name)| name).to_string();
        parents.push((pid, parent, state != "Z" && state != "X", name));
    }
    let mut ours = vec![root];
    let mut names = BTreeSet::new();
    let mut at = 0;
    while let Some(&parent) = ours.get(at) {
        let children = parents.iter().filter(|(pid, of, ..)| *of == parent && !left_out.contains(pid));
        for (pid, _, alive, name) in children {
            ours.push(*pid);
            if *alive {
                names.insert(format!("{pid} {name}"));
            }
        }
        at += 1;
    }
    names
}

/// Returns the named sockets in this network namespace.
fn unix_sockets() -> BTreeSet<String> {
    let table = fs::read_to_string("/proc/net/unix").expect("/proc/net/unix");
    table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(7)).map(str::to_string).collect()
}

fn walk(place: &Path, found: &mut BTreeSet<PathBuf>) {
    let Ok(entries) = fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&path, found);
        }
        if !EXPECTED.iter().any(|part| path.to_string_lossy().contains(part)) {
            found.insert(path);
        }
    }
}
