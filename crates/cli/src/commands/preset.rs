//! `exeat preset`: lists the presets, or prints what one of them allows.

use std::fmt::Write as _;

use exeat_compose::{PolicyRequest, preset_fault};
use exeat_policy::preset::{self, Preset, PresetOrProfile, Profile};
use exeat_policy::{Origin, printable, shell_word};
use serde_json::{Value, json};

use crate::args::PresetArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::stdio;
use crate::terminal::Paint;

/// Lists the presets, or shows those that were named.
pub(crate) fn run(args: &PresetArgs, out: Paint) -> Result<Exit, Failure> {
    let text = if !args.names.is_empty() {
        presets_text(args, out)?
    } else if args.format.is_json() {
        format!("{}\n", Value::Array(preset::groups().iter().map(object).collect()))
    } else {
        list(out)
    };
    stdio::out(&text, args.format.is_json())?;
    Ok(Exit::Yes)
}

fn presets_text(args: &PresetArgs, out: Paint) -> Result<String, Failure> {
    let mut groups: Vec<&'static Preset> = Vec::new();
    for name in &args.names {
        let expanded = preset::expand(name).map_err(|error| match (name.as_str(), args.names.get(1)) {
            ("show" | "list", Some(first)) => {
                preset_fault(&error, None).hint(format!("exeat preset {}", shell_word(first)))
            }
            _ => preset_fault(&error, None),
        })?;
        for group in expanded {
            if !groups.iter().any(|known| known.name == group.name) {
                groups.push(group);
            }
        }
    }
    let asked = if args.ask { ask(args, &groups)? } else { Vec::new() };
    if args.format.is_json() {
        let objects = groups.iter().map(|group| {
            let mut value = object(group);
            if let (Some(found), Some(value)) = (hosts(&asked, group), value.as_object_mut()) {
                value.insert("asked".into(), found.into());
            }
            value
        });
        return Ok(format!("{}\n", Value::Array(objects.collect())));
    }
    let mut text = String::new();
    for name in &args.names {
        if let Some(PresetOrProfile::Profile(Profile { members, .. })) = preset::find(name) {
            let _ = writeln!(text, "{name} is {}\n", members.join(", "));
        }
    }
    for group in groups {
        show(group, hosts(&asked, group), out, &mut text);
    }
    Ok(text)
}

fn list(out: Paint) -> String {
    let mut text = String::new();
    let width = preset::names().map(str::len).max().unwrap_or(0);
    for group in preset::groups() {
        let risk = group.risk.as_str();
        let risk = if risk == "high" { out.odd("high  ") } else { format!("{risk:6}") };
        let asks = group.from_client.map(|client| format!("  (asks {client})")).unwrap_or_default();
        let _ = writeln!(text, "{:width$}  {risk}  {}{asks}", group.name, printable(&group.description));
    }
    let _ = writeln!(text, "\nprofiles, each several of them:");
    for Profile { name, members, .. } in preset::profiles() {
        let members = if members.is_empty() { "nothing".to_owned() } else { members.join(", ") };
        let _ = writeln!(text, "{name:width$}  {members}");
    }
    let _ = writeln!(text, "\nlast looked through on {}", preset::updated());
    text
}

fn show(group: &Preset, asked: Option<Vec<String>>, out: Paint, text: &mut String) {
    let _ = writeln!(text, "{}  {}", out.strong(&group.name), group.description);
    let flags: Vec<_> = group.flags.iter().map(|flag| flag.as_str()).collect();
    let flags = if flags.is_empty() { String::new() } else { format!("; {}", flags.join(", ")) };
    let _ = writeln!(text, "  risk     {}{flags}", group.risk);
    if let Some(note) = &group.note {
        let _ = writeln!(text, "  note     {note}");
    }
    if let Some(client) = group.from_client {
        let _ = writeln!(text, "  hosts    those that {client} is configured for here (--ask asks it)");
    }
    for host in asked.iter().flatten() {
        let _ = writeln!(text, "  asked    {}", printable(host));
    }
    for rule in &group.allow {
        let _ = writeln!(text, "  allow    {}", rule.spec);
    }
    if !group.detect.is_empty() {
        let _ = writeln!(text, "  auto     {}", group.detect.join(" "));
    }
    if !group.url_rules.is_empty() {
        let _ = writeln!(
            text,
            "  left out {} (a path cannot be allowed without its host)",
            group.url_rules.join(" ")
        );
    }
    text.push('\n');
}

fn object(group: &Preset) -> Value {
    json!({
        "name": group.name, "description": group.description, "risk": group.risk.as_str(),
        "flags": group.flags.iter().map(|flag| flag.as_str()).collect::<Vec<_>>(),
        "note": group.note, "asks": group.from_client.map(|client| client.as_str()),
        "allow": group.allow.iter().map(|rule| rule.spec.to_string()).collect::<Vec<_>>(),
        "detect": group.detect,
    })
}

type HostsByPreset = Vec<(String, Vec<String>)>;

fn hosts(asked: &HostsByPreset, group: &Preset) -> Option<Vec<String>> {
    asked.iter().find(|(name, _)| *name == group.name).map(|(_, hosts)| hosts.clone())
}

/// Asks the clients as a run would: within the same ceilings, and with the caller's own rules.
fn ask(args: &PresetArgs, groups: &[&'static Preset]) -> Result<HostsByPreset, Failure> {
    let policy = PolicyRequest {
        preset: args.names.clone(),
        allow: args.allow.clone(),
        ceiling: args.ceiling.clone(),
        asks_anew: true,
        uses_project: true,
        ..PolicyRequest::default()
    };
    let loaded = crate::request::compose(&policy, &crate::request::here()?, false)?;
    for note in loaded.lines() {
        stdio::line("note", note);
    }
    let found = |group: &Preset| {
        let rules = loaded.policy.rules().iter();
        let of_group =
            rules.filter(|rule| matches!(&rule.origin, Origin::Preset { name, .. } if *name == group.name));
        of_group.map(|rule| rule.text.clone()).collect()
    };
    let asking = groups.iter().filter(|group| group.from_client.is_some());
    Ok(asking.map(|group| (group.name.clone(), found(group))).collect())
}
