//! Reads a command line that clap refuses: finds the outputs of `exeat run`, and whether errors are to be JSON.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, CommandFactory};

use super::{Cli, Output};

/// The outputs that a refused `exeat run` names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// The outputs of each `--result`. A second one is a mistake, but an old file at either would be taken for this run's result.
    pub(crate) results: Vec<Output>,
    /// The outputs of each `--audit`.
    pub(crate) audits: Vec<Output>,
    /// Whether `--dry-run` is given; neither output is written then.
    pub(crate) is_dry: bool,
    /// Whether `--format json` is given.
    pub(crate) is_json: bool,
}

/// Whether the words ask for JSON, even if clap refuses them.
pub(crate) fn wants_json(words: &[OsString]) -> bool {
    let Some(places) = places(words) else {
        let typed: Vec<_> = words.iter().take_while(|word| *word != "--").collect();
        let is_pair =
            |pair: &[&OsString]| matches!(pair, [flag, value] if *flag == "--format" && *value == "json");
        return typed.windows(2).any(is_pair) || typed.iter().any(|word| *word == "--format=json");
    };
    places.is_json
}

/// Reads the words as clap would, as far as possible. The first word that is not an option starts the command, which ends the
/// options of exeat. `words` starts with the program's own name.
///
/// An unknown flag may have a value. If a later `--` starts the command, the word after the flag counts as its value, and
/// otherwise as the command: a flag of the command must not be taken for one of exeat.
pub(crate) fn places(words: &[OsString]) -> Option<Places> {
    let mut words = words.iter().skip(1).peekable();
    while let Some(color) = words.next_if(|word| word.to_string_lossy().starts_with("--color")) {
        if color == "--color" {
            words.next();
        }
    }
    let command = words.next().filter(|word| *word == "run" || *word == "learn")?;

    let cli = Cli::command();
    let run = cli.find_subcommand(command)?;
    let mut places = Places::default();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if text == "--" || !text.starts_with('-') || text == "-" {
            break;
        }
        let (flag, value) = text.split_once('=').map_or((&*text, None), |(flag, value)| (flag, Some(value)));
        let find = |is_it: &dyn Fn(&Arg) -> bool| {
            cli.get_arguments().chain(run.get_arguments()).find(|arg| is_it(arg))
        };
        let next = match flag.strip_prefix("--") {
            Some(name) => match find(&|arg| arg.get_long() == Some(name)) {
                Some(arg) if arg.get_action().takes_values() && !arg.is_require_equals_set() => Next::Value,
                Some(_) => Next::Word,
                None => Next::Unknown,
            },
            None => after_shorts(&text, |short| find(&|arg| arg.get_short() == Some(short))),
        };
        let is_later = || words.clone().any(|word| word == "--");
        let next = match next {
            Next::Value if value.is_none() => words.next(),
            Next::Unknown if value.is_none() && is_later() => {
                words.next_if(|word| !word.to_string_lossy().starts_with('-'))
            }
            _ => None,
        };
        let value = value.map(OsStr::new).or(next.map(OsString::as_os_str));
        let place = value.and_then(|value| value.to_str()?.parse().ok());
        match flag {
            "--dry-run" => places.is_dry = true,
            "--format" => places.is_json = value == Some(OsStr::new("json")),
            "--result" => places.results.extend(place),
            "--audit" => places.audits.extend(place),
            _ => {}
        }
    }
    Some(places)
}

/// The faults that are looked for in one command line.
const MOST_FAULTS: usize = 20;

/// Finds what else clap refuses: it stops at the first value, so each refused one is left out in turn. Returns all refusals, and the
/// command line without the refused values.
pub(crate) fn all_refused(words: &[OsString], first: clap::Error) -> (Vec<clap::Error>, Option<Cli>) {
    let (mut words, mut error, mut refused) = (words.to_vec(), first, Vec::new());
    loop {
        let is_value = matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue);
        let rest = if is_value { without_value(&words, &error) } else { None };
        refused.push(error);
        let Some(rest) = rest.filter(|_| refused.len() < MOST_FAULTS) else { return (refused, None) };
        words = rest;
        match Cli::parse_words(&words) {
            Ok(cli) => return (refused, Some(cli)),
            // Without a value, a flag may be missing that was there.
            Err(next) if next.kind() == ErrorKind::MissingRequiredArgument => return (refused, None),
            Err(next) => error = next,
        }
    }
}

