//! B14: paths in files of a repository that a stage writes, which git on the host reads and writes without a check.

use std::fs;
use std::path::Path;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b14_an_index_that_names_what_is_not_in_the_tree", index);
    list.users("escape::b14_an_index_hides_no_entries", hidden_entries);
    list.users("escape::b14_links_and_an_index_in_a_new_submodule", submodule);
    list.users("escape::b14_finds_new_submodules_of_any_name", submodule_names);
    list.once("escape::b14_an_index_of_the_caller_stays", keep_callers_index);
}

const GIT: &str = "git -c user.name=a -c user.email=a@example.test -c protocol.file.allow=always";

/// Runs a script on the host as the trial's user.
fn host(cx: &Cx, script: &str) {
    cx.outside(["sh", "-ec", script]).run().exits(0);
}

/// Git writes an entry for a name of the same length, which is then replaced.
fn put(dir: &str, before: &str, after: &str) -> String {
    format!(
        "mkdir -p $(dirname {before}); printf '#!/bin/sh\\ntouch ../ran\\n' > {before}; chmod +x {before}; {GIT} add -f {before}; rm {before}
         LC_ALL=C sed -i 's|{before}|{after}|g' {dir}/index"
    )
}

fn index(cx: &Cx) {
    let secret = cx.dir().with_file_name("secret");
    let ran = cx.dir().with_file_name("ran");
    for (version, format) in [(2, "sha1"), (4, "sha1"), (4, "sha256")] {
        let make = format!(
            "rm -rf .git; {GIT} init -q --object-format={format}; {GIT} config index.version {version}; echo 1 > f; {GIT} add f; {GIT} commit -qm one"
        );
        for (words, is_reached) in [(&["--allow-write=.git"][..], true), (&[], false)] {
            let run = |attack: &str| {
                host(cx, &make);
                let _ = fs::remove_file(&ran);
                fs::write(&secret, "secret\n").expect("a file");
                cx.bench().give(&secret, cx.is_root());
                let script = format!("set -e; {attack}");
                let done = cx.exeat(["run"].iter().chain(words).chain(&["--", "sh", "-c", &script])).run();
                done.exits(0);
                if !is_reached {
                    done.says("work/.git/index` was moved");
                }
                done
            };
            // It writes a hook, and runs it.
            let done = run(&put(".git", ".gix/hooks/post-checkout", ".git/hooks/post-checkout"));
            cx.outside(["sh", "-c", "git checkout -- .; git checkout -q -b other"]).run();
            assert_eq!(ran.exists(), is_reached, "{version}, {format}: {done:?}");
            // It reads what is outside of the tree, and a later stage has it.
            let done = run(&put(".git", "qq/secret", "../secret"));
            cx.outside(["sh", "-c", "git add -u"]).run();
            let look = "git cat-file --batch-check --batch-all-objects | cut -d' ' -f1 | while read name; do git cat-file -p $name; done";
            let read = cx.outside(["sh", "-c", look]).run();
            assert_eq!(read.stdout().contains("secret\n"), is_reached, "{version}, {format}: {done:?}");
        }
    }
    // The index of a split index, and that of a linked worktree.
    host(
        cx,
        &format!(
            "rm -rf .git; {GIT} init -q; echo 1 > f; {GIT} add f; {GIT} commit -qm one; {GIT} worktree add -q wt"
        ),
    );
    let split = format!(
        "{}; git update-index --split-index; ls .git/sharedindex.*",
        put(".git", "qq/secret", "../secret")
    );
    let done = cx.sh(&[], &split).run();
    done.exits(0).says("work/.git/sharedindex.");
    host(cx, "rm -f .git/index .git/sharedindex.*; git reset -q");
    let linked = format!("cd wt; {}", put("../.git/worktrees/wt", "qq/secret", "../secret"));
    cx.sh(&[], &linked).run().exits(0).says("work/.git/worktrees/wt/index` was moved");
    // A worktree elsewhere would be written to and removed by `git worktree`; the caller's own one may be anywhere.
    host(
        cx,
        &format!(
            "rm -rf .git wt; {GIT} init -q; {GIT} commit -q --allow-empty -m one; {GIT} worktree add -q ../far"
        ),
    );
    let lead = format!(
        "set -e; {GIT} worktree add -q near; {GIT} worktree add -q led; mkdir d; echo {0}/.git > .git/worktrees/led/gitdir; git commit -q --allow-empty -m two",
        cx.home().display()
    );
    let done = cx.sh(&[], &lead).run();
    done.says("work/.git/worktrees/led/gitdir` was moved");
    assert!(!done.stderr().contains("near/gitdir") && !done.stderr().contains("far/gitdir"), "{done:?}");
    // `l/..` is where the link leads, and a place in the tree can become a link in a later run.
    let out = cx.home().join("out");
    fs::create_dir_all(out.join("x")).expect("a directory");
    cx.bench().give(&out, cx.is_root());
    cx.bench().give(&out.join("x"), cx.is_root());
    let lead = format!(
        "set -e; for name in a b; do {GIT} worktree add -q $name; done; ln -s {out}/x l; mkdir x; echo {tree}/l/../x/.git > .git/worktrees/a/gitdir; mkdir -p e; echo {tree}/e/.git > .git/worktrees/b/gitdir",
        out = out.display(),
        tree = cx.dir().display()
    );
    let done = cx.sh(&[], &lead).run();
    done.says("work/.git/worktrees/a/gitdir` was moved");
    assert!(!done.stderr().contains("b/gitdir"), "{done:?}");
    let done = cx.sh(&[], &format!("rmdir e; ln -s {}/x e", out.display())).run();
    done.says("work/.git/worktrees/b/gitdir` was moved");
    host(cx, "rm -f e; git worktree prune");
    // One that the caller makes elsewhere during the run is the caller's.
    let mut live = cx.sh(&[], "echo on; until [ -e go ]; do sleep 0.05; done").start();
    live.until_prints("on");
    host(
        cx,
        &format!(
            "{GIT} worktree add -q --detach ../meanwhile; cd ../meanwhile; echo 1 > g; git add g; touch ../work/go"
        ),
    );
    let done = live.wait();
    done.exits(0);
    assert!(!done.stderr().contains("gitdir"), "{done:?}");
    host(cx, "git gc -q; cd ../meanwhile; git status --short | grep -q 'A  g'");
    // The stage closes an index, or puts something else there.
    for kind in ["chmod 0 .git/index", "rm .git/index; mkfifo .git/index"] {
        host(cx, &format!("rm -rf .git; {GIT} init -q; echo 1 > f; {GIT} add f"));
        if !(cx.is_root() && kind.starts_with("chmod")) {
            cx.sh(&[], kind).run().exits(0).says("work/.git/index` was moved");
        }
    }
    // The list of rerere is moved whatever it names, because links of the working tree lead anywhere.
    host(cx, "rm -rf .git; git init -q");
    let done = cx.sh(&[], "mkdir .git/rr-cache; printf '%s\\tx\\0' 0123456789012345678901234567890123456789 > .git/MERGE_RR").run();
    done.exits(0).says("work/.git/MERGE_RR` was moved");
}

