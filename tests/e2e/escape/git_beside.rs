//! Runs that go on at the same time in one tree: what one stage hands to another, and repositories that several make.

use std::fs;
use std::path::Path;

use e2e::case::{Cases, Cx};

pub(crate) fn cases(list: &mut Cases) {
    list.users("escape::l10_no_stage_writes_through_a_file_that_another_one_moved", moved_open_file);
    list.users("escape::l10_no_stage_writes_through_what_another_one_passed_on", passed_on);
    list.users("escape::l10_no_stage_changes_a_mode_through_what_another_one_passed_on", passed_on_and_busy);
    list.users("escape::l10_git_enters_nothing_that_another_stage_put_into_the_quarantine", into_quarantine);
    list.users("escape::l10_runs_clone_repositories_at_the_same_time", clones);
}

const ENV: &str = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.test GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.test; ";

/// Makes a repository with a directory `lib`.
fn make(cx: &Cx, work: &Path) {
    let script = "git init -q -b main; mkdir lib; echo 1 > lib/x; git add .; git commit -qm 1";
    cx.outside(["mkdir", work.to_str().expect("ASCII")]).run().exits(0);
    cx.outside(["bash", "-ec", &format!("{ENV}{script}")]).cwd(work).run().exits(0);
}

/// Runs `git status` at the top. Returns whether the program of a stage ran.
fn ran(cx: &Cx, work: &Path) -> bool {
    let mark = cx.dir().with_file_name("mark");
    let _ = fs::remove_file(&mark);
    cx.outside(["git", "status"]).cwd(work).run();
    cx.outside(["git", "checkout", "--", "."]).cwd(work).run();
    mark.exists()
}

/// The line of a configuration that has git run a program.
fn evil(cx: &Cx) -> String {
    let mark = cx.dir().with_file_name("mark");
    format!(r"printf '[core]\n\tfsmonitor = touch {};false\n'", mark.display())
}

/// A stage opens a file, and another stage renames that file to a name that git obeys. At the end of the second run only the kernel knows
/// the writer.
fn moved_open_file(cx: &Cx) {
    let stage = format!(
        "{ENV}git init -q new; git -C new commit -q --allow-empty -m 1; git add new 2>/dev/null; cat new/.git/config > lib/x; mv lib/x new/.git/config"
    );
    let write = format!("{} >&3", evil(cx));
    for is_inside in [false, true] {
        let work = cx.dir().join(if is_inside { "inside" } else { "outside" });
        make(cx, &work);
        let second = format!("exec 3>>x; echo ready; read -r go; {write}");
        let lib = work.join("lib");
        let second = ["sh", "-c", second.as_str()];
        let mut second = if is_inside {
            cx.exeat([&["run", "--"][..], &second].concat()).cwd(&lib).stdin_open().start()
        } else {
            cx.outside(second).cwd(&lib).stdin_open().start()
        };
        second.until_prints("ready");
        let first = ["sh", "-c", stage.as_str()];
        if is_inside {
            cx.exeat([&["run", "--"][..], &first].concat())
                .cwd(&work)
                .run()
                .says("new/.git/config` was moved");
        } else {
            cx.outside(first).cwd(&work).run().exits(0);
        }
        second.wait().exits(0);
        assert_eq!(ran(cx, &work), !is_inside);
    }
}

/// A program that passes an open file, or a directory and files that are open for writing, through a socket in the tree, and one that takes it and runs a command with it as
/// descriptor 9 when the first run has ended.
const PASS: &str = r#"import os, socket, sys
how, place, name = sys.argv[1:4]
if how == "send":
    s = socket.socket(socket.AF_UNIX); s.bind(place); s.listen(); print("listens", flush=True)
    c = s.accept()[0]
    flags = os.O_PATH | os.O_DIRECTORY if os.path.isdir(name) else os.O_RDWR
    socket.send_fds(c, [b"x"], [os.open(name, flags)] + [os.open(it, os.O_RDWR) for it in sys.argv[4:]]); c.recv(1)
