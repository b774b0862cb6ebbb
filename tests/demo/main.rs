//! Shows the main job for real: one host allowed, one refused, one attempt around the proxy, and the record of all
//! three.
//!
//! The first part needs no Internet: it makes a private "host" and "internet" in namespaces, as the tests do, so that
//! public addresses work like real ones without any exception. The second part reaches a real host if the machine has a
//! network; otherwise it prints that it is left out. Run it with `cargo xtask demo`.
#![forbid(unsafe_code)]

mod internet;
mod shell;

use std::env;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, ExitCode};

use e2e::bench::{Bench, HOME, PATH, address};
use e2e::dns::Answer;
use shell::Shell;

/// The name that is granted, and the one that is not.
const GRANTED: &str = "api.demo.test";
const OTHER: &str = "other.demo.test";

fn main() -> ExitCode {
    let this = env::current_exe().expect("own path");
    let exeat = this.with_file_name("exeat");
    assert!(exeat.is_file(), "{} is missing: run `cargo xtask demo`", exeat.display());
    if env::args().nth(1).as_deref() == Some("local") {
        return local(&exeat);
    }
    // The first part changes its process's namespaces, so it runs in a separate process.
    let local = Command::new(&this).arg("local").status().expect("the first part starts");
    let real = internet::show(&exeat);
    if local.success() && real { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Shows one server with two names, without the Internet.
fn local(exeat: &Path) -> ExitCode {
    let bench = Bench::set_up(exeat, None);
    let (granted, other) = (address(1).0, address(2).0);
    for (name, addresses) in [(GRANTED, address(1)), (OTHER, address(2))] {
        bench.dns.set(name, Answer::Addrs(vec![addresses.0, addresses.1]));
    }
    let home = Path::new(HOME).join("you");
    let project = home.join("project");
    fs::create_dir_all(&project).expect("a home and a project");
    fs::write(project.join("ca.pem"), &bench.ca_pem).expect("the certificate of the local authority");
    // Root shows it as an ordinary user too, as most people work.
    bench.give(&home, false);
    bench.give(&project, false);
    let mut words = bench.become_user(false);
    words.push("env".into());
    let shell = Shell::new(&project, words)
        .clear()
        .env("PATH", &format!("{HOME}/bin:{PATH}"))
        .env("HOME", &home.display().to_string())
        .env("LANG", "C.UTF-8");

    println!(
        "One local TLS server answers as {GRANTED} and as {OTHER}.\nThe stage is curl; it may reach the first name only.\n"
    );
    let mut good = true;
    let mut seen = ConnectionCounts { bench: &bench, last: 0 };

    println!("1. Allowed: curl gets its answer.");
    let code =
        shell.run(&format!("exeat run --allow {GRANTED} -- curl -sS --cacert ca.pem https://{GRANTED}/"));
    good &= expect(code == 0 && seen.new_at(granted) == 1, "the server saw one connection");

    println!("2. Refused: no rule names this host, so its name is not even looked up.");
    let code =
        shell.run(&format!("exeat run --allow {GRANTED} -- curl -sS --cacert ca.pem https://{OTHER}/"));
    let silent = bench.dns.queries(OTHER).is_empty();
    good &= expect(
        code != 0 && silent && seen.new_at(other) == 0,
        "the server saw nothing, and neither did the resolver",
    );

    println!("3. Around the proxy: directly, and then by the address instead of the name.");
    let both = format!("curl -sSk --noproxy \"*\" https://{other}/; curl -sSk https://{other}/");
    let code = shell.run(&format!("exeat run --allow {GRANTED} -- sh -c '{both}'"));
    good &= expect(
        code != 0 && seen.new_at(other) == 0,
        "the server saw nothing: the kernel refused the first inside the sandbox, the policy the second",
    );

    println!("What was written down: one record for each run.");
    good &= shell.run("exeat audit list") == 0;
    println!();
    for run in runs(&home) {
        good &= shell.run(&format!("exeat audit show {}", &run[..12])) == 0;
        println!();
    }
    bench.tear_down();
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The number of connections that the servers have seen.
struct ConnectionCounts<'a> {
    bench: &'a Bench,
    last: usize,
}

impl ConnectionCounts<'_> {
    /// Returns the number of new connections to an address since the last call.
    fn new_at(&mut self, addr: IpAddr) -> usize {
        let internet = &self.bench.internet;
        let new = internet.since(self.last).iter().filter(|visit| visit.to.ip() == addr).count();
        self.last = internet.count();
        new
    }
}

/// Returns the recorded runs, oldest first: their names sort by time.
fn runs(home: &Path) -> Vec<String> {
    let mut runs: Vec<String> = fs::read_dir(home.join(".local/state/exeat/runs"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".jsonl").map(str::to_owned))
        .collect();
    runs.sort();
    runs
}

/// Prints whether an expectation is met, and returns it.
fn expect(holds: bool, what: &str) -> bool {
    println!("   {} {what}\n", if holds { "=>" } else { "=> NOT AS IT SHOULD BE:" });
    holds
}
