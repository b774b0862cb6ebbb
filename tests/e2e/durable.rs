//! The record on its disk: nothing is dialed before it is written, and no answered request is lost.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::audit::AuditLog;
use e2e::case::{Cases, Cx};
use e2e::run::{Done, Run};
use e2e::{rounds, wait_for};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;

pub(crate) fn cases(list: &mut Cases) {
    list.bridges("durable::a06_a_record_that_is_not_where_it_was_ends", moved_record);
    list.users("durable::a05_a_size_limit_ends_the_record_and_not_exeat", size_limit);
    list.users("durable::l17_a_record_on_a_full_disk_has_its_end", full_disk);
    list.root("durable::a05_a_disk_that_becomes_read_only", read_only);
    list.once("durable::each_line_is_on_the_disk_where_that_is_asked_for", synced);
    list.bridges("durable::a08_a_flood_of_refusals_is_folded_exactly", flood);
    list.bridges("durable::l16_a_full_record_lets_the_run_go_on", full_record);
    list.once("durable::a05_a_flood_without_a_record_is_refused_as_such", flood_without_record);
    list.users("durable::a07_nothing_that_was_answered_is_lost_by_kill_9", kill_in_a_loop);
    list.bridges("durable::l17_after_kill_9_the_record_has_what_was_sent", kill_in_an_upload);
    list.users("durable::a06_the_lock_goes_with_a_run_that_is_killed", killed_writer);
}

/// Returns a stage that asks for the granted name once, waits, and makes three more requests, one not granted.
fn two_parts<'a>(cx: &'a Cx, record: &Path) -> Run<'a> {
    let good = cx.good();
    cx.write("before", &format!("{good}:7\n"));
    cx.write("after", &format!("{good}:7\n{}:7\n{good}:7\n", cx.evil()));
    let script = "./probe ask-all before; until test -e go; do sleep 0.02; done; ./probe ask-all after";
    cx.probe();
    let rule = format!("{good}:7");
    let record = record.display().to_string();
    cx.exeat(["run", "--audit", &record, "--allow", &rule, "--", "sh", "-c", script])
}

/// Starts the run, changes its record between the parts, and returns the ended run.
fn interrupted(cx: &Cx, run: Run<'_>, change: impl FnOnce(u32)) -> Done {
    let _ = fs::remove_file(cx.dir().join("go"));
    let before = cx.bench().internet.count();
    let mut live = run.start();
    live.until_prints("200");
    change(live.pid().as_raw().cast_unsigned());
    cx.write("go", "");
    let done = live.wait();
    // Granted and other hosts are refused; the run's exit code is its stage's.
    done.exits(0).prints("200\n503\n503\n503\n");
    let (v4, v6) = cx.good_addrs();
    let visits = cx.bench().internet.since(before);
    let dialed = visits.iter().filter(|visit| [v4, v6].contains(&visit.to.ip())).count();
    assert_eq!(dialed, 1, "{visits:?}");
    done
}

/// After the record is rotated, removed, replaced, emptied or written to, nothing is dialed, and the end of the run
/// says why.
fn moved_record(cx: &Cx) {
    type Change = fn(&Path);
    let aside = |path: &Path| path.with_extension("jsonl.1");
    let in_its_place =
        "the record stopped earlier: the file was renamed or removed, and another one is in its place";
    let changes: [(&str, Change); 6] = [
        ("the record stopped earlier: the file was renamed", |path| {
            fs::rename(path, path.with_extension("jsonl.1")).expect("rename");
        }),
        ("the record stopped earlier: the file was removed", |path| fs::remove_file(path).expect("remove")),
        (in_its_place, |path| {
            fs::rename(path, path.with_extension("jsonl.1")).expect("rename");
            fs::write(path, "").expect("a new file");
        }),
        (in_its_place, |path| {
            // Editors save like this: a new file with the same lines.
            let copy = path.with_extension("new");
            fs::copy(path, &copy).expect("copy");
            fs::rename(copy, path).expect("rename");
        }),
        ("something else wrote to the file or truncated it", |path| {
            fs::copy(path, path.with_extension("jsonl.1")).expect("copy");
            OpenOptions::new().write(true).truncate(true).open(path).expect("copytruncate");
        }),
        ("something else wrote to the file or truncated it", |path| {
            let mut file = OpenOptions::new().append(true).open(path).expect("open");
            file.write_all(b"{}\n").expect("append");
        }),
    ];
    for (number, (words, change)) in changes.into_iter().enumerate() {
        let record = cx.home().join(format!("record-{number}.jsonl"));
        let mut whole = Vec::new();
        let done = interrupted(cx, two_parts(cx, &record), |_| {
            // The close of the first connection is the last line so far.
            wait_for(Duration::from_secs(5), "the close", || {
                whole = fs::read(&record).expect("the record");
                whole.windows(7).any(|it| it == b"\"close\"").then_some(())
            });
            change(&record);
        });
        done.says(words);
        for left in [&record, &aside(&record)] {
            let left = fs::read(left).unwrap_or_default();
            assert!(left.len() <= whole.len() + 3, "lines after the change: {words}");
        }
    }
}