else:
    c = socket.socket(socket.AF_UNIX); c.connect(place)
    fd = socket.recv_fds(c, 1, 2)[1][0]
    os.dup2(fd, 9); c.close(); os.remove(place)
    print("ready", flush=True); sys.stdin.readline()
    os.execvp("sh", ["sh", "-c", name])
"#;

/// A descriptor outlives the run whose stage opened it.
fn passed_on(cx: &Cx) {
    let pass = |how: &str, place: &str, name: &str| {
        ["python3", "-c", PASS, how, place, name].map(str::to_owned).to_vec()
    };
    let write = format!("{} >&9", evil(cx));
    let stage =
        format!("{ENV}git init -q new; git -C new commit -q --allow-empty -m 1; git add new 2>/dev/null");
    let open = "chmod 666 /proc/self/fd/9/.git/config";
    // An index that has a path that git adds to none.
    let index = format!(
        r##"python3 -c '
import hashlib, struct, subprocess, os
blob = subprocess.run(["git", "hash-object", "-w", "--stdin"], input=b"#!/bin/sh\ntouch {}\n", capture_output=True).stdout.decode().strip()
path = b".git/hooks/post-checkout"
entry = struct.pack(">10I", *[0] * 6, 0o100755, 0, 0, 0) + bytes.fromhex(blob) + struct.pack(">H", len(path)) + path
entry += b"\0" * (8 - len(entry) % 8)
data = b"DIRC" + struct.pack(">2I", 2, 1) + entry
data += hashlib.sha1(data).digest()
os.lseek(9, 0, 0); os.write(9, data); os.ftruncate(9, len(data))'"##,
        cx.dir().with_file_name("mark").display()
    );
    for (before, name, command) in
        [(stage.as_str(), "new/.git/config", write.as_str()), ("", ".", open), ("", ".git/index", &index)]
    {
        for is_inside in [false, true] {
            let work = cx.dir().join(format!("{}-{is_inside}", name.len()));
            let socket = socket_name(is_inside);
            make(cx, &work);
            cx.outside(["chmod", "600", ".git/config"]).cwd(&work).run().exits(0);
            if !is_inside {
                cx.outside(["sh", "-c", before]).cwd(&work).run().exits(0);
            }
            let start = |words: Vec<String>, dir: &Path| {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let run = if is_inside {
                    cx.exeat([&["run", "--"][..], &words].concat())
                } else {
                    cx.outside(words)
                };
                run.cwd(dir).stdin_open().start()
            };
            if is_inside && !before.is_empty() {
                // The first run makes the repository itself: nobody covers it.
                let words = format!("{before}; exec python3 -c \"$0\" send lib/{socket} {name}");
                let mut first = start(["sh", "-c", &words, PASS].map(str::to_owned).to_vec(), &work);
                first.until_prints("listens");
                let mut second = start(pass("take", socket, command), &work.join("lib"));
                second.until_prints("ready");
                first.wait().exits(0).says("new/.git/config` was moved");
                second.wait();
            } else {
                let mut first = start(pass("send", &format!("lib/{socket}"), name), &work);
                first.until_prints("listens");
                let mut second = start(pass("take", socket, command), &work.join("lib"));
                second.until_prints("ready");
                first.wait().exits(0);
                second.wait();
            }
            let config = fs::metadata(work.join(".git/config")).expect("a file");
            let is_open = std::os::unix::fs::MetadataExt::mode(&config) & 0o66 != 0;
            assert_eq!(ran(cx, &work) || is_open, !is_inside, "{name}");
        }
    }
}

/// Returns the name of the socket. A run hides a socket on which a program of the host may listen, and another trial's program listens
/// at the same relative path.
fn socket_name(is_inside: bool) -> &'static str {
    if is_inside { "s" } else { "h" }
}

