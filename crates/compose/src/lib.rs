//! Composes policy files, flags, ceilings, effects, presets and a lock into one [`Composed`].
//!
//! The command and the library both use this crate, so that a stage has the same bounds whoever starts it. The crate reads the
//! files that decide about a run. It changes nothing but descriptor 0, and only for a policy on stdin. It starts no programs: the
//! caller asks the clients of presets through [`Services`].
#![forbid(unsafe_code)]

mod credentials;
mod elsewhere;
mod fault;
mod layers;
mod load;
mod machine;
mod named;
mod project;
mod reading;
mod request;
mod said;
mod seen;
mod services;
mod text;
mod upstream;

pub use credentials::{AuthError, credentials_in, credentials_of};
pub use fault::{Fault, Place};
pub use load::{Composed, compose, standing};
pub use machine::{Machine, PlaceError, TakeFd, not_open};
pub use named::{PROJECT_FILE, from_preset, parse};
pub use request::{Effects, EnvRule, PolicyRequest, Site};
pub use said::names_to_write;
pub use seen::Seen;
pub use services::{Ask, Discovered, Services};
pub use text::{read_lock, read_policy};
pub use upstream::NextHop;
