//! B16: settings of shells, editors and agents, which take effect on the host when somebody opens the project.

use std::fs;
use std::time::Duration;

use e2e::case::{Cases, Cx};
use e2e::wait_for;
use nix::sys::signal::Signal;

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b16_settings_that_are_there", there);
    list.matrix("escape::b16_settings_that_are_made", made_names);
    list.users("escape::b16_settings_further_down", further_down);
    list.users("escape::b16_settings_further_down_that_are_let_through", further_down_open);
    list.users("escape::b16_settings_further_down_after_a_kill", further_down_killed);
}

const FILES: [&str; 63] = [
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zlogin",
    ".zlogout",
    ".envrc",
    ".npmrc",
    ".pnpmfile.cjs",
    ".yarnrc",
    ".yarnrc.yml",
    ".mise.toml",
    "mise.toml",
    ".config/mise.toml",
    ".mcp.json",
    "opencode.json",
    ".aider.conf.yml",
    ".roomodes",
    ".exrc",
    ".vimrc",
    ".nvimrc",
    ".gdbinit",
    ".lldbinit",
    ".pdbrc",
    ".irbrc",
    ".Rprofile",
    ".dir-locals.el",
    ".dir-locals-2.el",
    ".devcontainer.json",
    ".pre-commit-config.yaml",
    "lefthook.yml",
    "lefthook-local.yml",
    ".lefthook.toml",
    ".config/lefthook.jsonc",
    ".pre-commit-config.yml",
    "simple-git-hooks.mjs",
    ".overcommit.yml",
    ".simple-git-hooks.json",
    "pyvenv.cfg",
    ".cargo/config",
    ".cargo/config.toml",
    ".hg/hgrc",
    ".hg/sharedpath",
    ".jj/repo/config.toml",
    ".sl/config",
    ".git/sl/config",
    "_darcs/prefs/defaults",
    ".pijul/config",
    ".vim/coc-settings.json",
    ".kateproject",
    ".neoconf.json",
    ".luarc.json",
    ".local.vimrc",
    ".autoenv.zsh",
    "rust-analyzer.toml",
    "mise.production.toml",
    ".mise.a.local.toml",
    "mise/config.local.toml",
    ".config/mise.ci.toml",
];
const DIRECTORIES: [&str; 30] = [
    ".vscode",
    ".vs",
    ".idea",
    ".zed",
    ".helix",
    ".cursor",
    ".claude",
    ".codex",
    ".gemini",
    ".opencode",
    ".kiro/hooks",
    ".windsurf",
    ".roo",
    ".qwen",
    ".continue",
    ".amazonq",
    ".github/hooks",
    ".devcontainer",
    ".husky",
    ".lefthook",
    ".mise",
    ".yarn/releases",
    ".bsp",
    ".externalToolBuilders",
    ".lapce",
    ".agents",
    ".goose",
    ".warp",
    ".rovodev",
    "mise/conf.d",
];

fn set(cx: &Cx, name: &str) -> std::path::PathBuf {
    let path = cx.dir().join(name);
    fs::create_dir_all(path.parent().expect("above")).expect("a directory");
    fs::write(&path, "mine\n").expect("a file");
    for it in path.ancestors().take_while(|it| *it != cx.dir()) {
        cx.bench().give(it, cx.is_root());
    }
    path
}

