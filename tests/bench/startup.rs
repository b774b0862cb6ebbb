//! Start-up: compares `exeat run -- true` in turns with the same bubblewrap run without exeat. Also measures the cost
//! of file protection and of the gateway, and the end of a run.
//!
//! The same bubblewrap run is a hardened one: its options come from `exeat run --dry-run --format json`, with every
//! namespace and mount, no capabilities and both seccomp programs. Only the files that belong to a run of exeat are
//! replaced by files of the same size.

use std::env;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::time::{Duration, Instant};

use exeat_sandbox::seccomp;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::wait;
use serde_json::Value;

use crate::figures::{Aim, Figure, Report, median, median_of};
use crate::machine;
use crate::under_test::UnderTest;

/// `--check` fails above these ratios to hardened bubblewrap. Measured: 2.4 to 2.7 of its CPU. Of its wall time 2.7 in
/// v0.1, 2.3 where nothing is covered, and 5 to 6 in a work tree, if a run waits until the kernel has closed its
/// inotify instances.
const CPU_AT_MOST: f64 = 3.3;
const WALL_AT_MOST: f64 = 4.0;

/// The highest ratio of bubblewrap's wall time to its CPU time at which wall times are meaningful.
const QUIET: f64 = 1.25;

/// The run directory in a plan; each run replaces the `X`s.
const RUN_DIRECTORY: &str = "/dev/shm/exeat-";

/// The milliseconds that one mount costs bubblewrap, from measurements with 1 to 41 of them.
const PER_MOUNT: f64 = 0.17;

/// The most that file protection may add to the start and end of a run, without its mounts, in milliseconds. We first
/// planned 0.5. A C program with only the necessary system calls, in one process, needs 0.6 to 0.75 (docs/costs.md).
/// Checks, locks and the copied process for later mounts need half as much again.
const WALLS: f64 = 1.0;

/// Measures start-up.
pub(crate) fn measure(under_test: &UnderTest, rounds: usize, report: &mut Report) {
    // bubblewrap's first process does not wait for its second: this process adopts the orphans, with their CPU time.
    set_child_subreaper(true).expect("PR_SET_CHILD_SUBREAPER");
    let places = Places::make();
    let run = |directory: &str, options: &[&str]| {
        let mut command = under_test.exeat();
        command.current_dir(places.0.join(directory)).args(["run", "--quiet"]).args(options);
        command.args(["--", "true"]);
        timed(&mut command)
    };
    let mut bare = Bare::from_plan(under_test, &places.0.join(GIT), &[]);
    // Uses as many binds as a repository has, without any watches, to leave out the cost of plain mounts.
    let unprotected = Bare::from_plan(under_test, &places.0.join(PLAIN), &UNPROTECTED);
    let binds = places.binds(bare.mounts - unprotected.mounts);
    let control: Vec<&str> = UNPROTECTED.into_iter().chain(binds.iter().map(String::as_str)).collect();
    let mut lanes: [Times; LANES] = Default::default();
    // The first rounds fill the caches. Each round starts with another lane, and after a full turn the order reverses,
    // because each lane leaves traces in the processor's caches for the next.
    for round in 0..rounds + 3 {
        for number in (0..LANES).map(|lane| (lane + round) % LANES) {
            let number = if (round / LANES).is_multiple_of(2) { number } else { LANES - 1 - number };
            let took = match number {
                0 => run(GIT, &[]),
                // Nothing is searched, held, watched or recorded. A work tree would not do: below a read-only bind,
                // git's names are still covered and watched.
                1 => run(PLAIN, &UNPROTECTED),
                2 => run(PLAIN, &control),
                3 => run(PLAIN, &[]),
                4 => run(GIT, &["--set", "sandbox.backend=native"]),
                _ => timed(&mut bare.command()),
            };
            if round >= 3 {
                lanes[number].add(took);
            }
        }
    }
    let [git, unprotected, control, plain, native, theirs] = lanes;
    report.beside("start-up, CPU", "ms", &git.cpu, &theirs.cpu, Aim::AtMost(1.5, "x bubblewrap"));
    report.check(CPU_AT_MOST);
    report.beside("start-up, wall", "ms", &git.wall, &theirs.wall, Aim::None);
    if median(&theirs.wall) <= median(&theirs.cpu) * QUIET {
        report.check(WALL_AT_MOST);
    } else {
        report.note("\nother programs use the CPU: no check looks at wall time".into());
    }
    report.beside("start-up, native, CPU", "ms", &native.cpu, &theirs.cpu, Aim::AtMost(1.3, "x bubblewrap"));
    report.beside("start-up, native, wall", "ms", &native.wall, &theirs.wall, Aim::None);
    let mut added = |name: &str, with: &[f64], without: &[f64], most: Option<f64>| {
        let number = median_of(with, without, |with, without| with - without);
        let aim = most.map_or(Aim::None, |most| Aim::AtMost(most, "ms"));
        report.add(Figure::alone(name, number, "ms", aim));
    };
    added("start-up, CPU added", &git.cpu, &theirs.cpu, Some(2.5));
    added("walls, CPU added", &git.cpu, &control.cpu, Some(WALLS));
    added("walls, wall added", &git.wall, &control.wall, Some(WALLS));
    added("walls and their mounts, CPU", &git.cpu, &unprotected.cpu, None);
    added("walls and their mounts, wall", &git.wall, &unprotected.wall, None);
    added("of it a repository's, CPU", &git.cpu, &plain.cpu, None);
    added("of it a repository's, wall", &git.wall, &plain.wall, None);
    let budget = bare.mounts as f64 * PER_MOUNT;
    gateway(under_test, rounds, report);
    set_child_subreaper(false).expect("PR_SET_CHILD_SUBREAPER");
    report.note(format!(
        "\nmount budget of the default view: {} mounts, about {budget:.1} ms at {PER_MOUNT} ms each, in both columns",
        bare.mounts
    ));
}

