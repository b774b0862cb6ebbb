//! Reads directly (open(2), `O_DIRECT`) into a mapping of a file: the kernel writes to the file after nobody has it open.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Instant;

use nix::libc::{self, c_void, off_t};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::{ProbeResult, check, number};

const PAGE: usize = 4096;
/// The bytes of each read that the last one waits for.
const PIECE: usize = 1 << 20;

/// The first words of `struct io_event` (linux/aio_abi.h): data, object, result.
type Event = [i64; 4];

/// Waits for a file of at least this many bytes, and plants words in it by a direct read that waits for this many
/// others of a megabyte. Prints `submitted` when the mapping and the file are closed, and how each read ended.
pub(crate) fn plant_late(path: &str, size: &str, count: &str) -> ProbeResult {
    let (size, count): (u64, usize) = (number(size)?, number(count)?);
    let mut words = b"[core]\n\tfsmonitor = ./evil\n".to_vec();
    words.resize(PAGE, b'#');
    let (planted, other) = (direct("planted", &words)?, direct("other", &vec![b'x'; 16 * PIECE])?);
    let piece = NonZeroUsize::new(PIECE).ok_or(io::ErrorKind::InvalidInput)?;
    let page = NonZeroUsize::new(PAGE).ok_or(io::ErrorKind::InvalidInput)?;
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping, which stays.
    let sink = unsafe { mmap_anonymous(None, piece, access, MapFlags::MAP_SHARED)? };
    let mut context: libc::c_ulong = 0;
    // SAFETY: takes a number, and writes one to a live local.
    check(unsafe { libc::syscall(libc::SYS_io_setup, count + 1, &raw mut context) })?;
    println!("ready");
    io::stdout().flush()?;

    let file = loop {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        if let Some(file) = opened.ok().filter(|file| file.metadata().is_ok_and(|about| about.len() >= size))
        {
            break file;
        }
    };
    // SAFETY: a new mapping, which nobody reads.
    let target = unsafe { mmap(None, page, access, MapFlags::MAP_SHARED, file.as_fd(), 0)? };
    let others = (0..count).map(|at| request(&other, sink.as_ptr(), PIECE, at % 16 * PIECE));
    let mut requests: Vec<libc::iocb> = others.chain([request(&planted, target.as_ptr(), PAGE, 0)]).collect();
    let pointers: Vec<*mut libc::iocb> = requests.iter_mut().map(std::ptr::from_mut).collect();
    let began = Instant::now();
    // SAFETY: the requests live until all have ended, and each has a buffer of its length that is mapped when the kernel takes it.
    let taken =
        check(unsafe { libc::syscall(libc::SYS_io_submit, context, pointers.len(), pointers.as_ptr()) })?;
    // SAFETY: only the kernel uses the page, which it has pinned.
    unsafe { munmap(target, PAGE)? };
    drop(file);
    let held = began.elapsed();
    println!("submitted");
    io::stdout().flush()?;

    let mut events: Vec<Event> = vec![Event::default(); pointers.len()];
    // SAFETY: the buffer has room for the awaited events.
    check(unsafe {
        libc::syscall(
            libc::SYS_io_getevents,
            context,
            taken,
            taken,
            events.as_mut_ptr(),
            std::ptr::null::<c_void>(),
        )
    })?;
    let read: i64 = events.iter().map(|event| event[2]).sum();
    Ok(format!(
        "{read} bytes after {} ms, of which it held the file for {}",
        began.elapsed().as_millis(),
        held.as_millis()
    ))
}

/// Makes a file that is on the disk, and opens it so that a read comes from there.
fn direct(name: &str, bytes: &[u8]) -> io::Result<File> {
    fs::write(name, bytes)?;
    File::open(name)?.sync_all()?;
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(name)
}

fn request(file: &File, buffer: *mut c_void, bytes: usize, at: usize) -> libc::iocb {
    // SAFETY: the struct has only numbers, and 0 is valid for each: also IOCB_CMD_PREAD is 0 (linux/aio_abi.h).
    let mut request: libc::iocb = unsafe { std::mem::zeroed() };
    request.aio_fildes = file.as_raw_fd().cast_unsigned();
    request.aio_buf = buffer as u64;
    request.aio_nbytes = bytes as u64;
    request.aio_offset = at as off_t;
    request
}
