//! Checks the values of flags before anything else is read, so that one message names every fault.

use exeat_policy::{Action, Note, PolicyBuilder, TlsCheck};

use crate::fault::{Fault, Position};
use crate::load::{add, is_set};
use crate::named::groups;
use crate::reading::settings_of;
use crate::request::PolicyRequest;

/// Returns the faults in the values of flags, each with its flag. Files that flags name are not read.
pub fn flag_faults(args: &PolicyRequest) -> Vec<(String, Fault)> {
    let mut faults = Vec::new();
    let mut keep = |flag: &str, found: Result<(), Fault>| {
        faults.extend(found.err().map(|fault| (flag.to_owned(), fault)));
    };
    let mut grants = PolicyBuilder::new();
    grants
        .allow_any(is_set(args, "network.allow_any"))
        .allow_shared_suffix(is_set(args, "network.allow_shared_suffix"));
    for (flag, action, rules) in
        [("--allow", Action::Allow, &args.allow), ("--deny", Action::Deny, &args.deny)]
    {
        for rule in rules.iter().filter(|rule| !rule.starts_with('@')) {
            keep(flag, add(&mut grants, flag, rule, action, Note::default()));
        }
    }
    for rule in args.tls_off.iter().filter(|rule| !rule.starts_with(['!', '@'])) {
        let note = Note { tls: TlsCheck::Off, ..Note::default() };
        keep("--tls-off", add(&mut grants, "--tls-off", rule, Action::Allow, note));
    }
    for name in args.preset.iter().filter(|name| *name != "auto") {
        keep("--preset", groups(name, None).map(drop));
    }
    keep("--set", settings_of(&args.set).map(drop));
    faults
}

/// Joins faults of flags in one; `None` without any.
pub fn join_faults(mut faults: Vec<(String, Fault)>) -> Option<Fault> {
    if faults.len() < 2 {
        return faults.pop().map(|(_, fault)| fault);
    }
    let (mut messages, mut places) = (Vec::new(), Vec::new());
    for (flag, fault) in faults {
        let message = match &fault.source {
            Some(source) => format!("{}: {source}", fault.message),
            None => fault.message.clone(),
        };
        let message = if message.contains(&flag) { message } else { format!("{flag}: {message}") };
        let hint = fault.hint.as_ref().map(|hint| format!("\n  = {hint}")).unwrap_or_default();
        messages.push(format!("{message}{hint}"));
        let meant = fault.meant.or(fault
            .hint
            .as_deref()
            .and_then(|hint| hint.strip_prefix("probably meant: "))
            .map(str::to_owned));
        if fault.places.is_empty() {
            places.push(Position { meant, ..Position::new(flag, None, message) });
        } else {
            places.extend(fault.places);
        }
    }
    Some(Fault::input(messages.join("\n")).at(places))
}
