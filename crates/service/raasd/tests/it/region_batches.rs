//! Several operations on regions in one submission: chains with fences, and the ways to learn of their end.

use std::sync::Arc;
use std::time::Duration;

use raas::{Batch, Completion, Pending, Region, RegionError, RegionKey, RegionOptions, RegionRefusal, Session};

use crate::hosts::{Host, PATIENCE, bounded, eventually, pattern};

const KEY: RegionKey = RegionKey::new([7; 16]);
const BYTES: u64 = 1 << 20;

/// A region of one host, open on another.
struct Far {
    a: Host,
    b: Host,
    owner: Session,
    user: Session,
    own: Region,
    other: Region,
}

impl Far {
    fn new() -> Self {
        let (a, b) = (Host::started(), Host::started());
        let (owner, user) = (a.session(), b.session());
        let own = RegionOptions::new().key(KEY).create(&owner, "r", BYTES).unwrap();
        let other = Region::open(&user, a.address(), "r", KEY).unwrap();
        Self { a, b, owner, user, own, other }
    }

    /// READs, WRITEs and atomics that the user's application began, as `raas stat` shows them.
    fn verbs(&self) -> (u64, u64, u64) {
        let apps = self.b.stat().apps;
        apps.iter().fold((0, 0, 0), |(r, w, a), app| (r + app.reads, w + app.writes, a + app.atomics))
    }
}

/// READ, WRITE and compare-and-swap, each after the one before.
fn append(region: &Region, seen: u64, at: u64, entry: &[u8]) -> (usize, usize, Batch) {
    let mut batch = Batch::new();
    let head = batch.read(region, 0, 8);
    batch.fence();
    batch.write(region, at, entry);
    batch.fence();
    let swap = batch.compare_swap(region, 0, seen, at);
    (head, swap, batch)
}

#[test]
fn a_chain_reads_writes_and_swaps_in_order_for_three_verbs() {
    bounded(|| {
        let far = Far::new();
        far.own.store(0, 9).unwrap();
        let (head, swap, batch) = append(&far.other, 9, 64, b"an entry");
        assert_eq!(batch.len(), 3);
        let ended = batch.run().unwrap();
        ended.check().unwrap();
        assert_eq!((ended.value(head).unwrap(), ended.value(swap).unwrap()), (9, 9));
        assert_eq!((far.own.load(0).unwrap(), far.verbs()), (64, (1, 1, 1)));
        let mut entry = [0; 8];
        far.own.read(64, &mut entry).unwrap();
        assert_eq!(&entry, b"an entry");
        // A swap that finds another value has not failed.
        let (head, swap, batch) = append(&far.other, 9, 128, b"a second");
        let ended = batch.run().unwrap();
        ended.check().unwrap();
        assert_eq!((ended.value(head).unwrap(), ended.value(swap).unwrap(), far.own.load(0).unwrap()), (64, 64, 64));
        assert_eq!(far.verbs(), (2, 2, 2));
        // On one host it is the same, without a verb.
        let (head, swap, batch) = append(&far.own, 64, 192, b"the third");
        let ended = batch.run().unwrap();
        assert_eq!((ended.value(head).unwrap(), ended.value(swap).unwrap(), far.own.load(0).unwrap()), (64, 64, 192));
        assert_eq!(far.verbs(), (2, 2, 2));
        assert_eq!(far.a.stat().apps.iter().map(|app| app.reads + app.writes + app.atomics).sum::<u64>(), 0);
        assert!(Batch::new().run().unwrap().is_empty());
    });
}

/// Another thread counts while chains of two atomics with a fence run: the second never happens before the first.
#[test]
fn what_is_behind_a_fence_happens_after_what_is_before_it() {
    bounded(|| {
        let far = Far::new();
        std::thread::scope(|scope| {
            let checks = scope.spawn(|| {
                loop {
                    let second = far.own.load(8).unwrap();
                    let first = far.own.load(0).unwrap();
                    assert!(first >= second, "{second} of the second with {first} of the first");
                    if second == 200 {
                        return;
                    }
                }
            });
            let pendings: Vec<Pending> = (0..200)
                .map(|_| {
                    let mut batch = Batch::new();
                    batch.fetch_add(&far.other, 0, 1);
                    batch.fence();
                    batch.fetch_add(&far.other, 8, 1);
                    batch.submit().unwrap()
                })
                .collect();
            pendings.into_iter().for_each(|p| p.wait().unwrap().check().unwrap());
            checks.join().unwrap();
        });
    });
}

