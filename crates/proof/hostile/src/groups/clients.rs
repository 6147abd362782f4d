//! Clients of a group: what they ask, of whom, when they ask again, and the history of it all.
//!
//! Owns the order of what was asked and what ended, as this one process saw it: a call begins before its line is written
//! and ends behind the line that answers it, so what processes or pipes add only makes calls longer. A call is asked
//! again under the same number until its end is known.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use histories::{Event, Verdict, judge_by};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// Clients; each has one call under way. Number 0 is nobody's.
const CLIENTS: u64 = 4;
/// Registers that are used at a time.
const AT_A_TIME: u64 = 2;
/// Calls of one register, about at most.
const CALLS_MAX: usize = 500;
/// How long a client waits for an answer before it asks somebody again.
const PATIENCE_MS: std::ops::Range<u64> = 300..1500;
/// Between an answer and what is asked next.
const PAUSE_US: std::ops::Range<u64> = 500..8000;

/// What is asked of a register, with what it found once that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Write(u64),
    Add(u64, Option<u64>),
    Read(Option<u64>),
}

impl Act {
    /// The register afterwards; `None`: it cannot have found that.
    fn apply(state: &u64, act: &Self) -> Option<u64> {
        let sees = |found: &Option<u64>| found.is_none_or(|found| found == *state);
        match act {
            Self::Write(value) => Some(*value),
            Self::Add(value, found) => sees(found).then(|| state.wrapping_add(*value)),
            Self::Read(found) => sees(found).then_some(*state),
        }
    }

    fn with(self, found: u64) -> Self {
        match self {
            Self::Write(value) => Self::Write(value),
            Self::Add(value, _) => Self::Add(value, Some(found)),
            Self::Read(_) => Self::Read(Some(found)),
        }
    }
}

#[derive(Debug)]
struct Client {
    id: u64,
    /// Of its last command.
    number: u64,
    doing: Option<Doing>,
    /// It does nothing before.
    due: Instant,
}

#[derive(Debug)]
struct Doing {
    register: u64,
    /// Its place in the register's history.
    place: usize,
    act: Act,
    /// The numbers under which it was asked: each answer counts.
    calls: Vec<u64>,
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Clients {
    all: Vec<Client>,
    history: BTreeMap<u64, Vec<Event<Act>>>,
    order: u64,
    call: u64,
    epoch: u64,
    rng: SmallRng,
    /// Registers that are read once more, and then nothing.
    rest: Option<Vec<u64>>,
    /// Calls that were asked behind this moment and have ended.
    behind: (u64, u32),
    /// Calls that have ended.
    pub(super) ended: u64,
    /// Nothing new is asked.
    is_held: bool,
    /// Registers of which nothing is judged: from one to before another.
    excused: Vec<std::ops::Range<u64>>,
}

impl Clients {
    pub(super) fn new(seed: u64) -> Self {
        let due = Instant::now();
        Self {
            all: (1..=CLIENTS).map(|id| Client { id, number: 0, doing: None, due }).collect(),
            history: BTreeMap::new(),
            order: 0,
            call: 0,
            epoch: 0,
            rng: SmallRng::seed_from_u64(seed),
            rest: None,
            behind: (0, 0),
            ended: 0,
            is_held: false,
            excused: vec![],
        }
    }

    /// From here on other registers are used, from that one on: the history of each stays short.
    pub(super) fn turn(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch * AT_A_TIME
    }

    /// Nothing new is asked until this is taken back.
    pub(super) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Whether no call is under way.
    pub(super) fn are_idle(&self) -> bool {
        self.all.iter().all(|client| client.doing.is_none())
    }

    /// What was asked of registers from that one on, to here, is judged by nobody.
    pub(super) fn excuse_from(&mut self, from: u64) {
        let to = self.turn();
        self.excused.push(from..to);
    }

    fn is_excused(&self, register: u64) -> bool {
        self.excused.iter().any(|range| range.contains(&register))
    }

    /// From here on ends are counted of what is asked from here on.
    pub(super) fn mark(&mut self) {
        self.behind = (self.order, 0);
    }

    /// How many there were.
    pub(super) fn since_mark(&self) -> u32 {
        self.behind.1
    }

    /// Every register is read once more; then no client asks anything.
    pub(super) fn finish(&mut self) {
        self.rest = Some(self.history.keys().copied().collect());
    }

    pub(super) fn is_over(&self) -> bool {
        self.rest.as_ref().is_some_and(Vec::is_empty) && self.all.iter().all(|client| client.doing.is_none())
    }

    /// What is to be written to which member; `members` of them there are, and `leader` is thought to lead.
    pub(super) fn due(&mut self, members: usize, leader: Option<usize>) -> Vec<(usize, String)> {
        let now = Instant::now();
        let mut lines = vec![];
        for at in 0..self.all.len() {
            if self.all[at].due > now || !self.begin(at) {
                continue;
            }
            let patience = Duration::from_millis(self.rng.random_range(PATIENCE_MS));
            // Who led must not answer what was.
            let anybody = self.rng.random_range(0..members);
            let target = leader.filter(|_| self.rng.random_range(0..4) > 0).unwrap_or(anybody);
            self.call += 1;
            let client = &mut self.all[at];
            client.due = now + patience;
            let Some(doing) = &mut client.doing else { continue };
            doing.calls.push(self.call);
            let (call, id, number, register) = (self.call, client.id, client.number, doing.register);
            let line = match doing.act {
                Act::Write(value) => format!("propose {call} {id} {number} {register} write {value}"),
                Act::Add(value, _) => format!("propose {call} {id} {number} {register} add {value}"),
                Act::Read(_) => format!("read {call} {id} {register}"),
            };
            lines.push((target, line));
        }
        lines
    }

