//! B10: the back ends make the same sandbox. What differs is listed here and in docs/backends.md.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;

use e2e::case::{Backend, Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b10_the_back_ends_make_the_same_sandbox", same);
    list.users("escape::b10_the_back_ends_mount_the_same_of_any_plan", any_plan);
    list.users("escape::b10_nothing_of_the_host_s_tree_is_left_below_the_root", nothing_below);
    list.root("escape::b10_the_stage_s_user_opens_what_root_s_run_shows", as_the_user);
    list.users("escape::b26_no_stage_writes_where_runs_make_their_sockets", where_sockets_are);
}

/// Prints what a process sees of its sandbox.
const LOOK: &str = r#"
echo '# mounts'; cat /proc/self/mountinfo
echo '# status'; grep -E '^(Uid|Gid|Cap|NoNewPrivs|Seccomp|SigBlk|SigIgn|SigCgt|Umask|NSpid)' /proc/self/status
echo '# limits'; sort /proc/self/limits
echo '# environment'; env | grep -v '^EXEAT_RUN_ID=' | sort
echo '# descriptors'; ls /proc/self/fd
echo '# nodes'; ls -lnA /dev /dev/pts /dev/shm | sed 's/ [A-Z][a-z][a-z] .*[0-9:] / /'
echo '# root'; ls -A /
echo '# session'; cut -d' ' -f5-8 /proc/self/stat; cut -d' ' -f3-8 /proc/1/stat
echo '# keys'; cut -d' ' -f2- /proc/keys | tr -s ' ' | cut -d' ' -f7- | sort -u; cat /proc/self/oom_score_adj /proc/1/oom_score_adj; hostname; pwd; umask; tty
echo '# links'; cut -d: -f1 /proc/net/dev
echo '# refused'
for file in /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sysrq-trigger /dev/x /x /etc/x /run/exeat/x; do
    (echo x >$file) 2>&1
done
for what in -U -n -m -p; do unshare $what true 2>&1; done
mount -t tmpfs x /tmp 2>&1
head -c 1 /proc/1/mem 2>&1
ls /proc/1/root/ 2>&1
"#;

/// The parts of a report, by name.
fn parts(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut parts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut name = "";
    for line in text.lines() {
        match line.strip_prefix("# ") {
            Some(next) => name = next,
            None => parts.entry(name).or_default().push(line),
        }
    }
    parts
}

/// The mounts at each place: the options of each and its type, sorted.
fn mounts<'a>(lines: &[&'a str]) -> BTreeMap<&'a str, Vec<String>> {
    let mut at: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for line in lines {
        let (mount, system) = line.split_once(" - ").expect("a separator");
        let fields: Vec<&str> = mount.split(' ').collect();
        let kind = system.split(' ').next().expect("a type");
        // bubblewrap's pid 1 needs its own files: only some are covered.
        if Path::new(fields[4]).starts_with("/proc/1") {
            continue;
        }
        // The native back end forbids execution in the sandbox's own /proc/sys too.
        let options = fields[5].replace(",noexec", "");
        at.entry(fields[4]).or_default().push(format!("{options} {kind}"));
    }
    for (place, mounts) in at.iter_mut() {
        if place.starts_with("/dev/") && mounts.iter().all(|mount| mount.ends_with(" devtmpfs")) {
            // bubblewrap makes no read-only mounts of the nodes, where it works alone.
            mounts.iter_mut().for_each(|mount| *mount = mount.replacen("ro,", "rw,", 1));
        }
        if mounts.len() > 1 {
            // bubblewrap does not change what another mount covers.
            *mounts = vec![format!("{} mounts", mounts.len())];
        }
    }
    at
}

