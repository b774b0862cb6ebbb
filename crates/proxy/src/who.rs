//! Finds the process behind a connection, only for the record. The lookup runs elsewhere: this crate starts it,
//! continues, and waits a moment before the decision is written. Without a result, the record names no process.

use std::net::SocketAddr;

use exeat_record::Process;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::limits;
use crate::stream::Stream;

/// Looks up the processes behind connections.
pub trait ProcessFinder: Send + Sync + 'static {
    /// Starts to look up the process at the client's end of a connection, without blocking. Returns `None` if it
    /// starts no lookup.
    fn ask(&self, client: SocketAddr, server: SocketAddr) -> Option<oneshot::Receiver<Process>>;
}

/// The lookup of the process behind one connection.
#[derive(Debug, Default)]
pub(crate) enum ProcessLookup {
    /// The lookup is running.
    Open(oneshot::Receiver<Process>),
    /// The lookup found this process.
    Found(Process),
    /// The lookup has no result, and will have none.
    #[default]
    Nothing,
}

impl ProcessLookup {
    /// Starts the lookup for a connection. A connection through a Unix socket has none.
    pub(crate) fn start(client: &Stream, who: Option<&dyn ProcessFinder>) -> Self {
        let ask = || match client {
            Stream::Tcp(stream) => who?.ask(stream.peer_addr().ok()?, stream.local_addr().ok()?),
            Stream::Unix(_) => None,
        };
        ask().map_or(Self::Nothing, Self::Open)
    }

    /// Waits for the result, for at most [`limits::WHO`].
    ///
    /// Dropping the future abandons the lookup.
    pub(crate) async fn finish(&mut self) {
        *self = match std::mem::take(self) {
            Self::Open(answer) => match timeout(limits::WHO, answer).await {
                Ok(Ok(process)) => Self::Found(process),
                _ => Self::Nothing,
            },
            settled => settled,
        };
    }

    /// Returns the process, if it is known by now.
    pub(crate) fn process(&self) -> Option<&Process> {
        match self {
            Self::Found(process) => Some(process),
            Self::Open(_) | Self::Nothing => None,
        }
    }
}

#[cfg(test)]
mod tests;
