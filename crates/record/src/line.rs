//! Defines the line format `egress/1`: names, order and bounds of the fields.
//!
//! Decides nothing about what is worth saying. A line is one JSON object in printable ASCII and never longer than
//! [`MAX_LINE`], because every text and list in it is bounded here.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use exeat_policy::preset::Risk;
use exeat_policy::{Host, Target};
use serde::Serialize;
use serde_json::ser::Formatter;

use crate::checkpoint::{Checkpoint, Signed, origin};
use crate::escape::{clip, clip_front, escape};
use crate::event::{Cause, CloseCause, InLedger, Mode, SourceRole, StoppedBy, What, signal_name};
use crate::tree::{Hash, Tree};
use crate::{
    Close, ConnId, Counts, Event, Header, Progress, Proto, Question, RequestDecision, RuleRef, RunEnd, RunId,
    RunNote, RunStart, Sealed, SigningKey, Source, Under, Via, hex, sha256_hex,
};

/// The name of the format. Fields may be added under one name; none changes its meaning.
pub const SCHEMA: &str = "egress/1";

/// Returns the JSON Schema of a line.
#[must_use]
pub fn line_schema() -> &'static str {
    include_str!("line.schema.json")
}

/// The name of the format of a ledger.
pub const LEDGER_SCHEMA: &str = "egress-ledger/1";

/// The most bytes of a line, its line feed included: PIPE_BUF on Linux. A write to a pipe of at most that size is never
/// mixed with another (pipe(7)).
pub const MAX_LINE: usize = 4096;

/// The position of a line in its record.
pub(crate) struct Position<'a> {
    /// The number of the line.
    pub(crate) seq: u64,
    /// The time of the wall clock, RFC 3339.
    pub(crate) ts: &'a str,
    /// Microseconds since the run began.
    pub(crate) mono_us: u64,
    /// The digest of the line before, in hexadecimal.
    pub(crate) prev: &'a str,
}

/// Appends the line for `event`, its line feed included.
pub(crate) fn encode(
    out: &mut Vec<u8>,
    header: &Header,
    at: &Position<'_>,
    counts: &Counts,
    event: &Event,
) -> serde_json::Result<()> {
    let common = common(header, at);
    let line = match event {
        Event::RunStart(start) => run_start(common, header, start),
        Event::Policy(source) => policy(common, source),
        Event::Decision(decision) => self::decision(common, header, decision),
        Event::Dns(question) => dns(common, header, question),
        Event::Progress(progress) => self::progress(common, progress),
        Event::Close(close) => self::close(common, close),
        Event::Note(note) => self::note(common, note),
        Event::RunEnd(end) => run_end(common, counts, end),
    };
    line.serialize(&mut serde_json::Serializer::with_formatter(&mut *out, Ascii))?;
    out.push(b'\n');
    Ok(())
}

/// Appends the line of a checkpoint over the lines before it, its line feed included.
pub(crate) fn encode_checkpoint(
    out: &mut Vec<u8>,
    header: &Header,
    at: &Position<'_>,
    tree: &Tree,
    key: &SigningKey,
) -> serde_json::Result<()> {
    let root = tree.root();
    let line = Line {
        event: "checkpoint",
        n: Some(tree.lines()),
        root: Some(hex(&root)),
        key_id: Some(key.verifying().key_id()),
        ..common(header, at)
    };
    let signed = sign_line(out, &line, origin(&header.run.to_string()), (tree.lines(), root), key)?;
    out.extend(signature_fields(&signed)?);
    Ok(())
}

/// Appends a line up to its signature, and signs it together with the number and the digest of the lines before it.
fn sign_line(
    out: &mut Vec<u8>,
    line: &Line<'_>,
    origin: String,
    (n, root): (u64, Hash),
    key: &SigningKey,
) -> serde_json::Result<Signed> {
    let begin = out.len();
    line.serialize(&mut serde_json::Serializer::with_formatter(&mut *out, Ascii))?;
    // The signature covers a digest of this line up to here, so that nobody can change its other fields, such as `ts`.
    out.truncate(out.len() - 1);
    let own = out.get(begin..).unwrap_or_default();
    Ok(Checkpoint { origin, n, root, line: sha256_hex(own) }.sign(key))
}

