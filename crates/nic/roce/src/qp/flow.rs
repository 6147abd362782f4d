//! How much a requester may have in flight, and when the next packet may leave.
//!
//! A near path has the window of [`Window`], which losses make smaller. A far path towards a peer that repeats
//! selectively has the window and pace of [`PathModel`]: there a loss costs one packet, and slowing down for each would
//! cost nearly everything. A far path towards others keeps [`Window`], up to what the path holds: with go-back-N each
//! loss repeats a whole window.

use std::time::Duration;

use verbs::Time;

use super::notified::Notified;
use super::path_model::{PathModel, rate_of};
use super::window::Window;
use crate::limits::{
    FAR_PACKETS_MAX, FAR_ROUND_TRIP, FAR_WINDOW_MAX, INITIAL_PACKETS, MARKED_BURST_PACKETS, PACE_BURST,
    WINDOW_FLOOR_PACKETS,
};

/// Window, model and pace of one requester.
#[derive(Debug)]
pub(crate) struct Flow {
    window: Window,
    pub(super) model: PathModel,
    pace: Pace,
    notified: Notified,
    /// Bytes that the peer buffers.
    budget: u64,
    mtu: usize,
    is_selective: bool,
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
    fn on_sent(&mut self, bytes: u64, rate: u64, burst: Duration, now: Time) {
        if rate == 0 {
            return;
        }
        let took = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate);
        // Of a timer that was late so much is made up for.
        let earliest = Time(now.0.saturating_sub(nanos(PACE_BURST)));
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
    pub(crate) fn new(cap_packets: u32, cap_bytes: u64, budget: u32, mtu: usize) -> Self {
        Self {
            window: Window::new(cap_packets, cap_bytes, mtu),
            model: PathModel::default(),
            pace: Pace::default(),
            notified: Notified::default(),
            budget: budget.into(),
            mtu,
            is_selective: false,
        }
    }

    /// Other bounds while the QP runs, and whether both ends repeat selectively.
    pub(crate) fn limit(&mut self, cap_packets: u32, cap_bytes: u64, budget: u32, is_selective: bool) {
        self.window.limit(cap_packets, cap_bytes);
        self.budget = budget.into();
        self.is_selective = is_selective;
    }

    fn is_far(&self) -> bool {
        self.model.shortest().is_some_and(|rtt| rtt >= FAR_ROUND_TRIP)
    }

    fn is_modelled(&self) -> bool {
        self.is_selective && self.is_far()
    }

    /// Packets and bytes that may be in flight.
    fn bounds(&self) -> (u64, u64) {
        let least = WINDOW_FLOOR_PACKETS * self.window.packet_bytes();
        if !self.is_modelled() {
            let bytes = self.window.bytes();
            return (self.window.cap_packets(), self.notified.of(bytes).max(least.min(bytes)));
        }
        let fits = self.model.fits();
        let most = fits.saturating_add(self.budget).min(FAR_WINDOW_MAX);
        let start = INITIAL_PACKETS * self.window.packet_bytes();
        let burst = self.model.pace() / u64::try_from(1_000_000_000 / PACE_BURST.as_nanos()).unwrap_or(1);
        let bytes = self.model.window().saturating_add(burst).clamp(start, most.max(start));
        (FAR_PACKETS_MAX, self.notified.of(bytes).max(least))
    }

    /// Whether a packet of `charge` bytes may join `packets` with `bytes` that are in flight. One always may.
    pub(crate) fn admits(&self, packets: u64, bytes: u64, charge: u64) -> bool {
        let (most_packets, most_bytes) = self.bounds();
        packets == 0 || (packets < most_packets && bytes + charge <= most_bytes)
    }

    /// Whether a full packet would not be admitted: the last one before must ask for an ACK.
    pub(crate) fn is_full(&self, packets: u64, bytes: u64) -> bool {
        !self.admits(packets, bytes, self.window.packet_bytes())
    }

