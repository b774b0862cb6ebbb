//! Ceilings, declarations and work directories.

use crate::request::Declared;
use proptest::prelude::*;

use super::*;

/// A scene with a tree `srv` beside HOME: directories `a` and `b`, three deep, each with a file `f`.
fn make_scene(name: &str) -> Scene {
    let scene = Scene::new(name);
    for dir in ["", "a/", "b/", "a/a/", "a/b/", "b/a/", "b/b/", "a/a/a/", "a/a/b/"] {
        scene.make(&format!("srv/{dir}f"));
    }
    for name in ["src/f", "src/a/f", "out/f"] {
        scene.make(&format!("home/project/{name}"));
    }
    scene
}

fn to(host: &Path, guest: &str) -> Bind {
    Bind { host: host.into(), guest: guest.into() }
}

fn ceiling(ro: Option<&[&Path]>, rw: Option<&[&Path]>) -> Bounds {
    let list = |paths: &[&Path]| paths.iter().map(PathBuf::from).collect();
    Bounds { name: "site.toml".into(), ro: ro.map(list), rw: rw.map(list), ..Bounds::default() }
}

/// Files shown, read only and writable, by place: `f` of everything below `root`.
fn list_shown(built: &Built, root: &Path) -> BTreeMap<PathBuf, (PathBuf, bool)> {
    let mut all = vec![root.to_path_buf()];
    let mut next = 0;
    while let Some(dir) = all.get(next).cloned() {
        next += 1;
        if let Ok(entries) = fs::read_dir(&dir) {
            all.extend(entries.flatten().map(|entry| entry.path()));
        }
    }
    let mut seen = BTreeMap::new();
    for mount in &built.mounts {
        let (Mount::ReadOnly { host, at: top, .. } | Mount::Writable { host, at: top, .. }) = mount else {
            continue;
        };
        for path in &all {
            let Ok(below) = path.strip_prefix(host) else { continue };
            let guest = joined(top, below);
            if at(built, &guest).is_some_and(|decides| std::ptr::eq(decides, mount)) {
                seen.insert(guest, (path.clone(), matches!(mount, Mount::Writable { .. })));
            }
        }
    }
    seen
}

/// K13: a wider view than any ceiling's becomes that one.
#[test]
fn k13_the_view_is_the_narrowest_of_all() {
    let scene = make_scene("narrow-view");
    let bound = |name: &str, view| Bounds { name: name.into(), view: Some(view), ..Bounds::default() };
    let bounds = vec![bound("site.toml", View::Project), bound("user.toml", View::Minimal)];
    let built = scene.build(&Files { view: View::Host, bounds, ..Files::default() }, &scene.project(), None);
    assert!(is_hidden(&built, Path::new("/usr/bin/env")) && is_hidden(&built, &scene.project().join("src")));
    assert_eq!(built.notes.len(), 2, "{:?}", built.notes);
    assert!(built.notes[1].contains("`minimal`, not `project`") && built.notes[1].contains("user.toml"));
    let bounds = vec![bound("site.toml", View::Host)];
    let built = scene.build(&Files { bounds, ..Files::default() }, &scene.project(), None);
    assert!(is_writable(&built, &scene.project()) && built.notes.is_empty(), "{:?}", built.notes);
}

/// K13: what contains a listed path is cut down to it, at the place that it had inside.
#[test]
fn k13_a_bind_is_cut_down_to_the_paths_that_the_ceiling_lists() {
    let scene = make_scene("cut");
    let (srv, a, b) = (scene.root.join("srv"), scene.root.join("srv/a"), scene.root.join("srv/b"));
    let files = Files {
        view: View::Minimal,
        ro: vec![to(&srv, "/data"), bind(&b.join("a"))],
        rw: vec![to(&srv, "/w"), to(&a.join("a"), "/in")],
        bounds: vec![ceiling(Some(&[&b.join("b")]), Some(&[&a]))],
        ..Files::default()
    };
    let built = scene.build(&files, &scene.project(), None);
    let shown: Vec<_> = list_shown(&built, &srv).into_iter().filter(|(at, _)| at.ends_with("f")).collect();
    let at =
        |guest: &str, host: PathBuf, writable| (PathBuf::from(guest).join("f"), (host.join("f"), writable));
    let mut expected = vec![at("/data/b/b", b.join("b"), false), at("/w/b/b", b.join("b"), false)];
    for (dir, host) in [
        ("", a.clone()),
        ("/a", a.join("a")),
        ("/b", a.join("b")),
        ("/a/a", a.join("a/a")),
        ("/a/b", a.join("a/b")),
    ] {
        expected.push(at(&format!("/data/a{dir}"), host.clone(), false));
        expected.push(at(&format!("/w/a{dir}"), host, true));
    }
    for dir in ["", "/a", "/b"] {
        expected.push(at(&format!("/in{dir}"), a.join(format!("a{dir}")), true));
    }
    expected.sort();
    assert_eq!(shown, expected);
    assert_eq!(built.notes.len(), 3, "one a change: {:?}", built.notes);
    assert!(built.notes.iter().all(|note| note.contains("the ceiling `site.toml`")));
    assert_eq!(built.writable, [a.join("a"), a.clone()], "the record is kept out of these");
}

