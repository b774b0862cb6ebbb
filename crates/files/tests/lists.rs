//! Compares docs/files.md with the lists in the code.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's helpers fail the test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use exeat_files::lists;

/// Returns the names in the paragraph that starts with `start`, or in the one after it.
fn names(page: &str, start: &str) -> BTreeSet<String> {
    let (_, rest) = page.split_once(start).unwrap_or_else(|| panic!("docs/files.md has no `{start}`"));
    let paragraph = rest.trim_start_matches('\n').split("\n\n").find(|text| text.contains('`')).unwrap();
    // Words in the prose after the list do not count.
    let list = paragraph.split("; and ").next().unwrap();
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// N23, K46.
#[test]
fn the_page_lists_exactly_the_paths_of_a_view() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/files.md");
    let page = fs::read_to_string(page).unwrap();
    for (start, list) in [
        ("The system's trees:", lists::SYSTEM),
        ("All are below a home directory:\n", lists::CREDENTIALS),
        ("these are hidden as well:\n", lists::SYSTEM_CREDENTIALS),
        ("Nothing of yours is passed but these, where you have them:\n", lists::PASSED),
    ] {
        let list: BTreeSet<String> = list.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(names(&page, start), list, "behind `{start}`");
    }
}
