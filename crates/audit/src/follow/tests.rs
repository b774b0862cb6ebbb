use std::cell::{Cell, RefCell};
use std::rc::Rc;

use exeat_record::{Event, Log, Sink};
use nix::fcntl::{Flock, FlockArg};

use super::*;
use crate::query::{Flaw, LineKind};
use crate::testing::{Dir, allow, close, deny, end, header, key, log};

/// Returns an empty file that counts as being written until it is dropped.
fn writer(path: &Path) -> Flock<File> {
    Flock::lock(File::create(path).unwrap(), FlockArg::LockExclusive).unwrap()
}

/// Each line can be read as soon as it is written, and the end of the run ends the reading.
#[test]
fn lines_come_as_they_are_written() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let log = log(&path);
    log.write(Event::Decision(deny(1, "a.example.com:443"))).unwrap();
    let events = RefCell::new(vec![
        end(),
        Event::Close(close(2, "b.example.com:443")),
        Event::Decision(allow(2, "b.example.com:443")),
    ]);
    let pauses = Rc::new(Cell::new(0));
    let counted = Rc::clone(&pauses);
    let pause = || {
        counted.set(counted.get() + 1);
        if let Some(event) = events.borrow_mut().pop() {
            log.write(event).unwrap();
        }
        Ok(())
    };
    let mut reader = follow(&path, pause).unwrap();
    let mut seen = Vec::new();
    for record in reader.by_ref() {
        seen.push((record.unwrap().event, pauses.get()));
    }
    assert_eq!(
        seen,
        [(LineKind::Decision, 0), (LineKind::Decision, 1), (LineKind::Close, 2), (LineKind::RunEnd, 3)]
    );
    assert_eq!(reader.flaws(), []);
}

/// A line that is written in two halves is one line.
#[test]
fn half_a_line_is_waited_for() {
    let dir = Dir::new();
    let (whole, path) = (dir.join("whole.jsonl"), dir.join("run.jsonl"));
    let log = log(&whole);
    for event in [Event::Decision(deny(1, "a.example.com:443")), end()] {
        log.write(event).unwrap();
    }
    let bytes = std::fs::read(whole).unwrap();
    let _writer = writer(&path);
    let mut at = 0;
    let pause = || {
        let next = (at + 100).min(bytes.len());
        std::fs::write(&path, &bytes[..next])?;
        at = next;
        Ok(())
    };
    let reader = follow(&path, pause).unwrap();
    assert_eq!(
        reader.map(|record| record.unwrap().event).collect::<Vec<_>>(),
        [LineKind::Decision, LineKind::RunEnd]
    );
}

/// The checkpoint after the end is shown even if it is written after the end was read.
#[test]
fn the_last_checkpoint_is_waited_for() {
    let dir = Dir::new();
    let (whole, path) = (dir.join("whole.jsonl"), dir.join("run.jsonl"));
    let log = Log::start_signed(Sink::create_file(&whole).unwrap(), header(), key(1)).unwrap();
    log.write(end()).unwrap();
    let bytes = std::fs::read(whole).unwrap();
    let first = bytes.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    let _writer = writer(&path);
    std::fs::write(&path, &bytes[..first]).unwrap();
    let pause = || std::fs::write(&path, &bytes);
    let mut reader = follow(&path, pause).unwrap();
    let kinds: Vec<_> = reader.by_ref().map(|record| record.unwrap().event).collect();
    assert_eq!(kinds, [LineKind::RunEnd, LineKind::Checkpoint]);
    assert_eq!(reader.flaws(), []);
}

#[test]
fn a_record_that_was_removed_is_over() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    log(&path).write(Event::Decision(deny(1, "a.example.com:443"))).unwrap();
    let pause = || match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    let mut reader = follow(&path, pause).unwrap();
    assert_eq!(reader.by_ref().count(), 1);
    assert!(matches!(reader.flaws(), [Flaw::Unfinished { .. }]));
}

#[test]
fn an_error_of_the_pause_ends_the_reading() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let log = log(&path);
    log.write(Event::Decision(deny(1, "a.example.com:443"))).unwrap();
    let mut reader = follow(&path, || Err(io::ErrorKind::BrokenPipe.into())).unwrap();
    assert!(reader.next().unwrap().is_ok());
    assert_eq!(reader.next().unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert!(reader.next().is_none());
    assert!(follow(dir.path(), || Ok(())).is_err(), "a directory");
    assert!(follow(&dir.join("none"), || Ok(())).is_err());
}

/// A run that was killed has no end, so the reader must not wait for one.
#[test]
fn a_writer_that_is_gone_ends_the_reading() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let log = RefCell::new(Some(log(&path)));
    log.borrow().as_ref().unwrap().write(Event::Decision(deny(1, "a.example.com:443"))).unwrap();
    let pause = || {
        // Write the last line between the check and the end.
        if let Some(log) = log.borrow_mut().take() {
            log.write(Event::Decision(deny(2, "b.example.com:443"))).unwrap();
        }
        Ok(())
    };
    let mut reader = follow(&path, pause).unwrap();
    assert_eq!(reader.by_ref().count(), 2);
    assert!(matches!(reader.flaws(), [Flaw::Unfinished { .. }]));
}
