//! Every example of the pages is one that this `exeat` takes: commands by the parser of its arguments, policies by theirs.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;
use exeat_policy::{FileRole, PolicyFile};

use super::Cli;

/// README.md and every page of docs/.
fn pages() -> Vec<(String, String)> {
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

/// The blocks of a page between fences of this language.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let fence = format!("\n```{language}\n");
    page.split(&fence).skip(1).filter_map(|rest| rest.split("\n```").next()).collect()
}

/// The commands of a page: lines of code that begin with `exeat`, a prompt before it or not, which are whole; and code in a sentence,
/// which may leave out what the sentence is not about.
fn commands(page: &str) -> Vec<(String, bool)> {
    let (mut found, mut is_code) = (Vec::new(), false);
    let joined = page.replace("\\\n", " ");
    for line in joined.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if is_code || line.starts_with("    ") {
            let line = line.trim_start().trim_start_matches("$ ");
            // `exeat: ...` is what it says.
            found.extend(line.starts_with("exeat ").then(|| (line.to_owned(), true)));
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            found
                .extend(spans.filter(|span| span.starts_with("exeat ")).map(|span| (span.to_owned(), false)));
        }
    }
    found
}

/// The words of a command, up to what is the shell's own: a pipe, a redirection, a comment.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in command.chars() {
        match (quote, c) {
            (Some(mark), c) if c == mark => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None, '#') if word.is_none() => break,
            (None, '|' | '>' | '<' | ';' | '&') => {
                // `2>` is a redirection too.
                word = word.filter(|word| !word.chars().all(|c| c.is_ascii_digit()));
                break;
            }
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn every_command_of_the_pages_is_taken() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (name, page) in pages() {
        for (command, is_whole) in commands(&page) {
            let words = words(&command);
            // Of a message, and not a command: "exeat denied ...".
            let is_command = words.get(1).is_some_and(|word| {
                word.starts_with('-')
                    || <Cli as clap::CommandFactory>::command().find_subcommand(word).is_some()
            });
            if !is_command {
                continue;
            }
            count += 1;
            // What stands for more of the same.
            let words = words.into_iter().filter(|word| word != "...");
            let Err(error) = Cli::try_parse_from(words) else { continue };
            let is_unknown =
                matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand);
            // What another program says is not there to be read.
            let is_whole = is_whole && !command.contains("$(");
            if is_unknown || is_whole && error.use_stderr() {
                let said = error.to_string();
                wrong.push(format!("{name}: `{command}`: {}", said.lines().next().unwrap_or_default()));
            }
        }
    }
    assert!(count > 100, "the commands are no longer where this test looks for them: {count}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_policy_of_the_pages_is_read() {
    let presets = || exeat_policy::preset::names().collect();
    let mut count = 0;
    for (name, page) in pages() {
        for block in blocks(&page, "toml").into_iter().filter(|block| !block.contains("[dependencies]")) {
            count += 1;
            let schema = if block.contains("schema") { "" } else { "schema = 1\n" };
            // A role that may have every section.
            let roles = [FileRole::Policy, FileRole::Ceiling];
            let read =
                roles.map(|role| PolicyFile::parse(&format!("{schema}{block}"), &name, role, &presets));
            let [Err(error), Err(_)] = read else { continue };
            panic!("{error}\n{block}");
        }
        for block in blocks(&page, "json") {
            count += 1;
            let mut values = serde_json::Deserializer::from_str(block).into_iter::<serde_json::Value>();
            assert!(values.all(|value| value.is_ok()), "{name}: {block}");
        }
    }
    assert!(count > 5, "the policies are no longer where this test looks for them: {count}");
}
