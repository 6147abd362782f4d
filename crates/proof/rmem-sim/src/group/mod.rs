//! Stories of a group of `agree` on the model: what its programs, memories and links go through, and what must hold.
//!
//! Owns the story. The code that is judged is the code that ships: [`agree::Replica`], whose actions are flights here.

mod clients;
mod files;
mod nemesis;
mod program;
mod registers;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use agree::{Action, Answer, Member, Members, Term};

use self::clients::Client;
use self::files::Desk;
use self::nemesis::Nemesis;
use self::program::{Posted, Program, memory_bytes};
use self::registers::Chronicle;
use crate::history::{Calls, History, WordAct as Act};
use crate::world::{Faults, World};

/// Steps of a period, for each member: enough for what a member does in one.
const STEPS_OF_PERIOD: u64 = 40;
/// Steps with faults, at most.
const STEPS_MAX: u64 = 12_000;
/// Steps for each member after all faults have ended, in which every call must end and all replicas become the same.
const CALM_STEPS_MAX: u64 = 40_000;
/// Calls that each client has left for that time.
const CALM_CALLS: u64 = 2;
/// How long an operation may be delayed: a third of this many periods.
const DELAY_PERIODS: u64 = 6;

/// A story of a group: everything about it follows from these. Rates are of 10,000 steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupPlan {
    /// What is chosen by chance.
    pub seed: u64,
    /// Members: 1, 3, 5 or more.
    pub members: usize,
    /// Clients.
    pub clients: u64,
    /// Calls of each client, before faults end.
    pub calls: u64,
    /// Of 1000 operations on memory, those that are delayed, for longer than a leader is waited for.
    pub delayed: u32,
    /// By how much everything takes longer, measured in periods.
    pub slowness: u64,
    /// How often a program dies.
    pub deaths: u64,
    /// How often a program stands still.
    pub pauses: u64,
    /// How often a daemon ends, and is back later with the memory.
    pub restarts: u64,
    /// Of 100 such ends, those after which the memory is another one.
    pub wiped: u64,
    /// How often a link is cut, one way or both.
    pub cuts: u64,
    /// Periods that a fault lasts, at most.
    pub lasts: u64,
    /// How often a host is to join or to be removed. Then there are two more hosts than members at first.
    pub changes: u64,
    /// Periods of a lease for reads. 0: there is none.
    pub lease: u64,
    /// Whether the group is synced: members have files.
    pub is_synced: bool,
    /// How often power goes at a host. Only a synced group lives that through.
    pub power: u64,
    /// Of 100 such hosts, those whose directory is lost too.
    pub lost: u64,
    /// How often it goes at all hosts at once.
    pub outages: u64,
}

/// What came out of a story in which nothing was wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupStory {
    /// Steps that it took.
    pub steps: u64,
    /// Calls that ended.
    pub calls: usize,
    /// Terms that had a leader.
    pub leaders: usize,
    /// Programs that died.
    pub deaths: u64,
    /// Daemons that ended.
    pub restarts: u64,
    /// Memories that lost their bytes.
    pub wipes: u64,
    /// Changes of members.
    pub replaced: u64,
    /// Writes that a fence ended.
    pub fenced: u64,
    /// Snapshots that replicas took.
    pub saved: u64,
    /// Snapshots from which replicas started.
    pub loaded: u64,
    /// Times that power went, at one host or all.
    pub cuts: u64,
    /// Writes to files that were synced.
    pub synced: u64,
}

/// The story as it is played.
#[derive(Debug)]
struct Stage {
    plan: GroupPlan,
    world: World,
    period_us: u64,
    first: Vec<Member>,
    programs: Vec<Program>,
    posted: BTreeMap<u64, Posted>,
    /// Answers that need no flight: program, life, number, answer.
    at_once: VecDeque<(usize, u64, u64, Answer)>,
    clients: Vec<Client>,
    history: History<Act>,
    chronicle: Arc<Mutex<Chronicle>>,
    leaders: BTreeMap<Term, (usize, u64)>,
    /// As of the last change that was committed.
    members: Members,
    /// The index by which they were said.
    members_at: u64,
    nemesis: Nemesis,
    replaced: u64,
    desks: Vec<Desk>,
    synced: u64,
}

enum Next {
    Step(u64),
    Deliver(u64),
    AtOnce,
    Tick(usize),
    Act(usize),
    /// A scribe.
    Write(usize),
    Time,
}

impl GroupPlan {
    fn hosts(self) -> usize {
        self.members + if self.changes > 0 { 2 } else { 0 }
    }

    /// Plays it. An error says what was wrong.
    pub fn play(self) -> Result<GroupStory, String> {
        self.record().map(|(story, _)| story)
    }

