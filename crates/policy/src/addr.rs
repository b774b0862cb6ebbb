//! Classifies addresses by the special-purpose registries of both families. It decides nothing; `policy.rs` asks
//! which rule may open an address.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The class of an address, with the documents that define it.
///
/// Every class except [`AddrClass::Public`] is closed unless an IP rule opens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum AddrClass {
    /// Global unicast.
    Public,
    /// `0.0.0.0` and `::`. On Linux a connection to them reaches loopback. Never dialed.
    /// See RFC 1122 section 3.2.1.3, RFC 4291 section 2.5.2.
    Unspecified,
    /// The rest of `0.0.0.0/8`. See RFC 791 section 3.2.
    ThisNetwork,
    /// `127.0.0.0/8` and `::1`. See RFC 1122 section 3.2.1.3, RFC 4291 section 2.5.3.
    Loopback,
    /// `10.0.0.0/8`, `172.16.0.0/12`, `192.168.0.0/16`. See RFC 1918.
    Private,
    /// `fc00::/7`. See RFC 4193.
    UniqueLocal,
    /// `100.64.0.0/10`, between a carrier's translator and its subscribers. See RFC 6598.
    Cgnat,
    /// `169.254.0.0/16` and `fe80::/10`. See RFC 3927, RFC 4291 section 2.5.6.
    LinkLocal,
    /// `fec0::/10`, deprecated. See RFC 3879.
    SiteLocal,
    /// The addresses at which clouds give credentials to machines. Source: the vendors' documents.
    Metadata,
    /// `192.0.0.0/24` and `2001::/23`, with the anycast addresses inside them. See RFC 6890, RFC 2928.
    ProtocolAssignment,
    /// For documentation: three IPv4 nets, `2001:db8::/32`, `3fff::/20`. See RFC 5737, RFC 3849, RFC 9637.
    Documentation,
    /// `198.18.0.0/15` and `2001:2::/48`. See RFC 2544, RFC 5180.
    Benchmarking,
    /// `192.88.99.0/24`, deprecated. See RFC 7526, RFC 6751.
    SixToFourRelay,
    /// The blackhole servers of private reverse zones. See RFC 7534, RFC 7535.
    As112,
    /// Automatic multicast tunneling. See RFC 7450.
    Amt,
    /// Hashed host identities that no router carries. See RFC 4843, RFC 7343.
    Orchid,
    /// Identity tags of unmanned aircraft. See RFC 9374.
    Drip,
    /// Segment identifiers, not hosts. See RFC 9602.
    Srv6,
    /// `100::/64`, which routers discard. See RFC 6666.
    Discard,
    /// `100:0:0:1::/64`, a placeholder prefix. See RFC 9780.
    Dummy,
    /// An IPv4 address inside an IPv6 one.
    Embedded(Embedding),
    /// Unassigned space: `240.0.0.0/4`, and IPv6 outside `2000::/3`. See RFC 1112 section 4, RFC 4291 section 2.4.
    Reserved,
    /// `224.0.0.0/4` and `ff00::/8`. Never dialed. See RFC 5771, RFC 4291 section 2.7.
    Multicast,
    /// `255.255.255.255`. Never dialed. See RFC 919.
    Broadcast,
    /// An address of this host other than loopback. It is known only with [`OwnAddrs`].
    Own,
}

/// The way in which an IPv6 address contains an IPv4 one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Embedding {
    /// `::ffff:0:0/96`. See RFC 4291 section 2.5.5.2.
    Mapped,
    /// `::/96`, deprecated. See RFC 4291 section 2.5.5.1.
    Compatible,
    /// `::ffff:0:0:0/96`. See RFC 2765 section 2.1.
    Translated,
    /// `64:ff9b::/96`. See RFC 6052.
    Nat64,
    /// `64:ff9b:1::/48`, the translator of a local network. See RFC 8215.
    Nat64Local,
    /// `2002::/16`. See RFC 3056.
    SixToFour,
    /// `2001::/32`. See RFC 4380.
    Teredo,
    /// `::5efe:a.b.c.d` or `::200:5efe:a.b.c.d` below any /64. See RFC 5214 section 6.1.
    Isatap,
}

