//! Whole runs of the real binary, with real bubblewrap, clients and kernel, on a private machine.
//!
//! `cargo test -p e2e` builds `exeat` and runs everything; `cargo test -p e2e -- escape::` runs one area. Needs
//! iproute2, util-linux, bubblewrap and curl. A trial that cannot run here says why, and fails under `E2E_STRICT=1`;
//! one of root is marked as ignored for others. `E2E_FULL=1` runs every case of the matrix with every user and bridge.

use std::path::Path;
use std::process::ExitCode;
use std::thread;

use e2e::bench::{Bench, Powers};
use e2e::bin::bin;
use e2e::case::{BENCH, Cases, quiet_panics};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

mod allow;
mod audit;
mod audit_read;
mod back_end;
mod cli;
mod clients;
mod deny;
mod dns;
mod doctor;
mod durable;
mod escape;
mod exit;
mod export;
mod gateway;
mod http;
mod learn;
mod ledger;
mod life;
mod limits;
mod load;
mod policy;
mod presets;
mod privacy;
mod prove;
mod proxy;
mod schemas;
mod smoke;
mod socks;
mod streams;
mod terminal;
mod terms;
mod tls;
mod upstream;
mod vectors;
mod verify;
mod who;

/// Trials wait more than they compute, so several run per processor.
const PER_CPU: usize = 2;

fn main() -> ExitCode {
    let mut args = libtest_mimic::Arguments::from_args();
    raise_descriptor_limit();
    // Before the namespaces: in a private one everybody is root.
    let is_root = nix::unistd::geteuid().is_root();
    let powers = (!args.list).then(|| {
        let bench = Bench::set_up(bin(), Some(Path::new(env!("CARGO_BIN_EXE_probe"))));
        let powers = bench.powers;
        assert!(BENCH.set(bench).is_ok(), "one bench");
        powers
    });
    // This run is for trials that need root: with fewer powers it would show nothing, so it may not pass.
    let is_short =
        std::env::var_os("E2E_ROOT").is_some() && powers.is_some_and(|powers| powers != Powers::Root);
    assert!(!is_short, "E2E_ROOT is set, and this process has not the powers of root: {powers:?}");
    let cpus = thread::available_parallelism().map_or(2, usize::from);
    args.test_threads.get_or_insert(cpus * PER_CPU);

    let mut cases = Cases::new(powers, args.ignored || !is_root);
    allow::cases(&mut cases);
    back_end::cases(&mut cases);
    deny::cases(&mut cases);
    dns::cases(&mut cases);
    policy::cases(&mut cases);
    schemas::cases(&mut cases);
    smoke::cases(&mut cases);
    socks::cases(&mut cases);
    streams::cases(&mut cases);
    terminal::cases(&mut cases);
    terms::cases(&mut cases);
    tls::cases(&mut cases);
    upstream::cases(&mut cases);
    exit::cases(&mut cases);
    gateway::cases(&mut cases);
    http::cases(&mut cases);
    learn::cases(&mut cases);
    life::cases(&mut cases);
    limits::cases(&mut cases);
    audit::cases(&mut cases);
    export::cases(&mut cases);
    durable::cases(&mut cases);
    audit_read::cases(&mut cases);
    cli::cases(&mut cases);
    clients::cases(&mut cases);
    presets::cases(&mut cases);
    privacy::cases(&mut cases);
    prove::cases(&mut cases);
    proxy::cases(&mut cases);
    doctor::cases(&mut cases);
    escape::cases(&mut cases);
    vectors::cases(&mut cases);
    ledger::cases(&mut cases);
    verify::cases(&mut cases);
    load::cases(&mut cases);
    who::cases(&mut cases);

    quiet_panics();
    let conclusion = libtest_mimic::run(&args, cases.into_trials());
    if let Some(bench) = BENCH.get() {
        bench.tear_down();
    }
    conclusion.exit_code()
}

/// Raises the soft limit of descriptors, if the hard one lets it. Each trial keeps its servers until all trials are over,
/// and a shell of an ordinary user has 1024 descriptors.
fn raise_descriptor_limit() {
    /// The descriptors that 1000 trials need, with a reserve.
    const ENOUGH: u64 = 16_384;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("RLIMIT_NOFILE");
    if soft < ENOUGH {
        setrlimit(Resource::RLIMIT_NOFILE, hard.min(ENOUGH), hard).expect("raising RLIMIT_NOFILE");
    }
}
