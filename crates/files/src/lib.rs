//! Host paths: where they lead, who may have made the links on the way, and which names are kept from a stage.
//!
//! Every host path that exeat takes from a flag, a file, a variable or the working directory passes through here before
//! anything of it is opened or mounted.
#![forbid(unsafe_code)]

mod bytes;
pub mod index;
pub mod names;
pub mod place;
pub mod protected;
pub mod quarantine;
pub mod removal;
pub mod request;
pub mod stubs;
pub mod users;
pub mod walk;
