//! Checks that this `exeat` accepts every example of the docs pages: commands and policies.

use std::ffi::OsString;

use clap::Parser;
use clap::error::ErrorKind;
use exeat_policy::{FileRole, PolicyFile};

use super::{Cli, Command, parse_run};

#[path = "../../tests/support/pages.rs"]
mod pages;

use pages::{commands, pages};

/// Returns the blocks of a page between fences of this language.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let fence = format!("\n```{language}\n");
    page.split(&fence).skip(1).filter_map(|rest| rest.split("\n```").next()).collect()
}

/// Splits a command into words, up to the first pipe, redirection or comment of the shell.
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
    let (mut wrong, mut count, mut runs) = (Vec::new(), 0, 0);
    for (name, page) in pages() {
        for (command, is_whole) in commands(&page) {
            let words = words(&command);
            // A message may start like a command: "exeat denied ...".
            let is_command = words.get(1).is_some_and(|word| {
                word.starts_with('-')
                    || <Cli as clap::CommandFactory>::command().find_subcommand(word).is_some()
            });
            if !is_command {
                continue;
            }
            count += 1;
            // `...` stands for more words.
            let words: Vec<OsString> =
                words.into_iter().filter(|word| word != "...").map(Into::into).collect();
            let parsed = Cli::try_parse_from(&words);
            // The shorter way for `exeat run` has the same result.
            if let Some(run) = parse_run(&words) {
                runs += 1;
                assert_eq!(format!("{run:?}"), format!("{:?}", parsed.as_ref().unwrap()), "{command}");
            } else if let Ok(cli) = &parsed {
                assert!(!matches!(cli.command, Command::Run(_)) || words[1] != "run", "{command}");
            }
            let Err(error) = parsed else { continue };
            let is_unknown =
                matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand);
            // The output of another program is not available here.
            let is_whole = is_whole && !command.contains("$(");
            if is_unknown || is_whole && error.use_stderr() {
                let said = error.to_string();
                wrong.push(format!("{name}: `{command}`: {}", said.lines().next().unwrap_or_default()));
            }
        }
    }
    assert!(runs > 50, "{runs}");
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
