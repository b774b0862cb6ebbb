//! Closes a run whose stage is gone: moves aside what the stage has left, ends the record and builds the outcome.

use std::mem;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use exeat_files::quarantine::{Journal, Leftovers, Settlement};
use exeat_record::ledger::Head;
use exeat_record::place::remove_empty;
use exeat_record::{Event, Log, RunId, RunNote, What};
use nix::sys::signal::Signal;

use super::opening::Opened;
use super::outcome::{Done, Outcome, SandboxEnd, not_executed, unseen_line, with_leftovers};
use super::protected::{
    CUT, PutBack, look_until_signal, move_aside, quarantine_lines, quarantine_more_lines,
    quarantine_more_notes, quarantine_note, settlement_lines, watch_remade,
};
use super::record::{OpenRecord, lost_end, record_full, run_end, turned_away_note};
use crate::cover::Uncovered;
use crate::ended::Ended;
use crate::error::{Error, chain};
use crate::ledger::Listed;
use crate::plan::Plan;
use crate::signals::Signals;

/// What is known at the end of a run, besides how its stage ended.
pub(super) struct Closing {
    log: Log,
    /// The record's path; `None` if it went to a descriptor.
    audit: Option<PathBuf>,
    found: Leftovers,
    uncovered: Vec<PathBuf>,
    uncovered_why: Option<String>,
    /// The ledger's line about the end of the run.
    ledger: Option<Head>,
    /// The reason that the record is incomplete.
    record_lost: Option<String>,
    /// Lines for the caller.
    notes: Vec<String>,
}

impl Closing {
    /// Releases what the run held, and moves aside what its stage has left. No process of the stage is left, so what is found now does
    /// not change any more. With `has_signals`, a signal can end the search.
    pub(super) async fn settle(
        plan: &Plan,
        opened: Opened,
        interrupted: Settlement,
        mut lost: Uncovered,
        has_signals: bool,
    ) -> Self {
        let Opened {
            state_of_run,
            dirs,
            watches,
            flags,
            journal,
            survey,
            stubs,
            record,
            notes,
            not_made,
            ..
        } = opened;
        let OpenRecord { log, path: audit, .. } = record;
        // The flags are restored for the following lines and for the next user of these streams.
        drop(flags);
        drop((stubs, survey));
        let put_back = PutBack::replace(mem::take(&mut lost.doubtful), &watches);
        let remade = lost.remade.iter().chain(put_back.unmoved());
        let remade = watch_remade(plan, &state_of_run, remade);
        if let Some(Err(why)) = journal.as_ref().map(Journal::begin_end) {
            tracing::warn!(%why, "another run may leave to this one what it does not see any more");
        }
        let looked_at = Arc::clone(&watches);
        let look = move |is_over: &dyn Fn() -> bool| move_aside(looked_at.iter().chain(&remade), is_over);
        let signals = has_signals.then(|| Signals::ending().ok()).flatten();
        let mut found = look_until_signal(signals, look).await;
        let cut = found.is_cut.then(|| CUT.to_owned());
        let put_back = put_back.end(&mut found);
        if let Some(journal) = journal.filter(|_| !found.is_cut) {
            journal.remove();
        }
        let dirs_left = dirs.end(plan);
        let settled = settlement_lines(interrupted, &mut found);
        for note in found.named.iter().map(quarantine_note).chain(quarantine_more_notes(&found)) {
            // The log itself stops the run if it cannot write, and a line below reports that.
            let _ = log.write(Event::Note(note));
        }
        // The record contains these since they were found.
        found.extend(mem::take(&mut lost.found));
        let told = quarantine_lines(&found).chain(quarantine_more_lines(&found));
        let before = notes.into_iter().chain(settled).chain(not_made).chain(cut);
        let mut notes: Vec<String> = before.chain(told).chain(put_back).chain(dirs_left).collect();
        for (words, line) in lost.lines() {
            let mut note = RunNote::new(What::Uncovered);
            note.error = Some(words);
            let _ = log.write(Event::Note(note));
            notes.push(line);
        }
        let uncovered_why = lost.why_over();
        let uncovered = lost.into_places();
        Self { log, audit, found, uncovered, uncovered_why, ledger: None, record_lost: None, notes }
    }

    /// Writes the end of the run to its record and to its ledger.
    pub(super) fn close_record(&mut self, outcome: &Result<Done, Error>, listed: Listed) {
        if let Some(note) = outcome.as_ref().ok().and_then(|done| turned_away_note(&done.summary)) {
            self.notes.extend(note.error.clone());
            let _ = self.log.write(Event::Note(note));
        }
        let end = match outcome {
            Ok(done) => run_end(done.over.ended, &done.summary),
            Err(error) => lost_end(error),
        };
        let cause = end.cause;
        let ended = self.log.write(Event::RunEnd(end));
        // The ledger cannot vouch for a record without its end.
        let (ledger, unlisted) = if ended.is_ok() { listed.end(&self.log, cause) } else { (None, None) };
        self.ledger = ledger;
        self.notes.extend(unlisted);
        self.record_lost = ended.err().map(|error| chain(&error));
    }

    /// Returns the error of a run whose stage did not start, or could not be followed to its end.
    pub(super) fn into_error(self, plan: &Plan, run: RunId, error: Error) -> Error {
        if error.code() == 125 {
            plan.choice.forget();
        }
        if let Some(record) = plan.audit.in_default_place(self.audit.as_deref()) {
            remove_empty(record);
        }
        with_leftovers(error, run, self.audit, self.found, self.notes)
    }

    /// Returns the outcome of a run, and the first signal for its stage.
    pub(super) fn into_outcome(
        self,
        plan: Plan,
        run: RunId,
        done: Done,
        duration: impl Fn() -> Duration,
    ) -> (Outcome, Option<Signal>) {
        let Self { log, audit, found, uncovered, uncovered_why, ledger, record_lost, mut notes } = self;
        let Done { over, no_gateway, blocked, summary, through } = done;
        let SandboxEnd { ended: how, why_not, signal, blind, untold, .. } = over;
        notes.extend(no_gateway.into_iter().chain(blocked));
        // The stage ran and its code is returned; a note reports an incomplete record.
        notes.extend(record_lost.as_ref().map(|why| format!("the record is incomplete: {why}")));
        notes.extend(record_full(&summary, log.full().as_deref()));
        notes.extend(untold);
        if how != Ended::Exit(0) {
            notes.extend(unseen_line(&plan));
        }
        if let Some(why) = blind {
            notes.push(format!("what the stage uses could not be measured any more: {why}"));
        }
        let why_not = not_executed(&plan, how, why_not);
        if how == Ended::NotFound {
            notes.extend(plan.left_out.iter().cloned());
        }
        let outcome = Outcome {
            run,
            ended: how,
            why_not,
            summary,
            through,
            backend: plan.choice.builder.name(),
            backend_why: plan.choice.why.clone(),
            audit,
            sealed: log.sealed(),
            ledger,
            found,
            uncovered,
            uncovered_why,
            record_lost,
            duration: duration(),
            stage: plan.stage,
            labels: plan.labels,
            notes,
        };
        (outcome, signal)
    }
}