impl AddrClass {
    /// Returns the text for a reader, as in `resolves to 10.2.3.4 (private)`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Unspecified => "unspecified",
            Self::ThisNetwork => "this network",
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::UniqueLocal => "private, unique local",
            Self::Cgnat => "carrier-grade NAT",
            Self::LinkLocal => "link-local",
            Self::SiteLocal => "site-local",
            Self::Metadata => "cloud metadata",
            Self::ProtocolAssignment => "protocol assignment",
            Self::Documentation => "documentation",
            Self::Benchmarking => "benchmarking",
            Self::SixToFourRelay => "6to4 relay",
            Self::As112 => "AS112",
            Self::Amt => "multicast tunnelling",
            Self::Orchid => "ORCHID",
            Self::Drip => "DRIP",
            Self::Srv6 => "SRv6",
            Self::Discard => "discard-only",
            Self::Dummy => "dummy prefix",
            Self::Embedded(embedding) => embedding.as_str(),
            Self::Reserved => "reserved",
            Self::Multicast => "multicast",
            Self::Broadcast => "broadcast",
            Self::Own => "this host's own",
        }
    }

    /// Whether no rule can open it.
    pub const fn is_never_dialed(self) -> bool {
        matches!(self, Self::Unspecified | Self::Multicast | Self::Broadcast)
    }
}

impl Embedding {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Mapped => "IPv4-mapped",
            Self::Compatible => "IPv4-compatible",
            Self::Translated => "IPv4-translated",
            Self::Nat64 => "NAT64",
            Self::Nat64Local => "local NAT64",
            Self::SixToFour => "6to4",
            Self::Teredo => "Teredo",
            Self::Isatap => "ISATAP",
        }
    }
}

impl fmt::Display for AddrClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Returns the class of `ip`: that of the narrowest block around it, and never [`AddrClass::Own`].
///
/// An IPv6 address that contains an IPv4 one gets the stricter class of the two: never dialed if the inner one is,
/// [`AddrClass::Metadata`] if the inner one is, and otherwise [`AddrClass::Embedded`]. An embedding is closed
/// whatever it contains, and a rule opens only the part for the inner address's own block.
pub fn classify(ip: IpAddr) -> AddrClass {
    match ip {
        IpAddr::V4(ip) => narrowest_v4(ip).map_or(AddrClass::Public, |(_, class)| class),
        IpAddr::V6(ip) => {
            let class = class_v6(ip);
            // A Teredo address contains IPv4 addresses of the Teredo service, not of the destination.
            if class != AddrClass::Embedded(Embedding::Teredo) {
                let mut inner = inner_addresses(ip, class).map(|ip| classify(ip.into()));
                if let Some(inner) = inner.find(|inner| inner.is_never_dialed()) {
                    return inner;
                }
            }
            let metadata =
                possible_inner_addresses(ip.into()).any(|ip| classify(ip.into()) == AddrClass::Metadata);
            if metadata { AddrClass::Metadata } else { class }
        }
    }
}

/// Returns the IPv4 addresses inside `ip`; none for an IPv4 address. It is used only to refuse more.
pub(crate) fn possible_inner_addresses(ip: IpAddr) -> impl Iterator<Item = Ipv4Addr> {
    let IpAddr::V6(ip) = ip else { return InnerAddresses::default() };
    let class = class_v6(ip);
    let sure = inner_addresses(ip, class);
    // A local NAT64 address does not show the length of its prefix, so the position of the IPv4 address is unknown
    // (RFC 6052 section 2.2). Each possible position is checked.
    match class {
        AddrClass::Embedded(Embedding::Nat64Local) => {
            let [_, _, _, _, _, _, a, b, _, c, d, e, f, ..] = ip.octets();
            // These are prefixes of 48, 56, 64 and 96 bits. Octet 8 is never part of the address.
            let at_48 = Ipv4Addr::new(a, b, c, d);
            let at_56 = Ipv4Addr::new(b, c, d, e);
            let at_64 = Ipv4Addr::new(c, d, e, f);
            InnerAddresses([Some(at_48), Some(at_56), Some(at_64), Some(last_ipv4(ip))])
        }
        _ => sure,
    }
}

/// Returns the IPv4 address after the well-known prefix of NAT64, `64:ff9b::/96` (RFC 6052 section 2.1). Returns
/// `None` for a local prefix, because the position of the IPv4 address is unknown there.
pub(crate) fn nat64(ip: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(ip) = ip else { return None };
    match ip.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => Some(last_ipv4(ip)),
        _ => None,
    }
}

