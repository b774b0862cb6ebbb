//! Counts the open connections to each host. Beyond the limit it returns no permit, and the caller refuses.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};

use exeat_policy::Host;

/// The open connections by host, all ports together. A host is a name, or an address if the client asked for one.
/// Hosts without connections have no entry.
#[derive(Debug, Default)]
pub(crate) struct PerHost(Mutex<HashMap<Host, usize>>);

/// A connection to a host. It counts until it is dropped.
#[must_use = "it counts while it lives"]
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    hosts: &'a PerHost,
    host: Host,
}

impl PerHost {
    /// Counts one more connection to `host`. Returns `None` if there are `most` already.
    pub(crate) fn admit(&self, host: &Host, most: usize) -> Option<Permit<'_>> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.get(host).copied().unwrap_or_default();
        if count >= most {
            return None;
        }
        open.insert(host.clone(), count + 1);
        Some(Permit { hosts: self, host: host.clone() })
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut open = self.hosts.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = open.entry(self.host.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use exeat_policy::Target;

    use super::*;

    fn host(text: &str) -> Host {
        Target::parse(format!("{text}:443").as_bytes()).unwrap().host
    }

    /// R01: hosts are counted separately, and a returned permit is available again.
    #[test]
    fn counts_hosts_separately() {
        let hosts = PerHost::default();
        let first = hosts.admit(&host("a.test"), 2).unwrap();
        let second = hosts.admit(&host("A.test"), 2).unwrap();
        assert!(hosts.admit(&host("a.test"), 2).is_none());
        let other = hosts.admit(&host("192.0.2.1"), 2).unwrap();
        drop(first);
        let third = hosts.admit(&host("a.test"), 2).unwrap();
        assert!(hosts.admit(&host("a.test"), 2).is_none());
        drop((second, third, other));
        assert!(hosts.admit(&host("a.test"), 0).is_none());
        assert!(hosts.0.lock().unwrap().is_empty(), "hosts without a connection are not kept");
    }
}
