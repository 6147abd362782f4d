//! What a requester has measured of its path: the rate at which packets arrive, and the shortest round trip. Over a far
//! path both together say how much to have in flight and how fast to send it.
//!
//! The method is that of BBR (draft-cardwell-iccrg-bbr-congestion-control): losses do not slow it down, because on a
//! long path random ones would; a queue that grows shows in the rate, which stays, and is drained at intervals. Each
//! round trip gives one sample of the rate: what arrived between the sending of a packet and its acknowledgement.

use std::ops::Range;
use std::time::Duration;

use verbs::Time;

/// Rounds for which the highest rate is believed.
const RATE_ROUNDS: usize = 10;
/// How long the shortest round trip is believed: it is that of this and the last interval.
const SHORTEST_FOR: Duration = Duration::from_secs(10);
/// While the rate still grows by a quarter in a round, it doubles: 2 / ln 2.
const STARTUP_PERCENT: u64 = 289;
/// What the queue of the start is drained with.
const DRAIN_PERCENT: u64 = 35;
/// Rounds without growth after which the path is full.
const FULL_ROUNDS: u32 = 3;
/// The start also ends when more than this part of what arrived is lost in a round: no path loses so much by chance.
const OVERSHOT_PART: u64 = 4;
/// Probing for more, draining what that queued, and going on, each for one round trip.
const CYCLE_PERCENT: [u64; 8] = [125, 75, 100, 100, 100, 100, 100, 100];
/// In flight are so many times what fits the path, so that acknowledgements may come late.
const CRUISE_WINDOW_PERCENT: u64 = 200;

/// Measurements of one path.
#[derive(Debug, Clone)]
pub(crate) struct PathModel {
    /// Bytes that arrived, and when the last did.
    delivered: u64,
    delivered_at: Time,
    sample: Option<Sample>,
    /// Bytes that were found lost since the last sample.
    lost: u64,
    /// What is delivered before this was sent while there was not enough to send.
    limited_until: u64,
    /// Highest rate of each of the last rounds, in bytes a second.
    rates: [u64; RATE_ROUNDS],
    round: usize,
    shortest: Shortest,
    phase: Phase,
}

/// A packet on its way.
#[derive(Debug, Clone, Copy)]
struct Sample {
    until: Until,
    delivered: u64,
    delivered_at: Time,
    /// There was not enough to send.
    is_limited: bool,
    /// Marks of congestion held the sender back.
    is_held: bool,
}

/// What ends a measurement.
#[derive(Debug, Clone, Copy)]
enum Until {
    /// This packet arrived, which was sent then.
    Packet(u64, Time),
    /// So many bytes have arrived in all.
    Delivered(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Startup { full_rate: u64, rounds: u32 },
    Drain,
    Cruise { step: usize, since: Time },
}

/// Shortest round trip of this and the last interval.
#[derive(Debug, Clone, Copy, Default)]
struct Shortest {
    since: Time,
    now: Option<Duration>,
    before: Option<Duration>,
}

impl Shortest {
    fn add(&mut self, rtt: Duration, now: Time) {
        if now.saturating_since(self.since) >= SHORTEST_FOR {
            (self.since, self.before, self.now) = (now, self.now, None);
        }
        self.now = Some(self.now.map_or(rtt, |shortest| shortest.min(rtt)));
    }

    fn get(&self) -> Option<Duration> {
        self.now.into_iter().chain(self.before).min()
    }
}

impl Default for PathModel {
    fn default() -> Self {
        Self {
            delivered: 0,
            delivered_at: Time::ZERO,
            sample: None,
            lost: 0,
            limited_until: 0,
            rates: [0; RATE_ROUNDS],
            round: 0,
            shortest: Shortest::default(),
            phase: Phase::Startup { full_rate: 0, rounds: 0 },
        }
    }
}

impl PathModel {
    /// Shortest round trip, once there is a measurement.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.shortest.get()
    }

    /// Bytes a second; 0 before the first measurement.
    pub(crate) fn rate(&self) -> u64 {
        self.rates.iter().copied().max().unwrap_or(0)
    }

    /// Bytes that are on their way when the path is full and nothing queues.
    pub(crate) fn fits(&self) -> u64 {
        self.shortest().map_or(0, |rtt| scale(self.rate(), rtt))
    }