/// The fields of a ledger's line.
pub(crate) struct LedgerLine<'a> {
    pub(crate) event: &'static str,
    pub(crate) run: RunId,
    /// The number of the run, where it is known.
    pub(crate) no: Option<u64>,
    /// The last number that was taken.
    pub(crate) last: u64,
    pub(crate) stage: Option<&'a str>,
    pub(crate) policy_sha256: Option<&'a str>,
    /// The digest of the first line of the record.
    pub(crate) first: Option<&'a str>,
    /// The path of the record, if it is not in the usual place.
    pub(crate) file: Option<&'a str>,
    pub(crate) user: Option<&'a str>,
    pub(crate) cause: Option<Cause>,
    /// The lines that the last checkpoint of the record covers, and their root.
    pub(crate) sealed: Option<&'a Sealed>,
    /// The bytes of a torn line that this line replaced.
    pub(crate) torn: Option<u64>,
    /// The lines before this one that are not signed as they are.
    pub(crate) unsigned: Option<u64>,
    /// The digests of the last lines of the other ledgers in the directory.
    pub(crate) others: Option<&'a BTreeMap<String, String>>,
}

/// Appends a line of the ledger with this origin, its signature and its line feed included. `before` is the digest of the line before.
pub(crate) fn encode_ledger(
    out: &mut Vec<u8>,
    origin: &str,
    at: &Position<'_>,
    before: Hash,
    line: &LedgerLine<'_>,
    key: &SigningKey,
) -> serde_json::Result<()> {
    let whole = Line {
        schema: LEDGER_SCHEMA,
        seq: at.seq,
        ts: at.ts,
        mono_us: at.mono_us,
        event: line.event,
        run: Some(line.run),
        no: line.no,
        last: Some(line.last),
        stage: line.stage.map(|text| clip(text, max::STAGE)),
        policy_sha256: line.policy_sha256.map(|text| clip(text, max::DIGEST)),
        first: line.first.map(|text| clip(text, max::DIGEST)),
        file: line.file.map(|text| clip_front(text, max::FILE)),
        user: line.user.map(|text| clip(text, max::USER)),
        cause: line.cause,
        n: line.sealed.map(|sealed| sealed.lines),
        root: line.sealed.map(|sealed| sealed.root.clone()),
        torn: line.torn,
        unsigned: line.unsigned,
        others: line.others,
        prev: at.prev,
        ..Line::default()
    };
    let signed = sign_line(out, &whole, origin.to_owned(), (at.seq, before), key)?;
    // The signed note follows from the line, and would be half of the ledger.
    out.extend(SIG);
    out.extend(signed.sig.as_bytes());
    out.extend(b"\"}\n");
    Ok(())
}

/// The text before the signature of a line. It cannot occur in a field, because a field escapes quotation marks.
pub const SIG: &[u8] = br#","sig":""#;

/// Returns the end of a checkpoint's line, which follows its last other field.
pub fn signature_fields(signed: &Signed) -> serde_json::Result<Vec<u8>> {
    let mut out = SIG.to_vec();
    out.extend(signed.sig.as_bytes());
    out.extend(br#"","signed_note":"#);
    signed.note.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Ascii))?;
    out.extend(b"}\n");
    Ok(out)
}

/// Makes the fields that all lines share.
fn common<'a>(header: &'a Header, at: &Position<'a>) -> Line<'a> {
    Line {
        schema: SCHEMA,
        seq: at.seq,
        ts: at.ts,
        mono_us: at.mono_us,
        run: Some(header.run),
        stage: header.stage.as_deref().map(|text| clip(text, max::STAGE)),
        prev: at.prev,
        ..Line::default()
    }
}

