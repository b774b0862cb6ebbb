use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use exeat_record::checkpoint::Checkpoint;
use exeat_record::ledger::file::{END, PRUNED, START, digest, file_name};
use exeat_record::ledger::{DEADLINE, Head, Ledger, LedgerEntry, unnumbered_note};
use exeat_record::place::{RecordDir, policy_path, store_policy, store_reloaded};
use exeat_record::{
    Cause, Event, Header, Log, Mode, RunEnd, RunId, RunNote, RunStart, Under, VerifyingKey, What,
    is_being_written, sha256_hex,
};
use nix::fcntl::{Flock, FlockArg};

use super::*;
use crate::testing::{Dir, key};
use crate::verify::verify;

/// A state directory with a key.
struct Bench {
    dir: Dir,
    place: RecordDir,
}

impl Bench {
    fn new() -> Bench {
        let dir = Dir::new();
        let place = RecordDir::from_env(Some(dir.path().as_os_str()), None).unwrap();
        place.prepare().unwrap();
        Bench { dir, place }
    }

    fn ledger(&self) -> Ledger {
        Ledger::find(&self.place, key(1), false).unwrap()
    }

    fn start(&self) -> (Log, LedgerEntry) {
        let run = RunId::new();
        let (sink, path) = self.place.create(run).unwrap();
        store_policy(&path, "{}", false).unwrap();
        let policy_sha256 = sha256_hex(b"{}");
        let header = Header { run, stage: Some("nightly".into()), policy_sha256, mode: Mode::Enforce };
        let log = Log::start_signed(sink, header, key(1)).unwrap();
        let begun = self.ledger().begin(&log, RunStart::default(), None).unwrap();
        if let LedgerEntry::Unnumbered(run) = &begun {
            log.write(unnumbered_note(&run.why)).unwrap();
        }
        (log, begun)
    }

    /// Makes a whole run.
    fn run(&self) -> (RunId, u64) {
        let (run, head) = self.run_for(Duration::ZERO);
        (run, head.unwrap().no)
    }

    /// Makes a run of this length. Returns its head in the ledger, or the reason why it has none.
    fn run_for(&self, span: Duration) -> (RunId, Result<Head, String>) {
        let (log, begun) = self.start();
        thread::sleep(span);
        self.end(&log);
        let head = match begun {
            LedgerEntry::Numbered(numbered) => {
                numbered.end(&log, Cause::Exit).map(|it| it.head).map_err(|error| error.to_string())
            }
            LedgerEntry::Unnumbered(run) => {
                let _ = run.end(&log, Cause::Exit);
                Err(run.why)
            }
        };
        (log.run(), head)
    }

    fn end(&self, log: &Log) {
        let end = RunEnd {
            cause: Cause::Exit,
            exit: Some(0),
            limit: None,
            signal: None,
            stopped_by: None,
            connections: 0,
            dropped: 0,
        };
        log.write(Event::RunEnd(end)).unwrap();
    }

    fn books(&self) -> Vec<Book> {
        Book::all(&self.place, &[key(1).verifying().clone()], &[]).unwrap()
    }

    /// Returns the only ledger, and its comparison with the records.
    fn joined(&self) -> (Book, Joined) {
        let mut books = self.books();
        assert_eq!(books.len(), 1, "{books:#?}");
        let joined = self.join(&books);
        (books.remove(0), joined)
    }

