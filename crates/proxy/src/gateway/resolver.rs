//! The name server's sockets.

use std::io;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::gateway::attempts::Attempts;
use crate::gateway::names::Names;
use crate::server::Context;

/// The name server.
pub(crate) struct Server {}

impl Server {
    pub(crate) fn new(
        udp: std::net::UdpSocket,
        tcp: std::net::TcpListener,
        names: Arc<Names>,
        attempts: Arc<Attempts>,
    ) -> io::Result<Self> {
        let _ = (udp, tcp, names, attempts);
        Ok(Self {})
    }

    /// Answers until `stop` is cancelled.
    pub(crate) async fn serve(self, cx: Arc<Context>, stop: CancellationToken) {
        let _ = cx;
        stop.cancelled().await;
    }
}