/// Returns the words without the flag and the value that clap refuses, if they stand there as clap names them.
fn without_value(words: &[OsString], error: &clap::Error) -> Option<Vec<OsString>> {
    let text = |kind| match error.get(kind)? {
        ContextValue::String(text) => Some(text.as_str()),
        _ => None,
    };
    let flag = text(ContextKind::InvalidArg)?.split([' ', '=', '[']).next()?;
    let value = text(ContextKind::InvalidValue)?;
    let joined = format!("{flag}={value}");
    let at = words.iter().zip(words.iter().skip(1).map(Some).chain([None]));
    let (number, count) = at.enumerate().skip(1).find_map(|(number, (word, next))| {
        if *word == *joined {
            Some((number, 1))
        } else {
            (word == flag && next.is_some_and(|next| next == value)).then_some((number, 2))
        }
    })?;
    let mut words = words.to_vec();
    words.drain(number..number.checked_add(count)?);
    Some(words)
}

/// The meaning of the word after a flag.
#[derive(Debug, Clone, Copy)]
enum Next {
    /// The flag's value.
    Value,
    /// Another flag, or the command.
    Word,
    /// The flag is unknown.
    Unknown,
}

/// Classifies the word after short flags such as `-q` and `-pnpm`. The rest of the word is the value of the first flag that takes one.
fn after_shorts<'a>(word: &str, find: impl Fn(char) -> Option<&'a Arg>) -> Next {
    let mut letters = word.chars();
    letters.next();
    while let Some(letter) = letters.next() {
        match find(letter) {
            None => return Next::Unknown,
            Some(arg) if arg.get_action().takes_values() => {
                return if letters.as_str().is_empty() { Next::Value } else { Next::Word };
            }
            Some(_) => {}
        }
    }
    Next::Word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results_of(words: &str) -> Option<Vec<Output>> {
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        places(&words).map(|places| places.results)
    }

    fn file(name: &str) -> Output {
        Output::File(name.into())
    }

    #[test]
    fn a_result_is_found_wherever_the_mistake_is() {
        for words in [
            "exeat run --result s --timeout 1 -- false",
            "exeat run --timeout 1 --result s -- false",
            "exeat run --timeout=1 --result=s false",
            "exeat run --timeout 1 -p npm --result s -- x",
            "exeat run -p npm -px --quiet --label x --result s false",
            "exeat --color never run --result s --tmeout 1s -- false",
            "exeat --color=never run --tmeout 1s --result s -- false",
            "exeat run --locked --result s -- false",
            "exeat run --locked=other.lock --result s false",
            "exeat run --strange --result s -- false",
            "exeat run --strange=1 --result s false",
            "exeat run --strange --result s false",
        ] {
            assert_eq!(results_of(words), Some(vec![file("s")]), "{words}");
        }
        assert_eq!(results_of("exeat run --result a --result b"), Some(vec![file("a"), file("b")]));
        assert_eq!(results_of("exeat run --timeout 1 --result fd:3 x"), Some(vec![Output::Fd(3)]));
    }

    #[test]
    fn json_is_asked_for_wherever_the_mistake_is() {
        for (words, is_json) in [
            ("exeat run --format json --timeout 1 x", true),
            ("exeat run --tmeout=1 --format=json x", true),
            ("exeat run --format text x", false),
            ("exeat run --timeout 1 x --format json", false),
            ("exeat policy show --format json nothing.toml", true),
            ("exeat check --format=json", true),
            ("exeat check -- --format=json", false),
            ("exeat", false),
        ] {
            let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            assert_eq!(wants_json(&words), is_json, "{words:?}");
        }
    }

    #[test]
    fn a_flag_of_the_command_is_not_ours() {
        for words in [
            "exeat run --timeout 1 -- prog --result s",
            "exeat run --timeout 1 prog --result s",
            "exeat run --strange prog --result s",
            "exeat run --strange 1 prog --result s -- x",
            "exeat run --quiet prog --result s -- x",
            "exeat run --timeout 1 -pnpm prog --result s -- x",
            "exeat run --timeout 1 -p=npm prog --result s -- x",
            "exeat run --timeout 1 - --result s",
            "exeat run --label --result --bad x",
            "exeat run --result",
            "exeat run --result fd:1 x",
        ] {
            assert_eq!(results_of(words), Some(vec![]), "{words}");
        }
        for words in ["exeat check --result s", "exeat", "exeat --bad run --result s"] {
            assert_eq!(results_of(words), None, "{words}");
        }
    }
}
