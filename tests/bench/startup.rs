//! Start-up: `exeat run -- true` against the same bubblewrap run without exeat, in turns; the gateway's part in it; and the end of
//! a run.
//!
//! The options come from `exeat run --dry-run --json`. What belongs to a run of exeat (its socket, its seccomp program,
//! its report) is put in place by a file of the same size, or left out; every mount stays.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::wait;
use serde_json::Value;

use crate::figures::{Aim, Figure, Report, least, median, median_of};
use crate::machine;
use crate::under_test::UnderTest;

/// What a mount costs bubblewrap, from measurements with 1 to 41 of them.
const PER_MOUNT: f64 = 0.17;

/// Measures start-up.
pub(crate) fn measure(under_test: &UnderTest, rounds: usize, report: &mut Report) {
    // bubblewrap's first process does not wait for its second: the orphans come to us, and their CPU with them.
    set_child_subreaper(true).expect("PR_SET_CHILD_SUBREAPER");
    let mut bare = Bare::from_plan(under_test);
    let with = || {
        let mut command = under_test.exeat();
        command.args(["run", "--quiet", "--", "true"]);
        timed(&mut command)
    };
    // The first runs make the cache and fill the page cache.
    for _ in 0..3 {
        with();
        timed(&mut bare.command());
    }
    let (mut ours, mut theirs) = (Times::default(), Times::default());
    for _ in 0..rounds {
        ours.add(with());
        theirs.add(timed(&mut bare.command()));
    }
    let (cpu, bare_cpu) = (median(&ours.cpu), median(&theirs.cpu));
    report.add(Figure {
        name: "start-up, CPU".into(),
        value: format!("{cpu:.2} ms"),
        base: format!("{bare_cpu:.2} ms"),
        number: cpu / bare_cpu,
        aim: Aim::AtMost(1.5, "x bubblewrap"),
    });
    let mut line = |name: &str, ours: f64, theirs: f64| {
        report.add(Figure {
            name: name.into(),
            value: format!("{ours:.2} ms"),
            base: format!("{theirs:.2} ms"),
            number: ours / theirs,
            aim: Aim::None,
        });
    };
    line("start-up, least CPU", least(&ours.cpu), least(&theirs.cpu));
    line("start-up, wall", median(&ours.wall), median(&theirs.wall));
    line("start-up, least wall", least(&ours.wall), least(&theirs.wall));
    report.add(Figure {
        name: "start-up, CPU added".into(),
        value: format!("{:.2} ms", cpu - bare_cpu),
        base: String::new(),
        number: cpu - bare_cpu,
        aim: Aim::AtMost(2.5, "ms"),
    });
    let budget = bare.mounts as f64 * PER_MOUNT;
    gateway(under_test, rounds, report);
    set_child_subreaper(false).expect("PR_SET_CHILD_SUBREAPER");
    report.note(format!(
        "\nmount budget of the default view: {} mounts, about {budget:.1} ms at {PER_MOUNT} ms each, in both columns",
        bare.mounts
    ));
}

/// The same run with the gateway and without, in turns.
fn gateway(under_test: &UnderTest, rounds: usize, report: &mut Report) {
    let run = |transparent: &str, stage: &[&str]| {
        let mut command = under_test.exeat();
        command.args(["run", "--quiet", "--transparent", transparent, "--"]).args(stage);
        command
    };
    let ways = ["on", "off"];
    let mut starts = [Times::default(), Times::default()];
    let mut ends = [vec![], vec![]];
    for _ in 0..rounds {
        for (way, (start, end)) in ways.iter().zip(starts.iter_mut().zip(&mut ends)) {
            start.add(timed(&mut run(way, &["true"])));
            end.push(ending(&mut run(way, &["./client", "stamp"])));
        }
    }
    let [with, without] = starts;
    let [end, bare_end] = ends;
    let mut line = |name: &str, with: &[f64], without: &[f64], most: Option<f64>| {
        report.beside(name, "ms", with, without, Aim::None);
        let added = median_of(with, without, |with, without| with - without);
        report.add(Figure {
            name: format!("{name}, added"),
            value: format!("{added:.2} ms"),
            base: String::new(),
            number: added,
            aim: most.map_or(Aim::None, |most| Aim::AtMost(most, "ms")),
        });
    };
    line("gateway at start, CPU", &with.cpu, &without.cpu, Some(2.0));
    line("gateway at start, wall", &with.wall, &without.wall, None);
    line("gateway at the end, wall", &end, &bare_end, Some(1.0));
}

