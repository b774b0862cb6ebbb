//! Reads the credentials for an upstream proxy from the file or the variable that holds them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use exeat_files::walk::LinkRule;
use exeat_policy::{Credentials, CredentialsError, MAX_CREDENTIALS};
use nix::libc;

/// The reason that credentials cannot be read. It never contains the credentials.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The file cannot be read.
    #[error("cannot read the credentials in `{}`", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The path is not a regular file.
    #[error("the credentials must be in a regular file, and `{}` is not one", .0.display())]
    NoFile(PathBuf),
    /// Other users may read or change the file.
    #[error("`{}` contains credentials, and users other than its owner may use it (mode {mode:04o})", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file belongs to another user.
    #[error("`{}` contains credentials, and belongs to another user", .0.display())]
    Foreign(PathBuf),
    /// The variable is not set.
    #[error("the variable `{0}` is not set")]
    Unset(String),
    /// The text is not `user:password`.
    #[error("{0}")]
    Shape(#[from] CredentialsError),
}

impl AuthError {
    /// Returns the command that fixes the error, if there is one.
    #[must_use]
    pub fn fix(&self) -> Option<String> {
        match self {
            Self::Open { path, .. } => Some(format!("chmod 600 {}", path.display())),
            _ => None,
        }
    }
}

/// Reads credentials from a file of the user's or of root's that nobody else may read or write.
///
/// # Errors
/// Returns an [`AuthError`] where the file is missing or other users may use it.
pub fn read_credentials_file(path: &Path) -> Result<Credentials, AuthError> {
    let read = |source| AuthError::Read { path: path.to_path_buf(), source };
    // A pipe without a writer must not block.
    let end = LinkRule::from_env().walk(path).map_err(|error| read(error.into()))?;
    let at = format!("/proc/self/fd/{}", end.file.as_raw_fd());
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(at).map_err(read)?;
    let meta = file.metadata().map_err(read)?;
    if !meta.is_file() {
        return Err(AuthError::NoFile(path.to_path_buf()));
    }
    if meta.uid() != nix::unistd::geteuid().as_raw() && meta.uid() != 0 {
        return Err(AuthError::Foreign(path.to_path_buf()));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(AuthError::Open { path: path.to_path_buf(), mode: meta.mode() & 0o7777 });
    }
    let mut text = Vec::new();
    // Three bytes more than fit (a line end and one more): text that is too long is refused, not cut.
    let most = u64::try_from(MAX_CREDENTIALS).unwrap_or(u64::MAX).saturating_add(3);
    file.take(most).read_to_end(&mut text).map_err(read)?;
    Ok(Credentials::parse(&text)?)
}

/// Reads credentials from a variable of the caller.
///
/// # Errors
/// Returns an [`AuthError`] where it is not set or does not hold `user:password`.
pub fn read_credentials_variable(
    name: &str,
    host_env: &BTreeMap<OsString, OsString>,
) -> Result<Credentials, AuthError> {
    let value = host_env.get(OsStr::new(name)).ok_or_else(|| AuthError::Unset(name.to_owned()))?;
    Ok(Credentials::parse(value.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A03: a file that others may read or change is refused, and no error contains the secret.
    #[test]
    fn a03_a_file_of_credentials_is_its_owners_alone() {
        let dir = std::env::temp_dir().join(format!("exeat-auth-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("auth");
        fs::write(&path, "user:hunter2\n").unwrap();
        for (mode, fits) in
            [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false), (0o601, false)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = read_credentials_file(&path);
            assert_eq!(read.is_ok(), fits, "{mode:o} {read:?}");
            assert!(!format!("{read:?}").contains("hunter2"));
            if let Err(error) = read {
                assert!(matches!(error, AuthError::Open { .. }), "{error:?}");
                assert_eq!(error.fix().unwrap(), format!("chmod 600 {}", path.display()));
            }
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for text in ["", "hunter2", "user:hunter2\nmore\n", &"u:".repeat(MAX_CREDENTIALS)] {
            fs::write(&path, text).unwrap();
            let error = read_credentials_file(&path).unwrap_err();
            assert!(
                matches!(error, AuthError::Shape(_)) && !error.to_string().contains("hunter2"),
                "{error}"
            );
        }
        let pipe = dir.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(read_credentials_file(&pipe), Err(AuthError::NoFile(_))));
        assert!(matches!(read_credentials_file(&dir), Err(AuthError::NoFile(_))));
        assert!(matches!(read_credentials_file(&dir.join("absent")), Err(AuthError::Read { .. })));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn credentials_are_read_from_a_variable() {
        let env: BTreeMap<OsString, OsString> =
            [("GOOD", "user:hunter2"), ("BAD", "hunter2")].map(|(k, v)| (k.into(), v.into())).into();
        assert_eq!(
            read_credentials_variable("GOOD", &env).unwrap(),
            Credentials::parse(b"user:hunter2").unwrap()
        );
        assert!(matches!(read_credentials_variable("BAD", &env), Err(AuthError::Shape(_))));
        assert!(matches!(read_credentials_variable("NONE", &env), Err(AuthError::Unset(_))));
    }
}
