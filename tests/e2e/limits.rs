//! K11: the limits of a stage, each with a control without it.

use std::fs;
use std::time::{Duration, Instant};

use nix::unistd::chown;
use serde_json::{Value, json};

use e2e::bench::ORDINARY;
use e2e::case::{Backend, Bridge, Cases, Cx};
use e2e::run::{Done, Run};

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("limits::k11_r05_processes", processes);
    list.matrix("limits::k11_r05_threads", threads);
    list.root("limits::k11_r05_root_that_is_kept", process_limit_of_root);
    list.alone("limits::k11_r05_fork_bomb", fork_bomb);
    list.root("limits::k11_r05_root_becomes_the_owner", becomes_the_owner);
    list.matrix("limits::k11_memory", memory);
    list.matrix("limits::k11_memory_of_many_processes", memory_of_many);
    list.matrix("limits::k11_shared_memory_counts_once", shared_memory);
    list.matrix("limits::k11_files_in_memory_are_memory", files_in_memory);
    list.matrix("limits::l08_memory_files_are_memory", memory_files);
    list.matrix("limits::r06_no_secret_memory", secret_memory);
    list.matrix("limits::r12_memory_without_a_first_thread_counts", without_first_thread);
    list.matrix("limits::r12_memory_files_of_one_thread_count", files_of_thread);
    list.matrix("limits::r13_empty_files_are_bounded", empty_files);
    list.once("limits::k11_runtimes_start_in_2_gib", runtimes);
    list.matrix("limits::k11_file_size", file_size);
    list.matrix("limits::k11_open_files", open_files);
    list.alone("limits::l12_descriptors_in_flight_keep_no_other_run_from_starting", in_flight);
    list.users("limits::l12_a_stage_has_half_of_the_caller_s_descriptors", half_of_descriptors);
    list.alone("limits::l12_a_stage_takes_a_part_of_inotify", inotify);
    list.users("limits::l12_a_stage_takes_no_leases", leases);
    list.matrix("limits::l12_a_stage_takes_no_contexts_of_asynchronous_io", no_contexts);
    list.matrix("limits::l12_a_stage_takes_a_part_of_the_terminals", terminals);
    list.matrix("limits::l08_the_kernel_ends_the_stage_first_when_memory_runs_out", oom_score);
    list.matrix("limits::k11_cpu_time", cpu_time);
    list.matrix("limits::k11_r06_tmpfs_size", tmpfs_size);
    list.matrix("limits::k11_output_is_cut_at_the_byte", output);
    list.bridges("limits::k11_counted_output_is_like_a_pipe", output_pipe);
    list.users("limits::k11_no_higher_than_the_caller", caller);
    list.users("limits::k11_the_plan_and_the_record_say_what_holds", notes);
}

/// Prepares `exeat run LIMIT... -- ./probe WORDS`, with a result file.
fn limited<'a>(cx: &'a Cx, limits: &str, words: &str) -> Run<'a> {
    let result = result_of(cx);
    let mut all = vec!["run", "--result", &result];
    all.extend(limits.split_whitespace());
    all.extend(["--", cx.probe()]);
    all.extend(words.split(' '));
    cx.exeat(all)
}

fn result_of(cx: &Cx) -> String {
    cx.home().join("result.json").display().to_string()
}

/// Checks that the stage was killed for this limit, in every output.
#[track_caller]
fn was_stopped(cx: &Cx, done: &Done, key: &str, value: &str) {
    done.exits(137);
    let word = if key == "output_size" { "output" } else { key };
    done.says(&format!("exeat: {word} limit of {value} reached; the stage was stopped\n"));
    let result: Value = serde_json::from_slice(&fs::read(result_of(cx)).expect("result")).expect("JSON");
    assert_eq!(
        (&result["cause"], &result["limit"], &result["code"]),
        (&json!("limit"), &json!(key), &json!(137))
    );
    let log = done.record();
    let ends = log.events("run_end");
    assert_eq!(
        (&ends[0]["cause"], &ends[0]["limit"], &ends[0]["exit"]),
        (&json!("limit"), &json!(key), &json!(137))
    );
}

