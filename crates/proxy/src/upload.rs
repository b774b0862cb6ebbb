//! Counts the bytes sent under each upload budget of a run, exactly. The rules decide which budgets apply.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, ready};

use exeat_policy::{BudgetKey, Size};

/// The bytes of a run for each key. A key keeps its count when the policy is read again. There are at most as many
/// keys as rules with a budget in all policies of the run.
#[derive(Debug, Default)]
pub(crate) struct Uploads(Mutex<Used>);

#[derive(Debug, Default)]
struct Used {
    bytes: Vec<u64>,
    places: HashMap<BudgetKey, usize>,
}

/// The bytes that one connection may send: the smallest rest of any of its budgets.
#[derive(Debug)]
pub(crate) struct Budget<'a> {
    uploads: &'a Uploads,
    parts: Box<[Part]>,
    /// Whether there was more to send.
    ran_out: AtomicBool,
}

#[derive(Debug)]
struct Part {
    key: BudgetKey,
    place: usize,
    limit: u64,
}

impl Uploads {
    /// Returns the budget of a connection, or `None` if it has none. Of several budgets with one key the smallest
    /// counts, because they share their bytes.
    pub(crate) fn budget_for(&self, budgets: impl Iterator<Item = (BudgetKey, u64)>) -> Option<Budget<'_>> {
        let mut budgets = budgets.peekable();
        budgets.peek()?;
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts: Vec<Part> = Vec::new();
        for (key, limit) in budgets {
            let place = used.index_of(&key);
            match parts.iter_mut().find(|part| part.place == place) {
                Some(part) => part.limit = part.limit.min(limit),
                None => parts.push(Part { key, place, limit }),
            }
        }
        Some(Budget { uploads: self, parts: parts.into(), ran_out: AtomicBool::new(false) })
    }
}

impl Used {
    fn index_of(&mut self, key: &BudgetKey) -> usize {
        if let Some(&place) = self.places.get(key) {
            return place;
        }
        let place = self.bytes.len();
        self.bytes.push(0);
        self.places.insert(key.clone(), place);
        place
    }

    fn bytes_of(&self, part: &Part) -> u64 {
        self.bytes.get(part.place).copied().unwrap_or(u64::MAX)
    }

    fn bytes_left(&self, parts: &[Part]) -> u64 {
        parts.iter().map(|part| part.limit.saturating_sub(self.bytes_of(part))).min().unwrap_or(u64::MAX)
    }
}

impl Budget<'_> {
    /// Lets `write` write as many of `wanted` bytes as are left, and counts what it wrote. Fails once nothing is
    /// left.
    ///
    /// `write` does not wait, so one lock covers counting and writing. Otherwise another connection could find
    /// bytes taken that are later returned.
    pub(crate) fn spend(
        &self,
        wanted: usize,
        write: impl FnOnce(usize) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut used = self.uploads.0.lock().unwrap_or_else(PoisonError::into_inner);
        let part = usize::try_from(used.bytes_left(&self.parts)).map_or(wanted, |left| left.min(wanted));
        if part == 0 && wanted > 0 {
            self.ran_out.store(true, Ordering::Relaxed);
            return Poll::Ready(Err(io::Error::other("the upload budget is used up")));
        }
        let taken = ready!(write(part))?;
        for part in &self.parts {
            if let Some(bytes) = used.bytes.get_mut(part.place) {
                *bytes = bytes.saturating_add(taken as u64);
            }
        }
        Poll::Ready(Ok(taken))
    }

    /// Whether there was more to send than the budget allowed.
    pub(crate) fn ran_out(&self) -> bool {
        self.ran_out.load(Ordering::Relaxed)
    }

    /// Describes the used-up budget for people on the host.
    pub(crate) fn used_up(&self) -> Option<String> {
        let used = self.uploads.0.lock().unwrap_or_else(PoisonError::into_inner);
        let part = self.parts.iter().find(|part| used.bytes_of(part) >= part.limit)?;
        let limit = Size::new(part.limit).map(|size| size.to_string()).unwrap_or_default();
        Some(format!("the upload budget of {limit} is used up ({})", part.key))
    }
}

#[cfg(test)]
mod tests;