    /// Bytes a second to send with; 0 for no limit.
    pub(crate) fn pace(&self) -> u64 {
        let percent = match self.phase {
            Phase::Startup { .. } => STARTUP_PERCENT,
            Phase::Drain => DRAIN_PERCENT,
            Phase::Cruise { step, .. } => CYCLE_PERCENT[step % CYCLE_PERCENT.len()],
        };
        percent_of(self.rate(), percent)
    }

    /// Bytes to have in flight at most.
    pub(crate) fn window(&self) -> u64 {
        let percent = match self.phase {
            Phase::Startup { .. } | Phase::Drain => STARTUP_PERCENT,
            Phase::Cruise { .. } => CRUISE_WINDOW_PERCENT,
        };
        percent_of(self.fits(), percent)
    }

    /// A packet leaves; `is_first`: nothing else is on its way.
    pub(crate) fn on_sent(&mut self, is_first: bool, now: Time) {
        if is_first {
            self.delivered_at = now;
        }
    }

    /// The path said that there is a queue. True: it is that of the model's probe, which ends now, and the model drains it.
    pub(crate) fn drains_own_queue(&mut self, now: Time) -> bool {
        match self.phase {
            Phase::Cruise { step: 0, .. } => {
                self.phase = Phase::Cruise { step: 1, since: now };
                true
            }
            Phase::Cruise { step, .. } => CYCLE_PERCENT[step] < 100,
            Phase::Startup { .. } | Phase::Drain => false,
        }
    }

    /// Measures with the packet before `end`, which leaves now and asks for an acknowledgement, if none does yet.
    /// `is_held`: marks of congestion hold the sender back.
    pub(crate) fn begin(&mut self, end: u64, is_held: bool, now: Time) {
        self.sample.get_or_insert(Sample {
            until: Until::Packet(end - 1, now),
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            is_limited: self.delivered < self.limited_until,
            is_held,
        });
    }

    /// There was nothing more to send, with so many bytes in flight: what they measure is not the path.
    pub(crate) fn on_exhausted(&mut self, in_flight: u64) {
        self.limited_until = self.delivered + in_flight.max(1);
    }

    /// So many bytes arrived.
    pub(crate) fn on_delivered(&mut self, bytes: u64, now: Time) {
        self.delivered += bytes;
        self.delivered_at = self.delivered_at.max(now);
    }

    /// So many bytes are lost.
    pub(crate) fn on_lost(&mut self, bytes: u64) {
        self.lost += bytes;
    }

    /// These are sent once more, so that it will not be known which copy was answered. If the measuring
    /// packet is among them, the rate alone is measured, until as much has arrived as is in flight. A new packet would
    /// meet the same fate: what asks for an acknowledgement is the last of a burst, which a full queue drops first.
    pub(crate) fn on_sent_again(&mut self, packets: Range<u64>, in_flight: u64) {
        let delivered = self.delivered;
        if let Some(sample) =
            self.sample.as_mut().filter(|sample| matches!(sample.until, Until::Packet(n, _) if packets.contains(&n)))
        {
            sample.until = Until::Delivered(delivered + in_flight.max(1));
        }
    }

    /// Whether the measurement is complete. `has_arrived` says it of a packet.
    pub(crate) fn is_due(&self, has_arrived: impl Fn(u64) -> bool) -> bool {
        self.sample.is_some_and(|sample| match sample.until {
            Until::Packet(packet, _) => has_arrived(packet),
            Until::Delivered(bytes) => self.delivered >= bytes,
        })
    }

    /// The measurement is complete; gives the round trip, if that was measured. `in_flight`: bytes that are still on
    /// their way.
    pub(crate) fn finish(&mut self, in_flight: u64, now: Time) -> Option<Duration> {
        let mut took = None;
        if let Some(sample) = self.sample.take() {
            if let Until::Packet(_, sent_at) = sample.until {
                let rtt = now.saturating_since(sent_at);
                self.shortest.add(rtt, now);
                took = Some(rtt);
            }
            // At least a round trip, in which no more than a window can arrive, however bunched.
            let arriving = now.saturating_since(sample.delivered_at);
            let arrived = self.delivered - sample.delivered;
            let is_limited = sample.is_limited || sample.delivered < self.limited_until;
            self.add_rate(rate_of(arrived, arriving), is_limited, sample.is_held);
            let lost = std::mem::take(&mut self.lost);
            if matches!(self.phase, Phase::Startup { .. }) && lost * OVERSHOT_PART > arrived {
                self.phase = Phase::Drain;
            }
        }
        self.step(in_flight, now);
        took
    }

