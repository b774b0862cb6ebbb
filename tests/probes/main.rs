//! The programs that run inside the sandbox: each tries one thing and prints one line with the result.
//!
//! `probe NAME ARGS...`. A refusal prints as the name of the error (`ENETUNREACH`), a success as `ok`. A probe never
//! decides whether that is right: the trial does.

#![allow(unsafe_code, reason = "attacks are raw system calls")]

mod files;
mod kernel;
mod limits;
mod memory;
mod net;
mod proxy;
mod quotas;
mod socks;
mod starve;
mod streams;

use std::io;
use std::process::ExitCode;

use nix::errno::Errno;

/// The output of a probe.
type ProbeResult = io::Result<String>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let said = match words.as_slice() {
        ["tcp", addr] => net::tcp(addr),
        ["udp", addr] => net::udp(addr),
        ["dns-udp", server, name] => net::dns_udp(server, name),
        ["dns-tcp", server, name] => net::dns_tcp(server, name),
        ["unix", path] => net::unix(path),
        ["unix-dgram", path] => net::unix_dgram(path),
        ["abstract", name] => net::abstract_stream(name),
        ["listen-abstract", name] => net::listen_abstract(name),
        ["serve", port] => net::serve(port),
        ["listen", port] => net::listen(port),
        ["fast-open", addr] => net::fast_open(addr),
        ["sockets"] => net::sockets(),

        ["ask", target] => proxy::ask(target),
        ["echo", target, count] => proxy::echo(target, count),
        ["early", target] => proxy::early(target),
        ["greeting", target] => proxy::greeting(target),
        ["server-closes", target] => proxy::server_closes(target),
        ["client-closes", target, count] => proxy::client_closes(target, count),
        ["bulk", target, count] => proxy::bulk(target, count),
        ["slow-reader", target, count] => proxy::slow_reader(target, count),
        ["end-of", target] => proxy::end_of(target),
        ["stop-reading", target] => proxy::stop_reading(target),
        ["break-off", target] => proxy::break_off(target),
        ["many", target, each, beside] => proxy::many(target, each, beside),
        ["hold", target, count] => proxy::hold(target, count),
        ["split-head", target] => proxy::split_head(target),
        ["slow-head", target] => proxy::slow_head(target),
        ["huge-head", target, size] => proxy::huge_head(target, size),
        ["many-fields", target, count] => proxy::many_fields(target, count),
        ["ask-all", file] => proxy::ask_all(file),
        ["bytes", file] => proxy::bytes(file),
        ["bytes-unix", socket, file] => proxy::bytes_unix(socket, file),

        ["socks", target] => socks::ask(target),
        ["socks-name", name, port] => socks::ask_name(name, port),
        ["socks-command", command] => socks::command(command),
        ["socks-echo", target, count] => socks::echo(target, count),
        ["socks-greeting", target] => socks::greeting(target),

        ["socket", family, kind, protocol] => kernel::socket(family, kind, protocol),
        ["io-uring"] => kernel::io_uring(),
        ["io-setup"] => kernel::io_setup(),
        ["i386"] => kernel::i386(),
        ["x32"] => kernel::x32(),
        ["tiocsti"] => kernel::tiocsti(),
        ["without-mount", command @ ..] => kernel::without(nix::libc::SYS_mount, command),
        ["without-setns", command @ ..] => kernel::without(nix::libc::SYS_setns, command),
        ["without-move-mount", command @ ..] => kernel::without(nix::libc::SYS_move_mount, command),
        ["terminal-request", name, fd] => kernel::terminal_request(name, fd),
        ["userns"] => kernel::userns(),
        ["go-on", milliseconds, then] => kernel::go_on(milliseconds, then),
        ["keyctl"] => kernel::keyctl(),
        ["with-key", name, command @ ..] => kernel::with_key(name, command),
        ["read-key", name] => kernel::read_key(name),
        ["mount-tmpfs", place] => kernel::mount_tmpfs(place),
        ["unmount", place] => kernel::unmount(place),
        ["setuid", uid] => kernel::setuid(uid),
        ["bpf"] => kernel::bpf(),
        ["userfaultfd"] => kernel::userfaultfd(),
        ["secret-memory"] => kernel::secret_memory(),

        ["ptrace", pid] => memory::ptrace(pid),
        ["trace-child"] => memory::trace_child(),
        ["steal-fd", pid] => memory::steal_fd(pid),
        ["write-memory", pid] => memory::write_memory(pid),
        ["environ", pid] => memory::environ(pid),

        ["write", path] => files::write(path),
        ["read", path] => files::read(path),
        ["create", path] => files::create(path),
        ["fds"] => files::fds(),
        ["fd-kind", number] => files::fd_kind(number),
        ["fill", place, megabytes] => files::fill(place, megabytes),
        ["hog", megabytes, millis] => limits::hog(megabytes, millis),
        ["hogs", processes, megabytes, millis] => limits::hogs(processes, megabytes, millis),
        ["hog-shared", processes, megabytes, millis] => limits::hog_shared(processes, megabytes, millis),
        ["hog-vfork", megabytes, millis] => limits::hog_vfork(megabytes, millis),
        ["hog-memfd", megabytes, descriptors, millis] => limits::hog_memfd(megabytes, descriptors, millis),
        ["hog-thread", megabytes, millis] => limits::hog_thread(megabytes, millis),
        ["hog-thread-memfd", megabytes, millis] => limits::hog_thread_memfd(megabytes, millis),
        ["empty-files", place, most, millis] => limits::empty_files(place, most, millis),
        ["terminals", most] => limits::terminals(most),
        ["hog-mapped-memfd", megabytes, millis] => limits::hog_mapped_memfd(megabytes, millis),
        ["forks", most, millis] => limits::forks(most, millis),
        ["bomb", most, millis] => limits::bomb(most, millis),
        ["threads", most] => limits::threads(most),
        ["open-many", count] => limits::open_many(count),
        ["in-flight", millis] => quotas::in_flight(millis),
        ["pass"] => quotas::pass(),
        ["pass-to", path] => quotas::pass_to(path),
        ["inotify-instances", most, millis] => quotas::inotify_instances(most, millis),
        ["lease", path, kind] => quotas::lease(path, kind),
        ["spin", seconds] => limits::spin(seconds, false),
        ["spin-on", seconds] => limits::spin(seconds, true),
        ["starve", how, processes, seconds] => starve::starve(how, processes, seconds),
        ["slow", how, whose] => starve::slow(how, whose),
        ["slow-thread"] => starve::slow_thread(),
        ["flood", bytes] => limits::flood(bytes),
        ["with-stream", kind, stream, command @ ..] => streams::with_stream(kind, stream, command),
        ["writable-sysctls"] => files::writable_sysctls(),
        _ => {
            eprintln!("no such probe: {words:?}");
            return ExitCode::from(99);
        }
    };
    println!("{}", said.unwrap_or_else(|error| name_of(&error)));
    ExitCode::SUCCESS
}

/// Returns the name of an error, such as `ENETUNREACH`, which does not change with the locale.
fn name_of(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| format!("{error}"), |code| format!("{:?}", Errno::from_raw(code)))
}

/// Converts the result of a raw call: a negative number is an error.
fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Parses an argument as a number.
fn number<T: std::str::FromStr>(text: &str) -> io::Result<T> {
    text.parse().map_err(|_| io::Error::other(format!("`{text}` is no number")))
}
