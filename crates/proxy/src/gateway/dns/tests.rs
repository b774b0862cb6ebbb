use proptest::prelude::*;
use simple_dns::rdata::RData;
use simple_dns::{Packet, PacketFlag, RCODE};

use super::*;
use crate::fuzz_seeds::checks;

/// Encodes a name. Dots separate the labels, which contain no dots themselves.
pub(crate) fn labels(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        out.push(u8::try_from(label.len()).unwrap());
        out.extend(label.as_bytes());
    }
    out.push(0);
    out
}

/// Builds a question of class IN as resolvers send it, with recursion desired.
pub(crate) fn ask(name: &str, kind: u16) -> Vec<u8> {
    message([1, 0, 0, 0], &[labels(name), kind.to_be_bytes().into(), vec![0, 1]].concat())
}

/// Builds a message from its counts, and what follows the header.
fn message(counts: [u16; 4], rest: &[u8]) -> Vec<u8> {
    let mut out = vec![0x12, 0x34, 0x01, 0x00];
    counts.into_iter().for_each(|count| out.extend(count.to_be_bytes()));
    out.extend(rest);
    out
}

/// Builds an OPT record with this version, flags and options.
fn opt(version: u8, flags: u16, options: &[u8]) -> Vec<u8> {
    let mut out = vec![0, 0, 41, 0x10, 0, 0, version];
    out.extend(flags.to_be_bytes());
    out.extend(u16::try_from(options.len()).unwrap().to_be_bytes());
    out.extend(options);
    out
}

fn with(records: &[&[u8]]) -> Vec<u8> {
    let mut question = ask("a.test", 1);
    question[11] = u8::try_from(records.len()).unwrap();
    [&question[..], &records.concat()].concat()
}

fn parse_question(message: &[u8]) -> Question {
    match parse(message) {
        Message::Question(question) => question,
        other => panic!("{other:?}"),
    }
}

/// Returns the code of the answer to a message that is not a question, if it gets one.
fn refused(message: &[u8]) -> Option<u8> {
    match parse(message) {
        Message::Refused(answer) => {
            assert_eq!(answer[..2], message[..2], "the id");
            assert_eq!(answer[2] & 0x80, 0x80);
            Some(answer[3] & 0xf)
        }
        Message::Question(_) => None,
        Message::Mute => panic!("no answer"),
    }
}

const PAIR: Pair =
    Pair { v4: Ipv4Addr::new(198, 18, 0, 1), v6: Ipv6Addr::new(0xfd65, 0x7865, 0x6174, 0, 0, 0, 0, 1) };

