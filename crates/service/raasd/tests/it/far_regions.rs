//! Regions of another host: the same calls, through the engines of two daemons.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use raas::{Completion, Reason, Region, RegionAccess, RegionError, RegionKey, RegionOptions, RegionRefusal};

use crate::hosts::{Host, bounded, eventually, pattern};

const KEY: RegionKey = RegionKey::new([7; 16]);
const OTHER_KEY: RegionKey = RegionKey::new([8; 16]);

fn refusal<T: std::fmt::Debug>(result: Result<T, RegionError>) -> RegionRefusal {
    let error = result.unwrap_err();
    error.refusal().unwrap_or_else(|| panic!("{error}")).clone()
}

fn remote_opens(host: &Host) -> u32 {
    raas::inspect::regions(Some(&host.config.socket)).unwrap().iter().map(|row| row.remote_opens).sum()
}

#[test]
fn a_region_of_another_host_is_read_written_and_counted() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (owner, user) = (a.session(), b.session());
        let own = RegionOptions::new().key(KEY).create(&owner, "far", 1 << 20).unwrap();
        let other = Region::open(&user, a.address(), "far", KEY).unwrap();
        assert_eq!((other.bytes(), other.epoch(), remote_opens(&a)), (1 << 20, 1, 1));
        let counts = || {
            let stat = b.stat();
            let app = stat.apps.iter().find(|app| app.reads + app.writes + app.atomics > 0);
            app.map_or((0, 0, 0), |app| (app.reads, app.writes, app.atomics))
        };
        // The budget of each: one operation.
        own.store(64, 10).unwrap();
        assert_eq!(other.load(64).unwrap(), 10);
        assert_eq!(counts(), (1, 0, 0));
        assert_eq!(other.fetch_add(64, 5).unwrap(), 10);
        assert_eq!(counts(), (1, 0, 1));
        other.store(72, 3).unwrap();
        assert_eq!((counts(), own.load(72).unwrap()), ((1, 1, 1), 3));
        assert_eq!(own.compare_swap(64, 15, 0xf0).unwrap(), 15);
        assert_eq!(other.compare_swap(64, 15, 1).unwrap(), 0xf0);
        assert_eq!(other.fetch_or(64, 0x0f).unwrap(), 0xf0);
        assert_eq!(other.fetch_and(64, 0x3c).unwrap(), 0xff);
        assert_eq!(other.fetch_xor(64, 0x0c).unwrap(), 0x3c);
        assert_eq!(other.fetch_min(64, 0x20).unwrap(), 0x30);
        assert_eq!(other.fetch_max(64, 0x40).unwrap(), 0x20);
        assert_eq!((other.swap(64, 9).unwrap(), own.load(64).unwrap()), (0x40, 9));
        // Long ones go in pieces.
        let data = pattern(1 << 20, 5);
        other.write(0, &data).unwrap();
        let mut got = vec![0; 1 << 20];
        own.read(0, &mut got).unwrap();
        assert!(got == data, "the owner sees what was written");
        got.fill(0);
        other.read(0, &mut got).unwrap();
        assert!(got == data, "and so does the writer");
        for completion in [Completion::Posted, Completion::Acked, Completion::Visible] {
            other.write_as(8, b"12345678", completion).unwrap();
        }
        assert!(matches!(other.write_as(8, b"x", Completion::Persistent), Err(RegionError::NoPersistence)));
        for tag in 0..300u32 {
            other.write_notify(u64::from(tag) * 8, &u64::from(tag + 7).to_ne_bytes(), tag).unwrap();
            assert_eq!(own.recv_notification().unwrap(), tag);
            assert_eq!(own.load(u64::from(tag) * 8).unwrap(), u64::from(tag + 7));
        }
        drop(other);
        eventually("the handle is given back", || remote_opens(&a) == 0);
    });
}

/// The owner's daemon sees nothing of READs and WRITEs, and must not take the lane for an unused one.
#[test]
fn a_lane_that_carries_nothing_but_reads_and_writes_stays_up() {
    bounded(|| {
        let hosts: [Host; 2] = std::array::from_fn(|_| {
            let mut host = Host::new();
            host.config.set_limit("lane_rest_ms", 1000).unwrap();
            host.start();
            host
        });
        let [a, b] = &hosts;
        let (owner, user) = (a.session(), b.session());
        let own = RegionOptions::new().key(KEY).create(&owner, "used", 64).unwrap();
        let other = Region::open(&user, a.address(), "used", KEY).unwrap();
        for round in 0..150 {
            other.store(0, round).unwrap();
            assert_eq!(other.load(0).unwrap(), own.load(0).unwrap());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(hosts.each_ref().map(|host| host.counter("lane_resets")), [0, 0]);
    });
}

#[test]
fn each_bad_use_of_a_far_region_has_its_own_error() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (owner, user) = (a.session(), b.session());
        let own = RegionOptions::new().key(KEY).access(RegionAccess::READ).create(&owner, "r", 100).unwrap();
        own.write(0, &pattern(100, 1)).unwrap();
        let at = a.address();
        assert_eq!(refusal(Region::open(&user, at, "none", KEY)), RegionRefusal::Unknown);
        assert_eq!(refusal(Region::open(&user, at, "r", OTHER_KEY)), RegionRefusal::WrongKey);
        let no_access = RegionRefusal::NoAccess { asked: RegionAccess::ALL, allowed: RegionAccess::READ };
        assert_eq!(refusal(Region::open(&user, at, "r", KEY)), no_access);
        let reader = Region::open_for(&user, at, "r", KEY, RegionAccess::READ).unwrap();
        assert!(matches!(reader.write(0, b"x"), Err(RegionError::NoAccess { .. })));
        assert!(matches!(reader.fetch_add(0, 1), Err(RegionError::NoAccess { .. })));
        let mut got = vec![0; 100];
        assert!(matches!(reader.read(1, &mut got), Err(RegionError::OutOfBounds { offset: 1, len: 100, .. })));
        assert!(matches!(reader.load(4), Err(RegionError::Misaligned { offset: 4, .. })));
        reader.read(0, &mut got).unwrap();
        assert_eq!(got, pattern(100, 1));
        let nowhere = Host::new();
        let unreachable = refusal(Region::open(&user, nowhere.address(), "r", KEY));
        assert_eq!(unreachable, RegionRefusal::Reason(Reason::PeerUnreachable));
        drop(own);
        eventually("the end of the region is heard", || reader.read(0, &mut [0; 8]).is_err());
        let gone = reader.read(0, &mut [0; 8]).unwrap_err();
        assert!(matches!(gone, RegionError::OwnerGone { .. } | RegionError::Revoked { .. }), "{gone}");
        assert_eq!(refusal(Region::open(&user, at, "r", KEY)), RegionRefusal::Unknown);
    });
}

