//! The buffers of tunnels. They are lent for one read and kept for the next.

use std::sync::{Mutex, PoisonError};

use crate::limits;

/// A pool of buffers of [`limits::BUFFER`] bytes. It keeps up to [`limits::BUFFERS_KEPT`].
#[derive(Debug, Default)]
pub(crate) struct Pool(pub(crate) Mutex<Vec<Box<[u8]>>>);

/// A borrowed buffer.
pub(crate) struct Loan<'a> {
    pool: &'a Pool,
    pub(crate) buffer: Box<[u8]>,
}

impl Pool {
    pub(crate) fn lend(&self) -> Loan<'_> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Loan { pool: self, buffer: kept.unwrap_or_else(|| vec![0; limits::BUFFER].into_boxed_slice()) }
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let mut kept = self.pool.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < limits::BUFFERS_KEPT {
            kept.push(std::mem::take(&mut self.buffer));
        }
    }
}
