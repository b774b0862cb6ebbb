//! Tests the structure of the repository: which crate may depend on which, and what the pages must contain.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers fail the test"
)]
#![expect(clippy::disallowed_methods, reason = "asks cargo and git about the tree")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

#[path = "../src/size.rs"]
mod size;

use size::Size;

/// The workspace crates that each crate may depend on, for any kind of dependency. ARCHITECTURE.md draws the same
/// picture.
const ARROWS: &[(&str, &[&str])] = &[
    ("exeat-policy", &[]),
    ("exeat-contract", &[]),
    ("exeat-record", &["exeat-policy"]),
    ("exeat-audit", &["exeat-record", "exeat-policy"]),
    ("exeat-files", &["exeat-contract", "exeat-policy"]),
    ("exeat-proxy", &["exeat-record", "exeat-policy"]),
    ("exeat-compose", &["exeat-files", "exeat-record", "exeat-policy"]),
    ("exeat-sandbox", &["exeat-contract", "exeat-stage2"]),
    ("exeat-stage2", &["exeat-contract"]),
    (
        "exeat-runner",
        &[
            "exeat-sandbox",
            "exeat-proxy",
            "exeat-compose",
            "exeat-files",
            "exeat-contract",
            "exeat-record",
            "exeat-policy",
        ],
    ),
    ("exeat-prove", &["exeat-runner", "exeat-compose", "exeat-files"]),
    (
        "exeat-cli",
        &[
            "exeat-prove",
            "exeat-runner",
            "exeat-compose",
            "exeat-files",
            "exeat-audit",
            "exeat-record",
            "exeat-policy",
        ],
    ),
    // The end-to-end tests drive the binary from outside; they may read only data, never the code under test. From
    // `exeat-sandbox` the bench takes the seccomp programs, for a bubblewrap without exeat.
    ("e2e", &["exeat-record", "exeat-contract", "exeat-policy", "exeat-sandbox"]),
    ("xtask", &[]),
];

