//! L01 to L05: a symbolic link that one run left redirects no later run, whoever names it; a name that is exchanged
//! during the start is not mounted; and links of ordinary layouts still work.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::case::{Cases, Cx};
use e2e::run::Done;
use nix::fcntl::OFlag;

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::l01_a_link_that_a_run_left_leads_no_flag_astray", flags);
    list.users("escape::l01_a_link_that_a_run_left_leads_no_file_astray", files);
    list.users("escape::l01_a_pipe_that_a_run_left_holds_up_no_output", pipes);
    list.on_a_host_of_root(|list| list.users("escape::l01_links_of_other_users_are_not_followed", foreign));
    list.users("escape::l02_a_link_that_a_run_left_leads_no_variable_astray", variables);
    list.users("escape::l03_a_link_into_the_working_directory_makes_it_read_only", working_directory);
    list.users("escape::l04_a_link_opens_no_mask", masks);
    list.users("escape::l01_a_link_that_a_run_left_leads_no_home_astray", homes);
    list.users("escape::l05_an_exchanged_name_is_not_mounted", exchange);
    list.users("escape::l01_a_tree_that_a_stage_wrote_is_trusted_no_more", written);
    list.root("escape::l01_root_is_led_into_no_closed_directory_below_a_link", closed_below);
    list.users("escape::l03_relative_paths_begin_where_the_shell_came_from", relative);
    list.users("escape::l04_l09_no_link_of_the_stage_s_changes_what_restricts_it", restricting);
    list.users("escape::l01_l02_links_of_ordinary_layouts_are_followed", layouts);
}

/// Makes a second project, and a directory of the user's that no run may reach.
fn scene(cx: &Cx) -> (PathBuf, PathBuf) {
    let (other, victim) = (cx.home().join("other"), cx.home().join("victim"));
    for dir in [&other, &victim] {
        make(cx, dir);
    }
    put(cx, &victim.join("secret"), "top secret\n");
    (other, victim)
}

fn make(cx: &Cx, dir: &Path) {
    for above in dir.ancestors().collect::<Vec<_>>().into_iter().rev() {
        if !above.exists() {
            fs::create_dir(above).expect("directory");
            cx.bench().give(above, cx.is_root());
        }
    }
}

fn put(cx: &Cx, path: &Path, text: &str) {
    fs::write(path, text).expect("file");
    cx.bench().give(path, cx.is_root());
}

fn link(cx: &Cx, target: &str, at: &Path) {
    symlink(target, at).expect("link");
    cx.bench().give(at, cx.is_root());
}

fn program(cx: &Cx, path: &Path, says: &str) {
    make(cx, path.parent().expect("directory"));
    put(cx, path, &format!("#!/bin/sh\necho {says}\n"));
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("mode");
}

/// Leaves links to the victim in the trial's directory, as a stage makes them.
fn plant(cx: &Cx, victim: &Path) {
    let script = format!(
        "ln -s {0} out; ln -s out chain; mkdir sub; ln -s {0} sub/deep; ln -s {0}/secret file; ln -s {0}/new new; ln -s . here",
        victim.display()
    );
    cx.exeat(["run", "--", "sh", "-c", &script]).run().exits(0);
}

fn is_untouched(victim: &Path) -> bool {
    let names: Vec<_> =
        fs::read_dir(victim).expect("victim").map(|it| it.expect("entry").file_name()).collect();
    names == ["secret"] && fs::read_to_string(victim.join("secret")).expect("secret") == "top secret\n"
}

/// The runs that reached the victim, and those that were refused without a message.
struct Attempts<'a> {
    cx: &'a Cx,
    victim: &'a Path,
    astray: Vec<String>,
    without_message: Vec<String>,
}

impl<'a> Attempts<'a> {
    fn new(cx: &'a Cx, victim: &'a Path) -> Self {
        Self { cx, victim, astray: Vec::new(), without_message: Vec::new() }
    }

