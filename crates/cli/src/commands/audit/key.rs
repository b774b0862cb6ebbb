//! `exeat audit key`: the public half of the key that signs records.

use exeat_audit::SigningKey;
use exeat_audit::place::{self, Place};
use exeat_runner::Signing;

use super::{bad_place, place_of};
use crate::args::audit::KeyArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::machine::Machine;
use crate::request;
use crate::stdio;

/// Where the user's own key is.
pub(crate) fn own(place: &Place) -> Result<Place, Failure> {
    exeat_runner::key_place(Some(place)).ok_or(place::Error::NoHome).map_err(bad_place)
}

/// Prints it.
pub(crate) fn run(args: &KeyArgs) -> Result<Exit, Failure> {
    let machine = Machine::here()?;
    let bad = |error: exeat_audit::KeyError| Failure::from(exeat_runner::Error::Key(error));
    let key = match request::signing(args.audit_key.as_ref(), &machine)? {
        Signing::Key(key) => key,
        Signing::File(path) => SigningKey::load(&path).map_err(bad)?,
        Signing::Own => {
            let place = own(&place_of(&machine)?)?;
            place.prepare().map_err(bad_place)?;
            SigningKey::load_or_make(&place.key_path()).map_err(bad)?
        }
        Signing::Off => return Err(Failure::input("`--audit-key none` is no key")),
    };
    stdio::data(format!("{}\n", key.verifying()).as_bytes())?;
    Ok(Exit::Yes)
}
