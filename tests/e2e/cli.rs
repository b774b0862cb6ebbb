//! The command line: its answers, and the ways to start a run.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use e2e::case::{Backend, Cases, Cx};

pub(crate) fn cases(list: &mut Cases) {
    list.once("cli::help_and_version", help);
    list.once("cli::check_decides", check);
    list.once("cli::check_json", check_json);
    list.users("cli::dry_run_starts_nothing", dry_run);
    list.matrix("cli::working_directory_is_writable", writable_cwd);
    list.matrix("cli::host_is_read_only", host_is_read_only);
    list.users("cli::started_in_home_or_root_is_read_only", in_home_or_root);
    list.users("cli::resolv_conf_dangling", dangling_resolv_conf);
    list.users("cli::arguments_and_directories_are_bytes", bytes);
    list.bridges("cli::b27_long_paths", long_paths);
    list.users("cli::limits_are_the_callers", caller_limits);
    list.once("cli::working_directory_is_gone", no_directory);
    list.matrix("cli::environment", environment);
    list.bridges("cli::identity", identity);
    list.bridges("cli::files_of_the_stage", files);
    list.bridges("cli::minimal_view", minimal_view);
    list.once("cli::a_hint_of_a_minimal_view_is_one_that_works", a_hint_of_a_minimal_view_is_one_that_works);
    list.users("cli::cache_persists", cache_persists);
    list.users("cli::proxy_alone", proxy_alone);
    list.once("cli::proxy_on_a_free_port", free_port);
    list.once("cli::proxy_at_a_place_that_is_taken", taken_place);
    list.users("cli::published_isolation_policy", isolation_policy);
    list.once("cli::options_in_both_spellings", both_spellings);
    list.users("cli::one_file_is_enough", one_file);
    list.users("cli::loopback_is_said_to_be_the_stage_s_own", loopback);
    list.users("cli::temporary_files_lie_where_tmpdir_says", temporary);
    list.users("cli::git_s_own_names_the_flag", git_names);
}

fn help(cx: &Cx) {
    cx.exeat(["--version"]).run().exits(0).shows("exeat ");
    for words in [vec!["--help"], vec!["run", "--help"], vec!["check", "--help"], vec!["audit", "--help"]] {
        cx.exeat_plain(words).run().exits(0).shows("exeat");
    }
    let help = cx.exeat_plain(["run", "--help"]).run();
    for flag in [
        "--allow",
        "--deny",
        "--policy",
        "--set",
        "--audit",
        "--result",
        "--dry-run",
        "--ro",
        "--rw",
        "--env",
    ] {
        help.shows(flag);
    }
}

fn check(cx: &Cx) {
    let rules =
        ["check", "--allow", "*.example.com", "--allow", "10.0.0.0/8:5432", "--deny", "bad.example.com"];
    for (target, code) in [
        ("a.example.com:443", 0),
        ("A.B.Example.com:443", 0),
        ("example.com:443", 1),
        ("a.example.com:80", 1),
        ("bad.example.com:443", 1),
        ("10.1.2.3:5432", 0),
        ("11.1.2.3:5432", 1),
        ("127.1:443", 2),
        ("https://a.example.com/", 2),
    ] {
        let done = cx.exeat(rules.iter().copied().chain([target])).run();
        done.exits(code);
    }
    let done = cx.exeat(rules.iter().copied().chain(["a.example.com:443"])).run();
    done.shows("allow").shows("*.example.com").shows("--allow");
    cx.exeat(rules.iter().copied().chain(["other.test:443"])).run().shows("deny").shows("no rule allows it");
    assert!(cx.bench().dns.queries("a.example.com").is_empty(), "check asks nobody");
}

fn check_json(cx: &Cx) {
    let done = cx.exeat(["check", "--format", "json", "--allow", "*.example.com", "a.example.com:443"]).run();
    let text = done.exits(0).json().to_string();
    assert!(text.contains("allow") && text.contains("*.example.com"), "{text}");
    let text = cx
        .exeat(["check", "--format", "json", "--allow", "*.example.com", "b.test:443"])
        .run()
        .exits(1)
        .json()
        .to_string();
    assert!(text.contains("deny") && text.contains("default"), "{text}");
}

