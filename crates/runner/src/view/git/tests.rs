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
    assert_eq!(found.left, Vec::<String>::new());

    make(".git/config", "[core]\nhooksPath = .\n");
    let left = obeyed(&root, Path::new("/home/ann")).left;
    assert!(left.iter().any(|left| left.contains("stays writable")), "{left:?}");
    fs::remove_dir_all(&root).unwrap();
}

/// A tree below the top of a repository, and a linked worktree: the configuration that counts lies elsewhere.
#[test]
fn b15_the_configuration_is_found_as_git_finds_it() {
    let root = std::env::temp_dir().join(format!("git-found-{}", std::process::id()));
    let make = |name: &str, text: &str| {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    make("main/.git/config", "[core]\nhooksPath = pkg/hooks\n");
    make("main/pkg/x", "");
    make("main/.git/worktrees/other/commondir", "../..\n");
    make("other/.git", &format!("gitdir: {}\n", root.join("main/.git/worktrees/other").display()));
    let named = |tree: &str| obeyed(&root.join(tree), Path::new("/home/ann")).named;
    assert_eq!(named("main/pkg"), BTreeSet::from([root.join("main/pkg/hooks")]));
    assert_eq!(named("other"), BTreeSet::from([root.join("other/pkg/hooks")]));
    assert_eq!(named("main/.git/worktrees"), BTreeSet::new());
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn what_is_too_much_is_said() {
    let root = std::env::temp_dir().join(format!("git-many-{}", std::process::id()));
    fs::create_dir_all(root.join("zz-oldest/.git")).unwrap();
    // Births are told apart by the clock's tick.
    std::thread::sleep(std::time::Duration::from_millis(20));
    for number in 0..REPOSITORIES + 5 {
        fs::create_dir_all(root.join(format!("r{number}/.git"))).unwrap();
    }
    let found = obeyed(&root, Path::new("/home/ann"));
    assert_eq!(found.directories.len(), REPOSITORIES);
    assert!(
        found.directories.iter().any(|(dir, _)| dir.starts_with(root.join("zz-oldest"))),
        "the oldest count"
    );
    assert!(found.left.iter().any(|left| left.contains("beyond the first 32")), "{:?}", found.left);

    // Files in the place of repositories, of which each would be a mount.
    for number in 0..200 {
        fs::create_dir_all(root.join(format!("l{number}"))).unwrap();
        fs::write(root.join(format!("l{number}/.git")), "").unwrap();
    }
    let found = obeyed(&root, Path::new("/home/ann"));
    assert!(found.directories.len() + found.links.len() <= REPOSITORIES + 1);

    let includes: String = (0..40).map(|number| format!("[include]\npath = i{number}\n")).collect();
    fs::create_dir_all(root.join(".git")).unwrap();
    fs::write(root.join(".git/config"), includes).unwrap();
    for number in 0..ENTRIES + 5 {
        fs::write(root.join(format!("f{number}")), "").unwrap();
    }
    let left = obeyed(&root, Path::new("/home/ann")).left;
    fs::write(root.join(".git/i1"), vec![b'#'; 2 << 20]).unwrap();
    let large = obeyed(&root, Path::new("/home/ann")).left;
    assert!(large.iter().any(|left| left.contains("too large")), "{large:?}");
    for word in ["too much", "too many files"] {
        assert!(left.iter().any(|left| left.contains(word)), "{word}: {left:?}");
    }
    fs::remove_dir_all(&root).unwrap();
}
