use std::fs;

use exeat_record::{Event, Header, Log, RunEnd, RunNote, RunStart, Sink, What};

use super::*;
use crate::testing::{Dir, allow, close, deny, end, header, key};

/// Returns a record with a line of each kind, `more` decisions, and its end.
fn record(dir: &Dir, more: u64) -> Vec<u8> {
    let path = dir.join("run.jsonl");
    let _ = fs::remove_file(&path);
    let policy = "{\"policy\":1}";
    let header = Header { policy_sha256: sha256_hex(policy.as_bytes()), ..header() };
    fs::write(dir.join("run.policy.json"), policy).unwrap();
    let log = Log::start_signed(Sink::create_file(&path).unwrap(), header, key(1)).unwrap();
    log.write(Event::RunStart(RunStart { version: "0".into(), ..RunStart::default() })).unwrap();
    for conn in 0..more {
        log.write(Event::Decision(deny(conn, &format!("h{conn}.example:443")))).unwrap();
    }
    log.write(Event::Decision(allow(more, "a.example.com:443"))).unwrap();
    log.write(Event::Close(close(more, "a.example.com:443"))).unwrap();
    log.write(Event::Note(RunNote::new(What::BridgeLost))).unwrap();
    let Event::RunEnd(run_end) = end() else { unreachable!() };
    log.write(Event::RunEnd(RunEnd { connections: more + 1, ..run_end })).unwrap();
    fs::read(path).unwrap()
}

fn check(bytes: &[u8]) -> Verification {
    verify(bytes, None, &[key(1).verifying().clone()]).unwrap()
}

fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// Rebuilds the chain, as an attacker would who has changed a line.
fn rechained(lines: &[Vec<u8>]) -> Vec<u8> {
    let mut prev = "0".repeat(64);
    let mut all = Vec::new();
    for (seq, line) in lines.iter().enumerate() {
        let text = String::from_utf8(line.clone()).unwrap();
        let at = text.find("\"prev\":\"").unwrap() + 8;
        let mut text = text;
        text.replace_range(at..at + 64, &prev);
        let (from, to) = (text.find("\"seq\":").unwrap() + 6, text.find(",\"ts\"").unwrap());
        text.replace_range(from..to, &seq.to_string());
        prev = sha256_hex(text.as_bytes());
        all.extend(text.into_bytes());
    }
    all
}

#[test]
fn a_record_is_whole_as_it_was_written() {
    let dir = Dir::new();
    for more in [0, 5, 127, 128, 300] {
        let bytes = record(&dir, more);
        let report = check(&bytes);
        assert_eq!(report.standing(), Standing::Whole, "{report:#?}");
        assert_eq!((report.covered, report.lines), (lines(&bytes).len() as u64, lines(&bytes).len() as u64));
        assert_eq!(report.checkpoints, 1 + report.lines / 129, "{more} more");
    }
}

/// A06: every changed bit of a short record is found.
#[test]
fn a06_every_changed_bit_is_found() {
    let dir = Dir::new();
    let bytes = record(&dir, 1);
    for at in 0..bytes.len() {
        // Each byte with one of its bits changed; all bits of the last line, which the chain does not guard.
        let last = bytes[at..].iter().filter(|byte| **byte == b'\n').count() < 2;
        for bit in if last { 0..8 } else { at % 8..at % 8 + 1 } {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            assert_ne!(check(&changed).standing(), Standing::Whole, "byte {at}, bit {bit}");
        }
    }
}

