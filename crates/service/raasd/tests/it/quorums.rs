//! Several submissions of which some must be done: what decides a quorum, and who waits for it how.

use std::time::Duration;

use raas::{Batch, Completion, Pending, Quorum, QuorumError, Region, RegionError, RegionKey, RegionOptions, Session};

use crate::hosts::{Host, PATIENCE, bounded, eventually};

const KEY: RegionKey = RegionKey::new([7; 16]);
const BYTES: u64 = 1 << 16;

/// Regions of three hosts, open on a fourth, whose program has each of them in the session that `session_of` gives it.
struct Copies {
    hosts: Vec<Host>,
    user: Host,
    owned: Vec<(Session, Region)>,
    logs: Vec<Region>,
}

impl Copies {
    fn in_sessions(session_of: impl Fn(&Host) -> Vec<Session>) -> Self {
        let (hosts, user) = ((0..3).map(|_| Host::started()).collect::<Vec<_>>(), Host::started());
        let owned = hosts.iter().map(|host| {
            let session = host.session();
            let own = RegionOptions::new().key(KEY).create(&session, "log", BYTES).unwrap();
            (session, own)
        });
        let owned = owned.collect();
        let sessions = session_of(&user);
        let opened = hosts.iter().zip(sessions.iter().cycle());
        let logs = opened.map(|(host, session)| Region::open(session, host.address(), "log", KEY).unwrap()).collect();
        Self { hosts, user, owned, logs }
    }

    fn new() -> Self {
        Self::in_sessions(|user| vec![user.session()])
    }

    /// Stores a number in each copy.
    fn store(&self, needed: usize, value: u64) -> Quorum {
        let mut quorum = Quorum::new(needed);
        for (number, log) in self.logs.iter().enumerate() {
            assert_eq!(quorum.add(write(log, value)), number);
        }
        quorum
    }

    fn found(&self) -> Vec<u64> {
        self.owned.iter().map(|(_, own)| own.load(0).unwrap()).collect()
    }
}

fn write(log: &Region, value: u64) -> Result<Pending, RegionError> {
    let mut batch = Batch::new();
    batch.write_as(log, 0, value.to_ne_bytes(), Completion::Visible);
    batch.submit()
}

/// All members have ended by now, and the caller is told of each once.
fn ends_of(quorum: &mut Quorum) -> Vec<(usize, Result<(), RegionError>)> {
    let mut late = Vec::new();
    eventually("the others end too", || {
        late.extend(quorum.late());
        quorum.is_over()
    });
    assert!(quorum.late().is_empty(), "each is told once");
    late.sort_by_key(|(number, _)| *number);
    late
}

#[test]
fn as_many_as_are_needed_are_enough_and_the_others_are_told_later() {
    bounded(|| {
        let copies = Copies::new();
        for value in 1..=200 {
            let mut quorum = copies.store(2, value);
            match value % 4 {
                0 => quorum.wait().unwrap(),
                1 => assert!(quorum.wait_timeout(PATIENCE).unwrap()),
                2 => eventually("two are done", || quorum.try_wait().unwrap()),
                _ => while !quorum.wait_timeout(Duration::ZERO).unwrap() {},
            }
            let in_time = (0..3).filter(|number| quorum.ended(*number).is_some()).count();
            let late = ends_of(&mut quorum);
            assert!(late.iter().all(|(_, result)| result.is_ok()), "{late:?}");
            assert_eq!((in_time >= 2, in_time + late.len()), (true, 3));
            assert_eq!(copies.found(), [value; 3]);
            assert_eq!((quorum.len(), quorum.is_empty(), quorum.ended(3).is_none()), (3, false, true));
        }
        // All of all, and none of none.
        let mut quorum = copies.store(3, 7);
        quorum.wait().unwrap();
        assert!(quorum.is_over() && quorum.late().is_empty());
        assert!(Quorum::new(0).try_wait().unwrap());
    });
}

#[test]
fn what_a_member_read_is_in_its_end() {
    bounded(|| {
        let copies = Copies::new();
        let mut quorum = Quorum::new(3);
        for ((number, log), (_, own)) in copies.logs.iter().enumerate().zip(&copies.owned) {
            own.store(64, number as u64 + 5).unwrap();
            let mut batch = Batch::new();
            batch.read(log, 64, 8);
            quorum.add(batch.submit());
        }
        quorum.wait().unwrap();
        let found: Vec<u64> = (0..3).map(|number| quorum.ended(number).unwrap().value(0).unwrap()).collect();
        assert_eq!(found, [5, 6, 7]);
    });
}

