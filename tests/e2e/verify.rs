//! Verification of records: records of real runs, changed by somebody who wants to hide something.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::audit::sha256_hex;
use e2e::case::{Cases, Cx};
use e2e::wait_for;
use nix::sys::signal::Signal;
use serde_json::Value;
use sha2::{Digest, Sha256};

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("verify::a_run_leaves_a_whole_record", whole);
    list.once("verify::a06_every_edited_line_is_found", edited);
    list.once("verify::a04_a_crash_is_told_from_an_edit", crash);
    list.once("verify::l17_a_killed_run_is_signed_to_its_last_second", killed);
    list.once("verify::a_foreign_tool_checks_the_signature", foreign);
    list.users("verify::the_key_is_hidden_whatever_is_shown", hidden);
    list.users("verify::the_key_comes_from_elsewhere", elsewhere);
    list.once("verify::a_key_that_cannot_be_used_starts_nothing", unusable);
    list.once("verify::another_policy_beside_the_record_is_found", another_policy);
    list.once("verify::a_proxy_signs_too", proxy);
}

/// Makes a run that asks for a granted host and for another, and returns its record.
fn ran(cx: &Cx) -> PathBuf {
    let (good, evil) = (cx.good(), cx.evil());
    cx.write("targets", &format!("{good}:443\n{evil}:443\n{good}:443\n"));
    let done = cx.run(&[&good], [cx.probe(), "ask-all", "targets"]).run();
    done.exits(0);
    done.record().sound();
    done.record_path().expect("a record").to_owned()
}

fn verify(cx: &Cx, path: &str) -> e2e::run::Done {
    cx.exeat_plain(["audit", "verify", path]).run()
}

fn whole(cx: &Cx) {
    let path = ran(cx).display().to_string();
    let done = verify(cx, &path);
    done.exits(0).shows("whole: ").shows("signed to the end by exeat-audit+");
    let text = cx.exeat_plain(["audit", "verify", "--format", "json", &path]).run().stdout();
    let json: serde_json::Value = serde_json::from_str(text.lines().next().expect("a record")).expect("JSON");
    assert_eq!((&json["standing"], &json["ending"]), (&"whole".into(), &"sealed".into()), "{json}");
    assert_eq!(json["lines"], json["covered"], "{json}");
}

/// A06. Each line changed, removed, doubled, moved; with the old chain, and with a new one by somebody without the key.
fn edited(cx: &Cx) {
    let path = ran(cx);
    let text = fs::read_to_string(&path).expect("the record");
    let lines: Vec<String> = text.lines().map(|line| format!("{line}\n")).collect();
    assert!(lines.len() >= 8, "{text}");
    let mut tried = 0;
    let mut found = |lines: &[String], what: &str| {
        for text in [lines.concat(), rechained(lines)] {
            let at = cx.write("edited.jsonl", &text);
            let done = verify(cx, &at.display().to_string());
            done.exits(1).shows("NOT WHOLE");
            tried += 1;
            assert!(!done.stdout().contains("signed to the end"), "{what}: {done:?}");
        }
    };
    for at in 0..lines.len() {
        let mut changed = lines.clone();
        changed[at] = changed[at].replacen("\"mono_us\":", "\"mono_us\":1", 1);
        found(&changed, "changed");
        let mut doubled = lines.clone();
        doubled.insert(at, lines[at].clone());
        found(&doubled, "doubled");
        if at + 1 < lines.len() {
            let mut removed = lines.clone();
            removed.remove(at);
            found(&removed, "removed");
            let mut moved = lines.clone();
            moved.swap(at, at + 1);
            found(&moved, "moved");
        }
    }
    assert!(tried > 50, "{tried}");
    // A chain alone cannot reveal a tail that was cut between two lines, or a missing checkpoint at the end.
    for kept in 1..lines.len() {
        let at = cx.write("cut.jsonl", &lines[..kept].concat());
        verify(cx, &at.display().to_string()).exits(1).shows("not finished: ");
    }
    // The line is named.
    let mut changed = lines.clone();
    let at = lines.iter().position(|line| line.contains("\"verdict\":\"deny\"")).expect("a refusal");
    changed[at] = changed[at].replacen("\"deny\"", "\"allow\"", 1);
    let path = cx.write("edited.jsonl", &changed.concat());
    verify(cx, &path.display().to_string()).exits(1).shows(&format!("line {} was changed", at + 1));
}