#[test]
fn no_crate_depends_on_one_that_the_table_does_not_give_it() {
    let mut wrong = Vec::new();
    let table: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let packages = packages();
    let ours: BTreeSet<&str> = packages.iter().map(|package| text(package, "name")).collect();
    for package in &packages {
        let name = text(package, "name");
        let Some(may) = table.get(name) else {
            wrong.push(format!("{name} is not in the table of {}", file!()));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            let needs = text(dependency, "name");
            if ours.contains(needs) && !may.contains(&needs) {
                wrong.push(format!("{name} must not depend on {needs}"));
            }
        }
    }
    for (name, _) in ARROWS {
        if !ours.contains(name) {
            wrong.push(format!("{name} is in the table and not in the workspace"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_circle_of_files_is_larger_than_two() {
    let large: Vec<(String, usize)> = sizes()
        .iter()
        .map(|size| (size.name.clone(), size.largest_circle()))
        .filter(|(_, files)| *files > 2)
        .collect();
    assert!(large.is_empty(), "`cargo xtask size` names the files of each circle: {large:?}");
}

#[test]
fn no_file_has_more_than_800_lines_and_half_of_them_have_fewer_than_200() {
    let sizes = sizes();
    let long: Vec<String> = sizes
        .iter()
        .flat_map(|size| &size.files)
        .filter(|file| file.length > 800)
        .map(|file| format!("{} has {} lines", file.path.display(), file.length))
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
    let median = size::median(&sizes);
    assert!(median < 200, "half of the files have {median} lines or more");
}

fn sizes() -> Vec<Size> {
    let sizes = size::measure(&root()).unwrap();
    assert!(sizes.len() > 8, "the crates are no longer where this test looks for them");
    sizes
}

#[test]
fn the_measure_follows_exports_and_leaves_tests_and_comments_out() {
    let top = std::env::temp_dir().join(format!("house-{}", std::process::id()));
    let source = top.join("crates/sample/src");
    fs::create_dir_all(source.join("c")).unwrap();
    fs::write(top.join("crates/sample/Cargo.toml"), "").unwrap();
    let files = [
        // A re-export is not a use, and a module may use its child.
        ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\n\n/// Not a line.\nfn f() { b::b() }\n"),
        ("a.rs", "use std::fmt;\npub struct A;\nfn a() -> &'static str { \"\n// a text\ncrate::b::b\" }\n"),
        (
            "b.rs",
            "pub fn b() { let _ = crate::A; }\n/* crate::c */\n#[cfg(test)]\nmod tests {\n    use crate::c;\n}\n",
        ),
        (
            "c.rs",
            "mod d;\nmod e;\nuse self::{d::D as Other};\npub mod inner {\n    pub const N: u8 = super::e::E;\n}\n",
        ),
        ("c/d.rs", "use super::e::{self};\npub struct D;\n"),
        ("c/e.rs", "use crate::{c::inner::{N}};\npub const E: u8 = N;\n#[cfg(test)]\nmod tests;\n"),
    ];
    for (name, text) in files {
        fs::write(source.join(name), text).unwrap();
    }
    let sizes = size::measure(&top).unwrap();
    fs::remove_dir_all(&top).unwrap();
    let lines: Vec<(String, usize, usize)> = sizes[0]
        .files
        .iter()
        .map(|file| {
            (
                file.path.strip_prefix("crates/sample/src").unwrap().display().to_string(),
                file.length,
                file.code,
            )
        })
        .collect();
    let expected = [
        ("lib.rs", 7, 5),
        ("a.rs", 5, 5),
        ("b.rs", 6, 1),
        ("c.rs", 6, 6),
        ("c/d.rs", 2, 2),
        ("c/e.rs", 4, 2),
    ];
    assert_eq!(lines, expected.map(|(name, length, code)| (name.to_owned(), length, code)));
    let circles: Vec<Vec<&str>> = sizes[0]
        .circles
        .iter()
        .map(|circle| circle.iter().map(|path| path.to_str().unwrap()).collect())
        .collect();
    let circle = ["c.rs", "c/d.rs", "c/e.rs"].map(|name| format!("crates/sample/src/{name}"));
    assert_eq!(circles, [circle.each_ref().map(String::as_str).to_vec()]);
    assert_eq!((sizes[0].code(), sizes[0].largest_circle(), size::median(&sizes)), (21, 3, 6));
}

#[test]
fn every_crate_forbids_unsafe_code_except_the_three_that_make_syscalls() {
    let mut wrong = Vec::new();
    for package in packages() {
        let name = text(&package, "name").to_owned();
        if matches!(name.as_str(), "exeat-sandbox" | "exeat-stage2" | "exeat-prove" | "e2e") {
            continue;
        }
        for target in package["targets"].as_array().unwrap() {
            let kinds: Vec<&str> =
                target["kind"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            let path = PathBuf::from(text(target, "src_path"));
            if kinds.iter().any(|kind| matches!(*kind, "lib" | "bin")) {
                let source = fs::read_to_string(&path).unwrap();
                if !source.contains("#![forbid(unsafe_code)]") {
                    wrong.push(path.display().to_string());
                }
            }
        }
    }
    assert!(wrong.is_empty(), "no #![forbid(unsafe_code)] in:\n{}", wrong.join("\n"));
}

#[test]
fn the_pages_name_every_crate() {
    let architecture = read("ARCHITECTURE.md");
    let crates = read("crates/README.md");
    let mut wrong = Vec::new();
    for package in packages() {
        let manifest = PathBuf::from(text(&package, "manifest_path"));
        let directory = manifest.parent().unwrap().strip_prefix(root()).unwrap().to_path_buf();
        let short = format!("`{}`", directory.file_name().unwrap().to_string_lossy());
        if !architecture.contains(&short) {
            wrong.push(format!("ARCHITECTURE.md does not name {short}"));
        }
        if directory.starts_with("crates") && !crates.contains(&short) {
            wrong.push(format!("crates/README.md does not name {short}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_pages_at_the_door_are_there() {
    for page in [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "LICENSE",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "crates/README.md",
    ] {
        assert!(!read(page).trim().is_empty(), "{page} is empty");
    }
    assert!(read("CHANGELOG.md").contains("## [Unreleased]"));
}

/// Nothing is built, measured or installed for a question, or for a misspelled option.
#[test]
fn xtask_answers_help_and_refuses_unknown_options_at_once() {
    let xtask = |words: &[&str]| Command::new(env!("CARGO_BIN_EXE_xtask")).args(words).output().unwrap();
    let commands =
        ["size", "bench", "ci", "demo", "dist", "docs", "fuzz", "matrix", "nightly", "setup", "soak", "test"];
    for command in commands {
        let done = xtask(&[command, "--help"]);
        let said = String::from_utf8(done.stdout).unwrap();
        assert!(done.status.success() && said.starts_with(&format!("cargo xtask {command}: ")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    for command in commands.into_iter().filter(|command| !["matrix", "test"].contains(command)) {
        let done = xtask(&[command, "--quikc"]);
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(!done.status.success() && done.stdout.is_empty() && said.contains("`--quikc`"), "{said}");
    }
}

#[test]
fn readme_and_xtask_know_the_same_commands() {
    let help = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let known: BTreeSet<&str> = help
        .lines()
        .filter(|line| line.starts_with("  "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let readme = read("README.md");
    let named: BTreeSet<&str> = readme
        .split("cargo xtask ")
        .skip(1)
        .map(|rest| rest.split(|c: char| !c.is_ascii_lowercase()).next().unwrap())
        .collect();
    assert!(named.contains("demo") && named.contains("test"), "the README's two commands are gone");
    let unknown: Vec<_> = named.difference(&known).collect();
    assert!(unknown.is_empty(), "README.md names commands that xtask does not have: {unknown:?}");
}

/// `cargo xtask test` treats every ignored test as one that needs root, and runs it as root.
#[test]
fn a_test_is_ignored_for_want_of_root_alone() {
    let mut wrong = Vec::new();
    for path in tracked().iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        let reasons = read(path);
        let reasons = reasons.lines().map(str::trim).filter(|line| line.starts_with("#[ignore"));
        wrong.extend(
            reasons
                .filter(|line| *line != "#[ignore = \"needs root\"]")
                .map(|line| format!("{}: {line}", path.display())),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut wrong = Vec::new();
    for page in tracked().iter().filter(|path| path.extension().is_some_and(|end| end == "md")) {
        let text = read(page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.contains(' ') {
                continue;
            }
            let (target, heading) = link.split_once('#').unwrap_or((link, ""));
            let path = page.parent().unwrap().join(target);
            let path = if target.is_empty() { page.clone() } else { path };
            let leads = root().join(&path).exists()
                && (heading.is_empty() || anchors(&read(&path)).contains(heading));
            // The book contains only the pages of docs.
            if !leads || page.starts_with("docs") && target.starts_with("..") {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

/// Returns the anchors of a page's headings: lower case, `-` for a space, no other punctuation.
fn anchors(page: &str) -> BTreeSet<String> {
    let (mut anchors, mut is_code) = (BTreeSet::new(), false);
    for line in page.lines() {
        is_code ^= line.starts_with("```");
        if is_code || !line.starts_with('#') {
            continue;
        }
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        anchors.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
    }
    anchors
}

#[test]
fn the_book_lists_every_page_once() {
    let summary = read("docs/SUMMARY.md");
    let mut listed: Vec<&str> =
        summary.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    listed.sort_unstable();
    let pages: Vec<String> = tracked()
        .iter()
        .filter_map(|path| Some(path.strip_prefix("docs").ok()?.to_str()?.to_owned()))
        .filter(|page| page.ends_with(".md") && page != "SUMMARY.md")
        .collect();
    assert_eq!(listed, pages);
}

#[test]
fn the_library_page_shows_the_example_as_it_is() {
    let example = read("crates/runner/examples/harness.rs");
    assert!(read("docs/library.md").contains(&format!("```rust\n{example}```\n")));
    assert!(example.lines().count() < 60);
}

#[test]
fn the_readme_is_short() {
    let lines = read("README.md").lines().count();
    assert!(lines <= 150, "README.md has {lines} lines; a page of docs/ is the place for more than 150");
}

#[test]
fn nothing_names_a_place_outside_the_repository() {
    // Joined here, so that this file does not contain them either.
    let words = [["..", "/shared"].concat(), ["/work", "/main"].concat(), ["/work", "/shared"].concat()];
    let mut wrong = Vec::new();
    for path in tracked() {
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        for (number, line) in text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word)) {
                wrong.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_pages_explain_every_reason_and_every_field_of_the_record() {
    let record = read("docs/audit.md");
    let explained = |word: &str| record.contains(&format!("`{word}`"));
    // A row is `Name "word" "sentence";`.
    let reasons: Vec<String> = read("crates/policy/src/reason.rs")
        .lines()
        .filter(|line| line.ends_with("\";"))
        .filter_map(|line| line.split('"').nth(1).map(str::to_owned))
        .collect();
    assert!(reasons.len() > 20, "the reasons are no longer where this test looks for them");
    let line = read("crates/record/src/line.rs");
    let fields = line.split("struct Line<'a> {").nth(1).unwrap().split("\n}").next().unwrap();
    let fields: Vec<String> = fields
        .lines()
        .filter(|line| !line.trim().starts_with('#'))
        .filter_map(|line| line.trim().split_once(": ").map(|(name, _)| name.to_owned()))
        .collect();
    assert!(fields.len() > 30, "the fields are no longer where this test looks for them");
    let missing: Vec<_> = reasons.iter().chain(&fields).filter(|word| !explained(word)).collect();
    assert!(missing.is_empty(), "docs/audit.md does not explain {missing:?}");
    // The schema of a record has the same fields, without those of a ledger's line, and with the end of a checkpoint's.
    let of_a_ledger = ["last", "first", "torn", "unsigned", "others"].map(str::to_owned);
    let of_a_checkpoint = ["sig", "signed_note"].map(str::to_owned);
    let expect: BTreeSet<String> =
        fields.into_iter().filter(|it| !of_a_ledger.contains(it)).chain(of_a_checkpoint).collect();
    let schema: serde_json::Value =
        serde_json::from_str(&read("crates/record/src/line.schema.json")).unwrap();
    let found: BTreeSet<String> = schema["properties"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(found, expect, "crates/record/src/line.schema.json");
}

#[test]
fn the_pages_list_every_name_that_a_view_is_made_of() {
    let page = read("docs/files.md");
    let names = read("crates/files/src/lists.rs") + &read("crates/files/src/protected.rs");
    let names = names.split("#[cfg(test)]").next().unwrap();
    let missing: Vec<String> = names
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>())
        // Names of directories inside the private cache are not documented.
        .filter(|name| {
            name.starts_with(['.', '/']) && !name.ends_with('/')
                || name.contains('_') && *name == name.to_uppercase()
        })
        .filter(|name| !page.contains(&format!("`{name}`")))
        .collect();
    assert!(missing.is_empty(), "docs/files.md does not list {missing:?}");
}

/// Rows of the three compared systems that do not concern a sandbox, or not one on Linux, as docs/parity.md explains.
const NO_ROWS: [&str; 6] = ["N32", "K43", "K44", "A6", "A10", "A11"];

#[test]
fn the_parity_page_has_every_row_and_names_tests_that_are_there() {
    // K16 to K19 were never assigned.
    let numbers = [("N", 1..=33), ("K", 1..=15), ("K", 20..=50), ("A", 1..=13)];
    let all = numbers.into_iter().flat_map(|(letter, range)| range.map(move |n| format!("{letter}{n}")));
    let expected: BTreeSet<String> = all.filter(|row| !NO_ROWS.contains(&row.as_str())).collect();
    let tests = tests();
    assert!(tests.len() > 500, "the tests are no longer where this test looks for them");

    let page = read("docs/parity.md");
    let (rows, mut wrong) = rows_of(&page, &tests, &[]);
    assert!(!page.contains("*later"), "a row says with which step of the work the rest comes");
    let listed: BTreeSet<String> = rows.iter().map(|(id, _)| id.clone()).collect();
    let difference: Vec<_> = expected.symmetric_difference(&listed).collect();
    assert!(difference.is_empty(), "missing in docs/parity.md, or no row at all: {difference:?}");
    let mut together: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (id, named) in rows {
        together.entry(id).or_default().extend(named);
    }
    wrong.extend(unnamed(&together, &tests));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The groups of docs/threats.md, and the number of rows in each.
const THREATS: [(&str, u32); 10] = [
    ("H", 23),
    ("D", 16),
    ("P", 24),
    ("T", 10),
    ("S", 8),
    ("B", 38),
    ("X", 10),
    ("A", 12),
    ("R", 13),
    ("L", 19),
];

#[test]
fn the_threats_page_has_every_row_once_and_names_tests_that_are_there() {
    let expected: BTreeSet<String> =
        THREATS.iter().flat_map(|(group, last)| (1..=*last).map(move |n| format!("{group}{n:02}"))).collect();
    let tests = tests();
    let (rows, mut wrong) = rows_of(&read("docs/threats.md"), &tests, &["**not prevented**"]);
    let mut once: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (id, named) in rows {
        if once.insert(id.clone(), named).is_some() {
            wrong.push(format!("{id} is there twice"));
        }
    }
    let listed: BTreeSet<String> = once.keys().cloned().collect();
    let difference: Vec<_> = expected.symmetric_difference(&listed).collect();
    assert!(difference.is_empty(), "missing in docs/threats.md, or no row at all: {difference:?}");
    wrong.extend(unnamed(&once, &tests));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The trials themselves read and check the cells (tests/e2e/clients.rs).
#[test]
fn the_clients_page_has_a_row_for_each_trial_and_a_trial_for_each_row() {
    let tests = tests();
    let trials: BTreeSet<String> =
        tests.keys().filter(|name| name.starts_with("clients::")).cloned().collect();
    assert!(trials.len() > 15, "the trials are no longer where this test looks for them");
    let page = read("docs/clients.md");
    let mut rows = BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with('|') && line.contains("`clients::")) {
        let name = line.rsplit('`').nth(1).unwrap().to_owned();
        assert!(line.matches("`clients::").count() == 1 && rows.insert(name), "twice in the table: {line}");
    }
    let difference: Vec<_> = trials.symmetric_difference(&rows).collect();
    assert!(difference.is_empty(), "a row without a trial, or a trial without a row: {difference:?}");
}

/// Compares the number of listed cases in tests/e2e, rounded down to tens, so that a new case rarely changes the page.
#[test]
fn the_page_counts_the_end_to_end_cases() {
    let page = read("ARCHITECTURE.md");
    let sources: String =
        tracked().iter().filter(|path| path.starts_with("tests/e2e")).map(read).collect::<Vec<_>>().concat();
    let count = |kind: &str| -> usize {
        let call = format!("list.{kind}(");
        sources.split(&call).skip(1).filter(|rest| rest.trim_start().starts_with('"')).count()
    };
    let rows: Vec<String> =
        [&["matrix", "users", "alone"][..], &["bridges"], &["once"], &["root", "root_alone"]]
            .iter()
            .map(|kinds| {
                let names: Vec<String> = kinds.iter().map(|kind| format!("`{kind}`")).collect();
                format!(
                    "| {} | {} |",
                    names.join(", "),
                    kinds.iter().map(|kind| count(kind)).sum::<usize>() / 10 * 10
                )
            })
            .collect();
    let has_row =
        |row: &str| page.lines().any(|line| line.starts_with(row) && line.matches('|').count() == 5);
    let missing: Vec<&String> = rows.iter().filter(|row| !has_row(row)).collect();
    assert!(
        missing.is_empty(),
        "ARCHITECTURE.md, \"The tests\", counts otherwise than, or has a row without four cells:\n{}",
        rows.join("\n")
    );
}

/// Returns the rows of a page's tables with the tests in each last cell, and the faults: a test that does not exist,
/// and a row with neither a test nor a word that stands for none.
fn rows_of(
    page: &str,
    tests: &BTreeMap<String, BTreeSet<String>>,
    instead: &[&str],
) -> (Vec<(String, Vec<String>)>, Vec<String>) {
    let (mut rows, mut wrong) = (Vec::new(), Vec::new());
    for line in page.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let id = cells[0];
        if !line.starts_with('|') || id == "Row" || id.starts_with("--") {
            continue;
        }
        let named: Vec<String> =
            cells[cells.len() - 1].split('`').skip(1).step_by(2).map(str::to_owned).collect();
        for name in named.iter().filter(|name| !tests.contains_key(*name)) {
            wrong.push(format!("{id} names a test that is not there: {name}"));
        }
        // Tables about other things have other words in this column.
        if !id.ends_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        if named.is_empty() && !instead.iter().any(|word| line.contains(word)) {
            wrong.push(format!("{id} names no test and says nothing of {}: {line}", instead.join(" or ")));
        }
        rows.push((id.to_owned(), named));
    }
    (rows, wrong)
}

/// Lists the rows that have tests, none of which names the row.
fn unnamed(rows: &BTreeMap<String, Vec<String>>, tests: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let names_it = |id: &String, name: &String| tests.get(name).is_some_and(|words| words.contains(id));
    rows.iter()
        .filter(|(id, named)| !named.is_empty() && !named.iter().any(|name| names_it(id, name)))
        .map(|(id, named)| format!("none of its tests names {id}: {}", named.join(", ")))
        .collect()
}

/// Finds every test of the workspace, with the words of its name and its comment. An end-to-end test has the name under
/// which it is listed.
fn tests() -> BTreeMap<String, BTreeSet<String>> {
    let mut tests: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in tracked().iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        let text = read(path);
        let head = text.lines().filter(|line| line.starts_with("//!")).collect::<String>();
        let mut comments: BTreeMap<&str, String> = BTreeMap::new();
        let (mut comment, mut is_test) = (String::new(), false);
        for line in text.lines().map(str::trim) {
            if let Some(words) = line.strip_prefix("///") {
                comment.push_str(words);
            } else if line == "#[test]" || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if let Some((_, rest)) = line.split_once("fn ").filter(|(before, _)| !before.contains('"'))
            {
                let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
                let comment = std::mem::take(&mut comment);
                if std::mem::take(&mut is_test) {
                    tests.entry(name.to_owned()).or_default().extend(words(&format!("{name} {comment}")));
                }
                comments.insert(name, comment);
            } else if line.is_empty() || line.ends_with(['{', '}', ';']) {
                (comment, is_test) = (String::new(), false);
            }
        }
        // `refuses!(name, ...);`, where a macro makes each test.
        for part in text.split("macro_rules! ").skip(1).filter(|part| part.contains("fn $test")) {
            let (name, _) = part.split_once(' ').unwrap();
            for call in text.split(&format!("\n{name}!(")).skip(1) {
                let name =
                    call.trim_start().split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
                tests.entry(name.to_owned()).or_default().extend(words(name));
            }
        }
        if !path.starts_with("tests/e2e") {
            continue;
        }
        // `list.matrix("area::name", function);`
        for part in text.split("(\"").skip(1) {
            let Some((name, rest)) = part.split_once("\",") else { continue };
            let function = rest.split(')').next().unwrap().trim();
            if let Some(comment) = comments.get(function).filter(|_| name.contains("::")) {
                tests.entry(name.to_owned()).or_default().extend(words(&format!("{name} {head} {comment}")));
            }
        }
    }
    tests
}

/// Collects row names: `N1`, also written `n01`; `A1`, but not `A01`, which names a threat.
fn words(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_ascii_uppercase);
    words.map(|word| if word.starts_with(['N', 'K']) { word.replacen("N0", "N", 1) } else { word }).collect()
}

/// A fuzz project that builds parsers from their own files is not compiled with the workspace.
#[test]
fn fuzz_projects_have_the_modules_that_their_files_use() {
    let mut wrong = Vec::new();
    for lib in tracked().iter().filter(|path| path.ends_with("fuzz/src/lib.rs")) {
        let text = read(lib);
        let modules: BTreeSet<&str> = text
            .lines()
            .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod "))
            .map(|name| name.trim_end_matches([';', '{', ' ']))
            .collect();
        for file in
            text.lines().filter_map(|line| line.strip_prefix("#[path = \"../../")?.strip_suffix("\"]"))
        {
            let source = read(lib.ancestors().nth(3).unwrap().join(file));
            let used = source.split("#[cfg(test)]").next().unwrap().split("use crate::").skip(1);
            let used = used.filter_map(|rest| rest.split([':', ';']).next());
            wrong.extend(
                used.filter(|name| !modules.contains(name))
                    .map(|name| format!("{} lacks `{name}`, which {file} uses", lib.display())),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the workspace's packages from cargo's metadata.
fn packages() -> Vec<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Returns the files in the repository; in a tree without git, only the pages.
fn tracked() -> Vec<PathBuf> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output();
    match listed {
        Ok(output) if output.status.success() => output
            .stdout
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
            .map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned()))
            .filter(|path| root().join(path).is_file())
            .collect(),
        _ => ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(PathBuf::from).to_vec(),
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}
