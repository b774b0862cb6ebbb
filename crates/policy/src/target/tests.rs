use super::*;

fn check(bytes: &[u8], expect: Option<&str>) {
    let found = Target::parse(bytes).ok().map(|target| target.to_string());
    assert_eq!(found.as_deref(), expect, "{}", bytes.escape_ascii());
}

macro_rules! accepts {
    ($test:ident, $($bytes:literal => $shown:literal),+ $(,)?) => {
        #[test]
        fn $test() {
            $(check($bytes, Some($shown));)+
        }
    };
}

macro_rules! refuses {
    ($test:ident, $($bytes:literal),+ $(,)?) => {
        #[test]
        fn $test() {
            $(check($bytes, None);)+
        }
    };
}

accepts!(names, b"example.com:443" => "example.com:443", b"EXAMPLE.com:80" => "example.com:80", b"localhost:8080" => "localhost:8080",
    b"r3---sn-4g5e6nsz.example.com:443" => "r3---sn-4g5e6nsz.example.com:443", b"1.2.3.4.example.com:1" => "1.2.3.4.example.com:1",
    b"xn--bcher-kva.example:443" => "xn--bcher-kva.example:443", b"4.example.x2:443" => "4.example.x2:443");
accepts!(h02_one_trailing_dot_is_folded, b"example.com.:443" => "example.com:443");
accepts!(literals, b"93.184.215.14:443" => "93.184.215.14:443", b"[::1]:443" => "[::1]:443", b"[::0001]:443" => "[::1]:443",
    b"[2606:2800:21F::1]:443" => "[2606:2800:21f::1]:443", b"[::ffff:1.2.3.4]:443" => "[::ffff:1.2.3.4]:443",
    b"[1:2:3:4:5:6:7:8]:65535" => "[1:2:3:4:5:6:7:8]:65535", b"0.0.0.0:1" => "0.0.0.0:1");

refuses!(
    h03_brackets_round_anything_but_ipv6,
    b"[example.com]:443",
    b"[127.0.0.1]:443",
    b"[]:443",
    b"[v1.x]:443",
    b"[::1",
    b"::1]:443",
    b"[::1]443",
    b"[::1]x:443",
    b"[[::1]]:443",
    b"[::1]]:443",
    b"e[x]ample.com:443",
    b"[::1].example.com:443"
);
refuses!(
    h04_nul_and_controls,
    b"evil.test\0.example.com:443",
    b"example.com\0:443",
    b"\0",
    b"exa\tmple.com:443",
    b"example.com\r\n:443",
    b"\x7fexample.com:443"
);
refuses!(
    h05_number_spellings,
    b"127.1:80",
    b"127.0.1:80",
    b"2130706433:80",
    b"0x7f000001:80",
    b"0x7f.0.0.1:80",
    b"017700000001:80",
    b"127.0.0.0x1:80",
    b"1.2.3.256:80",
    b"256.0.0.1:80",
    b"1.2.3.4.5:80",
    b"127.0.0.1.:80",
    b"127.1.:80",
    b"0:80",
    b"a.1:80",
    b"example.0x7f:80",
    b"1.2.3.4e:80",
    b"1.2.3:80"
);
refuses!(
    h06_leading_zeros,
    b"0127.0.0.1:80",
    b"127.0.0.01:80",
    b"00.0.0.0:80",
    b"[::ffff:0177.0.0.1]:80",
    b"[::ffff:127.0.0.01]:80"
);
refuses!(
    h07_zone_ids,
    b"[fe80::1%eth0]:443",
    b"[fe80::1%251]:443",
    b"[::1%25.example.com]:443",
    b"fe80::1%1:443"
);
refuses!(
    ipv6_faults,
    b"::1:443",
    b"::1",
    b"[::1::]:443",
    b"[1:2:3:4:5:6:7:8:9]:443",
    b"[1:2:3]:443",
    b"[::12345]:443",
    b"[::127.1]:443",
    b"[1.2.3.4::]:443",
    b"[:::1]:443",
    b"[::g]:443",
    b"[1::2:3:4:5:6:7:8]:443",
    b"[::1.2.3.4.5]:443",
    b"[:1:2:3:4:5:6:7]:443"
);
refuses!(
    h10_not_ascii,
    b"ex\xc2\xadample.com:443",
    b"example\xe3\x80\x82com:443",
    b"\xff:443",
    b"example.com:\xef\xbc\x94",
    b"\xe2\x84\xaa.example:443"
);
refuses!(h11_percent, b"%65xample.com:443", b"example.com%00:443", b"example.com:443%20");
refuses!(h12_userinfo, b"user@example.com:443", b"example.com:443@evil.test:443", b":pw@example.com:443");
refuses!(
    urls_and_paths,
    b"https://example.com:443",
    b"//example.com:443",
    b"example.com:443/",
    b"example.com:443?x",
    b"example.com:443#x",
    b"/",
    b"*",
    b"example.com\\x:443"
);
refuses!(
    h19_ports,
    b"example.com",
    b"example.com:",
    b"example.com:0",
    b"example.com:65536",
    b"example.com:4294967739",
    b"example.com:+443",
    b"example.com:-1",
    b"example.com: 443",
    b"example.com:443 ",
    b"example.com:https",
    b"example.com:0443",
    b"example.com:80:443",
    b":443",
    b":",
    b"",
    b"[::1]",
    b"[::1]:",
    b"[::1]:0",
    b"example.com:4.4",
    b"example.com:[443]",
    b"93.184.215.14",
    b"example.com:99999999999999999999"
);
refuses!(
    label_faults,
    b".:443",
    b"..:443",
    b".example.com:443",
    b"example..com:443",
    b"example.com..:443",
    b"-a.example.com:443",
    b"a-.example.com:443",
    b"a.-.com:443",
    b"under_score.example.com:443",
    b"xn--.example.com:443",
    b"example.xn--:443",
    b"*.example.com:443",
    b"a,b:443",
    b"a b.com:443",
    b"!a.com:443"
);

#[test]
fn h20_bounds_the_length_of_names() {
    let label = "a".repeat(63);
    let longest = format!("{label}.{label}.{label}.{}", "b".repeat(61));
    assert_eq!(longest.len(), 253);
    check(format!("{longest}:443").as_bytes(), Some(&format!("{longest}:443")));
    check(format!("{longest}.:65535").as_bytes(), Some(&format!("{longest}:65535")));
    check(format!("{longest}b:443").as_bytes(), None);
    check(format!("{longest}b.:443").as_bytes(), None);
    check(format!("{label}a.com:443").as_bytes(), None);
    check(&[b'a'; 1 << 20], None);
    check(".a".repeat(5000).as_bytes(), None);
}

/// Text that is too long is not scanned, and text that is not ASCII is not decoded.
#[test]
fn refuses_long_or_foreign_text() {
    assert_eq!(Target::parse(&[b'a'; 261]), Err(TargetError::TooLong));
    assert_eq!(Target::parse("ex\u{e4}mple.com:443".as_bytes()), Err(TargetError::Byte { at: 2 }));
    assert_eq!(Target::parse(b"a:443\xff"), Err(TargetError::Byte { at: 5 }));
}

/// A03: an error never repeats the request.
#[test]
fn keeps_request_text_out_of_errors() {
    let error = Target::parse(b"user:secret@example.com:443").unwrap_err();
    assert_eq!(error, TargetError::Byte { at: 11 });
    assert_eq!(error.to_string(), "byte 11 of the target is none of A-Z a-z 0-9 . - : [ ]");
    assert!(!error.to_string().contains("secret"));
}
