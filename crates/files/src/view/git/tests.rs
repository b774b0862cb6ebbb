use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use super::*;
use crate::git_config::{Place, Setting, settings};
use crate::git_path::commondir_path;

fn find_obeyed(tree: &Path, everywhere: &Everywhere) -> GitFindings {
    find_within(tree, everywhere, DIRECTORIES)
}

fn find_within(tree: &Path, everywhere: &Everywhere, most: usize) -> GitFindings {
    let (live, lookups) = (Live::default(), Lookups::default());
    obeyed_within(tree, around(everywhere, &live, &lookups), most)
}

fn around<'a>(everywhere: &'a Everywhere, live: &'a Live, lookups: &'a Lookups) -> Around<'a> {
    Around { everywhere, live, lookups }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "asks git how it reads the same")]
fn settings_are_read_as_git_reads_them() {
    let hooks = |text: &[u8]| {
        settings(text).iter().find_map(|setting| match setting {
            Setting::HooksPath(value) => Some(value.clone()),
            _ => None,
        })
    };
    let dir = std::env::temp_dir().join(format!("git-config-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join("config");
    let cases: [(&[u8], Option<&[u8]>); 18] = [
        (b"[core]\n\thooksPath = tools/hooks\n", Some(b"tools/hooks")),
        (b"[CORE] HooksPath=a b  # a comment", Some(b"a b")),
        (b"[core]\nhookspath = \" a;b \" ; c\n", Some(b" a;b ")),
        (b"# [core]\n[core]\n\n;x\nbare\nhooksPath = \"a\\\\b\"\\\n/c\n", Some(b"a\\b/c")),
        (b"[core \"x\"]\nhooksPath = a\n", None),
        (b"[user]\nname = \"[core]\"\nhooksPath = a\n", None),
        (b"[remote \"a]b\\\"\"]\nurl = x\n[core]\nhooksPath = y\n", Some(b"y")),
        // As editors of other systems end lines, also where a line goes on.
        (b"\xef\xbb\xbf[user]\r\nname = a \\\r\n b\r\n[core]\r\n hooksPath = hk\r\n", Some(b"hk")),
        (b"[core]\r\nhooksPath = h\\\r\nk # a\\\r\nname = x", Some(b"hk")),
        (b"[core]\nhooksPath = a\rb\n", Some(b"a\rb")),
        (b"[core]\nhooksPath = a\r\r\n", Some(b"a")),
        (b"; a comment\r[core]\nhooksPath = a\n", None),
        // Bytes that are not text, and characters that end a word.
        (b"[core]\nhooksPath = h\xf6ks\n", Some(b"h\xf6ks")),
        (b"[core]\nhooksPath = h\xc3\n[x]\nname = \xff\n", Some(b"h\xc3")),
        (b"[core]\nhooksPath = hk\0more\n", Some(b"hk")),
        (b"[core]\nhooksPath = a\\", Some(b"a")),
        (b"[core]\nhooksPath = \"\" a  \"\" \n", Some(b"a  ")),
        (b"[core]\nhooksPath = a\\\n\\\n\t b\n", Some(b"a\t b")),
    ];
    for (text, value) in cases {
        let words = String::from_utf8_lossy(text);
        fs::write(&file, text).unwrap();
        let git = Command::new("git").args(["config", "--file"]).arg(&file).arg("core.hooksPath").output();
        if let Ok(git) = git {
            let said = git.status.success().then_some(git.stdout);
            let said = said.as_deref().map(|said| said.strip_suffix(b"\n").unwrap());
            assert_eq!(said, value, "git: {words:?}");
        }
        // A subsection of core is not core to git, and one more path for us.
        let is_same = !words.contains("core \"");
        let ours = hooks(text).filter(|_| is_same);
        assert_eq!(ours.as_deref().map(OsStr::as_bytes), value.filter(|_| is_same), "{words:?}");
    }
    fs::remove_dir_all(&dir).unwrap();
    let includes = "[include]\npath = ../common\n[includeIf \"gitdir:~/x/\"]\n  path = ~/y\n";
    assert_eq!(
        settings(includes.as_bytes()),
        [Setting::Include("../common".into()), Setting::Include("~/y".into())]
    );
    for broken in ["[core", "[core]\nhooksPath = \"a\n", "[core]\nhooksPath = \\q", "=", "[core]\n= x"] {
        assert_eq!(settings(broken.as_bytes()), [], "{broken:?}");
    }
}

#[test]
fn b15_finds_repositories_submodules_and_the_paths_that_they_name() {
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
    make("lib/deep/.git", "gitdir: ../../.git/modules/lib/deep\n");
    make("a/b/.git/HEAD", "");
    make("a/c/.git", "gitdir: /x\n");
    make("a/b/c/.git/HEAD", "");
    make("node_modules/x/.git/HEAD", "");
    let found = find_obeyed(&root, &everywhere(HOME));
    let in_root = |names: &[&str]| names.iter().map(|name| root.join(name)).collect::<BTreeSet<_>>();
    let directories: BTreeSet<_> = found.directories.iter().map(|(dir, _)| dir.clone()).collect();
    assert_eq!(directories, in_root(&[".git/modules/lib/deep", ".git/worktrees/other", "a/b/.git"]));
    assert_eq!(found.links, in_root(&["a/c/.git", "lib/deep/.git"]));
    // Of a relative path also what it means to a push.
    let pushed = [".git/tools/hooks", ".git/modules/lib/deep/own"];
    let named = in_root(&["tools/hooks", "common.cfg", "more.cfg", "lib/deep/own"]);
    assert_eq!(found.named, &named | &in_root(&pushed));
    assert_eq!(found.left, Vec::<String>::new());

    make(".git/config", "[core]\nhooksPath = .\n");
    let left = find_obeyed(&root, &everywhere(HOME)).left;
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
    let named = |tree: &str| find_obeyed(&root.join(tree), &everywhere(HOME)).named;
    assert_eq!(named("main/pkg"), BTreeSet::from([root.join("main/pkg/hooks")]));
    assert_eq!(named("other"), BTreeSet::from([root.join("other/pkg/hooks")]));
    assert_eq!(named("main/.git/worktrees"), BTreeSet::new());
    fs::remove_dir_all(&root).unwrap();
}

/// Creates a separate directory for a test, and returns its real path.
fn scratch(name: &str) -> PathBuf {
    let root = std::env::temp_dir().join(format!("git-{name}-{}", std::process::id()));
    fs::create_dir_all(&root).unwrap();
    root.canonicalize().unwrap()
}

/// With this path from a configuration, or without.
fn config(dir: &Path, hooks: &str) {
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join("config"), format!("[core]\nhooksPath = {hooks}\n")).unwrap();
}

const HOME: &str = "/home/ann";

/// With no variable but HOME.
fn everywhere(home: impl AsRef<Path>) -> Everywhere {
    Everywhere::new(home.as_ref(), |_| None)
}

fn directories(tree: &Path) -> BTreeSet<PathBuf> {
    find_obeyed(tree, &everywhere(HOME)).directories.into_iter().map(|(dir, _)| dir).collect()
}

#[test]
fn b15_another_way_to_the_hooks_is_found() {
    let outer = scratch("ways");
    let root = outer.join("real/proj");
    fs::create_dir_all(&root).unwrap();
    std::os::unix::fs::symlink("real", outer.join("link")).unwrap();
    let named = |hooks: &str| {
        config(&root.join(".git"), hooks);
        find_obeyed(&root, &everywhere(outer.join("link"))).named
    };
    let expect = BTreeSet::from([root.join("hk")]);
    for _ in 0..2 {
        assert_eq!(named(&outer.join("link/proj/hk").display().to_string()), expect);
        assert_eq!(named("~/proj/hk"), expect);
        fs::create_dir_all(root.join("hk")).unwrap();
    }
    fs::remove_dir_all(&outer).unwrap();
    let home = |user: &str| resolve_value(Path::new("/x"), OsStr::new(user), Path::new(HOME));
    assert_eq!((home("~root/h"), home("~no-such-user/h")), ("/root/h".into(), "/x/~no-such-user/h".into()));
    assert_eq!((home("~/h"), home("~")), ("/home/ann/h".into(), HOME.into()));
}

/// A stage may write the configuration of a repository that it made, for the next start to read.
#[test]
fn b15_a_long_list_of_includes_costs_little() {
    let root = scratch("includes");
    fs::create_dir_all(root.join("sub/.git")).unwrap();
    let lines: String = (0..5_000).map(|n| format!("path = /{}/f{n}\n", root.join("x").display())).collect();
    fs::write(root.join("sub/.git/config"), format!("[include]\n{lines}")).unwrap();
    let began = std::time::Instant::now();
    let found = find_obeyed(&root, &everywhere(HOME));
    assert_eq!(found.named.len(), NAMED);
    assert!(found.left.iter().any(|left| left.contains("beyond the first")), "{:?}", found.left);
    assert!(began.elapsed() < std::time::Duration::from_secs(2), "{:?}", began.elapsed());
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn b15_counts_the_oldest_repositories_first_and_reports_the_rest() {
    let root = scratch("many");
    fs::create_dir_all(root.join("zz-oldest/.git")).unwrap();
    // Births are told apart by the clock's tick.
    let tick = || std::thread::sleep(std::time::Duration::from_millis(20));
    tick();
    for number in 1..REPOSITORIES {
        fs::create_dir_all(root.join(format!("q{number}/.git"))).unwrap();
    }
    let first = directories(&root);
    assert_eq!(first.len(), REPOSITORIES);
    assert!(first.contains(&root.join("zz-oldest/.git")));
    assert_eq!(find_obeyed(&root, &everywhere(HOME)).left, Vec::<String>::new(), "nothing is beyond");
    tick();
    // Directories, `.git` files (each would be a mount), and repositories without a `.git`.
    for number in 0..200 {
        fs::create_dir_all(root.join(format!("a{number}/.git"))).unwrap();
        fs::create_dir_all(root.join(format!("l{number}"))).unwrap();
        fs::write(root.join(format!("l{number}/.git")), "").unwrap();
        for name in ["HEAD", "objects", "refs"] {
            fs::create_dir_all(root.join(format!("b{number}/{name}"))).unwrap();
        }
    }
    let found = find_obeyed(&root, &everywhere(HOME));
    assert_eq!((directories(&root), found.links), (first.clone(), BTreeSet::new()));
    let [left] = &found.left[..] else { panic!("{:?}", found.left) };
    assert!(left.contains("beyond the first 32"), "{left}");

    // Files are not looked at; of directories the oldest are.
    const MOST: usize = 1500;
    for number in 0..MOST {
        fs::write(root.join(format!("f{number}")), "").unwrap();
    }
    assert_eq!(find_within(&root, &everywhere(HOME), MOST).left, found.left);
    for number in 0..MOST {
        fs::create_dir(root.join(format!("d{number}"))).unwrap();
    }
    assert_eq!(directories(&root), first);
    let left = find_within(&root, &everywhere(HOME), MOST).left;
    assert!(left.iter().any(|left| left.contains("too much")), "{left:?}");

    let everywhere = &everywhere(HOME);
    let lookups = Lookups::default();
    let live = Live::default();
    let mut search = Search { names: 9, ..Search::new(&root, around(everywhere, &live, &lookups), 1) };
    search.children(&root);
    assert!(search.found.left.iter().any(|left| left.contains("too much")), "{:?}", search.found.left);
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn b15_counts_the_submodules_named_in_gitmodules_first() {
    let root = scratch("named");
    for number in 0..REPOSITORIES {
        fs::create_dir_all(root.join(format!("old{number}/.git"))).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::create_dir_all(root.join("deep/er/still/lib/.git")).unwrap();
    let modules = "[submodule \"lib\"]\npath = deep/er/still/lib\n[submodule \"out\"]\npath = ../out\n";
    fs::write(root.join(".gitmodules"), modules).unwrap();
    let found = directories(&root);
    assert!(found.len() == REPOSITORIES && found.contains(&root.join("deep/er/still/lib/.git")), "{found:?}");
    fs::remove_dir_all(&root).unwrap();
}

/// Old directories that a stage made in `.git` do not use up the bound for what the caller cloned afterwards.
#[test]
fn b15_fake_submodules_take_no_room() {
    let root = scratch("crowd");
    for number in 0..REPOSITORIES + 8 {
        // A module that has a submodule.
        let module = root.join(format!(".git/modules/m{number}"));
        fs::create_dir_all(module.join("modules/inner")).unwrap();
        for head in ["HEAD", "modules/inner/HEAD"] {
            fs::write(module.join(head), "").unwrap();
        }
        fs::create_dir_all(root.join(format!(".git/worktrees/w{number}"))).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    for number in 0..REPOSITORIES {
        fs::create_dir_all(root.join(format!("p{number}/.git/modules/own"))).unwrap();
    }
    let found = find_obeyed(&root, &everywhere(HOME));
    let directories: BTreeSet<_> = found.directories.into_iter().map(|(dir, _)| dir).collect();
    assert!((0..REPOSITORIES).all(|number| directories.contains(&root.join(format!("p{number}/.git")))));
    assert_eq!(directories.len(), 2 * REPOSITORIES, "{directories:?}");
    let [left] = &found.left[..] else { panic!("{:?}", found.left) };
    assert!(left.starts_with("submodules and linked worktrees in"), "{left}");
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn b15_finds_the_repository_that_a_git_file_leads_to() {
    let root = scratch("led");
    config(&root.join("deep/own"), "own-hooks");
    fs::write(root.join(".git"), "gitdir: deep/own\n").unwrap();
    config(&root.join("sub/own"), "more-hooks");
    fs::create_dir(root.join("sub/nested")).unwrap();
    fs::write(root.join("sub/nested/.git"), "gitdir: ../own\n").unwrap();
    for name in ["HEAD", "objects", "refs"] {
        fs::create_dir_all(root.join("bare.git").join(name)).unwrap();
    }
    let found = find_obeyed(&root, &everywhere(HOME));
    let in_root = |names: &[&str]| names.iter().map(|name| root.join(name)).collect::<BTreeSet<_>>();
    assert_eq!(directories(&root), in_root(&["deep/own", "sub/own", "bare.git"]));
    let named = ["own-hooks", "deep/own/own-hooks", "sub/nested/more-hooks", "sub/own/more-hooks"];
    assert_eq!(found.named, in_root(&named));
    assert_eq!(found.links, in_root(&["sub/nested/.git"]));
    fs::remove_dir_all(&root).unwrap();
}

/// A linked worktree, and a directory below a repository: what the repository holds elsewhere takes no room.
#[test]
fn b15_counts_only_the_repositories_in_the_tree() {
    let root = scratch("outside");
    let git = root.join("main/.git");
    config(&git, "hooks");
    for number in 0..REPOSITORIES + 5 {
        fs::create_dir_all(git.join(format!("worktrees/w{number}"))).unwrap();
        fs::create_dir_all(git.join(format!("modules/m{number}"))).unwrap();
        fs::write(git.join(format!("modules/m{number}/HEAD")), "").unwrap();
    }
    fs::write(git.join("worktrees/w1/commondir"), "../..\n").unwrap();
    fs::create_dir_all(root.join("other/nested/.git")).unwrap();
    fs::write(root.join("other/.git"), format!("gitdir: {}/worktrees/w1", git.display())).unwrap();
    fs::create_dir_all(root.join("main/pkg/nested/.git")).unwrap();
    for tree in ["other", "main/pkg"] {
        let tree = root.join(tree);
        assert_eq!(directories(&tree), BTreeSet::from([tree.join("nested/.git")]));
        assert_eq!(find_obeyed(&tree, &everywhere(HOME)).left, Vec::<String>::new());
    }
    fs::remove_dir_all(&root).unwrap();
}

/// Only root can give a directory to somebody else.
#[test]
fn b15_a_repository_above_that_somebody_else_owns_has_no_say() {
    let root = scratch("others");
    let tree = root.join("tree");
    fs::create_dir_all(&tree).unwrap();
    config(&root.join(".git"), &format!("{}/src", tree.display()));
    let named = |home: &Path| find_obeyed(&tree, &everywhere(home)).named;
    assert_eq!(named(Path::new(HOME)), BTreeSet::from([tree.join("src")]));
    if geteuid().is_root() {
        std::os::unix::fs::chown(root.join(".git"), Some(7777), None).unwrap();
        assert_eq!(named(Path::new(HOME)), BTreeSet::new());
        // Git obeys it where it was told to.
        fs::write(root.join(".gitconfig"), "[safe]\ndirectory = *\n").unwrap();
        assert_eq!(named(&root), BTreeSet::from([tree.join("src")]));
    }
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn reports_a_configuration_beyond_the_limits() {
    let root = scratch("includes");
    let includes: String = (0..40).map(|number| format!("[include]\npath = i{number}\n")).collect();
    fs::create_dir_all(root.join(".git")).unwrap();
    fs::write(root.join(".git/config"), includes).unwrap();
    fs::write(root.join(".git/i1"), vec![b'#'; 2 << 20]).unwrap();
    let left = find_obeyed(&root, &everywhere(HOME)).left;
    for word in ["too many files", "too large"] {
        assert!(left.iter().any(|left| left.contains(word)), "{word}: {left:?}");
    }
    fs::remove_dir_all(&root).unwrap();
}

/// B15: what git reads for every repository, as git itself says it.
#[test]
#[expect(clippy::disallowed_methods, reason = "asks git what it reads")]
fn b15_the_configuration_of_every_repository_is_git_s() {
    let root = scratch("everywhere");
    let home = root.join("home");
    let (global, xdg, system) = (root.join("global"), root.join("xdg"), root.join("system"));
    for dir in [&home.join(".config/git"), &xdg.join("git")] {
        fs::create_dir_all(dir).unwrap();
    }
    let places =
        [home.join(".gitconfig"), home.join(".config/git/config"), xdg.join("git/config"), global, system];
    for file in &places {
        fs::write(file, format!("[core]\nhooksPath = {}\n", file.display())).unwrap();
    }
    let [own, config, other, global, system] = places;
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let etc = PathBuf::from("/etc/gitconfig");
    let both = vec![own.clone(), config];
    type Case<'a> = (&'a [(&'a str, String)], Vec<PathBuf>, Option<PathBuf>);
    let cases: [Case<'_>; 9] = [
        (&[], both.clone(), Some(etc.clone())),
        (&[("XDG_CONFIG_HOME", text(&xdg))], vec![own, other], Some(etc.clone())),
        (&[("XDG_CONFIG_HOME", String::new())], both.clone(), Some(etc.clone())),
        (
            &[("GIT_CONFIG_GLOBAL", text(&global)), ("XDG_CONFIG_HOME", text(&xdg))],
            vec![global],
            Some(etc.clone()),
        ),
        (&[("GIT_CONFIG_GLOBAL", String::new())], Vec::new(), Some(etc)),
        (&[("GIT_CONFIG_SYSTEM", text(&system))], both.clone(), Some(system.clone())),
        (&[("GIT_CONFIG_SYSTEM", text(&system)), ("GIT_CONFIG_NOSYSTEM", "1".into())], both.clone(), None),
        (
            &[("GIT_CONFIG_SYSTEM", text(&system)), ("GIT_CONFIG_NOSYSTEM", "No".into())],
            both.clone(),
            Some(system.clone()),
        ),
        (&[("GIT_CONFIG_SYSTEM", text(&system)), ("GIT_CONFIG_NOSYSTEM", String::new())], both, Some(system)),
    ];
    for (variables, user, machine) in cases {
        let get = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsStr::new(value.as_str()))
        };
        let expect: Vec<PathBuf> = user.into_iter().chain(machine).collect();
        assert_eq!(Everywhere::new(&home, get).files, expect, "{variables:?}");
        let git = Command::new("git")
            .args(["config", "--get-all", "core.hooksPath"])
            .env_clear()
            .envs([("HOME", text(&home)), ("PATH", std::env::var("PATH").unwrap_or_default())])
            .envs(variables.iter().cloned())
            .current_dir(&root)
            .output();
        if let Ok(git) = git {
            let said = String::from_utf8(git.stdout).unwrap();
            let mut said: Vec<&Path> = said.lines().map(Path::new).collect();
            said.sort();
            // The machine's own may be there and say something else.
            let mut ours: Vec<&Path> =
                expect.iter().filter(|path| path.starts_with(&root)).map(PathBuf::as_path).collect();
            ours.sort();
            said.retain(|path| path.starts_with(&root));
            assert_eq!(said, ours, "git with {variables:?}");
        }
    }
    fs::remove_dir_all(&root).unwrap();
}

/// B15: a tree that holds the user's settings, which a link above leads to, and one that a variable names.
#[test]
fn b15_the_user_s_configuration_in_the_tree_is_found() {
    let outer = scratch("dotfiles");
    let tree = outer.join("dotfiles");
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("gitconfig"), "[include]\npath = more\n").unwrap();
    std::os::unix::fs::symlink("dotfiles/gitconfig", outer.join(".gitconfig")).unwrap();
    assert_eq!(find_obeyed(&tree, &everywhere(&outer)).named, BTreeSet::from([tree.join("gitconfig")]));
    let by_name = Everywhere::new(Path::new(HOME), |name| {
        (name == "GIT_CONFIG_GLOBAL").then_some(OsStr::new("x/../later"))
    });
    assert_eq!(find_obeyed(&tree, &by_name).named, BTreeSet::from([tree.join("later")]));
    fs::remove_dir_all(&outer).unwrap();
}

/// A stage of another run may replace a file with a pipe at any time. Nobody writes to it.
#[test]
fn b15_a_pipe_in_the_place_of_a_configuration_is_not_waited_for() {
    let root = scratch("pipe");
    fs::create_dir_all(&root).unwrap();
    let (file, pipe) = (root.join("config"), root.join("pipe"));
    fs::write(&file, "[core]\n").unwrap();
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (done, wait) = std::sync::mpsc::channel();
    let at = file.clone();
    std::thread::spawn(move || {
        let read: BTreeSet<PathBuf> =
            (0..20_000).map(|_| path_of(&at, commondir_path).unwrap_or_default()).collect();
        done.send(read).unwrap();
    });
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let read = loop {
        use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
        renameat2(AT_FDCWD, &file, AT_FDCWD, &pipe, RenameFlags::RENAME_EXCHANGE).unwrap();
        match wait.try_recv() {
            Ok(read) => break read,
            Err(_) => assert!(std::time::Instant::now() < deadline, "it waits for a writer"),
        }
    };
    assert_eq!(read, ["", "[core]"].map(PathBuf::from).into(), "the one or the other");
    fs::remove_dir_all(root).unwrap();
}

/// A path means what the kernel makes of it, and what leads there must stay as it is.
#[test]
fn b15_finds_the_directories_on_the_way_to_a_named_path() {
    let root = scratch("turns");
    for dir in ["x/y", "x/hk", "sub", "hk"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    std::os::unix::fs::symlink("x/y", root.join("lnk")).unwrap();
    let named = |hooks: &str| {
        config(&root.join(".git"), hooks);
        let found = find_obeyed(&root, &everywhere(HOME));
        let below = |paths: BTreeSet<PathBuf>| -> Vec<String> {
            let below = paths.iter().map(|path| path.strip_prefix(&root).unwrap().display().to_string());
            below.filter(|path| !path.starts_with(".git")).collect()
        };
        (below(found.named), below(found.turns))
    };
    let words = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
    assert_eq!(named("lnk/../hk"), (words("lnk/../hk x/hk"), words("x/y")));
    assert_eq!(named("sub/../hk"), (words("hk"), words("sub")));
    assert_eq!(named("not/there/../../hk"), (words("hk"), words("not not/there")));
    assert_eq!(named(&root.join("lnk/../new").display().to_string()).0, words("lnk/../new x/new"));
    fs::remove_dir_all(&root).unwrap();
}

/// The first word of a setting that git runs is protected if it is a path.
#[test]
fn b15_programs_that_git_runs_are_found() {
    let root = scratch("programs");
    fs::create_dir_all(root.join(".git")).unwrap();
    for (text, path) in [
        ("[core]\nfsmonitor = ./fsm", Some("fsm")),
        ("[core]\nfsmonitor = true", None),
        ("[core]\nsshCommand = tools/ssh -v a/b", Some("tools/ssh")),
        ("[alias]\nanything = !\\\"my tools/x\\\" y", Some("my tools/x")),
        ("[alias]\nanything = log -- a/b", None),
        ("[credential \"https://example.com\"]\nhelper = !./c;x", Some("c")),
        ("[filter \"a.b\"]\nprocess = 'f/p' q", Some("f/p")),
        ("[filter \"a.b\"]\nrequired = f/p", None),
        ("[gpg \"ssh\"]\nprogram = my tools/sign", Some("my tools/sign")),
        ("[pager]\nlog = ./less", Some("less")),
        ("[init]\ntemplateDir = template", Some("template")),
        ("[init]\ndefaultBranch = a/b", None),
    ] {
        fs::write(root.join(".git/config"), text).unwrap();
        let named = find_obeyed(&root, &everywhere(HOME)).named;
        assert_eq!(named, path.iter().map(|path| root.join(path)).collect(), "{text}");
    }
    fs::remove_dir_all(&root).unwrap();
}

/// Files that a stage may have named are read up to a common bound. Files of the kernel are not read, because reading may block.
#[test]
fn b15_limits_the_bytes_that_are_read_from_git_files() {
    let root = scratch("bounded");
    config(&root.join("sub/.git"), "hooks");
    let left = |includes: &str| {
        fs::write(root.join("sub/.git/config"), format!("[include]\n{includes}")).unwrap();
        let found = find_obeyed(&root, &everywhere(HOME));
        (found.left, found.named.contains(&root.join("sub/hooks")))
    };
    for file in ["/proc/version", "/sys/kernel/uevent_seqnum", "/proc/self/root/proc/uptime"] {
        let (left, _) = left(&format!("path = {file}\n"));
        assert!(left.iter().any(|left| left.contains("the kernel's")), "{file}: {left:?}");
    }
    for number in 0..10 {
        fs::write(root.join(format!("sub/.git/i{number}")), vec![b'#'; 1 << 20]).unwrap();
    }
    fs::write(root.join("sub/.git/small"), "[core]\nhooksPath = hooks\n").unwrap();
    assert_eq!(left("path = small\n"), (Vec::new(), true));
    let many: String = (0..10).map(|number| format!("path = i{number}\n")).collect();
    let (left, is_named) = left(&format!("{many}path = small\n"));
    assert!(!is_named && left.iter().any(|left| left.contains("with what was read before")), "{left:?}");
    fs::remove_dir_all(&root).unwrap();
}

/// A stage may close more directories than can be mounted: its own are younger.
#[test]
fn b15_of_closed_directories_the_oldest_count() {
    let root = scratch("closed");
    let everywhere = everywhere(HOME);
    let lookups = Lookups::default();
    let live = Live::default();
    let mut search = Search::new(&root, around(&everywhere, &live, &lookups), DIRECTORIES);
    for number in 0..CLOSED + 2 {
        let dir = root.join(format!("d{}", 99 - number));
        fs::create_dir_all(dir.join("inner")).unwrap();
        search.closed.extend([dir.join("inner"), dir]);
        std::thread::sleep(std::time::Duration::from_millis(if number < 2 { 20 } else { 1 }));
    }
    search.add_closed();
    assert_eq!(search.found.closed.len(), CLOSED);
    assert!(
        search.found.closed.contains(&root.join("d99")) && search.found.closed.contains(&root.join("d98"))
    );
    let [left] = &search.found.left[..] else { panic!("{:?}", search.found.left) };
    assert!(left.starts_with("of 34 directories"), "{left}");
    fs::remove_dir_all(&root).unwrap();
}

/// Looks at a repository whose configuration has these lines, and returns what was not looked at.
fn look_at(name: &str, config: &str, make: impl Fn(&Path)) -> (Vec<String>, bool) {
    let root = std::env::temp_dir().join(format!("git-{name}-{}", std::process::id()));
    fs::create_dir_all(root.join(".git")).unwrap();
    fs::write(root.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(root.join(".git/config"), config).unwrap();
    make(&root);
    let lookups = Lookups::default();
    let found = obeyed(&root, around(&everywhere(HOME), &Live::default(), &lookups));
    assert!(found.turns.len() < 4096, "{}", found.turns.len());
    fs::remove_dir_all(&root).unwrap();
    (found.left, lookups.are_spent())
}

/// A stage of an earlier run has left a configuration, or links, that would take minutes.
#[test]
fn l18_limits_how_far_the_paths_in_a_configuration_are_followed() {
    let is_said = |(left, is_spent): (Vec<String>, bool)| {
        assert!(left.len() < 4 && left.iter().all(|line| line.len() < 1000), "{left:?}");
        (left.iter().any(|line| line.contains("lead to more than is looked at")), is_spent)
    };
    // 39 links in a row, of 1600 names each.
    let chain = |root: &Path| {
        fs::create_dir(root.join("a")).unwrap();
        for link in 0..39 {
            let to = "a/../".repeat(800) + &format!("l{}", link + 1);
            std::os::unix::fs::symlink(to, root.join(format!("l{link}"))).unwrap();
        }
    };
    let many = |value: &dyn Fn(usize) -> String, count: usize| {
        let lines: Vec<String> = (0..count).map(|n| format!("a = {}", value(n))).collect();
        format!("[pager]\n{}\n", lines.join("\n"))
    };
    let none = |_: &Path| {};
    let same = many(&|_| "/b".to_owned(), 100_000);
    assert_eq!(is_said(look_at("same", &same, none)), (false, false), "it is one place");
    let links = many(&|n| format!("./l{}", n % 39), 10_000);
    assert_eq!(is_said(look_at("links", &links, chain)), (true, true));
    let flat = many(&|n| format!("/{n:x}"), 60_000);
    assert_eq!(is_said(look_at("flat", &flat, none)), (true, true));
    let zigzag = many(&|n| (0..400).map(|m| format!("{:x}/../", n * 400 + m)).collect::<String>() + "b", 300);
    assert!(!is_said(look_at("zigzag", &zigzag, none)).1, "too many places come first");
    for value in ["a/".repeat(500_000), "a/".repeat(150_000) + &"../".repeat(150_000)] {
        for key in ["hooksPath", "worktree", "pager"] {
            let (left, is_spent) = look_at("long", &format!("[core]\n{key} = {value}\n"), none);
            assert!(!is_spent && left.len() == 1 && left[0].len() < 1000, "{left:?}");
            assert!(left[0].contains("longer than 4095 bytes"), "{left:?}");
        }
    }
}

#[test]
fn b14_a_plain_configuration_names_no_program() {
    let is_plain = |text: &str| {
        crate::git_config::is_plain(text.as_bytes(), |place| match place {
            Place::Worktree(to) => to == "../s",
            Place::Repository(at) => at == "/up" || at == "../up",
        })
    };
    for text in [
        "",
        "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tworktree = ../s\n",
        "[remote \"origin\"]\n\turl = https://example.test/x.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n",
        "[remote \"a-b\"]\nurl = git@example.test:x/y.git\n[branch \"main\"]\nremote = a-b\nmerge = refs/heads/main\n",
        "[user]\nname = A\nemail = a@example.test ; comment\n[pull]\nrebase\n",
        "[remote \"o\"]\nurl = ../up\npushurl = file:///up\n",
        "[remote \"o\"]\nurl = https://[::1]:80/x\ntagOpt = --no-tags\ngh-resolved = base\n",
        "[core]\nfsmonitor = true\n",
        "[advice]\nany = false\n[color \"diff\"]\nold = red\n[rerere]\nenabled\n[user]\nsigningkey = ABC\n",
        "[index]\nthreads = 4\nrecordOffsetTable = true\n[core]\nabbrev = 12\npreloadIndex = true\n[log]\ndate = iso\n",
        "[fetch]\nparallel = 4\n[rerere]\nautoUpdate = true\n[extensions]\nrefStorage = reftable\n",
    ] {
        assert!(is_plain(text), "{text}");
    }
    for text in [
        "[core]\nfsmonitor = x\n",
        "[core]\nworktree = ../t\n",
        "[include]\npath = x\n",
        "[remote \"--upload-pack=x\"]\nurl = y\n",
        "[remote \"\\--upload-pack=x\"]\nurl = y\n",
        "[remote.--upload-pack]\nurl = y\n",
        "[extensions]\npartialClone = origin\n",
        "[extensions]\nrefStorage = files:///elsewhere\n",
        "[extensions]\nrefStorage = reftable://../elsewhere\n",
        "[remote \"o\"]\nurl = x://y\n",
        "[remote \"o\"]\nurl = ./in/the/tree\n",
        "[branch \"main\"]\nremote = ./x\n",
        "[branch \"main\"]\nremote = --upload-pack=x\n",
        "[remote \"o\"]\nurl = ext::sh -c x\n",
        "[remote \"o\"]\nurl = https://[::1]/x::y\n",
        "[remote \"o\"]\nurl = https://[::x/y\n",
        "[remote \"o\"]\ntagOpt = --upload-pack=x\n",
        "[remote]\npushDefault = ./x\n",
        "[user]\nsigningkey = -x\n",
        "[remote \"o\"]\nuploadpack = x\n",
        "[user]\nname = \"a\0b\"\n",
        "[user]\nname = a\nbroken\"\n",
        "name = a\n",
    ] {
        assert!(!is_plain(text), "{text}");
    }
}
