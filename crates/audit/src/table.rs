//! Writes records for people and for programs.
//!
//! Prints nothing itself and trusts nothing in a record: only 0x20 to 0x7e and its own line feeds come out, besides the colors that the
//! caller asked for.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, BufRead, Write};

use exeat_policy::{Reason, Verdict, os_words, printable_ascii};
use exeat_record::ascii_json;

use crate::query::{Filter, LineKind, Reader, Record, last_part};
use crate::summary::Tally;

mod list;

pub use list::{list, list_json, list_schema};

/// The most rows that wait for the end of their connection. Beyond that, the oldest is written without it.
const MAX_WAITING: usize = 1024;

/// The most connections that were written without their end and may get another row for it.
const MAX_OWED: usize = 4096;

/// Counts from [`show`] and [`show_json`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Decisions that passed the filter.
    pub shown: u64,
    /// Decisions in the record, including questions for names.
    pub decisions: u64,
    /// Flaws of the record; see [`Reader::flaws`].
    pub flaws: u64,
}

/// Writes a record as a table: what ran, a row for each decision joined with the end of its connection, and the flaws of the record.
pub fn show<R: BufRead>(
    reader: &mut Reader<R>,
    filter: &Filter,
    out: &mut dyn Write,
    color: bool,
) -> io::Result<Totals> {
    show_in(Table { most_waiting: MAX_WAITING, ..Table::new(out, color) }, reader, filter)
}

/// Writes a record that still grows: each decision gets a row at once, and the end of its connection gets another one.
pub fn show_live<R: BufRead>(
    reader: &mut Reader<R>,
    filter: &Filter,
    out: &mut dyn Write,
    color: bool,
) -> io::Result<Totals> {
    show_in(Table::new(out, color), reader, filter)
}

fn show_in<R: BufRead>(mut table: Table<'_>, reader: &mut Reader<R>, filter: &Filter) -> io::Result<Totals> {
    let mut tally = Tally::default();
    let mut totals = Totals::default();
    let mut end = None;
    let mut head = true;
    for record in reader.by_ref() {
        let record = record?;
        // The files of a policy follow the first line, or the note that it was reloaded.
        head = matches!(record.event, LineKind::RunStart) || head && record.event == LineKind::Policy;
        match record.event {
            LineKind::RunStart => table.run_start(&record)?,
            LineKind::Policy if head => table.policy(&record)?,
            LineKind::Policy if filter.passes(&record) => table.policy_again(&record)?,
            LineKind::Decision | LineKind::Dns => {
                totals.decisions += 1;
                tally.add(&record);
                if filter.passes(&record) {
                    totals.shown += 1;
                    table.decision(&record)?;
                }
            }
            LineKind::Close => {
                tally.add(&record);
                table.close(&record)?;
            }
            LineKind::Note if filter.passes(&record) => table.note(&record)?,
            LineKind::RunEnd => end = Some(record),
            LineKind::Policy
            | LineKind::Progress
            | LineKind::Note
            | LineKind::Checkpoint
            | LineKind::Other(_) => {}
        }
    }
    table.finish()?;
    let Table { out, color, .. } = table;
    totals.flaws = reader.flaws().len() as u64 + reader.more_flaws();
    writeln!(out, "{tally}")?;
    if !filter.is_empty() {
        writeln!(out, "{} of {} decisions shown", totals.shown, totals.decisions)?;
    }
    if let Some(end) = &end {
        writeln!(out, "{}", ended(end))?;
    }
    for flaw in reader.flaws() {
        writeln!(out, "{} {flaw}", paint("!", Some(YELLOW), color))?;
    }
    if reader.more_flaws() > 0 {
        writeln!(out, "{} and {} more", paint("!", Some(YELLOW), color), reader.more_flaws())?;
    }
    Ok(totals)
}