/// Writes an index whose table of blocks leads git to other entries than those that follow one another. One is the file `../out`.
const HIDDEN: &str = r#"
import hashlib, struct, subprocess
blob = subprocess.run(['git', 'hash-object', '-w', '--stdin'], input=b'x', capture_output=True, check=True).stdout
blob = bytes.fromhex(blob.decode().strip())
def entry(path):
    found = struct.pack('>10I', 0, 0, 0, 0, 0, 0, 0o100644, 0, 0, 0) + blob + struct.pack('>H', len(path)) + path
    return found + bytes(8 - len(found) % 8)
def extension(name, data): return name + struct.pack('>I', len(data)) + data
def head(count): return b'DIRC' + struct.pack('>2I', 2, count)
def signed(data): return data + hashlib.sha1(data).digest()
good = [entry(b'f%06d' % number) for number in range(20)]
begin = len(head(0)) + sum(map(len, good))
bad = [entry(b'../out')] + good[1:]
places = struct.pack('>5I', 1, begin + 8, 10, begin + 8 + sum(map(len, bad[:10])), 10)
more = [extension(b'ZZZZ', b''.join(bad)), extension(b'IEOT', places)]
mark = struct.pack('>I', begin) + hashlib.sha1(b''.join(it[:8] for it in more)).digest()
data = head(20) + b''.join(good + more) + extension(b'EOIE', mark)
open('.git/index', 'wb').write(signed(data))
"#;

fn hidden_entries(cx: &Cx) {
    let out = cx.dir().with_file_name("out");
    for (words, is_written) in [(&["--allow-write=.git"][..], true), (&[], false)] {
        host(
            cx,
            &format!(
                "rm -rf .git; {GIT} init -q; git config index.threads 4; {GIT} commit -q --allow-empty -m one"
            ),
        );
        let _ = fs::remove_file(&out);
        let done = cx.exeat(["run"].iter().chain(words).chain(&["--", "python3", "-c", HIDDEN])).run();
        done.exits(0);
        if !is_written {
            done.says("work/.git/index` was moved");
        }
        cx.outside(["git", "checkout", "--", "."]).run();
        assert_eq!(out.exists(), is_written, "{done:?}");
    }
}

