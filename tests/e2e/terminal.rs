//! A stage on a terminal: it behaves like the command alone, on a private terminal.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use e2e::case::{Cases, Cx};
use e2e::run::{Run, memory_kb, ticks};
use e2e::screen::{SIZE, Screen};
use e2e::wait_for;

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("terminal::its_own", its_own);
    list.users("terminal::job_control_inside", job_control);
    list.users("terminal::suspends_like_the_command", suspends);
    list.once("terminal::an_interrupt_ends_what_it_is_part_of", interrupts_its_group);
    list.once("terminal::a_stage_that_ends_itself_ends_no_other", ends_alone);
    list.once("terminal::suspends_with_what_it_is_part_of", suspends_with_its_group);
    list.once("terminal::stopped_from_elsewhere", stopped_from_elsewhere);
    list.once("terminal::stopped_where_nobody_continues_it", stopped_in_an_orphan);
    list.once("terminal::b08_in_the_background", in_the_background);
    list.once("terminal::follows_the_window", follows_the_window);
    list.once("terminal::half_a_terminal_is_none", half);
    list.once("terminal::other_streams_stay", other_streams);
    list.once("terminal::standard_error_elsewhere", error_elsewhere);
    list.once("terminal::standard_error_on_a_master", error_on_a_master);
    list.on_a_host_of_root(|list| list.once("terminal::without_dev_tty", without_dev_tty));
    list.once("terminal::output_is_counted", output_is_counted);
    list.once("terminal::a_flood_waits_for_its_reader", flood);
    list.once("terminal::a_paste_is_bounded_and_interrupted", paste);
    list.once("terminal::closed_by_the_stage", closed);
    list.once("terminal::interrupted_while_the_rest_is_delivered", undelivered);
    list.users("terminal::restored_on_every_way_out", restored);
    list.once("terminal::restored_after_a_stop", restored_after_a_stop);
    list.bridges("terminal::hang_up", hang_up);
    list.once("terminal::asked_for_by_name", by_name);
    list.once("terminal::programs", programs);
}

/// Starts `exeat run FLAGS -- sh -c SCRIPT` on a terminal.
fn on_terminal(cx: &Cx, flags: &[&str], script: &str) -> Screen {
    exeat(cx, flags, &["sh", "-c", script]).on_terminal()
}

fn exeat<'a>(cx: &'a Cx, flags: &[&str], command: &[&str]) -> Run<'a> {
    cx.exeat([&["run"], flags, &["--"], command].concat())
}

/// Starts a shell with job control on a terminal, in which `exeat` is `$E`.
fn shell(cx: &Cx) -> Screen {
    if !Path::new("/bin/bash").exists() {
        cx.cannot("bash is not installed");
    }
    let exeat = format!("{} run --quiet", cx.bench().bin.join("exeat").display());
    let shell = cx.outside(["bash", "--norc", "-i"]).env("PS1", "host$ ").env("E", &exeat);
    let mut screen = shell.on_terminal();
    screen.until("host$ ");
    screen
}

fn its_own(cx: &Cx) {
    let script = "tty; stty size; for n in 0 1 2; do test -t $n && echo is $n; done
                  read -r line </dev/tty; echo \"got $line\"; ls -l /proc/self/fd | grep -c /dev/pts; exit 5";
    let mut screen = on_terminal(cx, &[], script);
    screen.until(&format!("/dev/pts/0\r\n{} {}\r\nis 0\r\nis 1\r\nis 2\r\n", SIZE.0, SIZE.1));
    // Shown once: only the stage's terminal echoes.
    screen.types("word\r");
    assert_eq!(screen.until("got word\r\n"), "word\r\ngot word\r\n");
    // The two descriptors that remain when `ls` writes into a pipe.
    screen.until("2\r\n");
    assert_eq!(screen.wait(), 5);
}

fn job_control(cx: &Cx) {
    let mut screen = exeat(cx, &["--env", "PS1=in$ "], &["bash", "--norc", "-i"]).on_terminal();
    let shown = screen.until("in$ ");
    assert!(!shown.contains("no job control"), "{shown}");
    screen.types("sleep 1000\r").until("sleep 1000\r\n");
    screen.until_raw(true).until_waits("sleep");
    screen.types([26]).until("Stopped");
    screen.until("in$ ");
    screen.types("bg; jobs\r").until("Running");
    screen.until("in$ ");
    // The shell prints the command before it gives it the terminal.
    screen.types("fg\r").until("sleep 1000\r\n");
    screen.until_foreground("sleep").types([3]).until("in$ ");
    screen.types("echo left $?; exit 7\r").until("left 130\r\n");
    assert_eq!(screen.wait(), 7);
}

