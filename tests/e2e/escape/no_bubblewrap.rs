//! B34, N26: no sandbox is available. A command that ran would run without one.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b34_no_bwrap_is_125", attack);
}

fn attack(cx: &Cx) {
    let hide = "for bwrap in /usr/bin/bwrap /bin/bwrap /usr/local/bin/bwrap; do
                  if [ -e $bwrap ]; then
                    dir=$(dirname $(readlink -f $bwrap)); work=/tmp/hide-$$; mkdir -p $work; mount -t tmpfs none $work
                    mkdir $work/up $work/work
                    mount -t overlay none -o lowerdir=$dir,upperdir=$work/up,workdir=$work/work $dir && rm -f $bwrap ||
                      mount --bind /dev/null $bwrap
                  fi
                done";
    let on = |backend: &str, name: &str| {
        cx.exeat(["run", "--backend", backend, "--", "touch", name]).in_mounts(hide).run()
    };
    // Without bubblewrap exeat builds the sandbox itself.
    let done = on("auto", "first");
    done.exits(0);
    assert_eq!(done.record().events("run_start")[0]["backend"], "native");
    assert!(cx.dir().join("first").exists());
    let done = on("bwrap", "started");
    done.exits(125).prints("").says("bwrap").says("apt");
    assert!(!cx.dir().join("started").exists(), "there is no unsandboxed run");
    assert!(
        done.record_path().is_none_or(|path| !path.exists())
            || done.record_so_far().events("decision").is_empty()
    );
}
