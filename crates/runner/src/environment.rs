//! Builds the stage's environment: listed variables of the caller, then those that lead clients to the proxy.
//!
//! A run and every preview use the same function.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use exeat_compose::EnvRule;
use exeat_contract::{CACHE, DENIALS, PROXY_PORT, README, SOCKS5_PORT};
use exeat_files::request::{Bounds, WORK};
use exeat_files::users::home_of;
use exeat_policy::{Cache, Home};

use crate::request::Request;
use exeat_files::lists;
use exeat_files::view::scratch::TMP;

/// A variable of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// The name.
    pub name: OsString,
    /// The value, which can be a secret.
    pub value: OsString,
    /// The reason that the stage has it.
    pub why: VariableReason,
}

/// The reason that a stage has a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VariableReason {
    /// The variable is passed whenever the caller has it.
    Listed,
    /// The user asked to pass the variable.
    Passed,
    /// The user set the variable's value.
    Set,
    /// The variable leads a package manager to the private cache.
    Cache,
    /// The variable describes the stage's user or HOME.
    Identity,
    /// The variable leads a client to the proxy, or to the list of refusals.
    Proxy,
    /// The variable names the place of a toolchain, which the stage sees.
    Toolchain,
    /// The variable names certificates, which the stage sees.
    Certificate,
}

impl fmt::Display for VariableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Listed => "passed to every stage",
            Self::Passed => "passed by --env or the policy",
            Self::Set => "set by --env or the policy",
            Self::Cache => "private cache",
            Self::Identity => "identity",
            Self::Proxy => "proxy",
            Self::Toolchain => "toolchain",
            Self::Certificate => "certificates",
        })
    }
}

/// A variable of the caller that the stage lacks, although programs expect it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedVariable {
    /// The name.
    pub name: &'static str,
    /// The effect that it would have, such as `host socket`.
    pub why: &'static str,
}

/// The environment of a stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// The variables, by name. A run adds `EXEAT_RUN_ID`.
    pub variables: Vec<Variable>,
    /// Variables that are added or replaced in a run without a gateway.
    pub without_gateway: Vec<Variable>,
    /// Variables of the caller that lead around the sandbox or into the host. Other dropped ones are not listed.
    pub dropped: Vec<DroppedVariable>,
    /// Lines about variables that a ceiling refuses or that only exeat sets.
    pub notes: Vec<String>,
}

/// Builds the environment that the stage of a request would get.
#[must_use]
pub fn environment(request: &Request) -> Environment {
    let home = home_of(request.host_env.get(OsStr::new("HOME")).map(OsString::as_os_str));
    build(request, &stage_home(request, &home))
}

