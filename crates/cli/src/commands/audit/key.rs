//! `exeat audit key`: the public half of the key that signs records.

use std::io;

use exeat_policy::printable;
use exeat_record::place::{self, RecordDir};
use exeat_record::{KeyError, SigningKey};
use exeat_runner::Signing;

use super::{bad_place, place_of};
use crate::args::audit::KeyArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::request;
use crate::stdio;

/// Returns the directory of the user's key.
pub(crate) fn own(place: &RecordDir) -> Result<RecordDir, Failure> {
    exeat_runner::key_place(Some(place)).ok_or(place::DirError::NoHome).map_err(bad_place)
}

/// Prints the public half of the key.
pub(crate) fn run(args: &KeyArgs) -> Result<Exit, Failure> {
    let machine = crate::request::here()?;
    let bad = |error: exeat_record::KeyError| Failure::from(exeat_runner::Error::Key(error));
    let key = match request::signing(args.audit_key.as_ref(), &machine)? {
        Signing::Key(key) => key,
        Signing::File(path) => SigningKey::load(&path).map_err(bad)?,
        Signing::Own => {
            // A user who only verifies needs no signing key, so the key is loaded and never created.
            let path = own(&place_of(&machine)?)?.key_path();
            match SigningKey::load(&path) {
                Err(KeyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    let shown = printable(&path.display().to_string());
                    return Err(Failure::input(format!(
                        "there is no key `{shown}` yet: the first run makes it"
                    )));
                }
                loaded => loaded.map_err(bad)?,
            }
        }
        Signing::Off => return Err(Failure::input("`--audit-key none` is no key")),
    };
    stdio::data(format!("{}\n", key.verifying()).as_bytes())?;
    Ok(Exit::Yes)
}