/// `^Z` and `fg` work as with the command alone; no key is lost to the shell meanwhile.
fn suspends(cx: &Cx) {
    let mut screen = shell(cx);
    let before = screen.settings();
    screen.types("$E -- sh -c 'echo ready; exec sleep 1000'\r").until("ready\r\n");
    screen.until_raw(true).types([26]).until("Stopped");
    screen.until("host$ ");
    screen.types("stty -a | grep -o ' icanon'; bg; echo typed $((6*7))\r").until(" icanon\r\n");
    screen.until("typed 42\r\n");
    screen.until("host$ ");
    // In the background it continues, and reads nothing.
    screen.until_waits("sleep").types("echo still $((7*7)); jobs\r").until("still 49\r\n");
    screen.until("Running");
    screen.until("host$ ");
    screen.types("fg\r").until("sleep 1000'\r\n");
    screen.until_raw(true).until_waits("sleep");
    screen.types([3]).until("host$ ");
    screen.types("echo left $?\r").until("left 130\r\n");
    screen.until("host$ ");
    assert_eq!(screen.settings().local_flags, before.local_flags);
    screen.types("exit\r");
    screen.wait();
}

/// A script and `make` around exeat end with it, as with the command alone.
fn interrupts_its_group(cx: &Cx) {
    let exeat = format!("{} run --quiet", cx.bench().bin.join("exeat").display());
    let make = format!("all: a b\na b:\n\t@{exeat} -- sh -c 'echo ready; exec sleep 1000'\n");
    cx.write("Makefile", &make);
    let loops =
        format!("for n in 1 2; do {exeat} -- sh -c 'echo ready; exec sleep 1000'; done; echo went on");
    for (words, times) in [(vec!["make", "-j2"], 2), (vec!["bash", "-c", &loops], 1)] {
        let mut screen = cx.outside(words).on_terminal();
        (0..times).for_each(|_| drop(screen.until("ready")));
        screen.until_raw(true).until_waits("sleep");
        screen.types([3]);
        let status = screen.wait();
        assert!(status != 0 && !screen.tail().contains("went on"), "{status}: {}", screen.tail());
    }
}

/// A stage that sends itself SIGINT ends with exeat. Nobody has typed the key, so no other process gets the signal.
fn ends_alone(cx: &Cx) {
    let exeat = format!("{} run --quiet", cx.bench().bin.join("exeat").display());
    let script = format!(
        "sleep 1000 & {exeat} -- sh -c 'kill -INT $$; sleep 1000'; echo left $?; kill $! && echo alive"
    );
    let mut screen = cx.outside(["sh", "-c", &script]).on_terminal();
    screen.until("left 130");
    screen.until("alive");
    screen.wait();
    // Nor has somebody who types what the stage has chosen.
    let script = format!(
        "sleep 1000 & {exeat} -- sh -c 'stty intr a; echo ready; exec sleep 1000'; echo left $?; kill $! && echo alive"
    );
    let mut screen = cx.outside(["sh", "-c", &script]).on_terminal();
    screen.until("ready");
    screen.until_raw(true).until_waits("sleep");
    screen.types("a").until("left 130");
    screen.until("alive");
    screen.wait();
}

/// A script around exeat stops with it.
fn suspends_with_its_group(cx: &Cx) {
    let mut screen = shell(cx);
    screen.types("sh -c '$E -- sh -c \"echo ready; exec sleep 1000\"; echo after $?'\r").until("ready\r\n");
    screen.until_raw(true).types([26]).until("Stopped");
    screen.until("host$ ");
    screen.types("fg\r").until("\r\n");
    screen.until_raw(true).until_waits("sleep");
    screen.types([3]).until("host$ ");
    assert!(!screen.tail().contains("after 130"), "{}", screen.tail());
}

