//! Moves bytes in both directions without parsing them.
//!
//! An idle tunnel holds no buffer. A direction waits until its socket is readable, borrows a buffer from the pool,
//! moves one read, and returns the buffer. A slow reader holds at most one buffer per direction: while a write
//! waits, the other side is not read.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, ready};
use std::time::Duration;

use exeat_record::CloseCause;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{tcp, unix};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::limits::{self, ProxyLimits};
use crate::pool::Pool;
use crate::progress::Progress;
use crate::stream::Stream;
use crate::upload::Budget;

/// The bytes that a connection has moved. They are exact at any moment, however the connection ends.
#[derive(Debug, Default)]
pub(crate) struct Moved<'a> {
    /// Bytes that the upstream socket accepted.
    up: AtomicU64,
    /// Bytes that the client socket accepted.
    down: AtomicU64,
    /// The upload budget.
    pub(crate) budget: Option<Budget<'a>>,
    /// Records progress while the connection is open.
    pub(crate) progress: Option<Progress<'a>>,
}

impl Moved<'_> {
    pub(crate) fn up(&self) -> u64 {
        self.up.load(Ordering::Relaxed)
    }

    pub(crate) fn down(&self) -> u64 {
        self.down.load(Ordering::Relaxed)
    }

    pub(crate) fn add_up(&self, bytes: u64) {
        let up = self.up.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.note_size(up, self.down());
    }

    /// Counts bytes and returns the new total.
    pub(crate) fn add_down(&self, bytes: u64) -> u64 {
        let down = self.down.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.note_size(self.up(), down);
        down
    }

    /// Removes bytes that were counted before they were forwarded.
    pub(crate) fn take_back_down(&self, bytes: u64) {
        self.down.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn note_size(&self, up: u64, down: u64) {
        if let Some(progress) = &self.progress {
            progress.note_size(up, down);
        }
    }

    /// Completes when [`note_time`](Self::note_time) is due.
    pub(crate) async fn time_due(&self) {
        match &self.progress {
            Some(progress) => sleep_until(progress.time_due()).await,
            None => std::future::pending().await,
        }
    }

    /// Records progress if a minute has passed and enough bytes moved since the last line.
    pub(crate) fn note_time(&self) {
        if let Some(progress) = &self.progress {
            progress.note_time(self.up(), self.down());
        }
    }
}

/// The end of a tunnel.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) end: CloseCause,
    pub(crate) error: Option<String>,
}

/// Bytes that were read before the tunnel began, and are sent first.
#[derive(Debug, Default)]
pub(crate) struct Early {
    pub(crate) up: Vec<u8>,
    pub(crate) down: Vec<u8>,
}

/// The record's text for a tunnel that reached its total time.
pub(crate) const TOTAL_IS_OVER: &str = "the total time of a tunnel is over";