fn rechained(lines: &[String]) -> String {
    let mut prev = "0".repeat(64);
    let mut all = String::new();
    for (seq, line) in lines.iter().enumerate() {
        let mut line = line.clone();
        let at = line.find("\"prev\":\"").expect("a chain") + 8;
        line.replace_range(at..at + 64, &prev);
        let (from, to) =
            (line.find("\"seq\":").expect("a number") + 6, line.find(",\"ts\"").expect("a time"));
        line.replace_range(from..to, &seq.to_string());
        prev = sha256_hex(line.as_bytes());
        all.push_str(&line);
    }
    all
}

/// A04: kill -9 in the middle of a run, and a last line that was cut.
fn crash(cx: &Cx) {
    let record = cx.dir().join("killed.jsonl");
    let audit = cx.home().join("killed.jsonl").display().to_string();
    drop(record);
    let words = ["run", "--audit", &audit, "--allow", &cx.good(), "--", "sh", "-c", "echo on; exec sleep 60"];
    let mut live = cx.exeat(words).start();
    live.until_prints("on");
    live.signal(Signal::SIGKILL);
    live.wait();
    let done = verify(cx, &audit);
    done.exits(1)
        .shows("not finished: no end of the run after line 2")
        .shows("lines 1 to 2 are whole and signed");
    let whole = ran(cx);
    let text = fs::read_to_string(&whole).expect("the record");
    let cut = text.len() - text.lines().last().expect("a line").len() / 2;
    let at = cx.write("cut.jsonl", text.get(..cut).expect("ASCII")).display().to_string();
    verify(cx, &at).exits(1).shows("ends in the middle: its writer was stopped there");
}

/// L17: the lines of a killed run are signed, except for those of the last second, and a record that was shortened and
/// rechained is told apart from it.
fn killed(cx: &Cx) {
    let audit = cx.home().join("killed-later.jsonl").display().to_string();
    cx.write("one", &format!("{}:443\n", cx.evil()));
    cx.probe();
    let script =
        "for i in 1 2 3 4 5 6 7 8 9 10 11; do ./probe ask-all one; sleep 0.2; done; echo on; exec sleep 60";
    let mut live = cx.exeat(["run", "--audit", &audit, "--", "sh", "-c", script]).start();
    live.until_prints("on");
    live.signal(Signal::SIGKILL);
    live.wait();
    let text = fs::read_to_string(&audit).expect("the record");
    let lines: Vec<String> = text.lines().map(|line| format!("{line}\n")).collect();
    let values: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let mono = |line: &Value| line["mono_us"].as_u64().expect("a time");
    let last = values.iter().map(mono).max().expect("lines");
    let signed = values.iter().rposition(|line| line["event"] == "checkpoint").expect("a checkpoint");
    let early = values.iter().position(|line| line["event"] == "checkpoint").expect("a checkpoint");
    let first = values.iter().position(|line| line["event"] == "decision").expect("a decision");
    assert!(early < first, "{text}");
    let old = values.iter().skip(signed + 1).filter(|line| last - mono(line) > 1_200_000).count();
    assert!(old == 0 && values.len() > 20, "{old} lines that are not signed are older than a second: {text}");
    let tail = match signed + 1 == lines.len() {
        true => "no end of the run".to_owned(),
        false => {
            format!(
                "unsigned tail: no signature covers lines {} to {}: this part proves nothing",
                signed + 2,
                lines.len()
            )
        }
    };
    verify(cx, &audit).exits(1).shows("not finished: ").shows(&tail);

    // A line is signed even if no other follows.
    let audit = cx.home().join("quiet.jsonl");
    let words = ["run", "--audit", &audit.display().to_string(), "--", "sh", "-c"];
    let script = "./probe ask-all one; exec sleep 60";
    let mut live = cx.exeat(words.into_iter().chain([script])).start();
    live.until_prints("403");
    wait_for(Duration::from_secs(10), "a checkpoint behind the close", || {
        let text = fs::read_to_string(&audit).expect("the record");
        let (close, signed) = (text.rfind("\"event\":\"close\""), text.rfind("\"event\":\"checkpoint\""));
        (close.is_some() && close < signed).then_some(())
    });
    live.signal(Signal::SIGKILL);
    live.wait();

    // Without new lines nothing is signed.
    let idle = cx.sh(&[], "sleep 2.2").run();
    assert_eq!(idle.exits(0).record().events("checkpoint").len(), 2);

    // The refusals of a second were removed, and all checkpoints except the first.
    let mut at = 0;
    let less: Vec<String> = lines
        .into_iter()
        .zip(&values)
        .filter(|(_, line)| {
            at += 1;
            at <= early + 1 || (line["event"] != "checkpoint" && mono(line) > 1_000_000)
        })
        .map(|(line, _)| line)
        .collect();
    let path = cx.write("forged.jsonl", &rechained(&less)).display().to_string();
    let said = format!(
        "lines {} to {} are not signed, and exeat signs each line within a second",
        early + 2,
        less.len()
    );
    verify(cx, &path).exits(1).shows("NOT WHOLE").shows(&said);
}