/// Without CAP_SYS_ADMIN root's stage keeps the kernel's uid 0, to which the kernel's process limit does not apply.
const KEPT: [&str; 4] = ["setpriv", "--bounding-set", "-sys_admin", "--"];

fn process_limit_of_root(cx: &Cx) {
    let kept = |words: &str| limited(cx, "--pids 30", words).under(KEPT).run();
    kept("forks 29 500").exits(0).prints("all 29\n").says("keeps root's kernel uid");
    was_stopped(cx, &kept("forks 60 1000"), "pids", "30");
    was_stopped(cx, &kept("threads 60"), "pids", "30");
}

fn processes(cx: &Cx) {
    limited(cx, "", "forks 60 1000").run().exits(0).prints("all 60\n");
    // The probe counts. bubblewrap's process and the relay do not.
    limited(cx, "--pids 30", "forks 29 500").run().exits(0).prints("all 29\n");
    let done = limited(cx, "--pids 30", "forks 60 1000").run();
    done.exits(0).prints("29, then EAGAIN\n");
}

fn threads(cx: &Cx) {
    limited(cx, "", "threads 60").run().exits(0).prints("all 60\n");
    let done = limited(cx, "--pids 30", "threads 60").run();
    done.exits(0).prints("29, then EAGAIN\n");
}

/// Returns whether this process has a capability, by its number (capabilities(7)).
fn is_capable(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("capabilities");
    u64::from_str_radix(set.trim(), 16).expect("hex") & 1 << number != 0
}

const CAP_SYS_NICE: u32 = 23;
const CAP_SYS_RESOURCE: u32 = 24;

/// The number of forks that a bomb tries: see the probe.
const BOMB: u64 = 2000;

/// The host stays usable while a bomb runs inside, and is clean afterwards.
fn fork_bomb(cx: &Cx) {
    explode(cx, false);
    if cx.is_root() {
        fs::remove_file(cx.dir().join("shards")).expect("shards");
        explode(cx, true);
    }
}

fn explode(cx: &Cx, as_root: bool) {
    let bomb = limited(cx, "--pids 100 --timeout 3s", &format!("bomb {BOMB} 20000"));
    let mut bomb = if as_root { bomb.under(KEPT) } else { bomb }.start();
    bomb.until_prints("lit");
    let began = Instant::now();
    let beside = cx.run(&[], ["echo", "usable"]).run();
    beside.exits(0).prints("usable\n");
    assert!(began.elapsed() < Duration::from_secs(5), "{beside:?}");
    let done = bomb.wait();
    let shards = fs::metadata(cx.dir().join("shards")).expect("shards").len();
    if as_root {
        was_stopped(cx, &done, "pids", "100");
        assert!(
            shards < BOMB / 2 || !is_capable(CAP_SYS_NICE),
            "it burned out, and was not put out: {shards}"
        );
    } else {
        done.exits(124);
        assert_eq!(shards, 99, "the probe is one of them");
    }
    assert!(done.took < Duration::from_secs(12), "{done:?}");
    // A process that nobody waits for closes slow files.
    e2e::wait_for(Duration::from_secs(2), "the last process", || {
        e2e::leftover::descendants().is_empty().then_some(())
    });
}

/// The kernel holds what root gives to a user's uid.
fn becomes_the_owner(cx: &Cx) {
    cx.probe();
    for path in [cx.home(), cx.dir()] {
        chown(path, Some(ORDINARY.into()), Some(ORDINARY.into())).expect("chown");
    }
    limited(cx, "--pids 30", "forks 60 1000").run().exits(0).prints("29, then EAGAIN\n");
    let done = limited(cx, "--memory 100MiB", "hog 200 30000").run();
    was_stopped(cx, &done, "memory", "100MiB");
    limited(cx, "--set limits.open_files=64", "open-many 200").run().exits(0).prints("EMFILE\n");
}

/// N33.
fn memory(cx: &Cx) {
    limited(cx, "", "hog 200 0").run().exits(0).prints("ok\n");
    limited(cx, "--memory 400MiB", "hog 200 300").run().exits(0).prints("ok\n");
    // It cannot outrun the limit: it touches memory slowly, and stays for half a minute.
    let done = limited(cx, "--memory 100MiB", "hog 200 30000").run();
    was_stopped(cx, &done, "memory", "100MiB");
    done.prints("");
    assert!(done.took < Duration::from_secs(3), "{done:?}");
}