fn run_start<'a>(common: Line<'a>, header: &'a Header, start: &'a RunStart) -> Line<'a> {
    let mut labels = BTreeMap::new();
    let mut more = 0;
    for (key, value) in &start.labels {
        let key = clip(key, max::LABEL_KEY);
        if labels.len() < max::LABELS || labels.contains_key(&key) {
            labels.insert(key, clip(value, max::LABEL_VALUE));
        } else {
            more += 1;
        }
    }
    let enforcement: BTreeMap<_, _> = start
        .enforcement
        .iter()
        .take(max::ASPECTS)
        .map(|(aspect, holds)| {
            (clip(aspect, max::ASPECT), Cow::Owned(clip(&holds.to_string(), max::HOLDS).into_owned()))
        })
        .collect();
    let limits: Vec<_> = start.limits.iter().take(max::LIMITS).map(|text| clip(text, max::LIMIT)).collect();
    let (ledger, number) = match &start.ledger {
        InLedger::None => ("none".into(), None),
        InLedger::Unnumbered => ("unnumbered".into(), None),
        InLedger::Number(number) => (clip(&number.ledger, max::LEDGER), Some(number)),
    };
    // If another process runs the proxy, that proxy has the policy, and it is not known here.
    let own = start.proxy.is_none();
    Line {
        event: "run_start",
        policy_sha256: own.then(|| clip(&header.policy_sha256, max::DIGEST)),
        mode: own.then_some(header.mode),
        version: Some(clip(&start.version, max::WORD)),
        command: start.command.as_deref().map(|command| path_text(command, max::COMMAND)),
        user: start.user.as_deref().map(|text| clip(text, max::USER)),
        machine: start.machine.as_deref().map(|text| clip(text, max::MACHINE)),
        dir: start.dir.as_deref().map(|dir| path_text(dir, max::DIR)),
        trace_id: start.trace.as_ref().map(|trace| clip(&trace.trace_id, max::TRACE)),
        span_id: start.trace.as_ref().map(|trace| clip(&trace.span_id, max::SPAN)),
        backend: start.backend.as_deref().map(|text| clip(text, max::WORD)),
        backend_why: start.backend_why.as_deref().map(|text| clip(text, max::BACKEND_WHY)),
        bridge: start.bridge.as_deref().map(|text| clip(text, max::WORD)),
        proxy: start.proxy.as_deref().map(|text| clip_front(text, max::PROXY)),
        upstream: start.upstream.as_deref().filter(|_| own).map(|text| clip(text, max::UPSTREAM_OF_RUN)),
        gateway: start.gateway.as_deref().map(|text| clip(text, max::GATEWAY)),
        enforcement: (!enforcement.is_empty()).then_some(enforcement),
        limits: (!limits.is_empty()).then_some(limits),
        labels: (!labels.is_empty()).then_some(labels),
        labels_more: (more > 0).then_some(more),
        no: number.map(|number| number.no),
        ledger: Some(ledger),
        ledger_prev: number.map(|number| clip(&number.prev, max::DIGEST)),
        ..common
    }
}

/// Returns a path as a line has it. A long one loses its beginning, because the end says most.
pub fn path_text(path: &OsStr, max: usize) -> Cow<'_, str> {
    match path.to_str() {
        // A character that only JSON escapes would reach the terminal of a reader that decodes the JSON.
        Some(text) if text.chars().all(|c| c != '\\' && (c.is_alphanumeric() || matches!(c, ' '..='~'))) => {
            clip_front(text, max)
        }
        _ => Cow::Owned(clip_front(&escape(path.as_bytes(), usize::MAX), max).into_owned()),
    }
}

fn policy<'a>(common: Line<'a>, source: &'a Source) -> Line<'a> {
    Line {
        event: "policy",
        role: Some(source.role),
        // The end of a path distinguishes files.
        file: Some(clip_front(&source.file, max::FILE)),
        file_sha256: Some(clip(&source.sha256, max::DIGEST)),
        ..common
    }
}

