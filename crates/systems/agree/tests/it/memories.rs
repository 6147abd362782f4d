//! Memories that answer at once, and a program beside each.

use std::cell::Cell;

use agree::{Action, Answer, BadSnapshot, Event, LINE_BYTES, Layout, Machine, Member, Replica, Role, Settings};

pub(crate) const PERIOD_US: u64 = 100;
pub(crate) const GROUP: u64 = 77;

thread_local! {
    /// Machines of this test know no snapshot.
    pub(crate) static IS_IGNORANT: Cell<bool> = const { Cell::new(false) };
}

/// A machine that adds up.
#[derive(Debug, Default)]
pub(crate) struct Sum(pub(crate) u64);

impl Machine for Sum {
    fn apply(&mut self, _: u64, command: &[u8]) -> Vec<u8> {
        self.0 += command.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        self.0.to_le_bytes().to_vec()
    }

    fn save(&self, into: &mut Vec<u8>) {
        into.extend(self.0.to_le_bytes());
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), BadSnapshot> {
        if IS_IGNORANT.get() {
            return Err(BadSnapshot);
        }
        self.0 = bytes.try_into().map(u64::from_le_bytes).map_err(|_| BadSnapshot)?;
        Ok(())
    }
}

/// What was asked of memories.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verbs {
    pub(crate) grants: usize,
    pub(crate) reads: usize,
    pub(crate) read_bytes: usize,
    pub(crate) writes: usize,
    pub(crate) written_bytes: usize,
}

pub(crate) struct World {
    pub(crate) programs: Vec<Replica<Sum>>,
    memories: Vec<(u64, Vec<u8>)>,
    settings: Vec<Settings>,
    /// Memories that cannot be reached.
    pub(crate) silent: Vec<u8>,
    /// Programs that run.
    pub(crate) awake: Vec<usize>,
    /// WRITEs to a member's place that do not arrive, and of which nobody hears.
    pub(crate) is_held_back: fn(u8, u64, &[u8]) -> bool,
    pub(crate) verbs: Verbs,
    pub(crate) now: u64,
    pub(crate) events: Vec<(usize, Event)>,
}

impl World {
    pub(crate) fn new(members: u8) -> Self {
        Self::with_pieces(members, 4096)
    }

    /// READs and WRITEs have so many bytes at most.
    pub(crate) fn with_pieces(members: u8, piece_bytes_max: usize) -> Self {
        Self::of(members, (piece_bytes_max, 64), 0, false)
    }

    /// And logs have so many lines.
    pub(crate) fn with_ring(members: u8, piece_bytes_max: usize, lines: u64) -> Self {
        Self::of(members, (piece_bytes_max, lines), 0, false)
    }

    /// Leaders have leases.
    pub(crate) fn with_lease(members: u8, lease_us: u64) -> Self {
        Self::of(members, (4096, 64), lease_us, false)
    }

    /// Members have files.
    pub(crate) fn synced(members: u8) -> Self {
        Self::of(members, (4096, 64), 0, true)
    }

    fn of(members: u8, (piece_bytes_max, lines): (usize, u64), lease_us: u64, is_synced: bool) -> Self {
        let layout = Layout::new(1024, lines).unwrap();
        let list: Vec<Member> = (0..members).map(|id| Member { id, number: 100 + u64::from(id) }).collect();
        let settings = |me| Settings {
            group: GROUP,
            me,
            members: list.clone(),
            layout,
            command_bytes_max: 200,
            piece_bytes_max,
            period_us: PERIOD_US,
            lease_us,
            is_synced,
            seed: me.into(),
        };
        Self {
            programs: (0..members).map(|me| Replica::new(settings(me), Sum::default()).unwrap()).collect(),
            settings: (0..members).map(settings).collect(),
            awake: (0..members.into()).collect(),
            is_held_back: |_, _, _| false,
            memories: vec![(0, vec![0; layout.bytes() as usize]); members.into()],
            silent: vec![],
            verbs: Verbs::default(),
            now: 0,
            events: vec![],
        }
    }

    /// Carries out all that a program asks for, and all that comes of it.
    pub(crate) fn settle(&mut self, program: usize) {
        while let Some(action) = self.programs[program].action() {
            if let Some((id, answer)) = self.perform(program, action) {
                self.programs[program].answer(id, answer);
            }
        }
        while let Some(event) = self.programs[program].event() {
            self.events.push((program, event));
        }
    }

