//! Tries a back end on this machine, by building a sandbox with it.

use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use exeat_contract::{BridgeKind, SOCKET, STAGE2};
use exeat_files::permissions::Ids;
use exeat_sandbox::spec::Bytes;
use exeat_sandbox::{Builder, Identity, Launch, Mount, Offer, STAGE2_IMAGE, SandboxSpec};

use super::error::BackendError;
use super::{Backend, BackendReport, unavailable};
use crate::dirs::{self, RunDir};
use crate::error::Error;
use crate::identity::StageUser;
use crate::signals;
use crate::staged::{Staged, TreeFault};

impl Backend {
    /// Tries it here: builds a whole sandbox with the helper, and ends it before any command runs in it. A version or a file mode would
    /// prove less. For root, the sandbox is built as the user that a stage in the working directory would be.
    ///
    /// Takes about as long as a start. A success is remembered for the life of this process. A failure is tried again because the user
    /// may have fixed it.
    #[must_use]
    pub fn check(&self) -> BackendReport {
        static BUILT: BuiltSandboxes = BuiltSandboxes(Mutex::new(Vec::new()));
        let looked = self.builder_name().and_then(|builder| {
            let who = StageUser::for_directory(Path::new("."));
            let who = who.map_err(|error| unavailable(builder.name(), &error))?;
            BUILT.check_once(&(builder, UserKind::from_user(&who)), |builder| {
                build_sandbox(builder, &who).map(drop)
            })
        });
        let (reason, fix) = match looked {
            Ok(()) => (None, None),
            Err(BackendError::Unavailable { reason, fix, .. }) => (Some(reason), fix),
            Err(error) => (Some(error.to_string()), None),
        };
        BackendReport { backend: self.name(), available: reason.is_none(), reason, fix }
    }
}

/// Remembers the executables and users whose sandbox could be built.
struct BuiltSandboxes(Mutex<Vec<BuiltFor>>);

type BuiltFor = (Builder, UserKind);

/// The kind of user that a sandbox is for, as far as it changes the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UserKind {
    /// The caller.
    Caller,
    /// A fresh user for each run.
    Own,
    /// The owner of the working directory, with these ids.
    Owner(Ids),
}

impl UserKind {
    fn from_user(who: &StageUser) -> Self {
        match who {
            StageUser::Caller | StageUser::Kept(_) => Self::Caller,
            StageUser::Own(_) => Self::Own,
            StageUser::Owner(ids, _) => Self::Owner(*ids),
        }
    }
}

impl BuiltSandboxes {
    fn check_once(
        &self,
        it: &BuiltFor,
        build: impl FnOnce(&Builder) -> Result<(), Error>,
    ) -> Result<(), BackendError> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known().contains(it) {
            return Ok(());
        }
        // The lock is not held here: a sandbox that hangs takes its whole deadline.
        build(&it.0).map_err(|error| unavailable(it.0.name(), &error))?;
        known().push(it.clone());
        Ok(())
    }
}

/// Builds the smallest sandbox for this user, and waits for the helper's offer.
pub(crate) fn build_sandbox(builder: &Builder, who: &StageUser) -> Result<Offer, Error> {
    /// Bytes of the file system in memory that contains the helper.
    const RUN_SIZE: u64 = 16 << 20;
    /// Bytes of `/dev/shm`, which stays empty.
    const SHM_SIZE: u64 = 4096;
    let prepare = |what| move |source| Error::Prepare { what, source };
    if signals::children_unseen() {
        return Err(Error::ChildrenUnseen);
    }
    let builder = builder.trusted().map_err(Error::Sandbox)?;
    let identity = who.identity().0;
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| identity == Identity::Caller);
    let base = dirs::base(runtime.as_deref().map(Path::new));
    let dir = RunDir::create(&base).map_err(prepare("the run directory"))?;
    let listener = dir.listen().map_err(prepare("the proxy's socket"))?;
    let staged = match who {
        StageUser::Own(own) => {
            Some(Staged::new(own.ids()).map_err(|why| Error::from(TreeFault::Refused(why)))?)
        }
        StageUser::Caller | StageUser::Owner(..) | StageUser::Kept(_) => None,
    };
    let staging = staged.map(|staged| staged.into_staging(&dir)).transpose();
    let staging = staging.map_err(prepare("the trees of the view"))?;
    if let StageUser::Owner((uid, gid), _) = who {
        dir.give_to(*uid, *gid).map_err(prepare("the run directory"))?;
    }
    // Nothing cancels the start: the write end lives until the offer arrives.
    let (cancel, _hold) = io::pipe().map_err(prepare("a pipe"))?;
    let mounts = vec![
        Mount::Proc,
        Mount::Dev { shm: SHM_SIZE },
        Mount::Tmpfs { at: "/run".into(), size: RUN_SIZE, mode: 0o755 },
        Mount::File { at: STAGE2.into(), bytes: Bytes(STAGE2_IMAGE.into()), mode: 0o555 },
        Mount::ReadOnly { host: dir.socket_path(), at: SOCKET.into() },
    ];
    let spec =
        SandboxSpec { mounts, bridge: BridgeKind::Handoff, socks5: false, identity, debuggable: false };
    Launch { builder, spec, listener, cancel: cancel.into(), staging, expected: Vec::new(), held: None }
        .start()
        .map_err(Error::Sandbox)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K24: a success is remembered, a failure is not.
    #[test]
    fn k24_a_sandbox_that_was_built_is_not_built_again() {
        let stood = BuiltSandboxes(Mutex::default());
        let bwrap = |path: &str| Builder::Bwrap(path.into());
        let it = (bwrap("/x"), UserKind::Own);
        let fails = |_: &Builder| Err(Error::NoCommand);
        assert!(stood.check_once(&it, fails).is_err());
        assert!(stood.check_once(&it, |_| Ok(())).is_ok());
        assert!(stood.check_once(&it, fails).is_ok(), "not remembered");
        for other in [bwrap("/y"), Builder::Native] {
            assert!(stood.check_once(&(other, UserKind::Own), fails).is_err(), "another executable");
        }
        for other in [UserKind::Caller, UserKind::Owner((1, 1)), UserKind::Owner((2, 2))] {
            assert!(stood.check_once(&(bwrap("/x"), other), fails).is_err(), "another user");
            assert!(stood.check_once(&(bwrap("/x"), other), |_| Ok(())).is_ok());
        }
    }
}
