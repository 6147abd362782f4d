//! Regions go on over the death of their daemon: bytes and counts are all there, nothing of an older handle lands, and a
//! region that the next daemon does not take ends with its reason (docs/operate/restart.md).

use std::sync::atomic::{AtomicBool, Ordering};

use control::{REGION_EPOCH_MAX, Reason, RegionLine, RegionSpec, Reply, Request, Role};
use raas::{Region, RegionAccess, RegionError, RegionKey, RegionOptions, RegionRefusal, Session};

use crate::control_socket::RawClient;
use crate::hosts::{Host, bounded, eventually, pattern};
use crate::returns_liars::hello;

const KEY: RegionKey = RegionKey::new([3; 16]);
const NEW_KEY: RegionKey = RegionKey::new([4; 16]);
const BYTES: u64 = 1 << 20;

fn create(session: &Session, name: &str) -> Region {
    RegionOptions::new().key(KEY).create(session, name, BYTES).unwrap()
}

/// Opens it as soon as its owner has brought it back, and the daemons have met.
fn open(session: &Session, host: &Host, name: &str, key: RegionKey) -> Region {
    let mut region = None;
    eventually("the region can be opened", || {
        region = Region::open(session, host.address(), name, key).ok();
        region.is_some()
    });
    region.unwrap()
}

/// What becomes of the additions of one program.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    done: u64,
    unknown: u64,
}

