//! Judges the results of an attempt.

use std::time::Duration;

use crate::attempt::{Attempt, Control, Saw};
use crate::canary::Visits;

/// The judged result of one attempt over one bridge.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The attempt, as [`Attempt::id`].
    pub id: &'static str,
    /// A short description for the user.
    pub title: &'static str,
    /// The rows of docs/threats.md that the attempt tests.
    pub rows: &'static [&'static str],
    /// The bridge of the run.
    pub bridge: &'static str,
    /// The result inside, and the canaries' visits.
    pub seen: String,
    /// The result of the same attempt outside, if it was made there.
    pub outside: Option<Saw>,
    /// Whether the sandbox held; `None` if the attempt could not be made, or if no control shows that it could succeed.
    pub held: Option<bool>,
    /// The reason for the verdict.
    pub why: String,
}

/// The reason that an attempt has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The stage reported all earlier attempts, and then ended.
    Here,
    /// An earlier attempt is missing as well.
    Before,
    /// The time of the run had passed.
    InTime,
}

/// Judges an attempt by its results inside and outside, and by the canaries' visits.
pub(super) fn judge(
    attempt: &Attempt,
    bridge: &'static str,
    inside: Option<&Saw>,
    outside: Option<&Saw>,
    by_canaries: &Visits,
    ended: Ended,
) -> Finding {
    let mut found = Finding {
        id: attempt.id,
        title: attempt.title,
        rows: attempt.rows,
        bridge,
        seen: String::new(),
        outside: outside.cloned(),
        held: None,
        why: String::new(),
    };
    let visited = by_canaries.visits.iter().any(|visit| {
        attempt.canaries.contains(&visit.canary.as_str())
            // A proxy that waits for a ClientHello has connected and sent nothing, which is not an escape.
            && (visit.said.contains(attempt.trace) || visit.said.is_empty() && attempt.trace == attempt.id)
    });
    let (seen, held, why) = match inside {
        Some(Saw::Out(seen)) => (seen.as_str(), Some(false), "it got out"),
        Some(Saw::Refused(seen) | Saw::NotMade(seen)) if visited => {
            (seen.as_str(), Some(false), "a listener on the host saw it")
        }
        None => match ended {
            Ended::Here => ("the stage ended here", Some(false), "it ended the stage"),
            Ended::Before => ("", None, "the stage had ended before"),
            Ended::InTime => ("", None, "there was no time left"),
        },
        Some(Saw::NotMade(seen)) => (seen.as_str(), None, "it could not be made"),
        Some(Saw::Refused(seen)) if by_canaries.missed && !attempt.canaries.is_empty() => {
            (seen.as_str(), None, "a listener on the host may have missed it")
        }
        Some(Saw::Refused(seen)) => match (attempt.control, outside) {
            (Control::None, _) | (_, Some(Saw::Out(_))) => (seen.as_str(), Some(true), "refused"),
            (_, Some(Saw::Refused(there) | Saw::NotMade(there))) => {
                found.why = format!("it does not succeed outside either: {there}");
                (seen.as_str(), None, "")
            }
            (_, None) => (seen.as_str(), None, "it was not made outside"),
        },
    };
    found.seen = seen.to_owned();
    found.held = held;
    if found.why.is_empty() {
        found.why = why.to_owned();
    }
    found
}

/// Judges how many of a run's processes are left some time after exeat was killed.
pub(super) fn survived(before: usize, left: usize, took: Duration) -> (String, Option<bool>, &'static str) {
    match (before, left) {
        // At least the stage and its survivor, and those processes of exeat whose arguments contain the word.
        (0..2, _) => (format!("{before} processes"), None, "its processes cannot be seen from here"),
        (_, 0) => {
            let seen = format!("{before} processes, all gone after {} ms", took.as_millis());
            (seen, Some(true), "nothing was left")
        }
        (_, left) => (format!("{left} of {before} processes lived on"), Some(false), "it lived on"),
    }
}
