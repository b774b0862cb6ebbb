//! Tries each step of a run on this host, and reports which ones work.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub use exeat_sandbox::Fix;
pub use exeat_sandbox::doctor::{NOTHING_RUNS, StepFinding, StepOutcome};
use exeat_sandbox::{Builder, Enforced, Identity, RefusingLayer, is_nested};
use nix::unistd::{AccessFlags, access};

use crate::backend::check::build_sandbox;
use crate::backend::choice::{Choice, choose_anew};
use crate::backend::memory::forget_in;
use crate::dirs;
use crate::error::{Error, chain};
use crate::identity::StageUser;
use crate::limits::delegated;
use crate::signing::{key_place, state_place};

/// The id of the only finding inside a run: no other step is tried there.
pub const NESTED: &str = "nested";

/// Tries each step on this host in an environment, and removes what it made.
#[must_use]
pub fn examine(env: &BTreeMap<OsString, OsString>) -> Vec<StepFinding> {
    if is_nested() {
        // Each step would fail for this reason, with a fix that does not help.
        return vec![nested()];
    }
    let cwd = Path::new(".");
    // Root's stage becomes another user first, with that user's rights to namespaces. A missing directory is reported below.
    let who = StageUser::for_directory(cwd).unwrap_or(StageUser::Caller);
    let identity = who.identity().0;
    let (mut findings, bwrap) = exeat_sandbox::doctor::examine(identity);
    // What was found before this may have been mended since.
    if let Some(place) = key_place(state_place(env).ok().as_ref()) {
        forget_in(&place);
    }
    let choice = choose_anew(&who);
    if matches!(&choice, Ok(Choice { builder: Builder::Native, .. })) {
        findings.iter_mut().for_each(put_aside);
    }
    let chosen = choice.as_ref().ok().map(|choice| choice.builder.clone());
    let builder = chosen.unwrap_or_else(|| bwrap.map_or(Builder::Native, Builder::for_bwrap));
    findings.extend(choice.ok().map(|choice| {
        StepFinding::held("backend", "what builds the sandbox with --backend auto", choice.describe())
    }));
    findings.extend(whole(&builder, &who));
    findings.extend((builder != Builder::Native).then(|| native(&who)));
    findings.extend(nix::unistd::geteuid().is_root().then(|| another_user(&who)));
    findings.push(run_directory(env, identity));
    findings.push(record(env));
    findings.push(cgroup());
    findings
}

/// Reports a step that bubblewrap fails, where exeat builds the sandbox itself.
fn put_aside(finding: &mut StepFinding) {
    if finding.found == StepOutcome::Absent {
        finding.found = StepOutcome::Aside;
        finding.costs = Some("exeat builds the sandbox itself".into());
    }
}

/// Returns whether a run can start here: no required step fails.
#[must_use]
pub fn can_run(findings: &[StepFinding]) -> bool {
    findings.iter().all(|finding| finding.found != StepOutcome::Absent)
}

/// Reports that this process is inside a run.
fn nested() -> StepFinding {
    StepFinding {
        found: StepOutcome::Absent,
        because: RefusingLayer::Nested.as_str().map(str::to_owned),
        costs: Some(NOTHING_RUNS.into()),
        fix: RefusingLayer::Nested.fix(Path::new("bwrap")),
        ..StepFinding::held(NESTED, "no run around this one", "this is the sandbox of a run")
    }
}

/// Tries a whole sandbox with its helper, and its network from the host.
fn whole(builder: &Builder, who: &StageUser) -> Vec<StepFinding> {
    let (id, step) = ("sandbox", "a whole sandbox, up to the helper's hello");
    match build_sandbox(builder, who) {
        Ok(offer) => {
            let (gateway, way) = ("gateway", "the gateway: the sandbox's network, configured from the host");
            let gateway = match offer.network(&offer.inside_process(None), true) {
                Ok(_) => StepFinding::held(gateway, way, "configured"),
                Err(error) => {
                    let costs = "programs that ignore HTTPS_PROXY reach nothing; sandbox.transparent=on and --host-port are refused";
                    StepFinding::partial(gateway, way, chain(&error), costs)
                }
            };
            vec![StepFinding::held(id, step, "made"), gateway]
        }
        Err(Error::Sandbox(error)) => vec![StepFinding::absent(id, step, &error)],
        Err(error) => vec![StepFinding {
            found: StepOutcome::Absent,
            costs: Some(NOTHING_RUNS.into()),
            fix: error.fix().map(Fix::words),
            ..StepFinding::held(id, step, chain(&error))
        }],
    }
}

