//! Refuses rules about hosts in a run through another proxy (`--via`): that proxy's policy decides about hosts.

use crate::fault::Fault;
use crate::named::LoadedFile;
use crate::request::PolicyRequest;

/// Refuses flags about hosts.
pub(crate) fn refuse_flags(args: &PolicyRequest) -> Result<(), Fault> {
    // Every field is named, so that a new one must be classified here.
    let PolicyRequest {
        allow,
        deny,
        tls_off,
        host_port,
        preset,
        policy: _,  // its hosts: `files`
        ceiling: _, // the same
        effects,
        mode,
        upstream_proxy,
        set: _,      // as a file
        rules: _,    // the caller refuses it
        layers: _,   // the same
        next_hop: _, // the same
        // About files, the machine and the record.
        view: _,
        ro: _,
        rw: _,
        mask: _,
        bounds: _,
        allow_write: _,
        work: _,
        cache: _,
        home: _,
        env: _,
        limits: _,
        sandbox: _,
        socks5: _,
        audit_sync: _,
        stage: _,
        site: _,
        uses_project: _,
        via: _,
        asks_anew: _,
        lock: _, // it only narrows, and there is nothing to narrow
    } = args;
    if !host_port.is_empty() {
        let why = "the other proxy's policy holds, and it would dial its own machine";
        return Err(Fault::input(format!("`--host-port` says nothing with `--via`: {why}"))
            .hint("a run without --via, or without --host-port"));
    }
    let about_hosts = [
        ("--allow", !allow.is_empty()),
        ("--deny", !deny.is_empty()),
        ("--tls-off", !tls_off.is_empty()),
        ("--preset", !preset.is_empty()),
        ("--mode", mode.is_some()),
        ("--upstream-proxy", upstream_proxy.is_some()),
    ];
    if let Some((flag, _)) = about_hosts.into_iter().find(|(_, given)| *given) {
        return Err(Fault::input(format!(
            "`{flag}` says nothing with `--via`: the other proxy's policy holds"
        ))
        .hint(format!("give it to that proxy: exeat proxy {flag} ...")));
    }
    if effects.is_some() {
        let why = "it says which hosts the stage may reach, if only that there are none";
        return Err(Fault::input(format!("`--effects` cannot be held with `--via`: {why}"))
            .hint("give the effects to that proxy: exeat proxy --effects ..., and the paths to this run: --ro, --rw"));
    }
    Ok(())
}

/// Refuses files that contain rules about hosts.
pub(crate) fn refuse_files(policies: &[LoadedFile], ceilings: &[LoadedFile]) -> Result<(), Fault> {
    // A ceiling without hosts allows none, so it bounds hosts, too.
    if let Some(ceiling) = ceilings.first() {
        return Err(Fault::input(format!(
            "the ceiling {} bounds the hosts of every run, which cannot be held with `--via`: another proxy decides",
            ceiling.shown
        ))
        .hint("a run without --via, within the ceiling"));
    }
    match policies.iter().find(|named| named.file.network) {
        Some(named) => Err(Fault::input(format!(
            "{} says which hosts are reachable, and with `--via` the other proxy's policy holds",
            named.shown
        ))
        .hint("leave [network] to that proxy: exeat proxy --policy ...")),
        None => Ok(()),
    }
}
