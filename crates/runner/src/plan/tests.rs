use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;

use super::own_files::{check_descriptor_outside, check_not_stream, tree_around};
use super::*;
use crate::request::Hardening;

/// A writable tree in a separate directory.
struct Dirs {
    root: PathBuf,
    tree: PathBuf,
}

impl Dirs {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("plan-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("tree")).unwrap();
        let root = root.canonicalize().unwrap();
        Self { tree: root.join("tree"), root }
    }
}

impl Drop for Dirs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn is_refused(result: Result<(), Error>) -> bool {
    match result {
        Ok(()) => false,
        Err(Error::Inside { .. }) => true,
        Err(other) => panic!("{other}"),
    }
}

fn request(dirs: &Dirs, ro: Vec<PathBuf>, config: &Path) -> Request {
    let bind = |host: PathBuf| exeat_files::request::Bind { guest: host.clone(), host };
    let ro = ro.into_iter().map(bind).collect();
    let variable = |name: &str, value: &Path| (OsString::from(name), value.as_os_str().to_owned());
    Request {
        command: vec!["true".into()],
        cwd: dirs.tree.clone(),
        policy: exeat_policy::PolicyBuilder::new().build(),
        files: exeat_files::request::Files { ro, ..Default::default() },
        host_env: [variable("HOME", &dirs.root.join("home")), variable("XDG_CONFIG_HOME", config)].into(),
        bridge: Bridge::Handoff,
        tty: Tty::Off,
        transparent: Transparent::Off,
        ..Request::default()
    }
}

/// K50: the stage cannot write the configuration directory, which contains the user's ceiling, wherever it is.
#[test]
fn k50_the_configuration_directory_is_not_the_stage_s() {
    // No stage can write /tmp anyway, so the test uses another directory.
    let base = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let root = base.join(format!("plan-config-{}", std::process::id()));
    fs::create_dir_all(root.join("tree")).unwrap();
    let root = root.canonicalize().unwrap();
    let dirs = Dirs { tree: root.join("tree"), root };
    symlink(&dirs.tree, dirs.root.join("link")).unwrap();
    let is_writable = |config: &Path| {
        let plan = plan(request(&dirs, Vec::new(), config)).unwrap();
        let is_tree = |mount: &Mount| matches!(mount, Mount::Writable { host, .. } if *host == dirs.tree);
        plan.mounts.iter().any(is_tree)
    };
    assert!(is_writable(&dirs.root.join("elsewhere")));
    assert!(!is_writable(&dirs.tree) && !is_writable(&dirs.root.join("link")));
    fs::create_dir(dirs.tree.join("exeat")).unwrap();
    assert!(!is_writable(&dirs.root.join("link")));
}

/// The gateway is refused if it is required and impossible, and otherwise left out.
#[test]
fn the_gateway_is_off_if_it_is_impossible() {
    let dirs = Dirs::new("gateway");
    let socket = dirs.root.join("proxy.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let planned = |transparent, via: Option<&PathBuf>, loopback| {
        let base = request(&dirs, Vec::new(), &dirs.root);
        let hardening = Hardening { loopback, ..Hardening::default() };
        plan(Request { transparent, via: via.cloned(), hardening, ..base }).map(|plan| plan.transparent)
    };
    for asked in [Transparent::Auto, Transparent::On, Transparent::Off] {
        assert_eq!(planned(asked, None, Loopback::Own).unwrap(), asked);
    }
    let mut elsewhere = vec![(Some(&socket), Loopback::Own)];
    // Otherwise the kernel cannot restrict the loopback.
    if exeat_sandbox::enforce::landlock_abi() >= 4 {
        elsewhere.push((None, Loopback::Proxy));
    }
    for (via, loopback) in elsewhere {
        for asked in [Transparent::Auto, Transparent::Off] {
            assert_eq!(planned(asked, via, loopback).unwrap(), Transparent::Off, "{via:?}");
        }
        let error = planned(Transparent::On, via, loopback).unwrap_err();
        assert!(error.code() == 2 && error.to_string().contains("the transparent gateway"), "{error}");
    }
}

