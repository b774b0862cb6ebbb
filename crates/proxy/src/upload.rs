//! What has gone up under each budget of a run, to the byte. Nothing here decides who has a budget: the rules do.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, ready};

use exeat_policy::{BudgetKey, Size};

/// The bytes of a run under each key: a key keeps its count, whatever policy is read meanwhile. There are no more keys than
/// the policies of the run had rules with a budget; how often a policy is read again is in the hands of whoever writes it.
#[derive(Debug, Default)]
pub(crate) struct Uploads(Mutex<Used>);

#[derive(Debug, Default)]
struct Used {
    bytes: Vec<u64>,
    places: HashMap<BudgetKey, usize>,
}

/// What one connection may send: the least that is left of any of its budgets.
#[derive(Debug)]
pub(crate) struct Budget<'a> {
    uploads: &'a Uploads,
    parts: Box<[Part]>,
    /// There was more to send.
    ran_out: AtomicBool,
}

#[derive(Debug)]
struct Part {
    key: BudgetKey,
    place: usize,
    limit: u64,
}

impl Uploads {
    /// What a connection under these budgets may send: of several under one key the smallest, since they count the same
    /// bytes. `None`: there is none.
    pub(crate) fn under(&self, budgets: impl Iterator<Item = (BudgetKey, u64)>) -> Option<Budget<'_>> {
        let mut budgets = budgets.peekable();
        budgets.peek()?;
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts: Vec<Part> = Vec::new();
        for (key, limit) in budgets {
            let place = used.place_of(&key);
            match parts.iter_mut().find(|part| part.place == place) {
                Some(part) => part.limit = part.limit.min(limit),
                None => parts.push(Part { key, place, limit }),
            }
        }
        Some(Budget { uploads: self, parts: parts.into(), ran_out: AtomicBool::new(false) })
    }
}

impl Used {
    fn place_of(&mut self, key: &BudgetKey) -> usize {
        if let Some(&place) = self.places.get(key) {
            return place;
        }
        let place = self.bytes.len();
        self.bytes.push(0);
        self.places.insert(key.clone(), place);
        place
    }

    fn of(&self, part: &Part) -> u64 {
        self.bytes.get(part.place).copied().unwrap_or(u64::MAX)
    }

    fn left(&self, parts: &[Part]) -> u64 {
        parts.iter().map(|part| part.limit.saturating_sub(self.of(part))).min().unwrap_or(u64::MAX)
    }
}

impl Budget<'_> {
    /// Has `write` write as many of `wanted` bytes as are left, and counts what it took. An error once nothing is left.
    ///
    /// `write` does not wait; so one lock over counting and writing is short, and spares the moment in which another
    /// connection would find bytes gone that are given back.
    pub(crate) fn spend(
        &self,
        wanted: usize,
        write: impl FnOnce(usize) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut used = self.uploads.0.lock().unwrap_or_else(PoisonError::into_inner);
        let part = usize::try_from(used.left(&self.parts)).map_or(wanted, |left| left.min(wanted));
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

    /// Whether there was more to send than was left.
    pub(crate) fn ran_out(&self) -> bool {
        self.ran_out.load(Ordering::Relaxed)
    }

    /// The budget of which nothing is left, for people on the host.
    pub(crate) fn used_up(&self) -> Option<String> {
        let used = self.uploads.0.lock().unwrap_or_else(PoisonError::into_inner);
        let part = self.parts.iter().find(|part| used.of(part) >= part.limit)?;
        let limit = Size::new(part.limit).map(|size| size.to_string()).unwrap_or_default();
        Some(format!("the upload budget of {limit} is used up ({})", part.key))
    }
}

#[cfg(test)]
mod tests;