fn memory_of_many(cx: &Cx) {
    limited(cx, "", "hogs 8 25 0").run().exits(0).prints("all 8\n");
    let done = limited(cx, "--memory 100MiB", "hogs 8 25 30000").run();
    was_stopped(cx, &done, "memory", "100MiB");
    assert!(done.took < Duration::from_secs(5), "{done:?}");
}

/// Memory that forked processes share counts once, and so does that of a child before its execve.
fn shared_memory(cx: &Cx) {
    limited(cx, "--memory 150MiB", "hog-shared 5 100 700").run().exits(0).prints("all 5\n");
    limited(cx, "--memory 150MiB", "hog-vfork 100 700").run().exits(0).prints("ok\n");
    let done = limited(cx, "--memory 80MiB", "hog-vfork 100 30000").run();
    was_stopped(cx, &done, "memory", "80MiB");
}

fn files_in_memory(cx: &Cx) {
    for place in ["/dev/shm", "/tmp", "/var/tmp"] {
        let script = format!("head -c 150000000 /dev/zero >{place}/x; echo there; exec sleep SECONDS");
        let run = |limit: &str, seconds: &str| {
            let script = script.replace("SECONDS", seconds);
            cx.exeat(["run", "--result", &result_of(cx), "--memory", limit, "--", "sh", "-c", &script]).run()
        };
        run("400MiB", "0.3").exits(0).prints("there\n");
        let done = run("100MiB", "30");
        was_stopped(cx, &done, "memory", "100MiB");
    }
    // Files on the host, in memory or not, do not count for the stage.
    let script = "head -c 150000000 /dev/zero >x; sleep 0.3; rm x; echo gone";
    cx.exeat(["run", "--memory", "100MiB", "--", "sh", "-c", script]).run().exits(0).prints("gone\n");
}

/// A memory file (memfd_create(2)) counts for no process unless it is mapped. It counts once, however many descriptors
/// lead to it.
fn memory_files(cx: &Cx) {
    limited(cx, "", "hog-memfd 200 0 0").run().exits(0).prints("ok\n");
    limited(cx, "--memory 300MiB", "hog-memfd 200 0 300").run().exits(0).prints("ok\n");
    // Also after many other descriptors; a mapped one counts once.
    for descriptors in ["0", "8000"] {
        let limits = "--memory 100MiB --set limits.open_files=9000";
        let done = limited(cx, limits, &format!("hog-memfd 200 {descriptors} 30000")).run();
        was_stopped(cx, &done, "memory", "100MiB");
        assert!(done.took < Duration::from_secs(8), "{done:?}");
    }
    limited(cx, "--memory 300MiB", "hog-mapped-memfd 200 500").run().exits(0).prints("ok\n");
}

/// R12: a process whose first thread has ended keeps its memory, and its line in `/proc` has no number of it.
fn without_first_thread(cx: &Cx) {
    limited(cx, "--memory 300MiB", "hog-thread 200 300").run().exits(0).prints("ok\n");
    let done = limited(cx, "--memory 100MiB", "hog-thread 200 30000").run();
    was_stopped(cx, &done, "memory", "100MiB");
    assert!(done.took < Duration::from_secs(8), "{done:?}");
}

/// R12: a thread may have descriptors that the first one does not have.
fn files_of_thread(cx: &Cx) {
    limited(cx, "--memory 300MiB", "hog-thread-memfd 200 300").run().exits(0).prints("ok\n");
    let done = limited(cx, "--memory 100MiB", "hog-thread-memfd 200 30000").run();
    was_stopped(cx, &done, "memory", "100MiB");
    assert!(done.took < Duration::from_secs(8), "{done:?}");
}

/// R13: an empty file takes memory of the kernel's, and no block of its file system.
fn empty_files(cx: &Cx) {
    let probe = |limits: &str, most: u32| limited(cx, limits, &format!("empty-files /tmp {most} 1000")).run();
    probe("", 40_000).exits(0).prints("40000, then nothing\n");
    // One for the directory itself.
    let made = if cx.backend() == Backend::BwrapAlone { "40000, then nothing" } else { "20479, then ENOSPC" };
    probe("--set limits.tmpfs_size=20MiB", 40_000).exits(0).prints(&format!("{made}\n"));
    let done = probe("--memory 64MiB", 100_000);
    was_stopped(cx, &done, "memory", "64MiB");
}

