//! R06: a tmpfs without a size takes half of the host's memory.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::r06_tmpfs_has_a_size", attack);
}

fn attack(cx: &Cx) {
    let done = cx.run(&[], ["cat", "/proc/self/mountinfo"]).run();
    let half = half_of_memory();
    let mounts = done.exits(0).stdout();
    assert!(mounts.contains(" - tmpfs "), "{done:?}");
    for line in mounts.lines().filter(|line| line.contains(" - tmpfs ")) {
        let place = line.split(' ').nth(4).unwrap_or("");
        let read_only =
            line.split(' ').nth(5).is_some_and(|options| options.split(',').any(|option| option == "ro"));
        let size = line
            .rsplit(',')
            .find_map(|option| option.strip_prefix("size=")?.strip_suffix('k')?.parse::<u64>().ok());
        assert!(read_only || size.is_some_and(|size| size < half), "{place} has no size: {line}");
    }
    for place in ["/dev", "/run", "/sys"] {
        let done = cx.probing(&[], &format!("fill {place} 600")).run();
        assert!(!done.stdout().starts_with("ok"), "600 MB went into {place}: {done:?}");
    }
}

/// Returns half of the memory in kB.
fn half_of_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("meminfo");
    let total = text.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).expect("MemTotal");
    total / 2
}
