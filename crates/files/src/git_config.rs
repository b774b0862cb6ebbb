//! A reader of git's configuration, for the few settings that name other files (git-config(1), "Syntax"; git's config.c). Paths are
//! bytes, and so is all of this.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::User;

/// A setting that names something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Setting {
    /// `core.hooksPath`.
    HooksPath(OsString),
    /// `core.worktree`.
    Worktree(OsString),
    /// `include.path`, or `includeIf.*.path` whatever its condition.
    Include(OsString),
    /// `safe.directory`.
    SafeDirectory,
    /// `submodule.*.path`, of `.gitmodules`.
    Submodule(OsString),
    /// A program that git runs, by its path: one of [`RUN`].
    Program(OsString),
    /// The path in another setting, which may be a program's.
    File(OsString),
    /// `init.templateDir`: hooks are copied from there.
    Template(OsString),
}

/// Settings whose values git runs (git-config(1)): the section and the last part of the key, without a subsection.
const RUN: &[(&str, &[&str])] = &[
    ("alias", ANY),
    ("browser", &["cmd", "path"]),
    ("core", &["alternaterefscommand", "askpass", "editor", "fsmonitor", "gitproxy", "pager", "sshcommand"]),
    ("credential", &["helper"]),
    ("diff", &["command", "external", "textconv"]),
    ("difftool", &["cmd", "path"]),
    ("filter", &["clean", "process", "smudge"]),
    ("gc", &["recentobjectshook"]),
    ("gpg", &["defaultkeycommand", "program"]),
    ("guitool", &["cmd"]),
    ("hook", &["command"]),
    ("imap", &["tunnel"]),
    ("instaweb", &["httpd"]),
    ("interactive", &["difffilter"]),
    ("man", &["cmd", "path"]),
    ("merge", &["driver"]),
    ("mergetool", &["cmd", "path"]),
    ("pager", ANY),
    ("remote", &["receivepack", "uploadpack"]),
    ("sendemail", &["cccmd", "headercmd", "sendmailcmd", "smtpserver", "tocmd"]),
    ("sequence", &["editor"]),
    ("submodule", &["update"]),
    ("tar", &["command"]),
    ("trailer", &["cmd", "command"]),
    ("uploadpack", &["packobjectshook"]),
];

/// Every key of a section: the names are the user's.
const ANY: &[&str] = &[];

/// Keys of [`RUN`] whose value is the program, without arguments and without a shell.
const WHOLE: &[&str] = &["askpass", "path", "program"];

/// Keys that git itself writes when it makes a repository, a clone, a submodule or a worktree, and those that only name somebody or choose a
/// way to work: the section and the last part of the key, without a subsection. None names a program or a file.
const PLAIN: &[(&str, &[&str])] = &[
    ("advice", ANY),
    (
        "branch",
        &[
            "autosetupmerge",
            "autosetuprebase",
            "description",
            "gh-merge-base",
            "merge",
            "pushremote",
            "rebase",
            "remote",
            "vscode-merge-base",
        ],
    ),
    ("color", ANY),
    ("commit", &["gpgsign", "verbose"]),
    (
        "core",
        &[
            "abbrev",
            "autocrlf",
            "bare",
            "eol",
            "filemode",
            "ignorecase",
            "logallrefupdates",
            "longpaths",
            "precomposeunicode",
            "preloadindex",
            "quotepath",
            "repositoryformatversion",
            "sparsecheckout",
            "sparsecheckoutcone",
            "symlinks",
            "untrackedcache",
        ],
    ),
    ("extensions", &["noop", "objectformat", "refstorage", "worktreeconfig"]),
    ("fetch", &["parallel", "prune"]),
    ("gc", &["auto"]),
    ("index", &["recordendofindexentries", "recordoffsettable", "sparse", "threads", "version"]),
    ("init", &["defaultbranch"]),
    ("lfs", &["repositoryformatversion"]),
    ("log", &["date"]),
    ("merge", &["conflictstyle", "ff"]),
    ("pull", &["ff", "rebase"]),
    ("push", &["autosetupremote", "default", "followtags"]),
    ("rebase", &["autosquash", "autostash"]),
    (
        "remote",
        &[
            "fetch",
            "followremotehead",
            "gh-resolved",
            "mirror",
            "prune",
            "push",
            "pushdefault",
            "pushurl",
            "tagopt",
            "url",
        ],
    ),
    ("rerere", &["autoupdate", "enabled"]),
    ("status", &["showuntrackedfiles"]),
    ("submodule", &["active", "branch", "url"]),
    ("tag", &["gpgsign"]),
    ("user", &["email", "name", "signingkey"]),
];