/// L12: the machine has one number of contexts for asynchronous I/O.
fn no_contexts(cx: &Cx) {
    limited(cx, "", "io-setup").run().exits(0).prints("ENOSYS\n");
}

/// L12: the machine has one number of terminals.
fn terminals(cx: &Cx) {
    let made = if cx.backend() == Backend::BwrapAlone { "all 600" } else { "256, then ENOSPC" };
    limited(cx, "--set limits.open_files=900", "terminals 600").run().exits(0).prints(&format!("{made}\n"));
}

/// The kernel counts it with the mapped files, which are not the stage's memory.
fn secret_memory(cx: &Cx) {
    limited(cx, "--memory 100MiB", "secret-memory").run().exits(0).prints("ENOSYS\n");
}

/// Runtimes reserve far more memory than they use.
fn runtimes(cx: &Cx) {
    cx.write(
        "Small.java",
        "class Small { public static void main(String[] a) { System.out.println(6 * 7); } }\n",
    );
    let all: [&[&str]; 3] =
        [&["python3", "-c", "print(6 * 7)"], &["node", "-p", "6 * 7"], &["java", "Small.java"]];
    for command in all {
        let mut words =
            vec!["run", "--memory", "2GiB", "--set", "limits.open_files=512", "--pids", "200", "--"];
        words.extend(command);
        cx.exeat(words).run().exits(0).prints("42\n");
    }
}

fn file_size(cx: &Cx) {
    limited(cx, "", "fill . 20").run().exits(0).prints("ok: 20 MB\n");
    limited(cx, "--set limits.file_size=20MiB", "fill . 20").run().exits(0).prints("ok: 20 MB\n");
    // SIGXFSZ.
    limited(cx, "--set limits.file_size=10MiB", "fill . 20").run().exits(128 + 25);
    let left = fs::metadata(cx.dir().join("probe-fill")).expect("what was written").len();
    assert_eq!(left, 10 << 20);
}

fn open_files(cx: &Cx) {
    limited(cx, "", "open-many 200").run().exits(0).prints("ok: 200\n");
    limited(cx, "--set limits.open_files=64", "open-many 200").run().exits(0).prints("EMFILE\n");
    limited(cx, "--set limits.open_files=64", "open-many 40").run().exits(0).prints("ok: 40\n");
    // The lowest accepted number is enough to start.
    limited(cx, "--set limits.open_files=16", "open-many 40").run().exits(0).prints("EMFILE\n");
    let done = cx
        .exeat([
            "run",
            "--set",
            "limits.open_files=64",
            "--",
            "sh",
            "-c",
            "ulimit -n; ulimit -Hn; ulimit -n 65",
        ])
        .run();
    assert_eq!(done.stdout(), "64\n64\n", "{done:?}");
    assert_ne!(done.code, Some(0), "the limit can be raised: {done:?}");
}

/// Descriptors in flight count for the user on the host (unix(7), ETOOMANYREFS).
fn in_flight(cx: &Cx) {
    let probe = cx.bench().bin.join("probe").display().to_string();
    // Enough for a reserve, and few enough for a short trial.
    let limits = ["prlimit", "--nofile=1024:20000", "--"];
    let mut hog = limited(cx, "", "in-flight 20000").under(limits).start();
    hog.until_prints("in flight, then");
    let count: u64 = hog.printed().split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    assert!(count >= 10_000, "it takes what it can: {count}");
    // Every process of a start passes descriptors: the helper, this side, and on a terminal the helper again.
    let other = |words: &[&str]| {
        let mut all = vec!["run"];
        all.extend(words);
        all.extend(["--", "echo", "it started"]);
        cx.exeat(all)
    };
    for words in [
        &[][..],
        &["--set", "limits.open_files=64"],
        &["--memory", "1GiB"],
        &["--set", "network.socks5=true"],
    ] {
        other(words).under(limits).run().exits(0).prints("it started\n");
    }
    // Programs of the same user with a low soft limit are blocked: this is documented, and the flag bounds it.
    let host = || cx.outside([probe.as_str(), "pass"]).under(limits).run();
    if !cx.is_root() {
        assert_eq!(host().stdout(), "ETOOMANYREFS\n");
    }
    hog.signal(nix::sys::signal::Signal::SIGTERM);
    hog.wait().exits(143);
    let mut bounded = limited(cx, "--set limits.open_files=512", "in-flight 20000").under(limits).start();
    bounded.until_prints("in flight, then");
    host().prints("ok\n");
    bounded.signal(nix::sys::signal::Signal::SIGTERM);
    bounded.wait().exits(143);
}

