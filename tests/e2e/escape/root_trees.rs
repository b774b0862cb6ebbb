//! B10: started by root in a directory of root's own, the stage is `nobody` for the kernel, and its files belong to
//! root on the disk. It cannot give files away, or leave a program that runs as root.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use e2e::bench::ORDINARY;
use e2e::case::{Cases, Cx};

use super::root_only_files::with_kernel_uid_0;

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b10_new_files_belong_to_the_owner", attack);
    list.root("escape::b10_root_is_kept_where_trees_cannot_be_mapped", refused);
    list.root("escape::b10_trees_of_several_owners", several);
}

/// Returns the uid, gid and mode of a file on the disk.
fn on_disk(path: &Path) -> (u32, u32, u32) {
    let meta = fs::symlink_metadata(path).expect("it was made");
    (meta.uid(), meta.gid(), meta.mode() & 0o7777)
}

fn attack(cx: &Cx) {
    let old = cx.write("old", "old");
    let closed = cx.dir().join("closed");
    fs::create_dir(&closed).expect("a directory");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("chmod");
    cx.bench().give(&closed, cx.is_root());
    cx.outside(["git", "init", "-q", "."]).run().exits(0);
    let script = "umask 022; git add old && git -c user.name=x -c user.email=x@y.test commit -qm old && git branch other
        echo newer >old; git -c user.name=x -c user.email=x@y.test stash -q; cat old; echo new >old; echo made >made; mkdir -p dir closed/dir; touch /run/exeat/cache/kept
        id -u; id -G; stat -c %u made
        for who in 0 1 1001 65533; do chown $who made 2>/dev/null && echo given away; done
        for who in 0 1 1001 65533; do chgrp $who made 2>/dev/null && echo given away; done
        chmod 4755 made 2>/dev/null && echo setuid; chmod 2755 dir 2>/dev/null && echo setgid
        install -m 4755 /bin/true root 2>/dev/null && echo setuid; echo end";
    let done = cx.exeat(["run", "--require", "full", "--", "sh", "-c", script]).run();
    done.exits(0).prints("old65534\n65534\n65534\nend\n");
    let (uid, gid) = (old.metadata().expect("old").uid(), closed.metadata().expect("closed").gid());
    assert_eq!(fs::read_to_string(&old).expect("old"), "new\n");
    assert_eq!(on_disk(&cx.dir().join("made")), (uid, gid, 0o644));
    assert_eq!(on_disk(&closed.join("dir")), (uid, gid, 0o755));
    // The cache lasts until the next run.
    cx.sh(&[], "rm /run/exeat/cache/kept").run().exits(0).silent();
}

/// A file system without idmapped mounts, and a root without CAP_SYS_ADMIN.
fn refused(cx: &Cx) {
    with_kernel_uid_0(cx.sh(&[], "echo x >made")).run().exits(0).says("exeat has no CAP_SYS_ADMIN here");
    let full = || cx.exeat(["run", "--require", "full", "--", "touch", "started"]);
    with_kernel_uid_0(full())
        .run()
        .exits(125)
        .says("identity: partial")
        .says("exeat has no CAP_SYS_ADMIN here");

    let place = cx.home().join("overlay");
    fs::create_dir(&place).expect("a directory");
    let overlay = format!(
        "mount -t tmpfs none {0} && mkdir {0}/lower {0}/upper {0}/work {0}/here \
         && mount -t overlay none -o lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work {0}/here; cd {0}/here",
        place.display()
    );
    let is_there = cx.outside(["sh", "-c", "grep -w overlay /proc/filesystems"]).run();
    if is_there.stdout().is_empty() {
        cx.cannot("this kernel has no overlay file system");
    }
    let words = "is on a file system (overlay) that cannot be mounted for another user";
    cx.sh(&[], "echo x >made && stat -c %u made").in_mounts(&overlay).run().exits(0).says(words);
    full().in_mounts(&overlay).run().exits(125).says("identity: partial").says(words);
    // An additional writable tree counts too, and a read-only one does not.
    let beside = format!("{}; cd {}", overlay, cx.dir().display());
    let tree = place.join("here").display().to_string();
    let run = |flag: &str| {
        cx.exeat(["run", "--require", "full", flag, &tree, "--", "true"]).in_mounts(&beside).run()
    };
    run("--rw").exits(125).says(words);
    run("--ro").exits(0).silent();
    assert!(!cx.dir().join("started").exists());
}

/// Trees of root's in a run that becomes another user, and that user's in a run that becomes nobody.
fn several(cx: &Cx) {
    let (user_s, root_s) = (cx.home().join("user"), cx.home().join("root"));
    for path in [&user_s, &root_s] {
        fs::create_dir(path).expect("a directory");
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("chmod");
    }
    chown(&user_s, Some(ORDINARY), Some(ORDINARY)).expect("chown");
    for (start, other) in [(&user_s, &root_s), (&root_s, &user_s)] {
        let there = other.display().to_string();
        let script =
            format!("echo a >made; echo b >{there}/made; echo c >/run/exeat/cache/made; chown 0 made");
        let run = cx.exeat(["run", "--rw", &there, "--", "sh", "-c", &script]).cwd(start);
        run.run().exits(1).says("Invalid argument");
        for (dir, owner) in [(&user_s, ORDINARY), (&root_s, 0)] {
            let made = dir.join("made");
            assert_eq!(made.metadata().expect("made").uid(), owner, "{}", made.display());
            fs::remove_file(made).expect("remove");
        }
    }
}
