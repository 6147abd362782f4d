//! Notices: what writers of this host and of others tell the owners of regions of this host.
//!
//! Owns their order, and who waits until the owner has room. A notice goes into the receive ring of a queue that the
//! owner opened for the region's. Until there is one, [`NOTICES_EARLY_MAX`] are kept here. A writer whose notice has no
//! room waits for its answer, so that it writes no faster than the owner takes; but it holds places that others use, so
//! of a lane and of a program only so many wait, and none for longer than [`NOTICE_PATIENCE`] after the owner last took
//! something. It must never let the owner of one region delay notices of another.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use shm::{NOTICE_BYTES, Notice, OperationStatus};
use verbs::Time;

use crate::ids::{AppId, LaneId, QueueId};
use crate::limits::{NOTICE_PATIENCE, NOTICES_EARLY_MAX, NOTICES_OF_APP_MAX, NOTICES_OF_LANE_MAX};

use super::kernels::To;
use super::{Operations, Outcome};

/// The notices of one region.
#[derive(Debug, Default)]
struct Line {
    /// Where they go.
    ring: Option<QueueId>,
    /// Those that came before there was a ring. Their writers have been answered.
    early: VecDeque<Notice>,
    /// Those for which there is no room.
    waiting: VecDeque<(To, Notice)>,
    /// Until then they wait.
    until: Time,
    /// How many the ring holds.
    room: u64,
}

impl Line {
    fn room(&self) -> u64 {
        self.ring.map_or(NOTICES_EARLY_MAX as u64, |_| self.room)
    }
}

/// Whose places those that wait hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Lane(LaneId),
    Program(AppId),
}

impl Holder {
    fn of(to: To) -> Self {
        match to {
            To::Peer { lane, .. } => Self::Lane(lane),
            To::Program { app, .. } => Self::Program(app),
        }
    }

    fn places(self) -> usize {
        match self {
            Self::Lane(_) => NOTICES_OF_LANE_MAX,
            Self::Program(_) => NOTICES_OF_APP_MAX,
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    lines: BTreeMap<u64, Line>,
    /// Regions of which some wait, by the time until which they do: whose turn is next is asked in every round.
    stuck: BTreeSet<(Time, u64)>,
    by_ring: BTreeMap<QueueId, u64>,
    held: BTreeMap<Holder, usize>,
    /// What writers are to be told.
    answered: Vec<(To, Outcome)>,
    pub(crate) told: u64,
    pub(crate) refused: u64,
}

impl Notices {
    /// When writers that wait are to be refused.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.stuck.first().map(|&(until, _)| until)
    }

    /// Whether one more of a program may wait.
    pub(crate) fn has_place(&self, app: AppId) -> bool {
        let holder = Holder::Program(app);
        self.held.get(&holder).is_none_or(|held| *held < holder.places())
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.held.values().sum::<usize>() as u64
    }

    pub(crate) fn take_answered(&mut self) -> Vec<(To, Outcome)> {
        std::mem::take(&mut self.answered)
    }

    fn wait(&mut self, region: u64, to: To, notice: Notice, now: Time) {
        let holder = Holder::of(to);
        let held = self.held.entry(holder).or_default();
        if *held >= holder.places() {
            let room = self.lines.get(&region).map_or(0, Line::room);
            return self.refuse(to, room);
        }
        *held += 1;
        let Some(line) = self.lines.get_mut(&region) else { return };
        if line.waiting.is_empty() {
            line.until = now + NOTICE_PATIENCE;
            self.stuck.insert((line.until, region));
        }
        line.waiting.push_back((to, notice));
    }

    /// The owner has room for the first that waits. The others have time from here on.
    fn is_taken(&mut self, region: u64, now: Time) {
        let Some(line) = self.lines.get_mut(&region) else { return };
        self.stuck.remove(&(line.until, region));
        line.waiting.pop_front();
        line.until = now + NOTICE_PATIENCE;
        if !line.waiting.is_empty() {
            self.stuck.insert((line.until, region));
        }
    }

    /// The writer's bytes are there, and the owner is not told.
    fn refuse(&mut self, to: To, room: u64) {
        self.refused += 1;
        self.answered.push((to, Outcome::of(OperationStatus::NotificationsFull, room)));
    }

    fn give_back(&mut self, to: To) {
        let holder = Holder::of(to);
        if let Some(held) = self.held.get_mut(&holder) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&holder);
            }
        }
    }

    /// Those of a region that wait, and are such, wait no more. Their writers are told, unless nobody hears it.
    fn give_up(&mut self, region: u64, which: impl Fn(To, &Notice) -> bool, is_told: bool) {
        let Some(line) = self.lines.get_mut(&region) else { return };
        let room = line.room();
        let (gone, kept): (VecDeque<_>, _) =
            std::mem::take(&mut line.waiting).into_iter().partition(|(to, notice)| which(*to, notice));
        line.waiting = kept;
        if line.waiting.is_empty() {
            self.stuck.remove(&(line.until, region));
        }
        for (to, _) in gone {
            self.give_back(to);
            if is_told {
                self.refuse(to, room);
            }
        }
    }

    /// The owner has taken nothing for long.
    pub(crate) fn expire(&mut self, now: Time) {
        while let Some(&(_, region)) = self.stuck.first().filter(|(until, _)| *until <= now) {
            self.stuck.pop_first();
            self.give_up(region, |_, _| true, true);
        }
    }

    /// A region ended.
    pub(crate) fn forget(&mut self, region: u64) {
        self.give_up(region, |_, _| true, true);
        if let Some(ring) = self.lines.remove(&region).and_then(|line| line.ring) {
            self.by_ring.remove(&ring);
        }
    }

    /// A peer is about to lose a region: its host waits for what it began there.
    pub(crate) fn halt(&mut self, region: u64, peer: IpAddr) {
        self.give_up(region, |_, notice| notice.from == Some(peer), true);
    }

    /// Nobody hears what is said to such writers any more.
    fn drop_holder(&mut self, holder: Holder) {
        if self.held.contains_key(&holder) {
            for (_, region) in self.stuck.clone() {
                self.give_up(region, |to, _| Holder::of(to) == holder, false);
            }
        }
        self.answered.retain(|(to, _)| Holder::of(*to) != holder);
    }

    /// A lane is severed.
    pub(crate) fn drop_lane(&mut self, lane: LaneId) {
        self.drop_holder(Holder::Lane(lane));
    }

    /// A program is gone.
    pub(crate) fn drop_program(&mut self, app: AppId) {
        self.drop_holder(Holder::Program(app));
    }
}

