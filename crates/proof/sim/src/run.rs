//! One run from a seed to its outcome; a panic in the code under test is an outcome too.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::check::Violation;
use crate::plan::Plan;
use crate::trace::Trace;
use crate::world::World;

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// Events.
    pub steps: u64,
    /// Promises that did not hold; the run ends at the first.
    pub violations: Vec<Violation>,
    /// Where the trace is, if there is one.
    pub trace_file: Option<PathBuf>,
    /// Equal for two runs that did the same.
    pub trace_hash: String,
    /// Virtual time in nanoseconds.
    pub virtual_ns: u64,
    /// Connections that a listener was given.
    pub connections: u64,
    /// Bytes read and found right.
    pub bytes_checked: u64,
    /// Refusals and resets by reason, each with a cause.
    pub failures: BTreeMap<&'static str, u64>,
    /// Datagrams that programs sent.
    pub datagrams_sent: u64,
    /// Datagrams that programs took and that were right.
    pub datagrams_taken: u64,
    /// Datagram sockets that went on with the next daemon.
    pub sockets_returned: u64,
    /// Datagrams that they took which that daemon had delivered.
    pub datagrams_taken_after_return: u64,
    /// Datagrams that hosts dropped, by reason, in lives that went to the end of the run.
    pub datagram_drops: BTreeMap<&'static str, u64>,
    /// Operations on regions that ended with what they did.
    pub operations: u64,
    /// Those of which nobody knows, and those that did nothing and said so.
    pub operations_unknown: u64,
    /// See [`Outcome::operations_unknown`].
    pub operations_refused: u64,
    /// Regions that went on with the next daemon, and handles that went on by another one.
    pub regions_returned: u64,
    /// See [`Outcome::regions_returned`].
    pub handles_reopened: u64,
    /// Ends of kernel TCP connections that became streams.
    pub ends_met: u64,
    /// Those that stayed.
    pub ends_on_tcp: u64,
    /// Messages that could be lost: sent.
    pub messages_sent: u64,
    /// Those that came.
    pub messages_received: u64,
    /// Words of regions whose history was too long to judge.
    pub words_undecided: u64,
    /// How often what seeds draw came to pass.
    pub drawn: BTreeMap<&'static str, u64>,
    /// Packets sent.
    pub packets: u64,
    /// Packets lost.
    pub packets_lost: u64,
}

/// Runs a seed, at most `steps` events of it.
pub fn run_seed(seed: u64, steps: Option<u64>) -> Outcome {
    run_plan(Plan::from_seed(seed), steps, Trace::silent())
}

/// Runs a seed and writes its trace to `path`.
pub fn trace_seed(seed: u64, steps: Option<u64>, path: &Path) -> std::io::Result<Outcome> {
    let mut outcome = run_plan(Plan::from_seed(seed), steps, Trace::to_file(path)?);
    outcome.trace_file = Some(path.to_owned());
    Ok(outcome)
}

/// Runs the seed of a crowd of so many hosts, at most `steps` events of it.
pub fn run_crowd(seed: u64, hosts: usize, steps: Option<u64>) -> Outcome {
    run_plan(Plan::crowd(seed, hosts), steps, Trace::silent())
}

/// As [`run_crowd`], and writes the trace to `path`.
pub fn trace_crowd(seed: u64, hosts: usize, steps: Option<u64>, path: &Path) -> std::io::Result<Outcome> {
    let mut outcome = run_plan(Plan::crowd(seed, hosts), steps, Trace::to_file(path)?);
    outcome.trace_file = Some(path.to_owned());
    Ok(outcome)
}

/// Runs a plan to its end.
pub fn run_plan(plan: Plan, steps: Option<u64>, trace: Trace) -> Outcome {
    let seed = plan.seed;
    let mut world = World::new(plan, trace);
    if let Some(steps) = steps {
        world.limit_steps(steps);
    }
    // The world is only looked at afterwards, for figures that are right up to the panic.
    let panic = catch_unwind(AssertUnwindSafe(|| world.run())).err();
    let panic = panic.map(|why| {
        let words = why.downcast_ref::<String>().cloned();
        words.or_else(|| why.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
    });
    let now = world.now();
    world.note_outcome(panic.as_deref());
    let (packets, packets_lost) = world.packets();
    Outcome {
        seed,
        steps: world.steps(),
        trace_file: None,
        trace_hash: format!("{:016x}", world.trace().hash()),
        virtual_ns: now.as_nanos(),
        connections: world.checks().connections() as u64,
        bytes_checked: world.checks().bytes_checked,
        failures: world.checks().explained.clone(),
        datagrams_sent: world.checks().datagrams.sent,
        datagrams_taken: world.checks().datagrams.taken,
        sockets_returned: world.checks().datagrams.returned,
        datagrams_taken_after_return: world.checks().datagrams.taken_after_return,
        datagram_drops: world.checks().datagrams.drops.clone(),
        operations: world.checks().histories.ended,
        operations_unknown: world.checks().histories.unknown,
        operations_refused: world.checks().histories.refused,
        regions_returned: world.checks().regions_returned,
        handles_reopened: world.checks().handles_reopened,
        ends_met: world.checks().ends_met,
        ends_on_tcp: world.checks().ends_on_tcp,
        messages_sent: world.checks().messages_sent,
        messages_received: world.checks().messages_received,
        words_undecided: world.checks().histories.undecided,
        drawn: world.checks().drawn(),
        packets,
        packets_lost,
        violations: world.into_checks().into_violations(),
    }
}
