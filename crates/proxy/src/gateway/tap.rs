//! The tap: reads what the sandbox's loopback was given, and tells of what leads nowhere.

use crate::gateway::Packets;
use std::io;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::gateway::attempts::Attempts;
use crate::gateway::names::Names;
use crate::server::Context;

/// The packet socket.
pub(crate) struct Tap {
    socket: Box<dyn Packets>,
    names: Arc<Names>,
    attempts: Arc<Attempts>,
}

impl Tap {
    pub(crate) fn new(
        socket: Box<dyn Packets>,
        names: Arc<Names>,
        attempts: Arc<Attempts>,
    ) -> io::Result<Self> {
        Ok(Self { socket, names, attempts })
    }

    /// Watches until `stop` is cancelled, and then looks once more.
    pub(crate) async fn watch(self, cx: Arc<Context>, stop: CancellationToken) {
        let _ = (&self.socket, &self.names, cx);
        stop.cancelled().await;
        self.attempts.flush();
    }
}