/// Returns the first address of each special-use block of IPv4, and the first one after it.
pub(crate) fn borders_v4() -> impl Iterator<Item = Ipv4Addr> {
    let ends = V4.iter().filter_map(|(net, _)| net.broadcast().to_bits().checked_add(1));
    V4.iter().map(|(net, _)| net.network()).chain(ends.map(Ipv4Addr::from_bits))
}

/// Returns the first address of each special-use block of IPv6, and the first one after it.
pub(crate) fn borders_v6() -> impl Iterator<Item = Ipv6Addr> {
    let ends = V6.iter().filter_map(|(net, _)| net.broadcast().to_bits().checked_add(1));
    V6.iter().map(|(net, _)| net.network()).chain(ends.map(Ipv6Addr::from_bits))
}

/// Whether some address of the network can be special.
pub(crate) fn may_be_special(net: &IpNet) -> bool {
    let meets = |block: IpNet| block.contains(net) || net.contains(&block);
    match net {
        IpNet::V4(_) => V4.iter().any(|(block, _)| meets((*block).into())),
        // Interface identifiers of ISATAP can follow any prefix.
        IpNet::V6(_) => net.prefix_len() > 64 || V6.iter().any(|(block, _)| meets((*block).into())),
    }
}

/// The well-known prefix of NAT64.
pub(crate) const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);

/// Passes addresses of `net` that contain these IPv4 addresses to `found`, in each form that a rule for `net` can
/// open.
pub(crate) fn carriers_in(net: &Ipv6Net, v4: &BTreeSet<Ipv4Addr>, mut found: impl FnMut(Ipv6Addr)) {
    let first = net.network();
    let AddrClass::Embedded(embedding) = class_v6(first) else {
        // `::`, the first address of the compatible form, has another class than the rest.
        let whole = Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 96);
        if *net == whole {
            v4.iter().for_each(|ip| found(ip.to_ipv6_compatible()));
        }
        return;
    };
    let bits = first.to_bits();
    let put = |ip: Ipv4Addr, shift: u32| {
        let mask = u128::from(u32::MAX) << shift;
        Ipv6Addr::from_bits(bits & !mask | u128::from(ip.to_bits()) << shift)
    };
    let isatap = |ip: Ipv4Addr| {
        let prefix = bits & !u128::from(u64::MAX);
        Ipv6Addr::from_bits(prefix | 0x5efe << 32 | u128::from(ip.to_bits()))
    };
    match embedding {
        Embedding::Mapped
        | Embedding::Compatible
        | Embedding::Translated
        | Embedding::Nat64
        | Embedding::Isatap => {
            if net.prefix_len() >= 96 {
                let last = last_ipv4(net.broadcast());
                v4.range(last_ipv4(first)..=last).for_each(|ip| found(put(*ip, 0)));
            }
        }
        Embedding::SixToFour | Embedding::Teredo | Embedding::Nat64Local => {
            for ip in v4 {
                let [a, b, c, d] = ip.octets().map(u128::from);
                // Octet 8 is never part of the address (RFC 6052 section 2.2).
                let split = |at: u32| {
                    let octets = [a, b, c, d];
                    let mut value = bits;
                    let mut place = at;
                    for octet in octets {
                        if place == 8 {
                            place += 1;
                        }
                        let shift = 8 * (15 - place);
                        value = value & !(0xff << shift) | octet << shift;
                        place += 1;
                    }
                    Ipv6Addr::from_bits(value)
                };
                let inverted = Ipv4Addr::from_bits(!ip.to_bits());
                let all = match embedding {
                    Embedding::SixToFour => [put(*ip, 80), isatap(*ip), first, first],
                    Embedding::Teredo => [put(*ip, 64), put(inverted, 0), first, first],
                    _ => [split(6), split(7), split(8), put(*ip, 0)],
                };
                all.into_iter().filter(|ip| net.contains(ip)).for_each(&mut found);
            }
        }
    }
}

/// The rule that an address needs to be open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// No rule: the address is public.
    Public,
    /// An IP rule that lies entirely inside this block.
    Within(IpNet),
    /// No rule can open it.
    Never,
}

