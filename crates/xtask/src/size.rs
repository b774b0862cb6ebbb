//! Measures the code: the lines of each crate, its longest file, and the circles between its files.
//!
//! Reads the sources as the compiler finds them, by `mod NAME;`, and skips items under `#[cfg(test)]`. Needs no
//! compiler: a file uses another if a `use`, or a path in its code, names an item of the other. A re-export is followed
//! to the file that has the item, and does not count as a use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The size of one crate.
pub(crate) struct Size {
    /// The name of its directory.
    pub(crate) name: String,
    /// Its product files.
    pub(crate) files: Vec<File>,
    /// Its circles of more than one file, the largest first: each file of a circle uses every other one, directly or
    /// through others.
    pub(crate) circles: Vec<Vec<PathBuf>>,
}

/// A product file.
pub(crate) struct File {
    /// Its path in the repository.
    pub(crate) path: PathBuf,
    /// The number of all its lines.
    pub(crate) length: usize,
    /// The number of lines that are not blank, comments or tests.
    pub(crate) code: usize,
}

impl Size {
    /// Returns the lines of all files that are not blank, comments or tests.
    pub(crate) fn code(&self) -> usize {
        self.files.iter().map(|file| file.code).sum()
    }

    /// Returns how many files the largest circle has: 1 where there is none.
    pub(crate) fn largest_circle(&self) -> usize {
        self.circles.first().map_or(1, Vec::len)
    }
}

/// Measures every crate of the repository, sorted by name.
pub(crate) fn measure(root: &Path) -> Result<Vec<Size>, String> {
    let listed = fs::read_dir(root.join("crates")).map_err(|error| format!("crates: {error}"))?;
    let mut directories: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    directories.push(root.join("stage2"));
    directories.retain(|directory| directory.join("Cargo.toml").is_file());
    directories.sort();
    directories.iter().map(|directory| measure_crate(root, directory)).collect()
}

/// Returns the median of the lengths of all files.
pub(crate) fn median(sizes: &[Size]) -> usize {
    let mut lengths: Vec<usize> = sizes.iter().flat_map(|size| &size.files).map(|file| file.length).collect();
    lengths.sort_unstable();
    lengths.get(lengths.len() / 2).copied().unwrap_or(0)
}

fn measure_crate(root: &Path, directory: &Path) -> Result<Size, String> {
    let mut sources = Sources::default();
    let roots = ["src/lib.rs", "src/main.rs", "build.rs"].map(|name| directory.join(name));
    for path in roots.iter().filter(|path| path.is_file()) {
        let children = directory.join(if path.ends_with("build.rs") { "build" } else { "src" });
        sources.read(path, &children, Vec::new())?;
    }
    let uses: Vec<BTreeSet<usize>> = (0..sources.files.len()).map(|file| sources.uses(file)).collect();
    let relative = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_owned();
    let path = |at: &usize| sources.files.get(*at).map(|(file, _)| relative(&file.path)).unwrap_or_default();
    let circles = circles(&uses).iter().map(|circle| circle.iter().map(path).collect()).collect();
    let files =
        sources.files.into_iter().map(|(file, _)| File { path: relative(&file.path), ..file }).collect();
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Size { name, files, circles })
}

/// Finds the circles in a graph, the largest first. Nodes outside of any circle are left out.
fn circles(edges: &[BTreeSet<usize>]) -> Vec<BTreeSet<usize>> {
    let reach = |from: usize| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(node) = next.pop() {
            next.extend(edges.get(node).into_iter().flatten().filter(|node| seen.insert(**node)));
        }
        seen
    };
    let reached: Vec<BTreeSet<usize>> = (0..edges.len()).map(reach).collect();
    let is_both = |a: usize, b: &usize| reached.get(*b).is_some_and(|back| back.contains(&a));
    let circle = |(node, there): (usize, &BTreeSet<usize>)| {
        there.iter().copied().filter(|other| is_both(node, other)).collect::<BTreeSet<usize>>()
    };
    let circles: BTreeSet<BTreeSet<usize>> = reached.iter().enumerate().map(circle).collect();
    let mut circles: Vec<_> = circles.into_iter().filter(|circle| circle.len() > 1).collect();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

/// The path of a module or an item, word by word.
type Words = Vec<String>;

