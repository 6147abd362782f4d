//! Kernels that run at regions of this host for programs of others and of this one (docs/use/kernels.md).
//!
//! Owns whose turn it is: each program of each host has a line, and the lines have slices of fuel, one after the other.
//! It must never run one for longer than a slice, and never touch a region that the peer has not open: that is looked up
//! for each slice. What a program of this host has open its daemon's directory knows: it ends runs before it revokes.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use control::RegionAccess;
use kernels::{Failure, Job, Library, Progress, SLICE_FUEL, UserKernel, View};

use super::owned::{OwnedRegions, Whole};
use crate::ids::{AppId, LaneId};

/// What an operator bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelLimits {
    /// Fuel of one run.
    pub(crate) fuel_max: u64,
    /// Runs of one host that wait or run.
    pub(crate) queued_max: usize,
}

/// Where an answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    /// To a peer, with its name of the operation.
    Peer { lane: LaneId, id: u32 },
    /// To a program of this host, with its number of the request.
    Program { app: AppId, request: u64 },
}

/// Whose runs are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// Another host: its daemon says which of its programs asks.
    Host(IpAddr),
    /// A program of this host.
    Program(AppId),
}

/// Who asked, and for what.
#[derive(Debug)]
pub(crate) struct Asker {
    pub(crate) to: To,
    pub(crate) origin: Origin,
    /// One of the host's programs.
    pub(crate) program: u32,
}

/// A region of a run.
#[derive(Debug)]
pub(crate) enum Place {
    /// One that a peer has open.
    Granted { peer: IpAddr, whole: Whole, access: RegionAccess },
    /// One that a program of this host has open, or had when it asked.
    Mapped { number: u64, view: View },
}

impl Place {
    fn number(&self) -> u64 {
        match self {
            Self::Granted { whole, .. } => whole.number,
            Self::Mapped { number, .. } => *number,
        }
    }

    fn view(&self, owned: &OwnedRegions) -> Option<View> {
        match self {
            Self::Granted { peer, whole, access } => owned.view(*peer, *whole, *access),
            Self::Mapped { view, .. } => Some(view.clone()),
        }
    }
}

/// A kernel that has not ended.
#[derive(Debug)]
struct Waiting {
    to: To,
    places: Vec<Place>,
    job: Job,
}

/// One that has.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) to: To,
    pub(crate) result: Result<Vec<u8>, Failure>,
}

/// A program.
type Line = (Origin, u32);

/// What a program has run.
#[derive(Debug, Default)]
struct Jobs {
    waiting: VecDeque<Waiting>,
    /// Fuel that its last slices took beyond what a slice is: a step cannot be cut. It pays before it runs again.
    owes: u64,
}

/// All that have not ended.
#[derive(Debug)]
pub(crate) struct Kernels {
    limits: KernelLimits,
    /// For regions without kernels of their own.
    library: Library,
    /// Those of regions with some.
    libraries: BTreeMap<u64, Library>,
    lines: BTreeMap<Line, Jobs>,
    /// All lines, in the order of their turns. One that owes nothing and is empty has left.
    turns: VecDeque<Line>,
    /// How many of each origin there are.
    of_origin: BTreeMap<Origin, usize>,
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
            of_origin: BTreeMap::new(),
            ended: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.of_origin.values().sum()
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

    /// Somebody asks for one. The answer has at most `answer_max` bytes.
    pub(crate) fn push(
        &mut self,
        owned: &OwnedRegions,
        asker: Asker,
        places: Vec<Place>,
        (request, answer_max): (&[u8], usize),
    ) {
        let Asker { to, origin, program } = asker;
        let waiting = self.of_origin.get(&origin).copied().unwrap_or(0);
        let begun = if places.iter().any(|place| place.view(owned).is_none()) {
            // Its user kernels are gone with it, so what follows would say that there is no such kernel.
            Err(Failure::Revoked)
        } else if waiting >= self.limits.queued_max {
            Err(Failure::QueueFull { max: self.limits.queued_max as u64 })
        } else {
            let own = places.first().and_then(|place| self.libraries.get(&place.number()));
            Job::begin(request, own.unwrap_or(&self.library), self.limits.fuel_max, answer_max)
        };
        let job = match begun {
            Ok(job) => job,
            Err(failure) => return self.ended.push(Ran { to, result: Err(failure) }),
        };
        *self.of_origin.entry(origin).or_default() += 1;
        let line = self.lines.entry((origin, program)).or_insert_with(|| {
            self.turns.push_back((origin, program));
            Jobs::default()
        });
        line.waiting.push_back(Waiting { to, places, job });
    }

    /// Gives the next line its slice. How much fuel was spent; `None`: nobody waits.
    pub(crate) fn run_slice(&mut self, owned: &OwnedRegions) -> Option<u64> {
        let line = self.turns.pop_front()?;
        let jobs = self.lines.get_mut(&line)?;
        if let Some(owes) = jobs.owes.checked_sub(SLICE_FUEL) {
            jobs.owes = owes;
            self.turns.push_back(line);
            return Some(0);
        }
        let Some(waiting) = jobs.waiting.front_mut() else {
            self.lines.remove(&line);
            return Some(0);
        };
        let views: Option<Vec<View>> = waiting.places.iter().map(|place| place.view(owned)).collect();
        let (progress, spent) = match views {
            None => (Progress::Failed(Failure::Revoked), 1),
            Some(views) => waiting.job.run(&views, SLICE_FUEL),
        };
        jobs.owes += spent.saturating_sub(SLICE_FUEL);
        self.turns.push_back(line);
        match progress {
            Progress::More => {}
            Progress::Done(answer) => self.end(line, Ok(answer)),
            Progress::Failed(failure) => self.end(line, Err(failure)),
        }
        if self.lines.get(&line).is_some_and(|jobs| jobs.waiting.is_empty() && jobs.owes < SLICE_FUEL) {
            self.lines.remove(&line);
            self.turns.pop_back();
        }
        Some(spent)
    }