fn decision<'a>(common: Line<'a>, header: &'a Header, decision: &'a RequestDecision) -> Line<'a> {
    let (host, port) = match &decision.host {
        Some(host) if decision.target.is_none() => (Some(host_text(host)), None),
        _ => host_and_port(decision.target.as_ref()),
    };
    // An upstream proxy gets a name, whose addresses are not known here, or one address.
    let ips = if decision.upstream.is_some() { 1 } else { max::IPS };
    let process = decision.process.as_ref();
    let common = with_policy(common, header, decision.under.as_deref());
    let common = with_rule(common, decision.rule.as_ref(), decision.refused_by.as_deref());
    Line {
        event: "decision",
        conn: decision.conn,
        via: Some(decision.via),
        proto: match decision.proto {
            Proto::Tcp => None,
            proto => Some(proto.to_string()),
        },
        method: decision.method.as_deref().map(|text| clip(text, max::METHOD)),
        exe: process.and_then(|process| process.exe.as_deref()).map(|exe| path_text(exe, max::EXE)),
        pid: process.map(|process| process.pid),
        ppid: process.and_then(|process| process.ppid),
        host,
        port,
        host_raw: decision
            .host_raw
            .as_deref()
            .filter(|raw| !is_target(raw, decision.target.as_ref()))
            .map(host_raw),
        ips: Some(decision.ips.get(..ips).unwrap_or(&decision.ips)).filter(|ips| !ips.is_empty()),
        ips_more: decision.ips.len().checked_sub(ips).filter(|more| *more > 0),
        dns_us: decision.dns.map(micros),
        verdict: Some(decision.verdict.as_str()),
        reason: Some(decision.reason.as_str()),
        upstream: decision.upstream.as_deref().map(|text| clip(text, max::UPSTREAM)),
        count: decision.count,
        ip: decision.ip,
        sni: decision.sni.as_deref().map(|text| clip(text, max::HOST)),
        sni_ok: decision.sni_ok,
        alpn: decision.alpn.as_deref().map(|text| clip(text, max::ALPN)),
        ech: decision.ech.then_some(true),
        error: decision.error.as_deref().map(error),
        ..common
    }
}

fn dns<'a>(common: Line<'a>, header: &'a Header, question: &'a Question) -> Line<'a> {
    let common = with_policy(common, header, question.under.as_deref());
    let common = with_rule(common, question.rule.as_ref(), question.refused_by.as_deref());
    let is_name = |raw: &&[u8]| question.host.as_ref().is_some_and(|name| name.as_str().as_bytes() == *raw);
    Line {
        event: "dns",
        via: Some(Via::Dns),
        host: question.host.as_ref().map(|name| clip(name.as_str(), max::HOST)),
        host_raw: question.host_raw.as_deref().filter(|raw| !is_name(raw)).map(host_raw),
        verdict: Some(question.verdict.as_str()),
        reason: Some(question.reason.as_str()),
        count: question.count,
        error: question.error.as_deref().map(error),
        ..common
    }
}

/// Adds the policy of a verdict.
fn with_policy<'a>(common: Line<'a>, header: &'a Header, under: Option<&'a Under>) -> Line<'a> {
    Line {
        policy_sha256: Some(clip(under.map_or(&header.policy_sha256, |it| &it.policy_sha256), max::DIGEST)),
        mode: Some(under.map_or(header.mode, |it| it.mode)),
        ..common
    }
}

/// Adds the rule that decided, and the ceiling that refused.
fn with_rule<'a>(common: Line<'a>, rule: Option<&'a RuleRef>, refused_by: Option<&'a str>) -> Line<'a> {
    let text = |field: fn(&RuleRef) -> Option<&String>, max| rule.and_then(field).map(|text| clip(text, max));
    Line {
        rule: text(|rule| Some(&rule.text), max::RULE),
        rule_src: rule.map(|rule| clip_front(&rule.src, max::RULE_SRC)),
        risk: rule.and_then(|rule| rule.risk),
        refused_by: refused_by.map(|text| clip_front(text, max::REFUSED_BY)),
        approved_by: text(|rule| rule.approved_by.as_ref(), max::APPROVED_BY),
        why: text(|rule| rule.why.as_ref(), max::WHY),
        expires: text(|rule| rule.expires.as_ref(), max::DAY),
        ..common
    }
}

