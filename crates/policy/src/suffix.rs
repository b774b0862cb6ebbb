//! Which names belong to many owners at once, so that a wildcard below them grants strangers.
//! Used when a policy loads, never to decide about a connection.

use crate::name::HostName;

/// Why a wildcard below a name covers strangers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shared {
    /// A public suffix, or one label: anyone can register below it.
    Public,
    /// A platform that gives names or storage to anyone.
    Platform,
}

/// Names above entries of the public suffix list, or missing from it, below which a platform hands out
/// names to anyone who signs up. The list says `s3.amazonaws.com`, so it does not stop `*.amazonaws.com`
/// or `*.us-east-1.amazonaws.com`: both cover every bucket. A name below one of these is fine again once
/// the list says that it has one owner (`bucket.s3.amazonaws.com`).
const PLATFORMS: &[&str] = &[
    "akamai.net",
    "akamaihd.net",
    "akamaized.net",
    "aliyuncs.com",
    "amazonaws.com",
    "amazonaws.com.cn",
    "api.aws",
    "azure-api.net",
    "azurefd.net",
    "backblazeb2.com",
    "cloudapp.azure.com",
    "cloudflarestorage.com",
    "digitaloceanspaces.com",
    "edgekey.net",
    "edgesuite.net",
    "fastly.net",
    "googleapis.com",
    "linodeobjects.com",
    "myqcloud.com",
    "oraclecloud.com",
    "trafficmanager.net",
    "wasabisys.com",
    "windows.net",
];

/// Whether `*.base` would cover names of more than one owner.
pub(crate) fn shared(base: &HostName) -> Option<Shared> {
    // A name one label below shows both an entry for `base` and a wildcard entry below it
    // (`*.compute.amazonaws.com`): in either case the child is no more than a suffix and one label.
    // A single label is always a suffix, listed or not.
    let probe = format!("x.{base}");
    let suffix = psl::suffix(probe.as_bytes());
    let suffix_len = suffix.map_or(0, |suffix| suffix.as_bytes().len());
    if suffix_len >= base.as_str().len() {
        let private = suffix.and_then(|suffix| suffix.typ()) == Some(psl::Type::Private);
        return Some(if private { Shared::Platform } else { Shared::Public });
    }
    let platform = PLATFORMS
        .iter()
        .find(|platform| base.as_str() == **platform || base.parents().any(|parent| parent == **platform))?;
    // Longer than the platform itself: the list splits the platform above `base`, so `base` has one owner.
    (suffix_len <= platform.len()).then_some(Shared::Platform)
}

/// The suffix below which this name lies and anyone can get one, where a platform hands them out. `None` for names that
/// somebody had to register: those have one owner.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let of = |name: &str| Ok::<_, exeat_policy::NameError>(exeat_policy::platform_of(&name.parse()?));
/// assert_eq!(of("somebody.github.io")?.as_deref(), Some("github.io"));
/// assert_eq!(of("storage.googleapis.com")?.as_deref(), Some("googleapis.com"));
/// assert_eq!(of("api.example.com")?, None);
/// # Ok(())
/// # }
/// ```
pub fn platform_of(name: &HostName) -> Option<String> {
    let is_platform = |parent: &&str| {
        parent.parse::<HostName>().is_ok_and(|parent| shared(&parent) == Some(Shared::Platform))
    };
    name.parents().find(is_platform).map(str::to_owned)
}