impl Operations {
    /// The owner of a region is to be told. The writer's answer is among [`Notices::take_answered`], at once or later.
    pub(crate) fn tell_owner(&mut self, region: u64, notice: Notice, to: To, now: Time) {
        let line = self.notices.lines.entry(region).or_default();
        if line.ring.is_none() && line.early.len() < NOTICES_EARLY_MAX {
            line.early.push_back(notice);
            self.notices.answered.push((to, Outcome::DONE));
            return;
        }
        let is_first = line.early.is_empty() && line.waiting.is_empty();
        if let Some(ring) = line.ring.filter(|_| is_first)
            && self.put_notice(ring, &notice)
        {
            self.notices.answered.push((to, Outcome::DONE));
            return;
        }
        self.notices.wait(region, to, notice, now);
    }

    /// A program owns a region, and has its notices go into a queue of its own.
    pub(crate) fn notices_into(&mut self, app: AppId, region: u64, queue: u64, now: Time) {
        let is_it = |(_, open): &(QueueId, &super::queue::OperationQueue)| {
            open.at().app == app && open.slot().id() == queue && !open.is_closed()
        };
        // It may have closed it meanwhile.
        let Some((ring, open)) = self.queues.iter().find(is_it) else { return };
        let room = u64::from(open.slot().size().first) / NOTICE_BYTES as u64;
        // One ring is of one region, and one region has one ring.
        if let Some(other) = self.notices.by_ring.insert(ring, region)
            && let Some(line) = self.notices.lines.get_mut(&other)
        {
            line.ring = None;
        }
        let line = self.notices.lines.entry(region).or_default();
        line.room = room;
        if let Some(before) = line.ring.replace(ring).filter(|before| *before != ring) {
            self.notices.by_ring.remove(&before);
        }
        self.fill_ring(ring, now);
    }

    /// A queue's application rang, or has got the queue: if it is for notices, there may be room.
    pub(crate) fn fill_ring(&mut self, ring: QueueId, now: Time) {
        let Some(&region) = self.notices.by_ring.get(&ring) else { return };
        let early = |notices: &Notices| notices.lines.get(&region)?.early.front().copied();
        while let Some(notice) = early(&self.notices) {
            if !self.put_notice(ring, &notice) {
                return;
            }
            self.notices.lines.get_mut(&region).and_then(|line| line.early.pop_front());
        }
        let first = |notices: &Notices| notices.lines.get(&region)?.waiting.front().copied();
        while let Some((to, notice)) = first(&self.notices) {
            if !self.put_notice(ring, &notice) {
                return;
            }
            self.notices.give_back(to);
            self.notices.answered.push((to, Outcome::DONE));
            self.notices.is_taken(region, now);
        }
    }

    /// A queue is closed: its region has none from here on.
    pub(crate) fn lose_ring(&mut self, ring: QueueId) {
        if let Some(region) = self.notices.by_ring.remove(&ring)
            && let Some(line) = self.notices.lines.get_mut(&region)
        {
            line.ring = None;
        }
    }