fn progress<'a>(common: Line<'a>, progress: &'a Progress) -> Line<'a> {
    let (host, port) = host_and_port(progress.target.as_ref());
    Line {
        event: "progress",
        conn: Some(progress.conn),
        host,
        port,
        bytes_up: Some(progress.bytes_up),
        bytes_down: Some(progress.bytes_down),
        ..common
    }
}

fn close<'a>(common: Line<'a>, close: &'a Close) -> Line<'a> {
    let (host, port) = host_and_port(close.target.as_ref());
    Line {
        event: "close",
        conn: Some(close.conn),
        host,
        port,
        ip: close.ip,
        sni: close.sni.as_deref().map(|text| clip(text, max::HOST)),
        sni_ok: close.sni_ok,
        alpn: close.alpn.as_deref().map(|text| clip(text, max::ALPN)),
        ech: close.ech.then_some(true),
        connect_us: close.connect.map(micros),
        tls_us: close.tls.map(micros),
        dur_us: Some(micros(close.dur)),
        bytes_up: Some(close.bytes_up),
        bytes_down: Some(close.bytes_down),
        ended_by: Some(close.end),
        error: close.error.as_deref().map(error),
        ..common
    }
}

fn note<'a>(common: Line<'a>, note: &'a RunNote) -> Line<'a> {
    Line {
        event: "note",
        policy_sha256: note.under.as_deref().map(|it| clip(&it.policy_sha256, max::DIGEST)),
        mode: note.under.as_deref().map(|it| it.mode),
        what: Some(note.what),
        count: note.count,
        error: note.error.as_deref().map(error),
        ..common
    }
}

fn run_end<'a>(common: Line<'a>, counts: &Counts, end: &'a RunEnd) -> Line<'a> {
    Line {
        event: "run_end",
        cause: Some(end.cause),
        exit: end.exit,
        limit: end.limit.as_deref().map(|text| clip(text, max::LIMIT)),
        signal: end.signal.map(signal_name),
        signal_number: end.signal,
        stopped_by: end.stopped_by,
        allowed: Some(counts.allowed),
        denied: Some(counts.denied),
        would_deny: Some(counts.would_deny),
        errors: Some(counts.errors),
        failed: Some(counts.failed),
        dropped: Some(end.dropped.saturating_add(counts.dropped)),
        connections: Some(end.connections),
        ..common
    }
}

/// Returns the host without brackets, and the port.
fn host_and_port(target: Option<&Target>) -> (Option<Cow<'_, str>>, Option<u16>) {
    let Some(target) = target else { return (None, None) };
    (Some(host_text(&target.host)), Some(target.port.get()))
}

fn host_text(host: &Host) -> Cow<'_, str> {
    match host {
        Host::Name(name) => clip(name.as_str(), max::HOST),
        Host::Ip(ip) => Cow::Owned(ip.to_string()),
    }
}

/// Returns whether the client sent exactly the target, or the host, as a line has it.
fn is_target(raw: &[u8], target: Option<&Target>) -> bool {
    target.is_some_and(|target| {
        raw == target.to_string().as_bytes() || raw == target.host.to_string().as_bytes()
    })
}

fn host_raw<'a>(raw: &[u8]) -> Cow<'a, str> {
    Cow::Owned(clip(&escape(raw, max::HOST_RAW), max::HOST_RAW).into_owned())
}

