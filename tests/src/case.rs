//! The context of one trial (`Cx`), and the list of trials: once, per user, or per user, bridge and back end.
//!
//! Every trial has private names and addresses, so that trials run in parallel and still read exact logs.

use std::any::Any;
use std::cell::RefCell;
use std::env;
use std::fs;
use std::net::IpAddr;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

use libtest_mimic::{Completion, Failed, Trial};

use crate::bench::{Bench, HOME, Powers, address};
use crate::dns::Answer;
use crate::run::{Done, Run};

/// The machine, after `main` has made it.
pub static BENCH: OnceLock<Bench> = OnceLock::new();

/// Lets trials run alone that count what is left on the whole machine.
static ALONE: RwLock<()> = RwLock::new(());

static NEXT: AtomicU32 = AtomicU32::new(1);

/// The user that starts exeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Uid 0.
    Root,
    /// An ordinary user.
    User,
}

/// The bridge of a trial's runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bridge {
    /// The default bridge.
    Handoff,
    /// `--set sandbox.bridge=relay`.
    Relay,
}

/// The spare address with which a trial settles its logs. The longest table needs as many addresses before it.
const MARK: u32 = 72;

/// What builds the sandbox of a trial's runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// The default.
    Bwrap,
    /// `--backend bwrap-alone`.
    BwrapAlone,
    /// `--backend native`.
    Native,
}

impl Backend {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Bwrap, Self::BwrapAlone, Self::Native];

    /// Returns its name in a policy.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bwrap => "bwrap",
            Self::BwrapAlone => "bwrap-alone",
            Self::Native => "native",
        }
    }
}

/// The circumstances of a trial.
#[derive(Debug, Clone, Copy)]
struct Variant {
    who: Who,
    bridge: Bridge,
    backend: Backend,
}

/// A trial: its user, bridge, back end, directories and names.
pub struct Cx {
    who: Who,
    bridge: Bridge,
    backend: Backend,
    id: u32,
    home: PathBuf,
    dir: PathBuf,
    runs: AtomicU32,
    went_outside: AtomicBool,
    transcript: Mutex<Vec<String>>,
}

impl Cx {
    fn new(Variant { who, bridge, backend }: Variant) -> Self {
        let id = NEXT.fetch_add(1, Ordering::SeqCst);
        let home =
            PathBuf::from(HOME).join(format!("{}-{id}", if who == Who::Root { "root" } else { "user" }));
        let dir = home.join("work");
        let cx = Self {
            who,
            bridge,
            backend,
            id,
            home,
            dir,
            runs: AtomicU32::new(0),
            went_outside: AtomicBool::new(false),
            transcript: Mutex::default(),
        };
        fs::create_dir(&cx.home).expect("home");
        fs::create_dir(&cx.dir).expect("work");
        cx.bench().give(&cx.home, cx.is_root());
        cx.bench().give(&cx.dir, cx.is_root());
        cx.write("ca.pem", &cx.bench().ca_pem);
        for (name, addrs) in [(cx.good(), cx.good_addrs()), (cx.evil(), cx.evil_addrs())] {
            cx.bench().dns.set(&name, Answer::Addrs(vec![addrs.0, addrs.1]));
        }
        cx
    }

