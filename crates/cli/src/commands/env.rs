//! `exeat env`: prints the environment that a stage would get, with reasons. Runs nothing.

use std::fmt::Write as _;

use exeat_policy::printable;
use exeat_runner::{DroppedVariable, Variable};
use serde_json::json;

use crate::args::EnvArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::request;
use crate::stdio;

/// Prints every variable with its value and its origin.
pub(crate) fn run(args: EnvArgs) -> Result<Exit, Failure> {
    let json = args.format.is_json();
    let (request, notes) = request::env(args, crate::request::here()?)?;
    for note in &notes {
        stdio::line("note", note);
    }
    let upstream = request.upstream.as_ref().map(ToString::to_string);
    let environment = exeat_runner::environment(&request);
    for note in &environment.notes {
        stdio::line("note", note);
    }
    let mut text = String::new();
    if json {
        let all = environment.variables.iter().map(|Variable { name, value, why, .. }| {
            json!({"name": name.to_string_lossy(), "value": value.to_string_lossy(), "why": why.to_string()})
        });
        let _ = writeln!(text, "{}", serde_json::Value::Array(all.collect()));
    } else {
        for Variable { name, value, why, .. } in &environment.variables {
            let shown = format!("{}={}", name.to_string_lossy(), value.to_string_lossy());
            let _ = writeln!(text, "{}  # {why}", printable(&shown));
        }
        if let Some(upstream) = upstream {
            let _ =
                writeln!(text, "# not in it: the upstream proxy {upstream}, through which exeat connects");
        }
        for DroppedVariable { name, why, .. } in &environment.dropped {
            let _ = writeln!(text, "# not passed: {name} ({why})");
        }
    }
    stdio::out(&text, json)?;
    Ok(Exit::Yes)
}
