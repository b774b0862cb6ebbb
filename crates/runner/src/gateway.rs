//! Connects the stage's network to the proxy crate: the gateway of a run, and ports of this machine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use exeat_contract::BridgeKind;
use exeat_policy::{Target, Transparent};
use exeat_proxy::{Context, Gateway, ListenerFactory, PacketSource, Sockets};
use exeat_sandbox::{Finder, InsideNetwork, InsideProcess, Network, Offer, OpenNetwork};
use nix::libc;

use crate::error::{Error, chain};
use crate::plan::Plan;

/// The parts of the sandbox's network that a run needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NetworkNeeds {
    gateway: Transparent,
    host_ports: bool,
    /// Whether the proxy accepts the stage's connections in it.
    handoff: bool,
}

impl EnteredNetwork {
    /// Takes the finder of the processes behind connections.
    pub(crate) fn take_finder(&mut self) -> Option<Finder> {
        self.finder.take()
    }
}

/// The result of entering the network.
pub(crate) struct EnteredNetwork {
    network: Result<Network, exeat_sandbox::Error>,
    /// The error that prevented a requested gateway.
    unavailable: Option<exeat_sandbox::Error>,
    /// The finder of the processes behind connections.
    finder: Option<Finder>,
}

impl NetworkNeeds {
    pub(crate) fn from_plan(plan: &Plan) -> Self {
        // The processes are for exeat's own record, which has no decisions of another proxy.
        let handoff = plan.bridge == BridgeKind::Handoff && plan.via.is_none();
        Self { gateway: plan.transparent, host_ports: !plan.host_ports.is_empty(), handoff }
    }

    /// Returns whether a gateway is requested.
    pub(crate) fn has_gateway(self) -> bool {
        self.gateway != Transparent::Off
    }

    /// Enters the network. Ports of this machine need less than a gateway, and work without one.
    pub(crate) fn enter(self, offer: &Offer, process: &InsideProcess) -> EnteredNetwork {
        let (mut network, unavailable) = match offer.network(process, self.has_gateway()) {
            Err(error) if self.gateway == Transparent::Auto && (self.host_ports || self.handoff) => {
                (offer.network(process, false), Some(error))
            }
            network => (network, None),
        };
        let finder = network.as_mut().ok().and_then(|network| match offer.finder(network) {
            Ok(finder) => Some(finder),
            Err(error) => {
                tracing::debug!(error = chain(&error), "the record will not say who connects");
                None
            }
        });
        EnteredNetwork { network, unavailable, finder }
    }
}

/// The exits of the stage's network other than the proxy's listener, before the stage starts.
#[derive(Default)]
pub(crate) struct NetworkExits {
    /// The error that prevented a requested gateway.
    unavailable: Option<exeat_sandbox::Error>,
    /// The sockets of a gateway.
    open: Option<(OpenNetwork, Arc<dyn ListenerFactory>)>,
    /// The listeners for ports of this machine, with their targets.
    pub(crate) forwards: Vec<(TcpListener, Arc<Target>)>,
}

impl NetworkExits {
    /// Opens the exits.
    ///
    /// # Errors
    /// Returns an error if a required one is not available.
    pub(crate) fn new(plan: &Plan, entered: EnteredNetwork) -> Result<Self, Error> {
        let demanded = match (plan.transparent, plan.host_ports.first()) {
            (Transparent::On, _) => Some("--set sandbox.transparent=on"),
            (_, Some(_)) => Some("--host-port"),
            _ => None,
        };
        let (Network { open, inside, .. }, unavailable) = match (entered, demanded) {
            (EnteredNetwork { network: Ok(network), unavailable, .. }, _) => (network, unavailable),
            (EnteredNetwork { network: Err(source), .. }, Some(flag)) => {
                return Err(Error::Gateway { flag, source });
            }
            (EnteredNetwork { network: Err(error), .. }, None) => {
                // Only the processes behind connections were wanted otherwise.
                let unavailable = Some(error).filter(|_| plan.transparent != Transparent::Off);
                return Ok(Self { unavailable, ..Self::default() });
            }
        };
        let mut forwards = Vec::new();
        for port in &plan.host_ports {
            let (target, inner) = (Arc::new(port.target()), port.inner.get());
            let at = |ip: IpAddr| inside.listen(SocketAddr::new(ip, inner));
            let refused = |source| Error::HostPort { inner, source };
            forwards.push((at(Ipv4Addr::LOCALHOST.into()).map_err(refused)?, Arc::clone(&target)));
            match at(Ipv6Addr::LOCALHOST.into()) {
                Ok(listener) => forwards.push((listener, target)),
                // The kernel has no IPv6.
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(refused(error)),
            }
        }
        let inside: Arc<dyn ListenerFactory> = Arc::new(InsideListeners(inside));
        Ok(Self { unavailable, open: open.map(|open| (open, inside)), forwards })
    }

    /// Returns whether there is a gateway.
    pub(crate) fn has_gateway(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the gateway's state for the record.
    pub(crate) fn state(&self) -> String {
        if self.open.is_some() { "on".into() } else { off_state(self.unavailable.as_ref()) }
    }

    /// Returns a line for the caller if the gateway is missing.
    pub(crate) fn note(&self) -> Option<String> {
        let why = chain(self.unavailable.as_ref()?);
        Some(format!("programs that ignore HTTPS_PROXY reach nothing in this run: {why}"))
    }

    /// Creates the gateway, if there is one, with the listeners that a stage may connect to at once.
    ///
    /// # Errors
    /// Returns an error if a socket cannot be taken over.
    pub(crate) async fn gateway(self, cx: &Arc<Context>) -> io::Result<Option<Gateway>> {
        let Some((OpenNetwork { udp, tcp, taps }, listen)) = self.open else { return Ok(None) };
        let taps = taps.into_iter().map(|tap| Box::new(Tap(tap)) as Box<dyn PacketSource>).collect();
        Gateway::new(Sockets { udp, tcp, taps }, listen, Arc::clone(cx)).await.map(Some)
    }
}

/// Describes for the record that the run has no gateway, and why.
pub(crate) fn off_state(why: Option<&exeat_sandbox::Error>) -> String {
    why.map_or_else(|| "off".into(), |error| format!("off: {}", chain(error)))
}

/// Returns whether the kernel lacks the address family or the address.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// Adapts the process in the stage's network to the proxy crate.
struct InsideListeners(InsideNetwork);

impl ListenerFactory for InsideListeners {
    fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        self.0.listen(at)
    }
}

/// Adapts a raw socket to the proxy crate.
#[derive(Debug)]
struct Tap(exeat_sandbox::Packets);

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PacketSource for Tap {
    fn read(&self, packet: &mut [u8]) -> io::Result<usize> {
        self.0.read(packet)
    }

    fn missed_packets(&self) -> io::Result<u64> {
        self.0.count_missed()
    }
}