#[test]
fn failures_are_named_as_soon_as_those_left_are_too_few() {
    bounded(|| {
        let copies = Copies::new();
        // One is refused before it begins, one is revoked.
        copies.owned[2].1.revoke(None).unwrap();
        let mut quorum = Quorum::new(2);
        quorum.add(write(&copies.logs[0], 9));
        let mut beyond = Batch::new();
        beyond.write(&copies.logs[1], BYTES, *b"x");
        quorum.add(beyond.submit());
        quorum.add(write(&copies.logs[2], 9));
        let end = quorum.wait().unwrap_err();
        let QuorumError::OutOfReach { needed: 2, of: 3, failures } = &end else { panic!("{end}") };
        let [(1, RegionError::OutOfBounds { .. }), (2, RegionError::Revoked { .. })] = &failures[..] else {
            panic!("{failures:?}")
        };
        assert!(end.to_string().starts_with("2 of 3 had to be done, and 2 failed; number 1: region `log`"), "{end}");
        assert_eq!(std::io::Error::from(end).kind(), std::io::ErrorKind::InvalidInput);
        // The one that is left goes on.
        ends_of(&mut quorum);
        assert!(quorum.ended(0).unwrap().check().is_ok());
        assert_eq!(copies.found(), [9, 0, 0]);
        assert!(matches!(quorum.try_wait(), Err(QuorumError::OutOfReach { .. })), "it stays so");
        // One failure is no harm to two of three.
        let mut quorum = copies.store(2, 10);
        quorum.wait().unwrap();
        ends_of(&mut quorum);
        assert!(quorum.ended(2).unwrap().check().is_err());
        assert_eq!(copies.found(), [10, 10, 0]);
        // More than there are.
        let end = copies.store(4, 11).try_wait().unwrap_err();
        assert!(matches!(&end, QuorumError::OutOfReach { needed: 4, of: 3, .. }), "{end}");
    });
}

#[test]
fn a_region_of_this_host_and_one_of_a_lost_host_are_members_too() {
    bounded(|| {
        let mut copies = Copies::new();
        let near = RegionOptions::new().key(KEY).create(&copies.user.session(), "near", BYTES).unwrap();
        copies.hosts[1].stop();
        let mut quorum = copies.store(3, 5);
        quorum.add(write(&near, 5));
        quorum.wait().unwrap();
        assert!(quorum.ended(3).unwrap().check().is_ok(), "done while it was submitted");
        eventually("the lost one fails", || {
            quorum.late();
            quorum.is_over()
        });
        assert!(quorum.ended(1).unwrap().check().is_err());
        assert_eq!((copies.owned[0].1.load(0).unwrap(), near.load(0).unwrap()), (5, 5));
    });
}

/// One thread sleeps for operations of three sessions.
#[test]
fn members_may_be_of_several_sessions() {
    bounded(|| {
        let copies = Copies::in_sessions(|user| (0..3).map(|_| user.session()).collect());
        for value in 1..=100 {
            let mut quorum = copies.store(3, value);
            quorum.wait().unwrap();
            assert_eq!(copies.found(), [value; 3]);
        }
    });
}

#[test]
fn threads_wait_for_quorums_of_the_same_hosts() {
    bounded(|| {
        let copies = Copies::new();
        let adds = 40;
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..adds {
                        let mut quorum = Quorum::new(2);
                        for log in &copies.logs {
                            let mut batch = Batch::new();
                            batch.fetch_add(log, 8, 1);
                            quorum.add(batch.submit());
                        }
                        quorum.wait().unwrap();
                        // What is late is nobody's business here.
                    }
                });
            }
        });
        for (_, own) in &copies.owned {
            eventually("dropped ones run to their end", || own.load(8).unwrap() == 6 * adds);
        }
    });
}

#[test]
fn tasks_await_quorums() {
    bounded(|| {
        let copies = Copies::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for value in 1..=100 {
                let mut quorum = copies.store(2, value);
                quorum.wait_async().await.unwrap();
                let mut all = copies.store(3, value);
                all.wait_async().await.unwrap();
                assert_eq!(copies.found(), [value; 3], "what is behind it on the same queues came after it");
                assert!(quorum.late().iter().all(|(_, result)| result.is_ok()));
            }
            let mut none = copies.store(4, 1);
            assert!(matches!(none.wait_async().await, Err(QuorumError::OutOfReach { .. })));
        });
    });
}
