use exeat_record::checkpoint::origin;
use exeat_record::{RunId, sha256_hex};

use super::*;
use crate::testing::key;

fn checkpoint() -> Checkpoint {
    let line = sha256_hex(b"{\"schema\":\"egress/1\"");
    Checkpoint { origin: origin(&RunId::new().to_string()), n: 128, root: [7; 32], line }
}

#[test]
fn reads_a_signed_note_back() {
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