/// With a limit on the size of files (`ulimit -f`, in blocks of 512 bytes), its signal would end exeat without a
/// message.
fn size_limit(cx: &Cx) {
    let good = cx.good();
    cx.write("targets", &format!("{good}:7\n").repeat(200));
    let before = cx.bench().internet.count();
    let run = cx.probing(&[&format!("{good}:7")], "ask-all targets");
    let done = run.under(["sh", "-c", "ulimit -f 256; exec \"$@\"", "sh"]).run();
    done.exits(0).says("the file may not be larger than 131072 bytes");
    let said = done.stdout();
    let answers: Vec<&str> = said.lines().collect();
    let served = answers.iter().take_while(|answer| **answer == "200").count();
    assert!(served > 0 && answers[served..].iter().all(|answer| *answer == "503"), "{answers:?}");
    let (v4, v6) = cx.good_addrs();
    let visits = cx.bench().internet.since(before);
    let dialed = visits.iter().filter(|visit| [v4, v6].contains(&visit.to.ip())).count();
    assert!(served < 200 && dialed <= served, "{dialed} connections for {answers:?}");
    // No line is written in part.
    let text = fs::read(done.record_path().expect("a record")).expect("the record");
    assert!(text.len() <= 131_072 && text.ends_with(b"\n"), "{} bytes", text.len());
    let log = done.record();
    let allowed = log.events("decision").into_iter().filter(|it| it["verdict"] == "allow").count();
    assert_eq!((allowed, log.events("close").len()), (served, served));
    assert_eq!(log.events("run_end")[0]["errors"], 200 - served as u64);
    let record = done.record_path().expect("a record").display().to_string();
    cx.exeat_plain(["audit", "verify", &record]).run().exits(0).shows("whole: ");
    // A limit that is too small even for a sandbox has a message, too.
    let run = cx.probing(&[], "ask-all targets").under(["sh", "-c", "ulimit -f 8; exec \"$@\"", "sh"]);
    run.run().exits(125).says("file too large");
}

