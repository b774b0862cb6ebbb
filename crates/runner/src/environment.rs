//! The stage's environment: nothing of the caller's but a list, then what clients need to find the proxy.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use exeat_contract::{CACHE, DENIALS, PROXY_PORT};

use crate::lists;
use crate::request::{Cache, EnvRule};

/// The variables of a stage, without `EXEAT_RUN_ID`, which the run adds.
pub(crate) fn build(
    host: &BTreeMap<OsString, OsString>,
    rules: &[EnvRule],
    cache: Cache,
    home: &Path,
) -> BTreeMap<OsString, OsString> {
    let mut env = BTreeMap::new();
    let passed = [lists::PASSED, lists::CERTIFICATES, lists::TOOLCHAIN_VARIABLES].concat();
    for name in passed {
        if let Some(value) = host.get(OsStr::new(name)) {
            env.insert(name.into(), value.clone());
        }
    }
    for (name, value) in
        [("HOME", home.as_os_str()), ("USER", "nobody".as_ref()), ("LOGNAME", "nobody".as_ref())]
    {
        env.insert(name.into(), value.to_owned());
    }
    env.insert("SHELL".into(), "/bin/sh".into());
    if cache == Cache::Private {
        for (name, dir) in lists::CACHES {
            let place = if dir.is_empty() { CACHE.into() } else { format!("{CACHE}/{dir}") };
            env.insert((*name).into(), place.into());
        }
        // CARGO_HOME moves away from where rustup's own settings are looked for.
        env.entry("RUSTUP_HOME".into()).or_insert_with(|| home.join(".rustup").into());
    }
    for rule in rules {
        match rule {
            EnvRule::Set(name, value) => {
                env.insert(name.clone(), value.clone());
            }
            EnvRule::Pass(name) => {
                if let Some(value) = host.get(name) {
                    env.insert(name.clone(), value.clone());
                }
            }
            EnvRule::Remove(name) => drop(env.remove(name)),
        }
    }
    // Last, so that nothing above points a client past the proxy. It would reach nothing: there is no other route.
    proxy(&mut env);
    env
}

fn proxy(env: &mut BTreeMap<OsString, OsString>) {
    let url = format!("http://127.0.0.1:{PROXY_PORT}");
    let names =
        ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "YARN_HTTP_PROXY", "YARN_HTTPS_PROXY"];
    for name in names {
        env.insert(name.into(), url.clone().into());
    }
    for name in ["NO_PROXY", "no_proxy"] {
        env.insert(name.into(), "localhost,127.0.0.1,::1".into());
    }
    let port = PROXY_PORT.to_string();
    let fixed = [
        ("NODE_USE_ENV_PROXY", "1"),
        ("CLOUDSDK_PROXY_TYPE", "http"),
        ("CLOUDSDK_PROXY_ADDRESS", "127.0.0.1"),
        ("CLOUDSDK_PROXY_PORT", &port),
        ("EXEAT", "1"),
        ("EXEAT_DENIALS", DENIALS),
    ];
    for (name, value) in fixed {
        env.insert(name.into(), value.into());
    }
    // The JVM reads no proxy variable but this one; it says so in a line on standard error.
    let java = format!(
        "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort={PROXY_PORT} -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={PROXY_PORT} \
         -Dhttp.nonProxyHosts=localhost|127.*|[::1]"
    );
    let value = match env.remove(OsStr::new("JAVA_TOOL_OPTIONS")) {
        Some(mut given) => {
            given.push(" ");
            given.push(java);
            given
        }
        None => java.into(),
    };
    env.insert("JAVA_TOOL_OPTIONS".into(), value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(pairs: &[(&str, &str)]) -> BTreeMap<OsString, OsString> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn get<'a>(env: &'a BTreeMap<OsString, OsString>, name: &str) -> Option<&'a str> {
        env.get(OsStr::new(name)).and_then(|value| value.to_str())
    }

    #[test]
    fn b31_what_the_caller_has_stays_with_the_caller() {
        let host = host(&[
            ("PATH", "/bin"),
            ("SSH_AUTH_SOCK", "/run/agent"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("NO_PROXY", "*"),
            ("DOCKER_HOST", "unix:///x"),
            ("NODE_TLS_REJECT_UNAUTHORIZED", "0"),
            ("ALL_PROXY", "socks5://x"),
        ]);
        let env = build(&host, &[], Cache::Private, Path::new("/home/u"));
        for name in [
            "SSH_AUTH_SOCK",
            "AWS_SECRET_ACCESS_KEY",
            "DOCKER_HOST",
            "NODE_TLS_REJECT_UNAUTHORIZED",
            "ALL_PROXY",
        ] {
            assert_eq!(get(&env, name), None, "{name}");
        }
        assert_eq!(get(&env, "NO_PROXY"), Some("localhost,127.0.0.1,::1"));
        assert_eq!(get(&env, "PATH"), Some("/bin"));
        assert_eq!(get(&env, "HOME"), Some("/home/u"));
    }

    #[test]
    fn rules_pass_and_set_in_order_but_never_the_proxy() {
        let rules = [
            EnvRule::Pass("TOKEN".into()),
            EnvRule::Set("TOKEN".into(), "b".into()),
            EnvRule::Pass("ABSENT".into()),
            EnvRule::Set("HTTPS_PROXY".into(), "http://elsewhere".into()),
            EnvRule::Set("JAVA_TOOL_OPTIONS".into(), "-Xmx1g".into()),
        ];
        let env = build(&host(&[("TOKEN", "a")]), &rules, Cache::None, Path::new("/"));
        assert_eq!(get(&env, "TOKEN"), Some("b"));
        assert_eq!(get(&env, "ABSENT"), None);
        assert_eq!(get(&env, "HTTPS_PROXY"), Some("http://127.0.0.1:3128"));
        assert!(
            get(&env, "JAVA_TOOL_OPTIONS").is_some_and(|value| value.starts_with("-Xmx1g -Dhttp.proxyHost"))
        );
        assert_eq!(get(&env, "XDG_CACHE_HOME"), None);
    }
}
