use super::*;

/// Builds a record of this type.
pub(crate) fn record(content_type: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap().to_be_bytes();
    [&[content_type, 3, 3][..], &length, body].concat()
}

/// Builds a ServerHello with this Random.
fn server_hello(random: [u8; 32]) -> Vec<u8> {
    let body = [&[3, 3][..], &random, &[0, 0x13, 1, 0, 0, 6, 0, 0x2b, 0, 2, 3, 4]].concat();
    [&[2, 0, 0, u8::try_from(body.len()).unwrap()][..], &body].concat()
}

/// Builds the answer of a server that asks for another hello.
pub(crate) fn retry() -> Vec<u8> {
    server_hello(RETRY)
}

/// Builds the answer of a server that does not.
pub(crate) fn plain() -> Vec<u8> {
    server_hello([7; 32])
}

fn in_records(message: &[u8], piece: usize) -> Vec<u8> {
    message.chunks(piece).flat_map(|piece| record(22, piece)).collect()
}

/// L13: a request for another hello is found in any pieces, and after whatever may come first.
#[test]
fn l13_finds_a_retry_request_in_any_pieces() {
    let ccs = record(20, &[1]);
    let warning = record(21, &[1, 112]);
    for (message, answer) in [(retry(), Answer::Retry), (plain(), Answer::Other)] {
        for bytes in [
            record(22, &message),
            in_records(&message, 1),
            in_records(&message, 7),
            [&warning[..], &record(22, &message)].concat(),
            [&ccs[..], &record(22, &[]), &record(22, &message)].concat(),
            record(22, &[&[0, 0, 0, 0][..], &message].concat()),
            record(22, &[&message[..], &[11, 0, 0, 9, 1]].concat()),
        ] {
            assert_eq!(Answers::default().advance(&bytes), Some(answer));
            let mut answers = Answers::default();
            let told: Vec<_> = bytes.chunks(1).filter_map(|byte| answers.advance(byte)).collect();
            assert_eq!(told.first(), Some(&answer));
        }
        assert_eq!(Answers::default().advance(&record(22, &message)[..42]), None);
    }
    assert_eq!(Answers::default().advance(&record(22, &[6, 0, 0, 2])), Some(Answer::Retry));
}

/// L13: the answer to the second hello is found after the first one.
#[test]
fn l13_finds_the_answer_after_a_retry_request() {
    for last in [Answer::Retry, Answer::Other] {
        let second = if last == Answer::Retry { retry() } else { plain() };
        for piece in [1, 20, 1000] {
            let mut answers = Answers::default();
            let mut first = in_records(&retry(), piece);
            first.extend(record(20, &[1]));
            let told: Vec<_> = first.chunks(piece).filter_map(|bytes| answers.advance(bytes)).collect();
            assert_eq!(told, [Answer::Retry]);
            let second = in_records(&second, piece);
            let told: Vec<_> = second.chunks(piece).filter_map(|bytes| answers.advance(bytes)).collect();
            assert_eq!(told, [last]);
        }
    }
}

/// L13: a server that does not speak TLS asks for no hello.
#[test]
fn l13_detects_other_answers_at_once() {
    for bytes in
        [&b"HTTP/1.1 400 Bad Request\r\n"[..], b"\x16\x02", b"\x17\x03\x03", b"\x16\x03\x03\xff\xff", b"220 "]
    {
        assert_eq!(Answers::default().advance(bytes), Some(Answer::Other));
    }
    assert_eq!(Answers::default().advance(&record(22, &[1, 0, 0, 0])), Some(Answer::Other));
    assert_eq!(Answers::default().advance(&record(22, &[2, 0, 0, 33, 3])), Some(Answer::Other));
    assert_eq!(Answers::default().advance(b""), None);
}
