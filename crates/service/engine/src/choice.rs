//! By which verb the bytes of a connection leave: SEND, WRITE with immediate, or READ by the receiver.
//!
//! Owns the rule, which is a function of what the engine knows, and its thresholds (docs/inside/lanes.md). It must never
//! choose what a device cannot do. Without a wish of the application's, and with nothing that speaks against it, the
//! verb is WRITE with immediate.

use shm::slot_verb;

/// How bytes travel on a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    /// SEND with immediate, through the shared receive queue.
    Send,
    /// WRITE with immediate, into the receive ring.
    Write,
    /// The receiver's engine READs them out of the transmit ring.
    Read,
}

impl Verb {
    /// What an application's word asks for. Any word is safe.
    pub(crate) fn asked(word: u32) -> Option<Self> {
        match word {
            slot_verb::SEND => Some(Self::Send),
            slot_verb::WRITE => Some(Self::Write),
            slot_verb::READ => Some(Self::Read),
            _ => None,
        }
    }

    /// As the verbs of `raas stat` are called.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write_imm",
            Self::Read => "read",
        }
    }
}

/// How busy a host is: of its engine's processor, and of the memory that applications may have; in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Share of the engine's time in which it worked.
    pub cpu: u8,
    /// Share of the host's memory that is in use.
    pub memory: u8,
}

impl Load {
    /// Both at most 100.
    pub fn new(cpu: u8, memory: u8) -> Self {
        Self { cpu: cpu.min(100), memory: memory.min(100) }
    }

    /// Whether it differs so much that the other side should know.
    pub(crate) fn is_news_after(self, told: Self) -> bool {
        self.cpu.abs_diff(told.cpu) >= LOAD_STEP || self.memory.abs_diff(told.memory) >= LOAD_STEP
    }
}

/// Least change of a load, in percent, that a peer is told.
const LOAD_STEP: u8 = 5;

/// Where one verb becomes better than another. The defaults are those of docs/inside/lanes.md; `raas calibrate` measures
/// the sizes on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// Longest piece, in bytes, for which SEND is better than WRITE with immediate on this device; 0: none is.
    pub send_bytes_max: u32,
    /// Fewest bytes that wait in a ring for which a READ by an idle receiver relieves a busy sender.
    pub read_bytes_min: u32,
    /// Fewest bytes for which it is worth to register memory that is not registered yet.
    pub register_bytes_min: u32,
    /// From so many percent on an engine is busy.
    pub cpu_busy: u8,
    /// Up to so many percent an engine is idle enough to take work over.
    pub cpu_idle: u8,
    /// From so many percent on memory is short.
    pub memory_short: u8,
}

impl Thresholds {
    /// The paper's crossover of copying and registering (section III-B).
    const PAPER_BYTES: u32 = 128 << 10;
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            send_bytes_max: 0,
            read_bytes_min: Self::PAPER_BYTES,
            register_bytes_min: Self::PAPER_BYTES,
            cpu_busy: 90,
            cpu_idle: 50,
            memory_short: 90,
        }
    }
}

/// What decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) asked: Option<Verb>,
    /// Bytes that could leave now.
    pub(crate) waiting: u64,
    pub(crate) here: Load,
    pub(crate) there: Load,
    /// So much of the lane is in flight that it waits for the wire, and not for a processor.
    pub(crate) is_full: bool,
    /// The transmit ring may be read by the peer.
    pub(crate) is_registered: bool,
    /// Both devices take READs.
    pub(crate) can_read: bool,
}

/// Why this verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Why {
    /// Nothing speaks against it.
    Usual,
    /// The application asked for it.
    Asked,
    /// The application asked for READ, which the devices, or the device's memory, do not allow.
    NoReads,
    /// The piece is short, and SEND is better for those on this device.
    Short,
    /// This engine is busy, the peer's is not, and there is much to carry.
    Relief,
}

impl Why {
    pub(crate) const ALL: [Self; 5] = [Self::Usual, Self::Asked, Self::NoReads, Self::Short, Self::Relief];

    /// As rows say it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Usual => "nothing speaks for another",
            Self::Asked => "the program asked for it",
            Self::NoReads => "the program asked for READ, which a device or the lack of memory to register excludes",
            Self::Short => "short pieces go faster by it on this device",
            Self::Relief => "this engine is busy, and the peer's is not",
        }
    }

    /// As counters are called.
    pub(crate) fn counter(self) -> &'static str {
        match self {
            Self::Usual => "verb_usual",
            Self::Asked => "verb_asked",
            Self::NoReads => "verb_no_reads",
            Self::Short => "verb_short",
            Self::Relief => "verb_relief",
        }
    }
}

/// A verb, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) verb: Verb,
    pub(crate) why: Why,
}

impl Choice {
    /// WRITE with immediate.
    pub(crate) const USUAL: Self = Self { verb: Verb::Write, why: Why::Usual };

    const fn new(verb: Verb, why: Why) -> Self {
        Self { verb, why }
    }
}

/// The verb of the next piece. `last` is what the connection used before: who has begun to relieve goes on until the
/// loads are clearly others, so that a load at a threshold does not turn the choice round and round.
#[inline]
pub(crate) fn choose(facts: &Facts, last: Choice, at: &Thresholds) -> Choice {
    match facts.asked {
        Some(Verb::Read) if !facts.can_read => return Choice::new(Verb::Write, Why::NoReads),
        Some(verb) => return Choice::new(verb, Why::Asked),
        None => {}
    }
    if facts.waiting <= at.send_bytes_max.into() && facts.there.memory < at.memory_short {
        return Choice::new(Verb::Send, Why::Short);
    }
    if is_relief(facts, last.why == Why::Relief, at) {
        return Choice::new(Verb::Read, Why::Relief);
    }
    Choice::USUAL
}

