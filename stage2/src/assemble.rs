//! Makes the file tree of a sandbox for bubblewrap, and becomes bubblewrap, which gets the tree as one mount.
//!
//! It happens in mount namespaces that only this sandbox sees. An ordinary user needs a user namespace for it, in which bubblewrap
//! makes the sandbox's own; root may mount in the user namespace of the host, and does it as the stage's user: that user's permissions say
//! what may be opened, and what is made belongs to it.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::convert::Infallible;

use exeat_contract::{ASSEMBLY, Assembly, NOBODY, Step};

use crate::control::Control;
use crate::mounts;
use crate::sys::{self, Errno};
use crate::{During, Failure, harden};

/// Makes the file tree, and becomes bubblewrap. Its execution closes the control socket.
pub(crate) fn assemble(control: &Control) -> Result<Infallible, Failure> {
    let reaper = sys::parent();
    let assembly = control.receive_assembly().during(Step::ReadConstruction)?;
    enter_namespace(&assembly)?;
    // The change of the user has cancelled the request that was made before, and the reaper may have ended since.
    sys::ask_for_parent_death(sys::SIGKILL).during(Step::TakeUser)?;
    if sys::parent() != reaper {
        return Err(Errno::SRCH).during(Step::TakeUser);
    }
    // Places get the permission bits that they are made with.
    let umask = sys::set_umask(0);
    mounts::attach_staged(&assembly.staged).during(Step::Stage)?;
    if !assembly.mounts.is_empty() {
        // Each source is a descriptor until it is attached.
        let limit = harden::raise_descriptor_limit().during(Step::MakeRoot)?;
        let on_sources = || if assembly.becomes_user { sys::allow_places() } else { Ok(()) };
        mounts::make_tree(control, ASSEMBLY.as_bytes(), &assembly.mounts, on_sources)?;
        harden::restore_descriptor_limit(limit).during(Step::MakeRoot)?;
    }
    sys::set_umask(umask);
    let text = |bytes: &Vec<u8>| CString::new(bytes.as_slice()).map_err(|_| Errno::INVAL);
    let words = [&assembly.program].into_iter().chain(&assembly.arguments).map(text);
    let words: Vec<CString> = words.collect::<sys::Result<_>>().during(Step::ExecuteBwrap)?;
    let program = words.first().ok_or(Errno::INVAL).during(Step::ExecuteBwrap)?;
    // It gets no capability, since its user is not root (capabilities(7), "Transformation of capabilities during execve()").
    let environment: [CString; 0] = [];
    Err(sys::execve(program, &words, &environment)).during(Step::ExecuteBwrap)
}

/// Enters a mount namespace in which this process has the right to mount, as the stage's user.
fn enter_namespace(assembly: &Assembly) -> Result<(), Failure> {
    let (uid, gid) = assembly.ids;
    if assembly.becomes_user {
        sys::enter_new_mount_namespace().during(Step::MakeNamespace)?;
        return sys::become_user_that_mounts(uid, gid).during(Step::TakeUser);
    }
    sys::enter_new_user_namespace().during(Step::MakeNamespace)?;
    sys::map_user(NOBODY, uid, gid).during(Step::TakeUser)
}
