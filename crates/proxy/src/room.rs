//! What the connections of one run take up, whoever serves them: places, numbers and buffers, within its limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use exeat_record::ConnId;
use tokio::sync::Semaphore;

use crate::held::Held;
use crate::limits::{self, Limits};
use crate::tunnel::Pool;

pub(crate) struct Room {
    pub(crate) limits: Limits,
    pub(crate) pool: Pool,
    /// What heads and hellos take up.
    pub(crate) held: Held,
    /// A permit per connection that is served.
    pub(crate) slots: Arc<Semaphore>,
    /// A permit per connection that is told that there is no slot.
    pub(crate) busy: Arc<Semaphore>,
    numbered: AtomicU64,
}

impl Room {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            pool: Pool::default(),
            held: Held::default(),
            slots: Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS))),
            busy: Arc::new(Semaphore::new(limits::BUSY)),
            numbered: AtomicU64::new(0),
            limits,
        }
    }

    /// The number of the next connection; they start at 1.
    pub(crate) fn number(&self) -> ConnId {
        ConnId(self.numbered.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// How many connections have a number.
    pub(crate) fn numbered(&self) -> u64 {
        self.numbered.load(Ordering::Relaxed)
    }
}
