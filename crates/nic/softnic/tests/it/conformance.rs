//! The conformance suite on two software NICs over real sockets, in both progress modes and on both wires.

use std::time::{Duration, Instant};

use conformance::{BY_ENDPOINTS, CASES, Difference, ON_IWARP, Rig, Side, run_all};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softnic::{Progress, SoftNic, SoftNicConfig};
use verbs::{Encrypt, Provider, Wire, WirePolicy};

struct Loopback {
    a: SoftNic,
    b: SoftNic,
    start: Instant,
    has_channel: bool,
    wire: Option<Wire>,
    encrypt: Encrypt,
}

impl Loopback {
    fn open(progress: Progress, wire: Option<Wire>, encrypt: Encrypt) -> Self {
        let policy = WirePolicy::Only(wire.unwrap_or_default());
        let config = || SoftNicConfig { progress, wire: policy, ..crate::rig::config("127.0.0.1") };
        let open = || SoftNic::open(config()).unwrap();
        Self { a: open(), b: open(), start: Instant::now(), has_channel: progress == Progress::Helper, wire, encrypt }
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
        on(self.wire)
    }

    fn wire(&self) -> Option<Wire> {
        self.wire
    }

    fn encrypt(&self) -> Encrypt {
        self.encrypt
    }
}

fn conforms(progress: Progress, wire: Option<Wire>) {
    conforms_encrypted(progress, wire, Encrypt::Off);
}

fn conforms_encrypted(progress: Progress, wire: Option<Wire>, encrypt: Encrypt) {
    let report = run_all(&CASES, || Loopback::open(progress, wire, encrypt));
    assert!(report.failures().is_empty(), "{report}");
    assert!(report.counts().0 >= CASES.len() - on(wire).len(), "{report}");
}

/// Where a connection that is set up by endpoints over this wire differs.
fn on(wire: Option<Wire>) -> &'static [Difference] {
    match wire {
        None => &[],
        Some(Wire::Iwarp) => ON_IWARP,
        Some(_) => BY_ENDPOINTS,
    }
}

#[test]
fn inline() {
    conforms(Progress::Inline, None);
}

#[test]
fn with_a_background_thread() {
    conforms(Progress::Helper, None);
}

#[test]
fn over_tcp_inline() {
    conforms(Progress::Inline, Some(Wire::Iwarp));
}

#[test]
fn over_tcp_with_a_background_thread() {
    conforms(Progress::Helper, Some(Wire::Iwarp));
}

#[test]
fn over_tcp_encrypted_inline() {
    conforms_encrypted(Progress::Inline, Some(Wire::Iwarp), Encrypt::Required);
}

#[test]
fn over_tcp_encrypted_with_a_background_thread() {
    conforms_encrypted(Progress::Helper, Some(Wire::Iwarp), Encrypt::Required);
}

#[test]
fn over_roce_encrypted_inline() {
    conforms_encrypted(Progress::Inline, Some(Wire::Roce), Encrypt::Required);
}

#[test]
fn over_roce_encrypted_with_a_background_thread() {
    conforms_encrypted(Progress::Helper, Some(Wire::Roce), Encrypt::Required);
}