fn half_of_descriptors(cx: &Cx) {
    let limits = |of_the_caller: &str, flags: &[&str]| {
        let nofile = format!("--nofile={of_the_caller}");
        let mut words = vec!["run"];
        words.extend(flags);
        words.extend(["--", "sh", "-c", "ulimit -Sn; ulimit -Hn"]);
        let done = cx.exeat(words).under(["prlimit", &nofile, "--"]).run();
        done.exits(0).stdout().replace('\n', " ").trim().to_owned()
    };
    assert_eq!(limits("1024:20000", &[]), "1024 10000");
    assert_eq!(limits("20000:20000", &[]), "10000 10000");
    // A low limit is not halved.
    assert_eq!(limits("1024:4096", &[]), "1024 2048");
    assert_eq!(limits("1024:1024", &[]), "1024 1024");
    assert_eq!(limits("4096:4096", &[]), "4096 4096");
    // The flag sets the number, up to the caller's.
    assert_eq!(limits("1024:20000", &["--set", "limits.open_files=15000"]), "15000 15000");
    assert_eq!(limits("300:300", &["--set", "limits.open_files=400"]), "300 300");
}

/// inotify instances count for the user on the host: a stage has a quarter of them, and half of the watches.
fn inotify(cx: &Cx) {
    let probe = cx.bench().bin.join("probe").display().to_string();
    let setting = |name: &str| -> u64 {
        let text = fs::read_to_string(format!("/proc/sys/fs/inotify/{name}")).expect("a setting");
        text.trim().parse().expect("a number")
    };
    let most = setting("max_user_instances");
    let mut hog = limited(cx, "", &format!("inotify-instances {most} 20000")).start();
    hog.until_prints(&format!("{}, then EMFILE\n", most / 4));
    let host = format!("{}", most / 2);
    cx.outside([probe.as_str(), "inotify-instances", &host, "0"])
        .run()
        .exits(0)
        .shows(&format!("all {host}\n"));
    hog.signal(nix::sys::signal::Signal::SIGTERM);
    hog.wait().exits(143);
}

/// Opening a file with a lease waits until the holder gives it up.
fn leases(cx: &Cx) {
    let probe = cx.probe();
    cx.write("leased", "");
    let done = cx.sh(&[], &format!("touch own; {probe} lease own lease; {probe} lease own delegation")).run();
    done.exits(0).prints("EPERM\nEPERM\n");
    let outside = cx.bench().bin.join("probe").display().to_string();
    cx.outside(["sh", "-c", &format!("touch mine; {outside} lease mine lease")])
        .run()
        .exits(0)
        .prints("ok\n");
}

/// proc_pid_oom_score_adj(5), which processes inherit: the kernel kills the whole sandbox before other processes.
fn oom_score(cx: &Cx) {
    let script = "cat /proc/1/oom_score_adj /proc/self/oom_score_adj; echo 0 2>/dev/null >/proc/self/oom_score_adj \
                  || echo refused; echo ready; exec sleep 30";
    let mut live = cx.sh(&[], script).start();
    live.until_prints("ready\n");
    // Without CAP_SYS_RESOURCE the score can be lowered again: documented.
    let is_held = cx.is_root() && is_capable(CAP_SYS_RESOURCE);
    let refused = if is_held { "refused\n" } else { "" };
    assert_eq!(live.printed(), format!("1000\n1000\n{refused}ready\n"));
    let score =
        |pid| fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("a score").trim().to_owned();
    let own = score(live.pid());
    assert_ne!(own, "1000");
    if cx.backend() == Backend::Bwrap {
        let reaper = *live.pids("sandbox-reaper").first().expect("the reaper");
        assert_eq!(score(reaper), if is_held { "-500" } else { &own });
    }
    live.signal(nix::sys::signal::Signal::SIGTERM);
    live.wait().exits(143);
}

