//! Heartbeats and silence on a control link that is up.
//!
//! Owns when this side speaks, and when the peer's silence is told and when it is the end. It must never count time in
//! which this side itself did not run: whoever drives it hands over what the peer said before it asks for a judgement.

use std::time::Duration;

use verbs::Time;

/// While a peer is silent its silence is told again this often, or once in a heartbeat if that is shorter.
const SILENCE_PACE: Duration = Duration::from_millis(250);
/// Heartbeats that a peer may miss before its connections show that they wait.
const STALLED_MISSES: u32 = 3;

/// How often a side speaks, and how long it is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// A side that sent nothing for so long sends a heartbeat.
    pub interval: Duration,
    /// A side that heard nothing for so many intervals gives the peer up.
    pub misses: u32,
}

impl Heartbeat {
    /// Silence after which the peer counts as dead.
    pub fn patience(&self) -> Duration {
        self.interval.saturating_mul(self.misses)
    }

    /// Silence after which the peer's connections show that they wait: `stalled`.
    pub fn stalled_after(&self) -> Duration {
        self.interval.saturating_mul(STALLED_MISSES)
    }
}

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchAction {
    /// The peer is given up: close the link.
    GiveUp,
    /// The peer has said nothing for so long: tell [`crate::Daemon::handle_silent`].
    TellSilence(Duration),
    /// Send a heartbeat, then say so ([`Watch::on_spoken`]).
    Beat,
}

/// The watch over one link.
#[derive(Debug)]
pub struct Watch {
    heartbeat: Heartbeat,
    heard: Time,
    spoken: Time,
    told: Time,
}

impl Watch {
    /// The link came up.
    pub fn new(now: Time, heartbeat: Heartbeat) -> Self {
        Self { heartbeat, heard: now, spoken: now, told: now }
    }

    /// The peer said something.
    pub fn on_heard(&mut self, now: Time) {
        self.heard = now;
    }

    /// This side said something.
    pub fn on_spoken(&mut self, now: Time) {
        self.spoken = now;
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub fn deadline(&self) -> Time {
        let Heartbeat { interval, .. } = self.heartbeat;
        let tell = (self.heard + self.heartbeat.stalled_after()).max(self.told + SILENCE_PACE.min(interval));
        (self.spoken + interval).min(self.heard + self.heartbeat.patience()).min(tell)
    }

    /// Time has passed; what is due, in this order.
    pub fn handle_timeout(&mut self, now: Time) -> impl Iterator<Item = WatchAction> + use<> {
        let deadline = self.deadline();
        let mut due = [None; 2];
        if now >= deadline {
            // Time in which this side itself did not run is not the peer's silence.
            let late = now.saturating_since(deadline);
            if late > self.heartbeat.interval {
                self.heard = self.heard + late;
            }
            let silent = now.saturating_since(self.heard);
            if silent >= self.heartbeat.patience() {
                due[0] = Some(WatchAction::GiveUp);
            } else {
                if silent >= self.heartbeat.stalled_after() {
                    self.told = now;
                    due[0] = Some(WatchAction::TellSilence(silent));
                }
                due[1] = (now >= self.spoken + self.heartbeat.interval).then_some(WatchAction::Beat);
            }
        }
        due.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: Heartbeat = Heartbeat { interval: Duration::from_secs(1), misses: 5 };

    fn ms(n: u64) -> Time {
        Time(n * 1_000_000)
    }

    fn due(watch: &mut Watch, at: u64) -> Vec<WatchAction> {
        let due: Vec<_> = watch.handle_timeout(ms(at)).collect();
        if due.contains(&WatchAction::Beat) {
            watch.on_spoken(ms(at));
        }
        due
    }

    #[test]
    fn it_beats_tells_of_silence_and_gives_up() {
        let mut watch = Watch::new(ms(0), BEAT);
        let silence = |ms| WatchAction::TellSilence(Duration::from_millis(ms));
        assert_eq!(watch.deadline(), ms(1000));
        assert_eq!(due(&mut watch, 999), []);
        assert_eq!(due(&mut watch, 1000), [WatchAction::Beat]);
        assert_eq!(due(&mut watch, 2000), [WatchAction::Beat]);
        assert_eq!(due(&mut watch, 3000), [silence(3000), WatchAction::Beat]);
        assert_eq!(watch.deadline(), ms(3250));
        assert_eq!(due(&mut watch, 3250), [silence(3250)]);
        watch.on_heard(ms(3300));
        assert_eq!(watch.deadline(), ms(4000));
        for at in (4000..8250).step_by(250) {
            assert!(!due(&mut watch, at).contains(&WatchAction::GiveUp), "at {at}");
        }
        assert_eq!(due(&mut watch, 8300), [WatchAction::GiveUp]);
    }

    #[test]
    fn time_in_which_this_side_stood_still_is_not_the_peers() {
        let mut watch = Watch::new(ms(0), BEAT);
        for round in 1..5 {
            let now = round * 100_000;
            assert_eq!(due(&mut watch, now), [WatchAction::Beat], "after {now} ms");
            watch.on_heard(ms(now + 100));
        }
        // One interval late or less is the peer's silence as well.
        let mut watch = Watch::new(ms(0), BEAT);
        (1..5).for_each(|n| _ = due(&mut watch, n * 1000));
        assert_eq!(due(&mut watch, 5000), [WatchAction::GiveUp]);
    }
}
