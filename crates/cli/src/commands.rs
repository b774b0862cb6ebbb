//! The commands, one file for each.

pub(crate) mod audit;
pub(crate) mod check;
pub(crate) mod doctor;
pub(crate) mod env;
pub(crate) mod generate;
pub(crate) mod learn;
mod not_found;
pub(crate) mod policy;
pub(crate) mod preset;
pub(crate) mod prove;
pub(crate) mod proxy;
pub(crate) mod run;
pub(crate) mod state;
