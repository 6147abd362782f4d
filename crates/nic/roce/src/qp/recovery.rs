//! Which packets in flight have arrived and which are lost, as a peer that repeats selectively reports them.
//!
//! A packet is lost if one that was sent [`REORDER_PACKETS`] after it has arrived. A lost packet is sent again, and lost
//! again if one that was sent as long after that has arrived. The last packets before a pause have none after them; the
//! probe finds them.

use std::collections::VecDeque;
use std::ops::Range;

use super::ranges::Ranges;
use super::send_queue::SendQueue;
use crate::limits::{REORDER_PACKETS, REPORTED_RANGES_MAX};

/// Packets between `una` and `next` of a requester.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// Arrived.
    arrived: Ranges,
    arrived_count: Count,
    /// Lost, and to be sent again.
    lost: Ranges,
    lost_count: Count,
    /// The peer has told which of these arrived, and the others were found lost, once.
    told: Ranges,
    /// The packet after the highest that arrived.
    highest: u64,
    /// Sent again, in the order of sending.
    again: VecDeque<Again>,
}

/// Packets, and their window bytes.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    packets: u64,
    bytes: u64,
}

impl Count {
    fn add(&mut self, range: &Range<u64>, queue: &SendQueue) {
        self.packets += range.end - range.start;
        self.bytes += queue.charge(range);
    }

    fn sub(&mut self, range: &Range<u64>, queue: &SendQueue) {
        self.packets = self.packets.saturating_sub(range.end - range.start);
        self.bytes = self.bytes.saturating_sub(queue.charge(range));
    }
}

#[derive(Debug)]
struct Again {
    packets: Range<u64>,
    /// The first packet that was not sent before them.
    before: u64,
}

/// What a report changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// Window bytes that are known to have arrived now.
    pub(crate) arrived_bytes: u64,
    /// The first packet that was found lost now, and how many.
    pub(crate) lost: Option<(u64, u64)>,
}

impl Recovery {
    /// Whether nothing is known but what is in order.
    pub(crate) fn is_idle(&self) -> bool {
        self.arrived.is_empty() && self.lost.is_empty() && self.again.is_empty() && self.told.is_empty()
    }

    /// Packets between `una` and `next` that are not in flight, and their bytes.
    pub(crate) const fn not_in_flight(&self) -> (u64, u64) {
        (self.arrived_count.packets + self.lost_count.packets, self.arrived_count.bytes + self.lost_count.bytes)
    }

    pub(crate) fn has_arrived(&self, packet: u64) -> bool {
        self.arrived.contains(packet)
    }

    /// The next packet to send again.
    pub(crate) fn next_lost(&self) -> Option<u64> {
        self.lost.first()
    }

    /// Whether one packet at most is to be sent again.
    pub(crate) const fn is_last_lost(&self) -> bool {
        self.lost_count.packets <= 1
    }

    /// Takes a report: all before `received` have arrived, and so have `arrived`, one after the other in order from
    /// `told_from` on, and the packet before `highest`. Only what is in `flight` counts.
    pub(crate) fn on_report(
        &mut self,
        arrived: impl Iterator<Item = Range<u64>>,
        told_from: u64,
        highest: u64,
        flight: Range<u64>,
        queue: &SendQueue,
    ) -> News {
        let mut news = News::default();
        let mut told_to = told_from;
        for range in arrived {
            let range = range.start.max(flight.start)..range.end.min(flight.end);
            if range.is_empty() {
                continue;
            }
            if self.arrived.count() >= REPORTED_RANGES_MAX && !self.arrived.touches(&range) {
                break;
            }
            told_to = range.end;
            let count = &mut self.arrived_count;
            self.arrived.insert(range.clone(), |part| {
                news.arrived_bytes += queue.charge(&part);
                count.add(&part, queue);
            });
            let lost = &mut self.lost_count;
            self.lost.remove(range, |part| lost.sub(&part, queue));
        }
        self.highest = self.highest.max(highest.min(flight.end)).max(told_to);
        let sure = self.highest.saturating_sub(REORDER_PACKETS);
        let told = told_from.max(flight.start)..told_to.min(sure);
        if !told.is_empty() && (self.told.count() < REPORTED_RANGES_MAX || self.told.touches(&told)) {
            let mut parts = Vec::new();
            self.told.insert(told, |part| parts.push(part));
            parts.into_iter().for_each(|part| self.lose(part, queue, &mut news));
        }
        while self.again.front().is_some_and(|again| again.before < sure)
            && let Some(again) = self.again.pop_front()
        {
            self.lose(again.packets.start.max(flight.start)..again.packets.end, queue, &mut news);
        }
        news
    }

    /// All of `range` that has not arrived is lost.
    fn lose(&mut self, range: Range<u64>, queue: &SendQueue, news: &mut News) {
        let Self { arrived, lost, lost_count, .. } = self;
        arrived.for_gaps(range, |gap| {
            lost.insert(gap, |part| {
                lost_count.add(&part, queue);
                let (first, packets) = news.lost.unwrap_or((part.start, 0));
                news.lost = Some((first.min(part.start), packets + part.end - part.start));
            });
        });
    }

    /// Nothing was heard for several round trips: what was sent again, or before something that arrived, is lost.
    /// `all`: so is what was sent after.
    pub(crate) fn lose_all(&mut self, flight: Range<u64>, all: bool, queue: &SendQueue) -> News {
        let mut news = News::default();
        self.again.clear();
        let end = if all { flight.end } else { self.highest.min(flight.end) };
        self.lose(flight.start..end, queue, &mut news);
        self.told.insert(flight.start..end, |_| {});
        news
    }