/// K13: writable beyond what is listed becomes read-only; an empty list allows nothing.
#[test]
fn k13_a_ceiling_makes_unlisted_paths_read_only_or_leaves_them_out() {
    let scene = make_scene("levels");
    let srv = scene.root.join("srv");
    let shown = |bounds: Bounds| {
        let files = Files { rw: vec![bind(&srv)], bounds: vec![bounds], ..Files::default() };
        scene.build(&files, &scene.project(), None)
    };
    let built = shown(ceiling(None, Some(&[])));
    assert!(is_read_only(&built, &srv) && is_read_only(&built, &scene.project()));
    assert!(built.writable.is_empty());
    assert_eq!(built.notes.len(), 2, "{:?}", built.notes);
    let built = shown(ceiling(Some(&[]), None));
    assert!(is_hidden(&built, &srv) && is_hidden(&built, &scene.project()));
    assert_eq!(built.cwd, scene.project(), "an empty directory of that name");
    assert!(built.mounts.contains(&Mount::Dir { at: scene.project() }));
    let built = shown(ceiling(Some(&[&srv]), Some(&[&srv.join("a")])));
    assert!(is_read_only(&built, &srv.join("b")) && is_writable(&built, &srv.join("a/x")));
    let built = shown(ceiling(None, None));
    assert!(is_writable(&built, &srv) && built.notes.is_empty());
}

/// The working directory is met like a bind, but what a ceiling lists in it keeps it in place.
#[test]
fn k13_the_working_directory_is_writable_only_where_the_ceiling_lists_it() {
    let scene = make_scene("cwd");
    let project = scene.project();
    let shown =
        |bounds: Bounds| scene.build(&Files { bounds: vec![bounds], ..Files::default() }, &project, None);
    let built = shown(ceiling(None, Some(&[&project.join("out")])));
    assert!(is_read_only(&built, &project.join("src")) && is_writable(&built, &project.join("out/x")));
    assert_eq!((built.cwd.clone(), built.notes.len()), (project.clone(), 1), "{:?}", built.notes);
    let built = shown(ceiling(Some(&[&project.join("src")]), None));
    assert!(is_hidden(&built, &project.join("out/f")) && is_writable(&built, &project.join("src/f")));
    assert_eq!(built.cwd, project);
    let built = shown(ceiling(None, Some(&[&scene.home()])));
    assert!(is_writable(&built, &project.join("src")) && built.notes.is_empty());
    let home = scene.build(
        &Files { bounds: vec![ceiling(Some(&[&project]), None)], ..Files::default() },
        &scene.home(),
        None,
    );
    assert!(is_hidden(&home, &project.join("src")) && is_hidden(&home, &scene.home().join("letter")));
}

/// A ceiling's list opens nothing: neither a masked credential, nor what the caller's own narrower bind takes back, nor what
/// a bind that is left out would have covered.
#[test]
fn k13_a_ceiling_brings_nothing_to_light() {
    let scene = make_scene("light");
    scene.make("home/.ssh/id");
    let (home, srv) = (scene.home(), scene.root.join("srv"));
    let ssh = home.join(".ssh");
    let files =
        Files { ro: vec![to(&home, "/h")], bounds: vec![ceiling(Some(&[&ssh]), None)], ..Files::default() };
    let built = scene.build(&files, Path::new("/"), None);
    assert!(is_hidden(&built, Path::new("/h/.ssh/id")), "not named");
    let files = Files { ro: vec![to(&ssh, "/h")], ..files };
    assert!(!is_hidden(&scene.build(&files, Path::new("/"), None), Path::new("/h/id")), "named");

    let files = Files {
        rw: vec![bind(&srv)],
        ro: vec![bind(&srv.join("a"))],
        bounds: vec![ceiling(None, Some(&[&srv.join("a/a")]))],
        ..Files::default()
    };
    assert!(!is_writable(&scene.build(&files, Path::new("/"), None), &srv.join("a/a/f")));

    let project = scene.project();
    let files = Files {
        ro: vec![Bind { host: srv.clone(), guest: project.join("src") }],
        bounds: vec![ceiling(Some(&[&project]), None)],
        ..Files::default()
    };
    let built = scene.build(&files, &project, None);
    assert!(is_hidden(&built, &project.join("src/f")), "the caller had covered it");
    assert!(is_writable(&built, &project.join("out/f")));
}

