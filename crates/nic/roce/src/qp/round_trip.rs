//! How long packets take there and back, one measured at a time.

use std::time::Duration;

use verbs::Time;

/// How long the shortest round trip is believed: it is that of this and the last interval.
const SHORTEST_FOR: Duration = Duration::from_secs(10);

/// Measurements of one path.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RoundTrip {
    /// The packet that is on its way, and when it left.
    timed: Option<(u64, Time)>,
    since: Time,
    /// Shortest of this interval, and of the one before.
    now: Option<Duration>,
    before: Option<Duration>,
}

impl RoundTrip {
    /// The shortest of late, once there is a measurement.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.now.into_iter().chain(self.before).min()
    }

    /// This packet leaves and asks for an answer.
    pub(crate) fn begin(&mut self, packet: u64, now: Time) {
        self.timed.get_or_insert((packet, now));
    }

    /// Packets from `una` on are sent once more, so that it will not be known which copy is answered.
    pub(crate) fn forget(&mut self, una: u64) {
        self.timed = self.timed.filter(|(packet, _)| *packet < una);
    }

    /// Everything before `una` is answered; says how long it took, if the measured packet is among it.
    pub(crate) fn finish(&mut self, una: u64, now: Time) -> Option<Duration> {
        let (_, sent_at) = self.timed.take_if(|(packet, _)| *packet < una)?;
        let took = now.saturating_since(sent_at);
        if now.saturating_since(self.since) >= SHORTEST_FOR {
            (self.since, self.before, self.now) = (now, self.now, None);
        }
        self.now = Some(self.now.map_or(took, |shortest| shortest.min(took)));
        Some(took)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn one_packet_is_measured_until_it_is_answered_or_sent_again() {
        let mut round_trip = RoundTrip::default();
        round_trip.begin(5, Time(MS));
        round_trip.begin(6, Time(2 * MS));
        assert_eq!(round_trip.finish(5, Time(3 * MS)), None, "5 is not answered");
        assert_eq!(round_trip.finish(7, Time(4 * MS)), Some(Duration::from_millis(3)));
        assert_eq!(round_trip.finish(8, Time(5 * MS)), None, "nothing is measured");
        round_trip.begin(8, Time(5 * MS));
        round_trip.forget(9);
        assert_eq!(round_trip.finish(9, Time(7 * MS)), Some(Duration::from_millis(2)), "9 alone was sent again");
        round_trip.begin(9, Time(7 * MS));
        round_trip.forget(9);
        assert_eq!(round_trip.finish(10, Time(7 * MS)), None);
        assert_eq!(round_trip.shortest(), Some(Duration::from_millis(2)));
    }

    #[test]
    fn a_longer_way_is_believed_after_a_while() {
        let mut round_trip = RoundTrip::default();
        let mut take = |millis: u64, at: u64| {
            round_trip.begin(0, Time(at));
            round_trip.finish(1, Time(at + millis * MS));
            round_trip.shortest()
        };
        assert_eq!(take(1, 1), Some(Duration::from_millis(1)));
        let all: Vec<_> = (0..30).map(|second| take(50, second * 1000 * MS)).collect();
        assert_eq!((all[5], all[29]), (Some(Duration::from_millis(1)), Some(Duration::from_millis(50))));
    }
}