#[test]
fn a_write_takes_effect_before_an_atomic_behind_it() {
    bounded(|| {
        let far = Far::new();
        std::thread::scope(|scope| {
            let checks = scope.spawn(|| {
                loop {
                    let counted = far.own.load(0).unwrap();
                    let written = far.own.load(64).unwrap();
                    assert!(written >= counted, "{written} with {counted} counted");
                    if counted == 300 {
                        return;
                    }
                }
            });
            let pendings: Vec<Pending> = (1..=300u64)
                .map(|n| {
                    let mut batch = Batch::new();
                    batch.write_as(&far.other, 64, n.to_ne_bytes(), Completion::Posted);
                    batch.fetch_add(&far.other, 0, 1);
                    batch.submit().unwrap()
                })
                .collect();
            pendings.into_iter().for_each(|p| p.wait().unwrap().check().unwrap());
            checks.join().unwrap();
        });
    });
}

#[test]
fn what_is_behind_a_failed_operation_is_not_done_and_says_which_failed() {
    bounded(|| {
        let far = Far::new();
        // The owner takes no notification.
        let full = loop {
            let mut batch = Batch::new();
            batch.fetch_add(&far.other, 0, 1);
            let told = batch.write_notify(&far.other, 64, *b"told", 5);
            batch.fence();
            let behind = batch.fetch_add(&far.other, 8, 1);
            let last = batch.read(&far.other, 8, 8);
            let ended = batch.run().unwrap();
            if let Some(error) = ended.error(told) {
                assert!(matches!(error.refusal(), Some(RegionRefusal::NotificationsFull { .. })), "{error}");
                for number in [behind, last] {
                    let Some(RegionError::NotDone { operation, failed: 1, .. }) = ended.error(number) else {
                        panic!("{ended:?}")
                    };
                    assert_eq!(*operation, number);
                }
                assert!(ended.check().unwrap_err().refusal().is_some(), "the cause comes first");
                break far.own.load(0).unwrap();
            }
            ended.check().unwrap();
        };
        assert_eq!(far.own.load(8).unwrap(), full - 1, "the last chain stopped before it");
        // On one host the same.
        let near = RegionOptions::new().create(&far.owner, "near", BYTES).unwrap();
        for _ in 0..2000 {
            let mut batch = Batch::new();
            batch.write_notify(&near, 64, *b"told", 5);
            batch.fence();
            batch.fetch_add(&near, 16, 1);
            let ended = batch.run().unwrap();
            if ended.error(0).is_some() {
                assert!(matches!(ended.error(1), Some(RegionError::NotDone { operation: 1, failed: 0, .. })));
                return assert!(near.load(16).unwrap() > 0);
            }
        }
        panic!("the daemon kept 2000 notifications");
    });
}

#[test]
fn a_batch_that_cannot_be_is_refused_whole() {
    bounded(|| {
        let far = Far::new();
        let with = |add: &dyn Fn(&mut Batch)| {
            let mut batch = Batch::new();
            batch.fetch_add(&far.other, 0, 1);
            add(&mut batch);
            batch.run().unwrap_err()
        };
        let e = with(&|batch| _ = batch.read(&far.other, BYTES - 4, 8));
        assert!(matches!(e, RegionError::OutOfBounds { len: 8, .. }), "{e}");
        let e = with(&|batch| _ = batch.swap(&far.other, 4, 8));
        assert!(matches!(e, RegionError::Misaligned { offset: 4, .. }), "{e}");
        let e = with(&|batch| _ = batch.write_as(&far.other, 0, *b"x", Completion::Persistent));
        assert!(matches!(e, RegionError::NoPersistence), "{e}");
        let e = with(&|batch| _ = batch.load_of(&far.own));
        assert!(matches!(e, RegionError::OtherHost { .. }), "{e}");
        let e = with(&|batch| _ = batch.write(&far.other, 0, vec![0; 300_000]));
        assert!(matches!(e, RegionError::BatchTooLong { bytes: 300_000.., .. }), "{e}");
        assert_eq!((far.own.load(0).unwrap(), far.verbs()), (0, (0, 0, 0)), "nothing was done");
        far.own.revoke(None).unwrap();
        let mut batch = Batch::new();
        batch.fetch_add(&far.other, 0, 1);
        // The handle may not have heard of it.
        let e = batch.run().map_or_else(|e| e, |ended| ended.error(0).unwrap().clone());
        assert!(matches!(e, RegionError::Revoked { may_have_landed: false, .. }), "{e}");
    });
}

