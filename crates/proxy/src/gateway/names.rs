//! Assigns synthetic addresses to names, and owns their listeners. It asks no policy: callers pass only what is
//! granted.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exeat_policy::{Host, HostName, Port, Target};
use nix::errno::Errno;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, timeout_at};

use crate::gateway::dns::Pair;
use crate::gateway::sockets::{Door, ListenerFactory};
use crate::limits;
use crate::thread;

/// The names of a run that have addresses.
pub(crate) struct Names {
    listen: Arc<dyn ListenerFactory>,
    new: UnboundedSender<Door>,
    /// The maximum number of listeners.
    most: usize,
    table: Mutex<Table>,
    /// Whether the log already says that a limit was reached.
    full: AtomicBool,
}

#[derive(Default)]
struct Table {
    /// In the order of their first questions, which determines their addresses.
    names: Vec<HostName>,
    states: HashMap<HostName, (usize, State)>,
    listening: HashSet<SocketAddr>,
    /// Listeners that are being opened; they count already.
    coming: usize,
}

/// The state of a name's listeners.
enum State {
    Open,
    /// They are being opened, or could not be opened.
    Opening(watch::Receiver<Outcome>),
}

/// The reason why a granted name or address is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unserved {
    #[error("{} names have an address already, and no more get one in a run", limits::NAMES)]
    Names,
    #[error("there would be more than {0} listeners of the gateway")]
    Listeners(usize),
    #[error("the stage itself listens on port {0}, so that the gateway cannot")]
    Taken(Port),
    #[error("the gateway cannot listen on port {port}: {error}")]
    Failed { port: Port, error: String },
    #[error("its listeners were not ready in time")]
    Late,
    #[error("no thread could be had for its listeners: {0}")]
    Thread(String),
    #[error("its address is one of those that the gateway gives to names")]
    Synthetic,
}

type Outcome = Option<Result<(), Unserved>>;

/// The state that a question finds for its name.
enum Opening {
    /// The listeners are open.
    Open(usize),
    /// Another question is opening them.
    Waiting(usize, watch::Receiver<Outcome>),
    /// Nobody has opened them yet.
    First {
        index: usize,
        reserved: Reserved,
        tell: watch::Sender<Outcome>,
        outcome: watch::Receiver<Outcome>,
    },
}

/// Listeners that count before they are open, until this is dropped.
struct Reserved {
    names: Arc<Names>,
    count: usize,
}

impl Names {
    /// Creates an empty table. `most` is the maximum number of listeners.
    pub(crate) fn new(listen: Arc<dyn ListenerFactory>, new: UnboundedSender<Door>, most: usize) -> Self {
        Self { listen, new, most, table: Mutex::default(), full: AtomicBool::new(false) }
    }

    /// Returns the name with this synthetic address.
    pub(crate) fn name_at(&self, ip: IpAddr) -> Option<HostName> {
        self.table().names.get(index_of(ip)?).cloned()
    }

    /// Whether a listener of the gateway has this address.
    pub(crate) fn listens_at(&self, at: SocketAddr) -> bool {
        self.table().listening.contains(&at)
    }

    /// Returns the addresses of a name whose listeners are open.
    pub(crate) fn addresses_of(&self, name: &HostName) -> Option<Pair> {
        match self.table().states.get(name) {
            Some((index, State::Open)) => Some(pair_at(*index)),
            _ => None,
        }
    }

