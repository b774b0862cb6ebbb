//! What a stage declares: its effects, where it declares them, and their paths on this machine.

use std::path::PathBuf;

use exeat_files::fault::Excess;
use exeat_files::request::{Bind, Declared};
use exeat_policy::file::PathSpec;
use exeat_policy::{EffectSet, OnExcess, shell_word};

use crate::fault::Fault;
use crate::machine::Machine;
use crate::named::place_error;
use crate::request::PolicyRequest;

/// Declared effects.
#[derive(Debug)]
pub(crate) struct Declaration {
    pub(crate) set: EffectSet,
    /// The file, or the flag.
    pub(crate) shown: String,
    /// The line of each path; empty if the effects are no text.
    pub(crate) lines: Vec<(PathSpec, u32)>,
}

impl Declaration {
    /// Returns the line that declares a path.
    pub(crate) fn line(&self, path: &PathSpec) -> Option<u32> {
        self.lines.iter().find(|(other, _)| other == path).map(|(_, line)| *line)
    }

    /// Returns the paths on this machine, which bound what is granted, and what else is declared beyond that. `granted` says that something
    /// else grants hosts, `grants` that nothing else grants anything.
    pub(crate) fn place(
        &self,
        beyond: Vec<Excess>,
        on_excess: Option<OnExcess>,
        (granted, grants): (bool, bool),
        args: &PolicyRequest,
        machine: &Machine,
    ) -> Result<Declared, Fault> {
        let place = |path: &PathSpec| -> Result<PathBuf, Fault> {
            machine
                .place(path, &machine.base)
                .map_err(|error| place_error(&self.shown, self.line(path), "a declared path", error))
        };
        let flags = flags_of(&args.ro, "--ro").chain(flags_of(&args.rw, "--rw"));
        Ok(Declared {
            read: self.set.fs_read().map(place).collect::<Result<_, _>>()?,
            write: self.set.fs_write().map(place).collect::<Result<_, _>>()?,
            narrow: on_excess == Some(OnExcess::Narrow),
            beyond,
            grants,
            instead: if granted { Vec::new() } else { flags.collect() },
            name: self.shown.clone(),
        })
    }
}

/// Returns binds as flags.
fn flags_of<'a>(binds: &'a [Bind], flag: &'a str) -> impl Iterator<Item = String> + 'a {
    binds.iter().map(move |bind| format!("{flag} {}", shell_word(&bind.host.display().to_string())))
}