    /// The first of a line ended.
    fn end(&mut self, line: Line, result: Result<Vec<u8>, Failure>) {
        let Some(jobs) = self.lines.get_mut(&line) else { return };
        if let Some(Waiting { to, .. }) = jobs.waiting.pop_front() {
            self.ended.push(Ran { to, result });
            self.forget(line.0, 1);
        }
    }

    fn forget(&mut self, origin: Origin, count: usize) {
        if let Some(left) = self.of_origin.get_mut(&origin) {
            *left = left.saturating_sub(count);
            if *left == 0 {
                self.of_origin.remove(&origin);
            }
        }
    }

    /// Ends those that wait or run at a region for a peer.
    pub(crate) fn halt(&mut self, number: u64, peer: IpAddr) {
        self.revoke(Origin::Host(peer), number);
    }

    /// Ends those that wait or run at a region for programs of this host.
    pub(crate) fn halt_here(&mut self, number: u64) {
        let origins: Vec<Origin> = self.of_origin.keys().copied().collect();
        for origin in origins.into_iter().filter(|origin| matches!(origin, Origin::Program(_))) {
            self.revoke(origin, number);
        }
    }

    fn revoke(&mut self, origin: Origin, number: u64) {
        for job in self.take_out(origin, |job| job.places.iter().any(|place| place.number() == number)) {
            self.ended.push(Ran { to: job.to, result: Err(Failure::Revoked) });
        }
    }

    /// The peer waits for nothing of a lane any more.
    pub(crate) fn drop_lane(&mut self, lane: LaneId, peer: IpAddr) {
        let is_its = |to: To| matches!(to, To::Peer { lane: of, .. } if of == lane);
        self.take_out(Origin::Host(peer), |job| is_its(job.to));
        self.ended.retain(|ran| !is_its(ran.to));
    }

    /// A program of this host is gone.
    pub(crate) fn drop_program(&mut self, app: AppId) {
        self.take_out(Origin::Program(app), |_| true);
        self.ended.retain(|ran| !matches!(ran.to, To::Program { app: of, .. } if of == app));
    }

    fn take_out(&mut self, origin: Origin, which: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let mut out = Vec::new();
        for jobs in self.lines.range_mut((origin, 0)..=(origin, u32::MAX)).map(|(_, jobs)| &mut jobs.waiting) {
            let (gone, left) = std::mem::take(jobs).into_iter().partition::<Vec<_>, _>(&which);
            jobs.extend(left);
            out.extend(gone);
        }
        self.forget(origin, out.len());
        out
    }

    /// Those that ended since the last call.
    pub(crate) fn take_ended(&mut self) -> Vec<Ran> {
        std::mem::take(&mut self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::{ANSWER_BYTES_MAX, FUEL_MAX, Request};

    /// A module of which each run begins with as many parts as may be, and then ends, or goes round for ever.
    fn kernel(is_endless: bool) -> UserKernel {
        let globals = "(global i64 (i64.const 1))".repeat(if is_endless { 0 } else { 1000 });
        let body = if is_endless { "(loop $l (br $l))" } else { "" };
        let text = format!(r#"(module (memory (export "memory") 1) {globals} (func (export "run") {body}))"#);
        UserKernel::new(&wat::parse_str(text).unwrap()).unwrap()
    }

    #[test]
    fn what_a_step_took_beyond_its_slice_is_paid_with_the_next_turns() {
        let owned = OwnedRegions::default();
        let mut kernels = Kernels::new(KernelLimits { fuel_max: 100 * FUEL_MAX, queued_max: 256 });
        assert!(kernels.install(1, "begins", kernel(false)));
        assert!(kernels.install(1, "loops", kernel(true)));
        let region = shm::Region::anonymous(4096).unwrap();
        let push = |kernels: &mut Kernels, program, name: &str| {
            let (app, request) = (AppId(program), Request { name, args: &[] }.to_bytes().unwrap());
            let asker = Asker { to: To::Program { app, request: 0 }, origin: Origin::Program(app), program: 0 };
            let place = Place::Mapped { number: 1, view: View::new(region.clone(), true, true) };
            kernels.push(&owned, asker, vec![place], (&request, ANSWER_BYTES_MAX));
        };
        push(&mut kernels, 2, "loops");
        let (mut begun, mut dear, mut fair) = (0_u64, 0, 0);
        for _ in 0..1000 {
            // One that waits for its answers, and asks again at once.
            if !kernels.of_origin.contains_key(&Origin::Program(AppId(1))) {
                push(&mut kernels, 1, "begins");
                begun += 1;
            }
            let spent = kernels.run_slice(&owned).unwrap();
            let is_dear = !kernels.take_ended().is_empty();
            *(if is_dear { &mut dear } else { &mut fair }) += spent;
        }
        assert!(begun > 10, "{begun} runs");
        assert!(dear < fair + fair / 4, "{dear} units beside {fair}");
        // What is owed is paid, and then nothing is left to do.
        kernels.drop_program(AppId(2));
        kernels.drop_program(AppId(1));
        (0..100).for_each(|_| _ = kernels.run_slice(&owned));
        assert!(!kernels.has_work() && kernels.lines.is_empty());
    }
}