    /// Returns the addresses of a name after its listeners on `ports` are open. Opens them unless they are open or
    /// another question is opening them. `room` is released when nothing is being opened any more.
    ///
    /// Dropping the future does not stop an opening that has begun; the next question finds its result.
    pub(crate) async fn open(
        self: &Arc<Self>,
        name: &HostName,
        ports: Vec<Port>,
        room: OwnedSemaphorePermit,
    ) -> Result<Pair, Unserved> {
        let by = Instant::now() + limits::LISTEN;
        let (index, mut outcome) = match self.begin(name, &ports)? {
            Opening::Open(index) => return Ok(pair_at(index)),
            Opening::Waiting(index, outcome) => (index, outcome),
            Opening::First { index, reserved, tell, outcome } => {
                let name = name.clone();
                // No task owns this thread, because it cannot be stopped. It ends by itself.
                let making = thread::start("listeners", move || {
                    let made = {
                        let _room = room;
                        reserved.open_all(&name, index, &ports, by)
                    };
                    tell.send_replace(Some(made));
                });
                drop(making.map_err(|error| Unserved::Thread(error.to_string()))?);
                (index, outcome)
            }
        };
        let told = timeout_at(by, outcome.wait_for(Option::is_some)).await;
        let Ok(Ok(told)) = told else { return Err(Unserved::Late) };
        told.clone().unwrap_or(Err(Unserved::Late)).map(|()| pair_at(index))
    }

    /// Opens the listeners of addresses that are granted as literals. Reports each failure to `unserved`, and
    /// continues with the others.
    pub(crate) async fn open_addresses(
        self: &Arc<Self>,
        addresses: Vec<SocketAddr>,
        unserved: impl Fn(SocketAddr, &Unserved) + Send + Sync + 'static,
    ) {
        let (names, all, unserved) = (Arc::clone(self), addresses.clone(), Arc::new(unserved));
        let tell = Arc::clone(&unserved);
        let making = thread::start("listeners", move || {
            for at in addresses {
                if let Err(why) = names.open_address(at) {
                    tell(at, &why);
                }
            }
        });
        match making {
            Ok(made) => {
                if made.await.is_err() {
                    tracing::error!("the listeners of granted addresses were not all made");
                }
            }
            Err(error) => {
                let why = Unserved::Thread(error.to_string());
                all.into_iter().for_each(|at| unserved(at, &why));
            }
        }
    }

    fn open_address(self: &Arc<Self>, at: SocketAddr) -> Result<(), Unserved> {
        let Some(port) = Port::new(at.port()) else { return Ok(()) };
        if is_synthetic(at.ip()) {
            return Err(Unserved::Synthetic);
        }
        let reserved = self.reserve(&mut self.table(), 1)?;
        let listener = self.listen.listen(at).map_err(|error| Unserved::for_port(port, &error))?;
        let target = Arc::new(Target { host: Host::Ip(at.ip()), port });
        reserved.hand_over(vec![(at, Door { listener, target })], None);
        Ok(())
    }

    /// Determines who opens the listeners of a name: one question does, and the others wait for it.
    fn begin(self: &Arc<Self>, name: &HostName, ports: &[Port]) -> Result<Opening, Unserved> {
        let mut table = self.table();
        let index = match table.states.get(name) {
            Some((index, State::Open)) => return Ok(Opening::Open(*index)),
            Some((index, State::Opening(outcome))) => {
                // A sender that was dropped without a result has panicked.
                let over = outcome.borrow().is_some() || outcome.has_changed().is_err();
                if !over {
                    return Ok(Opening::Waiting(*index, outcome.clone()));
                }
                *index
            }
            None => table.names.len(),
        };
        if index >= limits::NAMES {
            return Err(self.report_full(Unserved::Names));
        }
        let reserved = self.reserve(&mut table, 2 * ports.len())?;
        if index == table.names.len() {
            table.names.push(name.clone());
        }
        let (tell, outcome) = watch::channel(None);
        table.states.insert(name.clone(), (index, State::Opening(outcome.clone())));
        Ok(Opening::First { index, reserved, tell, outcome })
    }

    /// Reserves listeners that are about to be opened.
    fn reserve(self: &Arc<Self>, table: &mut Table, count: usize) -> Result<Reserved, Unserved> {
        if count > self.most.saturating_sub(table.listening.len() + table.coming) {
            return Err(self.report_full(Unserved::Listeners(self.most)));
        }
        table.coming += count;
        Ok(Reserved { names: Arc::clone(self), count })
    }

