use super::*;
use crate::sha256_hex;
use crate::testing::key;

#[test]
fn the_text_is_that_of_the_standard() {
    let origin = origin("01JD8Z3V5QABCDEFGHJKMNPQRS");
    let note = Checkpoint { origin, n: 2, root: [0; 32], line: sha256_hex(b"x") }.sign(&key(1)).note;
    let lines: Vec<&str> = note.lines().collect();
    assert_eq!(lines[0], "exeat-run/01JD8Z3V5QABCDEFGHJKMNPQRS");
    assert_eq!(lines[1..3], ["2", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="]);
    assert_eq!(lines[3], format!("line {}", sha256_hex(b"x")));
    assert_eq!(lines[4], "");
    assert!(lines[5].starts_with("\u{2014} exeat-audit "), "{note}");
    assert_eq!(lines.len(), 6);
}
