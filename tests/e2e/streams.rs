//! The stage's own streams, and the bytes of its tunnels.

use std::sync::atomic::Ordering;
use std::time::Duration;

use e2e::case::{Cases, Cx};
use e2e::wait_for;

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("streams::stdin_to_stdout_is_binary", binary);
    list.matrix("streams::each_stream_is_its_own", each_is_its_own);
    list.bridges("streams::a_pipe_stays_a_pipe", kinds);
    list.users("streams::a_policy_on_stdin_leaves_it_empty", policy_on_stdin);
    list.bridges("streams::started_with_closed_streams", closed_streams);
    list.bridges("streams::early_close_ends_the_stage", early_close);
    list.bridges("streams::output_comes_at_once", at_once);
    list.matrix("streams::p21_client_closes_first", client_closes);
    list.matrix("streams::p21_server_closes_first", server_closes);
    list.bridges("streams::p21_a_reset_stays_a_reset", reset);
    list.bridges("streams::p04_early_bytes_arrive", early_bytes);
    list.bridges("streams::echo_megabytes", echo_megabytes);
    list.bridges("streams::head_byte_by_byte", head_byte_by_byte);
    list.bridges("streams::p20_huge_head", huge_head);
    list.bridges("streams::p20_many_fields", many_fields);
    list.bridges("streams::p19_slow_head", slow_head);
}

fn binary(cx: &Cx) {
    let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let done = cx.run(&[], ["cat"]).stdin(bytes.clone()).run();
    done.exits(0).silent();
    assert!(done.raw_stdout == bytes, "{} of {} bytes came back", done.raw_stdout.len(), bytes.len());
}

fn each_is_its_own(cx: &Cx) {
    let done = cx
        .sh(&[], "read line; echo \"out $line\"; echo \"err $line\" >&2; exit 4")
        .stdin("word\nrest\n")
        .run();
    done.exits(4).prints("out word\n");
    assert_eq!(done.stderr(), "err word\n");
}

fn kinds(cx: &Cx) {
    let probe = cx.probe();
    let script = format!("{probe} fd-kind 0; {probe} fd-kind 1; {probe} fd-kind 2");
    cx.sh(&[], &script).stdin("x").run().prints("pipe\npipe\npipe\n");
    let file = cx.write("out", "");
    let done = cx.sh(&[], &script).redirect(&format!(">>{} 2>&1", file.display())).run();
    done.exits(0).prints("");
    assert_eq!(std::fs::read_to_string(&file).expect("out"), "device\nfile\nfile\n");
}

/// N25: a policy on stdin is not the stage's input. One without rules allows nothing.
fn policy_on_stdin(cx: &Cx) {
    let words =
        |command: &str| ["run", "--policy", "-", "--", "sh", "-c", command].map(str::to_string).to_vec();
    let policy = format!("[network]\nallow = [\"{}:7\"]\n", cx.good());
    let ask = format!("cat; {} ask {}:7", cx.probe(), cx.good());
    let done = cx.exeat(words(&ask)).stdin(policy.clone()).run();
    assert!(done.exits(0).stdout().starts_with("HTTP/1.1 200 "), "{done:?}");
    cx.exeat(words(&ask)).stdin("schema = 1\n").run().exits(0).shows("HTTP/1.1 403 ");
    // What was to write it may have failed.
    for empty in ["", " \n"] {
        cx.exeat(words(&ask)).stdin(empty).run().exits(2).says("is empty");
    }
    cx.exeat(["run", "--", "cat"]).stdin(policy.clone()).run().exits(0).prints(&policy);
}

/// exeat must not reuse descriptors that the caller has closed, or the record would go to the stage's output.
fn closed_streams(cx: &Cx) {
    let made = cx.dir().join("made");
    cx.sh(&[&cx.good()], "echo here >made").redirect("0<&- 1>&- 2>&-").run().exits(0);
    assert_eq!(std::fs::read_to_string(&made).expect("made"), "here\n");
    let ask = format!("ask {}:443", cx.evil());
    cx.probing(&[&cx.good()], &ask).redirect("0<&- 2>&-").run().exits(0).shows("HTTP/1.1 403 ");
}

/// `exeat run -- yes | head -n 1` ends, as it does without exeat.
fn early_close(cx: &Cx) {
    let exeat = cx.bench().bin.join("exeat").display().to_string();
    let script = format!("{exeat} run -- yes | head -n 1");
    cx.exeat(["x"])
        .under(["sh", "-c", &script])
        .deadline(Duration::from_secs(20))
        .run()
        .exits(0)
        .prints("y\n");
}