/// SIGSTOP leaves no chance to restore the terminal; after a continue it is as the shell left it.
fn stopped_from_elsewhere(cx: &Cx) {
    let mut screen = shell(cx);
    screen.types("$E -- sh -c 'echo ready; cat'\r").until("ready\r\n");
    screen.until_raw(true);
    for signal in ["STOP", "TSTP"] {
        screen.types("x\r").until("x\r\nx\r\n");
        let jobs = e2e::leftover::below(screen.pid().as_raw().unsigned_abs());
        let exeat = jobs.iter().find_map(|line| line.strip_suffix(" exeat")).expect("exeat runs");
        let exeat: i32 = exeat.parse().expect("a pid");
        let signal = if signal == "STOP" { Signal::SIGSTOP } else { Signal::SIGTSTP };
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(exeat), signal).expect("it runs");
        screen.until("Stopped");
        screen.until("host$ ");
        screen.types("fg\r").until("\r\n");
        screen.until_raw(true).until_waits("cat");
    }
    screen.types([4]).until("host$ ");
    screen.types("echo left $?; stty -a | grep -o ' icanon'\r").until("left 0\r\n");
    screen.until(" icanon\r\n");
}

/// An orphaned process group does not stop, so nothing continues it: the next SIGCONT does not answer that stop.
fn stopped_in_an_orphan(cx: &Cx) {
    let script = "trap 'echo continued' CONT; echo ready; while :; do sleep 0.05; done";
    let mut screen = on_terminal(cx, &[], script);
    screen.until("ready\r\n");
    screen.until_raw(true).signal(Signal::SIGTSTP);
    screen.until("continued\r\n");
    screen.signal(Signal::SIGCONT);
    screen.until("continued\r\n");
    screen.types([3]);
    assert_eq!(screen.wait(), -2);
}

/// A stage in the background reads nothing that is typed to the shell, through any stream; in the foreground it
/// reads again.
fn in_the_background(cx: &Cx) {
    let mut screen = shell(cx);
    screen.types("$E -- sh -c 'tty; read -r line; echo \"got $line\"' &\r").until("/dev/pts/0");
    screen.until_waits("sh").types("echo typed $((6*7))\r").until("typed 42\r\n");
    screen.types("fg\r").until("line\"'\r\n");
    screen.until_raw(true).types("word\r").until("got word\r\n");
    screen.until("host$ ");
    let reads = "for n in 0 1 2; do test -t $n && timeout 1 head -n1 <&$n; done >got 2>&-; echo over >done";
    for (number, to) in ["| cat", "</dev/null", ">out", "<>/dev/null >out"].into_iter().enumerate() {
        let (got, over) = (format!("got{number}"), cx.dir().join(format!("over{number}")));
        let script =
            reads.replace(">got", &format!(">{got}")).replace(">done", &format!(">{}", over.display()));
        screen.types(format!("cd {}; $E --rw . -- sh -c '{script}' {to} &\r", cx.dir().display()));
        wait_for(Duration::from_secs(20), "the stage to have read", || {
            screen.types("echo typed $((6*7))\r").until("typed 42\r\n");
            over.exists().then_some(())
        });
        let got = fs::read_to_string(cx.dir().join(got)).expect("what it read");
        assert!(!got.contains("typed"), "{to}: {got}");
    }
    screen.types("exit\r");
}

fn follows_the_window(cx: &Cx) {
    let script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut screen = on_terminal(cx, &[], script);
    screen.until("ready\r\n");
    screen.resize(44, 132).until("44 132\r\n");
    screen.types([3]);
    assert_eq!(screen.wait(), -2);
    // Changes to the stage's terminal do not affect this one.
    let mut screen = on_terminal(cx, &[], "stty rows 5 cols 6 -echo; stty size; read -r go");
    let before = screen.settings();
    screen.until("5 6\r\n");
    assert_eq!(screen.size(), SIZE);
    assert_eq!(screen.types("\r").wait(), 0);
    assert_eq!((screen.size(), screen.settings()), (SIZE, before));
}

/// With only one of the two streams on a terminal, the stage gets the streams, and no session on the caller's terminal.
fn half(cx: &Cx) {
    let exeat = cx.bench().bin.join("exeat").display().to_string();
    let inside = "test -t 0 && echo in; test -t 1 && echo out; (: </dev/tty) 2>/dev/null || echo no tty";
    for (redirection, expect) in [("| cat", "in\r\nno tty\r\n"), ("</dev/null", "out\r\nno tty\r\n")] {
        let script = format!("{exeat} run --quiet -- sh -c '{inside}' {redirection}");
        let mut screen = cx.outside(["sh", "-c", &script]).on_terminal();
        screen.until(expect);
        screen.wait();
    }
}

