//! Resolves a granted target to addresses that may be dialed. It does not dial. It resolves only admitted targets,
//! so a name that no rule grants is never looked up.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dns_lookup::{AddrInfoHints, LookupErrorKind, SockType, getaddrinfo};
use exeat_policy::{
    AddrClass, Admitted, Denial, Entrusted, Host, HostName, OwnAddrs, Target, Vetted, classify,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::hosts_file::{self, Hosts};
use crate::limits;
use crate::reply::{Failure, is_out_of_descriptors};
use crate::thread;

/// Resolves admitted names. Its methods run on a thread that may block.
pub(crate) trait Resolve: Send + Sync {
    fn resolve(&self, name: &HostName) -> Result<Vec<IpAddr>, Failure>;

    /// Returns an answer that needs no waiting.
    fn resolve_now(&self, _name: &HostName) -> Option<Vec<IpAddr>> {
        None
    }
}

/// Resolves names and classifies addresses.
pub(crate) struct Guard {
    resolver: Arc<dyn Resolve>,
    slots: Arc<Semaphore>,
    own: Mutex<Option<(Instant, Arc<OwnAddrs>)>>,
}

/// Addresses that may be dialed, with details for the record.
pub(crate) struct Resolved {
    pub(crate) vetted: Vetted,
    /// Duration of the lookup; `None` for a literal.
    pub(crate) dns: Option<Duration>,
}

/// The addresses of an upstream proxy, which may be dialed. Only [`Guard::resolve_proxy`] creates one.
#[derive(Debug)]
pub(crate) struct ProxyAddrs(Vec<SocketAddr>);

impl ProxyAddrs {
    pub(crate) fn addrs(&self) -> &[SocketAddr] {
        &self.0
    }
}

/// The reason why a target has no address that may be dialed.
pub(crate) enum Unresolved {
    /// The policy refuses an address. `ips` is the whole answer, for the record.
    Denied { denial: Denial, ips: Vec<IpAddr>, dns: Option<Duration> },
    /// The lookup gave no usable answer.
    Failed(Failure),
}

impl Guard {
    pub(crate) fn new(resolver: Arc<dyn Resolve>) -> Self {
        Self { resolver, slots: Arc::new(Semaphore::new(limits::LOOKUPS)), own: Mutex::new(None) }
    }

    /// Resolves `admitted` once and checks every address.
    ///
    /// Dropping the future does not stop a lookup that has begun: its thread runs until the system's resolver gives
    /// up, and keeps its slot until then.
    pub(crate) async fn resolve(&self, admitted: Admitted, by: Instant) -> Result<Resolved, Unresolved> {
        let start = Instant::now();
        let (ips, dns) = match admitted.target().host.name() {
            None => (admitted.target().host.ip().into_iter().collect(), None),
            Some(name) => {
                let looked_up = timeout_at(by, self.look_up(name.clone())).await;
                let ips = looked_up.unwrap_or(Err(Failure::ResolverTimeout)).map_err(Unresolved::Failed)?;
                (ips, Some(start.elapsed()))
            }
        };
        if ips.is_empty() {
            return Err(Unresolved::Failed(Failure::NoSuchName));
        }
        if ips.len() > limits::ANSWERS {
            return Err(Unresolved::Failed(Failure::TooManyAnswers));
        }
        let own = self.own_addresses().map_err(|error| {
            tracing::debug!(%error, "cannot list the host's addresses");
            let failure = if is_out_of_descriptors(&error) { Failure::Resources } else { Failure::Host };
            Unresolved::Failed(failure)
        })?;
        match admitted.vet(&ips, &own) {
            Ok(vetted) => Ok(Resolved { vetted, dns }),
            Err(denial) => Err(Unresolved::Denied { denial, ips, dns }),
        }
    }

    /// Resolves the name of an upstream proxy, once. Ceilings that bound the proxy check its addresses as those of
    /// a target. Otherwise the operator's choice allows any address except metadata services and those that are
    /// never dialed.
    ///
    /// Dropping the future behaves as for [`Guard::resolve`].
    pub(crate) async fn resolve_proxy(
        &self,
        proxy: &Target,
        entrusted: &Entrusted,
        by: Instant,
    ) -> Result<ProxyAddrs, (Failure, String)> {
        let refused = |denial: Denial| (Failure::UpstreamUnresolved, denial.said_outside());
        let bound = entrusted.admit_upstream(proxy.clone()).map_err(refused)?;
        let Target { host, port } = proxy;
        let ips = match host {
            Host::Ip(ip) => vec![*ip],
            Host::Name(name) => {
                let looked_up = timeout_at(by, self.look_up(name.clone())).await;
                let ips = looked_up.unwrap_or(Err(Failure::ResolverTimeout));
                ips.map_err(|failure| (Failure::UpstreamUnresolved, failure.to_string()))?
            }
        };
        if ips.is_empty() || ips.len() > limits::ANSWERS {
            let said = format!("{} addresses in the answer", ips.len());
            return Err((Failure::UpstreamUnresolved, said));
        }
        let closed = |ip: &&IpAddr| {
            let class = classify(**ip);
            class.is_never_dialed() || class == AddrClass::Metadata
        };
        if let Some(ip) = ips.iter().find(closed) {
            return Err((Failure::UpstreamUnresolved, format!("{ip} ({}) is never dialled", classify(*ip))));
        }
        match bound {
            Some(admitted) => {
                let own = self.own_addresses().map_err(|error| (Failure::Host, error.to_string()))?;
                Ok(ProxyAddrs(admitted.vet(&ips, &own).map_err(refused)?.addrs().to_vec()))
            }
            None => Ok(ProxyAddrs(ips.into_iter().map(|ip| SocketAddr::new(ip, port.get())).collect())),
        }
    }

    async fn look_up(&self, name: HostName) -> Result<Vec<IpAddr>, Failure> {
        // Waking a thread costs more than the rest of a CONNECT.
        if let Some(ips) = self.resolver.resolve_now(&name) {
            return Ok(ips);
        }
        let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(|_| Failure::Resolver)?;
        let resolver = Arc::clone(&self.resolver);
        let answer = thread::start("lookup", move || {
            let _slot = slot; // getaddrinfo cannot be cancelled, so the slot stays taken until it returns
            resolver.resolve(&name)
        });
        match answer {
            Ok(answer) => answer.await.unwrap_or(Err(Failure::Resolver)),
            Err(error) => {
                tracing::warn!(%error, "no thread for a lookup");
                Err(Failure::Resolver)
            }
        }
    }

    /// Returns the host's interface addresses, at most [`limits::OWN_ADDRESSES`] old.
    fn own_addresses(&self) -> io::Result<Arc<OwnAddrs>> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read, addrs)) = &*own
            && read.elapsed() < limits::OWN_ADDRESSES
        {
            return Ok(Arc::clone(addrs));
        }
        let addrs = Arc::new(own_addresses()?);
        *own = Some((Instant::now(), Arc::clone(&addrs)));
        Ok(addrs)
    }
}