/// Checks the signature with OpenSSL, and the root with the definition of RFC 6962 section 2.1.
fn foreign(cx: &Cx) {
    let path = ran(cx);
    let text = fs::read_to_string(&path).expect("the record");
    let lines: Vec<String> = text.lines().map(|line| format!("{line}\n")).collect();
    let seal: Value = serde_json::from_str(lines.last().expect("a line")).expect("JSON");
    let entries: Vec<&[u8]> = lines[..lines.len() - 1].iter().map(|line| line.as_bytes()).collect();
    assert_eq!(seal["n"], entries.len());
    let root: String = root(&entries).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(seal["root"], root.as_str());
    let note = seal["signed_note"].as_str().expect("a note");
    let signed = note.split_once("\n\n").expect("a signature").0;
    let at = |name: &str| cx.home().join(name).display().to_string();
    fs::write(at("text"), format!("{signed}\n")).expect("a file");
    let key = cx.exeat_plain(["audit", "key"]).run();
    let vkey = key.exits(0).stdout();
    // NAME+ID+KEY: base64 has a plus sign too.
    let public = vkey.trim().splitn(3, '+').nth(2).expect("a vkey").to_owned();
    let sig = seal["sig"].as_str().expect("a signature");
    let script = format!(
        "set -e; cd {home}; echo '{sig}' | base64 -d > sig; \
         {{ printf '\\060\\052\\060\\005\\006\\003\\053\\145\\160\\003\\041\\000'; echo '{public}' | base64 -d | tail -c 32; }} > key.der; \
         openssl pkey -pubin -inform DER -in key.der -out key.pem; \
         openssl pkeyutl -verify -pubin -inkey key.pem -rawin -in text -sigfile sig; \
         echo x >> text; ! openssl pkeyutl -verify -pubin -inkey key.pem -rawin -in text -sigfile sig",
        home = cx.home().display()
    );
    let done = Command::new("sh").args(["-c", &script]).output().expect("sh");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(String::from_utf8_lossy(&done.stdout).contains("Verified Successfully"), "{done:?}");
    // The same key in PEM, for those without a vkey.
    let pem = at("key.pem");
    let path = path.display().to_string();
    cx.exeat_plain(["audit", "verify", "--key", &pem, &path]).run().exits(0).shows("whole: ");
}

fn root(entries: &[&[u8]]) -> [u8; 32] {
    match entries {
        [] => Sha256::digest([]).into(),
        [one] => Sha256::new().chain_update([0]).chain_update(one).finalize().into(),
        _ => {
            let half = entries.len().next_power_of_two() / 2;
            let (left, right) = (root(&entries[..half]), root(&entries[half..]));
            Sha256::new().chain_update([1]).chain_update(left).chain_update(right).finalize().into()
        }
    }
}

