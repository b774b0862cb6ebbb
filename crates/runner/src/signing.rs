//! Manages the key that signs a record, and keeps it from every stage. `exeat-record` defines what is signed.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use exeat_files::fault::{FileFault, PathUse};
use exeat_files::users::{home_of, walk_home};
use exeat_files::walk::{LinkRule, WalkError};
use exeat_record::SigningKey;
use exeat_record::place::{self, RecordDir};
use nix::unistd::geteuid;

use crate::error::Error;

/// The signing of the record.
#[derive(Debug, Clone, Default)]
pub enum Signing {
    /// The user's own key in the state directory, made on first use.
    #[default]
    Own,
    /// The key in this file, made on first use. The file must not be in a tree that the stage can write, and is hidden from the stage.
    File(PathBuf),
    /// A key from the caller.
    Key(SigningKey),
    /// No signing: a cut end or rewritten lines are not noticed then.
    Off,
}

impl Signing {
    /// Returns the file of the key, if there is one.
    pub(crate) fn path(&self, place: Option<&RecordDir>) -> Option<PathBuf> {
        match self {
            Self::Own => key_place(place).map(|place| place.key_path()),
            Self::File(path) => Some(path.clone()),
            Self::Key(_) | Self::Off => None,
        }
    }

    /// Loads the key. A missing key is not made here because the stage could see it.
    pub(crate) fn load(&self, place: Option<&RecordDir>) -> Result<Option<SigningKey>, Error> {
        match self {
            Self::Off => Ok(None),
            Self::Key(key) => Ok(Some(key.clone())),
            Self::Own | Self::File(_) => {
                let path = self.path(place).ok_or(Error::Place(place::DirError::NoHome))?;
                SigningKey::load(&path).map(Some).map_err(Error::Key)
            }
        }
    }

    /// Makes the key if it is missing.
    pub(crate) fn make(&self, place: Option<&RecordDir>) -> Result<NewKey, Error> {
        if matches!(self, Self::Own) {
            let own = key_place(place).ok_or(Error::Place(place::DirError::NoHome))?;
            own.prepare().map_err(Error::KeyPlace)?;
        }
        let Some(path) = self.path(place) else { return Ok(NewKey(None)) };
        let (key, is_new) = SigningKey::load_or_make(&path).map_err(Error::Key)?;
        // The user's own key is for every run, and others may already use it.
        Ok(NewKey((is_new && matches!(self, Self::File(_))).then_some((path, key))))
    }
}

/// A key file that was made for a run. Dropping it removes the file unless the run is planned: a refused run must not leave a private key
/// in a tree that stages can write.
#[derive(Debug)]
#[must_use = "dropping it removes the key that was made"]
pub struct NewKey(Option<(PathBuf, SigningKey)>);

impl NewKey {
    /// Keeps the file.
    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for NewKey {
    fn drop(&mut self) {
        if let Some((path, key)) = self.0.take() {
            key.remove_new(&path);
        }
    }
}

/// Returns the state directory with the user's own key. Root with another user's HOME, as after `sudo -E`, uses root's own home: that
/// user could take a key that root made there.
pub fn key_place(place: Option<&RecordDir>) -> Option<RecordDir> {
    let place = place?;
    let there = place.dir().ancestors().find_map(|dir| fs::metadata(dir).ok());
    let theirs = geteuid().is_root() && there.is_some_and(|meta| meta.uid() != 0);
    match theirs {
        false => Some(place.clone()),
        true => RecordDir::from_env(None, Some(home_of(None).as_os_str())).ok(),
    }
}

/// Makes the key of a run if it is missing. Call it before planning, so that the plan hides the key, and keep the result once the run is
/// planned.
///
/// # Errors
/// Returns [`Error::Key`], [`Error::KeyPlace`], or [`Error::Place`] without a state directory.
pub fn prepare_key(signing: &Signing, host_env: &BTreeMap<OsString, OsString>) -> Result<NewKey, Error> {
    signing.make(Some(&state_place(host_env)?))
}

/// Returns where a run with this environment keeps its record.
///
/// # Errors
/// Returns [`FileFault::StrayLink`] if a link that a stage could have made leads there, or to HOME, and [`Error::Place`] without a place.
pub fn state_place(host_env: &BTreeMap<OsString, OsString>) -> Result<RecordDir, Error> {
    state_place_below(walk_home(host_env.get(OsStr::new("HOME")).map(OsString::as_os_str)), host_env)
}

/// Returns the [`state_place`] of a caller whose home directory is known: what [`walk_home`] has returned for it.
pub(crate) fn state_place_below(
    home: Result<PathBuf, (PathBuf, WalkError)>,
    host_env: &BTreeMap<OsString, OsString>,
) -> Result<RecordDir, Error> {
    let variable = |name: &str| host_env.get(OsStr::new(name)).map(OsString::as_os_str);
    let home = home.map_err(|(home, link)| FileFault::from_walk(PathUse::Home, &home, link))?;
    let place =
        RecordDir::from_env(variable("XDG_STATE_HOME"), Some(home.as_os_str())).map_err(Error::Place)?;
    let links = LinkRule::new(&home, variable("XDG_RUNTIME_DIR").map(Path::new));
    // Other errors of the directory are reported when it is used.
    if let Err(error @ WalkError::Link { .. }) = links.walk_existing(place.dir()) {
        return Err(FileFault::from_walk(PathUse::State, place.dir(), error).into());
    }
    Ok(place)
}
