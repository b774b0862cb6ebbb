//! The key that signs a record: where it is, and that no stage reaches it. What is signed is `exeat-record`'s.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use exeat_files::users::home_of;
use exeat_files::walk::{LinkRule, WalkError};
use exeat_record::SigningKey;
use exeat_record::place::{self, Place};
use nix::unistd::geteuid;

use crate::error::Error;

/// What signs the record.
#[derive(Debug, Clone, Default)]
pub enum Signing {
    /// The user's own key, in the state directory: made on first use.
    #[default]
    Own,
    /// The key in this file: made on first use. It must not lie in a tree that the stage can write, and the stage cannot
    /// read it, whatever it is shown.
    File(PathBuf),
    /// This key.
    Key(SigningKey),
    /// Nothing: an end that was cut off, or lines that were written anew, are then not noticed.
    Off,
}

impl Signing {
    /// The file that holds the key, where one does.
    pub(crate) fn path(&self, place: Option<&Place>) -> Option<PathBuf> {
        match self {
            Self::Own => key_place(place).map(|place| place.key_path()),
            Self::File(path) => Some(path.clone()),
            Self::Key(_) | Self::Off => None,
        }
    }

    /// The key. One that is not there is not made: it would not be hidden from the stage.
    pub(crate) fn load(&self, place: Option<&Place>) -> Result<Option<SigningKey>, Error> {
        match self {
            Self::Off => Ok(None),
            Self::Key(key) => Ok(Some(key.clone())),
            Self::Own | Self::File(_) => {
                let path = self.path(place).ok_or(Error::Place(place::Error::NoHome))?;
                SigningKey::load(&path).map(Some).map_err(Error::Key)
            }
        }
    }

    /// Makes the key where it is missing.
    pub(crate) fn make(&self, place: Option<&Place>) -> Result<NewKey, Error> {
        if matches!(self, Self::Own) {
            let own = key_place(place).ok_or(Error::Place(place::Error::NoHome))?;
            own.prepare().map_err(Error::KeyPlace)?;
        }
        let Some(path) = self.path(place) else { return Ok(NewKey(None)) };
        let (key, is_new) = SigningKey::load_or_note_new(&path).map_err(Error::Key)?;
        // The user's own key is for every run, and others may have it already.
        Ok(NewKey((is_new && matches!(self, Self::File(_))).then_some((path, key))))
    }
}

/// A key file that was made for a run. It is removed again unless the run is planned: one that was refused leaves nothing, least of
/// all a private key in a tree that stages can write.
#[derive(Debug)]
#[must_use = "dropping it removes the key that was made"]
pub struct NewKey(Option<(PathBuf, SigningKey)>);

impl NewKey {
    /// Leaves the key where it is.
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

/// Where the own key is: in the state directory. Root with another user's HOME, as after `sudo -E`, has its own at home: that user
/// could take the one that root made there.
pub fn key_place(place: Option<&Place>) -> Option<Place> {
    let place = place?;
    let there = place.dir().ancestors().find_map(|dir| fs::metadata(dir).ok());
    let theirs = geteuid().is_root() && there.is_some_and(|meta| meta.uid() != 0);
    match theirs {
        false => Some(place.clone()),
        true => Place::from_env(None, Some(home_of(None).as_os_str())).ok(),
    }
}

/// Makes the key of a run where it is missing. Before the run is planned, so that the plan hides it. What it returns is to be kept once
/// the run is planned.
///
/// # Errors
/// [`Error::Key`] and [`Error::KeyPlace`], and [`Error::Place`] where there is no state directory.
pub fn prepare_key(signing: &Signing, host_env: &BTreeMap<OsString, OsString>) -> Result<NewKey, Error> {
    signing.make(state_place(host_env)?.as_ref())
}

/// Where a run with this environment keeps its record.
///
/// # Errors
/// [`Error::StrayLink`] where a link that a stage could have made leads there.
pub(crate) fn state_place(host_env: &BTreeMap<OsString, OsString>) -> Result<Option<Place>, Error> {
    let variable = |name: &str| host_env.get(OsStr::new(name)).map(OsString::as_os_str);
    let home = home_of(variable("HOME"));
    let place = Place::from_env(variable("XDG_STATE_HOME"), Some(home.as_os_str())).ok();
    if let Some(place) = &place {
        let links = LinkRule::new(&home, variable("XDG_RUNTIME_DIR").map(Path::new));
        // What else is wrong with the directory is said when it is used.
        if let Err(error @ WalkError::Link { .. }) = links.walk_existing(place.dir()) {
            return Err(Error::from_walk("the state directory", place.dir(), error));
        }
    }
    Ok(place)
}