/// Moves the early bytes and then all others, until both sides finish, one breaks, or a limit is reached.
///
/// Once `stop` is cancelled, the client is considered dead. What it sent before still goes up, until its end of
/// stream or for `limits.drain`. Its answer is discarded.
///
/// Dropping the future closes both sides; the counts in `moved` stay exact.
pub(crate) async fn run(
    mut client: Stream,
    mut upstream: Stream,
    early: Early,
    moved: &Moved<'_>,
    pool: &Pool,
    limits: &ProxyLimits,
    stop: &CancellationToken,
) -> Ended {
    let ended = {
        let clock = Clock::start();
        // The side that finished first.
        let first_end = OnceLock::new();
        // Whether the upstream has all that the client sent, including its end.
        let all_sent = AtomicBool::new(false);
        let (mut client_read, mut client_write) = split(&mut client);
        let (mut upstream_read, mut upstream_write) = split(&mut upstream);
        let up = async {
            let mut count = Count { moved, direction: Direction::Up, clock: &clock };
            count.write_all(&mut upstream_write, &early.up).await.map_err(Broken::upstream)?;
            drop(early.up);
            pump(&mut client_read, &mut upstream_write, pool, count)
                .await
                .map_err(|(side, error)| side.into_broken(Broken::client, Broken::upstream, error))?;
            let _ = first_end.set(CloseCause::Client);
            // If the other side has left, its own direction reports that.
            let _ = upstream_write.shutdown().await;
            all_sent.store(true, Ordering::Relaxed);
            Ok(())
        };
        let down = async {
            let mut count = Count { moved, direction: Direction::Down, clock: &clock };
            let answer = async {
                let written = count.write_all(&mut client_write, &early.down).await;
                written.map_err(|error| (Side::Writing, error))?;
                drop(early.down);
                pump(&mut upstream_read, &mut client_write, pool, count).await
            };
            let answered = tokio::select! {
                biased;
                () = stop.cancelled() => None,
                moved = answer => Some(moved),
            };
            let Some(moved) = answered else {
                // Nobody is left to read the answer. Writing it would make the dead client's kernel reset the
                // connection, and discard what is still on its way to us.
                return discard(&mut upstream_read, pool).await.map_err(Broken::upstream);
            };
            moved.map_err(|(side, error)| side.into_broken(Broken::upstream, Broken::client, error))?;
            let _ = first_end.set(CloseCause::Upstream);
            let _ = client_write.shutdown().await;
            Ok(())
        };
        let who_ended = || first_end.get().copied().unwrap_or(CloseCause::Client);
        let stopped = async {
            stop.cancelled().await;
            // No waker is needed: `up` runs in this task and is polled earlier in the same round.
            let sent = poll_fn(|_| match all_sent.load(Ordering::Relaxed) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            });
            timeout(limits.drain, sent).await
        };
        tokio::select! {
            biased;
            done = async { tokio::try_join!(up, down) } => match done {
                Ok(((), ())) => TunnelEnd::Done(who_ended()),
                Err(broken) => TunnelEnd::Broken(broken),
            },
            sent = stopped => TunnelEnd::Done(if sent.is_ok() { who_ended() } else { CloseCause::Killed }),
            // A peer that has disappeared looks like one that has only finished its direction.
            () = clock.idle_for(limits.half_closed.min(limits.progress), || {
                moved.note_time();
                match first_end.get() {
                    None => limits.idle,
                    Some(_) => limits.half_closed.min(limits.idle),
                }
            }) => TunnelEnd::Done(CloseCause::Idle),
            () = tokio::time::sleep(limits.total) => TunnelEnd::Total,
        }
    };
    match ended {
        TunnelEnd::Done(end) => Ended { end, error: None },
        TunnelEnd::Total => Ended { end: CloseCause::Budget, error: Some(TOTAL_IS_OVER.into()) },
        TunnelEnd::Broken(Broken { who, error }) => {
            // A reset is forwarded as a reset, so that a cut stream does not look like a finished one.
            client.will_reset();
            upstream.will_reset();
            Ended { end: CloseCause::Error, error: Some(format!("{who}: {error}")) }
        }
    }
}

enum TunnelEnd {
    Done(CloseCause),
    Total,
    Broken(Broken),
}

#[derive(Debug)]
struct Broken {
    who: &'static str,
    error: io::Error,
}

impl Broken {
    fn client(error: io::Error) -> Self {
        Self { who: "client", error }
    }

    fn upstream(error: io::Error) -> Self {
        Self { who: "upstream", error }
    }
}

/// The socket of a direction that failed.
enum Side {
    Reading,
    Writing,
}

impl Side {
    fn into_broken(
        self,
        reading: fn(io::Error) -> Broken,
        writing: fn(io::Error) -> Broken,
        error: io::Error,
    ) -> Broken {
        match self {
            Self::Reading => reading(error),
            Self::Writing => writing(error),
        }
    }
}

/// Writes what `upstream` accepts without waiting, within the upload budget, and counts it.
pub(crate) fn send_now(upstream: &Stream, bytes: &[u8], moved: &Moved<'_>) -> io::Result<usize> {
    let taken = match &moved.budget {
        None => upstream.try_write(bytes)?,
        Some(budget) => {
            let write = |part: usize| match upstream.try_write(bytes.get(..part).unwrap_or_default()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
                done => Poll::Ready(done),
            };
            match budget.spend(bytes.len(), write) {
                Poll::Ready(done) => done?,
                Poll::Pending => return Err(io::ErrorKind::WouldBlock.into()),
            }
        }
    };
    moved.add_up(taken as u64);
    Ok(taken)
}

/// Records when bytes last moved, in milliseconds since the tunnel began.
pub(crate) struct Clock {
    start: Instant,
    last: AtomicU64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), last: AtomicU64::new(0) }
    }

    pub(crate) fn tick(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    /// Completes once nothing has moved for `limit`, which is evaluated again every `step`. It uses one timer,
    /// which is set again only when it fires.
    pub(crate) async fn idle_for(&self, step: Duration, limit: impl Fn() -> Duration) {
        loop {
            let due = self.start + Duration::from_millis(self.last.load(Ordering::Relaxed)) + limit();
            let now = Instant::now();
            if now >= due {
                return;
            }
            sleep_until(due.min(now + step)).await;
        }
    }
}

