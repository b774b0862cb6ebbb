//! Measures what exeat costs: start-up, one stream, one round trip, one CONNECT, one idle tunnel, exeat at rest, and
//! the gateway compared with CONNECT.
//!
//! Every figure has a comparison: the same work without exeat, by the same client and server, in turns and in one run,
//! with every process on one CPU. A mark says whether the aim is met. Run it with `cargo xtask bench`.
//!
//! `bench [--rounds N] [--start] [--gateway] [--check]`; `--start` measures only starts and ends, `--gateway` only the
//! gateway. `--check` measures starts, and fails if one costs more than a fixed multiple of hardened bubblewrap:
//! milliseconds would measure the machine and its neighbors. (`bench client ...` is the client that it starts, and
//! `bench stamp` a stage that ends.)
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
            // For `cargo xtask bench --quick`, which skips criterion.
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
        // Needs a process with one thread. Runs after the start-up measurement, which further namespaces would distort.
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