    fn join(&self, books: &[Book]) -> Joined {
        let keys: [VerifyingKey; 1] = [key(1).verifying().clone()];
        let kept = self.place.stored_runs().unwrap();
        let records: Vec<RecordFacts> = kept
            .iter()
            .map(|kept| {
                let file = BufReader::new(File::open(&kept.path).unwrap());
                let report = verify(file, Some(&kept.path), &keys).unwrap();
                RecordFacts {
                    run: kept.run,
                    witness: report.witness.clone(),
                    is_running: is_being_written(&kept.path).unwrap(),
                    missing: report.missing(),
                }
            })
            .collect();
        join(books, &records, &self.place.runs_without_record().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.dir.join("exeat").join(file_name(self.ledger().name()))
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(self.path()).unwrap().lines().map(str::to_owned).collect()
    }

    /// Writes the start of a run that never was, signed by the key.
    fn forge_start(&self, run: RunId, no: u64) {
        let lines = self.lines();
        let prev = sha256_hex(format!("{}\n", lines.last().unwrap()).as_bytes());
        let (seq, name) = (lines.len() as u64, self.ledger().name().to_owned());
        let own = format!(
            r#"{{"schema":"egress-ledger/1","seq":{seq},"ts":"2026-11-01T00:00:00.000000Z","mono_us":0,"event":"start","run":"{run}","no":{no},"last":{no},"prev":"{prev}""#
        );
        let origin = format!("exeat-ledger/{name}");
        let line = sha256_hex(own.as_bytes());
        let signed = Checkpoint { origin, n: seq, root: digest(&prev), line }.sign(&key(1));
        let mut file = OpenOptions::new().append(true).open(self.path()).unwrap();
        writeln!(file, r#"{own},"sig":"{}"}}"#, signed.sig).unwrap();
    }

    fn write_lines(&self, lines: &[String]) {
        fs::write(self.path(), lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    }
}

fn nothing(joined: &Joined) {
    assert_eq!(joined.faults, [], "{joined:#?}");
    assert!(joined.killed.is_empty() && joined.no_end.is_empty(), "{joined:#?}");
}

#[test]
fn l17_numbers_runs_and_signs_each_line() {
    let bench = Bench::new();
    for no in 1..=3 {
        assert_eq!(bench.run().1, no);
    }
    let (book, joined) = bench.joined();
    nothing(&joined);
    assert_eq!((book.last, book.lines, &book.faults[..], book.torn), (3, 6, &[][..], 0));
    assert_eq!(book.key.as_ref(), Some(key(1).verifying()));
    let lines = bench.lines();
    assert_eq!(book.head, Some(sha256_hex(format!("{}\n", lines[5]).as_bytes())));
    let size = lines.iter().map(String::len).max().unwrap();
    assert!(size < 700, "{size}: {}", lines[0]);
    // A key that is not known proves nothing.
    let books = Book::all(&bench.place, &[key(2).verifying().clone()], &[]).unwrap();
    assert_eq!(books[0].faults, [BookFault::UnknownKey { line: 6 }]);
}

#[test]
fn l17_a_record_that_cannot_be_read_was_not_removed() {
    let bench = Bench::new();
    let runs: Vec<_> = (0..2).map(|_| bench.run().0).collect();
    fs::remove_file(bench.place.path_for(runs[0])).unwrap();
    fs::remove_file(bench.place.path_for(runs[1])).unwrap();
    let (_, mut joined) = bench.joined();
    joined.keep_unread(&BTreeSet::from([runs[1], RunId::new()]));
    assert!(matches!(&joined.faults[..], [Mismatch::Removed { run, .. }] if *run == runs[0]), "{joined:?}");
    assert_eq!(joined.unread, [runs[1]]);
}

#[test]
fn l17_finds_a_record_that_was_removed() {
    let bench = Bench::new();
    let runs: Vec<_> = (0..3).map(|_| bench.run().0).collect();
    let record = bench.place.path_for(runs[1]);
    fs::remove_file(&record).unwrap();
    let (_, joined) = bench.joined();
    let told = joined.faults.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(told.len(), 1, "{told:?}");
    let begin = format!("number 2: the record of {} was removed (nightly, 2", runs[1]);
    assert!(told[0].starts_with(&begin) && told[0].ends_with(", its policy is still there)"), "{told:?}");
    fs::remove_file(policy_path(&record)).unwrap();
    assert!(matches!(
        &bench.joined().1.faults[..],
        [Mismatch::Removed { no: Some(2), policy_left: false, .. }]
    ));
    // A pruned record has another word.
    bench.ledger().prune(runs[1], Some(2), Some("cleo")).unwrap();
    let (book, joined) = bench.joined();
    nothing(&joined);
    assert_eq!((joined.pruned, book.last, &book.faults[..]), (1, 3, &[][..]));
    assert_eq!(joined.last_pruned.unwrap().1, "cleo");
    assert_eq!(bench.run().1, 4);
}

#[test]
fn l17_finds_a_policy_that_was_removed_and_one_that_was_left() {
    let bench = Bench::new();
    let run = bench.run().0;
    let policy = policy_path(&bench.place.path_for(run));
    fs::remove_file(&policy).unwrap();
    let removed = || Mismatch::PolicyRemoved { no: Some(1), run, sha256: sha256_hex(b"{}") };
    assert_eq!(bench.joined().1.faults, [removed()]);
    // A link that leads nowhere does not count as a policy.
    std::os::unix::fs::symlink("nowhere", &policy).unwrap();
    assert_eq!(bench.joined().1.faults, [removed()]);
    fs::remove_file(&policy).unwrap();
    let stray = RunId::new();
    fs::write(bench.place.dir().join(format!("{stray}.policy.json")), "{}").unwrap();
    let faults = bench.joined().1.faults;
    assert_eq!(faults, [removed(), Mismatch::RecordOfPolicy { run: stray }]);
}

#[test]
fn l17_lists_killed_runs_apart() {
    let bench = Bench::new();
    let (log, begun) = bench.start();
    let (_, joined) = bench.joined();
    assert_eq!((joined.running, &joined.killed[..], &joined.faults[..]), (1, &[][..], &[][..]));
    let run = log.run();
    drop((log, begun));
    let (_, joined) = bench.joined();
    assert_eq!((joined.running, &joined.killed[..], &joined.faults[..]), (0, &[run][..], &[][..]));
    assert_eq!(bench.run().1, 2);
}

#[test]
fn l17_a_ledger_that_was_edited_or_cut_is_told_and_goes_on() {
    let bench = Bench::new();
    let runs: Vec<_> = (0..4).map(|_| bench.run().0).collect();
    let lines = bench.lines();
    let told = || bench.joined().0.faults;

    let mut edited = lines.clone();
    edited[2] = edited[2].replacen("nightly", "weekly", 1);
    bench.write_lines(&edited);
    assert_eq!(
        told(),
        [
            BookFault::Signature { line: 3 },
            BookFault::Changed { line: 4 },
            BookFault::Missing { from: 2, to: 2 }
        ]
    );

    let mut removed = lines.clone();
    removed.drain(2..4);
    bench.write_lines(&removed);
    assert_eq!(told(), [BookFault::Changed { line: 3 }, BookFault::Missing { from: 2, to: 2 }]);
    assert!(matches!(bench.joined().1.faults[..], [Mismatch::NotInLedger { no: 2, .. }]));

    // The chain was rebuilt without the key.
    let mut chained = edited.clone();
    let mut prev = sha256_hex(format!("{}\n", chained[2]).as_bytes());
    for line in &mut chained[3..] {
        let at = line.find("\"prev\":\"").unwrap() + 8;
        line.replace_range(at..at + 64, &prev);
        prev = sha256_hex(format!("{line}\n").as_bytes());
    }
    bench.write_lines(&chained);
    let unsigned = (3..=8).map(|line| BookFault::Signature { line });
    assert_eq!(told(), unsigned.collect::<Vec<_>>());

    // After a cut between two lines only the record of the run shows it. Its number is taken again.
    bench.write_lines(&lines[..6]);
    assert_eq!(told(), []);
    let not_there = |run, no| Mismatch::NotInLedger { ledger: bench.ledger().name().to_owned(), no, run };
    assert_eq!(bench.joined().1.faults, [not_there(runs[3], 4)]);
    assert_eq!(bench.run().1, 4);
    assert_eq!(bench.joined().1.faults, [not_there(runs[3], 4)]);

    fs::remove_file(bench.path()).unwrap();
    let missing = Mismatch::NoLedger { ledger: bench.ledger().name().to_owned(), records: 5 };
    assert_eq!(bench.join(&[]).faults, [missing]);
    assert_eq!(bench.run().1, 1);
    assert_eq!(bench.joined().1.faults.len(), 5);
}

/// L17: not even the owner of the key can forge a line of which somebody else kept a head.
#[test]
fn l17_a_head_that_was_kept_is_in_the_ledger_or_not() {
    let bench = Bench::new();
    let kept = bench.run_for(Duration::ZERO).1.unwrap();
    let keys = [key(1).verifying().clone()];
    let find = |head: &str| {
        let books = Book::all(&bench.place, &keys, &[head.parse().unwrap()]).unwrap();
        books.iter().find_map(|book| Some((book.found.get(&0)?.line, book.last - book.found[&0].last)))
    };
    let short = kept.sha256.get(..16).unwrap();
    for head in [kept.sha256.as_str(), short, &short.to_uppercase(), &format!("1 {}", kept.sha256)] {
        assert_eq!(find(head), Some((2, 0)), "{head}");
    }
    assert_eq!(find(&"ab".repeat(32)), None);
    bench.run();
    bench.run();
    assert_eq!(find(short), Some((2, 2)), "later runs were added");
    // A start and its run's record also have the digest of the line before, which is a head, too.
    let start: serde_json::Value = serde_json::from_str(&bench.lines()[2]).unwrap();
    assert_eq!(start["prev"], kept.sha256.as_str());

    // The owner of the key rebuilt it: nothing else is wrong with it, but the head is missing.
    fs::remove_file(bench.path()).unwrap();
    bench.run();
    bench.run();
    assert_eq!((find(short), &bench.books()[0].faults[..]), (None, &[][..]));
    for bad in ["", "abc", &"g".repeat(16), &"a".repeat(65), "x abababababababab", "1  abababababababab"] {
        assert!(bad.parse::<KeptHead>().is_err(), "{bad}");
    }
}

/// The owner of the key rebuilt the ledger, but each record saw the old one.
#[test]
fn l17_records_witness_a_ledger_that_was_written_anew() {
    let bench = Bench::new();
    let runs: Vec<_> = (0..2).map(|_| bench.run().0).collect();
    fs::remove_file(bench.path()).unwrap();
    // The new ledger has another run first, and then the same ones.
    let other = RunId::new();
    bench.ledger().prune(other, None, None).unwrap();
    for (run, no) in runs.iter().zip(1..) {
        bench.forge_start(*run, no);
    }
    let (book, joined) = bench.joined();
    assert_eq!(book.faults, []);
    let other = |at: usize| Mismatch::OtherLedger { no: at as u64 + 1, run: runs[at] };
    assert_eq!(joined.faults, [other(0), other(1)]);
}

#[test]
fn l17_a_record_in_the_place_of_another_is_found() {
    let bench = Bench::new();
    let (run, _) = bench.run();
    let record = bench.place.path_for(run);
    let text = fs::read_to_string(&record).unwrap();
    // A record under the right name, signed with the key, that was never in the ledger.
    fs::write(&record, text.replacen("\"mono_us\":", "\"mono_us\":9", 1)).unwrap();
    assert_eq!(bench.joined().1.faults, [Mismatch::OtherRecord { no: Some(1), run }]);
    // A record whose end was cut off.
    let lines: Vec<&str> = text.lines().collect();
    fs::write(&record, format!("{}\n", lines[0])).unwrap();
    assert_eq!(bench.joined().1.faults, [Mismatch::OtherRecord { no: Some(1), run }]);
}

#[test]
fn l17_a_torn_last_line_stops_no_run() {
    let torn: [&[u8]; 5] = [b"{\"schema\":\"egress-led", b"{", &[0; 3000], &[0; 100_000], &[0xff; 9000]];
    for torn in torn {
        let bench = Bench::new();
        bench.run();
        let mut file = OpenOptions::new().append(true).open(bench.path()).unwrap();
        file.write_all(torn).unwrap();
        for no in 2..=3 {
            assert_eq!(bench.run().1, no, "{} bytes", torn.len());
        }
        let (book, joined) = bench.joined();
        nothing(&joined);
        assert_eq!((book.last, book.torn, &book.faults[..]), (3, 1, &[][..]), "{} bytes", torn.len());
        assert!(fs::read(bench.path()).unwrap().is_ascii());
        assert!(bench.lines()[2].contains(&format!(",\"torn\":{},", torn.len())));
    }
    // A ledger that never had a line.
    let bench = Bench::new();
    fs::write(bench.path(), [0; 512]).unwrap();
    assert_eq!(bench.run().1, 1);
    assert_eq!(bench.joined().0.torn, 1);
}

/// Lines of another program stay in the ledger, and are reported.
#[test]
fn l17_reports_malformed_lines_without_stopping_a_run() {
    let bench = Bench::new();
    bench.run();
    let mut file = OpenOptions::new().append(true).open(bench.path()).unwrap();
    file.write_all(b"not a line\n{}\n").unwrap();
    assert_eq!(bench.run().1, 2);
    let (book, joined) = bench.joined();
    nothing(&joined);
    assert_eq!((book.last, book.torn), (2, 0));
    assert_eq!(book.faults, [BookFault::Malformed { line: 3 }, BookFault::Malformed { line: 4 }]);
}

/// Someone without the key appends a line of the right form, and an honest run follows.
#[test]
fn l17_finds_each_line_that_was_added_without_the_key() {
    for (event, more) in [
        (PRUNED, r#","user":"cleo""#),
        (START, r#","first":"00","file":"/elsewhere""#),
        (END, r#","cause":"exit","n":3,"root":"00""#),
        ("later", ""),
    ] {
        for (no, last) in [(1, 1), (2, 2), (9, 9), (u64::MAX, u64::MAX)] {
            let bench = Bench::new();
            let (run, _) = bench.run();
            fs::remove_file(bench.place.path_for(run)).unwrap();
            let before = bench.lines().pop().unwrap();
            let line = format!(
                r#"{{"schema":"egress-ledger/1","seq":2,"ts":"2026-11-01T00:00:00.000000Z","mono_us":0,"event":"{event}","run":"{run}","no":{no},"last":{last}{more},"prev":"{}","sig":"{}=="}}"#,
                sha256_hex(format!("{before}\n").as_bytes()),
                "A".repeat(86),
            );
            let mut file = OpenOptions::new().append(true).open(bench.path()).unwrap();
            writeln!(file, "{line}").unwrap();
            // It is found before and after the next runs, which continue from the last signed line.
            for runs in 0..3 {
                let (book, joined) = bench.joined();
                assert_eq!(
                    book.faults,
                    [BookFault::Signature { line: 3 }],
                    "{event} {no}, {runs} runs later"
                );
                assert!(matches!(&joined.faults[..], [Mismatch::Removed { no: Some(1), .. }]), "{joined:#?}");
                assert_eq!(bench.run().1, runs + 2);
            }
            // The next run says so in its signed line, and in its record.
            assert!(bench.lines()[3].contains(r#","unsigned":1,"#), "{}", bench.lines()[3]);
            assert!(!bench.lines()[4].contains("unsigned"));
        }
    }
}

#[test]
fn l17_a_run_records_oddities_of_the_ledger() {
    let bench = Bench::new();
    bench.run();
    let text = fs::read_to_string(bench.path()).unwrap();
    let changed = text.replacen("\"cause\":\"exit\"", "\"cause\":\"signal\"", 1);
    fs::write(bench.path(), changed).unwrap();
    let (_, begun) = bench.start();
    let LedgerEntry::Numbered(numbered) = begun else { panic!("{begun:?}") };
    assert!(numbered.oddity.as_deref().unwrap().starts_with("the last line of the ledger `"), "{numbered:?}");
    // A ledger without any signed line has no end to continue from.
    let forged = "{\"schema\":\"egress-ledger/1\",\"seq\":0,\"ts\":\"2026-11-01T00:00:00.000000Z\",\"mono_us\":0,\
        \"event\":\"start\",\"last\":3,\"prev\":\"\",\"sig\":\"\"}\n";
    fs::write(bench.path(), forged.repeat(50_000)).unwrap();
    let since = Instant::now();
    assert!(why(bench.start().1).contains("move it away"));
    assert!(since.elapsed() < DEADLINE * 5, "{:?}", since.elapsed());
}

#[test]
fn l17_a_half_line_at_the_end_may_be_being_written() {
    let bench = Bench::new();
    bench.run();
    let whole = fs::read_to_string(bench.path()).unwrap();
    bench.run();
    let next = bench.lines()[2].clone();
    // A part of a line, and a whole one without its line feed, which is not a line yet.
    for half in ["{\"schema\":\"egress-led", &next] {
        fs::write(bench.path(), format!("{whole}{half}")).unwrap();
        let book = &bench.books()[0];
        assert_eq!((book.last, &book.faults[..]), (1, &[][..]), "{half}");
        assert_eq!(book.head, Some(sha256_hex(format!("{}\n", whole.lines().last().unwrap()).as_bytes())));
    }
}

fn why(begun: LedgerEntry) -> String {
    match begun {
        LedgerEntry::Unnumbered(run) => run.why,
        LedgerEntry::Numbered(_) => panic!("it has a number"),
    }
}

#[test]
fn l17_a_lock_that_cannot_be_had_is_a_note_after_a_second() {
    let bench = Bench::new();
    bench.run();
    let other = File::open(bench.path()).unwrap();
    let lock = Flock::lock(other, FlockArg::LockExclusiveNonblock).unwrap();
    let since = Instant::now();
    let (log, begun) = bench.start();
    let took = since.elapsed();
    assert!(took >= DEADLINE && took < DEADLINE * 3, "{took:?}");
    assert!(why(begun).contains("has the lock of the ledger"), "{log:?}");
    let run = log.run();
    drop((lock, log));
    assert_eq!(bench.run().1, 2);
    let (_, joined) = bench.joined();
    nothing(&joined);
    assert_eq!(joined.unnumbered, [run]);
    let text = fs::read_to_string(&bench.place.stored_runs().unwrap()[1].path).unwrap();
    assert!(text.contains("\"ledger\":\"unnumbered\"") && text.contains("\"what\":\"unnumbered\""), "{text}");
}

#[test]
fn l17_a_run_without_a_number_is_missed_from_its_end_on() {
    let bench = Bench::new();
    bench.run();
    let other = File::open(bench.path()).unwrap();
    let lock = Flock::lock(other, FlockArg::LockExclusiveNonblock).unwrap();
    let (log, begun) = bench.start();
    let LedgerEntry::Unnumbered(late) = begun else { panic!("{begun:?}") };
    drop(lock);
    bench.end(&log);
    late.end(&log, Cause::Exit).unwrap();
    let run = log.run();
    drop(log);
    assert_eq!(bench.run().1, 2, "it took no number");
    let (book, joined) = bench.joined();
    nothing(&joined);
    assert_eq!((&joined.unnumbered[..], book.last, &book.faults[..]), (&[run][..], 2, &[][..]));
    // Changed by the owner of the key, removed, pruned.
    let record = bench.place.path_for(run);
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replacen("\"mono_us\":", "\"mono_us\":9", 1)).unwrap();
    assert_eq!(bench.joined().1.faults, [Mismatch::OtherRecord { no: None, run }]);
    fs::remove_file(&record).unwrap();
    let faults = bench.joined().1.faults;
    assert!(matches!(&faults[..], [Mismatch::Removed { no: None, policy_left: true, .. }]), "{faults:?}");
    let begin = format!("not numbered: the record of {run} was removed (nightly, 2");
    assert!(faults[0].to_string().starts_with(&begin), "{}", faults[0]);
    bench.ledger().prune(run, None, Some("cleo")).unwrap();
    nothing(&bench.joined().1);
}

#[test]
fn l17_a_ledger_that_cannot_be_used_refuses_no_run() {
    type Spoil = fn(&Path);
    let spoiled: [(&str, Spoil); 5] = [
        ("not a file of yours alone", |path| fs::create_dir(path).unwrap()),
        ("symbolic", |path| std::os::unix::fs::symlink("elsewhere", path).unwrap()),
        ("not a file of yours alone", |path| {
            fs::write(path, "").unwrap();
            fs::hard_link(path, path.with_extension("other")).unwrap();
        }),
        ("move it away", |path| fs::write(path, "no ledger\n").unwrap()),
        ("move it away", |path| fs::write(path, vec![0; 40_000_000]).unwrap()),
    ];
    for (word, spoil) in spoiled {
        let bench = Bench::new();
        spoil(&bench.path());
        let (log, begun) = bench.start();
        let why = why(begun).to_lowercase();
        assert!(why.contains(word) || why.contains("directory"), "{why}");
        drop(log);
        let kept = bench.place.stored_runs().unwrap();
        assert!(fs::read_to_string(&kept[0].path).unwrap().contains("\"what\":\"unnumbered\""));
    }
}

#[test]
fn l17_2000_runs_at_64_in_parallel_leave_no_gap() {
    let bench = Bench::new();
    let (left, late) = (AtomicU64::new(2000), AtomicU64::new(0));
    let take = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
    thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                while take() {
                    if let (_, Err(why)) = bench.run_for(Duration::from_millis(50)) {
                        assert!(why.contains("has the lock"), "{why}");
                        late.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let (book, joined) = bench.joined();
    assert_eq!((&joined.faults[..], &joined.killed[..], &book.faults[..]), (&[][..], &[][..], &[][..]));
    // Each run is in the ledger, or its record says why not. On a busy machine one may wait for a second.
    assert_eq!(book.last + joined.unnumbered.len() as u64, 2000);
    let late = late.into_inner();
    assert_eq!(late, (joined.unnumbered.len() + joined.no_end.len()) as u64);
    assert!(late < 1000, "{late} of 4000 waited for the lock for a second");
}

#[test]
fn l17_a_copy_of_the_state_directory_has_a_ledger_of_its_own() {
    let bench = Bench::new();
    bench.run();
    let copy = Bench::new();
    let from = bench.dir.join("exeat");
    for entry in fs::read_dir(&from).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), copy.dir.join("exeat").join(entry.file_name())).unwrap();
        }
    }
    assert_eq!(bench.ledger().name(), bench.ledger().name());
    assert_ne!(bench.ledger().name(), copy.ledger().name());
    assert_eq!(copy.run().1, 1);
    // The ledger that was copied, and the copy's own.
    let books = copy.books();
    assert_eq!(books.iter().map(|book| (book.last, &book.faults[..])).collect::<Vec<_>>(), [(1, &[][..]); 2]);
    // A renamed directory keeps its ledger.
    let place = bench.dir.join("renamed");
    fs::create_dir(&place).unwrap();
    fs::rename(&from, place.join("exeat")).unwrap();
    let renamed = RecordDir::from_env(Some(place.as_os_str()), None).unwrap();
    let ledger = Ledger::find(&renamed, key(1), false).unwrap();
    assert_eq!(
        ledger.name().to_owned(),
        books.iter().find(|book| book.name != copy.ledger().name()).unwrap().name
    );
}

#[test]
fn l17_another_key_has_another_ledger() {
    let bench = Bench::new();
    let [ours, other] =
        [1, 2].map(|seed| Ledger::find(&bench.place, key(seed), false).unwrap().name().to_owned());
    assert_ne!(ours, other);
    assert_eq!(ours.split_once('-').unwrap().1, other.split_once('-').unwrap().1, "the machine is the same");
}

/// A person can check a line by hand.
#[test]
fn a_ledger_line_can_be_checked_by_hand() {
    let bench = Bench::new();
    let (run, _) = bench.run();
    let record = fs::read_to_string(bench.place.path_for(run)).unwrap();
    let (first, last) = (record.lines().next().unwrap(), record.lines().last().unwrap());
    let last: serde_json::Value = serde_json::from_str(last).unwrap();
    let lines = bench.lines();
    let [start, end] = &lines[..] else { panic!("{lines:?}") };
    let [start, end] = [start, end].map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    assert_eq!(
        (&start["schema"], &start["event"], &start["no"]),
        (&"egress-ledger/1".into(), &"start".into(), &1.into())
    );
    assert_eq!(start["first"], sha256_hex(format!("{first}\n").as_bytes()).as_str());
    assert_eq!((&end["event"], &end["cause"], &end["no"]), (&"end".into(), &"exit".into(), &1.into()));
    assert_eq!((&end["n"], &end["root"]), (&last["n"], &last["root"]));
    assert_eq!(end["prev"], sha256_hex(format!("{}\n", lines[0]).as_bytes()).as_str());
    let _: BTreeSet<RunId> = bench.place.runs_without_record().unwrap();
}

/// Pruning after a move to another machine, or with another key, is found.
#[test]
fn l17_looks_up_pruned_records_in_every_ledger() {
    let bench = Bench::new();
    let (run, _) = bench.run();
    fs::remove_file(bench.place.path_for(run)).unwrap();
    fs::remove_file(policy_path(&bench.place.path_for(run))).unwrap();
    let later = Ledger::find(&bench.place, key(2), false).unwrap();
    later.prune(run, Some(1), Some("cleo")).unwrap();
    let keys = [1, 2].map(|seed| key(seed).verifying().clone());
    let joined = bench.join(&Book::all(&bench.place, &keys, &[]).unwrap());
    nothing(&joined);
    assert_eq!((joined.pruned, joined.last_pruned.unwrap().1.as_str()), (1, "cleo"));
    // A ledger whose key is not known says nothing about another one.
    let faults = bench.join(&Book::all(&bench.place, &keys[..1], &[]).unwrap()).faults;
    assert!(matches!(&faults[..], [Mismatch::Removed { no: Some(1), .. }]), "{faults:?}");
}

#[test]
fn l17_prune_may_be_stopped_between_a_policy_and_its_record() {
    let bench = Bench::new();
    let (run, _) = bench.run();
    bench.ledger().prune(run, Some(1), None).unwrap();
    fs::remove_file(policy_path(&bench.place.path_for(run))).unwrap();
    nothing(&bench.joined().1);
}

#[test]
fn l17_a_policy_that_was_read_again_and_removed_is_found() {
    let bench = Bench::new();
    let (log, begun) = bench.start();
    let LedgerEntry::Numbered(numbered) = begun else { panic!("{begun:?}") };
    let (record, digest) = (bench.place.path_for(log.run()), sha256_hex(b"{ }"));
    let stored = store_reloaded(&record, &digest, "{ }", false).unwrap();
    let mut note = RunNote::new(What::PolicyReload);
    note.under = Some(std::sync::Arc::new(Under { policy_sha256: digest.clone(), mode: Mode::Enforce }));
    log.write(Event::Note(note)).unwrap();
    let end = RunEnd {
        cause: Cause::Stopped,
        exit: Some(0),
        limit: None,
        signal: None,
        stopped_by: None,
        connections: 0,
        dropped: 0,
    };
    log.write(Event::RunEnd(end)).unwrap();
    numbered.end(&log, Cause::Stopped).unwrap();
    nothing(&bench.joined().1);
    fs::remove_file(stored).unwrap();
    let removed = Mismatch::PolicyRemoved { no: Some(1), run: log.run(), sha256: digest };
    assert_eq!(bench.joined().1.faults, [removed]);
}

/// A new ledger records the heads of older ones, so that a cut in an older one is found.
#[test]
fn l17_a_ledger_that_is_not_used_any_more_cannot_be_cut() {
    let bench = Bench::new();
    let runs: Vec<RunId> = (0..3).map(|_| bench.run().0).collect();
    let (old, lines) = (bench.path(), bench.lines());
    let dir = bench.dir.join("exeat");
    let host = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("host-");
    let host = fs::read_dir(&dir).unwrap().map(Result::unwrap).find(host).unwrap().path();
    fs::remove_file(host).unwrap();
    let (log, begun) = bench.start();
    let LedgerEntry::Numbered(numbered) = begun else { panic!("{begun:?}") };
    assert!(
        numbered.oddity.as_deref().unwrap().starts_with("a ledger of this key begins here"),
        "{numbered:?}"
    );
    numbered.end(&log, Cause::Exit).unwrap();
    let told =
        |books: &[Book]| (bench.join(books).faults, books.iter().map(|it| it.beside.len()).sum::<usize>());
    assert_eq!(told(&bench.books()), (vec![], 1));
    // Remove the last run with all its traces.
    fs::write(&old, lines[..4].iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    fs::remove_file(bench.place.path_for(runs[2])).unwrap();
    fs::remove_file(policy_path(&bench.place.path_for(runs[2]))).unwrap();
    let books = bench.books();
    let cut = || {
        let by = bench.ledger().name().to_owned();
        let old = old.file_name().unwrap().to_str().unwrap();
        let ledger = old.strip_prefix("ledger-").unwrap().strip_suffix(".jsonl").unwrap().to_owned();
        vec![Mismatch::Cut { ledger, by }]
    };
    assert_eq!(told(&books), (cut(), 1));
    // The fault is not a run that began meanwhile.
    let mut joined = bench.join(&books);
    assert!(joined.may_be_outdated());
    joined.check_again(&books, &bench.books());
    assert_eq!(joined.faults, cut());
    // Remove the whole ledger.
    for run in runs.iter().take(2) {
        fs::remove_file(bench.place.path_for(*run)).unwrap();
        fs::remove_file(policy_path(&bench.place.path_for(*run))).unwrap();
    }
    fs::remove_file(&old).unwrap();
    assert_eq!(told(&bench.books()), (cut(), 1));
}

#[test]
fn l17_two_ledgers_in_use_see_each_other_every_hundred_lines() {
    let bench = Bench::new();
    let other = Ledger::find(&bench.place, key(2), false).unwrap();
    for _ in 0..101 {
        other.prune(RunId::new(), None, None).unwrap();
        bench.ledger().prune(RunId::new(), None, None).unwrap();
    }
    let keys = [1, 2].map(|seed| key(seed).verifying().clone());
    let read = || Book::all(&bench.place, &keys, &[]).unwrap();
    nothing(&bench.join(&read()));
    let lines = bench.lines();
    bench.write_lines(&lines[..99]);
    // Key 2's first hundred lines end earlier; its next line belongs to the second hundred.
    assert!(matches!(&bench.join(&read()).faults[..], [Mismatch::Cut { .. }]));
}

/// A wrong file in place of a ledger or an id is reported or skipped, and does not stop a run.
#[test]
fn l17_reports_anything_but_a_file_in_place_of_a_ledger() {
    use std::os::unix::fs::symlink;
    type Spoil = fn(&Path);
    let spoil: [(&str, Spoil); 5] = [
        ("a directory", |path| fs::create_dir(path).unwrap()),
        ("a pipe", |path| {
            nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR).unwrap()
        }),
        ("a link to what has no end", |path| symlink("/dev/zero", path).unwrap()),
        ("a link to nothing", |path| symlink("nowhere", path).unwrap()),
        ("a file without an end", |path| File::create(path).unwrap().set_len(1 << 40).unwrap()),
    ];
    for (what, spoil) in spoil {
        let bench = Bench::new();
        bench.run();
        let name = bench.ledger().name().to_owned();
        let host = bench.dir.join("exeat").join(format!("host-{}", "0".repeat(16)));
        let key = name.split('-').next().unwrap();
        let beside = bench.dir.join("exeat").join(format!("ledger-{key}-{}.jsonl", "0".repeat(16)));
        if what != "a file without an end" {
            spoil(&beside);
            let books = bench.books();
            assert!(matches!(&books[0].faults[..], [BookFault::Unreadable { .. }]), "{what}: {books:#?}");
            assert_eq!((&books[1].faults[..], books[1].last), (&[][..], 1), "{what}");
            // The next ledger begins, and looks at its neighbors.
            Ledger::find(&bench.place, crate::testing::key(2), false)
                .unwrap()
                .prune(RunId::new(), None, None)
                .unwrap();
        }
        spoil(&host);
        let mut ids = fs::read_dir(bench.dir.join("exeat")).unwrap().map(|it| it.unwrap().path());
        let own = ids.find(|path| *path != host && path.to_string_lossy().contains("/host-")).unwrap();
        fs::remove_file(&own).unwrap();
        fs::rename(&host, &own).unwrap();
        let since = Instant::now();
        let found = Ledger::find(&bench.place, crate::testing::key(1), false);
        assert!(found.is_err() && since.elapsed() < DEADLINE, "{what}: {found:?}");
    }
    // A copy under another name does not count as a ledger.
    let bench = Bench::new();
    bench.run();
    for name in ["ledger-backup.jsonl", "ledger-1a2b3c4d-old.jsonl"] {
        fs::copy(bench.path(), bench.dir.join("exeat").join(name)).unwrap();
    }
    nothing(&bench.joined().1);
}