/// N16: more words than bubblewrap reads are refused before it starts.
#[test]
fn n16_too_many_binds_are_refused() {
    let dirs = Dirs::new("many");
    let make = |number: usize| {
        let path = dirs.root.join(number.to_string());
        fs::create_dir(&path).unwrap();
        path
    };
    let ro: Vec<PathBuf> = (0..3000).map(make).collect();
    let alone =
        Request { backend: exeat_policy::BackendName::BwrapAlone, ..request(&dirs, ro.clone(), &dirs.root) };
    assert!(plan(request(&dirs, ro, &dirs.root)).is_ok(), "only bubblewrap reads them as words");
    let error = plan(alone).unwrap_err();
    assert!(matches!(error, Error::TooMany { .. }) && error.code() == 2, "{error}");
}

#[test]
fn the_record_is_where_its_path_leads() {
    let dirs = Dirs::new("leads");
    symlink(&dirs.tree, dirs.root.join("link")).unwrap();
    fs::write(dirs.tree.join("there"), "").unwrap();
    symlink(dirs.tree.join("there"), dirs.root.join("file")).unwrap();
    let writable = [dirs.tree.clone()];
    for inside in ["tree/x", "tree/new/dir/x", "link/x", "file"] {
        assert!(tree_around(&dirs.root.join(inside), &writable).is_some(), "{inside}");
    }
    for beside in ["x", "treex", "new/x"] {
        assert!(tree_around(&dirs.root.join(beside), &writable).is_none(), "{beside}");
    }
    // This is another name of the same tree.
    let magic = Path::new("/proc/self/root").join(dirs.tree.strip_prefix("/").unwrap());
    assert!(tree_around(&magic.join("x"), &writable).is_some());
}

#[test]
fn a_device_is_not_a_place_but_a_similar_name_is() {
    let everything = [PathBuf::from("/")];
    assert!(tree_around(Path::new("/develx/record"), &everything).is_some());
    assert!(tree_around(Path::new("/procession"), &everything).is_some());
    assert!(tree_around(Path::new("/dev/shm/record"), &everything).is_some());
    assert!(tree_around(Path::new("/dev/null"), &everything).is_none());
}

#[test]
fn a_descriptor_of_a_file_is_where_the_file_is() {
    let dirs = Dirs::new("descriptor");
    let writable = [dirs.tree.clone()];
    let inside = File::create(dirs.tree.join("x")).unwrap();
    let beside = File::create(dirs.root.join("x")).unwrap();
    assert!(is_refused(check_descriptor_outside(inside.as_fd(), &writable, &[])));
    assert!(!is_refused(check_descriptor_outside(beside.as_fd(), &writable, &[])));
    let (_, pipe) = std::io::pipe().unwrap();
    let pipe = OwnedFd::from(pipe);
    assert!(!is_refused(check_descriptor_outside(pipe.as_fd(), &[PathBuf::from("/")], &[])));
}

#[test]
fn refuses_a_record_that_is_a_stream_of_the_stage() {
    let dirs = Dirs::new("stream");
    let (file, other) = (dirs.root.join("file"), dirs.root.join("other"));
    let open = File::create(&file).unwrap();
    fs::write(&other, "").unwrap();
    let (stream, other, null) = (file.to_str().unwrap(), other.to_str().unwrap(), "/dev/null");
    assert!(is_refused(check_descriptor_outside(open.as_fd(), &[], &[null, stream])));
    assert!(!is_refused(check_descriptor_outside(open.as_fd(), &[], &[null, other])));
    assert!(is_refused(check_not_stream(&file, &fs::metadata(&file).unwrap(), &[stream])));
    assert!(!is_refused(check_not_stream(Path::new(null), &fs::metadata(null).unwrap(), &[null])));
}