/// Returns a description of what went wrong, which may quote a client or an origin.
fn error(text: &str) -> Cow<'_, str> {
    Cow::Owned(clip(&escape(text.as_bytes(), max::ERROR), max::ERROR).into_owned())
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Defines the fields of a line. The optional ones are left out where they are `None`.
macro_rules! line {
    ($(#[$about:meta])* struct $name:ident<$life:lifetime> {
        first { $($first:ident: $first_type:ty,)* }
        optional { $($field:ident: $type:ty,)* }
        last { $($last:ident: $last_type:ty,)* }
    }) => {
        $(#[$about])*
        #[derive(Default, Serialize)]
        struct $name<$life> {
            $($first: $first_type,)*
            $(#[serde(skip_serializing_if = "Option::is_none")] $field: Option<$type>,)*
            $($last: $last_type,)*
        }
    };
}

line! {
    /// The fields of a line, in their order.
    struct Line<'a> {
        first {
            schema: &'static str,
            seq: u64,
            ts: &'a str,
            mono_us: u64,
            event: &'static str,
        }
        optional {
            run: RunId,
            stage: Cow<'a, str>,
            policy_sha256: Cow<'a, str>,
            mode: Mode,
            version: Cow<'a, str>,
            command: Cow<'a, str>,
            user: Cow<'a, str>,
            machine: Cow<'a, str>,
            dir: Cow<'a, str>,
            trace_id: Cow<'a, str>,
            span_id: Cow<'a, str>,
            backend: Cow<'a, str>,
            backend_why: Cow<'a, str>,
            bridge: Cow<'a, str>,
            proxy: Cow<'a, str>,
            gateway: Cow<'a, str>,
            upstream: Cow<'a, str>,
            enforcement: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
            limits: Vec<Cow<'a, str>>,
            labels: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
            labels_more: u64,
            no: u64,
            last: u64,
            ledger: Cow<'a, str>,
            ledger_prev: Cow<'a, str>,
            first: Cow<'a, str>,
            torn: u64,
            unsigned: u64,
            others: &'a BTreeMap<String, String>,
            role: SourceRole,
            file: Cow<'a, str>,
            file_sha256: Cow<'a, str>,
            what: What,
            conn: ConnId,
            via: Via,
            proto: String,
            method: Cow<'a, str>,
            exe: Cow<'a, str>,
            pid: u32,
            ppid: u32,
            host: Cow<'a, str>,
            port: u16,
            host_raw: Cow<'a, str>,
            ips: &'a [IpAddr],
            ips_more: usize,
            ip: IpAddr,
            dns_us: u64,
            verdict: &'static str,
            reason: &'static str,
            rule: Cow<'a, str>,
            rule_src: Cow<'a, str>,
            risk: Risk,
            refused_by: Cow<'a, str>,
            approved_by: Cow<'a, str>,
            why: Cow<'a, str>,
            expires: Cow<'a, str>,
            count: u64,
            sni: Cow<'a, str>,
            sni_ok: bool,
            alpn: Cow<'a, str>,
            ech: bool,
            connect_us: u64,
            tls_us: u64,
            dur_us: u64,
            bytes_up: u64,
            bytes_down: u64,
            ended_by: CloseCause,
            cause: Cause,
            exit: i32,
            limit: Cow<'a, str>,
            signal: String,
            signal_number: i32,
            stopped_by: StoppedBy,
            allowed: u64,
            denied: u64,
            would_deny: u64,
            errors: u64,
            failed: u64,
            dropped: u64,
            connections: u64,
            error: Cow<'a, str>,
            n: u64,
            root: String,
            key_id: String,
        }
        last {
            prev: &'a str,
        }
    }
}

/// Compact JSON in which every character outside 0x20 to 0x7e is written as `\uXXXX`.
struct Ascii;

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        ascii_json(out, text)
    }
}

