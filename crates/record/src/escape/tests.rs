use proptest::prelude::*;

use super::*;

#[track_caller]
fn check(input: &[u8], max: usize, expect: &str) {
    assert_eq!(escape(input, max), expect);
}

#[test]
fn hostile_bytes_are_spelt_out() {
    check(b"plain.example:443", 64, "plain.example:443");
    check(b"a\r\nb", 64, "a\\x0d\\x0ab");
    check(b"\x1b[2K", 64, "\\x1b[2K");
    check(b"\x7f\x80\xff\0", 64, "\\x7f\\x80\\xff\\x00");
    check("\u{202e}".as_bytes(), 64, "\\xe2\\x80\\xae");
    check(b"a\\x0d", 64, "a\\\\x0d"); // not to be taken for an escape
}

#[test]
fn marks_a_cut_and_cuts_no_escape_in_half() {
    check(b"abcdef", 6, "abcdef");
    check(b"abcdefg", 6, "abc...");
    check(b"ab\n\n", 8, "ab...");
    check(b"ab\n", 6, "ab\\x0a");
    check(b"\n\n\n", 5, "...");
    check(b"abc", 2, "");
    check(b"", 0, "");
}

#[test]
fn a_place_keeps_its_end() {
    assert_eq!(clip_front("/very/long/path.toml:12", 15), "...path.toml:12");
    assert_eq!(clip_front("short:1", 15), "short:1");
    assert_eq!(clip("long words", 7), "long...");
}

proptest! {
    #[test]
    fn escaped_bytes_are_printable_and_fit(bytes: Vec<u8>, max in 0usize..64) {
        let text = escape(&bytes, max);
        prop_assert!(text.len() <= max);
        prop_assert!(text.bytes().all(|byte| matches!(byte, 0x20..=0x7e)));
    }

    #[test]
    fn clipped_text_fits(text: String, max in 3usize..64) {
        for clipped in [clip(&text, max), clip_front(&text, max)] {
            prop_assert!(clipped.chars().map(json_width).sum::<usize>() <= max);
        }
    }
}
