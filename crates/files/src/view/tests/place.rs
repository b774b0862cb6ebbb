//! The places of mounts, and the mounts without a place.

use super::*;

fn to(host: &Path, guest: impl Into<PathBuf>) -> Bind {
    Bind { host: host.into(), guest: guest.into() }
}

/// Creates a project, and a file and a directory outside of it to bind.
fn make_scene(name: &str) -> Scene {
    let scene = Scene::new(name);
    scene.make("srv/d/f");
    scene.make("home/project/data0/f");
    scene
}

fn refused(scene: &Scene, bind: Bind) -> String {
    let files = Files { ro: vec![bind], ..Files::default() };
    let error = scene.try_build(&files, &scene.project(), None).unwrap_err();
    assert!(matches!(error, FileFault::NoPlace { .. }) && error.fix().is_some(), "{error}");
    error.to_string()
}

/// K3, N16: a link that a stage left is not followed out of what it may write: bubblewrap would do that on the host.
#[test]
fn k3_a_place_behind_a_link_that_a_stage_could_have_made() {
    let scene = make_scene("evil");
    let (srv, project) = (scene.root.join("srv"), scene.project());
    let victim = scene.root.join("victim");
    fs::create_dir(&victim).unwrap();
    let oldroot = Path::new("/oldroot").join(victim.strip_prefix("/").unwrap());
    symlink(oldroot, project.join("old")).unwrap();
    symlink(&victim, project.join("absolute")).unwrap();
    symlink("../../victim", project.join("relative")).unwrap();
    symlink("relative", project.join("twice")).unwrap();
    symlink("circle", project.join("circle")).unwrap();
    symlink("/usr", project.join("system")).unwrap();
    for link in ["old", "absolute", "relative", "twice", "circle", "system"] {
        for below in ["", ".created", "a/b"] {
            let said = refused(&scene, to(&srv.join("d"), joined(&project.join(link), Path::new(below))));
            assert!(said.contains("symbolic link"), "{said}");
            let writable = Files { rw: vec![to(&srv.join("d"), project.join(link))], ..Files::default() };
            assert!(scene.try_build(&writable, &project, None).is_err(), "{link}");
        }
    }
    // The same link in another tree that shows what the stage may write.
    let files = Files {
        ro: vec![to(&scene.home(), "/h"), to(&srv.join("d"), "/h/project/relative/x")],
        ..Files::default()
    };
    let error = scene.try_build(&files, &project, None).unwrap_err();
    assert!(error.to_string().contains("a stage could have made it"), "{error}");
}

/// N16: where a link stays in its tree, and in the system's trees, the place is where the link leads inside.
#[test]
fn n16_a_place_behind_another_link_is_where_that_leads() {
    let scene = make_scene("follow");
    let (srv, project) = (scene.root.join("srv"), scene.project());
    symlink("data0", project.join("data")).unwrap();
    let files = Files {
        ro: vec![to(&srv.join("d"), project.join("data")), to(&srv.join("d"), "/var/run/d")],
        ..Files::default()
    };
    let built = scene.build(&files, &project, None);
    let shown = |at: &Path| {
        let (host, why) = (srv.join("d"), Why::Requested);
        built.mounts.contains(&Mount::ReadOnly { host, at: at.into(), why })
    };
    assert!(shown(&project.join("data0")) && shown(Path::new("/run/d")));
    // What comes deeper by name, and is less deep where it really is, covers nothing unseen.
    scene.make("home/project/deep/er/f");
    symlink("deep/er", project.join("l")).unwrap();
    let files =
        Files { rw: vec![to(&srv, project.join("l")), bind(&project.join("deep"))], ..Files::default() };
    let built = scene.build(&files, &project, None);
    assert!(
        matches!(at(&built, &project.join("deep/er/x")), Some(Mount::Writable { host, .. }) if *host == srv)
    );
    symlink(".", project.join("self")).unwrap();
    let said = refused(&scene, to(&srv, project.join("self")));
    assert!(said.contains("a stage could have made it"), "{said}");
}