/// A line arrives while the stage still runs.
fn at_once(cx: &Cx) {
    let mut live =
        cx.sh(&[], "echo first; read line; echo \"then $line\"; exec sleep 1000").stdin("more\n").start();
    live.until_prints("first\n").until_prints("then more\n");
    assert!(!live.ended());
    live.signal(nix::sys::signal::Signal::SIGTERM);
    live.wait().exits(143);
}

/// K50.
fn client_closes(cx: &Cx) {
    let good = cx.good();
    let done = cx.probing(&[&format!("{good}:9003")], &format!("client-closes {good}:9003 100000")).run();
    done.exits(0).prints("got 100000\n");
    let log = done.record();
    let close = log.close_of(log.decision(&good));
    assert_eq!((&close["bytes_up"], &close["bytes_down"]), (&100_000.into(), &11.into()), "{close}");
}

fn server_closes(cx: &Cx) {
    let good = cx.good();
    let done = cx.probing(&[&format!("{good}:9002")], &format!("server-closes {good}:9002")).run();
    done.exits(0).prints("bye\n");
    let (v4, v6) = cx.good_addrs();
    let visits: Vec<_> = [v4, v6].iter().flat_map(|addr| cx.bench().internet.visits(*addr)).collect();
    wait_for(Duration::from_secs(5), "the end of the stream at the origin", || {
        visits[0].eof.load(Ordering::SeqCst).then_some(())
    });
    assert_eq!(visits[0].bytes.load(Ordering::SeqCst), 25, "what the client sent after the server's end");
}

/// A broken stream must not look finished, and a refusal is not a broken stream.
fn reset(cx: &Cx) {
    let good = cx.good();
    let probe = cx.probe();
    let ends = |target: &str| format!("{probe} end-of {target}");
    let script = [
        ends(&format!("{good}:9004")),
        ends(&format!("{good}:5432")),
        ends(&format!("{}:443", cx.evil())),
        ends("nonsense"),
    ];
    let done = cx.sh(&[&format!("{good}:9004")], &script.join("; ")).run();
    done.exits(0).prints("200 ECONNRESET\n403 end\n403 end\n400 end\n");
}

fn early_bytes(cx: &Cx) {
    let good = cx.good();
    cx.probing(&[&format!("{good}:7")], &format!("early {good}:7")).run().exits(0).prints("early bird\n");
}

/// K26.
fn echo_megabytes(cx: &Cx) {
    let good = cx.good();
    cx.probing(&[&format!("{good}:7")], &format!("echo {good}:7 5000000"))
        .run()
        .exits(0)
        .prints("ok: 5000000\n");
}

fn head_byte_by_byte(cx: &Cx) {
    let good = cx.good();
    cx.probing(&[&format!("{good}:7")], &format!("split-head {good}:7")).run().exits(0).prints("ok: 64\n");
}

fn huge_head(cx: &Cx) {
    let good = cx.good();
    let probe = cx.probe();
    let script = format!(
        "{probe} huge-head {good}:443 20000; {probe} huge-head {good}:443 40000; {probe} huge-head {good}:443 3000000"
    );
    let done = cx.sh(&[&good], &script).run();
    let said = done.stdout();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("HTTP/1.1 200 "), "20 kB are fine: {done:?}");
    assert!(lines[1].starts_with("HTTP/1.1 431 "), "{done:?}");
    assert!(lines[2].starts_with("HTTP/1.1 431 "), "{done:?}");
}

fn many_fields(cx: &Cx) {
    let good = cx.good();
    let probe = cx.probe();
    let done = cx
        .sh(&[&good], &format!("{probe} many-fields {good}:443 90; {probe} many-fields {good}:443 200"))
        .run();
    let said = done.stdout();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("HTTP/1.1 200 ") && lines[1].starts_with("HTTP/1.1 431 "), "{done:?}");
}

/// A single deadline covers the whole head, even if bytes keep arriving.
fn slow_head(cx: &Cx) {
    let good = cx.good();
    let done = cx.probing(&[&good], &format!("slow-head {good}:443")).run();
    let said = done.stdout();
    let after: u64 = said.split(' ').nth(2).and_then(|word| word.parse().ok()).unwrap_or(99);
    assert!(!said.starts_with("still open") && (5..=15).contains(&after), "{done:?}");
    assert!(cx.bench().internet.visits(cx.good_addrs().0).is_empty());
}
