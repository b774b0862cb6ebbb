//! L09: the files that decided about a run are read-only for its stage, so that the caller's text decides about the
//! next run.

use std::fs;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::l09_no_stage_rewrites_what_decided_about_it", attack);
}

fn attack(cx: &Cx) {
    fs::create_dir_all(cx.dir().join("pol/in")).expect("directory");
    for dir in ["pol", "pol/in"] {
        cx.bench().give(&cx.dir().join(dir), cx.is_root());
    }
    let policy = format!("[network]\nallow = [\"{}\"]\n", cx.good());
    let effects = format!(r#"[{{"effect":"NetworkHosts","hosts":["{}"]}}]"#, cx.good());
    let files = [
        ("pol/in/stage.toml", policy.as_str()),
        ("ceiling.toml", policy.as_str()),
        ("effects.json", effects.as_str()),
        ("rules.txt", &cx.good()),
        ("pol/free.toml", ""),
    ];
    for (name, text) in files {
        cx.write(name, text);
    }
    let attempts = "for f in pol/in/stage.toml ceiling.toml effects.json rules.txt; do \
                    echo x 2>/dev/null >> $f && echo wrote $f; rm -f $f 2>/dev/null && echo removed $f; \
                    cp /etc/hostname new; mv -f new $f 2>/dev/null && echo replaced $f; done; \
                    mv pol/in pol/gone 2>/dev/null && echo moved pol/in; mv pol gone 2>/dev/null && echo moved pol; \
                    echo y >> pol/free.toml && echo free";
    let rules = "@rules.txt";
    let done = cx
        .exeat([
            "run",
            "--policy",
            "pol/in/stage.toml",
            "--ceiling",
            "ceiling.toml",
            "--effects",
            "effects.json",
            "--allow",
            rules,
            "--",
            "sh",
            "-c",
            attempts,
        ])
        .run();
    assert_eq!(done.stdout(), "free\n", "{done:?}");
    for (name, text) in files.iter().take(4) {
        assert_eq!(&fs::read_to_string(cx.dir().join(name)).expect(name), text, "{name}");
    }
}
