//! A8, B10, B11, B35, K1: removing a mask, mounting over it, or giving the hidden file another name for the next run.

use std::fs;
use std::path::Path;

use e2e::case::{Backend, Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b10_mask_removal", attack);
    list.matrix("escape::b11_a_directory_above_a_mask", rename);
    list.matrix("escape::b11_a_directory_above_a_tree_in_the_sandbox_s_own_file_systems", made_directories);
}

fn attack(cx: &Cx) {
    let secrets = cx.dir().join("secrets");
    fs::create_dir(&secrets).expect("secrets");
    fs::write(secrets.join("key"), "hunter2").expect("secret");
    let probe = cx.probe();
    let script = format!(
        "{probe} unmount secrets; {probe} unmount /proc; {probe} mount-tmpfs /tmp; {probe} read secrets/key
         grep -rl hunter2 . /tmp 2>/dev/null || echo nothing"
    );
    let done = cx.exeat(["run", "--mask", "secrets", "--", "sh", "-c", &script]).run();
    let said = done.stdout();
    let lines: Vec<&str> = said.lines().collect();
    for line in &lines[..3] {
        assert!(["EPERM", "EINVAL", "EACCES", "ENOSYS"].contains(line), "{done:?}");
    }
    assert!(["ENOENT", "EACCES", "ok: 0 bytes"].contains(&lines[3]), "{done:?}");
    assert_eq!(lines[4], "nothing", "{done:?}");
}

/// A8, B11, K1: the mask of a flag and that of a ceiling.
fn rename(cx: &Cx) {
    for (path, file) in
        [("a/m", "a/m/key"), ("c/d/key", "c/d/key")].map(|(p, f)| (cx.dir().join(p), cx.dir().join(f)))
    {
        fs::create_dir_all(path.parent().expect("above")).expect("above");
        fs::create_dir_all(file.parent().expect("above")).expect("above");
        fs::write(&file, "hunter2").expect("secret");
    }
    for name in ["a", "a/m", "a/m/key", "c", "c/d", "c/d/key"] {
        cx.bench().give(&cx.dir().join(name), cx.is_root());
    }
    let site = cx.home().join("site.toml");
    fs::write(&site, format!("[fs]\nmask = [\"{0}/c/d/key\", \"{0}/absent\"]\n", cx.dir().display()))
        .expect("ceiling");
    cx.bench().give(&site, cx.is_root());
    let site = site.display().to_string();
    let run =
        |script: &str| cx.exeat(["run", "--mask", "a/m", "--ceiling", &site, "--", "sh", "-c", script]).run();
    let done = run("mv a b; mv c e; mv c/d c/e; echo x >a/x && echo x >c/d/x && echo written");
    done.exits(0).prints("written\n").says("absent` to mask: the ceiling");
    // The second run would find a file that the first had renamed.
    run("grep -rs hunter2 . || echo nothing").exits(0).prints("nothing\n");
    assert!(cx.dir().join("a/m/key").exists() && cx.dir().join("c/d/key").exists());
}

/// The sandbox's own `/tmp` and `/run` belong to the stage, and with them what is made there to show a tree.
fn made_directories(cx: &Cx) {
    let top = format!("/tmp/exeat-above-{}", cx.good());
    let project = Path::new(&top).join("a/project");
    cx.outside(["mkdir", "-p", project.to_str().expect("ASCII")]).run().exits(0);
    cx.outside(["git", "init", "-q"]).cwd(&project).run().exits(0);
    let guests = ["/var/tmp/g/deep", "/run/g/deep"];
    let attack = format!(
        "import os
for d in ['{top}', '{top}/a', '/var/tmp/g', '/run/g']:
    try: os.rename(d, d + '-moved'); print('moved')
    except OSError as e: print(e.strerror)
    open(d + '/kept', 'w').write('x')"
    );
    for backend in Backend::ALL {
        let shown = guests.map(|guest| format!("{}:{guest}", project.display()));
        let words = ["run", "--backend", backend.name(), "--ro", &shown[0], "--rw", &shown[1]];
        let done = cx.exeat(words.into_iter().chain(["--", "python3", "-c", &attack])).cwd(&project).run();
        done.exits(0).prints(&"Device or resource busy\n".repeat(4));
    }
    fs::remove_dir_all(&top).expect("rm");
}
