//! Parses the hosts file: which names it maps to which addresses. It does not read files.

use std::collections::HashMap;
use std::net::IpAddr;

/// The addresses of each name, in the order of the file.
pub(crate) type Hosts = HashMap<Box<str>, Vec<IpAddr>>;

/// Parses hosts(5): an address, then names, with `#` comments. Names are in lower case. A line that is not
/// understood, such as one with a scoped address, is skipped, as in the C library.
pub(crate) fn parse(text: &str) -> Hosts {
    let mut hosts = Hosts::new();
    for line in text.lines() {
        let line = line.split_once('#').map_or(line, |(line, _)| line);
        let mut words = line.split_ascii_whitespace();
        let Some(ip) = words.next().and_then(|ip| ip.parse::<IpAddr>().ok()) else { continue };
        for name in words {
            let ips = hosts.entry(name.to_ascii_lowercase().into_boxed_str()).or_default();
            if !ips.contains(&ip) {
                ips.push(ip);
            }
        }
    }
    hosts
}
