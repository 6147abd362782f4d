//! The messages from the control plane to the engine threads, and back. Owns the message types and nothing else: the
//! channels are bounded and in order, so an answer comes after every event that its engine made before it.

use std::net::IpAddr;
use std::sync::Arc;

use control::{AppRow, ConnectionRow, DatagramRow, Reason, RegionAccess, RegionGrant, RegionRefusal, TraceRow};
use engine::{
    Admission, AppId, Attach, BulkStream, EngineTotals, Event, IpNet, LaneView, LocalPlace, OpenId, Page, Returned,
    RingSize, TenantPlace, TenantTerms, Viewer,
};
use kernels::UserKernel;
use plane::{ClientId, LaneAnswer, LaneCommand, ProgramCommand, RegionCommand};
use shm::{Region, WakeSocket};
use verbs::Counters;

/// The wake sockets of an application, as an engine has them.
#[derive(Debug)]
pub(crate) struct AppWake {
    /// The engine's own: the application wakes the engine here.
    pub(crate) heard: Arc<WakeSocket>,
    /// That of engine 0, over which all engines wake the application: it waits for one descriptor.
    pub(crate) told: Arc<WakeSocket>,
}

/// From the control plane to an engine.
#[derive(Debug)]
pub(crate) enum Command {
    /// Answered by [`FromEngine::Attached`].
    Attach {
        client: ClientId,
        attach: Attach,
        wake: AppWake,
        /// What the program brings along from a daemon before this one.
        returned: Option<Box<Returned>>,
    },
    Detach {
        app: AppId,
        reason: Reason,
    },
    /// Networks to whose hosts the application may send; none: to all that the configuration allows.
    SetConnectTo {
        app: AppId,
        networks: Option<Arc<[IpNet]>>,
    },
    /// The tenants of the policy, by place.
    SetTenants(Vec<TenantTerms>),
    /// The application is this tenant's.
    SetTenant {
        app: AppId,
        place: TenantPlace,
    },
    /// Both directions of a set of rings: number in the session, and memory.
    AddChunks {
        app: AppId,
        size: RingSize,
        tx: (u32, Region),
        rx: (u32, Region),
    },
    ChunksRefused {
        app: AppId,
        size: RingSize,
        reason: Reason,
    },
    /// What the control plane decided for a program.
    Program {
        app: AppId,
        command: ProgramCommand,
    },
    /// The answer to [`Event::ConnectRequest`].
    Admit {
        open: OpenId,
        answer: Result<Admission, Reason>,
    },
    /// About regions.
    Region(RegionWork),
    /// For a lane to a peer. Where [`LaneCommand`] says so it is answered by [`FromEngine::Lane`].
    Lane {
        /// Its number.
        lane: u32,
        command: LaneCommand,
    },
    /// Answered by [`FromEngine::Inspected`] with the same number, when the engine has time for it. The control plane
    /// asks for one page at a time.
    Inspect {
        number: u64,
        viewer: Viewer,
        part: EnginePart,
    },
    /// Answered by [`FromEngine::StreamOfRoute`].
    StreamOfRoute {
        peer: IpAddr,
        number: u64,
        route: u32,
    },
    /// An operator wants a lane reset. Answered by [`FromEngine::LaneWasReset`].
    ResetLane {
        client: ClientId,
        request: u64,
        peer: IpAddr,
    },
    /// Detach everyone, give the lanes up, end the thread.
    Stop,
}

/// What the control plane asks of the engine that has the regions.
#[derive(Debug)]
pub(crate) enum RegionWork {
    /// What needs no memory.
    Command(RegionCommand),
    /// [`plane::Action::Grant`] with the memory. Answered by [`FromEngine::RegionGranted`].
    Grant {
        region: u64,
        epoch: u64,
        memory: Option<Result<(Region, RegionAccess), String>>,
        peer: IpAddr,
        open: u64,
        lane: Option<u32>,
    },
    /// [`plane::Action::Attach`] with the memory. Answered by [`FromEngine::RegionAttached`].
    Attach { client: ClientId, app: AppId, number: u32, memory: Result<Region, String>, writable: bool },
    /// A kernel can be run at a region from here on. Answered by [`FromEngine::KernelInstalled`].
    Install { client: ClientId, request: u64, region: u64, kernel: String, module: UserKernel },
    /// A program of this host has a kernel run. Answered by [`Event::KernelRan`].
    Run { app: AppId, request: u64, places: Vec<LocalPlace>, bytes: Vec<u8> },
}

/// From one of the engines to the control plane.
#[derive(Debug)]
pub(crate) struct EngineReport {
    /// Which.
    pub(crate) engine: u32,
    /// What.
    pub(crate) what: FromEngine,
}

/// What an engine says to the control plane.
#[derive(Debug)]
pub(crate) enum FromEngine {
    Attached {
        client: ClientId,
        result: Result<AppId, Reason>,
    },
    Lane {
        peer: IpAddr,
        lane: u32,
        answer: LaneAnswer,
    },
    Inspected {
        number: u64,
        view: EngineView,
    },
    /// The stream that a peer's offer means.
    StreamOfRoute {
        peer: IpAddr,
        number: u64,
        stream: Option<BulkStream>,
    },
    /// Whether there was a lane.
    LaneWasReset {
        client: ClientId,
        request: u64,
        found: bool,
    },
    RegionGranted {
        peer: IpAddr,
        open: u64,
        result: Result<RegionGrant, RegionRefusal>,
        /// The region that was to be registered, and is not.
        not_registered: Option<u64>,
    },
    RegionDeregistered {
        region: u64,
    },
    RegionOpened {
        open: u64,
        result: Result<u32, Reason>,
    },
    KernelInstalled {
        client: ClientId,
        request: u64,
        result: Result<(), RegionRefusal>,
    },
    RegionAttached {
        client: ClientId,
        number: u32,
        result: Result<(), RegionRefusal>,
    },
    /// The application closed its end of the wake socket.
    WakeHangup {
        app: AppId,
    },
    Event(Event),
}

/// Which of the engine's tables, and from which place on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EnginePart {
    Connections(u32),
    /// Handles to other hosts' regions that have lanes of their own.
    Leased(u32),
    Datagrams(u32),
    Trace(u64),
    Totals,
    Lanes(u32),
    /// Nothing to show: counts what connections carried for their applications, before the rows of those.
    Bytes(u32),
    Apps(u32),
}

/// A page of the engine's part of an answer.
#[derive(Debug)]
pub(crate) enum EngineView {
    Connections(Page<ConnectionRow>),
    Datagrams(Page<DatagramRow>),
    /// With the number after these, if there are more.
    Trace((Vec<(u64, TraceRow)>, Option<u64>)),
    Totals(Box<EngineStat>),
    Lanes(Page<LaneView>),
    /// The next place, if there is more to count.
    Bytes(Option<u32>),
    Apps(Page<(AppId, AppRow)>),
}

/// Totals of engines and device for `raas stat`.
#[derive(Debug)]
pub(crate) struct EngineStat {
    pub(crate) device: String,
    pub(crate) totals: EngineTotals,
    pub(crate) counters: Counters,
}
