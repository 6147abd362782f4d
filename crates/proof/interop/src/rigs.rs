//! Rigs on real time: two rxe, two software NICs, and one of each.

use std::time::{Duration, Instant};

use conformance::{Difference, ON_IWARP, Rig, Side};
use rdmacore::{RdmaCore, RdmaDevice};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softnic::{Progress, SoftNic, SoftNicConfig};
use verbs::{Device as _, Provider, Wire, WirePolicy};

use crate::differences::{RXE, RXE_REQUESTS, RXE_RESPONDS, differences};
use crate::link::Link;

/// Time that one step waits: short against timers, long against a spinning loop on an emulated CPU.
const STEP: Duration = Duration::from_micros(50);

/// Two devices in real time.
pub(crate) struct RealRig<A, B> {
    a: A,
    b: B,
    start: Instant,
    lossy: bool,
    differences: Vec<Difference>,
    wire: Option<Wire>,
}

impl<A: Provider, B: Provider> Rig for RealRig<A, B> {
    fn device(&mut self, side: Side) -> &mut dyn Provider {
        match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        }
    }

    fn step(&mut self) {
        std::thread::sleep(STEP);
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn notified(&mut self, side: Side) -> Option<bool> {
        let mut fds = Vec::new();
        match side {
            Side::A => self.a.wait_fds(&mut fds),
            Side::B => self.b.wait_fds(&mut fds),
        }
        let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let ready = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).ok()?;
        Some(ready > 0)
    }

    fn lossy(&self) -> bool {
        self.lossy
    }

    fn differences(&self) -> &[Difference] {
        &self.differences
    }

    fn wire(&self) -> Option<Wire> {
        self.wire
    }
}

fn open_rxe(device: &mut RdmaDevice) -> RdmaCore {
    device.open().unwrap_or_else(|e| panic!("opening rxe: {e}"))
}

/// Two contexts of the same rxe device.
pub(crate) fn rxe_pair(link: &Link) -> RealRig<RdmaCore, RdmaCore> {
    let mut device = RdmaDevice::of(link.rxe());
    let (a, b) = (open_rxe(&mut device), open_rxe(&mut device));
    RealRig { a, b, start: Instant::now(), lossy: false, differences: differences(RXE), wire: None }
}

/// Two software NICs on 127.0.0.1 and 127.0.0.2.
pub(crate) fn softnic_pair() -> RealRig<SoftNic, SoftNic> {
    softnics(None)
}

/// The same, connected over TCP.
pub(crate) fn softnic_pair_on_tcp() -> RealRig<SoftNic, SoftNic> {
    RealRig { differences: ON_IWARP.to_vec(), ..softnics(Some(Wire::Iwarp)) }
}

fn softnics(wire: Option<Wire>) -> RealRig<SoftNic, SoftNic> {
    let open = |last| {
        let policy = WirePolicy::Only(wire.unwrap_or_default());
        let config = SoftNicConfig::new([127, 0, 0, last].into());
        let config = SoftNicConfig { progress: Progress::Helper, wire: policy, ..config };
        SoftNic::open(config).unwrap_or_else(|e| panic!("opening the software NIC: {e}"))
    };
    RealRig { a: open(1), b: open(2), start: Instant::now(), lossy: false, differences: Vec::new(), wire }
}

/// The software NIC on `soft` and rxe on the other side, over the link.
pub(crate) fn mixed(link: &Link, soft: Side, lossy: bool) -> Box<dyn Rig> {
    let address = link.soft_address();
    let nic = link.inside(move || {
        let config = SoftNicConfig { progress: Progress::Helper, ..SoftNicConfig::new(address) };
        SoftNic::open(config).unwrap_or_else(|e| panic!("opening the software NIC: {e}"))
    });
    let start = Instant::now();
    let rxe = open_rxe(&mut RdmaDevice::of(link.rxe()));
    match soft {
        Side::A => {
            Box::new(RealRig { a: nic, b: rxe, start, lossy, differences: differences(RXE_RESPONDS), wire: None })
        }
        Side::B => {
            Box::new(RealRig { a: rxe, b: nic, start, lossy, differences: differences(RXE_REQUESTS), wire: None })
        }
    }
}
