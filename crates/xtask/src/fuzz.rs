//! Runs every fuzz target for a while. Needs only a stable toolchain and a C++ compiler.
//!
//! A fuzz project is `crates/NAME/fuzz`: a separate workspace with one program per target in `src/bin`, seeds in
//! `corpus/TARGET` and optional words in `dictionaries/TARGET.dict`. New inputs stay below cargo's target directory;
//! the committed seeds change only with `--keep`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::steps::finish;
use crate::tree;

/// The compiler flags for libFuzzer: LLVM's coverage. `-C passes` and `-C llvm-args` are stable; the address sanitizer
/// is not, and finds little in crates that forbid unsafe code.
const FLAGS: &[&str] = &[
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// The seconds after which one input counts as a finding: the slowest takes milliseconds.
const SLOW: u64 = 10;

/// The targets to run, and how long.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// `rule` or `policy/rule`; `None` means every target.
    target: Option<String>,
    /// The time for each target.
    seconds: u64,
    /// Whether inputs that reach new code become seeds.
    keep: bool,
}

/// A fuzz program of a project.
struct Target {
    /// The crate's directory below `crates`.
    project: String,
    name: String,
    /// The directory with `Cargo.toml`.
    home: PathBuf,
}

impl Plan {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut plan = Self { target: None, seconds: 60, keep: false };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--keep" => plan.keep = true,
                "--seconds" => {
                    let number = arguments.next().and_then(|text| text.parse().ok());
                    // libFuzzer takes 0 for "no end".
                    plan.seconds = number
                        .filter(|seconds| *seconds > 0)
                        .ok_or("`--seconds` takes a number from 1: seconds for each target")?;
                }
                flag if flag.starts_with('-') => return Err(format!("`{flag}` is not an option of fuzz")),
                name if plan.target.is_none() => plan.target = Some(name.to_owned()),
                other => return Err(format!("fuzz takes one target, and `{other}` is a second one")),
            }
        }
        Ok(plan)
    }

    /// Plans every target, each with an equal part of the time.
    pub(crate) fn all_within(total: Duration) -> Result<Self, String> {
        let targets = targets()?.len() as u64;
        let seconds = total.as_secs() / targets;
        if seconds == 0 {
            return Err(format!("{} s are too few for {targets} fuzz targets", total.as_secs()));
        }
        Ok(Self { target: None, seconds, keep: false })
    }

    pub(crate) fn run(&self) -> Result<(), String> {
        let all = targets()?;
        let wanted: Vec<&Target> = all
            .iter()
            .filter(|target| {
                self.target.as_ref().is_none_or(|name| *name == target.name || *name == target.full_name())
            })
            .collect();
        if wanted.is_empty() {
            let names: Vec<String> = all.iter().map(Target::full_name).collect();
            let asked = self.target.as_deref().unwrap_or_default();
            return Err(format!("`{asked}` is not a fuzz target; the targets are: {}", names.join(", ")));
        }
        let area = tree::target()?;
        let mut built: Option<&Path> = None;
        let mut findings = 0;
        for target in wanted {
            if built != Some(target.home.as_path()) {
                build(&target.home, &area)?;
                built = Some(target.home.as_path());
            }
            findings += usize::from(!self.run_target(target, &area)?);
        }
        if findings == 0 { Ok(()) } else { Err(format!("{findings} of the targets failed")) }
    }

    /// Runs one target. Returns false if it has a finding.
    fn run_target(&self, target: &Target, area: &Path) -> Result<bool, String> {
        let learnt = area.join("fuzz-corpus").join(&target.project).join(&target.name);
        let found = area.join("fuzz-findings").join(&target.project);
        for directory in [&learnt, &found] {
            fs::create_dir_all(directory)
                .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
        }
        println!("{}: {} s", target.full_name(), self.seconds);
        let started = Instant::now();
        let program = area.join("fuzz").join(host()?).join("release").join(&target.name);
        let mut command = Command::new(&program);
        command
            .arg(&learnt)
            .arg(target.seeds())
            .arg(format!("-max_total_time={}", self.seconds))
            .arg(format!("-timeout={SLOW}"))
            .arg("-print_final_stats=1")
            .arg(format!("-artifact_prefix={}/{}-", found.display(), target.name))
            // The place of a panic is enough; the rest of the trace is libFuzzer's.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let words = target.home.join("dictionaries").join(&target.name).with_extension("dict");
        if words.is_file() {
            command.arg(format!("-dict={}", words.display()));
        }
        let mut child =
            command.spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        let mut report = Report::default();
        if let Some(stderr) = child.stderr.take() {
            for line in BufReader::new(stderr).split(b'\n') {
                let line = line.map_err(|error| format!("cannot read the fuzzer's output: {error}"))?;
                report.add(&String::from_utf8_lossy(&line));
            }
        }
        let status = child.wait().map_err(|error| format!("cannot wait for the fuzzer: {error}"))?;
        let rate = rate(report.runs, started.elapsed());
        println!("  {} runs, {rate} a second, {} inputs that reached new code", report.runs, report.new);
        if status.success() {
            if self.keep {
                keep(target, &program, &learnt)?;
            }
            return Ok(true);
        }
        for line in &report.message {
            println!("  {line}");
        }
        match &report.input {
            Some(input) => println!(
                "  FOUND ({status}): {input}\n  once more: {} {input}\n  when it is repaired: cp {input} {}/NAME",
                program.display(),
                target.seeds().display(),
            ),
            None => println!("  the fuzzer ended with {status} and wrote no input"),
        }
        Ok(false)
    }
}

