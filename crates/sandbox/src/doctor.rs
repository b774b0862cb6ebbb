//! Finds out what this host allows by trying it: a version or a setting says less.
//!
//! Tries each step alone, with bubblewrap as in a run, so that one failure does not hide the next.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use exeat_contract::{NOBODY, STAGE2};

use crate::STAGE2_IMAGE;
use crate::bwrap::{self, Argv, Word};
use crate::child::Bwrap;
use crate::enforce::{self, Enforced};
use crate::error::Error;
use crate::fix::Fix;
use crate::seccomp;
use crate::spec::{Bytes, Identity};

/// Deadline of one step. A loaded machine takes a second.
const STEP: Duration = Duration::from_secs(10);
/// stage2's exit status without its argument: it was executed, which is what a step has to show.
const EXECUTED: i32 = 2;
/// The oldest supported kernel.
const KERNEL: (u32, u32) = (5, 15);

/// The result of one step that a run takes on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepFinding {
    /// Identifier for programs.
    pub id: &'static str,
    /// Description of the step, for people.
    pub step: &'static str,
    /// Whether it worked.
    pub found: StepOutcome,
    /// Details that the host reported.
    pub seen: String,
    /// The layer that refused, if known.
    pub because: Option<String>,
    /// The capability that the host loses.
    pub costs: Option<String>,
    /// A remedy, if known.
    pub fix: Option<Fix>,
}

/// The outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOutcome {
    /// The step works.
    Held,
    /// Something is missing, and a run reports it.
    Partial,
    /// Without this step, nothing runs.
    Absent,
    /// The step is optional: every run works without it.
    Aside,
}

impl StepOutcome {
    /// Returns the word used in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Partial => "partial",
            Self::Absent => "absent",
            Self::Aside => "aside",
        }
    }
}

/// Cost of a failed step that every run needs.
pub const NOTHING_RUNS: &str = "nothing runs: exit code 125";

impl StepFinding {
    /// Reports a step that worked.
    #[must_use]
    pub fn held(id: &'static str, step: &'static str, seen: impl Into<String>) -> Self {
        Self { id, step, found: StepOutcome::Held, seen: seen.into(), because: None, costs: None, fix: None }
    }

    /// Reports a failed step that every run needs.
    #[must_use]
    pub fn absent(id: &'static str, step: &'static str, error: &Error) -> Self {
        Self {
            found: StepOutcome::Absent,
            because: error.layer().and_then(|layer| layer.as_str()).map(str::to_owned),
            costs: Some(NOTHING_RUNS.into()),
            fix: error.fix(),
            ..Self::held(id, step, brief_message(error))
        }
    }

    /// Reports a step of which a part failed.
    #[must_use]
    pub fn partial(id: &'static str, step: &'static str, seen: impl Into<String>, costs: &str) -> Self {
        Self { found: StepOutcome::Partial, costs: Some(costs.into()), ..Self::held(id, step, seen) }
    }
}

/// Returns an error's message without the prefix that all errors of its kind share.
fn brief_message(error: &Error) -> String {
    match error {
        Error::Bwrap { said, .. } => said.clone(),
        other => other.to_string(),
    }
}

/// Tries every step of the sandbox itself as this user, in the order of a run. Also returns the bubblewrap to use, if any.
#[must_use]
pub fn examine(identity: Identity) -> (Vec<StepFinding>, Option<PathBuf>) {
    let (bubblewrap, path) = bubblewrap();
    let mut findings = vec![kernel(), bubblewrap];
    if let Some(path) = &path {
        findings.extend(ATTEMPTS.iter().map(|attempt| attempt.report(path, identity)));
    }
    findings.push(landlock());
    (findings, path)
}

fn kernel() -> StepFinding {
    let (id, step) = ("kernel", "Linux 5.15 or later");
    let name = nix::sys::utsname::uname();
    let release = name.as_ref().map(|it| it.release().to_string_lossy().into_owned()).unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let seen = format!("Linux {release}, {}", std::env::consts::ARCH);
    if version >= KERNEL {
        StepFinding::held(id, step, seen)
    } else {
        let costs = "exeat was not tried on it: a step may fail, and then nothing runs";
        StepFinding::partial(id, step, seen, costs)
    }
}

