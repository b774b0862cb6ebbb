//! B14: files that the host writes after or during a stage: results, records, names that are moved aside. The stage
//! puts a link there. B11: a protected file that the host replaces while the sandbox is made.

use std::fs;
use std::time::{Duration, Instant};

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b14_links_under_what_the_host_writes", attack);
    list.once(
        "escape::b11_builds_the_sandbox_again_where_the_host_replaced_a_file_meanwhile",
        replaced_at_start,
    );
}

/// The mount is there in the sandbox, and nothing watches it yet.
fn replaced_at_start(cx: &Cx) {
    cx.outside(["git", "init", "-q", "."]).cwd(cx.dir()).run().exits(0);
    let (config, new) = (cx.dir().join(".git/config"), cx.dir().join(".git/new"));
    let place = format!("{} ", config.display());
    let is_mounted = || {
        let tables =
            fs::read_dir("/proc").expect("processes").flatten().map(|it| it.path().join("mountinfo"));
        tables.into_iter().any(|table| fs::read_to_string(table).is_ok_and(|text| text.contains(&place)))
    };
    for _ in 0..20 {
        fs::copy(&config, &new).expect("a file");
        cx.bench().give(&new, cx.is_root());
        let mut live = cx.exeat(["run", "--", "true"]).start();
        let end = Instant::now() + Duration::from_secs(10);
        while !is_mounted() && !live.ended() {
            assert!(Instant::now() < end, "no mount came");
        }
        fs::rename(&new, &config).expect("a rename");
        live.wait().exits(0);
    }
}

fn attack(cx: &Cx) {
    let victim = cx.home().join("victim");
    fs::create_dir_all(victim.join("hooks")).expect("a directory");
    fs::write(victim.join("result.json"), "mine\n").expect("a file");
    fs::write(victim.join("hooks/pre-commit"), "mine\n").expect("a file");
    for path in
        [victim.clone(), victim.join("hooks"), victim.join("result.json"), victim.join("hooks/pre-commit")]
    {
        cx.bench().give(&path, cx.is_root());
    }
    fs::create_dir(cx.dir().join("out")).expect("a directory");
    cx.bench().give(&cx.dir().join("out"), cx.is_root());
    let target = victim.display();
    let script = format!(
        "rm -rf out && ln -s {target} out && ln -s {target} .git && ln -s {target}/hooks .husky
         ln -s {target}/result.json .envrc && echo planted"
    );
    let done = cx.exeat(["run", "--result", "out/result.json", "--", "sh", "-c", &script]).run();
    // The stage succeeded, but its result could not be written.
    done.exits(125).prints("planted\n");
    assert_eq!(fs::read_to_string(victim.join("result.json")).expect("a file"), "mine\n", "{done:?}");
    let names: Vec<_> = fs::read_dir(&victim).expect("victim").flatten().map(|it| it.file_name()).collect();
    assert_eq!(names.len(), 2, "made outside: {names:?}");
    assert_eq!(fs::read_dir(victim.join("hooks")).expect("hooks").count(), 1);
    // The links themselves are moved.
    for name in [".husky", ".envrc"] {
        assert!(fs::symlink_metadata(cx.dir().join(name)).is_err(), "{name} is in its place: {done:?}");
    }
    // No path in the tree is allowed for a record.
    let inside = ["run", "--audit", "out/record.jsonl", "--", "true"];
    let _ = fs::remove_file(cx.dir().join("out"));
    fs::create_dir_all(cx.dir().join("out")).expect("a directory");
    cx.exeat(inside).run().exits(2).says("which the stage can write");
}
