use super::*;

/// A01: a quoted line of a client is bounded and escaped.
#[test]
fn a01_the_quoted_line_is_escaped_and_bounded() {
    assert_eq!(telling_line(b"one\n two \r\n \n"), "two");
    assert_eq!(telling_line(b"a\x1b[2J\xff"), r"a\x1b[2J\xff");
    assert_eq!(telling_line(b""), "");
    assert!(telling_line(&[b'x'; 2 * SAID]).len() <= SHOWN + 3);
}

/// Clients end with the names of their logs.
#[test]
fn the_quoted_line_is_the_error() {
    let npm = b"npm notice\nnpm error code E403\nnpm error 403 Forbidden\nnpm error A complete log of this run can be found in: /x";
    assert_eq!(telling_line(npm), "npm error code E403");
    assert_eq!(
        telling_line(b"WARNING: slow\nERROR: no such package\nhint: see the log"),
        "ERROR: no such package"
    );
    assert_eq!(telling_line(b"one\ntwo"), "two");
}

/// D05, D06, D09: a client's settings permit only public and private addresses of other machines, in their own form.
#[test]
fn d06_special_addresses() {
    let own = OwnAddrs::new(["192.168.7.7", "93.184.215.9", "198.18.0.9"].map(|ip| ip.parse().unwrap()));
    for (ip, expect) in [
        ("93.184.215.14", None),
        ("10.9.8.7", None),
        ("172.16.0.1", None),
        ("192.168.7.8", None),
        ("fd12::1", None),
        ("2606:2800::1", None),
        ("192.168.7.7", Some("this host's own")),
        ("93.184.215.9", Some("this host's own")),
        ("198.18.0.9", Some("this host's own")),
        ("::ffff:192.168.7.7", Some("this host's own")),
        ("::ffff:10.9.8.7", Some("IPv4-mapped")),
        ("64:ff9b::93.184.215.14", Some("NAT64")),
        ("127.0.0.1", Some("loopback")),
        ("::1", Some("loopback")),
        ("169.254.1.1", Some("link-local")),
        ("fe80::1", Some("link-local")),
        ("100.64.0.1", Some("carrier-grade NAT")),
        ("198.18.0.1", Some("benchmarking")),
        ("240.0.0.1", Some("reserved")),
        ("0.0.0.0", Some("unspecified")),
        ("169.254.169.254", Some("cloud metadata")),
        ("2002:a9fe:a9fe::1", Some("cloud metadata")),
        ("fd00:ec2::254", Some("cloud metadata")),
    ] {
        assert_eq!(special(ip.parse().unwrap(), &own).map(AddrClass::as_str), expect, "{ip}");
    }
}

#[test]
fn keeps_the_end_of_the_output() {
    let (reader, mut writer) = io::pipe().unwrap();
    let said = std::thread::spawn(|| last_words(reader));
    for _ in 0..100 {
        io::Write::write_all(&mut writer, &[b'x'; 1000]).unwrap();
    }
    io::Write::write_all(&mut writer, b"end").unwrap();
    drop(writer);
    let said = said.join().unwrap();
    assert!(said.len() == SAID && said.ends_with(b"xend"));
}

/// docs/presets.md names every file and variable that a client sees.
#[test]
fn the_page_names_the_files_and_variables_of_clients() {
    use exeat_policy::preset::groups;
    let page = include_str!("../../../../docs/presets.md");
    let clients = groups().iter().filter_map(|group| group.from_client);
    for client in clients {
        let question = question(client).unwrap();
        let row = page.lines().find(|line| line.starts_with(&format!("| {client} |"))).unwrap();
        // npm accepts these variables in upper case, too, and Node's other clients use npm's.
        let npm = page.lines().find(|line| line.starts_with("| npm |")).unwrap();
        let row = if row.contains("and as npm") { format!("{row}{npm}") } else { row.to_owned() };
        for name in question.pass.iter().chain(question.named) {
            let known = row.contains(&format!("`{name}`")) || row.contains(&name.to_ascii_lowercase());
            assert!(known, "{client}: {name}");
        }
        for file in question.files {
            let (client::Setting::Home(name) | client::Setting::Config(name) | client::Setting::Cargo(name)) =
                file;
            let stem = name.trim_end_matches(".toml");
            assert!(row.contains(stem), "{client}: {name}");
        }
    }
}