/// Keys of [`PLAIN`] whose value is a URL or a path, and those whose value is the name of a remote, or a URL.
const URLS: &[&str] = &["pushurl", "url"];
const REMOTES: &[&str] = &["pushdefault", "pushremote", "remote"];
/// The values that `git remote add --tags` and `--no-tags` write. git passes them to no other command.
const TAGS: &[&[u8]] = &[b"--tags", b"--no-tags"];
/// The formats in which git keeps branches. With a URI, git keeps them in the place that it names.
const FORMATS: &[&[u8]] = &[b"files", b"reftable"];
/// Git's own protocols (git-fetch(1), "Git URLs"). For any other git starts a program (gitremote-helpers(7)).
const PROTOCOLS: &[&[u8]] = &[b"http", b"https", b"ssh", b"git"];

/// A value of a configuration that names a place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place<'a> {
    /// `core.worktree`.
    Worktree(&'a OsStr),
    /// The path of another repository.
    Repository(&'a OsStr),
}

/// Returns whether git reads all of a configuration, and each of its keys is one of [`PLAIN`]. `may_name` accepts places.
pub(crate) fn is_plain(text: &[u8], may_name: impl Fn(Place<'_>) -> bool) -> bool {
    let mut is_plain = !text.contains(&0);
    let is_whole = each_entry(text, |Section { name: section, has_option }, key, value| {
        // git hands the names of remotes and branches to other commands of git.
        let is_tags = key == "tagopt" && value.is_some_and(|value| TAGS.contains(&value));
        let is_option = *has_option || value.is_some_and(|value| value.starts_with(b"-") && !is_tags);
        let is_known = is_plain_key(section, key) && !is_option;
        is_plain &= match value {
            Some(value) if (section.as_str(), key) == ("core", "worktree") => {
                may_name(Place::Worktree(OsStr::from_bytes(value)))
            }
            // git's own monitor, or none.
            Some(b"true" | b"false") if (section.as_str(), key) == ("core", "fsmonitor") => true,
            Some(value) if (section.as_str(), key) == ("extensions", "refstorage") => {
                is_known && FORMATS.contains(&value)
            }
            Some(value) if URLS.contains(&key) => is_known && is_plain_url(value, &may_name),
            Some(value) if REMOTES.contains(&key) => {
                is_known && !value.iter().any(|byte| b"/:".contains(byte))
            }
            _ => is_known,
        };
    });
    is_whole && is_plain
}

fn is_plain_url(value: &[u8], may_name: impl Fn(Place<'_>) -> bool) -> bool {
    let scheme = value.windows(3).position(|it| it == b"://").map(|at| value.split_at(at));
    match scheme {
        _ if value.iter().any(u8::is_ascii_control) => false,
        // `HELPER::ADDRESS` names a program. `::` also stands in an IPv6 address.
        _ if value.windows(2).any(|two| two == b"::") && !is_in_brackets(value) => false,
        Some((b"file", rest)) => {
            may_name(Place::Repository(OsStr::from_bytes(rest.get(3..).unwrap_or_default())))
        }
        Some((scheme, _)) => PROTOCOLS.contains(&scheme),
        // `HOST:PATH` is one for ssh.
        None if value.split(|byte| *byte == b'/').next().is_some_and(|first| first.contains(&b':')) => true,
        None => may_name(Place::Repository(OsStr::from_bytes(value))),
    }
}

/// Returns whether `::` stands only in the address of a URL such as `https://[::1]/x`.
fn is_in_brackets(url: &[u8]) -> bool {
    let rest = PROTOCOLS.iter().find_map(|protocol| url.strip_prefix(*protocol)?.strip_prefix(b"://["));
    let mut parts = rest.unwrap_or_default().splitn(2, |byte| *byte == b']');
    let address = parts.next().unwrap_or_default();
    let is_address = address.iter().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(byte));
    is_address && parts.next().is_some_and(|after| !after.windows(2).any(|two| two == b"::"))
}

fn is_plain_key(section: &str, key: &str) -> bool {
    PLAIN.iter().any(|(known, keys)| *known == section && (keys.is_empty() || keys.contains(&key)))
}

/// The settings of a file, in order. What git would refuse ends it.
pub(crate) fn settings(text: &[u8]) -> Vec<Setting> {
    let mut found = Vec::new();
    each_entry(text, |section, key, value| {
        found.extend(value.and_then(|value| setting(&section.name, key, value)));
    });
    found
}

/// A section of a file.
#[derive(Default)]
struct Section {
    /// Its name in lower case, without a subsection.
    name: String,
    /// Whether the name of its subsection begins as an option does.
    has_option: bool,
}

/// Visits the entries of a file, in order: the section, the key, and the value where there is one. Returns whether git would read all of
/// it.
fn each_entry(text: &[u8], mut visit: impl FnMut(&Section, &str, Option<&[u8]>)) -> bool {
    let text = lines(text);
    let mut section = Section::default();
    let mut rest = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
    loop {
        rest = rest.trim_ascii_start();
        match rest.first() {
            None => return true,
            Some(b'#' | b';') => rest = after_line(rest),
            Some(b'[') => {
                let Some((name, after)) = header(rest) else { return false };
                (section, rest) = (name, after);
            }
            Some(_) => {
                let Some((key, value, after)) = entry(rest) else { return false };
                rest = after;
                visit(&section, &key, value.as_deref());
            }
        }
    }
}

/// Git takes a carriage return before a line feed for no character, wherever it stands.
fn lines(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter().peekable();
    while let Some(byte) = bytes.next() {
        if *byte != b'\r' || bytes.peek() != Some(&&b'\n') {
            out.push(*byte);
        }
    }
    out
}

fn setting(section: &str, key: &str, value: &[u8]) -> Option<Setting> {
    // Git's strings end there.
    let value = value.split(|byte| *byte == 0).next().unwrap_or_default();
    let path = || OsStr::from_bytes(value).to_owned();
    match (section, key) {
        ("core", "hookspath") => Some(Setting::HooksPath(path())),
        ("core", "worktree") => Some(Setting::Worktree(path())),
        ("safe", "directory") => Some(Setting::SafeDirectory),
        ("submodule", "path") => Some(Setting::Submodule(path())),
        ("include" | "includeif", "path") => Some(Setting::Include(path())),
        ("init", "templatedir") => Some(Setting::Template(path())),
        _ => {
            let owned = |path: Cow<'_, [u8]>| OsStr::from_bytes(&path).to_owned();
            let program = program(section, key, value).map(|path| Setting::Program(owned(path)));
            program.or_else(|| perhaps_a_file(section, key, value).map(|path| Setting::File(owned(path))))
        }
    }
}

/// The path of a file that a value may be, or begin with. Tools have commands under keys of their own, as git-lfs and git-annex do.
fn perhaps_a_file<'a>(section: &str, key: &str, value: &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let path = Some(first_word(value)).filter(|_| !is_plain_key(section, key))?;
    path.contains(&b'/').then_some(path)
}

/// The path of the program that a value is, or begins with. A name without a slash is sought on PATH.
fn program<'a>(section: &str, key: &str, value: &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let (_, keys) = RUN.iter().find(|(known, _)| *known == section)?;
    if !keys.is_empty() && !keys.contains(&key) {
        return None;
    }
    let path = if WHOLE.contains(&key) { value.into() } else { first_word(value) };
    path.contains(&b'/').then_some(path)
}

