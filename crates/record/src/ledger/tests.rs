use super::*;
use crate::testing::{Dir, key};

/// The part of a line that a full disk took is removed again.
#[test]
fn l17_what_could_not_be_written_whole_leaves_no_part() {
    let dir = Dir::new();
    let place = Place::from_env(Some(dir.path().as_os_str()), None).unwrap();
    place.prepare().unwrap();
    let ledger = Ledger::find(&place, key(1), false).unwrap();
    ledger.prune(RunId::new(), None, None).unwrap();
    let before = fs::read(&ledger.path).unwrap();
    let mut held = ledger.lock().unwrap();
    // A line that is too long is the one failure that a trial can have without a disk of its own.
    let long = "x".repeat(5000);
    held.prev = long;
    let error = held.append(0, &LedgerLine::new(START, RunId::new(), Some(2))).unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
    assert_eq!(fs::read(&ledger.path).unwrap(), before);
    ledger.prune(RunId::new(), None, None).unwrap();
}