/// Writes the records themselves, one JSON object a line. A filter on decisions leaves out all other lines.
pub fn show_json<R: BufRead>(
    reader: &mut Reader<R>,
    filter: &Filter,
    out: &mut dyn Write,
) -> io::Result<Totals> {
    let mut totals = Totals::default();
    while let Some(record) = reader.next() {
        let record = record?;
        let decision = record.is_decision();
        totals.decisions += u64::from(decision);
        totals.shown += u64::from(decision && filter.passes(&record));
        show_line(reader, &record, filter, out)?;
    }
    totals.flaws = reader.flaws().len() as u64 + reader.more_flaws();
    Ok(totals)
}

/// Writes the reader's current line as it is, if it passes the filter.
pub fn show_line<R: BufRead>(
    reader: &Reader<R>,
    record: &Record,
    filter: &Filter,
    out: &mut dyn Write,
) -> io::Result<()> {
    if !filter.passes(record) {
        return Ok(());
    }
    // The line was parsed as JSON, so it is UTF-8.
    ascii_json(out, str::from_utf8(reader.raw()).unwrap_or_default().trim())?;
    out.write_all(b"\n")
}

/// A run whose growing record shares a table with others: each row begins with its name.
#[derive(Debug, Default)]
pub struct Strand {
    name: String,
    owed: HashSet<u64>,
    tally: Tally,
    end: Option<Box<Record>>,
}

impl Strand {
    /// Creates a run with this name.
    pub fn new(name: &str) -> Strand {
        Strand { name: printable_ascii(name).into_owned(), ..Strand::default() }
    }

    /// Writes the row of a line, if it has one and passes the filter. The start and end of the run are always written.
    pub fn show(&mut self, record: &Record, filter: &Filter, place: &mut Shared<'_>) -> io::Result<()> {
        self.tally.add(record);
        let mut table = self.table(place);
        match record.event {
            LineKind::RunStart => table.started(record)?,
            LineKind::Decision | LineKind::Dns if filter.passes(record) => table.decision(record)?,
            LineKind::Close => table.close(record)?,
            LineKind::Note if filter.passes(record) => table.note(record)?,
            _ => {}
        }
        let (owed, headed) = (table.rows.owed, table.headed);
        (self.owed, place.headed) = (owed, headed);
        if record.event == LineKind::RunEnd {
            self.end = Some(Box::new(record.clone()));
        }
        Ok(())
    }

    /// Writes the end of the run and the flaws of its record, once the reader has ended.
    pub fn finish<R: BufRead>(&mut self, reader: &Reader<R>, place: &mut Shared<'_>) -> io::Result<()> {
        let tally = self.tally;
        if let Some(end) = self.end.take() {
            let mut table = self.table(place);
            table.push(Row::remark(&end, "end", format!("{}; {tally}", short_end(&end))))?;
            place.headed = table.headed;
        }
        for flaw in reader.flaws() {
            let sign = paint("!", Some(YELLOW), place.color);
            writeln!(place.out, "{:<NAME$}  {sign} {flaw}", self.name)?;
        }
        Ok(())
    }

    fn table<'a>(&mut self, place: &'a mut Shared<'_>) -> Table<'a> {
        let rows = Rows { owed: std::mem::take(&mut self.owed), ..Rows::default() };
        let name = format!("{:<NAME$}  ", self.name);
        Table { rows, headed: place.headed, name, ..Table::new(place.out, place.color) }
    }
}

/// The length of the shortest name of a run.
const NAME: usize = 10;

/// The table that several runs share.
pub struct Shared<'a> {
    /// The output.
    pub out: &'a mut dyn Write,
    /// Whether to use colors.
    pub color: bool,
    /// Whether its head was written.
    pub headed: bool,
}

