//! The requests to the helper process of [`super::inside`], by their first byte. A mount request begins with its path instead.

/// Enters the network namespace; the next byte tells whether to open it.
pub(super) const NETWORK: u8 = b'n';
/// Makes a listener on an address.
pub(super) const LISTEN: u8 = b'l';
/// Enters the mount namespace.
pub(super) const MOUNTS: u8 = b'm';
/// Reports what has happened to a file.
pub(super) const STATUS: u8 = b'?';
/// Mounts the file that has a kept name now.
pub(super) const MOUNT_ANEW: u8 = b'=';
/// Makes a mount and those below it read-only; the path follows.
pub(super) const SEAL: u8 = b'!';
