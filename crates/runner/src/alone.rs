//! Runs the host side without a sandbox: a proxy for sandboxes that somebody else makes.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use exeat_compose::FileState;
use exeat_files::walk::LinkRule;
use exeat_policy::{Limits, Policy};
use exeat_proxy::{ConnectionSummary, Context, Entry, Listener, UpstreamProxy, listen_unix, serve};
use exeat_record::ledger::Head;
use exeat_record::place::{remove_empty, store_reloaded};
use exeat_record::{
    Cause, Event, Log, RunEnd, RunId, RunNote, RunStart, Source, Under, What, sha256_hex, today,
};
use exeat_sandbox::{descriptor_limit, raise_descriptor_limit};
use nix::sys::signal::Signal;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, chain};
use crate::ledger::begin;
use crate::limits::{check_audit_size, proxy_limits};
use crate::reload::{LoadPolicy, Reloaded, Reloader};
use crate::request::AuditTo;
use crate::run::record::{OpenRecord, Record, keep_record, turned_away_note};
use crate::run::survive_file_limit;
use crate::serving::{BLOCKED, ServingThread};
use crate::signals::Signals;
use crate::signing::{Signing, state_place};
use crate::{caller, upstream};

/// A callback that gets the place where the proxy listens, and the record's path if there is one.
pub type ReadyCallback = Box<dyn FnOnce(&str, Option<&Path>)>;

/// A callback for each later reading of the policy. It gets the digest of the new policy with lines for the user, or the reason that the
/// old one stays.
pub type ReloadCallback = Box<dyn Fn(Result<(&str, &[String]), &str>)>;

/// The request for a proxy without a sandbox.
pub struct ProxyRequest {
    /// The main place to listen on.
    pub listen: Listen,
    /// An extra place to listen on for SOCKS5.
    pub listen_socks5: Option<Listen>,
    /// Whether to accept an address that other machines can reach.
    pub listen_anywhere: bool,
    /// The policy.
    pub policy: Policy,
    /// The files that the policy was composed from, for the record.
    pub sources: Vec<Source>,
    /// The inspected files. The policy is read again when one of these changes, or at SIGHUP.
    pub inspected: Vec<FileState>,
    /// Reads the policy again on a separate thread. The result is applied whole or not at all.
    pub load: LoadPolicy,
    /// Called after each reading.
    pub on_reload: ReloadCallback,
    /// The upstream proxy that connections go through while this proxy serves.
    pub upstream: Option<UpstreamProxy>,
    /// The limits. Those that the proxy does not enforce need a stage, and have no effect here.
    pub limits: Limits,
    /// The destination of the record.
    pub audit: AuditTo,
    /// Whether each line of the record reaches the disk (fdatasync(2)) before the action that it describes.
    pub audit_sync: bool,
    /// The signing of the record.
    pub signing: Signing,
    /// A stage name for every record.
    pub stage: Option<String>,
    /// The caller's environment.
    pub host_env: BTreeMap<OsString, OsString>,
    /// Called once, when connections are accepted.
    pub on_ready: ReadyCallback,
}

impl std::fmt::Debug for ProxyRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProxyRequest").field("listen", &self.listen).finish_non_exhaustive()
    }
}

/// A place to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket, made with mode 0600.
    Unix(PathBuf),
    /// A TCP address. Any local user can connect to it.
    Tcp(SocketAddr),
}

/// The result of serving.
#[derive(Debug)]
pub struct ProxyOutcome {
    /// The counts of connections.
    pub summary: ConnectionSummary,
    /// The ledger's line about the end; `None` without a ledger.
    pub ledger: Option<Head>,
    /// Lines for the caller.
    pub notes: Vec<String>,
}

