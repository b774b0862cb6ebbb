use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exeat_compose::{Fault, Position};
use exeat_policy::Reason;
use exeat_record::{Proto, RunId};
use exeat_runner::{
    ConnectionSummary, DeniedHost, Ended, FailedHost, Leftover, Leftovers, Outcome, Reached, ReachedHost,
};

use super::*;
use crate::exit::Exit;

fn outcome(ended: Ended) -> Outcome {
    let run: RunId = "01JD8Z3V5QABCDEFGHJKMNPQRS".parse().unwrap();
    let summary = ConnectionSummary {
        denied: vec![DeniedHost {
            host: "wiki.corp.example".into(),
            port: 443,
            proto: Proto::Tcp,
            reason: Reason::PrivateIp,
            said: "resolves to 10.2.3.4 (private)".into(),
            count: 2,
            flag: Some("--allow 10.2.3.4:443 --allow [fd00::1]:443".into()),
            refused_by: None,
            rule_src: None,
            programs: Vec::new(),
        }],
        reached: 1,
        reached_hosts: vec![ReachedHost {
            host: "b.example".into(),
            port: 443,
            connections: 3,
            bytes_up: 10,
            bytes_down: 2000,
            open: 0,
        }],
        failed: vec![FailedHost {
            host: "a.example".into(),
            port: 443,
            reason: Reason::ResolveError,
            said: "DNS: no such name".into(),
            count: 1,
        }],
        ..ConnectionSummary::default()
    };
    let audit = Some("/state/run.jsonl".into());
    let why_not =
        matches!(ended, Ended::NotFound | Ended::NotExecutable).then(|| "no such command".to_owned());
    Outcome {
        run,
        ended,
        why_not,
        summary,
        through: None,
        backend: "bwrap",
        backend_why: Some("bubblewrap works here".into()),
        audit,
        sealed: Some(exeat_runner::Sealed { lines: 19, root: "cd".repeat(32) }),
        ledger: Some(exeat_runner::Head { ledger: "1a2b3c4d-00ff".into(), no: 7, sha256: "ab".repeat(32) }),
        found: Leftovers::default(),
        uncovered: Vec::new(),
        uncovered_why: None,
        record_lost: None,
        duration: Duration::from_millis(1500),
        stage: Some("train".into()),
        labels: vec![("task".into(), "7".into())],
        notes: Vec::new(),
    }
}