/// K1, B13: nothing opens a ceiling's mask, and a linked one is masked where it really is.
#[test]
fn k1_a_mask_of_a_ceiling_never_opens() {
    let scene = make_scene("never");
    let (srv, project) = (scene.root.join("srv"), scene.project());
    symlink(srv.join("a"), scene.root.join("link")).unwrap();
    let bounds = |mask: &[PathBuf]| vec![Bounds { mask: mask.to_vec(), ..ceiling(None, None) }];
    let files = Files {
        ro: vec![
            bind(&srv),
            bind(&srv.join("a/a")),
            to(&srv.join("a/a"), "/a"),
            to(&srv.join("a/f"), "/f"),
            to(&srv, "/s"),
        ],
        rw: vec![bind(&srv.join("a/b"))],
        bounds: bounds(&[scene.root.join("link"), scene.root.join("absent"), project.join("src/f")]),
        ..Files::default()
    };
    let built = scene.build(&files, &project, None);
    for (at, (host, _)) in list_shown(&built, &srv) {
        assert!(!host.starts_with(srv.join("a")), "{} shows {}", at.display(), host.display());
    }
    assert!(!is_hidden(&built, &srv.join("b/f")) && !is_hidden(&built, Path::new("/s/b/f")));
    assert!(is_hidden(&built, &project.join("src/f")), "a file too");
    assert_eq!(built.notes.len(), 5, "{:?}", built.notes);
    let absent = built.notes.iter().filter(|note| note.contains("absent") && note.contains("to mask"));
    assert_eq!(absent.count(), 1, "A8: one that names nothing is said: {:?}", built.notes);
    // All of the working directory, and a toolchain.
    let files = Files { bounds: bounds(&[project.clone(), srv.clone()]), ..Files::default() };
    let path = srv.join("a");
    let built = scene.build(&files, &project, path.to_str());
    assert!(is_hidden(&built, &project.join("src/f")) && is_hidden(&built, &srv.join("a/f")));
    let files = Files { view: View::Host, ..files };
    assert!(is_hidden(&scene.build(&files, &project, None), &srv.join("a/f")));
}

/// K2: inside a mask of the caller's own, a deeper bind of the caller's opens what it names, and only that.
#[test]
fn k2_a_deeper_bind_opens_part_of_a_mask() {
    let scene = make_scene("reopen");
    let srv = scene.root.join("srv");
    let files = Files {
        ro: vec![bind(&srv), bind(&srv.join("a/a"))],
        rw: vec![bind(&srv.join("a/b/f"))],
        mask: vec![srv.join("a"), srv.join("a/a/a"), scene.root.join("absent")],
        ..Files::default()
    };
    let built = scene.build(&files, &scene.project(), None);
    assert!(is_read_only(&built, &srv.join("a/a/f")) && is_writable(&built, &srv.join("a/b/f")));
    for hidden in ["a/f", "a/a/a/f", "a/b/x"] {
        assert!(is_hidden(&built, &srv.join(hidden)), "{hidden}");
    }
    assert_eq!(built.notes.len(), 1, "A8: what is not there is skipped: {:?}", built.notes);
    // One has to be able to get there.
    let entry = EmptyEntry::Dir { mode: 0o555 };
    assert!(built.mounts.contains(&Mount::Hidden { at: srv.join("a"), entry, why: Why::Masked }));
    // By its name too: over another tree at its place, and under one that lies deeper.
    let deeper = Bind { host: srv.join("b/b"), guest: srv.join("a/a") };
    let files = Files {
        ro: vec![Bind { host: srv.join("b"), guest: srv.join("a") }, deeper],
        mask: vec![srv.join("a")],
        ..Files::default()
    };
    let built = scene.build(&files, &scene.project(), None);
    assert!(is_hidden(&built, &srv.join("a/f")) && is_read_only(&built, &srv.join("a/a/f")));
    // The working directory is not a bind that says so.
    let files = Files { mask: vec![scene.home()], ..Files::default() };
    assert!(is_hidden(&scene.build(&files, &scene.project(), None), &scene.project().join("src/f")));
}

/// K5: the caller gives git's files up, and a ceiling does not.
#[test]
fn k5_a_ceiling_keeps_git_protected() {
    let scene = make_scene("git-ceiling");
    scene.make("home/project/.git/config");
    let config = scene.project().join(".git/config");
    let name = |text: &str| text.parse::<LetThrough>().unwrap();
    let shown = |allow: Option<&[&str]>| {
        let list = allow.map(|list| list.iter().map(|text| name(text)).collect());
        let bounds = vec![Bounds { allow_write: list, ..ceiling(None, None) }];
        let allow_write = vec![name(".git")];
        scene.build(&Files { allow_write, bounds, ..Files::default() }, &scene.project(), None)
    };
    for list in [&[][..], &[".vscode"], &[".git/config"]] {
        assert!(!is_writable(&shown(Some(list)), &config), "{list:?}");
        assert!(shown(Some(list)).notes.iter().any(|note| note.contains("site.toml")), "{list:?}");
    }
    assert!(is_writable(&shown(Some(&[".git"])), &config) && is_writable(&shown(None), &config));
}

