//! The daemon's data path, without I/O: lanes, virtual queue pairs, credits, fairness.
//!
//! One [`Engine`] drives one device ([`verbs::Provider`]) for all applications of a host: one CQ, one SRQ, one RC queue
//! pair ("lane") to each peer host. A connection is a *virtual queue pair*: two rings in memory shared with the
//! application, a route id, and no device object of its own. The bytes of docs/inside/shared-memory.md are what an application
//! sees of it, those of docs/inside/wire.md (section "Lane frames") what a peer daemon sees.
//!
//! The way of a byte: the application copies it into its tx ring and rings the session's doorbell; [`Engine::run`]
//! takes the doorbell (`engine::tenant`), checks the tail (`vqp`), puts the connection into its lane's ready list
//! (`sched`) and posts the whole readable range as WRITE_WITH_IMM with the peer's route id (`engine::pump`, `sendq`,
//! `credit`). The peer's engine finds the connection by the immediate (`engine::recv`), publishes its new tail and
//! rings its application's doorbell. What that application consumed comes back in a control frame (`frame`) and frees
//! the tx ring.
//!
//! Modules use each other downwards only. At the bottom: names (`ids`), bounds (`limits`), bytes of the wire (`frame`,
//! `immediate`, `datagram::header`) and rules of numbers alone (`credit`, `sched`, `sendq`, `ringpool`, `timers`,
//! `dials`, ...). On these the things, each with its own state behind its own verbs: a connection (`vqp`), a `lane`, an
//! application (`app`), a slot without a peer (`ring_slot`), the sockets (`datagram`), the `operations`; then the tables
//! of them (`vqp::table`, `lanes`, `apps`, `attempts`). At the top the [`Engine`], which alone sees all of them: `engine`
//! has the order of a round, and its submodules a round or kind of call each. What streams, operations, datagrams and
//! messages on UC do in each step is asked of one list (`mechanisms`).
//!
//! Order of calls. A round is: commands, after each of which [`Engine::poll_event`] is called until there is none;
//! [`Engine::run`]; the events again; [`Engine::take_wakes`]. A round that did something is followed by another one. Before
//! the driver sleeps, [`Engine::prepare_sleep`] must say yes, and it sleeps until [`Engine::deadline`] at most; then
//! [`Engine::end_sleep`]. Time never runs backwards.
//!
//! Limits. Everything that grows is bounded by [`EngineConfig`] or the private module `limits`; events are bounded by
//! the tables that they are about, as long as the daemon takes them after each round. At a limit there is back
//! pressure or a typed [`control::Reason`].
//!
//! Trust. An application's words are checked before use, and a wrong one costs it its session ([`Event::AppFault`]). A
//! peer daemon's messages are checked too, and a wrong one costs the connections of that lane ([`Event::LaneFailed`]);
//! but hosts that share the cluster key trust each other not to write elsewhere into the receive rings of their common
//! lane.
//!
//! It must never block, allocate by what a stranger says, or do unbounded work in a round. May use `control`,
//! `genslab`, `kernels`, `shm`, `verbs`.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap))]

mod app;
mod apps;
mod ask;
mod attempts;
mod choice;
mod config;
mod counters;
mod credit;
mod datagram;
mod dials;
mod engine;
mod event;
mod frame;
mod ids;
mod immediate;
mod lane;
mod lane_at;
mod lane_part;
mod lanes;
mod limits;
mod mechanisms;
mod members;
mod numbers;
mod one_sided;
mod operations;
mod page;
mod pins;
mod places;
mod recvpool;
mod redial;
mod rests;
mod resync;
mod ring_size;
mod ring_slot;
mod ringpool;
mod route_names;
mod sched;
mod sendq;
mod slot;
mod slot_set;
mod stages;
mod stall;
mod table;
mod tenants;
mod timers;
mod unreliable;
mod violation;
mod vqp;
mod window;

pub use choice::{Load, Thresholds};
pub use config::{DeviceFit, DeviceRoom, EngineConfig, private_networks};
pub use datagram::header::check_datagram;
pub use engine::Engine;
pub use engine::check_frame;
pub use engine::{Returned, ReturnedChunk};
pub use event::{
    Admission, Attach, BulkStream, DatagramBind, Dial, EngineTotals, Event, LocalPlace, OperationsOpen, SetupError,
};
pub use ids::{AppId, OpenId};
pub use ipnet::IpNet;
pub use lane_at::{LaneAt, LanePath};
pub use limits::{
    FLIGHT_BYTES_MAX, FLIGHT_BYTES_MIN, FRAME_BYTES_MAX, FRAME_BYTES_MIN, LANE_CREDITS_MAX, LANE_CREDITS_MIN,
    REGION_HANDLES_MAX, SRQ_BYTES_MAX, SRQ_BYTES_MIN, TABLE_MAX,
};
pub use page::{LaneView, Page, Viewer};
pub use pins::{PinLimits, TENANT_PINNED};
pub use ring_size::RingSize;
pub use slot_set::SlotSet;
pub use stages::Clock;
pub use tenants::{TenantPlace, TenantTerms};
pub use unreliable::piece::check_piece;