fn dry_run(cx: &Cx) {
    let done = cx.exeat(["run", "--dry-run", "--allow", &cx.good(), "--", "touch", "started"]).run();
    done.exits(0).shows(&cx.good()).shows("HTTPS_PROXY");
    match cx.backend() {
        Backend::Bwrap | Backend::BwrapAlone => done.shows("--unshare-all").shows("--cap-drop"),
        Backend::Native => done.shows("made by exeat itself"),
    };
    assert!(!cx.dir().join("started").exists());
    assert!(!cx.home().join(".local/state/exeat/runs").exists(), "a dry run writes no record");
}

/// K3, A13.
fn writable_cwd(cx: &Cx) {
    let done = cx.sh(&[], "echo new >made; mkdir sub; echo more >sub/file; cat made; rm made").run();
    done.exits(0).prints("new\n");
    let path = cx.dir().join("sub/file");
    assert_eq!(fs::read_to_string(&path).expect("written"), "more\n");
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(&path).expect("file"));
    let directory = std::os::unix::fs::MetadataExt::uid(&fs::metadata(cx.dir()).expect("directory"));
    assert_eq!(owner, directory, "new files belong to whoever owns the directory");
}

/// Clients do not ask a proxy for loopback, so a rule for it alone has no effect. The note's advice works.
fn loopback(cx: &Cx) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nyes");
        }
    });
    let url = format!("http://{at}/");
    let done = cx.run(&[&at], ["curl", "-sS", &url]).run();
    done.exits(7)
        .says("NO_PROXY")
        .says(&format!("`--host-port {}` puts", at.rsplit_once(':').expect("a port").1));
    let done = cx.run(&[&at], ["env", "-u", "NO_PROXY", "-u", "no_proxy", "curl", "-sS", &url]).run();
    done.exits(0).prints("yes");
    let done = cx.run(&[&cx.good()], ["true"]).run();
    assert_eq!(done.exits(0).stderr(), "", "{done:?}");
}

/// Temporary files lie on the job's disk during the run, and are gone after it. Root's runs have them in memory.
fn temporary(cx: &Cx) {
    let scratch = cx.dir().join("scratch");
    let script = "echo $TMPDIR; mktemp | cut -c1-9; mktemp -d >/dev/null; echo data >/tmp/file; \
                  grep -c ' / /tmp ' /proc/self/mountinfo; true";
    cx.outside(["mkdir", "scratch"]).run().exits(0);
    let run = |words: &[&str], dir: &str| {
        let words = [&["run"], words, &["--", "sh", "-c", script]].concat();
        cx.exeat(words).env("TMPDIR", dir).run()
    };
    let place = |done: &e2e::run::Done| done.stdout().lines().last().map(str::to_owned);
    let dir = scratch.display().to_string();
    let on_disk = if cx.is_root() { "1" } else { "0" };
    for words in [&[][..], &["--env", "TMPDIR"]] {
        let done = run(words, &dir);
        assert!(done.exits(0).stdout().starts_with("/tmp\n/tmp/tmp.\n"), "{done:?}");
        assert_eq!(place(&done).as_deref(), Some(on_disk), "{done:?}");
    }
    let names = |dir: &Path| {
        fs::read_dir(dir).expect("a directory").flatten().map(|it| it.path()).collect::<Vec<_>>()
    };
    assert!(names(&scratch).iter().all(|base| names(base).is_empty()), "{:?}", names(&scratch));
    // The stage of another run does not see them in its tree.
    let other = cx.home().join("other");
    fs::create_dir(&other).expect("a directory");
    cx.bench().give(&other, cx.is_root());
    let write = "echo mine >/tmp/file; echo ready; read -r go; cat /tmp/file";
    let mut live = cx.sh(&[], write).cwd(&other).env("TMPDIR", &dir).stdin_open().start();
    live.until_prints("ready");
    let look = "find scratch; for it in scratch/*/*/file; do echo evil >$it; done; true";
    let found = cx.sh(&[], look).run();
    assert!(!found.exits(0).stdout().contains("file"), "{found:?}");
    live.wait().exits(0).prints("ready\nmine\n");
    // A stage of an earlier run may have left a link.
    let linked = cx.home().join("linked");
    fs::create_dir(&linked).expect("a directory");
    let user = cx.outside(["id", "-u"]).run().exits(0).stdout();
    std::os::unix::fs::symlink("/nowhere", linked.join(format!("exeat-{}", user.trim()))).expect("a link");
    cx.bench().give(&linked, cx.is_root());
    let done = cx.sh(&[], "df -t tmpfs /tmp >/dev/null").env("TMPDIR", linked.to_str().expect("ASCII")).run();
    done.exits(0);
    if !cx.is_root() {
        done.says("TMPDIR has something that is not a directory at");
    }
    // With a size limit the files are in memory, and also if TMPDIR is shared or missing.
    assert_eq!(place(&run(&["--set", "limits.tmpfs_size=1MiB"], &dir)).as_deref(), Some("1"));
    for dir in ["/tmp", "/var/tmp", "/nowhere/at/all", "relative"] {
        assert_eq!(place(&run(&[], dir)).as_deref(), Some("1"), "{dir}");
    }
}

