//! The memory of all heads and hellos of a proxy that are not complete, within one budget. It holds no bytes: it counts those that
//! connections hold.
//!
//! What one connection may hold shrinks with what is left, so that large heads stop growing first, and a small one still finds
//! room among thousands that wait.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limits;

/// The budget.
#[derive(Debug, Default)]
pub(crate) struct Held(Mutex<usize>);

/// What one connection holds. Dropping it gives all of it back.
#[derive(Debug)]
pub(crate) struct Share<'a> {
    held: &'a Held,
    bytes: usize,
}

impl Held {
    pub(crate) fn share(&self) -> Share<'_> {
        Share { held: self, bytes: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share<'_> {
    /// Counts `bytes` in the place of what this connection held before. Where that is more than before and more than it may hold,
    /// nothing changes, and it is `false`.
    #[must_use]
    pub(crate) fn hold(&mut self, bytes: usize) -> bool {
        if bytes == self.bytes {
            return true;
        }
        let mut all = self.held.lock();
        let others = all.saturating_sub(self.bytes);
        let left = limits::HELD_BYTES.saturating_sub(others);
        if bytes > self.bytes && bytes > left / limits::HELD_PART {
            return false;
        }
        (*all, self.bytes) = (others + bytes, bytes);
        true
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut all = self.held.lock();
        *all = all.saturating_sub(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L08: large heads stop first, and small ones still find room.
    #[test]
    fn l08_all_heads_together_are_bounded() {
        let held = Held::default();
        let fill = |size: usize| {
            let mut shares = Vec::new();
            loop {
                let mut share = held.share();
                if !share.hold(size) {
                    return shares;
                }
                shares.push(share);
            }
        };
        let large = fill(limits::HEAD_BYTES);
        assert!(large.len() > 800, "{}", large.len());
        let middle = fill(4096);
        assert!(middle.len() > 300, "{}", middle.len());
        // Some hundreds of ordinary clients at one moment.
        let small = fill(1024);
        assert!(small.len() > 150, "{}", small.len());
        assert!(*held.lock() <= limits::HELD_BYTES);
        drop((large, middle, small));
        assert_eq!(*held.lock(), 0);
        let mut share = held.share();
        assert!(share.hold(limits::HELLO_BYTES) && share.hold(10) && !share.hold(usize::MAX));
        assert_eq!(*held.lock(), 10);
    }
}