/// Counts the bytes of one direction.
struct Count<'a> {
    moved: &'a Moved<'a>,
    direction: Direction,
    clock: &'a Clock,
}

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

impl Count<'_> {
    /// Writes all bytes, and counts each part when it is accepted.
    async fn write_all(&mut self, to: &mut WriteHalf<'_>, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let taken = match (self.direction, &self.moved.budget) {
                (Direction::Down, _) | (_, None) => to.write(bytes).await?,
                (Direction::Up, Some(budget)) => {
                    let mut write = |cx: &mut std::task::Context<'_>, part: usize| {
                        Pin::new(&mut *to).poll_write(cx, bytes.get(..part).unwrap_or_default())
                    };
                    poll_fn(|cx| budget.spend(bytes.len(), |part| write(cx, part))).await?
                }
            };
            if taken == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            match self.direction {
                Direction::Up => self.moved.add_up(taken as u64),
                Direction::Down => drop(self.moved.add_down(taken as u64)),
            }
            self.clock.tick();
            bytes = bytes.get(taken..).unwrap_or_default();
        }
        Ok(())
    }
}

/// Moves one direction until its end.
async fn pump(
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    pool: &Pool,
    mut count: Count<'_>,
) -> Result<(), (Side, io::Error)> {
    'idle: loop {
        from.readable().await.map_err(|error| (Side::Reading, error))?;
        let mut loan = pool.lend();
        for _ in 0..limits::BURST {
            let Some(read) = from.read_now(&mut loan.buffer).await.map_err(|error| (Side::Reading, error))?
            else {
                // The socket has no more bytes for now, or this task has used up its share and yields here.
                drop(loan);
                tokio::task::consume_budget().await;
                continue 'idle;
            };
            if read == 0 {
                return Ok(());
            }
            let bytes = loan.buffer.get(..read).unwrap_or_default();
            count.write_all(to, bytes).await.map_err(|error| (Side::Writing, error))?;
            if read < limits::BUFFER {
                break; // the socket is empty, and reading again would cost a system call
            }
        }
    }
}

/// Reads one direction until its end and discards everything. Unread bytes would turn our close into a reset, and a
/// reset discards what the kernel has still to send.
async fn discard(from: &mut ReadHalf<'_>, pool: &Pool) -> io::Result<()> {
    loop {
        from.readable().await?;
        if from.read_now(&mut pool.lend().buffer).await? == Some(0) {
            return Ok(());
        }
        tokio::task::consume_budget().await;
    }
}

enum ReadHalf<'a> {
    Tcp(tcp::ReadHalf<'a>),
    Unix(unix::ReadHalf<'a>),
}

enum WriteHalf<'a> {
    Tcp(tcp::WriteHalf<'a>),
    Unix(unix::WriteHalf<'a>),
}

fn split(stream: &mut Stream) -> (ReadHalf<'_>, WriteHalf<'_>) {
    match stream {
        Stream::Tcp(stream) => {
            let (read, write) = stream.split();
            (ReadHalf::Tcp(read), WriteHalf::Tcp(write))
        }
        Stream::Unix(stream) => {
            let (read, write) = stream.split();
            (ReadHalf::Unix(read), WriteHalf::Unix(write))
        }
    }
}

impl ReadHalf<'_> {
    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(half) => half.readable().await,
            Self::Unix(half) => half.readable().await,
        }
    }

    /// Reads once without waiting; `None` if there is nothing. It uses `poll_read` instead of `try_read`, because
    /// after a short read the former knows that the socket is empty and saves a system call.
    async fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        poll_fn(|cx| {
            let polled = match self {
                Self::Tcp(half) => Pin::new(half).poll_read(cx, &mut buffer),
                Self::Unix(half) => Pin::new(half).poll_read(cx, &mut buffer),
            };
            Poll::Ready(match polled {
                Poll::Ready(Ok(())) => Ok(Some(buffer.filled().len())),
                Poll::Ready(Err(error)) => Err(error),
                Poll::Pending => Ok(None),
            })
        })
        .await
    }
}

impl AsyncWrite for WriteHalf<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_write(cx, bytes),
            Self::Unix(half) => Pin::new(half).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // sockets have nothing to flush
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        let done = match self.get_mut() {
            Self::Tcp(half) => ready!(Pin::new(half).poll_shutdown(cx)),
            Self::Unix(half) => ready!(Pin::new(half).poll_shutdown(cx)),
        };
        Poll::Ready(done)
    }
}

#[cfg(test)]
mod tests;
