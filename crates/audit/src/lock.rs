//! What records say was reached, as a lock: see [`exeat_record::lock`].

use std::collections::BTreeMap;

use exeat_policy::Target;
use exeat_policy::file::stage_fault;
use exeat_record::Via;
use exeat_record::lock::{Full, Lock, MAX_ENTRIES, MAX_STAGES, Stage};

use crate::query::{Kind, Record};

/// Makes a lock of what records say, line by line. Attempts of unnamed runs are those of one stage.
#[derive(Debug, Default)]
pub struct Seen {
    stages: BTreeMap<Stage, BTreeMap<(Target, Via), Times>>,
    entries: usize,
}

/// How often.
#[derive(Debug, Default)]
struct Times {
    let_through: u64,
    taken_back: u64,
}

impl Seen {
    /// Takes in one line. What was refused is passed over, also where that turned out late.
    ///
    /// # Errors
    ///
    /// [`Full`]: there is more than a lock may have, and one that lacks something would refuse what was seen.
    pub fn take(&mut self, record: &Record) -> Result<(), Full> {
        let starts = record.event == Kind::RunStart;
        let Some(attempt) = record.attempt() else {
            // A run that goes through another's proxy has its attempts in that one's record.
            if starts && record.proxy.is_none() {
                self.stage(record)?;
            }
            return Ok(());
        };
        let (let_through, taken_back) = (attempt.is_let_through(), attempt.is_taken_back());
        if !let_through && !taken_back {
            return Ok(());
        }
        let entries = self.entries;
        let times = self.stage(record)?;
        let key = (attempt.target, attempt.via);
        if !times.contains_key(&key) {
            if entries >= MAX_ENTRIES {
                return Err(Full);
            }
            self.entries += 1;
        }
        let times = self.stage(record)?.entry(key).or_default();
        let counted = if let_through { &mut times.let_through } else { &mut times.taken_back };
        *counted = counted.saturating_add(attempt.count);
        Ok(())
    }

    fn stage(&mut self, record: &Record) -> Result<&mut BTreeMap<(Target, Via), Times>, Full> {
        // A name that no run can have would make a line that cannot be read back.
        let stage = record.stage.clone().filter(|stage| stage_fault(stage).is_none());
        if self.stages.len() >= MAX_STAGES && !self.stages.contains_key(&stage) {
            return Err(Full);
        }
        Ok(self.stages.entry(stage).or_default())
    }

    /// The lock of what was seen so far.
    pub fn lock(self) -> Lock {
        let mut lock = Lock::default();
        for (stage, times) in self.stages {
            let kept = times.into_iter().filter(|(_, times)| times.let_through > times.taken_back);
            lock.put(stage, kept.map(|(key, _)| key));
        }
        lock
    }
}

#[cfg(test)]
mod tests;