/// A message explains how to keep git's own files that were moved aside; for other files it does not appear.
fn git_names(cx: &Cx) {
    let done = cx
        .sh(&[], "mkdir -p .git/hooks; echo x >.git/hooks/pre-push; echo x >.git/config; echo y >.envrc")
        .run();
    let said = done.exits(0).stderr();
    let lines = |name: &str| said.lines().find(|line| line.contains(name)).expect("a line").to_owned();
    assert!(lines(".git/config`").contains("--allow-write .git"), "{said}");
    assert!(lines(".git/hooks`").contains("--allow-write .git"), "{said}");
    assert!(!lines(".envrc`").contains("--allow-write .git"), "{said}");
}

/// K21, B19.
fn host_is_read_only(cx: &Cx) {
    fs::write(cx.home().join("secret"), "s").expect("a file in HOME");
    let probe = cx.probe();
    let outside = cx.home().join("secret");
    let script = format!(
        "{probe} create /etc/x; {probe} create /usr/x; {probe} write /etc/hosts; {probe} write /etc/resolv.conf
         {probe} read {}; ls -A $HOME | tr '\\n' ' '; touch /tmp/t /var/tmp/t && echo; echo temporary",
        outside.display()
    );
    let done = cx.sh(&[], &script).run();
    let said = done.stdout();
    let lines: Vec<&str> = said.lines().collect();
    for line in &lines[..4] {
        assert!(["EROFS", "EACCES", "EPERM", "ENOENT"].contains(line), "{done:?}");
    }
    assert_eq!(lines[4], "ENOENT", "the rest of HOME is absent: {done:?}");
    assert!(!lines[5].contains("secret") && lines[5].contains("work"), "{done:?}");
    assert_eq!(lines[6], "temporary", "{done:?}");
    assert!(!PathBuf::from("/tmp/t").exists(), "/tmp is private");
}

fn in_home_or_root(cx: &Cx) {
    let home = cx.home().to_path_buf();
    let script = "touch made 2>/dev/null && echo wrote || echo refused";
    let done = cx.sh(&[], script).cwd(&home).run();
    done.exits(0).prints("refused\n").says("is empty for the stage");
    assert!(!home.join("made").exists());
    let done = cx.sh(&[], script).cwd("/".as_ref()).run();
    done.exits(0).prints("refused\n").says("is not shown to the stage");
}

/// Returns a shell command followed by `exeat run -- REST`.
fn behind<'a>(cx: &'a Cx, before: &str, rest: &str) -> e2e::run::Run<'a> {
    let exeat = cx.bench().bin.join("exeat");
    cx.exeat_plain(["x"]).under(["sh", "-c", &format!("{before}; exec {} run -- {rest}", exeat.display())])
}

/// Arguments, directories and variables are bytes, not text.
fn bytes(cx: &Cx) {
    let done = behind(cx, "true", "printf %s \"$(printf 'a\\377b')\"").run();
    assert_eq!(done.exits(0).raw_stdout, b"a\xffb", "{done:?}");
    let odd = cx.home().join(std::ffi::OsStr::from_bytes(b"odd \xff\n'dir"));
    fs::create_dir(&odd).expect("an odd name");
    cx.bench().give(&odd, cx.is_root());
    cx.sh(&[], "echo here >made; cat made").cwd(&odd).run().exits(0).prints("here\n");
    assert!(odd.join("made").exists());
}

/// A socket path has at most 107 bytes; directories can be longer.
fn long_paths(cx: &Cx) {
    let deep = cx.home().join("d".repeat(100)).join("e".repeat(100));
    fs::create_dir_all(&deep).expect("a deep directory");
    cx.bench().give(&deep, cx.is_root());
    let text = deep.to_str().expect("ASCII");
    let run = cx.probing(&[&format!("{}:7", cx.good())], &format!("echo {}:7 10", cx.good()));
    run.env("XDG_RUNTIME_DIR", text).env("TMPDIR", text).run().exits(0).prints("ok: 10\n");
    cx.sh(&[], "echo here").cwd(&deep).run().exits(0).prints("here\n");
}

