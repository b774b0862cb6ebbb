//! Guesses what the author of an invalid rule meant. A guess is only shown, never used, and only if it is valid.

use std::net::Ipv4Addr;

use super::{Action, Allowances, parse};
use crate::target::parse_ipv6;

/// Returns a valid rule without allowances that resembles `text`, or `None` if a guess would mislead.
pub(super) fn guess(text: &str, default: Action) -> Option<String> {
    let guess = repair(text, default)?;
    (guess != text && parse(&guess, default, Allowances::default()).is_ok()).then_some(guess)
}

fn repair(text: &str, default: Action) -> Option<String> {
    let body = text.trim().trim_matches(|c: char| matches!(c, '"' | '\'' | '`' | ',' | ';'));
    let unmarked = body.trim_start_matches('!').trim();
    let mark = if body.starts_with('!') && default == Action::Allow { "!" } else { "" };
    // Some input methods write full stops of other scripts for `.` (UTS 46 maps them).
    let body = unmarked.replace(['\u{3002}', '\u{ff0e}', '\u{ff61}'], ".");
    let (authority, scheme_port) = authority(&body);
    let (host, ports) = split(authority);
    let host = host_of(&host)?;
    let ports = match ports.map(ports_of) {
        Some(Some(ports)) => format!(":{ports}"),
        // An empty port list becomes the default of the scheme. An invalid one is not guessed.
        Some(None) if ports != Some("") => return None,
        _ => scheme_port.map(|port| format!(":{port}")).unwrap_or_default(),
    };
    Some(format!("{mark}{host}{ports}"))
}

/// Returns the authority of a possible URL, and the port of its scheme unless that is 443.
fn authority(body: &str) -> (&str, Option<&'static str>) {
    let (scheme, rest) = match body.split_once("://") {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, body.trim_start_matches('/')),
    };
    let port = match scheme.map(str::to_ascii_lowercase).as_deref() {
        Some("http" | "ws") => Some("80"),
        Some("ssh" | "git+ssh") => Some("22"),
        _ => None,
    };
    // The slash of a prefix length does not start a path.
    let is_net = rest.split_once('/').is_some_and(|(address, _)| {
        address.parse::<Ipv4Addr>().is_ok() || parse_ipv6(address).is_some() || address.starts_with('[')
    });
    let rest = match rest.find(['/', '?', '#', '\\']) {
        Some(end) if scheme.is_some() || !is_net => rest.split_at_checked(end).map_or(rest, |(head, _)| head),
        _ => rest,
    };
    (rest.rsplit_once('@').map_or(rest, |(_, host)| host), port)
}

/// Splits the host, with brackets for IPv6, from the ports.
fn split(authority: &str) -> (String, Option<&str>) {
    if authority.starts_with('[') {
        let Some((host, rest)) = authority.split_once(']') else { return (authority.to_owned(), None) };
        let inner = host.trim_start_matches('[');
        // Reads `[2001:db8::]/32` as `[2001:db8::/32]`.
        let (len, ports) = match rest.split_once(':') {
            Some((len, ports)) => (len, Some(ports)),
            None => (rest, None),
        };
        // Reads `[::1]443` as `[::1]:443`.
        if ports.is_none() && crate::port::Port::parse(len).is_some() {
            return (format!("[{inner}]"), Some(len));
        }
        return (format!("[{inner}{len}]"), ports);
    }
    let (address, len) = match authority.split_once('/') {
        Some((address, len)) => (address, Some(len)),
        None => (authority, None),
    };
    if parse_ipv6(address).is_some() {
        if let Some(len) = len {
            return (format!("[{address}/{len}]"), None);
        }
        // In `::1:8080`, a last group that is a valid port is probably one.
        if let Some((head, port)) = address.rsplit_once(':') {
            let like_port = port.len() >= 3 && crate::port::Port::parse(port).is_some();
            if like_port && parse_ipv6(head).is_some() {
                return (format!("[{head}]"), Some(port));
            }
        }
        return (format!("[{address}]"), None);
    }
    match authority.split_once(':') {
        Some((host, ports)) => (host.trim().to_owned(), Some(ports.trim())),
        None => (authority.to_owned(), None),
    }
}

fn host_of(host: &str) -> Option<String> {
    if let Some(inner) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        if inner.parse::<Ipv4Addr>().is_ok() {
            return Some(inner.to_owned());
        }
        // A zone id names an interface of one machine. A rule can only have the address without it.
        let inner = inner.split_once('%').map_or(inner, |(address, _)| address);
        return Some(network(inner).map_or_else(|| format!("[{inner}]"), |net| format!("[{net}]")));
    }
    if host.contains('/') {
        return Some(network(host).unwrap_or_else(|| host.to_owned()));
    }
    if let Some(net) = starred_net(host) {
        return Some(net);
    }
    let mut host = host.to_owned();
    while host.contains("..") {
        host = host.replace("..", ".");
    }
    if let Some(base) = host.strip_prefix('.') {
        return Some(format!("*.{base}"));
    }
    let stars = host.len() - host.trim_start_matches(['*', '.']).len();
    let (head, base) = host.split_at_checked(stars)?;
    if base.contains('*') {
        return None;
    }
    Some(if head.is_empty() { host } else { format!("*.{base}") })
}

/// Returns the network of an address with host bits.
fn network(text: &str) -> Option<String> {
    Some(text.parse::<ipnet::IpNet>().ok()?.trunc().to_string())
}

/// Reads `10.1.*` and `10.1.*.*` as `10.1.0.0/16`.
fn starred_net(host: &str) -> Option<String> {
    let octets: Vec<&str> = host.split('.').take_while(|label| *label != "*").collect();
    let stars = host.split('.').skip(octets.len());
    let starred =
        (1..=3).contains(&octets.len()) && stars.clone().count() >= 1 && stars.clone().all(|s| s == "*");
    if !starred || octets.len() + stars.count() > 4 {
        return None;
    }
    let mut bytes = [0_u8; 4];
    for (byte, octet) in bytes.iter_mut().zip(&octets) {
        *byte = octet.parse().ok()?;
    }
    Some(format!("{}/{}", Ipv4Addr::from(bytes), 8 * octets.len()))
}

fn ports_of(ports: &str) -> Option<String> {
    let items: Option<Vec<String>> = ports
        .split(',')
        .map(|item| {
            let item = item.trim();
            match item.split_once('-').map(|(first, last)| (number(first), number(last))) {
                Some((Some(first), Some(last))) => Some(format!("{}-{}", first.min(last), first.max(last))),
                Some(_) => None,
                None => match item.to_ascii_lowercase().as_str() {
                    "https" => Some("443".into()),
                    "http" => Some("80".into()),
                    "ssh" => Some("22".into()),
                    "*" => Some("*".into()),
                    _ => Some(number(item)?.to_string()),
                },
            }
        })
        .collect();
    let items = items?;
    Some(if items.iter().any(|item| item == "*") { "*".into() } else { items.join(",") })
}

/// Parses a number as people write it, with leading zeros.
fn number(text: &str) -> Option<u16> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port > 0)
}
