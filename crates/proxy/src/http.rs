//! Forwards plain HTTP: one request, one decision, one connection to the origin. hyper frames both sides, and the
//! message is built anew between them, so that nothing that the client wrote about framing, hops or proxies is
//! forwarded. By then `head.rs` has checked the head, and the policy the target.
//!
//! The connection closes after one exchange, so bytes after a request are never read as another one.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Poller, Poll, ready};

use exeat_policy::Target;
use exeat_record::CloseCause;
use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_KEY, TRANSFER_ENCODING, UPGRADE, VIA,
};
use hyper::http::uri::PathAndQuery;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri, Version, client, server};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::head::Fault;
use crate::limits;
use crate::record::Record;
use crate::reply::{Failure, Refusal, refuse};
use crate::stream::{PrefixedIo, Stream};
use crate::tunnel::{self, Clock, Early, Moved};
use crate::upload::Budget;

/// Fields that belong to one hop (RFC 9110 section 7.6.1), and fields that a client addresses to a proxy.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("te"),
    HeaderName::from_static("trailer"),
    HeaderName::from_static("http2-settings"),
    // exeat answers this field itself: the client gets `100 Continue` when the connection to the origin is open.
    HeaderName::from_static("expect"),
];

/// Fields that `Connection` cannot remove, because the next server frames or routes the message by them (P14).
const KEPT: [HeaderName; 2] = [HOST, CONTENT_LENGTH];

/// The value of `Via` in a forwarded message (RFC 9110 section 7.6.3).
const VIA_EXEAT: HeaderValue = HeaderValue::from_static("1.1 exeat");

/// A request that was granted, and the connection to forward it on.
pub(crate) struct Exchange {
    pub(crate) client: Stream,
    /// The bytes that the client sent so far: a whole, checked head, and whatever followed it.
    pub(crate) bytes: Vec<u8>,
    pub(crate) target: Target,
    /// Path and query, as in the head.
    pub(crate) path: PathAndQuery,
    pub(crate) upstream: Stream,
}

/// Forwards one request and its answer, and writes the close record.
///
/// Dropping the future closes both sides.
pub(crate) async fn run(exchange: Exchange, record: &mut Record<'_>, cx: &Context, stop: &CancellationToken) {
    match forward(exchange, record, cx, stop).await {
        ExchangeEnd::Answered(client) => {
            record.close(CloseCause::Upstream, None);
            client.linger(cx.limits().linger).await;
        }
        ExchangeEnd::Refused(client, refusal) => {
            record.close_not_forwarded(&refusal);
            client.linger(cx.limits().linger).await;
        }
        ExchangeEnd::Switched { client, upstream, early } => {
            let moving = tunnel::run(client, upstream, early, &record.moved, cx.pool(), cx.limits(), stop);
            let ended = moving.await;
            record.close(ended.end, ended.error);
        }
        ExchangeEnd::Cut { client, end, error } => {
            // A reset, so that an incomplete answer does not look complete.
            client.will_reset();
            record.close(end, error);
        }
    }
}

/// The end of an exchange.
enum ExchangeEnd {
    /// The client has the answer of the origin.
    Answered(Stream),
    /// The client has an answer of exeat instead.
    Refused(Stream, Refusal),
    /// The origin switched protocols; the connection becomes a tunnel.
    Switched { client: Stream, upstream: Stream, early: Early },
    /// The exchange did not finish.
    Cut { client: Stream, end: CloseCause, error: Option<String> },
}

