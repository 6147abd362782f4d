//! The daemon's data path, without I/O.
#![forbid(unsafe_code)]
#![allow(clippy::todo, missing_debug_implementations, unused_variables)] // skeleton

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use control::{AppRow, ChunkKind, Connection, ConnectionRow, LaneOffer, LaneRow, Reason};
use shm::{EnginePage, Session};
use verbs::{Provider, Region, Time, VerbsError};

/// An attached application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AppId(pub u32);

/// Limits and tunables; every bound has its name here.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Addresses that name this host; the first is used as local address of connections.
    pub addresses: Vec<IpAddr>,
    /// Ring size when the application names none (power of two, 4 KiB..=8 MiB).
    pub ring_bytes_default: u32,
    pub ring_bytes_max: u32,
    pub apps_max: u32,
    pub connections_max: u32,
    pub connections_per_app_max: u32,
    pub listeners_max: u32,
    pub backlog_max: u32,
    /// Memory of one application's rings at most, in bytes.
    pub ring_memory_per_app_max: u64,
    pub lanes_max: u32,
    /// SRQ entries granted to each lane.
    pub lane_credits: u32,
    /// Size of an SRQ entry: longest SEND.
    pub send_bytes_max: u32,
    /// Bytes posted and not completed on a lane at most.
    pub lane_inflight_bytes_max: u64,
    /// Deficit-round-robin quantum and longest piece of one WRITE.
    pub quantum_bytes: u32,
    /// A connect is given up after this long.
    pub connect_timeout: Duration,
}
impl EngineConfig {
    /// Defaults for a host with these addresses.
    pub fn new(addresses: Vec<IpAddr>) -> Self { todo!() }
}

/// What the daemon must do, or tell an application.
#[derive(Debug)]
pub enum Event {
    /// A connect needs a lane to this host: dial it, then `lane_offer`.. `lane_ready`, or `peer_failed`.
    PeerWanted { peer: IpAddr },
    /// Make `rings` rings of `ring_bytes` for tx and as many for rx, tell the application, then `add_chunk` both (or `chunks_refused`).
    ChunksWanted { app: AppId, ring_bytes: u32, rings: u32 },
    /// Answer to a connect.
    Connected { app: AppId, request: u64, result: Result<Connection, Reason> },
    /// A connection from another host waits at a listener.
    Incoming { app: AppId, port: u16, connection: Connection },
    /// A connect to a listener of this host: the daemon pairs the two processes. The backlog place is taken.
    LocalConnect { from: AppId, request: u64, to: AppId, port: u16, ring_bytes: u32, connection: u64 },
    /// The application broke the rules and was detached by the engine: tell it, close its socket.
    AppFault { app: AppId, detail: String },
    /// The lane's QP failed; its connections were reset. Tell the peer daemon (LaneReset), make a new lane when wanted.
    LaneFailed { peer: IpAddr, reason: Reason, detail: String },
    /// No memory of a detached application is in use any more: session and chunks may be dropped.
    AppGone { app: AppId },
    /// A chunk is unused and deregistered.
    ChunkGone { app: AppId, chunk: u32 },
}

