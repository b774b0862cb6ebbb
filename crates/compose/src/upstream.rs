//! Finds the upstream proxy of a command line in flags, variables, files and ceilings. Credentials are read only before they are
//! used.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use exeat_policy::file::{SET, UpstreamSection};
use exeat_policy::{
    Action, AuthSpec, Bypass, Credentials, Policy, Target, UpstreamFault, UpstreamUrl, printable,
};

use crate::credentials::{read_credentials_file, read_credentials_variable};
use crate::fault::Fault;
use crate::machine::{Machine, PlaceError};
use crate::named::{LoadedFile, differ, place_error};

/// The variables that name the proxy and the targets that bypass it. The first one that is set and not empty applies.
const PROXY_VARIABLES: [&str; 2] = ["https_proxy", "HTTPS_PROXY"];
const BYPASS_VARIABLES: [&str; 2] = ["no_proxy", "NO_PROXY"];

/// An upstream proxy that connections go through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextHop {
    url: UpstreamUrl,
    bypass: Option<Bypass>,
    auth: Option<Auth>,
}

/// The source of the proxy's credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Auth {
    File(PathBuf),
    Env(String),
    /// The variable that names the proxy contains them.
    Inline(Credentials),
}

impl NextHop {
    /// Leaves all but `bypass` to the proxy at `url`.
    #[must_use]
    pub fn new(url: UpstreamUrl, bypass: &Bypass, credentials: Option<Credentials>) -> Self {
        let bypass = (!bypass.is_empty()).then(|| bypass.clone());
        Self { url, bypass, auth: credentials.map(Auth::Inline) }
    }

    /// Returns where the proxy listens.
    #[must_use]
    pub fn url(&self) -> &UpstreamUrl {
        &self.url
    }

    /// Returns the targets that do not go through the proxy.
    #[must_use]
    pub fn bypass(&self) -> Bypass {
        self.bypass.clone().unwrap_or_default()
    }

    pub(crate) fn target(&self) -> &Target {
        self.url.target()
    }

    /// Reads the credentials for the proxy.
    ///
    /// # Errors
    /// Returns a [`Fault`] where the credentials are missing, or other users may read them.
    pub fn credentials(&self, env: &BTreeMap<OsString, OsString>) -> Result<Option<Credentials>, Fault> {
        let read = match &self.auth {
            None => Ok(None),
            Some(Auth::File(path)) => read_credentials_file(path).map(Some),
            Some(Auth::Env(name)) => read_credentials_variable(name, env).map(Some),
            Some(Auth::Inline(credentials)) => Ok(Some(credentials.clone())),
        };
        read.map_err(|error| {
            let fix = error.fix();
            let fault = Fault::input("the upstream proxy's credentials").because(error);
            match fix {
                Some(fix) => fault.hint(fix),
                None => fault,
            }
        })
    }

    /// Returns the file that holds the credentials: no stage may see it.
    pub fn secret_file(&self) -> Option<&Path> {
        match &self.auth {
            Some(Auth::File(path)) => Some(path),
            _ => None,
        }
    }

    /// Returns the variable that holds the credentials: no stage may have it.
    pub fn secret_variable(&self) -> Option<&str> {
        match &self.auth {
            Some(Auth::Env(name)) => Some(name),
            _ => None,
        }
    }

    /// Describes the proxy: `proxy.corp.example:3128 (credentials: file /p; directly: *.corp.example)`.
    pub fn description(&self) -> String {
        let mut more = Vec::new();
        match &self.auth {
            None => {}
            Some(Auth::File(path)) => more.push(format!("credentials: file {}", path.display())),
            Some(Auth::Env(name)) => more.push(format!("credentials: variable {name}")),
            Some(Auth::Inline(_)) => more.push("credentials: of the variable".to_owned()),
        }
        if let Some(bypass) = self.bypass.as_ref().filter(|bypass| !bypass.is_empty()) {
            more.push(format!("directly: {bypass}"));
        }
        let place = self.url.target();
        if more.is_empty() { place.to_string() } else { format!("{place} ({})", more.join("; ")) }
    }

    /// Returns whether a target goes through the proxy.
    pub fn carries(&self, target: &Target) -> bool {
        !self.bypass().covers(target)
    }

