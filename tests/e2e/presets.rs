//! A preset's client is asked before a run: the messages and the cost. The client is a stand-in.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use e2e::case::{Cases, Cx};
use e2e::run::Done;

pub(crate) fn cases(list: &mut Cases) {
    list.users("presets::reports_missing_answers_of_a_client_last", reports_last);
    list.once("presets::a_second_question_costs_less_than_5_ms", second_question);
}

/// Makes a directory for PATH with an `npm` that asks for one host and exits with this code.
fn client(cx: &Cx, code: u8) -> String {
    let dir = cx.home().join("tools");
    fs::create_dir_all(&dir).expect("a directory");
    let npm = dir.join("npm");
    let script =
        format!("#!/bin/sh\ncurl -sk --max-time 5 -o /dev/null https://{}/\nexit {code}\n", cx.good());
    fs::write(&npm, script).expect("the stand-in");
    for place in [&dir, &npm] {
        fs::set_permissions(place, fs::Permissions::from_mode(0o755)).expect("its mode");
    }
    format!("{}:/usr/bin:/bin", dir.display())
}

fn run(cx: &Cx, path: &str, words: &[&str]) -> Done {
    cx.exeat([&["run"], words].concat()).env("PATH", path).run()
}

/// Users look at the end: the line comes after the refusals, and is in the record.
fn reports_last(cx: &Cx) {
    let path = client(cx, 1);
    let script = format!("echo started >&2; curl -sS https://{}/", cx.evil());
    let done = run(cx, &path, &["-p", "npm", "--", "sh", "-c", &script]);
    let said = done.stderr();
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("exeat: note: preset `npm`: hosts may be missing"), "{said}");
    assert_eq!(said.matches("hosts may be missing").count(), 1, "{said}");
    let log = done.record();
    let notes = log.events("note");
    let missing: Vec<_> = notes.iter().filter(|note| note["what"] == "hosts_missing").collect();
    assert_eq!(missing.len(), 1, "{notes:?}");
    assert!(
        missing[0]["error"].as_str().is_some_and(|why| why.contains("the client could not fetch")),
        "{missing:?}"
    );

    // With `--quiet` only the record has the message; a plan prints it with the others.
    let done = run(cx, &path, &["--quiet", "-p", "npm", "--", "true"]);
    assert!(done.exits(0).record().events("note").iter().any(|note| note["what"] == "hosts_missing"));
    assert!(!done.stderr().contains("hosts may be missing"), "{done:?}");
    let plan = ["--dry-run", "-p", "npm", "--", "true"];
    // The client is asked once in ten minutes, until somebody asks it.
    let earlier = " s ago; `exeat preset npm --ask` forgets that and asks again)";
    run(cx, &path, &plan).exits(0).says("hosts may be missing").says(earlier);
    cx.exeat(["preset", "npm", "--ask"]).env("PATH", &path).run().exits(0);
    let done = run(cx, &path, &["--deny", "x.test", "-p", "npm", "--", "true"]);
    assert!(!done.exits(0).says("hosts may be missing").stderr().contains(earlier), "{done:?}");
    // If the client succeeds, exeat reports no missing hosts.
    let path = client(cx, 0);
    let done = run(cx, &path, &["-p", "npm", "--", "true"]);
    assert!(!done.exits(0).stderr().contains("may be missing"), "{done:?}");
    assert!(done.record().events("note").iter().all(|note| note["what"] != "hosts_missing"));
}

/// Compares the fastest of many runs with the preset with the fastest of as many without, in turns: the machine may be
/// busy.
fn second_question(cx: &Cx) {
    // Without optimization the additional walk of the view takes about four times as long.
    const MOST: Duration = Duration::from_millis(if cfg!(debug_assertions) { 20 } else { 5 });
    let path = client(cx, 0);
    let timed = |words: &[&str]| {
        let done = run(cx, &path, &[words, &["--", "true"]].concat());
        done.exits(0);
        done.took
    };
    let first = timed(&["-p", "npm"]);
    let mut least = [Duration::MAX; 2];
    let end = Instant::now() + Duration::from_secs(60);
    let mut pairs = 0;
    let costs = loop {
        for (least, words) in least.iter_mut().zip([&[][..], &["-p", "npm"]]) {
            *least = timed(words).min(*least);
        }
        pairs += 1;
        let costs = least[1].saturating_sub(least[0]);
        if (pairs >= 20 && costs < MOST) || Instant::now() > end {
            break costs;
        }
    };
    println!("a second -p npm costs {costs:?} ({least:?}, {pairs} pairs); the first run took {first:?}");
    assert!(costs < MOST, "{costs:?} after {pairs} pairs: {least:?}; the first took {first:?}");
}