/// Explains a decision in words that a person can act on; printable.
pub fn words(record: &Record) -> String {
    let src = record.rule_src.as_deref().map(cell);
    let rule = record.rule.as_deref().map(cell);
    let origin = match (&rule, &src) {
        (Some(rule), Some(src)) => format!("{rule} ({src})"),
        (Some(rule), None) => rule.to_string(),
        (None, Some(src)) => src.to_string(),
        (None, None) => "a rule".to_owned(),
    };
    let to = match record.ips.first() {
        Some(ip) => format!(": {ip}"),
        None => String::new(),
    };
    let said = match record.reason() {
        Some(Reason::Rule) => {
            let why = record.why.as_deref().map(|why| format!(": {}", cell(why))).unwrap_or_default();
            let by = record.approved_by.as_deref().map(|by| format!("; approved by {}", cell(by)));
            format!("allowed by {origin}{why}{}", by.unwrap_or_default())
        }
        Some(Reason::Default) => match record.refused_by.as_deref() {
            Some("declared") => "the stage does not declare it".to_owned(),
            Some(by) => format!("the {} {} it", cell(by), lacks(by)),
            None => "no rule allows it".to_owned(),
        },
        Some(Reason::DenyRule) => format!("denied by {origin}"),
        Some(reason @ (Reason::PrivateIp | Reason::MetadataIp)) => format!("{}{to}", reason.sentence()),
        Some(reason @ Reason::SniMismatch) => match record.sni.as_deref().map(cell) {
            Some(sni) => format!("{}: {sni}", reason.sentence()),
            None => reason.sentence().to_owned(),
        },
        Some(Reason::Expired) => format!("the rule has expired: {origin}"),
        Some(reason @ (Reason::ResolveError | Reason::ConnectError | Reason::Timeout)) => {
            format!("{} (not a policy denial)", reason.sentence())
        }
        Some(reason) => reason.sentence().to_owned(),
        None => cell(record.reason.as_deref().unwrap_or("no reason given")).into_owned(),
    };
    let mut said = match &record.error {
        Some(error) if says_its_reason(record) => cell(&os_words(error)).into_owned(),
        Some(error) => format!("{said}; {}", cell(&os_words(error))),
        None => said,
    };
    if let (Some(by), Some(Reason::IpLiteral | Reason::PrivateIp)) = (&record.refused_by, record.reason()) {
        said.push_str(&match by.as_str() {
            "declared" => "; the stage does not declare that address".to_owned(),
            by => format!("; the {} {} that address", cell(by), lacks(by)),
        });
    }
    let via = record.via.as_deref().filter(|via| *via != "connect");
    let how: Vec<_> = via.into_iter().chain(record.proto.as_deref()).map(cell).collect();
    if !how.is_empty() {
        said.push_str(&format!(" [{}]", how.join(" ")));
    }
    if let Some(upstream) = &record.upstream {
        said.push_str(&format!(", through {}", cell(upstream)));
    }
    if let Some(program) = record.exe.as_deref().and_then(program_name) {
        said.push_str(&format!(", from {program}"));
    }
    if let Some(count) = record.count.filter(|count| *count > 1) {
        said.push_str(&format!(" ({count}x)"));
    }
    said
}

/// Whether the error says all that the sentence of the reason says, and more: the ports and who bounds them, how DNS failed, which bound
/// was reached. The error of a counted flood only says that it was one.
fn says_its_reason(record: &Record) -> bool {
    let is_flood = record.count.is_some() && record.host.is_none();
    let says_all = matches!(
        record.reason(),
        Some(
            Reason::Port
                | Reason::ResolveError
                | Reason::BudgetBytes
                | Reason::BudgetConns
                | Reason::RecordFull
                | Reason::NotTls
                | Reason::SniMissing
                | Reason::Ech
                | Reason::HelloMalformed
                | Reason::HelloTooLarge
                | Reason::HelloTimeout
        )
    );
    says_all && !is_flood
}

/// Returns the last part of a program's path. The stage chooses it, so characters that could imitate exeat's words are replaced.
fn program_name(exe: &str) -> Option<String> {
    const LONGEST: usize = 32;
    let name = Some(last_part(exe)).filter(|name| !name.is_empty())?;
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._+-".contains(c) { c } else { '?' };
    let mut shown: String = name.chars().take(LONGEST).map(plain).collect();
    if name.chars().nth(LONGEST).is_some() {
        shown.push_str("...");
    }
    Some(shown)
}

