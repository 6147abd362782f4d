//! The daemon's control plane without I/O: what it decides about other daemons and about programs of its own host.
//!
//! No socket, thread, clock or random number: time and entropy are arguments, and a driver carries out what is decided.
//! The daemon (`raasd`) does so with tokio; the simulator (`sim`) does so in virtual time, so that what it proves is what
//! ships. [`Daemon`] has all state machines but those of one link.
//!
//! Order of calls: the same for all state machines here. `handle_*` takes what somebody else did, and `on_*` takes an
//! answer to what was asked for. Then the driver calls `poll_action` until it returns `None`, and carries out the
//! actions in that order. `deadline` says when `handle_timeout` has something to do. Time never runs backwards.
//!
//! It must never wait, read a clock, or do what a driver is there for. May use `control`, `shm`, `verbs`.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap))]

mod admission;
mod cluster_key;
mod commands;
mod daemon;
mod dialing;
mod direct_proof;
mod directory;
mod directs;
mod fallbacks;
mod foreign;
mod handshake;
mod ids;
mod lane;
mod lane_round;
mod link_path;
mod meetings;
mod names;
mod noise;
mod opening;
mod own_ends;
mod pairs;
mod peers;
mod policy;
mod primitives;
mod seal;
mod side;
mod strangers;
mod ticket;
mod user_places;
mod watch;

use control::ConnectionRow;

pub use admission::{
    Admission, AdmissionConfig, AdmissionConfigError, AdmissionCounters, Admitted, Connect, ConnectRequest, Connecting,
    ConnectionOver, Listen, SpreadBy, TenantUse,
};
pub use cluster_key::{ClusterKey, ClusterKeys, KEY_BYTES, KEY_BYTES_MAX, KEYS_MAX};
pub use commands::{
    Brought, KeptRegion, LinkCommand, MemoryCommand, ProgramCommand, ProgramRights, RegionCommand, Ways,
};
pub use daemon::{Action, DATAGRAM_ENGINE, Daemon, DaemonConfig, Newcomer, OwnPlace, SocketFacts, Supply};
pub use dialing::{AfterAttempt, Dialing};
pub use direct_proof::{DirectHello, DirectProof};
pub use directory::{Directory, DirectoryConfig, Handed};
pub(crate) use directory::{DirectoryAction, Lessee, RegionWish, TakeOver, TenantShare};
pub(crate) use directs::DirectAction;
pub use directs::{BulkOf, DirectCounters, Directs, OFFER_TIME};
pub use fallbacks::Fallbacks;
pub(crate) use foreign::{Foreign, ForeignAction};
pub use handshake::{Identity, Introduction, LinkNames, Refusal};
pub use ids::{ClientId, LinkId, Party};
pub use lane::{LaneAnswer, LaneCommand};
pub use link_path::LinkPath;
pub(crate) use meetings::{MeetingAction, MeetingEnd, Meetings};
pub use names::Names;
pub use opening::{Opening, OpeningAction};
pub use own_ends::OwnEnds;
pub use pairs::{CONNECTING_END, PAIR_SLOTS, PairLimits, Pairs};
pub(crate) use pairs::{LocalConnect, PairAction, SegmentLost};
pub(crate) use peers::PeerAction;
pub use peers::{PATH_MISSES, PeerPaths, PeerSources, Peers, PeersConfig, Verdict};
pub use policy::{NameTwice, OTHERS, Policy, ProgramFacts, RegionRight, Rights, Selector, Tenant, WEIGHT_MAX};
pub use seal::{SEAL_BYTES, SEALED_MESSAGE_BYTES_MAX, Seal, SealError};
pub use side::Side;
pub use strangers::{Entered, Permit, PermitNumber, Strangers};
pub use ticket::{Holder, TICKET_SECRET_BYTES, Tickets};
pub use user_places::{NoPlace, UserPlaces};
pub use watch::{Heartbeat, Watch, WatchAction};

/// Rows of connections, each with its place in its table, and the place to go on from if there are more.
pub type ConnectionRows = (Vec<(u64, ConnectionRow)>, Option<u64>);
