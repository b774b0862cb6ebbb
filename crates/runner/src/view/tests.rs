//! A HOME and a project on the real file system, and the mounts that come out.

use std::os::unix::fs::symlink;

use super::*;

struct Place {
    root: PathBuf,
}

impl Place {
    fn new(name: &str) -> Self {
        // Not below /tmp: that is a private place in every view.
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
        let home = self.home();
        let own = [home.join(".local/state/exeat"), PathBuf::from("/tmp")];
        let facts = Facts {
            cwd,
            home: &home,
            path: path.map(OsStr::new),
            named: Vec::new(),
            cache: None,
            own: &own,
            root: false,
            other: None,
        };
        build(files, &facts).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// What the stage sees at `path`: the last mount at or above it.
fn at<'a>(built: &'a Built, path: &Path) -> Option<&'a Mount> {
    built.mounts.iter().rev().find(|mount| match mount {
        Mount::ReadOnly { at, .. } | Mount::Writable { at, .. } | Mount::Tmpfs { at, .. } => {
            path.starts_with(at)
        }
        _ => false,
    })
}

fn is_writable(built: &Built, path: &Path) -> bool {
    matches!(at(built, path), Some(Mount::Writable { .. }))
}

fn is_hidden(built: &Built, path: &Path) -> bool {
    match at(built, path) {
        None => true,
        Some(Mount::Tmpfs { size, .. }) => *size == MASK_SIZE,
        Some(Mount::ReadOnly { host, .. }) => host == Path::new("/dev/null"),
        Some(_) => false,
    }
}

fn bind(host: &Path) -> Bind {
    Bind { host: host.into(), guest: host.into() }
}

#[test]
fn the_project_is_writable_and_the_rest_of_home_is_absent() {
    let place = Place::new("plain");
    let built = place.build(&Files::default(), &place.project(), None);
    assert!(is_writable(&built, &place.project().join("src/main.rs")));
    assert!(is_hidden(&built, &place.home().join("letter.txt")));
    assert_eq!(built.cwd, place.project());
    assert!(built.notes.is_empty() && !built.sockets_exposed);
}

#[test]
fn home_and_what_is_above_it_and_exeat_s_own_places_are_read_only_with_a_line() {
    let place = Place::new("home");
    place.make("home/.ssh/id");
    fs::create_dir_all(place.home().join(".local/state/exeat")).unwrap();
    for cwd in
        [place.home(), place.root.clone(), place.home().join(".local/state"), place.home().join(".local")]
    {
        let built = place.build(&Files::default(), &cwd, None);
        assert!(!is_writable(&built, &cwd), "{}", cwd.display());
        assert!(built.writable.is_empty());
        assert_eq!(built.notes.len(), 1, "{:?}", built.notes);
        assert!(built.sockets_exposed, "a wide tree may hold sockets");
        assert!(is_hidden(&built, &place.home().join(".local/state/exeat/x")), "{}", cwd.display());
    }
    let built = place.build(&Files::default(), &place.home(), None);
    assert!(is_hidden(&built, &place.home().join(".ssh/id")), "credentials of a wide tree are masked");
}

#[test]
fn the_root_directory_adds_nothing_of_the_host() {
    let place = Place::new("root");
    let built = place.build(&Files::default(), Path::new("/"), None);
    assert!(
        built.mounts.iter().all(|mount| !matches!(mount, Mount::ReadOnly { at, .. } if at == Path::new("/")))
    );
    assert!(built.writable.is_empty());
}

#[test]
fn system_trees_as_working_directory_are_not_writable() {
    let place = Place::new("system");
    for cwd in
        ["/usr/share", "/etc", "/var", "/tmp", "/opt"].map(Path::new).into_iter().filter(|cwd| cwd.is_dir())
    {
        let built = place.build(&Files::default(), cwd, None);
        assert!(built.writable.is_empty(), "{}", cwd.display());
    }
}

