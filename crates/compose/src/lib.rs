//! Composes policy files, flags, ceilings, effects, presets and a lock into one [`Composed`].
//!
//! The command and the library both use this crate, so that a stage has the same bounds whoever starts it. The crate reads the
//! files that decide about a run. It changes nothing but descriptor 0, and only for a policy on stdin. It starts no programs: the
//! caller asks the clients of presets through [`Services`].
#![forbid(unsafe_code)]

mod credentials;
mod declaration;
mod fault;
mod file_state;
mod flags;
mod layers;
mod load;
mod machine;
mod named;
mod project;
mod reading;
mod request;
mod services;
mod settings;
mod text;
mod upstream;
mod via;

pub use credentials::{AuthError, read_credentials_file, read_credentials_variable};
pub use fault::{Fault, Position};
pub use file_state::FileState;
pub use flags::{flag_faults, join_faults};
pub use load::{Composed, compose, compose_for_run, read_unnamed};
pub use machine::{Calls, Machine, PlaceError, descriptor_not_open};
pub use named::{PROJECT_FILE, parse, preset_fault};
pub use request::{Effects, EnvRule, PolicyRequest, Site};
pub use services::{Ask, Discovered, Services};
pub use settings::names_to_write;
pub use text::{POLICY_FILE, is_lock, read_lock, read_policy};
pub use upstream::NextHop;