/// B12: a ceiling lets through what it lists, and what lies in that; what it says of git holds for git's names.
#[test]
fn b12_a_ceiling_bounds_the_protected_names_that_are_let_through() {
    let scene = make_scene("let-through-ceiling");
    for name in [".vscode/f", ".claude/a/f", ".git/config", ".git/hooks/f"] {
        scene.make(&format!("home/project/{name}"));
    }
    let project = scene.project();
    let name = |text: &str| text.parse::<LetThrough>().unwrap();
    let open = |list: Option<&[&str]>, git: &[&str]| {
        let list = list.map(|list| list.iter().map(|text| name(text)).collect());
        let bounds = vec![Bounds { allow_write: list, ..ceiling(None, None) }];
        let names = [".vscode", ".claude/a", ".git/hooks"];
        let allow_write = names.iter().chain(git).map(|text| name(text)).collect();
        let files = Files { allow_write, bounds, ..Files::default() };
        let built = scene.build(&files, &project, None);
        let all = [".vscode/f", ".claude/a/f", ".git/config", ".git/hooks/f"];
        all.into_iter().filter(|name| is_writable(&built, &project.join(name))).collect::<Vec<_>>()
    };
    let git = &[".git"][..];
    assert_eq!(open(None, &[]), [".vscode/f", ".claude/a/f", ".git/hooks/f"]);
    assert_eq!(open(None, git), [".vscode/f", ".claude/a/f", ".git/config", ".git/hooks/f"]);
    assert!(open(Some(&[]), git).is_empty());
    assert_eq!(open(Some(&[".git"]), git), [".git/config", ".git/hooks/f"]);
    assert_eq!(open(Some(&[".git"]), &[]), [".git/hooks/f"]);
    assert_eq!(open(Some(&[".claude", ".git/hooks"]), git), [".claude/a/f", ".git/hooks/f"]);
    assert_eq!(open(Some(&[".claude/a/b"]), git), [""; 0]);
}

/// B12: a ceiling that leaves only part of a tree writable leaves the names in it protected, and watched.
#[test]
fn b12_names_in_a_cut_tree_are_protected_and_watched() {
    let scene = make_scene("watched");
    scene.make("home/project/.git/config");
    scene.make("home/project/.cargo/x");
    let project = scene.project();
    let lists = [project.join(".git"), project.join(".cargo")];
    let bounds = vec![ceiling(None, Some(&[&lists[0], &lists[1]]))];
    let built = scene.build(&Files { bounds, ..Files::default() }, &project, None);
    assert!(
        is_writable(&built, &project.join(".git/index"))
            && !is_writable(&built, &project.join(".git/config"))
    );
    let watched: Vec<PathBuf> =
        built.watched.iter().flat_map(|it| it.names.iter().map(|name| it.tree.join(&name.name))).collect();
    for name in [".git/hooks", ".cargo/config.toml"] {
        assert!(watched.contains(&project.join(name)), "{name}: {watched:?}");
    }
    assert!(!watched.contains(&project.join(".envrc")), "nobody can make it");
}

/// K45, B13, B14: a link that a stage could have made leads nowhere; one within its own tree is like any path.
#[test]
fn b14_a_link_in_a_writable_tree_widens_nothing() {
    let scene = make_scene("stray");
    let (srv, project) = (scene.root.join("srv"), scene.project());
    symlink(&srv, project.join("data")).unwrap();
    symlink("src", project.join("inner")).unwrap();
    symlink(project.join("data"), project.join("twice")).unwrap();
    for name in ["data", "data/a", "twice/b"] {
        for rw in [false, true] {
            let bind = vec![bind(&project.join(name))];
            let files = if rw {
                Files { rw: bind, ..Files::default() }
            } else {
                Files { ro: bind, ..Files::default() }
            };
            let error = scene.try_build(&files, &project, None).unwrap_err();
            assert!(matches!(error, FileFault::StrayLink { .. }), "{error}");
            assert!(error.fix().is_some_and(|fix| fix.contains("srv")));
        }
    }
    let inner = Files { rw: vec![to(&project.join("inner"), "/in")], ..Files::default() };
    assert!(is_writable(&scene.build(&inner, &project, None), Path::new("/in/f")));
    // L01: so is one that another run could have left elsewhere. In the caller's home no stage can make one.
    symlink("srv", scene.root.join("inside")).unwrap();
    symlink(&srv, scene.home().join("mine")).unwrap();
    let to_m = |name: &Path| Files { ro: vec![to(name, "/m")], ..Files::default() };
    symlink(scene.home().join("letter"), srv.join("left")).unwrap();
    assert!(scene.try_build(&to_m(&srv.join("left")), &project, None).is_err());
    for trusted in [scene.root.join("inside"), scene.home().join("mine")] {
        assert!(is_read_only(&scene.build(&to_m(&trusted), &project, None), Path::new("/m/a/f")));
    }
    // A ceiling compares real paths: inside the listed path by its name alone is outside.
    let bounds = vec![ceiling(Some(&[&scene.home()]), Some(&[&project]))];
    let files =
    // A link that the ceiling lists does not count either, if a stage could have made it.
        Files { view: View::Minimal, ro: vec![bind(&scene.home().join("mine"))], bounds, ..Files::default() };
    let built = scene.build(&files, &project, None);
    assert!(list_shown(&built, &srv).is_empty() && built.notes.len() == 1, "{:?}", built.notes);
    let bounds = vec![ceiling(Some(&[&project, &project.join("data")]), None)];
    let files = Files { ro: vec![bind(&srv)], bounds, ..Files::default() };
    let built = scene.build(&files, &project, None);
    assert!(list_shown(&built, &srv).is_empty() && built.notes.len() == 2, "{:?}", built.notes);
}

