//! Finds the process inside that made a connection, for the record. No decision depends on it, and a process that is not found in time is
//! left out.
//!
//! Connections of a stage must not keep this process busy: all lookups of a run share a [`Budget`].

use std::mem;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use exeat_proxy::ProcessFinder;
use exeat_record::Process;
use exeat_sandbox::Finder;
use exeat_sandbox::who::cpu_time;
use tokio::sync::oneshot;

/// The maximal processor time of one lookup: some three thousand descriptors.
const LOOK: Duration = Duration::from_millis(2);

/// The number of connections that can wait for a lookup; others get none.
const WAITING: usize = 256;

/// A question to the thread.
struct Ask {
    client: SocketAddr,
    server: SocketAddr,
    answer: oneshot::Sender<Process>,
}

/// Looks up processes on a thread that starts with the first question. Dropping this ends the thread.
pub(crate) struct ProcessLookup {
    state: Mutex<State>,
    budget: Arc<Budget>,
}

/// The state of the thread.
enum State {
    /// No question has arrived yet.
    Idle(Box<Finder>),
    /// The thread runs.
    Started(SyncSender<Ask>, JoinHandle<()>),
    /// The thread could not start, or has ended.
    Gone,
}

impl ProcessLookup {
    /// Keeps the finder until the first question.
    pub(crate) fn new(finder: Finder) -> Self {
        let budget = Arc::new(Budget::new(Instant::now()));
        Self { state: Mutex::new(State::Idle(Box::new(finder))), budget }
    }

    fn start(&self, finder: Finder) -> State {
        let (asks, asked) = sync_channel(WAITING);
        let budget = Arc::clone(&self.budget);
        let thread = std::thread::Builder::new().name("who".into());
        match thread.spawn(move || look_up(finder, &asked, &budget)) {
            Ok(thread) => State::Started(asks, thread),
            Err(error) => {
                tracing::debug!(%error, "the record will not say who connects");
                State::Gone
            }
        }
    }
}

impl ProcessFinder for ProcessLookup {
    fn ask(&self, client: SocketAddr, server: SocketAddr) -> Option<oneshot::Receiver<Process>> {
        self.budget.has_some(Instant::now()).then_some(())?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = match mem::replace(&mut *state, State::Gone) {
            State::Idle(finder) => self.start(*finder),
            state => state,
        };
        let State::Started(asks, _) = &*state else { return None };
        let (answer, answered) = oneshot::channel();
        asks.try_send(Ask { client, server, answer }).ok()?;
        Some(answered)
    }
}

impl Drop for ProcessLookup {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let State::Started(asks, thread) = mem::replace(state, State::Gone) {
            drop(asks);
            // The thread takes one lookup at most. A panic there was already reported.
            let _ = thread.join();
        }
    }
}

fn look_up(mut finder: Finder, asked: &Receiver<Ask>, budget: &Budget) {
    if let Err(error) = finder.take_rights() {
        tracing::debug!(%error, "cannot look at the sandbox's processes");
        return;
    }
    for Ask { client, server, answer } in asked {
        if answer.is_closed() || !budget.has_some(Instant::now()) {
            continue;
        }
        let start = cpu_time();
        let found = finder.find(client, server, LOOK);
        let took = cpu_time().saturating_sub(start);
        budget.spend(took, Instant::now());
        tracing::trace!(?found, ?took, "looked for a process");
        if let Some(exeat_sandbox::SocketOwner { pid, ppid, exe }) = found {
            // The decision may already be written without an answer.
            let _ = answer.send(Process { pid, ppid, exe: exe.map(Into::into) });
        }
    }
}

/// The processor time of lookups: a twentieth of the elapsed time, with a bound for bursts.
#[derive(Debug)]
struct Budget(Mutex<Credit>);

#[derive(Debug)]
struct Credit {
    /// Nanoseconds; below zero if the last lookup took more than was left.
    left: i64,
    /// The time of the last refill.
    at: Instant,
}

impl Budget {
    /// 50 ms: enough for a thousand programs that start at once and connect.
    const FULL: i64 = 50_000_000;
    const PART: u128 = 20;

    fn new(now: Instant) -> Self {
        Self(Mutex::new(Credit { left: Self::FULL, at: now }))
    }

    fn has_some(&self, now: Instant) -> bool {
        self.change(Duration::ZERO, now) > 0
    }

    fn spend(&self, took: Duration, now: Instant) {
        self.change(took, now);
    }

    fn change(&self, took: Duration, now: Instant) -> i64 {
        let mut credit = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(credit.at).as_nanos() / Self::PART;
        credit.at = credit.at.max(now);
        let nanos = |number: u128| i64::try_from(number).unwrap_or(i64::MAX);
        let filled = credit.left.saturating_add(nanos(passed)).min(Self::FULL);
        credit.left = filled.saturating_sub(nanos(took.as_nanos()));
        credit.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R01: lookups take at most a twentieth of one processor plus 50 ms, whatever a stage does.
    #[test]
    fn r01_a_flood_of_looks_takes_a_twentieth_of_the_time() {
        let start = Instant::now();
        let budget = Budget::new(start);
        let (mut now, mut spent) = (start, Duration::ZERO);
        while now < start + Duration::from_secs(10) {
            now += Duration::from_micros(100);
            if budget.has_some(now) {
                budget.spend(LOOK, now);
                spent += LOOK;
            }
        }
        assert!(spent >= Duration::from_millis(545) && spent <= Duration::from_millis(555), "{spent:?}");
        // Unused time does not accumulate.
        let later = now + Duration::from_secs(1000);
        let looks = std::iter::repeat(()).take_while(|()| {
            let some = budget.has_some(later);
            budget.spend(LOOK, later);
            some
        });
        assert_eq!(looks.count(), 25);
    }
}
