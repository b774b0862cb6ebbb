//! Files of a repository that name others, what git leaves in the middle of its work, and repositories that a later stage moves.

use std::fs;
use std::os::unix::fs::chown;
use std::time::Duration;

use e2e::bench::ORDINARY;
use e2e::case::{Cases, Cx};
use nix::sys::signal::Signal;

use super::git_again::CACHE;
use super::git_further::{attack, attack_in, two_stages};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b14_an_index_of_packs_names_its_own", packs);
    list.users("escape::b14_a_list_of_tables_names_its_own", tables);
    list.users("escape::b14_what_a_merge_and_a_submodule_leave_stays", keep_merge);
    list.users("escape::b14_a_worktree_is_where_git_reads_that_it_is", where_git_reads);
    list.users("escape::b14_a_submodule_is_in_the_tree_of_its_repository", own_tree);
    list.users("escape::l07_what_is_read_only_needs_no_end", read_only);
    list.users("escape::b14_no_other_system_has_a_repository_in_git_s", other_system);
    list.users("escape::b14_a_repository_that_another_stage_moves_is_judged", moved_by_other);
    list.users("escape::b14_what_a_later_stage_moves_is_judged_at_its_new_place", moved_later);
    list.once("escape::b14_an_index_with_a_second_name_is_moved", second_name);
    list.users("escape::b14_a_file_beside_a_repository_changes_nothing_in_it", keep_beside);
    list.users("escape::b14_a_state_of_histedit_is_no_program", histedit);
    list.users("escape::b14_no_list_of_rights_waits_for_a_submodule", waiting_rights);
    list.root("escape::b14_an_index_of_another_owner_stays", other_owner);
    list.on_a_host_of_root(|list| list.once("escape::b14_an_index_of_root_s_stays", root_s_index));
}

