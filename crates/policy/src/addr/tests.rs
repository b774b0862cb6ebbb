use super::*;

fn class(ip: &str) -> AddrClass {
    classify(ip.parse().unwrap())
}

/// Each block by its first and last address, with the neighbor just outside on either side; `-` is none.
#[test]
fn d06_classifies_every_block_and_its_neighbors() {
    use AddrClass::*;
    const MAPPED: AddrClass = Embedded(Embedding::Mapped);
    let rows: &[(AddrClass, &str, &str, &str, &str, AddrClass, AddrClass)] = &[
        (Unspecified, "-", "0.0.0.0", "0.0.0.0", "0.0.0.1", Public, ThisNetwork),
        (ThisNetwork, "-", "0.0.0.1", "0.255.255.255", "1.0.0.0", Public, Public),
        (Private, "9.255.255.255", "10.0.0.0", "10.255.255.255", "11.0.0.0", Public, Public),
        (Cgnat, "100.63.255.255", "100.64.0.0", "100.127.255.255", "100.128.0.0", Public, Public),
        (Metadata, "100.100.100.199", "100.100.100.200", "100.100.100.200", "100.100.100.201", Cgnat, Cgnat),
        (Loopback, "126.255.255.255", "127.0.0.0", "127.255.255.255", "128.0.0.0", Public, Public),
        (LinkLocal, "169.253.255.255", "169.254.0.0", "169.254.255.255", "169.255.0.0", Public, Public),
        (
            Metadata,
            "169.254.169.253",
            "169.254.169.254",
            "169.254.169.254",
            "169.254.169.255",
            LinkLocal,
            LinkLocal,
        ),
        (Metadata, "169.254.170.1", "169.254.170.2", "169.254.170.2", "169.254.170.3", LinkLocal, LinkLocal),
        (Metadata, "168.63.129.15", "168.63.129.16", "168.63.129.16", "168.63.129.17", Public, Public),
        (Private, "172.15.255.255", "172.16.0.0", "172.31.255.255", "172.32.0.0", Public, Public),
        (ProtocolAssignment, "191.255.255.255", "192.0.0.0", "192.0.0.255", "192.0.1.0", Public, Public),
        (
            Metadata,
            "192.0.0.191",
            "192.0.0.192",
            "192.0.0.192",
            "192.0.0.193",
            ProtocolAssignment,
            ProtocolAssignment,
        ),
        (Documentation, "192.0.1.255", "192.0.2.0", "192.0.2.255", "192.0.3.0", Public, Public),
        (As112, "192.31.195.255", "192.31.196.0", "192.31.196.255", "192.31.197.0", Public, Public),
        (Amt, "192.52.192.255", "192.52.193.0", "192.52.193.255", "192.52.194.0", Public, Public),
        (SixToFourRelay, "192.88.98.255", "192.88.99.0", "192.88.99.255", "192.88.100.0", Public, Public),
        (Private, "192.167.255.255", "192.168.0.0", "192.168.255.255", "192.169.0.0", Public, Public),
        (As112, "192.175.47.255", "192.175.48.0", "192.175.48.255", "192.175.49.0", Public, Public),
        (Benchmarking, "198.17.255.255", "198.18.0.0", "198.19.255.255", "198.20.0.0", Public, Public),
        (Documentation, "198.51.99.255", "198.51.100.0", "198.51.100.255", "198.51.101.0", Public, Public),
        (Documentation, "203.0.112.255", "203.0.113.0", "203.0.113.255", "203.0.114.0", Public, Public),
        (Multicast, "223.255.255.255", "224.0.0.0", "239.255.255.255", "240.0.0.0", Public, Reserved),
        (
            Reserved,
            "239.255.255.255",
            "240.0.0.0",
            "255.255.255.254",
            "255.255.255.255",
            Multicast,
            Broadcast,
        ),
        (Unspecified, "-", "::", "::", "::1", Public, Loopback),
        (Loopback, "::", "::1", "::1", "::2", Unspecified, Embedded(Embedding::Compatible)),
        (Embedded(Embedding::Compatible), "::1", "::2", "::df00:1", "::1:0:0:0", Loopback, Reserved),
        (MAPPED, "::fffe:ffff:ffff", "::ffff:0.0.0.1", "::ffff:223.0.0.1", "::1:0:0:0", Reserved, Reserved),
        (
            Embedded(Embedding::Translated),
            "::fffe:ffff:ffff:ffff",
            "::ffff:0:0:1",
            "::ffff:0:df00:1",
            "::ffff:1:0:0",
            Reserved,
            Reserved,
        ),
        (
            Embedded(Embedding::Nat64),
            "64:ff9a:ffff:ffff:ffff:ffff:ffff:ffff",
            "64:ff9b::1",
            "64:ff9b::df00:1",
            "64:ff9b::1:0:0",
            Reserved,
            Reserved,
        ),
        (
            Embedded(Embedding::Nat64Local),
            "64:ff9b:0:ffff:ffff:ffff:ffff:ffff",
            "64:ff9b:1::",
            "64:ff9b:1:ffff:ffff:ffff:ffff:ffff",
            "64:ff9b:2::",
            Reserved,
            Reserved,
        ),
        (
            Discard,
            "ff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "100::",
            "100::ffff:ffff:ffff:ffff",
            "100:0:0:1::",
            Reserved,
            Dummy,
        ),
        (
            Dummy,
            "100::ffff:ffff:ffff:ffff",
            "100:0:0:1::",
            "100:0:0:1:ffff:ffff:ffff:ffff",
            "100:0:0:2::",
            Discard,
            Reserved,
        ),
        (Reserved, "-", "200::1", "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "2000::", Public, Public),
        (
            Public,
            "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "2000::",
            "2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001::",
            Reserved,
            Embedded(Embedding::Teredo),
        ),
        (
            Embedded(Embedding::Teredo),
            "2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001::",
            "2001:0:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:1::",
            Public,
            ProtocolAssignment,
        ),
        (
            ProtocolAssignment,
            "2001:0:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:1::",
            "2001:1::3",
            "2001:2::",
            Embedded(Embedding::Teredo),
            Benchmarking,
        ),
        (
            Benchmarking,
            "2001:1:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:2::",
            "2001:2:0:ffff:ffff:ffff:ffff:ffff",
            "2001:2:1::",
            ProtocolAssignment,
            ProtocolAssignment,
        ),
        (
            Amt,
            "2001:2:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:3::",
            "2001:3:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:4::",
            ProtocolAssignment,
            ProtocolAssignment,
        ),
        (
            As112,
            "2001:4:111:ffff:ffff:ffff:ffff:ffff",
            "2001:4:112::",
            "2001:4:112:ffff:ffff:ffff:ffff:ffff",
            "2001:4:113::",
            ProtocolAssignment,
            ProtocolAssignment,
        ),
        (
            Orchid,
            "2001:f:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:10::",
            "2001:2f:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:30::",
            ProtocolAssignment,
            Drip,
        ),
        (
            Drip,
            "2001:2f:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:30::",
            "2001:3f:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:40::",
            Orchid,
            ProtocolAssignment,
        ),
        (
            ProtocolAssignment,
            "-",
            "2001:40::",
            "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:200::",
            Public,
            Public,
        ),
        (
            Documentation,
            "2001:db7:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:db8::",
            "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:db9::",
            Public,
            Public,
        ),
        (
            Embedded(Embedding::SixToFour),
            "2001:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "2002:100::",
            "2002:dfff:ffff:ffff:ffff:ffff:ffff:ffff",
            "2003::",
            Public,
            Public,
        ),
        (
            As112,
            "2620:4f:7fff:ffff:ffff:ffff:ffff:ffff",
            "2620:4f:8000::",
            "2620:4f:8000:ffff:ffff:ffff:ffff:ffff",
            "2620:4f:8001::",
            Public,
            Public,
        ),
        (
            Documentation,
            "3ffe:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "3fff::",
            "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff",
            "3fff:1000::",
            Public,
            Public,
        ),
        (
            Reserved,
            "3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "4000::",
            "5eff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "5f00::",
            Public,
            Srv6,
        ),
        (
            Srv6,
            "5eff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "5f00::",
            "5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "5f01::",
            Reserved,
            Reserved,
        ),
        (
            UniqueLocal,
            "fbff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "fc00::",
            "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "fe00::",
            Reserved,
            Reserved,
        ),
        (
            Metadata,
            "fd00:ec2::253",
            "fd00:ec2::254",
            "fd00:ec2::254",
            "fd00:ec2::255",
            UniqueLocal,
            UniqueLocal,
        ),
        (Metadata, "fd20:ce::253", "fd20:ce::254", "fd20:ce::254", "fd20:ce::255", UniqueLocal, UniqueLocal),
        (
            LinkLocal,
            "fe7f:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "fe80::",
            "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "fec0::",
            Reserved,
            SiteLocal,
        ),
        (
            SiteLocal,
            "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "fec0::",
            "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "ff00::",
            LinkLocal,
            Multicast,
        ),
        (
            Multicast,
            "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "ff00::",
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "-",
            SiteLocal,
            Public,
        ),
    ];
    for (expect, before, first, last, after, class_before, class_after) in rows {
        for ip in [first, last] {
            assert_eq!(class(ip), *expect, "{ip}");
        }
        for (ip, expect) in [(before, class_before), (after, class_after)] {
            if *ip != "-" {
                assert_eq!(class(ip), *expect, "{ip}, just outside");
            }
        }
    }
}

/// No address outside `2000::/3` is public, whatever its block.
#[test]
fn classifies_only_global_unicast_as_public() {
    for first in 0..=u8::MAX {
        let ip = Ipv6Addr::new(u16::from(first) << 8, 0x1234, 1, 2, 3, 4, 5, 6);
        let public = (0x20..=0x3f).contains(&first);
        assert_eq!(class(&ip.to_string()) == AddrClass::Public, public, "{ip}");
    }
}

#[test]
fn h08_judges_embedded_forms() {
    use Embedding::*;
    for (ip, embedding, inner) in [
        ("::ffff:127.0.0.1", Mapped, "127.0.0.1"),
        ("::ffff:93.184.215.14", Mapped, "93.184.215.14"),
        ("::127.0.0.1", Compatible, "127.0.0.1"),
        ("::ffff:0:10.0.0.1", Translated, "10.0.0.1"),
        ("64:ff9b::a9fe:101", Nat64, "169.254.1.1"),
        ("64:ff9b:1::10.0.0.1", Nat64Local, "10.0.0.1"),
        ("64:ff9b:1:a00:0:100::", Nat64Local, "10.0.0.1"),
        ("64:ff9b:1:ff0a:0:1::", Nat64Local, "10.0.0.1"),
        ("64:ff9b:1:ffff:a:0:100:0", Nat64Local, "10.0.0.1"),
        ("2002:5db8:d70e::5efe:a00:1", SixToFour, "10.0.0.1"),
        ("2002:7f00:1::1", SixToFour, "127.0.0.1"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", Teredo, "192.0.2.45"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", Teredo, "65.54.227.120"),
        ("fe80::5efe:7f00:1", Isatap, "127.0.0.1"),
        ("2606:2800::200:5efe:10.0.0.1", Isatap, "10.0.0.1"),
    ] {
        let parsed: IpAddr = ip.parse().unwrap();
        assert_eq!(classify(parsed), AddrClass::Embedded(embedding), "{ip}");
        assert!(possible_inner_addresses(parsed).any(|ip| ip.to_string() == inner), "{inner} in {ip}");
    }
    for ip in ["2606:2800:21f::1", "fe80::1", "::1", "93.184.215.14", "2606:2800::201:5efe:10.0.0.1"] {
        assert_eq!(possible_inner_addresses(ip.parse().unwrap()).count(), 0, "{ip}");
    }
}

/// Writes the same IPv4 address in every form that contains one.
fn forms(ip: Ipv4Addr) -> Vec<Ipv6Addr> {
    let [a, b, c, d] = ip.octets();
    let pair = |x, y| u16::from_be_bytes([x, y]);
    let (high, low) = (pair(a, b), pair(c, d));
    let v6 = |s: [u16; 8]| Ipv6Addr::from(s);
    vec![
        v6([0, 0, 0, 0, 0, 0xffff, high, low]),
        v6([0, 0, 0, 0, 0, 0, high, low]),
        v6([0, 0, 0, 0, 0xffff, 0, high, low]),
        v6([0x64, 0xff9b, 0, 0, 0, 0, high, low]),
        v6([0x64, 0xff9b, 1, high, pair(0, c), pair(d, 0), 0, 0]),
        v6([0x64, 0xff9b, 1, pair(7, a), pair(0, b), low, 0, 0]),
        v6([0x64, 0xff9b, 1, 7, pair(0, a), pair(b, c), pair(d, 0), 0]),
        v6([0x64, 0xff9b, 1, 7, 7, 7, high, low]),
        v6([0x2002, high, low, 0, 0, 0, 0, 1]),
        v6([0x2002, 0x5db8, 0xd70e, 0, 0, 0x5efe, high, low]),
        v6([0x2001, 0, 0x5db8, 0xd70e, 0x8000, 0x63bf, !high, !low]),
        v6([0x2001, 0, high, low, 0x8000, 0x63bf, 0x5db8, 0xd70e]),
        v6([0xfe80, 0, 0, 0, 0, 0x5efe, high, low]),
        v6([0x2606, 0x2800, 0, 0, 0x0200, 0x5efe, high, low]),
    ]
}

/// D05, H08: a metadata address is one in every form, and only a rule of the same width opens it.
#[test]
fn classifies_metadata_in_every_form() {
    let known = V4.iter().filter(|(_, class)| *class == AddrClass::Metadata);
    let known: Vec<_> = known.map(|(net, _)| net.addr()).collect();
    assert_eq!(known.len(), 8);
    for inner in known {
        let Opening::Within(plain) = opening_for(inner.into()) else { panic!("{inner} is never public") };
        for ip in forms(inner) {
            assert_eq!(classify(ip.into()), AddrClass::Metadata, "{inner} in {ip}");
            let Opening::Within(block) = opening_for(ip.into()) else { panic!("{ip} is never public") };
            let hosts = |net: IpNet| net.max_prefix_len() - net.prefix_len();
            // 6to4 leaves 80 bits to the site.
            let site = if ip.segments()[0] == 0x2002 && block.prefix_len() < 128 { 80 } else { 0 };
            assert!(hosts(block) <= hosts(plain) + site, "{ip} is opened by {block}, {inner} by {plain}");
        }
    }
}

/// D06, H08: an address that is closed by itself is closed in every form, also for a rule for the whole form.
#[test]
fn opens_no_form_wider_than_its_inner_address() {
    for inner in ["10.1.2.3", "127.0.0.1", "169.254.1.1", "100.64.1.1", "198.18.0.1", "240.1.2.3"] {
        for ip in forms(inner.parse().unwrap()) {
            let ip = IpAddr::from(ip);
            assert_ne!(classify(ip), AddrClass::Public, "{ip}");
            let Opening::Within(block) = opening_for(ip) else { panic!("{ip} is never public") };
            for whole in ["::ffff:0:0/96", "::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48"] {
                assert!(!block.contains(&whole.parse::<IpNet>().unwrap()), "{whole} opens {ip}");
            }
            for whole in ["2002::/16", "2001::/32", "fe80::5efe:0:0/96", "2606:2800::200:5efe:0:0/96"] {
                assert!(!block.contains(&whole.parse::<IpNet>().unwrap()), "{whole} opens {ip}");
            }
        }
    }
}

/// D05: the unspecified address is closed in every form.
#[test]
fn refuses_undialable_addresses_in_every_form() {
    for ip in [
        "0.0.0.0",
        "::",
        "::ffff:0.0.0.0",
        "64:ff9b::",
        "2002::1",
        "::ffff:255.255.255.255",
        "::224.0.0.1",
        "ff02::fb",
    ] {
        assert!(class(ip).is_never_dialed(), "{ip}");
        assert_eq!(opening_for(ip.parse().unwrap()), Opening::Never, "{ip}");
    }
}

/// D08: the block in which a rule must lie.
#[test]
fn finds_the_block_that_a_rule_opens() {
    for (ip, block) in [
        ("10.1.2.3", "10.0.0.0/8"),
        ("169.254.169.254", "169.254.0.0/16"),
        ("168.63.129.16", "168.63.129.16/32"),
        ("192.0.0.192", "192.0.0.0/24"),
        ("fd00:ec2::254", "fc00::/7"),
        ("fe80::a9fe:a9fe", "fe80::/10"),
        ("::1", "::1/128"),
        ("2001:2::1", "2001::/23"),
        ("::ffff:93.184.215.14", "::ffff:0:0/96"),
        ("::ffff:10.1.2.3", "::ffff:10.0.0.0/104"),
        ("64:ff9b::a9fe:a9fe", "64:ff9b::a9fe:0/112"),
        ("2002:a01:203::1", "2002:a00::/24"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:0:4136:e378:8000:63bf:3fff:fdd2/128"),
        ("2001:0:4136:e378:8000:63bf:a247:28f1", "2001::/32"),
        ("64:ff9b:1:5db8:d7:e00::", "64:ff9b:1::/48"),
        ("64:ff9b:1::a00:1", "64:ff9b:1::a00:1/128"),
        ("fe80::5efe:7f00:1", "fe80::5efe:7f00:0/104"),
        ("4000::1", "4000::/3"),
        ("::1:0:0:0", "::/8"),
    ] {
        assert_eq!(opening_for(ip.parse().unwrap()), Opening::Within(block.parse().unwrap()), "{ip}");
    }
    assert_eq!(opening_for("93.184.215.14".parse().unwrap()), Opening::Public);
    assert_eq!(opening_for("2606:2800:21f::1".parse().unwrap()), Opening::Public);
}

#[test]
fn d09_knows_own_addresses_in_every_form() {
    let own = ["93.184.215.20", "::ffff:93.184.215.21", "2606:2800::5", "127.0.0.1", "::1", "0.0.0.0"];
    let own = OwnAddrs::new(own.iter().map(|ip| ip.parse().unwrap()));
    for (ip, expect) in [
        ("93.184.215.20", true),
        ("93.184.215.21", true),
        ("93.184.215.22", false),
        ("64:ff9b::93.184.215.20", true),
        ("2606:2800::5", true),
        ("2606:2800::6", false),
        ("127.0.0.1", false),
        ("::1", false),
        ("0.0.0.0", false),
    ] {
        assert_eq!(own.contains(ip.parse().unwrap()), expect, "{ip}");
    }
}