/// The table while it is written.
struct Table<'a> {
    out: &'a mut dyn Write,
    color: bool,
    rows: Rows,
    headed: bool,
    /// Whether to write an empty line between the head and the rows.
    gap: bool,
    /// The most rows that may wait.
    most_waiting: usize,
    /// The beginning of each row: the name of its run, if there are several.
    name: String,
}

/// Rows in the order of their decisions, some of which wait for the end of their connection.
#[derive(Default)]
struct Rows {
    waiting: VecDeque<Row>,
    /// The number of the first waiting row, counted from the first row of all.
    first: u64,
    /// The numbers of the rows that wait, by connection.
    open: HashMap<u64, u64>,
    /// Connections whose row was written without their end.
    owed: HashSet<u64>,
}

struct Row {
    conn: Option<u64>,
    /// Whether the row is final.
    complete: bool,
    time: String,
    verdict: String,
    target: String,
    address: String,
    up: String,
    down: String,
    took: String,
    why: String,
    /// Whether the dialed address is another proxy's.
    through: bool,
}

impl<'a> Table<'a> {
    fn new(out: &'a mut dyn Write, color: bool) -> Table<'a> {
        Table {
            out,
            color,
            rows: Rows::default(),
            headed: false,
            gap: false,
            most_waiting: 0,
            name: String::new(),
        }
    }

    /// Writes a row for the start of a run, among other runs.
    fn started(&mut self, record: &Record) -> io::Result<()> {
        let safe = |text: &Option<String>| text.as_deref().map(|text| cell(text).into_owned());
        let parts = [
            ("", &record.command),
            ("stage ", &record.stage),
            ("by ", &record.user),
            ("on ", &record.machine),
        ];
        let parts = parts.into_iter().filter_map(|(word, text)| Some(format!("{word}{}", safe(text)?)));
        self.push(Row::remark(record, "start", parts.collect::<Vec<_>>().join(", ")))
    }

    fn run_start(&mut self, record: &Record) -> io::Result<()> {
        self.flush(0)?;
        self.end_of_head()?;
        self.rows = Rows::default();
        if self.headed {
            writeln!(self.out)?;
        }
        self.headed = false;
        let mut line = |name: &str, value: Option<String>| match value {
            Some(value) => writeln!(self.out, "{name:<9} {value}"),
            None => Ok(()),
        };
        let safe = |text: &Option<String>| text.as_deref().map(|text| printable_ascii(text).into_owned());
        line("run", Some(printable_ascii(&record.run).into_owned()))?;
        line("stage", safe(&record.stage))?;
        line("command", safe(&record.command))?;
        line("in", safe(&record.dir))?;
        let who: Vec<String> = [&record.user, &record.machine].into_iter().filter_map(safe).collect();
        line("by", (!who.is_empty()).then(|| who.join(" on ")))?;
        line("trace", safe(&record.trace_id))?;
        let mode = safe(&record.mode).unwrap_or_default();
        line("policy", safe(&record.policy_sha256).map(|digest| format!("{digest} ({mode})")))?;
        line("started", Some(format!("{} UTC", day_and_time(&record.ts))))?;
        line("exeat", safe(&record.version))?;
        let backend = safe(&record.backend).map(|name| match safe(&record.backend_why) {
            Some(why) => format!("{name} ({why})"),
            None => name,
        });
        let how: Vec<String> = backend.into_iter().chain(safe(&record.bridge)).collect();
        line("sandbox", (!how.is_empty()).then(|| how.join(", ")))?;
        line("proxy", safe(&record.proxy).map(|place| format!("{place} (its record has the decisions)")))?;
        line("gateway", safe(&record.gateway))?;
        line("upstream", safe(&record.upstream).map(|place| format!("{place} (it looks names up itself)")))?;
        let pairs = |map: &std::collections::BTreeMap<String, String>, sign: &str| {
            let pairs: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{}{sign}{}", printable_ascii(key), printable_ascii(value)))
                .collect();
            (!pairs.is_empty()).then(|| pairs.join(", "))
        };
        line("holds", pairs(&record.enforcement, " "))?;
        let limits: Vec<_> = record.limits.iter().map(|text| printable_ascii(text)).collect();
        line("limits", (!limits.is_empty()).then(|| limits.join(", ")))?;
        line("labels", pairs(&record.labels, "="))?;
        self.gap = true;
        Ok(())
    }

    fn policy(&mut self, record: &Record) -> io::Result<()> {
        let safe = |text: &Option<String>| printable_ascii(text.as_deref().unwrap_or("-")).into_owned();
        let (role, file, digest) = (safe(&record.role), safe(&record.file), safe(&record.file_sha256));
        writeln!(self.out, "{:<9} {role} {file} (sha256 {digest})", "from")
    }

    fn policy_again(&mut self, record: &Record) -> io::Result<()> {
        let [role, file, digest] = [&record.role, &record.file, &record.file_sha256]
            .map(|text| cell(text.as_deref().unwrap_or("-")));
        self.remark(record, format!("from {role} {file} (sha256 {digest})"))
    }

    fn end_of_head(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.gap) { writeln!(self.out) } else { Ok(()) }
    }