    fn perform(&mut self, program: usize, action: Action) -> Option<(u64, Answer)> {
        match action {
            // There is no such host.
            Action::Read { id, member, .. } if usize::from(member) >= self.memories.len() => Some((id, Answer::Lost)),
            Action::TakeOver { id, member, fence } => {
                self.verbs.grants += 1;
                let (granted, _) = &mut self.memories[usize::from(member)];
                let last = *granted;
                if self.silent.contains(&member) {
                    return Some((id, Answer::Lost));
                }
                if fence <= last {
                    return Some((id, Answer::Superseded { fence: last }));
                }
                *granted = fence;
                Some((id, Answer::Granted { number: 100 + u64::from(member), last }))
            }
            Action::Read { id, member, offset, bytes } => {
                self.verbs.reads += 1;
                self.verbs.read_bytes += bytes;
                if self.silent.contains(&member) {
                    return Some((id, Answer::Lost));
                }
                let memory = &self.memories[usize::from(member)].1;
                let bytes = memory[offset as usize..][..bytes].to_vec();
                Some((id, Answer::Read { number: 100 + u64::from(member), bytes }))
            }
            Action::Write { id, member, fence, offset, bytes } => {
                self.verbs.writes += 1;
                self.verbs.written_bytes += bytes.len();
                let (granted, memory) = &mut self.memories[usize::from(member)];
                if self.silent.contains(&member) || (self.is_held_back)(member, offset, &bytes) {
                    return None;
                }
                if *granted != fence {
                    return Some((id, Answer::Superseded { fence: *granted }));
                }
                memory[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                Some((id, Answer::Done))
            }
            Action::Publish { offset, bytes } => {
                self.memories[program].1[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                None
            }
        }
    }

    /// The program of a memory's host writes into it.
    pub(crate) fn scribble(&mut self, member: u8, at: u64, bytes: &[u8]) {
        self.memories[usize::from(member)].1[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn memory(&self, member: u8) -> &[u8] {
        &self.memories[usize::from(member)].1
    }

    /// A memory is of zeroes, and its daemon knows of no grant.
    pub(crate) fn forget(&mut self, member: u8) {
        let (granted, memory) = &mut self.memories[usize::from(member)];
        *granted = 0;
        memory.fill(0);
    }

    /// Somebody takes a memory over.
    pub(crate) fn grant(&mut self, member: u8, fence: u64) {
        let granted = &mut self.memories[usize::from(member)].0;
        *granted = fence.max(*granted);
    }

    /// Lets all programs have a period.
    pub(crate) fn period(&mut self) {
        self.now += PERIOD_US;
        for program in self.awake.clone() {
            self.programs[program].tick(self.now);
            self.settle(program);
        }
    }

    pub(crate) fn periods(&mut self, count: usize) {
        (0..count).for_each(|_| self.period());
    }

    /// The program ends, and is started again; it knows nothing.
    pub(crate) fn restart(&mut self, program: usize) {
        self.programs[program] = Replica::new(self.settings[program].clone(), Sum::default()).unwrap();
    }

    /// The index of each entry that a memory holds, in the order of its lines.
    pub(crate) fn entries(&self, member: usize) -> Vec<u64> {
        let memory = &self.memories[member].1;
        let ring = memory.len() - 64 * LINE_BYTES;
        let lines = memory[ring..].chunks(LINE_BYTES).map(|line| u64::from_le_bytes(line[..8].try_into().unwrap()));
        lines.take_while(|index| *index > 0).collect()
    }

    /// Until somebody leads.
    pub(crate) fn elect(&mut self) -> usize {
        for _ in 0..1000 {
            self.period();
            let leads = |(program, event): &(usize, Event)| {
                matches!(event, Event::Role(Role::Leader { .. })).then_some(*program)
            };
            if let Some(leader) = self.events.iter().find_map(leads) {
                return leader;
            }
        }
        panic!("nobody leads: {:?}", self.events);
    }

    /// What a step costs.
    pub(crate) fn cost(&mut self, step: impl FnOnce(&mut Self)) -> Verbs {
        self.verbs = Verbs::default();
        step(self);
        self.verbs
    }

    pub(crate) fn committed(&self) -> usize {
        self.events.iter().filter(|(_, event)| matches!(event, Event::Committed { .. })).count()
    }
}
