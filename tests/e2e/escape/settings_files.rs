//! B16: settings of shells, editors and agents, which run on the host when somebody opens the project.

use std::fs;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b16_settings_that_are_there", there);
    list.matrix("escape::b16_settings_that_are_made", made);
}

const FILES: [&str; 59] = [
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

/// Written, appended to, cut, removed, renamed, replaced by a rename, and through the directory above.
fn there(cx: &Cx) {
    let set = |name: &str| {
        let path = cx.dir().join(name);
        fs::create_dir_all(path.parent().expect("above")).expect("a directory");
        fs::write(&path, "mine\n").expect("a file");
        for it in path.ancestors().take_while(|it| *it != cx.dir()) {
            cx.bench().give(it, cx.is_root());
        }
        path
    };
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
    // The control: a name that is not of the list can be had in each of these ways.
    set("ordinary");
    let control = script.replace(&files.join(" "), "ordinary");
    assert!(cx.sh(&[], &control).run().stdout().contains("appended ordinary"));
}

fn made(cx: &Cx) {
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