#[test]
fn answers_each_fault_with_its_code() {
    let (malformed, not_implemented, refused_code) = (Some(1), Some(4), Some(5));
    let question = ask("a.test", 1);
    let flags = |high: u8, low: u8| [&question[..2], &[high, low], &question[4..]].concat();
    let class = |class: u8| [&question[..question.len() - 1], &[class]].concat();
    let signature = [&[0, 0, 250, 0, 255, 0, 0, 0, 0, 0, 2][..], b"xx"].concat();
    let longest = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(61));
    let too_long = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(62));
    let cases: &[(&str, Vec<u8>, Option<u8>)] = &[
        ("as it should be", question.clone(), None),
        ("no recursion", flags(0, 0), None),
        ("AD, CD and Z", flags(1, 0x70), None),
        ("a status request", flags(0x10, 0), not_implemented),
        ("an update", flags(0x28, 0), not_implemented),
        ("a header alone", message([0; 4], &[]), malformed),
        (
            "no question, by its count",
            flags(1, 0)[..4].iter().chain(&[0; 8]).chain(&question[12..]).copied().collect(),
            malformed,
        ),
        ("two questions", message([2, 0, 0, 0], &[&question[12..], &question[12..]].concat()), malformed),
        ("an answer in it", message([1, 1, 0, 0], &[&question[12..], &signature].concat()), malformed),
        ("an authority in it", message([1, 0, 1, 0], &[&question[12..], &signature].concat()), malformed),
        ("65535 more records", message([1, 0, 0, 65535], &question[12..]), malformed),
        ("the longest name", ask(&longest, 1), None),
        ("a name of 256 bytes", ask(&too_long, 1), malformed),
        (
            "a label of 64 bytes",
            message([1, 0, 0, 0], &[&[64][..], &[b'a'; 64], &[0, 0, 1, 0, 1]].concat()),
            malformed,
        ),
        ("a pointer", message([1, 0, 0, 0], &[0xc0, 12, 0, 1, 0, 1]), malformed),
        ("a pointer behind a label", message([1, 0, 0, 0], &[1, b'a', 0xc0, 12, 0, 1, 0, 1]), malformed),
        ("a name without an end", message([1, 0, 0, 0], &[1, b'a']), malformed),
        ("half a type", message([1, 0, 0, 0], &[1, b'a', 0, 0]), malformed),
        ("no class", message([1, 0, 0, 0], &[1, b'a', 0, 0, 1]), malformed),
        ("a byte behind it", [&question[..], &[0]].concat(), malformed),
        ("class CHAOS", class(3), refused_code),
        ("class ANY", class(255), refused_code),
        ("EDNS", with(&[&opt(0, 0, &[])]), None),
        ("a cookie", with(&[&opt(0, 0, &[0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8])]), None),
        ("an unknown option, empty", with(&[&opt(0, 0, &[0xff, 0xff, 0, 0])]), None),
        ("an option that is cut", with(&[&opt(0, 0, &[0, 10, 0, 8, 1])]), malformed),
        ("half an option's code", with(&[&opt(0, 0, &[0])]), malformed),
        ("EDNS 1", with(&[&opt(1, 0, &[])]), Some(0)),
        ("EDNS twice", with(&[&opt(0, 0, &[]), &opt(0, 0, &[])]), malformed),
        ("EDNS of a name", with(&[&[&[1, b'a'], &opt(0, 0, &[])[..]].concat()]), malformed),
        ("a signature", with(&[&signature]), None),
        ("EDNS and a signature", with(&[&opt(0, 0, &[]), &signature]), None),
        ("three more", with(&[&opt(0, 0, &[]), &signature, &signature]), malformed),
        ("a record that is cut", with(&[&signature[..signature.len() - 1]]), malformed),
        ("a record that is not there", with(&[&[]]), malformed),
    ];
    for (what, message, code) in cases {
        assert_eq!(refused(message), *code, "{what}");
        checks::dns(message);
    }
    let long = [&question[..], &[0; limits::QUESTION_BYTES]].concat();
    assert_eq!(refused(&long), malformed);
    // A truncated message is never a question, and gets an answer only if its header is complete.
    for len in 0..question.len() {
        let cut = parse(&question[..len]);
        assert_eq!(cut == Message::Mute, len < 12, "{len}");
        assert!(!matches!(cut, Message::Question(_)), "{len}");
    }
    // Answers get no answer.
    for code in [0, 1] {
        assert_eq!(parse(&flags(0x81, code)), Message::Mute);
        assert_eq!(parse(&flags(0xa9, code)), Message::Mute);
    }
}

/// RFC 6891 section 6.1.3: the upper bits of the code are in the OPT record, which names our version.
#[test]
fn names_our_edns_version() {
    let question = with(&[&opt(7, 0, &[])]);
    let Message::Refused(answer) = parse(&question) else { panic!() };
    assert!(answer.starts_with(&[0x12, 0x34, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 1]));
    assert!(answer.ends_with(&[0, 0, 41, 4, 0, 1, 0, 0, 0, 0, 0]), "{answer:?}");
}

#[test]
fn copies_or_clears_flags() {
    let mut question = ask("a.test", 1);
    for (flags, answered) in [
        ([0x01, 0x00], [0x81, 0x80]), // RD is copied, and RA is set
        ([0x00, 0x00], [0x80, 0x80]),
        ([0x01, 0x10], [0x81, 0x90]), // CD is copied
        ([0x01, 0x20], [0x81, 0x80]), // AD is not, because nothing is authentic
        ([0x07, 0x4f], [0x81, 0x80]), // AA, TC, Z and a code have no meaning in a question
    ] {
        question[2..4].copy_from_slice(&flags);
        assert_eq!(parse_question(&question).answer(Answer::At(PAIR))[2..4], answered, "{flags:?}");
    }
    // DO is copied; the other flags of EDNS are not.
    let answer = parse_question(&with(&[&opt(0, 0xffff, &[])])).answer(Answer::Nothing);
    assert!(answer.ends_with(&[0, 0, 41, 4, 0, 0, 0, 0x80, 0, 0, 0]));
    let answer = parse_question(&with(&[&opt(0, 0x7fff, &[])])).answer(Answer::Nothing);
    assert!(answer.ends_with(&[0, 0, 41, 4, 0, 0, 0, 0, 0, 0, 0]));
}

