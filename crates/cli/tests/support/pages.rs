//! The pages for users, and the commands in them.

use std::fs;
use std::path::{Path, PathBuf};

/// Reads README.md and every page of docs/: their names and texts.
pub(crate) fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> =
        docs.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    pages.push(root.join("README.md"));
    pages.sort();
    let read = |path: &PathBuf| {
        (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(path).unwrap())
    };
    pages.iter().map(read).collect()
}

/// Finds the commands of a page. A line of code that begins with `exeat`, with or without a prompt before it, is whole; code in a sentence
/// may leave out what the sentence is not about.
pub(crate) fn commands(page: &str) -> Vec<(String, bool)> {
    let (mut found, mut is_code) = (Vec::new(), false);
    let joined = page.replace("\\\n", " ");
    for line in joined.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if is_code || line.starts_with("    ") {
            let line = line.trim_start().trim_start_matches("$ ");
            // `exeat: ...` is what it prints.
            found.extend(line.starts_with("exeat ").then(|| (line.to_owned(), true)));
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            found
                .extend(spans.filter(|span| span.starts_with("exeat ")).map(|span| (span.to_owned(), false)));
        }
    }
    found
}