    fn add_rate(&mut self, rate: u64, is_limited: bool, is_held: bool) {
        if is_limited && rate <= self.rate() {
            return;
        }
        // A lower one would hold the sender back a second time for the same marks.
        if !is_held || rate > self.rate() {
            self.round = (self.round + 1) % RATE_ROUNDS;
            self.rates[self.round] = rate;
        }
        let highest = self.rate();
        if let Phase::Startup { full_rate, rounds } = &mut self.phase {
            if highest >= percent_of(*full_rate, 125) {
                (*full_rate, *rounds) = (highest, 0);
            } else if !is_limited {
                *rounds += 1;
            }
            if *rounds >= FULL_ROUNDS {
                self.phase = Phase::Drain;
            }
        }
    }

    /// Goes on in the cycle.
    pub(crate) fn step(&mut self, in_flight: u64, now: Time) {
        let (fits, round_trip) = (self.fits(), self.shortest().unwrap_or_default());
        match self.phase {
            Phase::Startup { .. } => {}
            Phase::Drain => {
                if in_flight <= fits {
                    // Lanes that began together do not probe together for ever: they begin where their bytes say.
                    let step = 2 + usize::try_from(self.delivered % 6).unwrap_or(0);
                    self.phase = Phase::Cruise { step, since: now };
                }
            }
            Phase::Cruise { step, since } => {
                let is_drained = CYCLE_PERCENT[step] < 100 && in_flight <= fits;
                if is_drained || now.saturating_since(since) >= round_trip {
                    self.phase = Phase::Cruise { step: (step + 1) % CYCLE_PERCENT.len(), since: now };
                }
            }
        }
    }
}

/// Bytes a second.
pub(super) fn rate_of(bytes: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

/// Bytes of so much time.
fn scale(rate: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(rate) * time.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX)
}

fn percent_of(n: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(n) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A path of 100 MB/s and 10 ms, filled to the window of the model in each round.
    fn round(model: &mut PathModel, now: &mut u64, packet: &mut u64) -> u64 {
        const FITS: u64 = 1_000_000;
        let sent = model.window().max(32_000);
        model.on_sent(true, Time(*now));
        *packet += 1;
        model.begin(*packet, false, Time(*now));
        let took = 10 * MS * sent.max(FITS) / FITS;
        *now += took;
        model.on_delivered(sent, Time(*now));
        assert!(model.is_due(|n| n == *packet - 1) && !model.is_due(|n| n == *packet));
        model.finish(0, Time(*now));
        sent
    }

    #[test]
    fn it_finds_the_rate_and_stays_near_what_fits() {
        let (mut model, mut now, mut packet) = (PathModel::default(), 1, 0);
        assert_eq!((model.rate(), model.pace(), model.window()), (0, 0, 0));
        let mut sizes = Vec::new();
        for _ in 0..16 {
            sizes.push(round(&mut model, &mut now, &mut packet));
        }
        assert!(sizes.windows(2).take(4).all(|w| w[1] > w[0] * 2), "{sizes:?}");
        assert!((99_000_000..=101_000_000).contains(&model.rate()), "{model:?}");
        assert!(matches!(model.phase, Phase::Cruise { .. }), "{model:?}");
        assert!((1_900_000..=2_100_000).contains(&model.window()), "{model:?}");
        assert_eq!(model.shortest(), Some(Duration::from_millis(10)));
    }

    #[test]
    fn too_little_to_send_measures_nothing_lower() {
        let (mut model, mut now, mut packet) = (PathModel::default(), 1, 0);
        for _ in 0..16 {
            round(&mut model, &mut now, &mut packet);
        }
        let before = model.rate();
        for _ in 0..100 {
            packet += 1;
            model.on_sent(true, Time(now));
            model.on_exhausted(100);
            model.begin(packet, false, Time(now));
            now += 10 * MS;
            model.on_delivered(100, Time(now));
            model.finish(0, Time(now));
        }
        assert_eq!(model.rate(), before);
    }

    #[test]
    fn a_longer_way_is_believed_after_a_while() {
        let mut shortest = Shortest::default();
        shortest.add(Duration::from_millis(1), Time(1));
        for second in 0..30 {
            shortest.add(Duration::from_millis(50), Time(second * 1000 * MS));
        }
        assert_eq!(shortest.get(), Some(Duration::from_millis(50)));
    }
}
