use super::*;
use crate::{RunId, sha256_hex};

fn checkpoint_of(run: &str, n: u64, root: Hash, own_line: &[u8]) -> Checkpoint {
    Checkpoint { origin: origin(run), n, root, line: sha256_hex(own_line) }
}

fn key(seed: u8) -> SigningKey {
    crate::testing::key(seed)
}

fn checkpoint() -> Checkpoint {
    checkpoint_of(&RunId::new().to_string(), 128, [7; 32], b"{\"schema\":\"egress/1\"")
}

#[test]
fn what_was_signed_is_read_back() {
    let (ours, other) = (key(1), key(2));
    let signed = checkpoint().sign(&ours);
    let keys = [other.verifying().clone(), ours.verifying().clone()];
    match check(&signed.note, &keys) {
        Checked::Good { key: 1, signed: again, .. } => assert_eq!(again, signed),
        other => panic!("{other:?}"),
    }
    assert_eq!(check(&signed.note, &keys[..1]), Checked::UnknownKey);
}

#[test]
fn no_byte_of_a_note_can_be_changed() {
    let ours = key(1);
    let note = checkpoint().sign(&ours).note;
    let keys = [ours.verifying().clone()];
    for at in 0..note.len() {
        for bit in 0..7 {
            let mut bytes = note.clone().into_bytes();
            bytes[at] ^= 1 << bit;
            let Ok(text) = String::from_utf8(bytes) else { continue };
            let checked = check(&text, &keys);
            assert!(!matches!(checked, Checked::Good { .. }), "byte {at}, bit {bit}: {text}");
        }
    }
    for text in
        [format!("{note}\n"), format!(" {note}"), note.replace("\nline", "\nmore\nline"), String::new()]
    {
        assert!(!matches!(check(&text, &keys), Checked::Good { .. }), "{text}");
    }
}

#[test]
fn the_text_is_that_of_the_standard() {
    let ours = key(1);
    let point = checkpoint_of("01JD8Z3V5QABCDEFGHJKMNPQRS", 2, [0; 32], b"x");
    let note = point.sign(&ours).note;
    let lines: Vec<&str> = note.lines().collect();
    assert_eq!(lines[0], "exeat-run/01JD8Z3V5QABCDEFGHJKMNPQRS");
    assert_eq!(lines[1..3], ["2", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="]);
    assert_eq!(lines[3], format!("line {}", sha256_hex(b"x")));
    assert_eq!(lines[4], "");
    assert!(lines[5].starts_with("\u{2014} exeat-audit "), "{note}");
    assert_eq!(lines.len(), 6);
}
