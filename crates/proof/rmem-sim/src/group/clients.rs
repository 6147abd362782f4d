//! Clients of the model's group.
//!
//! Owns what a client asks, of whom, and when it asks again: with the same number, so that nothing is done twice.

use agree::{Event, Refused, Role};

use super::Stage;
use super::program::COMMAND_BYTES_MAX;
use super::registers::{COMMAND_BYTES, command_of};
use crate::history::{Asked, WordAct as Act};

/// Registers that clients use.
pub(super) const KEYS: u64 = 2;

/// A client.
#[derive(Debug)]
pub(super) struct Client {
    id: u64,
    number: u64,
    /// Calls that it still makes.
    pub(super) left: u64,
    /// It does nothing before.
    pub(super) due_at: u64,
    target: usize,
    doing: Option<Doing>,
}

#[derive(Debug)]
struct Doing {
    call: Asked,
    key: u8,
    act: Act,
    command: Vec<u8>,
    /// The read that is under way: of which program, in which life, and its number there.
    read: Option<(usize, u64, u64)>,
}

impl Client {
    pub(super) fn new(id: u64, left: u64) -> Self {
        Self { id, number: 0, left, due_at: 0, target: 0, doing: None }
    }

    pub(super) fn is_done(&self) -> bool {
        self.left == 0 && self.doing.is_none()
    }
}

impl Stage {
    /// The client begins a call, or asks again.
    pub(super) fn act(&mut self, which: usize) {
        let now = self.world.now_us();
        let patience = self.period_us * (4 + self.world.below(20));
        self.clients[which].due_at = now + patience;
        if self.clients[which].doing.is_none() {
            self.begin_call(which);
        } else if self.world.below(2) == 0 {
            self.clients[which].target = self.world.below(self.programs.len() as u64) as usize;
        }
        self.send(which);
    }

    fn begin_call(&mut self, which: usize) {
        let client = &mut self.clients[which];
        if client.left == 0 {
            return;
        }
        client.left -= 1;
        client.number += 1;
        // It may go back to one that led before.
        if self.world.below(3) == 0 {
            client.target = self.world.below(self.programs.len() as u64) as usize;
        }
        let value = client.id << 32 | client.number;
        let key = self.world.below(KEYS) as u8;
        let act = match self.world.below(4) {
            0 => Act::Write(value),
            1 | 2 => Act::Add(value, None),
            _ => Act::Read(None),
        };
        let filling = self.world.below((COMMAND_BYTES_MAX - COMMAND_BYTES) as u64 + 1) as usize;
        let call = self.history.ask(key.into(), act);
        client.doing = Some(Doing { call, key, act, command: command_of(act, key, filling), read: None });
    }

    fn send(&mut self, which: usize) {
        let now = self.world.now_us();
        let Self { clients, programs, .. } = self;
        let client = &mut clients[which];
        let target = client.target;
        let (Some(doing), program) = (&mut client.doing, &mut programs[target]) else { return };
        let clock = program.clock(now);
        let Some(replica) = program.replica.as_mut().filter(|_| program.paused_until <= now) else { return };
        let refused = if matches!(doing.act, Act::Read(_)) {
            let read = replica.read(clock);
            doing.read = read.as_ref().ok().map(|read| (target, program.life, *read));
            read.err()
        } else {
            replica.propose(client.id, client.number, &doing.command).err()
        };
        match refused {
            Some(Refused::NotLeader { hint: Some(hint) }) => {
                client.target = hint.into();
                client.due_at = now + self.period_us;
            }
            None | Some(Refused::NotLeader { hint: None } | Refused::Full { .. }) => {}
            Some(other) => self.wrong(format!("a client must not be refused so: {other}")),
        }
        self.drain(target);
    }

    /// A program told its user something.
    pub(super) fn on_event(&mut self, program: usize, event: Event) {
        let (now, life) = (self.world.now_us(), self.programs[program].life);
        if let Event::Role(role) = &event {
            self.programs[program].reigns = !matches!(role, Role::Follower { .. });
        }
        match event {
            Event::Committed { client, number, reply, .. } => self.on_committed(client, number, &reply),
            Event::Unknown { client, number } => {
                let asked = self.clients.iter_mut().find(|c| (c.id, c.number) == (client, number));
                asked.into_iter().for_each(|client| client.due_at = now);
            }
            Event::Readable { read } => {
                let asked =
                    |client: &Client| client.doing.as_ref().is_some_and(|d| d.read == Some((program, life, read)));
                let Some(which) = self.clients.iter().position(asked) else { return };
                let Some(doing) = self.clients[which].doing.take() else { return };
                let found = self.programs[program].replica.as_ref().map(|replica| replica.machine().get(doing.key));
                self.history.end(doing.call, Act::Read(found));
                self.clients[which].due_at = now + self.world.below(self.period_us);
            }
            Event::Role(Role::Leader { term }) => {
                let leader = (program, life);
                if *self.leaders.entry(term).or_insert(leader) != leader {
                    self.wrong(format!("two lead in term {term}"));
                }
            }
            Event::Members(members) => {
                // One that catches up says what was.
                let at = self.programs[program].replica.as_ref().map_or(0, agree::Replica::applied);
                if at > self.members_at {
                    self.replaced += u64::from(self.members != members);
                    (self.members, self.members_at) = (members, at);
                }
            }
            Event::BadSnapshot | Event::SnapshotTooLarge { .. } | Event::Wild { .. } => {
                self.wrong(format!("a program said {event:?}"))
            }
            _ => {}
        }
    }

    fn on_committed(&mut self, client: u64, number: u64, reply: &[u8]) {
        let now = self.world.now_us();
        let Some(which) = self.clients.iter().position(|c| (c.id, c.number) == (client, number)) else { return };
        let Some(doing) = self.clients[which].doing.take() else { return };
        let found = reply.try_into().map(u64::from_le_bytes).ok();
        let act = match doing.act {
            Act::Add(value, _) => Act::Add(value, found),
            other => other,
        };
        if found.is_none() {
            self.wrong(format!("a reply of {} bytes", reply.len()));
        }
        self.history.end(doing.call, act);
        self.clients[which].due_at = now + self.world.below(self.period_us);
    }
}