/// Returns the block in which an IP rule must lie to open `ip`.
///
/// It is the narrowest special-use block around it. A metadata address and a single protocol assignment are also
/// opened through the block around them, but never through unassigned space. A special inner IPv4 address narrows
/// the block too: `[64:ff9b::/96]` opens the public IPv4 internet behind a translator, not the private nets behind
/// it.
pub(crate) fn opening_for(ip: IpAddr) -> Opening {
    let class = classify(ip);
    if class.is_never_dialed() {
        return Opening::Never;
    }
    let net = match ip {
        IpAddr::V4(ip) => {
            let around = V4.iter().filter(|(net, _)| net.contains(&ip));
            widest(around.map(|(net, class)| (IpNet::V4(*net), *class)))
        }
        IpAddr::V6(ip) => match class_v6(ip) {
            AddrClass::Embedded(embedding) => Some(embedded_block(ip, embedding).into()),
            _ => {
                let around = V6.iter().filter(|(net, _)| net.contains(&ip));
                widest(around.map(|(net, class)| (IpNet::V6(*net), *class)))
            }
        },
    };
    net.map_or(Opening::Public, Opening::Within)
}

/// Returns the widest of nested blocks that a rule may use: outward from the narrowest, through blocks that only
/// assign a place inside another one.
fn widest(around: impl Iterator<Item = (IpNet, AddrClass)>) -> Option<IpNet> {
    let mut around: Vec<_> = around.collect();
    around.sort_by_key(|(net, _)| std::cmp::Reverse(net.prefix_len()));
    let mut open: Option<(IpNet, AddrClass)> = None;
    for (net, class) in around {
        let outward = match open {
            None => true,
            Some((_, AddrClass::Metadata)) => class != AddrClass::Reserved,
            Some(_) => class == AddrClass::ProtocolAssignment,
        };
        if !outward {
            break;
        }
        open = Some((net, class));
    }
    open.map(|(net, _)| net)
}

/// Returns the block for an address that contains an IPv4 one: the whole form, or the part of it for the
/// special-use block of the inner address.
fn embedded_block(ip: Ipv6Addr, embedding: Embedding) -> Ipv6Net {
    let offset: u8 = match embedding {
        Embedding::SixToFour if !is_isatap(ip) => 16,
        Embedding::Mapped
        | Embedding::Compatible
        | Embedding::Translated
        | Embedding::Nat64
        | Embedding::Isatap => 96,
        // The inner address is not a prefix here, so the block is the whole form, or one address.
        Embedding::SixToFour | Embedding::Teredo | Embedding::Nat64Local => {
            let special = possible_inner_addresses(ip.into()).any(|ip| {
                !matches!(
                    classify(ip.into()),
                    AddrClass::Public | AddrClass::Unspecified | AddrClass::ThisNetwork
                )
            });
            let whole = match embedding {
                Embedding::SixToFour => 16,
                Embedding::Teredo => 32,
                _ => 48,
            };
            return truncate(ip, if special { 128 } else { whole });
        }
    };
    let inner = inner_addresses(ip, AddrClass::Embedded(embedding)).next().map(|ip| opening_for(ip.into()));
    match inner {
        Some(Opening::Within(net)) => truncate(ip, offset + net.prefix_len()),
        _ => truncate(ip, offset),
    }
}

fn truncate(ip: Ipv6Addr, len: u8) -> Ipv6Net {
    // INVARIANT: every caller passes at most 128.
    Ipv6Net::new(ip, len.min(128)).map_or_else(|_| Ipv6Net::from(ip), |net| net.trunc())
}

fn narrowest_v4(ip: Ipv4Addr) -> Option<(Ipv4Net, AddrClass)> {
    V4.iter().filter(|(net, _)| net.contains(&ip)).max_by_key(|(net, _)| net.prefix_len()).copied()
}

fn class_v6(ip: Ipv6Addr) -> AddrClass {
    let narrowest = V6.iter().filter(|(net, _)| net.contains(&ip)).max_by_key(|(net, _)| net.prefix_len());
    match narrowest {
        Some((_, class @ AddrClass::Embedded(_))) => *class,
        Some((_, class)) if class.is_never_dialed() => *class,
        // An interface identifier can follow any prefix, above all link-local.
        _ if is_isatap(ip) => AddrClass::Embedded(Embedding::Isatap),
        Some((_, class)) => *class,
        None => AddrClass::Public,
    }
}

fn is_isatap(ip: Ipv6Addr) -> bool {
    matches!(ip.segments(), [_, _, _, _, 0 | 0x0200, 0x5efe, _, _])
}

/// The inner addresses of one address.
#[derive(Debug, Default, Clone)]
struct InnerAddresses([Option<Ipv4Addr>; 4]);

impl Iterator for InnerAddresses {
    type Item = Ipv4Addr;

    fn next(&mut self) -> Option<Ipv4Addr> {
        self.0.iter_mut().find_map(Option::take)
    }
}

