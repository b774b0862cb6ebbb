//! `exeat prove`: selects the attempts and bridges, and prints the results. [`exeat_prove`] makes the attempts.

use std::collections::BTreeSet;

use exeat_policy::{BackendName, printable};
use exeat_prove::attempt::Attempt;
use exeat_prove::host::{Finding, Host, NoRun, Scenario, stopped};
use exeat_prove::{attempts, survive};
use serde_json::{Value, json};

use crate::args::{BridgeKind, FsView, ProveArgs};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::stdio;
use crate::terminal::Paint;

/// Makes the attempts, and returns whether everything held.
pub(crate) fn run(args: &ProveArgs, paint: Paint) -> Result<Exit, Failure> {
    let chosen = chosen(&args.names)?;
    if args.list {
        stdio::out(&listed(&chosen, args.format.is_json()), args.format.is_json())?;
        return Ok(Exit::Yes);
    }
    exeat_runner::notice_children()?;
    let machine = crate::request::here()?;
    let mut host = Host::new(&machine)
        .map_err(|error| Failure::could(format!("cannot {}", error.what)).because(error.source))?;
    let made: Vec<&'static Attempt> = attempts().filter(|attempt| chosen.contains(&attempt.id)).collect();
    let mut found = Vec::new();
    for bridge in bridges(args.bridge) {
        let scenario =
            Scenario { bridge, view: args.fs.map(view), backend: args.backend.map(BackendName::as_str) };
        found.extend(match host.over(scenario, &made) {
            Ok(found) => found,
            Err(error) => return no_run(error),
        });
        if chosen.contains(&survive::ID) && stopped().is_none() {
            found.push(match host.survive(scenario) {
                Ok(found) => found,
                Err(error) => return no_run(error),
            });
        }
        if let Some(signal) = stopped() {
            return Ok(Exit::Signal(signal));
        }
    }
    drop(host);
    if args.format.is_json() {
        stdio::json(&object(&found, args).to_string())?;
    } else {
        stdio::data(table(&found, paint).as_bytes())?;
    }
    Ok(exit(&found))
}

/// Returns the requested names, or all names.
fn chosen(names: &[String]) -> Result<Vec<&'static str>, Failure> {
    let all: Vec<&'static str> = attempts().map(|attempt| attempt.id).chain([survive::ID]).collect();
    if names.is_empty() {
        return Ok(all);
    }
    if let Some(unknown) = names.iter().find(|name| !all.contains(&name.as_str())) {
        return Err(Failure::input(format!("there is no attempt `{unknown}`")).hint("exeat prove --list"));
    }
    Ok(all.into_iter().filter(|id| names.iter().any(|name| name == id)).collect())
}

fn bridges(asked: Option<BridgeKind>) -> Vec<&'static str> {
    match asked {
        None => vec!["handoff", "relay"],
        Some(BridgeKind::Handoff) => vec!["handoff"],
        Some(BridgeKind::Relay) => vec!["relay"],
    }
}

fn view(view: FsView) -> &'static str {
    match view {
        FsView::Project => "project",
        FsView::Host => "host",
        FsView::Minimal => "minimal",
    }
}

/// Reports a run that does not start as `exeat run` would. Such a run proves nothing.
fn no_run(error: NoRun) -> Result<Exit, Failure> {
    match error {
        _ if stopped().is_some() => Ok(Exit::Signal(stopped().unwrap_or(0))),
        NoRun::Io(error) => Err(Failure::could("cannot run the proof").because(error)),
        NoRun::Said(done) if done.stderr.trim().is_empty() => {
            Err(Failure::could(format!("the run said nothing and ended with {}", done.code())))
        }
        NoRun::Said(done) => {
            stdio::write_stderr(&done.stderr);
            if [exeat_runner::Ended::NotFound, exeat_runner::Ended::NotExecutable]
                .map(|ended| i32::from(ended.code()))
                .contains(&done.code())
            {
                let hint = "a ceiling with `fs.ro` has to list the file that exeat is";
                return Err(Failure::could("the stage does not see exeat itself").hint(hint));
            }
            Ok(Exit::CouldNot)
        }
    }
}

fn exit(found: &[Finding]) -> Exit {
    match found {
        found if found.iter().any(|found| found.held == Some(false)) => Exit::No,
        found if found.iter().any(|found| found.held == Some(true)) => Exit::Yes,
        _ => Exit::CouldNot,
    }
}

fn listed(chosen: &[&str], is_json: bool) -> String {
    let all = attempts().map(|attempt| (attempt.id, attempt.title, attempt.rows));
    let all = all.chain([(survive::ID, survive::TITLE, survive::ROWS)]);
    let all = all.filter(|(id, ..)| chosen.contains(id));
    if is_json {
        let list: Vec<Value> =
            all.map(|(id, title, rows)| json!({"id": id, "title": title, "rows": rows})).collect();
        return Value::from(list).to_string();
    }
    let lines: Vec<String> =
        all.map(|(id, title, rows)| format!("{id:17} {:13} {title}\n", rows.join(" "))).collect();
    lines.concat()
}