/// The host side raises its own descriptor limit; the stage has the caller's.
fn caller_limits(cx: &Cx) {
    behind(cx, "ulimit -Sn 333; umask 027", "sh -c 'ulimit -Sn; umask'").run().exits(0).prints("333\n0027\n");
    let done = behind(cx, "umask 0777", "touch started").run();
    done.exits(2).says("with umask 0777 exeat could not use the files that it makes").says("umask 077");
    for few in [18, 40, 63] {
        let done = behind(cx, &format!("ulimit -n {few}"), "touch started").run();
        done.exits(125).says(&format!("the hard limit is {few}, and a start takes 64"));
    }
    assert!(!cx.dir().join("started").exists());
    behind(cx, "ulimit -n 64", "touch started").run().exits(0);
}

/// A missing working directory is an error with a message.
fn no_directory(cx: &Cx) {
    let done = behind(cx, "mkdir gone; cd gone; rmdir ../gone", "echo started").run();
    done.exits(125).prints("").says("directory");
}

/// Ubuntu's /etc/resolv.conf is a link into /run, and /run is private inside.
fn dangling_resolv_conf(cx: &Cx) {
    let mounts =
        "copy=/tmp/etc-$$; mkdir $copy; cp -a /etc/. $copy/ 2>/dev/null || true; cp --remove-destination /etc/hosts $copy/hosts
                  cp --remove-destination /etc/nsswitch.conf $copy/nsswitch.conf
                  rm -f $copy/resolv.conf; ln -s ../run/nowhere/stub-resolv.conf $copy/resolv.conf
                  mount --bind $copy /etc";
    let done = cx
        .run(&["hosts-file.test:7"], [cx.probe(), "echo", "hosts-file.test:7", "10"])
        .in_mounts(mounts)
        .run();
    done.exits(0).prints("ok: 10\n");
}

/// K27, K30, K40, K50: the stage has every spelling of the proxy variables, and none from the caller or the host side.
fn environment(cx: &Cx) {
    let run = cx.sh(&[&cx.good()], "env | sort; cat /proc/1/environ | tr '\\0' '\\n'");
    let secrets = [
        "SECRET_TOKEN",
        "SSH_AUTH_SOCK",
        "DOCKER_HOST",
        "LD_PRELOAD_X",
        "DBUS_SESSION_BUS_ADDRESS",
        "AWS_SECRET_ACCESS_KEY",
    ];
    let done = secrets.iter().fold(run, |run, name| run.env(name, "hunter2")).env("NO_PROXY", "*").run();
    done.exits(0);
    let said = done.stdout();
    assert!(!said.contains("hunter2"), "{said}");
    for line in [
        "NO_PROXY=localhost,127.0.0.1,::1",
        "no_proxy=localhost,127.0.0.1,::1",
        "EXEAT=/run/exeat/README",
        "NODE_USE_ENV_PROXY=1",
    ] {
        assert!(said.lines().any(|known| known == line), "no `{line}` in {said}");
    }
    for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"] {
        assert!(said.contains(&format!("{name}=http://127.0.0.1:")), "no {name} in {said}");
    }
    assert!(said.contains(&format!("HOME={}\n", cx.home().display())), "{said}");
    // K30: exeat sets only these three, and none names a path on the host.
    let (_, ours): (Vec<_>, Vec<_>) = said
        .lines()
        .filter(|line| line.starts_with("EXEAT"))
        .partition(|line| line.starts_with("EXEAT_RUN_ID="));
    assert_eq!(ours, ["EXEAT=/run/exeat/README", "EXEAT_DENIALS=/run/exeat/denials.jsonl"], "{said}");

    let done = cx.exeat(["run", "--env", "KEPT", "--env", "SET=here", "--", "sh", "-c", "echo $KEPT $SET"]);
    done.env("KEPT", "kept").run().prints("kept here\n");
}