    fn decision(&mut self, record: &Record) -> io::Result<()> {
        let verdict = record.verdict();
        let open = matches!(verdict, Some(Verdict::Allow | Verdict::WouldDeny));
        let target = match (record.target(), record.host_raw.as_deref()) {
            (Some(target), None) => target,
            (Some(target), Some(raw)) => format!("{target} (as \"{}\")", cell(raw)),
            (None, Some(raw)) => format!("\"{}\"", cell(raw)),
            (None, None) => "-".to_owned(),
        };
        let row = Row {
            conn: record.conn,
            complete: !open || record.conn.is_none(),
            verdict: match verdict {
                Some(verdict) => verdict.as_str().to_owned(),
                None => cell(record.verdict.as_deref().unwrap_or("-")).into_owned(),
            },
            target,
            address: record.ip.or(record.ips.first().copied()).map_or("-".to_owned(), |ip| ip.to_string()),
            through: record.upstream.is_some(),
            ..Row::remark(record, "", words(record))
        };
        self.push(row)
    }

    fn close(&mut self, record: &Record) -> io::Result<()> {
        let Some(conn) = record.conn else { return Ok(()) };
        let known = self.rows.open.remove(&conn).and_then(|number| {
            let at = usize::try_from(number.checked_sub(self.rows.first)?).ok()?;
            self.rows.waiting.get_mut(at)
        });
        match known {
            Some(row) => {
                row.fill(record);
                self.advance()
            }
            None if self.rows.owed.remove(&conn) => {
                let mut row = Row::remark(record, "close", format!("connection {conn}"));
                row.target = record.target().unwrap_or(row.target);
                row.fill(record);
                self.push(row)
            }
            None => Ok(()), // the filter left out its decision
        }
    }

    fn note(&mut self, record: &Record) -> io::Result<()> {
        let mut why = cell(record.what.as_deref().unwrap_or("-")).replace('_', " ");
        if let Some(count) = record.count {
            why.push_str(&format!(" ({count}x)"));
        }
        if let Some(error) = &record.error {
            why.push_str(&format!(": {}", cell(error)));
        }
        if let Some(digest) = &record.policy_sha256 {
            why.push_str(&format!(": {} from here on", cell(digest)));
        }
        self.remark(record, why)
    }

    /// Writes a row without a connection.
    fn remark(&mut self, record: &Record, why: String) -> io::Result<()> {
        self.push(Row::remark(record, "note", why))
    }