    /// Checks what a run read and wrote, and restores the victim.
    fn check(&mut self, what: &str, done: &Done, code: i32, says: &[&str]) {
        if done.stdout().contains("secret")
            || done.stderr().contains("top secret")
            || !is_untouched(self.victim)
        {
            self.astray.push(what.to_owned());
            fs::remove_dir_all(self.victim).expect("victim");
            make(self.cx, self.victim);
            put(self.cx, &self.victim.join("secret"), "top secret\n");
        }
        if done.code != Some(code) || !says.iter().all(|words| done.stderr().contains(words)) {
            self.without_message.push(format!("{what}: {done:?}"));
        }
    }

    fn refused(&mut self, what: &str, done: &Done) {
        let end = self.victim.display().to_string();
        self.check(what, done, 2, &["a stage could have made", &end]);
    }

    fn nowhere(self) {
        assert!(self.astray.is_empty(), "led astray: {:#?}", self.astray);
        assert!(self.without_message.is_empty(), "{:#?}", self.without_message);
    }
}

fn flags(cx: &Cx) {
    let (other, victim) = scene(cx);
    plant(cx, &victim);
    let mut led = Attempts::new(cx, &victim);
    let dir = cx.dir().display().to_string();
    for name in ["out", "chain", "sub/deep", "out/secret", "here/out", "out/../victim"] {
        for (flag, value) in [
            ("--ro", format!("{dir}/{name}:/in")),
            ("--rw", format!("{dir}/{name}:/in")),
            ("--mask", format!("{dir}/{name}")),
        ] {
            let script = "cat /in/secret /in; echo x > /in/new; echo x > /in";
            let done = cx.exeat(["run", flag, &value, "--", "sh", "-c", script]).cwd(&other).run();
            led.refused(&format!("{flag} {name}"), &done);
        }
    }
    // Paths that exeat itself writes.
    for (flag, value) in
        [("--audit", "out/r.jsonl"), ("--result", "sub/deep/r.json"), ("--audit-key", "out/key.pem")]
    {
        let value = format!("{dir}/{value}");
        led.refused(flag, &cx.exeat(["run", flag, &value, "--", "true"]).cwd(&other).run());
    }
    let done = cx.exeat(["run", "--result", &format!("{dir}/new"), "--", "true"]).cwd(&other).run();
    // A result replaces a link and does not follow it.
    led.check("--result of a link", &done, 0, &[]);
    // The state directory and the cache that variables name.
    let state = format!("{dir}/out/state");
    let done = cx.exeat_plain(["run", "--", "true"]).cwd(&other).env("XDG_STATE_HOME", &state).run();
    led.refused("XDG_STATE_HOME", &done);
    let cache = format!("{dir}/out/c");
    let done = cx.exeat(["run", "--", "true"]).cwd(&other).env("XDG_CACHE_HOME", &cache).run();
    led.check("XDG_CACHE_HOME", &done, 0, &["in memory"]);
    // Files that are written from a record.
    let record = cx.exeat(["run", "--", "true"]).cwd(&other).run();
    let record = record.record_path().expect("a record").display().to_string();
    for (command, name) in [("lock", "egress.lock"), ("report", "r.html")] {
        let to = format!("{dir}/out/{name}");
        let done = cx.exeat_plain(["audit", command, "-o", &to, &record]).cwd(&other).run();
        led.refused(&format!("audit {command}"), &done);
    }
    // The socket of a program on the host.
    let server = UnixListener::bind(victim.join("s")).expect("socket");
    server.set_nonblocking(true).expect("a socket that does not block");
    fs::set_permissions(victim.join("s"), fs::Permissions::from_mode(0o777)).expect("mode");
    cx.bench().give(&victim.join("s"), cx.is_root());
    let ask = "curl -s --max-time 2 -x $HTTPS_PROXY https://x.test";
    let via = format!("unix:{dir}/out/s");
    let done = cx.exeat(["run", "--via", &via, "--", "sh", "-c", ask]).cwd(&other).run();
    if server.accept().is_ok() {
        led.astray.push("--via".into());
    }
    fs::remove_file(victim.join("s")).expect("socket");
    led.check("--via", &done, 2, &["a stage could have made"]);
    led.nowhere();
}

