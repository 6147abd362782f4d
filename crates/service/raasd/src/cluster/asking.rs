//! The thread of one directory: asks, tells, pauses. A directory that fails is asked more and more rarely, and no two
//! hosts ask in step.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::Directory;
use super::members::Members;
use crate::member::Member;

/// Pauses after failures double at most this often.
const DOUBLINGS_MAX: u32 = 10;

/// Asks until a word stops it, or until `stopped` is closed; then it leaves. `place` is that of the directory among all.
pub(super) fn run(
    mut directory: Box<dyn Directory>,
    own: &Member,
    members: &Members,
    place: usize,
    stopped: &Receiver<()>,
) {
    let mut failures = 0_u32;
    loop {
        let told = directory.ask(own);
        failures = if told.error.is_some() { failures.saturating_add(1) } else { 0 };
        members.take(place, told);
        let pause = pause(directory.period(), directory.pause_max(), failures, random());
        match stopped.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return directory.leave(),
            Ok(()) => return,
        }
    }
}

/// Three quarters to all of the period, which doubles with each failure after the first.
fn pause(period: Duration, max: Duration, failures: u32, random: u8) -> Duration {
    let doublings = failures.saturating_sub(1).min(DOUBLINGS_MAX);
    let whole = period.saturating_mul(1 << doublings).min(max.max(period));
    whole - whole / (4 * 255) * u32::from(random)
}

/// For the pauses alone: where the system has no randomness, hosts may ask in step.
fn random() -> u8 {
    let mut byte = [0];
    let _ = getrandom::fill(&mut byte);
    let [byte] = byte;
    byte
}

#[cfg(test)]
mod tests {
    use super::super::Told;
    use super::*;
    use std::sync::mpsc;

    /// Says when it is asked and left.
    struct Noted(mpsc::Sender<&'static str>);

    impl Directory for Noted {
        fn source(&self) -> &'static str {
            "static"
        }

        fn asked(&self) -> Vec<String> {
            Vec::new()
        }

        fn ask(&mut self, _own: &Member) -> Told {
            let _ = self.0.send("asked");
            Told::default()
        }

        fn period(&self) -> Duration {
            Duration::from_secs(3600)
        }

        fn pause_max(&self) -> Duration {
            self.period()
        }

        fn leave(&mut self) {
            let _ = self.0.send("left");
        }
    }

    #[test]
    fn an_end_in_order_leaves_and_a_hand_over_does_not() {
        for (is_handed_over, expected) in [(false, &["asked", "left"][..]), (true, &["asked"])] {
            let (tell, told) = mpsc::channel();
            let (stop, stopped) = mpsc::channel();
            if is_handed_over {
                stop.send(()).unwrap();
            }
            drop(stop);
            let own = Member { address: [10, 0, 0, 1].into(), name: None, services: Vec::new() };
            run(Box::new(Noted(tell)), &own, &Members::new(vec![("static", Vec::new())]), 0, &stopped);
            assert_eq!(told.iter().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn pauses_grow_with_failures_up_to_their_bound_and_differ() {
        let (second, max) = (Duration::from_secs(1), Duration::from_secs(10));
        let whole = |failures| pause(second, max, failures, 0).as_secs();
        assert_eq!([0, 1, 2, 3, 4, 5, u32::MAX].map(whole), [1, 1, 2, 4, 8, 10, 10]);
        assert_eq!(pause(second, Duration::ZERO, 9, 0), second, "the period is the least bound");
        assert_eq!(pause(second, max, 0, 255).as_millis(), 750);
        assert!(pause(second, max, 0, 100) < pause(second, max, 0, 99));
        assert_eq!(pause(Duration::MAX, Duration::MAX, 7, 0), Duration::MAX);
    }
}