/// N18.
fn identity(cx: &Cx) {
    let done =
        cx.sh(&[], "id -u; id -g; hostname; grep -c . /etc/passwd; getent passwd 65534 | cut -d: -f6").run();
    done.exits(0);
    let said = done.stdout();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["65534", "65534"], "{done:?}");
    assert_eq!(lines[4], cx.home().to_str().expect("ASCII"), "the JVM takes HOME from passwd: {done:?}");
}

/// K3.
fn files(cx: &Cx) {
    let data = cx.home().join("data");
    fs::create_dir(&data).expect("data");
    fs::write(data.join("in"), "input").expect("data");
    fs::create_dir(cx.dir().join("secrets")).expect("secrets");
    fs::write(cx.dir().join("secrets/key"), "hunter2").expect("secret");
    let out = cx.home().join("out");
    fs::create_dir(&out).expect("out");
    cx.bench().give(&out, cx.is_root());
    let script = "cat /data/in; echo; touch /data/x 2>/dev/null || echo read-only; echo made >$OUT/made; cat secrets/key 2>/dev/null || echo masked";
    let words = [
        "run",
        "--ro",
        &format!("{}:/data", data.display()),
        "--rw",
        out.to_str().expect("ASCII"),
        "--mask",
        "secrets",
        "--env",
        &format!("OUT={}", out.display()),
        "--",
        "sh",
        "-c",
        script,
    ];
    cx.exeat(words).run().exits(0).prints("input\nread-only\nmasked\n");
    assert_eq!(fs::read_to_string(out.join("made")).expect("made"), "made\n");
}

/// Without an interpreter or libc, a static program runs, and so does exeat's helper before it.
fn minimal_view(cx: &Cx) {
    let source = cx.write("small.c", "int main(void) { return 7; }\n");
    let built = std::process::Command::new("gcc")
        .args(["-static", "-o"])
        .arg(cx.dir().join("small"))
        .arg(&source)
        .env("PATH", e2e::bench::PATH)
        .output();
    if !built.is_ok_and(|output| output.status.success()) {
        cx.cannot("gcc and a static libc are not installed");
    }
    let here = cx.dir().to_str().expect("ASCII");
    cx.exeat(["run", "--fs", "minimal", "--rw", here, "--", "./small"]).run().exits(7);
    cx.exeat(["run", "--fs", "minimal", "--", "./small"]).run().exits(127);
    cx.exeat(["run", "--fs", "minimal", "--", "/bin/sh", "-c", "true"]).run().exits(127);
}

