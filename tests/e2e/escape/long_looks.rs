//! L18: what one run leaves does not delay the start of the next one, nor its own end.

use std::fs;
use std::time::Duration;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::l18_a_configuration_that_a_run_left_holds_up_no_start", configuration);
    list.users("escape::l18_links_beyond_the_bound_refuse_a_start_that_must_hold", beyond);
    list.users("escape::l18_a_cache_that_a_run_filled_holds_up_no_start", cache);
    list.users("escape::l18_many_links_to_one_directory_hold_up_no_end", ends);
}

/// Each of these took minutes, or all memory, in an earlier version.
const DEADLINE: Duration = Duration::from_secs(120);

/// Configurations of a nested repository: links that lead through one another again and again; many paths; paths that
/// no program opens.
const CONFIGURATIONS: &str = r#"
mkdir -p lib/.git/objects lib/.git/refs lib/a; echo 'ref: refs/heads/main' > lib/.git/HEAD
to=$(awk 'BEGIN { for (i = 0; i < 800; i++) printf "a/../" }')
for i in $(seq 0 38); do ln -s "${to}l$((i + 1))" lib/l$i; done
awk -v kind=KIND 'BEGIN {
    print "[core]\n\tbare = false\n[pager]"
    if (kind == "links") for (i = 0; i < 40000; i++) print "a = ./l0"
    if (kind == "others") for (i = 0; i < 40000; i++) print "a = ./l0/" i
    if (kind == "flat") for (i = 0; i < 60000; i++) print "a = /" i
    if (kind != "long" && kind != "turns") exit
    printf "a = "
    for (i = 0; i < 200000; i++) printf "a/"
    if (kind == "turns") for (i = 0; i < 200000; i++) printf "../"
    print ""
}' > lib/.git/config
"#;

fn configuration(cx: &Cx) {
    for (kind, said) in [
        ("links", None),
        ("others", Some("lead to more than is looked at")),
        ("flat", Some("lead to more than is looked at")),
        ("long", Some("longer than 4095 bytes")),
        ("turns", Some("longer than 4095 bytes")),
    ] {
        let script = CONFIGURATIONS.replace("KIND", kind);
        // What a stage leaves there is moved, so this stands for what a checkout of the host brings.
        cx.outside(["sh", "-c", &script]).run().exits(0);
        let done = cx.exeat(["run", "--", "true"]).deadline(DEADLINE).run();
        done.exits(0);
        if let Some(said) = said {
            done.says(said);
        }
        fs::remove_dir_all(cx.dir().join("lib")).expect("what the stage has made");
    }
}

/// A run filled a name of its cache that exeat removes before each start. The next start uses memory and says why, until it
/// is gone.
fn cache(cx: &Cx) {
    let fill = "import os; top = os.environ['CARGO_HOME'] + '/config'\nfor i in range(60):\n os.makedirs(f'{top}/{i}')\n for j in range(1000): os.mkdir(f'{top}/{i}/{j}')";
    cx.exeat(["run", "--", "python3", "-c", fill]).run().exits(0);
    let start = || cx.exeat(["run", "--", "sh", "-c", "test ! -e $CARGO_HOME/config"]).run();
    let first = start();
    first.exits(0).says("the package cache was in memory").says("too much in it to be removed in time");
    assert!(first.took < Duration::from_secs(8), "{first:?}");
    let mut starts = (0..100).map(|_| start());
    let last = starts.find(|done| !done.exits(0).stderr().contains("in memory"));
    assert!(last.is_some(), "each start removes a part");
}

/// A chain of links below a protected name is longer than exeat follows. A start reports it, and `--require full` prevents the run.
fn beyond(cx: &Cx) {
    // What a stage leaves there is moved, and so may be what came a moment before.
    cx.outside(["sh", "-c", &format!("{CONFIGURATIONS}sleep 3")]).run().exits(0);
    let link = |end: &str| {
        // A link that came a moment before the run and takes too many steps is moved.
        let script = format!("ln -sfn {end} .mcp.json; sleep 2");
        cx.outside(["sh", "-c", &script]).cwd(cx.dir()).run().exits(0);
    };
    let full = || cx.exeat(["run", "--require", "full", "--", "touch", "started"]).run();
    let started = cx.dir().join("started");
    link("lib/l38");
    full().exits(0);
    fs::remove_file(&started).expect("what the stage has made");
    link("lib/l0");
    let said = "lead to more than is looked at";
    let done = cx.exeat(["run", "--", "true"]).run();
    done.exits(0).says(said);
    let log = done.record();
    let fs = &log.events("run_start")[0]["enforcement"]["fs"];
    assert!(fs.to_string().contains("partial: links and configurations"), "{fs}");
    full().exits(125).says(said);
    assert!(!started.exists(), "the stage was started");
}

/// The stage replaces directories with links, all to a large one.
fn ends(cx: &Cx) {
    let make = "for i in $(seq 40); do mkdir p$i; (cd p$i; mkdir $(seq 100)); done";
    cx.exeat(["run", "--", "sh", "-c", make]).run().exits(0);
    let swap = "mkdir big; cd big; seq 50000 | xargs touch; cd ..; rmdir p*/*
        for i in $(seq 40); do cd p$i; for j in $(seq 100); do echo \"../big $j\"; done | xargs -n 2 ln -s; cd ..; done
        echo done";
    cx.exeat(["run", "--", "sh", "-c", swap]).deadline(DEADLINE).run().exits(0).prints("done\n");
}
