//! What exeat costs: start-up, one stream, one round trip, one CONNECT, one idle tunnel, itself at rest; and the gateway beside CONNECT.
//!
//! Every figure stands beside the same work done without exeat, by the same client and the same server, in turns and in
//! one run, with every process on one CPU. A mark says whether the aim is met. Run it with `cargo xtask bench`.
//!
//! `bench [--rounds N] [--start] [--gateway] [--check]`; `--start` measures starts and ends alone, `--gateway` the gateway's way alone.
//! `--check` measures starts, and fails if one costs more than a fixed multiple of hardened bubblewrap: not by milliseconds, which
//! measure the machine and its neighbors. (`bench client ...` is the client that it starts, and `bench stamp` a stage that ends.)
#![forbid(unsafe_code)]

mod client;
mod figures;
mod gateway;
mod machine;
mod paths;
mod server;
mod startup;
mod under_test;

use std::env;
use std::process::ExitCode;

use figures::Report;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let Some(("client", rest)) = arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return client::main(rest);
    }
    if arguments == ["stamp"] {
        println!("{}", machine::now().as_nanos());
        return ExitCode::SUCCESS;
    }
    let mut rounds = 7;
    let mut check = false;
    let mut only_start = false;
    let mut only_gateway = false;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--rounds" => {
                rounds = words.next().and_then(|number| number.parse().ok()).unwrap_or(rounds).max(5)
            }
            "--check" => (check, only_start) = (true, true),
            "--start" => only_start = true,
            "--gateway" => only_gateway = true,
            // For `cargo xtask bench --quick`, which leaves criterion out.
            "--quick" => rounds = 5,
            other => {
                eprintln!(
                    "bench: `{other}` is not an option; there are --rounds N, --start, --gateway, --quick and --check"
                );
                return ExitCode::from(2);
            }
        }
    }
    machine::raise_open_files();
    let cpus = machine::cpus();
    machine::pin();
    let under_test = under_test::UnderTest::find();
    println!("{}", machine::describe());
    println!("medians of {rounds} interleaved rounds, every process on one CPU (`free`: on any)\n");

    let mut report = Report::default();
    if !only_gateway {
        startup::measure(&under_test, rounds * 3, &mut report);
    }
    if !only_start {
        // Before there is a second thread, and after start-up: it is not to be measured inside further namespaces.
        let named = machine::name_loopback(gateway::NAME, &under_test.directory);
        if !only_gateway {
            paths::measure(&under_test, rounds, &mut report);
        }
        match named {
            Ok(()) => gateway::measure(&under_test, rounds, &mut report),
            Err(error) => {
                report.note(format!("\nthe gateway was left out, for want of a hosts file: {error}"))
            }
        }
        if !only_gateway {
            machine::use_cpus(&cpus);
            paths::measure_free(&under_test, rounds, &mut report);
        }
    }
    report.print();
    if !only_start && !only_gateway {
        report.save(&under_test.directory.join("last.json"));
    }
    if !check || report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