/// A flag alone would be refused by the declaration, whose refusal would ask for another flag.
fn a_hint_of_a_minimal_view_is_one_that_works(cx: &Cx) {
    let hint = |words: &[&str], code: u8| {
        let done = cx.exeat([&["run", "--fs", "minimal"], words, &["--", "/bin/true"]].concat()).run();
        done.exits(code.into());
        let said = done.stderr().to_owned();
        said.split_once(", and this needs ").map(|(_, hint)| hint.trim().to_owned()).unwrap_or_default()
    };
    let mut declared = r#"{"effect":"FsRead","path":"/srv"}"#.to_owned();
    let alone = hint(&["--effects", &format!("[{declared}]")], 127);
    let effects = alone.strip_suffix(" in --effects").expect("no flag helps");
    declared = format!("[{declared}, {effects}]");
    assert_eq!(hint(&["--effects", &declared], 0), "");
    // What is granted and not declared takes both.
    let both = hint(&["--effects", r#"{"effect":"FsRead","path":"/srv"}"#, "--ro", "/srv"], 127);
    let (flags, effects) = both.split_once(" and ").expect("flags and effects");
    let effects = effects.strip_suffix(" in --effects").expect("effects");
    let declared = format!(r#"[{{"effect":"FsRead","path":"/srv"}}, {effects}]"#);
    let words: Vec<&str> =
        ["--effects", &declared, "--ro", "/srv"].into_iter().chain(flags.split(' ')).collect();
    assert_eq!(hint(&words, 0), "");
}

/// K21: the cache belongs to exeat and this directory, and is never the host's.
fn cache_persists(cx: &Cx) {
    let host = cx.home().join(".cache");
    fs::create_dir(&host).expect("the host's cache");
    fs::write(host.join("theirs"), "x").expect("the host's cache");
    cx.bench().give(&host, cx.is_root());
    cx.sh(&[], "mkdir -p $XDG_CACHE_HOME && echo kept >$XDG_CACHE_HOME/mine; ls -A $XDG_CACHE_HOME")
        .run()
        .prints("mine\n");
    cx.sh(&[], "cat $XDG_CACHE_HOME/mine").run().exits(0).prints("kept\n");
    assert!(!host.join("mine").exists());
    let other = cx.home().join("elsewhere");
    fs::create_dir(&other).expect("another directory");
    cx.bench().give(&other, cx.is_root());
    cx.sh(&[], "cat $XDG_CACHE_HOME/mine 2>/dev/null || echo none").cwd(&other).run().prints("none\n");
}

/// K38: the host side alone serves on a Unix socket and on TCP.
fn proxy_alone(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let socket = cx.home().join("proxy.sock");
    let record = cx.home().join("proxy.jsonl").display().to_string();
    let listen = format!("unix:{}", socket.display());
    let mut live =
        cx.exeat_plain(["proxy", "--listen", &listen, "--allow", &good, "--audit", &record]).start();
    e2e::wait_for(std::time::Duration::from_secs(60), "the socket", || {
        live.errors().contains("listening on").then_some(())
    });
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    for (name, status) in [(&good, "HTTP/1.1 200"), (&evil, "HTTP/1.1 403")] {
        cx.write(
            "script",
            &format!("send {}\n", hex(&format!("CONNECT {name}:443 HTTP/1.1\r\nHost: {name}:443\r\n\r\n"))),
        );
        let socket = socket.display().to_string();
        let done = cx.outside([cx.probe(), "bytes-unix", &socket, "script"]).run();
        assert!(
            done.stdout().split(' ').nth(1).is_some_and(|heard| heard.starts_with(&hex(status))),
            "{done:?}"
        );
    }
    live.signal(nix::sys::signal::Signal::SIGTERM);
    live.wait().exits(0);
    assert!(!socket.exists(), "the socket goes with the proxy");
    e2e::audit::AuditLog::read(record.as_ref()).sound();

    cx.exeat_plain(["proxy", "--listen", "tcp:0.0.0.0:3128", "--allow", &good]).run().exits(2);
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|free| free.local_addr())
        .expect("a free port")
        .port();
    let listen = format!("tcp:127.0.0.1:{port}");
    let live = cx.exeat_plain(["proxy", "--listen", &listen, "--allow", &good]).start();
    e2e::wait_for(std::time::Duration::from_secs(10), "the port", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).ok()
    });
    let mut curl = cx.curl(&cx.good_url());
    curl.extend(["-x".to_string(), format!("http://127.0.0.1:{port}")]);
    cx.outside(curl).run().exits(0).shows("hello from");
    live.signal(nix::sys::signal::Signal::SIGINT);
    live.wait().exits(0).says("any local user");
}

/// K49: with port 0 the kernel chooses, and exeat prints the port.
fn free_port(cx: &Cx) {
    let said = cx.home().join("said");
    let record = cx.home().join("proxy.jsonl").display().to_string();
    let words = ["proxy", "--listen", "tcp:127.0.0.1:0", "--allow", &cx.good(), "--audit", &record];
    let live = cx.exeat_plain(words).redirect(&format!("2>{}", said.display())).start();
    let port = e2e::wait_for(std::time::Duration::from_secs(10), "the port", || {
        let said = fs::read_to_string(&said).unwrap_or_default();
        let place = said.lines().find_map(|line| line.strip_prefix("exeat: listening on tcp:127.0.0.1:"))?;
        place.split(';').next()?.parse::<u16>().ok()
    });
    assert_ne!(port, 0);
    let mut curl = cx.curl(&cx.good_url());
    curl.extend(["-x".to_string(), format!("http://127.0.0.1:{port}")]);
    cx.outside(curl).run().exits(0).shows("hello from");
    live.signal(nix::sys::signal::Signal::SIGTERM);
    live.wait().exits(0);
}