/// Tries the back end that is not the default here.
fn native(who: &StageUser) -> StepFinding {
    let (id, step) = ("native", "a sandbox that exeat builds itself");
    match build_sandbox(&Builder::Native, who) {
        Ok(_) => StepFinding::held(id, step, "made"),
        Err(error) => StepFinding {
            found: StepOutcome::Aside,
            fix: error.fix().map(Fix::words),
            ..StepFinding::partial(id, step, chain(&error), "--backend native does not start")
        },
    }
}

/// Reports whether root's stage gets its own user here.
fn another_user(who: &StageUser) -> StepFinding {
    let (id, step) = ("identity", "root's files, mounted for another user");
    let Enforced::Partial { missing } = who.identity().1 else {
        return StepFinding::held(id, step, "here, in the working directory");
    };
    let fix = who.fix().map(Fix::words);
    StepFinding { fix, ..StepFinding::partial(id, step, missing, "--require full refuses to run here") }
}

fn run_directory(env: &BTreeMap<OsString, OsString>, identity: Identity) -> StepFinding {
    let (id, step) = ("run_directory", "a private place for sockets");
    // A run would make it in the same place.
    let runtime = env.get(OsStr::new("XDG_RUNTIME_DIR")).map(Path::new);
    let base = dirs::base(runtime.filter(|_| identity == Identity::Caller));
    let found = writable(id, step, &base, NOTHING_RUNS);
    let is_held = found.found == StepOutcome::Held;
    StepFinding { found: if is_held { StepOutcome::Held } else { StepOutcome::Absent }, ..found }
}

fn record(env: &BTreeMap<OsString, OsString>) -> StepFinding {
    let (id, step) = ("record", "a place for records");
    let costs = "nothing runs without --audit FILE";
    let place = state_place(env);
    let mut found = match place.and_then(|place| place.check_home().map(|()| place).map_err(Error::Place)) {
        Ok(place) => writable(id, step, place.dir(), costs),
        Err(error) => StepFinding::partial(id, step, chain(&error), costs),
    };
    if found.found != StepOutcome::Held {
        let words = || Fix::words("set HOME or XDG_STATE_HOME, or name a file with --audit");
        found.fix.get_or_insert_with(words);
    }
    found
}

/// Reports whether this user can write to a directory, or to its nearest existing parent.
fn writable(id: &'static str, step: &'static str, dir: &Path, costs: &str) -> StepFinding {
    let there = dir.ancestors().find(|above| above.exists()).unwrap_or(Path::new("/"));
    match access(there, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => StepFinding::held(id, step, dir.display().to_string()),
        Err(errno) => {
            let seen = format!("{}: {}", there.display(), errno.desc());
            let fix = fs::metadata(there).is_ok_and(|meta| meta.uid() == nix::unistd::geteuid().as_raw());
            let fix = fix.then(|| Fix::command_on("chmod u+wx", there));
            StepFinding { fix, ..StepFinding::partial(id, step, seen, costs) }
        }
    }
}

/// Looks for a control group whose memory the kernel bounds (cgroups(7)), which `--memory` uses.
fn cgroup() -> StepFinding {
    let (id, step) = ("cgroup", "a control group for --memory");
    match delegated() {
        Some(above) => StepFinding {
            found: StepOutcome::Aside,
            ..StepFinding::held(id, step, format!("the kernel holds --memory, in {}", above.display()))
        },
        None => {
            let costs =
                "--memory is watched by exeat, which is not exact; the other limits need no control group";
            let fix = Some(Fix::words(
                "a unit of your session, as an ordinary user: systemd-run --user --scope exeat run ...",
            ));
            StepFinding {
                found: StepOutcome::Aside,
                fix,
                ..StepFinding::partial(id, step, "none of yours counts memory here", costs)
            }
        }
    }
}