async fn forward(
    exchange: Exchange,
    record: &Record<'_>,
    cx: &Context,
    stop: &CancellationToken,
) -> ExchangeEnd {
    let Exchange { client, bytes, target, path, upstream } = exchange;
    let clock = Clock::start();
    let answered = AtomicBool::new(false);
    let upstream = Metered { inner: upstream, moved: &record.moved, clock: &clock, answered: &answered };
    let (to_drive, mut driven) = oneshot::channel();
    let outcome = Mutex::new(None);
    let first = Mutex::new(Some((upstream, to_drive)));
    let (run, conn, moved) = (cx.run(), record.conn(), &record.moved);
    let service = service_fn(|request: Request<Incoming>| {
        // hyper reads no second request after an answer that closes the connection. If it did, the request would
        // have no connection to use.
        let first = first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (target, path, outcome, answered) = (&target, &path, &outcome, &answered);
        let answer = async move {
            let sent = match first {
                Some((upstream, to_drive)) => send(request, target, path, upstream, to_drive, moved).await,
                None => Err(Refusal::Malformed(Fault::NotAProxyRequest)),
            };
            answered.store(true, Ordering::Relaxed);
            let (response, came) = match sent {
                Ok(sent) => sent,
                Err(refusal) => {
                    let response = refuse(&refusal, run, conn).into_response().map(Either::Left);
                    (response, Outcome::Refused(refusal))
                }
            };
            outcome.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(came);
            Ok::<_, Infallible>(response)
        };
        Box::pin(answer) as Pin<Box<dyn Future<Output = _> + Send + '_>>
    });
    let mut serving = server::conn::http1::Builder::new()
        // P10, P16: every answer has `Connection: close`, and nothing is read after it.
        .half_close(true)
        .auto_date_header(false)
        .preserve_header_case(true)
        .title_case_headers(true)
        .max_headers(limits::FIELDS)
        .max_buf_size(limits::HTTP_BUFFER)
        .serve_connection(TokioIo::new(PrefixedIo::new(bytes, client)), service);

    let mut origin: Option<Driven<'_>> = None;
    let mut waiting = true;
    let mut driving = false;
    let mut total = pin!(sleep(cx.limits().total));
    let mut stopping = pin!(async {
        stop.cancelled().await;
        sleep(cx.limits().drain).await;
    });
    let served = loop {
        tokio::select! {
            biased;
            // Serving runs to its end, so that all output is flushed even if the client is still sending.
            served = &mut serving => break Ok(served),
            conn = &mut driven, if waiting => {
                waiting = false;
                origin = conn.ok();
                driving = origin.is_some();
            }
            // Its result arrives through the answer or its body.
            _ = drive(&mut origin), if driving => driving = false,
            () = clock.idle_for(cx.limits().progress.min(cx.limits().idle), || {
                record.moved.note_time();
                cx.limits().idle
            }) => break Err((CloseCause::Idle, None)),
            () = &mut total => break Err((CloseCause::Budget, Some(tunnel::TOTAL_IS_OVER.to_owned()))),
            () = &mut stopping => break Err((CloseCause::Killed, None)),
        }
    };
    let parts = serving.into_parts();
    let (client, unread) = parts.io.into_inner().into_parts();
    let came = outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (served, came) {
        (Err((end, error)), _) => ExchangeEnd::Cut { client, end, error },
        (Ok(_), Some(Outcome::Refused(refusal))) => ExchangeEnd::Refused(client, refusal),
        (Ok(Err(error)), _) => {
            ExchangeEnd::Cut { client, end: CloseCause::Error, error: Some(describe_error(&error)) }
        }
        (Ok(Ok(())), Some(Outcome::Answered)) => ExchangeEnd::Answered(client),
        (Ok(Ok(())), Some(Outcome::Switched)) => {
            let Some(upstream) = origin.map(client::conn::http1::Connection::into_parts) else {
                let error = Some("upstream: lost when it switched protocols".to_owned());
                return ExchangeEnd::Cut { client, end: CloseCause::Error, error };
            };
            // These bytes were counted when they were read, and the tunnel counts them again.
            moved.take_back_down(upstream.read_buf.len() as u64);
            let early =
                Early { up: [&parts.read_buf[..], &unread].concat(), down: upstream.read_buf.to_vec() };
            ExchangeEnd::Switched { client, upstream: upstream.io.into_inner().inner, early }
        }
        (Ok(Ok(())), None) => ExchangeEnd::Cut { client, end: CloseCause::Client, error: None },
    }
}

/// The answer that the client received.
enum Outcome {
    Answered,
    Switched,
    Refused(Refusal),
}

type Driven<'a> = client::conn::http1::Connection<TokioIo<Metered<'a>>, Data<Incoming>>;
type Answer = Response<Either<Full<Bytes>, Data<Incoming>>>;

async fn drive(origin: &mut Option<Driven<'_>>) -> hyper::Result<()> {
    poll_fn(|cx| match origin {
        Some(origin) => origin.poll_without_shutdown(cx),
        None => Poll::Pending,
    })
    .await
}