/// Serves until SIGINT, SIGTERM or SIGQUIT, then drains until another of these. SIGHUP or a change of a policy file makes it read the
/// policy again; a faulty policy changes nothing.
///
/// # Errors
/// Returns an error when it cannot listen, or cannot open or end the record.
pub fn serve_alone(request: ProxyRequest) -> Result<ProxyOutcome, Error> {
    check_places(&request)?;
    if let Some(proxy) = &request.upstream {
        upstream::check_ceilings(&request.policy, proxy.target(), today())?;
    }
    check_audit_size(&request.limits.of_proxy())?;
    survive_file_limit()?;
    let room = raise_descriptor_limit().and_then(|_| descriptor_limit()).map(|(soft, _)| soft);
    let room = room.map_err(prepare("the limit of open descriptors"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(prepare("the runtime"))?.block_on(serve_here(request, room))
}

fn prepare(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Prepare { what, source }
}

/// Refuses a place that other machines can reach, unless the caller accepts it.
fn check_places(request: &ProxyRequest) -> Result<(), Error> {
    for place in [&request.listen].into_iter().chain(&request.listen_socks5) {
        if let Listen::Tcp(address) = place
            && !address.ip().is_loopback()
            && !request.listen_anywhere
        {
            return Err(Error::ListenAnywhere(*address));
        }
    }
    Ok(())
}

/// Listens, opens the record, serves, and ends the record. `room` is the number of descriptors.
async fn serve_here(request: ProxyRequest, room: u64) -> Result<ProxyOutcome, Error> {
    let signals = Signals::ending().map_err(prepare("the signal handlers"))?;
    // A place that is taken or a thread that cannot start must not leave a record, so both come first.
    let mut serving = ServingThread::start().map_err(prepare("the proxy's thread"))?;
    let Listening { entries, shown, files } = serving.open(|| Listening::open(&request))?;
    let start = run_start(&request);
    let reloader =
        Reloader::start(request.load, request.inspected).map_err(prepare("the watch on the policy"))?;
    let run = RunId::new();
    let place = Some(state_place(&request.host_env)?);
    let record = Record {
        audit: &request.audit,
        sync: request.audit_sync,
        signing: &request.signing,
        place: place.as_ref(),
        stage: request.stage,
        policy: Some(&request.policy),
    };
    request.signing.make(place.as_ref())?.keep();
    let OpenRecord { log, path: audit, ledger } = record.open(run)?;
    let listed = begin(&log, ledger, start, &request.sources).inspect_err(|_| {
        if let Some(record) = request.audit.in_default_place(audit.as_deref()) {
            remove_empty(record);
        }
    })?;

    let context = Context::new(request.policy, log.clone(), run);
    let limits = proxy_limits(&request.limits, room, false);
    let drain = limits.drain;
    let context = Arc::new(context.with_limits(limits).with_upstream(request.upstream));
    let stop = CancellationToken::new();
    for (listener, entry) in entries {
        let served = serve(listener, entry, Arc::clone(&context), stop.clone());
        serving.spawn(async move {
            let report = served.await;
            tracing::debug!(?report, "the proxy has stopped");
        });
    }
    (request.on_ready)(&shown, audit.as_deref());
    let service = Service {
        context: &context,
        log: &log,
        stop,
        beside: request.audit.in_default_place(audit.as_deref()),
        sync: request.audit_sync,
        on_reload: &request.on_reload,
    };
    let has_ended = keep_record(&log, service.run((serving, drain), signals, reloader, files)).await;
    let summary = context.summary();
    if let Some(note) = turned_away_note(&summary) {
        // The log itself stops the run if it cannot write, and the next line reports that.
        let _ = log.write(Event::Note(note));
    }
    let end = RunEnd {
        cause: Cause::Stopped,
        exit: Some(0),
        limit: None,
        signal: None,
        stopped_by: None,
        connections: summary.connections,
        dropped: 0,
    };
    log.write(Event::RunEnd(end)).map_err(Error::Log)?;
    let (ledger, unlisted) = listed.end(&log, Cause::Stopped);
    let notes = unlisted.into_iter().chain((!has_ended).then(|| BLOCKED.to_owned()));
    Ok(ProxyOutcome { summary, ledger, notes: notes.collect() })
}

/// Describes the proxy for the first line of its record.
fn run_start(request: &ProxyRequest) -> RunStart {
    let variable = |name: &str| request.host_env.get(OsStr::new(name)).map(OsString::as_os_str);
    RunStart {
        version: env!("CARGO_PKG_VERSION").into(),
        user: caller::user_name(),
        machine: caller::machine_name(),
        trace: caller::parse_trace(variable("TRACEPARENT")),
        backend: Some("none".into()),
        bridge: Some("proxy".into()),
        gateway: Some("off".into()),
        upstream: request.upstream.as_ref().map(ToString::to_string),
        ..RunStart::default()
    }
}

/// The open listeners.
struct Listening {
    /// The files of the sockets, which are dropped before the listeners.
    files: Vec<SocketFile>,
    entries: Vec<(Listener, Entry)>,
    /// The places, for the user.
    shown: String,
}

impl Listening {
    fn open(request: &ProxyRequest) -> Result<Self, Error> {
        let (listener, mut shown, file) = listen_on(&request.listen)?;
        let mut listening = Self {
            files: file.into_iter().collect(),
            entries: vec![(listener, Entry::Http)],
            shown: String::new(),
        };
        if let Some(place) = &request.listen_socks5 {
            let (listener, place, file) = listen_on(place)?;
            shown.push_str(&format!(", for SOCKS5 on {place}"));
            listening.entries.push((listener, Entry::Socks5));
            listening.files.extend(file);
        }
        listening.shown = shown;
        Ok(listening)
    }
}

/// A proxy that serves.
struct Service<'a> {
    context: &'a Context,
    log: &'a Log,
    stop: CancellationToken,
    /// The record in the default place. Only there its policy is next to it.
    beside: Option<&'a Path>,
    sync: bool,
    on_reload: &'a ReloadCallback,
}

impl Service<'_> {
    /// Serves until a signal and the drain after it, and takes each new policy until the signal. Returns whether the proxy ended in time.
    async fn run(
        &self,
        (mut serving, drain): (ServingThread, Duration),
        mut signals: Signals,
        mut reloader: Reloader,
        mut files: Vec<SocketFile>,
    ) -> bool {
        loop {
            let done = tokio::select! {
                signal = signals.next() => match signal {
                    Signal::SIGHUP if reloader.ask() => continue,
                    Signal::SIGHUP => Err("the thread that reads it has ended".to_owned()),
                    _ => break,
                },
                done = reloader.next() => done,
                () = serving.finished() => break,
            };
            self.take_policy(done);
        }
        // While the listeners are open: from here on the names are free for a successor.
        files.clear();
        self.stop.cancel();
        let ended = serving.end(drain);
        tokio::pin!(ended);
        loop {
            tokio::select! {
                signal = signals.next() => if signal != Signal::SIGHUP {
                    self.context.cut(); // a second signal does not wait for the drain
                },
                ended = &mut ended => return ended,
            }
        }
    }

    /// Uses a policy that was read, or records why the old one stays. Tells the caller.
    fn take_policy(&self, read: Result<Reloaded, String>) {
        match read.and_then(|reloaded| adopt(reloaded, self.context, self.log, self.beside, self.sync)) {
            Ok((digest, notes)) => (self.on_reload)(Ok((&digest, &notes))),
            Err(why) => {
                let mut note = RunNote::new(What::PolicyReload);
                note.error = Some(why.clone());
                // The log itself stops the run if it cannot write.
                let _ = self.log.write(Event::Note(note));
                (self.on_reload)(Err(&why));
            }
        }
    }
}