/// A06: each line of a longer record changed, removed, doubled, moved, inserted or cut, with the old chain and a rebuilt one.
#[test]
fn a06_every_edited_line_is_found() {
    let dir = Dir::new();
    let whole = lines(&record(&dir, 140));
    let found = |edited: &[Vec<u8>], what: &str, line: usize| {
        for bytes in [edited.concat(), rechained(edited)] {
            let report = check(&bytes);
            assert_ne!(report.standing(), Standing::Whole, "{what} line {line}");
            let tampered = report.standing() == Standing::Tampered;
            assert!(tampered || what == "cut after", "{what} line {line}: {report:#?}");
        }
    };
    for at in 0..whole.len() {
        let mut edited = whole.clone();
        let text = String::from_utf8(edited[at].clone()).unwrap();
        edited[at] = text.replacen("\"mono_us\":", "\"mono_us\":1", 1).into_bytes();
        found(&edited, "changed", at);
        let mut edited = whole.clone();
        edited.remove(at);
        if at + 1 < whole.len() {
            found(&edited, "removed", at);
        }
        let mut edited = whole.clone();
        edited.insert(at, whole[at].clone());
        found(&edited, "doubled", at);
        if at + 1 < whole.len() {
            let mut edited = whole.clone();
            edited.swap(at, at + 1);
            found(&edited, "swapped", at);
            found(&whole[..=at], "cut after", at);
        }
    }
}

/// The reported line is the one that was changed.
#[test]
fn the_line_is_named() {
    let dir = Dir::new();
    let mut edited = lines(&record(&dir, 5));
    let text = String::from_utf8(edited[3].clone()).unwrap();
    edited[3] = text.replace("deny", "allow").into_bytes();
    let report = check(&edited.concat());
    assert_eq!(report.findings[0], Finding::Changed { line: 5 });
    assert!(report.findings[0].to_string().starts_with("line 4 was changed"), "{}", report.findings[0]);
    let report = check(&rechained(&edited));
    assert!(
        report.findings.iter().any(|it| matches!(it, Finding::Counts { .. } | Finding::Signature { .. })),
        "{report:#?}"
    );
}

/// A04: a crash in the middle of a line does not count as tampering, and the report says how far the record is signed.
#[test]
fn a04_a_crash_is_told_from_tampering() {
    let dir = Dir::new();
    let bytes = record(&dir, 300);
    let all = lines(&bytes);
    for (kept, half) in [(3, 40), (200, 7), (260, 100)] {
        let mut cut = all[..kept].concat();
        cut.extend(&all[kept][..half]);
        let report = check(&cut);
        assert_eq!(report.standing(), Standing::Unfinished, "{report:#?}");
        assert_eq!(report.ending, Ending::MidLine);
        assert_eq!(report.covered, (kept as u64 / 129) * 129, "{report:#?}");
        // The same cut, with a line before it changed, is tampering.
        cut[700] ^= 1;
        assert_eq!(check(&cut).standing(), Standing::Tampered);
    }
}

/// A04: a line of any kind that only lacks its line feed counts as cut.
#[test]
fn a04_a_line_without_its_end_is_cut() {
    let dir = Dir::new();
    let bytes = record(&dir, 130);
    let all = lines(&bytes);
    for kept in 1..=all.len() {
        let cut = all[..kept].concat();
        let report = check(&cut[..cut.len() - 1]);
        assert_eq!((report.standing(), report.ending), (Standing::Unfinished, Ending::MidLine), "{kept}");
    }
}

#[test]
fn an_unknown_key_proves_nothing() {
    let dir = Dir::new();
    let bytes = record(&dir, 3);
    let report = verify(&bytes[..], None, &[key(2).verifying().clone()]).unwrap();
    assert_eq!(report.standing(), Standing::UnknownKey, "{report:#?}");
    assert_eq!(report.unknown_keys.into_iter().collect::<Vec<_>>(), [key(1).verifying().key_id()]);
    // Nor does a longer record, whose checkpoints cannot be counted.
    let long = record(&dir, 2 * CHECKPOINT_EVERY);
    let report = verify(&long[..], None, &[key(2).verifying().clone()]).unwrap();
    assert_eq!((report.standing(), report.findings), (Standing::UnknownKey, vec![]));
    // One whose ledger is of a key at hand cannot be signed by another alone.
    let ledger = format!("\"ledger\":\"{}-0123456789abcdef\"", key(2).verifying().key_id());
    let text = String::from_utf8(long).unwrap().replacen("\"ledger\":\"none\"", &ledger, 1);
    let report =
        verify(&rechained(&lines(text.as_bytes()))[..], None, &[key(2).verifying().clone()]).unwrap();
    assert_eq!(report.standing(), Standing::Tampered, "{report:#?}");
    // The record was rebuilt and signed with another key.
    assert_eq!(verify(&bytes[..], None, &[]).unwrap().standing(), Standing::UnknownKey);
}