/// Sends the request to the origin, and waits for the head of the answer.
async fn send<'a>(
    request: Request<Incoming>,
    target: &Target,
    path: &PathAndQuery,
    upstream: Metered<'a>,
    to_drive: oneshot::Sender<Driven<'a>>,
    moved: &Moved<'_>,
) -> Result<(Answer, Outcome), Refusal> {
    let failed = |failure| Refusal::Failed(target.clone(), failure);
    let budget = upstream.moved.budget.as_ref();
    let wants_websocket = wants_websocket(&request);
    let malformed = Arc::new(AtomicBool::new(false));
    let request = to_origin(request, target, path, wants_websocket, &malformed);
    let (mut sender, driven) = client::conn::http1::Builder::new()
        .preserve_header_case(true)
        .title_case_headers(true)
        .max_headers(limits::FIELDS)
        .max_buf_size(limits::HTTP_BUFFER)
        .handshake(TokioIo::new(upstream))
        .await
        .map_err(|_| failed(Failure::BadResponse))?;
    // The receiver is the task that waits for this future, so it is still there.
    let _ = to_drive.send(driven);
    let response = sender.send_request(request).await.map_err(|error| {
        tracing::debug!(%error, "no answer");
        if budget.is_some_and(Budget::ran_out) {
            Refusal::UsedUp(target.clone())
        } else if malformed.load(Ordering::Relaxed) {
            Refusal::Malformed(Fault::Body)
        } else if error.is_parse() || error.is_incomplete_message() && moved.down() > 0 {
            failed(Failure::BadResponse)
        } else {
            failed(Failure::NoResponse)
        }
    })?;
    if !is_plainly_framed(&response) {
        return Err(failed(Failure::BadResponse));
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        // P11: there was no earlier switch, and the origin may switch only to what was asked for.
        let accepted = response.headers().contains_key(SEC_WEBSOCKET_ACCEPT);
        if !(wants_websocket && is_websocket(response.headers()) && accepted) {
            return Err(failed(Failure::BadResponse));
        }
        return Ok((to_client(response, true), Outcome::Switched));
    }
    Ok((to_client(response, false), Outcome::Answered))
}

/// Whether an answer is framed by one length, by `chunked` alone, or by the end of its connection. Any other coding
/// belongs to the hop, and would be lost.
fn is_plainly_framed(response: &Response<Incoming>) -> bool {
    let mut codings = response.headers().get_all(TRANSFER_ENCODING).iter();
    let coding = match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(only), None) => {
            only.as_bytes().eq_ignore_ascii_case(b"chunked") && response.version() == Version::HTTP_11
        }
        (Some(_), Some(_)) => false,
    };
    let mut lengths = response.headers().get_all(CONTENT_LENGTH).iter();
    let length = match (lengths.next(), lengths.next()) {
        (None, _) => true,
        (Some(only), None) => !only.is_empty() && only.as_bytes().iter().all(u8::is_ascii_digit),
        (Some(_), Some(_)) => false,
    };
    coding && length
}