trait LoadOf {
    fn load_of(&mut self, region: &Region) -> usize;
}

impl LoadOf for Batch {
    fn load_of(&mut self, region: &Region) -> usize {
        self.read(region, 0, 8)
    }
}

#[test]
fn a_caller_that_polls_has_many_under_way() {
    bounded(|| {
        let far = Far::new();
        let submit = |n: u64| {
            let mut batch = Batch::new();
            batch.fetch_add(&far.other, 0, 1);
            batch.write(&far.other, 64 + n * 8, n.to_ne_bytes());
            batch.read(&far.other, 64 + n * 8, 8);
            batch.submit().unwrap()
        };
        let mut going: Vec<(u64, Pending)> = (0..500).map(|n| (n, submit(n))).collect();
        let mut found = Vec::new();
        while !going.is_empty() {
            going.retain_mut(|(n, pending)| match pending.try_take() {
                Some(ended) => {
                    found.push(ended.value(0).unwrap());
                    assert_eq!(ended.value(2).unwrap(), *n, "a READ behind a WRITE of its batch sees it");
                    assert!(pending.try_take().is_none(), "it is taken once");
                    false
                }
                None => true,
            });
        }
        found.sort_unstable();
        assert_eq!(found, (0..500).collect::<Vec<_>>());
        let mut one = submit(0);
        let ended = one.wait_timeout(PATIENCE).unwrap().expect("it ends in time");
        assert_eq!(ended.value(0).unwrap(), 500);
    });
}

#[test]
fn more_than_the_queue_holds_waits_in_order_and_more_than_that_is_refused() {
    bounded(|| {
        let far = Far::new();
        let submit = || {
            let mut batch = Batch::new();
            for n in 0..5 {
                batch.write(&far.other, n * 4096, pattern(4096, 3));
            }
            batch.fetch_add(&far.other, BYTES - 8, 1);
            batch.submit()
        };
        let mut going = Vec::new();
        let refused = loop {
            match submit() {
                Ok(pending) => going.push(pending),
                Err(e) => break e,
            }
            assert!(going.len() < 3000, "nobody takes anything: the queue must be full");
        };
        assert!(matches!(refused, RegionError::TooManyPending { max: 1024 }), "{refused}");
        // A call that waits has its turn behind them.
        let last = far.other.fetch_add(BYTES - 8, 0).unwrap();
        assert_eq!(last, going.len() as u64, "all that came before it were done before it");
        for (n, pending) in going.into_iter().enumerate() {
            assert_eq!(pending.wait().unwrap().value(5).unwrap(), n as u64, "in the order of submission");
        }
    });
}

/// The engine waits until there is room for the completions.
#[test]
fn a_batch_reads_more_than_the_ring_of_completions_holds() {
    bounded(|| {
        let far = Far::new();
        let data = pattern(1 << 20, 6);
        far.own.write(0, &data).unwrap();
        for _ in 0..3 {
            let mut batch = Batch::new();
            let all = batch.read(&far.other, 0, 1 << 20);
            let add = batch.fetch_add(&far.other, 0, 0);
            let mut ended = batch.run().unwrap();
            assert!(ended.take_bytes(all).unwrap() == data);
            assert_eq!(ended.value(add).unwrap(), far.own.load(0).unwrap());
        }
    });
}

/// The operator may allow small rings only.
#[test]
fn long_copies_pass_through_the_smallest_rings() {
    bounded(|| {
        for ring_bytes in [4096, 65536] {
            let (a, mut b) = (Host::started(), Host::new());
            b.config.set_limit("ring_bytes_max", ring_bytes).unwrap();
            b.start();
            let (owner, user) = (a.session(), b.session());
            let own = RegionOptions::new().key(KEY).create(&owner, "r", BYTES).unwrap();
            let other = Region::open(&user, a.address(), "r", KEY).unwrap();
            let data = pattern(300_000, 8);
            other.write(24, &data).unwrap();
            let mut got = vec![0; data.len()];
            own.read(24, &mut got).unwrap();
            assert!(got == data);
            got.fill(0);
            other.read(24, &mut got).unwrap();
            assert!(got == data);
            other.write_notify(0, &data[..9000], 7).unwrap();
            assert_eq!(own.recv_notification().unwrap(), 7);
            let mut batch = Batch::new();
            batch.write(&other, 0, vec![1; ring_bytes as usize]);
            let e = batch.run().unwrap_err();
            assert!(matches!(e, RegionError::BatchTooLong { .. }), "{e}");
        }
    });
}