impl Target {
    fn full_name(&self) -> String {
        format!("{}/{}", self.project, self.name)
    }

    fn seeds(&self) -> PathBuf {
        self.home.join("corpus").join(&self.name)
    }
}

/// Lists every target, sorted by name.
fn targets() -> Result<Vec<Target>, String> {
    let mut targets = Vec::new();
    for project in names(&tree::root().join("crates"))? {
        let home = tree::root().join("crates").join(&project).join("fuzz");
        if !home.join("Cargo.toml").is_file() {
            continue;
        }
        for file in names(&home.join("src/bin"))? {
            if let Some(name) = file.strip_suffix(".rs") {
                targets.push(Target { project: project.clone(), name: name.to_owned(), home: home.clone() });
            }
        }
    }
    Ok(targets)
}

/// The sorted names in a directory.
fn names(directory: &Path) -> Result<Vec<String>, String> {
    let entries =
        fs::read_dir(directory).map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort_unstable();
    Ok(names)
}

fn build(home: &Path, area: &Path) -> Result<(), String> {
    println!("xtask: building {}", home.strip_prefix(tree::root()).unwrap_or(home).display());
    let mut command = tree::cargo();
    command
        .args(["build", "--quiet", "--release", "--bins", "--manifest-path"])
        .arg(home.join("Cargo.toml"))
        // With an explicit target, cargo keeps the flags away from build scripts and macros.
        .args(["--target", &host()?, "--target-dir"])
        .arg(area.join("fuzz"))
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"));
    finish(&mut command, "the build of a fuzz project")
}

/// Returns the target triple of this machine, such as `x86_64-unknown-linux-gnu`.
fn host() -> Result<String, String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .current_dir(tree::root())
        .output()
        .map_err(|error| format!("cannot run rustc: {error}"))?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .ok_or_else(|| "`rustc -vV` names no host".to_owned())
}

/// Adds the fewest inputs that reach code which no seed reaches. Existing seeds stay.
fn keep(target: &Target, program: &Path, learnt: &Path) -> Result<(), String> {
    let before = names(&target.seeds())?.len();
    let mut command = Command::new(program);
    command
        // Counters of how often code ran would keep hundreds of inputs.
        .args(["-set_cover_merge=1", "-use_counters=0"])
        .arg(target.seeds())
        .arg(learnt)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    finish(&mut command, "the choice of seeds")?;
    let after = names(&target.seeds())?;
    let size = |name: &String| fs::metadata(target.seeds().join(name)).map_or(0, |file| file.len());
    println!(
        "  {} seeds more, {} bytes in all {}",
        after.len() - before,
        after.iter().map(size).sum::<u64>(),
        after.len()
    );
    Ok(())
}