/// Builds the environment for a known HOME of the stage.
pub(crate) fn build(request: &Request, home: &Path) -> Environment {
    let Request { host_env: host, files, .. } = request;
    let mut notes = Vec::new();
    let rules = &expand(&request.env, host, &mut notes);
    let mut env = Variables::default();
    let passed = [
        (lists::PASSED, VariableReason::Listed),
        (lists::CERTIFICATES, VariableReason::Certificate),
        (lists::TOOLCHAIN_VARIABLES, VariableReason::Toolchain),
    ];
    for (names, why) in passed {
        for name in names {
            if let Some(value) = host.get(OsStr::new(name)) {
                env.set(name, value, why);
            }
        }
    }
    env.set("HOME", home, VariableReason::Identity);
    for (name, value) in [("USER", "nobody"), ("LOGNAME", "nobody"), ("SHELL", "/bin/sh")] {
        env.set(name, value, VariableReason::Identity);
    }
    if host.contains_key(OsStr::new(TMPDIR)) {
        env.set(TMPDIR, TMP, VariableReason::Identity);
    }
    if files.cache != Cache::None {
        for (name, dir) in lists::CACHES {
            let place = if dir.is_empty() { CACHE.into() } else { format!("{CACHE}/{dir}") };
            env.set(name, place, VariableReason::Cache);
        }
        for (name, value) in lists::NO_UPDATES {
            env.set(name, value, VariableReason::Cache);
        }
        let callers = match files.home {
            Home::Caller => home.to_path_buf(),
            Home::Private => home_of(host.get(OsStr::new("HOME")).map(OsString::as_os_str)),
        };
        // CARGO_HOME moves the place where rustup looks for its settings.
        if !env.0.contains_key(OsStr::new("RUSTUP_HOME")) {
            env.set("RUSTUP_HOME", callers.join(".rustup"), VariableReason::Toolchain);
        }
        let path = host.get(OsStr::new("PATH")).cloned().unwrap_or_default();
        for (name, dir) in lists::HOME_VARIABLES.iter().filter(|_| files.home == Home::Private) {
            let place = callers.join(dir);
            let is_on_path = std::env::split_paths(&path).any(|on_path| on_path.starts_with(&place));
            if is_on_path && !env.0.contains_key(OsStr::new(name)) {
                env.set(name, place, VariableReason::Toolchain);
            }
        }
    }
    for rule in rules {
        let (EnvRule::Set(name, _) | EnvRule::Pass(name) | EnvRule::Remove(name)) = rule;
        // No ceiling prevents removing a variable.
        let is_added = !matches!(rule, EnvRule::Remove(_));
        if let Some(bound) = files.bounds.iter().find(|bound| is_added && !allows(bound, name)) {
            let line =
                format!("the variable `{}` is left out: {} does not allow it", name.display(), bound.label());
            if !notes.contains(&line) {
                notes.push(line);
            }
            continue;
        }
        match rule {
            EnvRule::Set(name, value) => env.set(name, value, VariableReason::Set),
            // A stage with its own directory runs as nobody there, whoever the caller is.
            EnvRule::Pass(name) if files.work.is_some() && IDENTITY.iter().any(|known| name == known) => {}
            // The stage does not see the caller's directory; it uses /tmp.
            EnvRule::Pass(name) if name == TMPDIR => {}
            EnvRule::Pass(name) => {
                if let Some(value) = host.get(name) {
                    env.set(name, value, VariableReason::Passed);
                }
            }
            EnvRule::Remove(name) => drop(env.0.remove(name)),
        }
    }
    // The proxy's variables come last, so that no rule leads a client elsewhere. The proxy is the only route.
    proxy(&mut env, request.socks5);
    let java = java_value(env.0.get(OsStr::new(JAVA_OPTIONS)).map(|(given, _)| given.as_os_str()));
    let java = Variable { name: JAVA_OPTIONS.into(), value: java, why: VariableReason::Proxy };
    let mut without_gateway = Vec::new();
    if request.may_have_gateway() {
        without_gateway.push(java);
    } else {
        env.set(JAVA_OPTIONS, java.value, java.why);
    }
    env.0.remove(OsStr::new(RUN_ID));
    for rule in rules {
        let (EnvRule::Set(name, _) | EnvRule::Pass(name)) = rule else { continue };
        let is_ours = env.0.get(name).is_some_and(|(_, why)| *why == VariableReason::Proxy) || name == RUN_ID;
        // The caller's value of this variable is kept, followed by exeat's.
        let line = format!("the variable `{}` stays exeat's own", name.display());
        if is_ours && name != JAVA_OPTIONS && !notes.contains(&line) {
            notes.push(line);
        }
    }
    notes.extend(env.0.iter().filter_map(|(name, (value, why))| {
        let port = loopback_port(value.to_str()?).filter(|_| *why == VariableReason::Passed)?;
        let is_served = request.host_ports.iter().any(|served| served.inner.get() == port);
        (!is_served).then(|| {
            let name = name.display();
            format!("`{name}` names port {port} of this machine, which the stage does not reach: --host-port {port}")
        })
    }));
    let is_dropped =
        |name: &str| host.contains_key(OsStr::new(name)) && !env.0.contains_key(OsStr::new(name));
    let dropped = lists::DROPPED.iter().filter(|(name, _)| is_dropped(name));
    let dropped = dropped.map(|(name, why)| DroppedVariable { name, why }).collect();
    let variables = env.0.into_iter().map(|(name, (value, why))| Variable { name, value, why });
    Environment { variables: variables.collect(), without_gateway, dropped, notes }
}

