//! `exeat audit replay`: what another policy would have decided about recorded attempts.

use std::path::Path;

use exeat_audit::replay::Replay;
use exeat_policy::Target;
use exeat_record::today;

use super::Out;
use crate::args::Format;
use crate::args::audit::ReplayArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::stdio;

/// Replays the records with another policy, and prints the decisions that differ.
pub(crate) fn run(args: &ReplayArgs) -> Result<Exit, Failure> {
    let is_stdin = |path: &Path| path.as_os_str() == "-";
    let policies = args.policy.policy.iter().chain(&args.policy.ceiling);
    if args.records.runs.iter().any(|path| is_stdin(path)) && policies.clone().any(|path| is_stdin(path)) {
        return Err(Failure::input("`-` is a record and a policy, and stdin is read once"));
    }
    let loaded = crate::request::compose_some(&args.policy.request(), &crate::request::here()?)?;
    for note in loaded.lines().map(String::as_str).chain(loaded.policy.terms().note()) {
        stdio::line("note", note);
    }
    let entrusted = |target: &Target| loaded.next_hop.as_ref().is_some_and(|hop| hop.carries(target));
    let mut replay = Replay::new(&loaded.policy, &entrusted, today());
    let read = super::each(&args.records, |record| {
        replay.take(record);
        Ok(())
    })?;
    super::note_signature();
    replay.finish();
    let mut out = Out::new();
    let printed = match args.format {
        Format::Text => replay.text(&mut out),
        Format::Json => replay.json(&mut out),
    };
    out.finish(printed).map_err(|(super::Stopped::Reading(error) | super::Stopped::Writing(error))| {
        Failure::Stdout(error)
    })?;
    Ok(match read {
        _ if replay.differs() => Exit::No,
        Exit::Yes if replay.is_unsure() => Exit::CouldNot,
        read => read,
    })
}