/// The names of the two directories of [`Places`].
const GIT: &str = "git";
const PLAIN: &str = "plain";
/// The name of the directory whose subdirectories are only mounted.
const BOUND: &str = "bound";

/// The number of lanes that are compared.
const LANES: usize = 6;

/// Prevents searches and watches in a directory that is not a work tree.
const UNPROTECTED: [&str; 4] = ["--ro", ".", "--set", "fs.cache=private"];

/// A directory outside of every repository, with a git work tree and an equal directory whose `.git` git does not
/// recognize. Dropping this removes it.
struct Places(PathBuf);

impl Places {
    fn make() -> Self {
        let places = Self(env::temp_dir().join(format!("exeat-bench-{}", process::id())));
        fs::create_dir(&places.0).expect("a directory for the measurement");
        for name in [GIT, PLAIN] {
            let directory = places.0.join(name);
            let made = Command::new("git").args(["init", "--quiet"]).arg(&directory).status();
            assert!(made.is_ok_and(|status| status.success()), "git init {}", directory.display());
        }
        let plain = places.0.join(PLAIN);
        fs::rename(plain.join(".git"), plain.join("dot-git")).expect("another name");
        // With its own name it would be a bare repository.
        fs::rename(plain.join("dot-git/HEAD"), plain.join("dot-git/head")).expect("another name");
        places
    }

