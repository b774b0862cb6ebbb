//! The gateway: for programs that ignore the proxy variables, and others that no proxy is meant for.
//!
//! A name server in the sandbox's network namespace answers for granted names, each with a pair of addresses of its own, and for no
//! others; a connection to such an address on a granted port is a connection to the name. What is tried besides is seen by a tap, and
//! recorded. Sockets of that namespace are given to this crate: how they come about is none of its business.

mod attempts;
pub(crate) mod dns;
mod names;
mod resolver;
mod tap;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use exeat_policy::Target;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::gateway::attempts::Attempts;
use crate::gateway::names::Names;
use crate::server::{Context, Entry, Listener, serve};

/// Makes listeners in the sandbox's network namespace.
pub trait Listen: Send + Sync + 'static {
    /// A listener on that address and port. May block, for no longer than a second or so.
    ///
    /// # Errors
    /// What bind(2) and listen(2) say: `AddrInUse` where the stage itself has the port.
    fn listen(&self, at: SocketAddr) -> io::Result<std::net::TcpListener>;
}

/// The sockets of a sandbox's network namespace that a gateway works with.
#[derive(Debug)]
pub struct Sockets {
    /// The name server's, for datagrams.
    pub udp: std::net::UdpSocket,
    /// The name server's, for streams.
    pub tcp: std::net::TcpListener,
    /// See every attempt to send something to elsewhere.
    pub taps: Vec<Box<dyn Packets>>,
}

/// A raw socket (raw(7)), non-blocking. Its filter lets through what asks for a connection, and what is sent without one.
pub trait Packets: AsFd + fmt::Debug + Send + Sync + 'static {
    /// The next packet, from its IP header on, or as much of it as there is room for.
    ///
    /// # Errors
    /// `WouldBlock` where there is none.
    fn read(&self, packet: &mut [u8]) -> io::Result<usize>;

    /// How many packets found no room in its queue since this was asked last.
    ///
    /// # Errors
    /// What getsockopt(2) says.
    fn missed(&self) -> io::Result<u64>;
}

/// A listener, and what a connection to it asks for.
pub(crate) struct Door {
    pub(crate) listener: std::net::TcpListener,
    pub(crate) target: Arc<Target>,
}

/// Serves the gateway of a run until `stop` is cancelled.
///
/// # Errors
/// Where a socket cannot be taken over, before anything is served.
pub async fn gateway(
    sockets: Sockets,
    listen: Arc<dyn Listen>,
    cx: Arc<Context>,
    stop: CancellationToken,
) -> io::Result<()> {
    let Sockets { udp, tcp, taps } = sockets;
    let (new, mut doors) = mpsc::unbounded_channel();
    let names = Arc::new(Names::new(listen, new, cx.limits().listeners));
    let attempts = Arc::new(Attempts::new(Arc::clone(&cx)));
    let server = resolver::Server::new(udp, tcp, Arc::clone(&names), Arc::clone(&attempts))?;
    let tap = |packets| tap::Tap::new(packets, Arc::clone(&names) as _, Arc::clone(&attempts));
    let taps = taps.into_iter().map(tap).collect::<io::Result<Vec<_>>>()?;
    let mut tasks = JoinSet::new();
    tasks.spawn(server.serve(Arc::clone(&cx), stop.clone()));
    for tap in taps {
        tasks.spawn(tap.watch(stop.clone()));
    }
    loop {
        let door = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            door = doors.recv() => door,
        };
        let Some(Door { listener, target }) = door else { break };
        match Listener::tcp(listener) {
            Ok(listener) => {
                let serving = serve(listener, Entry::Gateway(target), Arc::clone(&cx), stop.clone());
                tasks.spawn(async move {
                    let report = serving.await;
                    tracing::trace!(?report, "a listener of the gateway has stopped");
                });
            }
            // Its name was answered for: a client finds a socket that is closed, which refuses it.
            Err(error) => tracing::warn!(%error, "a listener of the gateway cannot be served"),
        }
    }
    stop.cancelled().await;
    while tasks.join_next().await.is_some() {}
    // Whoever counts attempts has ended.
    attempts.flush();
    Ok(())
}