#[test]
fn b12_the_result_lists_moved_names_and_left_names_separately() {
    let mut outcome = outcome(Ended::Exit(0));
    let error = io::Error::from_raw_os_error(1);
    outcome.found.named = vec![
        Leftover { path: "/w/.envrc".into(), moved: Ok("/w/.exeat-quarantine/RUN/.envrc".into()) },
        Leftover { path: "/w/.vscode".into(), moved: Err(error) },
    ];
    let text = serde_json::to_string(&RunResult::from_outcome(&outcome)).unwrap();
    let told = r#""quarantined":[{"path":"/w/.envrc","moved":"/w/.exeat-quarantine/RUN/.envrc"}],"left":[{"path":"/w/.vscode","error":"operation not permitted"}],"audit""#;
    assert!(text.contains(told), "{text}");
    (outcome.found.more_moved, outcome.found.more_left) = (7, 3);
    let text = serde_json::to_string(&RunResult::from_outcome(&outcome)).unwrap();
    assert!(
        text.contains(r#"],"quarantined_more":7,"left":["#) && text.contains(r#"],"left_more":3,"#),
        "{text}"
    );
}

/// B12: of a run that was lost after its start too.
#[test]
fn b12_the_result_of_a_lost_run_lists_the_moved_names() {
    let Outcome { run, audit, .. } = outcome(Ended::Exit(0));
    let found =
        vec![Leftover { path: "/w/.envrc".into(), moved: Ok("/w/.exeat-quarantine/RUN/.envrc".into()) }];
    let lost = exeat_runner::RunLost {
        run,
        error: exeat_runner::Error::Prepare { what: "the terminal", source: io::Error::from_raw_os_error(5) },
        audit,
        found: Leftovers { named: found, ..Leftovers::default() },
        notes: Vec::new(),
    };
    let failure = Failure::from(exeat_runner::Error::RunLost(Box::new(lost)));
    assert_eq!(failure.plain_text(), "cannot prepare the terminal: input/output error");
    let text = serde_json::to_string(&of_failure(&failure)).unwrap();
    for part in [
        r#""run":"01JD8Z3V5QABCDEFGHJKMNPQRS","cause":"setup","code":125,"error":"#,
        r#""quarantined":[{"path":"/w/.envrc","moved":"/w/.exeat-quarantine/RUN/.envrc"}],"audit":"/state/run.jsonl""#,
    ] {
        assert!(text.contains(part), "{text}");
    }
}

/// D11: what left the proxy out has its protocol, and what has no port the port 0.
#[test]
fn an_attempt_without_the_proxy_has_its_protocol() {
    let mut outcome = outcome(Ended::Exit(0));
    for denied in &mut outcome.summary.denied {
        (denied.port, denied.proto) = (0, Proto::Other(132));
    }
    let text = serde_json::to_string(&RunResult::from_outcome(&outcome)).unwrap();
    assert!(text.contains(r#""host":"wiki.corp.example","port":0,"proto":"132","reason""#), "{text}");
}

#[test]
fn the_object_of_the_reference() {
    let text = |result: &RunResult<'_>| serde_json::to_string(result).unwrap();
    insta::assert_snapshot!(text(&RunResult::from_outcome(&outcome(Ended::Exit(1)))), @r#"{"schema":1,"run":"01JD8Z3V5QABCDEFGHJKMNPQRS","cause":"exit","code":1,"duration_ms":1500,"stage":"train","labels":{"task":"7"},"backend":"bwrap","backend_why":"bubblewrap works here","reached":[{"host":"b.example","port":443,"connections":3,"bytes_up":10,"bytes_down":2000}],"denied":[{"host":"wiki.corp.example","port":443,"reason":"private_ip","count":2,"allow":["10.2.3.4:443","[fd00::1]:443"]}],"failed":[{"host":"a.example","port":443,"reason":"resolve_error","error":"DNS: no such name","count":1}],"audit":"/state/run.jsonl","checkpoint":{"n":19,"root":"cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd"},"ledger":{"name":"1a2b3c4d-00ff","no":7,"sha256":"abababababababababababababababababababababababababababababababab"}}"#);
    insta::assert_snapshot!(text(&of_failure(&Failure::input("x"))), @r#"{"schema":1,"run":null,"cause":"policy","code":2,"error":"x","reached":[],"denied":[],"failed":[],"audit":null,"checkpoint":null,"ledger":null}"#);
    let place = |line, error: &str, meant: Option<&str>| Position {
        file: "p.toml".into(),
        line,
        column: line,
        error: error.into(),
        meant: meant.map(Into::into),
    };
    let mut fault =
        Fault::input("two faults").at(vec![place(Some(3), "no key `x`", Some("y")), place(None, "z", None)]);
    fault.hint = Some("look".into());
    insta::assert_snapshot!(text(&of_failure(&Failure::Fault(fault))), @r#"{"schema":1,"run":null,"cause":"policy","code":2,"error":"two faults","hint":"look","faults":[{"file":"p.toml","line":3,"column":3,"error":"no key `x`","meant":"y"},{"file":"p.toml","error":"z"}],"reached":[],"denied":[],"failed":[],"audit":null,"checkpoint":null,"ledger":null}"#);
    let meant = Failure::could("x").hint("probably meant: y");
    assert!(text(&of_failure(&meant)).contains(r#""error":"x","meant":"y","reached""#));
    for (ended, expect) in [
        (Ended::Signal(9), r#""cause":"signal","signal":"SIGKILL","signal_number":9,"code":137,"#),
        (Ended::Timeout, r#""cause":"timeout","code":124,"#),
        (Ended::Limit(Reached::Pids(7)), r#""cause":"limit","limit":"pids","code":137,"#),
        (Ended::NotFound, r#""cause":"setup","code":127,"error":"no such command","#),
        (Ended::NotExecutable, r#""cause":"setup","code":126,"error":"no such command","#),
    ] {
        assert!(text(&RunResult::from_outcome(&outcome(ended))).contains(expect), "{ended:?}");
    }
    assert!(text(&of_failure(&Failure::could("x"))).contains(r#""cause":"setup","code":125,"#));
}

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("exeat-result-{}-{name}", std::process::id()));
    fs::create_dir(&dir).unwrap();
    dir
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_old_result_is_gone_before_the_run_and_a_new_one_there_after_it() {
    let dir = scratch("old");
    let place = dir.join("r.json");
    for other in ["old", "[run]\nstage = \"x\"\n", "{}", "{\"schema\":1}"] {
        fs::write(&place, other).unwrap();
        let failure = Sink::open(&Output::File(dir.join("r.json"))).expect_err(other);
        assert_eq!(failure.exit(), Exit::BadInput);
        assert_eq!(fs::read_to_string(&place).unwrap(), other);
    }
    fs::write(&place, serde_json::to_vec(&of_failure(&Failure::input("x"))).unwrap()).unwrap();
    let sink = Sink::open(&Output::File(dir.join("r.json"))).unwrap();
    assert!(!place.exists());
    sink.write(&of_failure(&Failure::input("x"))).unwrap();
    assert!(fs::read_to_string(&place).unwrap().ends_with("}\n"));
    assert_eq!(names(&dir), ["r.json"]);
    fs::remove_dir_all(&dir).unwrap();
}

/// A stage may write where the result goes: it must gain nothing outside, and its own text must not pass for ours.
#[test]
fn writes_the_result_without_following_links_that_a_stage_made() {
    let dir = scratch("link");
    let (out, precious) = (dir.join("out"), dir.join("precious"));
    fs::create_dir(&out).unwrap();
    fs::write(&precious, "mine").unwrap();
    let sink = Sink::open(&Output::File(dir.join("out/r.json"))).unwrap();
    // During the run: a link to a file of the user's.
    std::os::unix::fs::symlink(&precious, out.join("r.json")).unwrap();
    sink.write(&of_failure(&Failure::input("x"))).unwrap();
    assert_eq!(fs::read_to_string(&precious).unwrap(), "mine");
    assert!(fs::symlink_metadata(out.join("r.json")).unwrap().is_file());

    // A whole directory replaced by a link: the result stays in the directory that was opened.
    let sink = Sink::open(&Output::File(dir.join("out/r.json"))).unwrap();
    let (moved, elsewhere) = (dir.join("moved"), dir.join("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    fs::rename(&out, &moved).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &out).unwrap();
    sink.write(&of_failure(&Failure::input("x"))).unwrap();
    assert!(moved.join("r.json").exists() && !elsewhere.join("r.json").exists());
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_place_that_cannot_be_written_is_said_before_the_run() {
    let dir = scratch("bad");
    for path in ["missing/r.json", ".", "r.json/"] {
        fs::create_dir_all(dir.join("r.json")).unwrap();
        let failure = Sink::open(&Output::File(dir.join(path))).expect_err(path);
        assert_eq!(failure.exit(), Exit::BadInput, "{path}");
    }
    assert!(matches!(
        Sink::open(&Output::File("/dev/null".into())),
        Ok(Sink { output: place::Output::Stream(_), .. })
    ));
    fs::remove_dir_all(&dir).unwrap();
}

/// L17: the last line on standard error ends with what the record and the ledger end with, as a comment.
#[test]
fn l17_the_last_line_has_the_root_and_the_ledger() {
    let outcome = outcome(Ended::Exit(1));
    let ending = crate::render::Ending {
        summary: &outcome.summary,
        ended: Some(outcome.ended),
        reason: None,
        record: Some("01JD8Z3V5Q".into()),
        seal: crate::render::seal(&outcome),
        llm: false,
        on_denied: exeat_runner::OnDenied::Note,
    };
    let text = ending.render(crate::terminal::Paint::PLAIN);
    let line =
        "exeat: record: exeat audit show 01JD8Z3V5Q  # root cdcdcdcdcdcdcdcd, ledger 7 abababababababab\n";
    assert!(text.ends_with(line), "{text}");
}
