//! The conformance suite on two software NICs over real sockets, in both progress modes.

mod rig;

use std::time::{Duration, Instant};

use conformance::{CASES, Difference, Rig, Side, run_all};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softnic::{Progress, SoftNic, SoftNicConfig};
use verbs::Provider;

struct Loopback {
    a: SoftNic,
    b: SoftNic,
    start: Instant,
    has_channel: bool,
}

impl Loopback {
    fn open(progress: Progress) -> Self {
        let open = || SoftNic::open(SoftNicConfig { progress, ..rig::config("127.0.0.1") }).unwrap();
        Self { a: open(), b: open(), start: Instant::now(), has_channel: progress == Progress::Helper }
    }
}

impl Rig for Loopback {
    fn device(&mut self, side: Side) -> &mut dyn Provider {
        match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        }
    }

    fn step(&mut self) {
        std::thread::sleep(Duration::from_micros(50));
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn notified(&mut self, side: Side) -> Option<bool> {
        // Inline, what is readable is the socket and not a completion channel.
        if !self.has_channel {
            return None;
        }
        let mut fds = Vec::new();
        match side {
            Side::A => self.a.wait_fds(&mut fds),
            Side::B => self.b.wait_fds(&mut fds),
        }
        let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        Some(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0)
    }

    fn lossy(&self) -> bool {
        false
    }

    fn differences(&self) -> &[Difference] {
        &[]
    }
}

fn conforms(progress: Progress) {
    let report = run_all(&CASES, || Loopback::open(progress));
    assert!(report.failures().is_empty(), "{report}");
    assert_eq!(report.counts().0, CASES.len(), "{report}");
}

#[test]
fn inline() {
    conforms(Progress::Inline);
}

#[test]
fn with_a_background_thread() {
    conforms(Progress::Helper);
}
