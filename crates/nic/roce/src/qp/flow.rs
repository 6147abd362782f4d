//! How much a requester may have in flight, and when the next packet may leave.
//!
//! The window is that of [`Window`], which losses make smaller, less what [`Notified`] takes away where the path marks
//! queues. Over a far path it may hold more, as much as the peer buffers, and packets leave spread over the round trip:
//! a window that leaves at once would overflow the queues on its way, and with go-back-N each loss repeats all of it.

use std::time::Duration;

use verbs::Time;

use super::notified::Notified;
use super::round_trip::RoundTrip;
use super::window::Window;
use crate::limits::{
    FAR_PACKETS_MAX, FAR_ROUND_TRIP, FAR_WINDOW_MAX, MARKED_BURST_PACKETS, NicLimits, PACE_BURST, WINDOW_FLOOR_PACKETS,
};

/// Window and pace of one requester.
#[derive(Debug)]
pub(crate) struct Flow {
    window: Window,
    pace: Pace,
    notified: Notified,
    round_trip: RoundTrip,
    is_far: bool,
    /// Packets and bytes that a near path may hold, and bytes that any may.
    near: (u32, u32),
    most_bytes: u32,
}

/// When the next packet may leave. Packets leave in bursts, because timers are not exact.
#[derive(Debug, Default, Clone, Copy)]
struct Pace {
    /// When all that was sent has left the sender at its rate.
    at: Time,
    /// Nothing leaves before.
    until: Option<Time>,
}