/// The key is hidden from the first run on, and if it is named.
fn hidden(cx: &Cx) {
    let state = cx.home().join(".local/state/exeat");
    let key = state.join("audit.key").display().to_string();
    let show = format!("cat {key}; ls {}; exit 0", state.display());
    let first = cx.exeat_plain(["run", "--fs", "host", "--", "sh", "-c", &show]).run();
    first.exits(0);
    let private = fs::read_to_string(&key).expect("the key");
    let secret = private.lines().nth(1).expect("its text").to_owned();
    assert!(!first.stdout().contains("PRIVATE") && !first.stdout().contains("audit.key"), "{first:?}");
    assert_eq!(fs::metadata(&key).expect("the key").permissions().mode() & 0o777, 0o600);
    let home = cx.home().display().to_string();
    for tree in [&state.display().to_string(), &key, &home] {
        let done = cx.exeat_plain(["run", "--ro", tree, "--", "sh", "-c", &show]).run();
        done.exits(0);
        assert!(!done.stdout().contains(&secret), "{done:?}");
    }
    // The user's key is hidden whichever key signs the run, and wherever its record is.
    let mine = cx.home().join("mine.pem").display().to_string();
    let elsewhere = cx.home().join("elsewhere").display().to_string();
    for tree in [&state.display().to_string(), &key, &home] {
        for other in ["none", &mine] {
            let words = ["run", "--audit-key", other, "--ro", tree, "--", "sh", "-c", &show];
            let done = cx.exeat_plain(words).run();
            done.exits(0);
            assert!(!done.stdout().contains(&secret), "{other}: {done:?}");
        }
        let words = ["run", "--ro", tree, "--", "sh", "-c", &show];
        let done = cx.exeat_plain(words).env("XDG_STATE_HOME", &elsewhere).run();
        done.exits(0);
        assert!(!done.stdout().contains(&secret), "{done:?}");
    }
    // The stage cannot write the neighboring key of the next run, or the one to verify with.
    let record = cx.home().join("outside.jsonl").display().to_string();
    let rw = state.display().to_string();
    let words = ["run", "--audit-key", "none", "--audit", &record, "--rw", &rw, "--", "true"];
    cx.exeat_plain(words).run().exits(2).says("which the stage can write");
    // A hard link would be another name of the key; a key in a directory that the stage can write is refused.
    let done = cx.exeat_plain(["run", "--rw", &state.display().to_string(), "--", "true"]).run();
    assert_ne!(done.code, Some(0), "{done:?}");
    cx.exeat_plain(["run", "--audit-key", "k.pem", "--", "true"])
        .run()
        .exits(2)
        .says("which the stage can write");
    // A refused run leaves no key, in particular not here.
    for name in ["k.pem", "k.pub"] {
        assert!(!cx.dir().join(name).exists(), "{name}");
    }
    let (missing, there) = (cx.home().join("never.pem"), cx.home().join("never.pub"));
    fs::write(&there, "somebody's\n").expect("a file");
    let words = ["run", "--audit-key", &missing.display().to_string(), "--ro", "no-such", "--", "true"];
    cx.exeat_plain(words).run().exits(2);
    assert!(!missing.exists() && there.exists());
}

fn elsewhere(cx: &Cx) {
    let pem = cx.home().join("mine.pem");
    let name = pem.display().to_string();
    // A missing key file is made.
    cx.exeat_plain(["run", "--audit-key", &name, "--", "true"]).run().exits(0);
    let text = fs::read_to_string(&pem).expect("the key");
    let shown = cx.exeat_plain(["run", "--audit-key", &name, "--ro", &name, "--", "cat", &name]).run();
    assert!(!shown.stdout().contains("PRIVATE"), "{shown:?}");
    // Verifies with the vkey of this key, and not with the user's.
    let vkey = cx.exeat_plain(["audit", "key", "--audit-key", &name]).run().stdout();
    let vkey = vkey.trim();
    cx.exeat_plain(["audit", "verify", "--key", vkey]).run().exits(0).shows(vkey);
    // A user without a key gets none from a command that verifies.
    cx.exeat_plain(["audit", "key"]).run().exits(2).says("the first run makes it");
    cx.exeat_plain(["audit", "verify"]).run().exits(125).shows("not proved: signed by ");
    // A key from a variable, which the stage does not have, and which it may not be given.
    let script = "env; cat /proc/1/environ; exit 0";
    let from_env = ["run", "--audit-key", "env:KEY"];
    let done = cx.exeat_plain([&from_env[..], &["--", "sh", "-c", script]].concat()).env("KEY", &text).run();
    done.exits(0);
    assert!(!done.stdout().contains("PRIVATE"), "{done:?}");
    cx.exeat_plain(["audit", "verify", "--key", vkey]).run().exits(0);
    let given =
        cx.exeat_plain([&from_env[..], &["--env", "KEY", "--", "env"]].concat()).env("KEY", &text).run();
    given.exits(2).says("the stage may not have it").prints("");
    // A key from a descriptor, which the stage does not inherit.
    let words = ["run", "--audit-key", "fd:7", "--", "sh", "-c", "cat <&7; exit 0"];
    let done = cx.exeat_plain(words).redirect(&format!("7<{name}")).run();
    done.exits(0);
    assert!(!done.stdout().contains("PRIVATE"), "{done:?}");
    cx.exeat_plain(["audit", "verify", "--key", vkey]).run().exits(0);
    // A run without a key says so, and does not count as complete.
    cx.exeat_plain(["run", "--audit-key", "none", "--", "true"]).run().exits(0);
    cx.exeat_plain(["audit", "verify"]).run().exits(1).shows("nothing signs it");
}