/// K25, K50: a new proxy replaces the socket of a killed one, but not a live one's or any other file.
fn taken_place(cx: &Cx) {
    let socket = cx.home().join("proxy.sock");
    let listen = format!("unix:{}", socket.display());
    let record = |name: &str| cx.home().join(name).display().to_string();
    let proxy = |name: &str| {
        cx.exeat_plain(["proxy", "--listen", &listen, "--allow", &cx.good(), "--audit", &record(name)])
    };
    let answers = || std::os::unix::net::UnixStream::connect(&socket).is_ok();

    drop(std::os::unix::net::UnixListener::bind(&socket).expect("what a killed proxy leaves"));
    cx.bench().give(&socket, cx.is_root());
    assert!(socket.exists() && !answers());
    let first = proxy("first").start();
    e2e::wait_for(std::time::Duration::from_secs(10), "the proxy", || answers().then_some(()));
    proxy("second").run().exits(125).says("proxy.sock");
    assert!(answers(), "the first one was pushed aside");
    first.signal(nix::sys::signal::Signal::SIGTERM);
    first.wait().exits(0);
    assert!(!socket.exists());

    fs::write(&socket, "mine").expect("a file at its place");
    proxy("third").run().exits(125);
    assert_eq!(fs::read_to_string(&socket).expect("the file"), "mine");
}

/// N6, N7, N9, N10, N11, N13, N17, N20: the published JSON runs unchanged.
fn isolation_policy(cx: &Cx) {
    let trees = ["/usr", "/bin", "/lib", "/lib64"].map(PathBuf::from);
    let mut ro: Vec<serde_json::Value> = trees
        .iter()
        .filter(|tree| tree.exists())
        .map(|tree| serde_json::json!({"host": tree, "sandbox": tree}))
        .collect();
    cx.probe();
    ro.push(serde_json::json!({"host": cx.dir().join("probe"), "sandbox": "/probe"}));
    let job = cx.home().join("job");
    fs::create_dir(&job).expect("a work directory");
    cx.bench().give(&job, cx.is_root());
    let script = format!(
        "pwd; echo $HOME $USER $WORD $OTHER; ls -A; echo made >made; ls -d /etc/ssl/certs {} 2>/dev/null; /probe ask {}:443",
        cx.dir().display(),
        cx.good()
    );
    let run = |network: bool, work: Option<&PathBuf>| {
        let mut policy =
            serde_json::json!({"ro_binds": &ro, "network": network, "env_allowlist": ["PATH", "WORD"]});
        if let Some(work) = work {
            policy["work_host"] = serde_json::json!(work);
        }
        let path = cx.home().join("isolation.json");
        fs::write(&path, policy.to_string()).expect("the policy");
        let words = ["run", "--policy", path.to_str().expect("ASCII"), "--", "/bin/sh", "-c", &script];
        cx.exeat(words).env("WORD", "word").env("OTHER", "other").run()
    };
    let certificates = if Path::new("/etc/ssl/certs").exists() { "/etc/ssl/certs\n" } else { "" };
    let open = run(true, None);
    let start = format!("/work\n/work nobody word\n{certificates}HTTP/1.1 200 ");
    assert!(open.exits(0).stdout().starts_with(&start), "{open:?}");
    let closed = run(false, Some(&job));
    assert!(closed.exits(0).stdout().starts_with("/work\n/work nobody word\nHTTP/1.1 403 "), "{closed:?}");
    assert_eq!(fs::read_to_string(job.join("made")).expect("made by the stage"), "made\n");
}

/// N24: `--flag=value` and `--flag value` both work.
fn both_spellings(cx: &Cx) {
    let rule = format!("{}:7", cx.good());
    let script = format!("echo $WORD; {} ask {rule}", cx.probe());
    let joined =
        ["run", &format!("--allow={rule}"), "--env=WORD=a=b", "--timeout=30s", "--", "sh", "-c", &script];
    let apart = ["run", "--allow", &rule, "--env", "WORD=a=b", "--timeout", "30s", "sh", "-c", &script];
    for words in [&joined[..], &apart[..]] {
        let done = cx.exeat_plain(words.iter().copied()).run();
        assert!(done.exits(0).stdout().starts_with("a=b\nHTTP/1.1 200 "), "{done:?}");
    }
}

/// K23: the executable contains the helper, so no other file can be missing.
fn one_file(cx: &Cx) {
    let place = cx.home().join("alone");
    fs::create_dir(&place).expect("a directory");
    // A copy could not be executed while any forked child still has it open for writing.
    fs::hard_link(cx.bench().bin.join("exeat"), place.join("exeat")).expect("a link to exeat");
    cx.bench().give(&place, cx.is_root());
    let exeat = place.join("exeat").display().to_string();
    let ask = format!("{}:7", cx.good());
    let done = cx.outside([&exeat, "run", "--allow", &ask, "--", cx.probe(), "ask", &ask]).run();
    assert!(done.exits(0).stdout().starts_with("HTTP/1.1 200 "), "{done:?}");
}
