//! Makes the file tree of a sandbox. It decides nothing: the host side says what is mounted where.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;

use exeat_contract::{Message, MountStep, Staged, Step};

use crate::control::Control;
use crate::sys::{self, Attributes, Descriptor, Errno};
use crate::{During, Failure};

/// Attributes of every mount but those of the nodes in `/dev`.
const PLAIN: Attributes = Attributes::NO_SET_ID.and(Attributes::NO_DEVICES);
/// Attributes of a read-only mount.
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

/// Names in `/proc` with settings of the whole machine, which the kernel lets its root change.
const SETTINGS: [&CStr; 3] = [c"sysrq-trigger", c"irq", c"bus"];
/// Files among these that a process may write if it is root to the kernel. The directories are read-only to everybody.
const WRITABLE_SETTINGS: [&CStr; 2] = [c"sysrq-trigger", c"irq/default_smp_affinity"];

/// The list of keys (proc(5)).
const KEYS: &[u8] = b"/proc/keys";

/// The mounts of the host, copied before the sandbox has a root.
struct Sources {
    /// The mount of each step that has one.
    trees: Vec<Option<Descriptor>>,
    nodes: Vec<Descriptor>,
}

/// A step that failed, by its number.
struct FailedMount {
    number: usize,
    errno: Errno,
}

/// Makes the file tree on top of a directory of the host. Calls `on_sources` when every source is open. Reports the step that failed to the
/// host side.
pub(crate) fn make_tree(
    control: &Control,
    at: &[u8],
    steps: &[MountStep],
    on_sources: impl FnOnce() -> sys::Result<()>,
) -> Result<Tree, Failure> {
    let told = |FailedMount { number, errno }| -> Failure {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        // The host side sees the end of the connection in any case.
        let _ = control.send(&Message::Unmounted { number, errno: errno.number() }, &[]);
        Failure { step: Step::MakeRoot, errno }
    };
    let sources = Sources::copy(steps).map_err(told)?;
    on_sources().during(Step::MakeRoot)?;
    let mut tree = Tree::new(at).during(Step::MakeRoot)?;
    tree.fill(steps, sources).map_err(told)?;
    tree.freeze(b"/").during(Step::MakeRoot)?;
    Ok(tree)
}

