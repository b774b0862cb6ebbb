//! Which process has a connection, for the record and for nothing else. It is found elsewhere: this crate asks, goes on, and waits for
//! a moment before the decision is written. Without an answer the record says nothing.

use std::net::SocketAddr;

use exeat_record::Process;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::limits;
use crate::stream::Stream;

/// Finds processes behind connections.
pub trait Who: Send + Sync + 'static {
    /// Begins to look for the process that has the client's end of a connection. Does not block. `None`: nobody looks.
    fn ask(&self, client: SocketAddr, server: SocketAddr) -> Option<oneshot::Receiver<Process>>;
}

/// What is known of the process behind one connection.
#[derive(Debug, Default)]
pub(crate) enum Asked {
    /// It is looked for.
    Open(oneshot::Receiver<Process>),
    /// What was found.
    Found(Process),
    /// Nothing, and nothing is to come.
    #[default]
    Nothing,
}

impl Asked {
    /// Asks for the process behind a connection. Of one that came through a Unix socket nothing is known.
    pub(crate) fn of(client: &Stream, who: Option<&dyn Who>) -> Self {
        let ask = || match client {
            Stream::Tcp(stream) => who?.ask(stream.peer_addr().ok()?, stream.local_addr().ok()?),
            Stream::Unix(_) => None,
        };
        ask().map_or(Self::Nothing, Self::Open)
    }

    /// Waits for the answer, for no longer than [`limits::WHO`].
    ///
    /// Dropping the future gives the answer up.
    pub(crate) async fn settle(&mut self) {
        *self = match std::mem::take(self) {
            Self::Open(answer) => match timeout(limits::WHO, answer).await {
                Ok(Ok(process)) => Self::Found(process),
                _ => Self::Nothing,
            },
            settled => settled,
        };
    }

    /// What is known by now.
    pub(crate) fn process(&self) -> Option<&Process> {
        match self {
            Self::Found(process) => Some(process),
            Self::Open(_) | Self::Nothing => None,
        }
    }
}

#[cfg(test)]
mod tests;