/// The first word of a command, as a shell takes it; `!` has git use one.
fn first_word(value: &[u8]) -> Cow<'_, [u8]> {
    let value = value.trim_ascii_start();
    let value = value.strip_prefix(b"!").unwrap_or(value).trim_ascii_start();
    // transcrypt's filter is found so.
    let plain: Vec<u8> = value.iter().copied().filter(|byte| *byte != b'"').collect();
    let dir = DIRECTORIES.iter().find_map(|(words, dir)| Some((dir, plain.strip_prefix(words.as_bytes())?)));
    if let Some((dir, rest)) = dir {
        let end = rest.iter().position(|byte| b" \t\n;|&<>()".contains(byte)).unwrap_or(rest.len());
        return [dir.as_bytes(), rest.get(..end).unwrap_or(rest)].concat().into();
    }
    let (text, ends): (&[u8], &[u8]) = match value.split_first() {
        Some((quote @ (b'"' | b'\''), text)) => (text, std::slice::from_ref(quote)),
        _ => (value, b" \t\n;|&<>()"),
    };
    text.split(|byte| ends.contains(byte)).next().unwrap_or_default().into()
}

/// Resolves a value: relative to a directory, below HOME, or below a user's home directory. `..` is left in it: only the kernel
/// says what that means behind a link.
pub(crate) fn resolve_value(base: &Path, value: &OsStr, home: &Path) -> PathBuf {
    let of = |user: &[u8]| User::from_name(std::str::from_utf8(user).ok()?).ok()?.map(|user| user.dir);
    let Some(rest) = value.as_bytes().strip_prefix(b"~") else { return base.join(value) };
    let mut parts = rest.splitn(2, |byte| *byte == b'/');
    let user = parts.next().unwrap_or_default();
    let below = OsStr::from_bytes(parts.next().unwrap_or_default());
    let dir = if user.is_empty() { Some(home.to_path_buf()) } else { of(user) };
    dir.map_or_else(|| base.join(value), |dir| dir.join(below))
}