    /// As [`GroupPlan::play`]; and what clients asked of each register and found.
    pub fn record(self) -> Result<(GroupStory, Calls<Act>), String> {
        let mut stage = Stage::new(self);
        let mut steps = 0;
        while steps < STEPS_MAX && stage.clients.iter().any(|client| !client.is_done()) {
            stage.strike();
            stage.step()?;
            steps += 1;
        }
        stage.calm();
        let most = steps + CALM_STEPS_MAX * self.hosts() as u64;
        while !stage.is_over() {
            if steps >= most {
                return Err(format!("no end in {most} steps, {steps} of them: {}", stage.describe()));
            }
            stage.step()?;
            steps += 1;
        }
        stage.history.judge(&0, Act::apply)?;
        let fenced = stage.world.state().keepers.iter().map(|keeper| keeper.fenced).sum();
        let chronicle = stage.chronicle.lock().unwrap_or_else(PoisonError::into_inner);
        let story = GroupStory {
            steps,
            calls: stage.history.ended(),
            leaders: stage.leaders.len(),
            deaths: stage.nemesis.deaths,
            restarts: stage.nemesis.restarts,
            wipes: stage.nemesis.wipes,
            replaced: stage.replaced,
            fenced,
            saved: chronicle.saved,
            loaded: chronicle.loaded,
            cuts: stage.nemesis.powers,
            synced: stage.synced,
        };
        Ok((story, stage.history.calls()))
    }
}

impl Stage {
    fn new(plan: GroupPlan) -> Self {
        let period_us = STEPS_OF_PERIOD * plan.hosts() as u64 / plan.slowness;
        let lease_us = DELAY_PERIODS * period_us;
        let faults = Faults { delayed: plan.delayed, deaths: 0, node_dies_at: None, lease_us };
        let hosts = plan.hosts();
        let world = World::new(plan.seed, hosts, memory_bytes(), faults);
        let numbers = world.state().keepers.iter().map(crate::keeper::Keeper::number).collect::<Vec<_>>();
        let first: Vec<Member> =
            (0..).zip(&numbers).map(|(id, number)| Member { id, number: *number }).take(plan.members).collect();
        let mut stage = Self {
            period_us,
            programs: (0..hosts).map(Program::new).collect(),
            posted: BTreeMap::new(),
            at_once: VecDeque::new(),
            clients: (1..=plan.clients).map(|id| Client::new(id, plan.calls)).collect(),
            history: History::new(&world),
            chronicle: Arc::default(),
            leaders: BTreeMap::new(),
            members: Members::new(&first),
            members_at: 0,
            nemesis: Nemesis::default(),
            replaced: 0,
            desks: numbers.iter().map(|number| Desk::new(*number)).collect(),
            synced: 0,
            plan,
            world,
            first,
        };
        (0..hosts).for_each(|program| stage.start(program));
        stage
    }

    fn start(&mut self, program: usize) {
        let seed = self.world.below(u64::MAX);
        // So that many entries go with one WRITE, or each alone.
        let piece = [64, 256, 4096][self.plan.seed as usize % 3];
        let lease = (self.plan.lease * self.period_us, self.world.below(3) as i64 - 1);
        let is_synced = self.plan.is_synced;
        self.programs[program].start(&self.first, (self.period_us, piece, is_synced), lease, seed, &self.chronicle);
        if is_synced {
            self.open_file(program);
        }
    }

    fn wrong(&self, words: String) {
        self.chronicle.lock().unwrap_or_else(PoisonError::into_inner).wrong.push(words);
    }

    /// Everything heals, and each client has calls left.
    fn calm(&mut self) {
        self.world.calm();
        self.heal();
        for client in &mut self.clients {
            client.left += CALM_CALLS;
        }
    }

    /// Every call has ended, and all members' replicas are at the same point.
    fn is_over(&self) -> bool {
        let members = || self.programs.iter().filter(|program| self.members.has_host(program.me as u8));
        let replicas = || members().filter_map(|program| program.replica.as_ref());
        let first = replicas().next().map(agree::Replica::applied);
        self.clients.iter().all(Client::is_done)
            && replicas().all(|replica| Some(replica.applied()) == first)
            && replicas().all(|replica| replica.members() == &self.members)
            && self.is_whole()
    }

    /// Whether every memory is a member.
    fn is_whole(&self) -> bool {
        let state = self.world.state();
        self.members.iter().all(|member| state.keepers[usize::from(member.id)].number() == member.number)
    }

    fn describe(&self) -> String {
        let replica = |program: &Program| program.replica.as_ref().map(agree::Replica::describe);
        let programs: Vec<_> = self.programs.iter().map(replica).collect();
        let open = self.clients.iter().filter(|client| !client.is_done()).count();
        let memories: Vec<_> = self.world.state().keepers.iter().map(crate::keeper::Keeper::number).collect();
        let members = &self.members;
        format!("programs {programs:?}, memories {memories:?}, {open} clients wait, {members:?}")
    }

