use std::path::PathBuf;

use exeat_policy::{FileRole, PolicyFile, Target};

use super::*;
use crate::machine::Calls;
use crate::named::parse;

/// Returns a machine with these variables, in an arbitrary directory.
fn machine(env: &[(&str, &str)]) -> Machine {
    let env = env.iter().map(|(name, value)| (name.into(), value.into()));
    let none = |_| Err(std::io::ErrorKind::NotFound.into());
    let calls = Calls { take_fd: none, read_runs: |_, _| {} };
    Machine::new(PathBuf::from("/cwd"), env.collect(), calls)
}

/// Joins a fault's message, causes and hint.
fn in_one(fault: &Fault) -> String {
    let causes = std::iter::successors(std::error::Error::source(fault), |error| error.source());
    let words = causes.map(ToString::to_string).chain(fault.hint.clone());
    words.fold(fault.to_string(), |text, more| format!("{text}: {more}"))
}

fn load(text: &str, role: FileRole, shown: &str) -> LoadedFile {
    let file = parse(text, shown, role).unwrap();
    LoadedFile { file, base: PathBuf::from("/base"), shown: shown.into(), weak: false }
}

/// Computes the hop from flags, a policy file and a ceiling. Each file is the content of its `[network.upstream]`.
fn hop(
    flags: [Option<&str>; 3],
    file: &str,
    ceiling: &str,
    env: &[(&str, &str)],
) -> Result<Option<String>, String> {
    let [proxy, auth, bypass] = flags;
    let auth = auth.map(|auth| format!("network.upstream.auth={auth}"));
    let list = |bypass: &str| bypass.split(',').map(|host| format!("{host:?}")).collect::<Vec<_>>().join(",");
    let bypass = bypass.map(|bypass| format!("network.upstream.bypass=[{}]", list(bypass)));
    let settings: Vec<String> = auth.into_iter().chain(bypass).collect();
    let set = PolicyFile::parse_settings(&settings, &Vec::new).map_err(|error| {
        assert!(!error.to_string().contains("hunter2"), "A03: {error}");
        error.to_string()
    })?;
    let read = |text: &str, role, shown| match text {
        "" => Vec::new(),
        text => vec![load(&format!("[network.upstream]\n{text}"), role, shown)],
    };
    let files = read(file, FileRole::Policy, "policy.toml");
    let ceilings = read(ceiling, FileRole::Ceiling, "ceiling.toml");
    let mut notes = Vec::new();
    let found = next_hop((None, proxy), set.upstream.as_ref(), &files, &ceilings, &machine(env), &mut notes);
    let found = found.map(|hop| hop.map(|hop| hop.description())).map_err(|fault| in_one(&fault));
    assert!(!format!("{found:?} {notes:?}").contains("hunter2"), "A03: {found:?} {notes:?}");
    found
}

#[track_caller]
fn accepts(found: Result<Option<String>, String>, expect: &str) {
    assert_eq!(found.as_ref().map(|hop| hop.as_deref().unwrap_or("none")), Ok(expect));
}

#[track_caller]
fn refuses(found: Result<Option<String>, String>, expect: &str) {
    let said = found.unwrap_err();
    assert!(said.contains(expect), "{said}");
}

const P: &str = "http://p.test:3128";
const FILE: &str = "proxy = \"http://f.test:1\"\nauth = \"file:secret\"\nbypass = [\"a.test\"]";

/// K36: an upstream proxy applies only if it is named, the caller's own variables included.
#[test]
fn k36_the_callers_variables_count_only_when_they_are_named() {
    let env = [("https_proxy", "http://user:hunter2@p.test:3128/"), ("no_proxy", "corp.test,10.0.0.0/8")];
    accepts(hop([None; 3], "", "", &env), "none");
    let all = "p.test:3128 (credentials: of the variable; directly: *.corp.test,10.0.0.0/8,corp.test)";
    accepts(hop([Some("env"), None, None], "", "", &env), all);
    accepts(
        hop([Some("env"), None, None], "", "", &[("HTTPS_PROXY", P), ("https_proxy", "")]),
        "p.test:3128",
    );
    accepts(hop([Some("env"), None, None], "", "", &[("http_proxy", P)]), "none");
    accepts(hop([Some("env"), None, None], "", "", &[("https_proxy", P), ("NO_PROXY", "*")]), "none");
    accepts(hop([Some("none"), None, None], FILE, "", &env), "none");
    let odd = [("https_proxy", P), ("no_proxy", "192.168.*")];
    refuses(hop([Some("env"), None, None], "", "", &odd), "network.upstream.bypass=[...] takes its place");
    accepts(
        hop([Some("env"), None, Some("x.test")], "", "", &[("https_proxy", P)]),
        "p.test:3128 (directly: x.test)",
    );
    let https = [("https_proxy", "https://user:hunter2@p.test:3128/")];
    refuses(hop([Some("env"), None, None], "", "", &https), "not supported");
}