fn rate(runs: u64, took: Duration) -> u64 {
    runs / took.as_secs().max(1)
}

/// The parts of libFuzzer's output that matter.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    runs: u64,
    new: u64,
    /// The panic's message, or libFuzzer's.
    message: Vec<String>,
    /// The file with the input that failed.
    input: Option<String>,
    /// Whether the current line belongs to a message; the dump of the process ends it.
    open: bool,
}

impl Report {
    /// The most lines of one message that are shown, and the most characters of each.
    const SHOWN: (usize, usize) = (20, 1000);

    fn add(&mut self, line: &str) {
        let number = |name: &str| -> Option<u64> { line.strip_prefix(name)?.trim().parse().ok() };
        if let Some(runs) = number("stat::number_of_executed_units:") {
            self.runs = runs;
        } else if let Some(new) = number("stat::new_units_added:") {
            self.new = new;
        } else if let Some((_, path)) = line.split_once("Test unit written to ") {
            self.input = Some(path.trim().to_owned());
        } else if line.contains("panicked at ") {
            self.open = true;
        } else if line.starts_with("==") || line.starts_with("note: ") {
            self.open = false;
            // The message of a panic explains more than the signal that follows.
            if line.contains("ERROR: libFuzzer") && self.message.is_empty() {
                self.message.push(line.to_owned());
            }
        }
        if self.open && self.message.len() < Self::SHOWN.0 {
            // A message may quote the input, which may contain any character.
            let shown = line.chars().take(Self::SHOWN.1).map(|c| if c.is_control() { '.' } else { c });
            self.message.push(shown.collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Plan, Report, targets};

    fn plan(words: &[&str]) -> Result<Plan, String> {
        Plan::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn parses_every_argument() {
        assert_eq!(plan(&[]), Ok(Plan { target: None, seconds: 60, keep: false }));
        let all = Plan { target: Some("policy/rule".into()), seconds: 5, keep: true };
        assert_eq!(plan(&["--seconds", "5", "policy/rule", "--keep"]), Ok(all));
        for wrong in [&["--seconds"][..], &["--seconds", "0"], &["--seconds", "x"], &["--kep"], &["a", "b"]] {
            assert!(plan(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn gives_each_target_an_equal_part_of_the_time() {
        let targets = targets().unwrap().len() as u64;
        let plan = Plan::all_within(Duration::from_secs(targets * 7 + 1));
        assert_eq!(plan, Ok(Plan { target: None, seconds: 7, keep: false }));
        // 0 would be "no end".
        assert!(Plan::all_within(Duration::from_secs(targets - 1)).is_err());
    }

    #[test]
    fn reports_a_finding_with_its_message_and_input() {
        let mut report = Report::default();
        for line in [
            "#2\tINITED cov: 172",
            "",
            "thread '<unnamed>' panicked at src/rule.rs:57:5:",
            "\"!p\" for \"/\u{1b}!p\"",
            "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
            "==24035== ERROR: libFuzzer: deadly signal",
            "artifact_prefix='x/rule-'; Test unit written to x/rule-crash-53fa",
            "stat::number_of_executed_units: 7012",
            "stat::new_units_added:          284",
        ] {
            report.add(line);
        }
        let message =
            vec!["thread '<unnamed>' panicked at src/rule.rs:57:5:".into(), "\"!p\" for \"/.!p\"".to_owned()];
        let input = Some("x/rule-crash-53fa".into());
        assert_eq!(report, Report { runs: 7012, new: 284, message, input, open: false });
        let mut slow = Report::default();
        slow.add("==7== ERROR: libFuzzer: timeout after 11 seconds");
        assert_eq!(slow.message.len(), 1);
    }
}