/// Written, appended to, truncated, removed, renamed, replaced by a rename, and through the parent directory.
fn there(cx: &Cx) {
    let set = |name: &str| set(cx, name);
    let inner: Vec<String> = DIRECTORIES.iter().map(|name| format!("{name}/settings")).collect();
    let files: Vec<_> = FILES.iter().copied().chain(inner.iter().map(String::as_str)).collect();
    let paths: Vec<_> = files.iter().map(|name| set(name)).collect();
    let script = format!(
        "echo evil >mine
         try() {{ \"$@\" 2>/dev/null && echo \"$@\"; }}
         for f in {}; do
           (echo evil >>$f) 2>/dev/null && echo appended $f
           try rm -f $f; try mv $f gone; try mv -f mine $f; try ln -f mine $f; try truncate -s 0 $f; try chmod +x $f
         done
         for d in {} .cargo .config .hg .kiro .github .yarn .sl .git _darcs .pijul .vim mise; do try mv $d away; try rm -rf $d; done; echo end",
        files.join(" "),
        DIRECTORIES.join(" ")
    );
    let done = cx.sh(&[], &script).run();
    assert_eq!(done.stdout(), "end\n", "{done:?}");
    for path in &paths {
        assert_eq!(fs::read_to_string(path).expect("still there"), "mine\n", "{}", path.display());
    }
    // The control: each method works for a name outside of the list.
    set("ordinary");
    let control = script.replace(&files.join(" "), "ordinary");
    assert!(cx.sh(&[], &control).run().stdout().contains("appended ordinary"));
}

fn made_names(cx: &Cx) {
    let names: Vec<&str> = FILES.iter().chain(&DIRECTORIES).copied().collect();
    let script =
        format!("for f in {}; do mkdir -p $(dirname $f); echo evil >$f; done; echo made", names.join(" "));
    let done = cx.sh(&[], &script).run();
    done.exits(0).prints("made\n");
    for name in names {
        assert!(fs::symlink_metadata(cx.dir().join(name)).is_err(), "{name} is in its place: {done:?}");
        let aside = cx.aside(name);
        assert_eq!(fs::read_to_string(&aside).expect("moved aside"), "evil\n", "{}", aside.display());
    }
}

/// In directories up to two levels down existing names are read-only, and new ones are moved aside. In new directories,
/// and in those of installed or built files, the stage makes what it likes.
fn further_down(cx: &Cx) {
    let there = [
        "pack/.vscode/tasks.json",
        "pack/.npmrc",
        "pack/one/.mcp.json",
        "pack/one/.claude/settings.json",
        "pack/one/mise.ci.toml",
        "pack/one/.cargo/config.toml",
    ];
    let paths = there.map(|name| set(cx, name));
    for name in ["pack/one/x", "pack/two/x", "other/x", "vendor/x", "pack/two/three/x"] {
        set(cx, name);
    }
    let script = format!(
        "try() {{ \"$@\" 2>/dev/null && echo \"$@\"; }}
         for f in {}; do (echo evil >>$f) 2>/dev/null && echo appended $f; try rm -f $f; try mv $f gone; done
         for d in pack pack/one pack/.vscode pack/one/.claude; do try mv $d away; done
         for f in pack/one/x pack/one/.cargo/x other/y; do echo stage >$f; done; echo end",
        there.join(" "),
    );
    let done = cx.sh(&[], &script).run();
    assert_eq!(done.stdout(), "end\n", "{done:?}");
    for path in &paths {
        assert_eq!(fs::read_to_string(path).expect("still there"), "mine\n", "{}", path.display());
    }
    let moved = [
        "pack/.envrc",
        "pack/one/.vscode/tasks.json",
        "pack/one/.cargo/config",
        "pack/two/.mcp.json",
        "pack/two/.claude/settings.json",
        "pack/two/mise.x.toml",
        "pack/two/.config/mise.x.toml",
        "other/.npmrc",
    ];
    // The control, in the same directories.
    let stays =
        ["pack/new/.vscode/tasks.json", "pack/two/three/.mcp.json", "vendor/.mcp.json", "other/.vimx"];
    let all: Vec<_> = moved.iter().chain(&stays).copied().collect();
    let script =
        format!("for f in {}; do mkdir -p $(dirname $f); echo evil >$f; done; echo end", all.join(" "));
    let done = cx.sh(&[], &script).run();
    done.exits(0).prints("end\n");
    for name in moved {
        assert!(!cx.dir().join(name).exists(), "{name} is in its place: {done:?}");
        assert_eq!(fs::read_to_string(cx.aside(name)).expect("moved aside"), "evil\n", "{name}");
    }
    for name in stays {
        assert!(cx.dir().join(name).exists(), "{name}: {done:?}");
    }
}

/// An allowed name is allowed in each of these directories.
fn further_down_open(cx: &Cx) {
    for name in ["pack/.vscode/tasks.json", "pack/.envrc", "pack/one/x"] {
        set(cx, name);
    }
    let names = ["pack/.vscode/tasks.json", "pack/one/.vscode/tasks.json", "pack/.envrc", "pack/one/.envrc"];
    let script = format!(
        "(for f in {}; do mkdir -p $(dirname $f); echo stage >$f; done) 2>/dev/null; echo end",
        names.join(" ")
    );
    let done = cx.exeat(["run", "--allow-write", ".vscode", "--", "sh", "-c", &script]).run();
    done.exits(0).prints("end\n");
    let read = |name: &str| fs::read_to_string(cx.dir().join(name)).ok();
    for (name, expected) in names.iter().zip([Some("stage\n"), Some("stage\n"), Some("mine\n"), None]) {
        assert_eq!(read(name).as_deref(), expected, "{name}: {done:?}");
    }
}

/// After exeat is killed, the next start moves the stage's names.
fn further_down_killed(cx: &Cx) {
    set(cx, "pack/one/x");
    let script =
        "mkdir pack/.idea; echo evil >pack/.idea/x; echo evil >pack/one/.envrc; echo ready; sleep 100";
    let mut live = cx.sh(&[], script).start();
    live.until_prints("ready");
    live.signal(Signal::SIGKILL);
    live.wait();
    // A start before the sandbox has fully ended moves the names at its own end.
    let mut told = String::new();
    wait_for(Duration::from_secs(20), "the names of a killed run", || {
        told += &cx.sh(&[], "true").run().exits(0).stderr();
        ["pack/.idea` was moved", "pack/one/.envrc` was moved"]
            .iter()
            .all(|it| told.contains(it))
            .then_some(())
    });
    assert!(!cx.dir().join("pack/.idea").exists() && !cx.dir().join("pack/one/.envrc").exists());
}