#[test]
fn n16_k4_a_narrow_read_only_tree_holds_inside_a_writable_one_and_the_other_way_round() {
    let place = Place::new("order");
    place.make("home/data/deep/x");
    let (data, deep) = (place.home().join("data"), place.home().join("data/deep"));
    let narrow_ro = Files { rw: vec![bind(&data)], ro: vec![bind(&deep)], ..Files::default() };
    let built = place.build(&narrow_ro, &place.project(), None);
    assert!(is_writable(&built, &data.join("y")) && !is_writable(&built, &deep.join("x")));
    let narrow_rw = Files { rw: vec![bind(&deep)], ro: vec![bind(&data)], ..Files::default() };
    let built = place.build(&narrow_rw, &place.project(), None);
    assert!(!is_writable(&built, &data.join("y")) && is_writable(&built, &deep.join("x")));
    let both = Files { rw: vec![bind(&data)], ro: vec![bind(&data)], ..Files::default() };
    assert!(
        !is_writable(&place.build(&both, &place.project(), None), &data),
        "of two the read-only one wins"
    );
}

#[test]
fn a_mask_of_the_caller_is_last_and_hides_directories_and_files() {
    let place = Place::new("mask");
    place.make("home/project/secrets/key");
    place.make("home/project/token");
    let (secrets, token) = (place.project().join("secrets"), place.project().join("token"));
    let files =
        Files { mask: vec![secrets.clone(), token.clone()], ro: vec![bind(&secrets)], ..Files::default() };
    let built = place.build(&files, &place.project(), None);
    assert!(is_hidden(&built, &secrets.join("key")) && is_hidden(&built, &token));
}

#[test]
fn the_host_view_masks_credentials_and_an_explicit_ro_opens_one() {
    let place = Place::new("host");
    place.make("home/.aws/credentials");
    place.make("home/.netrc");
    let aws = place.home().join(".aws");
    let files = Files { view: View::Host, ..Files::default() };
    let built = place.build(&files, &place.project(), None);
    assert!(is_hidden(&built, &aws.join("credentials")) && is_hidden(&built, &place.home().join(".netrc")));
    assert!(!is_hidden(&built, &place.home().join("letter.txt")));
    assert!(built.sockets_exposed);
    let files = Files { view: View::Host, ro: vec![bind(&aws)], ..Files::default() };
    assert!(!is_hidden(&place.build(&files, &place.project(), None), &aws.join("credentials")));
}

#[test]
fn b13_the_target_of_a_linked_credential_is_masked_too() {
    let place = Place::new("link");
    place.make("home/dotfiles/ssh/id");
    symlink(place.home().join("dotfiles/ssh"), place.home().join(".ssh")).unwrap();
    let built = place.build(&Files { view: View::Host, ..Files::default() }, &place.project(), None);
    assert!(is_hidden(&built, &place.home().join("dotfiles/ssh/id")));
}

#[test]
fn b11_protected_names_are_bound_and_every_directory_above_is_a_mount_point() {
    let place = Place::new("git");
    for name in [".git/config", ".git/hooks/pre-commit", ".git/info/attributes", ".envrc"] {
        place.make(&format!("home/project/{name}"));
    }
    let built = place.build(&Files::default(), &place.project(), None);
    let project = place.project();
    assert!(!is_writable(&built, &project.join(".git/config")));
    assert!(!is_writable(&built, &project.join(".git/hooks/post-merge")));
    assert!(!is_writable(&built, &project.join(".envrc")));
    assert!(is_writable(&built, &project.join(".git/index")), "commits go on working");
    for above in [".git", ".git/info"] {
        let mounted =
            built.mounts.contains(&Mount::Writable { host: project.join(above), at: project.join(above) });
        assert!(mounted, "{above} could be renamed away");
    }
    let open = Files { allow_git_config: true, ..Files::default() };
    let built = place.build(&open, &project, None);
    assert!(
        is_writable(&built, &project.join(".git/config")) && !is_writable(&built, &project.join(".envrc"))
    );
    assert!(matches!(built.held, Held::Partial { .. }), "recorded");
}