fn submodule(cx: &Cx) {
    let victim = cx.dir().with_file_name("victim");
    let make = format!(
        "for name in up src; do rm -rf $name; {GIT} init -q $name; {GIT} -C $name commit -q --allow-empty -m one; done
         {GIT} -C src submodule --quiet add ../up sub; {GIT} -C src commit -qm sub; rm -rf w bare; {GIT} clone -q src w; {GIT} clone -q --bare up bare
         {GIT} -C up commit -q --allow-empty -m two; {GIT} -C bare config core.bare false; rm -rf bare/hooks bare/branches; tar cf w/copy.tar bare"
    );
    let attack = format!(
        "set -e; mkdir -p .git/modules; tar xf copy.tar; mv bare .git/modules/sub; cd .git/modules/sub; ln -s {0} FETCH_HEAD; mkdir logs; ln -s {0} logs/HEAD
         ln -s {1} ../other",
        victim.display(),
        cx.dir().display()
    );
    for (words, is_reached) in [(&["--allow-write=.git"][..], true), (&[], false)] {
        host(cx, &make);
        fs::write(&victim, "mine\n").expect("a file");
        cx.bench().give(&victim, cx.is_root());
        let tail = ["--", "sh", "-c", &attack];
        let done = cx.exeat(["run"].iter().chain(words).chain(&tail)).cwd(&cx.dir().join("w")).run();
        done.exits(0);
        if !is_reached {
            for name in ["sub/FETCH_HEAD", "sub/logs/HEAD", "other"] {
                done.says(&format!("w/.git/modules/{name}` was moved"));
            }
        }
        let update = format!("{GIT} submodule update --init --remote");
        cx.outside(["sh", "-c", &update]).cwd(&cx.dir().join("w")).run();
        let is_changed = fs::read(&victim).expect("a file") != b"mine\n";
        assert_eq!(is_changed, is_reached, "{done:?}");
    }
}

/// A clone has no directories of its submodules yet, and the stage makes one with a hook. `lib/HEAD` makes `lib` look like the
/// directory of a submodule, so that nothing below it is one; a name need not be UTF-8.
fn submodule_names(cx: &Cx) {
    let ran = cx.dir().with_file_name("ran");
    for (name, before) in [
        ("lib/x", ""),
        ("lib/x", "cp $m/HEAD .git/modules/lib"),
        (
            "lib/x",
            "cp -r $m/HEAD $m/refs .git/modules/lib; mkdir .git/modules/lib/objects; printf 'ref:\\014refs/heads/main' > .git/modules/lib/HEAD",
        ),
        ("$(printf 'caf\\351')", ""),
    ] {
        for (words, is_run) in [(&["--allow-write=.git"][..], true), (&[], false)] {
            host(
                cx,
                &format!(
                    "for name in up src; do rm -rf $name; {GIT} init -q $name; {GIT} -C $name commit -q --allow-empty -m one; done
                     {GIT} -C src submodule --quiet add --name \"{name}\" ../up sub; {GIT} -C src commit -qm sub; rm -rf w; {GIT} clone -q src w"
                ),
            );
            let _ = fs::remove_file(&ran);
            let attack = format!(
                "set -e; m=\".git/modules/{name}\"; git init -q --bare \"$m\"; {before}
                 printf '[core]\\nrepositoryformatversion = 0\\nbare = false\\nworktree = ../../../../sub\\n[remote \"origin\"]\\nurl = {up}\\nfetch = +refs/heads/*:refs/remotes/origin/*\\n' > \"$m/config\"
                 mkdir -p \"$m/hooks\"; for hook in post-checkout reference-transaction; do printf '#!/bin/sh\\ntouch {ran}\\n' > \"$m/hooks/$hook\"; chmod +x \"$m/hooks/$hook\"; done",
                up = cx.dir().join("up").display(),
                ran = ran.display(),
            );
            let tail = ["--", "sh", "-c", &attack];
            let done = cx.exeat(["run"].iter().chain(words).chain(&tail)).cwd(&cx.dir().join("w")).run();
            done.exits(0);
            let update = format!("{GIT} submodule update --init");
            let update = cx.outside(["sh", "-c", &update]).cwd(&cx.dir().join("w")).run();
            assert_eq!(ran.exists(), is_run, "{name}, {before}: {done:?} {update:?}");
        }
    }
}

/// Work of a stage with git, and what was there before, is not taken for an attack.
fn keep_callers_index(cx: &Cx) {
    host(
        cx,
        &format!(
            "echo 1 > f; {GIT} init -q lib; {GIT} -C lib commit -q --allow-empty -m one; {GIT} init -q; {GIT} config extensions.worktreeConfig true
             {GIT} submodule --quiet add ./lib sub; {GIT} add .; {GIT} commit -qm one; {GIT} worktree add -q wt; ln -s sub .git/modules/link
             echo index > index; echo x > MERGE_RR"
        ),
    );
    let names = ["index", "MERGE_RR", ".git/index", ".git/worktrees/wt/index", ".git/modules/sub/index"];
    let work = format!(
        "set -e; echo 2 >> f; mkdir -p a/.gitx/.. b; echo 1 > a/.gitignore; {GIT} add .; {GIT} commit -qm two; {GIT} update-index --split-index
         cd sub; echo 1 > g; {GIT} add g; {GIT} commit -qm two; cd ../wt; echo 3 > h; {GIT} add h; {GIT} commit -qm three
         cd ..; echo changed > index; echo y > MERGE_RR"
    );
    for work in ["true", &work, "git update-index --index-version 4; git status; git gc -q"] {
        let done = cx.sh(&[], work).run();
        done.exits(0);
        assert!(!done.stderr().contains("moved"), "{done:?}");
        for name in names {
            assert!(cx.dir().join(name).exists(), "{name} {done:?}");
        }
    }
    assert!(Path::is_symlink(&cx.dir().join(".git/modules/link")));
    host(cx, "git fsck; git status");
}