    /// Whether there was room.
    fn put_notice(&mut self, ring: QueueId, notice: &Notice) -> bool {
        let Some(queue) = self.queues.get_mut(ring) else { return false };
        let (head, from) = notice.to_parts();
        match queue.tell(&head, &from, NOTICE_BYTES as u64) {
            Ok(None) => return false,
            Ok(Some(is_awaited)) => self.marks.push((queue.at(), is_awaited)),
            Err(fault) => {
                self.faults.push((ring, fault));
                return false;
            }
        }
        self.notices.told += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Key;

    const REGION: u64 = 7;

    fn peer(lane: u32, id: u32) -> To {
        To::Peer { lane: LaneId::from_bits(lane), id }
    }

    fn notice(from: u8) -> Notice {
        Notice { tag: 1, offset: 0, bytes: 8, from: Some(IpAddr::from([10, 0, 0, from])) }
    }

    /// With a line that has no room.
    fn full() -> Notices {
        let mut notices = Notices::default();
        notices.lines.insert(REGION, Line::default());
        notices
    }

    fn refused(notices: &mut Notices) -> usize {
        notices.take_answered().iter().filter(|(_, end)| end.status == OperationStatus::NotificationsFull).count()
    }

    #[test]
    fn of_a_lane_and_of_a_program_so_many_wait() {
        let mut notices = full();
        for id in 0..600 {
            notices.wait(REGION, peer(1, id), notice(1), Time(0));
        }
        assert_eq!((notices.waiting(), refused(&mut notices)), (512, 88));
        notices.wait(REGION, peer(2, 0), notice(2), Time(0));
        for request in 0..70 {
            notices.wait(REGION, To::Program { app: AppId(1), request }, notice(0), Time(0));
        }
        assert_eq!((notices.waiting(), refused(&mut notices)), (512 + 1 + 64, 6));
        // Each of these ways out gives its places back.
        notices.halt(REGION, IpAddr::from([10, 0, 0, 1]));
        assert_eq!((notices.waiting(), refused(&mut notices)), (65, 512));
        notices.drop_program(AppId(1));
        assert_eq!((notices.waiting(), refused(&mut notices)), (1, 0));
        notices.wait(REGION, peer(1, 0), notice(1), Time(0));
        notices.drop_lane(LaneId::from_bits(2));
        assert_eq!((notices.waiting(), refused(&mut notices)), (1, 0));
        notices.forget(REGION);
        assert_eq!((notices.waiting(), refused(&mut notices), notices.deadline()), (0, 1, None));
        assert!(notices.held.is_empty() && notices.stuck.is_empty() && notices.lines.is_empty());
    }

    #[test]
    fn a_line_is_refused_when_its_own_time_is_over() {
        let mut notices = full();
        notices.lines.insert(8, Line::default());
        let second = Time(NOTICE_PATIENCE.as_nanos() as u64 / 2);
        notices.wait(REGION, peer(1, 0), notice(1), Time(0));
        notices.wait(8, peer(1, 1), notice(1), second);
        notices.wait(REGION, peer(1, 2), notice(1), second);
        let first_over = notices.deadline().unwrap();
        notices.expire(first_over);
        assert_eq!((notices.waiting(), refused(&mut notices)), (1, 2));
        let second_over = notices.deadline().unwrap();
        assert!(second_over > first_over);
        notices.expire(second_over);
        assert_eq!((notices.waiting(), refused(&mut notices), notices.deadline()), (0, 1, None));
    }

    /// The least of many times, which load does not change, to find whose turn is next when of so many regions one waits.
    #[allow(clippy::disallowed_types)] // it measures
    fn least_time(regions: u32) -> std::time::Duration {
        let mut notices = Notices::default();
        for region in 0..u64::from(regions) {
            notices.lines.insert(region, Line::default());
            notices.wait(region, To::Program { app: AppId(region as u32), request: 1 }, notice(1), Time(region));
        }
        let turn = |_| {
            let start = std::time::Instant::now();
            assert_eq!(notices.deadline(), Some(Time(0) + NOTICE_PATIENCE));
            start.elapsed()
        };
        (0..100).map(turn).min().unwrap()
    }

    /// Every round of the engine asks.
    #[test]
    fn regions_whose_notices_wait_make_no_round_longer() {
        let (few, many) = (least_time(10), least_time(4_000));
        assert!(many < 50 * few.max(std::time::Duration::from_nanos(100)), "{few:?} of 10, {many:?} of 4,000");
    }

    #[test]
    fn who_took_one_gives_the_others_of_its_region_time() {
        let mut notices = full();
        notices.lines.insert(8, Line::default());
        for (region, id) in [(REGION, 0), (REGION, 1), (8, 2)] {
            notices.wait(region, peer(1, id), notice(1), Time(0));
        }
        let half = Time(NOTICE_PATIENCE.as_nanos() as u64 / 2);
        notices.is_taken(REGION, half);
        notices.expire(Time(0) + NOTICE_PATIENCE);
        assert_eq!((refused(&mut notices), notices.deadline()), (1, Some(half + NOTICE_PATIENCE)));
        notices.is_taken(REGION, half);
        assert_eq!(notices.deadline(), None);
    }
}