/// Replaces a rule with a `*` at its end by one for each variable that matches. Variables that lead into the host or around the sandbox,
/// and exeat's own, are passed only by their whole name.
fn expand(rules: &[EnvRule], host: &BTreeMap<OsString, OsString>, notes: &mut Vec<String>) -> Vec<EnvRule> {
    let mut all = Vec::new();
    for rule in rules {
        let pattern = match rule {
            EnvRule::Pass(name) => name.as_bytes().strip_suffix(b"*").map(|prefix| (name, prefix)),
            _ => None,
        };
        let Some((pattern, prefix)) = pattern else {
            all.push(rule.clone());
            continue;
        };
        let pattern = pattern.display();
        for name in host.keys().filter(|name| name.as_bytes().starts_with(prefix)) {
            let held = lists::DROPPED.iter().find(|(held, _)| name == held).map(|(_, why)| *why);
            let is_in = |names: &[&str]| names.iter().any(|known| name == known);
            let held = held.or_else(|| is_in(&IDENTITY).then_some("the stage has its own"));
            let held = held.or_else(|| is_in(lists::JOB_TOKENS).then_some("a token of the job"));
            match held {
                Some(why) => {
                    notes.push(format!("`{}` is not passed by `{pattern}`: {why}", name.display()));
                }
                None => all.push(EnvRule::Pass(name.clone())),
            }
        }
    }
    all
}

/// Returns the port of a URL whose host is the machine's loopback.
fn loopback_port(url: &str) -> Option<u16> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let place = authority.rsplit('@').next()?;
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (place, if scheme == "https" { 443 } else { 80 }),
    };
    let is_address = |host: &str| host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let is_loopback = host.eq_ignore_ascii_case("localhost") || is_address(host.trim_matches(['[', ']']));
    is_loopback.then_some(port)
}

/// The variable that contains the run's id, which only a run knows.
pub(crate) const RUN_ID: &str = "EXEAT_RUN_ID";

/// The variable that names the directory of temporary files.
const TMPDIR: &str = "TMPDIR";

/// Variables that describe the stage's user.
const IDENTITY: [&str; 3] = ["HOME", "USER", "LOGNAME"];

fn allows(bound: &Bounds, name: &OsStr) -> bool {
    let is_it = |known: &OsString| match known.as_bytes().strip_suffix(b"*") {
        Some(prefix) => name.as_bytes().starts_with(prefix),
        None => known == name,
    };
    bound.env.as_ref().is_none_or(|names| names.iter().any(is_it))
}

#[derive(Default)]
struct Variables(BTreeMap<OsString, (OsString, VariableReason)>);

impl Variables {
    fn set(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>, why: VariableReason) {
        self.0.insert(name.as_ref().to_owned(), (value.as_ref().to_owned(), why));
    }
}

fn proxy(env: &mut Variables, socks5: bool) {
    let url = format!("http://127.0.0.1:{PROXY_PORT}");
    let names =
        ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "YARN_HTTP_PROXY", "YARN_HTTPS_PROXY"];
    for name in names {
        env.set(name, &url, VariableReason::Proxy);
    }
    if socks5 {
        // With `h` the proxy resolves names, because the sandbox has no name server.
        for name in ["ALL_PROXY", "all_proxy"] {
            env.set(name, format!("socks5h://127.0.0.1:{SOCKS5_PORT}"), VariableReason::Proxy);
        }
    }
    for name in ["NO_PROXY", "no_proxy"] {
        env.set(name, "localhost,127.0.0.1,::1", VariableReason::Proxy);
    }
    let port = PROXY_PORT.to_string();
    let fixed = [
        ("NODE_USE_ENV_PROXY", "1"),
        ("CLOUDSDK_PROXY_TYPE", "http"),
        ("CLOUDSDK_PROXY_ADDRESS", "127.0.0.1"),
        ("CLOUDSDK_PROXY_PORT", &port),
        ("EXEAT", README),
        ("EXEAT_DENIALS", DENIALS),
    ];
    for (name, value) in fixed {
        env.set(name, value, VariableReason::Proxy);
    }
}

