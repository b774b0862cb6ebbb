//! Tests ceilings, masks and work directories in a real sandbox, as root and as an ordinary user.
//!
//! A run gives its own standard streams to the stage, so each case is a separate process: this program again, with the
//! same test and a variable that names the request.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's helpers fail the test")]
#![expect(clippy::disallowed_methods, reason = "starts itself again")]
#![expect(clippy::exit, reason = "a case ends as its stage did")]

use std::any::type_name;
use std::env;
use std::fs;
use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use exeat_policy::{Action, Limits, Note, Origin, PolicyBuilder};
use exeat_runner::{
    AuditTo, Bind, Bounds, Bridge, Cache, Ended, Files, Oversight, Request, View, WorkDir, plan, run,
};

/// The uid and gid of an ordinary user, for tests that root starts.
const ORDINARY: u32 = 61234;
const CASE: &str = "BOUNDS_CASE";
const ROOT: &str = "BOUNDS_ROOT";

fn bind(host: PathBuf) -> Bind {
    Bind { guest: host.clone(), host }
}

fn ceiling() -> Bounds {
    Bounds { name: "site.toml".into(), ..Bounds::default() }
}

/// Returns the request of a case, and the script that tries it.
fn request(case: &str, root: &Path) -> (Files, &'static str) {
    let data = root.join("data");
    let files = match case {
        "narrow" => Files {
            rw: vec![bind(data.clone())],
            bounds: vec![Bounds { rw: Some(vec![data.join("out")]), ..ceiling() }],
            ..Files::default()
        },
        "part" => Files {
            rw: vec![Bind { host: data.clone(), guest: "/data".into() }],
            bounds: vec![Bounds {
                ro: Some(vec![data.join("in")]),
                rw: Some(vec![data.join("out")]),
                ..ceiling()
            }],
            ..Files::default()
        },
        "ceiling-mask" => Files {
            ro: vec![
                bind(data.clone()),
                bind(data.join("in")),
                Bind { host: data.join("in/f"), guest: "/f".into() },
            ],
            bounds: vec![Bounds { mask: vec![data.join("in"), root.join("link")], ..ceiling() }],
            ..Files::default()
        },
        "reopen" => Files {
            ro: vec![bind(data.clone()), bind(data.join("in/deep"))],
            mask: vec![data.join("in")],
            ..Files::default()
        },
        "start-masked" => Files {
            ro: vec![bind(root.to_path_buf())],
            bounds: vec![Bounds { mask: vec![root.join("project")], ..ceiling() }],
            ..Files::default()
        },
        "start-in-mask" => Files {
            ro: vec![bind(root.to_path_buf())],
            bounds: vec![Bounds { mask: vec![root.to_path_buf()], ..ceiling() }],
            ..Files::default()
        },
        "scratch" | "certificates" => {
            Files { view: View::Minimal, ro: system(), work: Some(WorkDir::Scratch), ..Files::default() }
        }
        "work" => Files {
            view: View::Minimal,
            ro: system(),
            work: Some(WorkDir::Host(data.clone())),
            ..Files::default()
        },
        other => panic!("no case {other}"),
    };
    let script = match case {
        "narrow" => {
            "pwd; cat data/in/f; (echo x >data/f) 2>/dev/null || echo read-only; (echo x >f) 2>/dev/null || echo read-only
             echo x >data/out/f && echo written"
        }
        "part" => {
            "pwd; ls; ls /data; cat /data/in/f; (echo x >/data/in/f) 2>/dev/null || echo read-only
             echo x >/data/out/f && echo written"
        }
        "ceiling-mask" => "cat data/in/f data/in/deep/f /f other/f 2>/dev/null; ls data; grep -rs secret ..; echo end",
        "reopen" => "cat data/in/f 2>/dev/null; cat data/in/deep/f; ls data/in; echo end",
        "scratch" => "pwd; echo ~; ls -A; echo x >f && mkdir d && ls; ls -d /home /etc/passwd /etc/ssl $SSL_CERT_FILE; cd / && (echo x >g) 2>/dev/null || echo read-only",
        "certificates" => "ls -d /etc/ssl/certs /home /root; cat \"$SSL_CERT_FILE\"; true",
        "start-masked" | "start-in-mask" => "pwd; ls -A; echo end",
        _ => "pwd; ls; echo x >out/g && echo written; (echo x >.envrc) 2>/dev/null || echo protected",
    };
    (files, script)
}

