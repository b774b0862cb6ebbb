use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixStream;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;
use crate::testing::Dir;

const LINE: &[u8] = b"{\"a line\":1}\n";

/// A02: nobody else reads or writes the file, and it is only appended to.
#[test]
fn a02_a_new_file_is_ours_alone_and_append_only() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let sink = Sink::create_file(&path).unwrap();
    let flags = OFlag::from_bits_retain(fcntl(&sink.file, FcntlArg::F_GETFL).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(flags.contains(OFlag::O_APPEND));
    assert_eq!(fcntl(&sink.file, FcntlArg::F_GETFD).unwrap() & 1, 1, "FD_CLOEXEC");
}

#[test]
fn a_file_that_holds_something_is_refused_and_kept() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    fs::write(&path, "precious").unwrap();
    let error = Sink::create_file(&path).unwrap_err();
    assert!(matches!(error, OpenError::Exists { .. }));
    assert!(error.to_string().ends_with("exists: name a new file or remove it"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn an_empty_file_is_taken() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    fs::write(&path, "").unwrap();
    Sink::create_file(&path).unwrap().write_line(LINE).unwrap();
    assert_eq!(fs::read(&path).unwrap(), LINE);
}

#[test]
fn a_link_is_not_followed() {
    let dir = Dir::new();
    fs::write(dir.join("target"), "").unwrap();
    for target in ["target", "missing"] {
        let link = dir.join(&format!("{target}.link"));
        symlink(dir.join(target), &link).unwrap();
        assert!(matches!(Sink::create_file(&link), Err(OpenError::Link { .. })), "{target}");
    }
    assert!(!dir.join("missing").exists());
}

/// L01: a change of the names above the record does not matter; at its new place nobody would look for it.
#[test]
fn l01_a_record_is_made_in_the_directory_that_was_opened() {
    let dir = Dir::new();
    fs::create_dir(dir.join("out")).unwrap();
    fs::create_dir(dir.join("elsewhere")).unwrap();
    let opened = File::open(dir.join("out")).unwrap();
    fs::rename(dir.join("out"), dir.join("moved")).unwrap();
    symlink(dir.join("elsewhere"), dir.join("out")).unwrap();
    let mut sink = Sink::create_in(opened.as_fd(), &dir.join("out/run.jsonl")).unwrap();
    assert!(dir.join("moved/run.jsonl").exists() && !dir.join("elsewhere/run.jsonl").exists());
    assert!(matches!(sink.write_line(LINE), Err(WriteError::Renamed)));
}

#[test]
fn devices_work() {
    Sink::create_file(Path::new("/dev/null")).unwrap().write_line(LINE).unwrap();
    Sink::create_file(Path::new("/dev/stderr")).unwrap();
}

#[test]
fn kernel_paths_are_those_that_only_the_kernel_and_root_make() {
    for (path, expect) in [
        ("/dev/null", true),
        ("/proc/self/fd/3", true),
        ("/dev/shm/x", false),
        ("/dev/../tmp/x", false),
        ("/development/x", false),
        ("/tmp/x", false),
    ] {
        assert_eq!(is_of_the_kernel(Path::new(path)), expect, "{path}");
    }
}

#[test]
fn a_named_pipe_waits_for_its_reader() {
    let dir = Dir::new();
    let path = dir.join("pipe");
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    let reading = {
        let path = path.clone();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            let mut text = Vec::new();
            File::open(path).unwrap().read_to_end(&mut text).unwrap();
            text
        })
    };
    let mut sink = Sink::create_file(&path).unwrap();
    sink.write_line(LINE).unwrap();
    drop(sink);
    assert_eq!(reading.join().unwrap(), LINE);
}

/// A06: a removed file would lose its lines, and nobody would look for them in a moved one.
#[test]
fn a06_a_file_that_is_not_where_it_was_is_noticed() {
    let there = |path: &Path| path.with_extension("1");
    type Change = fn(&Path);
    let changes: [(&str, Change); 6] = [
        ("the file was removed", |path| fs::remove_file(path).unwrap()),
        ("the file was renamed", |path| fs::rename(path, path.with_extension("1")).unwrap()),
        ("the file was renamed", |path| {
            fs::rename(path.parent().unwrap(), path.parent().unwrap().with_extension("moved")).unwrap();
        }),
        ("the file was renamed or removed, and another one is in its place", |path| {
            fs::rename(path, path.with_extension("1")).unwrap();
            fs::copy(path.with_extension("1"), path).unwrap();
        }),
        ("the file was renamed or removed, and another one is in its place", |path| {
            fs::remove_file(path).unwrap();
            fs::write(path, "").unwrap();
        }),
        ("the file was renamed or removed, and another one is in its place", |path| {
            fs::rename(path, path.with_extension("1")).unwrap();
            symlink(path.with_extension("1"), path).unwrap();
        }),
    ];
    for (words, change) in changes {
        let dir = Dir::new();
        let inner = dir.join("inner");
        fs::create_dir(&inner).unwrap();
        let path = inner.join("run.jsonl");
        let mut sink = Sink::create_file(&path).unwrap();
        sink.write_line(LINE).unwrap();
        change(&path);
        assert_eq!(sink.write_line(LINE).unwrap_err().to_string(), words);
        for left in [&path, &there(&path)] {
            let left = fs::read(left).unwrap_or_default();
            assert!(left.is_empty() || left == LINE, "a line after the change");
        }
    }
}