/// Adds 1 until it is told to stop, by one handle.
fn add(session: &Session, host: &Host, stop: &AtomicBool) -> Count {
    let (mut count, region) = (Count::default(), open(session, host, "sum", KEY));
    while !stop.load(Ordering::Relaxed) {
        match region.fetch_add(0, 1) {
            Ok(_) => count.done += 1,
            Err(RegionError::OutcomeUnknown { .. } | RegionError::DaemonLost { may_have_landed: true, .. }) => {
                count.unknown += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    count
}

#[test]
fn additions_by_the_owner_its_host_and_another_host_are_counted_over_deaths() {
    bounded(|| {
        let (mut a, b) = (Host::started_patient(), Host::started_patient());
        let (near, other, far) = (a.followed(), a.unfollowed(), b.followed());
        let own = create(&near, "sum");
        let bytes = pattern(BYTES as usize - 4096, 9);
        own.write(4096, &bytes).unwrap();
        let stop = AtomicBool::new(false);
        // Threads borrow it, while this one kills its daemon.
        let place = Host { daemon: None, config: a.config.clone(), dir: tempfile::tempdir().unwrap() };
        let counts = std::thread::scope(|scope| {
            let others = [&other, &other, &far].map(|session| scope.spawn(|| add(session, &place, &stop)));
            let owners = scope.spawn(|| {
                let mut count = Count::default();
                while !stop.load(Ordering::Relaxed) {
                    // It never fails, whatever becomes of the daemon.
                    own.fetch_add(0, 1).unwrap();
                    own.fetch_add(8, 1).unwrap();
                    count.done += 1;
                }
                count
            });
            for epoch in 2..=6 {
                let before = own.load(16).unwrap();
                let mark = open(&far, &place, "sum", KEY);
                eventually("the other host adds", || mark.fetch_add(16, 1).is_ok());
                assert!(own.load(16).unwrap() > before);
                a.hand_over();
                a.start();
                eventually("it is back", || own.epoch() == epoch);
            }
            stop.store(true, Ordering::Relaxed);
            let mut counts: Vec<Count> = others.into_iter().map(|one| one.join().unwrap()).collect();
            counts.push(owners.join().unwrap());
            counts
        });
        assert_eq!(own.load(8).unwrap(), counts[3].done, "the owner alone adds there");
        assert!(counts.iter().all(|count| count.done > 0), "{counts:?}");
        let sum = own.load(0).unwrap();
        let (done, unknown) = counts.iter().fold((0, 0), |(d, u), count| (d + count.done, u + count.unknown));
        assert!((done..=done + unknown).contains(&sum), "{sum} of {counts:?}");
        let mut got = vec![0; bytes.len()];
        own.read(4096, &mut got).unwrap();
        assert!(got == bytes, "bytes that nobody changed");
        open(&far, &a, "sum", KEY).read(4096, &mut got).unwrap();
        assert!(got == bytes, "as another host finds them");
    });
}

#[test]
fn a_region_comes_back_as_it_was_and_memory_of_before_says_so() {
    bounded(|| {
        let mut a = Host::started_patient();
        let (near, other) = (a.followed(), a.unfollowed());
        let options = RegionOptions::new().key(KEY).access(RegionAccess::READ).outlives(true).other_users(true);
        let narrow = options.create(&near, "narrow", 100).unwrap();
        let own = create(&near, "own");
        let row = |a: &Host, name: &str| {
            let mut row = None;
            eventually("it is there", || {
                let rows = raas::inspect::regions(Some(&a.config.socket)).unwrap();
                row = rows.into_iter().find(|row| row.name == name);
                row.is_some()
            });
            row.unwrap()
        };
        let before = row(&a, "narrow");
        let old = open(&other, &a, "own", KEY);
        let map = old.map(0, 4096).unwrap();
        old.store(8, 1).unwrap();
        a.hand_over();
        // While there is no daemon, only the owner has it.
        own.store(16, 2).unwrap();
        assert!(matches!(map.check(), Err(RegionError::DaemonLost { .. })));
        let found = std::thread::spawn(move || (old.load(16).unwrap(), old));
        a.start();
        eventually("both are back", || own.epoch() == 2 && narrow.epoch() == 2);
        let after = row(&a, "narrow");
        let epoch = |row: &control::RegionRow| row.epoch;
        assert_eq!((epoch(&before), epoch(&after)), (1, 2));
        assert_eq!(control::RegionRow { epoch: 1, region: before.region, ..after }, before);
        assert!(matches!(
            Region::open(&other, a.address(), "narrow", KEY).unwrap_err().refusal(),
            Some(RegionRefusal::NoAccess { .. })
        ));
        let again = open(&other, &a, "own", KEY);
        let (found, old) = found.join().unwrap();
        assert_eq!((found, old.load(8).unwrap(), old.epoch()), (2, 1, 2));
        assert!(map.check().is_err(), "its memory is of before");
        assert_eq!((again.load(8).unwrap(), again.load(16).unwrap(), own.load(8).unwrap()), (1, 2, 1));
        again.store(8, 5).unwrap();
        assert_eq!(own.load(8).unwrap(), 5);
        // The handle does all that it did before.
        assert_eq!(own.revoke(Some(NEW_KEY)).unwrap(), 3);
        assert_eq!((own.load(8).unwrap(), own.key()), (5, NEW_KEY));
        own.delete();
        eventually("it is gone", || {
            let error = Region::open(&other, a.address(), "own", NEW_KEY).unwrap_err();
            matches!(error.refusal(), Some(RegionRefusal::Unknown))
        });
    });
}

#[test]
fn a_key_that_was_revoked_by_another_program_does_not_come_back() {
    bounded(|| {
        let mut a = Host::started_patient();
        let (near, other) = (a.followed(), a.followed());
        let own = create(&near, "own");
        assert_eq!(Region::revoke_by_name(&other, "own", KEY, Some(NEW_KEY)).unwrap(), 2);
        assert_eq!(own.key(), NEW_KEY, "the owner knows it");
        a.hand_over();
        a.start();
        // Asked while the owner may still be on its way: it waits for that.
        assert_eq!(own.revoke(None).unwrap(), 4);
        let error = Region::open(&other, a.address(), "own", KEY).unwrap_err();
        assert!(matches!(error.refusal(), Some(RegionRefusal::WrongKey)), "{error}");
        assert_eq!(open(&other, &a, "own", NEW_KEY).epoch(), 4);
    });
}

#[test]
fn a_region_that_the_next_daemon_does_not_take_ends_with_the_reason() {
    bounded(|| {
        let mut a = Host::started_patient();
        let near = a.followed();
        let own = create(&near, "own");
        let small = RegionOptions::new().key(KEY).create(&near, "small", 8).unwrap();
        small.store(0, 6).unwrap();
        a.hand_over();
        std::fs::write(a.dir.path().join("policy.toml"), "[others]\nregion_bytes_max = 4096\n").unwrap();
        a.config.policy = Some(a.dir.path().join("policy.toml"));
        a.start();
        let mut error = None;
        eventually("it is refused", || {
            error = own.load(0).err();
            error.is_some()
        });
        let error = error.unwrap();
        assert!(matches!(error.refusal(), Some(RegionRefusal::Quota { .. })), "{error}");
        // It says the same from then on, and the others go on.
        assert!(matches!(own.revoke(None).unwrap_err().refusal(), Some(RegionRefusal::Quota { .. })));
        assert!(own.recv_notification().is_err());
        eventually("the other one is back", || small.epoch() == 2);
        assert_eq!(small.load(0).unwrap(), 6);
    });
}

#[test]
fn of_two_who_want_a_name_of_the_next_daemon_one_is_told_that_it_is_taken() {
    bounded(|| {
        let mut a = Host::started_patient();
        let (near, other) = (a.followed(), a.followed());
        let own = create(&near, "own");
        own.store(0, 1).unwrap();
        a.hand_over();
        eventually("the death is seen", || !other.is_usable());
        let taker = std::thread::spawn(move || {
            let taken = RegionOptions::new().key(NEW_KEY).create(&other, "own", 8);
            (taken, other)
        });
        a.start();
        let (taken, _other) = taker.join().unwrap();
        match taken {
            Ok(taken) => {
                let is_told = |error: RegionError| matches!(error.refusal(), Some(RegionRefusal::NameTaken { .. }));
                eventually("the owner is told", || own.load(0).is_err_and(is_told));
                assert_eq!(taken.load(0).unwrap(), 0);
            }
            Err(error) => {
                assert!(matches!(error.refusal(), Some(RegionRefusal::NameTaken { .. })), "{error}");
                eventually("it is back", || own.epoch() == 2);
                assert_eq!(own.load(0).unwrap(), 1);
            }
        }
    });
}

/// A program of this host that speaks for itself.
fn raw(host: &Host) -> RawClient {
    let mut client = RawClient::connected(host);
    client.send(&hello(Role::Application));
    let Some(Reply::Welcome { .. }) = client.next() else { panic!("no Welcome") };
    std::mem::forget(client.take_fds());
    client
}

fn bring(client: &mut RawClient, name: &str, bytes: u64, epoch: u64) -> Option<Reply> {
    let (name, key) = (name.to_owned(), KEY);
    let access = RegionAccess::ALL;
    let (huge_pages, outlives, other_users, single_writer) = (false, false, false, false);
    let spec = RegionSpec { name, bytes, access, key, huge_pages, outlives, other_users, single_writer };
    let line = RegionLine { id: 1, uid: 0, revokes: 0 };
    client.send(&Request::RegionReturn { request: 1, spec, epoch, line });
    client.next()
}

#[test]
fn who_lies_about_a_region_gets_no_more_than_a_new_one() {
    bounded(|| {
        let a = Host::started_patient();
        let session = a.followed();
        let theirs = create(&session, "theirs");
        theirs.store(0, 77).unwrap();
        let mut liar = raw(&a);
        let refusal = |reply: Option<Reply>| match reply {
            Some(Reply::RegionOpened { result: Err(why), .. }) => why,
            other => panic!("{other:?}"),
        };
        // Another's name; sizes that cannot be.
        assert!(matches!(refusal(bring(&mut liar, "theirs", BYTES, 1)), RegionRefusal::NameTaken { .. }));
        for bytes in [0, u64::MAX] {
            assert!(matches!(refusal(bring(&mut liar, "liar", bytes, 1)), RegionRefusal::BadSize { .. }));
        }
        // A region that never was is a new one, of nothing but zeroes; it is the same if it is said twice.
        let Some(Reply::RegionOpened { result: Ok(opened), .. }) = bring(&mut liar, "liar", 4096, 8) else { panic!() };
        assert_eq!(opened.info.epoch, 9);
        drop(liar.take_fds());
        assert!(matches!(refusal(bring(&mut liar, "liar", 4096, 8)), RegionRefusal::NameTaken { .. }));
        // Nobody gets it before it says that it has copied.
        let other = raw_open(&a);
        liar.send(&Request::RegionMoved { open: opened.open, epoch: 8 });
        liar.send(&Request::RegionMoved { open: opened.open, epoch: 9 });
        assert_eq!(other.join().unwrap(), 9);
        for epoch in [0, REGION_EPOCH_MAX + 1, u64::MAX] {
            let mut liar = raw(&a);
            let Some(Reply::Detached { reason, detail }) = bring(&mut liar, "epoch", 8, epoch) else { panic!() };
            assert!(reason == Reason::AppFault && detail.contains(&epoch.to_string()), "{detail}");
        }
        assert_eq!((theirs.load(0).unwrap(), theirs.epoch()), (77, 1));
    });
}

/// Opens the liar's region; the epoch that it finds.
fn raw_open(host: &Host) -> std::thread::JoinHandle<u64> {
    let (session, address) = (host.followed(), host.address());
    std::thread::spawn(move || {
        let region = Region::open(&session, address, "liar", KEY).unwrap();
        assert_eq!(region.load(0).unwrap(), 0);
        region.epoch()
    })
}
