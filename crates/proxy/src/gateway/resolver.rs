//! Runs the name server: its sockets and its answers. It looks nothing up elsewhere: a name has the addresses that
//! this run assigns, or none.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use exeat_policy::{HostName, Port};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::gateway::attempts::Attempts;
use crate::gateway::dns::{self, Answer, Code, Message, Pair, Question, QuestionType};
use crate::gateway::names::Names;
use crate::limits;
use crate::server::{Backoff, concerns_one_connection, note_panic};
use exeat_record::today;

/// The name server of the gateway.
pub(crate) struct Server {
    udp: UdpSocket,
    tcp: TcpListener,
    names: Arc<Names>,
    attempts: Arc<Attempts>,
    /// A permit for each question that waits for listeners.
    waiting: Arc<Semaphore>,
    /// The name of this machine, which is also that of the sandbox. Programs look it up and expect a loopback
    /// address; git does so for a committer's address.
    own: Option<HostName>,
}

/// The reaction to a message.
enum Step {
    Answer(Vec<u8>),
    /// Open the listeners of the name, then answer.
    Open(WaitingQuestion),
    /// Send no answer.
    Drop,
}

/// A question that waits for listeners.
struct WaitingQuestion {
    question: Question,
    name: HostName,
    ports: Vec<Port>,
    room: OwnedSemaphorePermit,
}

impl Server {
    /// Takes over the sockets. Call it inside a runtime.
    pub(crate) fn new(
        udp: std::net::UdpSocket,
        tcp: std::net::TcpListener,
        names: Arc<Names>,
        attempts: Arc<Attempts>,
    ) -> io::Result<Self> {
        udp.set_nonblocking(true)?;
        tcp.set_nonblocking(true)?;
        Ok(Self {
            udp: UdpSocket::from_std(udp)?,
            tcp: TcpListener::from_std(tcp)?,
            names,
            attempts,
            waiting: Arc::new(Semaphore::new(limits::LISTENING)),
            own: read_own_name(),
        })
    }

    /// Serves until `stop` is cancelled.
    ///
    /// Dropping the future ends every connection at once, and loses nothing else.
    pub(crate) async fn serve(self, cx: Arc<Context>, stop: CancellationToken) {
        let server = Arc::new(self);
        let mut tasks = JoinSet::new();
        let datagrams = |tasks: &mut JoinSet<()>| {
            let (server, cx) = (Arc::clone(&server), Arc::clone(&cx));
            tasks.spawn(async move { server.serve_datagrams(&cx).await })
        };
        let streams = |tasks: &mut JoinSet<()>| {
            let (server, cx) = (Arc::clone(&server), Arc::clone(&cx));
            tasks.spawn(async move { server.accept_streams(&cx).await })
        };
        let mut by_datagram = datagrams(&mut tasks).id();
        streams(&mut tasks);
        // Neither task ends by itself. One that panicked is started again, so that a client that can cause a panic
        // does not take the server from others.
        while let Some(Some(ended)) = stop.run_until_cancelled(tasks.join_next_with_id()).await {
            let id = ended.as_ref().map_or_else(tokio::task::JoinError::id, |(id, ())| *id);
            note_panic(ended.map(drop));
            if id == by_datagram {
                by_datagram = datagrams(&mut tasks).id();
            } else {
                streams(&mut tasks);
            }
        }
        tasks.shutdown().await;
    }

