//! The gateway of a run: what the sandbox crate opens in the stage's network, given to the proxy crate to serve.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use exeat_proxy::{Context, Listen, Packets, Sockets, gateway};
use exeat_sandbox::{InsideNetwork, Network, packets_missed};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, chain};
use crate::plan::Plan;
use crate::request::Transparent;

/// What became of the gateway, before the stage starts.
#[derive(Debug)]
pub(crate) enum Gateway {
    /// It was not asked for.
    Off,
    /// This machine does not allow it, and the run goes on without.
    Unavailable(exeat_sandbox::Error),
    /// It stands.
    On(Network),
}

impl Gateway {
    /// Whether the sandbox's network is to be configured.
    pub(crate) fn is_wanted(plan: &Plan) -> bool {
        plan.transparent != Transparent::Off
    }

    /// # Errors
    /// Where it was demanded and is not to be had.
    pub(crate) fn new(
        plan: &Plan,
        network: Option<Result<Network, exeat_sandbox::Error>>,
    ) -> Result<Self, Error> {
        match network {
            None => Ok(Self::Off),
            Some(Ok(network)) => Ok(Self::On(network)),
            Some(Err(error)) if plan.transparent == Transparent::On => Err(Error::Gateway(error)),
            Some(Err(error)) => Ok(Self::Unavailable(error)),
        }
    }

    /// The word for the record.
    pub(crate) fn word(&self) -> String {
        match self {
            Self::Off => "off".into(),
            Self::Unavailable(error) => format!("off: {}", chain(error)),
            Self::On(_) => "on".into(),
        }
    }

    /// A line for the caller, where something was left out.
    pub(crate) fn note(&self) -> Option<String> {
        let Self::Unavailable(error) = self else { return None };
        Some(format!("programs that ignore HTTPS_PROXY reach nothing in this run: {}", chain(error)))
    }
}

/// The process in the stage's network, as the proxy crate asks for it.
struct Doors(InsideNetwork);

impl Listen for Doors {
    fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        self.0.listen(at)
    }
}

/// The packet socket, as the proxy crate reads it.
#[derive(Debug)]
struct Tap(OwnedFd);

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Packets for Tap {
    fn missed(&self) -> io::Result<u64> {
        packets_missed(self)
    }
}

/// Serves it until `stop` is cancelled.
pub(crate) async fn serve(network: Network, cx: Arc<Context>, stop: CancellationToken) {
    let Network { udp, tcp, tap, inside } = network;
    let listen: Arc<dyn Listen> = Arc::new(Doors(inside));
    if let Err(error) = gateway(Sockets { udp, tcp, tap: Box::new(Tap(tap)) }, listen, cx, stop).await {
        tracing::error!(%error, "the gateway ended");
    }
}