    /// One step, of somebody.
    fn step(&mut self) -> Result<(), String> {
        match self.choose() {
            Next::Step(flight) => self.fly(flight),
            Next::Deliver(flight) => self.deliver(flight),
            Next::AtOnce => {
                if let Some((program, life, id, answer)) = self.at_once.pop_front() {
                    self.answer(program, life, id, answer);
                }
            }
            Next::Tick(program) => {
                let now = self.world.now_us();
                let next = now + self.period_us / 2 + self.world.below(self.period_us / 2);
                self.programs[program].tick_at = next;
                let clock = self.programs[program].clock(now);
                if let Some(replica) = &mut self.programs[program].replica {
                    replica.tick(clock);
                }
                self.drain(program);
            }
            Next::Act(client) => self.act(client),
            Next::Write(program) => self.write(program),
            Next::Time => {}
        }
        match self.chronicle.lock().unwrap_or_else(PoisonError::into_inner).wrong.first() {
            Some(wrong) => Err(wrong.clone()),
            None => Ok(()),
        }
    }

    fn choose(&self) -> Next {
        let now = {
            let mut state = self.world.state();
            state.clock_us += rand::RngExt::random_range(&mut state.rng, 0..3u64);
            state.clock_us
        };
        let mut all = Vec::new();
        for (id, flight) in &self.world.state().flights {
            let program = &self.programs[flight.client];
            if !flight.is_over() && flight.not_before_us <= now {
                all.push(Next::Step(*id));
            } else if flight.is_over() && program.paused_until <= now {
                all.push(Next::Deliver(*id));
            }
        }
        if let Some((program, ..)) = self.at_once.front()
            && self.programs[*program].paused_until <= now
        {
            all.push(Next::AtOnce);
        }
        let ticks = self.programs.iter().filter(|program| program.is_awake(now) && program.tick_at <= now);
        all.extend(ticks.map(|program| Next::Tick(program.me)));
        all.extend((0..self.programs.len()).filter(|program| self.can_write(*program, now)).map(Next::Write));
        let clients = self.clients.iter().enumerate().filter(|(_, client)| !client.is_done() && client.due_at <= now);
        all.extend(clients.map(|(which, _)| Next::Act(which)));
        if all.is_empty() {
            self.world.state().clock_us += 1;
            return Next::Time;
        }
        let next = self.world.below(all.len() as u64) as usize;
        all.swap_remove(next)
    }

    /// A part of a flight happens, if the link is there.
    fn fly(&mut self, id: u64) {
        let Some(posted) = self.posted.get(&id) else { return };
        let is_cut = self.nemesis.is_cut(posted.program, posted.node, true);
        let gives_up = is_cut && self.world.below(8) == 0;
        let mut state = self.world.state();
        let crate::world::State { flights, nodes, keepers, rng, .. } = &mut *state;
        let Some(flight) = flights.get_mut(&id) else { return };
        if gives_up {
            flight.lose();
        } else if !is_cut {
            flight.step(nodes, keepers, rng);
        }
    }

    fn deliver(&mut self, id: u64) {
        let outcome = self.world.take(id);
        let (Some(posted), Some(outcome)) = (self.posted.remove(&id), outcome) else { return };
        let Posted { program, life, node, .. } = posted;
        if self.programs[program].life != life || self.programs[program].replica.is_none() {
            return;
        }
        let (id, answer) = if self.nemesis.is_cut(program, node, false) {
            Program::unheard(posted)
        } else {
            self.programs[program].end(posted, outcome, &self.world)
        };
        self.answer(program, life, id, answer);
    }

    fn answer(&mut self, program: usize, life: u64, id: u64, answer: Answer) {
        let it = &mut self.programs[program];
        if let Some(replica) = it.replica.as_mut().filter(|_| it.life == life) {
            replica.answer(id, answer);
            self.drain(program);
        }
    }

    /// The term in a memory's head never falls: whoever writes there has looked.
    fn check_head(&self, action: &Action) {
        let Action::Write { member, fence, offset: 0, bytes, .. } = action else { return };
        let node = usize::from(*member);
        let state = self.world.state();
        let term = state.nodes[node].as_ref().map_or(0, |words| words[1]);
        let is_held = state.keepers[node].superseded_by() == Some(*fence);
        drop(state);
        let new = bytes.get(8..16).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes);
        if is_held && new < term {
            self.wrong(format!("the term in the head of member {member} falls from {term:#x} to {new:#x}"));
        }
    }

    /// Takes what a replica wants to have done, and what it says.
    fn drain(&mut self, program: usize) {
        while let Some(action) = self.programs[program].replica.as_mut().and_then(agree::Replica::action) {
            self.check_head(&action);
            match self.programs[program].begin(action, &self.world) {
                Some(Ok((flight, posted))) => {
                    self.posted.insert(flight, posted);
                }
                Some(Err((id, answer))) => self.at_once.push_back((program, self.programs[program].life, id, answer)),
                None => {}
            }
        }
        while let Some(event) = self.programs[program].replica.as_mut().and_then(agree::Replica::event) {
            self.on_event(program, event);
        }
    }
}