fn files(cx: &Cx) {
    let (other, victim) = scene(cx);
    plant(cx, &victim);
    let mut led = Attempts::new(cx, &victim);
    let dir = cx.dir().display().to_string();
    let reach =
        format!("for at in {dir}/out /in .; do cat $at/secret; echo x > $at/new; done; rm -f new; true");
    let run =
        |args: &[&str]| cx.exeat([&["run"], args, &["--", "sh", "-c", &reach]].concat()).cwd(&other).run();
    // The files themselves: no line of another file is printed.
    let file = format!("{dir}/file");
    for flag in ["--policy", "--effects", "--ceiling"] {
        led.refused(flag, &run(&[flag, &file]));
    }
    led.refused("@FILE", &run(&["--allow", &format!("@{file}")]));
    led.refused("--locked=FILE", &run(&[&format!("--locked={file}"), "--stage", "x"]));
    // The paths in them.
    for effect in ["FsRead", "FsWrite"] {
        let effects = format!(r#"[{{"effect":"{effect}","path":"{dir}/out"}}]"#);
        led.refused(effect, &run(&["--effects", &effects]));
    }
    for key in ["ro", "rw", "mask"] {
        put(cx, &other.join("policy.toml"), &format!("[fs]\n{key} = [\"../work/out\"]\n"));
        led.refused(key, &run(&["--policy", "policy.toml"]));
        if key != "mask" {
            put(cx, &other.join("policy.toml"), &format!("[fs]\n{key} = [\"../work/out:/in\"]\n"));
            led.refused(&format!("{key} elsewhere"), &run(&["--policy", "policy.toml"]));
        }
    }
    let isolation =
        format!(r#"{{"ro_binds":[],"env_allowlist":[],"network":false,"work_host":"{dir}/out"}}"#);
    put(cx, &other.join("isolation.json"), &isolation);
    led.refused("work_host", &run(&["--policy", "isolation.json"]));
    for name in ["out", "out/a/b", "sub/deep/a", "chain/a/../b"] {
        let at = format!("{dir}/{name}");
        led.refused(&format!("man --out {name}"), &cx.exeat(["man", "--out", &at]).cwd(&other).run());
    }
    cx.exeat(["man", "--out", "a/b"]).cwd(&other).run().exits(0);
    assert!(other.join("a/b/exeat.1").is_file());
    led.nowhere();
}

/// A named pipe instead of an output never blocks a command, neither without a reader nor with a stuck one.
fn pipes(cx: &Cx) {
    let made = cx.exeat(["run", "--", "mkfifo", "pipe"]).run();
    let record = made.exits(0).record_path().expect("the record").display().to_string();
    let pipe = cx.dir().join("pipe");
    let run: &[&str] = &["run", "--result", "pipe", "--", "touch", "started"];
    let outputs = [
        run,
        &["learn", "-o", "pipe", "--", "touch", "started"],
        &["audit", "lock", "-o", "pipe", &record],
        &["audit", "report", "-o", "pipe", &record],
    ];
    // Each of these once hung forever.
    let deadline = Duration::from_secs(60);
    for words in outputs {
        let done = cx.exeat(words).deadline(deadline).run();
        done.exits(2).says("a named pipe that nobody reads");
    }
    assert!(!cx.dir().join("started").exists());
    // With both ends open it never ends, and takes only what it can buffer.
    let mut reader = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(&pipe)
        .expect("the pipe");
    cx.exeat(run).deadline(deadline).run().exits(0);
    let mut told = [0; 1 << 16];
    let length = reader.read(&mut told).expect("the result");
    let result: serde_json::Value = serde_json::from_slice(&told[..length]).expect("JSON");
    assert_eq!(result["code"], 0, "{result}");
    while reader.write(&told).is_ok() {}
    cx.exeat(run).deadline(deadline).run().exits(125).says("a named pipe that nobody reads");
}

fn variables(cx: &Cx) {
    let (other, victim) = scene(cx);
    make(cx, &cx.dir().join(".venv/bin"));
    let script = format!("rm -r .venv; ln -s {0} .venv; ln -s {0}/secret left.pem", victim.display());
    cx.exeat(["run", "--", "sh", "-c", &script]).run().exits(0);
    let venv = cx.dir().join(".venv").display().to_string();
    let path = format!("{venv}/bin:/usr/bin:/bin");
    let look = format!("cat {venv}/secret {}/left.pem; ls {venv}", cx.dir().display());
    let mut led = Attempts::new(cx, &victim);
    for (name, value) in [
        ("PATH", path.clone()),
        ("PATH", format!("{venv}:/usr/bin:/bin")),
        ("VIRTUAL_ENV", venv.clone()),
        ("JAVA_HOME", venv.clone()),
        ("JAVA_HOME", format!("{venv}/x/..")),
        ("NODE_EXTRA_CA_CERTS", format!("{}/left.pem", cx.dir().display())),
        ("SSL_CERT_DIR", venv.clone()),
    ] {
        let done =
            cx.exeat(["run", "--", "sh", "-c", &format!("{look}; true")]).cwd(&other).env(name, &value).run();
        let told: &[&str] =
            if value.ends_with("..") { &[] } else { &["left out", "a stage could have made"] };
        led.check(&format!("{name}={value}"), &done, 0, told);
    }
    // Links in a home are followed, since no stage writes there: their targets may be any file.
    put(cx, &cx.home().join("letter"), "top secret\n");
    for (target, at) in [(".", "all"), ("/", "machine")] {
        link(cx, target, &cx.home().join(at));
        let at = cx.home().join(at).display().to_string();
        let look = format!(
            "cat {at}/letter {at}{0}/letter; test ! -e {at}/proc || echo secret",
            cx.home().display()
        );
        for (name, value) in [("PATH", format!("{at}/bin:/usr/bin:/bin")), ("VIRTUAL_ENV", at.clone())] {
            let done = cx.exeat(["run", "--", "sh", "-c", &look]).cwd(&other).env(name, &value).run();
            led.check(&format!("{name}={value}"), &done, 0, &["more than programs"]);
        }
    }
    led.nowhere();
    // A command that is missing for that reason says so.
    program(cx, &victim.join("bin/tool"), "never");
    let done = cx.exeat(["run", "--", "tool"]).cwd(&other).env("PATH", &path).run();
    done.exits(127).says("left out");
}

fn working_directory(cx: &Cx) {
    let (_, victim) = scene(cx);
    plant(cx, &victim);
    let mut led = Attempts::new(cx, &victim);
    let through = cx.dir().join("out");
    for flags in [&[][..], &["--rw", "."]] {
        let words = [&["run"], flags, &["--", "sh", "-c", "echo x > planted"]].concat();
        let done = cx.exeat(words).cwd(&through).env("PWD", &through.display().to_string()).run();
        let read_only: &[&str] = if flags.is_empty() { &["is read-only for the stage"] } else { &[] };
        led.check(&format!("{flags:?}"), &done, 2, &[read_only, &["a stage could have made"]].concat());
    }
    // The link is gone when the run starts, or the stage of a live run has put a directory in its place.
    let write = ["run", "--", "sh", "-c", "echo x > planted"];
    let run = || cx.exeat(write).cwd(&victim).env("PWD", &through.display().to_string()).run();
    fs::remove_file(&through).expect("a link");
    let reasons = ["is read-only for the stage", "a stage could have made"];
    led.check("a link that is gone", &run(), 2, &reasons);
    make(cx, &through);
    let mut live = cx.sh(&[], "echo ready; read -r go").stdin_open().start();
    live.until_prints("ready");
    led.check("a directory in its place", &run(), 2, &reasons);
    // A name in the tree, for a directory of the tree.
    make(cx, &cx.dir().join("inside"));
    cx.exeat(write).cwd(&cx.dir().join("inside")).env("PWD", &through.display().to_string()).run().exits(0);
    live.wait();
    led.nowhere();
    // Without PWD the path has no link: the caller chose the directory.
    cx.exeat(["run", "--", "sh", "-c", "echo x > planted"]).cwd(&victim).run().exits(0);
}

fn masks(cx: &Cx) {
    let (other, _) = scene(cx);
    let keys = cx.home().join(".ssh");
    make(cx, &keys);
    put(cx, &keys.join("id"), "top secret\n");
    link(cx, ".ssh", &cx.home().join("keys"));
    let read = |name: &str| {
        let ro = format!("{}:/in", cx.home().join(name).display());
        cx.exeat(["run", "--ro", &ro, "--", "sh", "-c", "cat /in/id /in"]).cwd(&other).run()
    };
    for name in ["keys", "keys/id"] {
        assert!(!read(name).stdout().contains("top secret"), "{name}");
    }
    for name in [".ssh", ".ssh/id", "other/../.ssh"] {
        assert!(read(name).stdout().contains("top secret"), "{name}: the flag's own words");
    }
    // A path in a credential, named by a variable.
    let done = cx
        .exeat(["run", "--", "sh", "-c", "cat $NODE_EXTRA_CA_CERTS"])
        .cwd(&other)
        .env("NODE_EXTRA_CA_CERTS", &keys.join("id").display().to_string())
        .run();
    assert!(!done.stdout().contains("top secret"), "{done:?}");
}

/// Runs start while a stage exchanges a directory with a link, again and again.
fn exchange(cx: &Cx) {
    let (other, victim) = scene(cx);
    make(cx, &cx.dir().join("in"));
    link(cx, "../victim", &cx.dir().join("lnk"));
    let flip = "import ctypes, time\nlibc = ctypes.CDLL(None); end = time.time() + 25\nprint('flips', flush=True)\n\
                while time.time() < end: libc.renameat2(-100, b'in', -100, b'lnk', 2); time.sleep(0.003)\n";
    cx.write("flip.py", flip);
    let mut flipping = cx.exeat(["run", "--quiet", "--", "/usr/bin/python3", "flip.py"]).start();
    flipping.until_prints("flips");
    let bind = format!("{}:/in", cx.dir().join("in").display());
    let mut ran = 0;
    for _ in 0..12 {
        let done = cx
            .exeat([
                "run",
                "--quiet",
                "--rw",
                &bind,
                "--",
                "sh",
                "-c",
                "cat /in/secret; echo x > /in/planted; echo ran",
            ])
            .cwd(&other)
            .run();
        assert!(!done.stdout().contains("top secret"), "{done:?}");
        ran += usize::from(done.stdout().contains("ran"));
        assert!([0, 2, 125].map(Some).contains(&done.code), "{done:?}");
        assert!(is_untouched(&victim), "after {ran} runs");
    }
    drop(flipping);
}

/// Links in this directory are followed, until a stage may write there.
fn written(cx: &Cx) {
    let (other, victim) = scene(cx);
    let bin = cx.home().join(".local/bin");
    make(cx, &bin);
    let named = bin.display().to_string();
    let plant = format!("ln -s {} {named}/data", victim.display());
    let read = || {
        let ro = format!("{named}/data:/in");
        cx.exeat(["run", "--ro", &ro, "--", "cat", "/in/secret"]).cwd(&other).run()
    };
    // By default no stage writes there.
    for cwd in [&bin, &cx.home().join(".local")] {
        let done = cx.exeat(["run", "--", "sh", "-c", &plant]).cwd(cwd).run();
        assert_ne!(done.code, Some(0), "{done:?}");
    }
    link(cx, &victim.display().to_string(), &bin.join("data"));
    read().exits(0).prints("top secret\n");
    fs::remove_file(bin.join("data")).expect("link");
    cx.exeat(["run", "--rw", &named, "--", "sh", "-c", &plant]).cwd(&other).run().exits(0);
    let done = read();
    assert!(!done.stdout().contains("top secret"), "{done:?}");
    done.exits(2).says("a stage could have made");
    let (data, look) = (format!("{named}/data"), "cat $NVM_DIR/secret; true");
    let words = ["run", "--env", "NVM_DIR", "--", "sh", "-c", look];
    let done = cx.exeat(words).cwd(&other).env("NVM_DIR", &data).run();
    assert!(!done.stdout().contains("top secret"), "{done:?}");
    done.exits(0).says("left out");
}

/// No link of a stage's leads to another home, and links of the user's that end below their directory do.
fn homes(cx: &Cx) {
    let (other, victim) = scene(cx);
    let plant = format!("ln -s {} h; ln -s . self; mkdir real; ln -s real below", victim.display());
    cx.exeat(["run", "--", "sh", "-c", &plant]).cwd(&other).run().exits(0);
    let elsewhere = cx.home().join("elsewhere");
    make(cx, &elsewhere);
    let run = |home: &str| {
        let home = other.join(home).display().to_string();
        cx.exeat(["run", "--", "true"]).cwd(&elsewhere).env("HOME", &home).run()
    };
    for (home, end) in [("h", &victim), ("h/new", &victim), ("self", &other)] {
        run(home).exits(2).says("a stage could have made").says(&end.display().to_string());
        let home = other.join(home).display().to_string();
        let listen = format!("unix:{}", elsewhere.join("socket").display());
        let others: [&[&str]; 3] = [&["state", "list"], &["audit", "list"], &["proxy", "--listen", &listen]];
        for words in others {
            let done = cx.exeat(words).cwd(&elsewhere).env("HOME", &home).run();
            done.exits(2).says("a stage could have made");
        }
        let doctor = cx.exeat(["doctor"]).cwd(&elsewhere).env("HOME", &home).run();
        assert!(doctor.stdout().contains("a stage could have made"), "{doctor:?}");
        assert_eq!(fs::read_dir(&victim).expect("directory").count(), 1, "only the secret");
    }
    run("below").exits(0);
}

/// Links of the caller's or root's are followed, but not those of another user, nor root's where others can make them.
fn foreign(cx: &Cx) {
    let (other, victim) = scene(cx);
    let home = cx.home();
    let dir = |name: &str, mode: u32| {
        let path = home.join(name);
        fs::create_dir(&path).expect("a directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
        path
    };
    let links = |target: &Path, at: &Path, owner: u32| {
        symlink(target, at).expect("a link");
        lchown(at, Some(owner), Some(owner)).expect("chown");
    };
    let (shared, open, closed) = (dir("shared", 0o1777), dir("open", 0o777), dir("closed", 0o755));
    make(cx, &shared.join("versions"));
    put(cx, &shared.join("versions/secret"), "top secret\n");
    // Below the home such a link may lead anywhere, as below any directory.
    let away = home.with_extension("away");
    make(cx, &away);
    put(cx, &away.join("secret"), "top secret\n");
    links(&away, &home.join("theirs"), 4242);
    links(Path::new("versions"), &shared.join("current"), 4242);
    links(&victim, &open.join("link"), 0);
    links(&victim, &closed.join("link"), 0);
    let read = |name: &str| {
        let ro = format!("{}:/in", home.join(name).display());
        cx.exeat(["run", "--ro", &ro, "--", "cat", "/in/secret"]).cwd(&other).run()
    };
    let (mut astray, mut without_message) = (Vec::new(), Vec::new());
    // Files that root's stage makes belong to root.
    let of_root: &[&str] = if cx.is_root() { &["closed/link"] } else { &[] };
    for name in ["theirs", "shared/current", "open/link"].iter().chain(of_root) {
        let done = read(name);
        astray.extend(done.stdout().contains("secret").then_some(*name));
        if done.code != Some(2) || !done.stderr().contains("a stage could have made") {
            without_message.push(done);
        }
    }
    assert!(astray.is_empty() && without_message.is_empty(), "{astray:?} {without_message:#?}");
    if !cx.is_root() {
        read("closed/link").exits(0).prints("top secret\n");
    }
}

/// Directories below a link may be closed to the stage that made it, but not to root.
fn closed_below(cx: &Cx) {
    let (other, _) = scene(cx);
    let theirs = cx.dir().join("theirs/sub");
    make(cx, &theirs);
    put(cx, &theirs.join("secret"), "top secret\n");
    for path in [cx.dir().join("theirs"), theirs.clone(), theirs.join("secret")] {
        std::os::unix::fs::chown(&path, Some(4242), Some(4242)).expect("chown");
        let mode = if path.is_dir() { 0o700 } else { 0o600 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
    }
    let plant = "cat theirs/sub/secret; ln -s theirs/sub data; ln -s theirs/sub/secret c.pem";
    let done = cx.exeat(["run", "--", "sh", "-c", plant]).run();
    assert!(!done.stdout().contains("secret"), "{done:?}");
    for flag in ["--ro", "--rw"] {
        let bind = format!("{}:/in", cx.dir().join("data").display());
        let done = cx
            .exeat(["run", flag, &bind, "--", "sh", "-c", "cat /in/secret; echo x > /in/secret"])
            .cwd(&other)
            .run();
        let text = fs::read_to_string(theirs.join("secret")).expect("secret");
        assert!(!done.stdout().contains("secret") && text == "top secret\n", "{done:?}");
        done.exits(2).says("a stage could have made");
    }
    let pem = cx.dir().join("c.pem").display().to_string();
    let done = cx
        .exeat(["run", "--", "sh", "-c", "cat $SSL_CERT_FILE"])
        .cwd(&other)
        .env("SSL_CERT_FILE", &pem)
        .run();
    assert!(!done.stdout().contains("secret"), "{done:?}");
    assert_eq!(fs::read_to_string(theirs.join("secret")).expect("secret"), "top secret\n");
}

/// A relative path leads nowhere from a directory behind a stage's link.
fn relative(cx: &Cx) {
    let (_, victim) = scene(cx);
    plant(cx, &victim);
    let mut led = Attempts::new(cx, &victim);
    let through = cx.dir().join("out");
    let pwd = through.display().to_string();
    let beside = cx.home().join("beside");
    let look = format!("cat /in/secret /in; cat {}; echo x > /in/new; true", beside.display());
    for flags in [
        ["--ro", ".:/in"],
        ["--rw", ".:/in"],
        ["--ro", "../beside:/in"],
        ["--ro", "../beside"],
        ["--result", "../r.json"],
        ["--audit", "../a.jsonl"],
        ["--audit-key", "key.pem"],
        ["--policy", "secret"],
    ] {
        put(cx, &beside, "top secret\n");
        let words = ["run", flags[0], flags[1], "--", "sh", "-c", &look];
        let done = cx.exeat(words).cwd(&through).env("PWD", &pwd).run();
        let made = ["r.json", "a.jsonl"].map(|name| cx.home().join(name));
        if made.iter().any(|path| path.exists()) {
            led.astray.push(format!("{flags:?} makes a file"));
            made.iter().for_each(|path| drop(fs::remove_file(path)));
        }
        led.check(&format!("{flags:?}"), &done, 2, &["a stage could have made"]);
    }
    led.nowhere();
}

/// A mask, a policy and a narrower `--ro` mean the same in the next run.
fn restricting(cx: &Cx) {
    let again = || {
        let _ = fs::remove_dir_all(cx.dir().join("versions"));
        let _ = fs::remove_file(cx.dir().join("conf")).or_else(|_| fs::remove_dir_all(cx.dir().join("conf")));
        make(cx, &cx.dir().join("versions/1/keys"));
        put(cx, &cx.dir().join("versions/1/keys/k"), "masked\n");
        put(cx, &cx.dir().join("versions/1/p.toml"), "schema = 1\n[fs]\nro = [\".\"]\n");
        link(cx, "versions/1", &cx.dir().join("conf"));
    };
    let (mut lifted, mut without_message) = (Vec::new(), Vec::new());
    for flags in [
        ["--mask", "conf/keys"],
        ["--ro", "conf/keys"],
        ["--policy", "conf/p.toml"],
        ["--ceiling", "conf/p.toml"],
    ] {
        again();
        let run = |script: &str| cx.exeat(["run", flags[0], flags[1], "--", "sh", "-c", script]).run();
        // One stage replaces the link, and the next would be free of the restriction.
        let relink = "rm conf && mkdir -p conf/keys && echo 'schema = 1' >conf/p.toml";
        let first = run(relink);
        let second =
            run("cat versions/1/keys/k; echo x >>versions/1/keys/k; echo x >>versions/1/p.toml; true");
        let key = fs::read_to_string(cx.dir().join("versions/1/keys/k")).expect("the key");
        let policy = fs::read_to_string(cx.dir().join("versions/1/p.toml")).expect("the policy");
        if second.stdout().contains("masked") || key != "masked\n" || policy.ends_with("x\n") {
            lifted.push(format!("{flags:?}: {second:?}"));
        }
        if [&first, &second]
            .iter()
            .any(|it| it.code != Some(2) || !it.stderr().contains("a stage could have made"))
        {
            without_message.push(format!("{flags:?}: {first:?}"));
        }
    }
    assert!(lifted.is_empty(), "{lifted:#?}");
    assert!(without_message.is_empty(), "{without_message:#?}");
    again();
    // A second name of the policy, made while it decided about nothing.
    put(cx, &cx.dir().join("p.toml"), "schema = 1\n");
    cx.exeat(["run", "--", "ln", "p.toml", "zz"]).run().exits(0);
    let done = cx.exeat(["run", "--policy", "p.toml", "--", "sh", "-c", "echo x >>zz; true"]).run();
    assert_eq!(fs::read_to_string(cx.dir().join("p.toml")).expect("the policy"), "schema = 1\n", "{done:?}");
    done.exits(2).says("another name");
    // From standard input, too.
    put(cx, &cx.dir().join("s.toml"), "schema = 1\n");
    let script = "exec \"$0\" run --policy - -- sh -c 'echo x >> s.toml || echo refused' < s.toml";
    let exeat = cx.bench().bin.join("exeat").display().to_string();
    let done = cx.exeat_plain(["x"]).under(["sh", "-c", script, &exeat]).run();
    done.exits(0).prints("refused\n");
}

/// Follows each link of common layouts; every program prints its name.
fn layouts(cx: &Cx) {
    let home = cx.home().to_path_buf();
    let (other, _) = scene(cx);
    let mut expected = Vec::new();
    let mut tool = |path: &str, name: &str| {
        program(cx, &home.join(path).join(name), name);
        expected.push(name.to_owned());
    };
    tool(".nvm/versions/node/v20/bin", "nvm-tool");
    tool(".sdkman/candidates/java/17/bin", "sdkman-tool");
    tool(".pyenv/versions/3.12.1/bin", "pyenv-tool");
    tool("dotfiles/bin", "stow-tool");
    tool("venvs/3.12/bin", "venv-tool");
    tool(".local/share/pnpm/global/5/node_modules/.pnpm/x/bin", "pnpm-tool");
    tool(".local/share/fnm/node-versions/v20/bin", "fnm-tool");
    tool("store/profile-1/bin", "nix-tool");
    tool("gpfs/sw/gcc-13/bin", "cluster-tool");
    let links = [
        ("versions/node/v20", ".nvm/current"),
        ("17", ".sdkman/candidates/java/current"),
        ("3.12.1", ".pyenv/versions/3.12"),
        ("dotfiles/bin", "bin"),
        ("3.12", "venvs/current"),
        ("../global/5/node_modules/.pnpm/x", ".local/share/pnpm/links"),
        ("node-versions/v20", ".local/share/fnm/default"),
        ("../../../../store/profile-1", ".local/state/nix/profiles/profile"),
        ("gcc-13", "gpfs/sw/gcc"),
    ];
    for (target, at) in links {
        make(cx, home.join(at).parent().expect("directory"));
        let target = target.replace("../global", "global");
        link(cx, &target, &home.join(at));
    }
    link(cx, ".local/state/nix/profiles/profile", &home.join(".nix-profile"));
    let path = [
        ".nvm/current/bin",
        ".sdkman/candidates/java/current/bin",
        ".pyenv/versions/3.12/bin",
        "bin",
        "venvs/current/bin",
        ".local/share/pnpm/links/bin",
        ".local/share/fnm/default/bin",
        ".nix-profile/bin",
        "gpfs/sw/gcc/bin",
    ];
    let path: Vec<String> = path.iter().map(|dir| home.join(dir).display().to_string()).collect();
    let script =
        expected.iter().map(|name| format!("{name} || echo no {name}")).collect::<Vec<_>>().join("; ");
    let done = cx
        .exeat(["run", "--", "sh", "-c", &script])
        .cwd(&other)
        .env("PATH", &format!("{}:/usr/bin:/bin", path.join(":")))
        .run();
    done.exits(0);
    let said = done.stdout();
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said, expected, "{done:?}");
    assert!(!done.stderr().contains("left out"), "{done:?}");
    // A home on another file system, and a project through a link in it.
    make(cx, &home.join("data/project"));
    link(cx, "data/project", &home.join("project"));
    let project = home.join("project");
    cx.exeat(["run", "--", "sh", "-c", "echo x > made"])
        .cwd(&project)
        .env("PWD", &project.display().to_string())
        .run()
        .exits(0);
    let ro = format!("{}:/p", project.display());
    cx.exeat(["run", "--ro", &ro, "--", "cat", "/p/made"]).cwd(&other).run().exits(0).prints("x\n");
}