/// A tree that a variable names is not a bind. But if the user gives the variable a value, the tree is a grant like a bind.
#[test]
fn k13_a_variable_with_a_value_names_no_tree_beyond_a_ceiling() {
    let scene = make_scene("asked");
    let (home, srv, project) = (scene.home(), scene.root.join("srv"), scene.project());
    let variables = |named: &[&Path], asked: &[&Path]| Facts {
        named: named.iter().map(PathBuf::from).collect(),
        asked: asked.iter().map(PathBuf::from).collect(),
        ..facts(&project, &home)
    };
    let files = Files { bounds: vec![ceiling(Some(&[&srv.join("a")]), None)], ..Files::default() };
    let built = build(&files, &variables(&[], &[&srv.join("a"), &srv.join("b")])).unwrap();
    assert!(is_read_only(&built, &srv.join("a/f")) && is_hidden(&built, &srv.join("b/f")));
    assert!(built.notes.iter().any(|note| note.contains("srv/b")), "{:?}", built.notes);
    let built = build(&files, &variables(&[&srv.join("b")], &[])).unwrap();
    assert!(is_read_only(&built, &srv.join("b/f")), "the caller's own");
}

/// N12: a declaration is one more bound of the binds, and what it names has to be there.
#[test]
fn n12_a_declaration_bounds_the_binds_and_each_declared_path_needs_a_grant() {
    let scene = make_scene("declared");
    let (srv, project) = (scene.root.join("srv"), scene.project());
    let declare = |read: &[&Path], write: &[&Path], narrow| Files {
        rw: vec![bind(&srv)],
        declared: Some(Declared {
            read: read.iter().map(PathBuf::from).collect(),
            write: write.iter().map(PathBuf::from).collect(),
            narrow,
            ..Declared::default()
        }),
        ..Files::default()
    };
    let files =
        declare(&[&srv.join("a"), Path::new("/usr")], &[&srv.join("b/a"), &project.join("out")], false);
    let built = scene.build(&files, &project, None);
    assert!(is_read_only(&built, &srv.join("a/f")) && is_writable(&built, &srv.join("b/a/f")));
    assert!(is_hidden(&built, &srv.join("b/f")) && is_writable(&built, &project.join("src/f")));

    let elsewhere = scene.home().join("letters");
    fs::create_dir(&elsewhere).unwrap();
    let cases = [
        (declare(&[&elsewhere], &[], false), "effect:FsRead: `", "nothing shows it", "--ro "),
        (declare(&[], &[&elsewhere], false), "effect:FsWrite: `", "nothing makes it writable", "--rw "),
        (
            declare(&[], &[Path::new("/usr")], false),
            "effect:FsWrite: `",
            "nothing makes it writable",
            "--rw ",
        ),
    ];
    for (files, effect, why, fix) in cases {
        let error = scene.try_build(&files, &project, None).unwrap_err();
        let said = error.to_string();
        assert!(said.contains(effect) && said.ends_with(why), "{said}");
        assert!(
            error
                .fix()
                .is_some_and(|hint| hint.starts_with(fix) && hint.contains("--set effects.on_excess=narrow"))
        );
        let narrow = files.declared.map(|declared| Declared { narrow: true, ..declared });
        let built = scene.build(&Files { declared: narrow, ..files }, &project, None);
        let said = said.replace("the stage declares more than it is granted:", "left out:");
        assert!(built.notes.contains(&said), "{:?}", built.notes);
    }
    let error = scene.try_build(&declare(&[&elsewhere], &[&elsewhere], false), &project, None).unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains(":FsRead: `") && said.contains(":FsWrite: `") && said.lines().count() == 3,
        "{said}"
    );
    let place = elsewhere.display();
    let fix = error.fix().unwrap();
    assert!(fix.starts_with(&format!("--ro {place} --rw {place} grants them; --set ")), "{fix}");
    // The one flag is not declared: another flag would not make it useful.
    let mut files = declare(&[&elsewhere], &[], false);
    files.rw = vec![bind(&srv.join("b"))];
    let mut declared = files.declared.take().unwrap();
    declared.instead = vec!["--rw /srv/b".into()];
    let fix = |declared: &Declared, files: &Files| {
        let files = Files { declared: Some(declared.clone()), ..files.clone() };
        scene.try_build(&files, &project, None).unwrap_err().fix().unwrap()
    };
    let said = fix(&declared, &files);
    assert!(said.starts_with("leave --rw /srv/b out: the stage does not declare it"), "{said}");
    declared.write = vec![srv.join("b")];
    let said = fix(&declared, &files);
    assert!(said.starts_with("--ro "), "{said}");
    let files = declare(&[], &[&srv.join("a")], false);
    let files = Files { bounds: vec![ceiling(None, Some(&[&srv.join("b")]))], ..files };
    let said = scene.try_build(&files, &project, None).unwrap_err().to_string();
    assert!(said.ends_with("the ceiling `site.toml` does not allow it"), "{said}");

    // A stage could have made the link: it says more than what was declared.
    symlink(&srv, project.join("wide")).unwrap();
    let wide = |narrow| Files {
        declared: Some(Declared {
            read: vec![project.join("wide/b")],
            write: Vec::new(),
            narrow,
            ..Declared::default()
        }),
        ro: vec![bind(&srv)],
        ..Files::default()
    };
    let error = scene.try_build(&wide(false), &project, None).unwrap_err();
    assert!(matches!(error, FileFault::StrayLink { .. }), "{error}");
    let built = scene.build(&wide(true), &project, None);
    assert!(is_hidden(&built, &srv.join("b/f")), "K13: and is left out where less will do");
    assert!(built.notes.iter().any(|note| note.contains("a stage could have made")), "{:?}", built.notes);

    let absent = declare(&[&srv.join("absent")], &[], false);
    let error = scene.try_build(&absent, &project, None).unwrap_err();
    assert!(matches!(error, FileFault::Path { .. }) && error.to_string().contains("srv/absent"), "{error}");
}