    /// Returns options that bind this many more directories.
    fn binds(&self, number: usize) -> Vec<String> {
        let directories = (0..number).map(|number| self.0.join(BOUND).join(number.to_string()));
        let options = directories.flat_map(|directory| {
            fs::create_dir_all(&directory).expect("a directory to be bound");
            ["--ro".to_owned(), directory.display().to_string()]
        });
        options.collect()
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Measures a run with the gateway and without, in turns.
fn gateway(under_test: &UnderTest, rounds: usize, report: &mut Report) {
    let run = |transparent: &str, stage: &[&str]| {
        let mut command = under_test.exeat();
        command
            .args(["run", "--quiet", "--set", &format!("sandbox.transparent={transparent}"), "--"])
            .args(stage);
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
        let aim = most.map_or(Aim::None, |most| Aim::AtMost(most, "ms"));
        report.add(Figure::alone(&format!("{name}, added"), added, "ms", aim));
    };
    line("gateway at start, CPU", &with.cpu, &without.cpu, Some(2.0));
    line("gateway at start, wall", &with.wall, &without.wall, None);
    line("gateway at the end, wall", &end, &bare_end, Some(1.0));
}

/// Returns the milliseconds from the stage's last action to the end of exeat.
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

/// Runs to the end. Returns the wall time, and the CPU time of the process and its descendants, whose orphans this
/// process adopts.
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
    /// The files that bubblewrap reads from inherited descriptors, each time to their end.
    data: Vec<File>,
    mounts: usize,
    directory: PathBuf,
    /// An empty file.
    stand_in: PathBuf,
}

impl Bare {
    fn from_plan(under_test: &UnderTest, directory: &Path, options: &[&str]) -> Self {
        let mut exeat = under_test.exeat();
        exeat
            .current_dir(directory)
            .args(["run", "--dry-run", "--format", "json", "--set", "sandbox.backend=bwrap-alone"])
            .args(options)
            .args(["--", "true"]);
        let output = exeat.output().expect("the plan");
        assert!(output.status.success(), "exeat run --dry-run: {}", String::from_utf8_lossy(&output.stderr));
        let plan: Value = serde_json::from_slice(&output.stdout).expect("a plan in JSON");
        let stand_in = under_test.directory.join("stand-in");
        fs::write(&stand_in, "").expect("a file in place of the socket");
        let directory = directory.to_path_buf();
        let mut bare = Self { options: vec![], data: vec![], mounts: 0, directory, stand_in };
        bare.take(&plan);
        bare
    }

    fn take(&mut self, plan: &Value) {
        let words = options(plan).expect("bubblewrap's options in the plan");
        let mut filters = seccomp::base(false).expect("the filters").into_iter();
        let mut words = words.into_iter().peekable();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--info-fd" | "--json-status-fd" | "--sync-fd" | "--block-fd" => {
                    words.next();
                    continue;
                }
                "--add-seccomp-fd" => {
                    words.next();
                    let number = self.data_of(&filters.next().expect("as many filters as in the plan"));
                    self.options.extend([word, number]);
                    continue;
                }
                "--" => break,
                "--ro-bind" | "--bind" => {
                    self.mounts += 1;
                    let (source, place) =
                        (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                    let source = self.source(plan, &source).display().to_string();
                    self.options.extend([word, source, place]);
                    continue;
                }
                "--file" | "--ro-bind-data" => {
                    self.mounts += usize::from(word == "--ro-bind-data");
                    let size = words.next().unwrap_or_default();
                    let size: usize =
                        size.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0);
                    let number = self.data_of(&vec![0; size]);
                    self.options.extend([word, number]);
                    continue;
                }
                "--tmpfs" | "--proc" | "--remount-ro" => self.mounts += 1,
                // The tmpfs, six nodes, devpts and the console.
                "--dev" => self.mounts += 9,
                _ => {}
            }
            self.options.push(word);
        }
        assert!(filters.next().is_none(), "the plan has fewer filters");
    }

    /// Returns the source of a mount. A tree that root's run prepares in its run directory comes from its original
    /// path, and an empty directory replaces one that only a run makes.
    fn source(&self, plan: &Value, source: &str) -> PathBuf {
        if Path::new(source).exists() {
            return source.into();
        }
        let staged = source
            .strip_prefix(RUN_DIRECTORY)
            .and_then(|rest| rest.trim_start_matches('X').strip_prefix('/'));
        let (name, below) = staged.map_or(("", ""), |staged| staged.split_once('/').unwrap_or((staged, "")));
        let trees = plan["trees"].as_array().into_iter().flatten();
        let tree = trees.filter(|tree| tree["name"] == name).find_map(|tree| tree["host"].as_str());
        let Some(tree) = tree else { return self.stand_in.clone() };
        let path = if below.is_empty() { tree.into() } else { Path::new(tree).join(below) };
        if path.exists() {
            return path;
        }
        let empty = self.stand_in.with_extension("directory");
        fs::create_dir_all(&empty).expect("an empty directory");
        empty
    }

    /// Returns the number of an inheritable descriptor that contains these bytes.
    fn data_of(&mut self, bytes: &[u8]) -> String {
        let path = self.stand_in.with_extension(self.data.len().to_string());
        fs::write(&path, bytes).expect("a file of them");
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

/// Finds the list of bubblewrap's options anywhere in the plan.
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
