//! `exeat completions` and `exeat man`: generated from the arguments, so that they cannot disagree with them.

use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use exeat_files::place::FilePlace;
use exeat_files::walk::LinkRule;
use nix::sys::stat::Mode;

use crate::args::Cli;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::stdio;

/// Prints the completion script of a shell: the one named, or the caller's own.
///
/// # Errors
///
/// Fails if no shell is named and `SHELL` does not name a supported one.
pub(crate) fn completions(shell: Option<Shell>) -> Result<Exit, Failure> {
    let Some(shell) = shell.or_else(Shell::from_env) else {
        return Err(Failure::input("SHELL names no shell that there is a script for")
            .hint("exeat completions bash|elvish|fish|powershell|zsh"));
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "exeat", &mut script);
    stdio::data(&script)?;
    Ok(Exit::Yes)
}

/// Prints the manual page of a command, or writes one page per command into a directory.
pub(crate) fn man(words: &[String], out: Option<&Path>) -> Result<Exit, Failure> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    match out {
        None => {
            let find = |command: &Command, word: &String| command.find_subcommand(word).cloned();
            let found = words.iter().try_fold(command, |command, word| find(&command, word));
            let unknown = || Failure::input(format!("there is no command `exeat {}`", words.join(" ")));
            stdio::data(&page(&found.ok_or_else(unknown)?)?)?;
        }
        Some(directory) => {
            let made = LinkRule::from_env().make_directory(directory, Mode::from_bits_truncate(0o777));
            made.map_err(|error| Failure::not_written("cannot write", directory, error.into()))?;
            pages(&command, directory)?;
        }
    }
    Ok(Exit::Yes)
}

fn pages(command: &Command, directory: &Path) -> Result<(), Failure> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let file = directory.join(format!("{name}.1"));
    let page = page(command)?;
    let written = FilePlace::open(&file).and_then(|it| it.write(&page));
    written.map_err(|error| Failure::not_written("cannot write", &file, error))?;
    command.get_subcommands().try_for_each(|command| pages(command, directory))
}

fn page(command: &Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    render(command, &mut page)
        .map_err(|error| Failure::could("cannot write the manual page").because(error))?;
    Ok(page)
}

fn render(command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    let man = Man::new(command.clone()).manual("exeat");
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(page)?;
    }
    let after = command.get_after_long_help().or(command.get_after_help());
    sections(&after.map(ToString::to_string).unwrap_or_default()).to_writer(page)
}

/// Converts the text below the help into sections of the page. A heading ends in a colon; columns stay aligned.
fn sections(text: &str) -> Roff {
    let mut roff = Roff::new();
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
        let body = match paragraph.split_once('\n') {
            Some((head, body)) if head.ends_with(':') => {
                roff.control("SH", [head.trim_end_matches(':').to_uppercase().as_str()]);
                body
            }
            _ => {
                roff.control("PP", []);
                paragraph
            }
        };
        roff.control("nf", []);
        for line in body.lines() {
            roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
        }
        roff.control("fi", []);
    }
    roff
}