/// Writes JSON text, or a piece of a JSON string, with `\uXXXX` for every character outside 0x20 to 0x7e.
///
/// JSON has such characters only inside strings, so the text means the same.
///
/// # Errors
///
/// Fails if the output cannot be written.
pub fn ascii_json<W: ?Sized + io::Write>(out: &mut W, text: &str) -> io::Result<()> {
    let mut rest = text;
    while let Some((at, c)) = rest.char_indices().find(|(_, c)| !matches!(c, ' '..='~')) {
        let (plain, tail) = rest.split_at(at);
        out.write_all(plain.as_bytes())?;
        for unit in c.encode_utf16(&mut [0; 2]) {
            write!(out, "\\u{unit:04x}")?;
        }
        rest = tail.get(c.len_utf8()..).unwrap_or_default();
    }
    out.write_all(rest.as_bytes())
}

/// The most bytes that each text has in a line, escapes included, and the most entries of each list.
///
/// INVARIANT: with the names of the fields, the numbers and the punctuation, they add up to less than `MAX_LINE`
/// for every event. The test `no_line_is_longer_than_a_pipe_takes_whole` fills all of them.
pub mod max {
    /// The name of the stage.
    pub const STAGE: usize = 96;
    /// A SHA-256 in hexadecimal.
    pub(super) const DIGEST: usize = 64;
    /// A host name has at most 253 characters (RFC 1035 section 2.3.4).
    pub(super) const HOST: usize = 253;
    pub(super) const HOST_RAW: usize = 256;
    /// The addresses of one name; more are counted.
    pub(super) const IPS: usize = 12;
    pub(super) const RULE: usize = 300;
    pub(super) const RULE_SRC: usize = 256;
    pub(super) const REFUSED_BY: usize = 128;
    pub(super) const FILE: usize = 1024;
    pub(super) const APPROVED_BY: usize = 128;
    pub(super) const WHY: usize = 256;
    /// `YYYY-MM-DD`, and years to come.
    pub(super) const DAY: usize = 16;
    pub(super) const ALPN: usize = 32;
    /// The longest registered one has 17 bytes.
    pub(super) const METHOD: usize = 24;
    pub(super) const EXE: usize = 256;
    pub(super) const ERROR: usize = 256;
    pub(super) const COMMAND: usize = 192;
    pub(super) const USER: usize = 64;
    /// A node name has at most 64 bytes (uname(2)).
    pub const MACHINE: usize = 64;
    pub(super) const DIR: usize = 192;
    pub(super) const TRACE: usize = 32;
    pub(super) const SPAN: usize = 16;
    pub(super) const WORD: usize = 32;
    pub(super) const BACKEND_WHY: usize = 96;
    /// A Unix socket's path has at most 107 bytes (unix(7)).
    pub(super) const PROXY: usize = 224;
    /// Two numbers in hexadecimal.
    pub(super) const LEDGER: usize = 8 + 1 + 16;
    /// A host name, `:` and five digits.
    pub(super) const UPSTREAM: usize = HOST + 6;
    /// The upstream proxy in the first line, which has many fields; each decision has all of it.
    pub(super) const UPSTREAM_OF_RUN: usize = 136;
    pub(super) const GATEWAY: usize = 96;
    pub(super) const ASPECTS: usize = 5;
    pub(super) const ASPECT: usize = 24;
    pub(super) const HOLDS: usize = 78;
    /// Each further limit takes [`LIMIT`] bytes and 3 for its quotes and comma from the first line, so another text there must
    /// shrink: [`COMMAND`] or [`DIR`].
    pub(super) const LIMITS: usize = exeat_policy::Limit::ALL.len();
    pub(super) const LIMIT: usize = 38;
    /// The labels of a run; more are counted.
    pub(super) const LABELS: usize = 10;
    /// The name of a label.
    pub const LABEL_KEY: usize = 32;
    /// The value of a label.
    pub const LABEL_VALUE: usize = 64;
}

/// The most labels of a run in its record; more are counted.
pub const MAX_LABELS: usize = max::LABELS;

/// The most characters of a label's value in the record; the rest is cut.
pub const MAX_LABEL_VALUE: usize = max::LABEL_VALUE;

#[cfg(test)]
mod tests;