fn object(found: &[Finding], args: &ProveArgs) -> Value {
    let uid = nix::unistd::geteuid();
    let kernel = nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned());
    let attempts: Vec<Value> = found
        .iter()
        .map(|found| {
            json!({
                "id": found.id, "title": found.title, "rows": found.rows, "bridge": found.bridge,
                "seen": found.seen, "outside": found.outside, "held": found.held, "why": found.why,
            })
        })
        .collect();
    json!({
        "schema": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "kernel": kernel.ok(),
        "user": {"uid": uid.as_raw(), "root": uid.is_root()},
        "view": args.fs.map_or("project", view),
        "attempts": attempts,
    })
}

/// Formats a line for each attempt, or for each bridge if they differ, and the result.
fn table(found: &[Finding], paint: Paint) -> String {
    let mut out = String::new();
    let width = found.iter().map(|found| found.title.len()).max().unwrap_or(0);
    let seen_width = found.iter().map(|found| observation(found).chars().count()).max().unwrap_or(0).min(60);
    out.push_str(&format!("{:width$}  {:seen_width$}  VERDICT\n", "ATTEMPT", "SEEN"));
    for first in found
        .iter()
        .filter(|one| found.iter().find(|other| other.id == one.id).is_some_and(|f| std::ptr::eq(f, *one)))
    {
        let all: Vec<&Finding> = found.iter().filter(|other| other.id == first.id).collect();
        let alike = all.iter().all(|other| other.held == first.held);
        for one in if alike { vec![first] } else { all } {
            let on = if alike { String::new() } else { format!(" ({})", one.bridge) };
            let verdict = match one.held {
                Some(true) => paint.good("held"),
                Some(false) => paint.bad("NOT HELD"),
                None => paint.odd("skipped"),
            };
            let seen = observation(one);
            out.push_str(&format!("{:width$}  {seen:seen_width$}  {verdict}{on}\n", one.title));
        }
    }
    let count = |held| found.iter().filter(|found| found.held == held).count();
    let (held, not, skipped) = (count(Some(true)), count(Some(false)), count(None));
    let attempts = if found.len() == 1 { "attempt" } else { "attempts" };
    let bridges: BTreeSet<&str> = found.iter().map(|found| found.bridge).collect();
    let bridges = if bridges.len() > 1 { ", each bridge counted" } else { "" };
    out.push_str(&format!(
        "\n{} {attempts}{bridges}: {held} held, {not} not held, {skipped} skipped\n",
        found.len()
    ));
    out
}

/// Returns the observation; for a skipped attempt the reason.
fn observation(found: &Finding) -> String {
    let text = match found.held {
        None if found.seen.is_empty() || found.why.starts_with("it does not") => &found.why,
        _ => &found.seen,
    };
    printable(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(name: &str) -> String {
        std::fs::read_to_string(format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    }

    #[test]
    fn the_page_lists_every_attempt_with_rows_that_there_are() {
        let (prove, threats) = (page("prove.md"), page("threats.md"));
        let all = attempts().map(|attempt| (attempt.id, attempt.title, attempt.rows));
        for (id, title, rows) in all.chain([(survive::ID, survive::TITLE, survive::ROWS)]) {
            let line = format!("| `{id}` | {} | {title} |", rows.join(", "));
            assert!(prove.contains(&line), "docs/prove.md has no line `{line}`");
            for row in rows {
                assert!(threats.contains(&format!("\n| {row} |")), "{id} names {row}, which is no row");
            }
        }
    }

    #[test]
    fn one_that_does_not_hold_decides() {
        let found = |held| Finding {
            id: "it",
            title: "a title",
            rows: &[],
            bridge: "relay",
            seen: "EPERM".into(),
            outside: None,
            held,
            why: "why".into(),
        };
        for (held, code) in [
            (&[Some(true), Some(false), None][..], Exit::No),
            (&[Some(true), None], Exit::Yes),
            (&[None, None], Exit::CouldNot),
            (&[], Exit::CouldNot),
        ] {
            let found: Vec<Finding> = held.iter().copied().map(found).collect();
            assert_eq!(exit(&found), code, "{held:?}");
        }
    }

    #[test]
    fn bridges_that_differ_have_a_line_each() {
        let found = |bridge, held, seen: &str| Finding {
            id: "it",
            title: "a title",
            rows: &[],
            bridge,
            seen: seen.into(),
            outside: None,
            held,
            why: "why".into(),
        };
        let alike = [found("handoff", Some(true), "EPERM"), found("relay", Some(true), "EACCES")];
        assert_eq!(
            table(&alike, Paint::PLAIN),
            "ATTEMPT  SEEN    VERDICT\na title  EPERM   held\n\n2 attempts, each bridge counted: 2 held, 0 not held, 0 skipped\n"
        );
        let other = [found("handoff", Some(true), "EPERM"), found("relay", Some(false), "a\u{1b}way")];
        let said = table(&other, Paint::PLAIN);
        assert!(said.contains("EPERM") && said.contains("held (handoff)"), "{said}");
        assert!(said.contains("a\\u{1b}way") && said.contains("NOT HELD (relay)"), "{said}");
        assert!(!said.contains('\u{1b}'), "{said}");
    }
}
