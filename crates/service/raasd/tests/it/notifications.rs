//! Notifications of other hosts' writers and of this host's: what they say, how many wait, and who waits for whom.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use raas::{Batch, Notification, Pending, Region, RegionError, RegionKey, RegionOptions, RegionRefusal, Session};

use crate::hosts::{Host, PATIENCE, bounded, eventually, pattern};

const KEY: RegionKey = RegionKey::new([7; 16]);
const BYTES: u64 = 1 << 20;

/// Two hosts, and a session on each.
struct Two {
    a: Host,
    b: Host,
    owner: Session,
    user: Session,
}

impl Two {
    fn new() -> Self {
        let (a, b) = (Host::started(), Host::started());
        let (owner, user) = (a.session(), b.session());
        Self { a, b, owner, user }
    }

    fn region(&self, name: &str) -> (Region, Region) {
        let own = RegionOptions::new().key(KEY).create(&self.owner, name, BYTES).unwrap();
        let other = Region::open(&self.user, self.a.address(), name, KEY).unwrap();
        (own, other)
    }
}

fn submit(region: &Region, tag: u32) -> Pending {
    let mut batch = Batch::new();
    batch.write_notify(region, 64 + u64::from(tag % 1000) * 8, u64::from(tag).to_ne_bytes(), tag);
    batch.submit().unwrap()
}

fn is_full(error: &RegionError) -> bool {
    matches!(error.refusal(), Some(RegionRefusal::NotificationsFull { .. }))
}

#[test]
fn the_owner_learns_what_was_written_and_from_where() {
    bounded(|| {
        let two = Two::new();
        let (own, other) = two.region("r");
        let here = Region::open(&two.owner, two.a.address(), "r", KEY).unwrap();
        let parts = |n: Notification| (n.tag, n.offset, n.bytes, n.from);
        let from = Some(two.b.address());
        for (offset, len) in [(0, 8), (24, 0), (100, 5000), (7, 200_001), (BYTES - 1, 1)] {
            let bytes = pattern(len, 5);
            other.write_notify(offset, &bytes, 3).unwrap();
            let told = own.recv_notified(Some(PATIENCE)).unwrap();
            assert_eq!(parts(told), (3, offset, len as u64, from));
            let mut got = vec![0; len];
            own.read(offset, &mut got).unwrap();
            assert!(got == bytes, "the bytes are there");
            here.write_notify(offset, &bytes, 4).unwrap();
            assert_eq!(parts(own.recv_notified(None).unwrap()), (4, offset, len as u64, None));
        }
        // In one line, whoever writes; and a batch tells of each of its writes.
        let mut batch = Batch::new();
        batch.write_notify(&other, 8, pattern(9000, 1), 5);
        batch.write_notify(&other, 9, *b"ab", 6);
        batch.run().unwrap().check().unwrap();
        own.write_notify(0, b"x", 7).unwrap();
        let found: Vec<_> = (0..3).map(|_| parts(own.recv_notified(Some(PATIENCE)).unwrap())).collect();
        assert_eq!(found, [(5, 8, 9000, from), (6, 9, 2, from), (7, 0, 1, None)]);
        // What an owner polls for it finds too.
        other.write_notify(0, b"y", 8).unwrap();
        let poll = || own.recv_notification_timeout(Duration::ZERO);
        let mut end = poll();
        eventually("it is found", || {
            let is_found = end.is_ok();
            if !is_found {
                end = poll();
            }
            is_found
        });
        assert_eq!(end.unwrap(), 8);
        assert!(matches!(poll(), Err(RegionError::TimedOut { .. })));
        assert!(matches!(other.recv_notified(None), Err(RegionError::NotOwner { .. })));
    });
}

/// The owner takes much more slowly than writers write. These wait, and nothing is lost or refused.
#[test]
fn writers_go_as_fast_as_the_owner_takes() {
    bounded(|| {
        const COUNT: u32 = 6000;
        let two = Two::new();
        let (own, other) = two.region("r");
        // The first call is what opens the ring.
        assert!(own.recv_notification_timeout(Duration::ZERO).is_err());
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut going = std::collections::VecDeque::new();
                for tag in 0..COUNT {
                    going.push_back(submit(&other, tag));
                    if going.len() > 400 {
                        going.pop_front().unwrap().wait().unwrap().check().unwrap();
                    }
                }
                going.into_iter().for_each(|pending| pending.wait().unwrap().check().unwrap());
            });
            eventually("writers wait", || two.a.counter("notices_waiting") > 0);
            for tag in 0..COUNT {
                assert_eq!(own.recv_notification_timeout(PATIENCE).unwrap(), tag);
                if tag % 500 == 0 {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            writer.join().unwrap();
        });
        assert_eq!((two.a.counter("notices_told"), two.a.counter("notices_refused")), (u64::from(COUNT), 0));
        let apps = two.b.stat().apps;
        assert_eq!(apps.iter().map(|app| app.writes).sum::<u64>(), u64::from(COUNT), "each is one WRITE");
    });
}

