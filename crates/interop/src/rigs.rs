//! Rigs on real time: two rxe, two software NICs, and one of each. And where each stack differs from the suite.

use std::time::{Duration, Instant};

use conformance::{Difference, Rig, Side};
use rdmacore::{OpenConfig, RdmaCore};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softnic::{Progress, SoftNic, SoftNicConfig};
use verbs::Provider;

use crate::link::Link;

/// Time that one step waits: short against timers, long against a spinning loop on an emulated CPU.
const STEP: Duration = Duration::from_micros(50);

/// Two devices in real time.
pub(crate) struct RealRig<A, B> {
    a: A,
    b: B,
    start: Instant,
    lossy: bool,
    differences: &'static [Difference],
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

    fn differences(&self) -> &'static [Difference] {
        self.differences
    }
}

fn open_rxe(link: &Link) -> RdmaCore {
    let config = OpenConfig { name: Some(link.rxe_device().to_string()), address: link.rxe_address() };
    RdmaCore::open(&config).unwrap_or_else(|e| panic!("opening rxe: {e}"))
}

/// Two contexts of the same rxe device.
pub(crate) fn rxe_pair(link: &Link) -> RealRig<RdmaCore, RdmaCore> {
    RealRig { a: open_rxe(link), b: open_rxe(link), start: Instant::now(), lossy: false, differences: RXE }
}

/// Two software NICs on 127.0.0.1 and 127.0.0.2.
pub(crate) fn softnic_pair() -> RealRig<SoftNic, SoftNic> {
    let open = |last| {
        let config = SoftNicConfig { progress: Progress::Helper, ..SoftNicConfig::new([127, 0, 0, last].into()) };
        SoftNic::open(config).unwrap_or_else(|e| panic!("opening the software NIC: {e}"))
    };
    RealRig { a: open(1), b: open(2), start: Instant::now(), lossy: false, differences: &[] }
}

/// The software NIC on `soft` and rxe on the other side, over the link.
pub(crate) fn mixed(link: &Link, soft: Side, lossy: bool) -> Box<dyn Rig> {
    let address = link.soft_address();
    let nic = link.inside(move || {
        let config = SoftNicConfig { progress: Progress::Helper, ..SoftNicConfig::new(address) };
        SoftNic::open(config).unwrap_or_else(|e| panic!("opening the software NIC: {e}"))
    });
    let start = Instant::now();
    let rxe = open_rxe(link);
    match soft {
        Side::A => Box::new(RealRig { a: nic, b: rxe, start, lossy, differences: RXE_RESPONDS }),
        Side::B => Box::new(RealRig { a: rxe, b: nic, start, lossy, differences: RXE_REQUESTS }),
    }
}

/// rxe in Linux 6.1, read in its source and seen here.
const LOCAL_ERROR: &str =
    "rxe reports every fault in a local work request but -EFAULT as LOC_QP_OP_ERR (rxe_req.c, rxe_resp.c)";
const TOO_LONG: &str = "rxe takes a message longer than its receive for a malformed receive and answers remote operational error \
     (rxe_resp.c, copy_data gives -EINVAL); IBTA 9.7.5.2.5 wants invalid request";
const LATE_RECEIVE: &str =
    "rxe flushes a receive posted in the error state only when its responder task runs next (rxe_verbs.c)";
const LAST_WQE: &str = "rxe raises IBV_EVENT_QP_LAST_WQE_REACHED from Linux 6.12 on";
const MISALIGNED: &str = "libibverbs' rxe provider refuses a misaligned atomic when it is posted";

const fn differ(case: &'static str, reason: &'static str) -> Difference {
    Difference { case, reason }
}

/// rxe with itself.
const RXE: &[Difference] = &[
    differ("atomic.misaligned", MISALIGNED),
    differ("access.send_with_wrong_lkey", LOCAL_ERROR),
    differ("access.receive_without_local_write", LOCAL_ERROR),
    differ("length.message_longer_than_receive", TOO_LONG),
    differ("length.multi_packet_longer_than_receive", TOO_LONG),
    differ("flush.receive_to_error_state", LATE_RECEIVE),
    differ("event.last_wqe_with_srq", LAST_WQE),
];
/// rxe as responder to the software NIC.
const RXE_RESPONDS: &[Difference] = &[
    differ("access.receive_without_local_write", LOCAL_ERROR),
    differ("length.message_longer_than_receive", TOO_LONG),
    differ("length.multi_packet_longer_than_receive", TOO_LONG),
    differ("flush.receive_to_error_state", LATE_RECEIVE),
    differ("event.last_wqe_with_srq", LAST_WQE),
];
/// rxe as requester of the software NIC.
const RXE_REQUESTS: &[Difference] =
    &[differ("atomic.misaligned", MISALIGNED), differ("access.send_with_wrong_lkey", LOCAL_ERROR)];