    fn push(&mut self, row: Row) -> io::Result<()> {
        if let (Some(conn), false) = (row.conn, row.complete) {
            self.rows.open.insert(conn, self.rows.first + self.rows.waiting.len() as u64);
        }
        self.rows.waiting.push_back(row);
        self.flush(self.most_waiting)?;
        self.advance()
    }

    /// Writes the rows that are final.
    fn advance(&mut self) -> io::Result<()> {
        while self.rows.waiting.front().is_some_and(|row| row.complete) {
            self.write_first()?;
        }
        Ok(())
    }

    /// Writes rows until no more than `keep` wait.
    fn flush(&mut self, keep: usize) -> io::Result<()> {
        while self.rows.waiting.len() > keep {
            self.write_first()?;
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.flush(0)?;
        self.end_of_head()?;
        if self.headed { writeln!(self.out) } else { Ok(()) }
    }

    fn write_first(&mut self) -> io::Result<()> {
        let Some(row) = self.rows.waiting.pop_front() else { return Ok(()) };
        let number = self.rows.first;
        self.rows.first += 1;
        if let (Some(conn), false) = (row.conn, row.complete)
            && self.rows.open.get(&conn) == Some(&number)
        {
            self.rows.open.remove(&conn);
            if self.rows.owed.len() < MAX_OWED {
                self.rows.owed.insert(conn);
            }
        }
        if !self.headed {
            self.end_of_head()?;
            self.headed = true;
            let run = if self.name.is_empty() { String::new() } else { format!("{:<NAME$}  ", "RUN") };
            writeln!(self.out, "{run}{}", line(&WIDTHS, HEADS.map(plain), false))?;
        }
        let style = match row.verdict.as_str() {
            "allow" => Some(GREEN),
            "deny" => Some(RED),
            "would_deny" | "error" => Some(YELLOW),
            _ => None,
        };
        let Row { time, verdict, target, address, up, down, took, why, .. } = row;
        let [time, target, address, up, down, took, why] =
            [time, target, address, up, down, took, why].map(plain);
        let cells = [time, (verdict, style), target, address, up, down, took, why];
        let line = line(&WIDTHS, cells, self.color);
        writeln!(self.out, "{}{line}", self.name)
    }
}

impl Row {
    /// Creates a row without a connection.
    fn remark(record: &Record, word: &str, why: String) -> Row {
        let none = || "-".to_owned();
        Row {
            conn: None,
            complete: true,
            time: time(&record.ts),
            verdict: word.to_owned(),
            target: none(),
            address: none(),
            up: none(),
            down: none(),
            took: none(),
            why,
            through: false,
        }
    }

    fn fill(&mut self, close: &Record) {
        self.complete = true;
        if let Some(ip) = close.ip.filter(|_| !self.through) {
            self.address = ip.to_string();
        }
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        self.up = or_dash(close.bytes_up.map(bytes));
        self.down = or_dash(close.bytes_down.map(bytes));
        self.took = or_dash(close.dur_us.map(duration));
        match close.ended_by.as_deref() {
            None | Some("client" | "upstream") => {}
            Some(end) => self.why.push_str(&format!("; ended: {}", cell(end))),
        }
        if let Some(error) = &close.error {
            self.why.push_str(&format!("; {}", cell(&os_words(error))));
        }
    }
}

/// Says what a layer does that lacks a rule, in the words of the run itself. A lock lists what was reached and allows nothing.
fn lacks(refused_by: &str) -> &'static str {
    if refused_by == "lock" || refused_by.starts_with("lock ") { "does not have" } else { "does not allow" }
}

/// Describes the last line of a run.
fn ended(end: &Record) -> String {
    let mut text = format!("ended {} UTC: {}", day_and_time(&end.ts), short_end(end));
    if let Some(connections) = end.connections {
        let plural = if connections == 1 { "" } else { "s" };
        text.push_str(&format!(", {connections} connection{plural}"));
    }
    if let Some(dropped) = end.dropped.filter(|dropped| *dropped > 0) {
        text.push_str(&format!(", {dropped} ATTEMPTS NOT RECORDED"));
    }
    text
}

