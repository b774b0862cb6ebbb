//! What git on the host finds in bytes that were judged once: with another configuration, at another place, or through a link whose end came later.

use std::fs;
use std::os::unix::fs::{chown, lchown, symlink};

use e2e::bench::ORDINARY;
use e2e::case::{Cases, Cx};

use super::git_further::{attack, two_stages};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b14_an_index_is_right_in_both_lengths", lengths);
    list.users("escape::b14_no_link_leads_through_what_differs_for_each_process", of_process);
    list.users("escape::b14_a_repository_without_directories_is_judged_again", leaf);
    list.users("escape::b14_a_link_counts_when_its_end_comes", end_of_link);
    list.users("escape::b14_a_link_in_a_directory_that_is_moved_counts", moved_directory);
    list.once("escape::b14_no_link_leads_to_temporary_files_of_a_stage", temporary);
    list.users("escape::b14_a_worktree_of_a_worktree_names_no_program", inner_worktree);
    list.users("escape::b14_no_worktree_is_in_the_stage_s_own_cache", cached_worktree);
    list.users("escape::b14_a_directory_that_becomes_a_repository_names_no_program", role);
    list.root("escape::b14_an_index_leads_to_no_absolute_path", absolute);
    list.users("escape::b14_no_link_leads_to_a_cache_that_comes_later", later_cache);
    list.root("escape::b14_no_link_leads_to_another_user_s_cache", other_cache);
}

/// Nobody judges what stages have in their caches, and `git worktree list` would name it to whatever goes through the worktrees.
fn cached_worktree(cx: &Cx) {
    let stage = r#"i=/run/exeat/cache; p=$(awk '$5 == "/run/exeat/cache" { print $4 }' /proc/self/mountinfo)
        if [ ! -d $i ]; then i=$(realpath ..); p=$i; fi
        w=.git/worktrees/w; mkdir -p $w $i/w; echo ../.. > $w/commondir; git rev-parse HEAD > $w/HEAD; echo $p/w/.git > $w/gitdir
        echo "gitdir: $(realpath $w)" > $i/w/.git; cd $i/w; git init -q s; git -C s commit -q --allow-empty -m s
        git update-index --add --cacheinfo 160000,$(git -C s rev-parse HEAD),s
        printf '[core]\nfsmonitor = touch %s;false\n' "$MARK" >> s/.git/config"#;
    let host =
        "git worktree list --porcelain | sed -n 's/^worktree //p' | while read w; do git -C $w status; done";
    attack(cx, "", stage, host);
}

/// Makes an index that has a hook with names of 20 bytes, and with names of 32 bytes a harmless path: `poly INDEX BLOB`.
const POLY: &str = r#"poly() { python3 -c '
import sys, hashlib, struct
out, blob = sys.argv[1:3]
blob, hook = bytes.fromhex(blob), b".git/hooks/post-checkout"
def fill(entry): return entry + bytes(8 - len(entry) % 8)
one = fill(struct.pack(">10I", *[0] * 6, 0o100644, 0, 0, 0) + blob + struct.pack(">H", 2) + b".a")
two = fill(struct.pack(">H", 22) + b"h" * 22 + struct.pack(">4I", 0o100755, 0, 0, 0) + blob + struct.pack(">H", len(hook)) + hook)
more = bytes(176 - len(one + two) - 8) + struct.pack(">H", 1) + b"b" + bytes(5) + b"ZZZZ" + struct.pack(">I", 4) + bytes(16)
data = b"DIRC" + struct.pack(">II", 2, 2) + one + two + b"ZZZZ" + struct.pack(">I", len(more)) + more
open(out, "wb").write(data + hashlib.sha1(data).digest())' "$@"; }
"#;

/// A configuration says which length the names of objects have, and git does not heed it everywhere.
fn lengths(cx: &Cx) {
    let make = |at: &str, config: &str| {
        format!(
            r#"{POLY} top=$PWD; git init -q {at}; cd {at}; git commit -q --allow-empty -m 1; printf '#!/bin/sh\ntouch %s\n' "$MARK" > h; h=$(git hash-object -w h)
            {config}; poly .git/index $h; cd $top"#
        )
    };
    let version = "[core]\\nrepositoryformatversion = 1\\nbare = false\\n";
    let sha256 = "[extensions]\\nobjectformat = sha256\\n";
    // Without a version git heeds no extension.
    let stage = make("x/new", &format!("printf '[core]\\nbare = false\\n{sha256}' > .git/config"));
    attack(cx, "", &stage, "cd x/new; git checkout -- .");
    // The directory above is no repository.
    let stage = make("x/worktrees", &format!("printf '{version}{sha256}' > ../config"));
    attack(cx, "", &stage, "cd x/worktrees; git checkout -- .");
    // exeat moves the configuration.
    let stage = make("x/new", &format!("printf '{version}pager = less\\n{sha256}' > .git/config"));
    attack(cx, "", &stage, "cd x/new; rm -f .git/config; git checkout -- .");
    // A later stage changes it.
    let first = make("d/e/f/g", &format!("printf '{version}{sha256}' > .git/config"));
    let second = format!("printf '{version}' > d/e/f/g/.git/config");
    two_stages(cx, "git init -q", [&format!("{first}; sleep 4"), &second], "cd d/e/f/g; git checkout -- .");
}