/// Activates a policy: first records it, then uses it.
fn adopt(
    reloaded: Reloaded,
    context: &Context,
    log: &Log,
    beside: Option<&Path>,
    sync: bool,
) -> Result<(String, Vec<String>), String> {
    let Reloaded { policy, sources, notes, .. } = reloaded;
    let canonical = policy.canonical_json();
    let digest = sha256_hex(canonical.as_bytes());
    if let Some(record) = beside {
        store_reloaded(record, &digest, canonical, sync).map_err(|error| chain(&Error::Place(error)))?;
    }
    let under = Arc::new(Under { policy_sha256: digest.clone(), mode: policy.terms().mode });
    let mut note = RunNote::new(What::PolicyReload);
    note.under = Some(Arc::clone(&under));
    let lines = std::iter::once(Event::Note(note)).chain(sources.into_iter().map(Event::Policy));
    for line in lines {
        log.write(line).map_err(|error| chain(&Error::Log(error)))?;
    }
    context.replace_policy(policy, under);
    Ok((digest, notes))
}

/// Opens the listener. Returns it with its display name, and with its socket file if there is one.
fn listen_on(place: &Listen) -> Result<(Listener, String, Option<SocketFile>), Error> {
    let shown = match place {
        Listen::Unix(path) => format!("unix:{}", path.display()),
        Listen::Tcp(address) => format!("tcp:{address}"),
    };
    let failed = |source| Error::Listen { place: shown.clone(), source };
    match place {
        Listen::Unix(path) => {
            let (listener, file) = listen_for_caller(path).map_err(failed)?;
            Ok((Listener::unix(listener).map_err(failed)?, shown.clone(), Some(file)))
        }
        Listen::Tcp(address) => {
            let listener = std::net::TcpListener::bind(address).map_err(failed)?;
            // With port 0 the kernel chose the port.
            let bound = listener.local_addr().map_err(failed)?;
            Ok((Listener::tcp(listener).map_err(failed)?, format!("tcp:{bound}"), None))
        }
    }
}

/// Binds a Unix socket for the caller alone. The second value removes its file.
fn listen_for_caller(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let path = &LinkRule::from_env().place(path)?;
    let old = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o177));
    let bound = match listen_unix(path) {
        // The socket of a killed proxy stays, and nobody answers there.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_dead_socket(path) => {
            fs::remove_file(path).and_then(|()| listen_unix(path))
        }
        other => other,
    };
    nix::sys::stat::umask(old);
    let listener = bound?;
    let file = SocketFile { path: path.to_path_buf(), file: identity(path)? };
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok((listener, file))
}

fn is_dead_socket(path: &Path) -> bool {
    let socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    socket && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Removes the socket's name on drop, if it still belongs to this socket. Drop it while the listener is open: the kernel may reuse the
/// inode number of a removed file.
struct SocketFile {
    path: PathBuf,
    file: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another proxy may listen at this name by now.
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests;
