//! stage2 is the first program in the sandbox: it makes the bridge and then becomes the stage.
//!
//! It decides nothing and has no policy: it asks the host side over the bind-mounted socket what to execute. It runs single-threaded,
//! before anything untrusted, and only the relay, if chosen, remains after `execve`. It reports every failure to the host side with
//! its step and `errno`; its exit status means nothing.
//!
//! The embedded program is freestanding: the start of the C and the standard library costs more than all of its work. The build
//! script of `exeat-sandbox` builds it with `--cfg freestanding`. Otherwise it is an ordinary program of the same modules, so that
//! the workspace's lints cover them.
//!
//! It runs inside bubblewrap's sandbox, for which it has made the file tree before ([`assemble`]). Or it builds the sandbox itself
//! and is its pid 1 ([`init`]).
//!
//! Usage: `stage2 handoff|relay[+socks5]`, or `stage2 build:N` or `stage2 assemble:N` with the number of its control socket. By exeat
//! only.
#![cfg_attr(freestanding, no_std, no_main)]

extern crate alloc;

mod assemble;
mod bridge;
mod control;
mod exec;
mod harden;
mod init;
mod loopback;
mod mounts;
#[expect(unsafe_code, reason = "the entry, the heap, and the system calls, each behind a safe function")]
mod sys;
mod terminal;

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::convert::Infallible;

use exeat_contract::{
    ASSEMBLE_WORD, BUILD_WORD, BridgeKind, Hello, Message, PROXY_PORT, SOCKET, SOCKS5_PORT, SOCKS5_SOCKET,
    Step,
};

use crate::control::Control;
use crate::sys::{Descriptor, Errno, chdir};

/// A step that failed, with the kernel's answer.
struct Failure {
    step: Step,
    errno: Errno,
}

/// Names the step of a failed system call.
trait During<T> {
    fn during(self, step: Step) -> Result<T, Failure>;
}

impl<T> During<T> for sys::Result<T> {
    fn during(self, step: Step) -> Result<T, Failure> {
        self.map_err(|errno| Failure { step, errno })
    }
}

#[cfg(not(freestanding))]
fn main() -> std::process::ExitCode {
    use std::os::unix::ffi::OsStrExt;
    let word = std::env::args_os().nth(1);
    run(word.as_deref().map(OsStrExt::as_bytes)).into()
}

/// Runs the program from its first argument to its exit status. Returns only if it has not become the stage.
fn run(word: Option<&[u8]>) -> u8 {
    if control::hold_standard_numbers().is_err() {
        return 1;
    }
    for (prefix, act) in [(BUILD_WORD, build_and_become_stage as Act), (ASSEMBLE_WORD, assemble::assemble)] {
        if let Some(control) = word.and_then(|word| Control::inherit(word, prefix)) {
            // Without the socket nobody waits for an answer.
            return control.map_or(1, |control| {
                let Err(failure) = act(&control);
                report(&control, &failure)
            });
        }
    }
    let Some((kind, socks5)) = word.and_then(BridgeKind::from_argument) else {
        control::print(&["stage2: this program is started by exeat\n"]);
        return 2;
    };
    // Without the control socket, the only place for an error is bubblewrap's standard error, which the host reads too.
    let control = match Control::connect(SOCKET) {
        Ok(control) => control,
        Err(errno) => {
            control::print(&["stage2: cannot connect to ", SOCKET, ": ", control::describe(errno), "\n"]);
            return 1;
        }
    };
    let Err(failure) = become_stage(kind, socks5, &control);
    report(&control, &failure)
}

/// What this program does with its control socket, until it is another program.
type Act = fn(&Control) -> Result<Infallible, Failure>;

fn build_and_become_stage(control: &Control) -> Result<Infallible, Failure> {
    init::build(control).and_then(|it| become_stage(it.bridge, it.socks5, control))
}

/// Reports a failure to the host side, and returns the exit status.
fn report(control: &Control, Failure { step, errno }: &Failure) -> u8 {
    // The host side sees the end of the connection in any case.
    let _ = control.send(&Message::Failed { step: *step, errno: errno.number() }, &[]);
    1
}

fn become_stage(kind: BridgeKind, socks5: bool, control: &Control) -> Result<Infallible, Failure> {
    harden::raise_descriptor_limit().during(Step::SendHello)?;
    loopback::ensure_up().during(Step::LoopbackUp)?;
    let http = offer(kind, PROXY_PORT, SOCKET)?;
    let socks5 = if socks5 { Some(offer(kind, SOCKS5_PORT, SOCKS5_SOCKET)?) } else { None };
    let hello = Message::Hello(Hello { port: PROXY_PORT });
    match &socks5 {
        Some(socks5) => control.send(&hello, &[&http, socks5]),
        None => control.send(&hello, &[&http]),
    }
    .during(Step::SendHello)?;
    // The stage would inherit a copy left here: it could clear O_NONBLOCK on the shared description and block the proxy.
    drop((http, socks5));

    let (go, streams) = control.receive_go().during(Step::ReadGo)?;
    let command = exec::Command::new(&go).during(Step::Exec)?;
    control::take_streams(streams).during(Step::TakeStreams)?;
    let terminal = go.terminal.as_ref().map(terminal::take).transpose().during(Step::Terminal)?;
    chdir(command.cwd()).during(Step::EnterDirectory)?;
    harden::limit_process(terminal.is_some()).during(Step::CloseDescriptors)?;
    let landlock = harden::enter_landlock_domain(go.ports.as_deref()).during(Step::Landlock)?;
    // If the host gets no notices, it records that, and treats each such call as made.
    let notices = harden::install_notice_filter(&go.notice_filter).during(Step::Seccomp)?;
    let passed: Vec<&Descriptor> = terminal.iter().chain(&notices).collect();
    control.send(&Message::Hardened { landlock }, &passed).during(Step::Landlock)?;
    drop((terminal, notices));
    harden::limit_descriptors(go.descriptors, go.most_descriptors).during(Step::CloseDescriptors)?;
    harden::install_filter(&go.filter).during(Step::Seccomp)?;
    command.execute().during(Step::Exec)
}

/// Makes a listener on a port of the loopback. Returns the host side's part: the listener itself, or a descriptor that ends with the
/// relay to `socket`.
fn offer(kind: BridgeKind, port: u16, socket: &str) -> Result<Descriptor, Failure> {
    let listener = bridge::listen(port).during(Step::BindProxyPort)?;
    match kind {
        BridgeKind::Handoff => Ok(listener),
        BridgeKind::Relay => {
            let socket = CString::new(socket).map_err(|_| Errno::INVAL).during(Step::StartRelay)?;
            bridge::relay::start(listener, &socket).during(Step::StartRelay)
        }
    }
}
