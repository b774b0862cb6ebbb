//! Makes the file tree of a sandbox. It decides nothing: the host side says what is mounted where.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;

use exeat_contract::{MountSource, MountStep};

use crate::sys::{self, Attributes, Descriptor, Errno};

/// What no mount of the sandbox may do, except for the nodes in `/dev`.
const PLAIN: Attributes = Attributes::NO_SET_ID.and(Attributes::NO_DEVICES);
/// The same, and read-only.
const READ_ONLY: Attributes = PLAIN.and(Attributes::READ_ONLY);

/// The nodes of a minimal `/dev`.
const NODES: [&CStr; 6] = [c"null", c"zero", c"full", c"random", c"urandom", c"tty"];

/// The links in a minimal `/dev`, each with its target.
const LINKS: [(&CStr, &CStr); 6] = [
    (c"stdin", c"/proc/self/fd/0"),
    (c"stdout", c"/proc/self/fd/1"),
    (c"stderr", c"/proc/self/fd/2"),
    (c"fd", c"/proc/self/fd"),
    (c"core", c"/proc/kcore"),
    (c"ptmx", c"pts/ptmx"),
];

/// What the kernel may let the owner of a user namespace set in `/proc`, for the whole machine.
const SETTINGS: [&CStr; 3] = [c"sysrq-trigger", c"irq", c"bus"];

/// The mounts of the host, copied before the sandbox has a root.
pub(crate) struct Sources {
    /// The mount of each step that has one.
    trees: Vec<Option<Descriptor>>,
    nodes: Vec<Descriptor>,
}

/// A step that failed, by its number.
pub(crate) struct FailedMount {
    pub(crate) number: usize,
    pub(crate) errno: Errno,
}

impl Sources {
    /// Copies the mounts that the steps name. A later mount of the sandbox is in none of them.
    pub(crate) fn copy(steps: &[MountStep]) -> Result<Self, FailedMount> {
        let mut sources = Self { trees: Vec::new(), nodes: Vec::new() };
        for (number, step) in steps.iter().enumerate() {
            let failed = |errno| FailedMount { number, errno };
            sources.trees.push(tree_of(step).map_err(failed)?);
            if matches!(step, MountStep::Dev { .. }) {
                sources.nodes = copy_nodes().map_err(failed)?;
            }
        }
        Ok(sources)
    }
}

/// Copies the mount that a step names, and gives it its attributes.
fn tree_of(step: &MountStep) -> sys::Result<Option<Descriptor>> {
    let MountStep::Bind { source, is_writable, .. } = step else { return Ok(None) };
    let tree = match source {
        MountSource::Path(path) => sys::clone_tree(&text(path)?)?,
        MountSource::Tree(number) => sys::take_inherited(*number)?,
    };
    sys::set_attributes(&tree, if *is_writable { PLAIN } else { READ_ONLY }, true)?;
    Ok(Some(tree))
}

fn copy_nodes() -> sys::Result<Vec<Descriptor>> {
    NODES
        .iter()
        .map(|name| {
            let node = sys::clone_tree(&text(&[b"/dev/", name.to_bytes()].concat())?)?;
            sys::set_attributes(&node, Attributes::NO_SET_ID, true).map(|()| node)
        })
        .collect()
}

/// Makes an empty root, and attaches it where this process can reach it.
pub(crate) fn make_root() -> sys::Result<Descriptor> {
    let root = sys::new_file_system(c"tmpfs", &[(c"mode", c"0755")], PLAIN)?;
    // On top of the present root. Paths of this process still begin below it (path_resolution(7)).
    sys::attach(&root, &sys::open(c"/", sys::O_PATH | sys::O_CLOEXEC)?)?;
    Ok(root)
}

/// Carries out the steps below the root.
pub(crate) fn fill(root: &Descriptor, steps: &[MountStep], sources: Sources) -> Result<(), FailedMount> {
    let Sources { trees, mut nodes } = sources;
    for (number, (step, tree)) in steps.iter().zip(trees).enumerate() {
        apply(root, step, tree, &mut nodes).map_err(|errno| FailedMount { number, errno })?;
    }
    Ok(())
}

fn apply(
    root: &Descriptor,
    step: &MountStep,
    tree: Option<Descriptor>,
    nodes: &mut Vec<Descriptor>,
) -> sys::Result<()> {
    match step {
        MountStep::Bind { at, .. } => {
            let tree = tree.ok_or(Errno::INVAL)?;
            let kind = if sys::is_directory(&tree)? { Place::Directory } else { Place::File };
            sys::attach(&tree, &make_place(root, at, kind)?)
        }
        MountStep::Tmpfs { at, size, mode } => mount_tmpfs(root, at, *size, *mode),
        MountStep::Dir { at } => make_place(root, at, Place::Directory).map(drop),
        MountStep::Symlink { target, at } => {
            let (parent, name) = parent_of(root, at)?;
            sys::make_link(&text(target)?, &parent, &name)
        }
        MountStep::File { at, bytes, mode } => {
            let (parent, name) = parent_of(root, at)?;
            write_all(&sys::make_file(&parent, &name, *mode)?, bytes)
        }
        MountStep::CoverFile { at, bytes } => cover(root, at, bytes),
        MountStep::Proc => mount_proc(root),
        MountStep::Dev { shm } => mount_dev(root, nodes, *shm),
        MountStep::Freeze { at } => freeze(root, at),
    }
}

/// Makes the mount at a path read-only, but not the mounts below it.
pub(crate) fn freeze(root: &Descriptor, at: &[u8]) -> sys::Result<()> {
    sys::set_attributes(&sys::open_below(root, &text(at)?)?, Attributes::READ_ONLY, false)
}