/// N16: what bubblewrap cannot do, or what would take the sandbox away, and what works.
#[test]
fn n16_places_of_the_sandbox_s_own() {
    let scene = make_scene("own");
    let (dir, file) = (scene.root.join("srv/d"), scene.root.join("srv/d/f"));
    for guest in [
        "/",
        "/run",
        "/run/exeat",
        "/run/exeat/stage2",
        "/run/exeat/stage2/x",
        "/run/exeat/proxy.sock",
        "/var/run",
        "/var/run/exeat",
        "/proc/1",
        "/proc/x",
        "/proc/self/root/x",
        "/proc/net/x",
        "/dev/x",
        "/dev/fd/x",
        "/dev/null/x",
        "/usr/absent",
        "/etc/passwd",
        "/etc/group",
    ] {
        refused(&scene, to(&dir, guest));
        refused(&scene, to(&file, guest));
    }
    for guest in ["/dev/null", "/etc/passwd/x", "/proc/cmdline"] {
        refused(&scene, to(&dir, guest));
    }
    for guest in ["/proc", "/sys", "/dev", "/usr", "/tmp", "/dev/shm"] {
        refused(&scene, to(&file, guest));
    }
    for guest in [
        "/x",
        "/run/x",
        "/run/exeat/x",
        "/proc",
        "/proc/sys",
        "/dev",
        "/dev/shm",
        "/dev/shm/x",
        "/sys/x",
        "/var/tmp",
        "/usr",
    ] {
        scene.build(&Files { ro: vec![to(&dir, guest)], ..Files::default() }, &scene.project(), None);
    }
    for guest in ["/x", "/run/x", "/proc/cmdline", "/dev/null", "/dev/shm/x", "/sys/x"] {
        scene.build(&Files { ro: vec![to(&file, guest)], ..Files::default() }, &scene.project(), None);
    }
    let masked = Files { mask: vec!["/etc/passwd".into(), "/etc/resolv.conf".into()], ..Files::default() };
    scene.build(&masked, &scene.project(), None);
}

/// A8, K1, B11: a directory above a mask could be renamed away, and the mask would name nothing in the next run.
#[test]
fn b11_every_directory_above_a_mask_is_a_mount_point() {
    let scene = Scene::new("pinned");
    for name in ["a/m/f", "a/b/n", ".cargo/config.toml", ".cargo/secret", "c/f"] {
        scene.make(&format!("home/project/{name}"));
    }
    let project = scene.project();
    let masks = [project.join("a/m"), project.join("a/b/n"), project.join(".cargo/secret"), "/d/c/f".into()];
    let files = Files {
        rw: vec![to(&project, "/d"), bind(&project)],
        mask: masks.to_vec(),
        bounds: vec![crate::request::Bounds { mask: vec![project.join("a/m")], ..Default::default() }],
        ..Files::default()
    };
    let built = scene.build(&files, &project, None);
    for at in [project.clone(), "/d".into()] {
        for above in ["a", "a/b", ".cargo"] {
            let pin = pin(project.join(above), at.join(above));
            assert!(built.mounts.contains(&pin), "{} could be renamed away", at.join(above).display());
            assert!(is_writable(&built, &at.join(above).join("x")));
        }
        for hidden in ["a/m/f", "a/b/n", ".cargo/secret"] {
            assert!(is_hidden(&built, &at.join(hidden)), "{hidden}");
        }
        assert!(!is_writable(&built, &at.join(".cargo/config.toml")));
    }
    let pin = pin(project.join("c"), "/d/c".into());
    assert!(built.mounts.contains(&pin) && is_hidden(&built, Path::new("/d/c/f")));
    let read_only = Files { rw: Vec::new(), ro: vec![to(&project, "/r")], ..files };
    let built = scene.build(&read_only, Path::new("/"), None);
    assert!(!built.mounts.iter().any(|mount| matches!(mount, Mount::Writable { .. })));
}

/// K1, K3: the host's processes are shown by no path.
#[test]
fn k1_no_tree_shows_the_host_s_processes() {
    let scene = Scene::new("procfs");
    for path in ["/proc", "/proc/1", "/proc/self/status", "/proc/sys"].map(Path::new) {
        let named = [
            Files { ro: vec![to(path, "/x")], ..Files::default() },
            Files { rw: vec![to(path, "/x")], ..Files::default() },
            Files { view: View::Minimal, work: Some(WorkDir::Host(path.into())), ..Files::default() },
        ];
        for files in named {
            let error = scene.try_build(&files, &scene.project(), None).unwrap_err();
            assert!(matches!(error, FileFault::Procfs { .. }), "{error}");
        }
    }
    // Not the process file system, though the way leads through it.
    scene.build(
        &Files { ro: vec![to(Path::new("/proc/self/root/usr"), "/x")], ..Files::default() },
        &scene.project(),
        None,
    );
    let files =
        Files { ro: vec![to(Path::new("/"), "/host")], mask: vec!["/proc".into()], ..Files::default() };
    let built = scene.build(&files, &scene.project(), None);
    assert!(
        is_hidden(&built, Path::new("/host/proc/1/environ")) && !is_hidden(&built, Path::new("/host/usr"))
    );
    let table = b"22 1 0:21 / /proc rw,nosuid shared:7 - proc proc rw
23 1 0:22 / /srv/my\\040root/proc rw - proc none rw
24 1 0:23 / /sys rw shared:8 - sysfs proc rw\n";
    let found = [Path::new("/proc"), Path::new("/proc"), Path::new("/srv/my root/proc")];
    assert_eq!(process_files(table), found);
}