    /// Returns the machine.
    pub fn bench(&self) -> &'static Bench {
        BENCH.get().expect("main made the bench")
    }

    /// Returns whether exeat starts as root.
    pub fn is_root(&self) -> bool {
        self.who == Who::Root
    }

    /// Returns the bridge.
    pub fn bridge(&self) -> Bridge {
        self.bridge
    }

    /// Returns the back end.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Returns the HOME of the trial's user.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Returns the working directory, below HOME.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns where the newest run in a directory has moved this name.
    pub fn aside_in(&self, dir: &Path, name: &str) -> PathBuf {
        self.find_aside(dir, name)
            .unwrap_or_else(|| panic!("nothing of `{name}` is in the quarantine of {}", dir.display()))
    }

    /// Returns where the newest run in a directory has moved this name, if it has.
    pub fn find_aside(&self, dir: &Path, name: &str) -> Option<PathBuf> {
        let runs = fs::read_dir(dir.join(".exeat-quarantine/git~1")).into_iter().flatten().flatten();
        let there = runs.map(|run| run.path().join(name)).filter(|path| fs::symlink_metadata(path).is_ok());
        there.max()
    }

    /// Returns where the newest run in the working directory has moved this name.
    pub fn aside(&self, name: &str) -> PathBuf {
        self.aside_in(self.dir(), name)
    }

    /// Returns the name to grant. It resolves to [`Cx::good_addrs`].
    pub fn good(&self) -> String {
        format!("allowed-{}.test", self.id)
    }

    /// Returns a name that no trial grants: the end of a trial checks that nobody asked for it or connected to it.
    pub fn evil(&self) -> String {
        format!("evil-{}.test", self.id)
    }

    /// Makes another name for this trial, with this answer.
    pub fn name(&self, word: &str, answer: Answer) -> String {
        let name = format!("{word}.case-{}.test", self.id);
        self.bench().dns.set(&name, answer);
        name
    }

    /// Returns the addresses of [`Cx::good`].
    pub fn good_addrs(&self) -> (IpAddr, IpAddr) {
        address(self.id * 2)
    }

    /// Returns the addresses of [`Cx::evil`].
    pub fn evil_addrs(&self) -> (IpAddr, IpAddr) {
        address(self.id * 2 + 1)
    }

    /// Returns more addresses for this trial alone, by number below 100.
    pub fn spare_addrs(&self, n: u32) -> (IpAddr, IpAddr) {
        let number = 0x1000 + self.id * (MARK + 1) + n;
        assert!(n <= MARK && number < 0x10_0000, "70 blocks of 16 bits are ours");
        address(number)
    }

    /// Returns `https://` and the granted name.
    pub fn good_url(&self) -> String {
        format!("https://{}/", self.good())
    }

    /// Returns `https://` and the name that is not granted.
    pub fn evil_url(&self) -> String {
        format!("https://{}/", self.evil())
    }

    /// Writes a file into the working directory.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.join(name);
        fs::write(&path, text).expect("write");
        self.bench().give(&path, self.is_root());
        path
    }

    /// Links the probe binary into the working directory, and returns its path for the stage.
    pub fn probe(&self) -> &'static str {
        let place = self.dir.join("probe");
        if !place.exists() {
            // A copy could not be executed while any forked child still has it open for writing.
            fs::hard_link(self.bench().bin.join("probe"), &place).expect("link to the probe");
        }
        "./probe"
    }

    /// Prepares `exeat ARGS`; `run` gets the trial's bridge and back end, and a record outside the working directory.
    pub fn exeat<S: AsRef<str>>(&self, args: impl IntoIterator<Item = S>) -> Run<'_> {
        let mut words: Vec<String> = args.into_iter().map(|word| word.as_ref().to_string()).collect();
        let mut audit = None;
        if words.first().is_some_and(|word| word == "run") {
            let options = words.iter().position(|word| word == "--").unwrap_or(words.len());
            let given = |flag: &str| words[..options].iter().any(|word| word == flag);
            let mut extra = Vec::new();
            if self.bridge == Bridge::Relay && !words.iter().any(|word| word.starts_with("sandbox.bridge=")) {
                extra.extend(["--set".to_string(), "sandbox.bridge=relay".to_string()]);
            }
            let chooses = given("--backend") || words.iter().any(|word| word.starts_with("sandbox.backend="));
            if self.backend != Backend::Bwrap && !chooses {
                extra.extend(["--backend".to_string(), self.backend.name().to_string()]);
            }
            if !given("--audit") && !given("--dry-run") {
                let path =
                    self.home.join(format!("audit-{}.jsonl", self.runs.fetch_add(1, Ordering::SeqCst)));
                extra.extend(["--audit".to_string(), path.display().to_string()]);
                audit = Some(path);
            }
            words.splice(1..1, extra);
        }
        words.insert(0, self.bench().bin.join("exeat").display().to_string());
        Run::new(self, words, audit)
    }

    /// Prepares `exeat run ARGS` with its record in the default place.
    pub fn exeat_plain<S: AsRef<str>>(&self, args: impl IntoIterator<Item = S>) -> Run<'_> {
        let mut words = vec![self.bench().bin.join("exeat").display().to_string()];
        words.extend(args.into_iter().map(|word| word.as_ref().to_string()));
        Run::new(self, words, None)
    }

    /// Prepares `exeat run --allow RULE... -- COMMAND...`.
    pub fn run<S: AsRef<str>>(&self, rules: &[&str], command: impl IntoIterator<Item = S>) -> Run<'_> {
        let mut words = vec!["run".to_string()];
        for rule in rules {
            words.extend(["--allow".to_string(), (*rule).to_string()]);
        }
        words.push("--".to_string());
        words.extend(command.into_iter().map(|word| word.as_ref().to_string()));
        self.exeat(words)
    }

    /// Prepares `exeat run --allow RULE... -- sh -c SCRIPT`.
    pub fn sh(&self, rules: &[&str], script: &str) -> Run<'_> {
        self.run(rules, ["sh", "-c", script])
    }

    /// Prepares `exeat run --allow RULE... -- ./probe WORDS`, with the words split at blanks.
    pub fn probing(&self, rules: &[&str], words: &str) -> Run<'_> {
        let mut command = vec![self.probe()];
        command.extend(words.split(' '));
        self.run(rules, command)
    }

    /// Prepares a command as the trial's user on the host, outside any sandbox, to show an attack without protection.
    pub fn outside<S: AsRef<str>>(&self, words: impl IntoIterator<Item = S>) -> Run<'_> {
        self.went_outside.store(true, Ordering::SeqCst);
        Run::new(self, words.into_iter().map(|word| word.as_ref().to_string()).collect(), None)
    }

    /// Returns a curl command that trusts the bench's authority and prints the status.
    pub fn curl(&self, url: &str) -> Vec<String> {
        ["curl", "-sS", "--max-time", "20", "--cacert", "ca.pem", url].map(str::to_string).to_vec()
    }

    /// Waits until the logs of the internet contain everything sent so far.
    pub fn wait_for_logs(&self) {
        // Parallel trials would count each other's connections to the same address.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        self.bench().internet.wait_for_logs(self.spare_addrs(MARK));
    }

    /// Gives up unless one of these files exists.
    pub fn needs(&self, paths: &[&str]) {
        if !paths.iter().any(|path| Path::new(path).exists()) {
            self.cannot(&format!("none of {paths:?} is there; `cargo xtask setup` installs it"));
        }
    }

    /// Gives up on an older kernel.
    pub fn needs_linux(&self, major: u32, minor: u32) {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
        let mut parts = release.split(['.', '-', '\n']).map(|part| part.parse().unwrap_or(0));
        if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < (major, minor) {
            self.cannot(&format!("Linux {} is older than {major}.{minor}", release.trim()));
        }
    }

    /// Gives up on a trial that this machine cannot run. Under `E2E_STRICT=1` this is a failure.
    pub fn cannot(&self, reason: &str) -> ! {
        panic::panic_any(Cannot(reason.to_string()))
    }

    pub(crate) fn remember(&self, done: &Done) {
        self.transcript.lock().expect("transcript").push(format!("{done:?}"));
    }

    /// Checks at the end of every trial: the evil origin got no connection and no datagram, no datagram contains its
    /// name, the resolver was not asked for it, and the search list of resolv.conf was never applied.
    fn nothing_leaked(&self) {
        let internet = &self.bench().internet;
        self.wait_for_logs();
        let (v4, v6) = self.evil_addrs();
        for addr in [v4, v6] {
            let visits = internet.visits(addr);
            assert!(visits.is_empty(), "the evil origin was reached: {visits:?}");
            let datagrams = internet.datagrams.to(addr);
            assert!(datagrams.is_empty(), "the evil origin was reached: {datagrams:?}");
        }
        let asked = self.bench().dns.queries(&self.evil());
        assert!(asked.is_empty(), "the resolver was asked about the evil name: {asked:?}");
        if self.went_outside.load(Ordering::SeqCst) {
            return;
        }
        // The name in the form of a DNS message.
        let datagrams = internet.datagrams.with(format!("evil-{}\x04test", self.id).as_bytes());
        assert!(datagrams.is_empty(), "somebody was told the evil name: {datagrams:?}");
        let searched = self.bench().dns.queries(&format!("-{}.test.evil-search", self.id));
        assert!(searched.is_empty(), "the search list was applied: {searched:?}");
    }
}