impl Sources {
    /// Copies the mounts that the steps name. A later mount of the sandbox is in none of them.
    fn copy(steps: &[MountStep]) -> Result<Self, FailedMount> {
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

/// Attaches detached mounts below a directory of the host, which only this sandbox sees.
pub(crate) fn attach_staged(Staged { dir, trees }: &Staged) -> sys::Result<()> {
    if trees.is_empty() {
        return Ok(());
    }
    let options: [(&CStr, &CStr); 2] = [(c"mode", c"0711"), (c"size", c"1m")];
    let cover = sys::new_file_system(c"tmpfs", &options, PLAIN)?;
    sys::attach(&cover, &sys::open(&text(dir)?, sys::O_PATH | sys::O_CLOEXEC)?)?;
    for (name, number) in trees {
        let (tree, name) = (sys::take_inherited(*number)?, text(name)?);
        let place = if sys::is_directory(&tree)? { Place::Directory } else { Place::File };
        make(&cover, &name, place)?;
        sys::attach(&tree, &sys::open_below(&cover, &name)?)?;
    }
    Ok(())
}

/// Copies the mount that a step names, and gives it its attributes.
fn tree_of(step: &MountStep) -> sys::Result<Option<Descriptor>> {
    let MountStep::Bind { source, is_writable, .. } = step else { return Ok(None) };
    let tree = sys::clone_tree(&text(source)?)?;
    sys::set_attributes(&tree, if *is_writable { PLAIN } else { READ_ONLY }, true)?;
    Ok(Some(tree))
}

fn copy_nodes() -> sys::Result<Vec<Descriptor>> {
    NODES
        .iter()
        .map(|name| {
            let node = sys::clone_tree(&text(&[b"/dev/", name.to_bytes()].concat())?)?;
            // A device can be written to on a read-only mount, but its mode, owner and times stay: the node is the host's.
            let attributes = Attributes::NO_SET_ID.and(Attributes::READ_ONLY);
            sys::set_attributes(&node, attributes, true).map(|()| node)
        })
        .collect()
}

/// The file tree of the sandbox while it is made.
pub(crate) struct Tree {
    /// An empty file system in memory.
    base: Descriptor,
    /// The mounts of the host that steps put over the whole of it, the uppermost last.
    over: Vec<Descriptor>,
}

impl Tree {
    /// Makes an empty tree, and attaches it on top of a directory of the host. If that is its root, the paths of this process still
    /// begin below the tree (path_resolution(7)).
    fn new(at: &[u8]) -> sys::Result<Self> {
        let base = sys::new_file_system(c"tmpfs", &[(c"mode", c"0755")], PLAIN)?;
        sys::attach(&base, &sys::open(&text(at)?, sys::O_PATH | sys::O_CLOEXEC)?)?;
        Ok(Self { base, over: Vec::new() })
    }

    /// Carries out the steps.
    fn fill(&mut self, steps: &[MountStep], sources: Sources) -> Result<(), FailedMount> {
        let Sources { trees, mut nodes } = sources;
        for (number, (step, tree)) in steps.iter().zip(trees).enumerate() {
            self.apply(step, tree, &mut nodes).map_err(|errno| FailedMount { number, errno })?;
        }
        Ok(())
    }

    /// Makes the mount at a path read-only, but not the mounts below it.
    fn freeze(&self, at: &[u8]) -> sys::Result<()> {
        sys::set_attributes(&self.open(at)?, Attributes::READ_ONLY, false)
    }

    /// Makes it the root of this process, and leaves the host's file tree.
    pub(crate) fn enter(&self) -> sys::Result<()> {
        sys::replace_root(self.root(), self.over.len())
    }

    fn root(&self) -> &Descriptor {
        self.over.last().unwrap_or(&self.base)
    }

    fn open(&self, at: &[u8]) -> sys::Result<Descriptor> {
        sys::open_below(self.root(), &text(at)?)
    }

    fn apply(
        &mut self,
        step: &MountStep,
        tree: Option<Descriptor>,
        nodes: &mut Vec<Descriptor>,
    ) -> sys::Result<()> {
        match step {
            MountStep::Bind { at, .. } => {
                let tree = tree.ok_or(Errno::INVAL)?;
                let kind = if sys::is_directory(&tree)? { Place::Directory } else { Place::File };
                sys::attach(&tree, &self.make_place(at, kind)?)?;
                if at == b"/" {
                    self.over.push(tree);
                }
                Ok(())
            }
            MountStep::Tmpfs { at, size, mode } => self.mount_tmpfs(at, *size, *mode),
            MountStep::Dir { at } => self.make_place(at, Place::Directory).map(drop),
            MountStep::Pin { at } => self.pin(at),
            MountStep::Symlink { target, at } => {
                let (parent, name) = self.parent_of(at)?;
                sys::make_link(&text(target)?, &parent, &name)
            }
            MountStep::File { at, bytes, mode } => {
                let (parent, name) = self.parent_of(at)?;
                write_all(&sys::make_file(&parent, &name, *mode)?, bytes)
            }
            MountStep::CoverFile { at, bytes } => self.cover(at, bytes),
            MountStep::Proc => self.mount_proc(),
            MountStep::Dev { shm } => self.mount_dev(nodes, *shm),
            MountStep::Freeze { at } => self.freeze(at),
        }
    }

    /// Makes a directory a mount point.
    fn pin(&self, at: &[u8]) -> sys::Result<()> {
        mount_over_itself(&self.make_place(at, Place::Directory)?, PLAIN)
    }

    /// Opens the place for a mount, and makes it if nothing is there.
    fn make_place(&self, at: &[u8], kind: Place) -> sys::Result<Descriptor> {
        match self.open(at) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
        let (parent, name) = self.parent_of(at)?;
        make(&parent, &name, kind)?;
        self.open(at)
    }

    /// Opens the directory above a path, and makes what is missing. Returns the last name too.
    fn parent_of(&self, at: &[u8]) -> sys::Result<(Descriptor, CString)> {
        let cut = at.iter().rposition(|byte| *byte == b'/').ok_or(Errno::INVAL)?;
        let (above, name) = at.split_at_checked(cut + 1).ok_or(Errno::INVAL)?;
        if name.is_empty() {
            return Err(Errno::INVAL);
        }
        let above = match above.strip_suffix(b"/") {
            Some(above) if !above.is_empty() => self.make_place(above, Place::Directory)?,
            _ => self.open(b"/")?,
        };
        Ok((above, text(name)?))
    }

    fn mount_tmpfs(&self, at: &[u8], size: u64, mode: u32) -> sys::Result<()> {
        /// Bytes of the size for each file: about what an empty file takes of the kernel's memory, which the size does not count.
        const EACH: u64 = 1024;
        /// The fewest files of a file system, for the places of mounts.
        const FEWEST: u64 = 16_384;
        let files = text(&number((size / EACH).max(FEWEST), 10))?;
        let size = text(&number(size, 10))?;
        let mode = text(&number(mode.into(), 8))?;
        let options: [(&CStr, &CStr); 3] = [(c"size", &size), (c"nr_inodes", &files), (c"mode", &mode)];
        let file_system = sys::new_file_system(c"tmpfs", &options, PLAIN)?;
        sys::attach(&file_system, &self.make_place(at, Place::Directory)?)
    }

    /// Mounts a read-only file of ours over what is at a path.
    fn cover(&self, at: &[u8], bytes: &[u8]) -> sys::Result<()> {
        /// Nobody sees it: its name is removed before the next step.
        const NAME: &CStr = c".exeat-cover";
        let above = sys::open_below(&self.base, c"/")?;
        write_all(&sys::make_file(&above, NAME, 0o444)?, bytes)?;
        let file = sys::clone_open_tree(&sys::open_below(&above, NAME)?)?;
        sys::set_attributes(&file, READ_ONLY, false)?;
        sys::attach(&file, &self.make_place(at, Place::File)?)?;
        // Not before: the kernel attaches no file without a name.
        sys::remove_file(&above, NAME)
    }

    fn mount_proc(&self) -> sys::Result<()> {
        let proc = sys::new_file_system(c"proc", &[], PLAIN.and(Attributes::NO_EXECUTION))?;
        sys::attach(&proc, &self.make_place(b"/proc", Place::Directory)?)?;
        // No process here gets another user namespace, in which it would have every capability. The filter refuses it too, and the
        // kernel may lack the setting.
        if let Ok(most) = sys::open_to_write_below(&proc, c"sys/user/max_user_namespaces") {
            let _ = sys::write(&most, b"0");
        }
        // Some settings are those of the whole machine: core_pattern names a program of the host.
        self.keep_read_only(b"/proc/sys")?;
        // The files of this process belong to the stage if it keeps root's kernel uid, and change how it runs (`autogroup`, `clear_refs`).
        self.keep_read_only(b"/proc/1")?;
        let mut is_root = false;
        for name in WRITABLE_SETTINGS {
            is_root |= sys::is_writable(&proc, name)?;
        }
        for name in SETTINGS.iter().filter(|_| is_root) {
            // A kernel may be built without it.
            optional(self.keep_read_only(&[b"/proc/", name.to_bytes()].concat()))?;
        }
        // It lists the keys of the caller, too.
        match self.open(KEYS) {
            Ok(_) => self.cover(KEYS, b""),
            Err(errno) => optional(Err(errno)),
        }
    }

    /// Mounts a path in `/proc` over itself, read-only.
    fn keep_read_only(&self, at: &[u8]) -> sys::Result<()> {
        mount_over_itself(&self.open(at)?, READ_ONLY.and(Attributes::NO_EXECUTION))
    }

    fn mount_dev(&self, nodes: &mut Vec<Descriptor>, shm: u64) -> sys::Result<()> {
        /// Bytes of the file system: it has nodes, and no data.
        const SIZE: u64 = 1 << 20;
        self.mount_tmpfs(b"/dev", SIZE, 0o755)?;
        let dev = self.open(b"/dev")?;
        for (name, node) in NODES.iter().zip(nodes.drain(..)) {
            sys::attach(&node, &self.make_place(&[b"/dev/", name.to_bytes()].concat(), Place::File)?)?;
        }
        for (name, target) in LINKS {
            sys::make_link(target, &dev, name)?;
        }
        // All programs of the machine share a number of terminals (kernel.pty.max), of which one stage gets a small part.
        let options: [(&CStr, &CStr); 4] =
            [(c"newinstance", c""), (c"ptmxmode", c"0666"), (c"mode", c"620"), (c"max", c"256")];
        let attributes = Attributes::NO_SET_ID.and(Attributes::NO_EXECUTION);
        let terminals = sys::new_file_system(c"devpts", &options, attributes)?;
        sys::attach(&terminals, &self.make_place(b"/dev/pts", Place::Directory)?)?;
        self.mount_tmpfs(b"/dev/shm", shm, 0o1777)?;
        self.freeze(b"/dev")
    }
}

fn mount_over_itself(place: &Descriptor, attributes: Attributes) -> sys::Result<()> {
    let tree = sys::clone_open_tree(place)?;
    sys::set_attributes(&tree, attributes, true)?;
    sys::attach(&tree, place)
}

/// Accepts that something is missing.
fn optional(done: sys::Result<()>) -> sys::Result<()> {
    match done {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}

/// What has to be at a path before something is mounted there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Directory,
    File,
}

fn make(parent: &Descriptor, name: &CStr, kind: Place) -> sys::Result<()> {
    match kind {
        Place::Directory => sys::make_directory(parent, name, 0o755),
        Place::File => sys::make_file(parent, name, 0o444).map(drop),
    }
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
pub(crate) fn number(mut number: u64, base: u64) -> Vec<u8> {
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