    /// Returns the deny rules for addresses: they do not apply to names that the proxy resolves.
    pub fn weakened_rules(policy: &Policy) -> impl Iterator<Item = &exeat_policy::Rule> {
        policy.rules().iter().filter(|rule| rule.action == Action::Deny && rule.pattern.net().is_some())
    }

    fn from_section(
        url: UpstreamUrl,
        section: &UpstreamSection,
        base: &Path,
        shown: &str,
        machine: &Machine,
    ) -> Result<Self, Fault> {
        let auth = match &section.auth {
            None => None,
            Some(spec) => Some(
                place(spec, base, machine)
                    .map_err(|error| place_error(shown, None, "network.upstream.auth", error))?,
            ),
        };
        Ok(Self { url, bypass: section.bypass.clone(), auth })
    }

    /// Returns whether this agrees with everything that a ceiling sets.
    fn is_within(&self, ceiling: &Self) -> bool {
        let same_auth = ceiling.auth.is_none() || self.auth.is_none() || self.auth == ceiling.auth;
        let none = Bypass::default();
        let of = |hop: &Self| hop.bypass.clone().unwrap_or_else(|| none.clone()).entries();
        self.url == ceiling.url && same_auth && (self.bypass.is_none() || of(self) == of(ceiling))
    }

    /// Replaces what the ceiling sets, and keeps the rest.
    fn with_ceiling(self, ceiling: &Self) -> Self {
        Self { bypass: ceiling.bypass.clone(), auth: ceiling.auth.clone().or(self.auth), ..self }
    }
}

fn place(spec: &AuthSpec, base: &Path, machine: &Machine) -> Result<Auth, PlaceError> {
    Ok(match spec {
        AuthSpec::File(path) => Auth::File(machine.place(path, base)?),
        AuthSpec::Env(name) => Auth::Env(name.clone()),
    })
}

/// Finds the next hop and adds lines about how it was found. `given` is a parsed hop or the text of `--upstream-proxy`; `set` is
/// the section from `--set`.
pub(crate) fn next_hop(
    given: (Option<&NextHop>, Option<&str>),
    set: Option<&UpstreamSection>,
    files: &[LoadedFile],
    ceilings: &[LoadedFile],
    machine: &Machine,
    notes: &mut Vec<String>,
) -> Result<Option<NextHop>, Fault> {
    let bound = common_hop(ceilings, machine)?;
    let filed = common_hop(files, machine)?;
    let bare = |url| NextHop { url, bypass: None, auth: None };
    let with_set = |hop| with_set(hop, set, machine).map(Requested::Hop);
    let wanted = match (given, set.and_then(|set| set.proxy.clone())) {
        ((Some(hop), _), _) => Requested::Hop(hop.clone()),
        ((None, Some("none")), _) => {
            if set.is_some() {
                return Err(Fault::input("`--upstream-proxy none` has no credentials and no exceptions"));
            }
            Requested::None
        }
        ((None, Some("env")), _) => match from_variables(machine, notes)? {
            Some(hop) => with_set(hop)?,
            None => Requested::None,
        },
        // A file's settings for another proxy do not apply, least of all its credentials.
        ((None, Some(url)), _) => {
            with_set(bare(url.parse().map_err(|fault| url_fault("--upstream-proxy", &fault))?))?
        }
        ((None, None), Some(url)) => with_set(bare(url))?,
        ((None, None), None) => {
            match filed.map(|(hop, _)| hop).or_else(|| bound.as_ref().map(|(hop, _)| hop.clone())) {
                Some(hop) => with_set(hop)?,
                None if set.is_some() => {
                    return Err(Fault::input("there is no upstream proxy to apply `network.upstream` to")
                        .hint("--upstream-proxy http://HOST:PORT, or env"));
                }
                None => Requested::Unset,
            }
        }
    };
    match (wanted, bound) {
        (Requested::Hop(hop), None) => Ok(Some(hop)),
        (Requested::Hop(hop), Some((ceiling, _))) if hop.is_within(&ceiling) => {
            Ok(Some(hop.with_ceiling(&ceiling)))
        }
        (Requested::Hop(_) | Requested::None, Some((ceiling, shown))) => Err(Fault::input(format!(
            "the ceiling {} sets the upstream proxy {}, and another one is asked for",
            printable(&shown),
            printable(&ceiling.description())
        ))
        .hint("leave it out: the ceiling's holds")),
        // The ceiling's own hop was chosen above.
        (Requested::None | Requested::Unset, _) => Ok(None),
    }
}