/// A declaration does not take the working directory from a stage: a bind of it changes only what can be written.
#[test]
fn a_bind_of_the_working_directory_shows_all_of_it_whatever_is_declared() {
    let scene = make_scene("declared-cwd");
    let project = scene.project();
    let out = project.join("src");
    let files = |ro: &[&Path], rw: &[&Path]| Files {
        ro: ro.iter().map(|path| bind(path)).collect(),
        rw: rw.iter().map(|path| bind(path)).collect(),
        declared: Some(Declared {
            read: Vec::new(),
            write: vec![out.clone()],
            narrow: false,
            // It takes the right to write, and is not idle.
            instead: vec!["--ro .".into()],
            ..Declared::default()
        }),
        ..Files::default()
    };
    for (ro, rw) in [(&[project.as_path()][..], &[out.as_path()][..]), (&[], &[project.as_path()])] {
        let built = scene.build(&files(ro, rw), &project, None);
        assert_eq!(built.cwd, project, "{ro:?} {rw:?}");
        assert!(is_read_only(&built, &project.join("other")), "{ro:?} {rw:?}");
        assert!(is_writable(&built, &out.join("f")), "{ro:?} {rw:?}");
    }
    let said = scene.try_build(&files(&[&project], &[]), &project, None).unwrap_err();
    assert!(said.fix().is_some_and(|fix| fix.starts_with("--rw ")), "{said}");
    // A view without the working directory has what is declared of it, and a start that keeps nothing is no start.
    let minimal = Files { view: View::Minimal, ..files(&[&project], &[&out]) };
    let built = scene.build(&minimal, &project, None);
    assert_eq!(built.cwd, project);
    assert!(is_hidden(&built, &project.join("other")) && is_writable(&built, &out.join("f")));
}

/// Effects are a union: what a stage declares to read stays writable where it may write. A bind of the caller's makes it read-only.
#[test]
fn a_declared_read_takes_no_right_to_write() {
    let scene = make_scene("declared-union");
    let (project, store) = (scene.project(), scene.root.join("srv"));
    let files = |read: &[&Path], write: &[&Path], grants| Files {
        ro: read.iter().map(|path| bind(path)).collect(),
        rw: write.iter().map(|path| bind(path)).collect(),
        declared: Some(Declared {
            read: read.iter().map(PathBuf::from).collect(),
            write: write.iter().map(PathBuf::from).collect(),
            grants,
            ..Declared::default()
        }),
        ..Files::default()
    };
    // One path twice, and a path in a writable one.
    let built = scene.build(&files(&[&store, &store.join("a")], &[&store], true), &project, None);
    assert!(is_writable(&built, &store.join("a/f")) && is_writable(&built, &store.join("f")));
    let built = scene.build(&files(&[&store], &[&store.join("a")], true), &project, None);
    assert!(is_writable(&built, &store.join("a/f")) && is_read_only(&built, &store.join("f")));
    // The working directory, what is in it, and a link to it.
    let (src, link) = (project.join("src"), scene.home().join("link"));
    symlink(&project, &link).unwrap();
    for read in [&project, &src, &link] {
        let built = scene.build(&files(&[&scene.home(), read], &[], true), &project, None);
        assert!(is_writable(&built, &src.join("f")), "{}", read.display());
        assert!(is_writable(&built, &project.join("out/f")), "{}", read.display());
        let built = scene.build(&files(&[&scene.home(), read], &[], false), &project, None);
        assert!(is_read_only(&built, &src.join("f")), "{}", read.display());
    }
    // The name of something hidden opens it for reading.
    let masked = Files { mask: vec![src.clone()], ..files(&[&project, &src.join("a")], &[], true) };
    let built = scene.build(&masked, &project, None);
    assert!(is_read_only(&built, &src.join("a/f")) && is_hidden(&built, &src.join("f")));
    let bounds = vec![ceiling(None, Some(&[&project.join("out")]))];
    let built = scene.build(&Files { bounds, ..files(&[&project], &[], true) }, &project, None);
    assert!(is_read_only(&built, &src.join("f")) && is_writable(&built, &project.join("out/f")));
}