fn other_streams(cx: &Cx) {
    let exeat = cx.bench().bin.join("exeat").display().to_string();
    let inside = "test -t 2 || echo no terminal >&2; tty";
    let file = cx.dir().join("said");
    let script = format!("{exeat} run --quiet -- sh -c '{inside}' 2>{}", file.display());
    let mut screen = cx.outside(["sh", "-c", &script]).on_terminal();
    screen.until("/dev/pts/0\r\n");
    screen.wait();
    let said = fs::read_to_string(&file).expect("what was said");
    assert!(said.ends_with("no terminal\n"), "{said}");
}

/// A standard error on another terminal stays there; on the same one it becomes the stage's, by any name.
fn error_elsewhere(cx: &Cx) {
    let exeat = cx.bench().bin.join("exeat").display().to_string();
    let mut other = cx.outside(["sleep", "1000"]).on_terminal();
    fs::set_permissions(other.name(), fs::Permissions::from_mode(0o666)).expect("its owner's");
    let inside = "tty; tty <&2; echo elsewhere >&2; exit 0";
    let script = |to: &str| format!("{exeat} run --quiet -- sh -c '{inside}' 2>{to}; echo over");
    let mut screen = cx.outside(["sh", "-c", &script(other.name())]).on_terminal();
    let said = screen.until("over\r\n");
    assert!(said.starts_with("/dev/pts/0\r\n") && !said.contains("elsewhere"), "{said}");
    other.until("elsewhere\r\n");
    let mut screen = cx.outside(["sh", "-c", &script("/dev/tty")]).on_terminal();
    screen.until("/dev/pts/0\r\n/dev/pts/0\r\nelsewhere\r\nover\r\n");
}