    /// These were sent again, when `next` was the first that was never sent.
    pub(crate) fn on_sent_again(&mut self, packets: Range<u64>, next: u64, queue: &SendQueue) {
        let count = &mut self.lost_count;
        self.lost.remove(packets.clone(), |part| count.sub(&part, queue));
        match self.again.back_mut() {
            Some(last) if last.before == next && last.packets.end == packets.start => last.packets.end = packets.end,
            _ => self.again.push_back(Again { packets, before: next }),
        }
    }

    /// All of `range` is acknowledged; gives the window bytes that were known to have arrived. Its requests are still
    /// in the queue.
    pub(crate) fn on_acknowledged(&mut self, range: Range<u64>, queue: &SendQueue) -> u64 {
        if self.is_idle() {
            return 0;
        }
        let before = self.arrived_count.bytes;
        let (arrived, lost) = (&mut self.arrived_count, &mut self.lost_count);
        self.arrived.remove(range.clone(), |part| arrived.sub(&part, queue));
        self.lost.remove(range.clone(), |part| lost.sub(&part, queue));
        self.told.remove(0..range.end, |_| {});
        while self.again.front().is_some_and(|again| again.packets.end <= range.end) {
            self.again.pop_front();
        }
        before - self.arrived_count.bytes
    }

    /// Everything is sent again in order.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::send_queue::Cut;
    use super::*;
    use rnic::SendLimits;
    use verbs::{Payload, RemoteAddr, Rkey, SendFlags, SendOp, SendWr};

    /// A queue of so many packets, each charged 128 bytes.
    fn queue(packets: u64) -> SendQueue {
        let limits = SendLimits { max_wr: 4_096, max_sge: 0, max_inline_bytes: 0, max_msg_bytes: 0, sig_all: false };
        let mut queue = SendQueue::new(limits);
        let op = SendOp::Write(RemoteAddr { addr: 0, rkey: Rkey(0) });
        for wr_id in 0..packets {
            let wr = SendWr { wr_id, op, payload: Payload::Sges(&[]), flags: SendFlags::empty(), dest: None };
            queue.post(&wr, 256, Cut::Mtu).expect("room");
        }
        queue
    }

    fn report(recovery: &mut Recovery, arrived: &[(u64, u64)], flight: Range<u64>, queue: &SendQueue) -> News {
        let highest = arrived.last().map_or(0, |(_, end)| *end);
        recovery.on_report(arrived.iter().map(|&(start, end)| start..end), flight.start, highest, flight, queue)
    }

    fn lost(recovery: &mut Recovery, next: u64, queue: &SendQueue) -> Vec<u64> {
        let mut all = Vec::new();
        while let Some(packet) = recovery.next_lost() {
            recovery.on_sent_again(packet..packet + 1, next, queue);
            all.push(packet);
        }
        all
    }

    #[test]
    fn what_three_later_ones_overtook_is_lost() {
        let queue = queue(100);
        let mut recovery = Recovery::default();
        let news = report(&mut recovery, &[(11, 13)], 10..50, &queue);
        assert_eq!(news, News { arrived_bytes: 256, lost: None }, "two may overtake it");
        let news = report(&mut recovery, &[(11, 14), (20, 21)], 10..50, &queue);
        assert_eq!(news, News { arrived_bytes: 256, lost: Some((10, 5)) });
        assert_eq!(recovery.not_in_flight(), (9, 9 * 128));
        assert_eq!(lost(&mut recovery, 50, &queue), [10, 14, 15, 16, 17]);
        assert_eq!(recovery.not_in_flight(), (4, 4 * 128));
        assert!(recovery.has_arrived(20) && !recovery.has_arrived(19));
        // Packets that were sent after those arrive: they are lost once more, and so are the three in doubt.
        let news = report(&mut recovery, &[(11, 15), (20, 21), (50, 54)], 10..60, &queue);
        assert_eq!(news.lost.map(|(first, _)| first), Some(10));
        assert_eq!(lost(&mut recovery, 60, &queue)[..6], [10, 15, 16, 17, 18, 19]);
        // The peer has all: nothing is left to count.
        assert_eq!(recovery.on_acknowledged(10..60, &queue), (3 + 1 + 1 + 4) * 128);
        assert!(recovery.is_idle() && recovery.not_in_flight() == (0, 0), "{recovery:?}");
    }

    #[test]
    fn a_silence_loses_what_is_in_doubt() {
        let queue = queue(100);
        let mut recovery = Recovery::default();
        report(&mut recovery, &[(1, 20)], 0..40, &queue);
        assert_eq!(lost(&mut recovery, 40, &queue), [0]);
        recovery.lose_all(0..40, false, &queue);
        assert_eq!(lost(&mut recovery, 40, &queue), [0], "what was sent after the last arrival may be on its way");
        recovery.lose_all(0..40, true, &queue);
        assert_eq!(lost(&mut recovery, 40, &queue), [vec![0], (20..40).collect()].concat());
    }

    #[test]
    fn reports_of_a_liar_are_bounded() {
        let queue = queue(4_000);
        let mut recovery = Recovery::default();
        let all = (0..2_000).map(|n| 2 * n + 1..2 * n + 2);
        recovery.on_report(all.chain(std::iter::once(0..u64::MAX)), 0, u64::MAX, 0..4_000, &queue);
        assert!(recovery.arrived.count() <= REPORTED_RANGES_MAX);
        let (packets, _) = recovery.not_in_flight();
        assert!((2_000..=4_000).contains(&packets), "cut to what is in flight: {packets}");
    }
}
