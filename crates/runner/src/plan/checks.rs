//! Checks what a request asks of this machine, and what it cannot have together.

use std::fs;

use exeat_policy::{Loopback, Transparent, UnixSockets};
use nix::sys::resource::{Resource, getrlimit};

use crate::error::Error;
use crate::request::{Hardening, Request};

/// Returns a line if a crash of the stage gives its memory to a program on the host. A limit of 1 byte prevents that. A limit of 0 does
/// not, and cannot be raised (do_coredump, fs/coredump.c; setrlimit(2)).
pub(super) fn core_dump_note() -> Option<String> {
    let (_, hard) = getrlimit(Resource::RLIMIT_CORE).ok()?;
    let is_piped =
        || fs::read("/proc/sys/kernel/core_pattern").is_ok_and(|pattern| pattern.starts_with(b"|"));
    (hard == 0 && is_piped()).then(|| {
        "the hard limit of core files is 0 here, so a crash of the stage hands its memory to the program in /proc/sys/kernel/core_pattern; \
         `ulimit -Hc 1` or more, where the limit is set, prevents that"
            .to_owned()
    })
}

/// Refuses what a run that goes through another proxy cannot have.
pub(super) fn check_other_proxy(request: &Request) -> Result<(), Error> {
    for (is_asked, what) in [
        (!request.host_ports.is_empty(), "a port of this machine"),
        (!request.policy.rules().is_empty(), "a policy"),
        (request.socks5, "SOCKS5"),
        (request.upstream.is_some(), "an upstream proxy"),
        (request.transparent == Transparent::On, "the transparent gateway"),
        (request.limits.connections_per_host.is_some(), "a limit of connections to one host"),
    ] {
        if is_asked {
            return Err(Error::ViaAnd(what));
        }
    }
    Ok(())
}

/// Decides whether the stage has Unix sockets; `exposed` says that sockets of the host are in sight. Also returns a line if the request
/// opens them nevertheless. If the stage then has them, the file view is not fully enforced.
pub(super) fn decide_unix_sockets(request: &Request, exposed: bool) -> (bool, Option<&'static str>) {
    match request.hardening.unix_sockets {
        UnixSockets::Off => (false, None),
        UnixSockets::Auto => (!exposed, None),
        UnixSockets::On if !exposed => (true, None),
        UnixSockets::On if !request.files.bounds.is_empty() => {
            let line =
                "the stage has no Unix sockets: below a ceiling, `--set sandbox.unix_sockets=on` opens none";
            (false, Some(line))
        }
        UnixSockets::On => {
            let line = "the stage can connect to sockets of the host that are in sight (--set sandbox.unix_sockets=on)";
            (true, Some(line))
        }
    }
}

/// Checks that the kernel supports the requested hardening.
pub(super) fn can_harden(Hardening { loopback, debuggable, .. }: Hardening) -> Result<(), Error> {
    let abi = exeat_sandbox::enforce::landlock_abi();
    if loopback == Loopback::Proxy && abi < 4 {
        return Err(Error::Landlock { what: "a loopback with the proxy alone", linux: "6.7" });
    }
    // Without a Landlock domain pid 1 could be traced, too.
    if debuggable && abi < 2 {
        return Err(Error::Landlock { what: "a stage that may trace its own processes", linux: "5.19" });
    }
    Ok(())
}
