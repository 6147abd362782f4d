//! The measuring side of `raas perf`: opens the connections, runs the load for the time asked, and gathers what both
//! sides saw.

use std::io;
use std::net::SocketAddr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use raas::FallbackCause;

use super::wire::{ANSWER_BYTES, Hello, Kind, REPORT_BYTES, Report, decode_answer};
use terminal::Failure;
use terminal::out;
use transport::load::{self, Content, Latencies, Until};
use transport::process;
use transport::{Connection, Duplex, Transport};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the server may be silent.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Stack of a connection's thread.
const STACK_BYTES: usize = 256 << 10;

/// What to run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// The test.
    pub(crate) kind: Kind,
    /// Bytes of a message.
    pub(crate) size_bytes: u32,
    /// Connections at once.
    pub(crate) connections: u32,
    /// How long.
    pub(crate) duration: Duration,
}

/// What was measured.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// None unless [`Kind::Latency`].
    pub(crate) half_round_trips: Latencies,
    /// Payload bytes that reached the server.
    pub(crate) payload_bytes: u64,
    /// From the start to the last report.
    pub(crate) elapsed: Duration,
    /// Processor time of this process.
    pub(crate) cpu_client: Duration,
    /// Processor time of the server's process.
    pub(crate) cpu_server: Duration,
    /// Processor time of this host's daemon.
    pub(crate) cpu_client_daemon: Option<Duration>,
    /// Processor time of the server's daemon, unless it is this host's.
    pub(crate) cpu_server_daemon: Option<Duration>,
    /// How the bytes travelled.
    pub(crate) path: &'static str,
    /// Why kernel TCP took the place of a daemon, if it did.
    pub(crate) fallback: Option<FallbackCause>,
}

/// Runs `load` against the server at `to`.
pub(crate) fn run<T: Transport>(transport: &T, to: SocketAddr, load: Load) -> Result<Outcome, Failure> {
    process::raise_descriptor_limit();
    let streams = (0..load.connections).map(|_| open(transport, to, load)).collect::<Result<Vec<_>, _>>()?;
    let path = streams.first().map_or("", Connection::path);
    let fallback = streams.first().and_then(Connection::fallback);
    // A daemon that carries nothing costs nothing here.
    let daemon_pid = transport.daemon_pid().filter(|_| path != "tcp");
    let daemon_time = || daemon_pid.and_then(process::cpu_time);

    let barrier = Barrier::new(streams.len() + 1);
    let (results, elapsed, cpu_client, daemon) = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for stream in &streams {
            let barrier = &barrier;
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, move || {
                barrier.wait();
                drive(stream, load)
            });
            // Without this thread the barrier would never open, so there is no way on.
            threads.push(thread.unwrap_or_else(|e| fail_early(&e)));
        }
        let (cpu, daemon) = (process::own_cpu_time(), daemon_time());
        let start = Instant::now();
        barrier.wait();
        let results: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        let elapsed = start.elapsed();
        (results, elapsed, process::own_cpu_time().saturating_sub(cpu), daemon.zip(daemon_time()))
    });

    let mut outcome = Outcome {
        half_round_trips: Latencies::new(),
        payload_bytes: 0,
        elapsed,
        cpu_client,
        cpu_server: Duration::ZERO,
        cpu_client_daemon: daemon.map(|(a, b)| b.saturating_sub(a)),
        cpu_server_daemon: None,
        // A stream of bulk or a conversation may have left the lane.
        path: streams.first().map_or(path, Connection::path),
        fallback,
    };
    let mut reports = Vec::new();
    for result in results {
        let (latencies, report) = result
            .map_err(|_| Failure::Failed("a measuring thread panicked".into()))?
            .map_err(|e| Failure::failed(format!("test with {to}"), e))?;
        outcome.half_round_trips.add(&latencies);
        outcome.payload_bytes += report.payload_bytes;
        reports.push(report);
    }
    // Points on one process's clock: the span over all connections counts nothing twice.
    outcome.cpu_server = span(reports.iter().map(|r| Some((r.cpu_start, r.cpu_end)))).unwrap_or_default();
    if path != "shm" && path != "tcp" {
        outcome.cpu_server_daemon = span(reports.iter().map(|r| r.daemon));
    }
    Ok(outcome)
}

/// A thread could not be started while others already wait for it: the process cannot go on.
fn fail_early(e: &io::Error) -> ! {
    out::say(format_args!("raas: no thread for a connection: {e}; use fewer --connections"));
    std::process::exit(1)
}

/// From the earliest begin to the latest end; `None` if any is unknown.
fn span(parts: impl Iterator<Item = Option<(Duration, Duration)>>) -> Option<Duration> {
    let parts: Option<Vec<_>> = parts.collect();
    let parts = parts?;
    let begin = parts.iter().map(|p| p.0).min()?;
    let end = parts.iter().map(|p| p.1).max()?;
    Some(end.saturating_sub(begin))
}

fn open<T: Transport>(transport: &T, to: SocketAddr, load: Load) -> Result<T::Stream, Failure> {
    let stream = transport.connect(to, CONNECT_TIMEOUT)?;
    let what = || format!("perf server at {to}");
    stream.set_timeout(Some(CONNECT_TIMEOUT))?;
    let hello = Hello { kind: load.kind, size_bytes: load.size_bytes };
    let mut answer = [0; ANSWER_BYTES];
    stream
        .send_all(&hello.encode())
        .and_then(|()| stream.recv_exact(&mut answer))
        .map_err(|e| Failure::failed(format!("{} does not answer", what()), e))?;
    decode_answer(&answer).map_err(|e| Failure::Refused(format!("{}: {e}", what())))?;
    stream.set_timeout(Some(IDLE_TIMEOUT))?;
    Ok(stream)
}

/// Runs one connection's part, then ends it in order and takes the server's report.
fn drive(stream: &impl Duplex, load: Load) -> io::Result<(Latencies, Report)> {
    let (bytes, time) = (load.size_bytes as usize, load.duration);
    let latencies = match load.kind {
        Kind::Latency => load::ping_pong(stream, bytes, Content::Same, time)?,
        Kind::Bandwidth | Kind::Rate => {
            load::push(stream, bytes, Content::Same, Until::Time(time))?;
            Latencies::new()
        }
    };
    stream.finish_sending()?;
    let mut report = [0; REPORT_BYTES];
    stream.recv_exact(&mut report)?;
    let report = Report::decode(&report).ok_or_else(|| io::Error::other("the server's report makes no sense"))?;
    Ok((latencies, report))
}