fn bubblewrap() -> (StepFinding, Option<PathBuf>) {
    let (id, step) = ("bubblewrap", "bubblewrap 0.8 or later, where only root can change it");
    let path = match bwrap::find() {
        Ok(path) => path,
        // exeat builds the sandbox itself then.
        Err(error) => {
            let costs = "exeat builds the sandbox itself";
            let finding = StepFinding::partial(id, step, error.to_string(), costs);
            return (StepFinding { found: StepOutcome::Aside, fix: error.fix(), ..finding }, None);
        }
    };
    let version = bwrap::version(&path);
    let version = version.unwrap_or_else(|error| format!("which does not tell its version: {error}"));
    let meta = fs::metadata(&path).ok();
    let owner = meta.as_ref().map(|meta| format!(", owner uid {}", meta.uid())).unwrap_or_default();
    let seen = format!("{version} at {}{owner}", path.display());
    let is_setuid = meta.is_some_and(|meta| meta.permissions().mode() & 0o4000 != 0);
    let finding = if is_setuid {
        let costs = "it runs as root until it has made the sandbox, which no user namespace needs";
        let fix = Some(Fix::command_on("sudo chmod u-s", &path));
        StepFinding { fix, ..StepFinding::partial(id, step, format!("{seen}, setuid"), costs) }
    } else {
        StepFinding::held(id, step, seen)
    };
    (finding, Some(path))
}

fn landlock() -> StepFinding {
    let (id, step) = ("landlock", "a Landlock domain with scopes");
    let abi = enforce::landlock_abi();
    let seen = if abi == 0 { "no Landlock".to_owned() } else { format!("ABI {abi}") };
    match enforce::syscalls() {
        Enforced::Full => StepFinding::held(id, step, seen),
        Enforced::Partial { missing } => {
            let ports = if abi < 4 { "; sandbox.loopback=proxy is refused (Linux 6.7)" } else { "" };
            StepFinding::partial(id, step, seen, &format!("{missing}{ports}"))
        }
        Enforced::Absent => StepFinding::partial(id, step, seen, "no Landlock domain"),
    }
}

/// A part of a sandbox that can be tried alone.
struct Attempt {
    id: &'static str,
    step: &'static str,
    options: &'static [&'static str],
    /// Whether to install the filters that every process of a sandbox has.
    filters: bool,
}

const ATTEMPTS: [Attempt; 7] = [
    Attempt { id: "user_namespace", step: "a user namespace", options: &[], filters: false },
    Attempt {
        id: "namespaces",
        step: "namespaces for processes, IPC, host name, cgroups",
        options: &["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup"],
        filters: false,
    },
    Attempt {
        id: "network_namespace",
        step: "a network namespace with loopback alone",
        options: &["--unshare-net"],
        filters: false,
    },
    Attempt {
        id: "proc",
        step: "a /proc of its own",
        options: &["--unshare-pid", "--proc", "/proc"],
        filters: false,
    },
    Attempt { id: "dev", step: "a /dev of its own", options: &["--dev", "/dev"], filters: false },
    Attempt {
        id: "no_nested_namespaces",
        step: "no user namespaces inside",
        options: &["--disable-userns"],
        filters: false,
    },
    Attempt { id: "filters", step: "system-call filters", options: &[], filters: true },
];

impl Attempt {
    fn report(&self, bwrap: &Path, identity: Identity) -> StepFinding {
        match self.make(bwrap, identity) {
            Ok(()) => StepFinding::held(self.id, self.step, "made"),
            Err(error) => StepFinding::absent(self.id, self.step, &error),
        }
    }

    fn make(&self, path: &Path, identity: Identity) -> Result<(), Error> {
        let filters = if self.filters { seccomp::base(false)? } else { Vec::new() };
        let mut bwrap = Bwrap::spawn(path, &self.argv(filters.len()), &filters, identity, None, None)?;
        match bwrap.wait_until(Instant::now() + STEP).map_err(Error::Watch)? {
            Some(Some(EXECUTED)) => Ok(()),
            Some(_) => Err(bwrap.explain()),
            None => Err(Error::Late(STEP)),
        }
    }

    fn argv(&self, filters: usize) -> Argv {
        let nobody = NOBODY.to_string();
        let usual =
            ["--unshare-user", "--uid", &nobody, "--gid", &nobody, "--cap-drop", "ALL", "--die-with-parent"];
        let file = ["--tmpfs", "/run", "--perms", "0555", "--file"];
        let text = |text: &&str| Word::Text((*text).into());
        let mut options: Vec<Word> = usual.iter().chain(self.options).chain(&file).map(text).collect();
        options.push(Word::Data(Bytes(STAGE2_IMAGE.into())));
        options.push(Word::Text(STAGE2.into()));
        for number in 0..filters {
            options.extend([Word::Text("--add-seccomp-fd".into()), Word::Seccomp(number)]);
        }
        Argv { options, command: vec![STAGE2.into()] }
    }
}