    /// Logs once per run that a limit was reached, because a stage can reach it again and again.
    fn report_full(&self, why: Unserved) -> Unserved {
        if !self.full.swap(true, Ordering::Relaxed) {
            tracing::warn!(%why, "the gateway serves no further names");
        }
        why
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reserved {
    /// Opens the listeners of one name, all or none.
    fn open_all(self, name: &HostName, index: usize, ports: &[Port], by: Instant) -> Result<(), Unserved> {
        let Pair { v4, v6 } = pair_at(index);
        let mut doors = Vec::with_capacity(self.count);
        for &port in ports {
            let target = Arc::new(Target { host: Host::Name(name.clone()), port });
            for ip in [IpAddr::from(v4), v6.into()] {
                if Instant::now() >= by {
                    return Err(Unserved::Late);
                }
                let at = SocketAddr::new(ip, port.get());
                match self.names.listen.listen(at) {
                    Ok(listener) => doors.push((at, Door { listener, target: Arc::clone(&target) })),
                    // The kernel has no IPv6, so no program can connect to this address.
                    Err(error) if at.is_ipv6() && is_no_family(&error) => {}
                    Err(error) => return Err(Unserved::for_port(port, &error)),
                }
            }
        }
        self.hand_over(doors, Some(name));
        Ok(())
    }

    /// Hands listeners to the serving task. `name` is now open.
    fn hand_over(self, doors: Vec<(SocketAddr, Door)>, name: Option<&HostName>) {
        let mut table = self.names.table();
        for (at, door) in doors {
            table.listening.insert(at);
            // At the end of a run nobody receives them. They are then closed, and refuse.
            let _ = self.names.new.send(door);
        }
        if let Some((_, state)) = name.and_then(|name| table.states.get_mut(name)) {
            *state = State::Open;
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.names.table().coming -= self.count;
    }
}

impl Unserved {
    fn for_port(port: Port, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::AddrInUse => Self::Taken(port),
            _ => Self::Failed { port, error: error.to_string() },
        }
    }
}

/// Whether the kernel has no sockets of this family.
fn is_no_family(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32)
}

/// The first 48 bits of every IPv6 address of a name, and 16 zero bits. RFC 4193 section 3.2 asks for a random
/// prefix. This one is the same in every run, so that it is recognized in a log; its 40 bits are the letters
/// `exeat`. It need not be unique, because only the sandbox itself uses these addresses.
const V6: Ipv6Addr = Ipv6Addr::new(0xfd65, 0x7865, 0x6174, 0, 0, 0, 0, 0);

/// The first IPv4 address of 198.18.0.0/15 (RFC 2544), which is for benchmarks and is routed nowhere.
const V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);

/// Addresses used of each 256. Some software takes .0 for a network address and .255 for a broadcast address.
const OF_256: usize = 254;

/// Returns the addresses of the name with this number.
fn pair_at(index: usize) -> Pair {
    // INVARIANT: there are at most `limits::NAMES` names.
    let offset = u32::try_from(index / OF_256 * 256 + index % OF_256 + 1).unwrap_or_default();
    let number = u128::try_from(index + 1).unwrap_or_default();
    Pair { v4: Ipv4Addr::from_bits(V4.to_bits() + offset), v6: Ipv6Addr::from_bits(V6.to_bits() + number) }
}

/// Returns the number of the name with this address, if there is one.
fn index_of(ip: IpAddr) -> Option<usize> {
    let index = match ip {
        IpAddr::V4(ip) => {
            let offset = usize::try_from(ip.to_bits().checked_sub(V4.to_bits())?).ok()?;
            offset / 256 * OF_256 + (offset % 256).checked_sub(1)?
        }
        IpAddr::V6(ip) => usize::try_from(ip.to_bits().checked_sub(V6.to_bits())?).ok()?.checked_sub(1)?,
    };
    let Pair { v4, v6 } = (index < limits::NAMES).then(|| pair_at(index))?;
    (ip == v4 || ip == v6).then_some(index)
}

/// Whether an address is in the ranges for names, whether it is assigned or not.
fn is_synthetic(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.to_bits() >> 17 == V4.to_bits() >> 17,
        IpAddr::V6(ip) => ip.to_bits() >> 64 == V6.to_bits() >> 64,
    }
}

#[cfg(test)]
pub(crate) mod tests;
