//! Checks the upstream proxy of a run against the ceilings.

use exeat_policy::{Admitted, Day, Policy, Target, Vetted};
use exeat_proxy::AddressCheckError;

use crate::error::Error;

/// Checks that every ceiling of the policy that bounds upstream proxies allows this one. A literal address is judged here; what
/// a name resolves to is judged when the proxy is dialed.
///
/// # Errors
/// [`Error::UpstreamDenied`].
pub(crate) fn check_ceilings(policy: &Policy, proxy: &Target, today: Day) -> Result<(), Error> {
    let denied = |why: String| Error::UpstreamDenied { proxy: proxy.clone(), why };
    let admitted = policy.admit_upstream(proxy.clone(), today);
    match admitted.map_err(|denial| denied(denial.said_outside()))? {
        // A literal address needs no lookup, so this does not wait.
        Some(admitted) if proxy.host.ip().is_some() => match check_addresses(admitted) {
            Ok(_) => Ok(()),
            Err(AddressCheckError::Denied(denial)) => Err(denied(denial.said_outside())),
            Err(AddressCheckError::Failed(why)) => Err(denied(why)),
        },
        _ => Ok(()),
    }
}

/// Resolves and judges the addresses of an admitted target like the proxy of a run. Blocks until it has an answer.
///
/// # Errors
/// Returns [`AddressCheckError`] if policy denies an address, or no answer is usable.
pub fn check_addresses(admitted: Admitted) -> Result<Vetted, AddressCheckError> {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(exeat_proxy::check_addresses(admitted)),
        Err(error) => Err(AddressCheckError::Failed(format!("no runtime: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use exeat_compose::{Machine, PolicyRequest, compose};

    use crate::discover::Clients;

    /// The error for an upstream proxy under these ceilings, or an empty text.
    fn judged(proxy: &str, ceilings: &[&str]) -> String {
        let dir = std::env::temp_dir().join(format!("upstream-{}", std::process::id()));
        let env = BTreeMap::from([("XDG_CONFIG_HOME".into(), dir.clone().into())]);
        let file = |(at, text): (usize, &&str)| {
            let dir = dir.join(at.to_string());
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("ceiling.toml"), text).unwrap();
            dir.join("ceiling.toml")
        };
        let ceiling = ceilings.iter().enumerate().map(file).collect();
        let request =
            PolicyRequest { upstream_proxy: Some(proxy.into()), ceiling, ..PolicyRequest::default() };
        let machine = Machine::new(dir.clone(), env, crate::CALLS);
        let composed = compose(&request, &machine, &Clients { say: &|_| {} });
        fs::remove_dir_all(&dir).unwrap();
        composed.map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn l15_every_ceiling_that_speaks_about_hosts_allows_the_upstream_proxy() {
        let allow = |rules: &str| format!("[network]\nallow = [{rules}]");
        for (proxy, rules) in [
            ("http://p.test:8080", r#""p.test:8080""#),
            ("http://X.p.test.:8080/", r#""*.p.test:*""#),
            ("http://10.1.2.3:8080", r#""10.0.0.0/8:8080""#),
            ("http://127.0.0.1:8080", r#""127.0.0.1:8080""#),
            ("http://[fd00::1]:8080", r#""[fd00::/8]:8080""#),
            ("http://93.184.215.14:8080", r#""0.0.0.0/0:8080""#),
        ] {
            assert_eq!(judged(proxy, &[&allow(rules)]), "", "{proxy} {rules}");
            let two = judged(proxy, &[&allow(rules), &allow(r#""a.test""#)]);
            assert!(two.contains("ceiling.toml does not allow"), "{proxy}: {two}");
        }
        for (proxy, rules) in [
            ("http://evil.test:8080", r#""granted.test:8080""#),
            ("http://p.test:8080", r#""p.test""#),
            ("http://p.test:8080", r#""p.test:8080", "!p.test:8080""#),
            ("http://p.test:8080", ""),
            ("http://10.1.2.3:8080", r#""0.0.0.0/0:*", "10.0.0.0/7:*", "10.1.2.3:443""#),
            ("http://127.0.0.1:8080", r#""0.0.0.0/0:*", "localhost:*""#),
            ("http://[::1]:8080", r#""127.0.0.1:8080", "[::/0]:*""#),
            ("http://[::ffff:10.1.2.3]:8080", r#""10.1.2.3:8080", "[::/0]:*""#),
            ("http://169.254.169.254:80", r#""0.0.0.0/0:*""#),
            ("http://0.0.0.0:80", r#""0.0.0.0/8:*", "0.0.0.0:*""#),
        ] {
            let said = judged(proxy, &[&allow(rules)]);
            assert!(said.contains("not within the ceilings"), "{proxy} {rules}: {said}");
        }
        // A ceiling that names the proxy bounds it itself, and one without `[network]` does not bound hosts.
        for ceiling in ["[network.upstream]\nproxy = \"http://p.test:8080\"", "[limits]\ntimeout = \"1h\""] {
            assert_eq!(judged("http://p.test:8080", &[ceiling]), "", "{ceiling}");
        }
    }
}