fn same(cx: &Cx) {
    cx.write("secret", "s");
    cx.outside(["git", "init", "-q", "repository"]).run().exits(0);
    let minimal = "--fs minimal --ro /usr --ro /bin --ro /lib --ro /lib64";
    for flags in ["", "--fs host", minimal, "--mask secret --rw repository", "--set sandbox.debuggable=true"]
    {
        let report = |backend: Backend| {
            let flags: Vec<&str> = flags.split_whitespace().collect();
            let words =
                [&["run", "--backend", backend.name()], &flags[..], &["--", "sh", "-c", LOOK]].concat();
            let done = cx.exeat(words).run();
            done.exits(2);
            done.stdout().to_owned()
        };
        let [one, others @ ..] = Backend::ALL.map(report);
        for other in others {
            let (one, mut other) = (parts(&one), parts(&other));
            assert!(one.len() > 10 && one["mounts"].len() > 10, "{one:?}");
            let both = [mounts(&one["mounts"]), mounts(&other.remove("mounts").expect("mounts"))];
            assert_eq!(both[0], both[1], "{flags}");
            for (part, lines) in one.into_iter().filter(|(part, _)| *part != "mounts") {
                assert_eq!(Some(lines), other.remove(part), "{part} with {flags:?}");
            }
        }
    }
}

/// What a random plan shows: directories in directories, files, links, repositories and protected names.
const TREE: &str = "mkdir -p a/b/c a/.vscode d/e/f d/.git/hooks g; touch a/x a/b/y a/b/c/z d/e/.env d/config g/h
    ln -s b a/near; ln -s ../d a/far; ln -s x a/file; git init -q a/b/r; git init -q r; mkdir -p r/sub/deep; touch r/sub/k; chmod 500 g";
const PLACES: [&str; 20] = [
    "a",
    "a/b",
    "a/b/c",
    "a/b/c/z",
    "a/x",
    "a/near",
    "a/far",
    "a/file",
    "a/.vscode",
    "a/b/r",
    "d",
    "d/e",
    "d/e/.env",
    "d/.git",
    "g",
    "g/h",
    "r",
    "r/sub",
    "r/.git",
    "missing",
];
const GUESTS: [&str; 6] = ["/data", "/data/in", "/mnt/x", "/opt/new/deep", "/usr/share/new", "/tmp/t"];

/// Chooses numbers as xorshift does (Marsaglia, 2003): the same ones for a seed on each machine.
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).expect("64 bits") % bound
    }

    fn choose<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }

    fn flags(&mut self) -> Vec<String> {
        let mut flags = Vec::new();
        for _ in 0..=self.below(6) {
            let flag = self.choose(&["--ro", "--rw", "--ro", "--rw", "--mask"]);
            let place = self.choose(&PLACES);
            let guest = if flag != "--mask" && self.below(3) == 0 { self.choose(&GUESTS) } else { "" };
            let value = if guest.is_empty() { place.to_owned() } else { format!("{place}:{guest}") };
            flags.extend([flag.to_owned(), value]);
        }
        for words in ["--fs host", "--set fs.cache=none", "--allow-write .git/hooks", "--ro ."] {
            if self.below(6) == 0 {
                flags.extend(words.split(' ').map(str::to_owned));
            }
        }
        flags
    }
}

/// Each place with what is mounted there last, and where that is in its own file system if it is the host's.
fn sources(table: &str) -> BTreeMap<&str, &str> {
    let fields = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let of_host = |fields: &Vec<&str>| {
        !["tmpfs", "proc", "devpts", "mqueue", "sysfs"].iter().any(|kind| fields.contains(kind))
    };
    let sources: BTreeMap<_, _> = fields.filter(of_host).map(|fields| (fields[4], fields[3])).collect();
    // Below TMPDIR, each run has its own cache.
    sources.into_iter().filter(|(at, _)| *at != "/run/exeat/cache").collect()
}