#[test]
fn threads_share_the_queue_and_each_gets_its_own() {
    bounded(|| {
        let far = Far::new();
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let other = far.other.clone();
                scope.spawn(move || {
                    let data = pattern(20_000, thread as u8);
                    let at = 1000 + thread * 20_000;
                    for _ in 0..20 {
                        other.write(at, &data).unwrap();
                        let mut got = vec![0; data.len()];
                        other.read(at, &mut got).unwrap();
                        assert!(got == data);
                        other.fetch_add(0, 1).unwrap();
                    }
                });
            }
        });
        assert_eq!(far.own.load(0).unwrap(), 120);
    });
}

#[test]
fn a_dropped_handle_takes_nothing_back() {
    bounded(|| {
        let far = Far::new();
        let other = Region::open(&far.user, far.a.address(), "r", KEY).unwrap();
        for n in 0..50 {
            let mut batch = Batch::new();
            batch.write(&other, 64 + n * 8, (n + 1).to_ne_bytes());
            batch.fence();
            batch.fetch_add(&other, 0, 1);
            drop(batch.submit().unwrap());
        }
        // The last handle of the program's is what its operations hold.
        drop(other);
        eventually("all are done", || far.own.load(0).unwrap() == 50);
        assert!((0..50).all(|n| far.own.load(64 + n * 8).unwrap() == n + 1));
        let opens = || raas::inspect::regions(Some(&far.a.config.socket)).unwrap()[0].remote_opens;
        eventually("then the handle is given back", || opens() == 1);
        let _ = &far.owner;
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn tasks_await_their_batches() {
    bounded(|| {
        let far = Arc::new(Far::new());
        runtime().block_on(async {
            let tasks: Vec<_> = (0..50u64)
                .map(|task| {
                    let far = Arc::clone(&far);
                    tokio::spawn(async move {
                        let mut found = Vec::new();
                        for n in 0..10 {
                            let mut batch = Batch::new();
                            let add = batch.fetch_add(&far.other, 0, 1);
                            batch.write(&far.other, 64 + task * 8, (task * 100 + n).to_ne_bytes());
                            batch.fence();
                            let read = batch.read(&far.other, 64 + task * 8, 8);
                            let ended = batch.submit().unwrap().await.unwrap();
                            assert_eq!(ended.value(read).unwrap(), task * 100 + n);
                            found.push(ended.value(add).unwrap());
                        }
                        found
                    })
                })
                .collect();
            let mut found = Vec::new();
            for task in tasks {
                found.extend(task.await.unwrap());
            }
            found.sort_unstable();
            assert_eq!(found, (0..500).collect::<Vec<_>>());
        });
    });
}

#[test]
fn a_future_that_is_cancelled_leaves_its_operations_running() {
    bounded(|| {
        let far = Far::new();
        runtime().block_on(async {
            let mut cancelled = 0;
            for n in 0..100u64 {
                let mut batch = Batch::new();
                batch.write(&far.other, 64 + n * 8, (n + 1).to_ne_bytes());
                batch.fence();
                batch.fetch_add(&far.other, 0, 1);
                let going = batch.submit().unwrap();
                tokio::select! {
                    biased;
                    _ = going => {}
                    () = tokio::task::yield_now() => cancelled += 1,
                }
            }
            assert!(cancelled > 0, "each was faster than a yield");
            while far.own.load(0).unwrap() < 100 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!((0..100).all(|n| far.own.load(64 + n * 8).unwrap() == n + 1));
        });
    });
}

#[test]
fn operations_under_way_end_when_a_daemon_is_lost() {
    bounded(|| {
        for their in [true, false] {
            // The region lives as long as its owner has it.
            let Far { mut a, mut b, other, own: _own, .. } = Far::new();
            other.fetch_add(0, 1).unwrap();
            if their {
                a.stop();
            } else {
                b.stop();
            }
            let mut lost = None;
            eventually("the loss is seen", || {
                let mut batch = Batch::new();
                batch.fetch_add(&other, 0, 1);
                lost = match batch.run() {
                    Ok(ended) => ended.error(0).cloned(),
                    Err(e) => Some(e),
                };
                lost.is_some()
            });
            let lost = lost.unwrap();
            if their {
                assert!(!matches!(lost, RegionError::Session(_)), "{lost}");
            } else {
                // One that was in the ring by then may have been done.
                assert!(matches!(lost, RegionError::Session(_) | RegionError::OutcomeUnknown { .. }), "{lost}");
            }
        }
    });
}