    /// Full packets that may join what is in flight.
    pub(crate) fn room_packets(&self, packets: u64, bytes: u64) -> u64 {
        let (most_packets, most_bytes) = self.bounds();
        let by_bytes = most_bytes.saturating_sub(bytes) / self.window.packet_bytes();
        let room = by_bytes.min(most_packets.saturating_sub(packets));
        if packets == 0 { room.max(1) } else { room }
    }

    /// Full packets that the window holds now.
    pub(crate) fn packets(&self) -> u64 {
        let (packets, bytes) = self.bounds();
        (bytes / self.window.packet_bytes()).clamp(1, packets)
    }

    /// Bytes a second to send with; 0 for no limit. A first measurement may be of a message that was small, or waited
    /// for something else than the path: at least the first window leaves in each round trip, or the rate could take
    /// hundreds of them to grow.
    fn pace_rate(&self) -> u64 {
        let least = self.model.shortest().map_or(0, |rtt| rate_of(INITIAL_PACKETS * self.window.packet_bytes(), rtt));
        match self.model.pace() {
            0 => 0,
            pace => pace.max(least),
        }
    }

    /// How much time of the rate leaves at once.
    fn burst(&self, rate: u64, now: Time) -> Duration {
        if rate == 0 || !self.notified.is_recent(now) {
            return PACE_BURST;
        }
        let bytes = MARKED_BURST_PACKETS * self.window.packet_bytes();
        PACE_BURST.min(Duration::from_nanos(bytes * 1_000_000_000 / rate))
    }

    /// Whether the pace forbids sending.
    pub(crate) const fn is_paced(&self) -> bool {
        self.pace.until.is_some()
    }

    /// When the pace allows the next packet.
    pub(crate) const fn paced_until(&self) -> Option<Time> {
        self.pace.until
    }

    /// The peer saw a mark of congestion. A queue that the model's own probe made is drained by the model.
    pub(crate) fn on_notification(&mut self, now: Time) {
        let is_own = self.is_modelled() && self.model.drains_own_queue(now);
        self.notified.on_notification(is_own, self.model.shortest(), now);
    }

    /// The time moved on.
    pub(crate) fn on_time(&mut self, now: Time) {
        self.notified.on_time(now);
        if self.pace.until.is_some_and(|until| until <= now) {
            self.pace.until = None;
        }
    }

    /// Packets of so many bytes leave, or are asked for; `is_first`: nothing else is in flight.
    pub(crate) fn on_sent(&mut self, bytes: u64, is_first: bool, now: Time) {
        self.model.on_sent(is_first, now);
        if self.is_modelled() {
            let rate = self.notified.of(self.pace_rate());
            self.pace.on_sent(bytes, rate, self.burst(rate, now), now);
        }
    }

    /// So many bytes arrived, and were not known to have.
    pub(crate) fn on_delivered(&mut self, bytes: u64, now: Time) {
        self.model.on_delivered(bytes, now);
        self.window.on_acked(bytes);
    }

    /// Measures with the packet before `end`, which leaves now and asks for an acknowledgement, if none does yet.
    pub(crate) fn begin_measuring(&mut self, end: u64, now: Time) {
        self.model.begin(end, self.notified.is_cut(), now);
    }

    /// The measuring packet arrived; says how long it took.
    pub(crate) fn on_measured(&mut self, in_flight: u64, now: Time) -> Option<Duration> {
        let rtt = self.model.finish(in_flight, now);
        if self.is_far() && !self.is_selective {
            let fits = self.model.fits();
            let room = (fits * 2).min(fits.saturating_add(self.budget)).min(FAR_WINDOW_MAX);
            self.window.raise(FAR_PACKETS_MAX, room);
        }
        rtt
    }

    /// So many packets were lost, of which the first is `lost`, all before `sent`.
    pub(crate) fn on_loss(&mut self, lost: u64, packets: u64, sent: u64) {
        self.model.on_lost(packets * self.window.packet_bytes());
        self.window.on_loss(lost, sent);
    }

    /// Nothing came back for a whole timeout.
    pub(crate) fn on_timeout(&mut self, sent: u64) {
        self.window.on_timeout(sent);
    }

    /// Forgets what was measured.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(1, 0, 0, self.mtu);
    }
}
