//! Holds what all connections of one run share and use up within its limits: slots, numbers and buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use exeat_record::ConnId;
use tokio::sync::Semaphore;

use crate::held::HeadMemory;
use crate::limits::{self, ProxyLimits};
use crate::pool::Pool;

pub(crate) struct Capacity {
    pub(crate) limits: ProxyLimits,
    pub(crate) pool: Pool,
    /// The memory of incomplete heads and hellos.
    pub(crate) head_memory: HeadMemory,
    /// A permit for each connection that is served.
    pub(crate) slots: Arc<Semaphore>,
    /// A permit for each connection that gets the answer that all slots are taken.
    pub(crate) busy: Arc<Semaphore>,
    numbered: AtomicU64,
}

impl Capacity {
    pub(crate) fn new(limits: ProxyLimits) -> Self {
        Self {
            pool: Pool::default(),
            head_memory: HeadMemory::default(),
            slots: Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS))),
            busy: Arc::new(Semaphore::new(limits::BUSY)),
            numbered: AtomicU64::new(0),
            limits,
        }
    }

    /// Returns the number of the next connection; the first is 1.
    pub(crate) fn next_number(&self) -> ConnId {
        ConnId(self.numbered.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Returns how many connections have a number.
    pub(crate) fn count(&self) -> u64 {
        self.numbered.load(Ordering::Relaxed)
    }
}