/// Where the cache of the stages is, `$c` on the host and `$d` here, and a repository in it that names a program.
pub(super) const CACHE: &str = r#"c=$(awk '$5=="/run/exeat/cache"{print $4}' /proc/self/mountinfo); d=/run/exeat/cache; [ -n "$c" ] || { c=$PWD/../cache; d=$c; mkdir -p $d; }
c=$(realpath -m $c); rm -rf $d/e; git init -q $d/e; git -C $d/e commit -q --allow-empty -m 1; git -C $d/e config core.fsmonitor "touch $MARK;false""#;

fn of_process(cx: &Cx) {
    for link in ["/usr/../dev/fd/../cwd", "/dev/shm/../fd/../cwd", "D/fd/../cwd", "S/../fd/../cwd"] {
        // From the top, `k` leads deep into the tree, and from `src` to the top.
        let stage = format!(
            "{CACHE}; b=$(realpath -m --relative-to $PWD/../../.. $c); mkdir -p src deep/a/b/c/c deep/a/$b/e; ln -s deep/a/b/c/c k; ln -s .. src/k
            ln -s /dev D; ln -s /dev/shm S; ln -s {link}/k/../../../$b/e l"
        );
        attack(cx, "", &stage, "cd src && cd ../l && git status");
    }
}

/// git asks whether `objects` and `refs` can be searched, and files can be executable.
fn leaf(cx: &Cx) {
    let first = r"mkdir -p v/a/b/c/r v/a/b/c/w; cd v/a/b/c/r; echo ref: refs/heads/main > HEAD; touch objects refs; chmod +x objects refs
        printf '[core]\nrepositoryformatversion = 0\nbare = false\n' > config; echo gitdir: ../r > ../w/.git; sleep 4";
    let second = r#"printf '[core]\nrepositoryformatversion = 0\nbare = false\nworktree = ../w\nfsmonitor = touch %s;false\n' "$MARK" > v/a/b/c/r/config"#;
    two_stages(cx, "git init -q", [first, second], "cd v/a/b/c/w; git status");
    let first = format!("mkdir -p .git/annex/objects; {}", first.replace("v/a/b/c", ".git/annex/objects"));
    let second = second.replace("v/a/b/c", ".git/annex/objects");
    two_stages(cx, "git init -q", [&first, &second], "cd .git/annex/objects/w; git status");
}

/// git-annex makes links to what it does not have.
fn end_of_link(cx: &Cx) {
    let end = ".git/annex/objects/aa/bb/K--1/K--1";
    for (link, up) in [("l", ""), ("x/y/l", "../../")] {
        let first = format!("mkdir -p x/y; ln -s {up}{end} {link}; sleep 4");
        let second = format!(
            r#"{POLY} git init -q {end}; cd {end}; git commit -q --allow-empty -m 1; printf '#!/bin/sh\ntouch %s\n' "$MARK" > h; poly .git/index $(git hash-object -w h)"#
        );
        two_stages(cx, "git init -q", [&first, &second], &format!("cd {link} && git checkout -- ."));
    }
}

