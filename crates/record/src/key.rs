//! The keys that sign a record's checkpoints, and those that check them: Ed25519 (RFC 8032).
//!
//! Says nothing about what is signed. A private key is PKCS#8 in PEM (RFC 8410), which `openssl genpkey -algorithm ed25519`
//! makes as well; a public one is a *vkey*, as C2SP's signed notes write it: `NAME+ID+KEY`.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{geteuid, linkat};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject as _;
use sha2::{Digest as _, Sha256};

use crate::{file, hex};

/// The name of all keys of exeat in signed notes.
pub const KEY_NAME: &str = "exeat-audit";

/// The kind of a key that is Ed25519, in signed notes.
const ED25519_KIND: u8 = 1;

/// PKCS#8 of an Ed25519 key, up to its 32 bytes (RFC 8410 section 7).
const PKCS8: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// SubjectPublicKeyInfo of an Ed25519 key, up to its 32 bytes (RFC 8410 section 4).
const SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The most bytes that the text of a key has.
const MAX_KEY: u64 = 16 * 1024;
/// Milliseconds for which the next bytes of a pipe are waited for.
const PATIENCE_MS: u16 = 5000;

/// A key that signs. Its private part is never printed.
#[derive(Clone)]
pub struct SigningKey {
    pair: Arc<Ed25519KeyPair>,
    public: VerifyingKey,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public)
    }
}

impl SigningKey {
    /// Reads a key from PKCS#8 in PEM.
    ///
    /// # Errors
    /// [`KeyError::NotAKey`] for anything else. No part of the text is in the error.
    pub fn from_pem(text: &str) -> Result<SigningKey, KeyError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes()).map_err(|_| KeyError::NotAKey)?;
        SigningKey::from_der(der.secret_pkcs8_der())
    }

    fn from_der(der: &[u8]) -> Result<SigningKey, KeyError> {
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(|_| KeyError::NotAKey)?;
        let public = pair.public_key().as_ref().try_into().map_err(|_| KeyError::NotAKey)?;
        Ok(SigningKey { pair: Arc::new(pair), public: VerifyingKey { name: KEY_NAME.into(), public } })
    }

    /// Makes a new key, and its text.
    fn generate() -> Result<(SigningKey, String), KeyError> {
        let mut der = [0; 48];
        let (head, seed) = der.split_at_mut(PKCS8.len());
        head.copy_from_slice(&PKCS8);
        SystemRandom::new().fill(seed).map_err(|_| KeyError::NoRandomness)?;
        let key = SigningKey::from_der(&der)?;
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", BASE64.encode(der));
        Ok((key, pem))
    }

    /// Reads the key in a file, which must belong to this user or root, and which nobody else may read.
    ///
    /// # Errors
    /// If the file cannot be read, is not a key, or others may read or replace it.
    pub fn load(path: &Path) -> Result<SigningKey, KeyError> {
        let at = |source| KeyError::Io { path: path.to_owned(), source };
        let file =
            OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).map_err(at)?;
        let meta = file.metadata().map_err(at)?;
        // Also for a named pipe, which another user could have put there.
        if !meta.is_dir() && !meta.file_type().is_char_device() {
            let owned = meta.uid() == geteuid().as_raw() || meta.uid() == 0;
            if !owned || meta.mode() & 0o077 != 0 {
                return Err(KeyError::Exposed { path: path.to_owned() });
            }
        }
        // Views hide the key from a stage by one name only.
        if meta.is_file() && meta.nlink() > 1 {
            return Err(KeyError::Linked { path: path.to_owned() });
        }
        let mut text = String::new();
        file.take(MAX_KEY).read_to_string(&mut text).map_err(at)?;
        SigningKey::from_pem(&text).map_err(|_| KeyError::NotAKeyAt { path: path.to_owned() })
    }

    /// Reads the key in a file, or makes one there with mode 0600, and its vkey in a file with the suffix `.pub`. Returns the key, and
    /// whether it is new. If two processes do so at the same time, both get the key of the first.
    ///
    /// # Errors
    /// Fails as [`SigningKey::load`] does, or if the files cannot be written.
    pub fn load_or_make(path: &Path) -> Result<(SigningKey, bool), KeyError> {
        match SigningKey::load(path) {
            Err(KeyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            loaded => {
                let key = loaded?;
                // A full disk may have left it empty.
                let beside = path.with_extension("pub");
                if fs::symlink_metadata(&beside).is_ok_and(|meta| meta.is_file() && meta.len() == 0) {
                    let _ = fs::remove_file(&beside);
                    key.write_public(&beside);
                }
                return Ok((key, false));
            }
        }
        let (key, pem) = SigningKey::generate()?;
        let at = |source| KeyError::Io { path: path.to_owned(), source };
        match create_private(path, pem.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return SigningKey::load(path).map(|key| (key, false));
            }
            made => made.map_err(at)?,
        }
        // For people who check records elsewhere; `exeat audit key` prints the same.
        key.write_public(&path.with_extension("pub"));
        Ok((key, true))
    }

    /// Writes the vkey to a new file. Without it, `exeat audit key` still prints it.
    fn write_public(&self, path: &Path) {
        let _ = write_new(path, 0o644, format!("{}\n", self.public).as_bytes());
    }

    /// Removes what [`SigningKey::load_or_make`] has made for this key.
    pub fn remove_new(&self, path: &Path) {
        let beside = path.with_extension("pub");
        // A `.pub` file that existed before belongs to somebody else.
        if fs::read_to_string(&beside).is_ok_and(|text| text == format!("{}\n", self.public)) {
            let _ = fs::remove_file(beside);
        }
        let _ = fs::remove_file(path);
    }

    /// Returns the key that checks the signatures of this one.
    pub fn verifying(&self) -> &VerifyingKey {
        &self.public
    }

    /// Returns whether this key has signed `text`. Signs it again, which takes half the time of checking: the same key and text have
    /// the same signature (RFC 8032 section 5.1.6). Another implementation may make a different signature, which is then checked.
    pub(crate) fn has_signed(&self, text: &[u8], signature: &[u8]) -> bool {
        // The time of the comparison does not depend on the key's own signature.
        let own = self.sign(text);
        let differs = own.iter().zip(signature).fold(0, |differs, (own, other)| differs | (own ^ other));
        (signature.len() == own.len() && differs == 0) || self.public.has_signed(text, signature)
    }

    pub(crate) fn sign(&self, text: &[u8]) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (to, from) in bytes.iter_mut().zip(self.pair.sign(text).as_ref()) {
            *to = *from;
        }
        bytes
    }
}