/// Returns the binds that a shell needs in an empty view.
fn system() -> Vec<Bind> {
    let trees = ["/usr", "/bin", "/lib", "/lib64"].map(PathBuf::from);
    trees.into_iter().filter(|tree| tree.exists()).map(bind).collect()
}

/// Runs the stage of a case in this process, and ends as it did.
#[expect(clippy::print_stdout, reason = "marks where the output of the stage begins")]
fn run_stage(case: &str, root: &Path) -> ! {
    let (files, script) = request(case, root);
    let mut policy = PolicyBuilder::new();
    if case == "certificates" {
        let origin = Origin::Flag { flag: "--allow".into() };
        policy.add("api.example.com", Action::Allow, origin, Note::default()).unwrap();
    }
    let request = Request {
        command: vec!["/bin/sh".into(), "-c".into(), script.into()],
        cwd: root.join("project"),
        policy: policy.build(),
        files: Files { cache: Cache::None, ..files },
        host_env: [
            ("PATH", Path::new("/usr/bin:/bin")),
            ("HOME", &root.join("home")),
            ("SSL_CERT_FILE", &root.join("elsewhere/f")),
        ]
        .map(|(name, value)| (name.into(), value.into()))
        .into(),
        bridge: Bridge::Handoff,
        tty: exeat_runner::Tty::Off,
        transparent: exeat_runner::Transparent::Off,
        audit: AuditTo::File(root.join("record.jsonl")),
        signing: exeat_runner::Signing::Off,
        limits: Limits { timeout: "30s".parse().ok(), ..Limits::default() },
        ..Request::default()
    };
    println!("stage:");
    let outcome = plan(request).and_then(|plan| {
        for note in plan.notes() {
            eprintln!("note: {note}");
        }
        run(plan, Oversight::default())
    });
    let code = match outcome.map(|outcome| outcome.ended) {
        Ok(Ended::Exit(code)) => i32::from(code),
        Ok(other) => panic!("{other:?}"),
        Err(error) => {
            let mut cause: Option<&dyn std::error::Error> = Some(&error);
            while let Some(error) = cause {
                eprintln!("{error}");
                cause = error.source();
            }
            i32::from(error.code())
        }
    };
    std::process::exit(code);
}

/// Runs a case as root and as an ordinary user, or as the user who runs the tests. Passes the stage's output and the
/// notes to `check`.
fn each<C: Fn(&Path, &[&str], &str)>(case: &str, check: C) {
    if let (Ok(asked), Some(root)) = (env::var(CASE), env::var_os(ROOT)) {
        if asked == case {
            run_stage(case, Path::new(&root));
        }
        // A test may have several cases.
        return;
    }
    // The closure has the name of its test: `bounds::TEST::{{closure}}`.
    let test = type_name::<C>().split("::").nth(1).unwrap();
    let me = fs::metadata("/proc/self").unwrap();
    let users: &[Option<u32>] = if me.uid() == 0 { &[None, Some(ORDINARY)] } else { &[None] };
    for user in users {
        let place = Tree::new(case, *user);
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
        command.env(CASE, case).env(ROOT, &place.0).current_dir("/");
        if let Some(user) = user {
            command.uid(*user).gid(*user);
        }
        let output = command.output().unwrap();
        let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.code() == Some(125) && env::var_os("E2E_STRICT").is_none() {
            eprintln!("{case} is not shown here: no sandbox can be made: {told}");
            continue;
        }
        assert!(output.status.success(), "{case} of {user:?}: {output:?}");
        let lines: Vec<&str> = said.lines().skip_while(|line| !line.ends_with("stage:")).skip(1).collect();
        check(&place.0, &lines, &told);
    }
}

/// A directory on the disk.
struct Tree(PathBuf);