/// The only variable that tells a JVM about a proxy. Each JVM reports it on standard error, so it is not set if a gateway serves JVMs.
const JAVA_OPTIONS: &str = "JAVA_TOOL_OPTIONS";

/// Returns its value, after the given one.
fn java_value(given: Option<&OsStr>) -> OsString {
    let java = format!(
        "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort={PROXY_PORT} -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={PROXY_PORT} \
         -Dhttp.nonProxyHosts=localhost|127.*|[::1]"
    );
    match given {
        Some(given) => {
            let mut given = given.to_owned();
            given.push(" ");
            given.push(java);
            given
        }
        None => java.into(),
    }
}

/// Returns the stage's HOME, unless a rule sets another one. `home` is the caller's.
pub(crate) fn stage_home(request: &Request, home: &Path) -> PathBuf {
    match request.files.work {
        _ if request.files.home == Home::Private => exeat_contract::HOME.into(),
        Some(_) => WORK.into(),
        None => home.to_path_buf(),
    }
}

/// Returns the trees that variables name: those of the caller, and those that were set.
pub(crate) fn named_trees(environment: &Environment) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let names = [lists::TOOLCHAIN_VARIABLES, lists::CERTIFICATES].concat();
    let variables = environment.variables.iter();
    let naming = variables.filter(|variable| names.iter().any(|name| variable.name == *name));
    let (asked, own): (Vec<_>, Vec<_>) = naming.partition(|variable| variable.why == VariableReason::Set);
    let paths =
        |list: Vec<&Variable>| list.into_iter().map(|variable| PathBuf::from(&variable.value)).collect();
    (paths(own), paths(asked))
}

