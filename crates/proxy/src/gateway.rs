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
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::gateway::attempts::Attempts;
use crate::gateway::names::Names;
use crate::reach::today;
use crate::server::{Context, Entry, Listener, note_panic, serve};

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

/// The gateway of a run, before anybody is served.
pub struct Gateway {
    cx: Arc<Context>,
    attempts: Arc<Attempts>,
    server: resolver::Server,
    taps: Vec<tap::Tap>,
    doors: UnboundedReceiver<Door>,
}

impl Gateway {
    /// Takes the sockets over, and makes the listeners of the addresses that are granted as such: a stage that starts after this
    /// finds them there. Call it inside a runtime. Dropping the future closes everything.
    ///
    /// # Errors
    /// Where a socket cannot be taken over.
    pub async fn new(sockets: Sockets, listen: Arc<dyn Listen>, cx: Arc<Context>) -> io::Result<Self> {
        let Sockets { udp, tcp, taps } = sockets;
        let (new, doors) = mpsc::unbounded_channel();
        let names = Arc::new(Names::new(listen, new, cx.limits().listeners));
        let attempts = Arc::new(Attempts::new(Arc::clone(&cx)));
        let server = resolver::Server::new(udp, tcp, Arc::clone(&names), Arc::clone(&attempts))?;
        let tap = |packets| tap::Tap::new(packets, Arc::clone(&names) as _, Arc::clone(&attempts));
        let taps = taps.into_iter().map(tap).collect::<io::Result<Vec<_>>>()?;
        let addresses = cx.ruling().policy.served_addresses(today());
        if !addresses.is_empty() {
            let unserved = |at, why: &_| tracing::warn!(%at, %why, "a granted address is not served");
            names.open_addresses(addresses, unserved).await;
        }
        Ok(Self { cx, attempts, server, taps, doors })
    }

    /// Serves until `stop` is cancelled, and then for as long as connections are given at the end of a run.
    pub async fn serve(self, stop: CancellationToken) {
        let Self { cx, attempts, server, taps, mut doors } = self;
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
        while let Some(ended) = tasks.join_next().await {
            note_panic(ended);
        }
        // Whoever counts attempts has ended.
        attempts.flush();
    }
}

#[cfg(test)]
mod tests;
