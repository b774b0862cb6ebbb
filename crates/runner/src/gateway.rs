//! The gateway of a run, and ports of this machine: what the sandbox crate opens in the stage's network, given to the proxy crate to
//! serve.

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

/// What a run wants of the sandbox's network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    gateway: Transparent,
    host_ports: bool,
    /// The proxy accepts the stage's connections in it.
    handoff: bool,
}

impl Entered {
    /// What finds the processes behind connections; once.
    pub(crate) fn take_finder(&mut self) -> Option<Finder> {
        self.finder.take()
    }
}

/// What became of that.
pub(crate) struct Entered {
    network: Result<Network, exeat_sandbox::Error>,
    /// Why it was entered without a gateway, although one was asked for.
    unavailable: Option<exeat_sandbox::Error>,
    /// Finds the processes behind connections.
    finder: Option<Finder>,
}

impl Wanted {
    pub(crate) fn of(plan: &Plan) -> Self {
        // Who asks is for our own record: with somebody else's proxy there are no decisions in it.
        let handoff = plan.bridge == BridgeKind::Handoff && plan.via.is_none();
        Self { gateway: plan.transparent, host_ports: !plan.host_ports.is_empty(), handoff }
    }

    /// Whether a gateway is asked for.
    pub(crate) fn has_gateway(self) -> bool {
        self.gateway != Transparent::Off
    }

    /// Enters it. Ports of this machine take less than a gateway, and are not lost with it.
    pub(crate) fn enter(self, offer: &Offer, process: &InsideProcess) -> Entered {
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
        Entered { network, unavailable, finder }
    }
}

/// Ways out of the stage's network besides the proxy's listener, before the stage starts.
#[derive(Default)]
pub(crate) struct Ways {
    /// Why there is no gateway, although one was asked for.
    unavailable: Option<exeat_sandbox::Error>,
    /// What a gateway works with.
    open: Option<(OpenNetwork, Arc<dyn ListenerFactory>)>,
    /// Listeners for ports of this machine, with what each leads to.
    pub(crate) forwards: Vec<(TcpListener, Arc<Target>)>,
}

impl Ways {
    /// # Errors
    /// Where something was demanded and is not to be had.
    pub(crate) fn new(plan: &Plan, entered: Entered) -> Result<Self, Error> {
        let demanded = match (plan.transparent, plan.host_ports.first()) {
            (Transparent::On, _) => Some("--set sandbox.transparent=on"),
            (_, Some(_)) => Some("--host-port"),
            _ => None,
        };
        let (Network { open, inside, .. }, unavailable) = match (entered, demanded) {
            (Entered { network: Ok(network), unavailable, .. }, _) => (network, unavailable),
            (Entered { network: Err(source), .. }, Some(flag)) => {
                return Err(Error::Gateway { flag, source });
            }
            (Entered { network: Err(error), .. }, None) => {
                // Who connects was all that was wanted, besides.
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
                // A kernel without IPv6.
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(refused(error)),
            }
        }
        let inside: Arc<dyn ListenerFactory> = Arc::new(Doors(inside));
        Ok(Self { unavailable, open: open.map(|open| (open, inside)), forwards })
    }

    /// Whether there is a gateway.
    pub(crate) fn has_gateway(&self) -> bool {
        self.open.is_some()
    }

    /// The gateway, for the record.
    pub(crate) fn word(&self) -> String {
        if self.open.is_some() { "on".into() } else { off(self.unavailable.as_ref()) }
    }

    /// A line for the caller, where something was left out.
    pub(crate) fn note(&self) -> Option<String> {
        let why = chain(self.unavailable.as_ref()?);
        Some(format!("programs that ignore HTTPS_PROXY reach nothing in this run: {why}"))
    }

    /// The gateway, where there is one, with whatever a stage may connect to at once.
    ///
    /// # Errors
    /// Where a socket cannot be taken over.
    pub(crate) async fn gateway(self, cx: &Arc<Context>) -> io::Result<Option<Gateway>> {
        let Some((OpenNetwork { udp, tcp, taps }, listen)) = self.open else { return Ok(None) };
        let taps = taps.into_iter().map(|tap| Box::new(Tap(tap)) as Box<dyn PacketSource>).collect();
        Gateway::new(Sockets { udp, tcp, taps }, listen, Arc::clone(cx)).await.map(Some)
    }
}

/// That there is no gateway, and why, for the record.
pub(crate) fn off(why: Option<&exeat_sandbox::Error>) -> String {
    why.map_or_else(|| "off".into(), |error| format!("off: {}", chain(error)))
}

/// Whether the kernel has no such family, or no such address.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// The process in the stage's network, as the proxy crate asks for it.
struct Doors(InsideNetwork);

impl ListenerFactory for Doors {
    fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        self.0.listen(at)
    }
}

/// A raw socket, as the proxy crate reads it.
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

    fn missed(&self) -> io::Result<u64> {
        self.0.missed()
    }
}
