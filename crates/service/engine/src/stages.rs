//! Where the time of messages goes, stage by stage, by this host's clock.
//!
//! Owns which messages are looked at, and what was seen of them. A message is looked at if it has a byte of the stream
//! whose number is a multiple of [`shm::MARK_BYTES`]. So sender and receiver look at the same messages without a word about
//! it on the wire, and a stream of bulk costs two looks at the clock for each 16 KiB. Everything is bounded: messages
//! under way, those that are kept for readers, and histograms of a fixed size. Without a clock nothing is looked at.

use std::collections::VecDeque;
use std::net::SocketAddr;

use control::{StageRow, TraceRow};
use shm::mark;

use crate::ids::{AppId, LaneId, RouteId};
use crate::numbers::index;

/// Messages that are looked at a time; one more displaces the oldest.
const OPEN_MAX: usize = 64;
/// Messages that are kept for readers.
const DONE_MAX: usize = 512;
/// Stages that one end sees of a message, at most.
const DONE_STAGES_MAX: usize = 4;
/// Parts of each power of two in a histogram: values are known to within a quarter.
const PARTS: u32 = 4;
/// Up to 2^41 ns, half an hour.
const BUCKETS: usize = 160;

/// Reads a clock that never goes back, in nanoseconds from any moment.
pub type Clock = fn() -> u64;

/// A stage; the numbers are places in the array of histograms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// From the application's write to the doorbell's round.
    TxDoorbell,
    /// From there to the send queue.
    TxEngine,
    /// From there until the device said that it is done.
    TxDevice,
    /// From the send queue until this host learns that the peer's application has read it.
    TxDelivery,
    /// From the completion until the application is told.
    RxPublish,
    /// From there until the engine learns that it was read.
    RxApplication,
}

impl Stage {
    const ALL: [Self; 6] =
        [Self::TxDoorbell, Self::TxEngine, Self::TxDevice, Self::TxDelivery, Self::RxPublish, Self::RxApplication];

    fn name(self) -> &'static str {
        match self {
            Self::TxDoorbell => "tx-doorbell",
            Self::TxEngine => "tx-engine",
            Self::TxDevice => "tx-device",
            Self::TxDelivery => "tx-delivery",
            Self::RxPublish => "rx-publish",
            Self::RxApplication => "rx-application",
        }
    }
}

/// Counts by size: [`PARTS`] for each power of two.
#[derive(Debug, Clone)]
struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    sum_ns: u64,
}

impl Histogram {
    fn new() -> Self {
        Self { counts: Box::new([0; BUCKETS]), sum_ns: 0 }
    }

    fn add(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    fn row(&self, stage: Stage) -> StageRow {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        StageRow {
            name: stage.name().to_owned(),
            sum_ns: self.sum_ns,
            buckets: filled.map(|(at, count)| (bucket_end(at), *count)).collect(),
        }
    }
}

fn bucket(ns: u64) -> usize {
    let power = ns.max(1).ilog2();
    if power < PARTS.ilog2() {
        return index(ns);
    }
    let part = index(ns >> (power - PARTS.ilog2()) & u64::from(PARTS - 1));
    let at = (power - PARTS.ilog2() + 1) as usize * PARTS as usize + part;
    at.min(BUCKETS - 1)
}

/// The smallest value that is too large for this bucket.
fn bucket_end(at: usize) -> u64 {
    let parts = PARTS as usize;
    if at < parts {
        return at as u64 + 1;
    }
    (parts + at % parts + 1) as u64 * (1 << (at / parts - 1))
}

/// Whose message it is, and which.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whose {
    pub(crate) route: RouteId,
    pub(crate) app: AppId,
    pub(crate) connection: u64,
    pub(crate) peer: SocketAddr,
}

/// A byte that the application wrote, as the engine finds it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    mark: u64,
    /// When it was written, where the application says it.
    written: Option<u64>,
    at: u64,
}

/// How far a message is. Times of the clock.
#[derive(Debug, Clone, Copy)]
enum At {
    Taken { taken: Taken },
    Posted { taken: Taken, posted: u64, lane: LaneId, wr: u64, completed: Option<u64> },
    Published { arrived: u64, published: u64 },
}

#[derive(Debug, Clone, Copy)]
struct Open {
    whose: Whose,
    mark: u64,
    at: At,
}

