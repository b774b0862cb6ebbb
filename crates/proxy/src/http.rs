//! Requests that are not CONNECT. hyper frames them; their head has passed the strict check before. This version
//! forwards none of them: a well-formed `http://` request is told so, anything else is a bad request.

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};

use exeat_audit::Via;
use exeat_policy::Target;
use hyper::Request;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use crate::head::Fault;
use crate::limits;
use crate::record::Record;
use crate::reply::{Refusal, refuse};
use crate::server::Context;
use crate::stream::{PrefixedIo, Stream};

/// Answers the one request whose head is `bytes`, and gives the connection back to be closed.
pub(crate) async fn answer(
    client: Stream,
    bytes: Vec<u8>,
    record: &mut Record<'_>,
    cx: &Context,
) -> Option<Stream> {
    let raw = bytes.clone();
    let record = Mutex::new((record, false));
    let service = service_fn(|request: Request<_>| {
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        record.1 = true;
        let refusal = decide(&request, &raw, record.0);
        let response = refuse(&refusal, cx.run(), record.0.conn()).into_response();
        async move { Ok::<_, Infallible>(response) }
    });
    let served = http1::Builder::new()
        .keep_alive(false) // P03, P10: a refused request is the last one
        .half_close(true)
        .auto_date_header(false)
        .title_case_headers(true)
        .max_headers(limits::FIELDS)
        .serve_connection(TokioIo::new(PrefixedIo::new(bytes, client)), service)
        .without_shutdown();
    let served = timeout(limits::REPLY, served).await;
    let client = served.ok().and_then(Result::ok).map(|parts| parts.io.into_inner().into_inner());
    let record = record.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !record.1 {
        // hyper refused what we had let pass, and has said so itself.
        record.0.malformed(Fault::NotAProxyRequest, &raw);
    }
    client
}

fn decide<B>(request: &Request<B>, raw: &[u8], record: &mut Record<'_>) -> Refusal {
    match plain_target(request) {
        Some(target) => {
            record.via = Via::Http;
            record.not_served(target, Refusal::NotSpoken)
        }
        None => {
            record.malformed(Fault::NotAProxyRequest, raw);
            Refusal::Malformed(Fault::NotAProxyRequest)
        }
    }
}

/// The target of a request in absolute-form for `http://` (RFC 9112 section 3.2.2), with 80 where no port is given.
fn plain_target<B>(request: &Request<B>) -> Option<Target> {
    let uri = request.uri();
    if uri.scheme_str() != Some("http") {
        return None;
    }
    let authority = uri.authority()?.as_str();
    let target = Target::parse(authority.as_bytes());
    target.or_else(|_| Target::parse(format!("{authority}:80").as_bytes())).ok()
}