    /// Whether the client has a call.
    fn begin(&mut self, at: usize) -> bool {
        if self.all[at].doing.is_some() {
            return true;
        }
        if self.is_held {
            return false;
        }
        let (register, act) = match &mut self.rest {
            Some(rest) => match rest.pop() {
                Some(register) => (register, Act::Read(None)),
                None => return false,
            },
            None => {
                let is_long = |calls: &Vec<_>| calls.len() >= CALLS_MAX;
                if self.history.get(&(self.epoch * AT_A_TIME)).is_some_and(is_long) {
                    let _first = self.turn();
                }
                let register = self.epoch * AT_A_TIME + self.rng.random_range(0..AT_A_TIME);
                let value = self.rng.random_range(1..1 << 40);
                let act = [Act::Write(value), Act::Add(value, None), Act::Add(value, None), Act::Read(None)];
                (register, act[self.rng.random_range(0..act.len())])
            }
        };
        if !matches!(act, Act::Read(_)) {
            self.all[at].number += 1;
        }
        self.order += 1;
        let calls = self.history.entry(register).or_default();
        calls.push(Event { what: act, asked: self.order, ended: None, after: None });
        self.all[at].doing = Some(Doing { register, place: calls.len() - 1, act, calls: vec![] });
        true
    }

    fn asked(&self, call: u64) -> Option<usize> {
        self.all.iter().position(|client| client.doing.as_ref().is_some_and(|doing| doing.calls.contains(&call)))
    }

    /// A call was done, and found this.
    pub(super) fn on_found(&mut self, call: u64, found: u64) {
        let Some(at) = self.asked(call) else { return };
        let Some(doing) = self.all[at].doing.take() else { return };
        self.order += 1;
        self.ended += 1;
        if let Some(event) = self.history.get_mut(&doing.register).and_then(|calls| calls.get_mut(doing.place)) {
            (event.what, event.ended) = (doing.act.with(found), Some(self.order));
            self.behind.1 += u32::from(event.asked > self.behind.0);
        }
        self.all[at].due = Instant::now() + Duration::from_micros(self.rng.random_range(PAUSE_US));
    }

    /// Somebody else is to be asked.
    pub(super) fn on_refused(&mut self, call: u64) {
        let pause = Duration::from_micros(self.rng.random_range(PAUSE_US));
        if let Some(at) = self.asked(call)
            && self.all[at].doing.as_ref().is_some_and(|doing| doing.calls.last() == Some(&call))
        {
            self.all[at].due = Instant::now() + pause;
        }
    }

    /// Whether one order explains all: so nothing was lost or done twice, and no read saw what was.
    pub(super) fn judge(&self) -> Result<String> {
        let calls: usize = self.history.values().map(Vec::len).sum();
        ensure!(calls > 0 && self.ended > 0, "nothing was done");
        for (register, calls) in self.history.iter().filter(|(register, _)| !self.is_excused(**register)) {
            match judge_by(calls, 0, Act::apply) {
                Verdict::Explained => {}
                Verdict::Undecided => bail!("register {register}: {} calls are too many to judge", calls.len()),
                Verdict::Wrong => {
                    let line =
                        |call: &Event<Act>| format!("{:?} asked {} ended {:?}", call.what, call.asked, call.ended);
                    let lines: Vec<String> = calls.iter().map(line).collect();
                    bail!("register {register}: no order explains\n{}", lines.join("\n"));
                }
            }
        }
        let excused: usize =
            self.history.iter().filter(|(register, _)| self.is_excused(**register)).map(|(_, calls)| calls.len()).sum();
        let of_excused = if excused > 0 { format!(", {excused} of them not judged") } else { String::new() };
        ensure!(excused < calls, "no call can be judged");
        Ok(format!("{} calls of {calls} ended{of_excused}, of {} registers", self.ended, self.history.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client alone, whose calls are answered as one register after the other says.
    fn played(calls: usize) -> Clients {
        let (mut clients, mut states) = (Clients::new(1), BTreeMap::new());
        clients.all.truncate(1);
        for _ in 0..calls {
            clients.all[0].due = Instant::now();
            assert_eq!(clients.due(3, Some(0)).len(), 1);
            let doing = clients.all[0].doing.as_ref().unwrap();
            let state: &mut u64 = states.entry(doing.register).or_default();
            let before = *state;
            *state = Act::apply(&before, &doing.act).unwrap();
            clients.on_found(clients.call, before);
        }
        clients
    }

    #[test]
    fn what_is_right_is_found_to_be_and_what_is_lost_or_stale_is_not() {
        let clients = played(40);
        assert!(clients.judge().is_ok() && clients.ended == 40);
        let mut wrong = 0;
        for register in 0..AT_A_TIME {
            for at in 0..clients.history[&register].len() {
                let mut clients = played(40);
                let call = &mut clients.history.get_mut(&register).unwrap()[at];
                let (Act::Add(_, Some(found)) | Act::Read(Some(found))) = &mut call.what else { continue };
                *found += 1;
                assert!(clients.judge().is_err(), "{register} {at}");
                wrong += 1;
            }
        }
        assert!(wrong > 10);
    }

    #[test]
    fn a_call_is_asked_again_until_its_end_is_known_and_ends_once() {
        let mut clients = Clients::new(2);
        clients.all.truncate(1);
        let first = clients.due(3, None);
        assert!(first.len() == 1 && clients.due(3, None).is_empty(), "it waits");
        clients.on_refused(1);
        clients.all[0].due = Instant::now();
        assert_eq!(clients.due(3, None).len(), 1);
        clients.on_found(1, 0);
        clients.on_found(2, 0);
        assert_eq!((clients.ended, clients.history.values().map(Vec::len).sum::<usize>()), (1, 1));
    }
}