/// The sources of one crate.
#[derive(Default)]
struct Sources {
    /// Each file, with the paths that its code names: the naming module, and the path.
    files: Vec<(File, Vec<(Words, Words)>)>,
    /// The file of each module.
    modules: BTreeMap<Words, usize>,
    /// The path that each `use` brings into a module, by the module and the local name.
    names: BTreeMap<(Words, String), Words>,
}

impl Sources {
    /// Reads the file of this module, and the files of the modules in it, which are below `children`.
    fn read(&mut self, path: &Path, children: &Path, module: Words) -> Result<(), String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let at = self.files.len();
        let file = File { path: path.to_owned(), length: text.lines().count(), code: 0 };
        self.files.push((file, Vec::new()));
        self.modules.insert(module.clone(), at);
        let tokens = tokens(&text);
        let word = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
        let (mut lines, mut named, mut below) = (BTreeSet::new(), Vec::new(), Vec::new());
        // The modules around a token, each with the number of open braces around its body.
        let (mut inside, mut open) = (module, Vec::new());
        let (mut depth, mut here) = (0_usize, 0);
        while here < tokens.len() {
            if ["#", "[", "cfg", "(", "test", ")", "]"].iter().zip(here..).all(|(text, at)| word(at) == *text)
            {
                here = end_of_item(&tokens, here);
                continue;
            }
            let mut next = here + 1;
            match (word(here), word(here + 1), word(here + 2)) {
                ("{", ..) => depth += 1,
                ("}", ..) => {
                    depth = depth.saturating_sub(1);
                    if open.last() == Some(&depth) {
                        open.pop();
                        inside.pop();
                    }
                }
                ("mod", name, ";") => below.push([&inside[..], &[name.to_owned()]].concat()),
                ("mod", name, "{") => {
                    inside.push(name.to_owned());
                    open.push(depth);
                    self.modules.insert(inside.clone(), at);
                    next = here + 2;
                }
                ("use", after, _) if after != "<" => {
                    let is_export = here > 0 && matches!(word(here - 1), "pub" | ")");
                    while word(next) != ";" && next < tokens.len() {
                        next += 1;
                    }
                    let tree: Vec<&str> = (here + 1..next).map(word).collect();
                    for (path, name) in used(&tree) {
                        if !is_export {
                            named.push((inside.clone(), path.clone()));
                        }
                        self.names.insert((inside.clone(), name), path);
                    }
                }
                (first, "::", _)
                    if is_word(first) && (here == 0 || !matches!(word(here - 1), "::" | ".")) =>
                {
                    let mut path = vec![first.to_owned()];
                    while word(next) == "::" && is_word(word(next + 1)) {
                        path.push(word(next + 1).to_owned());
                        next += 2;
                    }
                    named.push((inside.clone(), path));
                }
                _ => {}
            }
            tokens.iter().take(next).skip(here).for_each(|token| lines.extend(token.from..=token.to));
            here = next;
        }
        if let Some((file, names)) = self.files.get_mut(at) {
            (file.code, *names) = (lines.len(), named);
        }
        for module in below {
            let name = module.last().cloned().unwrap_or_default();
            self.read(&children.join(format!("{name}.rs")), &children.join(name), module)?;
        }
        Ok(())
    }

    /// Returns the other files that a file uses.
    fn uses(&self, file: usize) -> BTreeSet<usize> {
        let named = self.files.get(file).into_iter().flat_map(|(_, named)| named);
        let uses = named.filter_map(|(module, path)| self.find(module, path, 8));
        uses.filter(|other| *other != file).collect()
    }

    /// Finds the file with the item that a path in a module names. `None` for items of other crates, and after `turns`
    /// re-exports.
    fn find(&self, module: &[String], path: &[String], turns: u32) -> Option<usize> {
        let (first, mut rest) = path.split_first()?;
        let mut at = module.to_vec();
        match first.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()),
            _ => rest = path,
        }
        while let Some((name, after)) = rest.split_first() {
            let child = [&at[..], std::slice::from_ref(name)].concat();
            if name == "super" {
                at.pop();
            } else if name != "self" && self.modules.contains_key(&child) {
                at = child;
            } else if let Some(used) = self.names.get(&(at.clone(), name.clone())) {
                // Without the limit, `use crate::a::b` below `crate::a` would be looked up forever.
                return self.find(&at, &[&used[..], after].concat(), turns.checked_sub(1)?);
            } else if rest.len() == path.len() {
                // Neither a module nor a name in this crate.
                return None;
            } else {
                break;
            }
            rest = after;
        }
        self.modules.get(&at).copied()
    }
}

