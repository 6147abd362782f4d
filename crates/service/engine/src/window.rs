//! How many bytes of a lane may be posted and not completed.
//!
//! A work request completes when the peer's device has executed it, so these bytes are what stands before a message that
//! is posted now. Many of them are needed where the path is long, because all of a round trip must be under way at once.
//! Few are wanted where several programs use the lane: the order of their turns ([`crate::sched`]) decides what is posted
//! next, but nothing overtakes what is posted.
//!
//! Owns the number. It follows what was measured: the shortest time in which a work request completed lately, and the
//! bytes that completed in a second, as BBR does it (Cardwell and others, 2016). Behind many bytes a work request takes
//! longer whatever the path, so only times behind few bytes count; if there was none for a while, the window is small
//! until there is one. Congestion of the network is none of its concern; the wires see to that themselves.

use std::time::Duration;

use verbs::Time;

/// Fewest bytes of a lane that one program uses.
const ALONE_BYTES_MIN: u64 = 2 << 20;
/// Fewest bytes of a lane that several programs use. Fewer halve what a message waits once more, and on processors that
/// all are busy cost streams more than that brings, because each completion waits for its daemon's turn.
const SHARED_BYTES_MIN: u64 = 512 << 10;
/// Round trips of bytes that may be under way. A wire that confirms once in a round trip has two of them under way all
/// the time; with as many again a loss, which takes a round trip to mend, does not stop the lane.
const ROUND_TRIPS: u64 = 4;
/// The same as long as the rate still grows, so that it can grow by four from one measurement to the next, as it does
/// in the slow start of the wire below.
const ROUND_TRIPS_GROWING: u64 = 8;
/// The same while several programs use the lane: enough to keep up the rate, not to raise it.
const ROUND_TRIPS_SHARED: u64 = 2;
/// The rate has stopped growing when so many measurements in a row were not a quarter better than the best.
const STEADY_AFTER: u32 = 3;
/// How long a lane counts as used by several programs after two of them had their turns one after the other.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// The rate is the best of so many measurements.
const RATES: usize = 8;
/// A time counts as the path's if so many bytes at most were in flight when its work request was posted.
const FEW_BYTES: u64 = 256 << 10;
/// A path is far if its shortest time is not below this, measured so many times at least: the first one may have waited
/// for a processor.
const FAR: Duration = Duration::from_millis(20);
/// Likewise, of a path that is not near.
const DISTANT: Duration = Duration::from_millis(5);
const FAR_AFTER: u32 = 2;
/// The shortest time counts for as long as this at least, and for twice as long at most.
const SHORTEST_FOR: Duration = Duration::from_secs(5);

/// A work request whose completion is measured.
#[derive(Debug, Clone, Copy)]
struct Mark {
    seq: u64,
    posted: Time,
    /// Bytes that had been completed then.
    completed_bytes: u64,
    /// Few others were in flight.
    is_of_path: bool,
}

/// The window of one lane.
#[derive(Debug)]
pub(crate) struct Window {
    /// The configuration's bound.
    most: u64,
    /// What holds now.
    bytes: u64,
    completed_bytes: u64,
    mark: Option<Mark>,
    /// Bytes a second, of the last measurements.
    rates: [u64; RATES],
    next_rate: usize,
    /// The rate when it was last a quarter better than ever before, and how many measurements came since.
    best: u64,
    since_best: u32,
    /// The path's shortest times of a period and of the one before.
    shortest: [Option<Duration>; 2],
    shortest_since: Time,
    /// Times that count, of this queue pair.
    path_times: u32,
    is_far: bool,
    is_distant: bool,
    shared_until: Time,
}

impl Window {
    pub(crate) fn new(most: u64) -> Self {
        Self {
            most,
            bytes: ALONE_BYTES_MIN.min(most),
            completed_bytes: 0,
            mark: None,
            rates: [0; RATES],
            next_rate: 0,
            best: 0,
            since_best: 0,
            shortest: [None; 2],
            shortest_since: Time::ZERO,
            path_times: 0,
            is_far: false,
            is_distant: false,
            shared_until: Time::ZERO,
        }
    }

    /// That of the next queue pair, of which nothing is known: it may take another path.
    pub(crate) fn renewed(&self) -> Self {
        Self::new(self.most)
    }