/// Returns the inner addresses with a fixed position in the form.
fn inner_addresses(ip: Ipv6Addr, class: AddrClass) -> InnerAddresses {
    let AddrClass::Embedded(embedding) = class else { return InnerAddresses::default() };
    match embedding {
        Embedding::Mapped
        | Embedding::Compatible
        | Embedding::Translated
        | Embedding::Nat64
        | Embedding::Isatap => InnerAddresses([Some(last_ipv4(ip)), None, None, None]),
        Embedding::SixToFour => {
            let [_, a, b, ..] = ip.segments();
            // The site behind the relay may forward it.
            InnerAddresses([Some(join(a, b)), is_isatap(ip).then(|| last_ipv4(ip)), None, None])
        }
        Embedding::Teredo => {
            let [_, _, a, b, ..] = ip.segments();
            // The client's address is stored inverted (RFC 4380 section 4).
            InnerAddresses([Some(Ipv4Addr::from(!u32::from(last_ipv4(ip)))), Some(join(a, b)), None, None])
        }
        Embedding::Nat64Local => InnerAddresses::default(),
    }
}

fn last_ipv4(ip: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b] = ip.segments();
    join(a, b)
}

fn join(a: u16, b: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(a) << 16 | u32::from(b))
}

/// The addresses of this host's own interfaces, as the caller read them from the kernel.
///
/// Each needs a rule for exactly that address. Loopback keeps its own class, and the unspecified address is
/// dropped, because no host has it.
#[derive(Debug, Clone, Default)]
pub struct OwnAddrs(Arc<HashSet<IpAddr>>);

impl OwnAddrs {
    /// Collects the addresses of all interfaces. Repeats and mapped spellings are harmless.
    pub fn new(addrs: impl IntoIterator<Item = IpAddr>) -> Self {
        let own = addrs.into_iter().map(|ip| ip.to_canonical());
        Self(Arc::new(own.filter(|ip| !ip.is_loopback() && !ip.is_unspecified()).collect()))
    }

    /// Whether `ip`, or an IPv4 address inside it, is one of them.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.contains(&ip) || possible_inner_addresses(ip).any(|ip| self.0.contains(&ip.into()))
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, len: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), len)
}

const fn v6(s: [u16; 8], len: u8) -> Ipv6Net {
    let [a, b, c, d, e, f, g, h] = s;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), len)
}

/// The IANA IPv4 special-purpose registry (RFC 6890), the multicast registry, and metadata addresses.
const V4: &[(Ipv4Net, AddrClass)] = &[
    (v4(0, 0, 0, 0, 8), AddrClass::ThisNetwork),
    (v4(0, 0, 0, 0, 32), AddrClass::Unspecified),
    (v4(10, 0, 0, 0, 8), AddrClass::Private),
    (v4(100, 64, 0, 0, 10), AddrClass::Cgnat),
    (v4(127, 0, 0, 0, 8), AddrClass::Loopback),
    (v4(169, 254, 0, 0, 16), AddrClass::LinkLocal),
    (v4(172, 16, 0, 0, 12), AddrClass::Private),
    (v4(192, 0, 0, 0, 24), AddrClass::ProtocolAssignment),
    (v4(192, 0, 2, 0, 24), AddrClass::Documentation),
    (v4(192, 31, 196, 0, 24), AddrClass::As112),
    (v4(192, 52, 193, 0, 24), AddrClass::Amt),
    (v4(192, 88, 99, 0, 24), AddrClass::SixToFourRelay),
    (v4(192, 168, 0, 0, 16), AddrClass::Private),
    (v4(192, 175, 48, 0, 24), AddrClass::As112),
    (v4(198, 18, 0, 0, 15), AddrClass::Benchmarking),
    (v4(198, 51, 100, 0, 24), AddrClass::Documentation),
    (v4(203, 0, 113, 0, 24), AddrClass::Documentation),
    (v4(224, 0, 0, 0, 4), AddrClass::Multicast),
    (v4(240, 0, 0, 0, 4), AddrClass::Reserved),
    (v4(255, 255, 255, 255, 32), AddrClass::Broadcast),
    // Instance metadata: most clouds; credentials of containers and pods; Tencent; Scaleway; Alibaba;
    // Azure's platform endpoint, which is otherwise public space; Oracle.
    (v4(169, 254, 169, 254, 32), AddrClass::Metadata),
    (v4(169, 254, 170, 2, 32), AddrClass::Metadata),
    (v4(169, 254, 170, 23, 32), AddrClass::Metadata),
    (v4(169, 254, 0, 23, 32), AddrClass::Metadata),
    (v4(169, 254, 42, 42, 32), AddrClass::Metadata),
    (v4(100, 100, 100, 200, 32), AddrClass::Metadata),
    (v4(168, 63, 129, 16, 32), AddrClass::Metadata),
    (v4(192, 0, 0, 192, 32), AddrClass::Metadata),
];

