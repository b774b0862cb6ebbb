//! Attacks on the sandbox, one a file, each shown to work where nothing stops it.

use e2e::case::{Cases, Cx};
use e2e::run::Done;

mod abstract_socket;
mod across_runs;
mod agents;
mod back_ends;
mod bare_repository;
mod bridge_socket;
mod by_map;
mod cache_links;
mod capabilities;
mod closed_directories;
mod closed_home;
mod core_pattern;
mod debuggable;
mod deciding_files;
mod during;
mod foreign_syscalls;
mod git_again;
mod git_beside;
mod git_closed;
mod git_crowd;
mod git_environment;
mod git_files;
mod git_further;
mod git_hooks;
mod git_index;
mod git_leftovers;
mod git_paths;
mod git_tracked;
mod hard_links;
mod host_loopback;
mod host_processes;
mod host_secrets;
mod host_socket;
mod host_writes;
mod inherited_descriptors;
mod io_uring;
mod kernel_uid;
mod keyring;
mod killed_bridge;
mod killed_supervisor;
mod let_through;
mod linked_names;
mod long_looks;
mod loopback_ports;
mod mask_removal;
mod no_bubblewrap;
mod option_words;
mod other_names;
mod other_runs;
mod owner_secrets;
mod pid_one;
mod planted_bwrap;
mod planted_links;
mod proc_environ;
mod protected_top;
mod quarantine;
mod repositories;
mod resolver_sockets;
mod root_neighbors;
mod root_only_files;
mod root_trees;
mod run_directory;
mod set_aside;
mod settings_files;
mod setuid;
mod socket_families;
mod standard_streams;
mod starved;
mod stray_links;
mod sysfs;
mod system_files;
mod terminal_input;
mod tmpfs_fill;
mod uncovered;
mod user_namespace;
mod vsock;
mod without_cap_kill;

pub(crate) fn cases(list: &mut Cases) {
    abstract_socket::cases(list);
    across_runs::cases(list);
    agents::cases(list);
    back_ends::cases(list);
    bare_repository::cases(list);
    bridge_socket::cases(list);
    cache_links::cases(list);
    capabilities::cases(list);
    closed_directories::cases(list);
    closed_home::cases(list);
    core_pattern::cases(list);
    debuggable::cases(list);
    deciding_files::cases(list);
    foreign_syscalls::cases(list);
    git_crowd::cases(list);
    git_environment::cases(list);
    git_beside::cases(list);
    git_closed::cases(list);
    git_again::cases(list);
    git_files::cases(list);
    by_map::cases(list);
    git_further::cases(list);
    git_hooks::cases(list);
    git_tracked::cases(list);
    git_index::cases(list);
    git_leftovers::cases(list);
    git_paths::cases(list);
    hard_links::cases(list);
    host_loopback::cases(list);
    host_processes::cases(list);
    host_secrets::cases(list);
    host_socket::cases(list);
    host_writes::cases(list);
    inherited_descriptors::cases(list);
    io_uring::cases(list);
    kernel_uid::cases(list);
    keyring::cases(list);
    killed_bridge::cases(list);
    killed_supervisor::cases(list);
    let_through::cases(list);
    linked_names::cases(list);
    long_looks::cases(list);
    loopback_ports::cases(list);
    mask_removal::cases(list);
    no_bubblewrap::cases(list);
    option_words::cases(list);
    other_names::cases(list);
    other_runs::cases(list);
    owner_secrets::cases(list);
    pid_one::cases(list);
    planted_bwrap::cases(list);
    planted_links::cases(list);
    proc_environ::cases(list);
    protected_top::cases(list);
    quarantine::cases(list);
    repositories::cases(list);
    resolver_sockets::cases(list);
    root_neighbors::cases(list);
    root_only_files::cases(list);
    root_trees::cases(list);
    run_directory::cases(list);
    settings_files::cases(list);
    set_aside::cases(list);
    setuid::cases(list);
    socket_families::cases(list);
    standard_streams::cases(list);
    starved::cases(list);
    stray_links::cases(list);
    sysfs::cases(list);
    system_files::cases(list);
    terminal_input::cases(list);
    tmpfs_fill::cases(list);
    during::cases(list);
    uncovered::cases(list);
    user_namespace::cases(list);
    vsock::cases(list);
    without_cap_kill::cases(list);
}

/// The attack works on the host: what refuses it inside is the sandbox.
fn works_outside(cx: &Cx, words: &str) {
    let done = outside(cx, words);
    assert!(done.stdout().starts_with("ok"), "the control failed, so the trial would say nothing: {done:?}");
}

/// Runs a probe on the host, as the trial's user.
fn outside(cx: &Cx, words: &str) -> Done {
    cx.outside(std::iter::once(cx.probe()).chain(words.split(' '))).run()
}

/// Runs a probe in the sandbox; it has to be refused with one of these errors.
fn refused_inside(cx: &Cx, words: &str, errors: &[&str]) {
    let done = cx.probing(&[&cx.good()], words).run();
    let said = done.stdout();
    assert!(
        errors.contains(&said.trim_end()),
        "`{words}` said `{}`, not one of {errors:?}: {done:?}",
        said.trim_end()
    );
    done.record();
}
