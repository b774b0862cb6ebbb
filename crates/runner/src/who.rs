//! Who inside made a connection: what the sandbox crate finds, given to the proxy crate for the record. Decides nothing, and what is not
//! found in time is left out.
//!
//! A stage that makes connections must not make this process work: all looks of a run share a [`Budget`].

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

/// Processor time of one look at most: some three thousand descriptors.
const LOOK: Duration = Duration::from_millis(2);

/// Connections that wait for a look; others are not looked for.
const WAITING: usize = 256;

/// What is asked of the thread that looks.
struct Ask {
    client: SocketAddr,
    server: SocketAddr,
    answer: oneshot::Sender<Process>,
}

/// Looks for processes on a thread that starts with the first question. Dropping this ends the thread.
pub(crate) struct Looking {
    state: Mutex<State>,
    budget: Arc<Budget>,
}

/// The thread that looks.
enum State {
    /// No question has come yet.
    Idle(Box<Finder>),
    /// The thread runs.
    Started(SyncSender<Ask>, JoinHandle<()>),
    /// There was no thread to be had, or it has ended.
    Gone,
}

impl Looking {
    /// Keeps the finder until the first question.
    pub(crate) fn new(finder: Finder) -> Self {
        let budget = Arc::new(Budget::new(Instant::now()));
        Self { state: Mutex::new(State::Idle(Box::new(finder))), budget }
    }

    fn start(&self, finder: Finder) -> State {
        let (asks, asked) = sync_channel(WAITING);
        let budget = Arc::clone(&self.budget);
        let thread = std::thread::Builder::new().name("who".into());
        match thread.spawn(move || look(finder, &asked, &budget)) {
            Ok(thread) => State::Started(asks, thread),
            Err(error) => {
                tracing::debug!(%error, "the record will not say who connects");
                State::Gone
            }
        }
    }
}

impl ProcessFinder for Looking {
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

impl Drop for Looking {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let State::Started(asks, thread) = mem::replace(state, State::Gone) {
            drop(asks);
            // It takes one look at most. A panic there has been reported.
            let _ = thread.join();
        }
    }
}

fn look(mut finder: Finder, asked: &Receiver<Ask>, budget: &Budget) {
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
        if let Some(exeat_sandbox::Process { pid, ppid, exe }) = found {
            // Nobody waits for it any more: the decision was written without.
            let _ = answer.send(Process { pid, ppid, exe: exe.map(Into::into) });
        }
    }
}

/// Processor time that looks may take: a twentieth of what passes, and so much at once.
#[derive(Debug)]
struct Budget(Mutex<Credit>);

#[derive(Debug)]
struct Credit {
    /// Nanoseconds; below zero where the last look took more than was left.
    left: i64,
    /// When it was filled up.
    at: Instant,
}

impl Budget {
    /// 50 ms: enough for what starts a thousand programs at once, of which each connects.
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

    /// R01: whatever a stage does, looks take a twentieth of one processor, and 50 ms.
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
        // What is not used does not add up.
        let later = now + Duration::from_secs(1000);
        let looks = std::iter::repeat(()).take_while(|()| {
            let some = budget.has_some(later);
            budget.spend(LOOK, later);
            some
        });
        assert_eq!(looks.count(), 25);
    }
}
