use std::thread;

use exeat_policy::{Action, Day, Note, Origin, Policy, PolicyBuilder, Target};

use super::*;

fn policy(limit: u64) -> Policy {
    let mut builder = PolicyBuilder::new();
    let note = Note { max_upload: Size::new(limit), ..Note::default() };
    builder.add("a.test", Action::Allow, Origin::Flag { flag: "--allow".into() }, note).unwrap();
    builder.build()
}

fn budget(uploads: &Uploads, limit: u64) -> Budget<'_> {
    let target = Target::parse(b"a.test:443").unwrap();
    uploads.budget_for(policy(limit).admit(target, Day::from_unix(0)).unwrap().upload_budgets()).unwrap()
}

fn take(budget: &Budget<'_>, wanted: usize, takes: usize) -> Option<usize> {
    match budget.spend(wanted, |part| Poll::Ready(Ok(part.min(takes)))) {
        Poll::Ready(done) => done.ok(),
        Poll::Pending => panic!("it does not wait"),
    }
}

/// X09: the count is exact, does not include unwritten bytes, and survives reading the policy again.
#[test]
fn counts_written_bytes() {
    let uploads = Uploads::default();
    let first = budget(&uploads, 1000);
    assert_eq!(take(&first, 300, 200), Some(200));
    assert!(first.spend(300, |_| Poll::Pending).is_pending());
    assert!(first.spend(300, |_| Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))).is_ready());
    // The same rule, in a policy that was built anew.
    let second = budget(&uploads, 1000);
    assert_eq!(take(&second, 900, 900), Some(800));
    assert_eq!(take(&first, 0, 0), Some(0), "nothing to send is not too much");
    assert!(!first.ran_out() && !second.ran_out());
    assert_eq!(first.used_up().unwrap(), "the upload budget of 1kB is used up (grants a.test:443)");
    assert_eq!(take(&first, 1, 1), None);
    assert!(first.ran_out() && !second.ran_out());
    // A larger budget with the same key has only the difference left.
    let larger = budget(&uploads, 1500);
    assert_eq!(larger.used_up(), None);
    assert_eq!(take(&larger, 900, 900), Some(500));
}

/// X09: two budgets with one key count the same bytes, and count them once.
#[test]
fn one_key_counts_once() {
    let uploads = Uploads::default();
    let target = || Target::parse(b"a.test:443").unwrap();
    let [wide, narrow] = [1000, 600].map(|limit| policy(limit).admit(target(), Day::from_unix(0)).unwrap());
    let twice = uploads.budget_for(wide.upload_budgets().chain(narrow.upload_budgets())).unwrap();
    assert_eq!(take(&twice, 500, 500), Some(500));
    assert_eq!(take(&twice, 500, 500), Some(100), "to the smaller of the two");
    assert_eq!(take(&twice, 1, 1), None);
    assert_eq!(take(&budget(&uploads, 1000), 900, 900), Some(400), "and 600 bytes were counted");
}

/// X09: threads that write at the same time share a budget exactly, and are not cut while any of it is left.
#[test]
fn counts_exactly_with_many_threads() {
    const LIMIT: u64 = 100_000;
    let uploads = Uploads::default();
    let sent: u64 = thread::scope(|scope| {
        let all: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let budget = budget(&uploads, LIMIT);
                    let mut sent = 0;
                    // The bound only keeps a failing test from running forever.
                    for _ in 0..LIMIT {
                        let Some(taken) = take(&budget, 700, 7) else { break };
                        sent += taken as u64;
                    }
                    sent
                })
            })
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!(sent, LIMIT);
}
