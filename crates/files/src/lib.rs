//! The stage's view of the host's files, and its bounds: turns a request into the pieces of a file tree.
//!
//! Every host path that exeat takes from a flag, a file, a variable or the working directory passes through here before
//! anything of it is opened or mounted: where it leads, and who may have made the links on the way.
#![forbid(unsafe_code)]

pub mod bounds;
mod bytes;
pub mod fault;
mod git_config;
mod git_path;
pub mod index;
pub mod layout;
mod listing;
pub mod lists;
pub mod names;
pub mod permissions;
pub mod place;
pub mod protected;
pub mod quarantine;
pub mod removal;
pub mod request;
pub mod stubs;
pub mod unseen;
pub mod users;
pub mod view;
pub mod walk;
pub mod ways;
