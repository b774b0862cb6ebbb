use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use clap::Parser;
use exeat_files::request::Bind;
use exeat_policy::file::MAX_FILE_BYTES;
use exeat_policy::{BackendName, Bridge, Ech, Limits, Mode, Terms, TlsCheck, Tty};

use super::*;
use crate::args::{Cli, Command};
use crate::commands::proxy::without_stage;
use crate::terminal::Paint;

/// A directory that goes away with the test.
struct Scene(PathBuf);

impl Scene {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("exeat-request-{}-{n}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }

    fn file(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn machine(&self) -> Machine {
        Machine::new(self.0.clone(), [("HOME".into(), "/home/ann".into())].into(), exeat_runner::CALLS)
    }

    fn try_request(&self, words: &[&str]) -> Result<RunRequest, Failure> {
        let words = ["exeat", "run"].into_iter().chain(words.iter().copied()).chain(["true"]);
        let Command::Run(args) = Cli::try_parse_from(words).unwrap().command else { panic!() };
        run(*args, self.machine())
    }

    fn expect_request(&self, words: &[&str]) -> RunRequest {
        self.try_request(words).unwrap_or_else(|failure| panic!("{}", failure.report(Paint::PLAIN)))
    }

    fn request(&self, words: &[&str]) -> Request {
        self.expect_request(words).request
    }

    /// The report, with this scene's own path taken out.
    fn report(&self, words: &[&str]) -> String {
        let failure = self.try_request(words).expect_err("it is refused");
        assert_eq!(failure.exit().code(), 2);
        assert_eq!(failure.cause(), "policy");
        failure.report(Paint::PLAIN).replace(self.0.to_str().unwrap(), "DIR")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn rules(request: &Request) -> Vec<String> {
    request.policy.rules().iter().map(|rule| format!("{rule} {}", rule.origin)).collect()
}

#[test]
fn rules_keep_their_origins() {
    let scene = Scene::new();
    scene.file("hosts.txt", "# ours\nb.example  # why\n\n!c.example\n");
    scene.file(
        "policy.toml",
        "schema = 1\n[network]\nallow = [\n  \"d.example:80,443\",\n]\ndeny = [\"e.example\"]\n",
    );
    let request = scene.request(&[
        "--allow",
        "a.example",
        "--allow",
        "@hosts.txt",
        "--deny",
        "f.example",
        "--policy",
        "policy.toml",
    ]);
    assert_eq!(
        rules(&request),
        [
            "a.example:443 --allow",
            "b.example:443 hosts.txt:2",
            "!c.example:* hosts.txt:4",
            "!f.example:* --deny",
            "d.example:80,443 policy.toml:4",
            "!e.example:* policy.toml:6",
        ]
    );
}

/// Each service of this machine in flags and files becomes a rule and a port on the stage's loopback.
#[test]
fn services_of_this_machine() {
    let scene = Scene::new();
    scene.file("ports.toml", "[network]\nallow = [\"a.example\"]\nhost_port = [5432,\n  \"11434:80\"]");
    scene.file(".exeat.toml", "[network]\nallow = [\"b.example\"]\nhost_port = [6379]");
    scene.file("site.toml", "[network]\nallow = [\"a.example\", \"b.example\", \"127.0.0.1:5432\"]");
    let ports =
        |request: &Request| request.host_ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");

    let request = scene.request(&["--policy", "ports.toml", "--host-port", "8765:8000"]);
    assert_eq!(ports(&request), "5432 11434:80 8765:8000");
    assert_eq!(
        rules(&request),
        [
            "127.0.0.1:8765 --host-port 8765:8000",
            "a.example:443 ports.toml:2",
            "127.0.0.1:5432 ports.toml:3",
            "127.0.0.1:11434 ports.toml:4",
        ]
    );
    assert!(
        request.policy.rules().iter().all(|rule| (rule.note.tls == TlsCheck::Off) == (rule.id.get() != 1))
    );
    // No note about NO_PROXY: clients find the service on the loopback.
    assert_eq!(
        scene.expect_request(&["--host-port", "8765"]).notes.len(),
        1,
        "the project's own file is not used"
    );

    assert_eq!(ports(&scene.request(&["--policy", ".exeat.toml"])), "6379");
    let asked = scene.expect_request(&["--ceiling", "site.toml", "--host-port", "5432"]);
    assert_eq!(ports(&asked.request), "5432", "an unnamed file has no say in it");
    assert!(rules(&asked.request).iter().any(|rule| rule.starts_with("b.example")));
    assert!(
        asked.notes.iter().any(|note| note.contains("bounds it: network.host_port;")),
        "{:?}",
        asked.notes
    );

    let declared = r#"[{"effect": "NetworkHosts", "hosts": ["127.0.0.1:5432"]}]"#;
    assert_eq!(ports(&scene.request(&["--effects", declared, "--host-port", "5432"])), "5432");
    insta::assert_snapshot!(scene.report(&["--via", "unix:/run/x.sock", "--host-port", "5432"]), @r"
    exeat: error: `--host-port` says nothing with `--via`: the other proxy's policy holds, and it would dial its own machine
      hint: a run without --via, or without --host-port
    ");
}

/// A single file turns on report mode or NAT64. A flag takes precedence over files, and a ceiling over flags.
#[test]
fn options_that_hold_for_all_rules() {
    let scene = Scene::new();
    scene.file("report.toml", "[network]\nmode = \"report\"");
    scene.file(
        "enforce.toml",
        "[network]\nmode = \"enforce\"\nech = \"record\"\nnat64 = false\nsocks5 = false",
    );
    scene.file("more.toml", "[network]\nnat64 = true\nech = \"refuse\"\nsocks5 = true");
    scene.file("open.toml", "[network]\nreport = true\nnat64 = true\nech = \"record\"");
    scene.file("no-report.toml", "[network]\nreport = false");
    scene.file("no-nat64.toml", "[network]\nnat64 = false");
    scene.file("no-ech.toml", "[network]\nech = \"refuse\"");
    for (words, mode, nat64, ech) in [
        ("", Mode::Enforce, false, Ech::Record),
        ("--mode report", Mode::Report, false, Ech::Record),
        ("--policy report.toml", Mode::Report, false, Ech::Record),
        ("--policy report.toml --policy enforce.toml", Mode::Report, false, Ech::Record),
        ("--policy enforce.toml --policy report.toml", Mode::Report, false, Ech::Record),
        ("--policy report.toml --mode enforce", Mode::Enforce, false, Ech::Record),
        ("--policy enforce.toml --mode report", Mode::Report, false, Ech::Record),
        ("--policy more.toml", Mode::Enforce, true, Ech::Refuse),
        ("--policy more.toml --policy enforce.toml", Mode::Enforce, true, Ech::Refuse),
        ("--policy more.toml --set network.ech=record", Mode::Enforce, true, Ech::Record),
        ("--set network.nat64=true --set network.ech=refuse", Mode::Enforce, true, Ech::Refuse),
        (
            "--policy report.toml --set network.nat64=true --ceiling open.toml",
            Mode::Report,
            true,
            Ech::Record,
        ),
        // A ceiling grants nothing.
        ("--ceiling open.toml", Mode::Enforce, false, Ech::Record),
        ("--ceiling no-report.toml --ceiling no-nat64.toml", Mode::Enforce, false, Ech::Record),
        ("--ceiling no-report.toml --policy report.toml --mode enforce", Mode::Enforce, false, Ech::Record),
        ("--ceiling no-ech.toml", Mode::Enforce, false, Ech::Refuse),
        (
            "--ceiling no-ech.toml --ceiling open.toml --set network.ech=record",
            Mode::Enforce,
            false,
            Ech::Refuse,
        ),
    ] {
        let request = scene.request(&words.split_whitespace().collect::<Vec<_>>());
        assert_eq!(request.policy.terms(), Terms { mode, nat64, ech }, "{words}");
    }
    let socks5 = |words: &[&str]| scene.request(words).socks5;
    assert!(!socks5(&[]) && !socks5(&["--policy", "enforce.toml"]));
    assert!(
        socks5(&["--set", "network.socks5=true"])
            && socks5(&["--policy", "more.toml", "--policy", "enforce.toml"])
    );

    insta::assert_snapshot!(scene.report(&["--mode", "report", "--ceiling", "no-report.toml"]), @r"
    exeat: error: report mode is forbidden by the ceiling no-report.toml
      hint: --mode enforce runs with what the rules allow
    ");
    let words = ["--policy", "report.toml", "--ceiling", "open.toml", "--ceiling", "no-report.toml"];
    insta::assert_snapshot!(scene.report(&words), @r"
    exeat: error: report.toml: report mode is forbidden by the ceiling no-report.toml
      hint: --mode enforce runs with what the rules allow
    ");
    assert_eq!(
        scene.report(&["--policy", "more.toml", "--ceiling", "no-nat64.toml"]),
        "exeat: error: more.toml: nat64 is forbidden by the ceiling no-nat64.toml\n"
    );
    assert!(
        scene
            .report(&["--set", "network.nat64=true", "--ceiling", "no-nat64.toml"])
            .contains("--set: nat64 is forbidden")
    );
}

/// The caller's choice replaces that of the files, and a ceiling decides where `auto` is asked for.
#[test]
fn a_ceiling_bounds_what_builds_the_sandbox() {
    let scene = Scene::new();
    for name in ["native", "bwrap", "auto"] {
        for file in [format!("{name}.toml"), format!("only-{name}.toml")] {
            scene.file(&file, &format!("[sandbox]\nbackend = \"{name}\""));
        }
    }
    for (words, backend) in [
        ("", BackendName::Auto),
        ("--backend native", BackendName::Native),
        ("--policy native.toml", BackendName::Native),
        ("--set sandbox.backend=native", BackendName::Native),
        ("--policy native.toml --backend auto", BackendName::Auto),
        ("--ceiling only-native.toml", BackendName::Native),
        ("--backend auto --ceiling only-native.toml", BackendName::Native),
        ("--policy native.toml --ceiling only-auto.toml", BackendName::Native),
        ("--policy native.toml --backend bwrap --ceiling only-bwrap.toml", BackendName::Bwrap),
    ] {
        let request = scene.request(&words.split_whitespace().collect::<Vec<_>>());
        assert_eq!(request.backend, backend, "{words}");
    }
    let forbidden =
        "the back end `native` is forbidden by the ceiling only-bwrap.toml, which permits `bwrap`";
    for (words, by, hint) in [
        ("--policy native.toml --ceiling only-bwrap.toml", "native.toml: ", "  hint: --backend bwrap\n"),
        ("--set sandbox.backend=native --ceiling only-bwrap.toml", "--set: ", "  hint: --backend bwrap\n"),
        ("--backend native --ceiling only-bwrap.toml", "", "  hint: --backend bwrap\n"),
        ("--ceiling only-native.toml --ceiling only-bwrap.toml", "only-native.toml: ", ""),
    ] {
        let said = scene.report(&words.split_whitespace().collect::<Vec<_>>());
        assert_eq!(said, format!("exeat: error: {by}{forbidden}\n{hint}"), "{words}");
    }
}

/// The project's own file is a stranger's word: it switches nothing on of which no ceiling speaks.
#[test]
fn the_projects_file_alone_reports_on_nothing() {
    let scene = Scene::new();
    scene.file(".exeat.toml", "[network]\nmode = \"report\"\nnat64 = true\nech = \"refuse\"");
    scene.file("silent.toml", "[network]\nallow = [\"*.corp.example\"]");
    scene.file("open.toml", "[network]\nreport = true\nnat64 = true");
    scene.file("no-report.toml", "[network]\nreport = false");
    let asked = scene.expect_request(&["--ceiling", "silent.toml"]);
    assert_eq!(asked.request.policy.terms(), Terms { ech: Ech::Refuse, ..Terms::default() });
    assert!(
        asked.notes[1].contains("left out, because no ceiling bounds it: network.mode, network.nat64;"),
        "{:?}",
        asked.notes
    );
    let terms = scene.request(&["--ceiling", "open.toml"]).policy.terms();
    assert_eq!((terms.mode, terms.nat64), (Mode::Report, true));
    assert!(scene.report(&["--ceiling", "no-report.toml"]).contains(".exeat.toml: report mode is forbidden"));
}

/// K13: of connections the smallest number holds, whoever says it.
#[test]
fn limits_of_connections() {
    let scene = Scene::new();
    scene.file("policy.toml", "[limits]\nconnections = 512\nconnections_per_host = 64");
    scene.file("ceiling.toml", "[limits]\nconnections = 100");
    let limits = |words: &[&str]| {
        let Limits { connections, connections_per_host, .. } = scene.request(words).limits;
        (connections, connections_per_host)
    };
    assert_eq!(limits(&[]), (None, None));
    assert_eq!(limits(&["--policy", "policy.toml"]), (Some(512), Some(64)));
    assert_eq!(
        limits(&["--policy", "policy.toml", "--set", "limits.connections=600"]),
        (Some(600), Some(64))
    );
    let within = [
        "--ceiling",
        "ceiling.toml",
        "--set",
        "limits.connections=600",
        "--set",
        "limits.connections_per_host=7",
    ];
    assert_eq!(limits(&within), (Some(100), Some(7)));
}

#[test]
fn a_target_named_by_tls_off_is_not_checked() {
    let scene = Scene::new();
    let request = scene.request(&["--allow", "db.example:5432", "--tls-off", "db.example:5432"]);
    let target = exeat_policy::Target::parse(b"db.example:5432").unwrap();
    let admitted = request.policy.admit(target, exeat_policy::Day::from_unix(0)).unwrap();
    assert_eq!(admitted.rule().unwrap().note.tls, TlsCheck::Off);
    assert!(scene.report(&["--tls-off", "!db.example"]).contains("one allow rule is needed here"));
}

/// A3.
#[test]
fn paths_of_a_file_are_relative_to_it_and_those_of_flags_to_here() {
    let scene = Scene::new();
    scene.file(
        "conf/policy.toml",
        "[fs]\nview = \"host\"\nro = [\"~/datasets:/data\", \"../lib\"]\nrw = [\"out\"]\nmask = [\"secrets\", \"~\"]\n",
    );
    let request = scene.request(&[
        "--policy",
        "conf/policy.toml",
        "--ro",
        "x/../y",
        "--ro",
        "~/z",
        "--rw",
        "/abs:~/inside",
        "--mask",
        "m",
    ]);
    let here = |path: &str| scene.0.join(path);
    let bind = |host: PathBuf, guest: PathBuf| Bind { host, guest };
    assert_eq!(
        request.files.ro,
        [
            bind("/home/ann/datasets".into(), "/data".into()),
            bind(here("conf/../lib"), here("lib")),
            bind(here("x/../y"), here("y")),
            bind("/home/ann/z".into(), "/home/ann/z".into()),
        ]
    );
    assert_eq!(
        request.files.rw,
        [bind(here("conf/out"), here("conf/out")), bind("/abs".into(), "/home/ann/inside".into())]
    );
    assert_eq!(request.files.mask, [here("conf/secrets"), "/home/ann".into(), here("m")]);
    assert_eq!(request.files.view, View::Host);
    assert_eq!(scene.request(&["--policy", "conf/policy.toml", "--fs", "minimal"]).files.view, View::Minimal);
}

#[test]
fn the_environment_is_that_of_files_then_that_of_flags() {
    let scene = Scene::new();
    scene.file("p.toml", "[env]\npass = [\"CI\"]\nset = { LANG = \"C.UTF-8\" }\n");
    let request = scene.request(&["--policy", "p.toml", "--env", "LANG=de", "--env", "X"]);
    let set = |name: &str, value: &str| EnvRule::Set(name.into(), value.into());
    let pass = |name: &str| EnvRule::Pass(name.into());
    assert_eq!(request.env, [pass("CI"), set("LANG", "C.UTF-8"), set("LANG", "de"), pass("X")]);
}

#[test]
fn files_that_differ_are_not_guessed_about() {
    let scene = Scene::new();
    scene.file("a.toml", "stage = \"a\"\n[fs]\nview = \"host\"\n");
    scene.file("b.toml", "stage = \"b\"\n");
    assert_eq!(scene.request(&["--policy", "a.toml", "--policy", "a.toml"]).stage.as_deref(), Some("a"));
    assert_eq!(scene.request(&["--policy", "a.toml", "--stage", "s"]).stage.as_deref(), Some("s"));
    insta::assert_snapshot!(scene.report(&["--policy", "a.toml", "--policy", "b.toml"]), @r#"
    exeat: error: `a.toml` and `b.toml` differ about the stage's name
      hint: leave it to one of the files
    "#);
}

#[test]
fn the_project_file_is_used_only_when_named() {
    let scene = Scene::new();
    scene.file(".exeat.toml", "[network]\nallow = [\"a.example\"]\n");
    let RunRequest { request, notes, .. } = scene.try_request(&[]).unwrap();
    assert!(request.policy.is_empty());
    assert_eq!(notes, [".exeat.toml was found and not used; --policy .exeat.toml uses it"]);
    let RunRequest { request, notes, .. } = scene.try_request(&["--policy", "./.exeat.toml"]).unwrap();
    assert_eq!(rules(&request), ["a.example:443 ./.exeat.toml:2"]);
    assert!(notes.is_empty());
}

#[test]
fn reports() {
    let scene = Scene::new();
    scene
        .file("bad.toml", "[network]\nallow = [\"ok.example\", \"https://api.example.com/v1\"]\nalow = []\n");
    scene.file("bad.txt", "ok.example\n*foo.example\n");
    scene.file("latin1.txt", "ok.example\n");
    fs::write(scene.0.join("latin1.txt"), b"ok.example\n# caf\xe9\n").unwrap();
    fs::write(scene.0.join("big.toml"), vec![b'\n'; MAX_FILE_BYTES + 1]).unwrap();
    let mut all = String::new();
    for words in [
        &["--allow", "https://api.example.com/v1"][..],
        &["--allow", "*.com"],
        &["--allow", "EX\u{c4}MPLE.com"],
        &["--deny", "!a.example"],
        &["--allow", "@missing.txt"],
        &["--allow", "@"],
        &["--allow", "@bad.txt"],
        &["--allow", "@latin1.txt"],
        &["--policy", "missing.toml"],
        &["--policy", "."],
        &["--policy", "bad.toml"],
        &["--policy", "big.toml"],
        &["--policy", "-", "--policy", "-"],
    ] {
        all.push_str(&format!("$ exeat run {}\n{}\n", words.join(" "), scene.report(words)));
    }
    insta::with_settings!({ prepend_module_to_snapshot => false, snapshot_path => "../snapshots" }, {
        insta::assert_snapshot!("reports", all);
    });
}

/// `exeat proxy` has no stage, and does not pass over what a file says about one without a word.
#[test]
fn a_proxy_leaves_parts_of_a_policy_out() {
    for (text, left_out) in [
        ("[network]\nallow = [\"a.example\"]\n", None),
        ("[fs]\nro = [\"/data\"]\n", Some("[fs] of")),
        ("[fs]\nview = \"minimal\"\n", Some("[fs] of")),
        ("[env]\npass = [\"CI\"]\n", Some("[env] of")),
        ("[fs]\nmask = [\"x\"]\n[env]\nset = { A = \"b\" }\n", Some("[fs], [env] of")),
    ] {
        let scene = Scene::new();
        scene.file("p.toml", text);
        let words = ["exeat", "proxy", "--listen", "unix:s", "--policy", "p.toml"];
        let Command::Proxy(args) = Cli::try_parse_from(words).unwrap().command else { panic!() };
        let note = without_stage(&compose(&args.policy.request(), &scene.machine(), true).unwrap());
        assert!(note.is_some() == left_out.is_some(), "{text}: {note:?}");
        assert!(
            note.clone().unwrap_or_default().starts_with(left_out.unwrap_or_default()),
            "{text}: {note:?}"
        );
    }
}

/// K13, X09: a ceiling that has two names bounds once. One that is read from another directory is another: its relative
/// paths start there.
#[test]
fn a_ceiling_counts_once() {
    let scene = Scene::new();
    let text = "[network]\nallow = [\"a.example\"]\n";
    scene.file("config/exeat/policy.toml", text);
    // Not below the working directory, where a stage could have made it.
    scene.file("work/-", text);
    scene.file("work/below/policy.toml", text);
    for (link, end) in [("config/exeat/link.toml", "policy.toml"), ("work/link.toml", "below/policy.toml")] {
        std::os::unix::fs::symlink(end, scene.0.join(link)).unwrap();
    }
    let env = [("XDG_CONFIG_HOME".into(), scene.0.join("config").into())];
    let machine = Machine::new(scene.0.join("work"), env.into(), exeat_runner::CALLS);
    for (named, count) in [
        (&[][..], 1),
        (&["../config/exeat/policy.toml", "../config/exeat/../exeat/policy.toml"], 1),
        (&["../config/exeat/link.toml"], 1),
        (&["link.toml", "./link.toml"], 2),
        (&["./-", "./-"], 2),
    ] {
        let mut words = vec!["exeat", "check", "--allow", "a.example", "a.example"];
        named.iter().for_each(|name| words.extend(["--ceiling", name]));
        let Command::Check(args) = Cli::try_parse_from(words).unwrap().command else { panic!() };
        let loaded = compose(&args.policy.request(), &machine, true).unwrap();
        assert_eq!(loaded.files.bounds.len(), count, "{named:?}");
        assert_eq!(loaded.sources.len(), count, "{named:?}");
        // Each is looked at, and the site's, where there is none.
        assert_eq!(loaded.inspected.len(), named.len() + 2 + 1, "{named:?}");
    }
}

#[test]
fn no_home_no_tilde() {
    let scene = Scene::new();
    let Command::Run(args) = Cli::try_parse_from(["exeat", "run", "--ro", "~/x", "true"]).unwrap().command
    else {
        panic!()
    };
    let mut machine = scene.machine();
    machine.env = [("HOME".into(), "relative".into())].into();
    let report = run(*args, machine).expect_err("there is no HOME").report(Paint::PLAIN);
    assert_eq!(report, "exeat: error: --ro: `~` is HOME, and HOME is not set to an absolute path\n");
}

#[test]
fn no_command_and_how_it_is_done() {
    let scene = Scene::new();
    let Command::Run(args) = Cli::try_parse_from(["exeat", "run"]).unwrap().command else { panic!() };
    let report = run(*args, scene.machine()).expect_err("nothing to run").report(Paint::PLAIN);
    insta::assert_snapshot!(report, @r#"
    exeat: error: there is no command to run
      hint: exeat run --allow api.example.com -- curl -sS https://api.example.com/
    "#);
}

/// K5: git's configuration can be opened in a file too.
#[test]
fn a_file_may_open_gits_configuration() {
    let scene = Scene::new();
    scene.file("open.toml", "[fs]\nallow_write = [\".git\"]\n");
    let is_open =
        |words: &[&str]| scene.request(words).files.allow_write.iter().any(exeat_runner::LetThrough::is_git);
    assert!(is_open(&["--policy", "open.toml"]) && is_open(&["--allow-write", ".git"]));
    assert!(is_open(&["--set", "fs.allow_write=[\".git\"]"]) && !is_open(&[]));
}

/// B12: names that are let through, of flags and of files; one that the table does not cover is refused, with the place.
#[test]
fn b12_names_are_let_through_by_flags_and_files() {
    let scene = Scene::new();
    scene.file("open.toml", "[fs]\nallow_write = [\".vscode\"]\n");
    let files = scene.request(&["--policy", "open.toml", "--allow-write", ".claude/commands"]).files;
    let names: Vec<&str> = files.allow_write.iter().map(exeat_runner::LetThrough::as_str).collect();
    assert_eq!(names, [".vscode", ".claude/commands"]);
    scene.file("other.toml", "[fs]\nallow_write = [\"src\"]\n");
    for words in [["--policy", "other.toml"], ["--ceiling", "other.toml"], ["--allow-write", "src"]] {
        assert!(scene.report(&words).contains("`src`: no protected name is that"), "{words:?}");
    }
}

/// H23, K12: of a project's file that nobody named, what no ceiling speaks about does not count.
#[test]
fn an_unnamed_project_file_gets_nothing_that_no_ceiling_bounds() {
    let scene = Scene::new();
    scene.file(
        ".exeat.toml",
        "stage = \"s\"\n[network]\nallow = [\"a.example\"]\n[fs]\nview = \"host\"\nro = [\"~/.ssh\"]\nrw = [\"~/.bashrc\"]\n\
         mask = [\"m\"]\nallow_write = [\".vscode\"]\ncache = \"none\"\n[env]\npass = [\"TOKEN\"]\nset = { A = \"b\" }\n[limits]\npids = 9\n[sandbox]\ntty = \"off\"\n[effects]\non_excess = \"narrow\"\n",
    );
    scene.file("hosts.toml", "[network]\nallow = [\"a.example\"]\n");
    let asked = scene.expect_request(&["--ceiling", "hosts.toml"]);
    let files = &asked.request.files;
    assert_eq!((files.view, files.ro.len(), files.rw.len(), files.mask.len()), (View::Project, 0, 0, 1));
    assert!(files.cache == Cache::Run && asked.request.tty == Tty::Auto);
    assert!(files.allow_write.is_empty() && asked.request.env.is_empty());
    assert_eq!((asked.request.stage.as_deref(), asked.request.limits.pids), (Some("s"), Some(9)));
    assert_eq!(
        asked.notes[1],
        ".exeat.toml: left out, because no ceiling bounds it: fs.view, fs.ro, fs.rw, fs.cache, sandbox, \
         effects.on_excess, fs.allow_write, env.pass, env.set; --policy .exeat.toml uses all of it"
    );
    // Each list on its own.
    scene.file("more.toml", "[network]\nallow = [\"a.example\"]\n[fs]\nrw = [\"/srv\"]\n[env]\npass = []\n");
    let request = scene.request(&["--ceiling", "more.toml"]);
    assert_eq!((request.files.ro.len(), request.files.rw.len(), request.env.len()), (0, 1, 1));
    // A value names a tree that is shown then, as JAVA_HOME does: a bound of files is needed too.
    scene.file("both.toml", "[fs]\nro = [\"/srv\"]\n[env]\npass = []\n");
    assert_eq!(scene.request(&["--ceiling", "both.toml"]).env.len(), 2);
    let request = scene.request(&["--ceiling", "hosts.toml", "--policy", ".exeat.toml"]);
    assert_eq!((request.files.view, request.files.rw.len(), request.env.len()), (View::Host, 1, 2));
}

/// H23: what stands where the project's file would, and is none, is not read: not a link to a file of the user's, not a pipe.
/// Whoever opens one waits for a writer, and an earlier stage may have made it.
#[test]
fn l09_a_named_pipe_decides_nothing() {
    let scene = Scene::new();
    let at = scene.0.join("pipe");
    nix::unistd::mkfifo(&at, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for words in [&["--policy", "pipe"][..], &["--ceiling", "pipe"], &["--allow", "@pipe"]] {
        let refused = scene.try_request(words).err().map(|failure| failure.report(Paint::PLAIN));
        assert!(refused.as_ref().is_some_and(|said| said.contains("a named pipe")), "{refused:?}");
    }
}

#[test]
fn ignores_a_project_file_that_is_not_a_regular_policy_file() {
    let scene = Scene::new();
    scene.file("hosts.toml", "[network]\nallow = [\"a.example\"]\n");
    let at = scene.0.join(".exeat.toml");
    std::os::unix::fs::symlink("hosts.toml", &at).unwrap();
    let notes = scene.expect_request(&["--ceiling", "hosts.toml"]).notes;
    assert_eq!(notes, [".exeat.toml was found and not used: it is a link; --policy .exeat.toml uses it"]);
    fs::remove_file(&at).unwrap();
    nix::unistd::mkfifo(&at, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let notes = scene.expect_request(&["--ceiling", "hosts.toml"]).notes;
    assert!(notes[0].contains("it is no regular file"), "{notes:?}");
    fs::remove_file(&at).unwrap();
    scene.file(".exeat.toml", r#"{"ro_binds": [], "network": true, "env_allowlist": []}"#);
    let asked = scene.expect_request(&["--ceiling", "hosts.toml"]);
    assert!(asked.notes[0].contains("an isolation policy") && asked.request.policy.is_empty());
    assert_eq!(asked.request.sources.len(), 1, "the ceiling");
}

/// K13: the effects bound any other grant of hosts or files.
#[test]
fn effects_bound_every_other_grant() {
    let scene = Scene::new();
    let effects =
        r#"[{"effect": "FsRead", "path": "/srv/in"}, {"effect": "NetworkHosts", "hosts": ["a.example"]}]"#;
    let alone = scene.request(&["--effects", effects]);
    assert_eq!(alone.files.ro.len(), 1);
    assert!(!alone.policy.is_empty() && alone.files.declared.is_some());
    // File flags do not grant hosts, so the effects still do.
    let files = scene.request(&["--effects", effects, "--ro", "/srv"]);
    assert_eq!(files.files.ro, [Bind { host: "/srv".into(), guest: "/srv".into() }]);
    assert!(files.files.declared.is_some() && !files.policy.is_empty());
    let nothing = scene.request(&["--effects", "[]", "--rw", "/srv"]);
    assert!(nothing.files.declared.is_some_and(|declared| declared.write.is_empty()));
    // A project's file that a ceiling lets in grants like any other.
    scene.file(".exeat.toml", "[network]\nallow = [\"a.example\", \"b.example\"]\n");
    scene.file("c.toml", "[network]\nallow = [\"*.example\"]\nallow_shared_suffix = true\n");
    let both = scene.request(&["--effects", effects, "--ceiling", "c.toml"]);
    assert!(both.files.declared.is_some());
    let target = |text: &[u8]| exeat_policy::Target::parse(text).unwrap();
    let today = exeat_policy::Day::from_unix(0);
    assert!(both.policy.admit(target(b"a.example:443"), today).is_ok());
    assert!(both.policy.admit(target(b"b.example:443"), today).is_err());
}

/// The agent would ask the real host until it gives up.
#[test]
fn a_variable_that_sends_a_client_elsewhere_is_named_when_it_is_not_passed() {
    let scene = Scene::new();
    let notes = |words: &[&str], is_set: bool| {
        let mut machine = scene.machine();
        if is_set {
            machine.env.insert("ANTHROPIC_BASE_URL".into(), "http://127.0.0.1:1".into());
        }
        let words = ["exeat", "run"].into_iter().chain(words.iter().copied()).chain(["true"]);
        let Command::Run(args) = Cli::try_parse_from(words).unwrap().command else { panic!() };
        run(*args, machine).unwrap().notes
    };
    let named = notes(&["-p", "agent-claude"], true);
    assert!(named.iter().any(|note| note.contains("--env ANTHROPIC_BASE_URL passes it")), "{named:?}");
    for (words, is_set) in [
        (&["-p", "agent-claude"][..], false),
        (&["-p", "agent-claude", "--env", "ANTHROPIC_BASE_URL"], true),
        (&["-p", "agent-claude", "--env", "ANTHROPIC_BASE_URL=http://10.0.0.1"], true),
        (&["-p", "agent-codex"], true),
        (&[], true),
    ] {
        let notes = notes(words, is_set);
        assert!(!notes.iter().any(|note| note.contains("ANTHROPIC_BASE_URL")), "{words:?}: {notes:?}");
    }
}

/// `--set` adds to files, and takes precedence over them for a single value. A flag takes precedence over `--set`, and a ceiling over
/// all of them.
#[test]
fn keys_are_set_as_in_a_file_that_counts_first() {
    let scene = Scene::new();
    scene.file(
        "p.toml",
        "stage = \"file\"\n[network]\nallow = [\"a.example\"]\nsocks5 = true\n[fs]\nview = \"host\"\nro = [\"/a\"]\n\
         [env]\nset = { A = \"file\" }\n[limits]\npids = 3\nopen_files = 30\n[sandbox]\nbridge = \"relay\"\ntty = \"off\"\n",
    );
    scene.file("c.toml", "[network]\nallow = [\"a.example\"]\n[limits]\nopen_files = 40\n");
    let words = [
        "--policy",
        "p.toml",
        "--set",
        "stage=set",
        "--set",
        "network.allow=[\"b.example\"]",
        "--set",
        "network.socks5=false",
        "--set",
        "fs.view=minimal",
        "--set",
        "fs.ro=[\"b\"]",
        "--set",
        "env.set.A=set",
        "--set",
        "limits.pids=9",
        "--set",
        "limits.open_files=50",
        "--set",
        "sandbox.bridge=handoff",
        "--set",
        "audit.sync=true",
    ];
    let request = scene.request(&words);
    assert_eq!(rules(&request), ["a.example:443 p.toml:3", "b.example:443 --set"]);
    assert_eq!((request.stage.as_deref(), request.socks5, request.audit_sync), (Some("set"), false, true));
    assert_eq!((request.files.view, request.bridge, request.tty), (View::Minimal, Bridge::Handoff, Tty::Off));
    let shown: Vec<_> = request.files.ro.iter().map(|bind| bind.host.clone()).collect();
    assert_eq!(shown, [PathBuf::from("/a"), scene.0.join("b")]);
    assert_eq!(request.env.last(), Some(&EnvRule::Set("A".into(), "set".into())));
    assert_eq!((request.limits.pids, request.limits.open_files), (Some(9), Some(50)));

    let named = scene.request(&[&words[..], &["--stage", "flag", "--fs", "project", "--pids", "7"]].concat());
    assert_eq!((named.stage.as_deref(), named.files.view), (Some("flag"), View::Project));
    assert_eq!(named.limits.pids, Some(7));
    let under = scene.request(&[&words[..], &["--ceiling", "c.toml"]].concat());
    assert_eq!(under.limits.open_files, Some(40));
    let target = exeat_policy::Target::parse(b"b.example:443").unwrap();
    assert!(under.policy.admit(target, exeat_policy::Day::from_unix(0)).is_err());

    // A key without hosts is not a grant, so the effects remain the only grant.
    let effects = r#"[{"effect": "NetworkHosts", "hosts": ["a.example"]}]"#;
    assert!(!scene.request(&["--effects", effects, "--set", "network.ech=refuse"]).policy.is_empty());
    insta::assert_snapshot!(scene.report(&["--set", "limits.pids=9", "--set", "network.nat65=true"]), @r"
    exeat: error: --set:2:9: there is no key `nat65` in `[network]`
      2 | network.nat65=true
        |         ^^^^^
        = probably meant: nat64
    ");
    let said = scene.report(&["--set", "fs.allow_write=[\"src\"]"]);
    assert!(
        said.starts_with("exeat: error: --set: fs.allow_write: `src`: no protected name is that"),
        "{said}"
    );
}

/// A run has the labels of its scheduler's job. Labels on the command line take precedence.
#[test]
fn jobs_become_labels() {
    let scene = Scene::new();
    let labels = |words: &[&str], env: &[(&str, &str)]| {
        let mut machine = scene.machine();
        machine.env.extend(env.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        let words = ["exeat", "run"].into_iter().chain(words.iter().copied()).chain(["true"]);
        let Command::Run(args) = Cli::try_parse_from(words).unwrap().command else { panic!() };
        let labels = run(*args, machine).unwrap().request.labels;
        labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    };
    let slurm = [("SLURM_JOB_ID", "12"), ("SLURM_ARRAY_JOB_ID", "10"), ("SLURM_ARRAY_TASK_ID", "2")];
    assert_eq!(labels(&[], &slurm), "slurm_job=12 slurm_array_job=10 slurm_array_task=2");
    let words = ["--label", "slurm_job=mine", "--label", "a=b"];
    assert_eq!(labels(&words, &slurm[..1]), "slurm_job=mine a=b");
    let others = [("GITHUB_RUN_ID", "9"), ("GITHUB_JOB", "build"), ("CI_JOB_ID", "77")];
    assert_eq!(labels(&[], &others), "github_run=9 github_job=build gitlab_job=77");
    let long = "1".repeat(65);
    assert_eq!(labels(&[], &[("CI_JOB_ID", &long), ("GITHUB_JOB", "a\nb"), ("SLURM_JOB_ID", "")]), "");
    let full: Vec<String> = (0..10).flat_map(|n| ["--label".to_owned(), format!("k{n}=v")]).collect();
    let full: Vec<&str> = full.iter().map(String::as_str).collect();
    assert!(!labels(&full, &slurm).contains("slurm"), "the caller's own are not displaced");
}

#[test]
fn a_home_in_a_variable_of_a_policy_is_expanded() {
    let scene = Scene::new();
    scene.file("p.toml", "[env]\nset = { A = \"~/a/b\", B = \"~\", C = \"x~/y\", D = \"/~/z\" }\n");
    let set = |name: &str, value: &str| EnvRule::Set(name.into(), value.into());
    assert_eq!(
        scene.request(&["--policy", "p.toml"]).env,
        [set("A", "/home/ann/a/b"), set("B", "/home/ann"), set("C", "x~/y"), set("D", "/~/z")]
    );
    assert_eq!(scene.request(&["--set", "env.set.E=~/e"]).env, [set("E", "/home/ann/e")]);
    let said = scene.report(&["--set", "env.set.E=~bob/e"]);
    assert!(said.contains("--set:1:11: `~` is your own home only, as in `~/data`"), "{said}");
}

#[test]
fn a_policy_stands_in_its_flag() {
    let scene = Scene::new();
    let text = r#" {"network": {"allow": ["a.example"]}, "fs": {"ro": ["in"]}}"#;
    let request = scene.request(&["--policy", text]);
    assert_eq!(rules(&request), ["a.example:443 --policy:1"]);
    assert_eq!(request.files.ro.first().map(|bind| bind.host.clone()), Some(scene.0.join("in")));
    assert_eq!(request.sources.first().map(|source| source.file.as_str()), Some("--policy"));
    let said = scene.report(&["--policy", r#"{"network": {"alow": []}}"#]);
    assert!(said.starts_with("exeat: error: --policy:1:14: there is no key `alow`"), "{said}");
    for words in [["--policy", "fd:2"], ["--policy", "fd:x"], ["--ceiling", "fd:0"]] {
        assert!(scene.report(&words).contains("is not a descriptor to read"), "{words:?}");
    }
}