/// The reason why a trial cannot run.
struct Cannot(String);

/// The list of trials.
pub struct Cases {
    trials: Vec<Trial>,
    powers: Option<Powers>,
    root_is_ignored: bool,
    needs_root: bool,
}

type Case = fn(&Cx);

impl Cases {
    /// Makes an empty list for a process with these powers; `None` if the trials are only listed. Trials of root are
    /// marked as ignored if the process is not root, and if ignored ones are asked for (`--ignored`).
    pub fn new(powers: Option<Powers>, root_is_ignored: bool) -> Self {
        Self { trials: Vec::new(), powers, root_is_ignored, needs_root: false }
    }

    /// Adds a trial for root and the user, over both bridges, on both back ends: see `covering`.
    pub fn matrix(&mut self, name: &str, case: Case) {
        for variant in covering(name) {
            self.push(name, variant, false, case);
        }
    }

    /// Adds a trial like [`Cases::matrix`], where the users are the subject.
    pub fn users(&mut self, name: &str, case: Case) {
        self.matrix(name, case);
    }

    /// Adds a trial for the user, over both bridges.
    pub fn bridges(&mut self, name: &str, case: Case) {
        for bridge in [Bridge::Handoff, Bridge::Relay] {
            self.push(name, Variant { bridge, ..Variant::usual(Who::User) }, false, case);
        }
    }

    /// Adds a trial for the user over the default bridge and on the default back end, for behavior that depends on neither.
    pub fn once(&mut self, name: &str, case: Case) {
        self.push(name, Variant::usual(Who::User), false, case);
    }