/// Builds the request for the origin.
fn to_origin(
    request: Request<Incoming>,
    target: &Target,
    path: &PathAndQuery,
    websocket: bool,
    malformed: &Arc<AtomicBool>,
) -> Request<Data<Incoming>> {
    let (mut parts, body) = request.into_parts();
    parts.uri = Uri::from(path.clone());
    parts.version = Version::HTTP_11;
    strip(&mut parts.headers);
    // hyper writes the length of the body again, but not for an empty body. Some origins need a length there too.
    if parts.headers.remove(CONTENT_LENGTH).is_some() && body.is_end_stream() {
        parts.headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    // P02: replaces whatever the client sent.
    parts.headers.insert(HOST, host_field(target));
    parts.headers.append(VIA, VIA_EXEAT);
    set_connection(&mut parts.headers, websocket);
    Request::from_parts(parts, Data { body, malformed: Some(Arc::clone(malformed)) })
}

/// Builds the answer for the client.
fn to_client(response: Response<Incoming>, websocket: bool) -> Answer {
    let (mut parts, body) = response.into_parts();
    let chunked = parts.headers.contains_key(TRANSFER_ENCODING);
    strip(&mut parts.headers);
    if chunked {
        parts.headers.remove(CONTENT_LENGTH);
    }
    set_connection(&mut parts.headers, websocket);
    parts.version = Version::HTTP_11;
    Response::from_parts(parts, Either::Right(Data { body, malformed: None }))
}

fn set_connection(headers: &mut HeaderMap, websocket: bool) {
    if websocket {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    } else {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

/// Removes fields that belong to one hop, fields that `Connection` names, and every `Proxy-` field (P13).
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(|name| !KEPT.contains(name))
        .collect();
    let proxy: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("proxy-")).cloned().collect();
    for name in HOP_BY_HOP.iter().chain(&named).chain(&proxy) {
        headers.remove(name);
    }
}

/// Whether a request asks for a WebSocket (RFC 6455 section 4.1), and for nothing else.
fn wants_websocket(request: &Request<Incoming>) -> bool {
    request.method() == Method::GET
        && request.version() == Version::HTTP_11
        && request.body().is_end_stream()
        && is_websocket(request.headers())
        && request.headers().get_all(SEC_WEBSOCKET_KEY).iter().count() == 1
}

fn is_websocket(headers: &HeaderMap) -> bool {
    let mut upgrades = headers.get_all(UPGRADE).iter();
    let (Some(only), None) = (upgrades.next(), upgrades.next()) else { return false };
    let names_it = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
        .any(|name| name.trim_ascii().eq_ignore_ascii_case(b"upgrade"));
    names_it && only.as_bytes().eq_ignore_ascii_case(b"websocket")
}

/// Builds `Host` from the target; port 80 is omitted.
fn host_field(target: &Target) -> HeaderValue {
    let text = match target.port.get() {
        80 => target.host.to_string(),
        _ => target.to_string(),
    };
    // INVARIANT: a name consists of lower-case A-labels, and an address of digits and punctuation.
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Describes what broke, without text from a library.
fn describe_error(error: &hyper::Error) -> String {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(cause) = cause.downcast_ref::<std::io::Error>() {
            return exeat_record::escape(format!("client: {cause}").as_bytes(), limits::TEXT);
        }
        source = cause.source();
    }
    match error.is_user() {
        true => "upstream: the answer broke off".into(),
        false => "client: the exchange broke off".into(),
    }
}

/// A body without trailers, because trailers could repeat any field that a head may not have.
struct Data<B> {
    body: B,
    /// Set if the body turns out to be malformed.
    malformed: Option<Arc<AtomicBool>>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Data<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Poller<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) if !frame.is_data() => None, // trailers are the last frame
            Some(Err(error)) => {
                if let Some(malformed) = &self.malformed {
                    malformed.store(true, Ordering::Relaxed);
                }
                Some(Err(error))
            }
            other => other,
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The origin's socket. It counts bytes, and bounds what may arrive before the final answer.
struct Metered<'a> {
    inner: Stream,
    moved: &'a Moved<'a>,
    clock: &'a Clock,
    /// Set when the head of the final answer has arrived.
    answered: &'a AtomicBool,
}

impl AsyncRead for Metered<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Poller<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        let read = (buffer.filled().len() - before) as u64;
        let down = self.moved.add_down(read);
        self.clock.tick();
        // R10: bounds an endless series of 1xx heads.
        if down > limits::RESPONSE_HEAD && !self.answered.load(Ordering::Relaxed) {
            return Poll::Ready(Err(std::io::Error::other("the head of the answer is too long")));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Metered<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Poller<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let this = &mut *self;
        let written = match &this.moved.budget {
            None => ready!(Pin::new(&mut this.inner).poll_write(cx, bytes))?,
            Some(budget) => {
                let inner = &mut this.inner;
                let spent = ready!(budget.spend(bytes.len(), |part| {
                    Pin::new(&mut *inner).poll_write(cx, bytes.get(..part).unwrap_or_default())
                }));
                if budget.ran_out() {
                    // A reset, so that a cut message does not look complete.
                    inner.will_reset();
                }
                spent?
            }
        };
        self.moved.add_up(written as u64);
        self.clock.tick();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Poller<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Poller<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