/// N9, N16: the work directory is writable, the start, and wins over a bind at its place; nothing else of the host is there.
#[test]
fn n9_the_work_directory() {
    let scene = make_scene("work");
    scene.make("srv/a/.git/config");
    let srv = scene.root.join("srv");
    let files = Files {
        view: View::Minimal,
        ro: vec![to(&srv.join("b"), "/work"), to(&srv.join("b"), "/work/in")],
        work: Some(WorkDir::Scratch),
        ..Files::default()
    };
    let built = scene.build(&files, &scene.project(), None);
    assert!(matches!(at(&built, Path::new("/work/x")), Some(Mount::Tmpfs { mode: 0o700, .. })));
    assert!(is_read_only(&built, Path::new("/work/in/f")));
    assert_eq!((built.cwd.as_path(), built.notes.len()), (Path::new("/work"), 1), "{:?}", built.notes);
    let outside: Vec<_> =
        list_shown(&built, &scene.root).into_keys().filter(|at| !at.starts_with("/work/in")).collect();
    assert!(outside.is_empty(), "{outside:?}");

    let files = Files { work: Some(WorkDir::Host(srv.join("a"))), ..files };
    let built = scene.build(&files, &scene.project(), None);
    assert!(
        is_writable(&built, Path::new("/work/f")) && !is_writable(&built, Path::new("/work/.git/config"))
    );
    assert_eq!((built.cwd.as_path(), built.writable.as_slice()), (Path::new("/work"), &[srv.join("a")][..]));
    let undeclared = Files { declared: Some(Declared::default()), ..files.clone() };
    let built = scene.build(&undeclared, &scene.project(), None);
    assert!(is_writable(&built, Path::new("/work/f")), "a declaration is not asked");
    let files = Files { bounds: vec![ceiling(Some(&[]), None)], ..files };
    let built = scene.build(&files, &scene.project(), None);
    assert!(list_shown(&built, &scene.root).is_empty());
    assert_eq!(built.cwd, Path::new("/work"));
    assert!(built.mounts.contains(&Mount::Dir { at: "/work".into() }));
    let files = Files { view: View::Project, work: Some(WorkDir::Scratch), ..Files::default() };
    let built = scene.build(&files, &scene.project(), None);
    assert!(is_hidden(&built, &scene.project().join("src/f")), "in scene of the working directory");
}

/// Readable, writable and masked paths.
type Lists<T> = (Option<Vec<T>>, Option<Vec<T>>, Vec<T>);

/// A random request, as indexes into the lists of paths.
#[derive(Debug, Clone)]
struct Random {
    ro: Vec<(usize, usize)>,
    rw: Vec<(usize, usize)>,
    mask: Vec<usize>,
    ceilings: Vec<Lists<usize>>,
    declared: Option<(Vec<usize>, Vec<usize>)>,
}

const HOSTS: [&str; 15] = [
    "srv",
    "srv/f",
    "srv/a",
    "srv/a/f",
    "srv/b",
    "srv/a/a",
    "srv/a/b",
    "srv/b/a",
    "srv/b/b",
    "srv/a/a/a",
    "srv/a/a/b",
    "home/project",
    "home/project/src",
    "home/project/src/a",
    "home/project/out",
];

fn random() -> impl Strategy<Value = Random> {
    let host = 0..HOSTS.len();
    let bind = (host.clone(), 0..HOSTS.len() + 4);
    let some = move |most| proptest::collection::vec(0..HOSTS.len(), 0..most);
    let list = move || proptest::option::of(some(4));
    let ceiling = (list(), list(), some(2));
    (
        proptest::collection::vec(bind.clone(), 0..4),
        proptest::collection::vec(bind, 0..4),
        some(3),
        proptest::collection::vec(ceiling, 0..3),
        proptest::option::weighted(0.3, (some(3), some(3))),
    )
        .prop_map(|(ro, rw, mask, ceilings, declared)| Random { ro, rw, mask, ceilings, declared })
}