    /// Bytes that may be posted and not completed.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the path is long, as far as is known: what was seen last holds while nothing else is seen.
    #[inline]
    pub(crate) fn is_far(&self) -> bool {
        self.is_far
    }

    /// Whether it is not near, in the same way.
    #[inline]
    pub(crate) fn is_distant(&self) -> bool {
        self.is_distant
    }

    /// Whether the path may be long: no time of it was short, and there is one.
    pub(crate) fn may_be_far(&self) -> bool {
        self.shortest.into_iter().flatten().min().is_some_and(|shortest| shortest >= FAR)
    }

    /// A work request that tells its completion was posted; with it so many bytes are in flight.
    #[inline]
    pub(crate) fn on_posted(&mut self, seq: u64, inflight_bytes: u64, now: Time) {
        let (completed_bytes, is_of_path) = (self.completed_bytes, inflight_bytes <= FEW_BYTES);
        self.mark.get_or_insert(Mark { seq, posted: now, completed_bytes, is_of_path });
    }

    /// Work requests up to this one, with so many bytes, are completed.
    #[inline]
    pub(crate) fn on_completed(&mut self, seq: u64, bytes: u64, now: Time) {
        self.completed_bytes += bytes;
        if let Some(mark) = self.mark.take_if(|mark| mark.seq <= seq) {
            self.measure(mark, now);
        }
    }

    /// Two programs had their turns one after the other.
    #[inline]
    pub(crate) fn on_shared(&mut self, now: Time) {
        let was_shared = self.is_shared(now);
        self.shared_until = now + SHARED_FOR;
        if !was_shared {
            self.settle(now);
        }
    }

    fn is_shared(&self, now: Time) -> bool {
        now < self.shared_until
    }

    fn measure(&mut self, mark: Mark, now: Time) {
        let took = now.saturating_since(mark.posted).max(Duration::from_nanos(1));
        let bytes = self.completed_bytes - mark.completed_bytes;
        let rate = u128::from(bytes) * 1_000_000_000 / took.as_nanos();
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        if let Some(place) = self.rates.get_mut(self.next_rate) {
            *place = rate;
        }
        (self.best, self.since_best) =
            if rate / 5 * 4 > self.best { (rate, 0) } else { (self.best, self.since_best.saturating_add(1)) };
        self.next_rate = (self.next_rate + 1) % RATES;
        if now.saturating_since(self.shortest_since) >= SHORTEST_FOR {
            self.shortest = [None, self.shortest[0]];
            self.shortest_since = now;
        }
        if mark.is_of_path {
            self.shortest[0] = Some(self.shortest[0].map_or(took, |before| before.min(took)));
            self.path_times = self.path_times.saturating_add(1);
            let shortest = self.shortest.into_iter().flatten().min().filter(|_| self.path_times >= FAR_AFTER);
            self.is_far = shortest.is_some_and(|shortest| shortest >= FAR);
            self.is_distant = shortest.is_some_and(|shortest| shortest >= DISTANT);
        }
        self.settle(now);
    }

