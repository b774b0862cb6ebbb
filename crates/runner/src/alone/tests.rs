use super::*;

/// K38: a later listener at the same place keeps its name.
#[test]
fn a_successor_keeps_its_socket() {
    let dir = std::env::temp_dir().join(format!("exeat-alone-{}", std::process::id()));
    fs::create_dir(&dir).unwrap();
    let path = dir.join("socket");
    let (listener, name) = listen_for_caller(&path).unwrap();
    assert_eq!(listen_for_caller(&path).err().map(|error| error.kind()), Some(io::ErrorKind::AddrInUse));
    fs::remove_file(&path).unwrap();
    let (_successor, its_name) = listen_for_caller(&path).unwrap();
    drop(name);
    drop(listener);
    UnixStream::connect(&path).unwrap();
    drop(its_name);
    assert!(!path.exists());
    fs::remove_dir(&dir).unwrap();
}