/// Splits a `use` into paths, each with its local name.
fn used(tree: &[&str]) -> Vec<(Words, String)> {
    let (mut all, mut stem, mut stems) = (Vec::new(), Words::new(), Vec::new());
    let mut tokens = tree.iter().copied().chain([","]).peekable();
    let mut path = Words::new();
    while let Some(token) = tokens.next() {
        match token {
            "::" => {}
            "{" => {
                stems.push(stem.clone());
                stem.append(&mut path);
            }
            "," | "}" => {
                if path.last().is_some_and(|word| word == "self") && path.len() == 1 && !stem.is_empty() {
                    path.clear();
                    let name = stem.last().cloned().unwrap_or_default();
                    all.push((stem.clone(), name));
                } else if let Some(name) = path.last().cloned() {
                    all.push(([&stem[..], &path[..]].concat(), name));
                    path.clear();
                }
                if token == "}" {
                    stem = stems.pop().unwrap_or_default();
                }
            }
            "as" => {
                let whole = match path.as_slice() {
                    [only] if only == "self" => stem.clone(),
                    path => [&stem[..], path].concat(),
                };
                all.push((whole, tokens.next().unwrap_or_default().to_owned()));
                path.clear();
            }
            word => path.push(word.to_owned()),
        }
    }
    all
}

/// Returns the end of the item that starts here with its attributes.
fn end_of_item(tokens: &[Token], begin: usize) -> usize {
    let mut depth = 0_usize;
    let mut is_attribute = false;
    for (at, token) in tokens.iter().enumerate().skip(begin) {
        match token.text.as_str() {
            "#" if depth == 0 => is_attribute = true,
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" if depth == 0 => return at,
            close @ (")" | "]" | "}") => {
                depth -= 1;
                if depth == 0 && close == "}" {
                    return at + 1;
                }
                is_attribute &= depth > 0;
            }
            ";" if depth == 0 && !is_attribute => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// A word, `::`, a literal or another sign of a source.
struct Token {
    text: String,
    /// The lines on which it starts and ends.
    from: usize,
    to: usize,
}

/// Splits a source into tokens, without comments and white space; a literal becomes `"`.
fn tokens(source: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (source, 1);
    while let Some(first) = rest.chars().next() {
        let after = rest.get(first.len_utf8()..).unwrap_or_default();
        let hashes = after.trim_start_matches('r').bytes().take_while(|byte| *byte == b'#').count();
        let is_raw = |text: &str| text.trim_start_matches('#').starts_with('"');
        let until = |text: &str, end: &str| text.find(end).map_or(text.len(), |at| at + end.len());
        let (len, text) = match first {
            c if c.is_whitespace() => (c.len_utf8(), ""),
            '/' if after.starts_with('/') => (until(rest, "\n"), ""),
            '/' if after.starts_with('*') => (until(rest, "*/"), ""),
            ':' if after.starts_with(':') => (2, "::"),
            'r' if is_raw(after) => {
                let begin = 2 + hashes;
                (
                    begin
                        + until(rest.get(begin..).unwrap_or_default(), &format!("\"{}", "#".repeat(hashes))),
                    "\"",
                )
            }
            'b' | 'c' if after.starts_with('r') && is_raw(after.trim_start_matches('r')) => (1, ""),
            '"' => (1 + end_of_text(after, '"'), "\""),
            // A lifetime is a quotation mark and a word.
            '\'' if after.starts_with('\\') || after.chars().nth(1) == Some('\'') => {
                (1 + end_of_text(after, '\''), "\"")
            }
            c if c.is_alphanumeric() || c == '_' => {
                let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                (len, rest.get(..len).unwrap_or_default())
            }
            c => (c.len_utf8(), rest.get(..c.len_utf8()).unwrap_or_default()),
        };
        let lines = rest.get(..len).unwrap_or_default().bytes().filter(|byte| *byte == b'\n').count();
        if !text.is_empty() {
            tokens.push(Token { text: text.to_owned(), from: line, to: line + lines });
        }
        line += lines;
        rest = rest.get(len..).unwrap_or_default();
    }
    tokens
}

/// Returns the length of a literal up to and including its closing mark; a backslash escapes a mark.
fn end_of_text(text: &str, mark: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        if c == mark && !is_escaped {
            return at + c.len_utf8();
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    text.len()
}
