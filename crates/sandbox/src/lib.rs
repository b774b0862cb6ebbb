//! Starts a bubblewrap sandbox from a typed description.
//!
//! This crate has no policy and no proxy: it makes an empty network namespace and hands over what stage2 offers. The caller decides
//! what is mounted, what is executed and who serves the listener.

mod assembly;
pub mod backend;
mod builder;
pub mod bwrap;
pub mod child;
pub mod control;
pub mod doctor;
pub mod enforce;
pub mod error;
pub mod fix;
pub mod inside;
pub mod layer;
mod memory_files;
mod mount_steps;
mod native;
mod said;
pub mod seccomp;
pub mod spec;
pub mod staging;
#[expect(unsafe_code, reason = "system calls that no library wraps, each behind a safe function")]
mod sys;
mod wait;
pub mod who;

pub use backend::{Bridge, ExpectedFile, Launch, Offer, Rlimit, RunningSandbox, SandboxEvent, Status};
pub use builder::Builder;
pub use bwrap::probe::{is_nested, is_passed};
pub use enforce::{Enforced, Enforcement};
pub use error::Error;
pub use fix::{Fix, shell_word};
pub use inside::{Meter, Usage};
pub use layer::RefusingLayer;
pub use memory_files::MemoryFiles;
pub use nix::sys::resource::Resource;
pub use spec::{Identity, Mount, SandboxSpec};
pub use staging::Staging;
#[doc(hidden)]
pub use sys::terminal;
pub use sys::{
    Bound, FileHandle, HostTree, InsideMounts, InsideNetwork, InsideProcess, KeptFile, KeptFiles, KeptStatus,
    Lease, Mounted, NetStep, Network, Next, Notice, Notices, OpenNetwork, Packets, Rest, StopWatch,
    StoppedProcesses, Touch, Touches, UserMap, descriptor_limit, end_by_interrupt, has_writer, ignores,
    notice_children, open_files_as, open_process, prefer_this_thread, raise_descriptor_limit,
    survive_file_limit, suspend_this_process, take_fd,
};
pub use who::{Finder, SocketOwner};

/// The static helper, built with this library.
pub const STAGE2_IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stage2"));
