//! Bounds the memory of all incomplete heads and hellos of a proxy with one budget. It counts bytes that
//! connections hold, and holds none itself.
//!
//! The share of one connection shrinks with what is left. So large heads stop growing first, and a small one still
//! fits among thousands.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limits;

/// The bytes that all connections hold.
#[derive(Debug, Default)]
pub(crate) struct HeadMemory(Mutex<usize>);

/// The bytes that one connection holds. Dropping it returns them.
#[derive(Debug)]
pub(crate) struct Share<'a> {
    held: &'a HeadMemory,
    bytes: usize,
}

impl HeadMemory {
    pub(crate) fn share(&self) -> Share<'_> {
        Share { held: self, bytes: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share<'_> {
    /// Sets the bytes that this connection holds. Returns `false`, and changes nothing, if that is more than before
    /// and more than its share allows.
    #[must_use]
    pub(crate) fn try_hold(&mut self, bytes: usize) -> bool {
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

    /// L08: large heads stop growing first, and small ones still fit.
    #[test]
    fn l08_bounds_all_heads_together() {
        let held = HeadMemory::default();
        let fill = |size: usize| {
            let mut shares = Vec::new();
            loop {
                let mut share = held.share();
                if !share.try_hold(size) {
                    return shares;
                }
                shares.push(share);
            }
        };
        let large = fill(limits::HEAD_BYTES);
        assert!(large.len() > 800, "{}", large.len());
        let middle = fill(4096);
        assert!(middle.len() > 300, "{}", middle.len());
        // These stand for some hundreds of ordinary clients at one moment.
        let small = fill(1024);
        assert!(small.len() > 150, "{}", small.len());
        assert!(*held.lock() <= limits::HELD_BYTES);
        drop((large, middle, small));
        assert_eq!(*held.lock(), 0);
        let mut share = held.share();
        assert!(share.try_hold(limits::HELLO_BYTES) && share.try_hold(10) && !share.try_hold(usize::MAX));
        assert_eq!(*held.lock(), 10);
    }
}