/// A relative path leads elsewhere from another place.
fn moved_directory(cx: &Cx) {
    let up = "../../../../../../..";
    for (entry, host) in [
        (r#"ln -s $up/$b/e deep/1/2/3/4/5/6/p/x/l"#, "cd z/x/l && git status"),
        (r#"echo gitdir: $up/$b/e/.git > deep/1/2/3/4/5/6/p/x/.git"#, "cd z/x && git status"),
    ] {
        // In the first run it leads to a place in the tree, and then to the same place from a directory above the tree.
        let first = format!(
            "{CACHE}; git -C $d/e config core.bare false; up={up}; mkdir -p deep/1/2/3/4/5/6/p/x; b=$(cd /; realpath -m --relative-to $OLDPWD/z/x/$up $c); mkdir -p deep/1/$b; git init -q deep/1/$b/e; {entry}; sleep 4"
        );
        two_stages(cx, "git init -q", [&first, "mv deep/1/2/3/4/5/6/p z"], host);
    }
}

/// With `TMPDIR` the `/tmp` of a stage is on the disk, but not of root's.
fn temporary(cx: &Cx) {
    let jobs = cx.dir().with_file_name("jobs");
    let jobs = jobs.to_str().expect("ASCII");
    cx.outside(["mkdir", "-m", "700", jobs]).run().exits(0);
    let stage = r#"t=$(awk '$5=="/tmp"{print $4}' /proc/self/mountinfo); git init -q /tmp/e; ln -s $t/e l; ln -s $(dirname $(dirname $t)) m; ls -l l m"#;
    let done = cx.exeat(["run", "--", "sh", "-c", stage]).env("TMPDIR", jobs).run();
    done.exits(0).says("work/l` was moved").says("work/m` was moved");
}

/// Functions of a shell: `repo DIR` makes an empty repository, `evil` writes a configuration that names a program, and `tree DIR Y` makes `Y` the
/// directory of a linked worktree at `DIR`.
const WORKTREES: &str = r#"T=$PWD; repo() { mkdir -p $1/objects $1/refs; echo ref: refs/heads/main > $1/HEAD; }
evil() { printf '[core]\nrepositoryformatversion = 0\nbare = false\nfsmonitor = touch %s;false\n' "$MARK"; }
common() { echo ../.. > $1/commondir; }
tree() { mkdir -p $1 $2; echo ref: refs/heads/main > $2/HEAD; common $2; echo $T/$1/.git > $2/gitdir; echo "gitdir: $T/$2" > $1/.git; }"#;

/// git reads one `commondir`, and takes what that says for a repository, whatever else it is.
fn inner_worktree(cx: &Cx) {
    // From the top, as a submodule.
    let stage = format!(
        r#"{WORKTREES}; git init -q s; git -C s commit -q --allow-empty -m 1; c=$(git -C s rev-parse HEAD); x=m/worktrees/x; y=$x/worktrees/y
        repo m; repo $x; cp -r s/.git/objects $x; tree w $y; echo $c > $y/HEAD; common $x; evil > $x/config
        git update-index --add --cacheinfo 160000,$c,w; git commit -qm sub; rm -rf s"#
    );
    attack(cx, "", &stage, "git status");
    for (names, more) in [
        ("x=b/.git/worktrees/x; y=$x/worktrees/y; git init -q b", "evil > $x/config"),
        ("x=m/worktrees/x; y=$x/worktrees/y; repo m", "evil > $x/config"),
        ("x=m/worktrees/w/worktrees/x; y=$x/worktrees/y", "evil > $x/config"),
        (
            "x=m/worktrees/x; y=$x/worktrees/y; repo m",
            r#"mkdir $x/hooks; printf '#!/bin/sh\ntouch %s\n' "$MARK" > $x/hooks/post-index-change; chmod +x $x/hooks/*"#,
        ),
    ] {
        let stage = format!("{WORKTREES}; {names}; repo $x; common $x; {more}; tree w $y; echo 1 > w/1");
        attack(cx, "", &stage, "cd w; git status; git add 1");
    }
}

/// The first run leaves a configuration that nothing obeys, and the second one only makes the directory a repository.
fn role(cx: &Cx) {
    let x = "x=a/b/c/worktrees/x";
    for (first, second) in [
        // It was the directory of a worktree.
        (
            format!("{x}; repo a/b/c; repo $x; evil > $x/config; common $x"),
            format!("{x}; rm $x/commondir $x/HEAD; tree w $x/worktrees/y"),
        ),
        (
            format!("{x}; repo $x; rm $x/HEAD; common $x; evil > $x/config; mkdir $x/worktrees"),
            format!("{x}; tree w $x/worktrees/y"),
        ),
        // It was nothing.
        (
            "mkdir -p d/e/x/worktrees; cd d/e/x; mkdir objects refs; evil > config".into(),
            "tree w d/e/x/worktrees/y".into(),
        ),
    ] {
        let [first, second] = [first, second].map(|stage| format!("{WORKTREES}; {stage}"));
        two_stages(cx, "git init -q", [&format!("{first}; sleep 4"), &second], "cd w && git status");
    }
}

/// With names of 20 bytes the index is right, and with names of 32 bytes its path is `/exeat-b14/x`, in which there is nothing.
fn absolute(cx: &Cx) {
    let make = r#"rm -rf new; git init -q --object-format=sha256 new; cd new; python3 -c '
import hashlib, struct
path, n, tail = b"/exeat-b14/x", 0, b"\0"
while b"\0" in tail or b"/" in tail or b":" in tail or flags & 0x7fff != 12 + len(path):
    n += 1
    text = b"evil %d\n" % n
    name = hashlib.sha256(b"blob %d\0" % len(text) + text).digest()
    flags, tail = struct.unpack(">H", name[20:22])[0], name[22:]
open("blob", "wb").write(text)
entry = struct.pack(">10I", *[0] * 6, 0o100644, 0, 0, 0) + name + struct.pack(">H", 0xfff) + path
entry += bytes(8 - len(entry) % 8)
open(".git/index", "wb").write(b"DIRC" + struct.pack(">II", 2, 1) + entry + b"ABCD" + struct.pack(">I", 4) + b"xxxx" + bytes(20))'
    git hash-object -w blob"#;
    let host = r#"cd new; git checkout -- .; if [ -e /exeat-b14 ]; then rm -r /exeat-b14; touch "$MARK"; fi"#;
    attack(cx, "", make, host);
}

/// A repository in the cache that names a program, and the name of that cache.
const IN_CACHE: &str = r#"d=/run/exeat/cache; awk '$5=="/run/exeat/cache"{print $4}' /proc/self/mountinfo | grep -o '[^/]*$'; rm -rf $d/e; git init -q $d/e; git -C $d/e config core.fsmonitor "touch $MARK;false""#;

/// The first run leaves a link to a place at which there is nothing, and the second one has its cache there.
fn later_cache(cx: &Cx) {
    let mark = cx.dir().with_file_name("mark");
    let env = format!("export MARK={}; ", mark.display());
    let home = cx.home().to_str().expect("ASCII");
    let own = format!("{home}/.cache");
    let fill = |place: &str| {
        let run = cx.exeat(["run", "--", "bash", "-c", &format!("{env}{IN_CACHE}")]).cwd(cx.dir());
        let run = if place == own { run } else { run.env("XDG_CACHE_HOME", place) };
        run.run().exits(0).stdout().trim().to_owned()
    };
    let ran = |dir: &str| {
        let _ = fs::remove_file(&mark);
        cx.outside(["sh", "-c", &format!("cd {dir} && git status")]).cwd(cx.dir()).run();
        mark.exists()
    };
    cx.outside(["git", "init", "-q"]).cwd(cx.dir()).run().exits(0);
    let name = fill(&own);
    for place in [own.clone(), format!("{home}/x/cache"), format!("{home}/y")] {
        for (link, dir) in
            [(format!("{place}/exeat/{name}/e"), "l"), (format!("{place}/exeat"), &format!("l/{name}/e"))]
        {
            let _ = fs::remove_dir_all(&place);
            let stage = format!("ln -s {link} l");
            cx.exeat(["run", "--set", "fs.cache=none", "--", "sh", "-c", &stage])
                .cwd(cx.dir())
                .run()
                .exits(0);
            cx.outside(["mkdir", "-p", &place]).run().exits(0);
            assert_eq!(fill(&place), name);
            assert!(!ran(dir), "{link}");
            cx.outside(["ln", "-sfn", &link, "l"]).cwd(cx.dir()).run().exits(0);
            assert!(ran(dir), "{link}: nothing is shown");
            fs::remove_file(cx.dir().join("l")).expect("a link");
        }
    }
    // An old link that leads there now, such as one that an earlier exeat has left.
    cx.outside(["ln", "-s", &format!("{home}/y/exeat/{name}/e"), "l"]).cwd(cx.dir()).run().exits(0);
    std::thread::sleep(std::time::Duration::from_secs(3));
    fill(&format!("{home}/y"));
    assert!(!ran("l"), "an old link");
}

/// Root's run leaves a link to the cache of the user who runs exeat there next.
fn other_cache(cx: &Cx) {
    chown(cx.dir(), Some(ORDINARY), Some(ORDINARY)).expect("chown");
    for place in [
        "/home/other/.cache/exeat/0123456789abcdef/e",
        "/home/other/.local/state/exeat",
        "/home/other/.cache/exeat",
        "/srv/disk/exeat/0123456789abcdef",
        "/srv/disk/exeat/run-1/e",
    ] {
        let done = cx.sh(&[], &format!("ln -s {place} l")).run();
        done.exits(0).says("work/l` was moved");
    }
    // Others stay, such as one to the sources of exeat.
    for place in ["/srv/exeat/src", "/home/other/.cache/pip", "../exeat/crates"] {
        let done = cx.sh(&[], &format!("ln -sfn {place} l")).run();
        assert!(!done.exits(0).stderr().contains("was moved"), "{done:?}");
    }
    fs::remove_file(cx.dir().join("l")).expect("a link");
    // Also an old one of another user's.
    symlink("/home/other/.cache/exeat/0123456789abcdef/e", cx.dir().join("l")).expect("a link");
    lchown(cx.dir().join("l"), Some(ORDINARY), Some(ORDINARY)).expect("chown");
    std::thread::sleep(std::time::Duration::from_secs(3));
    cx.sh(&[], "true").run().exits(0).says("work/l` was moved");
}