fn cpu_time(cx: &Cx) {
    limited(cx, "", "spin 2").run().exits(0).prints("ok\n");
    limited(cx, "--set limits.cpu_time=30s", "spin 2").run().exits(0).prints("ok\n");
    // SIGXCPU; a process that ignores it gets one more second.
    limited(cx, "--set limits.cpu_time=600ms", "spin 30").run().exits(128 + 24);
    limited(cx, "--set limits.cpu_time=1s", "spin-on 30").run().exits(128 + 9);
}

/// R06: filling one gives an error, and does not use up the host's memory.
fn tmpfs_size(cx: &Cx) {
    for place in ["/tmp", "/var/tmp"] {
        limited(cx, "", &format!("fill {place} 20")).run().exits(0).prints("ok: 20 MB\n");
        let fill = format!("fill {place} 20");
        limited(cx, "--set limits.tmpfs_size=10MiB", &fill).run().exits(0).prints("ENOSPC\n");
    }
    // Less than a page does not mean "no limit".
    limited(cx, "--set limits.tmpfs_size=1", "fill /tmp 1").run().exits(0).prints("ENOSPC\n");
    let mounts = ["run", "--set", "limits.tmpfs_size=3GiB", "--", "cat", "/proc/self/mountinfo"];
    let done = cx.exeat(mounts).run();
    let sized = done.stdout().lines().filter(|line| line.contains("size=3145728k")).count();
    assert_eq!(sized, 2, "{done:?}");
}

fn output(cx: &Cx) {
    let done = limited(cx, "", "flood 640000").run();
    done.exits(0);
    assert_eq!(done.raw_stdout.len() + done.stderr().len(), 640_000 + 3);

    // Exactly the limit does not exceed it.
    let done = limited(cx, "--set limits.output_size=6403", "flood 6400").run();
    done.exits(0);
    assert_eq!(done.raw_stdout.len() + done.stderr().len(), 6403);
    assert!(done.stdout().ends_with("ook\n"), "{done:?}");

    let done = limited(cx, "--set limits.output_size=100001", "flood 640000000").run();
    was_stopped(cx, &done, "output_size", "100001");
    // The last line is exeat's; all lines of the stage consist of `e`.
    let errors = done.stderr().bytes().take_while(|byte| *byte == b'e').count();
    // `exeat:` starts with an `e` too.
    assert_eq!(done.raw_stdout.len() + errors - 1, 100_001, "{done:?}");
    assert!(done.took < Duration::from_secs(10), "{done:?}");

    let done =
        cx.exeat(["run", "--result", &result_of(cx), "--set", "limits.output_size=10MB", "--", "yes"]).run();
    was_stopped(cx, &done, "output_size", "10MB");
    assert_eq!(done.raw_stdout.len(), 10_000_000);
}