    /// Adds a trial for root alone, over the default bridge and on the default back end.
    pub fn root(&mut self, name: &str, case: Case) {
        self.push(name, Variant::usual(Who::Root), false, case);
    }

    /// Adds a trial like [`Cases::root`], which runs alone.
    pub fn root_alone(&mut self, name: &str, case: Case) {
        self.push(name, Variant::usual(Who::Root), true, case);
    }

    /// Adds a trial like [`Cases::matrix`], which runs alone.
    pub fn alone(&mut self, name: &str, case: Case) {
        for variant in covering(name) {
            self.push(name, variant, true, case);
        }
    }

    /// Adds trials that only root can run, because only root can make their host, whoever starts exeat in it.
    pub fn on_a_host_of_root(&mut self, list: impl FnOnce(&mut Self)) {
        self.needs_root = true;
        list(self);
        self.needs_root = false;
    }

    /// Returns the finished list.
    pub fn into_trials(self) -> Vec<Trial> {
        self.trials
    }

    fn push(&mut self, name: &str, variant: Variant, alone: bool, case: Case) {
        let needs_root = variant.who == Who::Root || self.needs_root;
        let possible = !needs_root || self.powers == Some(Powers::Root);
        let trial = Trial::ignorable_test(format!("{name}::{}", variant.name()), move || {
            if possible { one(variant, alone, case) } else { gave_up("it needs real root") }
        });
        self.trials.push(trial.with_ignored_flag(needs_root && self.root_is_ignored));
    }
}

impl Variant {
    /// Returns the variant with the default bridge and back end.
    fn usual(who: Who) -> Self {
        Self { who, bridge: Bridge::Handoff, backend: Backend::Bwrap }
    }

    fn name(self) -> String {
        let who = if self.who == Who::Root { "root" } else { "user" };
        let bridge = if self.bridge == Bridge::Handoff { "handoff" } else { "relay" };
        let backend = match self.backend {
            Backend::Bwrap => "",
            Backend::BwrapAlone => "_alone",
            Backend::Native => "_native",
        };
        format!("{who}_{bridge}{backend}")
    }
}

/// Returns the variants of a matrix case: with `E2E_FULL=1` all twelve; else two, with each user and each bridge once, and with
/// bubblewrap and without. In a quarter of the cases bubblewrap works alone. The name decides, so that every run has the same.
fn covering(name: &str) -> Vec<Variant> {
    let mut all = Vec::new();
    for who in [Who::Root, Who::User] {
        for bridge in [Bridge::Handoff, Bridge::Relay] {
            all.extend(Backend::ALL.map(|backend| Variant { who, bridge, backend }));
        }
    }
    if env::var_os("E2E_FULL").is_some_and(|value| value != "0") {
        return all;
    }
    let sum = name.bytes().fold(0, u8::wrapping_add);
    let bwrap = if sum & 0b1100 == 0 { Backend::BwrapAlone } else { Backend::Bwrap };
    all.retain(|variant| [bwrap, Backend::Native].contains(&variant.backend));
    // Each variant has its opposite at the other end.
    let first = usize::from(sum) % (all.len() / 2);
    vec![all[first], all[all.len() - 1 - first]]
}

fn one(variant: Variant, alone: bool, case: Case) -> Result<Completion, Failed> {
    let _writer = alone.then(|| ALONE.write().unwrap_or_else(std::sync::PoisonError::into_inner));
    let _reader = (!alone).then(|| ALONE.read().unwrap_or_else(std::sync::PoisonError::into_inner));
    let cx = Cx::new(variant);
    let outcome = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        case(&cx);
        cx.nothing_leaked();
    }));
    match outcome {
        Ok(()) => {
            let _ = fs::remove_dir_all(cx.home());
            Ok(Completion::Completed)
        }
        Err(payload) => match payload.downcast::<Cannot>() {
            Ok(cannot) => gave_up(&cannot.0),
            Err(payload) => Err(Failed::from(report(payload.as_ref(), &cx))),
        },
    }
}

fn gave_up(reason: &str) -> Result<Completion, Failed> {
    if env::var_os("E2E_STRICT").is_some_and(|value| value != "0") {
        return Err(format!("cannot run here: {reason}").into());
    }
    Ok(Completion::ignored_with(reason))
}

fn report(payload: &(dyn Any + Send), cx: &Cx) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without words");
    let place = PLACE.with(|place| place.borrow().clone());
    let mut report = format!("{text}\n  at {place}\n");
    for done in cx.transcript.lock().expect("transcript").iter().rev().take(3) {
        report.push_str("\nran ");
        report.push_str(done);
    }
    report
}

thread_local! {
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Hides panics of trials: the report of the trial contains them, with the output of its runs.
pub fn quiet_panics() {
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        PLACE.with(|known| *known.borrow_mut() = place);
    }));
}
