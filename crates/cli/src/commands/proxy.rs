//! `exeat proxy`: the host side alone. Serves every client that reaches its listener.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use exeat_compose::Machine;
use exeat_compose::{Composed, FileState, PolicyRequest};
use exeat_policy::{Mode, Terms, printable, shell_word};
use exeat_runner::{Listen, LoadPolicy, ProxyOutcome, ProxyRequest, Reloaded};

use crate::args::audit::KeyFrom;
use crate::args::{ListenAt, ProxyArgs};
use crate::commands::audit;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::render::Ending;
use crate::request;
use crate::stdio;
use crate::terminal::{Paint, name_stage, printable_lines, speaker};

/// Serves until SIGINT or SIGTERM. Reloads the policy at SIGHUP, or when one of its files changes.
pub(crate) fn run(args: ProxyArgs, paint: Paint) -> Result<Exit, Failure> {
    let machine = request::here()?;
    let places: Vec<&ListenAt> = [&args.listen].into_iter().chain(&args.listen_socks5).collect();
    if args.listen_anywhere && places.iter().all(|place| matches!(place, ListenAt::Unix(_))) {
        return Err(Failure::input("`--listen-anywhere` is about tcp listeners only"));
    }
    let listen = |place: &ListenAt| match place {
        ListenAt::Unix(path) => Ok(Listen::Unix(machine.absolute(path))),
        ListenAt::Tcp(addr) if !addr.ip().is_loopback() && !args.listen_anywhere => Err(Failure::input(
            format!("`tcp:{addr}` is not a loopback address"),
        )
        .hint("--listen-anywhere serves whoever reaches it; tcp:127.0.0.1:PORT or unix:PATH does not")),
        ListenAt::Tcp(addr) => Ok(Listen::Tcp(*addr)),
    };
    if let Some(port) = args.policy.host_port.first() {
        return Err(Failure::input(
            "`--host-port` is about a stage's own loopback, and no stage is started here",
        )
        .hint(format!("to let clients ask for it: --tls-off {}", port.target())));
    }
    let listen_socks5 = args.listen_socks5.as_ref().map(listen).transpose()?;
    let listen = listen(&args.listen)?;
    let key = args.audit_key.as_ref().and_then(KeyFrom::descriptor);
    request::inherited(&[("--audit", args.audit.as_ref()), ("--audit-key", key.as_ref())])?;
    let loaded = request::compose(&args.policy.request(), &machine, false)?;
    for note in loaded.lines().chain(&without_stage(&loaded)).filter(|_| !args.quiet) {
        stdio::line("note", note);
    }
    // Also with `--quiet`, because this weakens what is enforced.
    if let Some(note) = loaded.policy.terms().note() {
        stdio::line("note", note);
    }
    let upstream = loaded.next_hop.as_ref().map(|hop| request::open(hop, &machine)).transpose()?;
    if let Some(upstream) = &upstream {
        stdio::line("note", &upstream.note());
    }
    let is_tcp = |anywhere: bool| {
        places.iter().any(|place| matches!(place, ListenAt::Tcp(addr) if addr.ip().is_loopback() != anywhere))
    };
    if is_tcp(true) {
        stdio::line("warning", "whoever reaches this listener may use it");
    } else if is_tcp(false) {
        stdio::line("warning", "any local user may use this listener; unix:PATH can be kept to yourself");
    }

    let stage = args.stage.or_else(|| loaded.stage.clone());
    stage.iter().for_each(|stage| name_stage(stage));
    let to = request::audit(args.audit.as_ref(), &machine)?;
    let signing = request::signing(args.audit_key.as_ref(), &machine)?;
    let place = audit::place_of(&machine).ok();
    let record: Rc<OnceCell<PathBuf>> = Rc::default();
    let told = Rc::clone(&record);
    let load = again(args.policy.request(), machine.clone(), &loaded);
    let quiet = args.quiet;
    let ProxyOutcome { summary, notes, .. } = exeat_runner::serve_alone(ProxyRequest {
        listen,
        listen_socks5,
        listen_anywhere: args.listen_anywhere,
        upstream,
        limits: loaded.limits,
        policy: loaded.policy,
        sources: loaded.sources,
        inspected: loaded.inspected,
        load,
        on_reload: Box::new(move |done| match done {
            Ok((digest, notes)) => {
                let weaker = Terms { mode: Mode::Report, ..Terms::default() }.note();
                for note in notes.iter().filter(|note| !quiet || Some(note.as_str()) == weaker) {
                    stdio::line("note", note);
                }
                stdio::line("note", &format!("the policy was read again: {digest}"));
            }
            // The fault may quote its line.
            Err(why) => {
                let exeat = speaker();
                stdio::write_stderr(&format!(
                    "{exeat}: error: the policy stays as it was: {}\n",
                    printable_lines(why)
                ));
            }
        }),
        audit: to,
        audit_sync: loaded.audit_sync,
        signing,
        stage,
        host_env: machine.env,
        on_ready: Box::new(move |at: &str, record: Option<&Path>| {
            let place = record.map(|path| format!("; record: {}", shell_word(&path.display().to_string())));
            let (exeat, place) = (speaker(), place.unwrap_or_default());
            stdio::write_stderr(&format!("{exeat}: listening on {}{place}\n", printable(at)));
            if let Some(path) = record {
                let _ = told.set(path.to_owned());
            }
        }),
    })?;
    for note in &notes {
        stdio::line("note", note);
    }

    if !quiet {
        let record = record.get().map(|path| audit::name_of(path, place.as_ref()));
        let on_denied = exeat_runner::OnDenied::Note;
        stdio::write_stderr(
            &Ending {
                summary: &summary,
                ended: None,
                reason: None,
                record,
                seal: None,
                llm: false,
                on_denied,
            }
            .render(paint),
        );
    }
    Ok(Exit::Yes)
}

/// Lists the parts of a policy that a proxy without a stage does not use.
pub(crate) fn without_stage(composed: &Composed) -> Option<String> {
    let parts = composed.stage_only.join(", ");
    (!parts.is_empty()).then(|| format!("{parts} of the policy: for exeat run; not used here"))
}

/// Reloads the policy, with the same result as a new start with the same arguments.
fn again(policy: PolicyRequest, machine: Machine, first: &Composed) -> LoadPolicy {
    let (once, inspected, next_hop) = (first.once.clone(), first.inspected.clone(), first.next_hop.clone());
    Box::new(move || {
        if let Some(what) = &once {
            return Err(format!("{what} cannot be read again"));
        }
        // A file that has become a pipe would make exeat wait for a writer.
        if let Some(state) = inspected.iter().map(FileState::current).find(FileState::is_special) {
            return Err(format!("`{}` is no file any more", printable(&state.path().display().to_string())));
        }
        let loaded = request::compose(&policy, &machine, false).map_err(|failure| failure.plain_text())?;
        if loaded.next_hop != next_hop {
            return Err("it names another upstream proxy, which takes a new start".into());
        }
        let Composed { policy, sources, inspected, mut notes, .. } = loaded;
        notes.extend(policy.terms().note().map(str::to_owned));
        Ok(Reloaded { policy, sources, inspected, notes })
    })
}
