//! The demo's main sequence over one transport: start the applications, open every connection, measure the latency,
//! transfer, verify, close. The same for RaaS and for kernel TCP.

use std::time::{Duration, Instant};

use super::cleanup::Cleanup;
use super::fleet::{Cast, Fleet};
use super::progress::Progress;
use super::verify::{Verified, verify};

/// The connection whose latency is measured.
const PING_CONNECTION: u32 = 0;

/// What one transport did.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    /// Connections open at once.
    pub(crate) connections: usize,
    /// From the first connect to the last accept.
    pub(crate) open_seconds: f64,
    /// From the start to the last application's last byte and digest.
    pub(crate) took: Duration,
    /// What was verified.
    pub(crate) verified: Verified,
    /// Half round trips, sorted, in nanoseconds.
    pub(crate) half_round_trips_ns: Vec<u64>,
    /// Processor time of all applications during the transfer.
    pub(crate) app_cpu_seconds: f64,
}

impl Measured {
    /// Seconds of the transfer.
    pub(crate) fn seconds(&self) -> f64 {
        self.took.as_secs_f64()
    }

    /// Verified file bytes per time, both directions together.
    pub(crate) fn gbit_per_s(&self) -> f64 {
        self.verified.bytes as f64 * 8.0 / 1e9 / self.seconds().max(1e-9)
    }

    /// A quantile of the half round trips in microseconds.
    pub(crate) fn latency_us(&self, quantile: f64) -> f64 {
        let last = self.half_round_trips_ns.len().saturating_sub(1);
        let at = (quantile * last as f64).round() as usize;
        self.half_round_trips_ns.get(at.min(last)).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
    }
}

/// Looks on while a transport is measured.
pub(crate) trait Observer {
    /// All connections are open and idle.
    fn on_opened(&mut self) -> Result<(), String>;
    /// The transfer begins now.
    fn on_transfer(&mut self);
    /// The transfer runs; called about ten times a second.
    fn on_tick(&mut self);
    /// The transfer is over, the connections are still there.
    fn on_transferred(&mut self) -> Result<(), String>;
}

/// Runs the sequence.
pub(crate) fn run(
    label: &str,
    cast: Cast<'_>,
    cleanup: &Cleanup,
    deadline: Instant,
    progress: &mut Progress,
    observer: &mut dyn Observer,
) -> Result<Measured, String> {
    let mut fleet = Fleet::start(cleanup, cast, deadline)?;
    let listeners = fleet.listening()?;
    progress.say(&format!("{label}: {} applications are ready; opening {} connections", fleet.len(), cast.links.len()));
    let begin = Instant::now();
    fleet.open(&listeners)?;
    let open_seconds = begin.elapsed().as_secs_f64();
    observer.on_opened()?;

    let ping_link = cast.links.first().ok_or("no connections")?;
    let mut half_round_trips_ns = fleet.ping(PING_CONNECTION, ping_link)?;
    half_round_trips_ns.sort_unstable();

    progress.begin(label, cast.corpus.bytes);
    observer.on_transfer();
    let result = fleet.transfer(|bytes| {
        progress.at(bytes);
        observer.on_tick();
    });
    progress.end();
    let (took, records) = result?;
    observer.on_transferred()?;
    let verified = verify(cast.links, &records);
    fleet.finish()?;
    Ok(Measured {
        connections: cast.links.len(),
        open_seconds,
        took,
        verified,
        half_round_trips_ns,
        app_cpu_seconds: records.iter().map(|(_, t)| t.cpu_seconds).sum(),
    })
}