/// The requested next hop.
enum Requested {
    Hop(NextHop),
    /// The caller asked for no proxy.
    None,
    Unset,
}

/// Returns the hop that these files name, with the name of one of the files.
fn common_hop(files: &[LoadedFile], machine: &Machine) -> Result<Option<(NextHop, String)>, Fault> {
    let mut found: Option<(NextHop, String)> = None;
    for LoadedFile { file, base, shown, .. } in files {
        let Some(section) = &file.upstream else { continue };
        let Some(url) = section.proxy.clone() else { continue };
        let hop = NextHop::from_section(url, section, base, shown, machine)?;
        match &found {
            Some((known, first)) if *known != hop => {
                return Err(differ(first, shown, "the upstream proxy"));
            }
            _ => found = Some((hop, shown.clone())),
        }
    }
    Ok(found)
}

/// Adds the settings of `--set` to a proxy that another source names.
fn with_set(hop: NextHop, set: Option<&UpstreamSection>, machine: &Machine) -> Result<NextHop, Fault> {
    let Some(set) = set else { return Ok(hop) };
    let said = NextHop::from_section(hop.url.clone(), set, &machine.base, SET, machine)?;
    Ok(NextHop { auth: said.auth.or(hop.auth), bypass: said.bypass.or(hop.bypass), ..hop })
}

/// Reports a faulty URL without repeating the text, which can contain a password.
fn url_fault(what: &str, fault: &UpstreamFault) -> Fault {
    let failure = Fault::input(format!("`{what}`: {fault}"));
    match fault {
        UpstreamFault::Userinfo => failure
            .hint("--set network.upstream.auth=file:PATH or env:NAME says where they are; here others could read them"),
        UpstreamFault::Shape | UpstreamFault::NoPort => {
            failure.hint(format!("{what} http://proxy.example:3128"))
        }
        _ => failure,
    }
}

/// Returns the proxy of the caller's own variables.
fn from_variables(machine: &Machine, notes: &mut Vec<String>) -> Result<Option<NextHop>, Fault> {
    let Some((name, text)) = variable(&PROXY_VARIABLES, machine)? else {
        notes.push(
            "--upstream-proxy env: neither https_proxy nor HTTPS_PROXY is set, so there is none".into(),
        );
        return Ok(None);
    };
    let (url, credentials) = UpstreamUrl::from_variable(text).map_err(|fault| url_fault(name, &fault))?;
    let credentials = credentials.map(|credentials| Credentials::parse(&credentials)).transpose();
    let credentials = credentials.map_err(|error| Fault::input(format!("`{name}`")).because(error))?;
    let bypass = match variable(&BYPASS_VARIABLES, machine)? {
        None => None,
        Some((list, text)) => match Bypass::from_variable(text) {
            Ok(Some(bypass)) => Some(bypass),
            Ok(None) => {
                notes.push(format!(
                    "--upstream-proxy env: `{list}` is `*`, so everything is reached directly"
                ));
                return Ok(None);
            }
            Err(error) => {
                let failure = Fault::input(format!("`{list}`")).because(error);
                return Err(failure.hint("--set network.upstream.bypass=[...] takes its place"));
            }
        },
    };
    Ok(Some(NextHop { url, bypass, auth: credentials.map(Auth::Inline) }))
}

/// Returns the first of these variables that is set and not empty.
fn variable<'a>(
    names: &[&'static str],
    machine: &'a Machine,
) -> Result<Option<(&'static str, &'a str)>, Fault> {
    let set = |name: &&'static str| {
        let value = machine.env.get(OsStr::new(name)).filter(|value| !value.is_empty())?;
        Some((*name, value))
    };
    match names.iter().find_map(set) {
        None => Ok(None),
        Some((name, value)) => match value.to_str() {
            Some(text) => Ok(Some((name, text))),
            None => Err(Fault::input(format!("`{name}` is not UTF-8"))),
        },
    }
}

#[cfg(test)]
mod tests;