    /// Receives and answers datagrams.
    async fn serve_datagrams(self: &Arc<Self>, cx: &Context) {
        // One byte more than a question may have, to detect longer ones.
        let mut buffer = [0; limits::QUESTION_BYTES + 1];
        let mut waiting = JoinSet::new();
        let mut backoff = Backoff::default();
        let mut answered = 0;
        loop {
            let received = tokio::select! {
                biased;
                Some(ended) = waiting.join_next() => {
                    note_panic(ended);
                    continue;
                }
                received = self.udp.recv_from(&mut buffer) => received,
            };
            let (len, from) = match received {
                Ok(received) => received,
                Err(error) => {
                    tracing::debug!(%error, "the name server cannot receive");
                    sleep(backoff.next()).await;
                    continue;
                }
            };
            backoff = Backoff::default();
            // An answer to an address outside would be another attempt to leave. Honest clients use the loopback.
            if !from.ip().is_loopback() {
                continue;
            }
            match self.plan_step(buffer.get(..len).unwrap_or_default(), cx) {
                Step::Answer(answer) => self.send(&answer, from),
                Step::Open(opening) => {
                    let server = Arc::clone(self);
                    waiting.spawn(async move {
                        let answer = server.open(opening).await;
                        server.send(&answer, from);
                    });
                }
                Step::Drop => {}
            }
            // A client that asks without a pause gets answers in bursts, and other tasks run between them.
            answered = (answered + 1) % limits::BURST;
            if answered == 0 {
                yield_now().await;
            }
        }
    }

    /// Sends a datagram. It is dropped if the socket has no room for it.
    fn send(&self, answer: &[u8], to: SocketAddr) {
        if let Err(error) = self.udp.try_send_to(answer, to) {
            tracing::debug!(%error, "an answer is lost");
        }
    }

    /// Accepts connections (RFC 7766), each in its own task.
    async fn accept_streams(self: &Arc<Self>, cx: &Arc<Context>) {
        let slots = Arc::new(Semaphore::new(limits::NAME_CONNECTIONS));
        let mut tasks = JoinSet::new();
        let mut backoff = Backoff::default();
        loop {
            // Further clients wait in the kernel's queue.
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            while let Some(ended) = tasks.try_join_next() {
                note_panic(ended);
            }
            match self.tcp.accept().await {
                Ok((client, _)) => {
                    backoff = Backoff::default();
                    let (server, cx) = (Arc::clone(self), Arc::clone(cx));
                    tasks.spawn(async move {
                        let ended = server.serve_stream(client, &cx).await;
                        tracing::trace!(?ended, "a connection to the name server");
                        drop(slot);
                    });
                }
                Err(error) if concerns_one_connection(&error) => {}
                Err(error) => {
                    tracing::debug!(%error, "accept failed");
                    sleep(backoff.next()).await;
                }
            }
        }
    }

    /// Serves one connection: questions with a length before each, answered in order.
    async fn serve_stream(&self, mut client: TcpStream, cx: &Context) -> io::Result<()> {
        // Without this, an answer waits until the previous one is acknowledged (Nagle).
        client.set_nodelay(true)?;
        let mut buffer = [0; limits::QUESTION_BYTES];
        loop {
            let message = timeout(limits::NAME_IDLE, receive(&mut client, &mut buffer)).await??;
            let Some(message) = message else { return Ok(()) };
            let answer = match self.plan_step(message, cx) {
                Step::Answer(answer) => answer,
                Step::Open(opening) => self.open(opening).await,
                Step::Drop => return Ok(()),
            };
            let mut framed = Vec::with_capacity(2 + answer.len());
            // INVARIANT: an answer has at most `limits::ANSWER_BYTES`.
            framed.extend(u16::try_from(answer.len()).unwrap_or_default().to_be_bytes());
            framed.extend(answer);
            timeout(limits::REPLY, client.write_all(&framed)).await??;
            // A client that sends many questions at once lets other tasks run between them.
            yield_now().await;
        }
    }

    /// Decides what to do with a message, without waiting.
    fn plan_step(&self, message: &[u8], cx: &Context) -> Step {
        let question = match dns::parse(message) {
            Message::Question(question) => question,
            Message::Refused(answer) => return Step::Answer(answer),
            Message::Mute => return Step::Drop,
        };
        match self.judge(&question, cx) {
            Resolution::Say(answer) => Step::Answer(question.answer(answer)),
            Resolution::Named(name) => Step::Answer(question.answer(Answer::Name(&name))),
            Resolution::Open(name, ports) => match Arc::clone(&self.waiting).try_acquire_owned() {
                Ok(room) => Step::Open(WaitingQuestion { question, name, ports, room }),
                Err(_) => Step::Answer(question.answer(Answer::Code(Code::Failed))),
            },
        }
    }