fn short_end(end: &Record) -> String {
    let cause = printable_ascii(end.cause.as_deref().unwrap_or("ended"));
    let cause = match &end.limit {
        Some(limit) => format!("{cause} {}", printable_ascii(limit)).into(),
        None => cause,
    };
    let cause = match &end.signal {
        Some(signal) => format!("{cause} {}", printable_ascii(signal)).into(),
        None => cause,
    };
    // A start that failed has no code on record, and its cause has just this one.
    let code = end.exit.or((end.cause.as_deref() == Some("setup")).then_some(125));
    match code {
        Some(code) => format!("{cause} {code}"),
        None => cause.into_owned(),
    }
}

const HEADS: [&str; 8] = ["TIME", "VERDICT", "TARGET", "ADDRESS", "UP", "DOWN", "TOOK", "WHY"];
const WIDTHS: [isize; 8] = [12, 10, 32, 15, -8, -8, -7, 0];

/// The text of a cell, and its color.
pub(crate) type Cell = (String, Option<&'static str>);

/// Creates a cell without color.
pub(crate) fn plain(text: impl Into<String>) -> Cell {
    (text.into(), None)
}

/// Formats one line of a table. A cell with a negative width is aligned to the right.
pub(crate) fn line(widths: &[isize], cells: impl IntoIterator<Item = Cell>, color: bool) -> String {
    let pad = |((text, style), width): (Cell, &isize)| match (*width < 0, width.unsigned_abs()) {
        (true, width) => paint(&format!("{text:>width$}"), style, color),
        (false, width) => paint(&format!("{text:<width$}"), style, color),
    };
    cells.into_iter().zip(widths).map(pad).collect::<Vec<_>>().join("  ")
}

/// SGR 31, 32, 33 (ECMA-48 section 8.3.117).
pub(crate) const RED: &str = "\x1b[31m";
pub(crate) const GREEN: &str = "\x1b[32m";
pub(crate) const YELLOW: &str = "\x1b[33m";

pub(crate) fn paint(text: &str, style: Option<&str>, color: bool) -> String {
    match style {
        Some(style) if color => format!("{style}{text}\x1b[0m"),
        _ => text.to_owned(),
    }
}

/// Makes text fit for a row: printable, and without double spaces, so that a wrapped line cannot look like two rows.
pub(crate) fn cell(text: &str) -> Cow<'_, str> {
    let text = printable_ascii(text);
    if !text.contains("  ") {
        return text;
    }
    Cow::Owned(text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" "))
}

/// Shortens `2026-11-21T10:20:32.123456Z` to `10:20:32.123`; any other text is unchanged.
fn time(ts: &str) -> String {
    printable_ascii(ts.get(11..23).unwrap_or(ts)).into_owned()
}

/// Shortens `2026-11-21T10:20:32.123456Z` to `2026-11-21 10:20:32`; any other text is unchanged.
pub(crate) fn day_and_time(ts: &str) -> String {
    printable_ascii(ts.get(..19).unwrap_or(ts)).replace('T', " ")
}

/// Formats bytes in SI units, with at most three digits before the unit: `45 kB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut tenths = u128::from(count) / 100; // of the unit
    for unit in UNITS {
        if tenths < 100 {
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
        if tenths < 10_000 {
            return format!("{} {unit}", tenths / 10);
        }
        tenths /= 1000;
    }
    format!("{count} B")
}

/// Formats microseconds in the unit that fits.
pub(crate) fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{} ms", us / 1_000),
        1_000_000..60_000_000 => format!("{}.{} s", us / 1_000_000, us / 100_000 % 10),
        60_000_000..3_600_000_000 => format!("{}m{:02}s", us / 60_000_000, us / 1_000_000 % 60),
        _ => format!("{}h{:02}m", us / 3_600_000_000, us / 60_000_000 % 60),
    }
}

#[cfg(test)]
mod tests;
