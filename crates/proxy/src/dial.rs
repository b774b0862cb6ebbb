//! Opens connections to the outside; no other file does. It accepts only a [`Vetted`], or the addresses of the
//! operator's own upstream proxy. It resolves no names.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use exeat_policy::Vetted;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::guard::ProxyAddrs;
use crate::limits;
use crate::reply::{Failure, is_out_of_descriptors};

/// A connection to one of the vetted addresses.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) stream: TcpStream,
    /// The address that answered.
    pub(crate) addr: SocketAddr,
    /// The time for all attempts together.
    pub(crate) took: Duration,
}

/// The first failure if no address answered, because it usually concerns the preferred address.
#[derive(Debug, thiserror::Error)]
#[error("{failure}")]
pub(crate) struct DialError {
    /// For the reply.
    pub(crate) failure: Failure,
    /// For the record: the address and the system's error text.
    pub(crate) detail: String,
}

/// Connects to the first vetted address that answers (RFC 8305 section 5), until `by`.
///
/// Dropping the future closes every pending attempt.
pub(crate) async fn dial(vetted: Vetted, by: Instant) -> Result<Upstream, DialError> {
    connect_any(vetted.addrs(), by).await
}

/// Connects to the operator's own upstream proxy, until `by`.
pub(crate) async fn dial_proxy(proxy: &ProxyAddrs, by: Instant) -> Result<Upstream, DialError> {
    connect_any(proxy.addrs(), by).await
}

async fn connect_any(addrs: &[SocketAddr], by: Instant) -> Result<Upstream, DialError> {
    let start = Instant::now();
    let addrs = alternate_families(addrs);
    match timeout_at(by, race(addrs)).await {
        Ok(Ok((addr, stream))) => {
            // Without this, a small answer waits until the previous one is acknowledged (Nagle).
            let _ = stream.set_nodelay(true);
            Ok(Upstream { stream, addr, took: start.elapsed() })
        }
        Ok(Err(Some((addr, error)))) => {
            Err(DialError { failure: to_failure(&error), detail: format!("{addr}: {error}") })
        }
        Ok(Err(None)) => Err(DialError { failure: Failure::Connect, detail: "no address".into() }),
        Err(_) => Err(DialError {
            failure: Failure::ConnectTimeout,
            detail: format!("no connection after {} ms", start.elapsed().as_millis()),
        }),
    }
}

type Attempt = Pin<Box<dyn Future<Output = (SocketAddr, io::Result<TcpStream>)> + Send>>;

/// Starts an attempt every [`limits::STAGGER`], or as soon as the last one fails; the first connection wins.
async fn race(addrs: Vec<SocketAddr>) -> Result<(SocketAddr, TcpStream), Option<(SocketAddr, io::Error)>> {
    let mut waiting = addrs.into_iter();
    let mut pending: Vec<Attempt> = Vec::new();
    let mut first_error = None;
    let mut next_start = Instant::now();
    loop {
        if pending.is_empty() || Instant::now() >= next_start {
            match waiting.next() {
                Some(addr) => {
                    pending.push(Box::pin(async move { (addr, connect(addr).await) }));
                    next_start = Instant::now() + limits::STAGGER;
                }
                None if pending.is_empty() => return Err(first_error),
                None => {}
            }
        }
        let more = !waiting.as_slice().is_empty();
        tokio::select! {
            (addr, result) = next_ended(&mut pending) => match result {
                Ok(stream) => return Ok((addr, stream)),
                Err(error) => {
                    tracing::debug!(%addr, %error, "connection attempt failed");
                    first_error.get_or_insert((addr, error));
                    next_start = Instant::now();
                }
            },
            () = sleep_until(next_start), if more => {}
        }
    }
}

/// Waits for the first attempt to end, and removes it from `pending`.
async fn next_ended(pending: &mut Vec<Attempt>) -> (SocketAddr, io::Result<TcpStream>) {
    poll_fn(|cx| {
        for place in 0..pending.len() {
            let Some(attempt) = pending.get_mut(place) else { break };
            if let Poll::Ready(ended) = attempt.as_mut().poll(cx) {
                drop(pending.swap_remove(place));
                return Poll::Ready(ended);
            }
        }
        Poll::Pending
    })
    .await
}

async fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.connect(addr).await
}

/// Orders addresses so that the families alternate, starting with that of the first answer (RFC 8305 section 4).
/// Keeps at most [`limits::ATTEMPTS`].
fn alternate_families(addrs: &[SocketAddr]) -> Vec<SocketAddr> {
    let first_is_v6 = addrs.first().is_some_and(SocketAddr::is_ipv6);
    let (mut ours, mut others): (Vec<_>, Vec<_>) =
        addrs.iter().copied().partition(|addr| addr.is_ipv6() == first_is_v6);
    ours.reverse();
    others.reverse();
    let mut turns = Vec::with_capacity(addrs.len());
    while turns.len() < limits::ATTEMPTS && !(ours.is_empty() && others.is_empty()) {
        turns.extend(ours.pop());
        turns.extend(others.pop());
    }
    turns.truncate(limits::ATTEMPTS);
    turns
}

fn to_failure(error: &io::Error) -> Failure {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::ConnectionRefused => Failure::Refused,
        ErrorKind::ConnectionReset => Failure::Reset,
        ErrorKind::TimedOut => Failure::ConnectTimeout,
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => Failure::NoRoute,
        ErrorKind::AddrNotAvailable => Failure::Resources,
        _ if is_out_of_descriptors(error) => Failure::Resources,
        _ => Failure::Connect,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternates_address_families() {
        let addrs: Vec<SocketAddr> = ["[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8::3]:1", "192.0.2.1:1"]
            .map(|addr| addr.parse().unwrap())
            .into();
        let turns: Vec<String> = alternate_families(&addrs).iter().map(ToString::to_string).collect();
        assert_eq!(turns, ["[2001:db8::1]:1", "192.0.2.1:1", "[2001:db8::2]:1", "[2001:db8::3]:1"]);
        let many: Vec<SocketAddr> = (1..30).map(|port| SocketAddr::from(([192, 0, 2, 1], port))).collect();
        assert_eq!(alternate_families(&many), many[..limits::ATTEMPTS]);
    }

    #[tokio::test]
    async fn tries_the_next_address_after_a_dead_one() {
        let origin = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let live = origin.local_addr().unwrap();
        let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (addr, _) = race(vec![dead, live]).await.unwrap();
        assert_eq!(addr, live);
        let (addr, error) = race(vec![dead]).await.unwrap_err().unwrap();
        assert_eq!((addr, to_failure(&error)), (dead, Failure::Refused));
        assert!(race(vec![]).await.unwrap_err().is_none());
    }

    /// RFC 8305: a silent address is overtaken after the stagger. A full backlog makes loopback silent.
    #[tokio::test]
    async fn tries_the_next_address_after_a_silent_one() {
        let silent = TcpSocket::new_v4().unwrap();
        silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let silent = silent.listen(1).unwrap();
        let dark = silent.local_addr().unwrap();
        let mut fill = Vec::new();
        while let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_millis(100), connect(dark)).await {
            fill.push(stream);
        }
        let origin = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let live = origin.local_addr().unwrap();
        let start = Instant::now();
        assert_eq!(race(vec![dark, live]).await.unwrap().0, live);
        let took = start.elapsed();
        assert!((limits::STAGGER..limits::STAGGER * 4).contains(&took), "{took:?}");
    }
}