/// Words with which a command names the directory of the repository, and the top of the working tree.
const DIRECTORIES: [(&str, &str); 4] = [
    ("$(git rev-parse --git-common-dir)", ".git"),
    ("$(git rev-parse --git-dir)", ".git"),
    ("$(git rev-parse --show-toplevel)", "."),
    ("$GIT_DIR", ".git"),
];

/// Returns the text after the line.
fn after_line(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| *byte == b'\n');
    end.and_then(|end| text.get(end + 1..)).unwrap_or_default()
}

/// `[section "sub"]`: the section, and what follows.
fn header(text: &[u8]) -> Option<(Section, &[u8])> {
    let mut is_quoted = false;
    let mut is_escaped = false;
    for (at, byte) in text.iter().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'\n' => return None,
            b']' if !is_quoted => {
                let mut parts = text.get(1..at)?.splitn(2, |byte| b" \t\r.\"".contains(byte));
                let name = String::from_utf8_lossy(parts.next().unwrap_or_default()).to_ascii_lowercase();
                let more = parts.next().unwrap_or_default();
                // A backslash may hide it.
                let first = more.iter().find(|byte| !b" \t\r.\"\\".contains(byte));
                return Some((Section { name, has_option: first == Some(&b'-') }, text.get(at + 1..)?));
            }
            _ => {}
        }
    }
    None
}

/// A key in lower case, the value where there is one, and what follows.
type Entry<'a> = (String, Option<Vec<u8>>, &'a [u8]);

/// `key = value`.
fn entry(text: &[u8]) -> Option<Entry<'_>> {
    let is_of_a_key = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    let end = text.iter().position(|byte| !is_of_a_key(byte)).unwrap_or(text.len());
    let (key, rest) = text.split_at_checked(end).filter(|(key, _)| !key.is_empty())?;
    let key = String::from_utf8_lossy(key).to_ascii_lowercase();
    let rest = after_blanks(rest);
    // A switch: true.
    let Some(rest) = rest.strip_prefix(b"=") else { return Some((key, None, after_line(rest))) };
    let (value, rest) = value(after_blanks(rest))?;
    Some((key, Some(value), rest))
}

fn after_blanks(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| !b" \t".contains(byte)).unwrap_or(text.len());
    text.get(end..).unwrap_or_default()
}

/// A value, and what follows its line: `parse_value` of git's config.c.
fn value(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut value = Vec::new();
    let mut is_quoted = false;
    // Blanks count only between other things.
    let mut blanks = Vec::new();
    loop {
        let (byte, after) = match rest.split_first() {
            None | Some((b'\n', _)) if is_quoted => return None,
            None => return Some((value, rest)),
            Some((b'\n', after)) => return Some((value, after)),
            Some((b'#' | b';', after)) if !is_quoted => return Some((value, after_line(after))),
            Some((byte @ (b' ' | b'\t' | b'\r'), after)) if !is_quoted => {
                // There is nothing before those at the front.
                if !value.is_empty() {
                    blanks.push(*byte);
                }
                rest = after;
                continue;
            }
            Some((byte, after)) => (*byte, after),
        };
        rest = after;
        value.append(&mut blanks);
        match byte {
            b'"' => is_quoted = !is_quoted,
            b'\\' => {
                // The end of the file is an end of a line.
                let (escaped, after) = rest.split_first().unwrap_or((&b'\n', rest));
                rest = after;
                match escaped {
                    b'\n' => {}
                    b'n' => value.push(b'\n'),
                    b't' => value.push(b'\t'),
                    b'b' => value.push(0x8),
                    byte @ (b'"' | b'\\') => value.push(*byte),
                    _ => return None,
                }
            }
            byte => value.push(byte),
        }
    }
}
