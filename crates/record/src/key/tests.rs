use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::testing::Dir;

#[test]
fn a_key_is_made_once_and_for_us_alone() {
    let dir = Dir::new();
    let path = dir.join("audit.key");
    let made = SigningKey::load_or_make(&path).unwrap().0;
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // A full disk leaves the second file empty.
    let public = fs::read(path.with_extension("pub")).unwrap();
    fs::write(path.with_extension("pub"), "").unwrap();
    let again = SigningKey::load_or_make(&path).unwrap().0;
    assert_eq!(fs::read(path.with_extension("pub")).unwrap(), public);
    assert_eq!(made.verifying(), again.verifying());
    let public = VerifyingKey::load(&dir.join("audit.pub")).unwrap();
    assert_eq!(&public, &[made.verifying().clone()]);
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(!format!("{made:?}").contains("PRIVATE"));
}

#[test]
fn two_that_make_it_at_once_have_one_key() {
    let dir = Dir::new();
    let path = dir.join("audit.key");
    let makers: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || SigningKey::load_or_make(&path).unwrap().0.verifying().clone())
        })
        .collect();
    let keys: Vec<_> = makers.into_iter().map(|it| it.join().unwrap()).collect();
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let dir = Dir::new();
    let path = dir.join("audit.key");
    SigningKey::load_or_make(&path).unwrap();
    for mode in [0o640, 0o604, 0o620] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert!(matches!(SigningKey::load_or_make(&path), Err(KeyError::Exposed { .. })), "{mode:o}");
    }
}

/// Views hide the key from a stage by one name only.
#[test]
fn a_key_with_another_name_is_refused() {
    let dir = Dir::new();
    let path = dir.join("audit.key");
    let key = SigningKey::load_or_make(&path).unwrap().0;
    let other = dir.join("copy");
    fs::hard_link(&path, &other).unwrap();
    assert!(matches!(SigningKey::load(&path), Err(KeyError::Linked { .. })));
    assert!(matches!(SigningKey::load_or_make(&path), Err(KeyError::Linked { .. })));
    fs::remove_file(other).unwrap();
    assert_eq!(SigningKey::load(&path).unwrap().verifying(), key.verifying());
}

/// A pipe that others may open could deliver anybody's key.
#[test]
fn refuses_a_named_pipe_that_everybody_may_open() {
    let dir = Dir::new();
    let path = dir.join("audit.key");
    let everybody = nix::sys::stat::Mode::from_bits_truncate(0o666);
    nix::unistd::mkfifo(&path, everybody).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(matches!(SigningKey::load(&path), Err(KeyError::Exposed { .. })));
}

#[test]
fn refuses_a_file_that_is_not_a_key_and_does_not_change_it() {
    let dir = Dir::new();
    let path = dir.join("audit.key");
    for text in ["", "secret", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let error = SigningKey::load_or_make(&path).unwrap_err();
        assert!(matches!(error, KeyError::NotAKeyAt { .. }), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

/// Made with OpenSSL 3.0: `openssl genpkey -algorithm ed25519`, and `openssl pkey -pubout` of it.
#[test]
fn keys_of_openssl_are_read() {
    let private = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIELjMlRJQAFl5Zu0kNQnJuCo6Ijj4OQkBj7XaErHaPk2\n-----END PRIVATE KEY-----\n";
    let public = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAPUeAGhTjMp7TJenv0jy9diSRBint9pp3dYquMUp/mEI=\n-----END PUBLIC KEY-----\n";
    let key = SigningKey::from_pem(private).unwrap();
    assert_eq!(VerifyingKey::parse_all(public).unwrap(), [key.verifying().clone()]);
}

#[test]
fn a_vkey_reads_as_it_is_written() {
    // The key in base64 may have the sign that parts a vkey.
    let keys = (0..64).map(|seed| crate::testing::key(seed).verifying().clone());
    assert!(keys.clone().any(|key| key.to_string().matches('+').count() > 2));
    keys.for_each(|key| assert_eq!(key.to_string().parse::<VerifyingKey>().unwrap(), key));
    let key = crate::testing::key(3).verifying().clone();
    let text = key.to_string();
    let id = key.key_id();
    for bad in [
        text.replace(&id, "00000000"),
        text.replace("exeat-audit", "exeat audit"),
        text.replace("exeat-audit", ""),
        format!("{text}A"),
        String::new(),
    ] {
        assert!(bad.parse::<VerifyingKey>().is_err(), "{bad}");
    }
    let two = format!("# ours\n{text}\n\n{}\n", crate::testing::key(4).verifying());
    assert_eq!(VerifyingKey::parse_all(&two).unwrap().len(), 2);
    assert!(VerifyingKey::parse_all("# none\n").is_err());
}

/// Two signatures of one text by one key: what ring makes, and one whose first half another implementation took at random.
#[test]
fn each_good_signature_of_its_own_is_known() {
    const OWN: &str = "801e6169ef38b9af314b5dac2aef55728dc5b21871858070414593b8f3635fbd\
                       dc7bda28b3728faa4c923c68db1061cf07cc84d2e867cdafb32660629675a609";
    const OTHER: &str = "ef4f62f8479733ad879cfaced3c89a9c39dd4fc795ef2efa1c3eafe4d729a081\
                         aaa79fe5f66cf363c815d56b16292d21689d90778614ddffc70decc60bae2c01";
    let key = crate::testing::key(1);
    assert_eq!(hex(&key.sign(b"text")), OWN);
    for text in [OWN, OTHER] {
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let sig: Vec<u8> = text.as_bytes().chunks(2).map(byte).collect();
        assert!(key.has_signed(b"text", &sig), "{text}");
        assert!(key.verifying().has_signed(b"text", &sig), "{text}");
        for (text, sig) in
            [(&b"other"[..], &sig[..]), (b"text", &sig[..63]), (b"text", &[]), (b"text", &[0; 64])]
        {
            assert!(!key.has_signed(text, sig), "{sig:?}");
        }
        let longer: Vec<u8> = sig.iter().chain(&[0]).copied().collect();
        assert!(!key.has_signed(b"text", &longer));
    }
}

/// As `--key <(exeat audit key)` does.
#[test]
fn waits_for_a_key_in_a_pipe() {
    let dir = Dir::new();
    SigningKey::load_or_make(&dir.join("audit.key")).unwrap();
    let text = fs::read_to_string(dir.join("audit.pub")).unwrap();
    let (reader, mut writer) = io::pipe().unwrap();
    let late = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        writer.write_all(text.as_bytes()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
    });
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    assert_eq!(VerifyingKey::load(Path::new(&path)).unwrap().len(), 1);
    late.join().unwrap();
}