/// Parses an answer with another library: its code, its records, and whether it limits negative caching.
fn other_reader(message: &[u8], answer: Answer<'_>) -> (RCODE, Vec<String>, bool) {
    let bytes = parse_question(message).answer(answer);
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(packet.id(), 0x1234);
    assert!(packet.has_flags(PacketFlag::RESPONSE | PacketFlag::RECURSION_AVAILABLE));
    assert!(!packet.has_flags(PacketFlag::TRUNCATION) && !packet.has_flags(PacketFlag::AUTHORITATIVE_ANSWER));
    let shown = packet.answers.iter().map(|record| match &record.rdata {
        RData::A(a) => format!("{} {} {}", record.name, record.ttl, Ipv4Addr::from_bits(a.address)),
        RData::AAAA(aaaa) => format!("{} {} {}", record.name, record.ttl, Ipv6Addr::from_bits(aaaa.address)),
        RData::PTR(ptr) => format!("{} {} {}", record.name, record.ttl, ptr.0),
        other => panic!("{other:?}"),
    });
    let shown = shown.collect();
    let authority: Vec<_> = packet
        .name_servers
        .iter()
        .map(|record| match &record.rdata {
            RData::SOA(soa) => (record.name.to_string(), record.ttl, soa.minimum),
            other => panic!("{other:?}"),
        })
        .collect();
    if let Some(authority) = authority.first() {
        assert_eq!((&authority.1, &authority.2), (&1, &1), "{authority:?}");
    }
    (packet.rcode(), shown, authority.len() == 1)
}

#[test]
fn writes_answers_that_another_library_reads() {
    let no = |code| (code, Vec::new(), true);
    let v4 = "A.tEst 60 198.18.0.1".to_owned();
    let v6 = "A.tEst 60 fd65:7865:6174::1".to_owned();
    let host: HostName = "a.test".parse().unwrap();
    let of_address = "1.0.18.198.in-addr.arpa";
    for (name, kind, answer, expect) in [
        ("A.tEst", 1, Answer::At(PAIR), (RCODE::NoError, vec![v4.clone()], false)),
        ("A.tEst", 28, Answer::At(PAIR), (RCODE::NoError, vec![v6.clone()], false)),
        ("A.tEst", 255, Answer::At(PAIR), (RCODE::NoError, vec![v4, v6], false)),
        ("A.tEst", 65, Answer::At(PAIR), no(RCODE::NoError)),
        ("A.tEst", 16, Answer::Nothing, no(RCODE::NoError)),
        ("A.tEst", 1, Answer::Code(Code::NoSuchName), no(RCODE::NameError)),
        ("A.tEst", 1, Answer::Code(Code::Failed), (RCODE::ServerFailure, Vec::new(), false)),
        (
            of_address,
            12,
            Answer::Name(&host),
            (RCODE::NoError, vec![format!("{of_address} 60 a.test")], false),
        ),
        (of_address, 1, Answer::Name(&host), no(RCODE::NoError)),
    ] {
        assert_eq!(other_reader(&ask(name, kind), answer), expect, "{name} {kind}");
    }
}

/// Some clients choose random letter case for a question, and check it in the answer.
#[test]
fn repeats_the_question_exactly() {
    let question = ask("wWw.ExAmPlE.cOm", 1);
    let answer = parse_question(&question).answer(Answer::At(PAIR));
    assert_eq!(answer[12..question.len()], question[12..]);
    assert_eq!(parse_question(&question).host().unwrap().as_str(), "www.example.com");
}

/// No answer is ever truncated, so no client needs TCP.
#[test]
fn fits_every_answer_in_the_smallest_datagram() {
    let longest: HostName = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(61)).parse().unwrap();
    let mut most = 0;
    for name in [longest.as_str(), &reverse_name(PAIR.v6), "1.0.18.198.in-addr.arpa", ""] {
        for kind in [1, 12, 28, 255] {
            let mut question = ask(name, kind);
            question[11] = 1;
            question.extend(opt(0, 0x8000, &[]));
            let question = parse_question(&question);
            for answer in [
                Answer::At(PAIR),
                Answer::Nothing,
                Answer::Code(Code::NoSuchName),
                Answer::Code(Code::BadVersion),
                Answer::Name(&longest),
            ] {
                // Reverse questions are only for addresses.
                if question.reverse_address().is_some() || !matches!(answer, Answer::Name(_)) {
                    let answer = question.answer(answer);
                    most = most.max(answer.len());
                    assert!(Packet::parse(&answer).is_ok());
                }
            }
        }
    }
    // These are the numbers in the comment of the bound.
    assert_eq!(most, 368);
    assert!(most <= limits::ANSWER_BYTES);
}

