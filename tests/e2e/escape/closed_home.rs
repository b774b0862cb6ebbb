//! B10: programs of PATH below a home that only root may enter. They run, and nothing else becomes visible.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use e2e::bench::{ORDINARY, PATH};
use e2e::case::{Cases, Cx};

use super::root_only_files::with_kernel_uid_0;

pub(super) fn cases(list: &mut Cases) {
    list.root("escape::b10_programs_below_a_closed_home", attack);
    list.root("escape::b10_links_lead_into_no_closed_directory", links);
}

/// Makes root's home with umask 077.
fn home(cx: &Cx) -> PathBuf {
    let home = cx.home().join("closed");
    let bin = home.join(".cargo/bin");
    fs::create_dir_all(&bin).expect("bin");
    let tool = "#!/bin/sh\necho \"the tool, $(cat \"$(dirname \"$0\")/data\")\"\n";
    let files = [
        (bin.join("tool"), tool),
        (bin.join("data"), "with its data"),
        (home.join(".cargo/credentials.toml"), "hunter2"),
        (home.join("secret"), "hunter2"),
        (home.join(".ssh/id"), "hunter2"),
    ];
    for (path, text) in &files {
        fs::create_dir_all(path.parent().expect("above")).expect("above");
        fs::write(path, text).expect("write");
    }
    fs::create_dir(home.join("project")).expect("project");
    let all =
        files.iter().flat_map(|(path, _)| path.ancestors().take_while(|above| above.starts_with(&home)));
    for path in all {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("chmod");
    }
    fs::set_permissions(home.join("secret"), fs::Permissions::from_mode(0o644)).expect("chmod");
    home
}

fn attack(cx: &Cx) {
    let home = home(cx);
    let path = format!("{}:{PATH}", home.join(".cargo/bin").display());
    let start = |dir: &Path, view: &str| {
        let files = ["secret", ".ssh/id", ".cargo/credentials.toml"].map(|name| home.join(name));
        let reads = files.map(|file| format!("cat {0} || echo no", file.display())).join("\n");
        let script =
            format!("exec 2>/dev/null\ntool; {reads}; ls -A {}; echo x >tool-was-here", home.display());
        let run = cx.exeat(["run", "--fs", view, "--", "sh", "-c", &script]).cwd(dir);
        run.env("HOME", home.to_str().expect("ASCII")).env("PATH", &path)
    };
    for view in ["project", "host"] {
        let done = start(&home.join("project"), view).run();
        done.exits(0).prints("the tool, with its data\nno\nno\nno\n.cargo\nproject\n");
        // The same for a user who owns the directory.
        chown(cx.dir(), Some(ORDINARY), Some(ORDINARY)).expect("chown");
        let done = start(cx.dir(), view).run();
        done.exits(0).prints("the tool, with its data\nno\nno\nno\n.cargo\n");
    }
    // With root's uid the closed directory is not an obstacle.
    let done = with_kernel_uid_0(start(&home.join("project"), "host")).run();
    done.shows("hunter2").says("keeps root's kernel uid");
}

/// A user's link, which leads root to files that the user cannot reach.
fn links(cx: &Cx) {
    let secret = home(cx).join("project");
    fs::write(secret.join("key"), "hunter2").expect("a secret");
    let user_s = cx.home().join("user");
    let start = user_s.join("start");
    fs::create_dir_all(&start).expect("a directory");
    std::os::unix::fs::symlink(&secret, user_s.join("link")).expect("a link");
    for path in [&user_s, &start, &user_s.join("link")] {
        std::os::unix::fs::lchown(path, Some(ORDINARY), Some(ORDINARY)).expect("chown");
    }
    let link = user_s.join("link").display().to_string();
    let script = format!("cat {link}/key {0}/key; echo planted >{0}/planted", secret.display());
    for flag in ["--ro", "--rw"] {
        for dir in [&start, cx.dir()] {
            let done = cx.exeat(["run", flag, &link, "--", "sh", "-c", &script]).cwd(dir).run();
            assert!(!done.stdout().contains("hunter2") && !secret.join("planted").exists(), "{done:?}");
            done.exits(2).says("a stage could have made");
        }
    }
    // Root may show it by its own name.
    let secret = secret.display().to_string();
    let done = cx.exeat(["run", "--ro", &secret, "--", "cat", &format!("{secret}/key")]).cwd(&start).run();
    done.exits(0).prints("hunter2");
}
