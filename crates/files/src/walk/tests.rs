use std::os::unix::fs::{MetadataExt, symlink};

use super::*;

/// A home with a project in it, below the build directory: /tmp is shared by everybody.
struct Dirs(PathBuf);

impl Dirs {
    fn new(name: &str) -> Self {
        let base = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
        let root = base.join(format!("walk-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for dir in [
            "home/project/versions/20/bin",
            "home/.ssh",
            "home/.nvm/versions/20",
            "home/.nvm/bin",
            "data/work",
        ] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        Self(root.canonicalize().unwrap())
    }

    fn rule(&self) -> LinkRule {
        LinkRule { written_file: self.0.join("written"), ..LinkRule::new(&self.0.join("home"), None) }
    }

    fn link(&self, target: &str, at: &str) {
        symlink(target, self.0.join(at)).unwrap();
    }

    fn walk(&self, path: &str) -> Result<PathBuf, WalkError> {
        self.rule().walk(&self.0.join(path)).map(|end| end.real.strip_prefix(&self.0).unwrap().to_path_buf())
    }

    fn is_refused(&self, path: &str) -> bool {
        match self.walk(path) {
            Err(WalkError::Link { .. }) => true,
            Ok(_) => false,
            Err(error) => panic!("{path}: {error}"),
        }
    }
}

impl Drop for Dirs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn l01_refuses_links_that_a_stage_could_have_left() {
    let dirs = Dirs::new("strays");
    dirs.link("../.ssh", "home/project/out");
    dirs.link("out", "home/project/chain");
    dirs.link(".", "home/project/here");
    dirs.link("versions/20", "home/project/current");
    dirs.link("..", "home/project/versions/up");
    dirs.link("nowhere/../../.ssh", "home/project/words");
    fs::create_dir(dirs.0.join("home/project/nowhere")).unwrap();
    // As the last name and in the middle, in chains, and with `..` after a link that is trusted for its end alone.
    for path in [
        "out",
        "chain",
        "out/x/..",
        "here",
        "here/versions",
        "versions/up/versions",
        "words",
        "current/../../../.ssh",
    ] {
        let _ = fs::create_dir(dirs.0.join("home/.ssh/x"));
        assert!(dirs.is_refused(&format!("home/project/{path}")), "{path}");
    }
    let Err(WalkError::Link { link, end }) = dirs.walk("home/project/chain") else { panic!() };
    assert_eq!((link, end), (dirs.0.join("home/project/out"), dirs.0.join("home/.ssh")));
}

#[test]
fn l01_follows_links_that_lead_below_themselves_or_lie_where_no_stage_writes() {
    let dirs = Dirs::new("kept");
    dirs.link("versions/20", "home/project/current");
    dirs.link("../data/work", "home/work");
    dirs.link("../versions/20", "home/.nvm/bin/node");
    let follows = [
        ("home/project/current/bin", "home/project/versions/20/bin"),
        ("home/project/current/..", "home/project/versions"),
        ("home/work", "data/work"),
        ("home/.nvm/bin/node", "home/.nvm/versions/20"),
        ("home/project/../.ssh", "home/.ssh"),
    ];
    for (path, end) in follows {
        assert_eq!(dirs.walk(path).unwrap(), Path::new(end), "{path}");
    }
}

#[test]
fn l01_the_walk_returns_a_descriptor_of_the_file_that_it_checked() {
    let dirs = Dirs::new("descriptor");
    dirs.link("versions/20", "home/project/current");
    let end = dirs.rule().walk(&dirs.0.join("home/project/current")).unwrap();
    let about = fs::metadata(dirs.0.join("home/project/versions/20")).unwrap();
    assert_eq!(fstat(&end.file).unwrap().st_ino, about.ino());
    assert_eq!(end.links, [dirs.0.join("home/project/current")]);
}

#[test]
fn l01_links_in_circles_and_missing_ends_are_errors_of_the_kernel() {
    let dirs = Dirs::new("circles");
    dirs.link("b", "home/project/a");
    dirs.link("a", "home/project/b");
    dirs.link("nothing", "home/project/dangling");
    let Err(WalkError::Io(error)) = dirs.walk("home/project/a") else { panic!() };
    assert_eq!(error.raw_os_error(), Some(Errno::ELOOP as i32));
    assert!(dirs.walk("home/project/dangling").unwrap_err().is_absent());
}

#[test]
fn descriptors_of_this_process_are_followed_and_those_of_others_are_not() {
    let dirs = Dirs::new("proc");
    let file = File::open(dirs.0.join("home/project")).unwrap();
    for base in ["/proc/self/fd", "/dev/fd"] {
        let end = dirs.rule().walk(Path::new(&format!("{base}/{}", file.as_raw_fd()))).unwrap();
        assert_eq!(end.real, dirs.0.join("home/project"));
    }
    assert!(matches!(
        dirs.rule().walk(Path::new("/proc/1/cwd")),
        Err(WalkError::Link { .. } | WalkError::Io(_))
    ));
    let parent = format!("/proc/{}/cwd", std::os::unix::process::parent_id());
    assert!(matches!(dirs.rule().walk(Path::new(&parent)), Err(WalkError::Link { .. })));
}

#[test]
fn system_links_are_followed() {
    let dirs = Dirs::new("system");
    for path in ["/bin/sh", "/lib", "/etc/alternatives/awk", "/proc/self/status", "/dev/stdin"] {
        if Path::new(path).exists() {
            dirs.rule().walk(Path::new(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        }
    }
}

#[test]
fn words_are_cleaned_without_a_look_at_the_disk() {
    assert_eq!(clean(Path::new("/a/./b/../c")), Path::new("/a/c"));
    assert_eq!(clean(Path::new("/../a")), Path::new("/a"));
}

#[test]
fn l01_a_place_at_the_end_of_a_link_is_the_end() {
    let dirs = Dirs::new("ends");
    dirs.link("versions/20", "home/project/current");
    dirs.link("../.ssh", "home/project/out");
    dirs.link("missing", "home/project/dangling");
    let place = |path: &str| dirs.rule().place_at_end(&dirs.0.join("home/project").join(path));
    let end = |path: &str| dirs.0.join("home/project").join(path);
    assert_eq!(place("current").unwrap(), end("versions/20"));
    assert_eq!(place("current/new").unwrap(), end("versions/20/new"));
    assert!(matches!(place("out"), Err(WalkError::Link { .. })));
    assert!(matches!(place("out/new"), Err(WalkError::Link { .. })));
    assert!(place("dangling").unwrap_err().is_absent());
}

#[test]
fn l01_the_working_directory_has_the_name_that_leads_to_it() {
    let dirs = Dirs::new("pwd");
    dirs.link("project", "home/link");
    let (real, link) = (dirs.0.join("home/project"), dirs.0.join("home/link"));
    let named = |pwd: &Path| cwd_by_name(pwd.as_os_str(), &real).map(Path::to_path_buf);
    assert_eq!(named(&link), Some(link.clone()));
    assert_eq!(named(&real), Some(real.clone()));
    // Another directory, none, and a relative name.
    assert_eq!((named(&dirs.0), named(Path::new("")), named(Path::new("."))), (None, None, None));
}

#[test]
fn l01_notes_the_trees_in_which_links_would_be_followed() {
    let dirs = Dirs::new("noted");
    fs::create_dir_all(dirs.0.join("home/.config/exeat")).unwrap();
    dirs.link("project", "home/way");
    assert_eq!(dirs.walk("home/way").unwrap(), Path::new("home/project"));
    let [home, project, below] =
        ["home", "home/project", "home/.config/exeat/deep"].map(|it| dirs.0.join(it));
    // Above a directory of settings, beside one, and below one; the last lies in a system tree.
    let trees = [&*home, &*project, &*below, Path::new("/usr/local/lib")];
    dirs.rule().note_written(trees).unwrap();
    assert_eq!(dirs.rule().written(), [&*home, Path::new("/usr/local/lib")]);
    dirs.rule().note_written(trees).unwrap();
    assert_eq!(dirs.rule().written().len(), 2);
    assert_eq!(dirs.walk("home/way").unwrap(), Path::new("home/project"));
    dirs.link("../data", "home/away");
    assert!(dirs.is_refused("home/away"));
}

#[test]
fn l01_a_directory_is_made_only_where_no_link_leads_astray() {
    let dirs = Dirs::new("made");
    dirs.link("../.ssh", "home/project/out");
    dirs.link("versions", "home/project/own");
    dirs.link("nowhere", "home/project/dangling");
    let make = |path: &str| dirs.rule().make_directory(&dirs.0.join(path), Mode::from_bits_truncate(0o777));
    for path in ["home/project/out/a/b", "home/project/versions/../out/a"] {
        assert!(matches!(make(path), Err(WalkError::Link { .. })), "{path}");
    }
    assert_eq!(fs::read_dir(dirs.0.join("home/.ssh")).unwrap().count(), 0);
    for path in ["home/project/dangling/a", "home/project/new/../b"] {
        assert!(make(path).is_err(), "{path}");
    }
    assert!(!dirs.0.join("home/project/new").exists());
    for path in ["home/project/new/a/b", "home/project/new/a/b", "home/project/own/a/b"] {
        make(path).unwrap();
        assert!(dirs.0.join(path).is_dir(), "{path}");
    }
}

/// To open a named pipe waits for a writer, and a stage may have made it. One without a name is the caller's.
#[test]
fn l18_a_named_pipe_is_not_waited_for() {
    let dirs = Dirs::new("pipe");
    let pipe = dirs.0.join("pipe");
    nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    assert!(dirs.rule().walk(&pipe).unwrap().read().is_err());
    let (reader, _writer) = io::pipe().unwrap();
    let passed = format!("/proc/self/fd/{}", reader.as_raw_fd());
    dirs.rule().walk(Path::new(&passed)).unwrap().read().unwrap();
}