/// A06: a second name of the file, and a directory whose name leads there, change nothing.
#[test]
fn a06_a_file_that_is_still_there_goes_on() {
    let dir = Dir::new();
    fs::create_dir(dir.join("real")).unwrap();
    symlink(dir.join("real"), dir.join("link")).unwrap();
    let path = dir.join("link").join("run.jsonl");
    let mut sink = Sink::create_file(&path).unwrap();
    sink.write_line(LINE).unwrap();
    fs::hard_link(&path, dir.join("other")).unwrap();
    sink.write_line(LINE).unwrap();
    assert_eq!(fs::read(dir.join("other")).unwrap(), LINE.repeat(2));
}

/// A06: a reader can tell whether more lines may come, and no second run writes to the record.
#[test]
fn a06_a_record_has_one_writer_at_a_time() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let sink = Sink::create_file(&path).unwrap();
    assert!(is_being_written(&path).unwrap());
    assert!(matches!(Sink::create_file(&path), Err(OpenError::InUse { .. })));
    drop(sink);
    assert!(!is_being_written(&path).unwrap());
    Sink::create_file(&path).unwrap();
}

/// The lock ends with the sink, even if the caller keeps its descriptor.
#[test]
fn a_descriptor_is_locked_for_as_long_as_we_write() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let file = File::create(&path).unwrap();
    let sink = Sink::from_fd(file.try_clone().unwrap().into()).unwrap();
    assert!(is_being_written(&path).unwrap());
    // Two runs that share one descriptor do so at the caller's wish.
    let second = Sink::from_fd(file.try_clone().unwrap().into()).unwrap();
    drop(sink);
    assert!(!is_being_written(&path).unwrap());
    drop((second, file));
    assert!(is_being_written(Path::new("/dev/null")).is_ok_and(|written| !written));
    assert!(is_being_written(&dir.join("none")).is_err());
}

#[test]
fn cannot_sync_a_record_without_a_disk() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let mut sink = Sink::create_file(&path).unwrap().synced().unwrap();
    sink.write_line(LINE).unwrap();
    assert_eq!(fs::read(&path).unwrap(), LINE);
    let (_reader, writer) = std::io::pipe().unwrap();
    let (socket, _other) = UnixStream::pair().unwrap();
    for fd in [OwnedFd::from(writer), socket.into()] {
        assert!(matches!(Sink::from_fd(fd).unwrap().synced(), Err(OpenError::NoSync { .. })));
    }
    assert!(matches!(
        Sink::create_file(Path::new("/dev/null")).unwrap().synced(),
        Err(OpenError::NoSync { .. })
    ));
}

/// A02, A06: nobody else writes to our file, and nobody shortens it.
#[test]
fn a06_a_changed_file_is_noticed() {
    for change in [&b""[..], &b"shorter"[..], &b"longer than what stood there before\n"[..]] {
        let dir = Dir::new();
        let path = dir.join("run.jsonl");
        let mut sink = Sink::create_file(&path).unwrap();
        sink.write_line(LINE).unwrap();
        fs::write(&path, change).unwrap();
        assert!(matches!(sink.write_line(LINE), Err(WriteError::Changed)));
    }
}

#[test]
fn a_file_that_never_had_a_name_is_fine() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let file = File::create(&path).unwrap();
    fs::remove_file(&path).unwrap();
    Sink::from_fd(file.into()).unwrap().write_line(LINE).unwrap();
}

#[test]
fn a_descriptor_for_reading_is_refused() {
    let (reader, _writer) = std::io::pipe().unwrap();
    assert!(matches!(Sink::from_fd(reader.into()), Err(OpenError::Descriptor { .. })));
}

/// A05: the disk is full.
#[test]
fn a05_a_full_disk_is_an_error() {
    let error = Sink::create_file(Path::new("/dev/full")).unwrap().write_line(LINE).unwrap_err();
    assert!(matches!(&error, WriteError::Io(error) if error.kind() == io::ErrorKind::StorageFull), "{error}");
}

#[test]
fn a_pipe_without_a_reader_is_an_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut sink = Sink::from_fd(writer.into()).unwrap();
    drop(reader);
    let error = sink.write_line(LINE).unwrap_err();
    assert!(matches!(&error, WriteError::Io(error) if error.kind() == io::ErrorKind::BrokenPipe), "{error}");
}

/// Fills the sink until it is stuck. Returns how many whole lines it took before, and how long the last try took.
fn fill(sink: Sink) -> (usize, Duration) {
    let mut sink = sink.with_deadline(Duration::from_millis(100));
    let line = vec![b'x'; 4096];
    for lines in 0.. {
        let began = Instant::now();
        match sink.write_line(&line) {
            Ok(()) => assert!(lines < 10_000),
            Err(WriteError::Stuck { .. }) => return (lines, began.elapsed()),
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

#[test]
fn a_stuck_pipe_is_given_up_in_time_and_holds_whole_lines() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let other = writer.try_clone().unwrap();
    let (lines, took) = fill(Sink::from_fd(writer.into()).unwrap());
    assert!(took >= Duration::from_millis(100) && took < Duration::from_secs(2), "{took:?}");
    // The descriptor of the other holder is still blocking.
    let flags = OFlag::from_bits_retain(fcntl(&other, FcntlArg::F_GETFL).unwrap());
    assert!(!flags.contains(OFlag::O_NONBLOCK));
    drop(other);
    let mut held = Vec::new();
    reader.read_to_end(&mut held).unwrap();
    assert_eq!(held.len(), lines * 4096);
}

#[test]
fn a_stuck_socket_is_given_up_in_time() {
    let (reader, writer) = UnixStream::pair().unwrap();
    let (lines, took) = fill(Sink::from_fd(OwnedFd::from(writer)).unwrap());
    assert!(lines > 0 && took < Duration::from_secs(2), "{took:?}");
    drop(reader);
}