#[test]
fn a_checkpoint_of_another_run_is_none() {
    let dir = Dir::new();
    let (one, other) = (lines(&record(&dir, 3)), lines(&record(&dir, 3)));
    let mut mixed = one.clone();
    *mixed.last_mut().unwrap() = other.last().unwrap().clone();
    assert_eq!(check(&mixed.concat()).standing(), Standing::Tampered);
    assert_eq!(check(&rechained(&mixed)).standing(), Standing::Tampered);
}

#[test]
fn a_policy_beside_the_record_is_compared() {
    let dir = Dir::new();
    let bytes = record(&dir, 1);
    let path = dir.join("run.jsonl");
    let keys = [key(1).verifying().clone()];
    let report = verify(&bytes[..], Some(&path), &keys).unwrap();
    assert_eq!((report.standing(), report.policies[0].beside), (Standing::Whole, Beside::Same));
    fs::write(dir.join("run.policy.json"), "{\"policy\":2}").unwrap();
    let report = verify(&bytes[..], Some(&path), &keys).unwrap();
    assert!(matches!(report.findings[..], [Finding::Policy { .. }]), "{report:#?}");
    fs::remove_file(dir.join("run.policy.json")).unwrap();
    let report = verify(&bytes[..], Some(&path), &keys).unwrap();
    assert_eq!((report.standing(), report.policies[0].beside), (Standing::Whole, Beside::Missing));
}

#[test]
fn no_part_of_a_path_comes_from_the_record() {
    assert_eq!(compare(Some("/etc/passwd".into()), "../../../etc/passwd"), Beside::Differs);
}

#[test]
fn an_empty_file_is_unfinished() {
    // A run that was killed before it began leaves an empty file.
    assert_eq!((check(b"").standing(), check(b"").ending), (Standing::Unfinished, Ending::Empty));
    assert_eq!(check(b"{}\n").standing(), Standing::Tampered);
    assert_eq!(check(&[0xff; 100_000]).standing(), Standing::Tampered);
}