/// Milliseconds from the last that the stage does to the end of exeat.
fn ending(command: &mut Command) -> f64 {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the command starts");
    let status = child.wait().expect("its end");
    let end = machine::now();
    let mut said = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut said).expect("what the stage said");
    while wait().is_ok() {}
    assert!(status.success(), "{command:?}: {status}");
    let stamp = Duration::from_nanos(said.trim().parse().expect("a time"));
    (end - stamp).as_secs_f64() * 1e3
}

#[derive(Default)]
struct Times {
    wall: Vec<f64>,
    cpu: Vec<f64>,
}

impl Times {
    fn add(&mut self, (wall, cpu): (Duration, Duration)) {
        self.wall.push(wall.as_secs_f64() * 1e3);
        self.cpu.push(cpu.as_secs_f64() * 1e3);
    }
}

/// Runs to the end: wall time, and the CPU of the process and of all its descendants, because orphans come to this process.
fn timed(command: &mut Command) -> (Duration, Duration) {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let before = machine::children_cpu();
    let start = Instant::now();
    let status = command.status().expect("the command starts");
    let wall = start.elapsed();
    while wait().is_ok() {}
    assert!(status.success(), "{command:?}: {status}");
    (wall, machine::children_cpu() - before)
}

/// The bubblewrap run of the plan, without exeat.
struct Bare {
    options: Vec<String>,
    /// Files that bubblewrap reads from descriptors of these numbers, to their end, each time.
    data: Vec<File>,
    mounts: usize,
    directory: PathBuf,
}

impl Bare {
    fn from_plan(under_test: &UnderTest) -> Self {
        let output =
            under_test.exeat().args(["run", "--dry-run", "--json", "--", "true"]).output().expect("the plan");
        assert!(output.status.success(), "exeat run --dry-run: {}", String::from_utf8_lossy(&output.stderr));
        let plan: Value = serde_json::from_slice(&output.stdout).expect("a plan in JSON");
        let words = options(&plan).expect("bubblewrap's options in the plan");
        let mut bare =
            Self { options: vec![], data: vec![], mounts: 0, directory: under_test.directory.join("work") };
        let stand_in = under_test.directory.join("stand-in");
        fs::write(&stand_in, "").expect("a file in place of the socket");
        bare.take(words, &stand_in);
        bare
    }

    fn take(&mut self, words: Vec<String>, stand_in: &Path) {
        let mut words = words.into_iter().peekable();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--add-seccomp-fd" | "--seccomp" | "--info-fd" | "--json-status-fd" | "--sync-fd"
                | "--block-fd" => {
                    words.next();
                    continue;
                }
                "--" => break,
                "--ro-bind" | "--bind" => {
                    self.mounts += 1;
                    let (source, place) =
                        (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                    let source =
                        if Path::new(&source).exists() { source } else { stand_in.display().to_string() };
                    self.options.extend([word, source, place]);
                    continue;
                }
                "--file" | "--ro-bind-data" => {
                    self.mounts += usize::from(word == "--ro-bind-data");
                    let size = words.next().unwrap_or_default();
                    let size: usize =
                        size.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0);
                    let number = self.data_of(size, stand_in);
                    self.options.extend([word, number]);
                    continue;
                }
                "--tmpfs" | "--proc" | "--remount-ro" => self.mounts += 1,
                // The tmpfs, six nodes, devpts and the console's place.
                "--dev" => self.mounts += 9,
                _ => {}
            }
            self.options.push(word);
        }
    }

    /// The number of a descriptor that holds so many bytes and that a child inherits.
    fn data_of(&mut self, size: usize, stand_in: &Path) -> String {
        let path = stand_in.with_extension(self.data.len().to_string());
        fs::write(&path, vec![0; size]).expect("a file of that size");
        let file = File::open(&path).expect("the file");
        fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty())).expect("a descriptor for children");
        let number = file.as_raw_fd().to_string();
        self.data.push(file);
        number
    }

    fn command(&mut self) -> Command {
        for file in &mut self.data {
            file.seek(SeekFrom::Start(0)).expect("back to the beginning");
        }
        let mut command = Command::new("/usr/bin/bwrap");
        command.args(&self.options).args(["--", "/usr/bin/true"]).current_dir(&self.directory).env_clear();
        command
    }
}

/// The list of words that holds bubblewrap's options, wherever it is in the plan.
fn options(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Array(items) => {
            let words: Option<Vec<String>> =
                items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
            match words {
                Some(words) if words.iter().any(|word| word == "--unshare-all") => Some(words),
                _ => items.iter().find_map(options),
            }
        }
        Value::Object(fields) => fields.values().find_map(options),
        _ => None,
    }
}