#[test]
fn b13_a_protected_name_behind_a_link_is_said_to_be_lost() {
    let place = Place::new("lost");
    place.make("home/elsewhere/settings.json");
    symlink(place.home().join("elsewhere"), place.project().join(".vscode")).unwrap();
    let built = place.build(&Files::default(), &place.project(), None);
    assert!(matches!(built.held, Held::Partial { .. }));
    assert_eq!(built.notes.len(), 1);
}

#[test]
fn a_directory_on_path_brings_what_its_programs_need() {
    let place = Place::new("path");
    place.make("home/.cargo/bin/cargo");
    place.make("home/.cargo/credentials.toml");
    place.make("home/.rustup/toolchains/x");
    place.make("home/tools/node-20/bin/node");
    place.make("home/tools/node-20/lib/x");
    place.make("home/bin/own");
    let home = place.home();
    let path = format!("{0}/.cargo/bin:{0}/tools/node-20/bin:{0}/bin:relative:{0}/../x", home.display());
    let built = place.build(&Files::default(), &place.project(), Some(&path));
    for shown in [".cargo/bin/cargo", ".rustup/toolchains/x", "tools/node-20/lib/x", "bin/own"] {
        assert!(!is_hidden(&built, &home.join(shown)), "{shown}");
        assert!(!is_writable(&built, &home.join(shown)), "{shown}");
    }
    for hidden in [".cargo/credentials.toml", "tools/other", "letter.txt"] {
        assert!(is_hidden(&built, &home.join(hidden)), "{hidden}");
    }
}

#[test]
fn the_minimal_view_has_only_what_is_declared() {
    let place = Place::new("minimal");
    place.make("home/project/in/x");
    let input = place.project().join("in");
    let files = Files { view: View::Minimal, ro: vec![bind(&input)], ..Files::default() };
    let built = place.build(&files, &place.project(), Some("/usr/bin"));
    assert!(is_hidden(&built, Path::new("/usr/bin/env")) && is_hidden(&built, &place.project().join("y")));
    assert!(!is_hidden(&built, &input.join("x")));
    assert_eq!(built.cwd, Path::new("/tmp"));
}

#[test]
fn a_missing_tree_is_the_caller_s_mistake() {
    let place = Place::new("missing");
    let files = Files { ro: vec![bind(&place.home().join("nowhere"))], ..Files::default() };
    let home = place.home();
    let facts = Facts {
        cwd: &place.project(),
        home: &home,
        path: None,
        named: Vec::new(),
        cache: None,
        own: &[],
        root: false,
        other: None,
    };
    assert_eq!(build(&files, &facts).unwrap_err().code(), 2);
}

#[test]
fn a_dangling_resolv_conf_is_resolved_by_its_words() {
    let place = Place::new("resolv");
    let link = place.root.join("resolv.conf");
    symlink("home/../run/systemd/stub.conf", &link).unwrap();
    assert_eq!(resolved_place(&link), Some(place.root.join("run/systemd/stub.conf")));
    let (a, b) = (place.root.join("a"), place.root.join("b"));
    symlink(&b, &a).unwrap();
    symlink(&a, &b).unwrap();
    assert_eq!(resolved_place(&a), None, "a loop");
}

#[test]
fn b01_a_socket_that_the_host_listens_on_is_hidden_wherever_it_is_named_from() {
    let place = Place::new("socket");
    let path = place.project().join("dev server.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(listening_names().contains(&path), "spaces are part of a name");
    let built = place.build(&Files::default(), &place.project(), None);
    assert!(is_hidden(&built, &path));
    assert_eq!(built.notes.len(), 1, "{:?}", built.notes);
}