fn unusable(cx: &Cx) {
    let pem = cx.home().join("bad.pem");
    fs::write(&pem, "-----BEGIN PRIVATE KEY-----\nhunter2\n").expect("a file");
    fs::set_permissions(&pem, fs::Permissions::from_mode(0o600)).expect("a mode");
    own(cx, &pem);
    let name = pem.display().to_string();
    let touch = ["--", "sh", "-c", "echo started"];
    let done = cx.exeat_plain([&["run", "--audit-key", &name][..], &touch].concat()).run();
    done.exits(125).prints("").says("is not a private Ed25519 key").says("--audit-key");
    assert!(!done.stderr().contains("hunter2"), "{done:?}");
    fs::set_permissions(&pem, fs::Permissions::from_mode(0o644)).expect("a mode");
    let done = cx.exeat_plain([&["run", "--audit-key", &name][..], &touch].concat()).run();
    done.exits(125).prints("").says("chmod 600");
    let words = [&["run", "--audit-key", "env:NO_SUCH"][..], &touch].concat();
    cx.exeat_plain(words).run().exits(2).prints("").says("there is no such variable");
    let words = [&["run", "--audit-key", "fd:9"][..], &touch].concat();
    cx.exeat_plain(words).run().exits(2).prints("").says("descriptor 9 is not open");
}

/// Gives the trial's user a file that root has written.
fn own(cx: &Cx, path: &Path) {
    use std::os::unix::fs::{MetadataExt, chown};
    let home = fs::metadata(cx.home()).expect("the home");
    chown(path, Some(home.uid()), Some(home.gid())).expect("chown");
}

fn another_policy(cx: &Cx) {
    cx.exeat_plain(["run", "--allow", &cx.good(), "--", "true"]).run().exits(0);
    cx.exeat_plain(["audit", "verify"]).run().exits(0).shows("stored beside it, and the same");
    let place = cx.home().join(".local/state/exeat/runs");
    let policy = fs::read_dir(place).expect("the place").flatten().map(|entry| entry.path());
    let policy = policy.into_iter().find(|path| path.to_string_lossy().ends_with(".policy.json"));
    let policy = policy.expect("a policy");
    let text = fs::read_to_string(&policy).expect("the policy");
    fs::write(&policy, text.replace(&cx.good(), "other.example")).expect("the policy");
    cx.exeat_plain(["audit", "verify"]).run().exits(1).shows("is not the one with the digest");
    fs::remove_file(&policy).expect("the policy");
    cx.exeat_plain(["audit", "verify"]).run().exits(0).shows("not stored beside it, not compared");
}

fn proxy(cx: &Cx) {
    let socket = cx.home().join("p.sock").display().to_string();
    let audit = cx.home().join("proxy.jsonl").display().to_string();
    let words = ["proxy", "--listen", &format!("unix:{socket}"), "--allow", &cx.good(), "--audit", &audit];
    let live = cx.exeat_plain(words).start();
    wait_for(Duration::from_secs(10), "the proxy's socket", || Path::new(&socket).exists().then_some(()));
    live.signal(Signal::SIGTERM);
    live.wait().exits(0);
    verify(cx, &audit).exits(0).shows("whole: 4 lines");
}
