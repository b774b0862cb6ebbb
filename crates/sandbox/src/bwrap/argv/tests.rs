use std::borrow::Cow;

use exeat_contract::BridgeKind;

use super::*;
use crate::spec::Identity;

fn spec(mounts: Vec<Mount>) -> SandboxSpec {
    SandboxSpec {
        mounts,
        bridge: BridgeKind::Handoff,
        socks5: false,
        identity: Identity::Caller,
        debuggable: false,
    }
}

fn text(argv: &Argv) -> String {
    let mut out = String::new();
    for word in &argv.options {
        let word = word.to_string();
        out.push(if word.starts_with("--") { '\n' } else { ' ' });
        out.push_str(&word);
    }
    let command = argv.command.iter().map(|word| word.display().to_string()).collect::<Vec<_>>();
    format!("{}\n-- {}", out.trim_start(), command.join(" "))
}

/// N15, K22, K47.
#[test]
fn every_kind_of_mount_has_its_options() {
    let argv = Argv::new(
        &spec(vec![
            Mount::ReadOnly { host: "/usr".into(), at: "/usr".into() },
            Mount::Symlink { target: "usr/bin".into(), at: "/bin".into() },
            Mount::Proc,
            Mount::Dev { shm: 64 << 20 },
            Mount::Tmpfs { at: "/tmp".into(), size: 1 << 30, mode: 0o1777 },
            Mount::Dir { at: "/sys".into() },
            Mount::Writable { host: "/home/u/w".into(), at: "/home/u/w".into() },
            Mount::CoverFile { at: "/etc/passwd".into(), bytes: Bytes(Cow::Borrowed(b"nobody")) },
            Mount::File { at: STAGE2.into(), bytes: Bytes(Cow::Borrowed(b"ELF")), mode: 0o555 },
            Mount::Freeze { at: "/run/exeat".into() },
        ]),
        2,
    );
    insta::assert_snapshot!(text(&argv));
}

#[test]
fn b33_a_path_that_looks_like_an_option_stays_a_path() {
    let argv = Argv::new(&spec(vec![Mount::ReadOnly { host: "/--bind".into(), at: "/--bind".into() }]), 0);
    let place = argv.options.iter().position(|word| word.to_string() == "--ro-bind").unwrap();
    // bubblewrap takes the two words after an option whatever they look like.
    assert_eq!(argv.options[place + 1].to_string(), "/--bind");
    assert_eq!(argv.options[place + 2].to_string(), "/--bind");
}

/// K22, A7.
#[test]
fn always_has_the_flags_of_isolation() {
    let argv = Argv::new(&spec(Vec::new()), 0);
    let text = text(&argv);
    for flag in [
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--cap-drop ALL",
        "--die-with-parent",
        "--new-session",
    ] {
        assert!(text.contains(flag), "{flag}");
    }
    assert!(!text.contains("--share-net"));
}

#[test]
fn no_tmpfs_is_without_a_size() {
    let argv = Argv::new(&spec(vec![Mount::Tmpfs { at: "/x".into(), size: 0, mode: 0 }]), 0);
    let size = argv.options.iter().position(|word| word.to_string() == "--size").unwrap();
    assert_ne!(argv.options[size + 1].to_string(), "0", "0 is bubblewrap's word for no limit");
}
