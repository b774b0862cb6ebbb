//! Makes a lock of what records say was reached: see [`exeat_record::lock`].

use std::collections::BTreeMap;

use exeat_policy::Target;
use exeat_record::Via;
use exeat_record::lock::{Full, Lock, MAX_ENTRIES, StageName};

use crate::attempt::{is_let_through, is_taken_back};
use crate::summary::{Summary, Traffic};

/// Makes the lock of what a summary for grants says was reached, stage by stage. Runs without a stage share one entry.
///
/// # Errors
///
/// Returns [`Full`] if more was reached than a lock may have: a lock that lacks some of it would refuse what was reached.
pub fn lock(summary: &Summary) -> Result<Lock, Full> {
    let mut stages: BTreeMap<usize, BTreeMap<(Target, Via), [u64; 2]>> = BTreeMap::new();
    for (stage, decides) in &summary.started {
        // A run that uses another run's proxy has its attempts in that run's record.
        if *decides {
            stages.entry(*stage).or_default();
        }
    }
    for row in summary.all_hosts() {
        let Some(target) = row.target() else { continue };
        for (outcome, seen) in &row.outcomes {
            let Some((via, verdict, reason)) = outcome.known() else { continue };
            let at = match () {
                () if is_let_through(verdict, reason) => 0,
                () if is_taken_back(outcome.late, verdict, reason) => 1,
                () => continue,
            };
            let times = stages.entry(outcome.stage).or_default().entry((target.clone(), via)).or_default();
            if let Some(times) = times.get_mut(at) {
                *times = times.saturating_add(seen.count);
            }
        }
    }
    let reached = |it: &Traffic| it.tally.allowed.max(it.tally.would_deny).max(it.tally.errors) > 0;
    let entries: usize = stages.values().map(BTreeMap::len).sum();
    if entries > MAX_ENTRIES || reached(&summary.others) {
        return Err(Full);
    }
    let names: BTreeMap<usize, &StageName> =
        summary.stage_numbers.iter().map(|(name, number)| (*number, name)).collect();
    let mut lock = Lock::default();
    for (stage, times) in stages {
        let name = names.get(&stage).ok_or(Full)?;
        let kept = times.into_iter().filter(|(_, [let_through, taken_back])| let_through > taken_back);
        lock.put((*name).clone(), kept.map(|(key, _)| key));
    }
    Ok(lock)
}

#[cfg(test)]
mod tests;
