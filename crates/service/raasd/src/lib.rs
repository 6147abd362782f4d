//! The RaaS daemon as a library: one per host, owner of the device, shared by all applications of the host.
//!
//! Two threads, or more with several engines (docs/inside/engine.md): `raas-engine` owns the engine and its context of the
//! device and does nothing but move data; `raas-control` owns every socket, and speaks with each engine through bounded
//! queues. What is asked of the daemon `plane::Daemon` decides; who attaches, and with what, is decided here. This crate
//! has no data path of its own and no unsafe code.
//!
//! ```no_run
//! # fn main() -> Result<(), raasd::DaemonError> {
//! let config = raasd::Config::new("127.0.0.1".parse().expect("an address"));
//! raasd::run(config, raasd::Shutdown::on_signals(), |socket| println!("ready socket={}", socket.display()))
//! # }
//! ```
//!
//! It must never move a byte of data, or decide what `plane` decides. May use `control`, `dispatch`, `engine`,
//! `kernels`, `plane`, `rdmacore`, `receivers`, `shm`, `softnic`, `verbs`. Order of calls: [`Config`] is checked,
//! then [`run`] until [`Shutdown`].
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(test, allow(clippy::disallowed_types))] // tests may use atomics

mod accept_links;
mod calibration;
mod check;
mod client_inputs;
mod client_socket;
mod cluster;
mod command;
mod config;
mod config_error;
mod confinement;
mod daemon;
mod device;
mod dial;
mod direct_socket;
mod engine_thread;
mod error;
mod hub;
mod incarnation;
mod inspect;
mod kept;
mod key;
mod limits;
mod link;
mod link_queue;
mod log_quota;
mod looks;
mod machine;
mod member;
mod neighbours;
mod opening;
mod policy_file;
mod program_facts;
mod questions;
mod receiving;
mod reload;
mod sandbox;
mod shares;
mod shutdown;
mod sleeper;
mod socket_group;
mod socket_place;
mod toml_file;
mod turns;
mod user_turns;

pub use calibration::Calibration;
pub use check::{Report, check, successor};
pub use config::{Config, DeviceChoice, Flags, LogFormat, PEER_PORT, PeerConfig, RunLanes};
pub use config_error::ConfigError;
pub use confinement::confine;
pub use confinement::probe::{Attempt, attempts as sandbox_attempts};
pub use daemon::{Daemon, run};
pub use device::{Decision, decide};
pub use error::DaemonError;
pub use kept::{DescriptorStore, Kept};
pub use key::{KEY_FILE_NAME, read as read_cluster_key};
pub use limits::{DaemonLimits, DataPath, LIMITS, Limit};
pub use machine::{Fit, Machine, raise_descriptor_limit};
pub use member::{ClusterConfig, EtcdConfig, Member};
pub use plane::{
    ClusterKey, Heartbeat, KEY_BYTES, KEY_BYTES_MAX, KEYS_MAX, Policy, ProgramFacts, RegionRight, Rights, Selector,
    Tenant,
};
pub use policy_file::load_policy;
pub use program_facts::program_facts;
pub use sandbox::{Confinement, OnViolation, Sandbox};
pub use shutdown::Shutdown;

/// For a process that is a daemon and nothing else, before it starts one.
pub use shm::{survive_faults, take_down_elsewhere};