/// The IANA IPv6 special-purpose registry (RFC 6890), the IPv6 address space outside `2000::/3`
/// (RFC 4291 section 2.4), and metadata addresses.
const V6: &[(Ipv6Net, AddrClass)] = &[
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), AddrClass::Unspecified),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), AddrClass::Loopback),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 96), AddrClass::Embedded(Embedding::Compatible)),
    (v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96), AddrClass::Embedded(Embedding::Mapped)),
    (v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96), AddrClass::Embedded(Embedding::Translated)),
    (v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96), AddrClass::Embedded(Embedding::Nat64)),
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), AddrClass::Embedded(Embedding::Nat64Local)),
    (v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64), AddrClass::Discard),
    (v6([0x100, 0, 0, 1, 0, 0, 0, 0], 64), AddrClass::Dummy),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), AddrClass::ProtocolAssignment),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), AddrClass::Embedded(Embedding::Teredo)),
    (v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48), AddrClass::Benchmarking),
    (v6([0x2001, 3, 0, 0, 0, 0, 0, 0], 32), AddrClass::Amt),
    (v6([0x2001, 4, 0x112, 0, 0, 0, 0, 0], 48), AddrClass::As112),
    (v6([0x2001, 0x10, 0, 0, 0, 0, 0, 0], 28), AddrClass::Orchid),
    (v6([0x2001, 0x20, 0, 0, 0, 0, 0, 0], 28), AddrClass::Orchid),
    (v6([0x2001, 0x30, 0, 0, 0, 0, 0, 0], 28), AddrClass::Drip),
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), AddrClass::Documentation),
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), AddrClass::Embedded(Embedding::SixToFour)),
    (v6([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48), AddrClass::As112),
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), AddrClass::Documentation),
    (v6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16), AddrClass::Srv6),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), AddrClass::UniqueLocal),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), AddrClass::LinkLocal),
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), AddrClass::SiteLocal),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), AddrClass::Multicast),
    // These rows of the address space registry contain no global unicast.
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 8), AddrClass::Reserved),
    (v6([0x100, 0, 0, 0, 0, 0, 0, 0], 8), AddrClass::Reserved),
    (v6([0x200, 0, 0, 0, 0, 0, 0, 0], 7), AddrClass::Reserved),
    (v6([0x400, 0, 0, 0, 0, 0, 0, 0], 6), AddrClass::Reserved),
    (v6([0x800, 0, 0, 0, 0, 0, 0, 0], 5), AddrClass::Reserved),
    (v6([0x1000, 0, 0, 0, 0, 0, 0, 0], 4), AddrClass::Reserved),
    (v6([0x4000, 0, 0, 0, 0, 0, 0, 0], 3), AddrClass::Reserved),
    (v6([0x6000, 0, 0, 0, 0, 0, 0, 0], 3), AddrClass::Reserved),
    (v6([0x8000, 0, 0, 0, 0, 0, 0, 0], 3), AddrClass::Reserved),
    (v6([0xa000, 0, 0, 0, 0, 0, 0, 0], 3), AddrClass::Reserved),
    (v6([0xc000, 0, 0, 0, 0, 0, 0, 0], 3), AddrClass::Reserved),
    (v6([0xe000, 0, 0, 0, 0, 0, 0, 0], 4), AddrClass::Reserved),
    (v6([0xf000, 0, 0, 0, 0, 0, 0, 0], 5), AddrClass::Reserved),
    (v6([0xf800, 0, 0, 0, 0, 0, 0, 0], 6), AddrClass::Reserved),
    (v6([0xfe00, 0, 0, 0, 0, 0, 0, 0], 9), AddrClass::Reserved),
    // These serve instance metadata: AWS, its pods, Google, Scaleway, OpenStack.
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128), AddrClass::Metadata),
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23], 128), AddrClass::Metadata),
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), AddrClass::Metadata),
    (v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128), AddrClass::Metadata),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe], 128), AddrClass::Metadata),
];

#[cfg(test)]
mod tests;
