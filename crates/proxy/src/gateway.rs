//! Serves programs that ignore the proxy variables, or cannot use a proxy.
//!
//! A name server in the sandbox's network namespace gives each granted name its own pair of addresses, and answers
//! for no other name. A connection to such an address on a granted port is a connection to the name. A tap sees all
//! other attempts, and they are recorded. The caller provides the sockets of that namespace.

mod attempts;
pub(crate) mod dns;
mod names;
mod resolver;
mod sockets;
mod tap;

use std::io;
use std::sync::Arc;

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::context::{Context, Entry};
use crate::gateway::attempts::Attempts;
use crate::gateway::names::Names;
use crate::gateway::sockets::Door;
pub use crate::gateway::sockets::{ListenerFactory, PacketSource, Sockets};
use crate::server::{Listener, note_panic, serve};
use exeat_record::today;

/// The gateway of a run, before it serves.
pub struct Gateway {
    cx: Arc<Context>,
    attempts: Arc<Attempts>,
    server: resolver::Server,
    taps: Vec<tap::Tap>,
    doors: UnboundedReceiver<Door>,
}

impl Gateway {
    /// Takes over the sockets, and opens the listeners of addresses that are granted as literals, so that a stage
    /// that starts after this finds them. Call it inside a runtime. Dropping the future closes everything.
    ///
    /// # Errors
    /// If a socket cannot be taken over.
    pub async fn new(
        sockets: Sockets,
        listen: Arc<dyn ListenerFactory>,
        cx: Arc<Context>,
    ) -> io::Result<Self> {
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

    /// Serves until `stop` is cancelled, and then for the time that connections get at the end of a run.
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
                // The name was already answered. The client finds a closed socket, which refuses it.
                Err(error) => tracing::warn!(%error, "a listener of the gateway cannot be served"),
            }
        }
        stop.cancelled().await;
        while let Some(ended) = tasks.join_next().await {
            note_panic(ended);
        }
        // Every task that counts attempts has ended.
        attempts.flush();
    }
}

#[cfg(test)]
mod tests;