/// Rewrites an index of packs so that it names one more: `names INDEX NAME`.
const ADD_PACK: &str = r#"add_pack() { chmod u+w "$1"; python3 -c '
import sys, struct, hashlib
path, name = sys.argv[1], sys.argv[2].encode()
old = open(path, "rb").read()
rows = [(old[12 + 12 * i:16 + 12 * i], struct.unpack(">Q", old[16 + 12 * i:24 + 12 * i])[0]) for i in range(old[6] + 1)]
parts = {rows[i][0]: old[rows[i][1]:rows[i + 1][1]] for i in range(old[6])}
names = [name] + [it for it in parts[b"PNAM"].split(b"\0") if it]
parts[b"PNAM"] = b"".join(it + b"\0" for it in names)
parts[b"PNAM"] += bytes(-len(parts[b"PNAM"]) % 4)
places = struct.unpack(">%dI" % (len(parts[b"OOFF"]) // 4), parts[b"OOFF"])
parts[b"OOFF"] = struct.pack(">%dI" % len(places), *[it + 1 - i % 2 for i, it in enumerate(places)])
order = [it for it, _ in rows[:-1] if it in (b"PNAM", b"OIDF", b"OIDL", b"OOFF", b"LOFF")]
at, table, body = 12 + 12 * (len(order) + 1), b"", b""
for it in order:
    table, body, at = table + it + struct.pack(">Q", at), body + parts[it], at + len(parts[it])
new = old[:6] + bytes([len(order), old[7]]) + struct.pack(">I", len(names)) + table + bytes(4) + struct.pack(">Q", at) + body
open(path, "wb").write(new + hashlib.sha1(new).digest())' "$@"; }
"#;

/// Another repository, with its files in a list in the tree: a stage can have read their names at another time.
const OTHER: &str =
    "git init -q ../other; git -C ../other commit -q --allow-empty -m 1; git -C ../other repack -adq
    (cd ../other/.git/objects/pack; ls *.idx) > names";

/// `git maintenance` deletes the packs that the index of packs names, and from which it needs no object.
fn packs(cx: &Cx) {
    let stage = format!(
        "{ADD_PACK} git repack -q -d; echo b > b; git add b; git commit -qm 2; git repack -q -d; git multi-pack-index write
        add_pack .git/objects/pack/multi-pack-index ../../../../other/.git/objects/pack/$(cat names)"
    );
    let host =
        r#"git maintenance run --task=incremental-repack; git -C ../other log > /dev/null || touch "$MARK""#;
    attack(cx, OTHER, &stage, host);
    // git reads the packs of a submodule and of a repository further down by the same names.
    let stage = format!(
        "{ADD_PACK} mkdir -p d/e/f; git init -q d/e/f/g; cd d/e/f/g; for i in 1 2; do git commit -q --allow-empty -m $i; git repack -q -d; done
        git multi-pack-index write; add_pack .git/objects/pack/multi-pack-index ../../../../../../../../other/.git/objects/pack/$(cat ../../../../names)"
    );
    attack(cx, OTHER, &stage, &format!("cd d/e/f/g; {host}").replace("../other", "../../../../../other"));
    // One that git writes stays.
    let done = cx
        .sh(&[], "git init -q; git config user.name a; git config user.email a; git commit -q --allow-empty -m 1; git repack -qd; git multi-pack-index write")
        .run();
    assert!(!done.exits(0).stderr().contains("moved"), "{done:?}");
}

/// `git commit` makes one table of several, and deletes these.
fn tables(cx: &Cx) {
    let has_tables = cx.outside(["git", "init", "-q", "--ref-format=reftable", "asked"]).cwd(cx.dir()).run();
    if has_tables.code != Some(0) {
        cx.cannot("git has tables of references since 2.45");
    }
    let before = "git init -q --ref-format=reftable ../other; git -C ../other commit -q --allow-empty -m 1; git -C ../other branch precious
        git -C ../other pack-refs; ls ../other/.git/reftable | grep ref > names; mv .git/config ../config; rm -r .git; git init -q -b main --ref-format=reftable
        git commit -q --allow-empty -m 1; git worktree add -q w";
    let host = r#"git commit -q --allow-empty -m host; git pack-refs; git -C ../other rev-parse precious > /dev/null || touch "$MARK""#;
    for (list, up) in [(".git/reftable", "../../.."), ("n/.git/reftable", "../../../..")] {
        let stage = format!(
            "git init -q --ref-format=reftable n; for d in . n; do for i in 1 2 3; do git -C $d commit -q --allow-empty -m $i; done; git -C $d pack-refs; done
            T={list}/tables.list; {{ sed s,^,{up}/other/.git/reftable/, names; cat $T; }} > x; cat x > $T"
        );
        let dir = list.trim_end_matches(".git/reftable");
        let host = if dir.is_empty() {
            host.to_owned()
        } else {
            format!("cd {dir}; {}", host.replace("../other", "../../other"))
        };
        attack(cx, before, &stage, &host);
    }
}

/// The index of a conflict, wherever the working tree is, and a submodule whose working tree is in another tree of the run.
fn keep_merge(cx: &Cx) {
    let make = r#"rm -rf lib t w store own; mkdir store
        export GIT_CONFIG_GLOBAL=$PWD/config; printf '[user]\nname = a\nemail = a\n[protocol "file"]\nallow = always\n' > config
        git init -q -b main lib; echo 1 > lib/a; git -C lib add a; git -C lib commit -qm 1
        change() { git checkout -qb o; echo 2 > $1; git commit -qam 2; git checkout -q main; echo 3 > $1; git commit -qam 3; }
        git init -q -b main t; cd t; mkdir sub; echo 1 > sub/a; git add .; git submodule -q add ../lib s; git submodule -q add ../lib sub/m; git commit -qm 1; change sub/a
        cd s; change a; git sparse-checkout set --no-cone '/*'; cd ..; git worktree add -q ../w -b w main; git submodule -q deinit -f sub/m; rm -rf .git/modules/sub
        cd ..; git init -q -b main --separate-git-dir=store/own own; cd own; echo 1 > a; git add a; git commit -qm 1; change a"#;
    let merge = "git merge -q o; git ls-files -u | grep -q .";
    let update = "git -c protocol.file.allow=always submodule -q update --init";
    for (dir, script) in [
        ("t/sub", merge),
        ("w", merge),
        ("t/s", merge),
        ("t", "cd s; git merge -q o; git ls-files -u | grep -q ."),
        (".", "cd own; git merge -q o; git ls-files -u | grep -q ."),
        ("t/sub", &format!("{update} m; git -C m log -1")),
        ("w", &format!("{update}; git -C s log -1")),
    ] {
        cx.outside(["sh", "-ec", make]).cwd(cx.dir()).run().exits(0);
        let script = format!("export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.test; {script}");
        let done = cx.exeat(["run", "--", "sh", "-c", &script]).cwd(&cx.dir().join(dir)).run();
        assert!(!done.exits(0).stderr().contains("moved"), "{dir}: {done:?}");
    }
}

/// git does not remove a form feed at the end of a path. A relative path counts from where git was started (before git 2.48).
fn where_git_reads(cx: &Cx) {
    let before = "mkdir ../away";
    let host =
        r#"git worktree repair; [ -z "$(ls -A ../away)$(ls -A ../../away 2> /dev/null)" ] || touch "$MARK""#;
    let stage = r#"git worktree add -q wt; printf '%s/wt/.git\f\n' "$PWD" > .git/worktrees/wt/gitdir; ln -s "$(realpath ../away)" "$(printf 'wt/.git\f')""#;
    attack(cx, before, stage, host);
    // git cuts all blanks at the end, and what is after a zero.
    for text in ["%s/.git%4200s\\n", "%s\\000/.git\\n"] {
        let stage = format!(
            r#"git worktree add -q wt; printf '{text}' "$(realpath ../away)" > .git/worktrees/wt/gitdir"#
        );
        attack(cx, before, &stage, r#"git worktree repair; [ -z "$(ls -A ../away)" ] || touch "$MARK""#);
    }
    // What exeat cannot read, git can read later, or waits for.
    let repair = r#"chmod -R u+rwX .git; git worktree repair; [ -z "$(ls -A ../away)" ] || touch "$MARK""#;
    let lead = r#"git worktree add -q wt; cd .git/worktrees/wt; printf '%s/.git\n' "$(realpath ../../../../away)" > gitdir"#;
    for close in ["chmod 0 gitdir", "chmod 0 .", "mv gitdir to; ln -s to gitdir"] {
        attack(cx, before, &format!("{lead}; {close}"), repair);
    }
    let pipe = "git worktree add -q wt; rm .git/worktrees/wt/gitdir; mkfifo .git/worktrees/wt/gitdir";
    let host = r#"timeout 3 git worktree list || [ $? != 124 ] || touch "$MARK""#;
    attack(cx, before, pipe, host);
    // From three levels up: `p` is at that depth in the other directory.
    let before = "mkdir -p d/e/f away; mv .git a d/e/f";
    let stage = r#"cd d/e/f; git worktree add -q wt; mkdir away; mv wt/.git away; printf '../../../away/.git\n' > .git/worktrees/wt/gitdir"#;
    let host = r#"cd d/e/f; git worktree repair; [ ! -e ../../../away/.git ] || touch "$MARK""#;
    attack(cx, before, stage, host);
}

/// The working directory is a subdirectory: then `.git` is a tree of the run, too, and git would write among its own files.
fn own_tree(cx: &Cx) {
    let stage = r#"m=$(realpath $(git rev-parse --git-common-dir))/modules/m; git init -q --bare $m; git -C $m config core.bare false; git -C $m config core.worktree ../m
        printf '#!/bin/sh\ntouch %s\n' "$MARK" > x; chmod +x x; b=$(git --git-dir=$m hash-object -w x)
        git --git-dir=$m update-index --add --cacheinfo 100755,$b,hooks/post-checkout; echo 'gitdir: ../m' > $m/.git; echo 'gitdir: ../../.git/modules/m' > d/.git"#;
    attack_in(cx, "sub", "mkdir -p sub/d", stage, "cd d; git checkout -q .; git checkout -q .");
}

/// A tree that a later one covers is not mounted, and nothing in it is protected or judged.
fn read_only(cx: &Cx) {
    cx.outside(["git", "init", "-q", "r"]).cwd(cx.dir()).run().exits(0);
    cx.outside(["mkdir", "d"]).cwd(cx.dir()).run().exits(0);
    for flags in ["--ro .", "--ro r", "--ro . --rw d"] {
        let words = ["run"].into_iter().chain(flags.split(' '));
        let script = "touch r/x r/.git/x 2> /dev/null || echo refused";
        let done = cx.exeat(words.chain(["--", "sh", "-c", script])).run();
        assert!(
            !done.exits(0).prints("refused\n").stderr().contains("left where it is"),
            "{flags}: {done:?}"
        );
    }
}

/// Mercurial looks for a repository in each directory above.
fn other_system(cx: &Cx) {
    let hg = r#"/.hg; mkdir -p $d/store; echo store > $d/requires; printf '[hooks]\npre-status = touch %s\n' "$MARK" > $d/hgrc"#;
    for dir in [".git", ".git/modules", ".git/worktrees/w"] {
        let before = "git worktree add -q ../w; mkdir .git/modules";
        attack(cx, before, &format!("d={dir}{hg}"), &format!("cd {dir}; hg status"));
    }
}

/// A stage works in a directory of another run's tree, and makes a repository there. The stage of that run moves it out of this directory.
fn moved_by_other(cx: &Cx) {
    for to in ["sub/y", "y"] {
        let mark = cx.dir().with_file_name("mark");
        let _ = fs::remove_dir_all(cx.dir().join("sub"));
        cx.outside(["mkdir", "-p", "sub"]).run().exits(0);
        let stage = format!(
            "git init -q x; git -C x config core.fsmonitor 'touch {}; false'; echo made; until [ -e stop ]; do sleep .1; done",
            mark.display()
        );
        let mut first = cx.exeat(["run", "--", "sh", "-c", &stage]).cwd(&cx.dir().join("sub")).start();
        first.until_prints("made");
        // Times within two seconds before a start count as new.
        std::thread::sleep(Duration::from_secs(3));
        cx.sh(&[], &format!("mv sub/x {to}")).run().exits(0).says("was moved");
        cx.outside(["touch", "sub/stop"]).run().exits(0);
        first.wait().exits(0);
        cx.outside(["git", "-C", to, "status"]).cwd(cx.dir()).run();
        assert!(!mark.exists(), "{to}");
    }
}

/// Without CAP_LEASE the kernel answers nothing about another user's file.
fn other_owner(cx: &Cx) {
    let make = "git init -q; git config user.name a; git config user.email a; git commit -q --allow-empty -m 1; git worktree add -q wt; echo a > a; git add a";
    cx.outside(["sh", "-ec", make]).cwd(cx.dir()).run().exits(0);
    let owned = format!("{ORDINARY}:{ORDINARY}");
    cx.outside(["chown", "-R", &owned, "."]).cwd(cx.dir()).run().exits(0);
    let run = cx.sh(&[], "true").under(["setpriv", "--bounding-set", "-lease", "--inh-caps", "-lease", "--"]);
    let done = run.run();
    assert!(!done.exits(0).stderr().contains("move"), "{done:?}");
}

/// After `sudo git add`, a file in a repository is root's, in a directory of the caller's.
fn root_s_index(cx: &Cx) {
    let make = "git init -q; git config user.name a; git config user.email a; git commit -q --allow-empty -m 1; echo a > a; git add a";
    cx.outside(["sh", "-ec", make]).cwd(cx.dir()).run().exits(0);
    chown(cx.dir().join(".git/index"), Some(0), Some(0)).expect("chown");
    let done = cx.sh(&[], "true").run();
    assert!(!done.exits(0).stderr().contains("move"), "{done:?}");
}

/// The first run leaves something where no end looks for it, or that is right where it is. The second one renames a directory above.
fn moved_later(cx: &Cx) {
    let make =
        "mkdir -p a/b/c/d; git init -q; git init -q a/b/c/d/r; git -C a/b/c/d/r commit -q --allow-empty -m 1";
    // A `.git` file that leads to a repository in the cache.
    let hide = format!(
        r#"{CACHE}; mkdir -p a/b/c/d/r/.git/info/x; echo "gitdir: $c/e/.git" > a/b/c/d/r/.git/info/x/.git; sleep 4"#
    );
    two_stages(cx, make, [&hide, "mv a/b/c/d/r/.git/info/x a/b/c/d/y"], "cd a/b/c/d/y; git status");
    let hide = r#"d=a/b/c/d/r/.git/info/z/.hg; mkdir -p $d/store; printf '[hooks]\npre-status = touch %s\n' "$MARK" > $d/hgrc
        printf 'revlogv1\nstore\n' > $d/requires; sleep 4"#;
    two_stages(cx, make, [hide, "mv a/b/c/d/r/.git/info/z a/b/c/d/z"], "cd a/b/c/d/z; hg status");
    // The tree of a submodule: the same words lead out of the tree of the run from another place.
    let hide = r#"cd a/b/c/d; mkdir -p r/.git/modules r/s; git init -q t; echo evil > t/out; git -C t add out; git -C t commit -qm 1; mv t/.git r/.git/modules/s
        git config -f r/.git/modules/s/config core.worktree ../../../../..; echo "gitdir: d/r/.git/modules/s" > ../.git; echo "gitdir: ../.git/modules/s" > r/s/.git; sleep 4"#;
    let host = r#"cd r/s; git reset -q --hard; [ ! -e ../../../out ] || { rm ../../../out; touch "$MARK"; }"#;
    two_stages(cx, make, [hide, "mv a/b/c/d/r r"], host);
    // Among the objects, and in the store of a tool.
    for place in ["objects/ab", "lfs/objects/ab", "logs/refs/x"] {
        let hide = format!(
            r#"{CACHE}; mkdir -p a/b/c/d/r/.git/{place}; echo "gitdir: $c/e/.git" > a/b/c/d/r/.git/{place}/.git; sleep 4"#
        );
        two_stages(
            cx,
            make,
            [&hide, &format!("mv a/b/c/d/r/.git/{place} a/b/c/d/y")],
            "cd a/b/c/d/y; git status",
        );
    }
    // A link comes on the way to the tree of a submodule.
    let make = "mkdir -p a/b/c/d; git init -q lib; echo evil > lib/out; git -C lib add out; git -C lib commit -qm 1; mkdir -p ../elsewhere";
    let hide = "cd a/b/c/d; git init -q r; git -C r -c protocol.file.allow=always submodule add -q ../../../../../lib s; rm r/s/out; sleep 4";
    let hide = hide.replace("../../../../../lib", "$(realpath ../../../../lib)");
    let swap = "cd a/b/c/d/r; mv s s2; ln -s $(realpath ../../../../../../elsewhere) s";
    let host = r#"cd a/b/c/d/r/s2; git reset -q --hard; [ ! -e ../../../../../../../elsewhere/out ] || { rm ../../../../../../../elsewhere/out; touch "$MARK"; }"#;
    two_stages(cx, make, [&hide, swap], host);
}

/// A later stage writes by a second name to what was right when it was judged.
fn second_name(cx: &Cx) {
    let make = "mkdir x; git init -q k; cd k; echo a > a; git add a; git commit -qm 1; cd ..; mv k/.git k/g; rm k/g/HEAD; sleep 3";
    cx.outside(["git", "config", "--global", "user.name", "a"]).run().exits(0);
    cx.outside(["git", "config", "--global", "user.email", "a@example.test"]).run().exits(0);
    cx.sh(&[], make).run().exits(0);
    let name = "ln k/g/index x/index; sleep 4";
    cx.sh(&[], name).run().exits(0);
    let done = cx.sh(&[], "mv k/g k/.git; echo 'ref: refs/heads/master' > k/.git/HEAD").run();
    done.exits(0).says("k/.git/index` was moved");
}

/// A repository of the caller's further down, with a program of the caller's, beside which a stage makes files.
fn keep_beside(cx: &Cx) {
    let make = "mkdir -p a/b/c/d; git init -q a/b/c/d/r; git -C a/b/c/d/r config alias.x '!true'; echo x > a/b/c/d/r/.git/hooks/pre-commit; sleep 3";
    cx.outside(["sh", "-ec", make]).cwd(cx.dir()).run().exits(0);
    let mut first = cx.sh(&[], "touch a/1 a/b/1; mkdir a/b/c/d/new; echo ready; read line").start();
    first.until_prints("ready");
    let second = cx.sh(&[], "touch a/2").run();
    assert!(!second.exits(0).stderr().contains("moved"), "{second:?}");
    first.signal(Signal::SIGKILL);
    first.wait();
    cx.outside(["touch", "a/3"]).cwd(cx.dir()).run().exits(0);
    let next = cx.sh(&[], "true").run();
    assert!(!next.exits(0).stderr().contains("moved"), "{next:?}");
}

/// Mercurial reads a state in the old form as a program in Python.
fn histedit(cx: &Cx) {
    let stage = r#"python3 -c '
import os, pickle
class Program:
    def __reduce__(self): return (os.system, ("touch " + os.environ["MARK"],))
open(".hg/histedit-state", "wb").write(pickle.dumps(Program(), 0))'"#;
    attack(cx, "hg init", stage, "hg --config extensions.histedit= summary");
}

/// With a default list, git on the host would make files there that everybody may write, whatever the umask is.
fn waiting_rights(cx: &Cx) {
    cx.outside(["git", "init", "-q"]).cwd(cx.dir()).run().exits(0);
    let stage = r#"python3 -c '
import os, struct
entry = lambda tag, rights: struct.pack("<HHI", tag, rights, 0xffffffff)
for name in ".git/modules", ".git/worktrees":
    os.mkdir(name)
    os.setxattr(name, "system.posix_acl_default", struct.pack("<I", 2) + entry(1, 7) + entry(4, 7) + entry(32, 7))'"#;
    cx.sh(&[], stage).run().exits(0);
    let list = "import os; print([it for name in os.listdir('.git') for it in os.listxattr('.git/' + name)])";
    cx.outside(["python3", "-c", list]).cwd(cx.dir()).run().exits(0).prints("[]\n");
}
