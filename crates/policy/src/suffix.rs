//! Knows which names belong to many owners, so that a wildcard below them grants strangers. It is used when a
//! policy loads, never for a decision.

use crate::name::HostName;

/// The reason why a wildcard below a name covers strangers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shared {
    /// The name is a public suffix, or one label: anyone can register below it.
    Public,
    /// The name is a platform that gives names or storage to anyone.
    Platform,
}

/// Names below which a platform gives names to anyone, and which the public suffix list lacks or lists only below.
/// The list has `s3.amazonaws.com`, so it does not stop `*.amazonaws.com` or `*.us-east-1.amazonaws.com`, which
/// both cover every bucket. A name below one of these is accepted again if the list says that it has one owner
/// (`bucket.s3.amazonaws.com`).
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

/// Whether `*.base` would cover names of several owners.
pub(crate) fn find_shared(base: &HostName) -> Option<Shared> {
    // A name one label below shows both an entry for `base` and a wildcard entry below it
    // (`*.compute.amazonaws.com`). In either case the child is only a suffix and one label. A single label is
    // always a suffix, listed or not.
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
    // The suffix is longer than the platform, so the list divides the platform above `base`, and `base` has one
    // owner.
    (suffix_len <= platform.len()).then_some(Shared::Platform)
}

/// Returns the suffix below which anyone can get such a name from a platform. Returns `None` for names that were
/// registered, because those have one owner.
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
        parent.parse::<HostName>().is_ok_and(|parent| find_shared(&parent) == Some(Shared::Platform))
    };
    name.parents().find(is_platform).map(str::to_owned)
}
