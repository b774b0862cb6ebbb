//! Starts stages as a library user does, through the real bubblewrap. As root, every test runs a second time as an
//! ordinary user (`runs_every_test_again_as_an_ordinary_user`).

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]
#![expect(clippy::disallowed_methods, reason = "commands to take over, and this test program once more")]

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use exeat_runner::policy::{self, Action, Bypass, Layers, Origin, PolicyBuilder};
use exeat_runner::record::StoppedBy;
use exeat_runner::{
    AuditTo, Backend, Cache, EffectSet, Ended, Error, Limits, OnDenied, Outcome, Output, OwnPath, Reached,
    Running, Site, Stage, Stdio, StoppedHow, UpstreamProxy, View,
};

#[path = "../examples/harness.rs"]
#[expect(dead_code, reason = "its `main` is for the command line")]
mod harness;

/// The variable of the second run: it names the directory that its user owns.
const AGAIN: &str = "EXEAT_STAGE_TEST_DIR";

/// An ordinary user without a name.
const USER: u32 = 54_321;

/// The directories of one test, which its end removes.
struct Scene {
    root: PathBuf,
}

impl Scene {
    fn new(name: &str) -> Self {
        let base = std::env::var_os(AGAIN).map_or_else(std::env::temp_dir, PathBuf::from);
        let root = base.join(format!("stage-{name}-{}", std::process::id()));
        for dir in ["work", "home", "data"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        Self { root: root.canonicalize().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn host_env(&self) -> Vec<(OsString, OsString)> {
        vec![
            ("PATH".into(), "/usr/bin:/bin".into()),
            ("HOME".into(), self.path("home").into()),
            ("LANG".into(), "C.UTF-8".into()),
            ("CI".into(), "yes".into()),
        ]
    }

    /// Returns a stage in the working directory of this test, with a record in its home.
    fn stage(&self, program: &str) -> Stage {
        let mut stage = Stage::new(program);
        stage.current_dir(self.path("work")).host_env(self.host_env());
        stage
    }

    fn sh(&self, script: &str) -> Stage {
        let mut stage = self.stage("sh");
        stage.args(["-c", script]);
        stage
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns the output of a stage that must succeed.
fn stdout_of(stage: &Stage) -> String {
    let Output { outcome, stdout, stderr, .. } = stage.output().unwrap();
    assert_eq!(outcome.ended, Ended::Exit(0), "{}{}", text(&stderr), outcome.notes.join("\n"));
    text(&stdout).to_owned()
}

/// A13, N14: arguments reach the program unchanged: none counts as an option of bubblewrap or exeat, and `--` is a
/// word.
#[test]
fn a13_arguments_arrive_as_they_stand() {
    let place = Scene::new("words");
    let words = ["--", "--bind", "/", "-c", "", "a b", "$HOME", "'", "--unshare-net", "\u{fc}\n"];
    let mut stage = place.stage("printf");
    stage.arg("[%s]").args(words);
    let expect: String = words.iter().map(|word| format!("[{word}]")).collect();
    assert_eq!(stdout_of(&stage), expect);
}

/// A13: a program that has the sandbox's name is an ordinary program.
#[test]
fn a13_a_program_named_bwrap_runs_inside() {
    let place = Scene::new("bwrap");
    let mut stage = place.stage("bwrap");
    stage.arg("--version");
    assert!(stdout_of(&stage).starts_with("bubblewrap "));
    // The stage's PATH finds this one.
    let mine = place.path("work/bwrap");
    fs::write(&mine, "#!/bin/sh\necho mine \"$@\"\n").unwrap();
    fs::set_permissions(&mine, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut stage = place.stage("./bwrap");
    stage.arg("--version");
    assert_eq!(stdout_of(&stage), "mine --version\n");
}

/// N13, A1, A13: the working directory is kept, including a relative one of a converted command.
#[test]
fn a13_the_working_directory_is_kept() {
    let place = Scene::new("cwd");
    let work = place.path("work");
    assert_eq!(stdout_of(&place.sh("pwd; echo x > made")), format!("{}\n", work.display()));
    assert_eq!(fs::read_to_string(work.join("made")).unwrap(), "x\n");

    let mut command = Command::new("pwd");
    command.current_dir(place.path("data"));
    let mut stage = Stage::from_command(&command);
    stage.host_env(place.host_env());
    assert_eq!(stdout_of(&stage), format!("{}\n", place.path("data").display()));
}

/// A1, A13: sets and removals of variables apply in order; a removal also covers variables that a stage gets by
/// default.
#[test]
fn a13_environment_sets_and_removals_are_kept() {
    let place = Scene::new("env");
    let show = "printf '%s|' ${A-unset} \"${B-unset}\" ${CI-unset} ${LANG-unset} ${HTTPS_PROXY-unset}";
    let proxy = "http://127.0.0.1:3128";
    let mut stage = place.sh(show);
    assert_eq!(stdout_of(&stage), format!("unset|unset|unset|C.UTF-8|{proxy}|"));
    stage.env("A", "1").env("B", "2").env_remove("A").env_pass("CI").env_remove("LANG");
    stage.env_remove("HTTPS_PROXY").env("B", "b c").env_pass("NOT_THERE");
    assert_eq!(stdout_of(&stage), format!("unset|b c|yes|unset|{proxy}|"));

    let mut command = Command::new("sh");
    command.args(["-c", show]).env("A", "1").env("B", "").env_remove("LANG").current_dir(place.path("work"));
    let mut stage = Stage::from_command(&command);
    stage.host_env(place.host_env());
    assert_eq!(stdout_of(&stage), format!("1||unset|unset|{proxy}|"));
}

/// A13: an empty list means nothing, not everything.
#[test]
fn a13_empty_lists() {
    let place = Scene::new("empty");
    let mut stage = place.stage("true");
    stage.args([] as [&str; 0]).envs([] as [(&str, &str); 0]).policy(PolicyBuilder::new().build());
    assert_eq!(stdout_of(&stage), "");
    assert!(matches!(place.stage("").run(), Ok(Outcome { ended: Ended::NotFound, .. })));
}

/// N29: piped streams carry both directions; the caller decides when the input ends.
#[test]
fn n29_piped_streams() {
    let place = Scene::new("piped");
    let mut stage = place.sh("read line; echo out $line; echo err $line >&2; cat; exit 7");
    stage.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = stage.spawn().unwrap();
    let mut input = running.take_stdin().unwrap();
    assert!(running.take_stdin().is_none(), "taken twice");
    input.write_all(b"first\nrest").unwrap();
    assert!(!running.wait_timeout(Duration::from_millis(50)), "its input is not at its end");
    drop(input);
    let (mut out, mut err) = (String::new(), String::new());
    running.take_stdout().unwrap().read_to_string(&mut out).unwrap();
    running.take_stderr().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("out first\nrest", "err first\n"));
    assert_eq!(running.wait().unwrap().ended, Ended::Exit(7));
}

/// N29: files and pipes that the caller opened, and `/dev/null`; a stage can start again on the same ones.
#[test]
fn n29_streams_that_the_caller_opened() {
    let place = Scene::new("files");
    fs::write(place.path("data/in"), "input\n").unwrap();
    let mut stage = place.sh("cat; echo gone >&2");
    stage.stdin(File::open(place.path("data/in")).unwrap());
    stage.stdout(File::create(place.path("data/out")).unwrap()).stderr(Stdio::null());
    let Output { outcome, stdout, stderr, .. } = stage.output().unwrap();
    assert_eq!((outcome.ended, stdout.len(), stderr.len()), (Ended::Exit(0), 0, 0));
    assert_eq!(fs::read(place.path("data/out")).unwrap(), b"input\n");
    assert_eq!(stage.run().unwrap().ended, Ended::Exit(0));

    stage.stdin(File::open(place.path("data")).unwrap());
    assert!(matches!(stage.run(), Err(Error::Stream { stream: "standard input", what: "a directory" })));
}

/// Collected output has a bound; beyond it the result is an error, never a part that looks complete.
#[test]
fn r01_output_has_a_bound() {
    let place = Scene::new("bound");
    let mut stage = place.sh("printf 12345678; printf abcd >&2; exec tail -f /dev/null");
    stage.output_most(7);
    let began = Instant::now();
    assert!(matches!(stage.output(), Err(Error::OutputTooLong(7, "its standard output"))));
    let mut stage = place.sh("printf 1234; printf abcdefgh >&2; exec tail -f /dev/null");
    stage.output_most(7);
    assert!(matches!(stage.output(), Err(Error::OutputTooLong(7, "its standard error"))));
    assert!(began.elapsed() < Duration::from_secs(20));
    let mut stage = place.sh("printf 1234567");
    assert_eq!(stdout_of(stage.output_most(7)), "1234567");
}

/// B12: an error at the end of the run still lists what was moved aside.
#[test]
fn b12_an_error_after_the_start_lists_moved_names() {
    let place = Scene::new("lost");
    let mut stage = place.sh("echo evil >.envrc; printf 12345678; exec tail -f /dev/null");
    let error = stage.output_most(7).output().unwrap_err();
    assert_eq!(
        (error.code(), error.to_string()),
        (125, Error::OutputTooLong(7, "its standard output").to_string())
    );
    let Error::RunLost(lost) = error else { panic!("{error:?}") };
    assert!(matches!(lost.error, Error::OutputTooLong(7, _)) && lost.audit.is_some(), "{lost:?}");
    let [found] = &lost.found.named[..] else { panic!("{:?}", lost.found) };
    assert_eq!(std::fs::read_to_string(found.moved.as_ref().unwrap()).unwrap(), "evil\n");
    assert!(lost.notes.iter().any(|note| note.contains(".envrc` was moved to")), "{:?}", lost.notes);
}

/// K39: dropping ends every process of the stage, including those that left its group and ignore signals.
#[test]
fn k39_drop_leaves_nothing() {
    let place = Scene::new("drop");
    let mark = format!("86400.{}", std::process::id());
    let mut stage = place.sh("trap '' TERM HUP INT; setsid sleep \"$0\" & sleep \"$0\" & echo up; wait");
    stage.arg(&mark).stdout(Stdio::piped());
    let mut running = stage.spawn().unwrap();
    let mut up = [0; 3];
    running.take_stdout().unwrap().read_exact(&mut up).unwrap();
    wait_until("both have started", || with_argument(&mark).len() >= 3);
    let began = Instant::now();
    drop(running);
    assert_eq!(with_argument(&mark), Vec::<String>::new());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// Finds the processes whose command lines contain this word.
fn with_argument(word: &str) -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("cmdline"));
    let lines = all.filter_map(|path| fs::read(path).ok());
    let words = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    words.filter(|line| line.contains(word)).collect()
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let by = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < by, "not in time: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A stage that ignores a request to end is killed; another thread can do both.
#[test]
fn kills_a_stage_that_ignores_a_stop() {
    let place = Scene::new("stop");
    let ready = |stage: &mut Stage| {
        let mut running = stage.stdout(Stdio::piped()).spawn().unwrap();
        let mut pipe = running.take_stdout().unwrap();
        pipe.read_exact(&mut [0; 3]).unwrap();
        (running, pipe)
    };
    let stopped = |running: Running| match running.wait().unwrap().ended {
        Ended::Stopped(stopped) => {
            assert_eq!(stopped.by, StoppedBy::Program);
            (stopped.signal, stopped.how)
        }
        other => panic!("{other:?}"),
    };
    let hour = Duration::from_secs(3600);
    let mut polite = place.sh("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done");
    let (running, mut pipe) = ready(&mut polite);
    let stopper = running.stopper();
    thread::scope(|scope| {
        scope.spawn(|| stopper.stop(hour));
        assert_eq!(stopped(running), (15, StoppedHow::Exit(3)));
    });
    let mut rest = String::new();
    pipe.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "bye\n");
    // After the end this has no effect.
    stopper.kill();

    let mut deaf = place.sh("trap '' TERM; echo up; while :; do sleep 0.05; done");
    let (mut running, _pipe) = ready(&mut deaf);
    running.stop(hour);
    assert!(!running.wait_timeout(Duration::from_millis(200)));
    running.stop(Duration::from_millis(50));
    assert!(running.wait_timeout(Duration::from_secs(10)));
    assert_eq!(stopped(running), (15, StoppedHow::Killed));

    let (running, _pipe) = ready(&mut deaf);
    running.kill();
    assert_eq!(stopped(running), (9, StoppedHow::Killed));
}

/// K50: a command that cannot be executed is an outcome, as with the binary; an invalid word from the caller, such as
/// one with a NUL, starts nothing.
#[test]
fn reports_why_a_command_cannot_start() {
    let place = Scene::new("wrong");
    let absent = place.stage("no-such-command").spawn().unwrap().wait().unwrap();
    assert_eq!(absent.ended, Ended::NotFound);
    assert!(absent.why_not.unwrap().contains("`no-such-command`"));
    fs::write(place.path("work/text"), "text").unwrap();
    assert_eq!(place.stage("./text").run().unwrap().ended, Ended::NotExecutable);

    let wrong = |change: &dyn Fn(&mut Stage) -> &mut Stage| {
        let mut stage = place.sh("touch ran");
        let planned = change(&mut stage).plan().unwrap_err().to_string();
        assert_eq!(stage.run().unwrap_err().to_string(), planned);
        planned
    };
    assert!(wrong(&|stage| stage.arg("a\0b")).contains("NUL"));
    assert!(wrong(&|stage| stage.env("A", "\0")).contains("NUL"));
    assert!(wrong(&|stage| stage.env("A=B", "c")).contains("`A=B`"));
    assert!(wrong(&|stage| stage.env_remove("")).contains("variable"));
    assert!(wrong(&|stage| stage.current_dir("/no/such/dir")).contains("/no/such/dir"));
    assert!(wrong(&|stage| stage.ro("/no/such/file")).contains("/no/such/file"));
    assert!(wrong(&|stage| stage.ro_at("/usr", "inside")).contains("inside"));
    assert!(wrong(&|stage| stage.ro_at("/usr", "/a/../b")).contains("/a/../b"));
    let nothing = PolicyBuilder::new().build();
    let both = wrong(&|stage| stage.allow("a.example.com").unwrap().policy(nothing.clone()));
    assert!(both.contains("both a whole policy"));
    assert!(!place.path("work/ran").exists(), "something ran");
    assert!(place.sh("true").allow("*x.com").is_err());
}

/// A ceiling bounds the upstream proxy of a library's run as it does on the command line.
#[test]
fn l15_a_ceiling_bounds_the_upstream_proxy_of_a_stage() {
    let place = Scene::new("upstream-ceiling");
    let mut ceiling = PolicyBuilder::new();
    let origin = Origin::Flag { flag: "--allow".into() };
    ceiling.add("a.example.com", Action::Allow, origin, policy::Note::default()).unwrap();
    let ceilings = vec![("site.toml".to_owned(), ceiling)];
    let bounded = Layers { ceilings, ..Layers::default() }.build();
    for url in ["http://evil.test:8080", "http://127.0.0.1:8080", "http://a.example.com:8080"] {
        let proxy = UpstreamProxy::new(url.parse().unwrap(), Bypass::default(), None);
        let mut stage = place.sh("touch ran");
        stage.policy(bounded.clone()).upstream_proxy(proxy);
        let error = stage.run().unwrap_err();
        assert_eq!(error.code(), 2, "{error}");
        assert!(error.to_string().contains("site.toml does not allow"), "{error}");
    }
    assert!(!place.path("work/ran").exists(), "something ran");
}

/// Writes the user's ceiling.
fn ceiling(place: &Scene, text: &str) {
    fs::create_dir_all(place.path("home/.config/exeat")).unwrap();
    fs::write(place.path("home/.config/exeat/policy.toml"), text).unwrap();
}

/// K13: the ceilings of the site and the user bound a library's stage as they bound `exeat run`.
#[test]
fn k13_bounds_a_stage_by_the_ceilings_unless_they_are_turned_off() {
    let place = Scene::new("site");
    ceiling(&place, "[network]\nallow = [\"a.example.com\"]\n[fs]\nrw = []\n[limits]\npids = 77\n");
    let ask = "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'CONNECT b.example.com:443 HTTP/1.1\\r\\nHost: b.example.com:443\\r\\n\\r\\n' >&3; head -1 <&3
        (echo x >ran) 2>/dev/null || echo read-only";
    let whole = || {
        let mut rules = PolicyBuilder::new();
        let origin = Origin::Flag { flag: "--allow".into() };
        rules.add("b.example.com", Action::Allow, origin, policy::Note::default()).unwrap();
        rules.build()
    };
    let mut one_by_one = place.stage("bash");
    one_by_one.args(["-c", ask]).allow("b.example.com").unwrap();
    let mut at_once = place.stage("bash");
    at_once.args(["-c", ask]).policy(whole());
    for stage in [&mut one_by_one, &mut at_once] {
        let Output { outcome, stdout, .. } = stage.output().unwrap();
        let said = text(&stdout);
        assert!(said.contains("403") && said.contains("read-only"), "{said}");
        assert!(said.contains("no rule of a ceiling allows it"), "{said}");
        assert_eq!(outcome.summary.denied.len(), 1, "{said}");
        let plan = stage.plan().unwrap();
        assert!(plan.to_text().contains("77"), "{}", plan.to_text());
        let of_site = |plan: &exeat_runner::Plan| {
            plan.policy().layers().iter().any(|layer| layer.role() == policy::Role::Ceiling)
        };
        assert!(of_site(&plan));
        assert!(!of_site(&stage.site(Site::none()).plan().unwrap()));
    }
}

/// K13: a stage that a ceiling forbids is an error, and so is a ceiling that cannot be read.
#[test]
fn k13_starts_nothing_that_a_ceiling_forbids() {
    let place = Scene::new("forbids");
    ceiling(
        &place,
        "[network]\nallow = [\"a.example.com\"]\nreport = false\n[effects]\nallow = [\"fs-read\"]\n",
    );
    let wrong = |set: &dyn Fn(&mut Stage)| {
        let mut stage = place.sh("touch ran");
        set(&mut stage);
        let error = stage.run().unwrap_err();
        assert_eq!((error.code(), error.cause_word()), (2, "policy"), "{error}");
        error.to_string()
    };
    let terms = policy::Terms { mode: policy::Mode::Report, ..policy::Terms::default() };
    let report = Layers { terms, ..Layers::default() }.build();
    let said = wrong(&|stage| _ = stage.policy(report.clone()));
    assert!(said.contains("report mode is forbidden by the ceiling"), "{said}");
    let effects =
        EffectSet::parse(r#"[{"effect": "NetworkHosts", "hosts": ["a.example.com"]}]"#, "it").unwrap();
    let said = wrong(&|stage| _ = stage.effects(&effects));
    assert!(said.contains("`network-hosts`: `effects.allow` of "), "{said}");
    assert!(wrong(&|stage| _ = stage.via(place.path("proxy"))).contains("bounds the hosts of every run"));
    assert!(wrong(&|stage| _ = stage.policy_file("/no/such/policy")).contains("/no/such/policy"));
    ceiling(&place, "[network]\nallow = [");
    assert!(wrong(&|_| ()).contains("policy.toml:2"));
    assert!(!place.path("work/ran").exists(), "something ran");
}

/// A policy file applies to a library's stage as to `exeat run`; a value that the program sets replaces the file's.
#[test]
fn applies_a_policy_file_to_a_stage() {
    let place = Scene::new("policy-file");
    let policy = "stage = \"of-file\"\n[network]\nallow = [\"a.example.com\"]\nsocks5 = true\n[env]\npass = [\"CI\"]\n[limits]\npids = 77\n[sandbox]\nbridge = \"relay\"\n";
    fs::write(place.path("data/policy.toml"), policy).unwrap();
    let mut stage = place.sh("echo $CI");
    stage.policy_file(place.path("data/policy.toml")).ro(place.path("data"));
    assert_eq!(stdout_of(&stage), "yes\n");
    let plan = stage.plan().unwrap().to_json();
    assert!(plan.to_string().contains("relay") && plan.to_string().contains("of-file"), "{plan}");
    stage
        .bridge(policy::Bridge::Handoff)
        .stage_name("own")
        .limits(Limits { pids: Some(99), ..Limits::default() });
    let plan = stage.plan().unwrap().to_json();
    assert!(!plan.to_string().contains("relay") && plan.to_string().contains("99"), "{plan}");
}

/// N2, N28, A4: without a sandbox there is an error, and never a run.
#[test]
fn n28_no_bubblewrap_is_an_error_and_not_a_fallback() {
    let place = Scene::new("none");
    let planted = place.path("data/bwrap");
    fs::copy("/bin/true", &planted).unwrap();
    fs::set_permissions(&planted, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    for path in [PathBuf::from("/no/such/bwrap"), planted] {
        let mut stage = place.sh("touch ran");
        let error = stage.backend(Backend::Bwrap { path }).run().unwrap_err();
        assert_eq!(error.code(), 125);
        assert!(matches!(error, Error::Sandbox(_)), "{error:?}");
    }
    // Belongs to root and starts, but builds no sandbox.
    let mut stage = place.sh("touch ran");
    let error = stage.backend(Backend::Bwrap { path: "/bin/true".into() }).run().unwrap_err();
    assert!(matches!(error, Error::Sandbox(_)), "{error:?}");
    let mut stage = place.sh("touch ran");
    let error = stage.backend(Backend::None).run().unwrap_err();
    assert!(matches!(error, Error::Backend(_)), "{error:?}");
    assert!(!place.path("work/ran").exists(), "it ran without a sandbox");
    let mut stage = place.sh("touch ran");
    stage.backend(Backend::auto().unwrap()).run().unwrap();
    assert!(place.path("work/ran").exists());
}

/// N28: a caller can refuse protection that holds only in part.
#[test]
fn n28_everything_can_be_required_to_hold() {
    let place = Scene::new("full");
    let mut stage = place.sh("true");
    let all = format!("{:?}", stage.plan().unwrap().enforcement());
    let whole = !all.contains("Partial") && !all.contains("Absent");
    match stage.require_full().run() {
        Ok(outcome) => assert!(whole && outcome.ended == Ended::Exit(0), "{all}"),
        Err(Error::NotHeld(lacks)) => assert!(!whole && lacks.contains("partial"), "{lacks}"),
        Err(error) => panic!("{error}"),
    }
}

/// N8, K48, A2, A1, N14: host trees are visible, writable or hidden as requested.
#[test]
fn trees_are_shown_as_asked() {
    let place = Scene::new("trees");
    let data = place.path("data");
    fs::create_dir(data.join("secret")).unwrap();
    for name in ["data/a", "data/secret/b", "home/h"] {
        fs::write(place.path(name), name).unwrap();
    }
    let script = "cat \"$0/a\"; cat \"$0/secret/b\" || echo hidden; echo new > \"$0/w\" && echo wrote; cat /shown/a; ls \"$HOME\"";
    let mut stage = place.sh(script);
    stage.arg(&data).rw(&data).ro_at("../data", "/shown").mask("../data/secret").cache(Cache::None);
    let Output { stdout, .. } = stage.output().unwrap();
    assert_eq!(text(&stdout), "data/ahidden\nwrote\ndata/a");
    let mut stage = place.sh("echo x > \"$0/r\" || echo refused");
    assert_eq!(text(&stage.arg(&data).ro(&data).output().unwrap().stdout), "refused\n");
    let mut stage = place.stage("/bin/sh");
    // The view has only named paths, so the stage finds no shell.
    assert_eq!(stage.view(View::Minimal).output().unwrap().outcome.ended, Ended::NotFound);
}

/// Returns the allow rules of the grants.
fn granted(plan: &exeat_runner::Plan) -> Vec<&str> {
    let policy = plan.policy();
    let grants = policy.layers().iter().filter(|layer| layer.role() == policy::Role::Grants);
    let rules = grants.flat_map(|layer| policy.rules_of(layer));
    rules.filter(|rule| rule.action == Action::Allow).map(|rule| rule.text.as_str()).collect()
}

/// K48: effects bound the hosts and files that other sources grant, as `--effects` does. A deny rule grants nothing.
#[test]
fn k48_bounds_other_grants_by_effects() {
    let place = Scene::new("declared");
    let effects = format!(
        r#"[{{"effect": "NetworkHosts", "hosts": ["api.example.com"]}}, {{"effect": "FsRead", "path": "{}"}}]"#,
        place.path("data").display()
    );
    let effects = EffectSet::parse(&effects, "it").unwrap();
    let mut beside = place.sh("echo x > \"$0/new\" || echo read-only");
    beside.arg(place.path("data")).rw(place.path("data")).allow("*.example.com").unwrap().effects(&effects);
    let Output { stdout, .. } = beside.output().unwrap();
    assert_eq!(text(&stdout), "read-only\n");
    let plan = beside.plan().unwrap();
    let day = policy::Day::from_unix(0);
    let is_granted = |host: &[u8]| plan.policy().admit(policy::Target::parse(host).unwrap(), day).is_ok();
    assert!(is_granted(b"api.example.com:443") && !is_granted(b"other.example.com:443"));
    assert_eq!(granted(&plan), ["*.example.com"]);

    let mut alone = place.sh("true");
    alone.effects(&effects).deny("telemetry.example.com").unwrap();
    assert_eq!(granted(&alone.plan().unwrap()), ["api.example.com"]);
}

/// N12, K48: effects grant what they need: hosts, and paths below HOME. Other values are errors.
#[test]
fn grants_the_hosts_and_paths_of_effects() {
    let place = Scene::new("effects");
    fs::create_dir_all(place.path("home/in")).unwrap();
    fs::write(place.path("home/in/file"), "read\n").unwrap();
    let effects = format!(
        r#"[{{"effect": "NetworkHosts", "hosts": ["api.example.com"]}}, {{"effect": "FsRead", "path": "~/in"}},
            {{"effect": "FsWrite", "path": "{}"}}, {{"effect": "Llm", "model": "large"}}]"#,
        place.path("data").display()
    );
    let effects: EffectSet = serde_json::from_str(&effects).unwrap();
    let mut stage =
        place.sh("cat ~/in/file; echo x > ~/in/new || echo refused; echo y > \"$0/new\" && echo wrote");
    stage.arg(place.path("data")).effects(&effects);
    assert_eq!(stdout_of(&stage), "read\nrefused\nwrote\n");
    let plan = stage.plan().unwrap();
    assert_eq!(granted(&plan), ["api.example.com"]);
    let none = place.stage("true").effects(&EffectSet::new()).plan().unwrap();
    assert!(none.policy().is_empty());
}

/// A clone has the settings of its stage, and changes neither it nor other clones. Descriptors are shared.
#[test]
fn clones_a_stage_with_its_settings() {
    let place = Scene::new("clone");
    let (mut reader, writer) = io::pipe().unwrap();
    let mut base = place.stage("sh");
    base.arg("-c").env("FIRST", "set").stdout(writer).allow("api.example.com").unwrap();
    let mut changed = base.clone();
    changed.arg("echo $FIRST $SECOND").env("SECOND", "too").allow("other.example.com").unwrap();
    let mut plain = base.clone();
    plain.arg("echo $FIRST ${SECOND-unset}");
    assert_eq!(granted(&changed.plan().unwrap()), ["api.example.com", "other.example.com"]);
    assert_eq!(granted(&plain.plan().unwrap()), ["api.example.com"]);
    for stage in [&changed, &plain] {
        assert_eq!(stage.run().unwrap().ended, Ended::Exit(0));
    }
    drop((base, changed, plain));
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert_eq!(said, "set too\nset unset\n");
}

/// A future of an outcome does not block its thread, and ends its stage when it is dropped.
#[test]
fn waits_for_outcomes_without_blocking_the_thread() {
    let place = Scene::new("future");
    let start = |script: &str| {
        let mut stage = place.sh(script);
        stage.timeout(Duration::from_secs(60)).stdin(Stdio::piped()).stdout(Stdio::piped());
        stage.spawn().unwrap()
    };
    // `cat` ends at the end of its input.
    let (endless, fed, mut dropped) = (start("sleep 1000"), start("cat"), start("sleep 1000"));
    let (stopper, mut held) = (endless.stopper(), dropped.take_stdout().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (stopped, fed) = runtime.block_on(async {
        tokio::select! {
            biased;
            outcome = dropped.outcome() => panic!("{outcome:?}"),
            () = std::future::ready(()) => {}
        }
        let stop = async { stopper.stop(Duration::from_secs(10)) };
        let (stopped, fed, ()) = tokio::join!(endless.outcome(), fed.outcome(), stop);
        (stopped.unwrap(), fed.unwrap())
    });
    assert!(matches!(stopped.ended, Ended::Stopped(_)), "{stopped:?}");
    assert_eq!(fed.ended, Ended::Exit(0));
    let asked = Instant::now();
    assert_eq!(held.read_to_end(&mut Vec::new()).unwrap(), 0);
    assert!(asked.elapsed() < Duration::from_secs(30), "the dropped one lives on");
}

/// A5: a dry run changes and starts nothing, and its fingerprint equals the next run's.
#[test]
fn a5_a_plan_is_dry() {
    let place = Scene::new("dry");
    let mut stage = place.sh("touch ran");
    stage.allow("api.example.com").unwrap();
    let first = stage.plan().unwrap();
    assert!(first.to_text().contains("api.example.com"));
    stage.arg("more");
    assert_eq!(stage.plan().unwrap().fingerprint(), first.fingerprint());
    stage.allow("other.example.com").unwrap();
    assert_ne!(stage.plan().unwrap().fingerprint(), first.fingerprint());
    assert_eq!(fs::read_dir(place.path("work")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(place.path("home")).unwrap().count(), 0, "not even a record");
}

/// The record contains the labels, and a stage cannot have its record as a stream.
#[test]
fn a_record_has_labels_and_cannot_be_a_stream() {
    let place = Scene::new("record");
    let record = place.path("data/record.jsonl");
    let mut stage = place.sh("true");
    stage.audit(AuditTo::File(record.clone())).label("build", "42").stage_name("nightly");
    let mut running = stage.spawn().unwrap();
    let id = running.id().to_string();
    assert!(running.wait_timeout(Duration::from_secs(20)));
    running.wait().unwrap();
    let lines = fs::read_to_string(&record).unwrap();
    for part in [id.as_str(), "\"build\"", "\"42\"", "nightly", "run_end"] {
        assert!(lines.contains(part), "{part} in {lines}");
    }
    let file = File::create(place.path("data/other")).unwrap();
    let mut stage = place.sh("true");
    stage.audit(AuditTo::Fd(file.as_fd().try_clone_to_owned().unwrap())).stdout(file);
    assert!(matches!(stage.run(), Err(Error::Inside { what: OwnPath::Record, .. })));
}

/// A run does not change the calling process: signals, streams, limits, directory.
#[test]
fn a_run_leaves_the_calling_process_as_it_was() {
    let place = Scene::new("process");
    let state = || {
        // Reads this thread: the first thread starts other tests, and pthread_create(3) blocks signals meanwhile.
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let signals = status.lines().filter(|line| line.starts_with("Sig") && !line.starts_with("SigQ"));
        let signals: Vec<String> =
            signals.filter(|line| !line.starts_with("SigPnd")).map(String::from).collect();
        let streams = [0, 1, 2].map(|fd| {
            let meta = fs::metadata(format!("/proc/self/fd/{fd}")).unwrap();
            (meta.dev(), meta.ino())
        });
        let umask = status.lines().find(|line| line.starts_with("Umask")).unwrap().to_owned();
        let limits = fs::read_to_string("/proc/self/limits").unwrap();
        (signals, streams, umask, limits, std::env::current_dir().unwrap())
    };
    let before = state();
    let mut stage = place.sh("cat; echo out; ulimit -n");
    stage.stdin(Stdio::null()).stdout(File::create(place.path("data/out")).unwrap());
    stage.run().unwrap();
    let output = fs::read_to_string(place.path("data/out")).unwrap();
    let soft = before.3.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let mut numbers = soft.split_whitespace().skip(3).map(|word| word.parse::<u64>().unwrap());
    let (soft, hard) = (numbers.next().unwrap(), numbers.next().unwrap());
    // docs/limits.md, "What your user shares with a stage".
    let soft = soft.min((hard / 2).max(4096));
    assert_eq!(
        output,
        format!("out\n{soft}\n"),
        "the stage's own limit is this process's, up to half of the hard one"
    );
    assert_eq!(state(), before);
}

/// The example: 20 tasks at once, each under a different policy. The host answers only when 19 have come, so they must
/// run together. Each outcome lists who was reached and who was refused.
#[test]
fn evaluates_twenty_tasks_at_the_same_time() {
    const COUNT: usize = 20;
    let place = Scene::new("harness");
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = host.local_addr().unwrap().port();
    // This thread ends with the test program if they do not come.
    thread::spawn(move || {
        let together: Vec<_> = host.incoming().take(COUNT - 1).map(Result::unwrap).collect();
        together.into_iter().for_each(|mut stream| stream.write_all(b"answer\n").unwrap());
    });
    let script = format!(
        r"#!/bin/bash
        exec 3<>/dev/tcp/127.0.0.1/3128
        printf 'CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n' >&3
        read -r _ status _ <&3
        while read -r line <&3 && [ ${{#line}} -gt 1 ]; do :; done
        [ $status = 200 ] && read -r said <&3
        echo $status $said"
    );
    for number in 0..COUNT {
        let task = place.path(&format!("data/{number:02}"));
        fs::create_dir(&task).unwrap();
        fs::write(task.join("task"), &script).unwrap();
        fs::set_permissions(task.join("task"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let allowed = if number == 7 { "api.example.com".into() } else { format!("127.0.0.1:{port}") };
        fs::write(task.with_extension("toml"), format!("[network]\nallow = [\"{allowed}\"]\n")).unwrap();
    }
    let mut settings = harness::settings();
    settings.host_env(place.host_env());
    let outcomes = harness::evaluate(&settings, &place.path("data")).unwrap();
    assert_eq!(outcomes.len(), COUNT);
    for (number, outcome) in outcomes.iter().enumerate() {
        let log = fs::read_to_string(place.path(&format!("data/{number:02}.log"))).unwrap();
        let result = serde_json::to_value(outcome).unwrap();
        assert_eq!((&result["cause"], &result["code"]), (&"exit".into(), &0.into()), "{log}{result}");
        assert_eq!(result["stage"], format!("{number:02}"));
        let (met, missed, said) = match number {
            7 => ("denied", "reached", "403\n"),
            _ => ("reached", "denied", "200 answer\n"),
        };
        assert_eq!(log, said, "{result}");
        assert_eq!((&result[met][0]["host"], &result[met][0]["port"]), (&"127.0.0.1".into(), &port.into()));
        assert_eq!(result[missed], serde_json::json!([]), "{result}");
        if number != 7 {
            assert_eq!(result["reached"][0]["bytes_down"], "answer\n".len(), "{result}");
        }
    }
}

/// B26, N22: eight stages at once, each with a different policy: each reaches its own origin only, and has its own
/// outcome.
#[test]
fn b26_eight_at_once_do_not_meet() {
    const COUNT: usize = 8;
    let place = Scene::new("parallel");
    let origins: Vec<TcpListener> = (0..COUNT).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<u16> = origins.iter().map(|origin| origin.local_addr().unwrap().port()).collect();
    for (number, origin) in origins.into_iter().enumerate() {
        // This thread ends with the test program.
        thread::spawn(move || {
            for stream in origin.incoming() {
                let _ = stream.unwrap().write_all(format!("origin {number}\n").as_bytes());
            }
        });
    }
    let script = r#"
        for port in $PORTS; do
            exec 3<>/dev/tcp/127.0.0.1/3128
            printf 'CONNECT 127.0.0.1:%s HTTP/1.1\r\nHost: 127.0.0.1:%s\r\n\r\n' $port $port >&3
            read -r _ status _ <&3
            while read -r line <&3 && [ "$line" != $'\r' ]; do :; done
            [ $status = 200 ] && read -r said <&3 || said=
            echo "$port $status $said"
            exec 3>&-
        done
        exit $NUMBER"#;
    let list = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(" ");
    let together = Barrier::new(COUNT);
    thread::scope(|scope| {
        let runs = ports.iter().enumerate().map(|(number, port)| {
            let (place, list, ports, together) = (&place, &list, &ports, &together);
            scope.spawn(move || {
                let mut stage = place.stage("bash");
                stage.args(["-c", script]).env("PORTS", list).env("NUMBER", number.to_string());
                stage.allow(&format!("127.0.0.1:{port}")).unwrap().label("number", number.to_string());
                together.wait();
                let output = stage.output().unwrap();
                let expect: String = ports
                    .iter()
                    .map(|other| match other == port {
                        true => format!("{other} 200 origin {number}\n"),
                        false => format!("{other} 403 \n"),
                    })
                    .collect();
                assert_eq!(text(&output.stdout), expect, "{}", text(&output.stderr));
                assert_eq!(output.outcome.ended, Ended::Exit(u8::try_from(number).unwrap()));
                let record = fs::read_to_string(output.outcome.audit.unwrap()).unwrap();
                let allowed =
                    record.lines().filter(|line| line.contains("\"allow\"") && line.contains("decision"));
                assert_eq!(allowed.count(), 1, "{record}");
            })
        });
        for run in runs.collect::<Vec<_>>() {
            run.join().unwrap();
        }
    });
}

/// A stage ends at its wall-clock limit.
#[test]
fn a_time_limit_ends_a_stage() {
    let place = Scene::new("limit");
    let mut stage = place.sh("exec sleep 3600");
    let began = Instant::now();
    assert_eq!(stage.timeout(Duration::from_millis(300)).run().unwrap().ended, Ended::Timeout);
    assert!(began.elapsed() < Duration::from_secs(10));
}

/// K11: the other limits, and that output up to its limit is kept.
#[test]
fn a_limit_ends_a_stage_or_refuses_it_more() {
    let place = Scene::new("limits");
    let limits = Limits { output_size: "1000".parse().ok(), open_files: Some(20), ..Limits::default() };
    let output = place.sh("ulimit -n; exec yes").limits(limits).output().unwrap();
    assert!(matches!(output.outcome.ended, Ended::Limit(Reached::OutputSize(_))), "{output:?}");
    assert!(output.stdout.starts_with(b"20\ny\ny\n"), "{output:?}");
    assert_eq!(output.stdout.len(), 1000);
}

/// Refusals end or fail the stage, as with `--on-denied`.
#[test]
fn a_refusal_ends_or_fails_a_stage_as_requested() {
    let place = Scene::new("denied");
    let curl = "curl -sS --max-time 20 https://nowhere.invalid/ 2>/dev/null";
    let run = |script: &str, what| place.sh(script).on_denied(what).run().unwrap();
    let outcome = run(&format!("{curl}; exit 0"), OnDenied::Note);
    assert_eq!((outcome.ended, outcome.summary.denied.len()), (Ended::Exit(0), 1));
    assert_eq!(run(&format!("{curl}; exit 0"), OnDenied::Fail).ended, Ended::Denied);
    assert_eq!(run(&format!("{curl}; exit 3"), OnDenied::Fail).ended, Ended::Exit(3));
    let began = Instant::now();
    assert_eq!(run(&format!("{curl}; exec sleep 3600"), OnDenied::End).ended, Ended::Denied);
    assert!(began.elapsed() < Duration::from_secs(60));
    let mut stage = place.sh("true");
    let error = stage.via(place.path("proxy.sock")).on_denied(OnDenied::End).run().unwrap_err();
    assert!(matches!(error, Error::ViaAnd(_)), "{error}");
}

/// A5: the approval concerns exactly what would start.
#[test]
fn does_not_start_without_approval() {
    let place = Scene::new("approved");
    let approved = place.sh("touch started").plan().unwrap().fingerprint();
    let marker = place.root.join("work/started");
    let error =
        place.sh("touch started").rw(place.root.join("data")).approved(approved.clone()).run().unwrap_err();
    assert!(matches!(error, Error::NotApproved) && !marker.exists(), "{error}");
    place.sh("touch started").approved(approved).run().unwrap();
    assert!(marker.exists());
}

/// A12: runs the tests above for a caller without privileges.
#[test]
#[ignore = "needs root"]
fn runs_every_test_again_as_an_ordinary_user() {
    let dir = std::env::temp_dir().join(format!("stage-user-{}", std::process::id()));
    fs::create_dir(&dir).unwrap();
    let program = dir.join("tests");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::os::unix::fs::chown(&dir, Some(USER), Some(USER)).unwrap();
    let mut again = Command::new(&program);
    again.env(AGAIN, &dir).env("TMPDIR", &dir).env_remove("XDG_RUNTIME_DIR").uid(USER).gid(USER);
    again.current_dir(&dir);
    // A child that another test forked meanwhile may hold the copy open for writing until it executes: ETXTBSY.
    let busy = |error: &io::Error| error.kind() == io::ErrorKind::ExecutableFileBusy;
    let mut tries = 0;
    let output = loop {
        match again.output() {
            Err(error) if busy(&error) && tries < 100 => thread::sleep(Duration::from_millis(20)),
            output => break output.unwrap(),
        }
        tries += 1;
    };
    fs::remove_dir_all(&dir).unwrap();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains(" 0 failed"));
}
