//! The messages from the control plane to the engine threads, and back. Owns the message types and nothing else: the
//! channels are bounded and in order, so an answer comes after every event that its engine made before it.

use std::sync::Arc;

use control::{AppRow, ConnectionRow, DatagramRow, TraceRow};
use dispatch::Report;
use engine::{AppId, Attach, EngineTotals, LaneView, Page, Returned, Viewer};
use plane::ClientId;
use shm::WakeSocket;
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
    /// Answered by [`Report::Attached`].
    Attach {
        client: ClientId,
        attach: Attach,
        wake: AppWake,
        /// What the program brings along from a daemon before this one.
        returned: Option<Box<Returned>>,
    },
    /// What both drivers of an engine have.
    Engine(dispatch::Command),
    /// Answered by [`FromEngine::Inspected`] with the same number, when the engine has time for it. The control plane
    /// asks for one page at a time.
    Inspect { number: u64, viewer: Viewer, part: EnginePart },
    /// Detach everyone, give the lanes up, end the thread.
    Stop,
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
    Report(Report),
    Inspected {
        number: u64,
        view: EngineView,
    },
    /// The application closed its end of the wake socket.
    WakeHangup {
        app: AppId,
    },
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