/// The kernel does not reveal that a pseudo-terminal's master is another terminal.
fn error_on_a_master(cx: &Cx) {
    let exeat = cx.bench().bin.join("exeat").display().to_string();
    let script = format!(
        "import os, pty, select, subprocess, tty
master, other = pty.openpty()
tty.setraw(other)
subprocess.run([\"{exeat}\", \"run\", \"--quiet\", \"--\", \"sh\", \"-c\", \"tty; echo elsewhere >&2\"], stderr=master)
came = select.select([other], [], [], 5)[0]
print(\"came:\", os.read(other, 100) if came else None, flush=True)"
    );
    let mut screen = cx.outside(["/usr/bin/python3", "-c", &script]).on_terminal();
    let said = screen.until("came: ");
    assert!(said.starts_with("/dev/pts/0\r\n") && !said.contains("elsewhere"), "{said}");
    screen.until("b'elsewhere\\n'");
}

/// In a small container or under chroot(8) the name may be missing, or not be a terminal. If the stream cannot be
/// reopened either, the error names the solution.
fn without_dev_tty(cx: &Cx) {
    for mount in [
        "mount --bind /dev/tty /dev/tty; mount -o remount,bind,nodev /dev/tty",
        "mount --bind /dev/null /dev/tty",
    ] {
        let run = || exeat(cx, &["--quiet"], &["sh", "-c", "tty; read -r line; echo \"got $line\""]);
        let mut screen = run().in_mounts(&format!("chmod 600 $(tty); {mount}")).on_terminal();
        screen.until("EACCES");
        screen.until("--set sandbox.tty=off");
        assert_eq!(screen.wait(), 125, "{mount}");
        // A login gives the terminal to its user.
        let mut screen = run().in_mounts(&format!("chmod 666 $(tty); {mount}")).on_terminal();
        screen.until("/dev/pts/0\r\n");
        screen.types("word\r").until("got word\r\n");
        assert_eq!(screen.wait(), 0, "{mount}");
    }
}

/// Output through the terminal and through pipes counts together.
fn output_is_counted(cx: &Cx) {
    let mut screen = on_terminal(cx, &["--set", "limits.output_size=1000", "--quiet"], "echo ready; yes");
    screen.until("ready\r\n");
    assert_eq!(screen.wait(), 137);
    let rest = screen.rest(Duration::from_millis(200));
    let lines = rest.bytes().filter(|byte| *byte == b'y').count();
    assert!((300..=331).contains(&lines), "{lines} lines of 3 bytes: {rest}");
    let mut screen = on_terminal(cx, &["--set", "limits.output_size=1MB"], "echo ready; exit 3");
    screen.until("ready\r\n");
    assert_eq!(screen.wait(), 3);
}

/// The output arrives in order and at once.
fn flood(cx: &Cx) {
    let mut screen = on_terminal(cx, &[], "seq 300000");
    screen.until("\r\n2000\r\n");
    screen.until_quiet("seq");
    let peak = memory_kb(screen.pid(), "VmHWM");
    assert!(peak > 0 && peak < 40_000, "{peak} kB");
    let mut next = 2001;
    while next <= 300_000 {
        let upto = (next + 5000).min(300_000);
        let shown = screen.until(&format!("\r\n{upto}\r\n"));
        let expected: Vec<String> = (next..=upto).map(|n| n.to_string()).collect();
        let lines: Vec<&str> = shown.split("\r\n").filter(|line| !line.is_empty()).collect();
        assert!(lines == expected, "not {next} to {upto}: {} lines", lines.len());
        next = upto + 1;
    }
    assert_eq!(screen.wait(), 0);
}

/// A pasted megabyte that nobody reads, and an interrupt after it. In canonical mode the kernel discards the excess; in
/// raw mode it waits.
fn paste(cx: &Cx) {
    for (mode, bytes) in [("icanon", 1 << 20), ("-icanon", 60_000)] {
        let mut screen = on_terminal(cx, &[], &format!("stty {mode} -echo; echo ready; exec sleep 1000"));
        screen.until("ready\r\n");
        screen.until_raw(true).types("x".repeat(bytes));
        let peak = memory_kb(screen.pid(), "VmHWM");
        assert!(peak < 40_000, "{peak} kB");
        screen.types([3]);
        assert_eq!(screen.wait(), -2, "{mode}");
    }
}

/// Output from before the stage closes its terminal arrives, whatever is typed then, and nothing spins meanwhile. A key
/// still interrupts the stage.
fn closed(cx: &Cx) {
    let close = "exec </dev/null >/dev/null 2>&1; touch closed";
    let file = cx.dir().join("closed");
    let until_closed =
        || wait_for(Duration::from_secs(10), "the stage to close it", || file.exists().then_some(()));
    let script = format!(
        "stty -icanon -echo; timeout --foreground 1 yes; {close}
             until [ -e go ]; do sleep 0.1; done; echo end >/dev/tty"
    );
    let mut screen = on_terminal(cx, &["--quiet"], &script);
    until_closed();
    // More than the kernel buffers.
    screen.types("key ".repeat(10_000));
    let before = ticks(screen.pid());
    thread::sleep(Duration::from_secs(1));
    let spent = ticks(screen.pid()) - before;
    assert!(spent < 30, "{spent} hundredths of a second of the processor's in one");
    cx.write("go", "");
    let lines = screen.until("end\r\n").bytes().filter(|byte| *byte == b'\n').count();
    assert!(lines > 22_000, "64 KiB were held: {lines} lines of 3 bytes");
    assert_eq!(screen.wait(), 0);

    fs::remove_file(&file).expect("it is there");
    let mut screen = on_terminal(cx, &["--quiet"], &format!("{close}; exec sleep 1000"));
    until_closed();
    screen.until_waits("sleep").types([3]);
    assert_eq!(screen.wait(), -2);
}

/// The stage has ended, and its output waits for a reader: the keys are the caller's again.
fn undelivered(cx: &Cx) {
    let mut screen = on_terminal(cx, &["--quiet"], "echo ready; timeout --foreground 1 yes; touch over");
    let over = cx.dir().join("over");
    wait_for(Duration::from_secs(10), "the stage to end", || over.exists().then_some(()));
    screen.until_raw(false).types([3]);
    wait_for(Duration::from_secs(10), "exeat to give up the rest", || screen.ended().then_some(()));
    // The same while another stream is unread.
    let exeat = cx.bench().bin.join("exeat").display().to_string();
    let script = format!(
        "trap : INT; mkfifo slow; exec 4<>slow; {exeat} run --quiet --set limits.output_size=1MB -- \
         sh -c 'echo ready; head -c 100000 /dev/zero >&2' 2>slow; echo \"left $?\""
    );
    let mut screen = cx.outside(["sh", "-c", &script]).on_terminal();
    screen.until("ready\r\n");
    wait_for(Duration::from_secs(10), "the stage to end", || screen.pids("head").is_empty().then_some(()));
    screen.until_raw(false).types([3]).until("left 0\r\n");
}

/// After any end the terminal is as before.
fn restored(cx: &Cx) {
    type End = (&'static [&'static str], &'static str, Option<Signal>, i32);
    let ends: [End; 8] = [
        (&[], "stty raw -echo; echo ready; exit 3", None, 3),
        (&[], "stty raw; echo ready; kill -9 $$", None, 137),
        (&["--timeout", "300ms"], "stty raw; echo ready; exec sleep 1000", None, 124),
        (&[], "stty raw; echo ready; exec sleep 1000", Some(Signal::SIGTERM), 143),
        (&[], "echo ready; exec sleep 1000", Some(Signal::SIGHUP), 129),
        (&[], "echo ready; exec sleep 1000", Some(Signal::SIGALRM), -14),
        (&[], "echo ready; exec sleep 1000", Some(Signal::SIGABRT), -6),
        (&[], "echo ready; exec sleep 1000", Some(Signal::SIGXCPU), -24),
    ];
    for (flags, script, signal, code) in ends {
        let mut screen = on_terminal(cx, flags, script);
        screen.until("ready");
        if let Some(signal) = signal {
            screen.until_raw(true).signal(signal);
        }
        assert_eq!(screen.wait(), code, "{script} {signal:?}");
        screen.until_raw(false);
    }
    let mut screen = exeat(cx, &[], &["/no/such/command"]).on_terminal();
    let before = screen.settings();
    assert_eq!(screen.wait(), 127);
    assert_eq!(screen.settings(), before);
}

/// Also if a shell has changed it while exeat was stopped.
fn restored_after_a_stop(cx: &Cx) {
    let mut screen = on_terminal(cx, &[], "echo ready; exec sleep 1000");
    screen.until("ready");
    screen.until_raw(true).signal(Signal::SIGSTOP);
    screen.set(&["sane"]).until_raw(false).signal(Signal::SIGCONT);
    screen.until_raw(true).signal(Signal::SIGALRM);
    assert_eq!(screen.wait(), -14);
    screen.until_raw(false);
}

/// A closed window ends the stage; a stage that ignores the hang-up is killed.
fn hang_up(cx: &Cx) {
    let told = cx.dir().join("told");
    for (script, tells) in [
        ("trap 'echo hup >told; exit 7' HUP; echo ready; while :; do sleep 0.05; done", true),
        ("trap '' HUP; echo ready; while :; do sleep 0.05; done", false),
    ] {
        let _ = fs::remove_file(&told);
        let mut screen = on_terminal(cx, &[], script);
        screen.until("ready\r\n");
        screen.until_raw(true);
        screen.hang_up();
        assert_eq!(screen.wait(), if tells { 7 } else { 137 }, "{script}");
        assert_eq!(told.exists(), tells, "{script}");
    }
}

/// `/dev/tty` works in a stage that has closed its streams, as for a program that asks for a password.
fn by_name(cx: &Cx) {
    let script = "exec </dev/null >/dev/null 2>&1; sleep 0.3; stty -echo </dev/tty
                  printf 'password: ' >/dev/tty; read -r word </dev/tty; stty echo </dev/tty; echo \"got $word\" >/dev/tty";
    let mut screen = on_terminal(cx, &[], script);
    screen.until("password: ");
    screen.types("secret\r");
    assert_eq!(screen.until("got secret\r\n").trim(), "got secret");
    assert_eq!(screen.wait(), 0);
}

fn programs(cx: &Cx) {
    let programs: [(&str, &str, &str, &str); 6] = [
        ("less", "seq 1000 | less", "\n32\r\n:", "q"),
        ("vim", "vim -u NONE -N made", "~", ":q!\r"),
        ("top", "top", "PID", "q"),
        ("python3", "/usr/bin/python3 -q", ">>> ", "import sys; sys.exit(sys.stdout.isatty() - 1)\r"),
        ("script", "script -qec tty /dev/null; read -r x", "/dev/pts/1", "\r"),
        ("tmux", "tmux -f /dev/null new sh", "[0] 0:", "exit\r"),
    ];
    for (name, script, shown, leave) in programs {
        cx.needs(&[&format!("/usr/bin/{name}"), &format!("/bin/{name}")]);
        let mut screen = exeat(cx, &[], &["sh", "-c", script]).env("TERM", "xterm").on_terminal();
        screen.until(shown);
        if name == "script" {
            // The program restores the terminal when it ends, and then the shell reads.
            let is_over = || screen.pids(name).is_empty().then_some(());
            wait_for(Duration::from_secs(10), "its end", is_over);
            screen.until_waits("sh").types(leave);
        } else {
            screen.until_waits(name).types(leave);
        }
        assert_eq!(screen.wait(), 0, "{name}");
    }
}