/// Setting up the engine on a device failed.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("device: {0}")]
    Verbs(#[from] VerbsError),
    #[error("no memory for receive buffers: {0}")]
    Memory(#[from] std::io::Error),
    #[error("configuration: {0}")]
    Config(String),
}

/// A new application.
#[derive(Debug)]
pub struct Attach { pub pid: u32, pub uid: u32, pub name: String, pub session: Session }

/// Totals for `raas stat`.
#[derive(Debug, Clone, Default)]
pub struct EngineTotals {
    pub rc_qps: u32, pub ud_qps: u32, pub cqs: u32, pub srqs: u32, pub srq_free: u64, pub mrs: u32, pub pinned_bytes: u64,
    /// Counters by stable name, among them `rnr_naks` (a bug if not 0), `credit_stalls`, `stale_frames`, `app_faults`.
    pub counters: Vec<(&'static str, u64)>,
}

pub struct Engine { _p: () }

impl Engine {
    /// Makes CQ and SRQ on the device.
    pub fn new<P: Provider>(config: EngineConfig, nic: &mut P, page: EnginePage, entropy: [u8; 32]) -> Result<Self, SetupError> { todo!() }

    // ---- applications (called by the daemon's engine thread for control messages)
    pub fn attach(&mut self, app: Attach) -> Result<AppId, Reason> { todo!() }
    /// The application died, left, or is thrown out: its connections are reset, its memory is quarantined until `AppGone`.
    pub fn detach<P: Provider>(&mut self, now: Time, nic: &mut P, app: AppId, reason: Reason) { todo!() }
    /// Chunk numbers are the daemon's (unique in the session). Registers with the device (rx: REMOTE_WRITE).
    pub fn add_chunk<P: Provider>(&mut self, nic: &mut P, app: AppId, chunk: u32, kind: ChunkKind, ring_bytes: u32, region: Region) -> Result<(), VerbsError> { todo!() }
    pub fn chunks_refused(&mut self, app: AppId, ring_bytes: u32, reason: Reason) { todo!() }
    pub fn listen(&mut self, app: AppId, port: u16, backlog: u32, ring_bytes: u32) -> Result<SocketAddr, Reason> { todo!() }
    pub fn unlisten<P: Provider>(&mut self, now: Time, nic: &mut P, app: AppId, port: u16) { todo!() }
    /// The application took a connection from its backlog.
    pub fn accepted(&mut self, app: AppId, port: u16, connection: u64) { todo!() }
    pub fn connect<P: Provider>(&mut self, now: Time, nic: &mut P, app: AppId, request: u64, to: SocketAddr, ring_bytes: u32) { todo!() }
    pub fn cancel_connect<P: Provider>(&mut self, now: Time, nic: &mut P, app: AppId, request: u64) { todo!() }

    // ---- peers (called for control-link messages)
    /// Makes this end of a lane to `peer` (QP in Init, receives posted); a previous one is given up.
    pub fn lane_offer<P: Provider>(&mut self, nic: &mut P, peer: IpAddr) -> Result<LaneOffer, VerbsError> { todo!() }
    /// The peer's offer: RTR and RTS. Then the daemon sends LaneReady.
    pub fn lane_accept<P: Provider>(&mut self, nic: &mut P, peer: IpAddr, offer: &LaneOffer) -> Result<(), VerbsError> { todo!() }
    /// The peer sent LaneReady: connections may use the lane.
    pub fn lane_ready<P: Provider>(&mut self, now: Time, nic: &mut P, peer: IpAddr) { todo!() }
    /// The control link or the peer is gone: QP destroyed, connections reset with `reason`, parked connects fail.
    pub fn lane_lost<P: Provider>(&mut self, now: Time, nic: &mut P, peer: IpAddr, reason: Reason) { todo!() }

    // ---- progress
    /// One round: completions, doorbells, scheduling, timers. Says whether anything was done.
    pub fn run<P: Provider>(&mut self, now: Time, nic: &mut P) -> bool { todo!() }
    pub fn poll_event(&mut self) -> Option<Event> { todo!() }
    /// Applications that sleep and have news: write to their wake sockets.
    pub fn take_wakes(&mut self, out: &mut Vec<AppId>) { todo!() }
    /// Stores the sleep flag, arms the CQ, looks once more. False: there is work, do not sleep (`end_sleep` was done).
    pub fn prepare_sleep<P: Provider>(&mut self, nic: &mut P) -> bool { todo!() }
    pub fn end_sleep(&mut self) { todo!() }
    pub fn deadline(&self) -> Option<Time> { todo!() }

    // ---- inspection
    pub fn connections(&self) -> Vec<ConnectionRow> { todo!() }
    pub fn lanes(&self) -> Vec<LaneRow> { todo!() }
    pub fn apps(&self) -> Vec<AppRow> { todo!() }
    pub fn totals(&self) -> EngineTotals { todo!() }
}