/// L17: when the disk fills up during a run, new connections are refused, but open ones get their close, and the
/// record its end.
fn full_disk(cx: &Cx) {
    let (place, copy) = (cx.home().join("small"), cx.home().join("copy.jsonl"));
    fs::create_dir(&place).expect("a mount point");
    let good = cx.good();
    cx.write("targets", &format!("{good}:7\n").repeat(400));
    cx.probe();
    let _ = fs::remove_file(cx.dir().join("go"));
    let script = format!(
        "sleep 100 | ./probe hold {good}:7 20 & until test -e go; do sleep 0.02; done; ./probe ask-all targets"
    );
    let (record, rule) = (place.join("record.jsonl").display().to_string(), format!("{good}:7"));
    let after =
        format!("\"$@\"; code=$?; cp {record} {}; stat -c 'blocks %b' {record}; exit $code", copy.display());
    let mount = format!("mount -t tmpfs -o size=1m,mode=1777 none {}", place.display());
    let run = cx.exeat(["run", "--audit", &record, "--allow", &rule, "--", "sh", "-c", &script]);
    let mut live = run.under(["sh", "-c", &after, "sh"]).in_mounts(&mount).start();
    live.until_prints("holding 20");
    let fill = format!("cat /dev/zero >{}/filler", place.display());
    let pid = live.pid().to_string();
    Command::new("nsenter").args(["-m", "-t", &pid, "sh", "-c", &fill]).output().expect("nsenter");
    cx.write("go", "");
    let done = live.wait();
    done.exits(0).says("there was no space for more of the record (no space left on device");
    let said = done.stdout();
    let answered = |status: &str| said.lines().filter(|line| *line == status).count() as u64;
    assert!(answered("200") > 0 && answered("503") > 200, "{said}");
    assert_eq!(answered("200") + answered("503"), 400);
    let log = AuditLog::read(&copy);
    let end = log.events("run_end")[0];
    assert_eq!((&end["allowed"], &end["errors"]), (&(answered("200") + 20).into(), &answered("503").into()));
    assert_eq!((log.events("close").len() as u64, &end["dropped"]), (answered("200") + 20, &0.into()));
    assert_eq!(log.events("note")[0]["what"], "no_room");
    // In blocks of 512 bytes: the reserve for the end has been freed.
    let blocks: u64 =
        said.lines().find_map(|line| line.strip_prefix("blocks ")?.parse().ok()).expect("a number");
    let size = fs::metadata(&copy).expect("the copy").len();
    assert!(blocks * 512 <= size.next_multiple_of(4096), "{blocks} blocks for {size} bytes");
    cx.exeat_plain(["audit", "verify", &copy.display().to_string()]).run().exits(0).shows("whole: ");
}