fn reverse_name(ip: Ipv6Addr) -> String {
    let digits: Vec<String> = format!("{:032x}", ip.to_bits()).chars().rev().map(String::from).collect();
    format!("{}.ip6.arpa", digits.join("."))
}

#[test]
fn rejects_text_that_is_not_a_host_name() {
    let raw = |label: &[u8]| {
        let name = [&[u8::try_from(label.len()).unwrap()], label, b"\x04test\x00"].concat();
        parse_question(&message([1, 0, 0, 0], &[&name[..], &[0, 1, 0, 1]].concat()))
    };
    for (label, text) in [
        (&b"_443"[..], &b"_443.test"[..]),
        (b"a b", b"a b.test"),
        (b"a\0", b"a\0.test"),
        (b"a.b", b"a\\.b.test"),
        (b"a\\.b", b"a\\\\\\.b.test"),
        (b"a.", b"a\\..test"),
        (b".", b"\\..test"),
        (b"-a", b"-a.test"),
        (b"\xc3\xa4", b"\xc3\xa4.test"),
        (b"\xff", b"\xff.test"),
        (b"a\n", b"a\n.test"),
        (b"*", b"*.test"),
    ] {
        assert_eq!(raw(label).host(), None, "{text:?}");
        assert_eq!(raw(label).text(), text);
    }
    for none in ["", "127.1", "1.2.3.4", "0x7f.1"] {
        assert_eq!(parse_question(&ask(none, 1)).host(), None, "{none}");
    }
    assert!(parse_question(&ask("", 2)).is_root());
    assert!(!parse_question(&ask("a", 2)).is_root());
    for (name, below) in [
        ("_443._tcp.a.test", Some("a.test")),
        ("_dmarc.a.test", Some("a.test")),
        ("a._tcp.test", None),
        ("_tcp", None),
        ("_a.b c.test", None),
    ] {
        assert_eq!(
            parse_question(&ask(name, 33)).host_below().as_ref().map(HostName::as_str),
            below,
            "{name}"
        );
    }
}

#[test]
fn parses_exact_reverse_names() {
    let reverse = |name: &str| parse_question(&ask(name, 12)).reverse_address();
    assert_eq!(reverse("1.0.18.198.in-addr.arpa"), Some(PAIR.v4.into()));
    assert_eq!(reverse("1.0.18.198.IN-ADDR.ARPA"), Some(PAIR.v4.into()));
    assert_eq!(reverse(&reverse_name(PAIR.v6)), Some(PAIR.v6.into()));
    assert_eq!(reverse(&reverse_name(PAIR.v6).to_uppercase()), Some(PAIR.v6.into()));
    assert_eq!(reverse(&reverse_name(Ipv6Addr::LOCALHOST)), Some(Ipv6Addr::LOCALHOST.into()));
    let v6 = reverse_name(PAIR.v6);
    for none in [
        "in-addr.arpa",
        "arpa",
        "0.18.198.in-addr.arpa",
        "2.1.0.18.198.in-addr.arpa",
        "01.0.18.198.in-addr.arpa",
        "+1.0.18.198.in-addr.arpa",
        "256.0.18.198.in-addr.arpa",
        "a.0.18.198.in-addr.arpa",
        "1.0.18.198.in-addr.arpa.test",
        "1.0.18.198.ip6.arpa",
        v6.strip_prefix("1.").unwrap(),
        &format!("1.{v6}"),
        &v6.replace('f', "g"),
        &format!("1{v6}"),
    ] {
        assert_eq!(reverse(none), None, "{none}");
    }
}

proptest! {
    /// No bytes make the parser panic, and another library can read every answer.
    #[test]
    fn any_bytes_are_read(data in proptest::collection::vec(any::<u8>(), 0..600)) {
        checks::dns(&data);
    }

    /// Bytes that resemble a question make no parser panic either.
    #[test]
    fn survives_near_questions(
        name in "([a-zA-Z0-9_.-]{1,20}\\.){0,5}(test|arpa)",
        kind in prop_oneof![Just(1u16), Just(12), Just(28), Just(255), any::<u16>()],
        edns in any::<bool>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut question = ask(&name, kind);
        if edns {
            question[11] = 1;
            question.extend(opt(0, 0x8000, &[]));
        }
        for (at, byte) in changes {
            let at = at.index(question.len());
            question[at] = byte;
        }
        checks::dns(&question);
    }
}