/// A message that was seen to its end.
#[derive(Debug)]
struct Done {
    whose: Whose,
    mark: u64,
    /// Stage, from and to. The first `len` were seen.
    stages: [(Stage, u64, u64); DONE_STAGES_MAX],
    len: usize,
}

impl Done {
    fn row(&self, number: u64) -> TraceRow {
        let Whose { connection, peer, .. } = self.whose;
        let stages = self.stages[..self.len].iter();
        let stages = stages.map(|(stage, from, to)| (stage.name().to_owned(), *from, *to)).collect();
        TraceRow { engine: 0, number, connection, peer, offset: self.mark, stages }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Stages {
    clock: Option<Clock>,
    open: VecDeque<Open>,
    histograms: [Histogram; 6],
    done: VecDeque<Done>,
    /// Number of the first in `done`.
    first: u64,
}

impl Stages {
    pub(crate) fn new(clock: Option<Clock>) -> Self {
        let histograms = Stage::ALL.map(|_| Histogram::new());
        // All at once: what is looked at costs a host the same however much it carries.
        let (open, done) = match clock {
            Some(_) => (VecDeque::with_capacity(OPEN_MAX), VecDeque::with_capacity(DONE_MAX)),
            None => Default::default(),
        };
        Self { clock, open, histograms, done, first: 0 }
    }

    /// The time, if bytes of the stream from `from` to before `to` are looked at.
    #[inline]
    pub(crate) fn begin(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        let mark = mark(from, to)?;
        Some((mark, self.clock?()))
    }

    /// Whether any message is under way.
    #[inline]
    pub(crate) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// As [`Stages::begin`], of bytes that the application wrote. `word` is what it says of one of them; that one is
    /// looked at then.
    #[inline]
    pub(crate) fn take(&self, from: u64, to: u64, word: impl FnOnce() -> u64) -> Option<Taken> {
        let (first, at) = self.begin(from, to)?;
        let said = shm::written_at(word(), (from, to), at);
        let (mark, written) = said.map_or((first, None), |(mark, written)| (mark, Some(written)));
        Some(Taken { mark, written, at })
    }

    /// The engine saw that the application wrote it.
    pub(crate) fn on_taken(&mut self, whose: Whose, taken: Taken) {
        self.push(Open { whose, mark: taken.mark, at: At::Taken { taken } });
    }

    /// Whether a piece from `from` to before `to` has a byte that is looked at.
    #[inline]
    pub(crate) fn is_sampled(&self, from: u64, to: u64) -> bool {
        self.clock.is_some() && mark(from, to).is_some()
    }

    /// It is in the send queue as work request `wr`. After a lane reset it may be so again: the last time counts.
    pub(crate) fn on_posted(&mut self, route: RouteId, (from, to): (u64, u64), lane: LaneId, wr: u64) {
        let Some((_, posted)) = self.begin(from, to) else { return };
        let is_in = |o: &&mut Open| o.whose.route == route && (from..to).contains(&o.mark);
        let Some(open) = self.open.iter_mut().find(is_in) else { return };
        let (At::Taken { taken } | At::Posted { taken, .. }) = open.at else { return };
        open.at = At::Posted { taken, posted, lane, wr, completed: None };
    }

    /// The device has done everything up to `wr`.
    pub(crate) fn on_completed(&mut self, lane: LaneId, wr: u64) {
        let Some(clock) = self.clock else { return };
        for open in &mut self.open {
            if let At::Posted { lane: its, wr: last, completed: completed @ None, .. } = &mut open.at
                && *its == lane
                && *last <= wr
            {
                *completed = Some(clock());
            }
        }
    }

    /// The peer's application has read everything before `head`.
    pub(crate) fn on_read_there(&mut self, route: RouteId, head: u64) {
        self.end(|open| open.whose.route == route && open.mark < head && matches!(open.at, At::Posted { .. }));
    }

    /// It arrived, and the application was told.
    pub(crate) fn on_published(&mut self, whose: Whose, (mark, arrived): (u64, u64)) {
        let Some(clock) = self.clock else { return };
        self.push(Open { whose, mark, at: At::Published { arrived, published: clock() } });
    }

    /// The application has read everything before `head`.
    pub(crate) fn on_read_here(&mut self, route: RouteId, head: u64) {
        self.end(|open| open.whose.route == route && open.mark < head && matches!(open.at, At::Published { .. }));
    }

    fn push(&mut self, open: Open) {
        if self.open.len() >= OPEN_MAX {
            self.open.pop_front();
        }
        self.open.push_back(open);
    }

    fn end(&mut self, is_over: impl Fn(&Open) -> bool) {
        let Some(clock) = self.clock else { return };
        let mut at = 0;
        while let Some(open) = self.open.get(at).copied() {
            if !is_over(&open) {
                at += 1;
                continue;
            }
            self.open.remove(at);
            self.keep(&open, clock());
        }
    }

    fn keep(&mut self, open: &Open, now: u64) {
        let mut stages = [(Stage::TxDoorbell, 0, 0); DONE_STAGES_MAX];
        let mut len = 0;
        let mut passed = |stage, from, to| {
            stages[len] = (stage, from, to);
            len += 1;
        };
        match open.at {
            At::Taken { .. } => return,
            At::Posted { taken, posted, completed, .. } => {
                if let Some(written) = taken.written {
                    passed(Stage::TxDoorbell, written, taken.at);
                }
                passed(Stage::TxEngine, taken.at, posted);
                passed(Stage::TxDevice, posted, completed.unwrap_or(now));
                passed(Stage::TxDelivery, posted, now);
            }
            At::Published { arrived, published } => {
                passed(Stage::RxPublish, arrived, published);
                passed(Stage::RxApplication, published, now);
            }
        }
        for (stage, from, to) in &stages[..len] {
            self.histograms[*stage as usize].add(to.saturating_sub(*from));
        }
        if self.done.len() >= DONE_MAX {
            self.done.pop_front();
            self.first += 1;
        }
        self.done.push_back(Done { whose: open.whose, mark: open.mark, stages, len });
    }

    /// The histograms, of stages that messages went through.
    pub(crate) fn rows(&self) -> Vec<StageRow> {
        let rows = Stage::ALL.iter().map(|stage| self.histograms[*stage as usize].row(*stage));
        rows.filter(|row| !row.buckets.is_empty()).collect()
    }

    /// Up to `looks` messages from number `from` on, with the number after them, if there are more.
    pub(crate) fn page(&self, from: u64, looks: u32) -> (impl Iterator<Item = (AppId, TraceRow)>, Option<u64>) {
        let skipped = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let next = from.max(self.first).saturating_add(looks.into());
        let is_last = next >= self.first + self.done.len() as u64;
        let seen = (self.first..).zip(&self.done).skip(skipped).take(looks as usize);
        let seen = seen.map(|(number, done)| (done.whose.app, done.row(number)));
        (seen, (!is_last).then_some(next))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::table::Key;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
    }

    fn at(ns: u64) {
        NOW.set(ns);
    }

    fn stages() -> Stages {
        at(0);
        Stages::new(Some(|| NOW.get()))
    }

    fn whose(route: u32) -> Whose {
        Whose {
            route: RouteId::from_bits(route),
            app: AppId(0),
            connection: route.into(),
            peer: "10.0.0.2:7000".parse().unwrap(),
        }
    }

    #[test]
    fn buckets_hold_what_they_say_and_are_a_quarter_wide() {
        for ns in (0..5000).chain((12..60).flat_map(|power| [(1 << power) - 1, 1 << power, 3 << (power - 1)])) {
            let at = bucket(ns);
            if at + 1 < BUCKETS {
                assert!(ns < bucket_end(at), "{ns}");
                assert!(at == 0 || ns >= bucket_end(at - 1), "{ns}");
                assert!(bucket_end(at) - ns <= ns / 4 + 1, "{ns}");
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn both_ends_choose_the_same_messages() {
        let mut chosen = 0;
        for message in 0..16_384_u64 {
            let (from, to) = (message * 64, message * 64 + 64);
            chosen += u32::from(mark(from, to).is_some());
        }
        assert_eq!(chosen, 64, "one in 256 of 64 bytes");
        assert_eq!((mark(0, 1), mark(1, 16_384), mark(1, 16_385)), (Some(0), None, Some(16_384)));
        assert_eq!((mark(5, 5), mark(u64::MAX - 5, u64::MAX)), (None, None), "no bytes; the end of all numbers");
    }

    #[test]
    fn a_message_passes_its_stages_and_is_kept() {
        let mut stages = stages();
        let (a, lane) = (whose(1), LaneId::from_bits(1));
        at(100);
        let taken = stages.take(0, 64, || shm::written_word(0, 40)).unwrap();
        stages.on_taken(a, taken);
        at(300);
        stages.on_posted(a.route, (0, 64), lane, 7);
        stages.on_completed(lane, 6);
        stages.on_completed(LaneId::from_bits(2), 9);
        at(1000);
        stages.on_completed(lane, 7);
        at(1500);
        stages.on_completed(lane, 8);
        stages.on_read_there(a.route, 0);
        assert!(stages.has_open() && stages.rows().is_empty(), "nothing is read yet");
        at(5000);
        stages.on_read_there(a.route, 64);
        assert!(!stages.has_open());
        let arrived = stages.begin(0, 10).unwrap();
        at(5200);
        stages.on_published(a, arrived);
        at(6000);
        stages.on_read_here(a.route, 10);
        let (rows, next) = stages.page(0, 10);
        let told: Vec<_> = rows.flat_map(|(_, row)| row.stages).collect();
        let expected = [
            ("tx-doorbell", 40, 100),
            ("tx-engine", 100, 300),
            ("tx-device", 300, 1000),
            ("tx-delivery", 300, 5000),
            ("rx-publish", 5000, 5200),
            ("rx-application", 5200, 6000),
        ];
        assert_eq!(told, expected.map(|(name, from, to)| (name.to_owned(), from, to)));
        assert_eq!(next, None);
        assert_eq!(stages.rows().iter().map(|row| row.sum_ns).collect::<Vec<_>>(), [60, 200, 700, 4700, 200, 800]);
    }

    #[test]
    fn of_many_bytes_the_one_is_looked_at_of_which_the_application_says_when() {
        let mut stages = stages();
        let (a, lane) = (whose(1), LaneId::from_bits(1));
        at(100);
        let taken = stages.take(1, 1 << 20, || shm::written_word(3 * shm::MARK_BYTES, 90)).unwrap();
        stages.on_taken(a, taken);
        stages.on_posted(a.route, (1, 2 * shm::MARK_BYTES), lane, 1);
        at(200);
        stages.on_posted(a.route, (2 * shm::MARK_BYTES, 1 << 20), lane, 2);
        stages.on_read_there(a.route, 3 * shm::MARK_BYTES + 1);
        let lied = stages.take(1 << 20, (1 << 20) + 1, || shm::written_word(1 << 20, 201)).unwrap();
        stages.on_taken(a, lied);
        stages.on_posted(a.route, (1 << 20, 2 << 20), lane, 3);
        stages.on_read_there(a.route, 2 << 20);
        let told: Vec<_> = stages.page(0, 10).0.map(|(_, row)| (row.offset, row.stages[0].clone())).collect();
        let expected = [(3 * shm::MARK_BYTES, ("tx-doorbell", 90, 100)), (1 << 20, ("tx-engine", 200, 200))];
        assert_eq!(told, expected.map(|(offset, (name, from, to))| (offset, (name.to_owned(), from, to))));
    }

    #[test]
    fn what_is_under_way_and_what_is_kept_is_bounded() {
        let mut stages = stages();
        for route in 0..1000 {
            let taken = stages.take(0, 1, || 0).unwrap();
            stages.on_taken(whose(route), taken);
        }
        assert_eq!(stages.open.len(), OPEN_MAX);
        stages.on_posted(whose(0).route, (0, 1), LaneId::from_bits(1), 1);
        stages.on_read_there(whose(0).route, 1);
        assert_eq!(stages.open.len(), OPEN_MAX, "it was displaced");
        for _ in 0..2000 {
            let begun = stages.begin(0, 1).unwrap();
            stages.on_published(whose(1), begun);
            stages.on_read_here(whose(1).route, 1);
        }
        assert_eq!(stages.done.len(), DONE_MAX);
        let (rows, next) = stages.page(0, 100);
        let numbers: Vec<u64> = rows.map(|(_, row)| row.number).collect();
        assert_eq!((numbers[0], numbers.len(), next), (1488, 100, Some(1588)));
        assert_eq!((stages.page(1990, 100).0.count(), stages.page(1990, 100).1), (10, None));
        assert_eq!((stages.page(u64::MAX, 100).0.count(), stages.page(u64::MAX, 100).1), (0, None));
    }

    #[test]
    fn without_a_clock_nothing_is_looked_at() {
        let stages = Stages::new(None);
        assert!(stages.begin(0, 1).is_none() && !stages.is_sampled(0, 1));
    }
}