/// A06: a digest is never used as a path, and an invalid one does not stop the verification.
#[test]
fn a06_a_digest_that_is_a_path_is_none() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    for digest in [
        "../../../../etc/passwd",
        "a/b",
        "/",
        "",
        "..",
        "\u{0}",
        "\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}",
    ] {
        let line = |seq, fields: String| {
            format!(
                r#"{{"schema":"egress/1","seq":{seq},"ts":"t","mono_us":1,"run":"r",{fields},"prev":"{:064}"}}"#,
                0
            )
        };
        let digest = serde_json::to_string(digest).unwrap();
        let start = line(0, format!(r#""event":"run_start","policy_sha256":"{:064}""#, 7));
        let note = line(1, format!(r#""event":"note","what":"policy_reload","policy_sha256":{digest}"#));
        let report = verify(format!("{start}\n{note}\n").as_bytes(), Some(&path), &[]).unwrap();
        assert_eq!(
            report.policies.iter().map(|it| it.beside).collect::<Vec<_>>(),
            [Beside::Missing, Beside::Differs]
        );
        assert_eq!(report.standing(), Standing::Tampered);
    }
}

/// A06: a whole record in place of another run's record is found.
#[test]
fn a06_a_record_under_the_name_of_another_run_is_not_whole() {
    let dir = Dir::new();
    let bytes = record(&dir, 1);
    let own = check(&bytes).run.unwrap();
    let named_so = |name: String| {
        let report = verify(&bytes[..], Some(&dir.join(&name)), &[key(1).verifying().clone()]).unwrap();
        (report.standing(), report.findings)
    };
    assert_eq!(named_so(format!("{own}.jsonl")), (Standing::Whole, vec![]));
    assert_eq!(named_so("last-release.jsonl".into()), (Standing::Whole, vec![]));
    let other = "01JD8Z3V5QZZZZZZZZZZZZZZZZ";
    let named = other.parse().unwrap();
    assert_eq!(named_so(format!("{other}.jsonl")), (Standing::Tampered, vec![Finding::Name { named }]));
}

/// L17: a connection that was never made is in the totals, and a wrong total is reported.
#[test]
fn l17_counts_failed_connections_in_the_totals() {
    let dir = Dir::new();
    let write = |name: &str| {
        let log = Log::start_signed(Sink::create_file(&dir.join(name)).unwrap(), header(), key(1)).unwrap();
        log.write(Event::RunStart(RunStart::default())).unwrap();
        for conn in 1..=3 {
            log.write(Event::Decision(allow(conn, "a.example.com:443"))).unwrap();
        }
        let target = crate::testing::target("a.example.com:443");
        let progress = |bytes_up| exeat_record::Progress {
            conn: exeat_record::ConnId(1),
            target: Some(target.clone()),
            bytes_up,
            bytes_down: 7,
        };
        log.write(Event::Progress(progress(1 << 20))).unwrap();
        let mut refused = exeat_record::Close::new(exeat_record::ConnId(2), exeat_record::CloseCause::Error);
        refused.target = Some(target.clone());
        log.write(Event::Close(refused.clone())).unwrap();
        // This one was established, and broke before it moved a byte.
        let mut broken = refused;
        (broken.conn, broken.ip) = (exeat_record::ConnId(3), Some([192, 0, 2, 1].into()));
        log.write(Event::Close(broken)).unwrap();
        log.write(Event::Close(close(1, "a.example.com:443"))).unwrap();
        log.write(end()).unwrap();
        assert_eq!(log.counts().failed, 1);
        fs::read(dir.join(name)).unwrap()
    };
    let bytes = write("run.jsonl");
    let report = check(&bytes);
    assert_eq!((report.standing(), &report.findings[..]), (Standing::Whole, &[][..]), "{report:#?}");
    let read: Vec<Record> = Reader::new(&bytes[..]).map(Result::unwrap).collect();
    let progress = read.iter().find(|record| record.event == LineKind::Progress).unwrap();
    assert_eq!((progress.conn, progress.bytes_up, progress.bytes_down), (Some(1), Some(1 << 20), Some(7)));
    assert_eq!(progress.target().as_deref(), Some("a.example.com:443"));
    let ended = read.iter().find(|record| record.event == LineKind::RunEnd).unwrap();
    assert_eq!((ended.allowed, ended.failed), (Some(3), Some(1)));

    let mut less = lines(&bytes);
    less.retain(|line| !String::from_utf8_lossy(line).contains("\"ended_by\":\"error\""));
    less.truncate(less.len() - 1);
    let report = check(&rechained(&less));
    let wrong = Finding::Counts { line: less.len() as u64, what: "failed", said: 1, counted: 0 };
    assert_eq!(report.findings, [wrong]);
}

/// L17: a record that was cut, edited and chained anew after its last checkpoint does not pass as that of a killed run, if the killed run
/// would have signed the lines.
#[test]
fn l17_unsigned_lines_are_told_from_a_killed_run() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let log = Log::start_signed(Sink::create_file(&path).unwrap(), header(), key(1)).unwrap();
    log.write(Event::RunStart(RunStart::default())).unwrap();
    log.sign().unwrap();
    for conn in 0..2 {
        log.write(Event::Decision(deny(conn, "h.example:443"))).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(1100));
    // This line is too late to stay unsigned: a checkpoint follows at once.
    log.write(Event::Decision(allow(2, "a.example.com:443"))).unwrap();
    log.write(Event::Decision(allow(3, "a.example.com:443"))).unwrap();
    let killed = fs::read(&path).unwrap();
    // Another key signed it in time.
    let text = String::from_utf8(killed.clone()).unwrap();
    let numbered = text.replacen("\"ledger\":\"none\"", "\"ledger\":\"1a2b3c4d-0123456789abcdef\"", 1);
    assert_ne!(text, numbered);
    let numbered = rechained(&lines(numbered.as_bytes()));
    let unknown = verify(&numbered[..], None, &[key(2).verifying().clone()]).unwrap();
    assert_eq!(unknown.standing(), Standing::UnknownKey, "{unknown:#?}");
    let report = check(&killed);
    assert_eq!((report.lines, report.covered, report.checkpoints), (7, 6, 2), "{report:#?}");
    assert_eq!((report.standing(), report.ending), (Standing::Unfinished, Ending::Unfinished));
    // Wherever the run was killed, all lines but the last are signed or less than a second old.
    for kept in 1..=7 {
        let report = check(&lines(&killed)[..kept].concat());
        assert_eq!(report.standing(), Standing::Unfinished, "{kept} lines: {report:#?}");
    }
    // An attacker removed a refusal and the checkpoint after it, and rebuilt the chain.
    let mut less = lines(&killed);
    less.remove(5);
    less.remove(2);
    let report = check(&rechained(&less));
    assert_eq!(report.findings, [Finding::Unsigned { from: 3, to: 5 }], "{report:#?}");

    for _ in 0..CHECKPOINT_EVERY {
        log.write(Event::Decision(deny(4, "h.example:443"))).unwrap();
    }
    let mut less = lines(&fs::read(&path).unwrap());
    less.retain(|line| {
        !line.windows(13).any(|part| part == b"\"checkpoint\",")
            || line.starts_with(b"{\"schema\":\"egress/1\",\"seq\":1,")
    });
    let report = check(&rechained(&less));
    assert!(report.findings.contains(&Finding::Unsigned { from: 3, to: less.len() as u64 }), "{report:#?}");
}

/// Returns the text of each finding.
fn findings(bytes: &[u8]) -> Vec<String> {
    let report = check(bytes);
    assert_eq!(report.standing(), Standing::Tampered, "{report:#?}");
    report.findings.iter().map(ToString::to_string).collect()
}

#[test]
fn l17_innocent_damage_is_named_with_its_cure() {
    let dir = Dir::new();
    let bytes = record(&dir, 200);
    let text = String::from_utf8(bytes.clone()).unwrap();
    assert_eq!(
        findings(&[b"\xef\xbb\xbf", &bytes[..]].concat()),
        ["the file starts with a byte order mark, which an editor adds: tail -c +4 FILE takes it away"]
    );
    let crlf = text.replace('\n', "\r\n");
    let cured =
        "the line ends were made CR LF, as a transfer in text mode does: tr -d '\\r' < FILE takes that back";
    assert_eq!(findings(crlf.as_bytes()), [cured]);
    // The file may be read in pieces of any size.
    for room in [1, 2, 3, 100] {
        let input = std::io::BufReader::with_capacity(room, crlf.as_bytes());
        let report = verify(input, None, &[key(1).verifying().clone()]).unwrap();
        assert_eq!(report.findings.len(), 1, "{room}: {:?}", report.findings);
    }
    for (magic, undo) in [
        (&b"\x1f\x8b\x08\0\n\n\n"[..], "(gzip): zcat FILE |"),
        (b"\x28\xb5\x2f\xfd\x01", "(zstd): zstdcat FILE |"),
        (b"\xfd7zXZ\0", "(xz): xzcat FILE |"),
        (b"BZh91AY", "(bzip2): bzcat FILE |"),
    ] {
        let found = findings(magic);
        assert!(found.len() == 1 && found[0].contains(undo), "{found:?}");
    }
}

#[test]
fn l17_nul_bytes_are_told_from_an_edit() {
    let dir = Dir::new();
    let lines = lines(&record(&dir, 30));
    let at_end = [lines[..20].concat(), vec![0; 20_000]].concat();
    assert_eq!(
        findings(&at_end),
        ["from line 21 on: NUL bytes, as after a power cut: what was in their place is lost"]
    );
    let between = [lines[..20].concat(), vec![0; 600], lines[21..].concat()].concat();
    let found = findings(&between);
    assert!(found[0].starts_with("from line 21 on: NUL bytes"), "{found:?}");
}

#[test]
fn l17_two_records_in_one_file_are_told_apart() {
    let dir = Dir::new();
    let first = record(&dir, 3);
    let both = [first.clone(), record(&dir, 3)].concat();
    let line = lines(&first).len();
    let said = format!(
        "line {} begins the record of another run: head -n {line} FILE is the first record, tail -n +{} FILE the second",
        line + 1,
        line + 1
    );
    assert_eq!(findings(&both), [said]);
    assert_eq!(check(&both).covered, line as u64, "the first one is whole and signed");
}

#[test]
fn l17_invalid_json_is_reported_with_one_line_number() {
    let dir = Dir::new();
    let mut lines = lines(&record(&dir, 3));
    lines[2] = b"garbage\n".to_vec();
    let found = findings(&lines.concat());
    assert_eq!(found[0], "line 3 is no record: it is not JSON from byte 1 on");
}

/// A run that was named a second before 2026-11-21 10:20:32 UTC.
const RUN: &str = "01M7YSYCCR0000000000000000";

/// Returns a record whose lines have these times in seconds: the wall clock, and the monotonic clock.
fn timed(dir: &Dir, times: &[(i64, i64)]) -> Vec<u8> {
    let lines = lines(&record(dir, times.len() as u64));
    let start: Timestamp = "2026-11-21T10:20:32Z".parse().unwrap();
    let timed = lines.iter().zip(times).map(|(line, (wall, mono))| {
        let mut value: serde_json::Value = serde_json::from_slice(line).unwrap();
        value["ts"] = (start + SignedDuration::from_secs(*wall)).to_string().into();
        value["mono_us"] = (mono * 1_000_000).into();
        value["run"] = RUN.into();
        format!("{value}\n").into_bytes()
    });
    timed.collect::<Vec<_>>().concat()
}

#[test]
fn l17_a_clock_that_steps_is_noted_with_the_line() {
    let dir = Dir::new();
    let noted = |times: &[(i64, i64)]| -> Vec<String> {
        check(&timed(&dir, times)).notes.iter().map(ToString::to_string).collect()
    };
    let day = 86_400;
    assert!(noted(&[(0, 0), (1, 1), (3600, 3600), (10 * day, 10 * day + 400)]).is_empty());
    assert_eq!(
        noted(&[(0, 0), (1, 1), (1 - 21 * day, 1), (2 - 21 * day, 2)]),
        ["line 3: the clock stepped by -21 d"]
    );
    assert_eq!(
        noted(&[(0, 0), (28_801, 1), (28_802, 2)]),
        ["line 2: the clock stepped by +8 h, or the machine slept"]
    );
    assert_eq!(
        noted(&[(-3 * day, 0), (1 - 3 * day, 1)]),
        ["line 1: its time is -2 d from the time that the run's name has"]
    );
}

#[test]
fn l17_an_unsigned_tail_is_neither_praised_nor_blamed() {
    let dir = Dir::new();
    let lines = lines(&record(&dir, 200));
    let report = check(&lines[..150].concat());
    let tail = Some((report.covered + 1, 150));
    assert_eq!((report.standing(), report.unsigned_tail()), (Standing::Unfinished, tail));
    assert!(report.covered > 100, "a checkpoint stands for these");
    assert_eq!(check(&lines.concat()).unsigned_tail(), None);
}

/// A record without its checkpoints and its end, with a rebuilt chain, does not pass as that of a run killed at once.
#[test]
fn l17_a_record_without_any_checkpoint_is_not_taken_for_a_killed_one() {
    let dir = Dir::new();
    let numbered = |ledger: &str| {
        let kept = lines(&record(&dir, 3)).into_iter().filter(|line| {
            let line = String::from_utf8_lossy(line);
            !line.contains("\"event\":\"checkpoint\"") && !line.contains("\"event\":\"run_end\"")
        });
        let text: String = kept.map(|line| String::from_utf8(line).unwrap()).collect();
        let text = text.replacen("\"ledger\":\"none\"", &format!("\"ledger\":\"{ledger}\""), 1);
        check(&rechained(&lines(text.as_bytes())))
    };
    let report = numbered("1a2b3c4d-0123456789abcdef");
    assert_eq!(report.standing(), Standing::Tampered, "{report:#?}");
    assert!(matches!(report.findings[..], [Finding::Unsigned { from: 1, .. }]), "{report:#?}");
    assert_eq!(numbered("unnumbered").standing(), Standing::Tampered);
    // Nothing says that this record was ever signed.
    assert_eq!(numbered("none").standing(), Standing::Unfinished);
}
