use super::*;
use crate::testing::{Dir, key};

/// A part of a line that a full disk took is removed again.
#[test]
fn l17_a_line_that_could_not_be_written_leaves_no_part() {
    let dir = Dir::new();
    let place = RecordDir::from_env(Some(dir.path().as_os_str()), None).unwrap();
    place.prepare().unwrap();
    let ledger = Ledger::find(&place, key(1), false).unwrap();
    ledger.prune(RunId::new(), None, None).unwrap();
    let before = fs::read(&ledger.path).unwrap();
    let mut locked = ledger.lock().unwrap();
    // A line that is too long is the only failure that a trial can cause without a separate disk.
    let long = "x".repeat(5000);
    locked.prev = long;
    let error = locked.append(0, &LedgerLine::new(START, RunId::new(), Some(2))).unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
    assert_eq!(fs::read(&ledger.path).unwrap(), before);
    ledger.prune(RunId::new(), None, None).unwrap();
}