/// Returns the certificates for a stage in a work directory that may reach a host. Its view has no `/etc`, but programs expect
/// certificates there.
pub(crate) fn certificates(request: &Request, environment: &Environment) -> Vec<PathBuf> {
    let nowhere = request.policy.is_empty() && request.via.is_none();
    if request.files.work.is_none() || nowhere {
        return Vec::new();
    }
    let naming = environment.variables.iter();
    let naming = naming.filter(|variable| lists::CERTIFICATES.iter().any(|name| variable.name == *name));
    lists::TRUST.iter().map(PathBuf::from).chain(naming.map(|it| PathBuf::from(&it.value))).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use exeat_policy::PolicyBuilder;

    use super::*;

    use exeat_files::request::{Files, WorkDir};

    fn request(host: &[(&str, &str)], rules: &[EnvRule], files: Files) -> Request {
        Request {
            command: vec!["true".into()],
            cwd: "/".into(),
            policy: PolicyBuilder::new().build(),
            files,
            env: rules.to_vec(),
            host_env: host.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            tty: exeat_policy::Tty::Off,
            transparent: exeat_policy::Transparent::Off,
            signing: crate::signing::Signing::Off,
            ..Request::default()
        }
    }

    #[test]
    fn a_passed_url_of_the_machine_s_loopback_needs_a_host_port() {
        for (url, port) in [
            ("http://127.0.0.1:8080/v1", Some(8080)),
            ("postgres://u:p@localhost:5432/db", Some(5432)),
            ("https://LOCALHOST", Some(443)),
            ("http://[::1]:9?x", Some(9)),
            ("http://[::1]/", Some(80)),
            ("http://127.0.0.1.example.com:80", None),
            ("http://example.com/?u=http://localhost:1", None),
            ("http://localhost:x", None),
            ("localhost:80", None),
            ("é://é", None),
        ] {
            assert_eq!(loopback_port(url), port, "{url}");
        }
        let notes = |rule: EnvRule, ports: &[&str]| {
            let mut request =
                request(&[("API_BASE_URL", "http://localhost:8080")], &[rule], Files::default());
            request.host_ports = ports.iter().map(|port| port.parse().unwrap()).collect();
            build(&request, Path::new("/home/u")).notes
        };
        let line = "`API_BASE_URL` names port 8080 of this machine, which the stage does not reach: --host-port 8080";
        assert_eq!(notes(EnvRule::Pass("API_BASE_URL".into()), &[]), [line]);
        assert_eq!(notes(EnvRule::Pass("API_BASE_URL".into()), &["8080"]), [""; 0]);
        let set = EnvRule::Set("API_BASE_URL".into(), "http://localhost:8080".into());
        assert_eq!(notes(set, &[]), [""; 0], "the stage may serve it itself");
    }

    #[test]
    fn a_pattern_passes_matching_variables_except_withheld_ones() {
        let host = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_NTASKS", "2"),
            ("SLURMD", "x"),
            ("SSH_AUTH_SOCK", "/run/agent"),
            ("SSH_TTY", "/dev/pts/1"),
            ("LD_PRELOAD", "x.so"),
            ("LD_LIBRARY_PATH", "/x"),
            ("HOME", "/root"),
            ("HTTPS_PROXY", "http://elsewhere"),
            ("SLURM_JWT", "secret"),
        ];
        let rules =
            ["SLURM_*", "SSH_*", "LD_*", "HO*", "HTTPS_*", "NONE_*"].map(|it| EnvRule::Pass(it.into()));
        let env = build(&request(&host, &rules, Files::default()), Path::new("/home/u"));
        for (name, value) in [
            ("SLURM_JOB_ID", Some("7")),
            ("SLURM_NTASKS", Some("2")),
            ("SLURMD", None),
            ("SLURM_JWT", None),
            ("SSH_AUTH_SOCK", None),
            ("SSH_TTY", Some("/dev/pts/1")),
            ("LD_PRELOAD", None),
            ("LD_LIBRARY_PATH", Some("/x")),
            ("HOME", Some("/home/u")),
            ("HTTPS_PROXY", Some("http://127.0.0.1:3128")),
        ] {
            assert_eq!(get(&env, name), value, "{name}");
        }
        for line in [
            "`SSH_AUTH_SOCK` is not passed by `SSH_*`: host socket",
            "`LD_PRELOAD` is not passed by `LD_*`: loads code of the host's",
            "`HOME` is not passed by `HO*`: the stage has its own",
            "`SLURM_JWT` is not passed by `SLURM_*`: a token of the job",
        ] {
            assert!(env.notes.iter().any(|note| note == line), "{line}: {:?}", env.notes);
        }
        // A ceiling bounds each name, and can contain a pattern itself.
        let bound = |list: &[&str]| {
            let env = Some(list.iter().map(Into::into).collect());
            let files = Files { bounds: vec![Bounds { env, ..Bounds::default() }], ..Files::default() };
            let env = build(&request(&host, &rules, files), Path::new("/home/u"));
            ["SLURM_JOB_ID", "SLURM_NTASKS"].map(|name| get(&env, name).is_some())
        };
        assert_eq!(bound(&["SLURM_JOB_ID"]), [true, false]);
        assert_eq!(bound(&["SLURM_*"]), [true, true]);
        assert_eq!(bound(&[]), [false, false]);
    }

    fn get<'a>(env: &'a Environment, name: &str) -> Option<&'a str> {
        env.variables.iter().find(|variable| variable.name == name)?.value.to_str()
    }

    fn why(env: &Environment, name: &str) -> Option<VariableReason> {
        env.variables.iter().find(|variable| variable.name == name).map(|variable| variable.why)
    }

    /// K41.
    #[test]
    fn b31_passes_only_the_listed_variables_of_the_caller() {
        let host = [
            ("PATH", "/bin"),
            ("SSH_AUTH_SOCK", "/run/agent"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("NO_PROXY", "*"),
            ("DOCKER_HOST", "unix:///x"),
            ("NODE_TLS_REJECT_UNAUTHORIZED", "0"),
            ("ALL_PROXY", "socks5://x"),
            ("FTP_PROXY", "x"),
        ];
        let env = build(&request(&host, &[], Files::default()), Path::new("/home/u"));
        for name in [
            "SSH_AUTH_SOCK",
            "AWS_SECRET_ACCESS_KEY",
            "DOCKER_HOST",
            "NODE_TLS_REJECT_UNAUTHORIZED",
            "ALL_PROXY",
            "FTP_PROXY",
        ] {
            assert_eq!(get(&env, name), None, "{name}");
            let is_said = env.dropped.iter().any(|dropped| dropped.name == name);
            assert_eq!(is_said, name != "AWS_SECRET_ACCESS_KEY", "{name}");
        }
        assert_eq!(env.dropped.len(), 5, "what the caller lacks is not said: {:?}", env.dropped);
        assert_eq!(get(&env, "NO_PROXY"), Some("localhost,127.0.0.1,::1"));
        assert_eq!(get(&env, "PATH"), Some("/bin"));
        assert_eq!(get(&env, "HOME"), Some("/home/u"));
        let passed = [EnvRule::Pass("SSH_AUTH_SOCK".into())];
        let env = build(&request(&host, &passed, Files::default()), Path::new("/home/u"));
        assert!(env.dropped.iter().all(|dropped| dropped.name != "SSH_AUTH_SOCK"), "it was asked for");
    }

    /// K31.
    #[test]
    fn rules_pass_and_set_in_order_but_never_the_proxy() {
        let rules = [
            EnvRule::Pass("TOKEN".into()),
            EnvRule::Set("TOKEN".into(), "b".into()),
            EnvRule::Pass("ABSENT".into()),
            EnvRule::Set("HTTPS_PROXY".into(), "http://elsewhere".into()),
            EnvRule::Set("JAVA_TOOL_OPTIONS".into(), "-Xmx1g".into()),
        ];
        let files = Files { cache: Cache::None, ..Files::default() };
        let env = build(&request(&[("TOKEN", "a")], &rules, files), Path::new("/"));
        assert_eq!(get(&env, "TOKEN"), Some("b"));
        assert_eq!(get(&env, "ABSENT"), None);
        assert_eq!(get(&env, "HTTPS_PROXY"), Some("http://127.0.0.1:3128"));
        assert!(
            get(&env, "JAVA_TOOL_OPTIONS").is_some_and(|value| value.starts_with("-Xmx1g -Dhttp.proxyHost"))
        );
        assert_eq!(get(&env, "XDG_CACHE_HOME"), None);
    }

    /// N11, N20, K10, K41.
    #[test]
    fn each_variable_says_why_it_is_there() {
        let host =
            [("LANG", "C"), ("CI", "1"), ("SSL_CERT_FILE", "/ca"), ("JAVA_HOME", "/jvm"), ("TZ", "UTC")];
        let rules = [EnvRule::Pass("CI".into()), EnvRule::Set("TZ".into(), "CET".into())];
        let env = build(&request(&host, &rules, Files::default()), Path::new("/home/u"));
        for (name, expected) in [
            ("LANG", VariableReason::Listed),
            ("CI", VariableReason::Passed),
            ("TZ", VariableReason::Set),
            ("GOCACHE", VariableReason::Cache),
            ("USER", VariableReason::Identity),
            ("https_proxy", VariableReason::Proxy),
            ("JAVA_HOME", VariableReason::Toolchain),
            ("SSL_CERT_FILE", VariableReason::Certificate),
        ] {
            assert_eq!(why(&env, name), Some(expected), "{name}");
        }
        assert!(env.variables.is_sorted_by(|a, b| a.name < b.name));
    }

    /// K40: the caller cannot set the proxy's variables, and a note says so.
    #[test]
    fn the_proxy_s_variables_stay_as_they_are() {
        let set = |name: &str| EnvRule::Set(name.into(), "x".into());
        let environment = environment(&request(
            &[],
            &[set("HTTPS_PROXY"), set("EXEAT_RUN_ID"), set("JAVA_TOOL_OPTIONS")],
            Files::default(),
        ));
        assert_eq!(
            environment.notes,
            ["the variable `HTTPS_PROXY` stays exeat's own", "the variable `EXEAT_RUN_ID` stays exeat's own"]
        );
        assert!(environment.variables.iter().all(|variable| variable.name != "EXEAT_RUN_ID"));
    }

    /// K37, K40: these variables exist only with SOCKS5, and then the caller cannot set them.
    #[test]
    fn k37_all_proxy_is_there_with_socks5_alone() {
        let rules = [EnvRule::Set("ALL_PROXY".into(), "socks5://elsewhere".into())];
        let mut request = request(&[("all_proxy", "socks5://x")], &rules, Files::default());
        let without = environment(&request);
        assert_eq!(
            (get(&without, "ALL_PROXY"), get(&without, "all_proxy")),
            (Some("socks5://elsewhere"), None)
        );
        request.socks5 = true;
        let with = environment(&request);
        for name in ["ALL_PROXY", "all_proxy"] {
            assert_eq!(
                (get(&with, name), why(&with, name)),
                (Some("socks5h://127.0.0.1:1080"), Some(VariableReason::Proxy))
            );
        }
        assert_eq!(
            get(&with, "HTTPS_PROXY"),
            Some("http://127.0.0.1:3128"),
            "first where a client knows both"
        );
        assert_eq!(with.notes, ["the variable `ALL_PROXY` stays exeat's own"]);
    }

    /// K13: every ceiling must allow each variable that is passed or set.
    #[test]
    fn k13_a_ceiling_leaves_out_variables_that_it_does_not_name() {
        let bound = |name: &str, env: &[&str]| Bounds {
            name: name.into(),
            env: Some(env.iter().map(OsString::from).collect()),
            ..Bounds::default()
        };
        let rules = [
            EnvRule::Pass("CI".into()),
            EnvRule::Set("TOKEN".into(), "x".into()),
            EnvRule::Set("LANG".into(), "de".into()),
            EnvRule::Set("BOTH".into(), "y".into()),
            EnvRule::Remove("TERM".into()),
        ];
        let bounds = vec![bound("site.toml", &["CI", "BOTH"]), bound("user.toml", &["TOKEN", "BOTH"])];
        let files = Files { bounds, ..Files::default() };
        let env =
            build(&request(&[("CI", "1"), ("LANG", "C"), ("TERM", "dumb")], &rules, files), Path::new("/"));
        assert_eq!((get(&env, "CI"), get(&env, "TOKEN"), get(&env, "BOTH")), (None, None, Some("y")));
        assert_eq!(get(&env, "LANG"), Some("C"), "the standard list is not asked");
        assert_eq!(get(&env, "TERM"), None, "taken away");
        assert_eq!(env.notes.len(), 3, "{:?}", env.notes);
        assert!(env.notes.iter().any(|note| note.contains("`CI`") && note.contains("user.toml")));
    }

    /// N17: a stage with its own directory runs as nobody, whatever it is passed.
    #[test]
    fn n17_home_is_the_work_directory_and_the_user_is_nobody() {
        let host = [("HOME", "/home/u"), ("USER", "u"), ("NIX_PATH", "x")];
        let rules = ["HOME", "USER", "NIX_PATH"].map(|name| EnvRule::Pass(name.into()));
        let files = Files { work: Some(WorkDir::Host(PathBuf::from("/srv/job"))), ..Files::default() };
        let env = environment(&request(&host, &rules, files));
        assert_eq!((get(&env, "HOME"), get(&env, "USER")), (Some("/work"), Some("nobody")));
        assert_eq!(get(&env, "NIX_PATH"), Some("x"));
        let env = environment(&request(&host, &rules, Files::default()));
        assert_eq!(get(&env, "USER"), Some("u"), "asked for");
    }
}
