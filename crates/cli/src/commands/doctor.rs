//! `exeat doctor`: what this host allows, step by step, and how to fix the rest.

use std::fmt::Write as _;

use exeat_policy::{os_words, printable};
use exeat_runner::doctor::{self, Fix, StepFinding, StepOutcome};
use exeat_runner::notice_children;
use serde_json::json;

use crate::args::{DoctorArgs, Format};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::stdio;
use crate::terminal::{Paint, printable_lines};

/// Tries each step, and returns whether a command could be run.
pub(crate) fn run(args: &DoctorArgs, paint: Paint) -> Result<Exit, Failure> {
    notice_children()?;
    let machine = crate::request::here()?;
    let mut findings = doctor::examine(&machine.env);
    if !findings.iter().any(|finding| finding.id == doctor::NESTED) {
        findings.push(policies(&machine));
    }
    let text = match args {
        DoctorArgs { format: Format::Json, .. } => json(&findings),
        DoctorArgs { fix: true, .. } => fixes(&findings),
        _ => table(&findings, paint),
    };
    stdio::out(&text, args.format.is_json())?;
    Ok(if doctor::can_run(&findings) { Exit::Yes } else { Exit::No })
}

/// Tries to read the policies that every run here reads without being told.
fn policies(machine: &exeat_compose::Machine) -> StepFinding {
    let (id, step) = ("policies", "the ceilings, and the project's policy within them");
    match exeat_compose::read_unnamed(machine) {
        Ok(files) if files.is_empty() => StepFinding::held(id, step, "none here"),
        Ok(files) => StepFinding::held(id, step, files.join(", ")),
        Err(mut fault) => {
            let fix = fault.hint.take().map(Fix::words);
            let costs = Some("nothing runs: exit code 2".to_owned());
            let seen = Failure::from(fault).plain_text();
            StepFinding { found: StepOutcome::Absent, costs, fix, ..StepFinding::held(id, step, seen) }
        }
    }
}

fn table(findings: &[StepFinding], paint: Paint) -> String {
    let width = findings.iter().map(|finding| finding.step.len()).max().unwrap_or(0);
    let mut out = String::new();
    let mut last: Option<&StepFinding> = None;
    for finding in findings {
        let word = match finding.found {
            StepOutcome::Held => paint.good("ok   "),
            StepOutcome::Partial => paint.strong("less "),
            StepOutcome::Absent => paint.bad("FAILS"),
            StepOutcome::Aside => "-    ".into(),
        };
        // Writing to a String cannot fail.
        // Steps that fail for the same cause print it once.
        if last.is_some_and(|last| last.seen == finding.seen && last.because == finding.because) {
            let _ = writeln!(out, "{word}  {:<width$}  for the same reason", finding.step);
            continue;
        }
        if finding.found == StepOutcome::Absent {
            last = Some(finding);
        }
        // The mark of a fault stands under its words.
        let seen =
            printable_lines(&os_words(&finding.seen)).replace('\n', &format!("\n{:1$}", "", width + 9));
        let _ = writeln!(out, "{word}  {:<width$}  {seen}", finding.step);
        let fix = finding.fix.as_ref().map(|fix| &fix.text);
        let more = [("because", finding.because.as_ref()), ("costs", finding.costs.as_ref()), ("fix", fix)];
        for (name, text) in more {
            if let Some(text) = text {
                let _ = writeln!(out, "         {name:<8} {}", printable(text));
            }
        }
    }
    out.push('\n');
    out.push_str(match (doctor::can_run(findings), findings.iter().any(|it| it.found == StepOutcome::Partial)) {
        (true, false) => "exeat runs here, and everything holds.\n",
        (true, true) => "exeat runs here; what it lacks is said above. `exeat run --require full` refuses to run with less.\n",
        (false, _) if findings.iter().any(|it| it.id == doctor::NESTED) => "exeat cannot run here.\n",
        (false, _) if findings.iter().all(|it| it.found != StepOutcome::Absent || it.id == "policies") => {
            "exeat cannot run here: a policy that every run reads cannot be used.\n"
        }
        (false, _) => "exeat cannot run here. `exeat doctor --fix` prints what to install.\n",
    });
    out
}

/// Formats what to install as lines for a shell. Advice that is not a command becomes a comment. Executes nothing.
fn fixes(findings: &[StepFinding]) -> String {
    let mut blocks: Vec<(String, String)> = Vec::new();
    for finding in findings.iter().filter(|it| matches!(it.found, StepOutcome::Absent | StepOutcome::Partial))
    {
        let Some(fix) = &finding.fix else { continue };
        let what = match &fix.script {
            Some(script) => printable_lines(script),
            None => format!("# {}", printable(&fix.text)),
        };
        // Several steps fail for one cause.
        if blocks.iter().all(|(_, other)| *other != what) {
            let why = finding.because.as_deref().unwrap_or(&finding.seen);
            blocks.push((format!("# {}: {}", finding.step, printable(&os_words(why))), what));
        }
    }
    if blocks.is_empty() {
        return "# nothing to mend\n".into();
    }
    blocks.into_iter().map(|(why, what)| format!("{why}\n{what}\n")).collect()
}

fn json(findings: &[StepFinding]) -> String {
    let step = |finding: &StepFinding| {
        json!({
            "id": finding.id, "step": finding.step, "found": finding.found.as_str(), "seen": os_words(&finding.seen),
            "because": finding.because, "costs": finding.costs,
            "fix": finding.fix.as_ref().map(|fix| &fix.text),
            "script": finding.fix.as_ref().and_then(|fix| fix.script.as_ref()),
        })
    };
    let all = json!({
        "schema": 1,
        "exeat": env!("CARGO_PKG_VERSION"),
        "can_run": doctor::can_run(findings),
        "steps": findings.iter().map(step).collect::<Vec<_>>(),
    });
    format!("{all}\n")
}