/// Reads the addresses of this host's interfaces from the kernel (getifaddrs(3)).
///
/// # Errors
/// If the kernel call fails.
pub fn own_addresses() -> io::Result<OwnAddrs> {
    let addrs = nix::ifaddrs::getifaddrs()?.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    Ok(OwnAddrs::new(addrs))
}

/// The reason why an admitted target has no address that may be dialed.
#[derive(Debug)]
pub enum AddressCheckError {
    /// The policy refuses it.
    Denied(Denial),
    /// The lookup gave no usable answer. The text is that of the end-of-run summary.
    Failed(String),
}

/// Resolves an admitted target once, within [`limits::DNS`], and checks every address as the proxy would. Dials and
/// records nothing. Does not look up a literal.
///
/// # Errors
/// Returns an [`AddressCheckError`] if no such address exists.
pub async fn check_addresses(admitted: Admitted) -> Result<Vetted, AddressCheckError> {
    let guard = Guard::new(Arc::new(System::for_this_host()));
    match guard.resolve(admitted, Instant::now() + limits::DNS).await {
        Ok(resolved) => Ok(resolved.vetted),
        Err(Unresolved::Denied { denial, .. }) => Err(AddressCheckError::Denied(denial)),
        Err(Unresolved::Failed(failure)) => Err(AddressCheckError::Failed(failure.to_string())),
    }
}

/// The system's resolver: an exact match in the hosts file, otherwise one lookup of the absolute name.
///
/// The file is read here for two reasons: `getaddrinfo("localhost.")` does not find `localhost` in it, and without
/// the dot the search domains of resolv.conf would rewrite the name (H22).
#[derive(Debug)]
pub(crate) struct System {
    hosts: PathBuf,
    read: Mutex<Option<(Stamp, Arc<Hosts>)>>,
}

/// The properties that distinguish two versions of a file: device, inode, modification time and size.
type Stamp = (u64, u64, i64, i64, u64);

impl System {
    pub(crate) fn for_this_host() -> Self {
        Self::new(PathBuf::from("/etc/hosts"))
    }

    pub(crate) fn new(hosts: PathBuf) -> Self {
        Self { hosts, read: Mutex::new(None) }
    }

    /// Returns the current hosts file. A missing file is empty.
    fn read_hosts(&self) -> io::Result<Arc<Hosts>> {
        let file = match File::open(&self.hosts) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Arc::default()),
            opened => opened?,
        };
        let meta = file.metadata()?;
        let stamp = (meta.dev(), meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.len());
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((seen, hosts)) = &*read
            && *seen == stamp
        {
            return Ok(Arc::clone(hosts));
        }
        let mut text = Vec::new();
        file.take(limits::HOSTS_BYTES + 1).read_to_end(&mut text)?;
        if text.len() as u64 > limits::HOSTS_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the hosts file is too large"));
        }
        let hosts = Arc::new(hosts_file::parse(&String::from_utf8_lossy(&text)));
        *read = Some((stamp, Arc::clone(&hosts)));
        Ok(hosts)
    }
}

impl Resolve for System {
    fn resolve_now(&self, name: &HostName) -> Option<Vec<IpAddr>> {
        // `resolve` reports a file that cannot be read.
        self.read_hosts().ok()?.get(name.as_str()).cloned()
    }

    fn resolve(&self, name: &HostName) -> Result<Vec<IpAddr>, Failure> {
        let hosts = self.read_hosts().map_err(|error| {
            tracing::debug!(%error, "cannot read the hosts file");
            Failure::Host
        })?;
        if let Some(ips) = hosts.get(name.as_str()) {
            return Ok(ips.clone());
        }
        let hints = AddrInfoHints { socktype: SockType::Stream.into(), ..AddrInfoHints::default() };
        let answer = getaddrinfo(Some(&format!("{name}.")), None, Some(hints)).map_err(|error| {
            tracing::debug!(%name, ?error, "lookup failed");
            match error.kind() {
                LookupErrorKind::NoName | LookupErrorKind::NoData => Failure::NoSuchName,
                _ => Failure::Resolver,
            }
        })?;
        let mut ips = Vec::new();
        for info in answer.take(limits::ANSWERS * 4) {
            let ip = info.map_err(|_| Failure::Resolver)?.sockaddr.ip();
            if !ips.contains(&ip) {
                ips.push(ip);
            }
        }
        Ok(ips)
    }
}

#[cfg(test)]
mod tests;
