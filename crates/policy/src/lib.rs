//! Decides what a stage may reach: names, rules and verdicts.
//!
//! This crate does **not** resolve names, open sockets, read files or clocks. It receives text and addresses, and
//! returns values. A [`Target`] is a parsed request. An [`Admitted`] is a target that the rules grant. A [`Vetted`]
//! is one whose addresses were checked too. A [`Denial`] is a refusal with its reason. Only a [`Policy`] creates
//! the last three.
//!
//! ```
//! use exeat_policy::{Action, Day, Note, Origin, OwnAddrs, PolicyBuilder, Reason, Target};
//!
//! let mut rules = PolicyBuilder::new();
//! let flag = || Origin::Flag { flag: "--allow".into() };
//! rules.add("*.example.com", Action::Allow, flag(), Note::default())?;
//! let policy = rules.build();
//! let today = Day::from_unix(1_795_000_000);
//!
//! let admitted = policy.admit(Target::parse(b"api.example.com:443")?, today).map_err(|d| d.to_string())?;
//! let vetted = admitted.vet(&["93.184.215.14".parse()?], &OwnAddrs::default()).map_err(|d| d.to_string())?;
//! assert_eq!(vetted.addrs().len(), 1);
//!
//! let Err(denial) = policy.admit(Target::parse(b"example.com:443")?, today) else { panic!() };
//! assert_eq!(denial.reason(), Reason::Default);
//! assert_eq!(denial.flag().as_deref(), Some("--allow example.com"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod addr;
mod day;
mod decision;
pub mod effect;
mod escape;
pub mod file;
mod gateway;
mod grammar;
mod host_port;
mod limits;
mod name;
mod pattern;
mod policy;
mod port;
pub mod preset;
mod reason;
mod rule;
mod sandbox;
pub mod schema;
mod stored;
mod suffix;
mod target;
mod terms;
mod upstream;
mod words;

pub use addr::{AddrClass, Embedding, OwnAddrs, classify};
pub use day::{Day, DayError};
pub use decision::{Admitted, BudgetKey, Decision, Denial, Entrusted, Grant, MAX_ADDRS, Vetted};
pub use effect::{Effect, EffectKind, EffectSet};
pub use escape::{os_words, printable, printable_ascii, shell_word};
pub use file::{FileError, FileRole, PolicyFile, View};
pub use gateway::{MAX_ADDRESSES, MAX_LITERALS, MAX_PORTS, Unserved, WELL_KNOWN};
pub use grammar::{Allowances, RuleError, RuleFault, RuleSpec};
pub use host_port::{HostPort, HostPortError};
pub use ipnet::IpNet;
pub use limits::{
    LEAST_AUDIT_SIZE, LEAST_MEMORY, LEAST_OPEN_FILES, Limit, LimitError, Limits, MAX_CONNECTIONS, Size, Span,
    memory_meant, parse_age,
};
pub use name::{HostName, MAX_LABEL, MAX_NAME, NameError, NameFault};
pub use pattern::HostPattern;
pub use policy::{
    Change, ChangeKind, Effective, EffectiveRule, Excess, Layer, Layers, Lint, Policy, PolicyBuilder, Remark,
    Role,
};
pub use port::{Port, PortError, PortSet};
pub use reason::{Reason, RuleEffect, Verdict};
pub use rule::{Action, Note, Origin, Pattern, Rule, RuleId, TlsCheck};
pub use sandbox::{
    BackendName, Bridge, Cache, Home, Loopback, Nested, OnExcess, Transparent, Tty, UnixSockets,
};
pub use stored::{MAX_STORED_BYTES, StoredError, StoredPolicy};
pub use suffix::platform_of;
pub use target::{Host, Target, TargetError};
pub use terms::{Ech, Mode, Terms};
pub use upstream::{
    AuthSpec, AuthSpecError, Bypass, BypassError, Credentials, CredentialsError, MAX_BYPASS, MAX_CREDENTIALS,
    UpstreamFault, UpstreamUrl,
};
pub use words::WordError;