/// Whether the receiver should fetch the bytes. `goes_on`: it does already, and stops later than it would begin.
fn is_relief(facts: &Facts, goes_on: bool, at: &Thresholds) -> bool {
    /// Percent by which a load must leave a threshold behind.
    const SLACK: u8 = 15;
    let slack = if goes_on { SLACK } else { 0 };
    if !facts.can_read || facts.here.cpu < at.cpu_busy.saturating_sub(slack) {
        return false;
    }
    let bytes = if facts.is_registered { at.read_bytes_min } else { at.read_bytes_min.max(at.register_bytes_min) };
    let bytes = if goes_on { bytes / 2 } else { bytes };
    let has_memory = facts.is_registered || facts.here.memory < at.memory_short;
    facts.waiting >= bytes.into()
        && facts.there.cpu <= at.cpu_idle.saturating_add(slack)
        && !facts.is_full
        && has_memory
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Load = Load { cpu: 95, memory: 10 };
    const IDLE: Load = Load { cpu: 10, memory: 10 };

    fn facts() -> Facts {
        Facts {
            asked: None,
            waiting: 256 << 10,
            here: IDLE,
            there: IDLE,
            is_full: false,
            is_registered: false,
            can_read: true,
        }
    }

    fn relieves(change: impl FnOnce(&mut Facts)) -> bool {
        let mut facts = Facts { here: BUSY, ..facts() };
        change(&mut facts);
        choose(&facts, Choice::USUAL, &Thresholds::default()) == Choice::new(Verb::Read, Why::Relief)
    }

    #[test]
    fn a_wish_is_fulfilled_whatever_the_loads_are() {
        let all = [IDLE, BUSY, Load { cpu: 100, memory: 100 }];
        for (asked, here, there) in [Verb::Send, Verb::Write, Verb::Read]
            .into_iter()
            .flat_map(|v| all.into_iter().flat_map(move |h| all.into_iter().map(move |t| (v, h, t))))
        {
            for waiting in [1, 4096, 1 << 20] {
                let facts = Facts { asked: Some(asked), here, there, waiting, ..facts() };
                let chosen = choose(&facts, Choice::USUAL, &Thresholds::default());
                assert_eq!(chosen, Choice::new(asked, Why::Asked));
                let chosen = choose(&Facts { can_read: false, ..facts }, chosen, &Thresholds::default());
                assert_ne!(chosen.verb, Verb::Read, "a device that takes no READs");
                assert_eq!(chosen.why == Why::NoReads, asked == Verb::Read);
            }
        }
    }

    #[test]
    fn the_usual_verb_stays_where_nothing_speaks_against_it() {
        let at = Thresholds::default();
        for waiting in [1, 64, 4096, 65_536, 1 << 20, 1 << 30] {
            for is_full in [false, true] {
                for there in [IDLE, BUSY] {
                    let facts = Facts { waiting, is_full, there, ..facts() };
                    assert_eq!(choose(&facts, Choice::USUAL, &at), Choice::USUAL);
                }
            }
        }
    }

    #[test]
    fn each_condition_of_relief_is_needed() {
        assert!(relieves(|_| ()));
        assert!(!relieves(|f| f.here.cpu = 89));
        assert!(!relieves(|f| f.there.cpu = 51));
        assert!(!relieves(|f| f.waiting = (128 << 10) - 1));
        assert!(!relieves(|f| f.is_full = true));
        assert!(!relieves(|f| f.can_read = false));
        assert!(!relieves(|f| f.here.memory = 90), "a registration takes memory");
        assert!(relieves(|f| (f.here.memory, f.is_registered) = (90, true)), "there is one already");
    }

    #[test]
    fn registered_memory_is_read_from_a_shorter_length_on_where_that_was_measured() {
        let at = Thresholds { read_bytes_min: 32 << 10, ..Thresholds::default() };
        let facts = Facts { here: BUSY, waiting: 64 << 10, ..facts() };
        assert_eq!(choose(&facts, Choice::USUAL, &at), Choice::USUAL);
        assert_eq!(choose(&Facts { is_registered: true, ..facts }, Choice::USUAL, &at).verb, Verb::Read);
    }

    #[test]
    fn a_load_at_a_threshold_does_not_turn_the_choice_round() {
        let at = Thresholds::default();
        let mut last = Choice::USUAL;
        let mut turns = 0;
        for step in 0..100_u8 {
            let here = Load { cpu: 85 + 10 * (step % 2), memory: 0 };
            let next = choose(&Facts { here, ..facts() }, last, &at);
            turns += u32::from(next.verb != last.verb);
            last = next;
        }
        assert_eq!((turns, last.verb), (1, Verb::Read));
        let calm = Facts { here: Load { cpu: 74, memory: 0 }, ..facts() };
        assert_eq!(choose(&calm, last, &at), Choice::USUAL, "a load that is clearly another ends it");
    }

    #[test]
    fn short_pieces_go_by_send_where_that_was_measured_and_the_receiver_has_memory() {
        let at = Thresholds { send_bytes_max: 1024, ..Thresholds::default() };
        let of = |waiting, memory| {
            let there = Load { cpu: 0, memory };
            choose(&Facts { waiting, there, ..facts() }, Choice::USUAL, &at)
        };
        assert_eq!(of(1024, 0), Choice::new(Verb::Send, Why::Short));
        assert_eq!(of(1025, 0), Choice::USUAL);
        assert_eq!(of(1, 90), Choice::USUAL);
    }
}