/// Makes a file that only its owner may read, complete or not at all, and never over another one. The file never has another name, because
/// views hide the key from a stage by this one.
pub(crate) fn create_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let nameless = OpenOptions::new().write(true).mode(0o600).custom_flags(OFlag::O_TMPFILE.bits()).open(dir);
    let mut file = match nameless {
        Ok(file) => file,
        // Some file systems have no files without a name (open(2), "O_TMPFILE"). There it is written under its own name.
        Err(error)
            if matches!(
                error.raw_os_error().map(Errno::from_raw),
                Some(Errno::EOPNOTSUPP | Errno::EISDIR)
            ) =>
        {
            return write_new(path, 0o600, bytes).inspect_err(|error| {
                if error.kind() != io::ErrorKind::AlreadyExists {
                    // A part of a key is useless.
                    let _ = fs::remove_file(path);
                }
            });
        }
        Err(error) => return Err(error),
    };
    file.write_all(bytes)?;
    file.sync_data()?;
    let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(AT_FDCWD, nameless.as_str(), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)?;
    Ok(())
}

fn write_new(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_data()
}

/// A key that checks signatures. Its text form is a vkey.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyingKey {
    name: String,
    public: [u8; 32],
}

impl VerifyingKey {
    /// Returns the four bytes by which a signed note tells keys apart: the first of the SHA-256 over the name, a line feed, the
    /// kind and the key.
    pub fn id(&self) -> [u8; 4] {
        let digest: [u8; 32] = Sha256::new()
            .chain_update(&self.name)
            .chain_update([b'\n', ED25519_KIND])
            .chain_update(self.public)
            .finalize()
            .into();
        let [a, b, c, d, ..] = digest;
        [a, b, c, d]
    }

    /// Returns [`VerifyingKey::id`] as eight hexadecimal digits.
    pub fn key_id(&self) -> String {
        hex(&self.id())
    }