#[test]
fn a_revoke_stops_accesses_of_other_hosts_that_are_in_flight() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (owner, near, far) = (a.session(), a.session(), b.session());
        let own = RegionOptions::new().key(KEY).create(&owner, "sum", 1 << 16).unwrap();
        let handles = [Region::open(&near, a.address(), "sum", KEY), Region::open(&far, a.address(), "sum", KEY)];
        let handles = handles.map(Result::unwrap);
        let (mut done, mut unknown) = (0, 0);
        let (is_over, both_began) = (AtomicBool::new(false), Barrier::new(3));
        std::thread::scope(|scope| {
            let adders = handles.each_ref().map(|handle| {
                let both_began = &both_began;
                scope.spawn(move || {
                    handle.fetch_add(0, 1).unwrap();
                    let mut done = 1u64;
                    both_began.wait();
                    loop {
                        match handle.fetch_add(0, 1) {
                            Ok(_) => done += 1,
                            Err(RegionError::Revoked { may_have_landed, .. }) => return (done, may_have_landed),
                            Err(RegionError::OutcomeUnknown { .. }) => return (done, true),
                            Err(e) => panic!("{e}"),
                        }
                    }
                })
            });
            both_began.wait();
            eventually("both add", || own.load(0).unwrap() > 200);
            assert_eq!(own.revoke(Some(OTHER_KEY)).unwrap(), 2);
            let seen = own.load(0).unwrap();
            for adder in adders {
                let (of_one, may) = adder.join().unwrap();
                (done, unknown) = (done + of_one, unknown + u64::from(may));
            }
            is_over.store(true, Ordering::Relaxed);
            assert!((done..=done + unknown).contains(&seen), "{seen} is not {done} and at most {unknown} more");
            assert_eq!(own.load(0).unwrap(), seen, "nothing came later");
        });
        assert_eq!(refusal(Region::open(&far, a.address(), "sum", KEY)), RegionRefusal::WrongKey);
        let again = Region::open(&far, a.address(), "sum", OTHER_KEY).unwrap();
        assert_eq!(again.epoch(), 2);
        let before = again.fetch_add(0, 1).unwrap();
        assert_eq!(own.load(0).unwrap(), before + 1);
        assert_eq!(remote_opens(&a), 1);
    });
}

#[test]
fn when_the_other_host_is_lost_its_handles_end_and_so_do_those_to_it() {
    bounded(|| {
        let (a, mut b) = (Host::started(), Host::started());
        let (owner, user) = (a.session(), b.session());
        let _own = RegionOptions::new().key(KEY).create(&owner, "r", 4096).unwrap();
        let theirs = RegionOptions::new().key(KEY).create(&user, "theirs", 4096).unwrap();
        let there = Region::open(&owner, b.address(), "theirs", KEY).unwrap();
        let here = Region::open(&user, a.address(), "r", KEY).unwrap();
        there.fetch_add(0, 1).unwrap();
        here.fetch_add(0, 1).unwrap();
        assert_eq!(theirs.load(0).unwrap(), 1);
        b.stop();
        eventually("its handles are over", || remote_opens(&a) == 0);
        eventually("and handles to it", || there.fetch_add(0, 1).is_err());
        assert!(matches!(here.fetch_add(0, 1), Err(RegionError::Session(_))));
    });
}

/// What daemons say to each other about regions must not wait for the next event of theirs: without one that is a
/// heartbeat, and here there is none while the program waits.
#[test]
fn opening_a_region_waits_for_no_heartbeat() {
    bounded(|| {
        let (mut a, mut b) = (Host::new(), Host::new());
        for host in [&mut a, &mut b] {
            host.config.heartbeat = raasd::Heartbeat { interval: Duration::from_secs(600), misses: 8 };
            host.start();
        }
        let (owner, user) = (a.session(), b.session());
        let _own = RegionOptions::new().key(KEY).create(&owner, "prompt", 4096).unwrap();
        for _ in 0..10 {
            assert_eq!(Region::open(&user, a.address(), "prompt", KEY).unwrap().load(0).unwrap(), 0);
        }
    });
}
