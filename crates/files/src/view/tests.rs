//! A HOME and a project on the real file system, and the mounts that come out.

use std::os::unix::fs::symlink;

use crate::layout::EntryAccess;
use crate::request::{Bind, Bounds, WorkDir};
use exeat_contract::CACHE;

use super::scratch::resolved_place;
use super::*;

struct Scene {
    root: PathBuf,
}

impl Scene {
    fn new(name: &str) -> Self {
        // Beside the test's own executable: the build directory, wherever the checkout is.
        let base = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
        let root = base.join(format!("view-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("home/project")).unwrap();
        Self { root: root.canonicalize().unwrap() }
    }

    fn home(&self) -> PathBuf {
        self.root.join("home")
    }

    fn project(&self) -> PathBuf {
        self.root.join("home/project")
    }

    fn make(&self, name: &str) {
        let path = self.root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    fn build(&self, files: &Files, cwd: &Path, path: Option<&str>) -> Built {
        self.try_build(files, cwd, path).unwrap()
    }

    fn try_build(&self, files: &Files, cwd: &Path, path: Option<&str>) -> Result<Built, FileFault> {
        self.with(build, files, cwd, path)
    }

    fn with<T>(
        &self,
        what: impl Fn(&Files, &Facts<'_>) -> T,
        files: &Files,
        cwd: &Path,
        path: Option<&str>,
    ) -> T {
        let home = self.home();
        let own = [home.join(".local/state/exeat"), PathBuf::from("/tmp")];
        let facts = Facts {
            own: &own,
            git: Everywhere::new(&home, |_| None),
            path: path.map(OsStr::new),
            ..facts(cwd, &home)
        };
        what(files, &facts)
    }
}

fn is_read_only(built: &Built, path: &Path) -> bool {
    matches!(at(built, path), Some(Mount::ReadOnly { .. }))
}

/// The facts of a caller who has nothing but a working directory and a home.
fn facts<'a>(cwd: &'a Path, home: &'a Path) -> Facts<'a> {
    Facts {
        cwd,
        cwd_link: None,
        home,
        home_words: home,
        links: links(home),
        git: Everywhere::default(),
        owners: BTreeSet::new(),
        path: None,
        stage_home: home,
        nested: Nested::default(),
        named: Vec::new(),
        asked: Vec::new(),
        certificates: Vec::new(),
        cache: None,
        caches: None,
        tmp_dir: None,
        own: &[],
        shared: "/tmp".into(),
        helper: &[],
        unseen: &[],
        live: Live::default(),
        root: false,
        other: None,
        tmp: None,
    }
}

/// The rule for a home; a test may leak it.
fn links(home: &Path) -> &'static LinkRule {
    Box::leak(Box::new(LinkRule::new(home, None)))
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Returns the mount that the stage sees at `path`: the last one at or above it.
fn at<'a>(built: &'a Built, path: &Path) -> Option<&'a Mount> {
    built.mounts.iter().rev().find(|mount| match mount {
        Mount::ReadOnly { at, .. }
        | Mount::Writable { at, .. }
        | Mount::Hidden { at, .. }
        | Mount::Tmpfs { at, .. } => path.starts_with(at),
        _ => false,
    })
}

fn is_writable(built: &Built, path: &Path) -> bool {
    matches!(at(built, path), Some(Mount::Writable { .. }))
}

fn is_hidden(built: &Built, path: &Path) -> bool {
    match at(built, path) {
        None => true,
        // A mask, or the private /tmp where the checkout itself lies below the host's.
        Some(Mount::Hidden { .. } | Mount::Tmpfs { .. }) => true,
        Some(_) => false,
    }
}

fn bind(host: &Path) -> Bind {
    Bind { host: host.into(), guest: host.into() }
}

fn pin(host: PathBuf, at: PathBuf) -> Mount {
    Mount::Writable { host, at, why: Why::Pinned }
}

/// Each path of the host says why the stage can read, write or not see it. The page has the same words.
#[test]
fn every_shown_and_hidden_path_has_its_reason() {
    let scene = Scene::new("reasons");
    let (project, srv) = (scene.project(), scene.root.join("srv"));
    for dir in [srv.join("open"), srv.join("bound"), scene.home().join(".ssh"), project.join(".git/hooks")] {
        fs::create_dir_all(dir).unwrap();
    }
    for file in [".mcp.json", "policy.toml", "secret", "seen.json"] {
        fs::write(project.join(file), "").unwrap();
    }
    let site = Bounds { mask: vec![srv.join("bound")], ..Bounds::default() };
    let files = Files {
        ro: vec![bind(&srv), bind(&scene.home().join(".config"))],
        mask: vec![project.join("secret")],
        deciding: vec![project.join("policy.toml")],
        bounds: vec![site],
        ..Files::default()
    };
    fs::create_dir_all(scene.home().join(".config/gh")).unwrap();
    let built = scene.build(&files, &project, None);
    let reason =
        |path: PathBuf| at(&built, &path).and_then(Mount::access).map(|(access, _, why)| (access, why));
    for (path, expected) in [
        (PathBuf::from("/usr/bin"), (EntryAccess::Read, Why::View)),
        (project.join("src"), (EntryAccess::Write, Why::WorkingDirectory)),
        (project.join(".git"), (EntryAccess::Write, Why::Pinned)),
        (project.join(".git/hooks"), (EntryAccess::Read, Why::Protected)),
        (project.join(".mcp.json"), (EntryAccess::Read, Why::Protected)),
        (project.join("policy.toml"), (EntryAccess::Read, Why::Deciding)),
        (project.join("secret"), (EntryAccess::Hidden, Why::Masked)),
        (srv.join("open"), (EntryAccess::Read, Why::Requested)),
        (srv.join("bound"), (EntryAccess::Hidden, Why::Ceiling)),
        (scene.home().join(".config/gh"), (EntryAccess::Hidden, Why::Credentials)),
    ] {
        assert_eq!(reason(path.clone()), Some(expected), "{}", path.display());
    }
}

/// The page explains every reason of a mount.
#[test]
fn docs_print_the_reasons() {
    let mut table = String::from("| `why` in JSON | In words |\n|---|---|\n");
    for why in Why::ALL {
        table += &format!("| `{}` | {} |\n", why.as_str(), why.describe());
    }
    let page = include_str!("../../../../docs/files.md");
    assert!(page.contains(&table), "docs/files.md must have this table:\n{table}");
}

/// K21.
#[test]
fn the_project_is_writable_and_the_rest_of_home_is_absent() {
    let scene = Scene::new("plain");
    let built = scene.build(&Files::default(), &scene.project(), None);
    assert!(is_writable(&built, &scene.project().join("src/main.rs")));
    assert!(is_hidden(&built, &scene.home().join("letter.txt")));
    assert_eq!(built.cwd, scene.project());
    assert!(built.notes.is_empty() && !built.sockets_exposed);
}

#[test]
fn exeat_s_own_places_are_read_only_with_a_line() {
    let scene = Scene::new("own-places");
    fs::create_dir_all(scene.home().join(".local/state/exeat")).unwrap();
    for cwd in [scene.home().join(".local/state"), scene.home().join(".local")] {
        let built = scene.build(&Files::default(), &cwd, None);
        assert!(is_read_only(&built, &cwd.join("x")), "{}", cwd.display());
        assert!(built.writable.is_empty());
        assert_eq!(built.notes.len(), 1, "{:?}", built.notes);
        assert!(built.sockets_exposed, "a wide tree may hold sockets");
        assert!(is_hidden(&built, &scene.home().join(".local/state/exeat/x")), "{}", cwd.display());
    }
}

/// L03: nothing of a home, and of a credential, is shown only because exeat starts there.
#[test]
fn l03_a_home_and_a_credential_are_empty_working_directories() {
    let scene = Scene::new("home");
    scene.make("home/.ssh/id");
    scene.make("home/letter.txt");
    for cwd in [scene.home(), scene.root.clone(), scene.home().join(".ssh")] {
        let built = scene.build(&Files::default(), &cwd, None);
        assert!(built.mounts.contains(&Mount::Dir { at: cwd.clone() }), "{}", cwd.display());
        assert!(built.writable.is_empty() && built.cwd == cwd);
        assert_eq!(built.notes.len(), 1, "{:?}", built.notes);
        for name in [".ssh/id", "letter.txt"] {
            assert!(is_hidden(&built, &scene.home().join(name)), "{}", cwd.display());
        }
    }
    let named = Files { rw: vec![bind(&scene.home().join(".ssh"))], ..Files::default() };
    assert!(is_writable(
        &scene.build(&named, &scene.home().join(".ssh"), None),
        &scene.home().join(".ssh/id")
    ));
}

/// L03: programs are started, or settings read, from these; `--rw .` is the caller's word.
#[test]
fn l03_settings_and_directories_on_path_are_read_only_unless_named() {
    let scene = Scene::new("habit");
    for dir in ["home/.config/nvim", "home/.local/bin", "home/tools/bin"] {
        fs::create_dir_all(scene.root.join(dir)).unwrap();
    }
    let path = scene.home().join("tools/bin");
    for dir in [".config/nvim", ".local/bin", "tools/bin"] {
        let cwd = scene.home().join(dir);
        let built = scene.build(&Files::default(), &cwd, path.to_str());
        assert!(is_read_only(&built, &cwd.join("x")), "{dir}");
        assert!(built.notes.iter().any(|note| note.contains("--rw .")), "{:?}", built.notes);
        let named = Files { rw: vec![bind(&cwd)], ..Files::default() };
        assert!(is_writable(&scene.build(&named, &cwd, path.to_str()), &cwd.join("x")), "{dir}");
    }
}

#[test]
fn the_root_directory_adds_nothing_of_the_host() {
    let scene = Scene::new("root");
    let built = scene.build(&Files::default(), Path::new("/"), None);
    assert!(
        built.mounts.iter().all(|mount| !matches!(mount, Mount::ReadOnly { at, .. } if at == Path::new("/")))
    );
    assert!(built.writable.is_empty());
    scene.make("tools/bin/x");
    let path = scene.root.join("tools/bin");
    let built = scene.build(&Files::default(), Path::new("/"), path.to_str());
    assert!(!is_hidden(&built, &path.join("x")), "a toolchain is shown wherever one starts");
}

/// K45.
#[test]
fn system_trees_as_working_directory_are_not_writable() {
    let scene = Scene::new("system");
    for cwd in
        ["/usr/share", "/etc", "/var", "/tmp", "/opt"].map(Path::new).into_iter().filter(|cwd| cwd.is_dir())
    {
        let built = scene.build(&Files::default(), cwd, None);
        assert!(built.writable.is_empty(), "{}", cwd.display());
    }
}

/// A13, K50.
#[test]
fn n16_k4_a_narrow_read_only_tree_holds_inside_a_writable_one_and_the_other_way_round() {
    let scene = Scene::new("order");
    scene.make("home/data/deep/x");
    let (data, deep) = (scene.home().join("data"), scene.home().join("data/deep"));
    let narrow_ro = Files { rw: vec![bind(&data)], ro: vec![bind(&deep)], ..Files::default() };
    let built = scene.build(&narrow_ro, &scene.project(), None);
    assert!(is_writable(&built, &data.join("y")) && !is_writable(&built, &deep.join("x")));
    let narrow_rw = Files { rw: vec![bind(&deep)], ro: vec![bind(&data)], ..Files::default() };
    let built = scene.build(&narrow_rw, &scene.project(), None);
    assert!(!is_writable(&built, &data.join("y")) && is_writable(&built, &deep.join("x")));
    let both = Files { rw: vec![bind(&data)], ro: vec![bind(&data)], ..Files::default() };
    assert!(
        !is_writable(&scene.build(&both, &scene.project(), None), &data),
        "of two the read-only one wins"
    );
}

#[test]
fn a_mask_of_the_caller_is_last_and_hides_directories_and_files() {
    let scene = Scene::new("mask");
    scene.make("home/project/secrets/key");
    scene.make("home/project/token");
    let (secrets, token) = (scene.project().join("secrets"), scene.project().join("token"));
    let files =
        Files { mask: vec![secrets.clone(), token.clone()], ro: vec![bind(&secrets)], ..Files::default() };
    let built = scene.build(&files, &scene.project(), None);
    assert!(is_hidden(&built, &secrets.join("key")) && is_hidden(&built, &token));
}

#[test]
fn the_host_view_masks_credentials_and_an_explicit_ro_opens_one() {
    let scene = Scene::new("host");
    scene.make("home/.aws/credentials");
    scene.make("home/.netrc");
    let aws = scene.home().join(".aws");
    let files = Files { view: View::Host, ..Files::default() };
    let built = scene.build(&files, &scene.project(), None);
    assert!(is_hidden(&built, &aws.join("credentials")) && is_hidden(&built, &scene.home().join(".netrc")));
    assert!(!is_hidden(&built, Path::new("/usr/bin/env")));
    assert!(built.sockets_exposed);
    let files = Files { view: View::Host, ro: vec![bind(&aws)], ..Files::default() };
    assert!(!is_hidden(&scene.build(&files, &scene.project(), None), &aws.join("credentials")));
}

/// K45, A8.
#[test]
fn b13_the_target_of_a_linked_credential_is_masked_too() {
    let scene = Scene::new("link");
    scene.make("home/dotfiles/ssh/id");
    symlink(scene.home().join("dotfiles/ssh"), scene.home().join(".ssh")).unwrap();
    let built = scene.build(&Files { view: View::Host, ..Files::default() }, &scene.project(), None);
    assert!(is_hidden(&built, &scene.home().join("dotfiles/ssh/id")));
}

/// K5, K6.
#[test]
fn b11_protected_names_are_bound_and_every_directory_above_is_a_mount_point() {
    let scene = Scene::new("git");
    for name in [".git/config", ".git/hooks/pre-commit", ".git/info/attributes", ".envrc"] {
        scene.make(&format!("home/project/{name}"));
    }
    let built = scene.build(&Files::default(), &scene.project(), None);
    let project = scene.project();
    assert!(!is_writable(&built, &project.join(".git/config")));
    assert!(!is_writable(&built, &project.join(".git/hooks/post-merge")));
    assert!(!is_writable(&built, &project.join(".envrc")));
    assert!(is_writable(&built, &project.join(".git/index")), "commits go on working");
    for above in [".git", ".git/info"] {
        let mounted = built.mounts.contains(&pin(project.join(above), project.join(above)));
        assert!(mounted, "{above} could be renamed away");
    }
    let open = Files { allow_write: names(&[".git"]), ..Files::default() };
    let built = scene.build(&open, &project, None);
    assert!(
        is_writable(&built, &project.join(".git/config")) && !is_writable(&built, &project.join(".envrc"))
    );
    assert!(!built.lost.is_empty(), "recorded");
}

fn names(names: &[&str]) -> Vec<LetThrough> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

/// B12: a name that is let through is neither read-only nor watched, so that no journal has it; all else is as before.
#[test]
fn b12_a_name_that_is_let_through_is_not_watched() {
    let scene = Scene::new("let-through");
    let project = scene.project();
    scene.make("home/project/.idea/x");
    scene.make("home/project/mise.b.toml");
    scene.make("home/project/.cargo/config");
    let allow_write = names(&[".vscode", ".idea", "mise.a.toml", "mise.b.toml", ".cargo/config.toml"]);
    let all = scene.build(&Files::default(), &project, None);
    let some = scene.build(&Files { allow_write: allow_write.clone(), ..Files::default() }, &project, None);
    let watched = |built: &Built| -> BTreeSet<String> {
        built.watched.iter().flat_map(|it| it.names.iter().map(|name| name.name.clone())).collect()
    };
    let gone: Vec<String> = watched(&all).difference(&watched(&some)).cloned().collect();
    assert_eq!(gone, [".cargo/config.toml", ".vscode"]);
    for (name, is_open) in
        [(".idea/x", true), ("mise.b.toml", true), (".cargo/config", false), (".cargo/x", true)]
    {
        assert_eq!(is_writable(&some, &project.join(name)), is_open, "{name}");
    }
    let known = |built: &Built| {
        let pattern =
            built.watched[0].patterns.iter().find(|it| it.name == "mise.*.toml" && it.dir.is_empty());
        pattern.unwrap().known.iter().cloned().collect::<BTreeSet<_>>()
    };
    assert_eq!(known(&all), BTreeSet::from(["mise.b.toml".into()]));
    assert_eq!(known(&some), BTreeSet::from(["mise.a.toml".into(), "mise.b.toml".into()]));
    assert!(some.lost.iter().any(|line| line.contains("`.vscode` is writable")), "{:?}", some.lost);
    // All names of a pattern, and a name that git's configuration has its hooks in.
    let built =
        scene.build(&Files { allow_write: names(&["mise.*.toml"]), ..Files::default() }, &project, None);
    assert!(!built.watched[0].patterns.iter().any(|it| it.name == "mise.*.toml" && it.dir.is_empty()));
    assert!(
        is_writable(&built, &project.join("mise.b.toml")) && !is_writable(&built, &project.join(".idea/x"))
    );
    // The files that decided about the run stay as they are.
    let deciding = vec![project.join("mise.b.toml"), project.join(".idea/x")];
    let built = scene.build(&Files { allow_write, deciding, ..Files::default() }, &project, None);
    assert!(
        !is_writable(&built, &project.join("mise.b.toml")) && !is_writable(&built, &project.join(".idea/x"))
    );
    assert!(is_writable(&built, &project.join(".idea/y")));
}

/// B12: of a protected directory only the part is writable that is named and stands there, with its own protected paths.
#[test]
fn b12_a_part_of_a_protected_directory_is_let_through() {
    let scene = Scene::new("part");
    let project = scene.project();
    let files = || Files { allow_write: names(&[".claude/commands"]), ..Files::default() };
    let refused = |files: &Files| {
        matches!(scene.try_build(files, &project, None), Err(FileFault::NothingToLetThrough { .. }))
    };
    assert!(refused(&files()), "nothing is there");
    scene.make("home/project/.claude/settings.json");
    assert!(refused(&files()), "it is not there");
    symlink("../src", project.join(".claude/commands")).unwrap();
    assert!(refused(&files()), "it is a link");
    fs::remove_file(project.join(".claude/commands")).unwrap();

    scene.make("home/project/.claude/commands/x/policy.toml");
    scene.make("home/project/.claude/later/x");
    scene.make("home/project/out/.claude/x");
    let deciding = vec![project.join(".claude/commands/x/policy.toml")];
    let rw = vec![Bind { host: project.join("out"), guest: project.join("out") }];
    let built = scene.build(&Files { deciding, rw, ..files() }, &project, None);
    for (name, is_open) in [
        (".claude/commands/y", true),
        (".claude/commands/x/y", true),
        (".claude/commands/x/policy.toml", false),
        (".claude/commands-x", false),
        (".claude/settings.json", false),
        (".claude/later/x", false),
        ("out/.claude/x", false),
        ("out/x", true),
    ] {
        assert_eq!(is_writable(&built, &project.join(name)), is_open, "{name}");
    }
    // It can be a separate tree, and a mask still hides it.
    let commands = project.join(".claude/commands");
    let rw = vec![Bind { host: commands.clone(), guest: "/c".into() }];
    let built = scene.build(&Files { rw: rw.clone(), ..files() }, &project, None);
    assert!(is_writable(&built, Path::new("/c/y")) && is_writable(&built, &commands.join("y")));
    let built = scene.build(&Files { rw, ..Files::default() }, &project, None);
    assert!(!is_writable(&built, Path::new("/c/y")));
    let built = scene.build(&Files { mask: vec![commands.clone()], ..files() }, &project, None);
    assert!(is_hidden(&built, &commands.join("x")));
    let built = scene.build(&Files { mask: vec![project.join(".claude")], ..files() }, &project, None);
    assert!(is_hidden(&built, &commands.join("x")));
}

/// The target of a link is protected, and the link is watched, because a mount cannot cover a link.
#[test]
fn b13_a_protected_name_behind_a_link_is_followed() {
    let scene = Scene::new("lost");
    let project = scene.project();
    scene.make("home/elsewhere/settings.json");
    scene.make("home/project/editor/settings.json");
    symlink(scene.home().join("elsewhere"), project.join(".idea")).unwrap();
    symlink("editor", project.join("step")).unwrap();
    symlink("step", project.join(".vscode")).unwrap();
    symlink("later/env", project.join(".envrc")).unwrap();
    symlink(".mcp.json", project.join(".mcp.json")).unwrap();
    let built = scene.build(&Files::default(), &project, None);
    assert!(!is_writable(&built, &project.join("editor/settings.json")));
    assert!(is_writable(&built, &project.join("other")));
    let [watched] = built.watched.as_slice() else { panic!("{:?}", built.watched) };
    let names: BTreeSet<&str> = watched.links.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, BTreeSet::from([".idea", "step", ".vscode", ".envrc"]));
    assert!(watched.names.iter().any(|it| it.name == "later/env"), "where a dangling link leads");
    // The kernel does not follow it either.
    assert_eq!(built.notes.len(), 1, "{:?}", built.notes);
    assert!(!built.lost.is_empty());
}

#[test]
fn a_directory_on_path_brings_the_files_that_its_programs_need() {
    let scene = Scene::new("path");
    scene.make("home/.cargo/bin/cargo");
    scene.make("home/.cargo/credentials.toml");
    scene.make("home/.rustup/toolchains/x");
    scene.make("home/tools/node-20/bin/node");
    scene.make("home/tools/node-20/lib/x");
    scene.make("home/bin/own");
    let home = scene.home();
    let path = format!("{0}/.cargo/bin:{0}/tools/node-20/bin:{0}/bin:relative:{0}/../x", home.display());
    let built = scene.build(&Files::default(), &scene.project(), Some(&path));
    for shown in [".cargo/bin/cargo", ".rustup/toolchains/x", "tools/node-20/lib/x", "bin/own"] {
        assert!(!is_hidden(&built, &home.join(shown)), "{shown}");
        assert!(!is_writable(&built, &home.join(shown)), "{shown}");
    }
    for hidden in [".cargo/credentials.toml", "tools/other", "letter.txt"] {
        assert!(is_hidden(&built, &home.join(hidden)), "{hidden}");
    }
}

/// N7.
#[test]
fn the_minimal_view_shows_only_the_named_paths() {
    let scene = Scene::new("minimal");
    scene.make("home/project/in/x");
    let input = scene.project().join("in");
    let files = Files { view: View::Minimal, ro: vec![bind(&input)], ..Files::default() };
    let built = scene.build(&files, &scene.project(), Some("/usr/bin"));
    assert!(is_hidden(&built, Path::new("/usr/bin/env")) && is_hidden(&built, &scene.project().join("y")));
    assert!(!is_hidden(&built, &input.join("x")));
    assert_eq!(built.cwd, Path::new("/tmp"));
}

#[test]
fn a_missing_tree_is_the_caller_s_mistake() {
    let scene = Scene::new("missing");
    let files = Files { ro: vec![bind(&scene.home().join("nowhere"))], ..Files::default() };
    let home = scene.home();
    let project = scene.project();
    let facts = facts(&project, &home);
    assert!(matches!(build(&files, &facts), Err(FileFault::Path { .. })));
}

#[test]
fn a_dangling_resolv_conf_is_resolved_by_its_words() {
    let scene = Scene::new("resolv");
    let link = scene.root.join("resolv.conf");
    symlink("home/../run/systemd/stub.conf", &link).unwrap();
    assert_eq!(resolved_place(&link), Some(scene.root.join("run/systemd/stub.conf")));
    let (a, b) = (scene.root.join("a"), scene.root.join("b"));
    symlink(&b, &a).unwrap();
    symlink(&a, &b).unwrap();
    assert_eq!(resolved_place(&a), None, "a loop");
}

#[test]
fn b01_a_socket_that_the_host_listens_on_is_hidden_wherever_it_is_named_from() {
    let scene = Scene::new("socket");
    let path = scene.project().join("dev server.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(
        listening_names(Path::new("/proc/net/unix")).unwrap().contains(&path),
        "spaces are part of a name"
    );
    let built = scene.build(&Files::default(), &scene.project(), None);
    assert!(is_hidden(&built, &path));
    assert_eq!(built.notes.len(), 1, "{:?}", built.notes);
}

#[test]
fn b01_a_socket_is_hidden_in_system_trees_behind_links_and_below_a_protected_directory_s_mount_point() {
    let scene = Scene::new("sockets");
    for name in [".git/config", ".git/info/attributes"] {
        scene.make(&format!("home/project/{name}"));
    }
    scene.make("home/tools/bin/node");
    symlink(scene.home().join("tools"), scene.home().join("named")).unwrap();
    let git = scene.project().join(".git/fsmonitor--daemon.ipc");
    let tool = scene.home().join("tools/daemon.sock");
    let _one = std::os::unix::net::UnixListener::bind(&git).unwrap();
    let _two = std::os::unix::net::UnixListener::bind(scene.home().join("named/daemon.sock")).unwrap();
    let path = format!("{}/tools/bin", scene.home().display());
    let built = scene.build(&Files::default(), &scene.project(), Some(&path));
    assert!(!is_hidden(&built, &scene.home().join("tools/bin/node")));
    assert!(is_hidden(&built, &git) && is_hidden(&built, &tool));
    assert_eq!(built.notes.len(), 3, "{:?}", built.notes);
    assert!(built.sockets_exposed, "programs keep sockets there");
}

/// Two levels down, whatever PATH or a variable says; and where all of a file system is shown.
#[test]
fn b01_a_tree_of_programs_that_may_hold_sockets_takes_them_from_the_stage() {
    let scene = Scene::new("held");
    let socket = |name: &str| {
        scene.make(name);
        let path = scene.root.join(name);
        fs::remove_file(&path).unwrap();
        // Nobody listens any more: the kernel has no name for it.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        path
    };
    for name in ["one/bin/x", "two/bin/x", "two/lib/deep/lib.so", "two/lib/deep/deeper/x", "three/bin/x"] {
        scene.make(&format!("home/{name}"));
    }
    let build = |name: &str| {
        let path = format!("{}/{name}/bin", scene.home().display());
        scene.build(&Files::default(), &scene.project(), Some(&path))
    };
    let quiet = build("two");
    assert!(!quiet.sockets_exposed && quiet.notes.is_empty(), "{:?}", quiet.notes);
    for name in ["home/one/s", "home/three/run/s"] {
        let at = socket(name);
        let built = build(name.split('/').nth(1).unwrap());
        assert!(built.sockets_exposed && built.notes.len() == 1, "{name}: {:?}", built.notes);
        assert!(built.notes[0].contains(&at.display().to_string()), "{:?}", built.notes);
    }
    // A walk through all of it would take too long.
    socket("home/two/lib/deep/s");
    assert!(!build("two").sockets_exposed);
    let mounts = Mounts::new(&whole(Path::new("/proc/self/mountinfo")).unwrap());
    assert!(sockets::why_exposed(Path::new("/proc"), &mounts).is_some_and(|why| why.contains("whole")));
}

#[test]
fn sockets_that_cannot_be_listed_count_as_exposed() {
    let scene = Scene::new("unlisted");
    let home = scene.home();
    let project = scene.project();
    let facts = facts(&project, &home);
    let files = Files::default();
    let mut view = Builder::new(&files, &facts).unwrap();
    assert!(!view.host_sockets(&scene.root.join("nowhere"), None));
    assert_eq!(view.notes.len(), 1);
    assert!(view.host_sockets(Path::new("/proc/net/unix"), None));
}

#[test]
fn directories_of_run_proc_nix_and_gnu_are_not_projects() {
    let scene = Scene::new("run");
    let built = scene.build(&Files::default(), Path::new("/run"), None);
    assert!(
        matches!(at(&built, Path::new("/run/x")), Some(Mount::Tmpfs { size: RUN_SIZE, .. })),
        "not the host's"
    );
    assert!(built.writable.is_empty());
    for cwd in ["/run", "/proc"] {
        let built = scene.build(&Files::default(), Path::new(cwd), None);
        assert_eq!(built.cwd, Path::new("/tmp"), "{cwd} holds nothing of the host's to work on");
    }
    for cwd in ["/run/user/1000/project", "/nix", "/nix/var/nix", "/gnu"] {
        let built = scene.build(&Files::default(), Path::new(cwd), None);
        assert!(built.writable.is_empty() && built.sockets_exposed, "{cwd}");
    }
    assert!(!lists::SYSTEM.contains(&"/nix"), "the daemon's socket is in it");
}

/// A8.
#[test]
fn a_mask_holds_in_every_tree_that_shows_its_path() {
    let scene = Scene::new("aliases");
    scene.make("home/data/.ssh/id");
    scene.make("home/data/deep/x");
    let data = scene.home().join("data");
    let to = |host: &Path, guest: &str| Bind { host: host.into(), guest: guest.into() };
    let files = Files {
        mask: vec![data.join(".ssh")],
        ro: vec![to(&data, "/data"), to(&data.join(".ssh/id"), "/id"), to(&data.join(".ssh"), "/keys")],
        rw: vec![to(&scene.home(), "/h")],
        ..Files::default()
    };
    let built = scene.build(&files, &scene.project(), None);
    for hidden in ["/data/.ssh/id", "/keys/id", "/h/data/.ssh/id"] {
        assert!(is_hidden(&built, Path::new(hidden)), "{hidden}");
    }
    for shown in ["/data/deep/x", "/h/data/deep/x"] {
        assert!(!is_hidden(&built, Path::new(shown)), "{shown}");
    }
}

#[test]
fn skips_a_mask_if_another_tree_is_mounted_over_its_path() {
    let scene = Scene::new("covered");
    scene.make("home/data/sub/key");
    scene.make("home/other/x");
    let data = scene.home().join("data");
    let to = |host: &Path, guest: &str| Bind { host: host.into(), guest: guest.into() };
    let files = Files {
        mask: vec![data.join("sub/key")],
        ro: vec![to(&data, "/data"), to(&scene.home().join("other"), "/data/sub")],
        ..Files::default()
    };
    let built = scene.build(&files, &scene.project(), None);
    // There is nothing to mount on, and bubblewrap would stop.
    assert!(
        matches!(at(&built, Path::new("/data/sub/key")), Some(Mount::ReadOnly { host, .. }) if host.ends_with("other"))
    );
}

#[test]
fn a_mask_above_the_private_cache_leaves_the_cache() {
    let scene = Scene::new("cache");
    scene.make("home/.cache/exeat/0/x");
    scene.make("home/.cache/pip/x");
    let (home, own) = (scene.home(), [scene.home().join(".cache/exeat")]);
    let cache = home.join(".cache/exeat/0");
    let project = scene.project();
    let facts = Facts { cache: Some(&cache), own: &own, ..facts(&project, &home) };
    let files = Files { mask: vec![home.join(".cache")], ..Files::default() };
    let built = build(&files, &facts).unwrap();
    assert!(is_writable(&built, &Path::new(CACHE).join("x")));
    assert!(built.writable.contains(&cache), "the record must not lie in it");
}

/// K46.
#[test]
fn credentials_are_masked_in_every_tree_and_only_a_deeper_one_of_the_caller_s_opens_them() {
    let scene = Scene::new("everywhere");
    for name in [".ssh/id", ".ssh/config", ".config/gh/hosts.yml", ".config/own/x", ".local/state/exeat/run"]
    {
        scene.make(&format!("home/{name}"));
    }
    let home = scene.home();
    let to = |host: &Path, guest: &str| Bind { host: host.into(), guest: guest.into() };
    let files = Files {
        ro: vec![bind(&home), to(&home, "/h"), bind(&home.join(".ssh/config")), to(&scene.root, "/all")],
        ..Files::default()
    };
    let built = scene.build(&files, &scene.project(), None);
    for name in [".ssh/id", ".config/gh/hosts.yml", ".local/state/exeat/run"] {
        for top in [home.as_path(), Path::new("/h"), Path::new("/all/home")] {
            assert!(is_hidden(&built, &top.join(name)), "{}", top.join(name).display());
        }
    }
    assert!(!is_hidden(&built, &home.join(".ssh/config")), "named");
    assert!(is_hidden(&built, Path::new("/h/.ssh/config")), "named at another place only");
    assert!(!is_hidden(&built, Path::new("/h/.config/own/x")));
    let built = scene.build(&Files::default(), &home.join(".config"), None);
    assert!(is_hidden(&built, &home.join(".config/gh/hosts.yml")), "in the working directory");
    assert!(is_read_only(&built, &home.join(".config/own/x")));
    let files = Files { ro: vec![to(&home.join(".ssh"), "/keys")], ..Files::default() };
    assert!(!is_hidden(&scene.build(&files, &scene.project(), None), Path::new("/keys/id")), "named");
    // L04: a link that is followed does not name what it leads to.
    std::os::unix::fs::symlink(".ssh", home.join("keys")).unwrap();
    for name in ["keys", "keys/id"] {
        let files = Files { ro: vec![to(&home.join(name), "/keys")], ..Files::default() };
        let built = scene.build(&files, &scene.project(), None);
        assert!(is_hidden(&built, Path::new("/keys/id")), "{name}");
        assert!(
            !built
                .mounts
                .iter()
                .any(|mount| matches!(mount, Mount::ReadOnly { host, .. } if host.ends_with(".ssh/id")))
        );
    }
}

#[test]
fn root_hides_root_only_files_at_every_place() {
    let scene = Scene::new("shadow");
    let home = scene.home();
    let project = scene.project();
    let facts = Facts { root: true, ..facts(&project, &home) };
    let etc = Bind { host: "/etc".into(), guest: "/etc2".into() };
    let built = build(&Files { ro: vec![etc], ..Files::default() }, &facts).unwrap();
    assert!(is_hidden(&built, Path::new("/etc/shadow")) && is_hidden(&built, Path::new("/etc2/shadow")));
    assert!(!is_hidden(&built, Path::new("/etc2/hosts")));
}

#[test]
fn b11_a_protected_name_holds_at_every_place_and_its_mounts_open_no_mask() {
    let scene = Scene::new("protected");
    for name in [".git/config", ".git/hooks/x", ".git/objects/x", ".vscode/sub/.envrc", ".envrc"] {
        scene.make(&format!("home/project/{name}"));
    }
    for name in [".cargo/config.toml", ".cargo/credentials.toml", ".npmrc"] {
        scene.make(&format!("home/{name}"));
    }
    let project = scene.project();
    let to = |host: &Path, guest: &str| Bind { host: host.into(), guest: guest.into() };
    let files = Files {
        rw: vec![
            to(&project.join(".git"), "/g2"),
            to(&project.join(".git/hooks"), "/hooks"),
            bind(&project.join(".vscode/sub")),
            to(&scene.home(), "/h"),
        ],
        ro: vec![bind(&project.join(".git/objects"))],
        ..Files::default()
    };
    for cwd in [project.clone(), Path::new("/").into()] {
        let built = scene.build(&files, &cwd, None);
        for held in ["/g2/config", "/g2/hooks/x", "/hooks/x", "/h/.cargo/config.toml"] {
            assert!(!is_writable(&built, Path::new(held)), "{held}");
        }
        assert!(is_writable(&built, Path::new("/g2/index")) && is_writable(&built, Path::new("/h/.cargo/x")));
        assert!(
            is_hidden(&built, Path::new("/h/.cargo/credentials.toml"))
                && is_hidden(&built, Path::new("/h/.npmrc"))
        );
        let watched =
            built.watched.iter().flat_map(|it| it.names.iter().map(|name| it.tree.join(&name.name)));
        let watched: BTreeSet<PathBuf> = watched.collect();
        for name in [".git/commondir", ".git/info/attributes"] {
            assert!(watched.contains(&project.join(name)), "{name}");
        }
    }
    let built = scene.build(&files, &project, None);
    for held in [".vscode/sub/x", ".vscode/settings.json", ".git/objects/x", ".git/config"] {
        assert!(!is_writable(&built, &project.join(held)), "{held}");
    }
    assert!(is_writable(&built, &project.join(".git/index")));
    let built = scene.build(&Files { allow_write: names(&[".git"]), ..files }, &project, None);
    assert!(is_writable(&built, Path::new("/g2/config")) && is_writable(&built, Path::new("/hooks/x")));
}

#[test]
fn b11_the_file_that_leads_to_a_repository_is_protected() {
    let scene = Scene::new("worktree");
    scene.make("home/project/.git");
    let built = scene.build(&Files::default(), &scene.project(), None);
    assert!(!is_writable(&built, &scene.project().join(".git")));
    assert!(is_writable(&built, &scene.project().join("src")));

    let scene = Scene::new("commondir");
    scene.make("home/project/.git/commondir");
    let built = scene.build(&Files::default(), &scene.project(), None);
    assert!(!is_writable(&built, &scene.project().join(".git/commondir")));
    assert!(is_writable(&built, &scene.project().join(".git/index")));
}

/// B12: of Jujutsu's repository too, which is a directory or a file that says where that is.
#[test]
fn b12_protects_the_files_that_lead_jujutsu_to_its_repository() {
    let scene = Scene::new("jujutsu");
    let project = scene.project();
    let pointers = |built: &Built| -> Vec<String> {
        built
            .watched
            .iter()
            .flat_map(|it| it.pointers.iter().filter(|name| *name != ".git").cloned())
            .collect()
    };
    let built = scene.build(&Files::default(), &project, None);
    assert_eq!(pointers(&built), [".jj/repo"]);
    scene.make("home/project/.jj/repo/store");
    let built = scene.build(&Files { allow_write: names(&[".git"]), ..Files::default() }, &project, None);
    assert_eq!(pointers(&built), [".jj/repo"]);
    assert!(is_writable(&built, &project.join(".jj/repo/store")));

    // A file leads to a repository in the tree, by way of a link, and on to a link that is the caller's own.
    fs::rename(project.join(".jj/repo"), project.join("real")).unwrap();
    fs::write(project.join("real/config.toml"), "").unwrap();
    symlink("real", project.join("way")).unwrap();
    fs::write(project.join(".jj/repo"), "../way").unwrap();
    let built = scene.build(&Files::default(), &project, None);
    assert!(!is_writable(&built, &project.join(".jj/repo")));
    assert!(
        !is_writable(&built, &project.join("real/config.toml"))
            && is_writable(&built, &project.join("real/store"))
    );
    assert!(built.watched.iter().any(|it| it.links.contains(&("way".into(), "real".into()))));
    fs::rename(project.join(".jj"), project.join("jj")).unwrap();
    symlink("jj", project.join(".jj")).unwrap();
    let built = scene.build(&Files::default(), &project, None);
    assert!(!is_writable(&built, &project.join("jj/repo")));
    assert_eq!(pointers(&built), ["jj/repo"], "and not by way of the link, which is the caller's own");
}

mod bounds;
mod listed;
mod place;

#[test]
fn a_home_in_passwd_is_a_user_s_or_none() {
    assert_eq!(home_of(Uid::from_raw(0)), Ok(Some("/root".into())));
    // The kernel's number for nobody at all (credentials(7), (uid_t) -1).
    assert_eq!(home_of(Uid::from_raw(u32::MAX)), Ok(None));
}

#[test]
fn b10_every_tree_of_the_host_has_an_owner() {
    let tree = |path: &str| Mount::ReadOnly { host: path.into(), at: path.into(), why: Why::View };
    let own = geteuid().as_raw();
    let found: BTreeSet<u32> =
        owners(&[tree("/usr"), tree("/proc/self"), tree("/nonexistent"), Mount::Proc]).collect();
    assert_eq!(found, [0, own].into());
}

/// The page and the sandbox show the same text.
#[test]
fn docs_have_the_words_for_agents() {
    let page = include_str!("../../../../docs/agents.md");
    assert!(
        page.contains(&format!("```text\n{AGENTS}```")),
        "docs/agents.md must have crates/files/src/agents.txt"
    );
}