/// K13: a mask at the place of a tree hides what a ceiling leaves of the tree, also where a file is mounted above that place.
#[test]
fn k13_a_mask_hides_the_part_of_a_tree_that_a_ceiling_leaves() {
    let scene = make_scene("masked-rest");
    let (masked, project) = (scene.root.join("srv/a/f"), scene.project());
    let files = Files {
        rw: vec![
            Bind { host: project.clone(), guest: masked.clone() },
            Bind { host: masked.clone(), guest: scene.root.join("srv/a") },
        ],
        mask: vec![masked.clone()],
        bounds: vec![ceiling(Some(&[&project.join("src")]), Some(&[&scene.root.join("srv")]))],
        ..Files::default()
    };
    let built = scene.with(arranged, &files, &project, None).unwrap();
    let shown = list_shown(&built, &scene.root);
    assert!(shown.keys().all(|at| !at.starts_with(&masked)), "{shown:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    /// K13: whatever is asked for, what is seen and what can be written is what the binds give and every ceiling allows: never
    /// more, and not less.
    #[test]
    fn k13_no_view_is_wider_than_its_binds_or_than_any_bound(random in random()) {
        thread_local!(static SCENE: Scene = make_scene("random"));
        SCENE.with(|scene| check(scene, &random))?;
    }
}

fn check(scene: &Scene, random: &Random) -> Result<(), TestCaseError> {
    let path = |number: &usize| scene.root.join(HOSTS[*number]);
    let paths = |numbers: &Vec<usize>| numbers.iter().map(path).collect::<Vec<_>>();
    let binds = |list: &[(usize, usize)]| {
        let guest = |number: usize, host: &Path| match number.checked_sub(HOSTS.len()) {
            None => path(&number),
            Some(0) => host.to_path_buf(),
            Some(other) => PathBuf::from(["/d", "/d/a", "/d/a/a"][other - 1]),
        };
        let bind =
            |(host, number): &(usize, usize)| Bind { host: path(host), guest: guest(*number, &path(host)) };
        list.iter().map(bind).collect::<Vec<_>>()
    };
    let free =
        Files { ro: binds(&random.ro), rw: binds(&random.rw), mask: paths(&random.mask), ..Files::default() };
    let bounds: Vec<Bounds> = random
        .ceilings
        .iter()
        .map(|(ro, rw, mask)| Bounds {
            name: "site.toml".into(),
            ro: ro.as_ref().map(paths),
            rw: rw.as_ref().map(paths),
            mask: paths(mask),
            ..Bounds::default()
        })
        .collect();
    let declared = random.declared.as_ref();
    let declared = declared.map(|(read, write)| Declared {
        read: paths(read),
        write: paths(write),
        narrow: true,
        ..Declared::default()
    });
    // A declaration says nothing about the working directory: leave that out of the comparison.
    let cwd = if declared.is_some() { PathBuf::from("/") } else { scene.project() };
    let bounded = Files { bounds: bounds.clone(), declared: declared.clone(), ..free.clone() };
    // Most random places are in read-only trees that lack them, and then nothing starts; what would be shown is compared.
    let shown = |files: &Files| scene.with(arranged, files, &cwd, None).unwrap();
    let without = list_shown(&shown(&free), &scene.root);
    let with = list_shown(&shown(&bounded), &scene.root);

    let below = |list: &[PathBuf], path: &Path| list.iter().any(|top| path.starts_with(top));
    let mut limits: Vec<Lists<PathBuf>> = bounds
        .into_iter()
        .map(|Bounds { ro, rw, mask, .. }| {
            (ro.map(|ro| [ro, rw.clone().unwrap_or_default()].concat()), rw, mask)
        })
        .collect();
    limits
        .extend(declared.map(|it| (Some([it.read, it.write.clone()].concat()), Some(it.write), Vec::new())));
    let may_read = |path: &Path| {
        limits
            .iter()
            .all(|(read, _, mask)| read.as_ref().is_none_or(|list| below(list, path)) && !below(mask, path))
    };
    let may_write =
        |path: &Path| limits.iter().all(|(_, write, _)| write.as_ref().is_none_or(|list| below(list, path)));
    for (at, (host, writable)) in &with {
        prop_assert!(may_read(host), "{} shows {}", at.display(), host.display());
        prop_assert!(!writable || may_write(host), "{} is writable", at.display());
        let free = without.get(at);
        prop_assert!(
            free.is_some_and(|(same, free)| same == host && (*free || !writable)),
            "{}: {free:?} without a ceiling",
            at.display()
        );
    }
    for (at, (host, writable)) in &without {
        if may_read(host) {
            let expected = (host.clone(), *writable && may_write(host));
            prop_assert_eq!(with.get(at), Some(&expected), "{}", at.display());
        }
    }
    Ok(())
}
