//! Kernels that run at regions of this host for programs of others and of this one (docs/use/kernels.md).
//!
//! Owns whose turn it is: each program of each host has a line, and the lines have slices of fuel, one after the other. A
//! run that has begun has memory of its own, so of a user, and of another host, only so many have; their other lines wait
//! for one of these to end.
//! It must never run one for longer than a slice, and never touch a region that the peer has not open: that is looked up
//! for each slice. What a program of this host has open its daemon's directory knows: it ends runs before it revokes.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use control::RegionAccess;
use kernels::{Failure, Job, Library, Progress, SLICE_FUEL, UserKernel, View};

use super::owned::{OwnedRegions, Whole};
use crate::ids::{AppId, LaneId};

/// Lines of one user, or of another host, whose first run may have begun: each has up to a megabyte.
const BEGUN_MAX: usize = 8;
/// Runs that wait or run of all programs of one user, as a multiple of those of one program.
const OF_USER: usize = 16;

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
    /// A program of this host, and its user.
    Program(AppId, u32),
}

/// Who has a share of the memory of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sharer {
    Host(IpAddr),
    User(u32),
}

impl Origin {
    fn sharer(self) -> Sharer {
        match self {
            Self::Host(host) => Sharer::Host(host),
            Self::Program(_, uid) => Sharer::User(uid),
        }
    }
}