    /// Returns the key's name in signed notes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the private half of this key has signed `text`.
    pub fn has_signed(&self, text: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.public).verify(text, signature).is_ok()
    }

    /// Reads all keys in a text: vkeys, one a line (`#` starts a comment), or one public key in PEM, as `openssl pkey -pubout` writes it.
    ///
    /// # Errors
    /// [`KeyError::NotAVerifyingKey`] at the first line that is not a key, and for a text without a key.
    pub fn parse_all(text: &str) -> Result<Vec<VerifyingKey>, KeyError> {
        if text.trim_start().starts_with("-----BEGIN PUBLIC KEY-----") {
            let body: String =
                text.lines().map(str::trim).filter(|line| !line.starts_with("-----")).collect();
            let der = BASE64.decode(body).map_err(|_| KeyError::NotAVerifyingKey)?;
            let public = der.strip_prefix(&SPKI).and_then(|key| key.try_into().ok());
            let public = public.ok_or(KeyError::NotAVerifyingKey)?;
            return Ok(vec![VerifyingKey { name: KEY_NAME.into(), public }]);
        }
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let keys = lines.map(str::parse).collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() { Err(KeyError::NotAVerifyingKey) } else { Ok(keys) }
    }

    /// Reads the keys in a file, which may hold several.
    ///
    /// # Errors
    /// If the file cannot be read, or does not hold keys.
    pub fn load(path: &Path) -> Result<Vec<VerifyingKey>, KeyError> {
        let at = |source| KeyError::Io { path: path.to_owned(), source };
        let file =
            OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).map_err(at)?;
        VerifyingKey::read(path, Waiting(file))
    }

    /// Reads the keys in exeat's own file, which must be a regular one.
    ///
    /// # Errors
    /// Fails as [`VerifyingKey::load`] does.
    pub fn load_own(path: &Path) -> Result<Vec<VerifyingKey>, KeyError> {
        let file = file::open(path).map_err(|source| KeyError::Io { path: path.to_owned(), source })?;
        VerifyingKey::read(path, file)
    }

    fn read(path: &Path, file: impl Read) -> Result<Vec<VerifyingKey>, KeyError> {
        let at = |source| KeyError::Io { path: path.to_owned(), source };
        let mut text = String::new();
        file.take(MAX_KEY).read_to_string(&mut text).map_err(at)?;
        VerifyingKey::parse_all(&text).map_err(|_| KeyError::NotAVerifyingKeyAt { path: path.to_owned() })
    }
}

/// Waits for the bytes of a pipe, which may be empty as yet (`--key <(...)`). One without a writer has ended.
struct Waiting(File);

impl Read for Waiting {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], PollTimeout::from(PATIENCE_MS))?;
        self.0.read(bytes)
    }
}

impl fmt::Display for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut key = vec![ED25519_KIND];
        key.extend(self.public);
        write!(f, "{}+{}+{}", self.name, self.key_id(), BASE64.encode(key))
    }
}

impl FromStr for VerifyingKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<VerifyingKey, KeyError> {
        let parts = || {
            let (name, rest) = text.split_once('+')?;
            let (id, key) = rest.split_once('+')?;
            let [ED25519_KIND, public @ ..] = &BASE64.decode(key).ok()?[..] else { return None };
            let named = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
            let key = VerifyingKey { name: name.to_owned(), public: public.try_into().ok()? };
            (named && key.key_id() == id).then_some(key)
        };
        parts().ok_or(KeyError::NotAVerifyingKey)
    }
}

/// The reason why a key could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what their names say")]
pub enum KeyError {
    /// The kernel refused.
    #[error("cannot use the key `{}`", .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Another user can read or replace the key.
    #[error("the key `{}` is not for its owner alone: it must be yours, with mode 0600", .path.display())]
    Exposed { path: PathBuf },
    /// The key's file has a second name.
    #[error("the key `{}` has another name (a hard link), which is hidden from no stage: remove that", .path.display())]
    Linked { path: PathBuf },
    /// The text is not a private key.
    #[error("not a private Ed25519 key in PEM (`openssl genpkey -algorithm ed25519`)")]
    NotAKey,
    /// The file does not hold a private key.
    #[error("`{}` is not a private Ed25519 key in PEM (`openssl genpkey -algorithm ed25519`)", .path.display())]
    NotAKeyAt { path: PathBuf },
    /// The text is not a public key.
    #[error("not a vkey (NAME+ID+KEY), nor a public Ed25519 key in PEM: `exeat audit key` prints yours")]
    NotAVerifyingKey,
    /// The file does not hold public keys.
    #[error("`{}` holds something else than vkeys (NAME+ID+KEY) or a public Ed25519 key in PEM: `exeat audit key` prints yours", .path.display())]
    NotAVerifyingKeyAt { path: PathBuf },
    /// The kernel gave no random bytes.
    #[error("the kernel gives no random bytes")]
    NoRandomness,
}

#[cfg(test)]
mod tests;