impl Pace {
    /// What leaves takes so long at the rate. Of a timer that was late `made_up` is made up for.
    fn on_sent(&mut self, took: Duration, burst: Duration, made_up: Duration, now: Time) {
        let earliest = Time(now.0.saturating_sub(nanos(made_up)));
        self.at = self.at.max(earliest) + took;
        if self.at > now + burst {
            self.until = Some(self.at);
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Flow {
    /// For packets of this path MTU. Bounds come by [`Self::limit`].
    pub(crate) fn new(mtu: usize) -> Self {
        Self {
            window: Window::new(u32::MAX, u64::MAX, mtu),
            pace: Pace::default(),
            notified: Notified::default(),
            round_trip: RoundTrip::default(),
            is_far: false,
            near: (u32::MAX, u32::MAX),
            most_bytes: u32::MAX,
        }
    }

    /// What the device and the peer, which buffers `budget` bytes, allow. They may change while the QP runs.
    pub(crate) fn limit(&mut self, limits: &NicLimits, budget: u32) {
        self.near = (limits.window_packets, limits.window_bytes.min(budget));
        self.most_bytes = limits.window_bytes.max(FAR_WINDOW_MAX).min(budget);
        self.apply_bounds();
    }

    /// Over a far path the bounds are those of a near one for each millisecond.
    fn apply_bounds(&mut self) {
        let (packets, bytes) = self.near;
        let millis = self.round_trip.shortest().filter(|_| self.is_far).map_or(1, |shortest| shortest.as_millis());
        let times = u32::try_from(millis).unwrap_or(u32::MAX).max(1);
        let packets = packets.saturating_mul(times).min(packets.max(FAR_PACKETS_MAX));
        self.window.limit(packets, bytes.saturating_mul(times).min(self.most_bytes).into());
    }

    /// Bytes that may be in flight.
    fn bytes(&self) -> u64 {
        let bytes = self.window.bytes();
        let least = WINDOW_FLOOR_PACKETS * self.window.packet_bytes();
        self.notified.of(bytes).max(least.min(bytes))
    }

    /// Whether a packet of `charge` bytes may join `packets` with `bytes` that are in flight. One always may.
    pub(crate) fn admits(&self, packets: u64, bytes: u64, charge: u64) -> bool {
        packets == 0 || (packets < self.window.cap_packets() && bytes + charge <= self.bytes())
    }

    /// Whether a full packet would not be admitted: the last one before must ask for an ACK.
    pub(crate) fn is_full(&self, packets: u64, bytes: u64) -> bool {
        !self.admits(packets, bytes, self.window.packet_bytes())
    }

    /// Full packets that may join what is in flight.
    pub(crate) fn room_packets(&self, packets: u64, bytes: u64) -> u64 {
        let by_bytes = self.bytes().saturating_sub(bytes) / self.window.packet_bytes();
        let room = by_bytes.min(self.window.cap_packets().saturating_sub(packets));
        if packets == 0 { room.max(1) } else { room }
    }

    /// Full packets that the window holds now.
    pub(crate) fn packets(&self) -> u64 {
        (self.bytes() / self.window.packet_bytes()).clamp(1, self.window.cap_packets())
    }

    /// Whether the pace forbids sending.
    pub(crate) const fn is_paced(&self) -> bool {
        self.pace.until.is_some()
    }

    /// When the pace allows the next packet.
    pub(crate) const fn paced_until(&self) -> Option<Time> {
        self.pace.until
    }

    /// The peer saw a mark of congestion.
    pub(crate) fn on_notification(&mut self, now: Time) {
        self.notified.on_notification(self.round_trip.shortest(), now);
    }

    /// The time moved on.
    pub(crate) fn on_time(&mut self, now: Time) {
        self.notified.on_time(now);
        if self.pace.until.is_some_and(|until| until <= now) {
            self.pace.until = None;
        }
    }

    /// Packets of so many bytes leave, or are asked for.
    pub(crate) fn on_sent(&mut self, bytes: u64, now: Time) {
        if !self.is_far {
            return;
        }
        let round_trip = nanos(self.round_trip.shortest().unwrap_or_default());
        let time_of = |bytes: u64| Duration::from_nanos(bytes.saturating_mul(round_trip) / self.bytes().max(1));
        let (burst, made_up) = if self.notified.is_recent(now) {
            (PACE_BURST.min(time_of(MARKED_BURST_PACKETS * self.window.packet_bytes())), Duration::ZERO)
        } else {
            (PACE_BURST, PACE_BURST)
        };
        self.pace.on_sent(time_of(bytes), burst, made_up, now);
    }

    /// So many bytes arrived.
    pub(crate) fn on_delivered(&mut self, bytes: u64) {
        self.window.on_acked(bytes);
    }

    /// Measures the round trip with this packet, which leaves now and asks for an answer, if none does yet.
    pub(crate) fn begin_measuring(&mut self, packet: u64, now: Time) {
        self.round_trip.begin(packet, now);
    }

    /// Packets from `una` on are sent once more.
    pub(crate) fn forget_measuring(&mut self, una: u64) {
        self.round_trip.forget(una);
    }

    /// Everything before `una` is answered; gives the round trip, if that was measured.
    pub(crate) fn measure(&mut self, una: u64, now: Time) -> Option<Duration> {
        let took = self.round_trip.finish(una, now)?;
        let was_far = self.is_far;
        self.is_far = self.round_trip.shortest().is_some_and(|shortest| shortest >= FAR_ROUND_TRIP);
        if self.is_far || was_far {
            self.apply_bounds();
        }
        Some(took)
    }

    /// Something was lost.
    pub(crate) fn on_loss(&mut self) {
        self.window.on_loss();
    }

    /// Nothing came back for a whole timeout.
    pub(crate) fn on_timeout(&mut self) {
        self.window.on_timeout(self.round_trip.shortest().is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::PACKET_CHARGE_BYTES;

    const PACKET: u64 = 4_096 + PACKET_CHARGE_BYTES;

    fn at(micros: u64) -> Time {
        Time(micros * 1_000)
    }

    fn flow(round_trip_micros: u64) -> Flow {
        let mut flow = Flow::new(4_096);
        flow.limit(&NicLimits::default(), u32::MAX);
        flow.begin_measuring(0, at(0));
        assert_eq!(flow.measure(1, at(round_trip_micros)), Some(Duration::from_micros(round_trip_micros)));
        flow.on_delivered(64 << 20);
        flow
    }

    /// Packets that leave before the pace holds them back.
    fn burst(flow: &mut Flow, now: Time) -> u64 {
        (0..1_000).take_while(|_| (!flow.is_paced()).then(|| flow.on_sent(PACKET, now)).is_some()).count() as u64
    }

    #[test]
    fn a_near_path_is_not_paced_and_a_longer_one_holds_more() {
        let mut near = flow(499);
        assert_eq!((near.packets(), burst(&mut near, at(499))), ((1 << 20) / PACKET, 1_000));
        assert_eq!(flow(1_999).packets(), (1 << 20) / PACKET);
        assert_eq!(flow(3_000).packets(), (3 << 20) / PACKET);
        assert_eq!(flow(100_000).packets(), (4 << 20) / PACKET, "each loss repeats it");
        let mut small = Flow::new(4_096);
        small.limit(&NicLimits::default(), 10_000);
        small.begin_measuring(0, at(0));
        small.measure(1, at(100_000));
        small.on_delivered(64 << 20);
        assert_eq!(small.packets(), 10_000 / PACKET, "what the peer buffers");
    }

    #[test]
    fn a_far_window_leaves_spread_over_the_round_trip() {
        let mut flow = flow(4_000);
        // In 0.25 ms a sixteenth of it leaves, and as much that a late timer may have left behind.
        let window = flow.packets();
        assert_eq!(window, (4 << 20) / PACKET);
        assert_eq!(burst(&mut flow, at(4_000)), window / 8 + 1);
        let until = flow.paced_until().expect("paced");
        flow.on_time(until);
        assert_eq!(burst(&mut flow, until), window / 16 + 1, "no timer was late");
        flow.on_notification(until);
        let (half, until) = (flow.packets(), flow.paced_until().expect("paced"));
        flow.on_time(until);
        assert!(half < window * 6 / 10);
        assert_eq!(burst(&mut flow, until + Duration::from_micros(500)), MARKED_BURST_PACKETS + 1, "and no makeup");
    }

    #[test]
    fn a_path_that_turns_out_to_be_near_is_bound_as_one() {
        let mut flow = flow(4_000);
        flow.begin_measuring(1, at(4_000));
        flow.measure(2, at(4_100));
        assert_eq!((flow.packets(), burst(&mut flow, at(4_100))), ((1 << 20) / PACKET, 1_000));
    }
}
