//! Builds a sandbox around this process, the pid 1 of its namespaces, and stays until the stage has ended.
//!
//! The host side has made the namespaces (clone(2)) and written the maps of users and groups. This process has every capability in its
//! user namespace until the file tree stands, and none from then on.

use alloc::vec::Vec;

use exeat_contract::{Construction, NOBODY, Step};

use crate::control::Control;
use crate::mounts;
use crate::sys::{self, Errno, Pid};
use crate::{During, Failure, harden, loopback};

/// Builds the sandbox. Returns in the process that is to become the stage; the other one ends with its exit code.
pub(crate) fn build(control: &Control) -> Result<Construction, Failure> {
    // The request of the process that started this one would not outlive an exchange of it by `execve` with other credentials.
    sys::ask_for_parent_death(sys::SIGTERM).during(Step::ReadConstruction)?;
    let construction = control.receive_construction().during(Step::ReadConstruction)?;
    if construction.becomes_user {
        sys::become_user(NOBODY).during(Step::TakeUser)?;
        sys::ask_for_parent_death(sys::SIGTERM).during(Step::TakeUser)?;
    }
    // Places get the permission bits that they are made with.
    let umask = sys::set_umask(0);
    mounts::attach_staged(&construction.staged).during(Step::Stage)?;
    harden::raise_descriptor_limit().during(Step::MakeRoot)?;
    let tree = mounts::make_tree(control, b"/", &construction.mounts, || Ok(()))?;
    tree.enter().during(Step::LeaveHost)?;
    drop(tree);
    // This needs a capability.
    loopback::ensure_up().during(Step::LoopbackUp)?;
    sys::drop_capabilities().during(Step::DropCapabilities)?;
    sys::forbid_new_privileges().during(Step::DropCapabilities)?;
    // No process of the sandbox may inspect this one, and none may inspect the other one before it executes the stage.
    sys::forbid_dumps().during(Step::DropCapabilities)?;
    for filter in &construction.filters {
        harden::install_filter(filter).during(Step::Seccomp)?;
    }
    sys::set_name(c"exeat-init").during(Step::StartStage)?;
    sys::restore_sigchld().during(Step::StartStage)?;
    match sys::fork().during(Step::StartStage)? {
        None => {
            sys::set_umask(umask);
            sys::set_name(c"stage2").during(Step::StartStage)?;
            // Only pid 1 may keep these.
            for number in [Some(construction.lifeline), construction.held].into_iter().flatten() {
                drop(sys::take_inherited(number));
            }
            Ok(construction)
        }
        Some(stage) => stay(&stage, construction.lifeline, construction.held),
    }
}

/// Reaps what the kernel hands to pid 1, until the stage has ended, the host side is gone or asks for the end. Every other process of
/// the sandbox ends then.
fn stay(stage: &Pid, lifeline: i32, held: Option<i32>) -> ! {
    /// A shell's exit code for a process that SIGKILL ended.
    const KILLED: u8 = 128 + 9;
    /// Children to reap between two looks at the lifeline and the signals.
    const REAPED: u32 = 64;
    let kept = [Some(lifeline), held];
    let kept: Vec<i32> = kept.into_iter().flatten().collect();
    let ready = sys::close_all_except(&kept).and_then(|()| {
        Ok((sys::take_inherited(lifeline)?, sys::signal_descriptor([sys::SIGCHLD, sys::SIGTERM])?))
    });
    let Ok((lifeline, signals)) = ready else { end(KILLED) };
    let mut has_more = false;
    loop {
        let Ok([is_over, has_come]) = sys::input([&lifeline, &signals], !has_more) else { end(KILLED) };
        let signal = if has_come { sys::take_signal(&signals).ok() } else { None };
        // The kernel sends SIGTERM when the parent has ended. A process of the sandbox may send it, too.
        if is_over || signal.is_some_and(|it| it.number == sys::SIGTERM && it.is_from_outside) {
            end(KILLED);
        }
        has_more = true;
        // The stage may make orphans faster than they are reaped here.
        for _ in 0..REAPED {
            match sys::reap(false) {
                Ok(Some(ended)) if stage.is(ended.pid) => end(ended.code),
                Ok(Some(_)) => {}
                Ok(None) => {
                    has_more = false;
                    break;
                }
                // Without the stage nothing is left to wait for.
                Err(_) => end(KILLED),
            }
        }
    }
}

/// Ends the sandbox: every other process first, so that a descriptor that is held is closed after the last of them.
fn end(code: u8) -> ! {
    sys::kill_all();
    while !matches!(sys::reap(true), Err(Errno::CHILD)) {}
    sys::exit_now(code.into())
}
