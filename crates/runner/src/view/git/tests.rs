use std::process::Command;

use super::config::{Setting, settings};
use super::*;

#[test]
#[expect(clippy::disallowed_methods, reason = "asks git how it reads the same")]
fn settings_are_read_as_git_reads_them() {
    let hooks = |text: &str| match settings(text).as_slice() {
        [Setting::HooksPath(value)] => Some(value.clone()),
        _ => None,
    };
    let dir = std::env::temp_dir().join(format!("git-config-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join("config");
    for (text, value) in [
        ("[core]\n\thooksPath = tools/hooks\n", Some("tools/hooks")),
        ("[CORE] HooksPath=a b  # a comment", Some("a b")),
        ("[core]\nhookspath = \" a;b \" ; c\n", Some(" a;b ")),
        ("# [core]\n[core]\n\n;x\nbare\nhooksPath = \"a\\\\b\"\\\n/c\n", Some("a\\b/c")),
        ("[core \"x\"]\nhooksPath = a\n", None),
        ("[user]\nname = \"[core]\"\nhooksPath = a\n", None),
        ("[remote \"a]b\\\"\"]\nurl = x\n[core]\nhooksPath = y\n", Some("y")),
    ] {
        fs::write(&file, text).unwrap();
        let git = Command::new("git").args(["config", "--file"]).arg(&file).arg("core.hooksPath").output();
        if let Ok(git) = git {
            let said = git.status.success().then(|| String::from_utf8(git.stdout).unwrap());
            assert_eq!(said.as_deref().map(|said| said.strip_suffix('\n').unwrap()), value, "git: {text:?}");
        }
        // A subsection of core is not core to git, and one more path for us.
        let ours = hooks(text).filter(|_| !text.contains("core \""));
        let value = value.filter(|_| !text.contains("core \""));
        assert_eq!(ours.as_deref(), value, "{text:?}");
    }
    fs::remove_dir_all(&dir).unwrap();
    let includes = "[include]\npath = ../common\n[includeIf \"gitdir:~/x/\"]\n  path = ~/y\n";
    assert_eq!(settings(includes), [Setting::Include("../common".into()), Setting::Include("~/y".into())]);
    for broken in ["[core", "[core]\nhooksPath = \"a\n", "[core]\nhooksPath = \\q", "=", "[core]\n= x"] {
        assert_eq!(settings(broken), [], "{broken:?}");
    }
}

#[test]
fn b15_repositories_submodules_and_what_they_name_are_found() {
    let root = std::env::temp_dir().join(format!("git-tree-{}", std::process::id()));
    let make = |name: &str, text: &str| {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    make(
        ".git/config",
        "[core]\nhooksPath = tools/hooks\n[include]\npath = ../common.cfg\n[include]\npath = /etc/x\n",
    );
    make("common.cfg", "[include]\npath = more.cfg\n");
    make(".git/modules/lib/deep/HEAD", "");
    make(".git/modules/lib/deep/config", "[core]\nworktree = ../../../../lib/deep\nhooksPath = own\n");
    make(".git/worktrees/other/gitdir", "/elsewhere/.git\n");
    make("a/b/.git/HEAD", "");
    make("a/c/.git", "gitdir: /x\n");
    make("a/b/c/.git/HEAD", "");
    make("node_modules/x/.git/HEAD", "");
    let found = obeyed(&root, Path::new("/home/ann"));
    let in_root = |names: &[&str]| names.iter().map(|name| root.join(name)).collect::<BTreeSet<_>>();
    let directories: BTreeSet<_> = found.directories.iter().map(|(dir, _)| dir.clone()).collect();
    assert_eq!(directories, in_root(&[".git/modules/lib/deep", ".git/worktrees/other", "a/b/.git"]));
    assert_eq!(found.links, in_root(&["a/c/.git", "lib/deep/.git"]));
    assert_eq!(found.named, in_root(&["tools/hooks", "common.cfg", "more.cfg", "lib/deep/own"]));
    assert_eq!(found.left, None);

    make(".git/config", "[core]\nhooksPath = .\n");
    let left = obeyed(&root, Path::new("/home/ann")).left;
    assert!(left.is_some_and(|left| left.contains("stays writable")));
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn what_is_too_much_is_said() {
    let root = std::env::temp_dir().join(format!("git-many-{}", std::process::id()));
    for number in 0..REPOSITORIES + 5 {
        fs::create_dir_all(root.join(format!("r{number}/.git"))).unwrap();
    }
    let found = obeyed(&root, Path::new("/home/ann"));
    assert_eq!(found.directories.len(), REPOSITORIES);
    assert!(found.left.is_some_and(|left| left.contains("beyond the first 32")));
    for number in 0..DIRECTORIES + 5 {
        fs::create_dir_all(root.join(format!("d{number}"))).unwrap();
    }
    assert!(obeyed(&root, Path::new("/home/ann")).left.is_some());
    fs::remove_dir_all(&root).unwrap();
}