impl Tree {
    fn new(case: &str, user: Option<u32>) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let root = root.join(format!("bounds-{case}-{user:?}-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let root = root.canonicalize().unwrap();
        for dir in ["home", "project", "data/in/deep", "data/out", "elsewhere"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        for (name, text) in [
            ("data/in/f", "secret"),
            ("data/in/deep/f", "deep"),
            ("elsewhere/f", "secret"),
            ("data/.envrc", ""),
        ] {
            fs::write(root.join(name), text).unwrap();
        }
        symlink("../data", root.join("project/data")).unwrap();
        symlink("../elsewhere", root.join("project/other")).unwrap();
        symlink("elsewhere", root.join("link")).unwrap();
        if let Some(user) = user {
            give(&root, user);
        }
        Self(root)
    }
}

fn give(path: &Path, user: u32) {
    lchown(path, Some(user), Some(user)).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path(), user);
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn k13_a_ceiling_narrows_the_writable_trees() {
    each("narrow", |root, lines, told| {
        let project = root.join("project");
        assert_eq!(lines, [project.to_str().unwrap(), "secretread-only", "read-only", "written"], "{told}");
        assert_eq!(fs::read(root.join("data/out/f")).unwrap(), b"x\n");
        assert!(!root.join("data/f").exists() && !project.join("f").exists());
        assert_eq!(told.matches("the ceiling `site.toml`").count(), 2, "{told}");
    });
}

#[test]
fn k13_narrows_a_bind_and_the_working_directory_to_the_list() {
    each("part", |root, lines, told| {
        let project = root.join("project");
        assert_eq!(lines, [project.to_str().unwrap(), "in", "out", "secretread-only", "written"], "{told}");
        assert_eq!(fs::read(root.join("data/in/f")).unwrap(), b"secret");
        assert!(told.contains("the working directory") && told.contains("cannot be read"), "{told}");
    });
}

/// K1, B13: masks a directory that three binds show again, and one that the ceiling names by a link.
#[test]
fn k1_a_mask_of_a_ceiling_is_not_opened() {
    each("ceiling-mask", |_, lines, told| {
        assert_eq!(lines, ["in", "out", "end"], "{told}");
    });
}

/// A ceiling may hide the working directory or a parent of it; the stage then starts in an empty one at the same path.
#[test]
fn k13_a_stage_starts_where_a_ceiling_hides_the_working_directory() {
    for case in ["start-masked", "start-in-mask"] {
        each(case, |root, lines, told| {
            assert_eq!(lines, [root.join("project").to_str().unwrap(), "end"], "{told}");
        });
    }
}

/// K2: a path inside a mask that is named can be read, and nothing else in the mask.
#[test]
fn k2_a_deeper_bind_opens_part_of_a_mask() {
    each("reopen", |_, lines, told| {
        assert_eq!(lines, ["deepdeep", "end"], "{told}");
    });
}

/// N9, N16, N17: the stage has an empty private directory, which is also HOME; nothing else can be written.
#[test]
fn n9_a_scratch_directory_is_where_the_stage_starts() {
    each("scratch", |_, lines, told| {
        assert_eq!(lines, ["/work", "/work", "d", "f", "/etc/passwd", "read-only"], "{told}");
    });
}

/// N20: a stage in a scratch directory that may reach a host can verify certificates, by the system's and by those that
/// its variables name; a stage without hosts has none (see above).
#[test]
fn n20_certificates_come_with_the_hosts() {
    each("certificates", |root, lines, told| {
        let mut expect = Vec::new();
        if Path::new("/etc/ssl/certs").exists() {
            expect.push("/etc/ssl/certs");
        }
        // The file of the variable keeps its path, below directories that exeat makes.
        expect.extend(["/home", "/root"].into_iter().filter(|above| root.starts_with(above)));
        // A checkout below /work would be hidden by the stage's own /work.
        if !root.starts_with(exeat_runner::WORK) {
            expect.push("secret");
        }
        assert_eq!(lines, expect, "{told}");
    });
}

/// N9: a work directory on the host, with its protected paths.
#[test]
fn n9_a_work_directory_of_the_host_s_is_writable_but_for_protected_paths() {
    each("work", |root, lines, told| {
        assert_eq!(lines, ["/work", "in", "out", "written", "protected"], "{told}");
        assert_eq!(fs::read(root.join("data/out/g")).unwrap(), b"x\n");
    });
}
