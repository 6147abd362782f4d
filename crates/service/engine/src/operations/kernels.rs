//! Kernels that run at regions of this host for programs of others (docs/kernels.md).
//!
//! Owns whose turn it is: each program of each host has a line, and the lines have slices of fuel, one after the other.
//! It must never run one for longer than a slice, and never touch a region that the peer has not open: that is looked up
//! for each slice.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use control::RegionAccess;
use kernels::{Failure, Job, Library, Progress, SLICE_FUEL, UserKernel, View};

use super::owned::{OwnedRegions, Whole};
use crate::ids::LaneId;

/// What an operator bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelLimits {
    /// Fuel of one run.
    pub(crate) fuel_max: u64,
    /// Runs of one host that wait or run.
    pub(crate) queued_max: usize,
}

/// Who asked, and for what.
#[derive(Debug)]
pub(crate) struct Asker {
    pub(crate) lane: LaneId,
    pub(crate) peer: IpAddr,
    /// One of the peer's programs.
    pub(crate) program: u32,
    /// The peer's name of the operation.
    pub(crate) id: u32,
}

/// A kernel that has not ended.
#[derive(Debug)]
struct Waiting {
    lane: LaneId,
    id: u32,
    regions: Vec<(Whole, RegionAccess)>,
    job: Job,
}

/// One that has.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) lane: LaneId,
    pub(crate) id: u32,
    pub(crate) result: Result<Vec<u8>, Failure>,
}

/// A program of another host.
type Line = (IpAddr, u32);

/// All that have not ended.
#[derive(Debug)]
pub(crate) struct Kernels {
    limits: KernelLimits,
    /// For regions without kernels of their own.
    library: Library,
    /// Those of regions with some.
    libraries: BTreeMap<u64, Library>,
    lines: BTreeMap<Line, VecDeque<Waiting>>,
    /// Lines that are not empty, in the order of their turns.
    turns: VecDeque<Line>,
    /// How many of each host there are.
    of_peer: BTreeMap<IpAddr, usize>,
    ended: Vec<Ran>,
}

impl Kernels {
    pub(crate) fn new(limits: KernelLimits) -> Self {
        Self {
            limits,
            library: Library::new(),
            libraries: BTreeMap::new(),
            lines: BTreeMap::new(),
            turns: VecDeque::new(),
            of_peer: BTreeMap::new(),
            ended: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.of_peer.values().sum()
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.turns.is_empty() || !self.ended.is_empty()
    }

    /// A user kernel of a region. False: there are too many, or a built-in one has the name.
    pub(crate) fn install(&mut self, region: u64, name: &str, kernel: UserKernel) -> bool {
        self.libraries.entry(region).or_default().install(name, kernel)
    }

    /// The region ended.
    pub(crate) fn uninstall(&mut self, region: u64) {
        self.libraries.remove(&region);
    }

    /// A peer asks for one. The answer has at most `answer_max` bytes.
    pub(crate) fn push(
        &mut self,
        asker: Asker,
        regions: Vec<(Whole, RegionAccess)>,
        request: &[u8],
        answer_max: usize,
    ) {
        let Asker { lane, peer, program, id } = asker;
        let waiting = self.of_peer.get(&peer).copied().unwrap_or(0);
        let begun = if waiting >= self.limits.queued_max {
            Err(Failure::QueueFull { max: self.limits.queued_max as u64 })
        } else {
            let own = regions.first().and_then(|(whole, _)| self.libraries.get(&whole.number));
            Job::begin(request, own.unwrap_or(&self.library), self.limits.fuel_max, answer_max)
        };
        let job = match begun {
            Ok(job) => job,
            Err(failure) => return self.ended.push(Ran { lane, id, result: Err(failure) }),
        };
        *self.of_peer.entry(peer).or_default() += 1;
        let line = self.lines.entry((peer, program)).or_default();
        if line.is_empty() {
            self.turns.push_back((peer, program));
        }
        line.push_back(Waiting { lane, id, regions, job });
    }

    /// Gives the next line its slice. How much fuel was spent; `None`: nobody waits.
    pub(crate) fn run_slice(&mut self, owned: &OwnedRegions) -> Option<u64> {
        let line = self.turns.pop_front()?;
        let waiting = self.lines.get_mut(&line)?.front_mut()?;
        let views: Option<Vec<View>> =
            waiting.regions.iter().map(|(whole, access)| owned.view(line.0, *whole, *access)).collect();
        let (progress, spent) = match views {
            None => (Progress::Failed(Failure::Revoked), 1),
            Some(views) => waiting.job.run(&views, SLICE_FUEL),
        };
        match progress {
            Progress::More => self.turns.push_back(line),
            Progress::Done(answer) => self.end(line, Ok(answer)),
            Progress::Failed(failure) => self.end(line, Err(failure)),
        }
        Some(spent)
    }

    /// The first of a line ended; others of it have their turn.
    fn end(&mut self, line: Line, result: Result<Vec<u8>, Failure>) {
        let Some(jobs) = self.lines.get_mut(&line) else { return };
        if let Some(Waiting { lane, id, .. }) = jobs.pop_front() {
            self.ended.push(Ran { lane, id, result });
            self.forget(line.0, 1);
        }
        match self.lines.get(&line) {
            Some(jobs) if !jobs.is_empty() => self.turns.push_back(line),
            _ => drop(self.lines.remove(&line)),
        }
    }

    fn forget(&mut self, peer: IpAddr, count: usize) {
        if let Some(left) = self.of_peer.get_mut(&peer) {
            *left = left.saturating_sub(count);
            if *left == 0 {
                self.of_peer.remove(&peer);
            }
        }
    }

    /// Ends those that wait or run at a region for a peer.
    pub(crate) fn halt(&mut self, number: u64, peer: IpAddr) {
        let uses = |job: &Waiting| job.regions.iter().any(|(whole, _)| whole.number == number);
        for job in self.take_out(peer, uses) {
            self.ended.push(Ran { lane: job.lane, id: job.id, result: Err(Failure::Revoked) });
        }
    }

    /// The peer waits for nothing of a lane any more.
    pub(crate) fn drop_lane(&mut self, lane: LaneId, peer: IpAddr) {
        self.take_out(peer, |job| job.lane == lane);
        self.ended.retain(|ran| ran.lane != lane);
    }

    fn take_out(&mut self, peer: IpAddr, which: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let mut out = Vec::new();
        for jobs in self.lines.range_mut((peer, 0)..=(peer, u32::MAX)).map(|(_, jobs)| jobs) {
            let (gone, left) = std::mem::take(jobs).into_iter().partition::<Vec<_>, _>(&which);
            jobs.extend(left);
            out.extend(gone);
        }
        self.lines.retain(|_, jobs| !jobs.is_empty());
        self.turns.retain(|line| self.lines.contains_key(line));
        self.forget(peer, out.len());
        out
    }

    /// Those that ended since the last call.
    pub(crate) fn take_ended(&mut self) -> Vec<Ran> {
        std::mem::take(&mut self.ended)
    }
}