    fn judge(&self, question: &Question, cx: &Context) -> Resolution {
        const UNKNOWN: Resolution = Resolution::Say(Answer::Code(Code::NoSuchName));
        const NOTHING: Resolution = Resolution::Say(Answer::Nothing);
        if let Some(ip) = question.reverse_address() {
            return self.name_of(ip).map_or(NOTHING, Resolution::Named);
        }
        let address = matches!(question.kind(), QuestionType::V4 | QuestionType::V6 | QuestionType::Both);
        let Some(name) = question.host() else {
            let service =
                || question.host_below().is_some_and(|host| host.is_local() || is_granted(&host, cx));
            if question.is_root() || !address && service() {
                return NOTHING;
            }
            self.attempts.count_malformed_name(&question.text());
            return UNKNOWN;
        };
        if name.is_local() {
            return Resolution::Say(Answer::At(LOOPBACK));
        }
        let ports = served_ports(&name, cx);
        if ports.is_empty() {
            if self.own.as_ref() == Some(&name) {
                return Resolution::Say(Answer::At(LOOPBACK));
            }
            self.attempts.count_denied_name(&name);
            return UNKNOWN;
        }
        if !address {
            return NOTHING;
        }
        match self.names.addresses_of(&name) {
            Some(pair) => Resolution::Say(Answer::At(pair)),
            None => Resolution::Open(name, ports),
        }
    }

    /// Answers a question that waits for listeners.
    async fn open(&self, opening: WaitingQuestion) -> Vec<u8> {
        let WaitingQuestion { question, name, ports, room } = opening;
        match self.names.open(&name, ports, room).await {
            Ok(pair) => question.answer(Answer::At(pair)),
            Err(why) => {
                tracing::debug!(%name, %why, "not served");
                self.attempts.count_unserved(&name, &why);
                question.answer(Answer::Code(Code::Failed))
            }
        }
    }

    /// Returns the name of an address. Only loopback and assigned synthetic addresses have names here.
    fn name_of(&self, ip: IpAddr) -> Option<HostName> {
        if ip == LOOPBACK.v4 || ip == LOOPBACK.v6 {
            return LOCALHOST.parse().ok();
        }
        self.names.name_at(ip)
    }
}

/// The answer to a question.
enum Resolution {
    Say(Answer<'static>),
    /// An answer with the name of an address.
    Named(HostName),
    /// An answer with the addresses of this name, once its listeners on these ports are open.
    Open(HostName, Vec<Port>),
}

/// Reads one message after its length. Returns `None` if the client sends no more messages, or one that is too long.
async fn receive<'a>(client: &mut TcpStream, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
    let Ok(len) = client.read_u16().await else { return Ok(None) };
    let Some(message) = buffer.get_mut(..usize::from(len)) else { return Ok(None) };
    client.read_exact(message).await?;
    Ok(Some(message))
}

/// The name of the sandbox itself (RFC 6761 section 6.3). No policy applies to it.
const LOCALHOST: &str = "localhost";

const LOOPBACK: Pair = Pair { v4: Ipv4Addr::LOCALHOST, v6: Ipv6Addr::LOCALHOST };

/// Reads the name of this machine, if it is a host name (proc_sys_kernel(5)).
fn read_own_name() -> Option<HostName> {
    std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?.trim().parse().ok()
}

fn is_granted(name: &HostName, cx: &Context) -> bool {
    !served_ports(name, cx).is_empty()
}

/// Returns the ports on which the current policy serves a name.
fn served_ports(name: &HostName, cx: &Context) -> Vec<Port> {
    cx.ruling().policy.served_ports(name, today())
}

#[cfg(test)]
pub(crate) mod tests;