/// A plan decides for itself what is wrong: then no back end starts it.
fn any_plan(cx: &Cx) {
    cx.outside(["bash", "-ec", TREE]).cwd(cx.dir()).run().exits(0);
    let mut started = 0_u64;
    let plans = e2e::rounds(8, 300);
    for seed in 1..=plans {
        let flags = Choices(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).flags();
        let report = |backend: Backend| {
            let words =
                ["run", "--backend", backend.name()].into_iter().chain(flags.iter().map(String::as_str));
            cx.exeat(words.chain(["--", "cat", "/proc/self/mountinfo"])).run()
        };
        let [one, others @ ..] = Backend::ALL.map(report);
        assert!(one.code == Some(0) || one.code == Some(2), "{seed} {flags:?}: {one:?}");
        started += u64::from(one.code == Some(0));

        let first = one.stdout().to_owned();
        for other in others {
            let second = other.stdout().to_owned();
            assert_eq!(one.code, other.code, "{seed} {flags:?}: {other:?}");
            let both = [&first, &second].map(|text| mounts(&text.lines().collect::<Vec<_>>()));
            assert_eq!(both[0], both[1], "{seed} {flags:?}");
            assert_eq!(sources(&first), sources(&second), "{seed} {flags:?}");
        }
    }
    assert!(started * 4 >= plans, "{started} of {plans} plans started");
}

/// The host's own root was below the view of the whole host once, writable, after pivot_root(2).
fn nothing_below(cx: &Cx) {
    for flags in ["", "--fs host"] {
        let words = ["run", "--backend", "native"].into_iter().chain(flags.split_whitespace());
        let done = cx.exeat(words.chain(["--", "cat", "/proc/self/mountinfo"])).run();
        done.exits(0);
        let roots = done.stdout().lines().filter(|line| line.split(' ').nth(4) == Some("/")).count();
        assert_eq!(roots, 1, "{flags}: {done:?}");
    }
}

/// exeat mounts with a capability of root's, and opens with the rights of the stage's user. A link of another user's leads to a directory that
/// only that one may enter.
fn as_the_user(cx: &Cx) {
    const THEIR_UID: u32 = 23456;
    let theirs = std::env::temp_dir().join(format!("exeat-theirs-{}", std::process::id()));
    fs::create_dir_all(theirs.join("versions/20")).expect("a directory");
    fs::write(theirs.join("versions/20/file"), "private").expect("a file");
    symlink("versions/20", theirs.join("current")).expect("a link");
    for path in ["", "versions", "versions/20", "versions/20/file", "current"] {
        lchown(theirs.join(path), Some(THEIR_UID), Some(THEIR_UID)).expect("chown");
    }
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o700)).expect("chmod");
    let link = theirs.join("current").display().to_string();
    for backend in Backend::ALL {
        let file = format!("{link}/file");
        let done = cx.exeat(["run", "--backend", backend.name(), "--ro", &link, "--", "cat", &file]).run();
        assert!(!done.stdout().contains("private"), "{done:?}");
        assert_ne!(done.code, Some(0), "{done:?}");
    }
    fs::remove_dir_all(&theirs).expect("rm");
}

/// A stage that could exchange them would answer for another run, or show it another file.
fn where_sockets_are(cx: &Cx) {
    let runtime = cx.home().join("runtime");
    fs::create_dir(&runtime).expect("a directory");
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).expect("chmod");
    cx.bench().give(&runtime, cx.is_root());
    let place = runtime.display().to_string();
    let run = |words: &[&str]| {
        let words = [&["run"], words, &["--", "touch", "started"]].concat();
        cx.exeat(words).env("XDG_RUNTIME_DIR", &place).run()
    };
    // Root's stage is another user, which may not enter that directory: its runs use /dev/shm.
    let base = if cx.is_root() { "/dev/shm" } else { &place };
    run(&["--rw", base]).exits(2).says("the sockets of runs are made in").says("is writable");
    assert!(!cx.dir().join("started").exists());
    run(&["--ro", base]).exits(0);
    // Runs with another environment make theirs there.
    run(&["--rw", "/dev/shm"]).exits(2).says("the sockets of runs are made in").says("is writable");
}