/// A03: a message does not repeat a password in the wrong place, and says where it belongs.
#[test]
fn a03_a_password_in_an_argument_is_not_repeated() {
    let url = Some("http://user:hunter2@p.test:3128");
    refuses(hop([url, None, None], "", "", &[]), "network.upstream.auth=file:PATH or env:NAME");
    refuses(hop([Some(P), Some("user:hunter2"), None], "", "", &[]), "named by `file:PATH` or `env:NAME`");
}

/// `--set` replaces settings of a file; another proxy gets no settings of a file, least of all credentials.
#[test]
fn settings_replace_files() {
    accepts(hop([None; 3], FILE, "", &[]), "f.test:1 (credentials: file /base/secret; directly: a.test)");
    accepts(hop([Some(P), None, None], FILE, "", &[]), "p.test:3128");
    let flags = [None, Some("env:WHO"), Some(".b.test")];
    accepts(hop(flags, FILE, "", &[]), "f.test:1 (credentials: variable WHO; directly: *.b.test,b.test)");
    accepts(
        hop([Some(P), Some("file:mine"), None], "", "", &[]),
        "p.test:3128 (credentials: file /cwd/mine)",
    );
    refuses(hop([None, Some("env:WHO"), None], "", "", &[]), "there is no upstream proxy");
    refuses(hop([Some("none"), None, Some("a.test")], "", "", &[]), "no credentials and no exceptions");
    refuses(hop([Some(P), None, Some("*")], "", "", &[]), "would leave nothing");
}

/// H16: a ceiling's proxy applies to every run, and a run that names another one is refused.
#[test]
fn h16_a_ceilings_proxy_applies_to_every_run() {
    let ceiling = "proxy = \"http://f.test:1\"\nbypass = [\"a.test\"]";
    accepts(hop([None; 3], "", ceiling, &[]), "f.test:1 (directly: a.test)");
    let own = [None, Some("env:WHO"), None];
    accepts(hop(own, "", ceiling, &[]), "f.test:1 (credentials: variable WHO; directly: a.test)");
    accepts(
        hop([None; 3], FILE, ceiling, &[]),
        "f.test:1 (credentials: file /base/secret; directly: a.test)",
    );
    let same = Some("http://F.test.:1/");
    accepts(hop([same, None, None], "", ceiling, &[]), "f.test:1 (directly: a.test)");
    for flags in [
        [Some(P), None, None],
        [Some("none"), None, None],
        [Some("env"), None, None],
        [same, None, Some("a.test,b.test")],
        [None, None, Some("b.test")],
    ] {
        refuses(hop(flags, "", ceiling, &[]), "the ceiling ceiling.toml sets the upstream proxy f.test:1");
    }
    let with_auth = "proxy = \"http://f.test:1\"\nauth = \"file:/site\"";
    accepts(hop([None; 3], "", with_auth, &[]), "f.test:1 (credentials: file /site)");
    refuses(hop([None, Some("env:WHO"), None], "", with_auth, &[]), "the ceiling");
    let bare = "proxy = \"http://f.test:1\"";
    refuses(hop([None, None, Some("b.test")], "", bare, &[]), "the ceiling");
}

/// D10: `exeat check` does not look up targets that go through the proxy.
#[test]
fn d10_a_target_outside_the_bypass_list_goes_through_the_proxy() {
    let hop =
        NextHop { url: P.parse().unwrap(), bypass: Bypass::from_variable("corp.test").unwrap(), auth: None };
    let takes = |target: &str| hop.carries(&target.parse::<Target>().unwrap());
    assert!(takes("a.test:443") && !takes("a.corp.test:443") && !takes("localhost:443"));
}