/// A file that is open for writing keeps the mount of a run from becoming read-only.
fn passed_on_and_busy(cx: &Cx) {
    let mark = cx.dir().with_file_name("mark");
    let hook = format!(
        r"printf '#!/bin/sh\ntouch {}\n' > .git/hooks/post-checkout; chmod 644 .git/hooks/post-checkout",
        mark.display()
    );
    for is_inside in [false, true] {
        let work = cx.dir().join(if is_inside { "inside" } else { "outside" });
        make(cx, &work);
        cx.outside(["sh", "-c", &hook]).cwd(&work).run().exits(0);
        let start = |words: [&str; 5]| {
            let words = [&["python3", "-c", PASS][..], &words].concat();
            let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
            let run =
                if is_inside { cx.exeat([&["run", "--"][..], &words].concat()) } else { cx.outside(words) };
            run.cwd(&work).stdin_open().start()
        };
        let socket = format!("lib/{}", socket_name(is_inside));
        let mut first = start(["send", &socket, ".", "lib/x", ""]);
        first.until_prints("listens");
        let mut second =
            start(["take", &socket, "chmod 755 /proc/self/fd/9/.git/hooks/post-checkout", "", ""]);
        second.until_prints("ready");
        let first = first.wait();
        let second = second.wait();
        if is_inside {
            first.says("may have a file there open for writing");
            // A stage of root's is another user for the hook.
            if !cx.is_root() {
                second.says("post-checkout` is left where it is: somebody let more users");
            }
        }
        assert_eq!(ran(cx, &work), !is_inside);
    }
}

/// The stage of another run sees the quarantine that the end of the first one makes.
fn into_quarantine(cx: &Cx) {
    let evil = evil(cx);
    let put = format!(
        "{ENV}mkdir -p .exeat-quarantine; git init -q .exeat-quarantine/e; git -C .exeat-quarantine/e commit -q --allow-empty -m 1
        {evil} >> .exeat-quarantine/e/.git/config
        git update-index --add --cacheinfo 160000,$(git -C .exeat-quarantine/e -c core.fsmonitor=false rev-parse HEAD),.exeat-quarantine/e
        git commit -qm sub; git rm -q --cached .exeat-quarantine/e"
    );
    for is_inside in [false, true] {
        let work = cx.dir().join(if is_inside { "inside" } else { "outside" });
        make(cx, &work);
        if is_inside {
            let second = format!("echo ready; read -r go; {put}");
            let mut second = cx.exeat(["run", "--", "sh", "-c", &second]).cwd(&work).stdin_open().start();
            second.until_prints("ready");
            cx.exeat(["run", "--", "sh", "-c", "echo x > .envrc"])
                .cwd(&work)
                .run()
                .exits(0)
                .says("was moved");
            second.wait();
        } else {
            cx.outside(["sh", "-c", &put]).cwd(&work).run().exits(0);
        }
        // Also where the index is that of a commit.
        cx.outside(["git", "reset", "-q"]).cwd(&work).run();
        assert_eq!(ran(cx, &work), !is_inside);
    }
}

/// Each stage makes a repository of its own, next to those of the others.
fn clones(cx: &Cx) {
    let script = format!("{ENV}git init -q ../up; git -C ../up commit -q --allow-empty -m 1; mkdir s");
    cx.outside(["bash", "-ec", &script]).cwd(cx.dir()).run().exits(0);
    let up = cx.dir().with_file_name("up");
    let up = up.to_str().expect("ASCII");
    for round in 0..3 {
        let scripts: Vec<String> = (0..8)
            .map(|n| match n % 2 {
                0 => {
                    format!("git clone -q {up} s/c{round}-{n} && sleep 0.1; git -C s/c{round}-{n} status -s")
                }
                _ => format!("git init -q i{round}-{n} && sleep 0.05; cd i{round}-{n} && git status -s"),
            })
            .collect();
        let live: Vec<_> = scripts
            .iter()
            .map(|script| cx.exeat(["run", "--ro", up, "--", "sh", "-ec", script]).start())
            .collect();
        for run in live {
            let done = run.wait();
            assert!(!done.exits(0).stderr().contains("exeat:"), "{done:?}");
        }
        for n in 0..8 {
            let name = if n % 2 == 0 { format!("s/c{round}-{n}") } else { format!("i{round}-{n}") };
            assert!(cx.dir().join(&name).join(".git/config").exists(), "{name}");
        }
    }
}
