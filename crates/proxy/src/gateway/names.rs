//! Which name has which synthetic addresses, and what listens there. It asks no policy: what it is given is granted.

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
use crate::gateway::{Door, Listen};
use crate::limits;
use crate::thread;

/// The names of a run.
pub(crate) struct Names {
    listen: Arc<dyn Listen>,
    new: UnboundedSender<Door>,
    /// Listeners in all, at most.
    most: usize,
    table: Mutex<Table>,
    /// A bound was met, and said so in the log.
    full: AtomicBool,
}

#[derive(Default)]
struct Table {
    /// In the order of their first questions, from which their addresses come.
    names: Vec<HostName>,
    states: HashMap<HostName, (usize, State)>,
    listening: HashSet<SocketAddr>,
    /// Listeners that are being made, and count already.
    coming: usize,
}

/// A name's listeners.
enum State {
    Open,
    /// They are being made, or could not be.
    Opening(watch::Receiver<Outcome>),
}

/// Why a granted name, or a granted address, is not served.
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

/// What a question finds.
enum Begun {
    /// They are there.
    Open(usize),
    /// Somebody makes them.
    Waiting(usize, watch::Receiver<Outcome>),
    /// Nobody did until now.
    First {
        index: usize,
        reserved: Reserved,
        tell: watch::Sender<Outcome>,
        outcome: watch::Receiver<Outcome>,
    },
}

/// Listeners that count before there are any, until this is dropped.
struct Reserved {
    names: Arc<Names>,
    count: usize,
}

impl Names {
    /// `most`: listeners in all.
    pub(crate) fn new(listen: Arc<dyn Listen>, new: UnboundedSender<Door>, most: usize) -> Self {
        Self { listen, new, most, table: Mutex::default(), full: AtomicBool::new(false) }
    }

    /// Whose synthetic address it is.
    pub(crate) fn name_at(&self, ip: IpAddr) -> Option<HostName> {
        self.table().names.get(index_of(ip)?).cloned()
    }

    /// Whether something of the gateway's listens there.
    pub(crate) fn listens_at(&self, at: SocketAddr) -> bool {
        self.table().listening.contains(&at)
    }

    /// The addresses of a name that has its listeners.
    pub(crate) fn known(&self, name: &HostName) -> Option<Pair> {
        match self.table().states.get(name) {
            Some((index, State::Open)) => Some(pair(*index)),
            _ => None,
        }
    }

    /// The addresses of a name, with listeners on `ports` of both: made now, unless they are there or somebody else is making them.
    /// `room` is given back when nothing is made any more.
    ///
    /// Dropping the future stops nothing that has begun: the next question finds what became of it.
    pub(crate) async fn open(
        self: &Arc<Self>,
        name: &HostName,
        ports: Vec<Port>,
        room: OwnedSemaphorePermit,
    ) -> Result<Pair, Unserved> {
        let by = Instant::now() + limits::LISTEN;
        let (index, mut outcome) = match self.begin(name, &ports)? {
            Begun::Open(index) => return Ok(pair(index)),
            Begun::Waiting(index, outcome) => (index, outcome),
            Begun::First { index, reserved, tell, outcome } => {
                let name = name.clone();
                // Owned by nobody, as it cannot be stopped: it ends by itself.
                let making = thread::start("listeners", move || {
                    let made = {
                        let _room = room;
                        reserved.make(&name, index, &ports, by)
                    };
                    tell.send_replace(Some(made));
                });
                drop(making.map_err(|error| Unserved::Thread(error.to_string()))?);
                (index, outcome)
            }
        };
        let told = timeout_at(by, outcome.wait_for(Option::is_some)).await;
        let Ok(Ok(told)) = told else { return Err(Unserved::Late) };
        told.clone().unwrap_or(Err(Unserved::Late)).map(|()| pair(index))
    }

