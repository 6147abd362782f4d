//! Two contexts of this process, which share its one NIC, and send to each other through its socket.

use std::sync::Once;
use std::time::{Duration, Instant};

use conformance::{CASES, Difference, Rig, Side, run_all};
use rdmacore::{Choice, GidInfo, GidType, RdmaCore};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs::{Gid, Provider};

/// The address of the device, of these tests alone.
const ADDRESS: &str = "127.0.0.61";

/// Has the process's libibverbs be this one: who asks the dynamic linker for that name gets what bears it already.
fn load() {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        // SAFETY: no other thread of this test reads the environment meanwhile: all come through here first.
        unsafe { std::env::set_var("RAAS_VERBS_ADDRESSES", ADDRESS) };
        // SAFETY: the library has no initialiser of its own.
        let library = unsafe { libloading::Library::new(env!("CARGO_BIN_EXE_raas-libibverbs")) };
        std::mem::forget(library.expect("the library that Cargo built for this test"));
    });
}

struct Contexts {
    a: RdmaCore,
    b: RdmaCore,
    start: Instant,
}

impl Contexts {
    fn open() -> Self {
        load();
        let gid = Gid::from(ADDRESS.parse::<std::net::IpAddr>().expect("an address"));
        let gid = GidInfo { index: 0, gid, gid_type: GidType::RoceV2, netdev: None };
        let choice = Choice { device: "soft0".into(), port: 1, gid, why: String::new(), rejected: Vec::new() };
        let open = || RdmaCore::open_chosen(choice.clone()).expect("soft0 opens");
        Self { a: open(), b: open(), start: Instant::now() }
    }
}

impl Rig for Contexts {
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
        let mut fds = Vec::new();
        match side {
            Side::A => self.a.wait_fds(&mut fds),
            Side::B => self.b.wait_fds(&mut fds),
        }
        // The first is the completion channel's; the second one tells of asynchronous events.
        let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        Some(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll") > 0)
    }

    fn lossy(&self) -> bool {
        false
    }

    fn differences(&self) -> &[Difference] {
        &[]
    }
}

#[test]
fn the_suite_passes_through_the_c_interface() {
    let report = run_all(&CASES, Contexts::open);
    assert!(report.failures().is_empty(), "{report}");
    assert_eq!(report.counts(), (CASES.len(), 0, 0), "{report}");
}