/// What one of them has.
#[derive(Debug, Default)]
struct Used {
    /// Runs that wait or run.
    runs: usize,
    /// Lines in the turns.
    begun: usize,
    /// Lines that wait to be.
    lines: VecDeque<Line>,
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
    /// Lines that may have begun, in the order of their turns. One that owes nothing and is empty has left.
    turns: VecDeque<Line>,
    /// The other lines that are not empty are here.
    sharers: BTreeMap<Sharer, Used>,
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
            sharers: BTreeMap::new(),
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
        let of_user = self.sharers.get(&origin.sharer()).map_or(0, |used| used.runs);
        let max = self.limits.queued_max;
        let begun = if places.iter().any(|place| place.view(owned).is_none()) {
            // Its user kernels are gone with it, so what follows would say that there is no such kernel.
            Err(Failure::Revoked)
        } else if waiting >= max || of_user >= max.saturating_mul(OF_USER) {
            Err(Failure::QueueFull { max: if waiting >= max { waiting } else { of_user } as u64 })
        } else {
            let own = places.first().and_then(|place| self.libraries.get(&place.number()));
            Job::begin(request, own.unwrap_or(&self.library), self.limits.fuel_max, answer_max)
        };
        let job = match begun {
            Ok(job) => job,
            Err(failure) => return self.ended.push(Ran { to, result: Err(failure) }),
        };
        *self.of_origin.entry(origin).or_default() += 1;
        let is_new = !self.lines.contains_key(&(origin, program));
        let line = self.lines.entry((origin, program)).or_default();
        line.waiting.push_back(Waiting { to, places, job });
        let used = self.sharers.entry(origin.sharer()).or_default();
        used.runs += 1;
        if is_new {
            used.lines.push_back((origin, program));
            self.begin_lines(origin.sharer());
        }
    }

    /// Puts as many lines of a sharer into the turns as may be.
    fn begin_lines(&mut self, sharer: Sharer) {
        let Some(used) = self.sharers.get_mut(&sharer) else { return };
        while used.begun < BEGUN_MAX
            && let Some(line) = used.lines.pop_front()
        {
            used.begun += 1;
            self.turns.push_back(line);
        }
        if used.runs == 0 && used.begun == 0 {
            self.sharers.remove(&sharer);
        }
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
            self.leave(line);
            return Some(0);
        };
        let views: Option<Vec<View>> = waiting.places.iter().map(|place| place.view(owned)).collect();
        let (progress, spent) = match views {
            None => (Progress::Failed(Failure::Revoked), 1),
            Some(views) => waiting.job.run(&views, SLICE_FUEL),
        };
        jobs.owes += spent.saturating_sub(SLICE_FUEL);
        match progress {
            Progress::More => self.turns.push_back(line),
            Progress::Done(answer) => self.end(line, Ok(answer)),
            Progress::Failed(failure) => self.end(line, Err(failure)),
        }
        Some(spent)
    }

    /// The first of a line ended.
    fn end(&mut self, line: Line, result: Result<Vec<u8>, Failure>) {
        let Some(jobs) = self.lines.get_mut(&line) else { return };
        let owes = jobs.owes;
        if let Some(Waiting { to, .. }) = jobs.waiting.pop_front() {
            self.ended.push(Ran { to, result });
            self.forget(line.0, 1);
        }
        if owes < SLICE_FUEL { self.leave(line) } else { self.turns.push_back(line) }
    }

    /// A line without a run that has begun gives its place in the turns up.
    fn leave(&mut self, line: Line) {
        let is_over = self.lines.get(&line).is_none_or(|jobs| jobs.waiting.is_empty());
        if is_over {
            self.lines.remove(&line);
        }
        let sharer = line.0.sharer();
        if let Some(used) = self.sharers.get_mut(&sharer) {
            used.begun = used.begun.saturating_sub(1);
            used.lines.extend((!is_over).then_some(line));
        }
        self.begin_lines(sharer);
    }

    fn forget(&mut self, origin: Origin, count: usize) {
        if let Some(left) = self.of_origin.get_mut(&origin) {
            *left = left.saturating_sub(count);
            if *left == 0 {
                self.of_origin.remove(&origin);
            }
        }
        if let Some(used) = self.sharers.get_mut(&origin.sharer()) {
            used.runs = used.runs.saturating_sub(count);
        }
    }

    /// Ends those that wait or run at a region for a peer.
    pub(crate) fn halt(&mut self, number: u64, peer: IpAddr) {
        self.revoke(Origin::Host(peer), number);
    }

    /// Ends those that wait or run at a region for programs of this host.
    pub(crate) fn halt_here(&mut self, number: u64) {
        let origins: Vec<Origin> = self.of_origin.keys().copied().collect();
        for origin in origins.into_iter().filter(|origin| matches!(origin, Origin::Program(..))) {
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
        let origin = self.of_origin.keys().find(|origin| matches!(origin, Origin::Program(of, _) if *of == app));
        if let Some(origin) = origin.copied() {
            self.take_out(origin, |_| true);
        }
        self.ended.retain(|ran| !matches!(ran.to, To::Program { app: of, .. } if of == app));
    }

    fn take_out(&mut self, origin: Origin, which: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let mut out = Vec::new();
        for jobs in self.lines.range_mut((origin, 0)..=(origin, u32::MAX)).map(|(_, jobs)| &mut jobs.waiting) {
            let (gone, left) = std::mem::take(jobs).into_iter().partition::<Vec<_>, _>(&which);
            jobs.extend(left);
            out.extend(gone);
        }
        self.lines.retain(|_, jobs| !jobs.waiting.is_empty() || jobs.owes >= SLICE_FUEL);
        self.turns.retain(|line| self.lines.contains_key(line));
        let sharer = origin.sharer();
        if let Some(used) = self.sharers.get_mut(&sharer) {
            used.lines.retain(|line| self.lines.contains_key(line));
            used.begun = self.turns.iter().filter(|line| line.0.sharer() == sharer).count();
        }
        self.forget(origin, out.len());
        self.begin_lines(sharer);
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

    const LIMITS: KernelLimits = KernelLimits { fuel_max: 100 * SLICE_FUEL, queued_max: 4 };

    fn view() -> View {
        let memory = shm::RegionMemory::create(4096, false).unwrap();
        View::new(memory.map().unwrap(), true, true)
    }

    /// A list that is a ring, which is followed until the fuel is spent.
    fn ring(view: &View) -> Vec<u8> {
        view.write(0, &8_u64.to_ne_bytes(), &mut kernels::Fuel::new(1000)).unwrap();
        view.write(8, &8_u64.to_ne_bytes(), &mut kernels::Fuel::new(1000)).unwrap();
        let chain = kernels::Chain { order: kernels::Order::Nth(u64::MAX), ..kernels::Chain::list(0) };
        let args = kernels::Call::args(&chain);
        Request { name: "chain", args: &args }.to_bytes().unwrap()
    }

    fn push(kernels: &mut Kernels, owned: &OwnedRegions, (app, uid): (u32, u32), (view, request): (&View, &[u8])) {
        let app = AppId(app);
        let to = To::Program { app, request: 0 };
        let asker = Asker { to, origin: Origin::Program(app, uid), program: 0 };
        kernels.push(owned, asker, vec![Place::Mapped { number: 1, view: view.clone() }], (request, 100));
    }

    #[test]
    fn a_user_has_so_many_runs_that_have_begun_and_all_of_them_end() {
        let (owned, view) = (OwnedRegions::default(), view());
        let request = ring(&view);
        let mut kernels = Kernels::new(LIMITS);
        for program in 0..100 {
            push(&mut kernels, &owned, (program, 5), (&view, &request));
        }
        // A user has as many as sixteen programs may.
        assert_eq!((kernels.len(), kernels.take_ended().len()), (LIMITS.queued_max * OF_USER, 36));
        push(&mut kernels, &owned, (200, 6), (&view, &request));
        assert_eq!(kernels.turns.len(), BEGUN_MAX + 1, "another user has turns of its own");
        kernels.drop_program(AppId(0));
        kernels.drop_program(AppId(63));
        assert_eq!(kernels.turns.len(), BEGUN_MAX + 1);
        let mut others = 0;
        while kernels.run_slice(&owned).is_some() {
            others += usize::from(kernels.lines.keys().any(|(origin, _)| origin.sharer() == Sharer::User(6)));
            assert!(kernels.turns.len() <= BEGUN_MAX + 1);
        }
        assert!(others < 110 * (BEGUN_MAX + 1), "it ended within its turns: {others} slices");
        assert_eq!(kernels.take_ended().len(), 62 + 1);
        assert!(kernels.sharers.is_empty() && kernels.lines.is_empty() && kernels.of_origin.is_empty());
    }

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
            let asker =
                Asker { to: To::Program { app, request: 0 }, origin: Origin::Program(app, program), program: 0 };
            let place = Place::Mapped { number: 1, view: View::new(region.clone(), true, true) };
            kernels.push(&owned, asker, vec![place], (&request, ANSWER_BYTES_MAX));
        };
        push(&mut kernels, 2, "loops");
        let (mut begun, mut dear, mut fair) = (0_u64, 0, 0);
        for _ in 0..1000 {
            // One that waits for its answers, and asks again at once.
            if !kernels.of_origin.contains_key(&Origin::Program(AppId(1), 1)) {
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
        assert!(!kernels.has_work() && kernels.lines.is_empty() && kernels.sharers.is_empty());
    }
}