/// What has to be at a path before something is mounted there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Directory,
    File,
}

/// Opens the place for a mount, and makes it if nothing is there.
fn make_place(root: &Descriptor, at: &[u8], kind: Place) -> sys::Result<Descriptor> {
    let path = text(at)?;
    match sys::open_below(root, &path) {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    let (parent, name) = parent_of(root, at)?;
    match kind {
        Place::Directory => sys::make_directory(&parent, &name, 0o755)?,
        Place::File => drop(sys::make_file(&parent, &name, 0o444)?),
    }
    sys::open_below(root, &path)
}

/// Opens the directory above a path, and makes what is missing. Returns the last name too.
fn parent_of(root: &Descriptor, at: &[u8]) -> sys::Result<(Descriptor, CString)> {
    let cut = at.iter().rposition(|byte| *byte == b'/').ok_or(Errno::INVAL)?;
    let (above, name) = at.split_at_checked(cut + 1).ok_or(Errno::INVAL)?;
    if name.is_empty() {
        return Err(Errno::INVAL);
    }
    let above = match above.strip_suffix(b"/") {
        Some(above) if !above.is_empty() => make_place(root, above, Place::Directory)?,
        _ => sys::open_below(root, c"/")?,
    };
    Ok((above, text(name)?))
}

fn mount_tmpfs(root: &Descriptor, at: &[u8], size: u64, mode: u32) -> sys::Result<()> {
    let size = text(number(size, 10).as_slice())?;
    let mode = text(number(mode.into(), 8).as_slice())?;
    let file_system = sys::new_file_system(c"tmpfs", &[(c"size", &size), (c"mode", &mode)], PLAIN)?;
    sys::attach(&file_system, &make_place(root, at, Place::Directory)?)
}

/// Mounts a read-only file of ours over what is at a path.
fn cover(root: &Descriptor, at: &[u8], bytes: &[u8]) -> sys::Result<()> {
    /// Nobody sees it: its name is removed before the next step.
    const NAME: &CStr = c".exeat-cover";
    let above = sys::open_below(root, c"/")?;
    write_all(&sys::make_file(&above, NAME, 0o444)?, bytes)?;
    let file = sys::clone_open_tree(&sys::open_below(root, NAME)?)?;
    sys::set_attributes(&file, READ_ONLY, false)?;
    sys::attach(&file, &make_place(root, at, Place::File)?)?;
    // Not before: the kernel attaches no file without a name.
    sys::remove_file(&above, NAME)
}

fn mount_proc(root: &Descriptor) -> sys::Result<()> {
    let proc = sys::new_file_system(c"proc", &[], PLAIN.and(Attributes::NO_EXECUTION))?;
    let at = make_place(root, b"/proc", Place::Directory)?;
    sys::attach(&proc, &at)?;
    let proc = sys::open_below(root, c"/proc")?;
    // No process here gets another user namespace, in which it would have every capability. The filter refuses it too, and the kernel
    // may lack the setting.
    if let Ok(most) = sys::open_to_write_below(root, c"/proc/sys/user/max_user_namespaces") {
        let _ = sys::write(&most, b"0");
    }
    // Some settings are those of the whole machine: core_pattern names a program of the host.
    keep_read_only(root, &proc, c"sys")?;
    for name in SETTINGS {
        if sys::is_writable(&proc, name) {
            keep_read_only(root, &proc, name)?;
        }
    }
    Ok(())
}

/// Mounts a name in `/proc` over itself, read-only.
fn keep_read_only(root: &Descriptor, proc: &Descriptor, name: &CStr) -> sys::Result<()> {
    let path = text(&[b"/proc/", name.to_bytes()].concat())?;
    let tree = sys::clone_open_tree(&sys::open_below(proc, name)?)?;
    sys::set_attributes(&tree, READ_ONLY.and(Attributes::NO_EXECUTION), true)?;
    sys::attach(&tree, &sys::open_below(root, &path)?)
}

fn mount_dev(root: &Descriptor, nodes: &mut Vec<Descriptor>, shm: u64) -> sys::Result<()> {
    /// Bytes of the file system: it has nodes, and no data.
    const SIZE: u64 = 1 << 20;
    mount_tmpfs(root, b"/dev", SIZE, 0o755)?;
    let dev = sys::open_below(root, c"/dev")?;
    for (name, node) in NODES.iter().zip(nodes.drain(..)) {
        let at = make_place(root, &[b"/dev/", name.to_bytes()].concat(), Place::File)?;
        sys::attach(&node, &at)?;
    }
    for (name, target) in LINKS {
        sys::make_link(target, &dev, name)?;
    }
    let options: [(&CStr, &CStr); 3] = [(c"newinstance", c""), (c"ptmxmode", c"0666"), (c"mode", c"620")];
    let pts =
        sys::new_file_system(c"devpts", &options, Attributes::NO_SET_ID.and(Attributes::NO_EXECUTION))?;
    sys::attach(&pts, &make_place(root, b"/dev/pts", Place::Directory)?)?;
    mount_tmpfs(root, b"/dev/shm", shm, 0o1777)?;
    freeze(root, b"/dev")
}

fn write_all(file: &Descriptor, mut bytes: &[u8]) -> sys::Result<()> {
    while !bytes.is_empty() {
        match sys::write(file, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Returns the digits of a number.
fn number(mut number: u64, base: u64) -> Vec<u8> {
    let mut digits = Vec::new();
    loop {
        digits.insert(0, b'0' + u8::try_from(number % base).unwrap_or(0));
        number /= base;
        if number == 0 {
            return digits;
        }
    }
}

fn text(bytes: &[u8]) -> sys::Result<CString> {
    CString::new(bytes).map_err(|_| Errno::INVAL)
}