/// A writer floods an owner that takes nothing. Owners beside it, on the same host and over the same lane, hear of
/// theirs.
#[test]
fn a_flood_of_one_region_is_no_matter_of_another() {
    bounded(|| {
        let two = Two::new();
        let (flooded, other) = two.region("flooded");
        let calm = two.a.session();
        let own = RegionOptions::new().key(KEY).create(&calm, "calm", BYTES).unwrap();
        let elsewhere = two.b.session();
        let writer = Region::open(&elsewhere, two.a.address(), "calm", KEY).unwrap();
        let (stop, refused) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut going = std::collections::VecDeque::new();
                let mut tag = 0;
                while !stop.load(Ordering::Relaxed) {
                    going.push_back(submit(&other, tag));
                    tag += 1;
                    if going.len() > 600 {
                        let end = going.pop_front().unwrap().wait().unwrap().check();
                        assert!(end.as_ref().map_or_else(is_full, |()| true), "{end:?}");
                        refused.fetch_or(end.is_err(), Ordering::Relaxed);
                    }
                }
            });
            eventually("the flood waits", || two.a.counter("notices_waiting") > 100);
            for tag in 0..200 {
                writer.write_notify(0, b"x", tag).unwrap();
                assert_eq!(own.recv_notification_timeout(PATIENCE).unwrap(), tag);
            }
            eventually("the flood is refused", || refused.load(Ordering::Relaxed));
            for tag in 0..200 {
                writer.write_notify(0, b"x", tag).unwrap();
                assert_eq!(own.recv_notification_timeout(PATIENCE).unwrap(), tag);
            }
            stop.store(true, Ordering::Relaxed);
        });
        // Its owner may take them still.
        assert_eq!(flooded.recv_notification_timeout(PATIENCE).unwrap(), 0);
        eventually("nobody waits any more", || {
            while flooded.recv_notification_timeout(Duration::ZERO).is_ok() {}
            two.a.counter("notices_waiting") == 0
        });
        other.write_notify(0, b"x", 9).unwrap();
    });
}

#[test]
fn who_waits_for_an_owner_that_dies_learns_so() {
    bounded(|| {
        let Two { a, b: _b, owner, user } = Two::new();
        let own = RegionOptions::new().key(KEY).create(&owner, "r", BYTES).unwrap();
        let other = Region::open(&user, a.address(), "r", KEY).unwrap();
        let here = Region::open(&a.session(), a.address(), "r", KEY).unwrap();
        let going: Vec<Pending> = (0..100).map(|tag| submit(&other, tag)).collect();
        eventually("some wait", || a.counter("notices_waiting") == 36);
        let near = std::thread::spawn(move || here.write_notify(0, b"x", 1));
        eventually("so does one here", || a.counter("notices_waiting") == 37);
        drop((own, owner));
        let ends = going.into_iter().map(|pending| pending.wait().unwrap().check());
        let (done, failed): (Vec<_>, Vec<_>) = ends.partition(Result::is_ok);
        assert_eq!((done.len(), failed.len()), (64, 36));
        assert!(near.join().unwrap().is_err());
        eventually("nothing is left", || a.counter("notices_waiting") == 0);
    });
}

#[test]
fn tasks_of_many_regions_are_told_each_of_its_own() {
    bounded(|| {
        let two = Two::new();
        let regions: Vec<_> = (0..8).map(|n| two.region(&format!("r{n}"))).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let owners = regions.iter().map(|(own, _)| own.clone());
            let tasks: Vec<_> = owners
                .map(|own| {
                    tokio::spawn(async move {
                        for tag in 0..100 {
                            assert_eq!(own.notified().await.unwrap().tag, tag);
                        }
                    })
                })
                .collect();
            for tag in 0..100 {
                for (_, other) in &regions {
                    submit(other, tag).await.unwrap().check().unwrap();
                }
            }
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
}
