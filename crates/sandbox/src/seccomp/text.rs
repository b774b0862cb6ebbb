//! Prints the filters for people: a line for each refused call and each case of it.

use std::fmt;

use super::{
    Argument, Case, Filter, NamedNumber, Refusal, Test, base_filters, no_unix_sockets_filter, noticed,
};

/// Prints everything that is refused, in three lists, and the calls that exeat gets notices of, as in docs/syscalls.md. Both
/// architectures agree except for calls that one of them lacks.
#[must_use]
pub fn text() -> String {
    let every = base_filters(true).iter().flat_map(lines).collect::<Vec<_>>();
    let mut debugged = base_filters(false).iter().flat_map(lines).collect::<Vec<_>>();
    debugged.retain(|line| !every.contains(line));
    let first = [
        "every call by another architecture's table: the process is killed",
        "every call by the x32 table: ENOSYS",
    ];
    let told = noticed();
    let told = told.iter().flat_map(|it| lines_of(it, "exeat is told, and lets it go on"));
    let parts = [
        ("every process of the sandbox", first.map(String::from).into_iter().chain(every).collect()),
        ("the same, unless the stage is debuggable", debugged),
        ("a stage without Unix sockets of its own", lines(&no_unix_sockets_filter())),
        ("a stage in a writable tree with files that are read-only for it", told.collect()),
    ];
    let part = |(title, lines): (&str, Vec<String>)| format!("# {title}\n{}\n", lines.join("\n"));
    parts.map(part).join("\n")
}

fn lines(filter: &Filter) -> Vec<String> {
    filter.refused.iter().flat_map(|refusal| lines_of(refusal, &filter.errno.to_string())).collect()
}

/// Prints the lines of one call with the answer to it.
fn lines_of(refusal: &Refusal, answer: &str) -> Vec<String> {
    let answer = format!("{}: {answer}", name_of(refusal.call.name));
    if refusal.cases.is_empty() {
        return vec![answer];
    }
    refusal.cases.iter().map(|case| format!("{answer} where {}", all(case))).collect()
}

/// Returns the call's name as in its manual page.
fn name_of(call: &str) -> &str {
    call.rsplit(':').next().unwrap_or_default().trim_start_matches("SYS_")
}

/// Prints a case. Several numbers that one argument must not equal form one phrase.
fn all(case: &Case) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut last = None;
    for (Argument(name, _), test) in case {
        let is_not = matches!(test, Test::IsNot(_)).then_some(*name);
        match (words.last_mut(), test) {
            (Some(said), Test::IsNot(value)) if last == is_not => *said += &format!(", {value}"),
            _ => words.push(match test {
                Test::Is(value) => format!("{name} is {value}"),
                Test::IsNot(value) => format!("{name} is none of {value}"),
                Test::Has(bits) => format!("{name} has {bits}"),
                Test::Masked(mask, value) => format!("{name} & {mask} is {value}"),
            }),
        }
        last = is_not;
    }
    words.join(" and ")
}

impl fmt::Display for NamedNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.rsplit(':').next().unwrap_or_default())
    }
}