/// A disk with an open record cannot be made read-only; if the kernel does so after an error, the record counts as
/// unwritable.
fn read_only(cx: &Cx) {
    let (image, place) = (cx.home().join("image"), cx.home().join("disk"));
    fs::create_dir(&place).expect("a mount point");
    fs::write(&image, "").expect("image");
    fs::File::options().write(true).open(&image).expect("image").set_len(8 << 20).expect("8 MiB");
    let made = Command::new("mkfs.ext4").arg("-q").arg(&image).status();
    if !made.is_ok_and(|status| status.success()) {
        cx.cannot("there is no mkfs.ext4");
    }
    let mount = format!("mount -o loop,errors=remount-ro {} {}", image.display(), place.display());
    let tried = Command::new("unshare").args(["--mount", "sh", "-c"]).arg(&mount).status();
    if !tried.is_ok_and(|status| status.success()) {
        cx.cannot("there are no loop devices");
    }
    let record = place.join("record.jsonl");
    let done = interrupted(cx, two_parts(cx, &record).in_mounts(&mount), |pid| {
        let script = format!(
            "mount -o remount,ro {place} && exit 1
            device=$(findmnt -no SOURCE {place})
            echo 1 >/sys/fs/ext4/${{device#/dev/}}/trigger_fs_error",
            place = place.display()
        );
        let target = pid.to_string();
        let done = Command::new("nsenter").args(["-m", "-t", &target, "sh", "-c", &script]).output();
        assert!(done.as_ref().is_ok_and(|done| done.status.success()), "{done:?}");
    });
    done.says("read-only file system");
}

fn synced(cx: &Cx) {
    let good = cx.good();
    cx.write("targets", &format!("{good}:7\n").repeat(5));
    let rule = format!("{good}:7");
    let words = ["run", "--set", "audit.sync=true", "--allow", &rule, "--", cx.probe(), "ask-all", "targets"];
    let done = cx.exeat(words).run();
    done.exits(0).prints(&"200\n".repeat(5));
    assert_eq!(done.record().events("decision").len(), 5);

    let mut words = words.to_vec();
    words.splice(1..1, ["--audit", "fd:3"]);
    let refused = cx.exeat(words).redirect("3>&1 | cat").run();
    refused.says("each line is to be synced to the disk").says("leave audit.sync out");
    assert!(!refused.stdout().contains("200"), "{refused:?}");
    let refused = cx.exeat(["run", "--set", "audit.sync=true", "--audit", "/dev/null", "--", "true"]).run();
    refused.exits(2);
    let proxy = ["proxy", "--set", "audit.sync=true", "--audit", "/dev/null", "--listen", "unix:listening"];
    cx.exeat(proxy).run().exits(2).says("each line is to be synced to the disk");
}

/// A reader can tell a live run from a killed one.
fn killed_writer(cx: &Cx) {
    for round in 0..5 {
        let record = cx.home().join(format!("record-{round}.jsonl"));
        let path = record.display().to_string();
        let mut live =
            cx.exeat(["run", "--audit", &path, "--", "sh", "-c", "echo on; exec sleep 100"]).start();
        live.until_prints("on");
        assert!(is_locked(&record), "nobody is seen to write");
        live.signal(Signal::SIGKILL);
        let killed = Instant::now();
        wait_for(Duration::from_secs(5), "the lock to go", || (!is_locked(&record)).then_some(()));
        assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
        assert_eq!(AuditLog::read(&record).events("run_end").len(), 0);
    }
    let over = cx.home().join("over.jsonl");
    cx.exeat(["run", "--audit", &over.display().to_string(), "--", "true"]).run().exits(0);
    assert!(!is_locked(&over));
}

/// Tests the lock as `exeat_record::is_being_written` does.
fn is_locked(record: &PathBuf) -> bool {
    let file = fs::File::open(record).expect("the record");
    Flock::lock(file, FlockArg::LockSharedNonblock).is_err()
}

/// A stage asks as fast as it can, and is refused for several reasons: the first thousand refusals and all granted
/// requests have separate lines, and the counts of all lines are exact.
fn flood(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    // Five reasons in each round. Answers about one target are delayed after a thousand, which no target reaches.
    let rounds = 950;
    let mut targets = String::new();
    for number in 0..rounds {
        targets += &format!("{evil}:443\n%:1\n{good}:8080\nh{number}.{evil}:443\ng{number}.{evil}:443\n");
        if number % 50 == 49 {
            targets += &format!("{good}:7\n");
        }
    }
    cx.write("targets", &targets);
    let result = cx.home().join("result.json");
    let _ = fs::remove_file(&result);
    let (path, rule) = (result.display().to_string(), format!("{good}:7"));
    let words = ["run", "--result", &path, "--allow", &rule, "--", cx.probe(), "ask-all", "targets"];
    let done = cx.exeat(words).deadline(Duration::from_secs(600)).run();
    done.exits(0);
    let said = done.stdout();
    let answered = |status: &str| said.lines().filter(|line| *line == status).count() as u64;
    let refused = answered("403") + answered("400");
    assert_eq!((answered("200"), refused), (rounds / 50, rounds * 5));

    // The sums of the lines equal those of `run_end`.
    let log = done.record();
    let end = log.events("run_end")[0];
    assert_eq!((&end["denied"], &end["allowed"]), (&(rounds * 5).into(), &(rounds / 50).into()));
    let folded: Vec<_> = log.events("decision").into_iter().filter(|it| it.get("conn").is_none()).collect();
    let counted: u64 = folded.iter().map(|it| it["count"].as_u64().unwrap_or(1)).sum();
    // A thousand have separate lines, and a few more for each second.
    let alone = rounds * 5 - counted;
    let most = 1000 + 20 * done.took.as_secs() + 20;
    assert!((1000..=most).contains(&alone), "{alone} alone in {:?}", done.took);
    let of = |reason: &str| -> u64 {
        let all = log.events("decision").into_iter().filter(|it| it["reason"] == reason);
        all.map(|it| it["count"].as_u64().unwrap_or(1)).sum()
    };
    assert_eq!(
        (of("default"), of("malformed"), of("port"), of("rule")),
        (rounds * 3, rounds, rounds, rounds / 50)
    );
    let size = fs::metadata(done.record_path().expect("a record")).expect("the record").len();
    assert!(size < 1_000_000, "{size} bytes");
    let text = fs::read_to_string(&result).expect("the result");
    let result: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    // The number of entries is limited, and their counts are exact even after merging.
    let most: Vec<u64> =
        result["denied"].as_array().into_iter().flatten().filter_map(|it| it["count"].as_u64()).collect();
    assert_eq!((most.len(), most[..4].to_vec()), (1024, vec![rounds, rounds, rounds, 1]), "{text}");
}

/// L16: a stage asks for a granted host in a loop: when the record is full, new connections are refused, the run continues,
/// and the record ends normally, within its size.
fn full_record(cx: &Cx) {
    let good = cx.good();
    cx.write("targets", &format!("{good}:7\n").repeat(1500));
    let result = cx.home().join("result.json");
    let _ = fs::remove_file(&result);
    let (path, rule) = (result.display().to_string(), format!("{good}:7"));
    let words = [
        "run",
        "--set",
        "limits.audit_size=1MiB",
        "--result",
        &path,
        "--allow",
        &rule,
        "--",
        cx.probe(),
        "ask-all",
        "targets",
    ];
    let done = cx.exeat(words).deadline(Duration::from_secs(120)).run();
    done.exits(0).says("the record reached its size, and ");
    let said = done.stdout();
    let answered = |status: &str| said.lines().filter(|line| *line == status).count() as u64;
    assert!(answered("200") > 300 && answered("503") > 300, "{said:.200}");
    assert_eq!(answered("200") + answered("503"), 1500);
    let log = done.record();
    let end = log.events("run_end")[0];
    assert_eq!((&end["allowed"], &end["errors"]), (&answered("200").into(), &answered("503").into()));
    assert_eq!(log.events("close").len() as u64, answered("200"));
    let size = fs::metadata(done.record_path().expect("a record")).expect("the record").len();
    assert!(size <= 1 << 20, "{size} bytes");
    let result: serde_json::Value =
        serde_json::from_slice(&fs::read(&result).expect("the result")).expect("JSON");
    let failed = result["failed"][0].as_object().expect("a host that failed").clone();
    assert_eq!((&failed["host"], &failed["count"]), (&good.as_str().into(), &answered("503").into()));
    let few = cx.exeat(["run", "--set", "limits.audit_size=1000kB", "--", "true"]).run();
    few.exits(2).says("the least is 1MiB");
}

/// The record disappears during a flood: a second later every answer is 503.
fn flood_without_record(cx: &Cx) {
    let record = cx.home().join("flood.jsonl");
    // Answers about a single target would become slower and slower.
    let targets: String = (0..100).map(|n| format!("n{n}.{}:443\n", cx.evil())).collect();
    cx.write("targets", &targets);
    cx.probe();
    let script = "until test -e go; do ./probe ask-all targets; done; echo gone; ./probe ask-all targets";
    let path = record.display().to_string();
    let mut live = cx.exeat(["run", "--audit", &path, "--", "sh", "-c", script]).start();
    let mut printed = String::new();
    wait_for(Duration::from_secs(30), "a flood", || {
        printed = live.printed();
        (printed.lines().count() > 1500).then_some(())
    });
    assert!(printed.lines().all(|line| line == "403"), "{printed}");
    fs::remove_file(&record).expect("remove");
    wait_for(Duration::from_secs(5), "the first answer without a record", || {
        live.printed().ends_with("503\n").then_some(())
    });
    cx.write("go", "");
    let done = live.wait();
    done.exits(0).says("the file was removed");
    let said = done.stdout();
    let after: Vec<&str> = said.lines().skip_while(|line| *line != "gone").skip(1).collect();
    assert!(after.len() == 100 && after.iter().all(|line| *line == "503"), "{after:?}");
}

/// exeat is killed at some moment while its stage asks: the record has every request that was answered, or that an
/// origin saw. At most the last line is cut.
fn kill_in_a_loop(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let (v4, v6) = cx.good_addrs();
    cx.write("targets", &format!("{good}:7\n{evil}:443\n").repeat(400));
    cx.probe();
    // Each answer is printed before the next question.
    let script = "while read -r target; do echo \"$target\" >one; echo \"$(./probe ask-all one) $target\"; done <targets";
    let rule = format!("{good}:7");
    let (mut answers, mut cut) = (0, 0);
    let rounds = rounds(25, 500);
    for round in 0..rounds {
        let record = cx.home().join(format!("killed-{round}.jsonl"));
        let path = record.display().to_string();
        let before = cx.bench().internet.count();
        let mut live =
            cx.exeat(["run", "--audit", &path, "--allow", &rule, "--", "sh", "-c", script]).start();
        live.until_prints("403");
        // Uneven, and independent of the stage's pattern.
        std::thread::sleep(Duration::from_micros(round * round * 977 % 90_000));
        live.signal(Signal::SIGKILL);
        let done = live.wait();
        let said = done.stdout();
        let has = |status: &str, target: &str| {
            said.lines().filter(|line| *line == format!("{status} {target}")).count()
        };
        let (served, refused) = (has("200", &rule), has("403", &format!("{evil}:443")));
        assert!(served > 0 && refused > 0, "{done:?}");
        let mut text = fs::read(&record).expect("the record");
        let is_cut = !text.ends_with(b"\n");
        if is_cut {
            cut += 1;
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            text.truncate(whole);
        }
        let log = AuditLog::parse(&text);
        let decided = |host: &str, verdict: &str| {
            log.decisions(host).into_iter().filter(|it| it["verdict"] == verdict).count()
        };
        let (allowed, denied) = (decided(&good, "allow"), decided(&evil, "deny"));
        assert!(
            allowed >= served && denied >= refused,
            "{allowed} >= {served}, {denied} >= {refused}: {done:?}"
        );
        let visits = cx.bench().internet.since(before);
        let seen = visits.iter().filter(|visit| [v4, v6].contains(&visit.to.ip())).count();
        assert!(allowed >= seen, "{seen} connections, {allowed} decisions");
        let shown = cx.exeat_plain(["audit", "show", &path]).run();
        // The kernel may have written a part of the last line.
        shown.exits(i32::from(is_cut));
        answers += served + refused;
    }
    assert!(answers as u64 > rounds * 2, "{answers} answers in {rounds} rounds, {cut} cut lines");
}

/// L17: exeat is killed during an upload: the record has all sent bytes up to its last line.
fn kill_in_an_upload(cx: &Cx) {
    let record = cx.home().join("upload.jsonl");
    let path = record.display().to_string();
    let script = format!(
        "exec 3>&1; (head -c 5000000 /dev/zero; echo sent >&3; sleep 60) | \
         curl -sS --cacert ca.pem -T - -H Transfer-Encoding: -H 'Content-Length: 9000000' {}",
        cx.good_url()
    );
    let mut live =
        cx.exeat(["run", "--audit", &path, "--allow", &cx.good(), "--", "sh", "-c", &script]).start();
    live.until_prints("sent");
    let (v4, v6) = cx.good_addrs();
    let arrived = || -> u64 {
        let visits = [v4, v6].into_iter().flat_map(|addr| cx.bench().internet.visits(addr));
        visits.map(|visit| visit.bytes.load(std::sync::atomic::Ordering::SeqCst)).sum()
    };
    wait_for(Duration::from_secs(20), "the upload", || (arrived() > 4_800_000).then_some(()));
    live.signal(Signal::SIGKILL);
    live.wait();
    let log = AuditLog::read(&record);
    assert!(log.events("close").is_empty() && log.events("run_end").is_empty());
    let lines = log.events("progress");
    let bytes = |line: &serde_json::Value, key: &str| line[key].as_u64().expect("a number");
    let sent: Vec<_> = lines.iter().map(|line| bytes(line, "bytes_up")).collect();
    // Both directions count. On a busy machine one step may be more than one doubling.
    let both = lines.iter().map(|line| bytes(line, "bytes_up") + bytes(line, "bytes_down"));
    let doublings: Vec<_> = both.map(|both| (both / 1_000_000).checked_ilog2()).collect();
    assert!(doublings.is_sorted_by(|one, next| one < next) && doublings[0].is_some(), "{lines:?}");
    assert!(sent.last().expect("a line") * 2 > arrived(), "{sent:?}, {} arrived", arrived());
    assert_eq!(lines[0]["conn"], log.decision(&cx.good())["conn"]);
}