    /// Makes the listeners of addresses that are granted as such. Each that cannot be made is told to `unserved`, and there are the others.
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
        if synthetic(at.ip()) {
            return Err(Unserved::Synthetic);
        }
        let reserved = self.reserve(&mut self.table(), 1)?;
        let listener = self.listen.listen(at).map_err(|error| Unserved::on(port, &error))?;
        let target = Arc::new(Target { host: Host::Ip(at.ip()), port });
        reserved.give(vec![(at, Door { listener, target })], None);
        Ok(())
    }

    /// Who makes the listeners of a name: at one time one does, and the others wait for it.
    fn begin(self: &Arc<Self>, name: &HostName, ports: &[Port]) -> Result<Begun, Unserved> {
        let mut table = self.table();
        let index = match table.states.get(name) {
            Some((index, State::Open)) => return Ok(Begun::Open(*index)),
            Some((index, State::Opening(outcome))) => {
                // A sender that is gone without a word has panicked.
                let over = outcome.borrow().is_some() || outcome.has_changed().is_err();
                if !over {
                    return Ok(Begun::Waiting(*index, outcome.clone()));
                }
                *index
            }
            None => table.names.len(),
        };
        if index >= limits::NAMES {
            return Err(self.full(Unserved::Names));
        }
        let reserved = self.reserve(&mut table, 2 * ports.len())?;
        if index == table.names.len() {
            table.names.push(name.clone());
        }
        let (tell, outcome) = watch::channel(None);
        table.states.insert(name.clone(), (index, State::Opening(outcome.clone())));
        Ok(Begun::First { index, reserved, tell, outcome })
    }

    /// Counts listeners that are about to be made.
    fn reserve(self: &Arc<Self>, table: &mut Table, count: usize) -> Result<Reserved, Unserved> {
        if count > self.most.saturating_sub(table.listening.len() + table.coming) {
            return Err(self.full(Unserved::Listeners(self.most)));
        }
        table.coming += count;
        Ok(Reserved { names: Arc::clone(self), count })
    }

    /// Says once in a run that a bound was met: a stage can meet it as often as it likes.
    fn full(&self, why: Unserved) -> Unserved {
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
    /// Makes the listeners of one name, all or none.
    fn make(self, name: &HostName, index: usize, ports: &[Port], by: Instant) -> Result<(), Unserved> {
        let Pair { v4, v6 } = pair(index);
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
                    // A kernel without IPv6: a program there has no socket that would get as far as this address.
                    Err(error) if at.is_ipv6() && is_no_family(&error) => {}
                    Err(error) => return Err(Unserved::on(port, &error)),
                }
            }
        }
        self.give(doors, Some(name));
        Ok(())
    }

    /// Hands listeners to whoever serves them. `name` has all of its.
    fn give(self, doors: Vec<(SocketAddr, Door)>, name: Option<&HostName>) {
        let mut table = self.names.table();
        for (at, door) in doors {
            table.listening.insert(at);
            // Nobody takes them at the end of a run: then they are closed, and refuse.
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
    fn on(port: Port, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::AddrInUse => Self::Taken(port),
            _ => Self::Failed { port, error: error.to_string() },
        }
    }
}

/// Whether the kernel has no sockets of that family.
fn is_no_family(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32)
}

/// The first 48 bits of every IPv6 address of a name, and 16 more, 0. A prefix of one's own is drawn by lot (RFC 4193 section 3.2); this one is
/// the same in every run, so that it is known when it is met in a log, and its 40 bits are the letters `exeat`. It need not differ from
/// a network's somewhere: nothing but the sandbox itself is reached by its addresses.
const V6: Ipv6Addr = Ipv6Addr::new(0xfd65, 0x7865, 0x6174, 0, 0, 0, 0, 0);

/// The first IPv4 address of 198.18.0.0/15 (RFC 2544: for measurements between devices, and routed nowhere).
const V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);

/// Addresses of each 256 that are given away: .0 and .255 look like a network's own and its broadcast's, and some software takes them so.
const OF_256: usize = 254;

/// The addresses of the name with this number.
fn pair(index: usize) -> Pair {
    // INVARIANT: there are at most `limits::NAMES` names.
    let offset = u32::try_from(index / OF_256 * 256 + index % OF_256 + 1).unwrap_or_default();
    let number = u128::try_from(index + 1).unwrap_or_default();
    Pair { v4: Ipv4Addr::from_bits(V4.to_bits() + offset), v6: Ipv6Addr::from_bits(V6.to_bits() + number) }
}

/// The number of the name with this address, if there is one.
fn index_of(ip: IpAddr) -> Option<usize> {
    let index = match ip {
        IpAddr::V4(ip) => {
            let offset = usize::try_from(ip.to_bits().checked_sub(V4.to_bits())?).ok()?;
            offset / 256 * OF_256 + (offset % 256).checked_sub(1)?
        }
        IpAddr::V6(ip) => usize::try_from(ip.to_bits().checked_sub(V6.to_bits())?).ok()?.checked_sub(1)?,
    };
    let Pair { v4, v6 } = (index < limits::NAMES).then(|| pair(index))?;
    (ip == v4 || ip == v6).then_some(index)
}

/// Whether it lies where addresses of names come from, given away or not.
fn synthetic(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.to_bits() >> 17 == V4.to_bits() >> 17,
        IpAddr::V6(ip) => ip.to_bits() >> 64 == V6.to_bits() >> 64,
    }
}

#[cfg(test)]
pub(crate) mod tests;