    /// Works out what holds now.
    fn settle(&mut self, now: Time) {
        let is_shared = self.is_shared(now);
        let rate = u128::from(self.rates.into_iter().max().unwrap_or_default());
        let Some(shortest) = self.shortest.into_iter().flatten().min() else {
            self.bytes = FEW_BYTES.min(self.most);
            return;
        };
        let of_a_round_trip = u64::try_from(rate * shortest.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX);
        let (round_trips, least) = match is_shared {
            true => (ROUND_TRIPS_SHARED, SHARED_BYTES_MIN),
            false if self.since_best < STEADY_AFTER => (ROUND_TRIPS_GROWING, ALONE_BYTES_MIN),
            false => (ROUND_TRIPS, ALONE_BYTES_MIN),
        };
        self.bytes = of_a_round_trip.saturating_mul(round_trips).max(least).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path on which a work request completes after `round_trip`, or when all before it has left at `rate` bytes a
    /// second, and a program that always has something to send.
    struct Path {
        round_trip: Duration,
        rate: u64,
        now: Time,
        seq: u64,
    }

    impl Path {
        fn new(round_trip_us: u64, rate: u64) -> Self {
            Self { round_trip: Duration::from_micros(round_trip_us), rate, now: Time(1), seq: 0 }
        }

        fn carry(&mut self, window: &mut Window, rounds: u32) {
            for _ in 0..rounds {
                let bytes = window.bytes();
                self.seq += 1;
                window.on_posted(self.seq, bytes, self.now);
                self.now = self.now + self.round_trip.max(Duration::from_nanos(bytes * 1_000_000_000 / self.rate));
                window.on_completed(self.seq, bytes, self.now);
            }
        }

        /// What a new queue pair posts first has nothing before it.
        fn begin(&mut self, window: &mut Window) {
            self.seq += 1;
            window.on_posted(self.seq, 100, self.now);
            self.now = self.now + self.round_trip;
            window.on_completed(self.seq, 100, self.now);
        }
    }

    #[test]
    fn a_long_path_gets_a_window_that_fills_it() {
        let mut window = Window::new(64 << 20);
        let mut path = Path::new(100_000, 60_000_000);
        path.begin(&mut window);
        assert_eq!(window.bytes(), ALONE_BYTES_MIN);
        path.carry(&mut window, 3);
        assert!(window.bytes() >= 4 * 6_000_000, "{}", window.bytes());
        path.carry(&mut window, 20);
        let of_a_round_trip = 6_000_000;
        let expected = ROUND_TRIPS * of_a_round_trip;
        assert!((expected - 100..=expected).contains(&window.bytes()), "what stands there waits: {}", window.bytes());
        let mut bounded = Window::new(4 << 20);
        path.begin(&mut bounded);
        path.carry(&mut bounded, 9);
        assert_eq!(bounded.bytes(), 4 << 20, "as configured");
    }

    #[test]
    fn a_short_path_keeps_the_least_however_full_it_is() {
        let mut window = Window::new(64 << 20);
        let mut path = Path::new(50, 2_000_000_000);
        path.begin(&mut window);
        path.carry(&mut window, 50_000);
        assert!(path.now > Time::ZERO + SHORTEST_FOR * 2, "what was measured at the beginning is too old");
        assert_eq!(window.bytes(), ALONE_BYTES_MIN);
    }

    #[test]
    fn a_path_is_far_when_no_time_of_several_was_short() {
        let mut window = Window::new(64 << 20);
        let mut path = Path::new(100_000, 60_000_000);
        for far in [false, true, true] {
            path.begin(&mut window);
            assert_eq!(window.is_far(), far);
        }
        path.carry(&mut window, 200);
        assert!(window.is_far(), "only times behind many bytes, for longer than any counts");
        for (millis, distant) in [(12, true), (4, false)] {
            path.round_trip = Duration::from_millis(millis);
            path.begin(&mut window);
            assert_eq!((window.is_far(), window.is_distant()), (false, distant), "{millis} ms");
        }
        assert!(!window.renewed().is_far());
    }

    #[test]
    fn several_programs_have_little_before_them_for_a_while() {
        let mut window = Window::new(64 << 20);
        let mut path = Path::new(50, 1_000_000_000);
        path.begin(&mut window);
        path.carry(&mut window, 10);
        window.on_shared(path.now);
        assert_eq!(window.bytes(), SHARED_BYTES_MIN);
        path.carry(&mut window, 10);
        assert_eq!(window.bytes(), SHARED_BYTES_MIN);
        path.now = path.now + SHARED_FOR;
        path.carry(&mut window, 1);
        assert_eq!(window.bytes(), ALONE_BYTES_MIN);
        // A long path needs more than the least.
        let mut path = Path::new(10_000, 100_000_000);
        let mut window = window.renewed();
        path.begin(&mut window);
        path.carry(&mut window, 10);
        window.on_shared(path.now);
        assert_eq!(window.bytes(), ROUND_TRIPS_SHARED * 1_000_000);
    }

    #[test]
    fn when_the_path_was_not_seen_for_long_few_bytes_show_it() {
        let mut window = Window::new(64 << 20);
        let mut path = Path::new(100_000, 60_000_000);
        path.begin(&mut window);
        path.carry(&mut window, 20);
        let before = window.bytes();
        // The way becomes longer. It takes two periods until the time of before is forgotten.
        path.round_trip *= 2;
        let mut fewest = u64::MAX;
        for _ in 0..100 {
            path.carry(&mut window, 1);
            fewest = fewest.min(window.bytes());
        }
        assert_eq!(fewest, FEW_BYTES);
        assert!(window.bytes() > before, "{} beside {before}", window.bytes());
    }
}