fn output_pipe(cx: &Cx) {
    let run = |command: &[&str]| {
        let mut words = vec!["run", "--set", "limits.output_size=100MB", "--"];
        words.extend(command);
        cx.exeat(words)
    };
    let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let done = run(&["cat"]).stdin(bytes.clone()).run();
    done.exits(0).silent();
    assert!(done.raw_stdout == bytes, "{} of {} bytes came back", done.raw_stdout.len(), bytes.len());

    // Both streams go to one file: the order stays.
    let file = cx.home().join("both");
    let path = file.display().to_string();
    let script = "for n in 1 2 3 4 5 6 7 8 9; do echo out$n; echo err$n >&2; done";
    run(&["sh", "-c", script]).redirect(&format!(">{path} 2>&1")).run().exits(0);
    let expect: String = (1..=9).map(|n| format!("out{n}\nerr{n}\n")).collect();
    assert_eq!(fs::read_to_string(&file).expect("both"), expect);

    // Lines arrive at once, and a stream that the stage closes ends for its reader.
    let mut live = run(&["sh", "-c", "echo first; read line; echo \"then $line\"; exec sleep 1000"])
        .stdin("more\n")
        .start();
    live.until_prints("first\n").until_prints("then more\n");
    live.signal(nix::sys::signal::Signal::SIGTERM);
    live.wait().exits(143);

    let exeat = cx.bench().bin.join("exeat").display().to_string();
    let relay = if cx.bridge() == Bridge::Relay { "--set sandbox.bridge=relay" } else { "" };
    let shell = |script: &str| {
        let script =
            script.replace("EXEAT", &format!("{exeat} run {relay} --set limits.output_size=100MB --"));
        cx.exeat(["x"]).under(["sh", "-c", &script]).deadline(Duration::from_secs(20)).run()
    };
    // A closed reader ends the writer.
    shell("EXEAT yes | head -n 1").exits(0).prints("y\n");
    shell("{ EXEAT sh -c 'yes; echo $? >&2'; echo $? >code; } | head -n 1; sleep 1").exits(0).says("141\n");
    // At its first write, not at the second.
    let script = "trap \"\" PIPE; sleep 1; echo x 2>/dev/null || echo refused >&2";
    shell(&format!("EXEAT sh -c '{script}' | true")).exits(0).says("refused\n");
    // A slow reader gets everything, although the stage ended long ago.
    shell("EXEAT head -c 120000 /dev/zero | { sleep 1; wc -c; }").exits(0).prints("120000\n");
    // A stage that has closed its output is read to its end.
    shell("EXEAT sh -c 'echo x; exec >&-; sleep 1; echo late >&2' | { cat; echo end >&2; }")
        .exits(0)
        .prints("x\n");
    // A reader that never reads does not block a stop: neither while the stage writes, nor after it.
    for (command, longest) in [("yes", 9), ("head -c 120000 /dev/zero", 4)] {
        let script = format!(
            "rm -f pipe; mkfifo pipe; sleep 1000 <pipe & reader=$!; EXEAT {command} >pipe & exeat=$!
             sleep 1; kill -TERM $exeat; wait $exeat; kill $reader; echo ended"
        );
        let done = shell(&script);
        done.exits(0).prints("ended\n");
        assert!(done.took < Duration::from_secs(longest), "{done:?}");
    }
}

/// The caller's own limits also bound the stage.
fn caller(cx: &Cx) {
    let script = "ulimit -Hn; ulimit -Ht; ulimit -Hf";
    let words = [
        "run",
        "--set",
        "limits.open_files=400",
        "--set",
        "limits.cpu_time=90s",
        "--set",
        "limits.file_size=100MiB",
        "--",
        "sh",
        "-c",
        script,
    ];
    // File sizes in blocks of 512 bytes.
    cx.exeat(words).run().exits(0).prints("400\n91\n204800\n");
    let lower = ["prlimit", "--nofile=300:300", "--cpu=60:60", "--fsize=67108864:67108864"];
    cx.exeat(words).under(lower).run().exits(0).prints("300\n60\n131072\n");
}

fn notes(cx: &Cx) {
    says(cx, &[], "rlimit");
    if cx.is_root() {
        says(cx, &KEPT, "watched");
    }
}

fn says(cx: &Cx, under: &[&str], pids: &str) {
    let flags = ["--timeout", "10m", "--memory", "1GiB", "--pids", "99", "--set", "limits.tmpfs_size=1MiB"];
    let lines =
        format!("timeout=10m (supervised), memory=1GiB (watched), pids=99 ({pids}), tmpfs_size=1MiB (mount)");
    let run =
        |more: &[&str]| cx.exeat([&["run"], &flags[..], more, &["--", "true"]].concat()).under(under).run();
    run(&["--dry-run"]).exits(0).shows(&format!("limits       {lines}\n"));
    let json = run(&["--dry-run", "--format", "json"]).json();
    assert_eq!(json["limits"]["pids"], json!({"value": "99", "held": pids}));
    let done = run(&[]);
    let starts = done.exits(0).record();
    let told: Vec<&str> = lines.split(", ").collect();
    assert_eq!(starts.events("run_start")[0]["limits"], json!(told));
    let record = done.record_path().expect("record").display().to_string();
    cx.exeat(["audit", "show", &record]).run().exits(0).shows(&format!("limits    {lines}\n"));
}
