use super::*;

/// A01: what a client says last is one line, bounded and escaped.
#[test]
fn a01_the_last_line_is_escaped_and_bounded() {
    assert_eq!(last_line(b"one\n two \r\n \n"), "two");
    assert_eq!(last_line(b"a\x1b[2J\xff"), r"a\x1b[2J\xff");
    assert_eq!(last_line(b""), "");
    assert!(last_line(&[b'x'; 2 * SAID]).len() <= SHOWN + 3);
}

#[test]
fn only_the_end_of_what_is_said_is_kept() {
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

/// docs/presets.md names every file and variable that a client is shown.
#[test]
fn the_page_names_what_clients_are_shown() {
    use exeat_policy::preset::groups;
    let page = include_str!("../../../../docs/presets.md");
    let clients = groups().iter().filter_map(|group| group.from_client);
    for client in clients {
        let question = question(client).unwrap();
        let row = page.lines().find(|line| line.starts_with(&format!("| {client} |"))).unwrap();
        // Upper case is the same variable to npm, and the others of Node's take npm's.
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
